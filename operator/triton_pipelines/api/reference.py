"""The API reference, generated from the models: ``python -m triton_pipelines.api.reference`` prints docs/reference/api.md.

One section per kind of object, with a table of its fields and a list of its rules; then conditions and their reasons.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from . import names
from .base import ApiModel
from .conditions import ABNORMAL, KIND_OF, ConditionType, Reason, ReasonKind
from .crd import PRESERVE, PRINTER_COLUMNS, structural
from .status import Status
from .v1alpha1 import ROOT_RULES, InferencePipeline, PipelineSpec

# Longer lists of places say nothing to a reader: then a few stand for all.
MAX_PLACES = 6
PLACES_SHOWN = 3

CONDITION_MEANING: Mapping[ConditionType, str] = {
    ConditionType.READY: "The latest spec is served by every pod. True with reason Suspended where no pods are wanted.",
    ConditionType.AVAILABLE: "Some revision answers requests; a bad change makes Ready False while Available stays True.",
    ConditionType.RECONCILING: "The operator works towards the spec, or waits for something outside.",
    ConditionType.STALLED: "Only a change of the spec, or of what it names, helps.",
    ConditionType.MODELS_READY: "Triton says that every model is ready in every pod; else Triton's own reason, and which pod.",
    ConditionType.METRICS_AVAILABLE: "Every ready pod's metrics are there, fresh and sane; else counts do not fall, and what to look at.",
    ConditionType.SCALING_ACTIVE: "Counts follow the load; else why they do not.",
    ConditionType.SCALING_LIMITED: "The load asks for more than bounds, CPU, memory or the GPU step allow; the message says which.",
}

KIND_MEANING: Mapping[ReasonKind, str] = {
    ReasonKind.FINE: "nothing to do",
    ReasonKind.WAITING: "something outside is not there yet; the operator watches",
    ReasonKind.STALLED: "change the spec, or what it names",
    ReasonKind.TRANSIENT: "the operator tries again, with growing pauses",
}

REASON_MEANING: Mapping[Reason, str] = {
    Reason.SUCCEEDED: "All is as the spec says.",
    Reason.SERVING: "Requests are answered.",
    Reason.SUSPENDED: "`spec.suspend` is Enabled: no pods run; set it to Disabled to serve again.",
    Reason.ADVISORY: "`scaling.mode` is Advisory: decisions are published and nothing is changed.",
    Reason.BOUNDS_REACHED: "The count is at `instances.min` or `instances.max`.",
    Reason.TOKENIZER_BOUND: "The tokenizer limits the pipeline.",
    Reason.STEP_BOUND: "Another CPU step limits the pipeline.",
    Reason.CPU_BOUND: "The container's CPU is used up: another instance would only share it; raise `server.resources.limits.cpu`.",
    Reason.GPU_BOUND: "The GPU step is busy: more tokenizers would not help; add pods, or batch better.",
    Reason.CPU_CONTENDED: "The container's CPU is used by others than the scaled steps, such as threads of libraries.",
    Reason.NO_PROGRESS: "Requests wait and none completes: a process of the step may be dead.",
    Reason.BATCHING_INEFFECTIVE: "The GPU step runs requests one by one although more wait: their shapes differ; see `tokenizer.padding`.",
    Reason.REPLICAS_OWNER_CONFLICT: "Two want to say how many pods there are; the message names both, who has it now, and how to leave it to one.",
    Reason.CPU_OWNER_CONFLICT: "Somebody else resizes the pods in place; the message names them, and the CPU is left to them.",
    Reason.METRICS_MISSING: "No metrics of the pods arrive; the message says what to look at. Counts do not fall.",
    Reason.METRICS_STALE: "The newest metrics are too old; after `scaling.staleAfterSeconds` the fallback applies.",
    Reason.METRICS_PARTIAL: "Metrics of some pods or models are missing. Counts do not fall.",
    Reason.PROMETHEUS_ERROR: "Prometheus answers with an error, or not in time.",
    Reason.ACTUATION_FAILED: "A change of a count failed in a pod, with Triton's reason; the old count serves, and it is tried again with growing pauses.",
    Reason.PROGRESSING: "A rollout is under way.",
    Reason.DRAINING: "Pods of older revisions are finishing their requests.",
    Reason.WAITING_FOR_GPU: "No node has the GPUs that a pod asks for; the message says what was asked for and what nodes offer.",
    Reason.WAITING_FOR_RESOURCES: "No node has the CPU, memory or other resource that a pod asks for.",
    Reason.WAITING_FOR_PODS: "Pods are starting; nothing is known of their models yet.",
    Reason.LOADING: "Sources are being fetched, or Triton is loading the models.",
    Reason.SOURCE_UNAVAILABLE: "A source cannot be fetched; the message names the URI, never the credential. Check that it exists and that secretRef may read it.",
    Reason.IMAGE_UNAVAILABLE: "The Triton image cannot be pulled; check `spec.server.image` and `spec.server.imagePullSecrets`.",
    Reason.NO_PODS: "No pod is ready to answer.",
    Reason.PAUSED: f"The annotation `{names.ANNOTATION_PAUSED}` stops all writes; remove it to go on.",
    Reason.INVALID_SPEC: "The spec contradicts itself or Triton's own rules; the message holds all findings with their fields. The running version keeps serving.",
    Reason.ROLLOUT_FAILED: "The new revision made no progress within `spec.rollout.progressDeadlineSeconds`.",
    Reason.ROLLED_BACK: "The new revision failed, or broke the SLO that the one before it kept, and the one before it serves again.",
    Reason.SLO_VIOLATED: "In the message of RolledBack: the new revision served, and its p99 broke `spec.slo`; both figures stand there.",
    Reason.TUNING_STALE: "In `status.warnings`: what `status.tuning` says was measured on another revision than the one that serves now.",
    Reason.MODEL_MISMATCH: "The model's file does not fit: inputs or outputs other than the spec declares, fewer token ids than the tokenizer emits, or rows shorter than `tokenizer.maxLength`; the message shows both sides.",
    Reason.SOURCE_CHANGED: "A source without a pinned revision no longer gives what this revision of the pipeline was started with; pin it, or change the spec.",
    Reason.CHECKSUM_MISMATCH: "A file does not have the SHA-256 that its source asks for.",
    Reason.INVALID_TOKENIZER: "The tokenizer's files cannot be read as a tokenizer.",
    Reason.RAGGED_UNSUPPORTED: "The model's file cannot be adapted to ragged batches, which `spec.tokenizer.padding: Ragged` asks for; the message says why. Auto falls back by itself.",
    Reason.MODEL_FAILED: "Triton cannot load a model; the message is Triton's own.",
    Reason.NAME_CONFLICT: "An object of a name that the pipeline needs belongs to someone else; rename the pipeline or remove that object.",
    Reason.INFERENCE_FAILED: "Triton says ready, but a test inference fails.",
    Reason.API_ERROR: "The Kubernetes API refuses an object or a pod of the pipeline (quota, admission, a missing service account or right); the message is its own.",
    Reason.NO_SPACE: "The disk is full where sources are laid out.",
    Reason.SERVER_CRASHED: "Triton ended; the message holds the end of its log.",
    Reason.INTERNAL_ERROR: "A fault of the operator or of a source's server; see the operator's log.",
}


def _child(annotation: Any) -> type[ApiModel] | None:
    """The model that a field's type holds, at any depth (``Optional``, ``tuple``, ``Annotated``)."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    return next(
        (child for part in get_args(annotation) if (child := _child(part)) is not None), None
    )


@functools.cache
def _schema(model: type[ApiModel], *, defaults: bool = True) -> Mapping[str, Any]:
    """The schema of one class, made once: a class stands at many places."""
    return structural(model, defaults=defaults)


def _sections(root: type[ApiModel], path: str) -> Iterator[tuple[type[ApiModel], list[str]]]:
    """Every model below ``root``, breadth first, with all paths where it stands."""
    found: dict[type[ApiModel], list[str]] = {root: [path]}
    queue = [(root, path)]
    while queue:
        model, here = queue.pop(0)
        for name, info in model.model_fields.items():
            child = _child(info.annotation)
            if child is None:
                continue
            listed = _schema(model)["properties"][info.alias or name]["type"] == "array"
            there = f"{here}.{info.alias or name}{'[]' if listed else ''}"
            found.setdefault(child, []).append(there)
            queue.append((child, there))
    yield from found.items()


def _type(node: Mapping[str, Any], child: type[ApiModel] | None) -> str:
    """A field's type and its bounds, in words."""
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
            else "text"
            + (f", at most {node['maxLength']} characters" if "maxLength" in node else "")
        )
    if child is not None:
        return f"[{child.__name__}](#{child.__name__.lower()})"
    if node.get(PRESERVE):
        return "object of the Kubernetes API"
    return f"map of text to {_type(node['additionalProperties'], None)}; at most {node['maxProperties']}"


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _places(paths: Sequence[str]) -> str:
    """Where a kind of object stands: each place, or of many how many and the first."""
    if len(paths) <= MAX_PLACES:
        return ", ".join(f"`{path}`" for path in paths)
    return f"{len(paths)} places, such as {', '.join(f'`{path}`' for path in paths[:PLACES_SHOWN])}"


def _section(model: type[ApiModel], paths: list[str], *, defaults: bool) -> Iterator[str]:
    schema = _schema(model, defaults=defaults)
    yield f"### {model.__name__}"
    yield ""
    yield f"{schema['description']} Stands at {_places(paths)}."
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
        yield f"| `{key}` | {_cell(_type(node, _child(info.annotation)))} | {default} | {_cell(meaning)} |"
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
    yield "`Reconciling` and `Stalled` exist only while they are True (kstatus), so `kubectl wait`, Helm, Flux and Argo CD work unchanged."
    yield ""
    yield "| Condition | Meaning | Kept |"
    yield "| --- | --- | --- |"
    yield from (
        f"| `{kind.value}` | {_cell(CONDITION_MEANING[kind])} | {'while True' if kind in ABNORMAL else 'always'} |"
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
    yield "<!-- Generated by `python -m triton_pipelines.api.reference` from the models in operator/triton_pipelines/api. Do not edit. -->"
    yield f"# {names.KIND} {names.API_VERSION}"
    yield ""
    yield f"{(InferencePipeline.__doc__ or '').strip()} Short name `{names.SHORT_NAME}`, category `{names.CATEGORY}`, namespaced, with the subresources `status` and `scale`."
    yield ""
    yield "A default that is a value is filled in by the API server where the object around it is written; a default told in the meaning is"
    yield "resolved by the operator, and `tritonpipe render` shows it. A field that is `null` counts as left out; server-side apply refuses it."
    yield "A quantity is text or a whole number: `cpu: 2` and `cpu: 500m` are right, `cpu: 0.5` needs quotes."
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
    """The reference as Markdown; the same bytes on every call."""
    return "\n".join(_lines()).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
