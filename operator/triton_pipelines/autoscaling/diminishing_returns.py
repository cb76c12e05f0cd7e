"""The knee: growth that did not raise the GPU step's throughput is not followed by more. Pure.

A growth is judged once it has had time to show, while the step is still saturated: with a backlog that no longer grows (closed-loop
clients, or a GPU step at its end) and a GPU step no faster than before, more instances only take CPU from each other. The freeze
ends when its reason does: the step is no longer saturated, a request costs clearly other than then, the CPU limit changed, or a
quarter of an hour has passed (one more try).
"""

from __future__ import annotations

from triton_pipelines.autoscaling.types import Growth

GAIN = 0.05  # least rise of throughput that counts as one, of the growth's own share where that is smaller
THAW_SECONDS = 900.0
_CHANGED = 0.2  # relative change of E that makes an old judgement void
_STANDS = 0.05  # growth of the backlog, per completion, below which it stands


def judged(
    growth: Growth | None,
    *,
    saturated: bool,
    throughput: float | None,
    arrivals: float,
    settled: bool,
) -> bool | None:
    """Whether the last growth bought nothing; ``None``: too early to say.

    ``throughput`` of the GPU step and ``arrivals`` of the scaled one, requests/s over the fast window; ``settled``: the growth has
    been in force for that long.
    """
    if growth is None or not saturated or throughput is None or not settled:
        return None
    if arrivals > (1 + _STANDS) * throughput:
        return None  # the backlog still grows: there is work that more instances could do
    share = growth.after / growth.before - 1
    return throughput < growth.throughput * (1 + min(GAIN, share / 2))


def thawed(
    frozen: tuple[float, Growth],
    *,
    now: float,
    saturated: bool,
    service: float | None,
    cores: float | None,
) -> bool:
    """Whether the reason of a freeze is gone."""
    since, growth = frozen
    if not saturated or now - since >= THAW_SECONDS or cores != growth.cores:
        return True
    return (
        service is not None and growth.service > 0 and abs(service / growth.service - 1) > _CHANGED
    )
