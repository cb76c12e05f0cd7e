"""The resource ``InferencePipeline``: models, rules, names, conditions.

Lowest layer; does no I/O.
"""

from .base import Finding, Severity, Switch
from .parse import parse
from .v1alpha1 import InferencePipeline, PipelineSpec

__all__ = ["Finding", "InferencePipeline", "PipelineSpec", "Severity", "Switch", "parse"]
