"""A pipeline as a graph: steps that read and write tensors.

Everything the resource leaves out is decided here.

The graph is what rendering, status and scaling speak of; none of them looks at defaults of the
resource again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from triton_pipelines.api.batching import DynamicBatching, SequenceBatching
from triton_pipelines.api.instances import CountBounds, InstanceResources
from triton_pipelines.api.loadplan import FetchKind, source_key
from triton_pipelines.api.optimization import TokenLengths, VersionPolicy
from triton_pipelines.api.source import SourceSpec
from triton_pipelines.api.tensors import DataType
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import Tracing

from .tokenizer_settings import TokenizerSettings

PIPELINE = "pipeline"


class Role(StrEnum):
    """What a step is for."""

    TOKENIZER = "Tokenizer"
    MODEL = "Model"
    POSTPROCESS = "Postprocess"
    STEP = "Step"
    AUXILIARY = "Auxiliary"


class Implementation(StrEnum):
    """What runs a step."""

    TOKENIZER = "tokenizer"  # runtime/tokenizer/model.py
    POSTPROCESS = "postprocess"  # runtime/postprocess/model.py
    ONNX_RUNNER = "onnx_runner"  # runtime/onnx_runner/model.py
    CODE = "code"  # the user's model.py
    BACKEND = "backend"  # one of Triton's own backends


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of one row: ``dims`` is its shape without the batch axis (with it where the step does not batch), -1 for any length.

    ``reshape`` is the shape that the model itself has, where it differs.
    """

    name: str
    data_type: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None

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
    """An input of a step: the tensor, who feeds it (``None``: nobody), and whether requests of different shape may share a batch.

    ``path`` is the field of the resource that a finding about it names.
    """

    tensor: Tensor
    source: Reference | None
    path: str
    ragged: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class StepInstances:
    """Instances of a step: how many, and where they run."""

    kind: str
    """Triton's kind, such as ``KIND_CPU``."""
    counts: CountBounds
    """The initial count and its bounds."""
    gpus: tuple[int, ...] = ()
    """GPUs of the pod to run on, by index; empty: all."""
    profiles: tuple[str, ...] = ()
    """TensorRT optimization profiles, by index."""
    host_policy: str = ""
    """Triton's host policy; empty: none."""

    @property
    def count(self) -> int:
        """The count that the template of ``config.pbtxt`` writes."""
        return self.counts.initial

    @property
    def scaled(self) -> bool:
        """Whether the count may change while the pod runs."""
        return self.counts.scaled


@dataclass(frozen=True, slots=True)
class Fetch:
    """One source of a step and what becomes of it; ``target`` is a path below the model repository.

    ``slot`` tells several sources of one step apart; ``path`` is the field that gave the source.
    ``file`` and ``source_file`` are the main file of kind ``model``: its name in a version folder,
    and in the source where that differs.
    """

    step: str
    slot: str
    source: SourceSpec
    path: str
    kind: FetchKind
    target: str
    file: str | None = None
    source_file: str | None = None
    whole: bool = False

    @property
    def key(self) -> str:
        """Name of its mounts, and of it in what the loader reports."""
        return source_key(self.step, self.slot)


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One inference of a new instance before it serves.

    Rows, and each input with the lengths that stand for -1.
    """

    name: str
    rows: int
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One model of the repository.

    ``batching`` is ``None`` where no dynamic batcher is written. ``accelerator`` holds the settings
    of TensorRT inside the ONNX Runtime backend. ``file_name`` is the main file in a version folder,
    ``code`` a ``model.py`` written in the resource, ``files`` further text files of the version
    folder. ``flat``: the loader adapts its ONNX file so that requests of different length share a
    batch; the inputs that then arrive flat, each with the value that fills shorter rows.
    ``tokenizer``: settings of the operator's own tokenizer.
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
    instances: StepInstances
    resources: InstanceResources
    path: str
    batching: DynamicBatching | None = None
    sequences: SequenceBatching | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    fetches: tuple[Fetch, ...] = ()
    file_name: str | None = None
    default_file: str | None = None
    code: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    version_policy: VersionPolicy | None = None
    version: int | None = None
    warmup: tuple[WarmupSample, ...] = ()
    accelerator: tuple[tuple[str, str], ...] | None = None
    lengths: TokenLengths | None = None
    decoupled: bool = False
    response_cache: bool = False
    config_patch: Mapping[str, Any] | None = None
    flat: Mapping[str, int] | None = None
    tokenizer: TokenizerSettings | None = None

    @property
    def python(self) -> bool:
        """Whether it runs in the python backend: a process and a shared-memory region per instance."""
        return self.backend == "python"

    def output(self, name: str) -> Tensor | None:
        """The output of that name."""
        return next((tensor for tensor in self.outputs if tensor.name == name), None)

    @property
    def source(self) -> SourceSpec | None:
        """The step's main source."""
        return next((item.source for item in self.fetches if not item.slot), None)

    @property
    def source_path(self) -> str:
        """The field that gave :attr:`source`.

        The step's own, or the pipeline's where that is the default.
        """
        return next((item.path for item in self.fetches if not item.slot), "")


@dataclass(frozen=True, slots=True)
class PublicTensor:
    """A public output of the pipeline.

    Its tensor as clients see it, who makes it, and the field that asked for it.
    """

    tensor: Tensor
    source: Reference
    path: str = "spec.ensemble.outputs"


@dataclass(frozen=True, slots=True)
class MeasuredPadding:
    """A padding that was measured to be better than the one by rule, for exactly the pipeline at hand: ``mode``, the ``buckets`` of Bucketed,
    and the figures in words."""

    mode: Padding
    buckets: tuple[int, ...]
    said: str


@dataclass(frozen=True, slots=True)
class PaddingChoice:
    """The padding in force and why.

    ``refused``: files that the loader could not adapt to ragged batches, by key, with its words.
    ``stiff``: steps that need rows of one length all the same, by their field, each with the
    reason. ``automatic``: Auto chose it; ``measured``: not by rule, but by what was measured.
    """

    chosen: Padding
    reason: str
    buckets: tuple[int, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    stiff: Mapping[str, str] = field(default_factory=dict)
    automatic: bool = False
    measured: bool = False

    def __str__(self) -> str:
        return f"{self.chosen.value} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole pipeline, every default resolved.

    ``steps`` stand in the order in which data flows; with an ``entry`` (a step that calls the
    others itself) nothing is wired and no ensemble is made. ``auxiliary`` models are loaded beside.
    ``padding`` is ``None`` without a tokenizer of ours.
    """

    pipeline: str
    model_name: str
    max_batch_size: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[PublicTensor, ...]
    steps: tuple[Step, ...]
    auxiliary: tuple[Step, ...] = ()
    padding: PaddingChoice | None = None
    entry: str | None = None
    max_inflight_requests: int = 0
    response_cache: bool = False
    auto_complete: bool = False
    tracing: Tracing | None = None

    @property
    def models(self) -> tuple[Step, ...]:
        """Every model of the repository but the ensemble."""
        return (*self.steps, *self.auxiliary)

    @property
    def load(self) -> tuple[str, ...]:
        """Models that the server is told to load.

        The ensemble brings its steps, an entry point brings nothing.
        """
        if self.entry is not None:
            return (
                self.model_name,
                *(step.model_name for step in self.models if step.model_name != self.model_name),
            )
        return (self.model_name, *(step.model_name for step in self.auxiliary))

    @property
    def tokenizer(self) -> Step | None:
        """The tokenizer."""
        return next((step for step in self.steps if step.role is Role.TOKENIZER), None)

    @property
    def decoupled(self) -> bool:
        """Whether clients may get any number of responses to a request."""
        return any(step.decoupled for step in self.steps if self.entry in (None, step.name))

    @property
    def fetches(self) -> Iterator[Fetch]:
        """Every source of every model."""
        return (item for step in self.models for item in step.fetches)

    def step(self, name: str) -> Step | None:
        """The wired step of that name."""
        return next((step for step in self.steps if step.name == name), None)

    def resolve(self, reference: Reference) -> Tensor | None:
        """The tensor that a reference names, or ``None``."""
        if reference.step == PIPELINE:
            return next((tensor for tensor in self.inputs if tensor.name == reference.tensor), None)
        step = self.step(reference.step)
        return step.output(reference.tensor) if step else None
