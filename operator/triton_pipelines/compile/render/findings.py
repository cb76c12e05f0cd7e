"""Map a violation in a rendered config to the field of the resource that caused it."""

from __future__ import annotations

import re

from pydantic.alias_generators import to_camel

from triton_pipelines.api.base import Finding
from triton_pipelines.compile.graph.graph import Graph, Step
from triton_pipelines.compile.validation import Violation

ENSEMBLE = "spec.ensemble"
# First part of a path in a ModelConfig → field of a step, where the camel case of the one is not
# the other.
_FIELDS = {
    "input": "inputs",
    "output": "outputs",
    "instance_group": "instances",
    "model_warmup": "warmup",
    "model_transaction_policy": "decoupled",
    "default_model_filename": "source.fileName",
    "platform": "platform",
    "backend": "platform",
}
_OWN = (
    "max_batch_size",
    "dynamic_batching",
    "sequence_batching",
    "version_policy",
    "optimization",
    "parameters",
)


def as_finding(violation: Violation, graph: Graph) -> Finding:
    """Return the violation as a finding with a path of the resource."""
    step = next((step for step in graph.models if step.model_name == violation.model), None)
    return Finding(
        ENSEMBLE if step is None else _path(step, violation.field),
        violation.message,
        code=violation.rule.value,
        config_place=": ".join(part for part in (violation.model, violation.field) if part),
    )


def _path(step: Step, field: str) -> str:
    first, index = re.match(r"^([a-z_]*)(\[[0-9]+\])?", field).groups()  # type: ignore[union-attr]
    if step.config_patch and (first in step.config_patch or to_camel(first) in step.config_patch):
        return f"{step.path}.configPatch.{first}"
    if first in _OWN:
        return f"{step.path}.{to_camel(first)}"
    if first not in _FIELDS:
        return step.path
    groups = step.instances.groups
    if first == "instance_group" and index and (place := int(index[1:-1])) < len(groups):
        return f"{step.path}.{groups[place].field}"
    listed = index if first in ("input", "output") and index else ""
    return f"{step.path}.{_FIELDS[first]}{listed}"
