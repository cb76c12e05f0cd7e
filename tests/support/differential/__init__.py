"""Compare the validator ``render.judge`` with a real Triton.

The package generates model repositories, breaks rules one by one, and compares.
"""

from .engine import Differential, DisagreementError, Repository, running

__all__ = ["Differential", "DisagreementError", "Repository", "running"]
