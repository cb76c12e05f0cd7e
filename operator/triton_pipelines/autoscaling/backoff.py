"""Pauses after changes that failed: the same change is not tried again and again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

LONGEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures in a row of one step, when the last was (Unix seconds), and Triton's reason."""

    failures: int = 0
    last: float = 0.0
    reason: str = ""

    def failed(self, now: float, reason: str) -> Backoff:
        """One more failure."""
        return replace(self, failures=self.failures + 1, last=now, reason=reason)

    def wait(self, cooldown: float, now: float) -> float:
        """Seconds until the next try: the cool-down doubled with each failure, at most ten minutes."""
        if not self.failures:
            return 0.0
        pause = min(LONGEST_S, cooldown * 2.0 ** min(self.failures, 16))
        return max(0.0, self.last + pause - now)
