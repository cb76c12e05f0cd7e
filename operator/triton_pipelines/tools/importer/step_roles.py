"""Choose which step of an ensemble becomes the tokenizer, the model and the postprocess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton_pipelines.api.step_names import STEP_NAME_MAX, TAKEN_STEP_NAMES
from triton_pipelines.compile.graph.defaults import (
    MODEL,
    POSTPROCESS,
    STRATEGY_FILE,
    STRATEGY_PARAMETER,
    TOKENIZER,
)

from .import_notes import ImportReport
from .rendered_steps import RuntimeStep, runtime_step_of
from .repository import RepositoryModel
from .schedulers import data_type, merged_group
from .step_calls import StepCall, originals_of, rendered_order
from .yaml_document import slug

_TOKENS = ("INT32", "INT64")


def make_required(
    calls: Sequence[StepCall], ensemble: RepositoryModel, report: ImportReport
) -> None:
    """Make an optional input of the ensemble required if a step that reads it requires it."""
    readers: dict[str, tuple[str, str]] = {}
    for call in calls:
        for item in call.model.config.input:
            producer, tensor = call.reads.get(item.name, (None, ""))
            if producer is None and tensor and not item.optional:
                readers[tensor] = (call.model.name, item.name)
    for index, item in enumerate(ensemble.config.input):
        if item.optional and item.name in readers:
            model, name = readers[item.name]
            item.optional = False
            report.changed(
                f"{ensemble.origin}: input[{index}].optional",
                f"removed, because model {model!r} requires input {name!r} and a request "
                f"without {item.name} would fail",
                "spec.ensemble.inputs",
            )


def name_calls(calls: Sequence[StepCall], ensemble: RepositoryModel) -> None:
    """Name every call after a slot (tokenizer, model, postprocess) or its own step.

    The operator names tensors between steps ``STEP.OUTPUT``; such names decide. The order of the
    ensemble is kept: a slot that would change it is not used, except for built-in steps, which
    fit nowhere else.
    """
    names = [_name_in_tensors(call) for call in calls]
    tokenizer, postprocess = _tokenizer(calls, names, ensemble), _postprocess(calls, names)
    original = list(range(len(calls)))
    # Steps that are not in data order are reordered anyway.
    ordered = rendered_order(calls, {}) == original
    slots: dict[str, int | None] = {}
    for model in [*_models(calls, names, tokenizer), None]:
        last = (
            postprocess
            if postprocess is not None or model is None
            else _last_code(calls, names, model)
        )
        slots = {TOKENIZER: tokenizer, MODEL: model, POSTPROCESS: last}
        if not ordered or rendered_order(calls, slots) == original:
            break
    for slot in (POSTPROCESS, TOKENIZER):
        chosen = slots[slot]
        if (
            ordered
            and rendered_order(calls, slots) != original
            and chosen is not None
            and runtime_step_of(calls[chosen].model) is None
        ):
            slots[slot] = None
    _leave_shared_slots(calls, slots)
    by_index = {index: slot for slot, index in slots.items() if index is not None}
    taken = {*TAKEN_STEP_NAMES, *(name for name in names if name)}
    for index, call in enumerate(calls):
        name = by_index.get(index) or (
            names[index] if names[index] not in TAKEN_STEP_NAMES else None
        )
        call.name = name or free_name(call.model.name, taken)
        taken.add(call.name)
    originals = originals_of(calls, slots)
    for index, call in enumerate(calls):
        first = originals[call.model.name]
        call.repeats = None if index == first else calls[first].name


def _leave_shared_slots(calls: Sequence[StepCall], slots: dict[str, int | None]) -> None:
    """Free slots whose model already occupies another slot."""
    taken: set[str] = set()
    for slot in (MODEL, TOKENIZER, POSTPROCESS):
        chosen = slots[slot]
        if chosen is not None and calls[chosen].model.name in taken:
            slots[slot] = None
        elif chosen is not None:
            taken.add(calls[chosen].model.name)


def free_name(model: str, taken: set[str]) -> str:
    """Return an unused step name derived from the model's name."""
    base, number = slug(model, STEP_NAME_MAX - 8), 1
    base = f"{base}-step" if base in TAKEN_STEP_NAMES else base
    name = base
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def _name_in_tensors(call: StepCall) -> str | None:
    """Return the step's name, if its tensors between steps contain one."""
    names = set()
    for output, tensor in call.writes.items():
        name, dot, rest = tensor.partition(".")
        if dot and rest.rstrip("_") == output.rstrip("_") and slug(name, STEP_NAME_MAX) == name:
            names.add(name)
    return names.pop() if len(names) == 1 else None


def _tokenizer(
    calls: Sequence[StepCall], names: Sequence[str | None], ensemble: RepositoryModel
) -> int | None:
    ours = [
        index
        for index, call in enumerate(calls)
        if runtime_step_of(call.model) is RuntimeStep.TOKENIZER
    ]
    if ours:
        return next((index for index in ours if names[index] == TOKENIZER), ours[0])
    able = [index for index, call in enumerate(calls) if _makes_tokens(call, ensemble)]
    named = [index for index in able if names[index] == TOKENIZER]
    return next(iter(named or [index for index in able if names[index] is None]), None)


def _makes_tokens(call: StepCall, ensemble: RepositoryModel) -> bool:
    """Return whether a model is custom code that turns one text, or a pair, into integers.

    Its config must not contain more than the tokenizer's fields can express.
    """
    model, config = call.model, call.model.config
    if (
        model.backend != "python"
        or runtime_step_of(model) is not None
        or config.WhichOneof("scheduling_choice") == "sequence_batching"
    ):
        return False
    if (
        config.version_policy.WhichOneof("policy_choice")
        or call.version > 0
        or not 1 <= len(config.input) <= 2
        or not _runs_on_cpu(config)
        or _has_strategy(model)
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


def _runs_on_cpu(config: Any) -> bool:
    """Return whether instances may be those of a tokenizer, which never runs on a GPU.

    Without a kind they may, although Triton would put them on GPUs, which is unintended. A
    tokenizer has one group, because it is scaled.
    """
    return merged_group(config) is not None and not any(
        group.kind not in (_kind(group, "KIND_CPU"), _kind(group, "KIND_AUTO"))
        or group.gpus
        or group.profile
        for group in config.instance_group
    )


def _has_strategy(model: RepositoryModel) -> bool:
    """Return whether a model has a batching library, for which only steps have a field."""
    return STRATEGY_PARAMETER in model.config.parameters or STRATEGY_FILE in model.other_files


def _models(
    calls: Sequence[StepCall], names: Sequence[str | None], tokenizer: int | None
) -> list[int]:
    """Return the calls that may be the model, the most likely first.

    A name decides; else models of Triton's other backends come before code on a GPU.
    """
    free = [
        index
        for index, call in enumerate(calls)
        if runtime_step_of(call.model) not in (RuntimeStep.TOKENIZER, RuntimeStep.POSTPROCESS)
        and index != tokenizer
    ]
    named = [index for index in free if names[index] == MODEL]
    if named:
        return named

    def rank(index: int) -> tuple[bool, bool, int]:
        """Sort readers of tokens first, then models that are certainly on a GPU."""
        model = calls[index].model
        return (
            tokenizer is None
            or all(producer != tokenizer for producer, _ in calls[index].reads.values()),
            not any(
                group.kind == _kind(group, "KIND_GPU") for group in model.config.instance_group
            ),
            index,
        )

    unnamed = [index for index in free if names[index] is None]
    backends = [
        index
        for index in unnamed
        if calls[index].model.backend != "python"
        or runtime_step_of(calls[index].model) is RuntimeStep.RUNNER
    ]
    return sorted(backends or [index for index in unnamed if not rank(index)[1]], key=rank)


def _kind(group: Any, name: str) -> int:
    return int(type(group).Kind.Value(name))


def _postprocess(calls: Sequence[StepCall], names: Sequence[str | None]) -> int | None:
    ours = [
        index
        for index, call in enumerate(calls)
        if runtime_step_of(call.model) is RuntimeStep.POSTPROCESS
    ]
    if ours:
        return next((index for index in ours if names[index] == POSTPROCESS), ours[0])
    return next(
        (index for index, call in enumerate(calls) if names[index] == POSTPROCESS and _plain(call)),
        None,
    )


def _last_code(
    calls: Sequence[StepCall], names: Sequence[str | None], model: int | None
) -> int | None:
    """Return the last call if it is a postprocess by its name.

    It must be custom code with the model's batch size, as the slot requires.
    """
    last = len(calls) - 1
    same = (
        model is not None
        and calls[last].model.config.max_batch_size == calls[model].model.config.max_batch_size
    )
    return (
        last
        if same
        and last != model
        and names[last] is None
        and calls[last].model.name.lower().startswith("post")
        and _plain(calls[last])
        else None
    )


def _plain(call: StepCall) -> bool:
    """Return whether a call is custom code without versions and sequences.

    The postprocess has no fields for these.
    """
    config = call.model.config
    if (
        call.model.backend != "python"
        or runtime_step_of(call.model) is not None
        or call.version > 0
        or _has_strategy(call.model)
    ):
        return False
    return (
        not config.version_policy.WhichOneof("policy_choice")
        and config.WhichOneof("scheduling_choice") != "sequence_batching"
    )
