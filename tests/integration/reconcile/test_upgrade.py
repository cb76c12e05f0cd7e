"""The operator takes over what earlier releases created, on a real API server.

`tests/corpus/releases` holds the objects of each release. The controllers are real, and the kubelet
is simulated.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import libyaml
from tests.support.faultproxy import FaultProxy
from tests.support.operators import apply_any, eventually, operator, repeated
from tests.support.simulated_nodes import is_ready, serve_pods
from tests.unit.docs import markdown
from triton_pipelines.api import names
from triton_pipelines.cluster import resources
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_PIPELINES, PODS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]
RELEASES = sorted((markdown.ROOT / "tests/corpus/releases").glob("*.yaml"))
ROLLS = "rolls every pipeline"
"""What the changelog says of a release whose upgrade replaces pods (docs/user/upgrades.md)."""
OPTIONS: dict[str, Any] = {
    "loader_image": "registry.local/triton-pipelines/operator:next",
    "images": {"default": "registry.local/triton-pipelines/tritonserver-cpu:24.10"},
    "source_map": ("s3://models/=http://10.99.0.1:9000/",),
    "substitute_runner": frozenset({"onnxruntime_onnx"}),
}
"""The options of the recorded operator, but for the image of the new release."""
NAMESPACE = "default"
"""The namespace of the recorded objects, which is part of the revision's hash."""
READY_SECONDS = 120.0
COUNTS = {"tokenizer": 3}
"""Live instance counts at the time of the upgrade."""


def changes_since(version: str) -> str:
    """Return the changelog after a version: its newer sections, and the fragments."""
    newer = (markdown.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    fragments = sorted((markdown.ROOT / "changelog.d").glob("*.md"))
    texts = [newer.partition(f"\n## {version} ")[0], *(path.read_text() for path in fragments)]
    return re.sub(r"\s+", " ", " ".join(texts))


async def install(client: Client, release: Path) -> str:
    """Create the objects of a release; return the name of their pipeline."""
    recorded = list(libyaml.load_all(release.read_text(encoding="utf-8")))
    pipeline, *children = recorded
    pipeline["metadata"]["namespace"] = NAMESPACE
    owner = await apply_any(client, INFERENCE_PIPELINES, pipeline)
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    kinds = {resource.kind: resource for resource in resources.WATCHED_CHILDREN}
    for child in children:
        child["metadata"] |= {
            "namespace": NAMESPACE,
            "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
        }
        if "counts.json" in child.get("data", {}):
            child["data"]["counts.json"] = json.dumps(COUNTS)
        await apply_any(client, kinds[child["kind"]], child, manager=names.MANAGER_CHILDREN)
    return str(owner["metadata"]["name"])


async def deployed_revision(client: Client, name: str) -> str:
    deployment = await client.get(DEPLOYMENTS, NAMESPACE, name)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    return str(labels[names.LABEL_REVISION])


async def identities(client: Client) -> dict[tuple[str, str], str]:
    """Return the UID of each object of the pipeline that has no revision in its name."""
    listed = [
        (resource.kind, item)
        for resource in resources.WATCHED_CHILDREN
        if resource.kind in ("Deployment", "Service", "NetworkPolicy", "ConfigMap")
        for item in (
            await client.list(resource, NAMESPACE, label_selector=names.MANAGED_SELECTOR)
        ).items
    ]
    return {(kind, item["metadata"]["name"]): item["metadata"]["uid"] for kind, item in listed}


@pytest.fixture(params=RELEASES, ids=lambda path: path.stem)
async def release(admin: Client, request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, str]]:
    """Install what a release created, with pods that serve.

    Yields its version, and the name of the pipeline.
    """
    name = await install(admin, request.param)
    async with repeated(partial(serve_pods, admin, NAMESPACE)):
        await eventually("the pod of the release serves", partial(serving_pod, admin))
        yield request.param.stem, name
    await admin.delete(INFERENCE_PIPELINES, NAMESPACE, name)
    await eventually("the release is removed", partial(is_removed, admin))


async def serving_pod(client: Client) -> str:
    """Return the UID of the only pod, if it is ready."""
    pods = (await client.list(PODS, NAMESPACE)).items
    return pods[0]["metadata"]["uid"] if len(pods) == 1 and is_ready(pods[0]) else ""


async def is_removed(client: Client) -> bool:
    """Return whether nothing of the pipeline is left; no kubelet ends its pods."""
    for pod in (await client.list(PODS, NAMESPACE)).items:
        await client.delete(PODS, NAMESPACE, pod["metadata"]["name"], grace_seconds=0)
    return not await identities(client)


async def test_an_upgrade_keeps_objects_and_replaces_pods_only_if_the_changelog_says_so(
    admin: Client, proxy: FaultProxy, tmp_path: Path, release: tuple[str, str]
) -> None:
    version, name = release
    before, revision = await identities(admin), await deployed_revision(admin, name)
    pod = await serving_pod(admin)
    async with operator(proxy, tmp_path, NAMESPACE, operator_namespace=NAMESPACE, **OPTIONS):

        async def is_adopted() -> bool:
            item = await admin.get(INFERENCE_PIPELINES, NAMESPACE, name)
            conditions = (item.get("status") or {}).get("conditions", ())
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        await eventually("the new operator reports Ready", is_adopted, READY_SECONDS)
        after, new_revision = await identities(admin), await deployed_revision(admin, name)
        live = await admin.get(CONFIG_MAPS, NAMESPACE, f"{name}-live")
        served = await serving_pod(admin)
    assert {key: after.get(key) for key in before} == before
    assert json.loads(live["data"]["counts.json"]) == COUNTS
    assert served
    assert (served == pod) == (new_revision == revision)
    assert served == pod or ROLLS in changes_since(version)
