"""Run random histories: every history must end in a state that the planner leaves alone.

Users change things, the operator is killed, upgraded and restarted, people edit objects by hand,
and pods fail.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support import builders
from tests.support.worlds import BAD, DUMB, GOOD, World
from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.planner import Plan

RENDERED: dict[str, Any] = {}
STRATEGIES = ("Auto", "Surge", "NoSurge", "Recreate")
CHANGES: tuple[dict[str, Any], ...] = (
    {"tokenizer": {"maxLength": 32}},
    {"tokenizer": {"maxLength": 64}},
    {"tokenizer": {"maxLength": None}},
    {"replicas": 2},
    {"replicas": 1},
    {"suspend": "Enabled"},
    {"suspend": "Disabled"},
    {"postprocess": {"labels": ["negative", "positive", "too many"]}},
    {"postprocess": {"labels": ["negative", "positive"]}},
    {"server": {"networkPolicy": {"mode": "Disabled"}}},
    *({"rollout": {"strategy": strategy}} for strategy in STRATEGIES),
)


class Histories(RuleBasedStateMachine):
    """The world under random events.

    The world validates every object and every status that is written against its schema.
    """

    @initialize(room=st.sampled_from([None, 1, 3]), strategy=st.sampled_from(STRATEGIES))
    def begin(self, room: int | None, strategy: str) -> None:
        self.world = World(
            builders.document(rollout={"strategy": strategy, "revisionHistoryLimit": 1}),
            room=room,
            rendered=RENDERED,
        ).started()
        self.world.verdicts[self.world.deployed] = GOOD

    @rule(change=st.sampled_from(CHANGES), verdict=st.sampled_from([GOOD, GOOD, BAD, DUMB]))
    def user(self, change: dict[str, Any], verdict: str) -> None:
        self.world.change(**change)
        wanted = self.world.think().status
        if wanted is not None and "revision" in wanted:
            self.world.verdicts.setdefault(wanted["revision"], verdict)

    @rule(writes=st.none() | st.integers(0, 7))
    def operator(self, writes: int | None) -> None:
        self.world.step(writes)

    @rule(
        length=st.integers(1, 512), writes=st.integers(1, 6), verdict=st.sampled_from([GOOD, BAD])
    )
    def killed_in_a_rollout(self, length: int, writes: int, verdict: str) -> None:
        self.user({"tokenizer": {"maxLength": length}}, verdict)
        self.world.step(writes)

    @rule(rounds=st.integers(1, 4))
    def cluster(self, rounds: int) -> None:
        for _ in range(rounds):
            before = len(self.world.serving)
            self.world.pass_time(5).control()
            self.check_surge(before)
            self.world.run_pods()

    def check_surge(self, before: int) -> None:
        """A surge takes nothing away that serves below what is wanted."""
        if ("Deployment", self.world.name) not in self.world.children:
            return
        spec = self.world.deployment["spec"]
        if spec["strategy"].get("rollingUpdate", {}).get("maxUnavailable") == 0:
            assert len(self.world.serving) >= min(before, spec["replicas"])

    @rule(seconds=st.sampled_from([20.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(loader=st.sampled_from(["a", "b"]), may_roll=st.booleans())
    def release(self, loader: str, may_roll: bool) -> None:
        self.world.options = builders.options(
            loader_image=f"registry.example/triton-pipelines:{loader}"
        )
        self.world.may_roll = may_roll

    @precondition(lambda self: self.world.pods)
    @rule(index=st.integers(0, 9))
    def pod_dies(self, index: int) -> None:
        del self.world.pods[index % len(self.world.pods)]

    @precondition(lambda self: self.world.children)
    @rule(index=st.integers(0, 20))
    def child_is_deleted(self, index: int) -> None:
        revision = names.revision_name(self.world.name, "")
        meddled = [
            (kind, name)
            for kind, name in self.world.children
            if kind != "ConfigMap" or not name.startswith(revision) or name.endswith("live")
        ]
        if meddled:
            del self.world.children[sorted(meddled)[index % len(meddled)]]

    @precondition(lambda self: ("Deployment", self.world.name) in self.world.children)
    @rule(replicas=st.integers(0, 3))
    def deployment_is_scaled(self, replicas: int) -> None:
        self.world.deployment["spec"]["replicas"] = replicas
        self.world.deployment["metadata"]["generation"] += 1

    @invariant()
    def secrets_have_their_trace(self) -> None:
        """A revision's ConfigMap is the only trace by which its Secret is found again."""
        kept = {name for kind, name in self.world.children if kind == "ConfigMap"}
        assert set(self.world.secrets) <= kept

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.may_roll = True
        world.settle(rounds=400, seconds=15.0)
        left = world.think()
        assert left == Plan(requeue_after=left.requeue_after), (
            "a second plan on its own result writes something"
        )
        self.check_end(world)

    def check_end(self, world: World) -> None:
        reported, verdict = world.reasons(), world.verdicts.get(world.status["revision"], GOOD)
        suspended = world.document["spec"].get("suspend") == "Enabled"
        replicas = 0 if suspended else world.document["spec"].get("replicas", 1)
        if reported["Ready"] == "False InvalidSpec":
            return
        if suspended:
            assert reported == {"Ready": "True Suspended", "Available": "False Suspended"}
            assert world.pods == []
            return
        assert len(world.serving) <= replicas + 1
        serving = {pod.revision for pod in world.serving}
        if verdict == GOOD and (world.room is None or replicas <= world.room):
            surge_without_room = (
                world.room is not None and world.document["spec"]["rollout"]["strategy"] == "Surge"
            )
            if not surge_without_room:
                assert reported["Ready"] == "True Succeeded", (reported, world.condition("Ready"))
                assert serving == {world.status["revision"]}
                assert len(world.serving) == replicas
                assert (
                    world.status["observedGeneration"] == world.document["metadata"]["generation"]
                )
        elif verdict == BAD:
            assert reported["Ready"].startswith("False")
            assert world.status["revision"] not in serving
        if reported["Ready"] == "False RolledBack":
            assert serving <= {world.deployed}
            assert world.deployed == world.state.rollout.restored != world.status["revision"]


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
