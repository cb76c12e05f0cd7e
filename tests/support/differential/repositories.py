"""Hypothesis strategies for whole model repositories.

They have steps, an ensemble over them, sometimes an ensemble over that, and a few random faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from .engine import Repository
from .models import TYPES, Draw, chance, decorate, dims, tensor, tensor_names

_MAX_STEPS: Final = 6
_TEXTS: Final = (
    "",
    "x",
    "y",
    "m0",
    "m1",
    "e",
    "t0",
    "in0",
    "null",
    "tensorrt_plan",
    "ensemble",
    "python",
    "-1",
    "0",
    "zz",
)
_NUMBERS: Final = (-2, -1, 0, 1, 2, 3, 7)
# Fields whose random values would exhaust the machine's memory, or request features beyond Triton's
# core; and repository agents, which a resource cannot have.
_SPARED: Final = frozenset({"name", "profile", "parameters", "model_repository_agents"})


@dataclass
class _Tensor:
    """A tensor of an ensemble: its name, element type, dims and whether a step reads it."""

    name: str
    data_type: int
    dims: list[int]
    batched: bool
    decoupled: str = ""
    read: bool = False


@st.composite
def repositories(draw: Draw, faults: bool = True) -> Repository:
    """Draw a repository that is valid or has a few random faults.

    Faults need ``faults``; then more than half of the repositories have some.
    """
    repository = Repository({})
    _ensemble(draw, repository)
    if chance(draw, 15):
        _outer(draw, repository)
    if faults and chance(draw, 60):
        for _ in range(draw(st.integers(1, 3))):
            name = draw(st.sampled_from(sorted(repository.configs)))
            _fault(draw, repository.configs[name])
    return repository


def _ensemble(draw: Draw, repository: Repository) -> None:
    config = pb.ModelConfig(
        name="e", platform="ensemble", max_batch_size=draw(st.sampled_from((0, 1, 4, 8)))
    )
    batched = config.max_batch_size > 0
    pool = [
        _Tensor(f"in{i}", draw(st.sampled_from(TYPES)), draw(dims()), batched)
        for i in range(draw(st.integers(1, 3)))
    ]
    made: list[_Tensor] = []
    for index in range(draw(st.integers(1, _MAX_STEPS))):
        made += _step(draw, repository, config, pool + made, index)
    origins = sorted({entry.decoupled for entry in made if not entry.read})
    kept = draw(st.sampled_from(origins)) if origins else ""
    outputs = [
        entry for entry in made if entry.decoupled == kept and (not entry.read or chance(draw, 20))
    ]
    for entry in outputs:
        target = config.output.add(name=entry.name, data_type=entry.data_type)
        target.dims.extend(-1 if chance(draw, 15) else dim for dim in entry.dims)
    read = _prune(config, {entry.name for entry in outputs})
    for entry in pool:
        if entry.name in read:
            target = config.input.add(name=entry.name, data_type=entry.data_type)
            target.dims.extend(entry.dims)
            if chance(draw, 10):
                target.optional = True
            if chance(draw, 10):
                target.allow_ragged_batch = True
    config.ensemble_scheduling.SetInParent()
    if chance(draw, 10) and not any(entry.decoupled for entry in made):
        config.response_cache.enable = True
    if chance(draw, 10):
        config.version_policy.all.SetInParent()
    if chance(draw, 30):
        steps = draw(st.permutations(list(config.ensemble_scheduling.step)))
        config.ensemble_scheduling.ClearField("step")
        config.ensemble_scheduling.step.extend(steps)
    repository.configs["e"] = config


def _prune(config: Any, needed: set[str]) -> set[str]:
    """Remove steps and tensors that nothing needs.

    Returns the names of the tensors that are read.
    """
    steps = []
    read: set[str] = set()
    for step in reversed(config.ensemble_scheduling.step):
        for key, target in list(step.output_map.items()):
            if target not in needed | read:
                del step.output_map[key]
        if step.output_map:
            steps.append(step)
            read |= set(step.input_map.values())
    kept = list(reversed(steps))
    config.ensemble_scheduling.ClearField("step")
    config.ensemble_scheduling.step.extend(kept)
    return read


def _step(
    draw: Draw, repository: Repository, ensemble: Any, pool: list[_Tensor], index: int
) -> list[_Tensor]:
    """One more model and its step; the tensors it writes."""
    name = f"m{index}"
    first = draw(st.sampled_from(pool))
    alike = [entry for entry in pool if entry.decoupled == first.decoupled]
    read = draw(
        st.lists(st.sampled_from(alike), min_size=1, max_size=3, unique_by=lambda entry: entry.name)
    )
    config = pb.ModelConfig(name=name)
    size = ensemble.max_batch_size
    config.max_batch_size = draw(st.sampled_from((size, size, size + 1, 2 * size))) if size else 0
    if size and chance(draw, 15):
        config.max_batch_size = (
            0  # a model that does not batch sees the batch as a dimension of its own
        )
    batching = config.max_batch_size > 0
    tensorrt = False
    step = ensemble.ensemble_scheduling.step.add(model_name=name, model_version=-1)
    for key, entry in zip(tensor_names(draw, len(read), len(read)), read, strict=True):
        entry.read = True
        shape = [-1 if chance(draw, 10) else dim for dim in entry.dims]
        if entry.batched and not batching:
            shape = [-1, *shape]
        elif batching and not entry.batched:
            shape = shape[1:] if len(shape) > 1 and shape[0] == -1 else shape
        tensor(
            draw,
            config.input.add(),
            key,
            entry.data_type,
            shape,
            batching=batching,
            tensorrt=tensorrt,
            output=False,
        )
        step.input_map[key] = entry.name
    if chance(draw, 10):
        taken = {entry.name for entry in config.input}
        tensor(
            draw,
            config.input.add(),
            "extra",
            draw(st.sampled_from(TYPES)),
            draw(dims()),
            batching=batching,
            tensorrt=tensorrt,
            output=False,
        )
        config.input[-1].optional = "extra" not in taken
    made: list[_Tensor] = []
    for key in tensor_names(draw, 1, 3):
        shape = draw(dims())
        entry = _Tensor(f"t{index}-{len(made)}", draw(st.sampled_from(TYPES)), shape, batching)
        tensor(
            draw,
            config.output.add(),
            key,
            entry.data_type,
            shape,
            batching=batching,
            tensorrt=tensorrt,
            output=True,
        )
        step.output_map[key] = entry.name
        made.append(entry)
    files: dict[str, bytes] = {}
    decorate(draw, config, files)
    repository.configs[name], repository.files[name] = config, files
    for entry in made:
        entry.decoupled = name if config.model_transaction_policy.decoupled else first.decoupled
    return made


def _outer(draw: Draw, repository: Repository) -> None:
    """An ensemble whose one step is the ensemble."""
    inner = repository.configs["e"]
    if not inner.output:
        return
    config = pb.ModelConfig(name="outer", platform="ensemble", max_batch_size=inner.max_batch_size)
    step = config.ensemble_scheduling.step.add(
        model_name="e", model_version=draw(st.sampled_from((-1, 1)))
    )
    for side, tensors, target in (
        ("i", inner.input, config.input),
        ("o", inner.output, config.output),
    ):
        for entry in tensors:
            target.add(name=f"{side}-{entry.name}", data_type=entry.data_type).dims.extend(
                entry.dims
            )
            (step.input_map if side == "i" else step.output_map)[entry.name] = (
                f"{side}-{entry.name}"
            )
    repository.configs["outer"] = config


def _fault(draw: Draw, message: Any) -> None:
    """Set one random field of a message to a random value.

    Both sides decide whether the result is valid.
    """
    fields = [field for field in message.DESCRIPTOR.fields if field.name not in _SPARED]
    if not fields:
        return
    present = [
        field
        for field in fields
        if (field.is_repeated and len(getattr(message, field.name)))
        or (not field.is_repeated and field.message_type)
    ]
    deeper = [
        field
        for field in present
        if field.message_type and not field.message_type.GetOptions().map_entry
    ]
    if deeper and chance(draw, 70):
        field = draw(st.sampled_from(deeper))
        part = (
            draw(st.sampled_from(list(getattr(message, field.name))))
            if field.is_repeated
            else getattr(message, field.name)
        )
        _fault(draw, part)
        if not field.is_repeated:
            part.SetInParent()
        return
    field = draw(st.sampled_from(fields))
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _fault_map(draw, getattr(message, field.name), field)
    elif field.is_repeated:
        values = getattr(message, field.name)
        if len(values) and chance(draw, 50):
            del values[draw(st.integers(0, len(values) - 1))]
        elif field.message_type is not None:
            _fault(draw, values.add())
        else:
            values.append(_value(draw, field))
    elif field.message_type is not None:
        if message.HasField(field.name) and chance(draw, 50):
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
            _fault(draw, getattr(message, field.name))
    else:
        setattr(message, field.name, _value(draw, field))


def _fault_map(draw: Draw, values: Any, field: FieldDescriptor) -> None:
    entry: Any = field.message_type
    key_type, value_type = entry.fields_by_name["key"], entry.fields_by_name["value"]
    if len(values) and chance(draw, 40):
        del values[draw(st.sampled_from(sorted(values)))]
        return
    key = (
        draw(st.sampled_from(sorted(values)))
        if len(values) and chance(draw, 50)
        else _value(draw, key_type)
    )
    if value_type.message_type is not None:
        values[key].SetInParent()
        _fault(draw, values[key])
    else:
        values[key] = _value(draw, value_type)


def _value(draw: Draw, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return draw(st.sampled_from([value.number for value in field.enum_type.values]))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return draw(st.sampled_from(_TEXTS))
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return draw(st.booleans())
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return draw(st.sampled_from((-0.5, 0.0, 1.0, 1.5)))
    unsigned = field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
    return draw(st.sampled_from([number for number in _NUMBERS if number >= 0 or not unsigned]))
