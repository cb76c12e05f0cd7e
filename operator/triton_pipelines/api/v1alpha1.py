"""The resource: ``InferencePipeline`` of ``tritonpipelines.io/v1alpha1``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import ApiModel, FieldRule, ObjectName, Switch
from .ensemble import Ensemble
from .health import Health
from .instances import InstanceKind
from .observability import Observability
from .postprocess import Postprocess, PostprocessType
from .repeated_steps import RepeatedStep
from .rollout_strategy import RolloutSpec
from .scaling import Scaling
from .server import ServerSpec
from .slo import Slo
from .source import ModelSource
from .steps import ModelSpec, StepSpec
from .tensors import BY_NAME
from .tokenizer import Tokenizer
from .tuning import Tuning

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_MAX = 40
# What to do about an invalid metadata.name.
NAME_REMEDY = (
    f"use at most {NAME_MAX} lowercase letters, digits and '-', starting with a letter, because a"
    " Service gets the same name"
)
MAX_STEPS = 12


class PipelineSpec(ApiModel):
    """The desired state of the pipeline."""

    source: Annotated[
        ModelSource | None,
        Field(
            description=(
                "Directory that contains both the tokenizer and the model. It is the default for "
                "their sources."
            )
        ),
    ] = None
    replicas: Annotated[int, Field(ge=0, le=10000, description="Pods.")] = 1
    suspend: Annotated[
        Switch, Field(description="If Enabled, no pods run. All other objects are kept.")
    ] = Switch.DISABLED
    service_account_name: Annotated[
        ObjectName | None,
        Field(
            description=(
                "Service account that the operator impersonates to write the pipeline's "
                "objects. Default: as configured on the operator."
            )
        ),
    ] = None
    tokenizer: Annotated[
        Tokenizer | None,
        Field(
            description=(
                "CPU step that converts text to tokens. Omit it if the pipeline does not read text."
            )
        ),
    ] = None
    model: Annotated[
        ModelSpec | None,
        Field(
            description="GPU step that runs the model. Omit it if all models are listed in steps."
        ),
    ] = None
    postprocess: Annotated[Postprocess, Field(description="Processing of the model's outputs.")] = (
        Postprocess()
    )
    steps: Annotated[
        tuple[StepSpec, ...],
        Field(
            max_length=MAX_STEPS,
            description="Additional steps that run before, after or in parallel with the model.",
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    repeated_steps: Annotated[
        tuple[RepeatedStep, ...],
        Field(
            max_length=MAX_STEPS,
            description=(
                "Steps that run the model of another step again with different tensors. The "
                "model is loaded once, and both steps share its instances."
            ),
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    auxiliary_models: Annotated[
        tuple[StepSpec, ...],
        Field(
            max_length=MAX_STEPS,
            description=(
                "Models that custom code calls. They are loaded and monitored, but are not "
                "part of the ensemble."
            ),
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    ensemble: Annotated[
        Ensemble,
        Field(description="Name, inputs and outputs of the pipeline, as clients see them."),
    ] = Ensemble()
    health: Annotated[
        Health, Field(description="Test inferences that the operator sends to each pod.")
    ] = Health()
    server: Annotated[ServerSpec, Field(description="Configuration of the Triton pods.")] = (
        ServerSpec()
    )
    rollout: Annotated[
        RolloutSpec, Field(description="Strategy by which a new revision replaces the old one.")
    ] = RolloutSpec()
    scaling: Annotated[
        Scaling, Field(description="Live scaling of CPU steps, such as the tokenizer.")
    ] = Scaling()
    slo: Annotated[Slo, Field(description="Service level objectives.")] = Slo()
    tuning: Annotated[
        Tuning, Field(description="Tuning of the batching settings through measurements.")
    ] = Tuning()
    observability: Annotated[
        Observability, Field(description="Tracing and monitoring of the pods.")
    ] = Observability()

    rules = (
        FieldRule(
            cel="has(self.model) || has(self.steps) && size(self.steps) > 0",
            message="model or steps is required, because a pipeline must run at least one model",
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
                " has(self.model.python) && has(self.model.python.code) || has(self.model.vllm) ||"
                " has(self.model.backend)"
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
            message=(
                "tokenizer.modelName and model.modelName must be different; change one of the two"
            ),
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
            message="must differ from the modelName of tokenizer and model",
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
            message="must differ from the modelName of tokenizer, model and postprocess",
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
            message=(
                "a step and an auxiliary model must not have the same name; rename one of the two"
            ),
            holds=lambda s: (
                not {step.name for step in s.steps} & {step.name for step in s.auxiliary_models}
            ),
            field="auxiliaryModels",
        ),
        FieldRule(
            cel=(
                "!has(self.repeatedSteps) || self.repeatedSteps.all(r, !(has(self.steps) &&"
                " self.steps.exists(s, s.name == r.name)) && !(has(self.auxiliaryModels) &&"
                " self.auxiliaryModels.exists(a, a.name == r.name)))"
            ),
            message=(
                "a repeated step must not have the name of a step or auxiliary model; "
                "choose another name"
            ),
            holds=lambda s: (
                not {step.name for step in s.repeated_steps}
                & {step.name for step in (*s.steps, *s.auxiliary_models)}
            ),
            field="repeatedSteps",
        ),
        FieldRule(
            cel=(
                "!(has(self.repeatedSteps) && size(self.repeatedSteps) > 0) ||"
                " !has(self.ensemble) || !has(self.ensemble.entryPoint)"
            ),
            message=(
                "must not be combined with ensemble.entryPoint, because custom code then "
                "calls the models; remove one of the two"
            ),
            holds=lambda s: not s.repeated_steps or s.ensemble.entry_point is None,
            field="repeatedSteps",
        ),
        FieldRule(
            cel=(
                "!(has(self.model) && has(self.model.instances) && has(self.model.instances.kind)"
                " && self.model.instances.kind == 'GPU' && has(self.server) &&"
                " has(self.server.gpu) && has(self.server.gpu.count) && self.server.gpu.count =="
                " 0)"
            ),
            message=(
                "instances.kind GPU requires a GPU, but server.gpu.count is 0; set kind to CPU, or"
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
        """Return the name of the resource."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Return the namespace of the resource."""
        return self.metadata.namespace

    @property
    def public_name(self) -> str:
        """Return the name of the model that clients call."""
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
        "message": f"metadata.name is not a valid name; {NAME_REMEDY}",
    },
)
