"""How long a step whose last growth did not help is held."""

from __future__ import annotations

from typing import Any

import pytest

from triton_pipelines.autoscaling.diminishing_returns import HOLD_SECONDS, growth_released
from triton_pipelines.autoscaling.types import InstanceGrowth

GROWTH = InstanceGrowth(at=0.0, before=2, after=3, throughput=100.0, service=0.010, cores=4.0)


@pytest.mark.parametrize(
    ("changes", "released"),
    [
        ({}, False),
        ({"saturated": False}, True),
        ({"now": 1000.0 + HOLD_SECONDS - 1}, False),
        ({"now": 1000.0 + HOLD_SECONDS}, True),
        ({"cores": 5.0}, True),
        ({"cores": None}, True),
        # Longer or shorter texts: the service time changed by more than a fifth.
        ({"service": 0.0119}, False),
        ({"service": 0.0121}, True),
        ({"service": 0.0081}, False),
        ({"service": 0.0079}, True),
        ({"service": None}, False),
    ],
    ids=str,
)
def test_growth_is_held_until_something_changes(changes: dict[str, Any], released: bool) -> None:
    given = {"now": 1001.0, "saturated": True, "service": 0.010, "cores": 4.0, **changes}
    assert growth_released((1000.0, GROWTH), **given) is released


def test_a_service_time_that_was_never_measured_releases_nothing() -> None:
    unknown = InstanceGrowth(at=0.0, before=2, after=3, throughput=100.0, service=0.0, cores=4.0)
    held = (1000.0, unknown)
    assert not growth_released(held, now=1001.0, saturated=True, service=0.01, cores=4.0)
