"""The scaling loop: samples, decisions, and changes of instance counts, for all pipelines of this operator.

One tick: which pipelines are scaled and what their pods are; one collection for all; a decision each; at most one change in flight
per pipeline. Intent first: the next reconcile pass records the wanted counts, and only what is recorded is carried to the pods; a pod
that starts meanwhile starts from it. Nothing here writes to the API server.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import structlog
from google.protobuf import json_format

from triton_pipelines.api import names
from triton_pipelines.api.loadplan import LoadPlan
from triton_pipelines.api.parse import parse
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.app.podcontrol import TritonPod
from triton_pipelines.app.scalingmetrics import ScalingMetrics
from triton_pipelines.cluster.resources import CONFIG_MAPS, INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.store import Store
from triton_pipelines.metrics.samples import Expected, Failure, Sample
from triton_pipelines.pipeline import Graph, Options, build
from triton_pipelines.pipeline.example import example_of
from triton_pipelines.reconcile.observed import Pod, json_object
from triton_pipelines.reconcile.plan import hands_off
from triton_pipelines.reconcile.reconciler import Prober, ProbeTarget
from triton_pipelines.reconcile.scaling import Intent, View, limits_of, scaled_steps
from triton_pipelines.render.modelconfig import parse as parse_config
from triton_pipelines.render.modelconfig import with_count
from triton_pipelines.scaling.actuator import Ended, Outcome, PodGoneError, PodRefusedError, PodSilentError, Target, actuate
from triton_pipelines.scaling.backoff import Backoff
from triton_pipelines.scaling.decide import decide
from triton_pipelines.scaling.memory import dumps, loads
from triton_pipelines.scaling.types import Action, Decision, Memory, Verdict

Key = tuple[str, str]
_log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 2.0
# A pod's count is asked again after this long (seconds), and whenever its server started anew: nobody else should change it.
RECOUNT_SECONDS: Final = 30.0
# How long a change waits for its intent to be recorded; without an API server nothing is changed.
INTENT_SECONDS: Final = 15.0
INTENT_POLL_SECONDS: Final = 0.1
STATUS_SECONDS: Final = 60.0
SETTLING_SECONDS: Final = 30.0


class Collector(Protocol):
    """Where samples come from: Prometheus, or the pods themselves."""

    async def collect(self, wanted: Mapping[Key, Expected]) -> Mapping[Key, Sample | Failure]:
        """One collection for all pipelines; a pipeline without a usable sample gets a failure, never a zero."""
        ...


@dataclass(frozen=True, slots=True)
class Counted:
    """A count that a pod reported: when (Unix seconds), and of which start of its server."""

    at: float
    start: str
    counts: Mapping[str, int]


@dataclass(slots=True)
class Watched:
    """One scaled pipeline on its way through the ticks."""

    pipeline: InferencePipeline
    graph: Graph
    generation: tuple[str, int]
    memory: Memory | None = None
    pods: tuple[Pod, ...] = ()
    counted: dict[str, Counted] = field(default_factory=dict)
    action: asyncio.Task[None] | None = None
    backoff: Backoff = field(default_factory=Backoff)
    intent: Intent | None = None
    view: View | None = None
    told: tuple[Any, ...] = ()
    told_at: float = 0.0
    since: float = 0.0


@dataclass(slots=True)
class Autoscaler:
    """Scales every pipeline whose spec allows it. ``run`` ends only when cancelled.

    ``collectors``: by name of the connection; the one named ``""`` reads the pods directly and serves where no other is configured.
    ``enqueue`` makes a reconcile pass due; ``clock`` gives UTC now.
    """

    store: Store
    options: Options
    derive: Callable[[str, str], str]
    prober: Prober
    collectors: Mapping[str, Collector]
    clock: Callable[[], dt.datetime]
    enqueue: Callable[[Key], None]
    metrics: ScalingMetrics
    tick_seconds: float = TICK_SECONDS
    _watched: dict[Key, Watched] = field(default_factory=dict)

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
                    self.metrics.errors.labels("", "", "Tick").inc()
                    await _log.aerror("scaling tick failed", error=str(error), exc_info=error)
                await asyncio.sleep(max(0.0, due - loop.time()))
        finally:
            for watched in self._watched.values():
                if watched.action is not None:
                    watched.action.cancel()

    async def tick(self) -> None:
        """One round over all pipelines."""
        self._observe()
        active = {key: watched for key, watched in self._watched.items() if watched.pods}
        await asyncio.gather(*(self._count(watched) for watched in active.values()))
        samples = await self._collect(active)
        for key, watched in active.items():
            sample = samples.get(key)
            if sample is not None:
                self._decide(key, watched, sample)

    def _observe(self) -> None:
        """Which pipelines are scaled, and their ready pods."""
        seen: set[Key] = set()
        for key in list(self.store.pipelines()):
            raw = self.store.get(INFERENCE_PIPELINES, *key)
            if raw is None or hands_off(raw):
                continue
            metadata = raw["metadata"]
            generation = (str(metadata.get("uid")), int(metadata.get("generation") or 0))
            watched = self._watched.get(key)
            if watched is None or watched.generation != generation:
                watched = self._new(raw, generation, watched)
                if watched is None:
                    continue
                self._watched[key] = watched
            if watched.pipeline.spec.scaling.mode is ScalingMode.DISABLED or not scaled_steps(watched.graph):
                continue
            seen.add(key)
            pods = [Pod.of(item) for item in self.store.children(PODS, key)]
            watched.pods = tuple(pod for pod in pods if pod.serving and pod.server_running and self._configs(watched, pod) is not None)
            watched.counted = {uid: known for uid, known in watched.counted.items() if uid in {pod.uid for pod in watched.pods}}
        for key in set(self._watched) - seen:
            self.metrics.forget(key)
            gone = self._watched.pop(key)
            if gone.action is not None:
                gone.action.cancel()

    def _new(self, raw: Mapping[str, Any], generation: tuple[str, int], before: Watched | None) -> Watched | None:
        """A pipeline's new spec; what was decided under the old one goes on. ``None`` for one that is not valid."""
        pipeline, findings = parse(raw)
        if pipeline is None or findings:
            return before
        graph = build(pipeline, self.options)
        if before is not None and before.generation[0] == generation[0]:
            return replace(before, pipeline=pipeline, graph=graph, generation=generation)
        return Watched(pipeline, graph, generation, since=self.clock().timestamp())

    def _configs(self, watched: Watched, pod: Pod) -> Mapping[str, str] | None:
        """Step → config.pbtxt that this pod's revision was made of; ``None`` where its ConfigMap is not there."""
        name = names.revision_name(watched.pipeline.name, pod.revision)
        record = self.store.get(CONFIG_MAPS, watched.pipeline.namespace, name)
        data = (record or {}).get("data") or {}
        try:
            plan = LoadPlan.model_validate_json(data[names.KEY_PLAN])
            files = {item.path: item.key for item in plan.files}
            return {count.step: data[files[count.path]] for count in plan.counts}
        except (KeyError, ValueError):
            return None

    async def _count(self, watched: Watched) -> None:
        """Ask the pods whose counts are not known, or not of late."""
        now = self.clock().timestamp()
        due = []
        for pod in watched.pods:
            known = watched.counted.get(pod.uid)
            if known is None or known.start != _start(pod) or now - known.at >= RECOUNT_SECONDS:
                due.append(pod)
        counts = await asyncio.gather(*(self._ask_counts(watched, pod) for pod in due))
        for pod, found in zip(due, counts, strict=True):
            if found is not None:
                watched.counted[pod.uid] = Counted(now, _start(pod), found)

    async def _ask_counts(self, watched: Watched, pod: Pod) -> Mapping[str, int] | None:
        control = self._control(watched, pod)
        try:
            return {step.name: await control.count(step.model_name) for step in scaled_steps(watched.graph)}
        except (PodGoneError, PodRefusedError, PodSilentError):
            return None

    def _control(self, watched: Watched, pod: Pod) -> TritonPod:
        example = example_of(watched.pipeline, watched.graph)
        key = self.derive(watched.pipeline.metadata.uid, pod.revision)
        return TritonPod(ProbeTarget(pod, watched.graph, key, example), self.prober, self.clock)

    async def _collect(self, active: Mapping[Key, Watched]) -> dict[Key, Sample | Failure]:
        """Samples of all, one collection per connection, side by side."""
        groups: dict[str, dict[Key, Expected]] = {}
        for key, watched in active.items():
            limits = limits_of(watched.pipeline, watched.graph, "")
            models = frozenset([*(step.model_name for step in limits.steps), *limits.gpu_steps])
            pods = {pod.name: _metrics_address(pod) for pod in watched.pods}
            name = watched.pipeline.spec.scaling.prometheus_ref
            chosen = name if name in self.collectors else ""
            groups.setdefault(chosen, {})[key] = Expected(key[0], pods, models, float(watched.pipeline.spec.scaling.windows.slow))
        answers = await asyncio.gather(*(self.collectors[name].collect(wanted) for name, wanted in groups.items()))
        return {key: sample for answer in answers for key, sample in answer.items()}

    # --- decide -----------------------------------------------------------------------------------------------------------

    def _decide(self, key: Key, watched: Watched, sample: Sample | Failure) -> None:
        now = self.clock().timestamp()
        pods = watched.pods
        live = self._live(watched)
        if watched.memory is None:
            watched.memory = _adopted(loads(live.get(names.KEY_SCALING)), json_object(live.get(names.KEY_COUNTS)))
        applied = next((status.get("resources") for pod in pods if (status := pod.container(names.CONTAINER_SERVER))), None)
        limits = limits_of(watched.pipeline, watched.graph, pods[0].revision, applied)
        counts = {step.name: {pod.name: known.counts[step.name] for pod in pods if (known := watched.counted.get(pod.uid))} for step in limits.steps}
        decision = decide(limits, watched.memory, sample, counts, [pod.name for pod in pods], now)
        trouble = sample.trouble.value if isinstance(sample, Failure) else "" if decision.fresh else "MetricsPartial"
        source = sample.source if isinstance(sample, Sample) else ""
        active = watched.pipeline.spec.scaling.mode is ScalingMode.ACTIVE
        busy = watched.action is not None and not watched.action.done()
        view = View(decision, watched.pipeline.spec.scaling.mode, counts, source, trouble, watched.backoff.reason)
        # Rates need two looks: a process that has just started says nothing rather than "unknown", so that its start is not a change.
        if decision.verdict is not Verdict.UNKNOWN or watched.view is not None or now - watched.since >= SETTLING_SECONDS:
            watched.view = view
        self.metrics.decided(key, view, sample, now)
        if not active:
            watched.memory = decision.memory
        elif busy:
            # What is under way changes counts; the law looks again when it has ended.
            pass
        elif watched.backoff.wait(8.0, now) <= 0:
            self._act(key, watched, decision, counts)
        if watched.view is not None:
            self._tell(key, watched, watched.view, now)

    def _act(self, key: Key, watched: Watched, decision: Decision, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Start what the decision asks for, or bring pods in line that came up with another count."""
        before = watched.memory or Memory()
        watched.memory = decision.memory
        wanted = {item.step: item.count for item in decision.steps}
        recorded = json_object(self._live(watched).get(names.KEY_COUNTS))
        moved = {step: count for step, count in wanted.items() if recorded.get(step) != count}
        astray = {step: wanted[step] for step, pods in counts.items() if any(count != wanted[step] for count in pods.values())}
        if not moved and not astray:
            return
        if moved:
            watched.intent = Intent(wanted, dumps(decision.memory))
            self.enqueue(key)
        watched.action = asyncio.create_task(self._carry_out(key, watched, wanted, moved, before), name=f"scale {key[0]}/{key[1]}")

    async def _carry_out(self, key: Key, watched: Watched, wanted: Mapping[str, int], moved: Mapping[str, int], before: Memory) -> None:
        """Record, change, prove; on failure back to what was."""
        try:
            if moved and not await self._recorded(watched, wanted):
                watched.backoff = watched.backoff.failed(self.clock().timestamp(), "the wanted counts could not be recorded; no pod was changed")
                watched.memory = before
                watched.intent = None
                self.metrics.errors.labels(*key, "Intent").inc()
                return
            for step in scaled_steps(watched.graph):
                if step.name in wanted:
                    await self._change(key, watched, step.name, step.model_name, wanted[step.name])
        finally:
            self.enqueue(key)

    async def _recorded(self, watched: Watched, wanted: Mapping[str, int]) -> bool:
        """Whether the live ConfigMap holds these counts, within the time there is."""
        loop = asyncio.get_running_loop()
        end = loop.time() + INTENT_SECONDS
        while loop.time() < end:
            recorded = json_object(self._live(watched).get(names.KEY_COUNTS))
            if all(recorded.get(step) == count for step, count in wanted.items()):
                return True
            await asyncio.sleep(INTENT_POLL_SECONDS)
        return False

    async def _change(self, key: Key, watched: Watched, step: str, model: str, count: int) -> None:
        targets: list[Target] = []
        for pod in watched.pods:
            known = watched.counted.get(pod.uid)
            configs = self._configs(watched, pod)
            if known is not None and configs is not None and step in configs:
                targets.append(Target(pod.name, self._control(watched, pod), _config(configs[step]), known.counts.get(step, count)))
        counts = sorted({target.count for target in targets} - {count})
        if not counts:
            return
        outcome = await actuate(model, watched.graph.model_name, count, targets)
        self._settle(key, watched, step, counts[0], count, outcome)

    def _settle(self, key: Key, watched: Watched, step: str, before: int, count: int, outcome: Outcome) -> None:
        """Take in how a change ended."""
        now = self.clock().timestamp()
        by_name = {pod.name: pod for pod in watched.pods}
        for name, result in outcome.results.items():
            pod = by_name.get(name)
            known = watched.counted.get(pod.uid) if pod is not None else None
            if pod is not None and known is not None and result.ended is not Ended.GONE:
                watched.counted[pod.uid] = replace(known, counts={**known.counts, step: result.count})
        memory = watched.memory or Memory()
        direction = "up" if count > before else "down"
        if outcome.proven:
            watched.backoff = Backoff()
            watched.memory = replace(memory, actuation=outcome.seconds or memory.actuation)
            self.metrics.acted(key, step, direction, "Proven", outcome.seconds)
            return
        watched.backoff = watched.backoff.failed(now, f"{step} from {before} to {count}: {outcome.reason}")
        self.metrics.acted(key, step, direction, "Failed", None)
        if count > before and all(result.ended is not Ended.PROVEN or result.seconds == 0.0 for result in outcome.results.values()):
            # No pod took it: the last good count is what new pods start from.
            watched.memory = _taken_back(memory, step, before, now, outcome.reason)
            wanted = {name: mine.desired for name, mine in watched.memory.steps.items()}
            watched.intent = Intent(wanted, dumps(watched.memory))

    # --- tell ---------------------------------------------------------------------------------------------------------------

    def _tell(self, key: Key, watched: Watched, view: View, now: float) -> None:
        """Make a status pass due: at once when decision, verdict or trouble changed, else at most once a minute."""
        decision = view.decision
        said = (
            decision.verdict,
            tuple((item.step, item.count, item.verdict) for item in decision.steps),
            view.trouble,
            view.failed,
            bool(decision.limited),
            json.dumps(view.counts, sort_keys=True),
        )
        if said != watched.told or now - watched.told_at >= STATUS_SECONDS:
            watched.told, watched.told_at = said, now
            self.enqueue(key)

    def _live(self, watched: Watched) -> Mapping[str, str]:
        found = self.store.get(CONFIG_MAPS, watched.pipeline.namespace, names.live_name(watched.pipeline.name))
        return (found or {}).get("data") or {}


def _start(pod: Pod) -> str:
    """Which start of the pod's server this is."""
    status = pod.container(names.CONTAINER_SERVER)
    return f"{status.get('containerID', '')}/{status.get('restartCount', 0)}"


def _metrics_address(pod: Pod) -> str:
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"{host}:{names.PORT_METRICS}"


def _config(text: str) -> Callable[[int], str]:
    """The revision's own config as JSON with another count, and nothing else changed."""
    parsed = parse_config(text)
    return lambda count: json_format.MessageToJson(with_count(parsed, count), preserving_proto_field_name=True)


def _adopted(memory: Memory, recorded: Mapping[str, Any]) -> Memory:
    """Memory of an earlier process; the counts that are recorded hold, whoever wrote them."""
    steps = {name: replace(step, desired=recorded[name]) if isinstance(recorded.get(name), int) else step for name, step in memory.steps.items()}
    return replace(memory, steps=steps)


def _taken_back(memory: Memory, step: str, count: int, now: float, reason: str) -> Memory:
    """A growth that no pod took: the desired count is the old one again, and the history says why."""
    mine = memory.steps.get(step)
    if mine is None:
        return memory
    action = Action(now, step, mine.desired, count, f"taken back: {reason}"[:256])
    return replace(memory, steps={**memory.steps, step: replace(mine, desired=count)}, history=(action, *memory.history)[:5])
