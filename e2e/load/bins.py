"""Compute what a pipeline did in each second. Pure.

The input is two samples of a pod's metrics and the answers that its clients got.

Starved GPU time is the share of seconds in which the GPU step idles while requests wait before it:
work is there, and the CPU step in front does not hand it over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.autoscaling.metrics.rates import rates
from triton_pipelines.autoscaling.metrics.samples import PodHistory, Scrape

GPU_IDLE = 0.05
"""Idle share of a second above which the GPU step counts as idle in that second.

Counters move when an execution ends. A second that is fully busy may therefore seem idle for the
duration of one execution, about 6 ms to 20 ms here.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request; times are in seconds of `time.monotonic`.

    It records when the request was due (open loop) or sent, and when it was answered. `error` is
    empty for a correct answer.
    """

    due: float
    end: float
    error: str = ""

    @property
    def seconds(self) -> float:
        """How long its client waited."""
        return self.end - self.due


@dataclass(frozen=True, slots=True)
class Second:
    """About one second of a pipeline.

    Attributes:
        at: its end, on the clock of the looks at the pod.
        answered, failed: requests that ended in it.
        latencies: of the answered ones, in seconds.
        gpu_busy: share of the second in which the GPU step's instances computed, 0 to 1.
        wait: mean seconds that requests waited before the scaled step, of those that it completed.
        service: busy seconds of one instance of the scaled step per request; 0 without completions.
        count: instances of the scaled step.
        starved: whether the GPU step idled while more requests waited for the scaled step than it
            has instances.
        verdict: what limited the pipeline, as the operator saw it.
    """

    at: float
    answered: int = 0
    failed: int = 0
    latencies: tuple[float, ...] = ()
    gpu_busy: float = 0.0
    wait: float = 0.0
    service: float = 0.0
    count: int = 0
    starved: bool = False
    verdict: str = ""


def second(
    before: Scrape, after: Scrape, *, step: str, gpu: str, count: int, gpu_instances: int = 1
) -> Second:
    """Return what happened between two samples of a pod.

    `step` is the model name of the scaled step, `gpu` that of the GPU step.

    Raises:
        ValueError: the looks are not in order, or a model is missing.
    """
    if after.at <= before.at or not {step, gpu} <= before.models.keys() & after.models.keys():
        raise ValueError(f"two looks in order at models {step} and {gpu} are needed")
    between = PodHistory((before, after))
    fed, works = rates(between, step, None), rates(between, gpu, None)
    if fed is None or works is None:  # the pod restarted in between
        return Second(at=after.at, count=count)
    busy = min(1.0, works.busy / gpu_instances)
    pending = after.models[step].pending
    # By Little's law, as in live scaling: a short wait alone is normal for a step that needs less
    # time for a request than Triton needs to pass the request on.
    waiting = fed.throughput * (fed.queue or 0.0) if fed.throughput > 0 else pending
    return Second(
        at=after.at,
        gpu_busy=busy,
        wait=fed.queue or 0.0,
        service=fed.service or 0.0,
        count=count,
        starved=1.0 - busy > GPU_IDLE and waiting > count,
    )


def with_answers(one: Second, answers: Iterable[Answer]) -> Second:
    """The second with what its clients got in it."""
    listed = list(answers)
    good = tuple(answer.seconds for answer in listed if not answer.error)
    return replace(one, answered=len(good), failed=len(listed) - len(good), latencies=good)


@dataclass(frozen=True, slots=True)
class Figures:
    """Summary of several seconds.

    It holds answered requests/s, p99 in seconds (infinity if nothing was answered), the share of
    starved seconds (0 to 1), mean instances and failed requests.
    """

    rate: float
    p99: float
    starved: float
    instances: float
    failed: int

    def __str__(self) -> str:
        latency = "no answer" if math.isinf(self.p99) else f"p99 {1000 * self.p99:.0f} ms"
        return f"{self.rate:.0f} requests/s, {latency}, GPU starved {100 * self.starved:.0f} %"


def figures(seconds: Sequence[Second]) -> Figures:
    """Figures over seconds, each counted alike.

    Raises:
        ValueError: there are none.
    """
    if not seconds:
        raise ValueError("no seconds were measured")
    return Figures(
        rate=sum(one.answered for one in seconds) / len(seconds),
        p99=percentile([latency for one in seconds for latency in one.latencies]),
        starved=sum(one.starved for one in seconds) / len(seconds),
        instances=sum(one.count for one in seconds) / len(seconds),
        failed=sum(one.failed for one in seconds),
    )


def percentile(values: Sequence[float], share: float = 0.99) -> float:
    """Return the smallest value that at least `share` of all do not exceed (nearest rank).

    The result is infinity if there are no values.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.inf
