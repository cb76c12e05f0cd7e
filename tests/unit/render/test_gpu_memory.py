"""``server.gpuMemory``: the limit of ONNX Runtime's memory that each model's config carries."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import built, options
from triton_pipelines.compile.graph import Options, check

GI = 1024**3
SECOND = {
    "name": "second",
    "platform": "onnxruntime_onnx",
    "source": {"uri": "s3://models/second.onnx"},
    "inputs": [{"name": "x", "dataType": "FP32", "dims": [2], "from": "model.logits"}],
    "outputs": [{"name": "y", "dataType": "FP32", "dims": [2]}],
}
OUTPUTS = [{"name": "y", "from": "second.y"}, {"name": "logits", "from": "model.logits"}]


def limit(config: str) -> int | None:
    """The limit in a config."""
    key = 'key: "gpu_mem_limit"\n  value { string_value: "'
    return int(config.partition(key)[2].partition('"')[0]) if key in config else None


def findings(given: Options | None = None, **changes: Any) -> list[str]:
    """What the checks report."""
    one = built(given, **changes)
    return [
        f"{found.path}: {found.message}" for found in check(one.pipeline, one.graph, one.options)
    ]


@pytest.mark.proves("spec.server.gpuMemory", "applied")
@pytest.mark.parametrize(
    ("instances", "share"),
    [
        ({"count": 1}, 6 * GI),
        ({"count": 3}, 2 * GI),
        ({"groups": [{"count": 1, "kind": "GPU"}, {"count": 2, "kind": "CPU"}]}, 6 * GI),
    ],
)
def test_instances_of_a_gpu_share_the_memory(instances: dict[str, Any], share: int) -> None:
    one = built(model={"instances": instances}, server={"gpuMemory": "6Gi"})
    files = one.render().files
    assert limit(files["model/config.pbtxt"]) == share
    assert limit(files["tokenizer/config.pbtxt"]) is None


def test_all_onnx_steps_of_a_gpu_share_the_memory() -> None:
    model = {"instances": {"count": 3}}
    extra = {"steps": [SECOND], "ensemble": {"outputs": OUTPUTS}, "postprocess": None}
    files = built(model=model, server={"gpuMemory": "8Gi"}, **extra).render().files
    assert [limit(files[f"{name}/config.pbtxt"]) for name in ("model", "second")] == [2 * GI] * 2


def test_without_the_field_nothing_is_rendered() -> None:
    assert all(limit(text) is None for text in built().render().files.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"server": {"gpuMemory": "8"}, "model": {"instances": {"count": 2}}},
            "spec.server.gpuMemory: 8 is too small for 2 instances on a GPU; set at least 128Mi",
        ),
        (
            {"server": {"gpuMemory": "8Gi"}, "model": {"instances": {"count": 1, "kind": "CPU"}}},
            "spec.server.gpuMemory: gpuMemory limits ONNX Runtime on a GPU, but no step "
            "runs in the onnxruntime backend on a GPU; remove gpuMemory",
        ),
        (
            {"server": {"gpuMemory": "8Gi"}, "model": {"parameters": {"gpu_mem_limit": "1"}}},
            "spec.model.parameters: gpu_mem_limit is also set by spec.server.gpuMemory; "
            "remove one of the two settings",
        ),
    ],
)
def test_a_bound_that_cannot_work_is_reported(changes: dict[str, Any], message: str) -> None:
    assert findings(**changes) == [message]


def test_the_cpu_fallback_ignores_the_bound() -> None:
    assert not findings(
        options(substitute_runner=frozenset({"onnxruntime_onnx"})), server={"gpuMemory": "8Gi"}
    )
