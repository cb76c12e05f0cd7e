"""Pipelines as tests write and watch them.

These are the samples with small requests, their expected answers, and waiting for conditions.
"""

import contextlib
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from e2e.suite.kube import KINDS, Kube, Object, wait_for
from triton_pipelines.api import names

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "manifests" / "samples"
GOLDEN = ROOT / "tests" / "golden" / "models"
TOLERANCE = 1e-5
READY_SECONDS = 120.0
DRAIN_SECONDS = 2
NO_PREFLIGHT = f"{names.LABEL_COMPONENT}!={names.COMPONENT_PREFLIGHT}"
SMALL: Mapping[str, Any] = {
    # A test cluster's node is small and shared; a GPU is asked for only where a test is about it.
    "server": {
        "resources": {
            "requests": {"cpu": "100m", "memory": "512Mi"},
            "limits": {"cpu": "2", "memory": "3Gi"},
        },
        "gpu": {"count": 0},
    },
    "rollout": {"drainSeconds": DRAIN_SECONDS},
}


def sample(name: str) -> Object:
    """Return an unchanged manifest of manifests/samples."""
    document: Object = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text())
    return document


def small(name: str, **spec: Any) -> Object:
    """Return a sample that requests little CPU and memory and terminates fast.

    `spec` overrides its spec (mappings are merged, `None` removes a field).
    """
    document = sample(name)
    document["spec"] = merged(merged(document["spec"], SMALL), spec)
    return document


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """JSON merge patch (RFC 7396)."""
    result: dict[str, Any] = copy.deepcopy(dict(base))
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def check_answer(name: str, rows: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> None:
    """An answer of a sample against the golden cases that were asked, row by row.

    Raises:
        AssertionError: a row differs by more than `TOLERANCE`.
    """
    if name == "embedding":
        np.testing.assert_allclose(
            answer["EMBEDDING"], [row["embedding"] for row in rows], atol=TOLERANCE, rtol=0
        )
        return
    np.testing.assert_allclose(
        answer["PROBABILITIES"], [row["probabilities"] for row in rows], atol=TOLERANCE, rtol=0
    )
    np.testing.assert_allclose(
        answer["SCORE"], [[row["score"]] for row in rows], atol=TOLERANCE, rtol=0
    )
    assert answer["LABEL"].tolist() == [[row["label"].encode()] for row in rows]


def golden(name: str, rows: int, *, longest: int = 10**9) -> list[Mapping[str, Any]]:
    """Return `rows` golden cases of a sample, the longest texts first.

    They repeat if there are too few. Cases with more than `longest` tokens are left out.
    """
    cases = [
        case
        for case in json.loads((GOLDEN / f"{name}.json").read_text())["cases"]
        if len(case["inputIds"]) <= longest
    ]
    cases.sort(key=lambda case: -len(case["inputIds"]))
    return [cases[index % len(cases)] for index in range(rows)]


class Pipeline:
    """One InferencePipeline in a test's namespace."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self.kube = kube
        self.namespace = namespace
        self.name = name

    def apply(self, document: Mapping[str, Any]) -> Object:
        """Apply the resource under this pipeline's name; returns it as stored."""
        return self.kube.apply(
            {**document, "metadata": {**document["metadata"], "name": self.name}},
            namespace=self.namespace,
        )

    def patch(self, change: Mapping[str, Any]) -> Object:
        """Change the resource by JSON merge patch; returns it as stored."""
        return self.kube.patch(names.KIND, self.namespace, self.name, change)

    def replace_spec(self, spec: Mapping[str, Any]) -> Object:
        """Replace the whole spec, also fields that `spec` lacks; returns the resource as stored."""
        path = KINDS[names.KIND].path(self.namespace, self.name)
        change = [{"op": "replace", "path": "/spec", "value": spec}]
        stored: Object = self.kube.request(
            "PATCH", path, change, content_type="application/json-patch+json"
        )
        return stored

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the spec at the end of the context, and wait for Ready and as many pods."""
        spec, pods = self.wait_ready()["spec"], self.pods()
        yield
        self.replace_spec(spec)
        self.wait_ready()
        self.wait(f"{len(pods)} pods", lambda _: len(self.pods()) == len(pods))

    def get(self) -> Object:
        """The resource."""
        return self.kube.get(names.KIND, self.namespace, self.name)

    def status(self) -> dict[str, Any]:
        """Return the current status; empty before the first one."""
        status: dict[str, Any] = self.get().get("status") or {}
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition, or an empty one."""
        return condition(self.status(), kind)

    def wait(
        self, what: str, holds: Callable[[Object], object], deadline: float = READY_SECONDS
    ) -> Object:
        """Wait until the resource is as `holds` wants it; returns it."""
        return wait_for(
            f"pipeline {self.namespace}/{self.name}: {what}", self.get, holds, deadline, _shown
        )

    def wait_condition(
        self, kind: str, status: str, reason: str | None = None, deadline: float = READY_SECONDS
    ) -> dict[str, Any]:
        """Wait for a condition that speaks of the spec as it is now; returns it."""

        def holds(item: Object) -> bool:
            found = condition(item.get("status") or {}, kind)
            current = found.get("observedGeneration") == item["metadata"]["generation"]
            return (
                current and found.get("status") == status and reason in (None, found.get("reason"))
            )

        item = self.wait(f"{kind}={status}{f' ({reason})' if reason else ''}", holds, deadline)
        return condition(item["status"], kind)

    def wait_ready(self, deadline: float = READY_SECONDS) -> Object:
        """Wait for Ready of the spec as it is now; returns the resource."""
        self.wait_condition("Ready", "True", deadline=deadline)
        return self.get()

    def pods(self) -> list[Object]:
        """Its pods, also those that leave, but not the one that checks a new revision."""
        selector = f"{names.LABEL_PIPELINE}={self.name},{NO_PREFLIGHT}"
        return list(self.kube.objects("Pod", self.namespace, selector))

    def children(self, kind: str) -> list[Object]:
        """Its objects of a kind."""
        return list(self.kube.objects(kind, self.namespace, f"{names.LABEL_PIPELINE}={self.name}"))

    def events(self) -> list[Object]:
        """Events about it, oldest first."""
        found = [
            item
            for item in self.kube.objects("Event", self.namespace)
            if item["regarding"].get("name") == self.name
        ]
        return sorted(
            found, key=lambda item: item.get("eventTime") or item["metadata"]["creationTimestamp"]
        )

    def wait_event(self, reason: str, deadline: float = 60.0) -> Object:
        """Wait for an event about it with this reason."""
        found = wait_for(
            f"event {reason} of {self.name}",
            lambda: [item for item in self.events() if item["reason"] == reason],
            bool,
            deadline,
            lambda _: f"events {sorted({item['reason'] for item in self.events()})}",
        )
        return found[-1]

    def control_key(self) -> str:
        """The control key of the revision that serves, as only an administrator can read it."""
        secret = names.revision_name(self.name, self.status()["servingRevision"])
        return self.kube.kubectl(
            "get",
            "secret",
            secret,
            f"--namespace={self.namespace}",
            f'--output=go-template={{{{index .data "{names.KEY_CONTROL}" | base64decode}}}}',
        )


def condition(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A condition of a status, or an empty one."""
    return next(
        (dict(item) for item in status.get("conditions") or () if item.get("type") == kind), {}
    )


def _shown(item: Object) -> str:
    status = item.get("status") or {}
    lines = [
        f"{entry['type']}={entry['status']} {entry['reason']}: {entry['message']}"
        for entry in status.get("conditions") or ()
    ]
    kept = {
        key: value
        for key, value in status.items()
        if key in ("observedGeneration", "revision", "servingRevision", "replicas", "readyReplicas")
    }
    return f"generation {item['metadata'].get('generation')}, {kept}, " + (
        "; ".join(lines) or "no conditions"
    )
