"""Choose the outputs to serve and the postprocess that fits, as far as the files say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from triton_pipelines.api.tensors import DataType
from triton_pipelines.loader.onnx_file import FileTensor, OnnxFile

from . import model_facts
from .model_facts import SidecarFiles

_FLOATS = ("FP32", "FP16", "FP64", "BF16")
_POOLED = ("sentence_embedding", "text_embeds", "pooler_output", "embeddings", "embedding")
_HIDDEN = ("last_hidden_state", "token_embeddings", "hidden_states", "hidden", "hidden_state")
TOKEN_CLASSES = "ForTokenClassification"  # noqa: S105 - not a password
CLASSIFICATION = "ForSequenceClassification"
# Their raw outputs are the answer; clients or a custom step process them.
_RAW = (
    "ForQuestionAnswering",
    "ForMaskedLM",
    "ForCausalLM",
    "ForPreTraining",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
)
CLASSIFIERS = ("Softmax", "Sigmoid")


class OutputKind(Enum):
    """What an output contains."""

    CLASSES = auto()
    """Scores of classes."""
    HIDDEN = auto()
    """Vectors of tokens."""
    POOLED = auto()
    """One vector per row."""
    RAW = auto()
    """Anything else."""


@dataclass(frozen=True)
class ServedOutput:
    """An output to serve."""

    tensor: FileTensor
    """The tensor of the graph."""
    dims: tuple[int, ...]
    """Dims without the batch axis."""
    comment: str = ""
    """Comment in the resource."""


@dataclass
class OutputPlan:
    """Outputs and postprocess with their comments."""

    outputs: list[ServedOutput] = field(default_factory=list)
    """Outputs to serve."""
    about_outputs: list[str] = field(default_factory=list)
    """Comments on them."""
    postprocess: dict[str, Any] = field(default_factory=dict)
    """Fields of the postprocess; empty: none."""
    about_postprocess: list[str] = field(default_factory=list)
    """Comments on it."""
    about_fields: dict[str, str] = field(default_factory=dict)
    """Comments on its fields."""
    problem: str = ""
    """What the user has to give first, for people; empty: nothing."""


_KIND_OF_POSTPROCESS = {
    "Softmax": OutputKind.CLASSES,
    "Sigmoid": OutputKind.CLASSES,
    "MeanPooling": OutputKind.HIDDEN,
    "FirstToken": OutputKind.HIDDEN,
}


def describe(
    graph: OnnxFile,
    files: SidecarFiles,
    labels: tuple[str, ...],
    postprocess: str | None,
    batched: bool,
    text: bool,
) -> OutputPlan:
    """Return the outputs to serve and the postprocess.

    Args:
        graph: the ONNX file's tensors.
        files: the small files next to it.
        labels: class names given by the user.
        postprocess: postprocess type given by the user.
        batched: whether the first axis is the batch axis.
        text: whether the model reads tokens.
    """
    usable = [
        _resolved(tensor, files, batched)
        for tensor in graph.outputs
        if tensor.dims is not None and tensor.data_type in set(DataType)
    ]
    plan = _start_plan(graph, usable)
    if plan.problem:
        return plan
    chosen, kind = _choose(usable, files, text and batched)
    plan.outputs = [chosen] if chosen is not None else usable
    others = [one.tensor.name for one in usable if chosen is not None and one is not chosen]
    plan.about_outputs.append(
        "As declared in the graph."
        + (
            f" These outputs are not served, because they are not used: {', '.join(others)}."
            if others
            else ""
        )
    )
    if postprocess is not None:
        kind = _KIND_OF_POSTPROCESS.get(postprocess, OutputKind.RAW)
    if postprocess in _KIND_OF_POSTPROCESS:
        fitting = _outputs_for(kind, usable)
        if not fitting:
            plan.problem = (
                f"--postprocess {postprocess} requires an output of shape [batch, sequence, "
                f"width], but the file has only {_listed(usable)}; use another --postprocess, or "
                "export the model with such an output"
            )
            return plan
        plan.outputs = [chosen if chosen in fitting else fitting[0]]
    _add_postprocess(plan, kind, files, labels, postprocess)
    if labels and plan.postprocess.get("type") not in CLASSIFIERS and not plan.problem:
        plan.problem = (
            f"--labels: no output is known to contain class scores ({_listed(usable)}); if "
            "an output does, set --postprocess Softmax or Sigmoid"
        )
    return plan


def _start_plan(graph: OnnxFile, usable: Sequence[ServedOutput]) -> OutputPlan:
    """Return a plan that names the outputs that Triton cannot serve."""
    plan = OutputPlan()
    names = {one.tensor.name for one in usable}
    unsupported = [tensor.name for tensor in graph.outputs if tensor.name not in names]
    if unsupported:
        plan.about_outputs.append(
            "LOOK: omitted, because their shape is missing or Triton does not support "
            f"their type: {', '.join(unsupported)}."
        )
    if not usable:
        plan.problem = (
            "no output has both a shape and a type that Triton supports (outputs: "
            f"{', '.join(unsupported) or 'none'}); export the model with such an output"
        )
    return plan


def _outputs_for(kind: OutputKind, usable: Sequence[ServedOutput]) -> list[ServedOutput]:
    """Return the outputs that a postprocess of this kind can read."""
    return [
        one for one in usable if one.dims and (kind is OutputKind.CLASSES or len(one.dims) == 2)
    ]


def _add_postprocess(
    plan: OutputPlan,
    kind: OutputKind,
    files: SidecarFiles,
    labels: tuple[str, ...],
    postprocess: str | None,
) -> None:
    """Add the postprocess for the kind of output."""
    if kind is OutputKind.CLASSES:
        _classes(plan, plan.outputs[0], files, labels, postprocess)
    elif kind is OutputKind.HIDDEN:
        _pooled(plan, files, postprocess)
    else:
        _raw(plan, files, postprocess)


def _listed(outputs: list[ServedOutput]) -> str:
    return ", ".join(f"{one.tensor.name} {one.tensor.data_type}{list(one.dims)}" for one in outputs)


def _resolved(tensor: FileTensor, files: SidecarFiles, batched: bool) -> ServedOutput:
    """Return an output with its dims.

    An open last axis, which is not a length per row, gets the length from config.json.
    """
    axes = (tensor.dims or ())[1 if batched else 0 :]
    dims = [dim if isinstance(dim, int) else -1 for dim in axes]
    if dims and dims[-1] == -1 and tensor.data_type in _FLOATS:
        name = tensor.name.lower()
        if name == "logits" and model_facts.classes(files):
            size, origin = len(model_facts.classes(files)), f"id2label of {model_facts.CONFIG}"
        elif name in (*_HIDDEN, *_POOLED) and (width := model_facts.width(files)).value:
            size, origin = width.value, width.origin
        else:
            return ServedOutput(
                tensor,
                tuple(dims),
                f"LOOK: the last axis of {tensor.name} has a variable length in the graph. If "
                "its length is fixed, set it here.",
            )
        dims[-1] = size
        return ServedOutput(
            tensor,
            tuple(dims),
            f"The last axis has a variable length in the graph; {size} is from {origin}.",
        )
    return ServedOutput(tensor, tuple(dims))


def _choose(
    outputs: list[ServedOutput], files: SidecarFiles, text: bool
) -> tuple[ServedOutput | None, OutputKind]:
    """Return the output to serve (``None``: all of them) and what it contains."""
    architecture = model_facts.architecture(files)
    floats = [one for one in outputs if one.tensor.data_type in _FLOATS]
    named = {one.tensor.name.lower(): one for one in floats}
    if not text or architecture.endswith(_RAW):
        return None, OutputKind.RAW
    if logits := named.get("logits") or (
        floats[0]
        if len(floats) == 1 and architecture.endswith((CLASSIFICATION, TOKEN_CLASSES))
        else None
    ):
        vocabulary = model_facts.config(files).get("vocab_size")
        per_token = len(logits.dims) == 2
        if not logits.dims or (per_token and logits.dims[-1] == vocabulary) or len(logits.dims) > 2:
            return logits, OutputKind.RAW
        return logits, OutputKind.CLASSES
    for name in ("sentence_embedding", "text_embeds"):
        if name in named and len(named[name].dims) == 1:
            return named[name], OutputKind.POOLED
    hidden = next(
        (named[name] for name in _HIDDEN if name in named and len(named[name].dims) == 2), None
    )
    if hidden is None and model_facts.pooling(files).value:
        hidden = next((one for one in floats if len(one.dims) == 2), None)
    if hidden is not None:
        return hidden, OutputKind.HIDDEN
    return None, OutputKind.RAW


def _classes(
    plan: OutputPlan,
    output: ServedOutput,
    files: SidecarFiles,
    labels: tuple[str, ...],
    postprocess: str | None,
) -> None:
    count = output.dims[-1] if output.dims else 1
    per_token = len(output.dims) == 2
    kind, comment = _activation(files, count, postprocess, per_token)
    if kind is None:
        plan.about_postprocess.append(comment)
        return
    plan.postprocess["type"] = kind
    plan.about_fields["type"] = comment
    own = model_facts.classes(files)
    class_names = labels or own
    if labels and count != len(labels):
        count_text = "a variable number of" if count == -1 else str(count)
        plan.problem = (
            f"--labels: the list has {len(labels)} labels, but output "
            f"{output.tensor.name!r} has {count_text} classes; list one label per class"
        )
    elif labels:
        plan.postprocess["labels"] = list(labels)
        plan.about_fields["labels"] = "From --labels, in the model's order."
    elif count == 1 and kind == "Sigmoid" and not per_token:
        plan.about_fields["type"] += " A single score per row needs no labels."
    elif class_names and len(class_names) != count:
        plan.about_postprocess.append(
            f"LOOK: {model_facts.CONFIG} names {len(class_names)} classes, but the graph has "
            f"{count}, so labels are omitted."
        )
    elif class_names and model_facts.generic(class_names):
        plan.about_postprocess.append(
            f"LOOK: {model_facts.CONFIG} contains only generic class names ({class_names[0]}, "
            "…). If you set labels, clients also receive LABEL and SCORE."
        )
    elif class_names:
        plan.postprocess["labels"] = list(class_names)
        plan.about_fields["labels"] = (
            f"From id2label of {model_facts.CONFIG}, in the model's order."
        )
    else:
        plan.about_postprocess.append(
            "LOOK: no file contains the names of the classes. If you set labels, clients also "
            "receive LABEL and SCORE."
        )


def _activation(
    files: SidecarFiles, count: int, postprocess: str | None, per_token: bool
) -> tuple[str | None, str]:
    """Return Softmax, Sigmoid or ``None``, and the reason."""
    if postprocess is not None:
        return postprocess, "From --postprocess."
    problem = model_facts.config(files).get("problem_type")
    if per_token:
        return (
            "Softmax",
            "Scores of each token: one class per token, as in named entity recognition.",
        )
    if problem == "regression":
        return (
            None,
            f"problem_type in {model_facts.CONFIG} is regression, so clients receive the raw "
            "number.",
        )
    if problem == "multi_label_classification":
        return (
            "Sigmoid",
            f"problem_type in {model_facts.CONFIG} is {problem}, so each class has a separate "
            "probability.",
        )
    if problem == "single_label_classification":
        return (
            "Softmax",
            f"problem_type in {model_facts.CONFIG} is {problem}, so exactly one class applies.",
        )
    if count == 1:
        named = model_facts.activation(files)
        if named not in (None, "Sigmoid"):
            return (
                None,
                f"The activation in {model_facts.CONFIG} is {named}, so clients receive the raw "
                "number.",
            )
        return (
            "Sigmoid",
            f"From the activation in {model_facts.CONFIG}."
            if named
            else (
                "LOOK: the model returns a single score. Sigmoid maps it to a value from 0 to "
                "1, and None returns the raw number."
            ),
        )
    return (
        "Softmax",
        "LOOK: no file contains problem_type. With Softmax, exactly one class applies. Use "
        "Sigmoid if multiple classes can apply.",
    )


def _pooled(plan: OutputPlan, files: SidecarFiles, postprocess: str | None) -> None:
    pooling = (
        model_facts.SourcedValue(postprocess, "--postprocess")
        if postprocess
        else model_facts.pooling(files)
    )
    if pooling.value in ("MeanPooling", "FirstToken"):
        plan.postprocess["type"] = pooling.value
        plan.about_fields["type"] = f"From {pooling.origin}."
        listed = model_facts.modules(files)
        if listed:
            normalize = "Normalize" in listed
            plan.postprocess["normalize"] = "Enabled" if normalize else "Disabled"
            plan.about_fields["normalize"] = (
                f"{model_facts.MODULES} has {'a' if normalize else 'no'} Normalize module."
            )
            if more := [
                name for name in listed if name not in ("Transformer", "Pooling", "Normalize")
            ]:
                plan.about_postprocess.append(
                    f"LOOK: {model_facts.MODULES} also contains {', '.join(more)}, which is not "
                    "supported. Add a step, or export it as part of the graph."
                )
        return
    if pooling.value:
        plan.about_postprocess.append(
            f"LOOK: {pooling.origin} requires {pooling.value}, which no postprocess type "
            "supports, so clients receive the vectors of all tokens. Use type Python with a "
            "custom model.py to pool them."
        )
        return
    plan.about_postprocess.append(
        f"LOOK: no file ({model_facts.POOLING}) specifies how to pool the vectors of tokens, so "
        "clients receive all of them. If the model produces embeddings, use one of these "
        "lines:\n  postprocess: {type: MeanPooling}\n  postprocess: {type: FirstToken}"
    )


def _raw(plan: OutputPlan, files: SidecarFiles, postprocess: str | None) -> None:
    if postprocess is None and (architecture := model_facts.architecture(files)).endswith(_RAW):
        plan.about_postprocess.append(
            f"{architecture}: clients receive the model's outputs unchanged."
        )
    elif postprocess is None:
        plan.about_postprocess.append(
            "There is no postprocess step, so clients receive the raw outputs of the model."
        )
