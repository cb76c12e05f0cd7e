"""A pipeline as a graph: steps that read and write tensors.

Every default of the resource is resolved here. Rendering, status and scaling work on the graph and
never look up defaults of the resource themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from triton_pipelines.api.batching import DynamicBatching
from triton_pipelines.api.instances import InstanceResources
from triton_pipelines.api.loadplan import FetchKind, source_key
from triton_pipelines.api.observability import Tracing
from triton_pipelines.api.optimization import TokenLengths, VersionPolicy
from triton_pipelines.api.sequence_batching import SequenceBatching
from triton_pipelines.api.source import SourceSpec
from triton_pipelines.api.tensors import DataType

from .effective_padding import PaddingChoice
from .instance_groups import StepInstances
from .tokenizer_settings import TokenizerSettings

PIPELINE = "pipeline"


class Role(StrEnum):
    """The purpose of a step."""

    TOKENIZER = "Tokenizer"
    MODEL = "Model"
    POSTPROCESS = "Postprocess"
    STEP = "Step"
    AUXILIARY = "Auxiliary"


class Implementation(StrEnum):
    """The code that runs a step."""

    TOKENIZER = "tokenizer"  # the library of native/
    POSTPROCESS = "postprocess"  # runtime/postprocess/model.py
    ONNX_RUNNER = "onnx_runner"  # runtime/onnx_runner/model.py
    CODE = "code"  # the user's model.py
    BACKEND = "backend"  # one of Triton's own backends


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of one row."""

    name: str
    """Name of the tensor."""
    data_type: DataType
    """Type of its elements."""
    dims: tuple[int, ...]
    """Shape, -1 for any length.

    Without the batch axis, or with it if the step does not batch.
    """
    reshape: tuple[int, ...] | None = None
    """Shape in the model itself, if it differs."""

    @property
    def variable(self) -> bool:
        """Return whether any axis has no fixed length."""
        return -1 in self.dims

    def __str__(self) -> str:
        return f"{self.name} {self.data_type.value}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a tensor: a step's output, or an input of the pipeline."""

    step: str
    """Name of the step that produces it; ``pipeline`` for an input of the pipeline."""
    tensor: str
    """Name of the tensor."""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read ``STEP.OUTPUT``, split at the first dot."""
        step, _, tensor = text.partition(".")
        return cls(step, tensor)

    def __str__(self) -> str:
        return f"{self.step}.{self.tensor}"


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a step."""

    tensor: Tensor
    """The tensor that the step reads."""
    source: Reference | None
    """The tensor that feeds it; ``None`` if nothing does."""
    path: str
    """Field of the resource that a finding about the input names."""
    ragged: bool = False
    """Whether requests of different shape may share a batch."""
    optional: bool = False
    """Whether a request may omit the input."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One source of a step and where it is stored."""

    step: str
    """Name of the step."""
    slot: str
    """Distinguishes several sources of one step."""
    source: SourceSpec
    """The source."""
    path: str
    """Field of the resource that declares the source."""
    kind: FetchKind
    """How the source is stored."""
    target: str
    """Path below the model repository."""
    file: str | None = None
    """Main file of kind ``model``: its name in a version folder."""
    source_file: str | None = None
    """Name of the main file in the source, if it differs."""
    whole: bool = False
    """Whether the whole folder of the source is fetched."""

    @property
    def key(self) -> str:
        """Return the name of its mounts, which the loader also uses in reports."""
        return source_key(self.step, self.slot)


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One inference that a new instance runs before it serves."""

    name: str
    """Name of the sample."""
    rows: int
    """Rows of the request."""
    inputs: tuple[Tensor, ...]
    """The inputs, with a length in place of every -1."""


@dataclass(frozen=True, slots=True)
class ModelPooling:
    """Pooling that the loader adds to the ONNX file of a step."""

    tokens: Tensor
    """The output of the file, with one vector per token."""
    mask: str | None
    """Input of the file whose values weigh the tokens; ``None`` to take the first token."""
    embedding: Tensor
    """The output that replaces ``tokens``."""
    normalize: bool
    """Whether embeddings have unit length."""


@dataclass(frozen=True, slots=True)
class Step:
    """One model of the repository."""

    name: str
    """Name of the step."""
    role: Role
    """Purpose of the step."""
    model_name: str
    """Name of its folder in the model repository."""
    implementation: Implementation
    """Code that runs it."""
    platform: str
    """Triton's platform; empty if the backend has none."""
    backend: str
    """Triton's backend."""
    max_batch_size: int
    """Most rows in a batch; 0 without a batch axis."""
    inputs: tuple[Input, ...]
    """Input tensors and their sources."""
    outputs: tuple[Tensor, ...]
    """Output tensors."""
    instances: StepInstances
    """Number and placement of instances."""
    resources: InstanceResources
    """Resources of one instance."""
    path: str
    """Field of the resource that declares it."""
    batching: DynamicBatching | None = None
    """Dynamic batcher; ``None`` if the config has none."""
    sequences: SequenceBatching | None = None
    """Sequence batcher; ``None`` if the config has none."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the config."""
    fetches: tuple[Fetch, ...] = ()
    """Sources that the loader fetches for it."""
    file_name: str | None = None
    """Main file in a version folder."""
    default_file: str | None = None
    """Usual name of the main file; ``None`` if the backend has none."""
    code: str | None = None
    """A ``model.py`` written in the resource."""
    python_file: str | None = None
    """File that the python backend runs instead of ``model.py``; ``None`` for ``model.py``."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further text files of the version folder, by name."""
    version_policy: VersionPolicy | None = None
    """Versions that Triton serves; ``None`` for its default."""
    version: int | None = None
    """Version that the ensemble calls; ``None`` for the newest."""
    warmup: tuple[WarmupSample, ...] = ()
    """Inferences that a new instance runs before it serves."""
    accelerator: tuple[tuple[str, str], ...] | None = None
    """Settings of TensorRT inside the ONNX Runtime backend."""
    lengths: TokenLengths | None = None
    """Lengths of rows, in tokens, that the model accepts."""
    decoupled: bool = False
    """Whether a request may have any number of responses."""
    response_cache: bool = False
    """Whether Triton caches its responses."""
    config_patch: Mapping[str, Any] | None = None
    """Other fields of the ModelConfig, as written in the resource."""
    flat: Mapping[str, int] | None = None
    """Inputs that arrive flat, each with the value that fills shorter rows.

    The loader adapts the ONNX file so that requests of different length share a batch. ``None`` if
    it does not.
    """
    pooling: ModelPooling | None = None
    """Pooling inside the model's file; ``None`` without it."""
    tokenizer: TokenizerSettings | None = None
    """Settings of the operator's tokenizer; ``None`` for any other step."""
    repeats: str | None = None
    """Name of the step whose model it runs; ``None`` if the model is its own."""

    @property
    def python(self) -> bool:
        """Return whether the step runs in the python backend.

        Each of its instances is then a process with its own shared-memory region.
        """
        return self.backend == "python"

    @property
    def native(self) -> bool:
        """Return whether the step runs in the operator's own backend library."""
        return self.implementation is Implementation.TOKENIZER

    @property
    def computes_on_cpu(self) -> bool:
        """Return whether the pod is sized for each instance of the step."""
        return self.python or self.native

    def output(self, name: str) -> Tensor | None:
        """Return the output of that name; ``None`` if there is none."""
        return next((tensor for tensor in self.outputs if tensor.name == name), None)

    @property
    def source(self) -> SourceSpec | None:
        """Return the step's main source; ``None`` without one."""
        return next((item.source for item in self.fetches if not item.slot), None)


@dataclass(frozen=True, slots=True)
class PublicTensor:
    """A public output of the pipeline."""

    tensor: Tensor
    """The tensor as clients see it."""
    source: Reference
    """The tensor of the step that produces it."""
    path: str = "spec.ensemble.outputs"
    """Field of the resource that declares it."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole pipeline, with every default resolved."""

    pipeline: str
    """Name of the resource."""
    model_name: str
    """Name of the model that clients call."""
    max_batch_size: int
    """Most rows of a request; 0 without a batch axis."""
    inputs: tuple[Tensor, ...]
    """Public inputs."""
    outputs: tuple[PublicTensor, ...]
    """Public outputs."""
    steps: tuple[Step, ...]
    """Steps in data-flow order."""
    auxiliary: tuple[Step, ...] = ()
    """Models that are loaded in addition."""
    padding: PaddingChoice | None = None
    """Effective padding; ``None`` without a tokenizer."""
    entry: str | None = None
    """Name of the step that calls the others itself.

    Then no steps are wired and no ensemble is created.
    """
    max_inflight_requests: int = 0
    """Most requests inside the ensemble at a time; 0 for no limit."""
    response_cache: bool = False
    """Whether Triton caches responses."""
    auto_complete: bool = False
    """Whether backends complete the configs."""
    tracing: Tracing | None = None
    """Settings of tracing; ``None`` if it is off."""
    optional_inputs: frozenset[str] = frozenset()
    """Names of the public inputs that a request may omit."""

    @property
    def required_inputs(self) -> tuple[Tensor, ...]:
        """Return the public inputs that a request must contain.

        An optional one is among them if a step would otherwise get no input at all, which fails.
        """
        needed: set[str] = set()
        for step in self.steps:
            read = [entry.source for entry in step.inputs if entry.source is not None]
            if all(one.step == PIPELINE and one.tensor in self.optional_inputs for one in read):
                needed |= {one.tensor for one in read}
        omitted = self.optional_inputs - needed
        return tuple(tensor for tensor in self.inputs if tensor.name not in omitted)

    @property
    def models(self) -> tuple[Step, ...]:
        """Return every model of the repository except the ensemble."""
        own = (step for step in self.steps if step.repeats is None)
        return (*own, *self.auxiliary)

    @property
    def load(self) -> tuple[str, ...]:
        """Return the models that the server must load explicitly.

        Triton loads the steps of an ensemble with it; an entry point loads no other model.
        """
        if self.entry is not None:
            return (
                self.model_name,
                *(step.model_name for step in self.models if step.model_name != self.model_name),
            )
        return (self.model_name, *(step.model_name for step in self.auxiliary))

    @property
    def tokenizer(self) -> Step | None:
        """Return the tokenizer step; ``None`` without one."""
        return next((step for step in self.steps if step.role is Role.TOKENIZER), None)

    @property
    def tokenizers(self) -> frozenset[str]:
        """Return the names of the steps that run the tokenizer: itself and its repetitions."""
        first = self.tokenizer
        if first is None:
            return frozenset()
        return frozenset(
            step.name for step in self.steps if (step.repeats or step.name) == first.name
        )

    @property
    def token_readers(self) -> tuple[Step, ...]:
        """Return the steps whose model reads tokens, each model once."""
        tokenizers = self.tokenizers
        names = {
            step.repeats or step.name
            for step in self.steps
            if any(entry.source and entry.source.step in tokenizers for entry in step.inputs)
        }
        return tuple(step for step in self.steps if step.name in names)

    @property
    def decoupled(self) -> bool:
        """Return whether clients may get any number of responses to a request."""
        return any(step.decoupled for step in self.steps if self.entry in (None, step.name))

    @property
    def fetches(self) -> Iterator[Fetch]:
        """Yield every source of every model."""
        return (item for step in self.models for item in step.fetches)

    def step(self, name: str) -> Step | None:
        """Return the wired step of that name; ``None`` if there is none."""
        return next((step for step in self.steps if step.name == name), None)

    def resolve(self, reference: Reference) -> Tensor | None:
        """Return the tensor that a reference names; ``None`` if there is none."""
        if reference.step == PIPELINE:
            return next((tensor for tensor in self.inputs if tensor.name == reference.tensor), None)
        step = self.step(reference.step)
        return step.output(reference.tensor) if step else None
