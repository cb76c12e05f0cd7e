"""Rules over ``sequence_batching``.

Control tensors, both strategies, states and their initial values.
"""

from __future__ import annotations

import posixpath
from typing import Any, Final

from triton_pipelines.compile.model_config_proto import model_config_pb2 as pb

from . import batching
from .server_facts import ServerFacts
from .stricter_rules import MAX_SLOTS
from .tensors import VARIABLE, type_name
from .violations import RuleId, ViolationCollector, shape

_Control: Final = pb.ModelSequenceBatching.Control
_PAIRS: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRELATION_ID_TYPES: Final = (
    pb.TYPE_UINT64,
    pb.TYPE_INT64,
    pb.TYPE_UINT32,
    pb.TYPE_INT32,
    pb.TYPE_STRING,
)
_BYTES: Final = {
    pb.TYPE_BOOL: 1,
    pb.TYPE_UINT8: 1,
    pb.TYPE_UINT16: 2,
    pb.TYPE_UINT32: 4,
    pb.TYPE_UINT64: 8,
    pb.TYPE_INT8: 1,
    pb.TYPE_INT16: 2,
    pb.TYPE_INT32: 4,
    pb.TYPE_INT64: 8,
    pb.TYPE_FP16: 2,
    pb.TYPE_FP32: 4,
    pb.TYPE_FP64: 8,
    pb.TYPE_BF16: 2,
}


def check(config: Any, facts: ServerFacts, findings: ViolationCollector) -> None:
    """Check all rules of this module."""
    if not config.HasField("sequence_batching"):
        return
    sequence, path = config.sequence_batching, "sequence_batching"
    _controls(sequence, path, findings)
    slots = max(1, config.max_batch_size)
    if sequence.HasField("oldest"):
        batching.preferred(
            sequence.oldest.preferred_batch_size,
            f"{path}.oldest.preferred_batch_size",
            config.max_batch_size,
            findings,
        )
        slots = (
            sequence.oldest.max_candidate_sequences
            if sequence.oldest.max_candidate_sequences > 0
            else slots
        )
    if slots > MAX_SLOTS:
        spot = (
            f"{path}.oldest.max_candidate_sequences"
            if sequence.HasField("oldest")
            else "max_batch_size"
        )
        findings.add(
            spot,
            RuleId.SEQUENCE_SLOTS,
            f"{slots} concurrent sequences are too many; use at most {MAX_SLOTS}",
        )
    if sequence.HasField("direct") and not 0 <= sequence.direct.minimum_slot_utilization <= 1:
        value = sequence.direct.minimum_slot_utilization
        findings.add(
            f"{path}.direct.minimum_slot_utilization",
            RuleId.SLOT_UTILIZATION,
            f"{value:g} is not a fraction of the slots; use 0 to 1",
        )
    _states(sequence, path, facts, findings)


def item_bytes(data_type: int) -> int:
    """Return the bytes of one element; 0 for a string or an unknown type."""
    return _BYTES.get(data_type, 0)


def _controls(sequence: Any, path: str, findings: ViolationCollector) -> None:
    names: dict[str, int] = {}
    kinds: dict[int, str] = {}
    for index, tensor in enumerate(sequence.control_input):
        spot = f"{path}.control_input[{index}]"
        if not tensor.name:
            findings.add(
                f"{spot}.name",
                RuleId.SEQUENCE_CONTROL,
                "the control tensor has no name; set name to the model's input that "
                "receives the signal",
            )
        elif (first := names.setdefault(tensor.name, index)) != index:
            findings.add(
                f"{spot}.name",
                RuleId.SEQUENCE_CONTROL_TWICE,
                f"control_input[{first}] already has the name {tensor.name!r}; use a separate"
                " tensor for each control",
            )
        for place, control in enumerate(tensor.control):
            where = f"{spot}.control[{place}]"
            if control.kind not in _Control.Kind.values():
                continue
            kind = str(_Control.Kind.Name(control.kind))
            if control.kind in kinds:
                findings.add(
                    f"{where}.kind",
                    RuleId.SEQUENCE_CONTROL_TWICE,
                    f"{kind} is already assigned to {kinds[control.kind]!r}; assign each kind only"
                    " once",
                )
            kinds.setdefault(control.kind, tensor.name)
            if control.kind == _Control.CONTROL_SEQUENCE_CORRID:
                _correlation_id(control, where, findings)
            else:
                _signal(control, where, kind, findings)


def _signal(control: Any, path: str, kind: str, findings: ViolationCollector) -> None:
    given = [field for field in _PAIRS if getattr(control, field)]
    if len(given) != 1:
        shown = " and ".join(given) or "none"
        findings.add(
            path,
            RuleId.SEQUENCE_CONTROL,
            f"{kind} requires exactly one of {', '.join(_PAIRS)}, not {shown}",
        )
    elif (count := len(getattr(control, given[0]))) != 2:
        findings.add(
            f"{path}.{given[0]}",
            RuleId.SEQUENCE_CONTROL,
            f"{kind} requires two values, for false and for true, not {count}",
        )


def _correlation_id(control: Any, path: str, findings: ViolationCollector) -> None:
    given = [field for field in _PAIRS if getattr(control, field)]
    for field in given:
        findings.add(
            f"{path}.{field}",
            RuleId.CORRELATION_ID,
            "a correlation ID is not a Boolean signal; remove the two values, and set data_type",
        )
    if control.data_type not in _CORRELATION_ID_TYPES:
        findings.add(
            f"{path}.data_type",
            RuleId.CORRELATION_ID,
            f"{type_name(control.data_type)} cannot hold a correlation ID; use TYPE_UINT64,"
            " TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING",
        )


def _states(sequence: Any, path: str, facts: ServerFacts, findings: ViolationCollector) -> None:
    outputs: dict[str, int] = {}
    initialised: dict[str, int] = {}
    for index, state in enumerate(sequence.state):
        spot = f"{path}.state[{index}]"
        _state_tensor(state, spot, findings)
        if state.output_name and (first := outputs.setdefault(state.output_name, index)) != index:
            findings.add(
                f"{spot}.output_name",
                RuleId.STATE_TWICE,
                f"state[{first}] already has output {state.output_name!r}; use a different name",
            )
        if not state.initial_state:
            continue
        if len(state.initial_state) > 1:
            findings.add(
                f"{spot}.initial_state",
                RuleId.INITIAL_STATE,
                f"a state has one initial value, not {len(state.initial_state)}; remove all "
                "but one",
            )
            continue
        if (first := initialised.setdefault(state.input_name, index)) != index:
            findings.add(
                f"{spot}.input_name",
                RuleId.INITIAL_STATE,
                f"state[{first}] already has an initial value for {state.input_name!r}; "
                "remove one of the two values",
            )
        _initial(state, state.initial_state[0], f"{spot}.initial_state[0]", facts, findings)


def _state_tensor(state: Any, path: str, findings: ViolationCollector) -> None:
    for field in ("input_name", "output_name"):
        if not getattr(state, field):
            findings.add(
                f"{path}.{field}",
                RuleId.STATE_TENSOR,
                "the state's tensor has no name; set the tensor's name in the model",
            )
    if state.data_type == pb.TYPE_INVALID:
        findings.add(
            f"{path}.data_type",
            RuleId.STATE_TENSOR,
            "the state has no data type; set data_type, for example to TYPE_FP32",
        )
    if not state.dims:
        findings.add(
            f"{path}.dims",
            RuleId.STATE_TENSOR,
            "the state has no dims; set its shape without the batch dimension",
        )
    for index, dim in enumerate(state.dims):
        if dim < 1 and dim != VARIABLE:
            findings.add(
                f"{path}.dims[{index}]",
                RuleId.STATE_TENSOR,
                f"{dim} is not a valid size; use at least 1, or -1 for a variable size",
            )


def _initial(
    state: Any, initial: Any, path: str, facts: ServerFacts, findings: ViolationCollector
) -> None:
    if not initial.name:
        findings.add(
            f"{path}.name", RuleId.INITIAL_STATE, "the initial value has no name; set name"
        )
    if initial.data_type != state.data_type:
        findings.add(
            f"{path}.data_type",
            RuleId.INITIAL_STATE,
            f"the initial value is {type_name(initial.data_type)}, but the state is"
            f" {type_name(state.data_type)}; use the state's type",
        )
    if len(initial.dims) != len(state.dims):
        findings.add(
            f"{path}.dims",
            RuleId.INITIAL_STATE,
            f"{shape(initial.dims)} and the state's dims {shape(state.dims)} must have the same"
            " number of dims",
        )
    else:
        for index, (dim, expected) in enumerate(zip(initial.dims, state.dims, strict=True)):
            if dim == VARIABLE:
                findings.add(
                    f"{path}.dims[{index}]",
                    RuleId.INITIAL_STATE,
                    "an initial value cannot have a variable size; use a number",
                )
            elif dim < 1:
                findings.add(
                    f"{path}.dims[{index}]",
                    RuleId.STATE_TENSOR,
                    f"{dim} is not a valid size; use at least 1",
                )
            elif expected not in (VARIABLE, dim):
                findings.add(
                    f"{path}.dims[{index}]",
                    RuleId.INITIAL_STATE,
                    f"{dim} differs from the state's size; use {expected}",
                )
    source = initial.WhichOneof("state_data")
    if source is None:
        findings.add(
            path,
            RuleId.INITIAL_STATE,
            "the initial value has no data; set zero_data or data_file",
        )
    elif source == "data_file":
        _data_file(initial, path, facts, findings)


def _data_file(initial: Any, path: str, facts: ServerFacts, findings: ViolationCollector) -> None:
    files = facts.files.get(findings.model)
    if files is None:
        return
    target = posixpath.normpath(f"initial_state/{initial.data_file}")
    elements = 1
    for dim in initial.dims:
        elements *= max(dim, 0)
    expected = elements * item_bytes(initial.data_type)
    if target not in files:
        findings.add(
            f"{path}.data_file",
            RuleId.INITIAL_STATE,
            f"the model's directory has no file {target!r}; add the file, or use zero_data",
        )
    elif initial.dims and files[target] < expected:
        findings.add(
            f"{path}.data_file",
            RuleId.INITIAL_STATE,
            f"{target!r} has {files[target]} bytes, but dims {shape(initial.dims)} require"
            f" {expected}; replace the file, or correct dims",
        )
