"""The real reconciler on a fake API server that holds one pipeline."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from tests.support import builders, ownership
from tests.support.worlds import START
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, REPLICA_SETS, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.graph import Options
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.pod_probes import Prober, ProbeTarget
from triton_pipelines.controllers.pipeline.reconciler import Reconciler
from triton_pipelines.controllers.pipeline.snapshot import LABEL_TEMPLATE_HASH, Probe

KEY = ("nlp", "sentiment")
"""Namespace and name of the pipeline that :func:`stored` returns."""


def stored(**spec: Any) -> Object:
    """Return a pipeline as the API server stores it."""
    document = builders.document(**spec)
    document["metadata"] |= {"generation": 1, "resourceVersion": "1"}
    return document


class AcceptingClient(Client):
    """A fake API server that accepts every write and stores nothing but statuses and events.

    It has the ReplicaSets that the test gives it.
    """

    def __init__(self) -> None:
        self.statuses: list[Object] = []
        self.events: list[Object] = []
        self.replica_sets: list[Object] = []

    async def apply(self, obj: Object, **_: Any) -> Object:
        return obj

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        self.statuses.append(obj["status"])
        return obj

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        for item in self.replica_sets if resource == REPLICA_SETS else ():
            if item["metadata"]["name"] == name:
                return item
        raise NotFound(404, "NotFound", name)

    async def create(self, obj: Object, **_: Any) -> Object:
        self.events.append(obj)
        return obj


class VersioningClient(AcceptingClient):
    """A fake API server whose writes get a new ``resourceVersion``, with one pipeline."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.now = START
        self.version = 1
        self.document = stored()
        store.put(INFERENCE_PIPELINES, self.document)

    def versioned(self, obj: Object) -> Object:
        """Return the object with the next ``resourceVersion``, and with a uid."""
        self.version += 1
        metadata = {"uid": f"uid-{obj['metadata']['name']}", **obj["metadata"]}
        return {**obj, "metadata": {**metadata, "resourceVersion": str(self.version)}}

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        self.statuses.append(obj["status"])
        return self.store_status(obj["status"])

    def store_status(self, status: Object) -> Object:
        """Store the status, and return the pipeline."""
        self.document = self.versioned({**self.document, "status": status})
        return self.document


async def no_probe(target: ProbeTarget, now: dt.datetime) -> Probe:
    """Fail the test: there is no pod to probe."""
    raise AssertionError("there is no pod to probe")


def reconciler_of(
    client: Client,
    store: Store,
    *,
    prober: Prober = no_probe,
    clock: Callable[[], dt.datetime] = lambda: START,
    options: Options | None = None,
    derive: Callable[[str, str], str] = lambda uid, revision: f"key of {uid} {revision}",
) -> Reconciler:
    """Return a reconciler of its own process, with the options of the tests' builders."""
    given = builders.options() if options is None else options
    return Reconciler(client, store, given, derive, prober, clock, "test", Handover())


def ready_pod(deployment: Object) -> Object:
    """Return a ready pod of a Deployment whose server runs, as the API server stores it."""
    template = deployment["spec"]["template"]
    made = ownership.replica_set(deployment, ownership.template_hash(template))
    hashed = made["metadata"]["labels"][LABEL_TEMPLATE_HASH]
    labels = {**template["metadata"]["labels"], LABEL_TEMPLATE_HASH: hashed}
    server = {"name": names.CONTAINER_SERVER, "ready": True, "state": {"running": {}}}
    return {
        "metadata": {
            "name": "pod",
            "namespace": KEY[0],
            "uid": "u",
            "resourceVersion": "2",
            "labels": labels,
            "ownerReferences": ownership.controlled_by(made),
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [server],
        },
    }
