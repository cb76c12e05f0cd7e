"""Histories of a pipeline's status, as GitOps tools see them.

The operator's own planner writes the status.

The planner is the real one; pods and the Deployment's verdict are what this module says they are.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from tests.support import builders
from tests.support.copies import copied
from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.planner import Context, plan
from triton_pipelines.controllers.pipeline.snapshot import Pod, Probe, Snapshot

NOW = dt.datetime(2026, 1, 1, 12, 0, tzinfo=dt.UTC)


def pod(revision: str, name: str = "pod", *, ready: bool = True) -> dict[str, Any]:
    """A pod of a revision; one that is not ready runs its server and loads."""
    return {
        "metadata": {
            "name": f"{name}-{revision}",
            "uid": f"uid-{name}-{revision}",
            "labels": {names.LABEL_REVISION: revision},
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
            "containerStatuses": [
                {"name": names.CONTAINER_SERVER, "ready": ready, "state": {"running": {}}}
            ],
        },
    }


class Story:
    """One pipeline and what the operator has made of it so far."""

    def __init__(self, **spec: Any) -> None:
        self.object: dict[str, Any] = builders.document(**spec)
        self.object["metadata"]["generation"] = 1
        self.children: dict[tuple[str, str], dict[str, Any]] = {}

    @property
    def revision(self) -> str:
        """The revision that the latest spec asks for, as the status says."""
        return str(self.object["status"]["revision"])

    def change(self, **spec: Any) -> Story:
        """The user changes the spec: a new generation, the status is as it was."""
        self.object = builders.merge(self.object, {"spec": spec})
        self.object["metadata"]["generation"] += 1
        return self

    def deadline(self) -> Story:
        """The Deployment says that it made no progress in time."""
        self.children["Deployment", self.object["metadata"]["name"]]["status"] = {
            "observedGeneration": 1,
            "conditions": [
                {
                    "type": "Progressing",
                    "status": "False",
                    "reason": "ProgressDeadlineExceeded",
                    "message": "no progress",
                }
            ],
        }
        return self

    def step(self, pods: Sequence[dict[str, Any]] = (), *, inference_error: str = "") -> Story:
        """One pass of the operator that sees these pods."""
        seen = tuple(Pod.of(item) for item in pods)
        probes = {
            item.uid: Probe(at=NOW, ensemble_ready=True, inference_error=inference_error)
            for item in seen
            if item.ready
        }
        observed = Snapshot(copied(self.object), self.children, seen, probes)
        context = Context(
            options=builders.options(), control_key=lambda uid, revision: f"{uid}{revision}"
        )
        decided = plan(observed, context, NOW)
        for item in decided.apply:
            if item["kind"] != "Secret":
                stored = {
                    **item,
                    "metadata": {**item["metadata"], "generation": 1, "uid": f"uid-{item['kind']}"},
                }
                self.children[item["kind"], item["metadata"]["name"]] = stored
        if decided.status is not None:
            self.object["status"] = decided.status
        return self

    def serving(self) -> Story:
        """Applied and served by one pod of the wanted revision."""
        self.step()
        return self.step([pod(self.revision)])


def created() -> dict[str, Any]:
    """Just written; the operator has not looked at it."""
    return Story().object


def starting() -> dict[str, Any]:
    """Children are applied; no pod yet."""
    return Story().step().object


def ready() -> dict[str, Any]:
    """The latest spec is served by every pod."""
    return Story().serving().object


def changed() -> dict[str, Any]:
    """Return a pipeline that serves and whose spec changed a moment ago.

    The status still describes the previous generation.
    """
    return Story().serving().change(tokenizer={"maxLength": 64}).object


def rolling() -> dict[str, Any]:
    """The new revision's pod loads next to the old one, which serves."""
    story = Story().serving()
    old = story.revision
    story.change(tokenizer={"maxLength": 64}).step([pod(old)])
    return story.step([pod(old), pod(story.revision, ready=False)]).object


def failed_rollout() -> dict[str, Any]:
    """The new revision never came up; the old one serves on."""
    story = Story().serving()
    old = story.revision
    story.change(tokenizer={"maxLength": 64}).step([pod(old)]).deadline()
    return story.step([pod(old), pod(story.revision, ready=False)]).object


def rolled_back() -> dict[str, Any]:
    """Only one pod fits and the new revision never came up; it was rolled back to the old one."""
    story = Story(rollout={"strategy": "NoSurge", "preflight": "Disabled"}).serving()
    old = story.revision
    story.change(tokenizer={"maxLength": 64}).step([pod(old)]).deadline()
    story.step([pod(story.revision, ready=False)])
    return story.step([pod(old)]).object


def invalid() -> dict[str, Any]:
    """A spec that only the operator's own checks refuse: three labels for two classes."""
    return Story().serving().change(postprocess={"labels": ["a", "b", "c"]}).step().object


def suspended() -> dict[str, Any]:
    """Pods are at 0 because the spec says so."""
    return Story().serving().change(suspend="Enabled").step().object


def not_answering() -> dict[str, Any]:
    """Pods are ready but fail the test inference."""
    story = Story().serving()
    return story.step(
        [pod(story.revision)], inference_error="model 'model': CUDA out of memory"
    ).object


def deleted() -> dict[str, Any]:
    """Being deleted in the foreground."""
    found = ready()
    found["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    return found
