"""Who sets the number of pods and the CPU of each, on a real API server.

The controllers are real. Autoscalers are supported or left alone, and never fought. Pods are
resized through their own subresource. The kubelet is simulated.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import MERGE, apply_any, eventually, operator, patch, repeated
from tests.support.simulated_nodes import grant_cpu, is_ready, resize_by_hand, serve_pods, server_of
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    PODS,
    Resource,
)
from triton_pipelines.controllers.autoscaler import pipeline_state
from triton_pipelines.controllers.pipeline import resize_rejections

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]
AUTOSCALERS = Resource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")
AUTOSCALER_SECONDS = 120.0
INSTANCES: dict[str, Any] = {"tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}}}


@contextlib.asynccontextmanager
async def running(
    admin: Client, proxy: FaultProxy, folder: Path, namespace: str
) -> AsyncIterator[None]:
    """The operator, and pods that become ready."""
    async with (
        operator(proxy, folder, namespace, operator_namespace=namespace),
        repeated(partial(serve_pods, admin, namespace)),
    ):
        yield


async def make(admin: Client, namespace: str, **spec: Any) -> None:
    item = builders.document(name="p", namespace=namespace, **spec)
    item["metadata"].pop("uid")
    await apply_any(admin, INFERENCE_PIPELINES, item)


async def pipeline(admin: Client, namespace: str) -> Object:
    return await admin.get(INFERENCE_PIPELINES, namespace, "p")


async def reported_status(admin: Client, namespace: str) -> Object:
    """What the operator wrote last."""
    return (await pipeline(admin, namespace)).get("status") or {}


def of_type(status: Object, kind: str) -> Object:
    """One condition, or nothing."""
    return next((item for item in status.get("conditions", ()) if item["type"] == kind), {})


async def condition(admin: Client, namespace: str, kind: str) -> Object:
    return of_type(await reported_status(admin, namespace), kind)


async def pods(admin: Client, namespace: str) -> list[Object]:
    listed = (await admin.list(PODS, namespace, label_selector=names.MANAGED_SELECTOR)).items
    return [
        item for item in listed if is_ready(item) and not item["metadata"].get("deletionTimestamp")
    ]


async def ready(admin: Client, namespace: str, count: int, deadline: float = 60.0) -> None:
    """So many pods serve, and the status says so: it is written after the pods are ready."""

    async def reached() -> bool:
        reported = await reported_status(admin, namespace)
        return (
            of_type(reported, "Ready").get("status") == "True"
            and reported.get("replicas") == count
            and len(await pods(admin, namespace)) == count
        )

    await eventually(f"{count} pods serve", reached, deadline)


async def replicas(admin: Client, namespace: str) -> int:
    return int((await admin.get(DEPLOYMENTS, namespace, "p"))["spec"]["replicas"])


async def write(
    admin: Client,
    resource: Resource,
    namespace: str,
    number: int,
    subresource: str | None = None,
    manager: str = "keda",
) -> None:
    """Write the number of pods as another manager."""
    path, body = resource.path(namespace, "p", subresource), {"spec": {"replicas": number}}
    await admin._transport.send(
        "patch",
        "PATCH",
        resource,
        path,
        query={"fieldManager": manager},
        body=body,
        content_type=MERGE,
        repeatable=True,
    )


async def next_second() -> None:
    """Wait for the next second, because times in managed fields are whole seconds.

    What is written from then on is later than what was written before.
    """
    second = int(time.time())
    await eventually("the second has gone by", lambda: time.time() >= second + 1)


async def scale(admin: Client, resource: Resource, namespace: str, number: int) -> None:
    """As an HPA, KEDA and kubectl scale do it."""
    await write(admin, resource, namespace, number, "scale")


def autoscaler(namespace: str, target: Resource, least: int) -> Object:
    """Return an autoscaler without metrics.

    As in a cluster without a metrics server, it holds its minimum.
    """
    reference = {"apiVersion": target.api_version, "kind": target.kind, "name": "p"}
    spec = {"scaleTargetRef": reference, "minReplicas": least, "maxReplicas": 9}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": AUTOSCALERS.kind,
        "metadata": {"name": "p", "namespace": namespace},
        "spec": spec,
    }


def writes(proxy: FaultProxy) -> int:
    """Writes of the Deployment by the operator so far."""
    return sum(
        seen.method in ("PATCH", "PUT")
        and "/deployments/p" in seen.target
        and seen.agent == names.APP
        for seen in proxy.requests
    )


async def conflict(
    admin: Client, namespace: str, *words: str, reason: str = "ReplicasOwnerConflict"
) -> Object:
    async def reported() -> Object | None:
        found = await condition(admin, namespace, "ScalingLimited")
        return (
            found
            if found.get("reason") == reason and all(word in found["message"] for word in words)
            else None
        )

    found: Object = await eventually(f"{reason} is told with {', '.join(words)}", reported)
    return found


async def no_conflict(admin: Client, namespace: str) -> None:
    async def gone() -> bool:
        return not await condition(admin, namespace, "ScalingLimited")

    await eventually("no conflict is told any more", gone)


@pytest.mark.proves("spec.replicas", "behaviour")
async def test_an_autoscaler_of_the_pipeline_is_served(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    """The real HPA controller, through the pipeline's scale subresource."""
    async with running(admin, proxy, tmp_path, namespace):
        await make(admin, namespace)
        await ready(admin, namespace, 1)
        await apply_any(admin, AUTOSCALERS, autoscaler(namespace, INFERENCE_PIPELINES, 3))
        await ready(admin, namespace, 3, AUTOSCALER_SECONDS)
        seen = await admin._transport.send(
            "get",
            "GET",
            INFERENCE_PIPELINES,
            INFERENCE_PIPELINES.path(namespace, "p", "scale"),
            repeatable=True,
        )
        assert (seen["spec"]["replicas"], seen["status"]["replicas"]) == (3, 3)
        assert names.LABEL_PIPELINE in seen["status"]["selector"]
        assert not await condition(admin, namespace, "ScalingLimited")


async def test_an_autoscaler_of_the_deployment_is_not_fought(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    """The real HPA controller scales first, then one that keeps changing its mind.

    Finally the number is given back.
    """
    async with running(admin, proxy, tmp_path, namespace):
        await make(admin, namespace)
        await ready(admin, namespace, 1)
        await apply_any(admin, AUTOSCALERS, autoscaler(namespace, DEPLOYMENTS, 3))
        before = writes(proxy)

        async def taken() -> bool:
            return await replicas(admin, namespace) == 3

        await eventually("the autoscaler has its number", taken, AUTOSCALER_SECONDS)
        await conflict(
            admin,
            namespace,
            "kube-controller-manager",
            "3 instead of 1",
            "InferencePipeline p",
        )
        await ready(admin, namespace, 3)
        for number in (4, 6, 5, 3, 4, 6, 5, 3):  # all within its bounds: it has nothing to mend
            await scale(admin, DEPLOYMENTS, namespace, number)
            await eventually("the pods follow", partial(_as_many, admin, namespace, number))
            assert await replicas(admin, namespace) == number
        # A change of the template leaves the number alone.
        await make(admin, namespace, tokenizer={"maxLength": 64})
        await eventually("the change is applied", lambda: writes(proxy) > before)
        await ready(admin, namespace, 3)
        assert writes(proxy) - before <= 2
        assert await replicas(admin, namespace) == 3
        await admin.delete(AUTOSCALERS, namespace, "p")
        await scale(admin, DEPLOYMENTS, namespace, 1)
        await no_conflict(admin, namespace)
        await make(admin, namespace, tokenizer={"maxLength": 64}, replicas=2)
        await ready(admin, namespace, 2)


async def _as_many(admin: Client, namespace: str, number: int) -> bool:
    return len(await pods(admin, namespace)) == number


async def test_a_manager_that_repeats_the_deployments_count_wins(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    async with running(admin, proxy, tmp_path, namespace):
        await make(admin, namespace)
        await ready(admin, namespace, 1)
        before = writes(proxy)
        for number in (3, 4, 5, 3, 4, 5):
            await write(admin, DEPLOYMENTS, namespace, number)
            await eventually(
                "the operator has seen it", partial(_seen, admin, proxy, namespace, number, before)
            )
            if number == 3:
                await next_second()
        assert writes(proxy) - before == 1, "mended once"
        await conflict(admin, namespace, "keda", "repeatedly")
        assert await replicas(admin, namespace) == 5


async def test_alternating_managers_are_named_and_not_fought(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    """The operator follows an autoscaler and a GitOps tool that set the pipeline's own number.

    If two tools set the Deployment's number, each is reverted once.
    """
    async with running(admin, proxy, tmp_path, namespace):
        await make(admin, namespace)
        await ready(admin, namespace, 1)
        for number in (2, 3, 2, 3):
            if number == 2:
                await write(admin, INFERENCE_PIPELINES, namespace, number, manager="argocd")
            else:
                await scale(admin, INFERENCE_PIPELINES, namespace, number)
            await eventually("it is followed", partial(_has, admin, namespace, number))
        found = await conflict(
            admin,
            namespace,
            "argocd and keda overwrite each other's changes to spec.replicas",
        )
        assert "remove replicas from the manifest" in found["message"]
        await ready(admin, namespace, 3)
        before = writes(proxy)
        for manager in ("argocd", "helm"):
            await write(admin, DEPLOYMENTS, namespace, 1, manager=manager)
            await eventually("it is mended", partial(_has, admin, namespace, 3))
        await next_second()
        for number, manager in ((1, "argocd"), (2, "helm"), (1, "argocd"), (4, "helm")):
            await write(admin, DEPLOYMENTS, namespace, number, manager=manager)
            await conflict(admin, namespace, f" {number} instead of 3", "of Deployment p")
        assert (writes(proxy) - before, await replicas(admin, namespace)) == (2, 4)
        await conflict(
            admin,
            namespace,
            "argocd and helm alternately set the number of pods of Deployment p to",
            "the operator no longer changes that number",
        )


async def _has(admin: Client, namespace: str, number: int) -> bool:
    return await replicas(admin, namespace) == number


async def _seen(admin: Client, proxy: FaultProxy, namespace: str, number: int, before: int) -> bool:
    """Return whether the number was reverted, or is reported as the other manager's."""
    reported = await condition(admin, namespace, "ScalingLimited")
    return f" {number} instead of 1" in reported.get("message", "") or (
        writes(proxy) - before == 1 and await replicas(admin, namespace) == 1 and number == 3
    )


@pytest.mark.proves("spec.scaling.pods", "behaviour")
async def test_an_external_scaler_is_reported_while_scaling_owns_the_pods(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    async with running(admin, proxy, tmp_path, namespace):
        owned = builders.merge(INSTANCES, {"scaling": {"pods": {"min": 2, "max": 4}}})
        await make(admin, namespace, **owned)
        await ready(admin, namespace, 2)
        before = writes(proxy)
        for number in (5, 3, 6, 7, 1, 9):
            await scale(admin, INFERENCE_PIPELINES, namespace, number)
            assert (await pipeline(admin, namespace))["spec"]["replicas"] == number
        await conflict(
            admin,
            namespace,
            "through the scale subresource",
            "2 pods are kept",
        )
        assert writes(proxy) == before
        assert await replicas(admin, namespace) == 2
        # Without scaling.pods the number is the autoscaler's, and served.
        await make(admin, namespace, **INSTANCES)
        await ready(admin, namespace, 9)
        await no_conflict(admin, namespace)


# --- CPU in place ---------------------------------------------------------------------------------


async def asked(admin: Client, namespace: str) -> list[str]:
    return [
        server_of(item["spec"]["containers"])["resources"]["limits"]["cpu"]
        for item in await pods(admin, namespace)
    ]


@pytest.mark.proves("spec.scaling.cpuResize", "behaviour")
async def test_pods_are_resized_in_place_one_after_the_other(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    spec = builders.merge(INSTANCES, {"scaling": {"cpuResize": "InPlace"}, "replicas": 2})
    async with repeated(partial(grant_cpu, admin, namespace)):
        async with running(admin, proxy, tmp_path, namespace):
            await make(admin, namespace, **spec)
            await ready(admin, namespace, 2)
            assert await asked(admin, namespace) == ["1350m", "1350m"]

            async def recorded() -> bool:
                live = await admin.get(CONFIG_MAPS, namespace, names.live_name("p"))
                return json.loads(live["data"].get(names.KEY_PODS, "{}")) == {"cpuMillis": 1350}

            await eventually("the CPU of a pod is recorded", recorded)
        uids = {item["metadata"]["uid"] for item in await pods(admin, namespace)}
        # What a decision would have recorded before its operator was killed. The next operator
        # carries it out.
        await patch(
            admin,
            CONFIG_MAPS,
            namespace,
            names.live_name("p"),
            {"data": {names.KEY_PODS: '{"cpuMillis": 3350}'}},
        )
        async with running(admin, proxy, tmp_path, namespace):

            async def resized(count: int) -> bool:
                return await asked(admin, namespace) == ["3350m"] * count

            await eventually("both have more", partial(resized, 2))
            assert {item["metadata"]["uid"] for item in await pods(admin, namespace)} == uids
            assert len([seen for seen in proxy.requests if "/resize" in seen.target]) == 2
            # One that comes later gets the same.
            await make(admin, namespace, **builders.merge(spec, {"replicas": 3}))
            await ready(admin, namespace, 3)
            await eventually("the new one, too", partial(resized, 3))
            template = (await admin.get(DEPLOYMENTS, namespace, "p"))["spec"]["template"]
            assert (
                server_of(template["spec"]["containers"])["resources"]["limits"]["cpu"] == "1350m"
            )


def resizes(proxy: FaultProxy) -> int:
    """Resizes that the operator has asked for so far."""
    return len([seen for seen in proxy.requests if "/resize" in seen.target])


async def test_whoever_resizes_pods_again_is_named_and_not_fought(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    spec = builders.merge(INSTANCES, {"scaling": {"cpuResize": "InPlace"}})
    async with (
        repeated(partial(grant_cpu, admin, namespace)),
        running(admin, proxy, tmp_path, namespace),
    ):
        await make(admin, namespace, **spec)
        await ready(admin, namespace, 1)
        await resize_by_hand(admin, (await pods(admin, namespace))[0], "2", "vpa-updater")

        async def corrected() -> bool:
            return resizes(proxy) == 1 and await asked(admin, namespace) == ["1350m"]

        await eventually("it is mended once", corrected)
        await next_second()
        await resize_by_hand(admin, (await pods(admin, namespace))[0], "2500m", "vpa-updater")
        await conflict(admin, namespace, "vpa-updater", "2500m", "1350m", reason="CPUOwnerConflict")
        for cpu in ("2", "3", "1500m"):
            await resize_by_hand(admin, (await pods(admin, namespace))[0], cpu, "vpa-updater")
            await conflict(
                admin,
                namespace,
                "1500m" if cpu == "1500m" else f"{cpu}000m",
                reason="CPUOwnerConflict",
            )
        assert (resizes(proxy), await asked(admin, namespace)) == (1, ["1500m"])


async def test_a_quota_is_told_as_one_and_the_resize_is_made_once_there_is_room(
    admin: Client,
    proxy: FaultProxy,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        resize_rejections, "BACKOFF", dt.timedelta(seconds=10)
    )  # long enough to see that nobody asks meanwhile
    monkeypatch.setattr(
        pipeline_state, "SETTLING_SECONDS", 3.0
    )  # until then scaling of an operator that has just started says nothing new
    spec = builders.merge(INSTANCES, {"scaling": {"cpuResize": "InPlace"}, "replicas": 2})
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": namespace},
        "spec": {"hard": {"requests.cpu": "3"}},
    }
    async with repeated(partial(grant_cpu, admin, namespace)):
        async with running(admin, proxy, tmp_path, namespace):
            await make(admin, namespace, **spec)
            await ready(admin, namespace, 2)
        await apply_any(admin, QUOTAS, quota)

        async def counted() -> bool:
            return bool(((await admin.get(QUOTAS, namespace, "q")).get("status") or {}).get("used"))

        await eventually("the quota is in force", counted)
        await patch(
            admin,
            CONFIG_MAPS,
            namespace,
            names.live_name("p"),
            {"data": {names.KEY_PODS: '{"cpuMillis": 3350}'}},
        )
        async with running(admin, proxy, tmp_path, namespace):
            await conflict(
                admin,
                namespace,
                "cannot get 3350m",
                "a ResourceQuota of the namespace",
                "exceeded quota: q",
                reason="ActuationFailed",
            )
            assert resizes(proxy) == 1, "what is refused of one is not asked for the other"
            live = await admin.get(CONFIG_MAPS, namespace, names.live_name("p"))
            assert json.loads(live["data"][names.KEY_PODS]) == {"cpuMillis": 3350}, (
                "no node is too small"
            )
            # Raised, as the message says. The API server's admission may know a deleted one for
            # another 30 s.
            await patch(admin, QUOTAS, namespace, "q", {"spec": {"hard": {"requests.cpu": "30"}}})

            async def resized() -> bool:
                return await asked(admin, namespace) == ["3350m"] * 2 and not await condition(
                    admin, namespace, "ScalingLimited"
                )

            await eventually("both have more once there is room", resized, 90)
            assert resizes(proxy) <= 4
