"""Convert Triton's batchers, instance groups and version policies to fields of the resource.

What has no field is left to configPatch.
"""

from __future__ import annotations

import re
from typing import Any

from tritonclient.grpc import model_config_pb2

from triton_pipelines.api.batching import MAX_DELAY_MICROSECONDS
from triton_pipelines.api.instances import HOST_POLICY_PATTERN
from triton_pipelines.api.sequence_batching import FLAG_TYPES

# The values of a control signal that the renderer writes, by their field.
_FLAGS = {
    "int32_false_true": ("INT32", [0, 1]),
    "fp32_false_true": ("FP32", [0.0, 1.0]),
    "bool_false_true": ("BOOL", [False, True]),
}
_POLICY = (
    ("max_queue_size", "maxQueueSize"),
    ("default_timeout_microseconds", "defaultTimeoutMicroseconds"),
)
# Most versions that versionPolicy.latest can serve (api: VersionPolicy).
MAX_LATEST = 64
# Largest values of the fields (api: batching, sequence_batching). Larger ones are left out, and
# configPatch writes them.
_MAX_NUMBER = 2**31 - 1
_MAX_IDLE_MICROSECONDS = 86_400_000_000
_MAX_CANDIDATES = 1_000_000


def data_type(value: int) -> str:
    """Return an element type as the resource writes it; ``INVALID`` if the config has none."""
    return str(model_config_pb2.DataType.Name(value)).removeprefix("TYPE_")


def dynamic_batching(config: Any) -> dict[str, Any]:
    """Return ``dynamicBatching`` of a dynamic batcher."""
    fields: dict[str, Any] = {}
    if config.preferred_batch_size:
        fields["preferredBatchSizes"] = sorted(set(config.preferred_batch_size))
    if 0 < config.max_queue_delay_microseconds <= MAX_DELAY_MICROSECONDS:
        fields["maxQueueDelayMicroseconds"] = config.max_queue_delay_microseconds
    if config.preserve_ordering:
        fields["preserveOrdering"] = "Enabled"
    if config.priority_levels:
        fields["priorityLevels"] = config.priority_levels
    if config.default_priority_level:
        fields["defaultPriorityLevel"] = config.default_priority_level
    if config.HasField("default_queue_policy"):
        fields["queuePolicy"] = _policy(config.default_queue_policy)
    if config.priority_queue_policy:
        fields["priorityQueuePolicies"] = [
            {"priority": key, **_policy(config.priority_queue_policy[key])}
            for key in sorted(config.priority_queue_policy)
        ]
    return fields


def _policy(policy: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: getattr(policy, key)
        for key, name in _POLICY
        if 0 < getattr(policy, key) <= _MAX_NUMBER
    }
    if policy.timeout_action:
        fields["timeoutAction"] = "DELAY"
    if policy.allow_timeout_override:
        fields["allowTimeoutOverride"] = "Enabled"
    return fields


def sequence_batching(config: Any) -> dict[str, Any]:
    """Return ``sequenceBatching`` of a sequence batcher.

    Unusual signals and initial states are approximated; configPatch then writes them exactly.
    """
    oldest = config.WhichOneof("strategy_choice") == "oldest"
    fields: dict[str, Any] = {"strategy": "Oldest" if oldest else "Direct"}
    if 0 < config.max_sequence_idle_microseconds <= _MAX_IDLE_MICROSECONDS:
        fields["maxSequenceIdleMicroseconds"] = config.max_sequence_idle_microseconds
    signals = [_control(control) for control in config.control_input]
    controls = [signal for signal in signals if signal is not None]
    if controls:
        fields["controls"] = controls
    if config.state:
        fields["states"] = [_state(state) for state in config.state]
    strategy = config.oldest if oldest else config.direct
    if oldest:
        # 0 means as many as fit; the field needs a number, and the patch restores the 0.
        fields["maxCandidateSequences"] = min(
            strategy.max_candidate_sequences or 1, _MAX_CANDIDATES
        )
        if strategy.preferred_batch_size:
            fields["preferredBatchSizes"] = sorted(set(strategy.preferred_batch_size))
        if strategy.preserve_ordering:
            fields["preserveOrdering"] = "Enabled"
    elif (percent := round(strategy.minimum_slot_utilization * 100)) > 0:
        fields["minimumSlotUtilizationPercent"] = percent
    if 0 < strategy.max_queue_delay_microseconds <= MAX_DELAY_MICROSECONDS:
        fields["maxQueueDelayMicroseconds"] = strategy.max_queue_delay_microseconds
    return fields


def _control(control: Any) -> dict[str, Any] | None:
    """Return a control signal; ``None`` if it has no kind (the patch adds it)."""
    if not control.control:
        return None
    signal = control.control[0]
    kind = type(signal).Kind.Name(signal.kind).removeprefix("CONTROL_SEQUENCE_")
    fields: dict[str, Any] = {"name": control.name, "kind": kind}
    if kind == "CORRID":
        return {**fields, "dataType": data_type(signal.data_type)} if signal.data_type else fields
    named = next(
        (word for name, (word, _) in _FLAGS.items() if getattr(signal, name)), FLAG_TYPES[0].value
    )
    return fields if named == FLAG_TYPES[0].value else {**fields, "dataType": named}


def _state(state: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "inputName": state.input_name,
        "outputName": state.output_name,
        "dataType": data_type(state.data_type),
        "dims": list(state.dims),
    }
    zero = bool(state.initial_state)
    if zero != (-1 not in state.dims):  # the default: zeros where the shape is known
        fields["initial"] = "Zero" if zero else "Undefined"
    return fields


def version_policy(config: Any) -> dict[str, Any] | None:
    """Return ``versionPolicy``; ``None`` if the config has none."""
    kind = config.version_policy.WhichOneof("policy_choice")
    if kind is None:
        return None
    if kind == "latest":
        return {"latest": min(config.version_policy.latest.num_versions or 1, MAX_LATEST)}
    return (
        {"all": {}}
        if kind == "all"
        else {"specific": list(dict.fromkeys(config.version_policy.specific.versions))}
    )


def instances(config: Any) -> dict[str, Any]:
    """Return ``instances`` of a config, with one group or several."""
    groups = [instance_group(group) for group in config.instance_group]
    return groups[0] if len(groups) == 1 else {"groups": groups}


def merged_group(config: Any) -> dict[str, Any] | None:
    """Return the instance groups as one group; ``None`` if they differ or list GPUs."""
    groups = list(config.instance_group)
    if len(groups) > 1 and any(group.gpus or _rest(group) != _rest(groups[0]) for group in groups):
        return None
    return {**instance_group(groups[0]), "count": sum(group.count for group in groups)}


def instance_group(group: Any) -> dict[str, Any]:
    """Return the fields of one instance group."""
    name = type(group).Kind.Name(group.kind)
    fields: dict[str, Any] = {
        "count": group.count,
        "kind": "Auto" if name == "KIND_AUTO" else name.removeprefix("KIND_"),
    }
    if group.gpus:
        fields["gpus"] = list(group.gpus)
    if group.profile:
        fields["profiles"] = list(group.profile)
    if re.fullmatch(HOST_POLICY_PATTERN, group.host_policy) and len(group.host_policy) <= 64:
        fields["hostPolicy"] = group.host_policy
    return fields


def _rest(group: Any) -> Any:
    """Return a group without the fields that may differ between groups to be merged."""
    copy = type(group)()
    copy.CopyFrom(group)
    for name in ("name", "count", "gpus"):
        copy.ClearField(name)
    return copy


def tensor(config: Any, *, python: bool | None = None) -> dict[str, Any]:
    """Return an input or output.

    Args:
        config: the tensor of the config.
        python: for inputs: whether the step runs in the python backend, where variable dims are
            ragged by default.
    """
    fields: dict[str, Any] = {
        "name": config.name,
        "dataType": data_type(config.data_type),
        "dims": list(config.dims),
    }
    if config.HasField("reshape"):
        fields["reshape"] = list(config.reshape.shape)
    if python is not None:
        default = python and -1 in config.dims and not config.HasField("reshape")
        # The fields exclude ragged with reshape; configPatch writes that pair.
        pair = config.allow_ragged_batch and config.HasField("reshape")
        if config.allow_ragged_batch != default and not pair:
            fields["ragged"] = "Enabled" if config.allow_ragged_batch else "Disabled"
        if config.optional:
            fields["optional"] = "Enabled"
    return fields
