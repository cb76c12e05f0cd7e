"""Checks and adaptations of ONNX files that the loader carries out."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from triton_pipelines.api.loadtypes import LoadModel, Name, RelativePath


class PlanTensor(LoadModel):
    """A declared tensor."""

    name: Annotated[str, Field(min_length=1)]
    data_type: str
    """Element type as in the resource: INT64, FP32, STRING …"""
    dims: tuple[int, ...]
    """Shape without the batch axis."""

    @model_validator(mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("dims"), list):
            return {**value, "dims": tuple(value["dims"])}
        return value


class PlanPlace(LoadModel):
    """Location of a step's file: ``path``, or ``file`` in every version folder of ``model``."""

    step: Name
    path: RelativePath | None = None
    model: RelativePath | None = None
    file: RelativePath | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.model is None) or (self.model is None) != (
            self.file is None
        ):
            raise ValueError(f"step {self.step}: set either path, or both model and file")
        return self


class PlanTokens(LoadModel):
    """What the pipeline's tokenizer sends to a model's file."""

    tokenizer: RelativePath
    """Path of its tokenizer.json, relative to the repository."""
    ids: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Inputs of the file that receive token ids."""
    masks: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Inputs of the file that receive attention masks."""
    others: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Further inputs of the file with one value per token."""
    max_length: Annotated[int, Field(ge=1)]
    """Maximum number of tokens in a row."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return all inputs with one value per token."""
        return (*self.ids, *self.masks, *self.others)


class PlanCheck(PlanPlace):
    """ONNX files whose inputs and outputs must fit the step's declared tensors.

    Either the file at ``path``, or ``file`` of every version of ``model``. With ``tokens``, the
    files must also accept every token that the pipeline's tokenizer can emit, and rows as long as
    it sends.
    """

    format: Literal["onnx"] = "onnx"
    field: str
    max_batch_size: Annotated[int, Field(ge=0)]
    inputs: Annotated[tuple[PlanTensor, ...], Field(strict=False)] = ()
    outputs: Annotated[tuple[PlanTensor, ...], Field(strict=False)] = ()
    controls: Annotated[tuple[PlanTensor, ...], Field(strict=False)] = ()
    """Inputs of the file that the sequence batcher fills with its signals."""
    state_inputs: Annotated[tuple[PlanTensor, ...], Field(strict=False)] = ()
    """Inputs of the file that receive the state of a sequence."""
    state_outputs: Annotated[tuple[PlanTensor, ...], Field(strict=False)] = ()
    """Outputs of the file that are the next state of a sequence."""
    tokens: PlanTokens | None = None


class PlanPool(PlanPlace):
    """ONNX files to which pooling is added, after their check and before any adaptation.

    The files are rewritten in place.
    """

    field: str = "spec.postprocess.placement"
    """The field of the resource that requires this, for messages."""
    tokens: Annotated[str, Field(min_length=1)]
    """Output of shape [rows, tokens, width]; the new file does not have it."""
    mask: Annotated[str, Field(min_length=1)] | None = None
    """Input of shape [rows, tokens] that weighs the tokens; ``None`` to take the first token."""
    embedding: Annotated[str, Field(min_length=1)]
    """Output of shape [rows, width] that replaces it, in FP32."""
    width: Annotated[int, Field(ge=1)]
    """Length of an embedding."""
    normalize: bool
    """Whether embeddings have unit length."""


def shape_input(name: str) -> str:
    """Return the name of the input with the row lengths of the ragged input ``name``.

    It is INT32 [rows, 1]; Triton fills it (BATCH_ITEM_SHAPE).
    """
    return f"{name}__shape"


class PlanRaggedInput(LoadModel):
    """An input of an ONNX file that arrives flat: all rows concatenated."""

    name: Annotated[str, Field(min_length=1)]
    pad_value: int = 0
    """Value that fills rows which are shorter than the longest row of the batch."""


class PlanAdapt(PlanPlace):
    """ONNX files to adapt to ragged batches: requests of different lengths in one batch.

    The files are rewritten in place, after their check.
    """

    field: str = "spec.tokenizer.padding"
    """The field of the resource that requires this, for messages."""
    inputs: Annotated[tuple[PlanRaggedInput, ...], Field(strict=False, min_length=1)]
    """Inputs of shape [rows, tokens] that become flat.

    All of them carry the tokens of the same texts.
    """
    token_outputs: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Outputs that are [rows, tokens, …] in the file and [all tokens, …] afterwards.

    The row lengths of the first input determine their shape.
    """
    max_length: Annotated[int, Field(ge=1)] | None = None
    """Most tokens in a row, for files that do not state it themselves."""
    vocabulary: Annotated[int, Field(ge=1)] | None = None
    """Number of token ids, for files that do not state it themselves.

    If it is ``None``, the loader takes it from the tokenizer.
    """

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        for what, names in (
            ("input", [item.name for item in self.inputs]),
            ("token output", list(self.token_outputs)),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"step {self.step}: {what} is listed twice: {', '.join(twice)}")
        return self
