"""The resource ``InferencePipeline``: models, rules, names, conditions.

Lowest layer; does no I/O.
"""

from .base import Finding
from .parse import parse
from .v1alpha1 import InferencePipeline

__all__ = ["Finding", "InferencePipeline", "parse"]
