"""Which step of an ensemble becomes the tokenizer, the model, the postprocess or a further step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triton_pipelines.api.steps import STEP_NAME_MAX, TAKEN_STEP_NAMES
from triton_pipelines.compile.graph.defaults import MODEL, POSTPROCESS, TOKENIZER
from triton_pipelines.compile.graph.graph import PIPELINE, Reference

from .rendered_steps import Own, own
from .repository import Model
from .schedulers import data_type
from .yaml_document import slug

_TOKENS = ("INT32", "INT64")
SLOTS = (TOKENIZER, MODEL, POSTPROCESS)


@dataclass
class Call:
    """One step of an ensemble: its model, the version it asks for, who feeds its inputs and what becomes of its outputs.

    ``reads`` is input → (index of the call that makes it, or None for the pipeline, and the tensor's name there); ``writes``
    output → the ensemble's tensor. ``name`` is by which references speak of it.
    """

    model: Model
    version: int
    reads: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    writes: dict[str, str] = field(default_factory=dict)
    name: str = ""


def calls_of(ensemble: Model, models: Sequence[Model]) -> list[Call]:
    """The steps of an ensemble with their wiring; tensors that nobody makes stay unwired."""
    steps = ensemble.config.ensemble_scheduling.step
    made: dict[str, tuple[int | None, str]] = {
        tensor.name: (None, tensor.name) for tensor in ensemble.config.input
    }
    for index, step in enumerate(steps):
        made |= {tensor: (index, output) for output, tensor in step.output_map.items()}
    calls = []
    for step, model in zip(steps, models, strict=True):
        reads = {name: made[tensor] for name, tensor in step.input_map.items() if tensor in made}
        calls.append(Call(model, step.model_version, reads, dict(step.output_map)))
    return calls


def name_calls(calls: Sequence[Call], ensemble: Model) -> None:
    """Give every call its name: a slot's, or a step's own.

    The operator names tensors between steps ``STEP.OUTPUT``: where they are so named, they tell. The order of the ensemble is kept:
    a slot that would change it is not used, but by the operator's own steps, which fit nowhere else.
    """
    told = [_told(call) for call in calls]
    tokenizer, postprocess = _tokenizer(calls, told, ensemble), _postprocess(calls, told)
    given = list(range(len(calls)))
    ordered = _written(calls, {}) == given  # steps in no order of the data are put into one anyhow
    slots: dict[str, int | None] = {}
    for model in [*_models(calls, told, tokenizer), None]:
        last = (
            postprocess
            if postprocess is not None or model is None
            else _last_code(calls, told, model)
        )
        slots = {TOKENIZER: tokenizer, MODEL: model, POSTPROCESS: last}
        if not ordered or _written(calls, slots) == given:
            break
    for slot in (POSTPROCESS, TOKENIZER):
        chosen = slots[slot]
        if (
            ordered
            and _written(calls, slots) != given
            and chosen is not None
            and own(calls[chosen].model) is None
        ):
            slots[slot] = None
    by_index = {index: slot for slot, index in slots.items() if index is not None}
    taken = {*TAKEN_STEP_NAMES, *(name for name in told if name)}
    for index, call in enumerate(calls):
        name = by_index.get(index) or (told[index] if told[index] not in TAKEN_STEP_NAMES else None)
        call.name = name or free_name(call.model.name, taken)
        taken.add(call.name)


def in_data_order(calls: Sequence[Call]) -> list[Call]:
    """The calls in the order of the data, the written one where data leaves it open."""
    return [calls[index] for index in _written(calls, {})]


def free_name(model: str, taken: set[str]) -> str:
    """A step's name made of its model's, not taken yet."""
    base, number = slug(model, STEP_NAME_MAX - 8), 1
    base = f"{base}-step" if base in TAKEN_STEP_NAMES else base
    name = base
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def references(call: Call, calls: Sequence[Call]) -> dict[str, str]:
    """Input → the tensor that it reads, as ``from`` has it."""
    return {
        name: str(Reference(PIPELINE if index is None else calls[index].name, tensor))
        for name, (index, tensor) in call.reads.items()
    }


def _told(call: Call) -> str | None:
    """The step's name, where its tensors between steps tell one."""
    names = set()
    for output, tensor in call.writes.items():
        name, dot, rest = tensor.partition(".")
        if dot and rest.rstrip("_") == output.rstrip("_") and slug(name, STEP_NAME_MAX) == name:
            names.add(name)
    return names.pop() if len(names) == 1 else None


def _tokenizer(calls: Sequence[Call], told: Sequence[str | None], ensemble: Model) -> int | None:
    ours = [index for index, call in enumerate(calls) if own(call.model) is Own.TOKENIZER]
    if ours:
        return ours[0]
    able = [index for index, call in enumerate(calls) if _makes_tokens(call, ensemble)]
    named = [index for index in able if told[index] == TOKENIZER]
    return next(iter(named or [index for index in able if told[index] is None]), None)


def _makes_tokens(call: Call, ensemble: Model) -> bool:
    """Whether own code turns one text, or a pair, into integers, and nothing of its config is more than the tokenizer's fields can say."""
    model, config = call.model, call.model.config
    if (
        model.backend != "python"
        or own(model) is not None
        or config.WhichOneof("scheduling_choice") == "sequence_batching"
    ):
        return False
    if (
        config.version_policy.WhichOneof("policy_choice")
        or call.version > 0
        or not 1 <= len(config.input) <= 2
    ):
        return False
    public = {tensor.name: list(tensor.dims) for tensor in ensemble.config.input}
    default = [1] if config.max_batch_size > 0 else [-1]
    texts = all(
        data_type(tensor.data_type) == "STRING"
        and not tensor.optional
        and not tensor.HasField("reshape")
        and list(tensor.dims) == public.get(config.input[0].name, default)
        and tensor.name in call.reads
        for tensor in config.input
    )
    return (
        texts
        and bool(config.output)
        and all(
            data_type(tensor.data_type) in _TOKENS and not tensor.HasField("reshape")
            for tensor in config.output
        )
    )


def _models(calls: Sequence[Call], told: Sequence[str | None], tokenizer: int | None) -> list[int]:
    """Which calls may be the model, the likeliest first: what is so named, else what Triton's own backends run, before code on a GPU."""
    free = [
        index
        for index, call in enumerate(calls)
        if own(call.model) not in (Own.TOKENIZER, Own.POSTPROCESS) and index != tokenizer
    ]
    named = [index for index in free if told[index] == MODEL]
    if named:
        return named

    def rank(index: int) -> tuple[bool, bool, int]:
        """Readers of tokens come first, then what is surely on a GPU."""
        model = calls[index].model
        return (
            tokenizer is None
            or all(maker != tokenizer for maker, _ in calls[index].reads.values()),
            not any(
                group.kind == _kind(group, "KIND_GPU") for group in model.config.instance_group
            ),
            index,
        )

    unnamed = [index for index in free if told[index] is None]
    backends = [
        index
        for index in unnamed
        if calls[index].model.backend != "python" or own(calls[index].model) is Own.RUNNER
    ]
    return sorted(backends or [index for index in unnamed if not rank(index)[1]], key=rank)


def _kind(group: Any, name: str) -> int:
    return int(type(group).Kind.Value(name))


def _postprocess(calls: Sequence[Call], told: Sequence[str | None]) -> int | None:
    ours = [index for index, call in enumerate(calls) if own(call.model) is Own.POSTPROCESS]
    if ours:
        return ours[0]
    return next(
        (index for index, call in enumerate(calls) if told[index] == POSTPROCESS and _plain(call)),
        None,
    )


def _last_code(calls: Sequence[Call], told: Sequence[str | None], model: int | None) -> int | None:
    """Somebody's own code at the end that says by its name that it is a postprocess, and batches as the model does, as that slot has to."""
    last = len(calls) - 1
    same = (
        model is not None
        and calls[last].model.config.max_batch_size == calls[model].model.config.max_batch_size
    )
    return (
        last
        if same
        and last != model
        and told[last] is None
        and calls[last].model.name.lower().startswith("post")
        and _plain(calls[last])
        else None
    )


def _plain(call: Call) -> bool:
    """Own code without what the postprocess's fields cannot say: versions and sequences."""
    config = call.model.config
    if call.model.backend != "python" or own(call.model) is not None or call.version > 0:
        return False
    return (
        not config.version_policy.WhichOneof("policy_choice")
        and config.WhichOneof("scheduling_choice") != "sequence_batching"
    )


def _written(calls: Sequence[Call], slots: Mapping[str, int | None]) -> list[int]:
    """The order in which the renderer would put the calls: as written, but for what data asks."""
    chosen = [slots.get(slot) for slot in SLOTS]
    first = [index for index in chosen[:2] if index is not None]
    last = [index for index in chosen[2:] if index is not None]
    left = [*first, *(index for index in range(len(calls)) if index not in chosen), *last]
    done: set[int] = set()
    order: list[int] = []
    while left:
        ready = next(
            (
                index
                for index in left
                if all(maker is None or maker in done for maker, _ in calls[index].reads.values())
            ),
            left[0],
        )
        left.remove(ready)
        order.append(ready)
        done.add(ready)
    return order
