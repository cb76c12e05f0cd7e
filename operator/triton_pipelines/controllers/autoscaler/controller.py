"""Autoscaler: sample, decide and change instance counts for all pipelines of this operator.

Each tick observes the pipelines and their pods, collects samples for all of them at once and takes
one decision per pipeline; at most one change per step runs at a time. The intent comes first:
the autoscaler publishes the desired counts, the next reconcile records them, and only recorded
counts are carried out. A pod that starts meanwhile starts with them. Nothing here writes to the
API server.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from triton_pipelines.api import names
from triton_pipelines.autoscaling.control_law import IN_FLIGHT_SECONDS
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
)
from triton_pipelines.autoscaling.pods_and_cpu import (
    PodsObservation,
    change_in_progress,
    decide_pods_and_cpu,
)
from triton_pipelines.autoscaling.state_json import loads
from triton_pipelines.autoscaling.types import PipelineLimits, ScalingDecision, ScalingState
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Key, Store
from triton_pipelines.compile.graph.example_request import example_of
from triton_pipelines.controllers.autoscaler import (
    pipeline_state,
    pod_sizes,
    scaling_state,
    stored_objects,
)
from triton_pipelines.controllers.autoscaler.actuator import Pace, PodTarget
from triton_pipelines.controllers.autoscaler.count_changer import CountChanger
from triton_pipelines.controllers.autoscaler.decision_inputs import DecisionInputs
from triton_pipelines.controllers.autoscaler.pipeline_state import (
    PipelineScalingState,
    ReportedStatus,
    StepChange,
)
from triton_pipelines.controllers.autoscaler.pod_counts import (
    count_calls,
    count_slots,
    due_queries,
    known_targets,
)
from triton_pipelines.controllers.autoscaler.sample_collection import Collector, SampleCollection
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.autoscaler.triton_pod import TritonPod
from triton_pipelines.controllers.failure_log import NO_PIPELINE, FailureLog
from triton_pipelines.controllers.handover import Handover, ScalingView
from triton_pipelines.controllers.pipeline.live_config_map import stored_state
from triton_pipelines.controllers.pipeline.pod_probes import Prober, ProbeTarget
from triton_pipelines.controllers.pipeline.scaling_observation import bounds_of
from triton_pipelines.controllers.pipeline.snapshot import Pod, is_alive
from triton_pipelines.controllers.pod_ownership import owned_pods
from triton_pipelines.controllers.unmanaged import is_unmanaged
from triton_pipelines.pod_calls import PendingCalls, PodSlots

TICK_SECONDS: Final = 2.0
# How long a change waits for its intent to be recorded; without an API server nothing is changed.
INTENT_SECONDS: Final = 15.0
# A view of which only figures changed is published this often (seconds).
STATUS_SECONDS: Final = 60.0
# Pause after a first failed change (seconds); doubled before the first use, and with each failure.
RETRY_SECONDS: Final = 8.0


@dataclass(slots=True)
class Autoscaler:
    """Scales every pipeline whose spec allows it. ``run`` ends only when cancelled."""

    store: Store
    """The operator's caches."""
    derive: Callable[[str, str], str]
    """Derives the control key of (pipeline uid, revision)."""
    prober: Prober
    """Probes a pod after a change."""
    collectors: Mapping[str, Collector]
    """By name of the connection; the empty name reads the pods directly and is the fallback."""
    clock: Callable[[], dt.datetime]
    """Returns UTC now."""
    enqueue: Callable[[Key], None]
    """Makes a reconcile due."""
    metrics: ScalingMetrics
    """The autoscaler's own metrics."""
    handover: Handover
    """Where intents and views are published, and effective specs and resize rejections read."""
    tick_seconds: float = TICK_SECONDS
    """Time between two ticks."""
    intent_seconds: float = INTENT_SECONDS
    """How long a change waits for its intent to be recorded."""
    retry_seconds: float = RETRY_SECONDS
    """Pause after a first failed change."""
    pace: Pace = field(default_factory=Pace)
    """Times of the actuator."""
    _count_slots: PodSlots = field(default_factory=count_slots)
    _counting: PendingCalls[tuple[Key, str], None] = field(default_factory=count_calls)
    _samples: SampleCollection = field(default_factory=SampleCollection)
    _states: dict[Key, PipelineScalingState] = field(default_factory=dict)
    _decided: dict[Key, DecisionInputs] = field(default_factory=dict)
    """Inputs of the last decisions."""
    _failures: FailureLog = field(init=False)

    def __post_init__(self) -> None:
        self._failures = FailureLog("scaling failed", self.metrics.errors)

    # --- loop -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tick forever; a failed tick is logged, and the next one tries again."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                due = loop.time() + self.tick_seconds
                try:
                    await self.tick()
                except Exception as error:
                    await self._failures.report(NO_PIPELINE, "Tick", error)
                await asyncio.sleep(max(0.0, due - loop.time()))
        finally:
            self._counting.cancel()
            self._samples.cancel()
            for state in self._states.values():
                state.cancel_changes()

    async def tick(self) -> None:
        """Observe all pipelines and decide for each; a failure in one does not affect others."""
        for key in list(self.store.pipelines()):
            try:
                self._observe(key)
            except Exception as error:
                await self._failures.report(key, "Observe", error)
        self._forget({*self._states, *self._failures.pipelines} - set(self.store.pipelines()))
        scaled = {key: state for key, state in self._states.items() if state.steps}
        serving = {key: state for key, state in scaled.items() if state.pods}
        now = self.clock().timestamp()
        counting = due_queries(serving, self._control, now, self._count_slots)
        for (key, _), failure in (await self._counting.results(counting)).items():
            if failure is not None:
                await self._failures.report(key, "Count", failure)
        samples = await self._samples.collect(serving, self.collectors, self._report_collect)
        for key, state in scaled.items():
            sample = samples.get(key) or MetricsFailure(MetricsProblem.MISSING, "no pod is ready")
            if not any(self.collectors):
                sample = pipeline_state.with_missing_connection(state.pipeline, sample)
            inputs = DecisionInputs.of(key, state, sample, self.store, self.handover, now)
            if not state.is_changing and inputs.repeat(self._decided.get(key)):
                continue
            try:
                self._reconcile(key, state, sample)
                self._decided[key] = inputs
            except Exception as error:
                await self._failures.report(key, "Decide", error)

    async def _report_collect(self, key: Key, error: BaseException) -> None:
        await self._failures.report(key, "Collect", error)

    # --- observe --------------------------------------------------------------------------------

    def _observe(self, key: Key) -> None:
        """Update a pipeline's spec and its pods from the caches."""
        known, effective = self._states.get(key), self.handover.effective_specs.get(key)
        if known is not None and effective is not None and known.is_unscaled(effective.graph):
            return
        raw = self.store.get(INFERENCE_PIPELINES, *key)
        if raw is None or is_unmanaged(raw):
            self._forget([key])
            return
        state = self._state_of(key, raw)
        if state is None:
            return
        if not state.steps:
            self._clear(key, state)
            return
        found = owned_pods(self.store, self.handover.replica_sets.get(key, {}), key)
        state.all_pods = tuple(Pod.of(item) for item in found.server if is_alive(item))
        state.pods = tuple(
            pod
            for pod in state.all_pods
            if pod.serving
            and pod.server_running
            and stored_objects.configs_of_pod(self.store, state, pod) is not None
        )
        state.forget_deleted_pods()

    def _state_of(self, key: Key, raw: Object) -> PipelineScalingState | None:
        """Return the pipeline's state with its effective spec.

        ``None`` before its first reconcile, and if it never had a spec that compiles.
        """
        effective = self.handover.effective_spec(raw)
        if effective is None:
            self._forget([key])
            return None
        state = self._states.get(key)
        if state is not None and (state.pipeline.metadata.uid != effective.pipeline.metadata.uid):
            self._forget([key])  # another pipeline of the same name
            state = None
        if state is None:
            state = self._states[key] = PipelineScalingState(
                effective.pipeline,
                effective.graph,
                self.clock().timestamp(),
                ReportedStatus.of(
                    raw.get("status") or {},
                    stored_state(self.store, key).scaling_report.metrics_source,
                ),
            )
            self.handover.scaling[key] = state.output
        elif state.graph is not effective.graph:
            state.set_spec(effective.pipeline, effective.graph)
        return state

    def _clear(self, key: Key, state: PipelineScalingState) -> None:
        """Clear the scaling state of a pipeline without a scalable step."""
        if state.scaling_state is None and not state.pods:
            return
        state.cancel_changes()
        state.scaling_state = state.output.intent = state.output.view = None
        state.pods, state.pod_counts, state.view_key = (), {}, ()
        self.metrics.forget(key)

    def _forget(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if self._failures.forget(key):
                self.metrics.forget(key)
            state = self._states.pop(key, None)
            self._decided.pop(key, None)
            self.handover.scaling.pop(key, None)
            if state is not None:
                self._clear(key, state)

    def _control(self, state: PipelineScalingState, pod: Pod) -> TritonPod:
        example = example_of(state.pipeline, state.graph)
        key = self.derive(state.pipeline.metadata.uid, pod.revision)
        trust = self.handover.tls.get((state.pipeline.namespace, state.pipeline.name))
        tls = trust.identity(pod) if trust is not None else None
        return TritonPod(ProbeTarget(pod, state.graph, key, example, tls), self.prober, self.clock)

    # --- decide ---------------------------------------------------------------------------------

    def _reconcile(
        self, key: Key, state: PipelineScalingState, sample: PipelineSample | MetricsFailure
    ) -> None:
        """Decide, start what was decided, and publish intent and view."""
        now, live = self.clock().timestamp(), stored_objects.live_data(self.store, state)
        deployment = self.store.get(DEPLOYMENTS, *key)
        before = state.scaling_state or scaling_state.with_recorded_counts(
            loads(live.get(names.KEY_SCALING)), stored_objects.recorded_counts(self.store, state)
        )
        before = pod_sizes.with_owned_fields(state, before, live, deployment)
        limits = pod_sizes.current_limits(state, before, direct=not any(self.collectors))
        counts = state.counts()
        decision = decide(limits, before, sample, counts, [pod.name for pod in state.pods], now)
        state.observe_waits(decision, now)
        rejections = self.handover.resize_rejections.get(key, {})
        pods = pod_sizes.observe_pods(state, before, deployment, rejections, live)
        self._decide_counts(key, state, decision, before, pods, now)
        decision = self._decide_pods(key, state, limits, decision, pods, sample, now)
        if state.is_active and pod_sizes.needs_recording(decision.state, live, state.output.intent):
            state.output.intent = pod_sizes.intent_of(decision.state)
            self.enqueue(key)
        has_pods = bool(state.pods)
        failure = pipeline_state.metrics_failure_of(decision, has_pods=has_pods)
        decision = scaling_state.with_desired_counts(
            decision, decision.state, active=state.is_active
        )
        mode, action_failure = state.pipeline.spec.scaling.mode, state.action_failure
        view = ScalingView(decision, mode, counts, sample.source, failure, action_failure, now)
        models = {step.name: step.model_name for step in state.steps}
        self.metrics.observe_decision(key, view, models, sample, now)
        self.metrics.observe_pods(key, pod_sizes.pod_sizes(state, deployment))
        if not pipeline_state.is_settling(state, decision.verdict, now, failure, sample.source):
            self._publish_view(key, state, view, now)

    def _decide_counts(
        self,
        key: Key,
        state: PipelineScalingState,
        decision: ScalingDecision,
        before: ScalingState,
        pods: PodsObservation,
        now: float,
    ) -> None:
        """Take the decision on counts into the state, and start it unless it has to wait."""
        if not state.is_active:
            state.scaling_state = decision.state
            return
        # A running change is not decided again, and a failed one not retried at once; the control
        # law decides again afterwards. Other steps are scaled meanwhile: an increase of Python code
        # can last as long as an overload, and Triton completes those of other models (measured).
        blocked = state.changing_steps | state.waiting_steps(self.retry_seconds, now)
        if not state.pods or change_in_progress(before, pods, now):
            state.scaling_state = scaling_state.with_observations(before, decision.state)
        else:
            state.scaling_state = scaling_state.with_blocked_steps(before, decision.state, blocked)
        if state.pods:
            steps = state.scaling_state.steps
            free = [item.step for item in decision.steps if item.step not in blocked]
            self._start_changes(key, state, {step: steps[step].desired for step in free}, before)

    def _decide_pods(
        self,
        key: Key,
        state: PipelineScalingState,
        limits: PipelineLimits,
        decision: ScalingDecision,
        pods: PodsObservation,
        sample: PipelineSample | MetricsFailure,
        now: float,
    ) -> ScalingDecision:
        """Return the decision with CPU and pods, and take it into the state."""
        assert state.scaling_state is not None, "instance counts are decided first"
        before = state.scaling_state.history
        decision = decide_pods_and_cpu(
            bounds_of(state.pipeline, state.graph),
            limits,
            replace(decision, state=state.scaling_state),
            replace(pods, counting=state.has_recent_change(IN_FLIGHT_SECONDS, now)),
            interval=sample.interval if isinstance(sample, PipelineSample) else 0.0,
            now=now,
        )
        for action in pod_sizes.new_actions(before, decision.state.history):
            direction = "up" if action.after > action.before else "down"
            self.metrics.observe_action(key, action.step, direction, "Recorded", None)
        state.scaling_state = decision.state
        return decision

    def _start_changes(
        self,
        key: Key,
        state: PipelineScalingState,
        desired: Mapping[str, int],
        before: ScalingState,
    ) -> None:
        """Start changes to the desired counts, also for pods that started with other counts."""
        recorded = stored_objects.recorded_counts(self.store, state)
        changed = {step: count for step, count in desired.items() if recorded.get(step) != count}
        found = state.counts()
        diverged = {step for step, count in desired.items() if {*found[step].values()} - {count}}
        # What failed is no longer desired.
        state.clear_failures(desired.keys() - changed.keys() - diverged)
        if changed:
            assert state.scaling_state is not None
            state.output.intent = pod_sizes.intent_of(state.scaling_state)
            self.enqueue(key)
        now = self.clock().timestamp()
        for step in state.steps:
            if step.name in changed or step.name in diverged:
                change = self._count_changer().run(
                    key, state, step, desired[step.name], before, is_new=step.name in changed
                )
                task = asyncio.create_task(change, name=f"scale {key[0]}/{key[1]} {step.name}")
                state.changes[step.name] = StepChange(task, now)

    def _count_changer(self) -> CountChanger:
        def recorded(state: PipelineScalingState) -> Mapping[str, int]:
            return stored_objects.recorded_counts(self.store, state)

        log, seconds = self._failures.report, self.intent_seconds
        return CountChanger(
            recorded, self._targets, self.clock, self.enqueue, self.metrics, log, self.pace, seconds
        )

    def _targets(self, state: PipelineScalingState, step: str) -> list[PodTarget]:
        """Return the pods whose count of the step and whose config are known."""
        return known_targets(
            state,
            step,
            partial(stored_objects.configs_of_pod, self.store, state),
            partial(self._control, state),
        )

    # --- publish --------------------------------------------------------------------------------

    def _publish_view(
        self, key: Key, state: PipelineScalingState, view: ScalingView, now: float
    ) -> None:
        """Publish a view at once if more than figures changed, else at most once a minute.

        In between the previous view stays: a reconcile for another reason must not write new
        figures.
        """
        change_key = pipeline_state.change_key(view)
        if change_key != state.view_key or now - state.view_at >= STATUS_SECONDS:
            state.output.view, state.view_key, state.view_at = view, change_key, now
            self.enqueue(key)
