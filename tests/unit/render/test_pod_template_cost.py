"""The work for a pod template grows in proportion to its length, whatever its lists are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.support.podtemplates import templated
from triton_pipelines.compile.render.pod_template import merge

FEW, MANY = 100, 800
# An allowance for what does not depend on the length. Quadratic work would be 64 times as much.
FACTOR_MAX = 1.5 * MANY / FEW


def lines_of(work: Callable[[], object]) -> int:
    """Return how many lines of the product's code run. Unlike times, it is always the same."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if "triton_pipelines" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def items(count: int, prefix: str) -> list[dict[str, str]]:
    return [{"name": f"{prefix}{number}", "value": "x"} for number in range(count)]


def merging(count: int) -> Callable[[], object]:
    """Return the merge of lists with other names, and with the same ones."""
    base = {"env": items(count, "A"), "tolerations": items(count, "A")}
    patch = {"env": [*items(count, "A"), *items(count, "B")], "tolerations": items(count, "B")}
    return lambda: merge(base, patch)


def rendering(count: int) -> Callable[[], object]:
    """Return what a resource with so many variables, volumes and mounts costs."""
    volumes = [{"name": f"v{number}", "emptyDir": {}} for number in range(count)]
    mounts = [{"name": f"v{number}", "mountPath": f"/m/{number}"} for number in range(count)]
    triton = {"name": "triton", "env": items(count, "A"), "volumeMounts": mounts}
    compiled = templated({"spec": {"containers": [triton], "volumes": volumes}})
    return compiled.render


@pytest.mark.parametrize("work", [merging, rendering])
def test_the_work_for_a_pod_template_is_linear(work: Callable[[int], Callable[[], object]]) -> None:
    work(1)()  # What is computed once is computed here.
    few, many = lines_of(work(FEW)), lines_of(work(MANY))
    assert few > FEW, "the work is counted"
    assert many < FACTOR_MAX * few
