"""The mean of a network over an image and its mirror image.

Note [Mirror images]
A mirror image is a permutation M of the pixels, so ‖Mx − Mx′‖ = ‖x − x′‖, and (f(x) + f(Mx))/2 has the Lipschitz constant
of f. Errors that f makes on one of the two only become smaller: `results/recipes/cifar10-small-bcop-mirror.json`. The mean
is taken in front of a last linear layer A, as A·(g(x) + g(Mx))/2, so that the constants ‖a_i − a_j‖ of pairs remain.
"""

import copy
from collections.abc import Sequence

from torch import nn

from isoconv.nn.activations import Scale
from isoconv.nn.graph import INPUT, Add, Flip, Graph, GraphNode
from isoconv.nn.plain_model import plain
from isoconv.nn.trace import number, trace


def symmetrise(model: nn.Module, input_shape: Sequence[int]) -> Graph:
    """Return the mean of `plain(model)` over an input and its mirror image, left and right exchanged, in evaluation mode.

    It has the model's Lipschitz constant and the weights of `plain(model)`, under their names, and takes twice as long. For
    images whose class does not depend on left and right. See Note [Mirror images].

    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(2, 1, bias=False))
    >>> x = torch.rand(1, 1, 1, 2)
    >>> bool(torch.isclose(symmetrise(network, (1, 1, 2))(x), network[1].weight.mean() * x.sum()))
    True
    """
    network = plain(model, input_shape)
    if not isinstance(network, Graph):
        chain = network if isinstance(network, nn.Sequential) else nn.Sequential(network)
        network = trace(copy.deepcopy(chain), input_shape)
    modules = {node.path: network.get_submodule(node.path) for node in network.nodes}
    *before, last = network.nodes
    own = len(before) > 0 and last.inputs == (before[-1].name,) and type(modules[last.path]) is nn.Linear
    doubled = before if own else network.nodes
    names = {path.split(".")[0] for path in modules}
    mirror, total, mean = (
        next(name for name in number(word, "_", 1) if name not in names) for word in ("mirror", "sum", "mean")
    )
    modules |= {mirror: Flip(len(input_shape)), total: Add(), mean: Scale(0.5)}
    twins = {INPUT: mirror, **{node.name: f"{node.name}, mirrored" for node in doubled}}
    mirrored = [GraphNode(twins[n.name], n.path, tuple(twins[name] for name in n.inputs)) for n in doubled]
    nodes = [*doubled, GraphNode(mirror, mirror, (INPUT,)), *mirrored]
    nodes += [GraphNode(total, total, (doubled[-1].name, twins[doubled[-1].name])), GraphNode(mean, mean, (total,))]
    return Graph(modules, [*nodes, last._replace(inputs=(mean,))] if own else nodes).eval()
