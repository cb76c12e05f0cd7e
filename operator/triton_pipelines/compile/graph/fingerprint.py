"""Hash everything in a spec that the cost of a padding mode depends on.

A measurement made for one spec says nothing of another. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from triton_pipelines.api.v1alpha1 import InferencePipeline

from .model_step import implementation_of
from .options import Options

# Fields that affect neither the cost of a step nor how its requests are batched. All others count,
# including those of later releases: a field that is set changes the fingerprint, and one that is
# left out does not, so that an upgrade keeps every measurement.
_NO_COST: Final = frozenset(
    {
        "replicas",
        "suspend",
        "serviceAccountName",
        "health",
        "rollout",
        "scaling",
        "slo",
        "tuning",
        "observability",
    }
)
_NO_COST_OF_SERVER: Final = frozenset({
    "imagePullPolicy", "imagePullSecrets", "serviceAccountName", "tolerations",
    "topologySpreadConstraints", "priorityClassName", "modelCache", "service", "networkPolicy",
    "disruptionBudget",
})  # fmt: skip
_PADDING: Final = frozenset({"padding", "buckets"})
LENGTH: Final = 16


def cost_fingerprint(
    pipeline: InferencePipeline, options: Options, digests: Mapping[str, str]
) -> str:
    """Return sixteen hex digits that are equal for specs with the same cost of each padding.

    Included: every step with its source and its batching, the tokenizer except for its padding,
    instance counts, the settings of the server that the spec sets (image, GPU, CPU, nodes), the
    implementation that runs each step, and the content of ConfigMap sources (``digests``: step →
    hash). Not included: the latency SLO, on which no cost depends, and the default of the server
    image.
    """
    spec: dict[str, Any] = pipeline.spec.model_dump(
        mode="json", by_alias=True, exclude_defaults=True
    )
    spec = _without(spec, _NO_COST)
    for part, ignored in (("server", _NO_COST_OF_SERVER), ("tokenizer", _PADDING)):
        spec[part] = _without(spec.get(part) or {}, ignored)
    steps = [step for step in (pipeline.spec.model, *pipeline.spec.steps) if step is not None]
    whole = {
        "spec": spec,
        "run by": [implementation_of(step, options).value for step in steps],
        "digests": dict(digests),
    }
    return hashlib.sha256(
        json.dumps(whole, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()[:LENGTH]


def _without(fields: Mapping[str, Any], ignored: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in ignored}
