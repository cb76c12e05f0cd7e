"""Baseline control laws, reimplemented from their sources and docs (autoscaling.md §6.1).

They get the same scrapes and ticks. Laws that need the tokenizer's service time are given it, since
none of them measures it. None is limited by CPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from bench.simulator.engine import LawInput, World
from triton_pipelines.autoscaling.metrics.rates import Rates, mean_pending, rates, total
from triton_pipelines.autoscaling.metrics.samples import MetricsFailure, PipelineSample

_WINDOW = 30.0
_DOWN = 300.0
_TOLERANCE = 0.1


class _Baseline:
    """What they share: one scaled step, a window for scale-down, no answer without metrics."""

    name = ""
    period: float | None = 10.0

    def __init__(self, world: World) -> None:
        scaled = next(spec for spec in world.stations if spec.scaled)
        self._step = scaled.name
        self._service = scaled.alpha + scaled.fixed
        self._world = world
        self._wants: deque[tuple[float, int]] = deque()

    def wanted(self, view: LawInput) -> tuple[Mapping[str, int], str]:
        """The law's count, the highest of the scale-down window."""
        if isinstance(view.sample, MetricsFailure) or not view.sample.pods:
            return {}, ""
        counts = view.counts[self._step]
        now = max(counts.values())
        want = self._law(view, view.sample, now, len(counts))
        if want is None:
            return {}, ""
        self._wants.append((view.now, want))
        while self._wants[0][0] < view.now - _DOWN:
            self._wants.popleft()
        return {
            self._step: want if want > now else min(now, max(count for _, count in self._wants))
        }, ""

    def _law(self, view: LawInput, sample: PipelineSample, count: int, pods: int) -> int | None:
        raise NotImplementedError

    def _rates(self, sample: PipelineSample, seconds: float) -> Rates | None:
        return total(rates(history, self._step, seconds) for history in sample.pods.values())


def _ratio(count: int, ratio: float) -> int:
    """HPA v2: ceil(n * ratio), within tolerance nothing."""
    return count if abs(ratio - 1) <= _TOLERANCE else max(1, math.ceil(count * ratio))


class CpuHpa(_Baseline):
    """Kubernetes HPA on CPU utilisation against the limit, target 60 %."""

    name = "CPU-HPA"

    def _law(self, view: LawInput, sample: PipelineSample, count: int, pods: int) -> int | None:
        used = [
            history.usage.cpu_cores
            for history in sample.pods.values()
            if history.usage is not None and history.usage.cpu_cores is not None
        ]
        return _ratio(count, sum(used) / len(used) / view.cores / 0.6) if used else None


class QueueRatio(_Baseline):
    """NVIDIA's recipe: HPA on queue time : compute time = 1."""

    name = "queue:compute"

    def _law(self, view: LawInput, sample: PipelineSample, count: int, pods: int) -> int | None:
        window = self._rates(sample, _WINDOW)
        if window is None:
            return None
        ratio = (window.queue or 0.0) / self._service
        return (
            count
            if abs(ratio - 1) <= _TOLERANCE
            else max(1, min(math.ceil(count * ratio), 2 * count))
        )


class BusyHpa(_Baseline):
    """HPA on the busy fraction of the instances, target 0.7, with HPA's growth policy."""

    name = "busy HPA"

    def _law(self, view: LawInput, sample: PipelineSample, count: int, pods: int) -> int | None:
        window = self._rates(sample, _WINDOW)
        if window is None:
            return None
        return min(
            _ratio(count, window.throughput * self._service / (count * pods) / 0.7),
            max(2 * count, count + 4),
        )


class Kpa(_Baseline):
    """Knative's autoscaler.

    It scales on mean in-flight requests, with a target of 1 per instance. The stable window is 60
    s, the panic window 6 s (or 1.1 scrapes). Panic starts at twice the running instances and
    prevents decreases for 60 s. A decrease at most halves the count.
    """

    name = "KPA-like"
    period: float | None = None

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._panic_until = -math.inf
        self._panic_count = 0

    def wanted(self, view: LawInput) -> tuple[Mapping[str, int], str]:
        """KPA has no scale-down window of its own beside the stable one."""
        if isinstance(view.sample, MetricsFailure) or not view.sample.pods:
            return {}, ""
        counts = view.counts[self._step]
        count, pods = max(counts.values()), len(counts)
        panic = max(6.0, 1.1 * self._world.scrape)
        stable, quick = self._in_flight(view.sample, 60.0), self._in_flight(view.sample, panic)
        if stable is None or quick is None:
            return {}, ""
        want_stable, want_quick = (max(1, math.ceil(value / pods)) for value in (stable, quick))
        if want_quick >= 2 * count:
            self._panic_until, self._panic_count = view.now + 60.0, max(self._panic_count, count)
        if view.now < self._panic_until:
            self._panic_count = max(self._panic_count, want_quick, want_stable)
            want = self._panic_count
        else:
            self._panic_count = 0
            want = want_stable
        return {self._step: max(want, math.ceil(count / 2))}, ""

    def _in_flight(self, sample: PipelineSample, seconds: float) -> float | None:
        window = self._rates(sample, seconds)
        waiting = [mean_pending(history, self._step, seconds) for history in sample.pods.values()]
        return (
            None
            if window is None
            else sum(value or 0.0 for value in waiting) + window.throughput * self._service
        )

    def _law(self, view: LawInput, sample: PipelineSample, count: int, pods: int) -> int | None:
        raise NotImplementedError


class Fixed:
    """A count that somebody chose."""

    period: float | None = 10.0

    def __init__(self, world: World, count: int) -> None:
        self.name = f"fixed {count}"
        self._step = next(spec.name for spec in world.stations if spec.scaled)
        self._count = count

    def wanted(self, view: LawInput) -> tuple[Mapping[str, int], str]:
        """Always the same."""
        return {self._step: self._count}, ""
