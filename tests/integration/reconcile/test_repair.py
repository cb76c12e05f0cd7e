"""One running operator on a real control plane.

It reverts manual edits and deletions, leaves other owners' objects alone, and handles a deletion
directly followed by a new pipeline of the same name. kubectl waits and applies as with any
resource.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import builders
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import FaultProxy
from tests.support.operators import apply_any, essence, eventually, operator, patch, repeated
from tests.support.simulated_nodes import serve_pods
from triton_pipelines.api import names, parse
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.render import render
from triton_pipelines.controllers.pipeline import reconciler
from triton_pipelines.controllers.pipeline.child_writer import CHILD_RESOURCES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(150),
]
GONE_SECONDS = 90.0
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")


def pipeline(namespace: str, name: str = "p", **spec: Any) -> Object:
    item = builders.document(name=name, namespace=namespace, replicas=2, **spec)
    item["metadata"].pop("uid")
    return item


async def status_of(admin: Client, namespace: str, name: str = "p") -> Object:
    item = await admin.get(INFERENCE_PIPELINES, namespace, name)
    return {
        **(item.get("status") or {}),
        "uid": item["metadata"]["uid"],
        "generation": item["metadata"]["generation"],
    }


async def condition(admin: Client, namespace: str, kind: str = "Ready", name: str = "p") -> str:
    return condition_in(await status_of(admin, namespace, name), kind)


def condition_in(status: Object, kind: str = "Ready") -> str:
    """Status and reason of a condition; empty without one."""
    return next(
        (
            f"{item['status']} {item['reason']}"
            for item in status.get("conditions", ())
            if item["type"] == kind
        ),
        "",
    )


async def served(admin: Client, namespace: str) -> Object:
    async def reached() -> Object | None:
        status = await status_of(admin, namespace)
        return (
            status
            if condition_in(status) == "True Succeeded"
            and status["observedGeneration"] == status["generation"]
            and status["updatedReplicas"] == 2
            else None
        )

    async with repeated(partial(serve_pods, admin, namespace)):
        found: Object = await eventually("served", reached, 60)
    return found


async def children(admin: Client, namespace: str) -> dict[tuple[str, str], Object]:
    items = [
        item
        for resource in CHILD_RESOURCES
        for item in (
            await admin.list(resource, namespace, label_selector=names.MANAGED_SELECTOR)
        ).items
    ]
    for item in items:
        (item["metadata"].get("annotations") or {}).pop("deployment.kubernetes.io/revision", None)
        if not item["metadata"].get("annotations"):
            item["metadata"].pop("annotations", None)
    return essence([item for item in items if item["metadata"]["name"] != names.live_name("p")])


EDITS: list[tuple[Resource, dict[str, Any]]] = [
    (DEPLOYMENTS, {"spec": {"replicas": 5}}),
    (DEPLOYMENTS, {"spec": {"progressDeadlineSeconds": 17}}),
    (DEPLOYMENTS, {"spec": {"paused": True}}),
    (DEPLOYMENTS, {"metadata": {"ownerReferences": None}}),
    (SERVICES, {"spec": {"selector": {names.LABEL_PIPELINE: "other"}}}),
    (
        SERVICES,
        {"metadata": {"labels": {names.LABEL_PIPELINE: None, names.LABEL_MANAGED_BY: None}}},
    ),
    (SERVICES, {"spec": {"selector": {"added": "yes"}}}),
    (NETWORK_POLICIES, {"spec": {"podSelector": {"matchLabels": {"added": "yes"}}}}),
    (NETWORK_POLICIES, {"spec": {"ingress": []}}),
    (POD_DISRUPTION_BUDGETS, {"spec": {"maxUnavailable": 2}}),
]


async def test_what_is_edited_by_hand_is_repaired(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
        _, as_before = await created(admin, namespace)
        for resource, body in EDITS:
            await patch(admin, resource, namespace, "p", body)
            await eventually(f"{resource.kind} is repaired after {body}", as_before)
        await served(admin, namespace)


async def test_what_is_deleted_by_hand_comes_back(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    """A pipeline without edits before: an object that needs many corrections has to wait."""
    async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
        status, as_before = await created(admin, namespace)
        revision = names.revision_name("p", status["revision"])
        deleted = [
            (resource, "p")
            for resource in (DEPLOYMENTS, SERVICES, NETWORK_POLICIES, POD_DISRUPTION_BUDGETS)
        ]
        for resource, name in [
            *deleted,
            (CONFIG_MAPS, revision),
            (CONFIG_MAPS, names.live_name("p")),
        ]:
            uid = (await admin.get(resource, namespace, name))["metadata"]["uid"]
            await admin.delete(resource, namespace, name)
            await eventually(
                f"another {resource.kind} {name}",
                partial(is_another, admin, resource, namespace, name, uid),
            )
            await eventually(f"{resource.kind} {name} is as before", as_before)
        await served(admin, namespace)


async def created(admin: Client, namespace: str) -> tuple[Object, Callable[[], Awaitable[bool]]]:
    """Create the pipeline; return its status, and a check that its children are as they are now."""
    await apply_any(admin, INFERENCE_PIPELINES, pipeline(namespace))
    status = await served(admin, namespace)
    return status, partial(are, admin, namespace, await children(admin, namespace))


async def are(admin: Client, namespace: str, before: object) -> bool:
    """Whether the children are what they were."""
    return await children(admin, namespace) == before


async def is_another(
    admin: Client, resource: Resource, namespace: str, name: str, uid: str
) -> bool:
    found: bool = (await admin.get(resource, namespace, name))["metadata"]["uid"] != uid
    return found


async def test_under_an_invalid_spec_the_running_revision_is_kept_in_repair(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
        status, as_before = await created(admin, namespace)
        # Two labels and three of them: no rule of the CRD sees it.
        await apply_any(
            admin, INFERENCE_PIPELINES, pipeline(namespace, postprocess={"labels": ["a", "b", "c"]})
        )
        await eventually("stalled", lambda: says(admin, namespace, "False InvalidSpec"))
        assert await as_before()
        revision = names.revision_name("p", status["revision"])
        for resource, name in [
            (DEPLOYMENTS, "p"),
            (SERVICES, "p"),
            (CONFIG_MAPS, revision),
            (CONFIG_MAPS, names.live_name("p")),
        ]:
            uid = (await admin.get(resource, namespace, name))["metadata"]["uid"]
            await admin.delete(resource, namespace, name)
            await eventually(
                f"another {resource.kind} {name}",
                partial(is_another, admin, resource, namespace, name, uid),
            )
            await eventually(f"{resource.kind} {name} is as before", as_before)
        await patch(
            admin, SERVICES, namespace, "p", {"spec": {"selector": {names.LABEL_PIPELINE: "other"}}}
        )
        await eventually("the Service is repaired", as_before)
        assert await condition(admin, namespace) == "False InvalidSpec"
        # The next process knows the spec by its record.
    async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
        await admin.delete(DEPLOYMENTS, namespace, "p")
        await eventually("the Deployment is as before", as_before)
        await apply_any(admin, INFERENCE_PIPELINES, pipeline(namespace))
        assert (await served(admin, namespace))["revision"] == status["revision"]


async def test_a_quota_on_cpu_limits_is_named_with_the_field_that_meets_it(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    quota: Object = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": namespace},
    }
    await apply_any(admin, QUOTAS, {**quota, "spec": {"hard": {"limits.cpu": "100"}}})

    async def in_force() -> bool:
        return bool((await admin.get(QUOTAS, namespace, "team")).get("status", {}).get("hard"))

    async def said() -> str:
        status = await status_of(admin, namespace)
        messages = [
            item["message"]
            for item in status.get("conditions", ())
            if item["type"] == "Ready" and item["reason"] == "APIError"
        ]
        return messages[0] if messages else ""

    await eventually("the quota is in force", in_force, 60)
    async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
        await apply_any(admin, INFERENCE_PIPELINES, pipeline(namespace))
        message = await eventually("refused", said, 60)
        assert (
            "failed quota: team: must specify limits.cpu for: load; ResourceQuota team "
            "counts limits.cpu: set it in resources"
        ) in message
        limit = {"name": names.CONTAINER_LOADER, "resources": {"limits": {"cpu": "2"}}}
        await apply_any(
            admin,
            INFERENCE_PIPELINES,
            pipeline(namespace, server={"podTemplate": {"spec": {"initContainers": [limit]}}}),
        )
        await served(admin, namespace)


async def test_others_objects_are_not_touched(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
        foreign: Object = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "p", "namespace": namespace},
            "spec": {"ports": [{"port": 80}], "selector": {"app": "mine"}},
        }
        version = (await apply_any(admin, SERVICES, foreign))["metadata"]["resourceVersion"]
        await apply_any(admin, INFERENCE_PIPELINES, pipeline(namespace))
        await eventually("conflict", lambda: says(admin, namespace, "False NameConflict"))
        status = await status_of(admin, namespace)
        (ready,) = (item for item in status["conditions"] if item["type"] == "Ready")
        assert (
            "Service p exists in this namespace and does not belong to this pipeline; delete or "
            "rename that object" in ready["message"]
        )
        assert await condition(admin, namespace, "Stalled") == "True NameConflict"
        assert status["observedGeneration"] == status["generation"]
        assert (await admin.get(SERVICES, namespace, "p"))["metadata"]["resourceVersion"] == version


async def test_a_headless_service_comes_and_goes_with_its_field(
    admin: Client,
    proxy: FaultProxy,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its name can also be that of another pipeline's Service, which is reported as a conflict."""
    # A conflict is checked again after this time.
    monkeypatch.setattr(reconciler, "SOURCE_POLL_SECONDS", 2.0)
    name = names.headless_service_name("p")
    async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
        headless = pipeline(namespace, server={"service": {"headless": "Enabled"}})
        await apply_any(admin, INFERENCE_PIPELINES, headless)
        await served(admin, namespace)
        made = await admin.get(SERVICES, namespace, name)
        assert made["spec"]["clusterIP"] == "None"

        await apply_any(admin, INFERENCE_PIPELINES, pipeline(namespace, name=name))
        await eventually(
            "conflict", lambda: says(admin, namespace, "False NameConflict", name=name)
        )

        await apply_any(admin, INFERENCE_PIPELINES, pipeline(namespace))

        async def other_took_the_name() -> bool:
            services = (await admin.list(SERVICES, namespace)).items
            found = {item["metadata"]["name"]: item for item in services}
            return name in found and found[name]["spec"]["clusterIP"] != "None"

        await eventually("the other pipeline's Service", other_took_the_name, 60)


async def test_a_secret_of_another_owner_is_not_changed(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    """The Secret's name is predictable.

    The operator may not read Secrets but still learns who owns it.
    """
    resource = pipeline(namespace)
    parsed, wrong = parse(resource)
    assert parsed is not None
    assert not wrong
    chosen = Options(operator_namespace=namespace)
    name = names.revision_name("p", render(parsed, build(parsed, chosen), chosen).name)
    foreign: Object = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {"password": "theirs"},
    }
    version = (await apply_any(admin, SECRETS, foreign))["metadata"]["resourceVersion"]
    async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
        await apply_any(admin, INFERENCE_PIPELINES, resource)
        await eventually("conflict", lambda: says(admin, namespace, "False NameConflict"))
        live = await admin.get(SECRETS, namespace, name)
        assert (live["metadata"]["resourceVersion"], set(live["data"])) == (version, {"password"})
        await admin.delete(SECRETS, namespace, name)
        # No Secret is watched: the next pass sees that it is gone.
        await patch(
            admin,
            INFERENCE_PIPELINES,
            namespace,
            "p",
            {"spec": {"rollout": {"progressDeadlineSeconds": 901}}},
        )
        await served(admin, namespace)
        assert set((await admin.get(SECRETS, namespace, name))["data"]) == {names.KEY_CONTROL}


async def says(admin: Client, namespace: str, expected: str, name: str = "p") -> bool:
    return await condition(admin, namespace, name=name) == expected


async def test_deleted_in_mid_rollout_and_made_again_at_once(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
        await apply_any(admin, INFERENCE_PIPELINES, pipeline(namespace))
        old = await served(admin, namespace)
        await apply_any(
            admin, INFERENCE_PIPELINES, pipeline(namespace, tokenizer={"maxLength": 64})
        )
        await eventually(
            "a pod of the new revision", lambda: pods_of_another(admin, namespace, old["revision"])
        )
        await admin.delete(INFERENCE_PIPELINES, namespace, "p")
        await apply_any(admin, INFERENCE_PIPELINES, pipeline(namespace))
        again = await eventually(
            "all is the new one's", lambda: belongs(admin, namespace, old["uid"]), GONE_SECONDS
        )
        assert again["uid"] != old["uid"]
        found = await served(admin, namespace)
        assert found["revision"] == old["revision"]
        kept = {name for kind, name in await children(admin, namespace) if kind == "ConfigMap"}
        assert kept == {names.revision_name("p", found["revision"])}

        async def pruned() -> bool:
            secrets = (await admin.list(SECRETS, namespace)).items
            return [item["metadata"]["name"] for item in secrets] == list(kept)

        await eventually("the former one's Secrets are collected", pruned, GONE_SECONDS)
        # And without an heir nothing is left.
        await admin.delete(INFERENCE_PIPELINES, namespace, "p")
        await eventually("nothing is left", lambda: empty(admin, namespace), GONE_SECONDS)


async def pods_of_another(admin: Client, namespace: str, revision: str) -> bool:
    pods = (await admin.list(PODS, namespace, label_selector=names.MANAGED_SELECTOR)).items
    return any(pod["metadata"]["labels"][names.LABEL_REVISION] != revision for pod in pods)


async def belongs(admin: Client, namespace: str, old: str) -> Object | None:
    """Status of the pipeline once every child is its own."""
    status = await status_of(admin, namespace)
    found = await children(admin, namespace)
    owners = {item["metadata"]["ownerReferences"][0]["uid"] for item in found.values()}
    return (
        status
        if owners == {status["uid"]} and ("Deployment", "p") in found and status["uid"] != old
        else None
    )


async def empty(admin: Client, namespace: str) -> bool:
    listed = [
        await admin.list(resource, namespace, label_selector=names.MANAGED_SELECTOR)
        for resource in (*CHILD_RESOURCES, SECRETS, PODS)
    ]
    return not any(listing.items for listing in listed)


async def kubectl(plane: ControlPlane, *arguments: str, stdin: str = "") -> str:
    process = await asyncio.create_subprocess_exec(
        str(plane.kubectl),
        f"--kubeconfig={plane.kubeconfig}",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(stdin.encode()), 90)
    assert process.returncode == 0, out.decode()
    return out.decode()


async def test_kubectl_waits_and_a_second_apply_changes_nothing(
    admin: Client, control_plane: ControlPlane, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
        document = json.dumps(pipeline(namespace))
        assert "serverside-applied" in await kubectl(
            control_plane, "apply", "--server-side", "-f", "-", stdin=document
        )
        async with repeated(partial(serve_pods, admin, namespace)):
            out = await kubectl(
                control_plane,
                "wait",
                "-n",
                namespace,
                "--for=condition=Ready",
                "ipl/p",
                "--timeout=60s",
            )
        assert "condition met" in out
        await served(admin, namespace)
        generation = (await status_of(admin, namespace))["generation"]

        async def changes_nothing() -> bool:
            before = (await admin.get(INFERENCE_PIPELINES, namespace, "p"))["metadata"]
            await kubectl(control_plane, "apply", "--server-side", "-f", "-", stdin=document)
            after = (await admin.get(INFERENCE_PIPELINES, namespace, "p"))["metadata"]
            return bool(after["resourceVersion"] == before["resourceVersion"])

        # The operator may write the status in between; an apply that writes does so each time.
        await eventually("an apply that changes nothing", changes_nothing)
        assert (await status_of(admin, namespace))["generation"] == generation
        row = (await kubectl(control_plane, "get", "ipl", "-n", namespace, "--no-headers")).split()
        assert row[:2] == ["p", "True"]

        async def all_posted() -> bool:
            events = await kubectl(
                control_plane,
                "events",
                "-n",
                namespace,
                "--for=InferencePipeline/p",
                "--no-headers",
            )
            reasons = {line.split()[2] for line in events.splitlines()}
            return reasons >= {"RolloutStarted", "Serving", "Succeeded"}

        await eventually("its events", all_posted)
