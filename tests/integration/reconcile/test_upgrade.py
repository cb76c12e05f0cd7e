"""The operator takes over what earlier releases created, on a real API server.

`tests/corpus/releases` holds the objects of each release. The controllers are real, and the kubelet
is simulated.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import libyaml
from tests.support.faultproxy import FaultProxy
from tests.support.operators import apply_any, eventually, is_ready, operator, repeated, serve_pods
from tests.unit.docs import markdown
from triton_pipelines.api import names
from triton_pipelines.cluster import resources
from triton_pipelines.cluster.client import Client, Object
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
COUNTS = {"tokenizer": 3}
"""Live instance counts at the time of the upgrade."""


def changes_since(version: str) -> str:
    """Return the changelog after a version: its newer sections, and the fragments."""
    newer = (markdown.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    fragments = sorted((markdown.ROOT / "changelog.d").glob("*.md"))
    texts = [newer.partition(f"\n## {version} ")[0], *(path.read_text() for path in fragments)]
    return re.sub(r"\s+", " ", " ".join(texts))


async def install(client: Client, namespace: str, release: Path) -> Object:
    """Create the objects of a release; return the pipeline."""
    recorded = list(libyaml.load_all(release.read_text(encoding="utf-8")))
    pipeline, *children = recorded
    pipeline["metadata"]["namespace"] = namespace
    owner = await apply_any(client, INFERENCE_PIPELINES, pipeline)
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    kinds = {resource.kind: resource for resource in resources.WATCHED_CHILDREN}
    for child in children:
        child["metadata"] |= {
            "namespace": namespace,
            "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
        }
        if "counts.json" in child.get("data", {}):
            child["data"]["counts.json"] = json.dumps(COUNTS)
        await apply_any(client, kinds[child["kind"]], child, manager=names.MANAGER_CHILDREN)
    return owner


async def deployed_revision(client: Client, namespace: str, name: str) -> str:
    deployment = await client.get(DEPLOYMENTS, namespace, name)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    return str(labels[names.LABEL_REVISION])


async def identities(client: Client, namespace: str) -> dict[tuple[str, str], str]:
    """Return the UID of each object of the pipeline that has no revision in its name."""
    listed = [
        (resource.kind, item)
        for resource in resources.WATCHED_CHILDREN
        if resource.kind in ("Deployment", "Service", "NetworkPolicy", "ConfigMap")
        for item in (
            await client.list(resource, namespace, label_selector=names.MANAGED_SELECTOR)
        ).items
    ]
    return {(kind, item["metadata"]["name"]): item["metadata"]["uid"] for kind, item in listed}


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
async def test_an_upgrade_keeps_objects_and_replaces_pods_only_if_the_changelog_says_so(
    admin: Client, proxy: FaultProxy, namespace: str, tmp_path: Path, release: Path
) -> None:
    pipeline = await install(admin, namespace, release)
    name = pipeline["metadata"]["name"]
    before = await identities(admin, namespace)
    revision = await deployed_revision(admin, namespace, name)
    async with repeated(partial(serve_pods, admin, namespace)):

        async def pods_serve() -> bool:
            pods = (await admin.list(PODS, namespace)).items
            return bool(pods) and all(map(is_ready, pods))

        await eventually("the pods of the release serve", pods_serve)
        (pod,) = (await admin.list(PODS, namespace)).items
        async with operator(proxy, tmp_path, namespace, operator_namespace=namespace, **OPTIONS):

            async def is_adopted() -> bool:
                item = await admin.get(INFERENCE_PIPELINES, namespace, name)
                conditions = (item.get("status") or {}).get("conditions", ())
                return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

            await eventually("the new operator reports Ready", is_adopted, 120)
            after = await identities(admin, namespace)
            new_revision = await deployed_revision(admin, namespace, name)
            live = await admin.get(CONFIG_MAPS, namespace, f"{name}-live")
            (served,) = (await admin.list(PODS, namespace)).items
    assert {key: after.get(key) for key in before} == before
    assert json.loads(live["data"]["counts.json"]) == COUNTS
    is_same_pod = served["metadata"]["uid"] == pod["metadata"]["uid"]
    assert is_same_pod == (new_revision == revision)
    assert is_same_pod or ROLLS in changes_since(release.stem)
