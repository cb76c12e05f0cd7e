"""The scaling loop: samples, decisions, and changes of instance counts, for all pipelines of this operator.

One tick: which pipelines are scaled and what their pods are; one collection for all; a decision each; at most one change in flight
per pipeline. Intent first: the next reconcile pass records the wanted counts, and only what is recorded is carried to the pods; a pod
that starts meanwhile starts from it. Nothing here writes to the API server.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import structlog

from triton_pipelines.api import names
from triton_pipelines.api.conditions import Reason
from triton_pipelines.autoscaling.backoff import Backoff
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.collector import unknown
from triton_pipelines.autoscaling.metrics.samples import Expected, Failure, Sample, Trouble
from triton_pipelines.autoscaling.pods_and_cpu import moving
from triton_pipelines.autoscaling.state_json import loads
from triton_pipelines.autoscaling.types import Memory
from triton_pipelines.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.graph.example_request import example_of
from triton_pipelines.controllers.autoscaler import pipeline_state, pods_and_cpu
from triton_pipelines.controllers.autoscaler.actuator import (
    Ended,
    Outcome,
    Pace,
    PodGoneError,
    PodRefusedError,
    PodSilentError,
    Target,
    actuate,
)
from triton_pipelines.controllers.autoscaler.pipeline_state import Counted, Watched
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.autoscaler.triton_pod import TritonPod
from triton_pipelines.controllers.handover import Intent, View, limits_of
from triton_pipelines.controllers.pipeline.effective_spec import EffectiveSpec
from triton_pipelines.controllers.pipeline.plan import is_unmanaged
from triton_pipelines.controllers.pipeline.reconciler import Prober, ProbeTarget
from triton_pipelines.controllers.pipeline.resize_rejections import Refusal
from triton_pipelines.controllers.pipeline.snapshot import Object, Pod, alive, json_object, serves

Key = tuple[str, str]
_log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 2.0
# A pod's count is asked again after this long (seconds), and whenever its server started anew: nobody else should change it.
RECOUNT_SECONDS: Final = 30.0
# A pod that did not answer is left alone for so long (seconds): many that cannot be reached must not keep the operator busy.
UNANSWERED_SECONDS: Final = 10.0
# How long a change waits for its intent to be recorded; without an API server nothing is changed.
INTENT_SECONDS: Final = 15.0
INTENT_POLL_SECONDS: Final = 0.1
# Figures alone make no status pass due more often (seconds).
STATUS_SECONDS: Final = 60.0
# Pause after a first failed change (seconds); doubled before the first use, and with each further failure.
RETRY_SECONDS: Final = 8.0


class Collector(Protocol):
    """Where samples come from: Prometheus, or the pods themselves."""

    async def collect(self, wanted: Mapping[Key, Expected]) -> Mapping[Key, Sample | Failure]:
        """One collection for all pipelines; a pipeline without a usable sample gets a failure, never a zero."""
        ...


@dataclass(slots=True)
class Autoscaler:
    """Scales every pipeline whose spec allows it. ``run`` ends only when cancelled.

    ``collectors``: by name of the connection; the one named ``""`` reads the pods directly and serves where none is configured.
    ``going``: what passes go by, of a raw pipeline; ``prober`` asks a pod after a change; ``enqueue`` makes a reconcile pass due; ``clock`` gives UTC now.
    """

    store: Store
    derive: Callable[[str, str], str]
    prober: Prober
    collectors: Mapping[str, Collector]
    clock: Callable[[], dt.datetime]
    enqueue: Callable[[Key], None]
    metrics: ScalingMetrics
    refusals: Callable[[Key], Mapping[str, Refusal]] = lambda _: {}
    going: Callable[[Object], EffectiveSpec | None] = lambda _: None
    tick_seconds: float = TICK_SECONDS
    intent_seconds: float = INTENT_SECONDS
    retry_seconds: float = RETRY_SECONDS
    pace: Pace = field(default_factory=Pace)
    _watched: dict[Key, Watched] = field(default_factory=dict)
    _said: dict[tuple[Key, str], str] = field(default_factory=dict)

    # --- what the reconcile pass asks -----------------------------------------------------------------------------------

    def intent(self, key: Key) -> Intent | None:
        """Counts and memory to record; ``None``: what is recorded stays."""
        watched = self._watched.get(key)
        return watched.intent if watched else None

    def view(self, key: Key) -> View | None:
        """What to say in the status; ``None`` where nothing was decided."""
        watched = self._watched.get(key)
        return watched.view if watched else None

    # --- the loop ----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tick for ever; a tick that fails is logged, and the next one tries again."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                due = loop.time() + self.tick_seconds
                try:
                    await self.tick()
                except Exception as error:
                    await self._failed(("", ""), "Tick", error)
                await asyncio.sleep(max(0.0, due - loop.time()))
        finally:
            for watched in self._watched.values():
                if watched.action is not None:
                    watched.action.cancel()

    async def tick(self) -> None:
        """One round over all pipelines; what goes wrong in one of them is not the others' trouble."""
        for key in list(self.store.pipelines()):
            try:
                self._observe(key)
            except Exception as error:
                await self._failed(key, "Observe", error)
        self._drop(
            {*self._watched, *(key for key, _ in self._said if any(key))}
            - set(self.store.pipelines())
        )
        looked_at = {key: watched for key, watched in self._watched.items() if watched.steps}
        active = {key: watched for key, watched in looked_at.items() if watched.pods}
        await asyncio.gather(*(self._count(watched) for watched in active.values()))
        samples = await self._collect(active)
        for key, watched in looked_at.items():
            sample = samples.get(key) or Failure(Trouble.MISSING, "no pod is ready")
            try:
                self._decide(
                    key,
                    watched,
                    sample
                    if any(self.collectors)
                    else pipeline_state.read_directly(watched.pipeline, sample),
                )
            except Exception as error:
                await self._failed(key, "Decide", error)

    async def _failed(self, key: Key, kind: str, error: BaseException) -> None:
        """A defect of ours, or what a pod or an edited object did to us: counted and logged, never the end of the loop."""
        self.metrics.errors.labels(*key, kind).inc()
        said = f"{type(error).__name__}: {error}"
        if self._said.get((key, kind)) == said:
            return  # every tick meets it again; the counter tells
        self._said[key, kind] = said
        await _log.aerror(
            "scaling failed",
            namespace=key[0],
            pipeline=key[1],
            kind=kind,
            error=str(error),
            exc_info=error,
        )

    # --- observe -------------------------------------------------------------------------------------------------------------

    def _observe(self, key: Key) -> None:
        """The pipeline's spec and its ready pods, as the caches have them."""
        raw = self.store.get(INFERENCE_PIPELINES, *key)
        if raw is None or is_unmanaged(raw):
            self._drop([key])
            return
        watched = self._of_spec(key, raw)
        if watched is None:
            return
        if not watched.steps:
            self._rest(key, watched)
            return
        pods = [
            Pod.of(item) for item in self.store.children(PODS, key) if alive(item) and serves(item)
        ]
        watched.everyone = tuple(pods)
        watched.pods = tuple(
            pod
            for pod in pods
            if pod.serving and pod.server_running and self._configs(watched, pod) is not None
        )
        watched.forget_gone()

    def _of_spec(self, key: Key, raw: Object) -> Watched | None:
        """The pipeline as passes go by it; ``None`` before the first one, and where there was never a spec to go by."""
        going, watched = self.going(raw), self._watched.get(key)
        if going is None or (
            watched is not None and watched.pipeline.metadata.uid != going.pipeline.metadata.uid
        ):
            self._drop([key])  # another pipeline of the same name
            watched = None
        if going is None:
            return None
        if watched is None:
            watched = self._watched[key] = Watched(
                going.pipeline,
                going.graph,
                self.clock().timestamp(),
                *pipeline_state.said_in(raw.get("status") or {}),
            )
        elif watched.graph is not going.graph:
            watched.take(going.pipeline, going.graph)
        return watched

    def _rest(self, key: Key, watched: Watched) -> None:
        """Nothing of it is to be scaled: only its spec is remembered."""
        if watched.memory is None and not watched.pods:
            return
        if watched.action is not None:
            watched.action.cancel()
        watched.action = watched.memory = watched.intent = watched.view = None
        watched.pods, watched.counted, watched.told = (), {}, ()
        self.metrics.forget(key)

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if any(where[0] == key for where in self._said):
                self._said = {where: said for where, said in self._said.items() if where[0] != key}
                self.metrics.forget(key)
            watched = self._watched.pop(key, None)
            if watched is not None:
                self._rest(key, watched)

    def _configs(self, watched: Watched, pod: Pod) -> Mapping[str, str] | None:
        name = names.revision_name(watched.pipeline.name, pod.revision)
        return pipeline_state.configs_of(
            self.store.get(CONFIG_MAPS, watched.pipeline.namespace, name)
        )

    async def _count(self, watched: Watched) -> None:
        """Ask the pods whose counts are not known, or not of late."""
        now = self.clock().timestamp()
        due = []
        for pod in watched.pods:
            known = watched.counted.get(pod.uid)
            stale = (
                known is None
                or known.start != pipeline_state.start_of(pod)
                or now - known.at >= RECOUNT_SECONDS
            )
            start, asked = watched.unanswered.get(pod.uid, ("", 0.0))
            if stale and (
                start != pipeline_state.start_of(pod) or now - asked >= UNANSWERED_SECONDS
            ):
                due.append(pod)
        counts = await asyncio.gather(*(self._ask_counts(watched, pod) for pod in due))
        for pod, found in zip(due, counts, strict=True):
            watched.unanswered.pop(pod.uid, None)
            if found is not None:
                watched.counted[pod.uid] = Counted(now, pipeline_state.start_of(pod), found)
                continue
            watched.unanswered[pod.uid] = (pipeline_state.start_of(pod), now)
            if (
                known := watched.counted.get(pod.uid)
            ) is not None and known.start != pipeline_state.start_of(pod):
                del watched.counted[
                    pod.uid
                ]  # what an earlier start of its server ran says nothing of this one

    async def _ask_counts(self, watched: Watched, pod: Pod) -> Mapping[str, int] | None:
        control = self._control(watched, pod)
        try:
            return {step.name: await control.count(step.model_name) for step in watched.steps}
        except (PodGoneError, PodRefusedError, PodSilentError):
            return None

    def _control(self, watched: Watched, pod: Pod) -> TritonPod:
        example = example_of(watched.pipeline, watched.graph)
        key = self.derive(watched.pipeline.metadata.uid, pod.revision)
        return TritonPod(ProbeTarget(pod, watched.graph, key, example), self.prober, self.clock)

    async def _collect(self, active: Mapping[Key, Watched]) -> dict[Key, Sample | Failure]:
        """Samples of all, one collection per connection, side by side; a collector that fails is a failure of its pipelines alone."""
        groups: dict[str, dict[Key, Expected]] = {}
        found: dict[Key, Sample | Failure] = {}
        connections = [name for name in self.collectors if name]
        for key, watched in active.items():
            limits = limits_of(watched.pipeline, watched.graph, "")
            models = frozenset([*(step.model_name for step in limits.steps), *limits.gpu_steps])
            pods = {pod.name: pipeline_state.metrics_address(pod) for pod in watched.pods}
            name = watched.pipeline.spec.scaling.prometheus_ref
            if connections and name not in connections:
                found[key] = unknown(name, connections)
                continue
            groups.setdefault(name if connections else "", {})[key] = Expected(
                key[0], pods, models, float(watched.pipeline.spec.scaling.windows.slow)
            )
        answers = await asyncio.gather(
            *(self.collectors[name].collect(wanted) for name, wanted in groups.items()),
            return_exceptions=True,
        )
        for wanted, answer in zip(groups.values(), answers, strict=True):
            if isinstance(answer, BaseException):
                await self._failed(("", ""), "Collect", answer)
                answer = dict.fromkeys(
                    wanted,
                    Failure(
                        Trouble.ERROR, "metrics could not be collected; the operator's log says why"
                    ),
                )
            found |= answer
        return found

    # --- decide -----------------------------------------------------------------------------------------------------------

    def _decide(self, key: Key, watched: Watched, sample: Sample | Failure) -> None:
        now = self.clock().timestamp()
        live, pods = self._live(watched), watched.pods
        deployment = self.store.get(DEPLOYMENTS, *key)
        before = watched.memory or pipeline_state.adopted(
            loads(live.get(names.KEY_SCALING)), self._recorded_counts(watched)
        )
        before = pods_and_cpu.taken_over(
            watched, before, live, deployment, first=watched.memory is None
        )
        limits = pods_and_cpu.limits(watched, before, direct=not any(self.collectors))
        counts = watched.counts()
        decision = decide(limits, before, sample, counts, [pod.name for pod in pods], now)
        seen = pods_and_cpu.seen(watched, before, deployment, self.refusals(key), live)
        still = watched.busy or watched.backoff.wait(self.retry_seconds, now) > 0 or not pods
        # What is under way changes counts, or what they are to be, and what failed is not tried at once; the law looks again afterwards.
        waits = watched.active and (still or bool(moving(before, seen, now)))
        watched.memory = (
            pipeline_state.only_seen(before, decision.memory) if waits else decision.memory
        )
        if watched.active and not still:
            self._act(
                key,
                watched,
                {item.step: watched.memory.steps[item.step].desired for item in decision.steps},
                counts,
                before,
            )
        decision = pods_and_cpu.turn(
            watched,
            limits,
            replace(decision, memory=watched.memory),
            replace(seen, counting=watched.busy),
            sample,
            now,
        )
        for action in pods_and_cpu.news(watched.memory.history, decision.memory.history):
            self.metrics.acted(
                key, action.step, "up" if action.after > action.before else "down", "Recorded", None
            )
        watched.memory = decision.memory
        if watched.active and pods_and_cpu.unrecorded(watched.memory, live, watched.intent):
            watched.intent = pods_and_cpu.intent_of(watched.memory)
            self.enqueue(key)
        trouble = pipeline_state.trouble_of(decision, sample, pods=bool(pods))
        decision = pipeline_state.shown(decision, watched.memory, active=watched.active)
        view = View(
            decision,
            watched.pipeline.spec.scaling.mode,
            counts,
            sample.source,
            trouble,
            watched.backoff.reason,
        )
        self.metrics.decided(
            key, view, {step.name: step.model_name for step in watched.steps}, sample, now
        )
        self.metrics.sized(key, *pods_and_cpu.sizes(watched, deployment))
        if not pipeline_state.settling(watched, decision.verdict, now, trouble, sample.source):
            self._tell(key, watched, view, now)

    def _act(
        self,
        key: Key,
        watched: Watched,
        wanted: Mapping[str, int],
        counts: Mapping[str, Mapping[str, int]],
        before: Memory,
    ) -> None:
        """Start what the decision asks for, or bring pods in line that came up with another count."""
        recorded = self._recorded_counts(watched)
        moved = {step: count for step, count in wanted.items() if recorded.get(step) != count}
        astray = any(
            count != wanted[step] for step, pods in counts.items() for count in pods.values()
        )
        if not moved and not astray:
            watched.backoff = replace(watched.backoff, reason="")  # what failed is no longer wanted
            return
        if moved:
            assert watched.memory is not None
            watched.intent = pods_and_cpu.intent_of(watched.memory, wanted)
            self.enqueue(key)
        watched.action = asyncio.create_task(
            self._carry_out(key, watched, wanted, moved, before), name=f"scale {key[0]}/{key[1]}"
        )

    # --- act --------------------------------------------------------------------------------------------------------------------

    async def _carry_out(
        self,
        key: Key,
        watched: Watched,
        wanted: Mapping[str, int],
        moved: Mapping[str, int],
        before: Memory,
    ) -> None:
        """Record, change, prove; on failure back to what was."""
        try:
            if moved and not await self._recorded(watched, wanted):
                self._fail(watched, "the wanted counts could not be recorded; no pod was changed")
                watched.memory, watched.intent = before, None
                self.metrics.errors.labels(*key, "Intent").inc()
                return
            for step in watched.steps:
                if step.name in wanted:
                    last = (
                        before.steps[step.name].desired
                        if step.name in moved and step.name in before.steps
                        else None
                    )
                    await self._change(
                        key, watched, step.name, step.model_name, wanted[step.name], last
                    )
        except Exception as error:
            self._fail(
                watched,
                f"the change could not be carried out: {type(error).__name__}; the operator's log has more",
            )
            await self._failed(key, Reason.ACTUATION_FAILED.value, error)
        finally:
            self.enqueue(key)

    async def _recorded(self, watched: Watched, wanted: Mapping[str, int]) -> bool:
        """Whether the live ConfigMap holds these counts, within the time there is."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.intent_seconds
        while loop.time() < end:
            recorded = self._recorded_counts(watched)
            if all(recorded.get(step) == count for step, count in wanted.items()):
                return True
            await asyncio.sleep(INTENT_POLL_SECONDS)
        return False

    async def _change(
        self, key: Key, watched: Watched, step: str, model: str, count: int, last: int | None
    ) -> None:
        """Bring the pods to a count. ``last``: the desired count before; ``None`` where it has not changed and pods are astray."""
        targets: list[Target] = []
        for pod in watched.pods:
            known = watched.counted.get(pod.uid)
            configs = self._configs(watched, pod)
            if (
                known is not None
                and step in known.counts
                and configs is not None
                and step in configs
            ):
                targets.append(
                    Target(
                        pod.name,
                        self._control(watched, pod),
                        pipeline_state.config_with(configs[step]),
                        known.counts[step],
                    )
                )
        others = sorted({target.count for target in targets} - {count})
        if not others:
            return
        outcome = await actuate(model, watched.graph.model_name, count, targets, pace=self.pace)
        self._settle(
            key,
            watched,
            step,
            others[0] if last is None else last,
            count,
            outcome,
            takes_back=last is not None,
        )

    def _settle(
        self,
        key: Key,
        watched: Watched,
        step: str,
        before: int,
        count: int,
        outcome: Outcome,
        *,
        takes_back: bool,
    ) -> None:
        """Take in how a change ended."""
        for name, result in outcome.results.items():
            if result.ended is not Ended.GONE:
                watched.recount(name, step, result.count)
        memory = watched.memory or Memory()
        direction = "up" if count > before else "down"
        if outcome.proven:
            watched.backoff = Backoff()
            watched.memory = replace(memory, actuation=outcome.seconds or memory.actuation)
            self.metrics.acted(
                key,
                step,
                direction,
                "Proven" if outcome.seconds is not None else "Gone",
                outcome.seconds,
            )
            return
        self._fail(watched, f"{step} from {before} to {count}: {outcome.reason}")
        self.metrics.acted(key, step, direction, "Failed", None)
        self.metrics.errors.labels(*key, Reason.ACTUATION_FAILED.value).inc()
        if (
            takes_back
            and count > before
            and not any(result.ended is Ended.PROVEN for result in outcome.results.values())
        ):
            # No pod took it: the last good count is what new pods start from.
            watched.memory = pipeline_state.taken_back(
                memory, step, before, self.clock().timestamp(), outcome.reason
            )
            watched.intent = pods_and_cpu.intent_of(watched.memory)

    def _fail(self, watched: Watched, reason: str) -> None:
        watched.backoff = watched.backoff.failed(self.clock().timestamp(), reason)

    # --- tell ---------------------------------------------------------------------------------------------------------------

    def _tell(self, key: Key, watched: Watched, view: View, now: float) -> None:
        """Hand a view to the status: at once when decision, verdict or trouble changed, else at most once a minute. In between the last one
        stands: passes come for other reasons, too, and must not write every new digit."""
        said = pipeline_state.telling(view)
        if said != watched.told or now - watched.told_at >= STATUS_SECONDS:
            watched.view, watched.told, watched.told_at = view, said, now
            self.enqueue(key)

    def _live(self, watched: Watched) -> Mapping[str, str]:
        found = self.store.get(
            CONFIG_MAPS, watched.pipeline.namespace, names.live_name(watched.pipeline.name)
        )
        return (found or {}).get("data") or {}

    def _recorded_counts(self, watched: Watched) -> dict[str, int]:
        return pipeline_state.counts_in(json_object(self._live(watched).get(names.KEY_COUNTS)))
