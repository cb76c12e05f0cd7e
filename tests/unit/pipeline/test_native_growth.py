"""A native tokenizer grows to its maximum: it is charged for what it uses, not for processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import builders
from triton_pipelines.api import parse
from triton_pipelines.autoscaling.caps import CapKind, GrowthCap, StepLoad, cpu_budget, growth_caps
from triton_pipelines.autoscaling.signals import CpuSignal
from triton_pipelines.autoscaling.types import PipelineLimits
from triton_pipelines.compile.graph import build
from triton_pipelines.controllers.scaling_limits import limits_of

ROOT = Path(__file__).resolve().parents[3]
MIB = 2**20
NATIVE: Mapping[str, Any] = {}
CUSTOM: Mapping[str, Any] = {
    "type": "Python",
    "source": None,
    "python": {"code": {"inline": "x = 1"}},
    "outputs": [{"name": "input_ids"}, {"name": "attention_mask"}],
}


def limits(tokenizer: Mapping[str, Any], **server: Any) -> PipelineLimits:
    """Return the limits of the sample of long documents."""
    sample = yaml.safe_load((ROOT / "manifests/samples/documents.yaml").read_text())
    sample["spec"]["tokenizer"] |= tokenizer
    sample["spec"]["server"] = server
    pipeline, findings = parse(sample)
    assert pipeline is not None
    assert not findings
    return limits_of(pipeline, build(pipeline, builders.options()), "r")


def cap(found: PipelineLimits, memory_mib: int = 800) -> GrowthCap:
    """Return the bound on two busy instances that need twenty."""
    (step,) = found.steps
    load = StepLoad(step, 2, 20, 20, 2.0, 1.0, 0.04)
    cpu = CpuSignal(used=1.0, measured=True, throttled=0.0, memory_bytes=memory_mib * MIB)
    return growth_caps(found, [load], cpu_budget(found, [load], cpu), cpu)["tokenizer"]


@pytest.mark.parametrize("tokenizer", [NATIVE, CUSTOM], ids=["native", "custom"])
def test_the_sample_grows_to_its_maximum(tokenizer: Mapping[str, Any]) -> None:
    reached = cap(limits(tokenizer))
    assert (reached.count, reached.kind) == (8, CapKind.MAXIMUM)


def test_the_first_growth_of_native_instances_needs_no_measured_duration() -> None:
    custom, native = (limits(one).actuation for one in (CUSTOM, NATIVE))
    assert custom is None
    assert native is not None
    assert native < 1


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        ({"dynamicBatching": {}}, True),
        (CUSTOM | {"dynamicBatching": {}}, False),
        (CUSTOM | {"dynamicBatching": {"mode": "Disabled"}}, False),
        (CUSTOM | {"dynamicBatching": {"queuePolicy": {"timeoutAction": "DELAY"}}}, False),
        (CUSTOM | {"dynamicBatching": {"queuePolicy": {"maxQueueSize": 8}}}, True),
        (CUSTOM | {"dynamicBatching": {"queuePolicy": {"allowTimeoutOverride": "Enabled"}}}, True),
        (CUSTOM | {"dynamicBatching": {"priorityLevels": 2, "defaultPriorityLevel": 1}}, True),
    ],
)
def test_processes_grow_under_load_only_if_triton_queues_no_batches(
    tokenizer: Mapping[str, Any], expected: bool
) -> None:
    (step,) = limits(tokenizer).steps
    assert step.grows_under_load is expected


def test_only_processes_need_shared_memory() -> None:
    small = {"sharedMemory": "256Mi"}
    assert cap(limits(CUSTOM, **small)).kind is CapKind.SHARED_MEMORY
    assert cap(limits(NATIVE, **small)).kind is CapKind.MAXIMUM


def test_a_native_instance_is_charged_for_its_word_cache() -> None:
    small = {"resources": {"limits": {"memory": "2Gi"}}}
    custom, native = (limits(one, **small) for one in (CUSTOM, NATIVE))
    assert (custom.steps[0].memory_bytes, native.steps[0].memory_bytes) == (400 * MIB, 32 * MIB)
    # 146 MiB are left below 95 % of the limit.
    assert (cap(custom, 1800).count, cap(custom, 1800).kind) == (2, CapKind.MEMORY)
    assert (cap(native, 1800).count, cap(native, 1800).kind) == (6, CapKind.MEMORY)
