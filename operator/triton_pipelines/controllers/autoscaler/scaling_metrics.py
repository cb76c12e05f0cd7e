"""Metrics of live scaling, for dashboards and alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from triton_pipelines.api.conditions import Reason
from triton_pipelines.autoscaling.metrics.samples import MetricsFailure, PipelineSample
from triton_pipelines.autoscaling.types import Verdict
from triton_pipelines.controllers.handover import View

Key = tuple[str, str]
_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_STEP: Final = ("namespace", "pipeline", "step")


class ScalingMetrics:
    """Gauges and counters by pipeline and step; series of a pipeline go when it is no longer scaled."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tritonpipe_{name}", text, labels, registry=registry)

        self.instances = gauge(
            "step_instances",
            "Instances of a scaled step as a pod's Triton reports them.",
            *_STEP,
            "model",
            "pod",
        )
        self.desired = gauge("step_instances_desired", "Instances that a pod should run.", *_STEP)
        self.busy = gauge(
            "step_busy_ratio", "Busy share of the step's instances, corrected for batches.", *_STEP
        )
        self.wait = gauge(
            "step_wait_seconds", "Wait before the step, from what is pending (Little).", *_STEP
        )
        self.verdict = gauge(
            "pipeline_verdict",
            "1 for what limits the pipeline.",
            "namespace",
            "pipeline",
            "verdict",
        )
        self.starved = gauge(
            "gpu_starved_ratio",
            "Share of decisions in which the GPU step idled while work waited before it.",
            "namespace",
            "pipeline",
        )
        self.age = gauge(
            "scaling_sample_age_seconds",
            "Age of the oldest of the pods' newest samples.",
            "namespace",
            "pipeline",
        )
        self.pods = gauge(
            "pipeline_pods",
            "Pods that are there and not on their way out.",
            "namespace",
            "pipeline",
        )
        self.pods_desired = gauge(
            "pipeline_pods_desired", "Pods that are wanted.", "namespace", "pipeline"
        )
        self.cpu = gauge(
            "pod_cpu_limit_cores",
            "CPU limit in force in a pod's server, as the kubelet tells it.",
            "namespace",
            "pipeline",
            "pod",
        )
        self.cpu_desired = gauge(
            "pod_cpu_limit_desired_cores",
            "CPU limit that live scaling wants for each pod (scaling.cpuResize).",
            "namespace",
            "pipeline",
        )
        self.actions = Counter(
            "tritonpipe_scaling_actions",
            "Changes of counts.",
            (*_STEP, "direction", "reason"),
            registry=registry,
        )
        self.reversals = Counter(
            "tritonpipe_scaling_reversals",
            "Changes against the direction of the one before.",
            _STEP,
            registry=registry,
        )
        self.errors = Counter(
            "tritonpipe_scaling_errors",
            "What went wrong in scaling.",
            ("namespace", "pipeline", "kind"),
            registry=registry,
        )
        self.actuation = Histogram(
            "tritonpipe_scaling_actuation_seconds",
            "Duration of a proven change.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._last: dict[tuple[Key, str], str] = {}
        self._starved: dict[Key, float] = {}
        self._known: dict[Key, set[tuple[str, str, str]]] = {}
        self._newest: dict[Key, dict[str, float]] = {}
        self._sized: dict[Key, set[str]] = {}

    def decided(
        self,
        key: Key,
        view: View,
        models: Mapping[str, str],
        sample: PipelineSample | MetricsFailure,
        now: float,
    ) -> None:
        """Take in a decision. ``models``: step → name of its model, as Triton's own series have it."""
        for verdict in Verdict:
            self.verdict.labels(*key, verdict.value).set(verdict is view.decision.verdict)
        for item in view.decision.steps:
            self.desired.labels(*key, item.step).set(item.count)
            self.busy.labels(*key, item.step).set(item.figures.busy)
            self.wait.labels(*key, item.step).set(item.figures.wait)
        counts = {
            (step, models[step], pod): count
            for step, pods in view.counts.items()
            for pod, count in pods.items()
        }
        for gone in self._known.get(key, set()) - counts.keys():
            self.instances.remove(*key, *gone)
        self._known[key] = set(counts)
        for labels, count in counts.items():
            self.instances.labels(*key, *labels).set(count)
        self._aged(key, view, sample, now)
        if isinstance(sample, MetricsFailure):
            if view.trouble == Reason.NO_PODS.value:
                return  # pods that have yet to start are no fault of metrics
            self.errors.labels(*key, sample.problem.value).inc()
            return
        waits = any(
            item.figures.service and item.figures.wait > item.figures.service
            for item in view.decision.steps
        )
        starved = waits and view.decision.gpu_busy is not None and view.decision.gpu_busy < 0.5
        # A mean that forgets over about a minute of ticks.
        self._starved[key] = 0.97 * self._starved.get(key, 0.0) + 0.03 * starved
        self.starved.labels(*key).set(self._starved[key])

    def sized(
        self, key: Key, pods: Mapping[str, int | None], wanted: int | None, limit: int | None
    ) -> None:
        """Take in the pods as they are. ``pods``: name → CPU limit in force; ``wanted``: how many there should be; ``limit``: what each should
        have, thousandths of a core; ``None``: not known, or live scaling's to say, and then there is no such series."""
        self.pods.labels(*key).set(len(pods))
        limits = {pod: millis / 1000 for pod, millis in pods.items() if millis is not None}
        for gone in self._sized.get(key, set()) - limits.keys():
            self.cpu.remove(*key, gone)
        self._sized[key] = set(limits)
        for pod, cores in limits.items():
            self.cpu.labels(*key, pod).set(cores)
        for family, value in (
            (self.pods_desired, wanted),
            (self.cpu_desired, None if limit is None else limit / 1000),
        ):
            if value is None:
                family.remove_by_labels({"namespace": key[0], "pipeline": key[1]})
            else:
                family.labels(*key).set(value)

    def _aged(
        self, key: Key, view: View, sample: PipelineSample | MetricsFailure, now: float
    ) -> None:
        """The age grows while nothing new comes; a pod that is gone has none."""
        if view.trouble == Reason.NO_PODS.value:
            self._newest.pop(key, None)
            self.age.remove_by_labels({"namespace": key[0], "pipeline": key[1]})
            return
        newest = self._newest.setdefault(key, {})
        if isinstance(sample, PipelineSample):
            newest |= {
                pod: history.scrapes[-1].at
                for pod, history in sample.pods.items()
                if history.scrapes
            }
        there = {pod for pods in view.counts.values() for pod in pods}
        if there:
            self._newest[key] = newest = {pod: at for pod, at in newest.items() if pod in there}
        if newest:
            self.age.labels(*key).set(now - min(newest.values()))

    def acted(
        self, key: Key, step: str, direction: str, reason: str, seconds: float | None
    ) -> None:
        """Take in a change that ended."""
        self.actions.labels(*key, step, direction, reason).inc()
        if seconds is not None:
            self.actuation.observe(seconds)
        last = self._last.get((key, step))
        if last is not None and last != direction:
            self.reversals.labels(*key, step).inc()
        self._last[key, step] = direction

    def forget(self, key: Key) -> None:
        """Drop the series of a pipeline that is no longer scaled."""
        steps = (self.instances, self.desired, self.busy, self.wait)
        counters = (self.actions, self.reversals, self.errors)
        for family in (
            *steps,
            *counters,
            self.verdict,
            self.starved,
            self.age,
            self.pods,
            self.pods_desired,
            self.cpu,
            self.cpu_desired,
        ):
            family.remove_by_labels({"namespace": key[0], "pipeline": key[1]})
        self._last = {
            where: direction for where, direction in self._last.items() if where[0] != key
        }
        self._known.pop(key, None)
        self._starved.pop(key, None)
        self._newest.pop(key, None)
        self._sized.pop(key, None)
