"""The layers that training projects now and then, SVCM's: those of all replicas after a step of each."""

from collections.abc import Sequence

from isoconv.nn.svcm import project_together
from isoconv.train.replica import Replica


def project_where_due(replicas: Sequence[Replica]) -> None:
    """After every `project_every` updates and after the last; to be called once for each step of these replicas."""
    project([one for one in replicas if one.done % one.config.project_every == 0 or one.done == one.steps])


def project(replicas: Sequence[Replica], together: bool | None = None) -> None:
    """Project all that these replicas project rarely, like layers together or one by one; by default, together on a GPU.

    There like layers of all replicas take hardly longer than those of one. On a CPU one by one: what is trained beside
    others is bit for bit what is trained alone.
    """
    replicas = [replica for replica in replicas if replica.projected_rarely]
    for replica in replicas:
        replica.wait()  # while its next step waits for the current stream, so for what is launched here
    if together is None:
        together = any(replica.device.type == "cuda" for replica in replicas)
    for iterations in dict.fromkeys(replica.config.project_iterations for replica in replicas):
        layers = [m for r in replicas if r.config.project_iterations == iterations for m in r.projected_rarely]
        for group in [layers] if together else [[layer] for layer in layers]:
            project_together(group, iterations)
