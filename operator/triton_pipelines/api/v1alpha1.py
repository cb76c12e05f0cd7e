"""The resource: ``InferencePipeline`` of ``tritonpipelines.io/v1alpha1``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import ApiModel, FieldRule, Switch, TritonName
from .batching import MAX_BATCH
from .instances import InstanceKind
from .postprocess import Postprocess, PostprocessType
from .scaling import Scaling
from .server import Health, RolloutSpec, ServerSpec
from .source import ModelSource
from .steps import STEP_NAME_MAX, STEP_NAME_PATTERN, ModelSpec, StepSpec
from .tensors import BY_NAME, MAX_TENSORS, PublicInput, PublicOutput
from .tokenizer import Tokenizer

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_MAX = 40
MAX_STEPS = 12
OTLP_PATTERN = r"^https?://[^\s,]+$"


class Ensemble(ApiModel):
    """The public face of the pipeline."""

    model_name: Annotated[
        TritonName | None, Field(description="Name that clients call. Default: metadata.name.")
    ] = None
    inputs: Annotated[
        tuple[PublicInput, ...],
        Field(
            max_length=MAX_TENSORS,
            description=(
                "Inputs, in this order. Default: the tokenizer's texts (STRING, dims [1]), then the"
                " tensors that steps read from pipeline."
            ),
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    outputs: Annotated[
        tuple[PublicOutput, ...],
        Field(
            max_length=MAX_TENSORS,
            description="Outputs, in this order, of any step. Default: all of the last step's.",
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    max_batch_size: Annotated[
        int | None,
        Field(
            ge=0,
            le=MAX_BATCH,
            description=(
                "Most rows in a request; 0: dims include the batch axis. Default: the smallest of"
                " the steps'."
            ),
        ),
    ] = None
    entry_point: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=STEP_NAME_MAX,
            pattern=STEP_NAME_PATTERN,
            description=(
                "Name of a step that calls the others itself (business logic scripting): clients"
                " call its model, and no ensemble is created."
            ),
        ),
    ] = None
    max_inflight_requests: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**31 - 1,
            description=(
                "Requests that may be in flight between two steps; server 25.11 or newer. Default"
                " 0: no limit."
            ),
        ),
    ] = None
    response_cache: Annotated[
        Switch | None,
        Field(
            description=(
                "Enabled: equal requests are answered from Triton's local response cache. Default:"
                " Disabled."
            )
        ),
    ] = None

    rules = (
        FieldRule(
            cel=(
                "!has(self.entryPoint) || !(has(self.modelName) || has(self.inputs) ||"
                " has(self.outputs) || has(self.maxBatchSize) || has(self.maxInflightRequests))"
            ),
            message=(
                "entryPoint replaces the ensemble, so name, tensors and batch size are those of the"
                " step; remove the other fields"
            ),
            holds=lambda e: (
                e.entry_point is None
                or not (
                    e.model_name
                    or e.inputs
                    or e.outputs
                    or e.max_batch_size is not None
                    or e.max_inflight_requests is not None
                )
            ),
            field="entryPoint",
        ),
    )


class Slo(ApiModel):
    """Service level objectives. Used by warnings, and by the tuner to choose batching."""

    p99_milliseconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=3_600_000,
            description="Latency in milliseconds that 99 of 100 requests must not exceed.",
        ),
    ] = None
    network_and_queue_budget_milliseconds: Annotated[
        int,
        Field(
            ge=0,
            le=3_600_000,
            description=(
                "Milliseconds of the latency that network and queues in front of the server take;"
                " they are subtracted first."
            ),
        ),
    ] = 5
    min_throughput_per_second: Annotated[
        int | None,
        Field(
            ge=1,
            le=2**31 - 1,
            description="Requests per second that one pod must sustain. Default: none.",
        ),
    ] = None

    def latency_budget_milliseconds(
        self, p99: float | None = None, network_and_queue: float | None = None
    ) -> float | None:
        """Return what the SLO leaves for the server: the SLO minus network and queue.

        Args:
            p99: SLO in milliseconds to use instead of ``p99_milliseconds``.
            network_and_queue: Milliseconds to subtract instead of
                ``network_and_queue_budget_milliseconds``.

        Returns:
            Milliseconds, 0 or less if nothing is left; ``None`` without an SLO.
        """
        if p99 is None:
            p99 = self.p99_milliseconds
        if network_and_queue is None:
            network_and_queue = self.network_and_queue_budget_milliseconds
        return None if p99 is None else p99 - network_and_queue


class TuningMode(StrEnum):
    """How thoroughly the tuner measures."""

    QUICK = "Quick"
    THOROUGH = "Thorough"


class Tuning(ApiModel):
    """A tuning run in the cluster. Results are in status.tuning; the spec is never changed."""

    request: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=128,
            description=(
                "Any text, such as a date. Changing it starts a tuning run on a pod without client"
                " traffic. Default: none."
            ),
        ),
    ] = None
    mode: Annotated[
        TuningMode | None,
        Field(
            description="Quick: under 3 minutes; Thorough: longer runs, repeated. Default: Quick."
        ),
    ] = None


class Tracing(ApiModel):
    """Triton's OpenTelemetry traces."""

    otlp_endpoint: Annotated[
        str,
        Field(
            max_length=512,
            pattern=OTLP_PATTERN,
            description="OTLP over HTTP, such as http://collector:4318/v1/traces.",
        ),
    ]
    sample_every: Annotated[
        int, Field(ge=1, le=1_000_000_000, description="One request out of this number is traced.")
    ] = 1000


class Presence(StrEnum):
    """Whether to create an object of another operator's kind."""

    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Observability(ApiModel):
    """Metrics, alerts and traces of the pods."""

    pod_monitor: Annotated[
        Presence | None,
        Field(
            description=(
                "Create a PodMonitor for the Prometheus operator. Auto: if the cluster has that"
                " kind; Enabled: warn if it does not. Default: Auto."
            )
        ),
    ] = None
    prometheus_rule: Annotated[
        Presence | None,
        Field(
            description=(
                "A PrometheusRule with the pipeline's recording rules and alerts. Default: Auto."
            )
        ),
    ] = None

    tracing: Annotated[
        Tracing | None,
        Field(
            description=(
                "Traces. Triton reads them only at start, so a change creates a new revision."
                " Default: none."
            )
        ),
    ] = None


class PipelineSpec(ApiModel):
    """The desired state of the pipeline."""

    source: Annotated[
        ModelSource | None,
        Field(description="One folder with tokenizer and model: the default of both."),
    ] = None
    replicas: Annotated[int, Field(ge=0, le=10000, description="Pods.")] = 1
    suspend: Annotated[
        Switch, Field(description="Enabled: no pods run; everything else is kept.")
    ] = Switch.DISABLED
    tokenizer: Annotated[
        Tokenizer | None,
        Field(
            description=(
                "The CPU step that turns text into tokens. Omit it if the pipeline needs none."
            )
        ),
    ] = None
    model: Annotated[
        ModelSpec | None,
        Field(description="The GPU step. Omit it if the pipeline has only steps."),
    ] = None
    postprocess: Annotated[
        Postprocess, Field(description="How the model's outputs are processed.")
    ] = Postprocess()
    steps: Annotated[
        tuple[StepSpec, ...],
        Field(
            max_length=MAX_STEPS,
            description="Further steps before, parallel to or after the model.",
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    auxiliary_models: Annotated[
        tuple[StepSpec, ...],
        Field(
            max_length=MAX_STEPS,
            description=(
                "Models that are loaded and monitored but not connected, for custom code of a step"
                " to call."
            ),
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    ensemble: Annotated[Ensemble, Field(description="The public face of the pipeline.")] = (
        Ensemble()
    )
    health: Annotated[Health, Field(description="Test inferences of each pod.")] = Health()
    server: Annotated[ServerSpec, Field(description="The Triton pods.")] = ServerSpec()
    rollout: Annotated[RolloutSpec, Field(description="How a new revision takes over.")] = (
        RolloutSpec()
    )
    scaling: Annotated[
        Scaling, Field(description="Live scaling of CPU steps, the tokenizer first.")
    ] = Scaling()
    slo: Annotated[Slo, Field(description="Service level objectives.")] = Slo()
    tuning: Annotated[Tuning, Field(description="Batching chosen by measurement.")] = Tuning()
    observability: Annotated[
        Observability, Field(description="Traces and metrics of the pods.")
    ] = Observability()

    rules = (
        FieldRule(
            cel="has(self.model) || has(self.steps) && size(self.steps) > 0",
            message=(
                "model or steps is required: a pipeline needs at least one step that runs a model"
            ),
            holds=lambda s: s.model is not None or bool(s.steps),
            field="model",
        ),
        FieldRule(
            cel=(
                "!has(self.tokenizer) || has(self.tokenizer.source) || has(self.source) ||"
                " has(self.tokenizer.python)"
            ),
            message="tokenizer.source or spec.source is required, except for type Python",
            holds=lambda s: (
                s.tokenizer is None
                or s.tokenizer.source is not None
                or s.source is not None
                or s.tokenizer.python is not None
            ),
            field="tokenizer.source",
        ),
        FieldRule(
            cel=(
                "!has(self.model) || has(self.model.source) || has(self.source) ||"
                " has(self.model.python) && has(self.model.python.code) || has(self.model.vllm) &&"
                " has(self.model.vllm.engineArgs) || has(self.model.backend)"
            ),
            message="model.source or spec.source is required",
            holds=lambda s: (
                s.model is None
                or s.model.source is not None
                or s.source is not None
                or (s.model.python is not None and s.model.python.code is not None)
                or s.model.vllm is not None
                or s.model.backend is not None
            ),
            field="model.source",
        ),
        FieldRule(
            cel=(
                "!has(self.tokenizer) || !has(self.model) || self.tokenizer.modelName !="
                " self.model.modelName"
            ),
            message="modelName must differ between tokenizer and model",
            holds=lambda s: (
                s.tokenizer is None
                or s.model is None
                or s.tokenizer.model_name != s.model.model_name
            ),
        ),
        FieldRule(
            cel=(
                "!has(self.postprocess) || !has(self.postprocess.type) || self.postprocess.type =="
                " 'None' || (!has(self.tokenizer) || self.postprocess.modelName !="
                " self.tokenizer.modelName) && (!has(self.model) || self.postprocess.modelName !="
                " self.model.modelName)"
            ),
            message="postprocess.modelName must differ from the tokenizer's and the model's",
            holds=lambda s: (
                s.postprocess.type in (None, PostprocessType.NONE)
                or s.postprocess.model_name not in _slot_names(s)
            ),
            field="postprocess.modelName",
        ),
        FieldRule(
            cel="!has(self.ensemble) || !has(self.ensemble.modelName)"
            " || (!has(self.tokenizer) || self.ensemble.modelName != self.tokenizer.modelName)"
            " && (!has(self.model) || self.ensemble.modelName != self.model.modelName)"
            " && (!has(self.postprocess) || !has(self.postprocess.type) || self.postprocess.type"
            " == 'None' || self.ensemble.modelName != self.postprocess.modelName)",
            message=(
                "ensemble.modelName must differ from the tokenizer's, the model's and the"
                " postprocess's"
            ),
            holds=lambda s: (
                s.ensemble.model_name is None
                or s.ensemble.model_name not in _slot_names(s, postprocess=True)
            ),
            field="ensemble.modelName",
        ),
        FieldRule(
            cel=(
                "!(has(self.steps) && has(self.auxiliaryModels)) || self.steps.all(s,"
                " self.auxiliaryModels.all(a, a.name != s.name))"
            ),
            message="steps and auxiliaryModels must not share a name; choose another",
            holds=lambda s: (
                not {step.name for step in s.steps} & {step.name for step in s.auxiliary_models}
            ),
            field="auxiliaryModels",
        ),
        FieldRule(
            cel=(
                "!(has(self.model) && has(self.model.instances) && has(self.model.instances.kind)"
                " && self.model.instances.kind == 'GPU' && has(self.server) &&"
                " has(self.server.gpu) && has(self.server.gpu.count) && self.server.gpu.count =="
                " 0)"
            ),
            message=(
                "instances.kind GPU needs a GPU, but server.gpu.count is 0; set kind to CPU or"
                " request a GPU"
            ),
            holds=lambda s: (
                s.model is None
                or not (s.model.instances.kind is InstanceKind.GPU and s.server.gpu.count == 0)
            ),
            field="model.instances.kind",
        ),
    )


def _slot_names(spec: PipelineSpec, *, postprocess: bool = False) -> set[str]:
    """Return the model names of the fixed slots that are in use."""
    used = {slot.model_name for slot in (spec.tokenizer, spec.model) if slot is not None}
    if postprocess and spec.postprocess.type not in (None, PostprocessType.NONE):
        used.add(spec.postprocess.model_name)
    return used


class Metadata(ApiModel):
    """The parts of ObjectMeta that decisions depend on; everything else is dropped."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAX, pattern=NAME_PATTERN)]
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class InferencePipeline(ApiModel):
    """One Triton ensemble on GPU nodes."""

    api_version: Literal["tritonpipelines.io/v1alpha1"] = "tritonpipelines.io/v1alpha1"
    kind: Literal["InferencePipeline"] = "InferencePipeline"
    metadata: Metadata
    spec: PipelineSpec

    @property
    def name(self) -> str:
        """Name of the resource."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the resource."""
        return self.metadata.namespace

    @property
    def public_name(self) -> str:
        """Name of the model that clients call."""
        entry = self.spec.ensemble.entry_point
        if entry is not None:
            named = {
                step.name: step.model_name or step.name
                for step in (*self.spec.steps, *self.spec.auxiliary_models)
            }
            slots = {"tokenizer": self.spec.tokenizer, "model": self.spec.model}
            named |= {name: slot.model_name for name, slot in slots.items() if slot is not None}
            return named.get(entry, entry)
        return self.spec.ensemble.model_name or self.metadata.name


# Rules for the object as a whole. Besides spec and status, a root rule may only read metadata.name
# (and generateName).
ROOT_RULES: tuple[dict[str, Any], ...] = (
    {
        "rule": (
            f"self.metadata.name.matches('{NAME_PATTERN}') && size(self.metadata.name) <="
            f" {NAME_MAX}"
        ),
        "message": (
            f"metadata.name must be at most {NAME_MAX} characters, lower-case letters, digits and"
            " '-', starting with a letter, because it becomes the name of a Service"
        ),
    },
)
