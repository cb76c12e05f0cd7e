"""Tuning runs on a real API server with its controllers.

The tests check what a run creates, what it leaves, and what it affects.

Stand-ins: the kubelet, and the Job's container, whose result is written by the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import apply_any, eventually, operator, patch, repeated
from tests.support.simulated_nodes import is_ready, ready_status
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Forbidden, NotFound
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    Resource,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]
DEADLINE_SECONDS = 90.0
RESULT = {
    "message": "batch 16 carries 420 requests/s",
    "advice": "compute-bound",
    "patch": "spec:\n  model:\n    maxBatchSize: 16\n",
    "gainPercent": 12,
}
POLICIES, BINDINGS = (
    Resource("admissionregistration.k8s.io", "v1", kind, plural, namespaced=False)
    for kind, plural in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    )
)
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")


class Kubelet:
    """Act as the kubelet.

    Pods with Triton become ready. The Job's pod ends with ``result`` once there is one.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.result: tuple[int, str] | None = None

    async def work(self) -> None:
        pods = (
            await self.client.list(PODS, self.namespace, label_selector=names.MANAGED_SELECTOR)
        ).items
        await asyncio.gather(
            *(self._run(pod) for pod in pods if not pod["metadata"].get("deletionTimestamp"))
        )

    async def _run(self, pod: Object) -> None:
        status: Object | None = None
        if pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_TUNER:
            if self.result is not None and pod["status"]["phase"] not in ("Succeeded", "Failed"):
                code, message = self.result
                ended = {
                    "exitCode": code,
                    "reason": "Completed" if code == 0 else "Error",
                    "message": message,
                }
                container = {
                    "name": names.CONTAINER_TUNER,
                    "restartCount": 0,
                    "image": "i",
                    "imageID": "i",
                    "ready": False,
                    "state": {"terminated": ended},
                }
                status = {
                    "phase": "Failed" if code else "Succeeded",
                    "containerStatuses": [container],
                }
        elif not is_ready(pod):
            status = ready_status(pod)
        if status is not None:
            with contextlib.suppress(NotFound):
                await patch(
                    self.client,
                    PODS,
                    self.namespace,
                    pod["metadata"]["name"],
                    {"status": status},
                    "status",
                )


async def of_run(client: Client, namespace: str, *kinds: Resource) -> list[tuple[str, str]]:
    """Objects of runs."""
    found = [
        await client.list(kind, namespace, label_selector=names.LABEL_RUN)
        for kind in kinds or (DEPLOYMENTS, JOBS, CONFIG_MAPS, NETWORK_POLICIES, PODS)
    ]
    return [(item["kind"], item["metadata"]["name"]) for listed in found for item in listed.items]


async def tuning(client: Client, namespace: str) -> dict[str, Any]:
    status = (await client.get(INFERENCE_PIPELINES, namespace, "p")).get("status") or {}
    return dict(status.get("tuning") or {})


async def served(client: Client, namespace: str) -> Any:
    status = (await client.get(INFERENCE_PIPELINES, namespace, "p")).get("status") or {}
    return {item["type"]: item["status"] for item in status.get("conditions", ())}.get(
        "Ready"
    ) == "True" and status


async def apply(client: Client, namespace: str, **spec: Any) -> None:
    document = builders.document(
        name="p", namespace=namespace, **{"slo": {"p99Milliseconds": 100}, **spec}
    )
    document["metadata"].pop("uid")
    await apply_any(client, INFERENCE_PIPELINES, document)


async def live_pods(client: Client, namespace: str) -> set[str]:
    pods = (
        await client.list(
            PODS, namespace, label_selector=f"{names.LABEL_COMPONENT}={names.COMPONENT_SERVER}"
        )
    ).items
    return {pod["metadata"]["uid"] for pod in pods}


async def reached(client: Client, namespace: str, state: str) -> Any:
    reported = await tuning(client, namespace)
    return reported.get("state") == state and reported


async def test_a_run_ends_with_its_result_and_leaves_nothing(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    kubelet = Kubelet(admin, namespace)
    async with (
        operator(proxy, tmp_path, namespace, operator_namespace=namespace),
        repeated(kubelet.work),
    ):
        await apply(admin, namespace, replicas=2)
        status = await eventually("served", lambda: served(admin, namespace), DEADLINE_SECONDS)
        before, pods = (
            await admin.get(DEPLOYMENTS, namespace, "p"),
            await live_pods(admin, namespace),
        )
        await apply(admin, namespace, replicas=2, tuning={"request": "monday", "mode": "Quick"})
        await eventually("running", lambda: reached(admin, namespace, "Running"), DEADLINE_SECONDS)
        await eventually(
            "the Job has a pod", lambda: tuner_pods(admin, namespace), DEADLINE_SECONDS
        )
        generation = (await admin.get(INFERENCE_PIPELINES, namespace, "p"))["metadata"][
            "generation"
        ]
        assert [kind for kind, _ in sorted(await of_run(admin, namespace))] == [
            "ConfigMap", "Deployment", "Job", "NetworkPolicy", "NetworkPolicy", "Pod", "Pod",
        ]  # fmt: skip
        assert await served(admin, namespace), "Ready all the while"
        kubelet.result = (0, json.dumps(RESULT))
        reported = await eventually(
            "done", lambda: reached(admin, namespace, "Succeeded"), DEADLINE_SECONDS
        )
        assert {key: reported[key] for key in RESULT} == RESULT
        assert (reported["request"], reported["revision"]) == ("monday", status["revision"])
        # The garbage collector and the kubelet take their time. With the simulated kubelet, pods go
        # when they are deleted.
        await eventually(
            "everything is gone", lambda: nothing_left(admin, namespace), DEADLINE_SECONDS
        )
        after = await admin.get(DEPLOYMENTS, namespace, "p")
        assert (after["spec"], after["metadata"]["uid"]) == (
            before["spec"],
            before["metadata"]["uid"],
        )
        assert await live_pods(admin, namespace) == pods
        assert (await admin.get(INFERENCE_PIPELINES, namespace, "p"))["metadata"][
            "generation"
        ] == generation, "the spec is the user's"


async def tuner_pods(client: Client, namespace: str) -> list[Object]:
    return (
        await client.list(
            PODS, namespace, label_selector=f"{names.LABEL_COMPONENT}={names.COMPONENT_TUNER}"
        )
    ).items


async def nothing_left(client: Client, namespace: str) -> bool:
    """Of the run; the kubelet's part in a pod's end is to confirm it."""
    for pod in (await client.list(PODS, namespace, label_selector=names.LABEL_RUN)).items:
        if pod["metadata"].get("deletionTimestamp"):
            await client.delete(PODS, namespace, pod["metadata"]["name"], grace_seconds=0)
    return not await of_run(client, namespace)


async def test_a_failed_measurement_is_told_and_a_deleted_pipeline_takes_its_run_along(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    kubelet = Kubelet(admin, namespace)
    async with (
        operator(proxy, tmp_path, namespace, operator_namespace=namespace),
        repeated(kubelet.work),
    ):
        kubelet.result = (3, "error: the server cannot be reached")
        await apply(admin, namespace, tuning={"request": "a"})
        reported = await eventually(
            "failed", lambda: reached(admin, namespace, "Failed"), DEADLINE_SECONDS
        )
        assert "exit code 3: error: the server cannot be reached" in reported["message"]
        await eventually(
            "everything is gone", lambda: nothing_left(admin, namespace), DEADLINE_SECONDS
        )
        kubelet.result = None
        await apply(admin, namespace, tuning={"request": "b"})
        await eventually("running", lambda: reached(admin, namespace, "Running"), DEADLINE_SECONDS)
        await admin.delete(INFERENCE_PIPELINES, namespace, "p")
        await eventually(
            "everything is gone", lambda: nothing_left(admin, namespace), DEADLINE_SECONDS
        )


async def test_a_quota_ends_the_run_and_not_the_pipeline(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    kubelet = Kubelet(admin, namespace)
    async with (
        operator(proxy, tmp_path, namespace, operator_namespace=namespace),
        repeated(kubelet.work),
    ):
        await apply(admin, namespace)
        await eventually("served", lambda: served(admin, namespace), DEADLINE_SECONDS)
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few", "namespace": namespace},
        }
        await apply_any(admin, QUOTAS, {**quota, "spec": {"hard": {"count/deployments.apps": "1"}}})
        await eventually("the quota counts", lambda: counts(admin, namespace), DEADLINE_SECONDS)
        await apply(admin, namespace, tuning={"request": "a"})
        reported = await eventually(
            "failed", lambda: reached(admin, namespace, "Failed"), DEADLINE_SECONDS
        )
        assert "exceeded quota" in reported["message"]
        assert await served(admin, namespace)
        await eventually(
            "everything is gone", lambda: nothing_left(admin, namespace), DEADLINE_SECONDS
        )


async def counts(client: Client, namespace: str) -> bool:
    status = (await client.get(QUOTAS, namespace, "few")).get("status") or {}
    return (status.get("used") or {}).get("count/deployments.apps") == "1"


async def one(client: Client, namespace: str, kind: Resource, component: str) -> Object | None:
    """The one object of a run of that kind that stays; ``None`` for none or several."""
    found = (
        await client.list(
            kind, namespace, label_selector=f"{names.LABEL_RUN},{names.LABEL_COMPONENT}={component}"
        )
    ).items
    staying = [item for item in found if not item["metadata"].get("deletionTimestamp")]
    return staying[0] if len(staying) == 1 else None


async def test_a_run_outlives_the_operator_but_neither_another_mode_nor_its_canary(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    kubelet = Kubelet(admin, namespace)
    async with repeated(kubelet.work):
        async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
            await apply(admin, namespace, tuning={"request": "a", "mode": "Thorough"})
            await eventually(
                "a Job",
                lambda: one(admin, namespace, JOBS, names.COMPONENT_TUNER),
                DEADLINE_SECONDS,
            )
        first = await one(admin, namespace, JOBS, names.COMPONENT_TUNER)
        assert first is not None
        pods = await live_pods(admin, namespace)
        async with operator(proxy, tmp_path, namespace, operator_namespace=namespace) as running:
            await eventually("a pass", running.passes, DEADLINE_SECONDS)
            await eventually(
                "still running", lambda: reached(admin, namespace, "Running"), DEADLINE_SECONDS
            )
            kept = await one(admin, namespace, JOBS, names.COMPONENT_TUNER)
            assert kept is not None
            assert kept["metadata"]["uid"] == first["metadata"]["uid"], "the restart made no other"

            await apply(admin, namespace, tuning={"request": "a", "mode": "Quick"})

            async def another() -> Object | None:
                job = await one(admin, namespace, JOBS, names.COMPONENT_TUNER)
                return (
                    job
                    if job is not None and job["metadata"]["uid"] != first["metadata"]["uid"]
                    else None
                )

            job = await eventually("another Job", another, DEADLINE_SECONDS)
            assert "--thorough" not in job["spec"]["template"]["spec"]["containers"][0]["args"]
            canary = await eventually(
                "one canary",
                lambda: one(admin, namespace, PODS, names.COMPONENT_CANARY),
                DEADLINE_SECONDS,
            )
            await admin.delete(PODS, namespace, canary["metadata"]["name"], grace_seconds=0)
            reported = await eventually(
                "failed", lambda: reached(admin, namespace, "Failed"), DEADLINE_SECONDS
            )
            assert "the measured pod no longer exists" in reported["message"]
            await eventually(
                "everything is gone", lambda: nothing_left(admin, namespace), DEADLINE_SECONDS
            )
            assert await live_pods(admin, namespace) == pods
            assert await served(admin, namespace)


PLAN: dict[str, Any] = {"model": {"platform": "tensorrt_plan"}, "slo": {"p99Milliseconds": 85}}
PROVEN = RESULT | {
    "patch": "spec:\n  tokenizer:\n    padding: Bucketed\n    buckets: [32, 128]\n",
    "gainPercent": 31,
}


async def padded(client: Client, namespace: str, mode: str, replicas: int = 1) -> Any:
    """The status, once the pipeline serves whole with that padding."""
    status = await served(client, namespace)
    whole = (
        bool(status)
        and status["servingRevision"] == status["revision"]
        and status["updatedReplicas"] == status["replicas"] == replicas
    )
    return whole and status["padding"]["chosen"] == mode and status


async def test_auto_takes_a_proven_padding_and_keeps_it_over_restarts_and_a_lost_config_map(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    kubelet = Kubelet(admin, namespace)
    kubelet.result = (0, json.dumps(PROVEN))
    async with repeated(kubelet.work):
        async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
            await apply(admin, namespace, **PLAN)
            first = await eventually(
                "by rule", lambda: padded(admin, namespace, "Fixed"), DEADLINE_SECONDS
            )
            await apply(admin, namespace, **PLAN, tuning={"request": "monday"})
            status = await eventually(
                "by measurement", lambda: padded(admin, namespace, "Bucketed"), DEADLINE_SECONDS
            )
            assert status["padding"]["reason"].startswith(
                "measured: Bucketed 32, 128 sustains 1.31 times the load of Fixed within 80 ms"
            )
            assert status["revision"] != first["revision"]
            assert (status["tuning"]["state"], "patch" in status["tuning"]) == ("Succeeded", False)
            assert (
                "padding"
                not in (await admin.get(INFERENCE_PIPELINES, namespace, "p"))["spec"]["tokenizer"]
            ), "the spec is the user's"
        before = await admin.get(DEPLOYMENTS, namespace, "p")
        live = await admin.get(CONFIG_MAPS, namespace, names.live_name("p"))
        await admin.delete(CONFIG_MAPS, namespace, names.live_name("p"))
        async with operator(proxy, tmp_path, namespace, operator_namespace=namespace) as running:
            await eventually("a pass", running.passes, DEADLINE_SECONDS)

            async def rebuilt() -> bool:
                with contextlib.suppress(NotFound):
                    data = (await admin.get(CONFIG_MAPS, namespace, names.live_name("p")))["data"]
                    return (
                        data.get(names.KEY_MEASURED_PADDING)
                        == live["data"][names.KEY_MEASURED_PADDING]
                    )
                return False

            await eventually("the choice is known again", rebuilt, DEADLINE_SECONDS)
            assert await padded(admin, namespace, "Bucketed")
            assert (await admin.get(DEPLOYMENTS, namespace, "p"))["spec"]["template"] == before[
                "spec"
            ]["template"]
            # Other knobs: Auto's rule, which says that there is a measurement of others.
            await apply(
                admin,
                namespace,
                **{**PLAN, "model": {**PLAN["model"], "maxBatchSize": 8}},
                tuning={"request": "monday"},
            )
            other = await eventually(
                "by rule again", lambda: padded(admin, namespace, "Fixed"), DEADLINE_SECONDS
            )
            assert (
                "tuning run 'monday' measured Bucketed 32, 128 to be better, but with other "
                "settings" in other["padding"]["reason"]
            )


@contextlib.asynccontextmanager
async def refused_record(client: Client, namespace: str) -> AsyncIterator[None]:
    """Refuse every ConfigMap of the namespace that holds a measured padding.

    The API server refuses them for the duration of the context.
    """
    name, key, version = (
        f"no-record-{namespace}",
        names.KEY_MEASURED_PADDING,
        "admissionregistration.k8s.io/v1",
    )
    rules = [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["configmaps"],
        }
    ]
    policy = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [
            {
                "expression": f"!has(object.data) || !('{key}' in object.data)",
                "message": "no records here",
                "reason": "Forbidden",
            }
        ],
    }
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": here}
    trial = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "trial", "namespace": namespace},
        "data": {key: "{}"},
    }

    async def refused() -> bool:
        try:
            await client.apply(trial, dry_run=True)
        except Forbidden:
            return True
        return False

    async def taken() -> bool:
        return not await refused()

    for kind, resource, spec in (
        ("ValidatingAdmissionPolicy", POLICIES, policy),
        ("ValidatingAdmissionPolicyBinding", BINDINGS, binding),
    ):
        await apply_any(
            client,
            resource,
            {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec},
        )
    try:
        await eventually("the policy holds", refused, DEADLINE_SECONDS)
        yield
    finally:
        for resource in (BINDINGS, POLICIES):
            await client.delete(resource, None, name)
    await eventually("the policy is gone", taken, DEADLINE_SECONDS)


async def test_a_result_whose_record_is_refused_stands_in_the_status_and_is_acted_on_later(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    kubelet = Kubelet(admin, namespace)
    async with (
        operator(proxy, tmp_path, namespace, operator_namespace=namespace),
        repeated(kubelet.work),
    ):
        await apply(admin, namespace, **PLAN)
        await eventually("by rule", lambda: padded(admin, namespace, "Fixed"), DEADLINE_SECONDS)
        before = await admin.get(DEPLOYMENTS, namespace, "p")
        async with refused_record(admin, namespace):
            kubelet.result = (0, json.dumps(PROVEN))
            await apply(admin, namespace, **PLAN, tuning={"request": "monday"})
            reported = await eventually(
                "done", lambda: reached(admin, namespace, "Succeeded"), DEADLINE_SECONDS
            )
            assert reported["gainPercent"] == 31
            await eventually(
                "everything is gone", lambda: nothing_left(admin, namespace), DEADLINE_SECONDS
            )
            # A pass that finds no Job any more, and whose record is refused again.
            await apply(
                admin, namespace, **PLAN, tuning={"request": "monday"}, health={"periodSeconds": 31}
            )
            status = await eventually(
                "refused",
                lambda: refused_for(admin, namespace, "no records here"),
                DEADLINE_SECONDS,
            )
            assert status["tuning"] == reported
            assert [
                (item["padding"], item["request"]) for item in status["padding"]["measured"]
            ] == [("Bucketed", "monday")]
            assert (
                names.KEY_MEASURED_PADDING
                not in (await admin.get(CONFIG_MAPS, namespace, names.live_name("p")))["data"]
            )
            assert (await admin.get(DEPLOYMENTS, namespace, "p"))["spec"]["template"] == before[
                "spec"
            ]["template"]
        await apply(
            admin, namespace, **PLAN, tuning={"request": "monday"}, health={"periodSeconds": 32}
        )
        status = await eventually(
            "by measurement", lambda: padded(admin, namespace, "Bucketed"), DEADLINE_SECONDS
        )
        assert {key: status["tuning"][key] for key in reported} == reported
        assert (
            names.KEY_MEASURED_PADDING
            in (await admin.get(CONFIG_MAPS, namespace, names.live_name("p")))["data"]
        )


async def refused_for(client: Client, namespace: str, why: str) -> Any:
    """Return the status once Ready reports a refusal for that reason.

    Ready must be of the current generation.
    """
    item = await client.get(INFERENCE_PIPELINES, namespace, "p")
    ready = next((one for one in item["status"]["conditions"] if one["type"] == "Ready"), {})
    present = ready.get("observedGeneration") == item["metadata"]["generation"]
    return present and ready["status"] == "False" and why in ready["message"] and item["status"]
