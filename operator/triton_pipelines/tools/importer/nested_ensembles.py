"""Ensembles that ensembles call: a pipeline is one ensemble, so their steps become steps of the one that calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tritonclient.grpc import model_config_pb2

from .import_notes import ConfigError, Note, Weight
from .repository import Model


@dataclass(frozen=True)
class Flat:
    """An ensemble all of whose steps are models.

    Attributes:
        model: the ensemble, its config changed where it called others.
        within: names of the ensembles whose steps it took over.
        notes: what is to be said of them.
    """

    model: Model
    within: tuple[str, ...]
    notes: tuple[Note, ...]


def flatten(public: Model, models: Mapping[str, Model]) -> Flat:
    """``public`` with the steps of every ensemble that it calls, directly or through others, in that one's place.

    Tensors between the steps of an inner ensemble get names of their own; what it reads and answers with has the outer names. Batch sizes need no
    look: Triton loads an outer ensemble only where its ``max_batch_size`` is not above the inner one's. A step that is no model of the repository
    is left as it is. Raises :class:`ConfigError` for ensembles that call each other in a circle.
    """
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(public.config)
    within: list[str] = []
    steps = _expanded(
        public,
        config.ensemble_scheduling.step,
        models,
        (public.name,),
        within,
        _tensors(config.ensemble_scheduling.step),
    )
    if not within:
        return Flat(public, (), ())
    del config.ensemble_scheduling.step[:]
    config.ensemble_scheduling.step.extend(steps)
    notes = [
        Note(
            f"{public.origin}: ensemble_scheduling",
            f"step {name!r} is an ensemble itself, and a pipeline is one ensemble: its steps are steps of {public.name} now,"
            f" and clients that call {name} by its own name find it no more",
            Weight.CHANGED,
        )
        for name in within
    ]
    notes += [
        Note(
            f"{models[name].origin}: response_cache",
            f"the steps of {name} have no cache of their own",
            Weight.LOST,
        )
        for name in within
        if models[name].config.response_cache.enable
    ]
    notes += [
        Note(
            f"{models[name].origin}: batching",
            f"stands on the ensemble {name}, where Triton refuses it; every step keeps its own",
            Weight.LOST,
        )
        for name in within
        if models[name].misplaced is not None
    ]
    return Flat(replace(public, config=config), tuple(within), tuple(notes))


def _tensors(steps: Sequence[Any]) -> set[str]:
    return {
        name
        for step in steps
        for names in (step.input_map, step.output_map)
        for name in names.values()
    }


def _expanded(
    caller: Model,
    steps: Sequence[Any],
    models: Mapping[str, Model],
    path: tuple[str, ...],
    within: list[str],
    taken: set[str],
) -> list[Any]:
    """The steps with those of ensembles in their place. ``path``: who calls whom down to here; ``taken``: names of tensors in use."""
    result: list[Any] = []
    for step in steps:
        inner = models.get(step.model_name)
        if inner is None or not inner.ensemble:
            result.append(step)
            continue
        if inner.name in path:
            circle = " → ".join((*path, inner.name))
            raise ConfigError(
                f"{caller.origin}: ensemble_scheduling: {circle}: ensembles call each other in a circle; Triton does not load them"
            )
        if inner.name not in within:
            within.append(inner.name)
        own = inner.config.ensemble_scheduling.step
        named = _names(inner, step, _tensors(own), taken)
        result += _expanded(
            inner, [_renamed(one, named) for one in own], models, (*path, inner.name), within, taken
        )
    return result


def _names(inner: Model, step: Any, tensors: set[str], taken: set[str]) -> dict[str, str | None]:
    """Tensor of the inner ensemble → what it is called outside; ``None``: an optional input that nobody feeds."""
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
