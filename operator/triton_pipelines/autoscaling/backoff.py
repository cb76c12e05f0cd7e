"""Exponential back-off between attempts of a change that failed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

LONGEST_S: Final = 600.0
"""Longest pause, seconds."""


@dataclass(frozen=True, slots=True)
class ScalingBackoff:
    """Consecutive failures of a step's change."""

    failures: int = 0
    """Failures in a row."""
    last: float = 0.0
    """Time of the last one, Unix seconds."""
    reason: str = ""
    """Triton's reason."""

    def failed(self, now: float, reason: str) -> ScalingBackoff:
        """Return the back-off after one more failure."""
        return replace(self, failures=self.failures + 1, last=now, reason=reason)

    def wait(self, cooldown: float, now: float) -> float:
        """Return the seconds until the next attempt.

        The cool-down doubles with each failure, up to ten minutes.
        """
        if not self.failures:
            return 0.0
        pause = min(LONGEST_S, cooldown * 2.0 ** min(self.failures, 16))
        left = self.last + pause - now
        # A failure in the future was recorded before the clock was set back.
        return max(0.0, left) if self.last <= now else 0.0
