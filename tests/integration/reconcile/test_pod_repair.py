"""Pods that are recreated because their content differs or a process died.

The control plane is real, and its controllers create the new pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import eventually, healthy, operator, patch, repeated
from tests.support.simulated_nodes import is_ready, ready_status
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import LoadReport, ReportSource
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import CONFIG_MAPS, EVENTS, INFERENCE_PIPELINES, PODS
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import Probe

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(150),
]


def pipeline(namespace: str) -> Object:
    item = builders.document(name="p", namespace=namespace, replicas=2, health={"periodSeconds": 5})
    item["metadata"].pop("uid")
    return item


async def pods_of(admin: Client, namespace: str) -> list[Object]:
    return (await admin.list(PODS, namespace, label_selector=names.MANAGED_SELECTOR)).items


def content(pod: Object) -> str:
    """What its loader says that it loaded."""
    message = pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"]
    (source,) = LoadReport.model_validate_json(message).sources
    return str(source.resolved_revision)


async def load_pods(admin: Client, namespace: str) -> None:
    """Act as kubelet and loader, once.

    A pod loads what is recorded for its revision, or else the current content of its source.
    """
    try:
        live = (await admin.get(CONFIG_MAPS, namespace, names.live_name("p"))).get("data") or {}
    except NotFound:
        return
    recorded = json.loads(live.get(names.KEY_RESOLVED, "{}"))
    waiting = [
        pod
        for pod in await pods_of(admin, namespace)
        if not is_ready(pod) and not pod["metadata"].get("deletionTimestamp")
    ]
    # Where nothing is recorded, both start side by side.
    if recorded or len(waiting) > 1:
        await asyncio.gather(*(_load(admin, pod, recorded) for pod in waiting))


async def _load(
    admin: Client, pod: Object, recorded: Mapping[str, Mapping[str, Mapping[str, str]]]
) -> None:
    metadata = pod["metadata"]
    revision = metadata["labels"][names.LABEL_REVISION]
    loaded = recorded.get(revision, {}).get("model", {}).get("revision") or metadata["name"]
    source = ReportSource(
        step="model", uri="s3://models/sentiment/model.onnx", resolved_revision=loaded
    )
    status = ready_status(pod)
    status["initContainerStatuses"][0]["state"]["terminated"]["message"] = LoadReport(
        ok=True, revision=revision, sources=(source,)
    ).to_json()
    with contextlib.suppress(NotFound):
        await patch(
            admin, PODS, metadata["namespace"], metadata["name"], {"status": status}, "status"
        )


async def served(admin: Client, namespace: str) -> list[Object] | None:
    """The two pods, once both serve one content and the pipeline is Ready."""
    item = await admin.get(INFERENCE_PIPELINES, namespace, "p")
    ready = any(
        one["type"] == "Ready" and one["status"] == "True"
        for one in (item.get("status") or {}).get("conditions", ())
    )
    pods = [
        pod
        for pod in await pods_of(admin, namespace)
        if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")
    ]
    return pods if ready and len(pods) == 2 and len({content(pod) for pod in pods}) == 1 else None


async def posted_events(admin: Client, namespace: str, reason: str) -> list[str]:
    """Events with this reason, once there are any: they are posted after what they are about."""
    return list(
        await eventually(f"an event {reason}", lambda: events(admin, namespace, reason), 60)
    )


async def events(admin: Client, namespace: str, reason: str) -> list[str]:
    found = (await admin.list(EVENTS, namespace)).items
    return [
        item["note"]
        for item in found
        if item["reason"] == reason and item["regarding"]["kind"] == names.KIND
    ]


async def test_pods_that_loaded_different_things_end_with_what_was_recorded(
    admin: Client, proxy: FaultProxy, namespace: str, tmp_path: Path
) -> None:
    async with operator(proxy, tmp_path, namespace):
        await admin.apply(pipeline(namespace))
        async with repeated(partial(load_pods, admin, namespace)):
            pods = await eventually(
                "both pods serve one content", lambda: served(admin, namespace), 60
            )
        (note,) = await posted_events(admin, namespace, "SourceChanged")
    live = (await admin.get(CONFIG_MAPS, namespace, names.live_name("p")))["data"]
    (recorded,) = json.loads(live[names.KEY_RESOLVED]).values()
    assert {content(pod) for pod in pods} == {recorded["model"]["revision"]}
    gone = note.split()[1]
    assert gone not in {pod["metadata"]["name"] for pod in pods}
    assert f"this pod loaded revision {gone}" in note


async def test_a_pod_with_a_dead_process_is_replaced_and_the_other_stays(
    admin: Client, proxy: FaultProxy, namespace: str, tmp_path: Path
) -> None:
    dead: set[str] = set()

    async def look(target: ProbeTarget, now: dt.datetime) -> Probe:
        good = await healthy(target, now)
        if target.pod.name not in dead or target.example is None:
            return good
        return replace(
            good, inference_error="Stub process 'tokenizer_0_0' is not healthy.", dead=(now,)
        )

    async with operator(proxy, tmp_path, namespace, prober=look):
        await admin.apply(pipeline(namespace))
        async with repeated(partial(load_pods, admin, namespace)):
            before = {
                pod["metadata"]["name"]
                for pod in await eventually("served", lambda: served(admin, namespace), 60)
            }
            broken = min(before)
            dead.add(broken)

            async def healed() -> list[Object] | None:
                pods = await served(admin, namespace)
                return (
                    pods
                    if pods and broken not in {pod["metadata"]["name"] for pod in pods}
                    else None
                )

            after = {
                pod["metadata"]["name"]
                for pod in await eventually("the broken pod is replaced", healed, 60)
            }
        (note,) = await posted_events(admin, namespace, "BackendProcessDied")
    assert before & after == before - {broken}
    assert note.startswith(f"pod {broken} is deleted")
