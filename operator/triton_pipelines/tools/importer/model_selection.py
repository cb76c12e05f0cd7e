"""Select the models of a pipeline: an ensemble with its steps, or one model, and what they call."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from triton_pipelines.api.v1alpha1 import MAX_STEPS

from .import_notes import ImportNote, ModelRepositoryError
from .nested_ensembles import flatten
from .repository import ModelRepository, RepositoryModel


@dataclass(frozen=True)
class PipelineModels:
    """The models of one pipeline."""

    entry: RepositoryModel
    """The ensemble, or the model that clients call."""
    steps: tuple[RepositoryModel, ...]
    """Models that the ensemble calls, in its order; empty without one."""
    auxiliary: tuple[RepositoryModel, ...]
    """Models that custom code of a step calls, and others that are served in addition."""
    uncalled: tuple[str, ...]
    """Names of auxiliary models without a known caller."""
    unused: tuple[str, ...]
    """Names of models that are not part of the pipeline."""
    notes: tuple[ImportNote, ...] = ()
    """Notes on ensembles that the ensemble calls."""


def select_models(
    repository: ModelRepository, name: str | None, without: Collection[str] = ()
) -> PipelineModels:
    """Return the models of a pipeline.

    Args:
        repository: the parsed repository.
        name: the ensemble or model; ``None``: the only ensemble, or the only model.
        without: models to leave out, unless a step needs them.

    Raises:
        ModelRepositoryError: the choice is ambiguous, or a model is missing.
    """
    models = repository.models
    if unknown := [name for name in without if name not in models]:
        raise ModelRepositoryError(
            f"--without: the repository has no model {', '.join(unknown)};"
            f" it contains {_listed(models)}"
        )
    ensembles = [model for model in models.values() if model.ensemble]
    entry = _entry(models, ensembles, name)
    within: tuple[str, ...] = ()
    notes: tuple[ImportNote, ...] = ()
    if entry.ensemble:
        flat = flatten(entry, models)
        entry, within, notes = flat.model, flat.within, flat.notes
        steps = _steps_of(entry, models)
    else:
        steps = []
    callers = [entry, *steps]
    others = [
        model
        for name, model in models.items()
        if not model.ensemble and model not in callers and name not in without
    ]
    called = _called_models(callers, others)
    # A model that only another ensemble calls belongs to that ensemble. Any other model was served
    # in addition, and it still is.
    foreign = {
        step.model_name
        for model in ensembles
        if model.name not in (entry.name, *within)
        for step in model.config.ensemble_scheduling.step
    }
    auxiliary = [model for model in others if model in called or model.name not in foreign]
    if len(auxiliary) > MAX_STEPS:
        auxiliary = called
    used = {*within, *(model.name for model in (*callers, *auxiliary))}
    unused = [name for name in models if name not in used]
    return PipelineModels(
        entry,
        tuple(steps),
        tuple(auxiliary),
        tuple(model.name for model in auxiliary if model not in called),
        tuple(unused),
        notes,
    )


def _steps_of(
    entry: RepositoryModel, models: Mapping[str, RepositoryModel]
) -> list[RepositoryModel]:
    """Return the models that an ensemble calls, each once.

    Raises:
        ModelRepositoryError: a model is missing, or called by several steps.
    """
    steps: list[RepositoryModel] = []
    for step in entry.config.ensemble_scheduling.step:
        if step.model_name not in models:
            raise ModelRepositoryError(
                f"{entry.origin}: ensemble_scheduling: step {step.model_name!r} is not a model"
                f" of this repository, which contains {_listed(models)}"
            )
        steps.append(models[step.model_name])
    doubled = {model.name for model in steps if [one.name for one in steps].count(model.name) > 1}
    if doubled:
        raise ModelRepositoryError(
            f"{entry.origin}: ensemble_scheduling: {', '.join(sorted(doubled))} is called by"
            " several steps, but each step of a pipeline needs its own model;"
            " copy the model's folder under another name and let one of the steps call that"
        )
    return steps


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _entry(
    models: Mapping[str, RepositoryModel], ensembles: list[RepositoryModel], name: str | None
) -> RepositoryModel:
    if name is not None:
        if name not in models:
            raise ModelRepositoryError(
                f"--ensemble: the repository has no model {name!r}; it contains {_listed(models)}"
            )
        return models[name]
    called = {
        step.model_name for model in ensembles for step in model.config.ensemble_scheduling.step
    }
    outer = [model for model in ensembles if model.name not in called]
    if len(outer) == 1:
        return outer[0]
    if len(ensembles) == 1:
        return ensembles[0]
    if ensembles:
        raise ModelRepositoryError(
            f"contains several ensembles; choose one with --ensemble:"
            f" {_listed(model.name for model in ensembles)}"
        )
    values = list(models.values())
    if len(values) == 1:
        return values[0]
    calling = [
        model
        for model in values
        if _called_models([model], [other for other in values if other is not model])
    ]
    if len(calling) == 1:
        return calling[0]
    raise ModelRepositoryError(
        "contains no ensemble; choose the model that clients call with --ensemble:"
        f" {_listed(model.name for model in values)}"
    )


def _called_models(
    callers: list[RepositoryModel], others: list[RepositoryModel]
) -> list[RepositoryModel]:
    """Return the models that code or parameters of ``callers`` name, directly or indirectly."""
    found: list[RepositoryModel] = []
    waiting = [model for model in callers if model.backend == "python"]
    while waiting:
        model = waiting.pop()
        text = "\n".join(
            [
                model.text("model.py") or "",
                *(f'"{value.string_value}"' for value in model.config.parameters.values()),
            ]
        )
        for other in others:
            if other not in found and re.search(rf"""["']{re.escape(other.name)}["']""", text):
                found.append(other)
                waiting += [other] if other.backend == "python" else []
    return [model for model in others if model in found]
