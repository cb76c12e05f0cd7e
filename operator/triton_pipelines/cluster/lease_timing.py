"""Durations of the leader election."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Waits between attempts are the retry period times 1 to 1 + this factor; client-go's JitterFactor.
JITTER: Final = 1.2


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Durations of the election in seconds; the defaults are client-go's."""

    duration: int = 15
    """How long a record is valid for others after they saw it change; the Lease holds it as an
    integer."""
    renew_deadline: float = 10.0
    """Time after the last successful renewal at which the leader stops."""
    retry_period: float = 2.0
    """Time between two attempts, before jitter."""

    def __post_init__(self) -> None:
        if not self.retry_period > 0:
            raise ValueError(f"the retry period ({self.retry_period:g} s) must be greater than 0")
        if not self.renew_deadline > self.retry_period * JITTER:
            raise ValueError(
                f"the renew deadline ({self.renew_deadline:g} s) must be longer than {JITTER:g} "
                f"times the retry period ({self.retry_period:g} s)"
            )
        if not self.duration > self.renew_deadline:
            raise ValueError(
                f"the lease duration ({self.duration:g} s) must be longer than the renew "
                f"deadline ({self.renew_deadline:g} s)"
            )
