"""List the models of a pipeline as the resource declares them."""

from __future__ import annotations

from typing import NamedTuple

from triton_pipelines.api.steps import StepFields
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .defaults import MODEL
from .graph import Role


class DeclaredStep(NamedTuple):
    """A model, a further step or an auxiliary model of the resource."""

    name: str
    """Name of the step."""
    role: Role
    """What the step is for."""
    model_name: str
    """Name of its folder in the model repository."""
    path: str
    """Its field in the resource, such as ``spec.steps[0]``."""
    fields: StepFields
    """Its fields as declared."""


def declared_steps(spec: PipelineSpec) -> list[DeclaredStep]:
    """Return the model and the further steps."""
    result: list[DeclaredStep] = []
    if spec.model is not None:
        result.append(
            DeclaredStep(MODEL, Role.MODEL, spec.model.model_name, "spec.model", spec.model)
        )
    result += [
        DeclaredStep(
            step.name, Role.STEP, step.model_name or step.name, f"spec.steps[{index}]", step
        )
        for index, step in enumerate(spec.steps)
    ]
    return result


def auxiliary_steps(spec: PipelineSpec) -> list[DeclaredStep]:
    """Return the models that are loaded but not connected."""
    return [
        DeclaredStep(
            step.name,
            Role.AUXILIARY,
            step.model_name or step.name,
            f"spec.auxiliaryModels[{index}]",
            step,
        )
        for index, step in enumerate(spec.auxiliary_models)
    ]
