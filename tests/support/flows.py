"""Samples of pods as a collector delivers them, computed from flows of requests.

A flow has rates, service times and backlogs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from triton_pipelines.autoscaling.metrics.samples import (
    ModelCounters,
    PipelineSample,
    PodHistory,
    PodUsage,
    Scrape,
)
from triton_pipelines.autoscaling.types import ControlLaw, PipelineLimits, ScalingState, StepLimits

NOW = 1_700_000_000.0
INTERVAL = 5.0
TOKENIZER, MODEL = "tokenizer", "model"


@dataclass(frozen=True)
class Flow:
    """What passes a step in one pod.

    It has completions/s, seconds each, requests that wait now, growth of the backlog/s, and mean
    batch.
    """

    rate: float
    service: float = 0.010
    pending: float = 0.0
    growth: float = 0.0
    batch: float = 1.0
    hits: float = 0.0  # requests/s answered by the cache, beside ``rate``

    def at(self, age: float) -> ModelCounters:
        """Counters ``age`` seconds ago, of a pod that began long before."""
        done = self.rate * (100_000 - age)
        hits = self.hits * (100_000 - age)
        # Triton adds the whole batch's time to each of its requests.
        return ModelCounters(
            success=done + hits,
            execs=done / self.batch,
            cache_hits=hits,
            compute_infer_us=done * self.service * self.batch * 1e6,
            pending=max(0.0, self.pending - self.growth * age),
        )


QUIET = Flow(rate=0.0)


def history(
    flows: Mapping[str, Flow],
    *,
    seconds: float = 75.0,
    interval: float = INTERVAL,
    now: float = NOW,
    usage: PodUsage | None = None,
) -> PodHistory:
    """Scrapes of a pod up to ``now``, oldest first."""
    ages = [interval * number for number in range(int(seconds / interval), -1, -1)]
    return PodHistory(
        tuple(
            Scrape(now - age, {model: flow.at(age) for model, flow in flows.items()})
            for age in ages
        ),
        usage,
    )


def sample(
    tokenizer: Flow,
    gpu: Flow | None = None,
    *,
    pods: int = 1,
    usage: PodUsage | None = None,
    seconds: float = 75.0,
    interval: float = INTERVAL,
    now: float = NOW,
) -> PipelineSample:
    """Return the same flow in each of ``pods`` pods.

    The GPU step receives what the tokenizer completes and has spare capacity.
    """
    fed = (
        gpu
        if gpu is not None
        else Flow(tokenizer.rate, service=min(0.0005, 0.5 / max(1.0, tokenizer.rate)))
    )
    flows = {TOKENIZER: tokenizer, MODEL: fed}
    return PipelineSample(
        {
            name: history(flows, seconds=seconds, interval=interval, now=now, usage=usage)
            for name in names(pods)
        },
        interval,
        "test",
    )


def names(pods: int) -> list[str]:
    """Names of the pods of ``sample``."""
    return [f"pod-{number}" for number in range(pods)]


def limits(
    *, low: int = 1, high: int = 12, cpu_limit: float | None = None, law: ControlLaw | None = None
) -> PipelineLimits:
    """A tokenizer before one GPU step."""
    return PipelineLimits(
        steps=(StepLimits(TOKENIZER, TOKENIZER, low, high, 2),),
        gpu_steps=(MODEL,),
        gpu_batches={MODEL: 64},
        cpu_limit=cpu_limit,
        law=law if law is not None else ControlLaw(),
    )


def counts(count: int, pods: int = 1, step: str = TOKENIZER) -> dict[str, dict[str, int]]:
    """All pods report ``count``."""
    return {step: dict.fromkeys(names(pods), count)}


def rested(
    state: ScalingState, wants: int, *, now: float = NOW, law: ControlLaw | None = None
) -> ScalingState:
    """Return ``state`` for a step that needed ``wants`` during the stabilization window.

    Nothing else limits the step.
    """
    seconds = (law if law is not None else ControlLaw()).stabilization
    ticks = tuple((now - age, wants) for age in range(int(seconds), 0, -5))
    return replace(
        state,
        steps={
            name: replace(step, demands=ticks, last_up=None) for name, step in state.steps.items()
        },
    )
