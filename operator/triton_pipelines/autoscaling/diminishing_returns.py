"""Diminishing returns: growth that did not raise throughput is not followed by more. Pure.

A growth is assessed once it has had time to show, while the step is still saturated. If the backlog
no longer grows (closed-loop clients, or a GPU step at its limit) and the GPU step is no faster than
before, more instances only compete for CPU. Growth is then held until the reason is gone: the step
is no longer saturated, the service time has clearly changed, the CPU limit has changed, or a
quarter of an hour has passed (one more try).
"""

from __future__ import annotations

from typing import Final

from triton_pipelines.autoscaling.types import InstanceGrowth

GAIN: Final = 0.05
"""Least rise of throughput that counts; half the growth's own share where that is smaller."""
HOLD_SECONDS: Final = 900.0
_CHANGED: Final = 0.2
"""Relative change of the service time that makes an earlier assessment void."""
_STEADY: Final = 0.05
"""Growth of the backlog per completion below which it counts as steady."""


def growth_was_useless(
    growth: InstanceGrowth | None,
    *,
    saturated: bool,
    throughput: float | None,
    arrivals: float,
    settled: bool,
) -> bool | None:
    """Return whether the last growth did not raise throughput; ``None``: too early to say.

    Args:
        growth: The last growth.
        saturated: Whether the step is still saturated.
        throughput: Requests/s of the GPU step over the fast window.
        arrivals: Requests/s that arrive at the scaled step over the fast window.
        settled: Whether the growth has been in effect for a fast window.
    """
    if growth is None or not saturated or throughput is None or not settled:
        return None
    if arrivals > (1 + _STEADY) * throughput:
        return None  # The backlog still grows: there is work for more instances.
    share = growth.after / growth.before - 1
    return throughput < growth.throughput * (1 + min(GAIN, share / 2))


def growth_released(
    held: tuple[float, InstanceGrowth],
    *,
    now: float,
    saturated: bool,
    service: float | None,
    cores: float | None,
) -> bool:
    """Return whether the reason to hold growth is gone.

    Args:
        held: Since when growth is held, and the growth that did not raise throughput.
        now: Unix seconds.
        saturated: Whether the step is still saturated.
        service: Service time, seconds.
        cores: CPU limit, cores.
    """
    since, growth = held
    if not saturated or not 0 <= now - since < HOLD_SECONDS or cores != growth.cores:
        return True
    if service is None or growth.service <= 0:
        return False
    return abs(service / growth.service - 1) > _CHANGED
