"""Flatten ensembles that call ensembles: a pipeline is one ensemble with all their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tritonclient.grpc import model_config_pb2

from .import_notes import ImportNote, ModelRepositoryError, NoteSeverity
from .repository import RepositoryModel


@dataclass(frozen=True)
class FlattenedEnsemble:
    """An ensemble whose steps are all models."""

    model: RepositoryModel
    """The ensemble; its config is changed if it called others."""
    within: tuple[str, ...]
    """Names of the replaced ensembles."""
    notes: tuple[ImportNote, ...]
    """Notes on them."""


def flatten(entry: RepositoryModel, models: Mapping[str, RepositoryModel]) -> FlattenedEnsemble:
    """Replace every ensemble that an ensemble calls, directly or indirectly, by its steps.

    Tensors between the steps of an inner ensemble get unique names; its inputs and outputs have the
    outer names. Batch sizes need no check: Triton only loads an outer ensemble if its
    ``max_batch_size`` does not exceed the inner one's. A step that is not a model of the repository
    stays as it is.

    Raises:
        ModelRepositoryError: ensembles call each other in a cycle.
    """
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(entry.config)
    within: list[str] = []
    steps = _expanded(
        entry,
        config.ensemble_scheduling.step,
        models,
        (entry.name,),
        within,
        _tensors(config.ensemble_scheduling.step),
    )
    if not within:
        return FlattenedEnsemble(entry, (), ())
    del config.ensemble_scheduling.step[:]
    config.ensemble_scheduling.step.extend(steps)
    notes = [
        ImportNote(
            f"{entry.origin}: ensemble_scheduling",
            f"step {name!r} is an ensemble, but a pipeline has only one ensemble, so the steps of "
            f"{name!r} are now steps of {entry.name!r}, and clients can no longer call {name!r}",
            NoteSeverity.CHANGED,
        )
        for name in within
    ]
    notes += [
        ImportNote(
            f"{models[name].origin}: response_cache",
            f"the steps of {name} have no separate cache",
            NoteSeverity.LOST,
        )
        for name in within
        if models[name].config.response_cache.enable
    ]
    notes += [
        ImportNote(
            f"{models[name].origin}: batching",
            f"is set on the ensemble {name}, where Triton rejects it; all steps keep their "
            "settings",
            NoteSeverity.LOST,
        )
        for name in within
        if models[name].misplaced is not None
    ]
    return FlattenedEnsemble(replace(entry, config=config), tuple(within), tuple(notes))


def _tensors(steps: Sequence[Any]) -> set[str]:
    return {
        name
        for step in steps
        for names in (step.input_map, step.output_map)
        for name in names.values()
    }


def _expanded(
    caller: RepositoryModel,
    steps: Sequence[Any],
    models: Mapping[str, RepositoryModel],
    path: tuple[str, ...],
    within: list[str],
    taken: set[str],
) -> list[Any]:
    """Return the steps with ensembles replaced by their steps.

    Args:
        caller: ensemble that has these steps.
        steps: the steps.
        models: all models of the repository.
        path: names of the ensembles from the outermost to this one.
        within: gets the names of the replaced ensembles.
        taken: tensor names in use.
    """
    result: list[Any] = []
    for step in steps:
        inner = models.get(step.model_name)
        if inner is None or not inner.ensemble:
            result.append(step)
            continue
        if inner.name in path:
            cycle = " → ".join((*path, inner.name))
            raise ModelRepositoryError(
                f"{caller.origin}: ensemble_scheduling: the ensembles form a cycle "
                f"({cycle}), which Triton rejects; remove one of the calls"
            )
        if inner.name not in within:
            within.append(inner.name)
        own = inner.config.ensemble_scheduling.step
        named = _names(inner, step, _tensors(own), taken)
        result += _expanded(
            inner, [_renamed(one, named) for one in own], models, (*path, inner.name), within, taken
        )
    return result


def _names(
    inner: RepositoryModel, step: Any, tensors: set[str], taken: set[str]
) -> dict[str, str | None]:
    """Return the outer name of each tensor of the inner ensemble.

    ``None``: an optional input that is not connected.
    """
    named: dict[str, str | None] = {**step.input_map, **step.output_map}
    named |= {
        tensor.name: None
        for tensor in inner.config.input
        if tensor.optional and tensor.name not in step.input_map
    }
    for name in sorted(tensors - named.keys()):
        new, number = f"{inner.name}.{name}", 2
        while new in taken:
            new, number = f"{inner.name}.{name}.{number}", number + 1
        taken.add(new)
        named[name] = new
    return named


def _renamed(step: Any, named: Mapping[str, str | None]) -> Any:
    result = type(step)()
    result.CopyFrom(step)
    for field in ("input_map", "output_map"):
        names = getattr(result, field)
        for key, tensor in list(names.items()):
            new = named[tensor]
            if new is None:
                del names[key]
            else:
                names[key] = new
    return result
