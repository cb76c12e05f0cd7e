"""A busy pod is not a broken one: looks without an answer keep the last verdict for a while."""

import datetime as dt
from dataclasses import replace

import pytest

from triton_pipelines.controllers.pipeline.probe_record import MISSES_ALLOWED, Probe

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def _look(minute: int, **what: str) -> Probe:
    return Probe(
        at=START + dt.timedelta(minutes=minute),
        ensemble_ready=not what.get("error"),
        inference_error=what.get("inference_error", ""),
        error=what.get("error", ""),
    )


def test_a_good_pod_is_given_some_misses_and_no_more() -> None:
    last = _look(0)
    for minute in range(1, MISSES_ALLOWED + 1):
        last = _look(minute, error="no response before the deadline").merged_with(last)
        assert last.is_healthy
        assert last.at == START + dt.timedelta(minutes=minute)
    last = _look(9, error="no response before the deadline").merged_with(last)
    assert not last.is_healthy
    assert last.error == "no response before the deadline"


def test_a_response_restarts_the_count() -> None:
    missed = _look(1, error="late").merged_with(_look(0))
    assert missed.misses == 1
    assert _look(2).merged_with(missed).misses == 0


@pytest.mark.parametrize("last", [None, _look(0, inference_error="NaN"), _look(0, error="late")])
def test_a_pod_that_was_never_good_gets_no_credit(last: Probe | None) -> None:
    assert _look(1, error="late").merged_with(last).error == "late"


def test_a_wrong_answer_counts_at_once() -> None:
    assert (
        _look(1, inference_error="output LABEL is missing").merged_with(_look(0)).inference_error
        == "output LABEL is missing"
    )


def test_wrong_answers_in_a_row_are_counted() -> None:
    """Count failed inferences in a row.

    A probe without a response, or one that met a dead process, does not count. A good response, or
    none attempted, ends the row.
    """
    last, counts = None, []
    for minute, what in enumerate(
        (
            {"inference_error": "NaN"},
            {"error": "late"},
            {"inference_error": "NaN"},
            {},
            {"inference_error": "NaN"},
        )
    ):
        last = _look(minute, **what).merged_with(last)
        counts.append(last.consecutive_wrong)
    assert counts == [1, 1, 2, 0, 1]
    dead = replace(_look(6, inference_error="a process is gone"), dead=(START,)).merged_with(last)
    assert (dead.consecutive_wrong, dead.consecutive_dead) == (1, 1)
