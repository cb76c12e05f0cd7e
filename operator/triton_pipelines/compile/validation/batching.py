"""Rules over ``dynamic_batching``: preferred sizes, priorities, order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton_pipelines.compile.model_config_proto import model_config_pb2 as pb

from .violations import RuleId, ViolationCollector, keyed


def check(config: Any, findings: ViolationCollector) -> None:
    """Check all rules of this module."""
    if not config.HasField("dynamic_batching"):
        return
    batching, path = config.dynamic_batching, "dynamic_batching"
    preferred(
        batching.preferred_batch_size,
        f"{path}.preferred_batch_size",
        config.max_batch_size,
        findings,
    )
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            findings.add(
                f"{path}.default_priority_level",
                RuleId.PRIORITY,
                f"{batching.default_priority_level} is not one of the {levels} priority levels;"
                f" use 1 to {levels}",
            )
        for key in sorted(batching.priority_queue_policy):
            if not 1 <= key <= levels:
                spot = keyed(f"{path}.priority_queue_policy", key)
                findings.add(
                    spot,
                    RuleId.PRIORITY,
                    f"priority {key} of this policy exceeds the {levels} priority levels; use 1 to"
                    f" {levels}",
                )
    if batching.preserve_ordering:
        _ordered(batching, path, findings)


def preferred(
    sizes: Sequence[int], path: str, max_batch_size: int, findings: ViolationCollector
) -> None:
    """Check that preferred batch sizes are between 1 and max_batch_size."""
    for index, size in enumerate(sizes):
        if size < 1:
            findings.add(
                f"{path}[{index}]",
                RuleId.PREFERRED_BATCH_SIZE,
                f"{size} is not a batch size; use at least 1",
            )
        elif size > max_batch_size:
            findings.add(
                f"{path}[{index}]",
                RuleId.PREFERRED_BATCH_SIZE,
                f"{size} exceeds max_batch_size {max_batch_size}; use at most {max_batch_size}, or"
                " raise max_batch_size",
            )


def _ordered(batching: Any, path: str, findings: ViolationCollector) -> None:
    if batching.priority_levels > 1:
        findings.add(
            f"{path}.preserve_ordering",
            RuleId.PRESERVE_ORDERING,
            f"preserve_ordering and {batching.priority_levels} priority levels cannot be combined;"
            " use one level, or omit preserve_ordering",
        )
    policies = {f"{path}.default_queue_policy": batching.default_queue_policy}
    policies |= {
        keyed(f"{path}.priority_queue_policy", key): batching.priority_queue_policy[key]
        for key in sorted(batching.priority_queue_policy)
    }
    for spot, policy in policies.items():
        if (
            policy.timeout_action == pb.ModelQueuePolicy.DELAY
            and policy.default_timeout_microseconds
        ):
            findings.add(
                f"{spot}.timeout_action",
                RuleId.PRESERVE_ORDERING,
                "with DELAY, late requests complete out of order, which preserve_ordering "
                "forbids; use REJECT, or omit the timeout or preserve_ordering",
            )
