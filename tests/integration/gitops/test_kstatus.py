"""The operator's status under kstatus' own code: what Flux, Helm 4 and others wait for."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import statuses
from tests.support.kstatus import Verdict, verdicts

pytestmark = pytest.mark.integration

EXPECTED: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (statuses.starting, "InProgress"),
    (statuses.ready, "Current"),
    (statuses.changed, "InProgress"),
    (statuses.rolling, "InProgress"),
    (statuses.failed_rollout, "Failed"),
    (statuses.rolled_back, "Failed"),
    (statuses.invalid, "Failed"),
    (statuses.suspended, "Current"),
    (statuses.not_answering, "InProgress"),
    (statuses.deleted, "Terminating"),
]


@pytest.mark.parametrize(
    ("story", "expected"), EXPECTED, ids=[story.__name__ for story, _ in EXPECTED]
)
def test_status_is_read_as_meant(story: Callable[[], dict[str, Any]], expected: str) -> None:
    item = story()
    (verdict,) = verdicts([item])
    assert verdict.status == expected, (verdict, item.get("status"))


def test_message_is_the_operators_own() -> None:
    item = statuses.failed_rollout()
    (stalled,) = (
        condition for condition in item["status"]["conditions"] if condition["type"] == "Stalled"
    )
    assert verdicts([item]) == [Verdict("Failed", stalled["message"])]


def test_objects_are_evaluated_in_order_and_bad_input_is_an_error() -> None:
    assert [verdict.status for verdict in verdicts([statuses.ready(), statuses.starting()])] == [
        "Current",
        "InProgress",
    ]
    with pytest.raises(RuntimeError, match="error:"):
        verdicts([{"kind": "NoApiVersion", "metadata": 3}])
