"""The resource: ``InferencePipeline`` of ``tritonpipelines.io/v1alpha1``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import ApiModel, Rule, Switch, TritonName
from .batching import MAX_BATCH
from .postprocess import Postprocess, PostprocessType
from .server import Health, Rollout, Server
from .source import Source
from .steps import Model, Tokenizer

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_MAX = 40


class Ensemble(ApiModel):
    """The public face of the pipeline."""

    model_name: Annotated[TritonName | None, Field(description="Name that clients call. Default: metadata.name.")] = None
    max_batch_size: Annotated[int | None, Field(ge=1, le=MAX_BATCH, description="Most rows in a request. Default: the smallest of the steps'.")] = (
        None
    )


def _distinct_names(spec: Spec) -> bool:
    used = [spec.tokenizer.model_name, spec.model.model_name]
    if spec.postprocess.type not in (None, PostprocessType.NONE):
        used.append(spec.postprocess.model_name)
    if spec.ensemble.model_name is not None:
        used.append(spec.ensemble.model_name)
    return len(set(used)) == len(used)


class Spec(ApiModel):
    """What the user wants."""

    source: Annotated[Source | None, Field(description="One folder that holds tokenizer and model: the default of both.")] = None
    replicas: Annotated[int, Field(ge=0, le=10000, description="Pods.")] = 1
    suspend: Annotated[Switch, Field(description="Enabled: no pods; everything else is kept.")] = Switch.DISABLED
    tokenizer: Annotated[Tokenizer, Field(description="Text to tokens, on CPU.")]
    model: Annotated[Model, Field(description="The GPU step.")]
    postprocess: Annotated[Postprocess, Field(description="What is made of the model's output.")] = Postprocess()
    ensemble: Annotated[Ensemble, Field(description="The public face of the pipeline.")] = Ensemble()
    health: Annotated[Health, Field(description="A real inference per pod.")] = Health()
    server: Annotated[Server, Field(description="The Triton pods.")] = Server()
    rollout: Annotated[Rollout, Field(description="How a new revision takes over.")] = Rollout()

    rules = (
        Rule(
            cel="has(self.tokenizer.source) || has(self.source)",
            message="tokenizer.source is needed, or a source for the whole pipeline",
            holds=lambda s: s.tokenizer.source is not None or s.source is not None,
            field="tokenizer.source",
        ),
        Rule(
            cel="has(self.model.source) || has(self.source) || has(self.model.python) && has(self.model.python.code)",
            message="model.source is needed, or a source for the whole pipeline",
            holds=lambda s: s.model.source is not None or s.source is not None or (s.model.python is not None and s.model.python.code is not None),
            field="model.source",
        ),
        Rule(
            cel="self.tokenizer.modelName != self.model.modelName"
            " && (!has(self.postprocess) || !has(self.postprocess.type) || self.postprocess.type == 'None'"
            " || !(self.postprocess.modelName in [self.tokenizer.modelName, self.model.modelName]))"
            " && (!has(self.ensemble) || !has(self.ensemble.modelName) || !(self.ensemble.modelName in [self.tokenizer.modelName, self.model.modelName]))"
            " && (!has(self.ensemble) || !has(self.ensemble.modelName) || !has(self.postprocess) || !has(self.postprocess.type)"
            " || self.postprocess.type == 'None' || self.ensemble.modelName != self.postprocess.modelName)",
            message="modelName must differ between tokenizer, model, postprocess and ensemble",
            holds=_distinct_names,
        ),
        Rule(
            cel="!(has(self.model.instances) && has(self.model.instances.kind) && self.model.instances.kind == 'GPU'"
            " && has(self.server) && has(self.server.gpu) && has(self.server.gpu.count) && self.server.gpu.count == 0)",
            message="instances.kind GPU needs a GPU, but server.gpu.count is 0; set kind to CPU or ask for a GPU",
            holds=lambda s: not (s.model.instances.kind == "GPU" and s.server.gpu.count == 0),
            field="model.instances.kind",
        ),
    )


class Metadata(ApiModel):
    """The parts of ObjectMeta that decisions rest on; everything else is kept out of sight."""

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
    spec: Spec

    @property
    def name(self) -> str:
        """Name of the resource."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the resource."""
        return self.metadata.namespace

    @property
    def ensemble_name(self) -> str:
        """Name of the model that clients call."""
        return self.spec.ensemble.model_name or self.metadata.name


# Rules on the object as a whole; a root rule may only read metadata.name (and generateName) besides spec and status.
ROOT_RULES: tuple[dict[str, Any], ...] = (
    {
        "rule": f"self.metadata.name.matches('{NAME_PATTERN}') && size(self.metadata.name) <= {NAME_MAX}",
        "message": f"metadata.name must be at most {NAME_MAX} characters, lower-case letters, digits and '-', starting with a letter: a Service carries it",
    },
)
