"""Select the models of a pipeline: an ensemble with its steps, or one model, and what they call."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from triton_pipelines.api.v1alpha1 import MAX_STEPS

from .import_notes import (
    ImportNote,
    InexpressibleRepositoryError,
    ModelRepositoryError,
    NoteSeverity,
    UnfilledTemplateError,
)
from .nested_ensembles import flatten
from .repository import BrokenModel, ModelRepository, RepositoryModel
from .repository_checks import check_models


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
        without: models to leave out.

    Raises:
        ModelRepositoryError: the choice is ambiguous, or a model is missing.
    """
    models = repository.models
    _check_left_out(repository, without)
    models = {name: model for name, model in models.items() if name not in without}
    ensembles = [model for model in models.values() if model.ensemble]
    original = entry = _entry(repository, models, ensembles, name)
    within: tuple[str, ...] = ()
    notes: tuple[ImportNote, ...] = ()
    if entry.ensemble:
        flat = flatten(entry, models)
        entry, within, notes = flat.model, flat.within, flat.notes
        steps = _steps_of(entry, repository, models)
    else:
        steps = []
    inner = [original, *(models[one] for one in within)]
    check_models([*inner, *steps], models)
    callers = [entry, *steps]
    others = [
        model for name, model in models.items() if not model.ensemble and model not in callers
    ]
    called = _called_models(callers, others)
    # A model that only another ensemble calls belongs to that ensemble. Any other model was served
    # in addition, and it still is.
    foreign = _called_by_others(repository, ensembles, {entry.name, *within})
    broken = [model for model in repository.broken.values() if not model.ensemble]
    _raise_broken(
        repository, [model for model in broken if model.name not in foreign], optional=True
    )
    auxiliary = [model for model in others if model in called or model.name not in foreign]
    if len(auxiliary) > MAX_STEPS:
        notes += (_too_many(entry, [one.name for one in auxiliary if one not in called]),)
        auxiliary = called
    check_models(auxiliary, models, optional=True)
    notes += tuple(_broken_note(model) for model in repository.broken.values())
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


def _check_left_out(repository: ModelRepository, without: Collection[str]) -> None:
    if unknown := [
        name for name in without if name not in (*repository.names, *repository.left_out)
    ]:
        raise ModelRepositoryError(
            f"--without: the repository has no model {', '.join(map(repr, unknown))}; use "
            f"one of its models: {_listed({*repository.names, *repository.left_out})}"
        )


def _called_by_others(
    repository: ModelRepository, ensembles: Iterable[RepositoryModel], ours: Collection[str]
) -> set[str]:
    """Return the names of the models that ensembles outside of the pipeline call."""
    called = {
        step.model_name
        for model in ensembles
        if model.name not in ours
        for step in model.config.ensemble_scheduling.step
    }
    return called | {name for model in repository.broken.values() for name in model.calls}


def _too_many(entry: RepositoryModel, names: Sequence[str]) -> ImportNote:
    return ImportNote(
        entry.origin,
        f"a pipeline can have at most {MAX_STEPS} auxiliary models; the following models were "
        f"omitted because no step calls them: {_listed(names)}",
    )


def _broken_note(model: BrokenModel) -> ImportNote:
    return ImportNote(
        model.name,
        (
            "the model is not part of this pipeline and was omitted, because its config "
            f"cannot be read: {model.error}"
        ),
        NoteSeverity.INFO,
    )


def _raise_broken(
    repository: ModelRepository, models: Sequence[BrokenModel], *, optional: bool = False
) -> None:
    """Raise the errors of broken models; those of unfilled templates as one for all models.

    Args:
        repository: the repository.
        models: the broken models that the pipeline has.
        optional: whether the pipeline works without them.
    """
    if not models:
        return
    if any(isinstance(model.error, UnfilledTemplateError) for model in models):
        errors = [model.error for model in repository.broken.values()]
        raise UnfilledTemplateError(
            [
                place
                for error in errors
                if isinstance(error, UnfilledTemplateError)
                for place in error.places
            ]
        )
    messages = [str(model.error) for model in models]
    if optional:
        leave_out = " ".join(f"--without {model.name}" for model in models)
        messages[-1] += (
            f"; no step calls this model, so exclude the model with {leave_out} if you "
            "do not need it"
        )
    raise ModelRepositoryError("\n".join(messages))


def _steps_of(
    entry: RepositoryModel, repository: ModelRepository, models: Mapping[str, RepositoryModel]
) -> list[RepositoryModel]:
    """Return the models that an ensemble calls, each once.

    Raises:
        ModelRepositoryError: a model is missing or broken, or steps call several versions of it.
    """
    names = [step.model_name for step in entry.config.ensemble_scheduling.step]
    _raise_broken(
        repository, [repository.broken[name] for name in names if name in repository.broken]
    )
    for name in names:
        if name in repository.left_out:
            raise ModelRepositoryError(
                f"--without: model {name!r} cannot be excluded, because a step of "
                f"{entry.name!r} calls it; choose another ensemble with --ensemble, or "
                "remove the step"
            )
        if name not in models:
            raise ModelRepositoryError(
                f"{entry.origin}: ensemble_scheduling: the repository has no model "
                f"{name!r}; use one of its models: {_listed(repository.names)}"
            )
    versions: dict[str, int] = {}
    for step in entry.config.ensemble_scheduling.step:
        if versions.setdefault(step.model_name, step.model_version) != step.model_version:
            raise InexpressibleRepositoryError(
                f"{entry.origin}: ensemble_scheduling: steps call different versions of "
                f"model {step.model_name!r}, but a pipeline calls one version of each "
                "model; copy the model to a new name, and use the new name in one of the "
                "steps"
            )
    return [models[name] for name in versions]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _entry(
    repository: ModelRepository,
    models: Mapping[str, RepositoryModel],
    ensembles: list[RepositoryModel],
    name: str | None,
) -> RepositoryModel:
    """Return the model that clients call."""
    if name is not None:
        return _named_entry(repository, models, name)
    if not models and not repository.broken:
        raise ModelRepositoryError(
            "--without: at least one model must remain; exclude fewer models"
        )
    broken = [model for model in repository.broken.values() if model.ensemble]
    if broken or not models:
        _raise_broken_entry(repository, broken or list(repository.broken.values()), ensembles)
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
            "the repository contains multiple ensembles; choose one with --ensemble: "
            f"{_listed(model.name for model in ensembles)}"
        )
    values = list(models.values())
    if len(values) == 1:
        return values[0]
    if repository.broken:
        _raise_broken(repository, list(repository.broken.values()), optional=True)
    calling = [
        model
        for model in values
        if _called_models([model], [other for other in values if other is not model])
    ]
    if len(calling) == 1:
        return calling[0]
    raise ModelRepositoryError(
        "the repository contains no ensemble; use --ensemble to choose the model that clients "
        f"call: {_listed(model.name for model in values)}"
    )


def _named_entry(
    repository: ModelRepository, models: Mapping[str, RepositoryModel], name: str
) -> RepositoryModel:
    """Return the model that ``--ensemble`` names."""
    if name in repository.broken:
        _raise_broken(repository, [repository.broken[name]])
    if name not in models:
        raise ModelRepositoryError(
            f"--ensemble: the repository has no model {name!r}; use one of its models: "
            f"{_listed(models)}"
        )
    return models[name]


def _raise_broken_entry(
    repository: ModelRepository, broken: Sequence[BrokenModel], ensembles: Sequence[RepositoryModel]
) -> None:
    """Raise the error of a broken ensemble, which may be the one that is meant."""
    try:
        _raise_broken(repository, broken)
    except UnfilledTemplateError:
        raise
    except ModelRepositoryError as error:
        if not ensembles:
            raise
        others = _listed(model.name for model in ensembles)
        raise ModelRepositoryError(
            f"{error}; to import another ensemble, use --ensemble: {others}"
        ) from error


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
