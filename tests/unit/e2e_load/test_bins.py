"""Seconds of a pipeline from two looks at a pod, and what they come to."""

from __future__ import annotations

import math

import pytest

from e2e.load.bins import Answer, Second, figures, percentile, second, with_answers
from triton_pipelines.autoscaling.metrics.samples import ModelCounters, Scrape


def look(
    at: float,
    *,
    done: int,
    queue: float,
    busy: float,
    gpu: float,
    pending: float = 0.0,
    gpu_batch: int = 1,
) -> Scrape:
    """Return a pod's metrics page.

    It has the requests completed by both steps so far, and the seconds that they waited and that
    the tokenizer and the GPU step computed so far.
    """
    fed = ModelCounters(
        success=done, execs=done, queue_us=queue * 1e6, compute_infer_us=busy * 1e6, pending=pending
    )
    # As Triton counts: a batch's time once for each of its requests.
    works = ModelCounters(
        success=done, execs=done / gpu_batch, compute_infer_us=gpu * gpu_batch * 1e6
    )
    return Scrape(at, {"tokenizer": fed, "model": works})


FIRST = look(100.0, done=1000, queue=50.0, busy=10.0, gpu=5.0)


def between(after: Scrape, count: int = 1) -> Second:
    return second(FIRST, after, step="tokenizer", gpu="model", count=count)


def test_idle_behind_a_queue_is_starved() -> None:
    """Send 80 requests that each take the tokenizer 12.5 ms after a wait of 187 ms.

    The GPU step computes for 41 % of the second.
    """
    found = between(look(101.0, done=1080, queue=50.0 + 80 * 0.187, busy=11.0, gpu=5.41))
    assert found.starved
    assert (found.gpu_busy, found.wait, found.service) == pytest.approx((0.41, 0.187, 0.0125))


@pytest.mark.parametrize(
    ("waited", "gpu", "starved"),
    [(0.0124, 0.4, False), (0.0126, 0.4, True), (0.5, 0.96, False), (0.5, 0.94, True)],
    ids=["one request waits", "more than one waits", "GPU full", "GPU nearly full"],
)
def test_limits_of_starved(waited: float, gpu: float, starved: bool) -> None:
    assert (
        between(look(101.0, done=1080, queue=50.0 + 80 * waited, busy=11.0, gpu=5.0 + gpu)).starved
        is starved
    )


def test_a_wait_longer_than_a_fast_step_is_not_a_queue() -> None:
    """A request waits 0.2 ms for a step that takes 0.1 ms, which is 6 % busy."""
    after = look(101.0, done=1300, queue=50.0 + 300 * 0.0002, busy=10.03, gpu=5.4)
    assert not between(after).starved


@pytest.mark.parametrize(("pending", "starved"), [(0.0, False), (2.0, False), (3.0, True)])
def test_without_a_completion_more_than_one_per_instance_has_to_wait(
    pending: float, starved: bool
) -> None:
    assert (
        between(
            look(101.0, done=1000, queue=50.0, busy=10.0, gpu=5.0, pending=pending), count=2
        ).starved
        is starved
    )


def test_a_batch_keeps_the_gpu_busy_once() -> None:
    after = look(102.0, done=1064, queue=50.0, busy=10.5, gpu=5.0 + 0.8 / 16 * 16, gpu_batch=16)
    first = look(100.0, done=1000, queue=50.0, busy=10.0, gpu=5.0, gpu_batch=16)
    assert second(first, after, step="tokenizer", gpu="model", count=1).gpu_busy == pytest.approx(
        0.4
    )


def test_a_restart_in_between_says_nothing() -> None:
    assert between(look(101.0, done=3, queue=0.1, busy=0.1, gpu=0.1)) == Second(at=101.0, count=1)


@pytest.mark.parametrize(
    "after",
    [FIRST, Scrape(101.0, {"tokenizer": ModelCounters()})],
    ids=["same look", "model missing"],
)
def test_looks_that_do_not_fit_are_refused(after: Scrape) -> None:
    with pytest.raises(ValueError, match="two looks in order"):
        between(after)


def test_figures_of_seconds() -> None:
    answers = [Answer(0.0, 0.1), Answer(0.0, 0.3), Answer(0.5, 0.6, error="refused")]
    found = figures(
        [with_answers(Second(at=1.0, count=1, starved=True), answers), Second(at=2.0, count=2)]
    )
    assert (found.rate, found.p99, found.starved, found.instances, found.failed) == (
        1.0,
        0.3,
        0.5,
        1.5,
        1,
    )
    assert str(found) == "1 requests/s, p99 300 ms, GPU starved 50 %"
    assert "no answer" in str(figures([Second(at=1.0)]))
    with pytest.raises(ValueError, match="no seconds"):
        figures([])


def test_percentile_is_by_nearest_rank() -> None:
    assert percentile([float(n) for n in range(1, 101)]) == 99.0
    assert percentile([5.0]) == 5.0
    assert math.isinf(percentile([]))
