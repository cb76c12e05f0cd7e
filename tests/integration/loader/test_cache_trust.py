"""Test that a model cache to which others can write changes nothing that a pod serves."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.loader.conftest import Pod
from tests.support.hub import HubServer
from tests.support.web import LoopbackServer, Request, Response, file_response
from triton_pipelines.api.loadplan import FetchKind, LoadReason, PlanFetch
from triton_pipelines.loader.file_lease import LeaseTimes

pytestmark = pytest.mark.integration

DATA = os.urandom(200_000)
OTHER = DATA[::-1]
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def cached(pod: Pod) -> Pod:
    pod.options = replace(pod.options, cache=pod.root / "cache", cache_keep_free=0.0)
    return pod


def poison(cached: Pod, of: str | None = None) -> None:
    """Let index entries (all, or those of a digest) name another file of the cache."""
    root, digest = cached.root / "cache/v1", hashlib.sha256(OTHER).hexdigest()
    other = root / "files" / digest[:2] / digest
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(OTHER)
    for index in root.glob("index/*/*"):
        if of in (None, json.loads(index.read_text())["sha256"]):
            index.write_text(json.dumps({"sha256": digest, "size": len(OTHER)}))


def served(cached: Pod, path: str, recorded: bool = False) -> bytes:
    """Load, poison the cache, load in another pod; what that pod serves."""
    code, _ = cached.load()
    assert code == 0, cached.output
    if recorded:
        cached.recorded()
    poison(cached)
    cached.another()
    code, report = cached.load()
    assert code == 0, cached.output
    assert report.sources[0].sha256 != hashlib.sha256(OTHER).hexdigest()
    return (cached.models / path).read_bytes()


def web(request: Request) -> Response:
    return file_response(request, DATA, '"v1"')


@pytest.mark.parametrize("pinned", ["sha256", "record"])
def test_a_pinned_digest_holds_for_a_web_server(cached: Pod, pinned: str) -> None:
    sha256 = DIGEST if pinned == "sha256" else None
    with LoopbackServer(web) as server:
        cached.map(f"https://models.example.com/={server.url}/")
        cached.plan(
            PlanFetch(
                step="model",
                uri="https://models.example.com/m.bin",
                target="m/1/model.bin",
                sha256=sha256,
            )
        )
        assert served(cached, "m/1/model.bin", recorded=pinned == "record") == DATA
        assert "the digest does not match after a copy from the model cache" in cached.output
        # The good entry is back.
        cached.another()
        cached.output = ""
        assert cached.load()[0] == 0
        assert "from the model cache" in cached.output


def test_a_pinned_digest_holds_for_a_registry(cached: Pod) -> None:
    layer = {
        "mediaType": "application/octet-stream",
        "digest": f"sha256:{DIGEST}",
        "size": len(DATA),
        "annotations": {"org.opencontainers.image.title": "model.bin"},
    }
    manifest = json.dumps({"schemaVersion": 2, "layers": [layer]}).encode()

    def registry(request: Request) -> Response:
        if "/blobs/" in request.path:
            return file_response(request, DATA, '"v1"')
        return Response(200, {}, manifest)

    with LoopbackServer(registry) as server:
        cached.map(f"oci://={server.url}")
        digest = hashlib.sha256(manifest).hexdigest()
        cached.plan(
            PlanFetch(
                step="model",
                uri=f"oci://registry.example/models/x@sha256:{digest}",
                target="m",
                kind=FetchKind.FOLDER,
            )
        )
        assert served(cached, "m/model.bin") == DATA


@pytest.mark.parametrize("name", ["model.bin", "vocab.txt"], ids=["lfs", "git"])
def test_a_pinned_commit_holds_for_a_hub(cached: Pod, name: str) -> None:
    with HubServer() as hub:
        commit = hub.publish("org/name", {name: DATA})
        cached.map(f"hf://={hub.url}")
        cached.plan(
            PlanFetch(
                step="model",
                uri="hf://org/name",
                revision=commit,
                path=name,
                target=f"m/1/{name}",
            )
        )
        assert served(cached, f"m/1/{name}") == DATA


def test_another_pods_fetch_is_not_waited_for_when_the_load_has_failed(
    cached: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One source is missing; another pod holds the lease of the second."""
    monkeypatch.setattr(
        "triton_pipelines.loader.cache.LeaseTimes", lambda: LeaseTimes(poll=0.01, dead_after=20)
    )

    def answer(request: Request) -> Response:
        return Response(404) if "gone" in request.path else web(request)

    with LoopbackServer(answer) as server:
        cached.map(f"https://models.example.com/={server.url}/")
        good = PlanFetch(
            step="good", uri="https://models.example.com/m.bin", target="good/1/model.bin"
        )
        gone = PlanFetch(
            step="gone", uri="https://models.example.com/gone", target="gone/1/model.bin"
        )
        cached.plan(good)
        assert cached.load()[0] == 0, cached.output
        (index,) = (cached.root / "cache").glob("v1/index/*/*")
        key = index.stem
        index.unlink()
        cached.another()
        lock = Path(cached.root / "cache/v1/locks" / key)
        lock.write_text("another pod")
        cached.plan(gone, good)
        # A loader that waits for the other pod ends only after this.
        timer = threading.Timer(60, lambda: lock.unlink(missing_ok=True))
        timer.start()
        code, report = cached.load()
        is_locked = lock.exists()
        timer.cancel()
    assert code == 2, cached.output
    assert [item.reason for item in report.findings] == [LoadReason.SOURCE_UNAVAILABLE]
    assert "another source of this load failed" in cached.output
    assert is_locked
