"""Test outputs of another type, shape or number of rows than declared.

They keep a new revision from serving, and are a warning on a revision that serves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.support import builders
from tests.support.worlds import World
from triton_pipelines.api.loadplan import LoadFinding, LoadReason, LoadReport
from triton_pipelines.controllers.pipeline.output_mismatch import PATH, PREFIX
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

WIDE = "output RAW is FP64, declared FP32 (produced by spec.model)"
FLAT = "output RAW has shape [2], declared [-1, 2] (produced by spec.model)"


@dataclass
class Answering(World):
    """A world whose pods return other outputs than declared."""

    mismatch: str = ""
    """Mismatch of all pods."""
    of: dict[str, str] = field(default_factory=dict)
    """Mismatch of the pods of a revision, by revision."""
    broken: str = ""
    """Why inferences fail in all pods."""
    silent: bool = False
    """Whether no pod can be probed."""
    findings: tuple[LoadFinding, ...] = ()
    """Findings of the loader in all pods."""

    def observed(self) -> Snapshot:
        """What the operator sees."""
        seen = super().observed()
        revisions = {pod.uid: pod.revision for pod in seen.pods}
        for pod in seen.pods if self.findings else ():
            report = LoadReport(ok=True, revision=pod.revision, findings=self.findings)
            for status in pod.raw["status"].get("initContainerStatuses") or ():
                if (ended := status["state"].get("terminated")) is not None:
                    ended["message"] = report.to_json()
        probes = {
            uid: replace(
                probe,
                mismatch=self.of.get(revisions[uid], self.mismatch),
                inference_error=self.broken,
            )
            for uid, probe in seen.probes.items()
        }
        return replace(seen, probes={} if self.silent else probes)

    @property
    def doubts(self) -> list[str]:
        """Warnings of mismatches."""
        return [
            item["message"].removeprefix(PREFIX)
            for item in self.status.get("warnings", [])
            if item["path"] == PATH
        ]


def test_a_pipeline_whose_first_revision_answers_so_does_not_become_ready() -> None:
    world = Answering(mismatch=WIDE)
    world.settle()
    assert world.reasons()["Ready"] == "False InferenceFailed"
    assert WIDE in world.condition("Ready")["message"]
    assert world.reasons()["Available"] == "False InferenceFailed"
    assert not world.doubts


def test_a_revision_that_served_before_a_look_saw_it_keeps_serving_with_a_warning() -> None:
    """As after an upgrade of the operator to a release that looks closer."""
    world = Answering()
    world.settle()
    world.mismatch = WIDE
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.reasons()["Available"] == "True Serving"
    assert world.doubts == [WIDE]
    world.mismatch = ""
    world.settle()
    assert not world.doubts


def test_what_a_pod_answers_wrongly_beside_is_no_warning() -> None:
    world = Answering()
    world.settle()
    world.mismatch = WIDE
    world.settle()
    world.mismatch, world.broken = (
        "",
        "output RAW holds NaN",
    )  # the worst fault is what a look tells
    world.settle()
    assert world.reasons()["Ready"] == "False InferenceFailed"
    assert "NaN" in world.condition("Ready")["message"]


def test_a_later_revision_serves_only_without_new_output_mismatches() -> None:
    world = Answering()
    world.settle()
    world.mismatch = WIDE
    world.settle()
    first = world.deployed
    world.change(model={"dynamicBatching": {"mode": "Disabled"}})
    world.settle()
    second = world.deployed
    assert second != first
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.doubts == [WIDE]
    world.change(model={"dynamicBatching": {"mode": "Enabled", "maxQueueDelayMicroseconds": 7000}})
    world.of[world.step().status["revision"]] = FLAT  # type: ignore[index]
    world.settle()
    assert world.reasons()["Ready"] == "False InferenceFailed"
    assert FLAT in world.condition("Ready")["message"]


def test_a_known_mismatch_is_kept_although_the_status_has_no_room_for_its_warning() -> None:
    world = Answering(document=builders.document(rollout={"strategy": "Recreate"}))
    world.settle()
    world.findings = tuple(
        LoadFinding(
            field=f"spec.steps[{number}]",
            reason=LoadReason.ANSWERS_NOT_COMPARED,
            message="5 GiB are not run here",
        )
        for number in range(25)
    )
    world.mismatch = WIDE
    world.settle()
    assert (len(world.status["warnings"]), world.doubts) == (20, [])
    assert world.state.warnings.mismatches == (WIDE,)
    first = world.deployed
    world.change(model={"dynamicBatching": {"mode": "Disabled"}})
    world.settle()
    assert world.deployed != first, "its pods are gone before the new ones are probed"
    assert world.reasons()["Ready"] == "True Succeeded"


def test_the_warning_outlives_pods_that_are_not_asked_yet_and_a_lost_state() -> None:
    world = Answering(document=builders.document(replicas=1))
    world.settle()
    world.mismatch = WIDE
    world.settle()
    world.silent = True
    world.settle()
    assert world.doubts == [WIDE]
    del world.children[
        "ConfigMap",
        next(
            name for kind, name in world.children if kind == "ConfigMap" and name.endswith("-live")
        ),
    ]
    world.silent = False
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.doubts == [WIDE]
