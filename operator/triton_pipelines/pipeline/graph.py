"""A pipeline as a graph: steps that read and write tensors. Everything the resource leaves out is decided here.

The graph is what rendering, status and scaling speak of; none of them looks at defaults of the resource again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from triton_pipelines.api.batching import DynamicBatching
from triton_pipelines.api.source import Source
from triton_pipelines.api.steps import DataType, Padding

PIPELINE = "pipeline"


class Role(StrEnum):
    """What a step is for."""

    TOKENIZER = "Tokenizer"
    MODEL = "Model"
    POSTPROCESS = "Postprocess"


class Implementation(StrEnum):
    """What runs a step."""

    TOKENIZER = "tokenizer"  # runtime/tokenizer/model.py
    POSTPROCESS = "postprocess"  # runtime/postprocess/model.py
    ONNX_RUNNER = "onnx_runner"  # runtime/onnx_runner/model.py
    CODE = "code"  # the user's model.py
    BACKEND = "backend"  # one of Triton's own backends


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of one row: ``dims`` is its shape without the batch axis, -1 for any length."""

    name: str
    data_type: DataType
    dims: tuple[int, ...]

    @property
    def variable(self) -> bool:
        """Whether any axis has no fixed length."""
        return -1 in self.dims

    def __str__(self) -> str:
        return f"{self.name} {self.data_type.value}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor by who makes it: a step's output, or an input of the pipeline (step ``pipeline``)."""

    step: str
    tensor: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read ``STEP.OUTPUT``, split at the first dot."""
        step, _, tensor = text.partition(".")
        return cls(step, tensor)

    def __str__(self) -> str:
        return f"{self.step}.{self.tensor}"


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a step: the tensor, who feeds it, and whether requests of different shape may share a batch.

    ``path`` is the field of the resource that a finding about it names.
    """

    tensor: Tensor
    source: Reference
    path: str
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class Instances:
    """Instances of a step: Triton's kind, the count it starts with and the bounds for live changes."""

    kind: str
    count: int
    low: int
    high: int

    @property
    def scaled(self) -> bool:
        """Whether the count may be changed live."""
        return self.high > self.low


@dataclass(frozen=True, slots=True)
class Step:
    """One composing model.

    ``source_path`` is the field that gave ``source``: the step's own, or the pipeline's where that is the default.
    """

    name: str
    role: Role
    model_name: str
    implementation: Implementation
    platform: str
    backend: str
    max_batch_size: int
    inputs: tuple[Input, ...]
    outputs: tuple[Tensor, ...]
    instances: Instances
    batching: DynamicBatching
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    source: Source | None = None
    source_path: str = ""
    file_name: str | None = None
    code: str | None = None

    @property
    def python(self) -> bool:
        """Whether it runs in the python backend: a process and a shared-memory region per instance."""
        return self.implementation is not Implementation.BACKEND

    def output(self, name: str) -> Tensor | None:
        """The output of that name."""
        return next((tensor for tensor in self.outputs if tensor.name == name), None)


@dataclass(frozen=True, slots=True)
class Output:
    """A public output of the pipeline: its tensor as clients see it, and who makes it."""

    tensor: Tensor
    source: Reference


@dataclass(frozen=True, slots=True)
class PaddingChoice:
    """The padding in force and why."""

    chosen: Padding
    reason: str
    buckets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole pipeline, every default resolved. Steps stand in the order in which data flows."""

    pipeline: str
    model_name: str
    max_batch_size: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Output, ...]
    steps: tuple[Step, ...]
    padding: PaddingChoice

    def step(self, name: str) -> Step | None:
        """The step of that name."""
        return next((step for step in self.steps if step.name == name), None)

    def resolve(self, reference: Reference) -> Tensor | None:
        """The tensor that a reference names, or ``None``."""
        if reference.step == PIPELINE:
            return next((tensor for tensor in self.inputs if tensor.name == reference.tensor), None)
        step = self.step(reference.step)
        return step.output(reference.tensor) if step else None
