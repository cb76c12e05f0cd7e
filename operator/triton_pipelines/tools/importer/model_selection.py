"""Which models of a repository make the pipeline: an ensemble with its steps, or one model that clients call, and what these call themselves."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from triton_pipelines.api.v1alpha1 import MAX_STEPS

from .import_notes import ConfigError, Note
from .nested_ensembles import flatten
from .repository import Model, Repository


@dataclass(frozen=True)
class Choice:
    """The models of one pipeline.

    Attributes:
        public: the ensemble, or the model that clients call.
        steps: models that the ensemble calls, in its order; empty without one.
        auxiliary: models that a step's own code calls, and what else is served beside.
        uncalled: names of those among them that nobody is seen to call.
        left: models that have no part in it.
        notes: what is to be said of ensembles that the ensemble called.
    """

    public: Model
    steps: tuple[Model, ...]
    auxiliary: tuple[Model, ...]
    uncalled: tuple[str, ...]
    left: tuple[str, ...]
    notes: tuple[Note, ...] = ()


def choose(repository: Repository, wanted: str | None, without: Collection[str] = ()) -> Choice:
    """The models of the pipeline that ``wanted`` names; left out, the only ensemble, or the only model.

    Models named in ``without`` are left out, where no step needs them. Raises :class:`ConfigError`.
    """
    models = repository.models
    if unknown := [name for name in without if name not in models]:
        raise ConfigError(
            f"--without: there is no model {', '.join(unknown)}; the repository holds {_listed(models)}"
        )
    ensembles = [model for model in models.values() if model.ensemble]
    public = _public(models, ensembles, wanted)
    within: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    if public.ensemble:
        flat = flatten(public, models)
        public, within, notes = flat.model, flat.within, flat.notes
        steps = []
        for step in public.config.ensemble_scheduling.step:
            if step.model_name not in models:
                raise ConfigError(
                    f"{public.origin}: ensemble_scheduling: step {step.model_name!r} is no model of this repository; it holds {_listed(models)}"
                )
            steps.append(models[step.model_name])
        doubled = {
            model.name for model in steps if [one.name for one in steps].count(model.name) > 1
        }
        if doubled:
            raise ConfigError(
                f"{public.origin}: ensemble_scheduling: {', '.join(sorted(doubled))} is called by several steps, and a step of a pipeline is one model;"
                " copy the model's folder under another name and let one of the steps call that"
            )
    else:
        steps = []
    inside = [public, *steps]
    others = [
        model
        for name, model in models.items()
        if not model.ensemble and model not in inside and name not in without
    ]
    called = _called(inside, others)
    # What only another ensemble calls is that ensemble's; anything else was served beside this one, and goes on being so.
    foreign = {
        step.model_name
        for model in ensembles
        if model.name not in (public.name, *within)
        for step in model.config.ensemble_scheduling.step
    }
    beside = [model for model in others if model in called or model.name not in foreign]
    if len(beside) > MAX_STEPS:
        beside = called
    used = {*within, *(model.name for model in (*inside, *beside))}
    left = [name for name in models if name not in used]
    return Choice(
        public,
        tuple(steps),
        tuple(beside),
        tuple(model.name for model in beside if model not in called),
        tuple(left),
        notes,
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _public(models: Mapping[str, Model], ensembles: list[Model], wanted: str | None) -> Model:
    if wanted is not None:
        if wanted not in models:
            raise ConfigError(
                f"--ensemble: there is no model {wanted!r}; the repository holds {_listed(models)}"
            )
        return models[wanted]
    called = {
        step.model_name for model in ensembles for step in model.config.ensemble_scheduling.step
    }
    outer = [model for model in ensembles if model.name not in called]
    if len(outer) == 1:
        return outer[0]
    if len(ensembles) == 1:
        return ensembles[0]
    if ensembles:
        raise ConfigError(
            f"holds several ensembles, say which with --ensemble: {_listed(model.name for model in ensembles)}"
        )
    values = list(models.values())
    if len(values) == 1:
        return values[0]
    calling = [
        model
        for model in values
        if _called([model], [other for other in values if other is not model])
    ]
    if len(calling) == 1:
        return calling[0]
    raise ConfigError(
        f"holds no ensemble; say with --ensemble which model clients call: {_listed(model.name for model in values)}"
    )


def _called(inside: list[Model], others: list[Model]) -> list[Model]:
    """Models whose names stand in the code or the parameters of those inside, and in turn of those found."""
    found: list[Model] = []
    waiting = [model for model in inside if model.backend == "python"]
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
