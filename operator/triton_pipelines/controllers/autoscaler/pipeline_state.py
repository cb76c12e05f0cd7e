"""One scaled pipeline between the ticks of the scaling loop: what is known of it, and what follows from that. No I/O."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from google.protobuf import json_format

from triton_pipelines.api import names
from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.loadplan import LoadPlan
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.autoscaling.backoff import ScalingBackoff
from triton_pipelines.autoscaling.metrics.collector import unused_connection_note
from triton_pipelines.autoscaling.metrics.connection import DEFAULT
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    PipelineSample,
)
from triton_pipelines.autoscaling.types import (
    REASON_MAX,
    CountChange,
    ScalingDecision,
    ScalingState,
    StepState,
    Verdict,
    truncate,
)
from triton_pipelines.compile.graph.graph import Graph, Step
from triton_pipelines.compile.render.model_config import parse as parse_config
from triton_pipelines.compile.render.model_config import with_count
from triton_pipelines.controllers.handover import Intent, View, metrics_in, scaled_steps
from triton_pipelines.controllers.pipeline.pods_and_cpu import bounds_of
from triton_pipelines.controllers.pipeline.snapshot import Object, Pod

HISTORY_MAX: Final = 5
# Rates need two looks; so long (seconds) a process that has just started need not say that it knows nothing yet.
SETTLING_SECONDS: Final = 30.0
# Windows that a verdict needs until a process that has just started may contradict with it what its predecessor said.
_SETTLING_WINDOWS: Final = 1.5
_CALM: Final = frozenset({Verdict.UNKNOWN, Verdict.IDLE, Verdict.BALANCED, Verdict.OVERPROVISIONED})


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts that a pod reported: when (Unix seconds), and of which start of its server."""

    at: float
    start: str
    counts: Mapping[str, int]


@dataclass(slots=True)
class Watched:
    """One scaled pipeline on its way through the ticks; changed in place, since an action under way looks at it, too.

    ``since``: when it was first seen (Unix seconds), ``said`` … ``said_source``: what its status told of then (:func:`said_in`); ``pods``: those that serve, ``everyone``: all that are there; ``view``: what the status is to say; ``told``: what the last status
    pass was made due for, and ``told_at`` when.
    """

    pipeline: InferencePipeline
    graph: Graph
    since: float
    said: str = ""
    said_counts: Mapping[str, int] = field(default_factory=dict)
    said_trouble: str = ""
    said_source: str = ""
    memory: ScalingState | None = None
    pods: tuple[Pod, ...] = ()
    everyone: tuple[Pod, ...] = ()
    counted: dict[str, Counted] = field(default_factory=dict)
    unanswered: dict[str, tuple[str, float]] = field(
        default_factory=dict
    )  # start of its server, and when it was asked
    action: asyncio.Task[None] | None = None
    backoff: ScalingBackoff = field(default_factory=ScalingBackoff)
    intent: Intent | None = None
    view: View | None = None
    told: tuple[Any, ...] = ()
    told_at: float = 0.0

    def take(self, pipeline: InferencePipeline, graph: Graph) -> None:
        """Go by this spec from now on. What it no longer gives to scaling is no longer intended either: who gives it back later has
        changed it in between."""
        self.pipeline, self.graph = pipeline, graph
        if self.intent is not None:
            owned = bounds_of(pipeline, graph)
            self.intent = replace(
                self.intent,
                pods=self.intent.pods if owned.pods else None,
                cpu=self.intent.cpu if owned.cpu else None,
            )

    @property
    def active(self) -> bool:
        """Whether counts are changed, and not just recommended."""
        return self.pipeline.spec.scaling.mode is ScalingMode.ACTIVE

    @property
    def steps(self) -> list[Step]:
        """The steps whose counts are looked after; none in mode Disabled."""
        return (
            []
            if self.pipeline.spec.scaling.mode is ScalingMode.DISABLED
            else scaled_steps(self.graph)
        )

    @property
    def busy(self) -> bool:
        """Whether a change is under way."""
        return self.action is not None and not self.action.done()

    @property
    def revision(self) -> str:
        """The revision that most pods run; of as many the first by name."""
        revisions = [pod.revision for pod in self.pods]
        return min(set(revisions), key=lambda one: (-revisions.count(one), one), default="")

    def counts(self) -> dict[str, dict[str, int]]:
        """Step → pod → instances, as far as pods have reported them."""
        result: dict[str, dict[str, int]] = {}
        for step in self.steps:
            known = {
                pod.name: self.counted[pod.uid].counts
                for pod in self.pods
                if pod.uid in self.counted
            }
            result[step.name] = {
                pod: counts[step.name] for pod, counts in known.items() if step.name in counts
            }
        return result

    def recount(self, name: str, step: str, count: int) -> None:
        """Take in a pod's count after a change."""
        for pod in self.pods:
            if pod.name == name and (known := self.counted.get(pod.uid)) is not None:
                self.counted[pod.uid] = replace(known, counts={**known.counts, step: count})

    def forget_gone(self) -> None:
        """Drop what is known of pods that are no longer there."""
        there = {pod.uid for pod in self.pods}
        self.counted = {uid: known for uid, known in self.counted.items() if uid in there}
        self.unanswered = {uid: known for uid, known in self.unanswered.items() if uid in there}


def start_of(pod: Pod) -> str:
    """Which start of the pod's server this is: its counts are those of the files again after another one."""
    status = pod.container(names.CONTAINER_SERVER)
    return f"{status.get('containerID', '')}/{status.get('restartCount', 0)}"


def metrics_address(pod: Pod) -> str:
    """``host:port`` of the pod's metrics page."""
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"{host}:{names.PORT_METRICS}"


def configs_of(record: Object | None) -> Mapping[str, str] | None:
    """Step → config.pbtxt that a revision's pods were made of, out of its ConfigMap; ``None`` where that is not there."""
    data = (record or {}).get("data") or {}
    try:
        plan = LoadPlan.model_validate_json(data[names.KEY_PLAN])
        files = {item.path: item.key for item in plan.files}
        return {count.step: data[files[count.path]] for count in plan.counts}
    except (KeyError, ValueError):
        return None


def config_with(text: str) -> Callable[[int], str]:
    """The revision's own config as JSON with another count, and nothing else changed."""
    parsed = parse_config(text)
    return lambda count: json_format.MessageToJson(
        with_count(parsed, count), preserving_proto_field_name=True
    )


def counts_in(recorded: Mapping[str, Any]) -> dict[str, int]:
    """The counts among what a ConfigMap holds that anybody may have edited."""
    return {
        step: count
        for step, count in recorded.items()
        if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 2**31
    }


def adopted(memory: ScalingState, recorded: Mapping[str, int]) -> ScalingState:
    """Memory of an earlier process; the counts that are recorded hold, whoever wrote them, even where all else is lost."""
    steps = {
        step: replace(memory.steps.get(step) or StepState(desired=count), desired=count)
        for step, count in recorded.items()
    }
    return replace(memory, steps={**memory.steps, **steps})


def only_seen(before: ScalingState, after: ScalingState) -> ScalingState:
    """What a decision that is not carried out has seen; the counts and what was done stay as they were."""
    steps = {
        name: replace(
            mine,
            service=new.service,
            demands=new.demands,
            stalled_since=new.stalled_since,
            cap=new.cap,
        )
        if (new := after.steps.get(name)) is not None
        else mine
        for name, mine in before.steps.items()
    }
    return replace(
        before,
        steps={**after.steps, **steps},
        last_fresh=after.last_fresh,
        outage_since=after.outage_since,
    )


def taken_back(
    memory: ScalingState, step: str, count: int, now: float, reason: str
) -> ScalingState:
    """A growth that no pod took: the desired count is the old one again, and the history says why."""
    mine = memory.steps.get(step)
    if mine is None or mine.desired == count:
        return memory
    action = CountChange(
        now, step, mine.desired, count, truncate(f"taken back: {reason}", REASON_MAX)
    )
    # What was never in force proves nothing: the knee would find that it bought nothing, and hold the next one.
    growth = mine.growth if mine.growth is not None and mine.growth.after <= count else None
    back = replace(mine, desired=count, growth=growth)
    return replace(
        memory, steps={**memory.steps, step: back}, history=(action, *memory.history)[:HISTORY_MAX]
    )


def shown(decision: ScalingDecision, memory: ScalingState, *, active: bool) -> ScalingDecision:
    """The decision as it came out: the counts and the history that hold, whether or not it could be acted upon."""
    if not active:
        return decision
    steps = tuple(
        replace(item, count=memory.steps[item.step].desired) if item.step in memory.steps else item
        for item in decision.steps
    )
    return replace(decision, steps=steps, state=memory)


def trouble_of(decision: ScalingDecision, *, pods: bool) -> str:
    """Return why metrics are not usable, as a reason; "" where they are."""
    if not pods:
        return Reason.NO_PODS.value
    return decision.problem.value if decision.problem is not None else ""


def read_directly(
    pipeline: InferencePipeline, sample: PipelineSample | MetricsFailure
) -> PipelineSample | MetricsFailure:
    """What was read from the pods where the operator has no connection; its source says so where the pipeline names one."""
    name = pipeline.spec.scaling.prometheus_ref
    if not sample.source or name == DEFAULT:
        return sample
    return replace(sample, source=f"{sample.source}{unused_connection_note(name)}")


def said_in(status: Mapping[str, Any]) -> tuple[str, dict[str, int], str, str]:
    """What a status tells of: the verdict, "" none; its instances by step; why metrics are not usable, "" where they are; where they are
    read from, "" where that is not said."""
    counts = {str(item.get("name")): item.get("instances", 0) for item in status.get("steps") or ()}
    return str((status.get("scaling") or {}).get("bottleneck", "")), counts, *metrics_in(status)


def settling(
    watched: Watched, verdict: Verdict, now: float, trouble: str = "", source: str = ""
) -> bool:
    """Whether nothing is to be said yet: the start of a process is no change, and its first rates are of a few seconds.

    Until its windows are full it does not contradict one calm verdict with another, unless counts are news; and at first it does not
    say that it knows nothing, or that metrics are not usable. What the status says of metrics does not stand where they come from
    elsewhere now, or where a trouble is over: it would name a connection that nobody asks. ``trouble``, ``source``: as in :class:`View`.
    """
    if watched.view is not None or watched.intent is not None or verdict not in _CALM:
        return False
    moved = bool(source and watched.said_source) and source != watched.said_source
    if moved or (watched.said_trouble and not trouble):
        return False
    if watched.said not in _CALM:
        return verdict is Verdict.UNKNOWN and now - watched.since < SETTLING_SECONDS
    if any(
        pods and min(pods.values()) != watched.said_counts.get(step)
        for step, pods in watched.counts().items()
    ):
        return False
    full = max(SETTLING_SECONDS, _SETTLING_WINDOWS * watched.pipeline.spec.scaling.windows.slow)
    return verdict.value != watched.said and now - watched.since < (
        SETTLING_SECONDS if trouble else full
    )


def telling(view: View) -> tuple[Any, ...]:
    """What of a view is worth a status pass at once, when it changes."""
    decision = view.decision
    return (
        view.mode,
        decision.verdict,
        decision.state.history[:1],
        tuple((item.step, item.count, item.verdict) for item in decision.steps),
        view.trouble,
        view.source,
        view.failed,
        decision.limited_subjects,
        json.dumps(view.counts, sort_keys=True),
    )
