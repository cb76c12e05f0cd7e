"""The model world with tuning runs: their pods come and go as the test says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from tests.support import builders, ownership
from tests.support.simulated_nodes import ready_status
from tests.support.worlds import World, rfc3339
from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.snapshot import Object, Pod, Snapshot

RENDERED: dict[str, Any] = {}
SLO = {"p99Milliseconds": 100}
PATCH = {"spec": {"model": {"maxBatchSize": 16}}}
RESULT = {
    "message": "batch 16 carries 420 requests/s within 80 ms",
    "advice": "compute-bound",
    "patch": yaml.safe_dump(PATCH),
    "gainPercent": 12,
    "points": [
        {
            "name": "current",
            "maxBatchSize": 64,
            "requestsPerSecond": 375,
            "p99Microseconds": 79000,
            "outcome": "WithinSLO",
        }
    ],
}


@dataclass
class Tuning(World):
    """The world with the pods of a run: they come and go as the test says."""

    run_pods_raw: list[Object] = field(default_factory=list)
    tuning_rejection: str = ""

    def observed(self) -> Snapshot:
        pods = tuple(Pod.of(item) for item in self.run_pods_raw)
        return replace(super().observed(), tuning_pods=pods, tuning_rejection=self.tuning_rejection)

    def ours(self, kind: str) -> list[Object]:
        """Objects of runs, of a kind."""
        return [
            item
            for (known, _), item in sorted(self.children.items())
            if known == kind and names.LABEL_RUN in item["metadata"]["labels"]
        ]

    @property
    def canary_sets(self) -> list[Object]:
        """ReplicaSets of the runs' Deployments."""
        return [ownership.replica_set(made, "canary") for made in self.ours("Deployment")]

    @property
    def left(self) -> list[tuple[str, str]]:
        """Objects of runs, all kinds."""
        return [
            key
            for key, item in self.children.items()
            if names.LABEL_RUN in item["metadata"]["labels"]
        ]

    def pod(self, kind: str, **status: Any) -> None:
        """A pod of the run's Deployment or Job, with its status."""
        (made,) = self.ours(kind)
        template = made["spec"]["template"]
        name = f"{made['metadata']['name']}-x"
        owner, labels = made, dict(template["metadata"]["labels"])
        if kind == "Deployment":
            owner = ownership.replica_set(made, "canary")
            labels |= {"pod-template-hash": "canary"}
        raw = {
            "metadata": {
                "name": name,
                "uid": name,
                "labels": labels,
                "ownerReferences": ownership.controlled_by(owner),
            },
            "spec": template["spec"],
            "status": status,
        }
        self.run_pods_raw = [
            item for item in self.run_pods_raw if item["metadata"]["name"] != name
        ] + [raw]

    @staticmethod
    def serving_status(made: Object) -> Object:
        """Status of a ready pod of a Deployment."""
        return ready_status(
            {"metadata": {"labels": made["spec"]["template"]["metadata"]["labels"]}}
        )

    def canary_ready(self) -> Tuning:
        """The canary gets ready, and a pass sees it."""
        (made,) = self.ours("Deployment")
        self.pod("Deployment", **self.serving_status(made))
        self.step()
        return self

    def measuring(self) -> Tuning:
        """The canary is ready, and the Job's pod runs."""
        self.canary_ready()
        running = {
            "name": names.CONTAINER_TUNER,
            "state": {"running": {"startedAt": rfc3339(self.now)}},
        }
        self.pod("Job", phase="Running", containerStatuses=[running])
        self.step()
        return self

    def job_ends(self, message: str, code: int = 0) -> Tuning:
        """The Job's container ends with this termination message, and a pass sees it."""
        ended = {
            "name": names.CONTAINER_TUNER,
            "state": {
                "terminated": {
                    "exitCode": code,
                    "message": message,
                    "reason": "Error" if code else "Completed",
                }
            },
        }
        self.pod("Job", phase="Failed" if code else "Succeeded", containerStatuses=[ended])
        self.step()
        return self

    @property
    def run(self) -> dict[str, str]:
        """What the status says of it, in short."""
        return {
            key: value
            for key, value in self.status.get("tuning", {}).items()
            if key in ("state", "message", "request")
        }


def asked(request: str | None = "2026-01-01", **spec: Any) -> Tuning:
    """A pipeline that serves and has a latency to keep, and then a request."""
    world = Tuning(builders.document(**{"slo": SLO, **spec}), rendered=RENDERED).started()
    if request is not None:
        world.change(tuning={"request": request})
        world.step()
    return world
