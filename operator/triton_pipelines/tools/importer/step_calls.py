"""Steps of an ensemble as calls of models: their wiring and the order of their rendering."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triton_pipelines.compile.graph.defaults import MODEL, POSTPROCESS, TOKENIZER
from triton_pipelines.compile.graph.graph import PIPELINE, Reference

from .repository import RepositoryModel

SLOTS = (TOKENIZER, MODEL, POSTPROCESS)
# Maximum number of ways to choose the steps that declare shared models.
_MOST_CHOICES = 64


@dataclass
class StepCall:
    """One step of an ensemble with its wiring."""

    model: RepositoryModel
    """The model it calls."""
    version: int
    """The version it calls; -1: the latest."""
    reads: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    """Input → producer (index of a call, ``None``: the pipeline) and the tensor's name there."""
    writes: dict[str, str] = field(default_factory=dict)
    """Output → tensor of the ensemble."""
    name: str = ""
    """The name that references use."""
    repeats: str | None = None
    """Name of the call whose step has the model; ``None`` if this one has it."""


def calls_of(ensemble: RepositoryModel, models: Mapping[str, RepositoryModel]) -> list[StepCall]:
    """Return the steps of an ensemble with their wiring; tensors without a producer stay open."""
    steps = ensemble.config.ensemble_scheduling.step
    producers: dict[str, tuple[int | None, str]] = {
        tensor.name: (None, tensor.name) for tensor in ensemble.config.input
    }
    for index, step in enumerate(steps):
        producers |= {tensor: (index, output) for output, tensor in step.output_map.items()}
    calls = []
    for step in steps:
        reads = {
            name: producers[tensor]
            for name, tensor in step.input_map.items()
            if tensor in producers
        }
        calls.append(
            StepCall(models[step.model_name], step.model_version, reads, dict(step.output_map))
        )
    return calls


def references(call: StepCall, calls: Sequence[StepCall]) -> dict[str, str]:
    """Return the tensor that each input reads, as ``from`` has it."""
    return {
        name: str(Reference(PIPELINE if index is None else calls[index].name, tensor))
        for name, (index, tensor) in call.reads.items()
    }


def originals_of(calls: Sequence[StepCall], slots: Mapping[str, int | None]) -> dict[str, int]:
    """Return for each model the call whose step declares it; the others repeat that step.

    It is the call with a slot, else one that keeps the order of the ensemble, else the first.
    """
    named = {index for index in slots.values() if index is not None}
    by_model: dict[str, list[int]] = {}
    for index, call in enumerate(calls):
        by_model.setdefault(call.model.name, []).append(index)
    able = [[one for one in listed if one in named] or listed for listed in by_model.values()]
    choices = [
        dict(zip(by_model, chosen, strict=True))
        for chosen in itertools.islice(itertools.product(*able), _MOST_CHOICES)
    ]
    original = list(range(len(calls)))
    return next(
        (one for one in choices if rendered_order(calls, slots, one) == original), choices[0]
    )


def in_data_order(calls: Sequence[StepCall]) -> list[StepCall]:
    """Return the calls in data order; where that is open, in their original order."""
    return [calls[index] for index in rendered_order(calls, {})]


def rendered_order(
    calls: Sequence[StepCall],
    slots: Mapping[str, int | None],
    originals: Mapping[str, int] | None = None,
) -> list[int]:
    """Return the renderer's order of the calls: as written, except where data requires another.

    Args:
        calls: The calls.
        slots: The calls that have a slot.
        originals: For each model the call that declares it; the other calls come later.
    """
    chosen = [slots.get(slot) for slot in SLOTS]
    first = [index for index in chosen[:2] if index is not None]
    last = [index for index in chosen[2:] if index is not None]
    others = [index for index in range(len(calls)) if index not in chosen]
    if originals is not None:
        others.sort(key=lambda index: originals[calls[index].model.name] != index)
    remaining = [*first, *others, *last]
    done: set[int] = set()
    order: list[int] = []
    while remaining:
        ready = next(
            (
                index
                for index in remaining
                if all(
                    producer is None or producer in done
                    for producer, _ in calls[index].reads.values()
                )
            ),
            remaining[0],
        )
        remaining.remove(ready)
        order.append(ready)
        done.add(ready)
    return order
