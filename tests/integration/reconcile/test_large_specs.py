"""Resources larger than the limit affect only themselves, and are not kept in memory."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import Running, apply_any, eventually, operator
from triton_pipelines.cluster.client import PAGE_SIZE, SMALL_PAGE_SIZE, Client, Object
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]
# The API server stores at most 1.5 MiB, its own fields included.
VARIABLES, LENGTH = 1_000, 1_200


def document(namespace: str, name: str, *, large: bool = False) -> Object:
    made = builders.document(name=name, namespace=namespace)
    made["metadata"].pop("uid")
    if large:
        variables = [{"name": f"V{number}", "value": "x" * LENGTH} for number in range(VARIABLES)]
        container = {"name": "triton", "env": variables}
        made["spec"]["server"] = {"podTemplate": {"spec": {"containers": [container]}}}
    return made


def kept_bytes(running: Running, namespace: str, name: str) -> int:
    assert running.services is not None
    found = running.services.store.get(INFERENCE_PIPELINES, namespace, name)
    return len(json.dumps(found)) if found else 0


async def test_large_specs_are_reported_and_not_kept(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    async def stalled(name: str) -> str:
        found = await bare.get(INFERENCE_PIPELINES, bare_namespace, name)
        conditions = (found.get("status") or {}).get("conditions", ())
        return next((item["message"] for item in conditions if item["type"] == "Stalled"), "")

    async def is_applied(name: str) -> bool:
        return bool(await bare.get(DEPLOYMENTS, bare_namespace, name))

    stored = [f"stored-{number}" for number in range(PAGE_SIZE + 5)]
    for name in stored:
        await apply_any(bare, INFERENCE_PIPELINES, document(bare_namespace, name, large=True))
    async with operator(bare_proxy, tmp_path, bare_namespace) as running:
        # The list of a start, and a watch.
        await apply_any(bare, INFERENCE_PIPELINES, document(bare_namespace, "new", large=True))
        await apply_any(bare, INFERENCE_PIPELINES, document(bare_namespace, "good"))
        await eventually("the other pipeline", lambda: is_applied("good"))
        for name in (*stored, "new"):
            message = str(await eventually(f"status of {name}", lambda name=name: stalled(name)))
            assert message.startswith("spec.server.podTemplate: the spec has 12"), message
            assert 0 < kept_bytes(running, bare_namespace, name) < 4_000
    pages = [
        parse_qs(urlsplit(seen.target).query)["limit"]
        for seen in bare_proxy.requests
        if seen.method == "GET" and "inferencepipelines?" in seen.target
        if "watch=" not in seen.target
    ]
    # Later lists, of metadata only, have larger pages.
    assert pages[:2] == [[str(PAGE_SIZE)], [str(PAGE_SIZE)]]
    assert all(page in ([str(PAGE_SIZE)], [str(SMALL_PAGE_SIZE)]) for page in pages)
