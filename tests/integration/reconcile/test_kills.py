"""The operator is killed at every single write, and another process continues.

The kill comes before or after the write's effect. The end state is always the same.

A life of the operator here is what a process does without its watches: list everything into an
empty store, then pass after pass. Dead is whoever gets no more answers.
"""

from __future__ import annotations

import base64
import datetime as dt
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import builders
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import MUTATING, Fault, FaultProxy
from tests.support.operators import apply_any, essence, healthy, make_namespace, without_clock
from tests.support.reconcilers import reconciler_of
from tests.support.simulated_nodes import control_deployments, serve_pods
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, ClientOptions, Object
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, SECRETS
from triton_pipelines.cluster.store import Store, relist
from triton_pipelines.cluster.watches import WATCHED, selector_of
from triton_pipelines.controllers.pipeline.child_writer import CHILD_RESOURCES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]
ROUNDS = 12
MOST_WRITES = 40


def derive(uid: str, revision: str) -> str:
    return f"key-of-{uid}-{revision}"


@dataclass(slots=True, kw_only=True)
class Death(Fault):
    """The connection is lost at the n-th write, before or after its effect.

    Nothing that is sent later arrives.
    """

    at: int = 0
    after: bool = False
    writes: int = 0

    def takes(self, method: str, target: str) -> bool:
        self.writes += method in MUTATING
        if self.writes < self.at:
            return False
        if self.writes == self.at and method in MUTATING and not self.hits:
            self.drop, self.drop_after_effect = not self.after, self.after
        else:
            self.drop = True
        self.hits += 1
        return True


async def live(admin: Client, proxy: FaultProxy, namespace: str, name: str) -> None:
    """One life of the operator: until nothing changes any more.

    Raises:
        ClusterError: it was killed.
    """
    options = ClientOptions(attempts=1)
    async with Client(
        lambda: load_configuration(str(proxy.write_kubeconfig(KUBECONFIG[namespace]))),
        options=options,
    ) as client:
        store = Store()
        reconciler = reconciler_of(
            client, store, prober=healthy, clock=lambda: dt.datetime.now(dt.UTC), derive=derive
        )
        for _ in range(ROUNDS):
            for resource in WATCHED:
                await relist(
                    client,
                    store,
                    resource,
                    namespace=namespace,
                    label_selector=selector_of(resource),
                )
            before = len(proxy.mutating)
            await reconciler.reconcile((namespace, name))
            if len(proxy.mutating) == before and not await cluster(admin, namespace):
                return
        raise AssertionError("it does not come to rest")


async def cluster(admin: Client, namespace: str) -> bool:
    await control_deployments(admin, namespace)
    return await serve_pods(admin, namespace)


KUBECONFIG: dict[str, Any] = {}


async def end(admin: Client, namespace: str, name: str) -> dict[tuple[str, str], Object]:
    """Return everything in the namespace.

    Placeholders replace what differs between namespaces. Secrets are checked on the way.
    """
    pipeline = await admin.get(INFERENCE_PIPELINES, namespace, name)
    uid, status = pipeline["metadata"]["uid"], pipeline["status"]
    items = [
        item
        for resource in CHILD_RESOURCES
        for item in (
            await admin.list(resource, namespace, label_selector=names.MANAGED_SELECTOR)
        ).items
    ]
    revisions = sorted(
        (item["metadata"]["creationTimestamp"], item["metadata"]["labels"][names.LABEL_REVISION])
        for item in items
        if item["kind"] == "ConfigMap" and names.LABEL_REVISION in item["metadata"]["labels"]
    )
    wanted = status["revision"]
    words = {
        f"OLD{index}": revision
        for index, (_, revision) in enumerate(item for item in revisions if item[1] != wanted)
    }
    for secret in (await admin.list(SECRETS, namespace)).items:
        revision = secret["metadata"]["labels"][names.LABEL_REVISION]
        assert base64.b64decode(secret["data"][names.KEY_CONTROL]).decode() == derive(uid, revision)
        items.append({"kind": "Secret", "metadata": secret["metadata"]})
    for item in items:
        # The order of several revisions made within one second is unknown. Of the revisions in the
        # history, only the number counts.
        if item["metadata"]["labels"].get(names.LABEL_REVISION, wanted) != wanted:
            item["data"] = {}
    found = essence(
        [item for item in items if item["metadata"]["name"] != names.live_name(name)],
        NEW=wanted,
        UID=uid,
        NAMESPACE=namespace,
        **words,
    )
    reported = without_clock(status)
    assert {item["type"]: item["status"] for item in reported["conditions"]} == {
        "Ready": "True",
        "Available": "True",
        "ModelsReady": "True",
    }
    return found


def pipeline(namespace: str, **spec: Any) -> Object:
    item = builders.document(name="p", namespace=namespace, **spec)
    item["metadata"].pop("uid")
    return item


CHANGED = {
    "tokenizer": {"maxLength": 64},
    "rollout": {"revisionHistoryLimit": 1},
    "server": {"networkPolicy": {"mode": "Disabled"}},
}


async def story(
    admin: Client, api_server: ControlPlane, namespace: str, folder: Any, at: int, after: bool
) -> tuple[Any, int]:
    """Create, serve and change a pipeline, killed once at the given write of each part.

    Returns the end state and the highest number of writes in a part.
    """
    KUBECONFIG[namespace] = folder / f"{namespace}.kubeconfig"
    await make_namespace(admin, namespace)
    most = 0
    for spec in ({"rollout": {"revisionHistoryLimit": 1}}, CHANGED):
        await apply_any(admin, INFERENCE_PIPELINES, pipeline(namespace, **spec))
        async with FaultProxy(api_server.kubeconfig) as proxy:
            death = proxy.inject(Death(times=None, at=at, after=after))
            try:
                await live(admin, proxy, namespace, "p")
            except ClusterError:
                assert death.hits
            most = max(most, death.writes)
            proxy.clear()
            await live(admin, proxy, namespace, "p")
    return await end(admin, namespace, "p"), most


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_any_write_the_next_process_comes_to_the_same_end(
    bare: Client, api_server: ControlPlane, tmp_path: Any, after: bool
) -> None:
    when = "after" if after else "before"
    expected, writes = await story(
        bare, api_server, f"kill-{when}-never", tmp_path, MOST_WRITES, after
    )
    assert sorted(kind for kind, _ in expected) == [
        "ConfigMap",
        "ConfigMap",
        "Deployment",
        "Secret",
        "Secret",
        "Service",
    ]
    assert 8 < writes < MOST_WRITES
    for at in range(1, writes + 1):
        found, _ = await story(bare, api_server, f"kill-{when}-{at}", tmp_path, at, after)
        for key in sorted(set(found) & set(expected)):
            assert found[key] == expected[key], f"killed {when} write {at}"
        assert found.keys() == expected.keys(), f"killed {when} write {at}"
