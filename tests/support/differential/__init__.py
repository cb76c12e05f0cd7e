"""The judge of ``render.judge`` against a real Triton: generated model repositories, rules broken one by one, and the comparison itself."""

from .engine import Differential, DisagreementError, Repository, running

__all__ = ["Differential", "DisagreementError", "Repository", "running"]
