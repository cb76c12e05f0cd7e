"""The model cache in whole loads.

Pods share it. It replaces no permission check, and a load also works without it.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.integration.loader.conftest import Pod
from tests.support.hub import HubServer
from tests.support.web import LoopbackServer, Request, Response, file_response
from triton_pipelines.api.loadplan import FetchKind, LoadReason, PlanFetch
from triton_pipelines.loader.retry import RetryPolicy

pytestmark = pytest.mark.integration

DATA = os.urandom(3_000_000)
TOKEN = "s3cret-token-41d8"


def second(pod: Pod, name: str = "second") -> Pod:
    """Another pod with the same mounts, a volume of its own, and the same cache."""
    termination = pod.root / f"{name}-termination"
    termination.touch()
    return Pod(pod.root, replace(pod.options, root=pod.root / name, termination=termination))


@pytest.fixture
def cached(pod: Pod) -> Pod:
    pod.options = replace(pod.options, cache=pod.root / "cache", cache_keep_free=0.0)
    return pod


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(token=TOKEN) as started:
        started.publish("org/name", {"model.bin": DATA, "sub/a": b"a", "sub/b": b"b"})
        yield started


def plan(pod: Pod, hub: HubServer, **rest: object) -> None:
    pod.map(f"hf://={hub.url}")
    values: dict[str, object] = {
        "step": "model",
        "uri": "hf://org/name",
        "target": "bert",
        "kind": FetchKind.MODEL,
        "file": "model.bin",
    }
    pod.plan(PlanFetch(**{**values, "whole": True, "credentials": True, **rest}))  # type: ignore[arg-type]


def test_the_second_pod_copies_what_the_first_fetched(cached: Pod, hub: HubServer) -> None:
    cached.secret("model", token=TOKEN)
    plan(cached, hub)
    assert cached.load()[0] == 0, cached.output
    other = second(cached)
    code, report = other.load()
    assert (code, report.findings) == (0, ())
    assert other.output.count("from the model cache") == 3
    assert other.tree() == cached.tree() == ["bert/1/model.bin", "bert/1/sub/a", "bert/1/sub/b"]
    assert (other.models / "bert/1/model.bin").read_bytes() == DATA
    assert not any(path.is_symlink() for path in other.models.rglob("*"))
    assert report.sources == cached.report().sources
    other.assert_discreet()
    for path in (cached.root / "cache").rglob("*"):
        if path.is_file() and path.suffix == ".json":
            assert TOKEN not in path.read_text()


def test_the_cache_requires_permission_to_read_the_source(cached: Pod, hub: HubServer) -> None:
    cached.secret("model", token=TOKEN)
    plan(cached, hub)
    assert cached.load()[0] == 0, cached.output
    plan(cached, hub, credentials=False)
    other = second(cached)
    code, report = other.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_UNAVAILABLE)
    assert other.tree() == []


def test_a_new_commit_is_another_file(cached: Pod, hub: HubServer) -> None:
    cached.secret("model", token=TOKEN)
    plan(cached, hub)
    assert cached.load()[0] == 0, cached.output
    hub.publish("org/name", {"model.bin": DATA[::-1]})
    other = second(cached)
    assert other.load()[0] == 0, other.output
    assert (other.models / "bert/1/model.bin").read_bytes() == DATA[::-1]


def test_a_broken_copy_is_fetched_again(cached: Pod, hub: HubServer) -> None:
    cached.secret("model", token=TOKEN)
    plan(cached, hub)
    assert cached.load()[0] == 0, cached.output
    for blob in (cached.root / "cache").glob("v1/files/*/*"):
        blob.write_bytes(b"rotten")
    other = second(cached)
    assert other.load()[0] == 0, other.output
    assert (other.models / "bert/1/model.bin").read_bytes() == DATA
    assert "broken copy" in other.output


def test_two_pods_at_once_fetch_once(cached: Pod) -> None:
    release, asked = threading.Event(), list[int]()

    def answer(request: Request) -> Response:
        response = file_response(request, DATA, '"v1"')
        asked.append(1)
        if len(asked) == 1:
            response.hold = (1_000_000, release)
        return response

    with LoopbackServer(answer) as server:
        cached.map(f"https://models.example.com/={server.url}/")
        cached.plan(
            PlanFetch(
                step="model", uri="https://models.example.com/model.bin", target="m/1/model.bin"
            )
        )
        first, other = cached, second(cached)
        runs = [first.start(f"--cache={cached.options.cache}", "--cache-keep-free=0")]
        server.wait_for(1)
        _until(lambda: any((cached.root / "cache").glob("v1/locks/*")))
        runs.append(other.start(f"--cache={cached.options.cache}", "--cache-keep-free=0"))
        server.wait_for(2)
        release.set()
        outputs = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert "another pod is fetching the same file" in outputs[1]
    assert "from the model cache" in outputs[1]
    assert "fetched" in outputs[0]
    assert (
        (other.models / "m/1/model.bin").read_bytes()
        == (first.models / "m/1/model.bin").read_bytes()
        == DATA
    )
    assert list((cached.root / "cache").glob("v1/locks/*")) == []


@pytest.mark.parametrize("kind", ["absent", "full"])
def test_a_load_continues_without_its_cache_and_warns(
    cached: Pod, hub: HubServer, kind: str
) -> None:
    cached.secret("model", token=TOKEN)
    plan(cached, hub)
    folder = cached.root / "cache"
    if kind == "absent":
        folder.write_text("no folder")
        code, report = cached.load()
    else:
        if os.geteuid() != 0:
            pytest.skip("mounting a small volume needs root")
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
        try:
            code, report = cached.load()
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
    assert (code, [item.reason for item in report.findings]) == (0, [LoadReason.CACHE_UNUSED]), (
        cached.output
    )
    assert (cached.models / "bert/1/model.bin").read_bytes() == DATA
    assert (
        "has too little free space for 2.9 MiB" if kind == "full" else "Not a directory"
    ) in report.findings[0].message


def test_weak_answers_are_not_kept(cached: Pod) -> None:
    def weak(request: Request) -> Response:
        return file_response(request, b"now", 'W/"v1"')

    with LoopbackServer(weak) as server:
        cached.map(f"https://models.example.com/={server.url}/")
        cached.plan(
            PlanFetch(
                step="model", uri="https://models.example.com/model.bin", target="m/1/model.bin"
            )
        )
        assert cached.load()[0] == 0, cached.output
    assert not (cached.root / "cache").exists()


def test_a_restart_fetches_only_what_is_missing(pod: Pod) -> None:
    """Several files, the second of which fails.

    The first is not fetched again by the next attempt.
    """
    files = {"a.bin": DATA, "b.bin": b"b" * 1000}
    broken = threading.Event()
    with HubServer() as hub:
        hub.publish("org/name", files)

        def answer(request: Request) -> Response:
            if request.path.endswith("b.bin") and not broken.is_set():
                return Response(403)
            return hub.answer(request)

        with LoopbackServer(answer) as server:
            pod.options = replace(
                pod.options, parallel=1, retry=RetryPolicy(attempts=2, first_delay=0.01)
            )
            pod.map(f"hf://={server.url}")
            pod.plan(
                PlanFetch(
                    step="model",
                    uri="hf://org/name",
                    target="bert",
                    kind=FetchKind.MODEL,
                    whole=True,
                )
            )
            assert pod.load()[0] == 2
            broken.set()
            pod.output = ""
            assert pod.load()[0] == 0, pod.output
    assert pod.tree() == ["bert/1/a.bin", "bert/1/b.bin"]
    assert (pod.models / "bert/1/a.bin").read_bytes() == DATA
    assert "a.bin: complete since an earlier attempt" in pod.output
    assert "fetched 2 of 2 files" in pod.output


def _until(condition: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(2000):
        if condition():
            return
        deadline.wait(0.01)
    raise TimeoutError("did not come within 20 s")
