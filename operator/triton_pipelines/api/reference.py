"""The API reference, generated from the models.

``python -m triton_pipelines.api.reference`` prints docs/reference/api.md.

One section per kind of object, with a table of its fields and a list of its rules; then conditions
and their reasons.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import names
from .base import ApiModel
from .conditions import ABNORMAL, KIND_OF, ConditionType, Reason, ReasonKind
from .crd import PRINTER_COLUMNS
from .field_paths import model_below
from .open_fields import is_open
from .status import Status
from .structural_schema import structural
from .v1alpha1 import ROOT_RULES, InferencePipeline, PipelineSpec

# Longer lists of paths do not help a reader: only the first few are shown.
MAX_PLACES = 6
PLACES_SHOWN = 3

CONDITION_MEANING: Mapping[ConditionType, str] = {
    ConditionType.READY: (
        "Every pod serves the latest spec. True with reason Suspended if no pods are desired."
    ),
    ConditionType.AVAILABLE: (
        "A revision serves requests. After a failed change, Ready is False, but Available "
        "remains True."
    ),
    ConditionType.RECONCILING: (
        "The operator is applying the spec or waiting for something external."
    ),
    ConditionType.STALLED: "You must change the spec or an object that it references.",
    ConditionType.MODELS_READY: (
        "Triton reports every model in every pod as ready. Otherwise, the message names the "
        "pod and contains Triton's reason."
    ),
    ConditionType.METRICS_AVAILABLE: (
        "The metrics of every ready pod are current and plausible. Otherwise, counts do "
        "not decrease, and the message states what to check."
    ),
    ConditionType.SCALING_ACTIVE: "Counts follow the load. Otherwise, the message states why not.",
    ConditionType.SCALING_LIMITED: (
        "The load requires more instances than the bounds, the CPU, the memory or the GPU step "
        "allow. The message names the limit."
    ),
}

KIND_MEANING: Mapping[ReasonKind, str] = {
    ReasonKind.FINE: "nothing to do",
    ReasonKind.WAITING: "waiting for something external, which the operator watches",
    ReasonKind.STALLED: "change the spec or an object that it references",
    ReasonKind.TRANSIENT: "the operator retries with exponential back-off",
}

REASON_MEANING: Mapping[Reason, str] = {
    Reason.SUCCEEDED: "The cluster matches the spec.",
    Reason.SERVING: "Requests are answered.",
    Reason.SUSPENDED: (
        "`spec.suspend` is Enabled, so no pods run. Set it to Disabled to serve requests again."
    ),
    Reason.ADVISORY: "`scaling.mode` is Advisory, so decisions are published but not applied.",
    Reason.BOUNDS_REACHED: "The count is at `instances.min` or `instances.max`.",
    Reason.TOKENIZER_BOUND: "The tokenizer limits the pipeline.",
    Reason.STEP_BOUND: "A CPU step other than the tokenizer limits the pipeline.",
    Reason.CPU_BOUND: (
        "The container uses its entire CPU limit, so another instance would not help. Raise "
        "`server.resources.limits.cpu`."
    ),
    Reason.GPU_BOUND: (
        "The GPU step is fully utilized, so more tokenizers would not help. Add pods, or "
        "improve batching."
    ),
    Reason.CPU_CONTENDED: (
        "Other threads in the container, such as those of libraries, take CPU time from the "
        "scaled steps."
    ),
    Reason.NO_PROGRESS: (
        "Requests are waiting or are rejected, but none of them completes. A process might have "
        "died."
    ),
    Reason.BATCHING_INEFFECTIVE: (
        "The GPU step runs requests one at a time, although others are waiting, because their "
        "shapes differ. See `tokenizer.padding`."
    ),
    Reason.REPLICAS_OWNER_CONFLICT: (
        "Two controllers set the number of pods. The message names both, states whose value is "
        "in effect, and explains how to keep only one of them."
    ),
    Reason.CPU_OWNER_CONFLICT: (
        "Another controller resizes the pods in place. The message names it, and the operator "
        "does not change the CPU of the pods."
    ),
    Reason.METRICS_MISSING: (
        "There are no metrics for the pods. The message states what to check. Instance counts "
        "do not decrease."
    ),
    Reason.METRICS_STALE: (
        "The newest metrics are too old. After `scaling.staleAfterSeconds`, the fallback applies."
    ),
    Reason.METRICS_PARTIAL: (
        "Metrics are missing for some pods or models. Instance counts do not decrease."
    ),
    Reason.PROMETHEUS_ERROR: "Prometheus returns an error or times out.",
    Reason.ACTUATION_FAILED: (
        "An instance count could not be changed in a pod. The message contains Triton's "
        "reason. The old count remains in effect, and the operator retries the change with "
        "exponential back-off."
    ),
    Reason.PROGRESSING: "A rollout is in progress.",
    Reason.PREFLIGHT: (
        "A Job without GPUs runs the loader's checks of the new revision before a serving pod "
        "is removed to make room for it."
    ),
    Reason.DRAINING: "Pods of older revisions, or more pods than desired, still exist.",
    Reason.WAITING_FOR_GPU: (
        "No node has the GPUs that a pod requests. The message lists the request and the GPUs "
        "of the nodes."
    ),
    Reason.WAITING_FOR_RESOURCES: (
        "No node has the CPU, memory or other resource that a pod requests."
    ),
    Reason.WAITING_FOR_PODS: "The pods are starting. The state of their models is not known yet.",
    Reason.LOADING: "Sources are being fetched, or Triton is loading the models.",
    Reason.SOURCE_UNAVAILABLE: (
        "A source cannot be fetched. The message names the URI, but never the credentials. "
        "Check that the source exists and that the credentials in secretRef can read it."
    ),
    Reason.INVALID_CERTIFICATE: (
        "The Secret in `spec.server.tls` cannot be used: it is missing, the operator is "
        "not allowed to read it, or its certificate has expired or does not match its key. "
        "Running pods continue to serve."
    ),
    Reason.IMAGE_UNAVAILABLE: (
        "The Triton image cannot be pulled. Check `spec.server.image` and "
        "`spec.server.imagePullSecrets`."
    ),
    Reason.NO_PODS: "No pod is ready to serve requests.",
    Reason.PAUSED: (
        f"The annotation `{names.ANNOTATION_PAUSED}` stops all writes. Remove it to continue."
    ),
    Reason.INVALID_SPEC: (
        "The spec violates rules of the operator or of Triton. The message lists all findings "
        "with their fields. The running version keeps serving."
    ),
    Reason.ROLLOUT_FAILED: (
        "The new revision made no progress within `spec.rollout.progressDeadlineSeconds`."
    ),
    Reason.ROLLED_BACK: (
        "The new revision failed, or violated the SLO that the previous one met; the previous"
        " revision serves again."
    ),
    Reason.SLO_VIOLATED: (
        "Appears in the message of RolledBack, with both values of the p99. The new revision "
        "violated `spec.slo`."
    ),
    Reason.TUNING_STALE: (
        "Appears in `status.warnings`. The results in `status.tuning` were measured on a "
        "revision that no longer serves."
    ),
    Reason.MODEL_MISMATCH: (
        "The model's file does not match the spec: its inputs or outputs differ, it accepts "
        "fewer token IDs than the tokenizer emits, or it accepts only rows shorter than "
        "`tokenizer.maxLength`. The message shows the values in the file and in the spec."
    ),
    Reason.SOURCE_CHANGED: (
        "An unpinned source no longer provides the content that this pipeline revision was "
        "started with. Pin the source, or change the spec."
    ),
    Reason.CHECKSUM_MISMATCH: "The SHA-256 digest of a file differs from the one in its source.",
    Reason.INVALID_TOKENIZER: "The tokenizer cannot be loaded from its files.",
    Reason.RAGGED_UNSUPPORTED: (
        "The model's file cannot be adapted to ragged batches, as `spec.tokenizer.padding: "
        "Ragged` requires. The message states why. With Auto, another mode is used instead."
    ),
    Reason.MODEL_FAILED: "Triton cannot load a model. The message quotes Triton's error.",
    Reason.NAME_CONFLICT: (
        "An object whose name the pipeline needs has another owner. Rename the pipeline, or "
        "remove that object."
    ),
    Reason.INFERENCE_FAILED: "Triton reports that it is ready, but a test inference fails.",
    Reason.API_ERROR: (
        "The Kubernetes API server rejects an object or a pod of the pipeline (quota, admission, "
        "a missing service account or permission). The message quotes its error."
    ),
    Reason.PERMISSION_DENIED: (
        "The service account that the operator impersonates lacks a permission. The message "
        "names the account, the object and the verbs."
    ),
    Reason.NO_SPACE: "The volume for sources is full.",
    Reason.SERVER_CRASHED: "Triton exited. The message contains the end of its log.",
    Reason.INTERNAL_ERROR: "An error in the operator or in a source's server. See the logs.",
}


@functools.cache
def _schema(model: type[ApiModel], *, defaults: bool = True) -> Mapping[str, Any]:
    """Return the schema of one class; cached, because a class is used in many places."""
    return structural(model, defaults=defaults)


def _sections(root: type[ApiModel], path: str) -> Iterator[tuple[type[ApiModel], list[str]]]:
    """Yield every model below ``root``, breadth first, with all paths that use it."""
    found: dict[type[ApiModel], list[str]] = {root: [path]}
    queue = [(root, path)]
    while queue:
        model, here = queue.pop(0)
        for name, info in model.model_fields.items():
            child = model_below(info.annotation)
            if child is None:
                continue
            listed = _schema(model)["properties"][info.alias or name]["type"] == "array"
            there = f"{here}.{info.alias or name}{'[]' if listed else ''}"
            found.setdefault(child, []).append(there)
            queue.append((child, there))
    yield from found.items()


def _type(node: Mapping[str, Any], child: type[ApiModel] | None) -> str:
    """Return a description of a field's type and its bounds."""
    if "enum" in node:
        return "one of " + ", ".join(f"`{value}`" for value in node["enum"])
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = node["type"]
    if kind == "array":
        items = _type(node["items"], child)
        each = (
            ", each once"
            if node["x-kubernetes-list-type"] == "set"
            else ", each name once"
            if node["x-kubernetes-list-type"] == "map"
            else ""
        )
        return f"list of {items}; {node.get('minItems', 0)} to {node['maxItems']}{each}"
    if kind == "integer":
        return f"integer, {_number(node['minimum'])} to {_number(node['maximum'])}"
    if kind == "string":
        return (
            "time"
            if node.get("format") == "date-time"
            else "string"
            + (f", at most {node['maxLength']} characters" if "maxLength" in node else "")
        )
    if child is not None:
        return f"[{child.__name__}](#{child.__name__.lower()})"
    if is_open(node):
        return "object of the Kubernetes API"
    return (
        f"map of string to {_type(node['additionalProperties'], None)}; at most"
        f" {node['maxProperties']}"
    )


def _number(value: int) -> str:
    return f"{value:,}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _places(paths: Sequence[str]) -> str:
    """Return the paths that use a type: all of them, or their number and the first few."""
    if len(paths) <= MAX_PLACES:
        return ", ".join(f"`{path}`" for path in paths)
    return f"{len(paths)} places, such as {', '.join(f'`{path}`' for path in paths[:PLACES_SHOWN])}"


def _section(model: type[ApiModel], paths: list[str], *, defaults: bool) -> Iterator[str]:
    schema = _schema(model, defaults=defaults)
    yield f"### {model.__name__}"
    yield ""
    yield f"{schema['description']} Used in {_places(paths)}."
    yield ""
    yield "| Field | Type | Default | Meaning |"
    yield "| --- | --- | --- | --- |"
    for name, info in model.model_fields.items():
        key = info.alias or name
        node = schema["properties"][key]
        default = (
            "**required**"
            if key in schema.get("required", [])
            else f"`{node['default']}`"
            if "default" in node
            else "–"
        )
        meaning = node["description"] + (
            f" Pattern: `{node['pattern']}`." if "pattern" in node and "enum" not in node else ""
        )
        yield (
            f"| `{key}` | {_cell(_type(node, model_below(info.annotation)))} | {default} |"
            f" {_cell(meaning)} |"
        )
    yield ""
    if model.rules:
        yield "Rules:"
        yield ""
        yield from (
            f"- {f'`{rule.field}`: ' if rule.field else ''}{rule.message}." for rule in model.rules
        )
        yield ""


def _conditions() -> Iterator[str]:
    yield "## Conditions"
    yield ""
    yield (
        "`Reconciling` and `Stalled` exist only while they are True (kstatus), so `kubectl wait`,"
        " Helm, Flux and Argo CD work unchanged."
    )
    yield ""
    yield "| Condition | Meaning | Kept |"
    yield "| --- | --- | --- |"
    yield from (
        f"| `{kind.value}` | {_cell(CONDITION_MEANING[kind])} |"
        f" {'while True' if kind in ABNORMAL else 'always'} |"
        for kind in ConditionType
    )
    yield ""
    yield "## Reasons"
    yield ""
    yield "| Reason | Kind | Meaning |"
    yield "| --- | --- | --- |"
    yield from (
        f"| `{reason.value}` | {KIND_OF[reason].value} | {_cell(REASON_MEANING[reason])} |"
        for reason in Reason
    )
    yield ""
    yield from (f"- **{kind.value}**: {KIND_MEANING[kind]}." for kind in ReasonKind)
    yield ""


def _lines() -> Iterator[str]:
    yield (
        "<!-- Generated by `python -m triton_pipelines.api.reference` from the models in"
        " operator/triton_pipelines/api. Do not edit. -->"
    )
    yield f"# {names.KIND} {names.API_VERSION}"
    yield ""
    yield (
        f"{(InferencePipeline.__doc__ or '').strip()} Short name `{names.SHORT_NAME}`, category"
        f" `{names.CATEGORY}`, namespaced, with the subresources `status` and `scale`."
    )
    yield ""
    yield (
        "If a default is shown as a value, the API server sets it when the enclosing "
        "object is written. If a default is part of a description,"
    )
    yield (
        "the operator resolves it, and `tritonpipe render` shows it. A `null` field counts "
        "as omitted; server-side apply rejects it."
    )
    yield (
        "A quantity is a string or an integer: `cpu: 2` and `cpu: 500m` are valid, but "
        "`cpu: 0.5` needs quotes."
    )
    yield ""
    yield "Rules of the object as a whole:"
    yield ""
    yield from (f"- {rule['message']}." for rule in ROOT_RULES)
    yield ""
    usual = ", ".join(one["name"] for one in PRINTER_COLUMNS if not one.get("priority"))
    wide = ", ".join(one["name"] for one in PRINTER_COLUMNS if one.get("priority"))
    yield f"`kubectl get` shows {usual}; with `-o wide` also {wide}."
    yield ""
    yield "## Spec"
    yield ""
    for model, paths in _sections(PipelineSpec, "spec"):
        yield from _section(model, paths, defaults=True)
    yield "## Status"
    yield ""
    for model, paths in _sections(Status, "status"):
        yield from _section(model, paths, defaults=False)
    yield from _conditions()


def render() -> str:
    """Return the reference as Markdown; the same bytes on every call."""
    return "\n".join(_lines()).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
