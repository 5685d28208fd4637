"""How a network runs in training: in compiled pieces, and with activations that are computed again instead of kept.

Note [Activations computed again]
The backward pass needs the inputs of every layer, which in training take most of the memory. With activation checkpointing a
Sequential is cut into about √n segments of √n pieces each. Only the inputs of segments are kept; the backward pass runs each
segment once more before it goes through it (`torch.utils.checkpoint`), so that a step holds 2√n pieces instead of n and
takes one forward pass longer. The last segment is kept whole, since the backward pass begins with it.

The gradients are the same, bit for bit where one pass is like another. That needs modules which compute the same when they
run again. So a piece with buffers (running means, vectors of a power iteration) runs once and keeps its activations. Random
numbers are kept and drawn again, which a CUDA graph cannot hold, unless all modules are known not to draw any.
"""

import copy
import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from isoconv.errors import require

Piece = list[nn.Module]
_KNOWN = ("isoconv.", "torch.nn.")
_DROPS = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)
_RANDOM = (*_DROPS, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


class Segment(NamedTuple):
    """Pieces that follow each other, and whether the backward pass computes their activations again."""

    pieces: list[Piece]
    again: bool


def run_in_pieces(model: nn.Module, compiled: bool = False, checkpointed: bool = False) -> nn.Module:
    """Return the same network, which shares all its modules, with compiled passes, or with activations computed again.

    A Sequential is cut before each module that multiplies by a matrix: nothing is fused across those anyway, and like
    pieces share their code, so that many like blocks compile as fast as a few. Where there is no compiler, it says so in one
    warning and runs as it is.
    """
    check_checkpointing(model, checkpointed)
    pieces, random = _cut(model), not is_repeatable(model)
    segments = _join(pieces) if checkpointed else [Segment(pieces, False)]
    limit = max(8, 4 * len(pieces))
    twin, run = copy.copy(model), torch.compile(_run_in_turn, dynamic=False) if compiled else _run_in_turn

    def run_pieces(pieces: Sequence[Piece], *inputs: Any, **options: Any) -> Any:
        # torch warns of weights that are no leaves, which is what they are meant to be.
        quiet = warnings.catch_warnings(action="ignore") if compiled else nullcontext()
        with torch._dynamo.config.patch(recompile_limit=limit) if compiled else nullcontext(), quiet:
            result = run(pieces[0], *inputs, **options)
            for piece in pieces[1:]:
                result = run(piece, result)
        return result

    def run_segments(*inputs: Any, **options: Any) -> Any:
        result = None
        for segment in segments:
            if segment.again and torch.is_grad_enabled():
                # Stopping early, torch would miss random numbers that a last layer draws into a tensor it has saved (RReLU).
                settings: Any = {"use_reentrant": False, "preserve_rng_state": random, "early_stop": not random}
                result = checkpoint(run_pieces, segment.pieces, *inputs, **settings, **options)
            else:
                result = run_pieces(segment.pieces, *inputs, **options)
            inputs, options = (result,), {}
        return result

    def forward(*inputs: Any, **options: Any) -> Any:
        try:
            return run_segments(*inputs, **options)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split())[:200]
            warnings.warn(f"Expected a compiler, to train faster. The network runs uncompiled: {reason}", stacklevel=2)
            twin.forward = run_in_pieces(model, checkpointed=True).forward if checkpointed else model.forward
            return twin.forward(*inputs, **options)

    twin.forward = forward if compiled else run_segments
    return twin


def check_checkpointing(model: nn.Module, checkpointed: bool = True) -> None:
    """Raise if activations of a network are to be computed again that cannot be cut into pieces."""
    sequence = not checkpointed or len(_cut(model)) > 1
    require(sequence, "an nn.Sequential of layers, to checkpoint activations", type(model).__name__)


def is_repeatable(model: nn.Module) -> bool:
    """Return True if all modules are of kinds that are known not to draw random numbers."""
    known = (type(module).__module__.startswith(_KNOWN) for module in model.modules())
    return all(known) and not any(isinstance(module, _RANDOM) for module in model.modules())


def _cut(model: nn.Module) -> list[Piece]:
    pieces: list[Piece] = [[]]
    for module in model.children() if type(model).forward is nn.Sequential.forward else [model]:
        if pieces[-1] and any(p.dim() > 1 for p in module.parameters()):
            pieces.append([])
        pieces[-1].append(module)
    return pieces


def _join(pieces: Sequence[Piece]) -> list[Segment]:
    """Return pieces in segments; see Note [Activations computed again]."""
    size = math.isqrt(len(pieces) - 1) + 1
    segments: list[Segment] = []
    for piece in pieces:
        again = not any(True for module in piece for _ in module.buffers())
        if not segments or segments[-1].again != again or len(segments[-1].pieces) == size:
            segments.append(Segment([], again))
        segments[-1].pieces.append(piece)
    return [*segments[:-1], segments[-1]._replace(again=False)]


def _run_in_turn(modules: Sequence[nn.Module], *inputs: Any, **options: Any) -> Any:
    result = modules[0](*inputs, **options)
    for module in modules[1:]:
        result = module(result)
    return result
