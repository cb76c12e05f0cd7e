"""Warnings about pods and CPU that live scaling is to own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import built, merge
from triton_pipelines.compile.graph import lint

SCALED: dict[str, Any] = {"tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}}}
PODS: dict[str, Any] = merge(SCALED, {"scaling": {"pods": {"min": 2, "max": 5}}})


def warned(path: str, **spec: Any) -> list[str]:
    made = built(**spec)
    return [item.message for item in lint(made.pipeline, made.graph) if item.path == path]


@pytest.mark.parametrize(
    ("replicas", "said"), [(1, False), (2, False), (5, False), (6, True), (0, True)]
)
def test_replicas_outside_the_bounds_are_ignored_and_that_is_said(
    replicas: int, said: bool
) -> None:
    found = warned("spec.replicas", replicas=replicas, **PODS)
    assert [f"{replicas} is ignored" in item for item in found] == ([True] if said else [])


def test_scaling_pods_requires_a_scaled_step_and_metrics() -> None:
    assert warned("spec.scaling.pods", **PODS) == []
    (nothing,) = warned(
        "spec.scaling.pods",
        **merge(PODS, {"tokenizer": {"instances": {"initial": 1, "min": 1, "max": 1}}}),
    )
    assert "no step is scaled live" in nothing
    (nobody,) = warned("spec.scaling.pods", **merge(PODS, {"scaling": {"mode": "Disabled"}}))
    assert "does not change while spec.scaling.mode is Disabled" in nobody


def test_cpu_in_place_needs_something_to_grow() -> None:
    grows = merge(SCALED, {"scaling": {"cpuResize": "InPlace"}})
    assert warned("spec.scaling.cpuResize", **grows) == []
    (fixed,) = warned(
        "spec.scaling.cpuResize",
        **merge(grows, {"server": {"resources": {"limits": {"cpu": "3"}}}}),
    )
    assert "server.resources.limits.cpu (3) is a fixed limit" in fixed
    (nothing,) = warned(
        "spec.scaling.cpuResize", **merge(grows, {"tokenizer": {"instances": {"initial": 4}}})
    )
    assert "has no effect" in nothing
