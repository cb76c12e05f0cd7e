"""Metrics of the autoscaler, for dashboards and alerts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from triton_pipelines.api.conditions import Reason
from triton_pipelines.autoscaling.metrics.samples import MetricsFailure, PipelineSample
from triton_pipelines.autoscaling.types import Verdict
from triton_pipelines.cluster.store import Key
from triton_pipelines.controllers.autoscaler.pod_sizes import PodSizes
from triton_pipelines.controllers.handover import ScalingView

_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_PIPELINE: Final = ("namespace", "pipeline")
_STEP: Final = (*_PIPELINE, "step")


class ScalingMetrics:
    """Gauges and counters by pipeline and step.

    The series of a pipeline are removed when it is no longer scaled.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._declare_step_gauges(registry)
        self._declare_pipeline_gauges(registry)
        self._declare_actions(registry)
        self._last_direction: dict[tuple[Key, str], str] = {}
        self._starved: dict[Key, float] = {}
        self._instance_labels: dict[Key, set[tuple[str, str, str]]] = {}
        self._newest: dict[Key, dict[str, float]] = {}
        self._cpu_pods: dict[Key, set[str]] = {}

    def _declare_step_gauges(self, registry: CollectorRegistry) -> None:
        gauge = partial(_gauge, registry)
        self.instances = gauge(
            "step_instances",
            "Number of instances of a scaled step, as reported by Triton in each pod.",
            *_STEP,
            "model",
            "pod",
        )
        self.desired = gauge(
            "step_instances_desired", "Desired number of instances in each pod.", *_STEP
        )
        self.busy = gauge(
            "step_busy_ratio",
            "Share of time for which the step's instances are busy, corrected for batching.",
            *_STEP,
        )
        self.wait = gauge(
            "step_wait_seconds",
            "Queueing time before the step, computed from the pending requests with Little's law.",
            *_STEP,
        )

    def _declare_pipeline_gauges(self, registry: CollectorRegistry) -> None:
        gauge = partial(_gauge, registry)
        self.verdict = gauge(
            "pipeline_verdict",
            "1 for the current verdict on the pipeline's bottleneck.",
            *_PIPELINE,
            "verdict",
        )
        self.starved = gauge(
            "gpu_starved_ratio",
            "Share of decisions in which the GPU step was idle while requests waited for a CPU "
            "step.",
            *_PIPELINE,
        )
        self.age = gauge(
            "scaling_sample_age_seconds",
            "Age of the newest sample of the pod with the oldest samples.",
            *_PIPELINE,
        )
        self.pods_desired = gauge("pipeline_pods_desired", "Desired number of pods.", *_PIPELINE)
        self.cpu = gauge(
            "pod_cpu_limit_cores",
            "CPU limit in effect for a pod's Triton container, as reported by the kubelet.",
            *_PIPELINE,
            "pod",
        )
        self.cpu_desired = gauge(
            "pod_cpu_limit_desired_cores",
            "Desired CPU limit of each pod (scaling.cpuResize).",
            *_PIPELINE,
        )

    def _declare_actions(self, registry: CollectorRegistry) -> None:
        self.actions = Counter(
            "tritonpipe_scaling_actions",
            "Changes to instance counts, pods and CPU.",
            (*_STEP, "direction", "reason"),
            registry=registry,
        )
        self.reversals = Counter(
            "tritonpipe_scaling_reversals",
            "Changes in the opposite direction of the previous change.",
            _STEP,
            registry=registry,
        )
        self.errors = Counter(
            "tritonpipe_scaling_errors",
            "Errors in live scaling.",
            (*_PIPELINE, "kind"),
            registry=registry,
        )
        self.actuation = Histogram(
            "tritonpipe_scaling_actuation_seconds",
            "Duration of a verified change.",
            buckets=_BUCKETS,
            registry=registry,
        )

    def observe_decision(
        self,
        key: Key,
        view: ScalingView,
        models: Mapping[str, str],
        sample: PipelineSample | MetricsFailure,
        now: float,
    ) -> None:
        """Set the series of a decision.

        Args:
            key: The pipeline's key.
            view: The decision and the reported counts.
            models: Step → name of its model, as in Triton's own series.
            sample: What was decided on.
            now: Unix seconds.
        """
        for verdict in Verdict:
            self.verdict.labels(*key, verdict.value).set(verdict is view.decision.verdict)
        for item in view.decision.steps:
            self.desired.labels(*key, item.step).set(item.count)
            self.busy.labels(*key, item.step).set(item.figures.busy)
            self.wait.labels(*key, item.step).set(item.figures.wait)
        self._set_instances(key, view, models)
        self._set_age(key, view, sample, now)
        if isinstance(sample, MetricsFailure):
            if view.metrics_failure != Reason.NO_PODS.value:  # starting pods have no metrics yet
                self.errors.labels(*key, sample.problem.value).inc()
            return
        is_waiting = any(
            item.figures.service and item.figures.wait > item.figures.service
            for item in view.decision.steps
        )
        gpu_busy = view.decision.gpu_busy
        is_starved = is_waiting and gpu_busy is not None and gpu_busy < 0.5
        # Exponential mean over about a minute of ticks.
        self._starved[key] = 0.97 * self._starved.get(key, 0.0) + 0.03 * is_starved
        self.starved.labels(*key).set(self._starved[key])

    def _set_instances(self, key: Key, view: ScalingView, models: Mapping[str, str]) -> None:
        """Set the reported counts, and remove those of pods that are gone."""
        counts = {
            (step, models[step], pod): count
            for step, pods in view.counts.items()
            for pod, count in pods.items()
        }
        for labels in self._instance_labels.get(key, set()) - counts.keys():
            self.instances.remove(*key, *labels)
        self._instance_labels[key] = set(counts)
        for labels, count in counts.items():
            self.instances.labels(*key, *labels).set(count)

    def observe_pods(self, key: Key, sizes: PodSizes) -> None:
        """Set desired pods and CPU of the pods. What is unknown or not scaled has no series."""
        limits = {pod: millis / 1000 for pod, millis in sizes.limits.items() if millis is not None}
        for pod in self._cpu_pods.get(key, set()) - limits.keys():
            self.cpu.remove(*key, pod)
        self._cpu_pods[key] = set(limits)
        for pod, cores in limits.items():
            self.cpu.labels(*key, pod).set(cores)
        desired_cores = None if sizes.desired_limit is None else sizes.desired_limit / 1000
        for family, value in (
            (self.pods_desired, sizes.desired_pods),
            (self.cpu_desired, desired_cores),
        ):
            if value is None:
                family.remove_by_labels({"namespace": key[0], "pipeline": key[1]})
            else:
                family.labels(*key).set(value)

    def _set_age(
        self, key: Key, view: ScalingView, sample: PipelineSample | MetricsFailure, now: float
    ) -> None:
        """Set the samples' age, which grows while no new ones come; a deleted pod has none."""
        if view.metrics_failure == Reason.NO_PODS.value:
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
        present = {pod for pods in view.counts.values() for pod in pods}
        if present:
            self._newest[key] = newest = {pod: at for pod, at in newest.items() if pod in present}
        if newest:
            self.age.labels(*key).set(now - min(newest.values()))

    def observe_action(
        self, key: Key, step: str, direction: str, reason: str, seconds: float | None
    ) -> None:
        """Count a change that ended.

        Args:
            key: The pipeline's key.
            step: The step; ``pods`` or ``millicores`` for pods and CPU.
            direction: Up or down.
            reason: How it ended.
            seconds: How long a verified change took.
        """
        self.actions.labels(*key, step, direction, reason).inc()
        if seconds is not None:
            self.actuation.observe(seconds)
        last = self._last_direction.get((key, step))
        if last is not None and last != direction:
            self.reversals.labels(*key, step).inc()
        self._last_direction[key, step] = direction

    def forget(self, key: Key) -> None:
        """Remove the series of a pipeline that is no longer scaled."""
        for family in (
            self.instances,
            self.desired,
            self.busy,
            self.wait,
            self.actions,
            self.reversals,
            self.errors,
            self.verdict,
            self.starved,
            self.age,
            self.pods_desired,
            self.cpu,
            self.cpu_desired,
        ):
            family.remove_by_labels({"namespace": key[0], "pipeline": key[1]})
        self._last_direction = {
            where: direction for where, direction in self._last_direction.items() if where[0] != key
        }
        self._instance_labels.pop(key, None)
        self._starved.pop(key, None)
        self._newest.pop(key, None)
        self._cpu_pods.pop(key, None)


def _gauge(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"tritonpipe_{name}", text, labels, registry=registry)
