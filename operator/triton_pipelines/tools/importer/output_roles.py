"""What a model's outputs are for: which of them to serve, and the postprocess that fits, as far as the files say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from triton_pipelines.api.tensors import DataType
from triton_pipelines.loader.onnx_file import FileTensor, OnnxFile

from . import model_facts
from .model_facts import Files

_FLOATS = ("FP32", "FP16", "FP64", "BF16")
_POOLED = ("sentence_embedding", "text_embeds", "pooler_output", "embeddings", "embedding")
_HIDDEN = ("last_hidden_state", "token_embeddings", "hidden_states", "hidden", "hidden_state")
TOKEN_CLASSES = "ForTokenClassification"  # noqa: S105 - not a password
CLASSIFICATION = "ForSequenceClassification"
# Of these the raw outputs are the answer: what to make of them is a client's or an own step's business.
_RAW = (
    "ForQuestionAnswering",
    "ForMaskedLM",
    "ForCausalLM",
    "ForPreTraining",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
)
CLASSIFIERS = ("Softmax", "Sigmoid")


@dataclass(frozen=True)
class Output:
    """An output to serve: the tensor, its dims without the batch axis, and what is to be said of it."""

    tensor: FileTensor
    dims: tuple[int, ...]
    about: str = ""


@dataclass
class Answer:
    """Outputs and postprocess with their comments; ``problem`` where something has to be told first."""

    outputs: list[Output] = field(default_factory=list)
    about_outputs: list[str] = field(default_factory=list)
    postprocess: dict[str, Any] = field(default_factory=dict)
    about_postprocess: list[str] = field(default_factory=list)
    about_fields: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def describe(
    graph: OnnxFile,
    files: Files,
    labels: tuple[str, ...],
    wanted: str | None,
    batched: bool,
    text: bool,
) -> Answer:
    """What to answer with.

    Args:
        graph: the ONNX file's tensors.
        files: the small files beside it.
        labels: class names given by hand.
        wanted: postprocess type given by hand.
        batched: whether the first axis is the batch's.
        text: whether the model reads a tokenizer's tensors.
    """
    usable = [
        _resolved(tensor, files, batched)
        for tensor in graph.outputs
        if tensor.dims is not None and tensor.data_type in set(DataType)
    ]
    answer = Answer()
    left = [
        tensor.name
        for tensor in graph.outputs
        if tensor.name not in {one.tensor.name for one in usable}
    ]
    if left:
        answer.about_outputs.append(
            f"LOOK: left out, since the graph gives no shape or no type that Triton has: {', '.join(left)}."
        )
    if not usable:
        answer.problem = f"no output has both a shape and a type that Triton has ({', '.join(left) or 'there is none'}); export the model with shapes"
        return answer
    chosen, kind = _choose(usable, files, text and batched)
    answer.outputs = [chosen] if chosen is not None else usable
    others = [one.tensor.name for one in usable if chosen is not None and one is not chosen]
    answer.about_outputs.append(
        "As the graph declares them."
        + (f" Not served: {', '.join(others)}; what nobody reads costs time." if others else "")
    )
    if wanted is not None:
        kind = {
            "Softmax": "classes",
            "Sigmoid": "classes",
            "MeanPooling": "hidden",
            "FirstToken": "hidden",
        }.get(wanted, "raw")
    if wanted in ("MeanPooling", "FirstToken", *CLASSIFIERS):
        ranked = [
            one
            for one in usable
            if len(one.dims) == (2 if kind == "hidden" else len(one.dims)) and one.dims
        ]
        if not ranked:
            answer.problem = f"--postprocess {wanted} pools vectors of tokens [batch, sequence, width]; the outputs are {_listed(usable)}"
            return answer
        answer.outputs = [chosen if chosen in ranked else ranked[0]]
    if kind == "classes":
        _classes(answer, answer.outputs[0], files, labels, wanted)
    elif kind == "hidden":
        _pooled(answer, files, wanted)
    else:
        _raw(answer, files, wanted)
    if labels and answer.postprocess.get("type") not in CLASSIFIERS and not answer.problem:
        answer.problem = f"--labels: the outputs {_listed(usable)} are not told to be classes; --postprocess Softmax or Sigmoid says what they are"
    return answer


def _listed(outputs: list[Output]) -> str:
    return ", ".join(f"{one.tensor.name} {one.tensor.data_type}{list(one.dims)}" for one in outputs)


def _resolved(tensor: FileTensor, files: Files, batched: bool) -> Output:
    """Its dims; an open last axis, which is no row's own length, has the length that config.json gives it."""
    axes = (tensor.dims or ())[1 if batched else 0 :]
    dims = [dim if isinstance(dim, int) else -1 for dim in axes]
    if dims and dims[-1] == -1 and tensor.data_type in _FLOATS:
        name = tensor.name.lower()
        if name == "logits" and model_facts.classes(files):
            size, origin = len(model_facts.classes(files)), f"id2label of {model_facts.CONFIG}"
        elif name in (*_HIDDEN, *_POOLED) and (told := model_facts.width(files)).value:
            size, origin = told.value, told.origin
        else:
            return Output(
                tensor,
                tuple(dims),
                f"LOOK: the graph leaves the last axis of {tensor.name} open; write its length where it has one.",
            )
        dims[-1] = size
        return Output(
            tensor, tuple(dims), f"The graph leaves the last axis open; {size} is from {origin}."
        )
    return Output(tensor, tuple(dims))


def _choose(outputs: list[Output], files: Files, text: bool) -> tuple[Output | None, str]:
    """The output that answers (None: all of them) and what it holds: classes, hidden vectors, or raw values."""
    architecture = model_facts.architecture(files)
    floats = [one for one in outputs if one.tensor.data_type in _FLOATS]
    named = {one.tensor.name.lower(): one for one in floats}
    if not text or architecture.endswith(_RAW):
        return None, "raw"
    if logits := named.get("logits") or (
        floats[0]
        if len(floats) == 1 and architecture.endswith((CLASSIFICATION, TOKEN_CLASSES))
        else None
    ):
        vocabulary = model_facts.config(files).get("vocab_size")
        per_token = len(logits.dims) == 2
        if not logits.dims or (per_token and logits.dims[-1] == vocabulary) or len(logits.dims) > 2:
            return logits, "raw"
        return logits, "classes"
    for name in ("sentence_embedding", "text_embeds"):
        if name in named and len(named[name].dims) == 1:
            return named[name], "pooled"
    hidden = next(
        (named[name] for name in _HIDDEN if name in named and len(named[name].dims) == 2), None
    )
    if hidden is None and model_facts.pooling(files).value:
        hidden = next((one for one in floats if len(one.dims) == 2), None)
    if hidden is not None:
        return hidden, "hidden"
    return None, "raw"


def _classes(
    answer: Answer, output: Output, files: Files, labels: tuple[str, ...], wanted: str | None
) -> None:
    count = output.dims[-1] if output.dims else 1
    per_token = len(output.dims) == 2
    kind, about = _activation(files, count, wanted, per_token)
    if kind is None:
        answer.about_postprocess.append(about)
        return
    answer.postprocess["type"] = kind
    answer.about_fields["type"] = about
    own = model_facts.classes(files)
    given = labels or own
    if labels and count != len(labels):
        held = "an open number of" if count == -1 else str(count)
        answer.problem = (
            f"--labels: {len(labels)} labels are given, but {output.tensor.name} has {held} classes"
        )
    elif labels:
        answer.postprocess["labels"] = list(labels)
        answer.about_fields["labels"] = "From --labels, in the model's order."
    elif count == 1 and kind == "Sigmoid" and not per_token:
        answer.about_fields["type"] += " One score per row needs no labels."
    elif given and len(given) != count:
        answer.about_postprocess.append(
            f"LOOK: {model_facts.CONFIG} names {len(given)} classes, but the graph has {count}; labels are left out."
        )
    elif given and model_facts.generic(given):
        answer.about_postprocess.append(
            f"LOOK: {model_facts.CONFIG} names the classes {given[0]}, … only. With labels: […] clients also get LABEL and SCORE."
        )
    elif given:
        answer.postprocess["labels"] = list(given)
        answer.about_fields["labels"] = (
            f"From id2label of {model_facts.CONFIG}, in the model's order."
        )
    else:
        answer.about_postprocess.append(
            "LOOK: no file names the classes. With labels: […] clients also get LABEL and SCORE."
        )


def _activation(
    files: Files, count: int, wanted: str | None, per_token: bool
) -> tuple[str | None, str]:
    """Softmax, Sigmoid or None, and why."""
    if wanted is not None:
        return wanted, "From --postprocess."
    problem = model_facts.config(files).get("problem_type")
    if per_token:
        return (
            "Softmax",
            "Scores of each token: one class per token, as in named entity recognition.",
        )
    if problem == "regression":
        return (
            None,
            f"problem_type of {model_facts.CONFIG} is regression: clients get the model's number as it is.",
        )
    if problem == "multi_label_classification":
        return (
            "Sigmoid",
            f"problem_type of {model_facts.CONFIG} is {problem}: each class by itself.",
        )
    if problem == "single_label_classification":
        return "Softmax", f"problem_type of {model_facts.CONFIG} is {problem}: one class of all."
    if count == 1:
        named = model_facts.activation(files)
        if named not in (None, "Sigmoid"):
            return (
                None,
                f"The activation that {model_facts.CONFIG} names is {named}: clients get the model's number as it is.",
            )
        return (
            "Sigmoid",
            f"From the activation that {model_facts.CONFIG} names."
            if named
            else "LOOK: a single score; Sigmoid maps it to 0…1. None answers with the number as it is.",
        )
    return (
        "Softmax",
        "LOOK: no file says problem_type. Softmax is one class of all; write Sigmoid where several can hold at once.",
    )


def _pooled(answer: Answer, files: Files, wanted: str | None) -> None:
    told = model_facts.Told(wanted, "--postprocess") if wanted else model_facts.pooling(files)
    if told.value in ("MeanPooling", "FirstToken"):
        answer.postprocess["type"] = told.value
        answer.about_fields["type"] = f"From {told.origin}."
        listed = model_facts.modules(files)
        if listed:
            answer.postprocess["normalize"] = "Enabled" if "Normalize" in listed else "Disabled"
            answer.about_fields["normalize"] = (
                f"{model_facts.MODULES} lists {'a' if 'Normalize' in listed else 'no'} Normalize module."
            )
            if more := [
                name for name in listed if name not in ("Transformer", "Pooling", "Normalize")
            ]:
                answer.about_postprocess.append(
                    f"LOOK: {model_facts.MODULES} also lists {', '.join(more)}, which nothing here does: add a step, or export it into the graph."
                )
        return
    if told.value:
        answer.about_postprocess.append(
            f"LOOK: {told.origin} asks for {told.value}, which no postprocess type does: clients get the vectors of all tokens. Type Python with an own model.py can do it."
        )
        return
    answer.about_postprocess.append(
        f"LOOK: no file ({model_facts.POOLING}) says how the vectors of the tokens become one, so clients get all of them. Where the model makes embeddings, write one of:\n"
        "  postprocess: {type: MeanPooling}\n  postprocess: {type: FirstToken}"
    )


def _raw(answer: Answer, files: Files, wanted: str | None) -> None:
    if wanted is None and (architecture := model_facts.architecture(files)).endswith(_RAW):
        answer.about_postprocess.append(
            f"{architecture}: clients get the model's outputs as they are."
        )
    elif wanted is None:
        answer.about_postprocess.append(
            "No postprocess: clients get the model's outputs as they are."
        )
