"""A full volume, and the packages for the Triton image, both for real."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.integration.loader.conftest import Pod
from tests.support.hub import HubServer
from tests.support.web import LoopbackServer, Request, Response, file_response
from triton_pipelines.api.loadplan import FetchKind, LoadReason, PlanFetch, PlanFile

pytestmark = pytest.mark.integration

SIZE = 4 << 20


@pytest.fixture
def small(pod: Pod) -> Iterator[Pod]:
    """A pod whose volume holds 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small volume needs root")
    volume = pod.root / "small"
    volume.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", volume], check=True)
    try:
        pod.options = replace(pod.options, root=volume)
        yield pod
    finally:
        subprocess.run(["umount", "--lazy", volume], check=True)


def item(url: str) -> PlanFetch:
    return PlanFetch(
        step="model", uri="https://models.example.com/model.bin", target="model/1/model.bin"
    )


def test_a_file_larger_than_the_volume_is_refused_before_it_is_fetched(small: Pod) -> None:
    data = bytes(SIZE + 1)
    with LoopbackServer(lambda request: file_response(request, data, '"big"')) as server:
        small.map(f"https://models.example.com/={server.url}/")
        missing = PlanFetch(
            step="tokenizer", uri="pvc://absent/t.json", target="tokenizer/1/tokenizer.json"
        )
        small.plan(
            missing,
            item(server.url),
            missing.model_copy(update={"target": "never/1/reached", "slot": "more"}),
        )
        code, report = small.load()
    # Earlier failures are reported too; nothing more is tried on a full volume.
    assert [item.reason for item in report.findings] == [
        LoadReason.SOURCE_UNAVAILABLE,
        LoadReason.NO_SPACE,
    ]
    finding = report.findings[1]
    assert (code, finding.reason, finding.step, finding.field) == (
        2,
        LoadReason.NO_SPACE,
        "model",
        "spec.model.source",
    )
    assert f"requires {SIZE + 1} bytes" in finding.message
    assert "bytes free" in finding.message
    assert not list(small.options.root.rglob("*.part"))


def test_a_folder_larger_than_the_volume_is_refused_before_its_first_file(small: Pod) -> None:
    with HubServer() as hub:
        hub.publish("org/name", {f"{n}.bin": bytes(1 << 20) for n in range(5)})
        small.map(f"hf://={hub.url}")
        small.plan(
            PlanFetch(
                step="model", uri="hf://org/name", target="bert", kind=FetchKind.MODEL, whole=True
            )
        )
        code, report = small.load()
        assert not any("/resolve/" in request.path for request in hub.requests)
    assert (code, [item.reason for item in report.findings]) == (2, [LoadReason.NO_SPACE])
    assert f"requires {5 << 20} bytes" in report.findings[0].message


def test_one_file_that_cannot_be_had_ends_the_others(pod: Pod) -> None:
    release = threading.Event()

    def answer(request: Request) -> Response:
        if "/resolve/" not in request.path:
            return hub.answer(request)
        if request.path.endswith("2.bin"):
            # Stalled downloads continue after the refusal.
            threading.Timer(1.0, release.set).start()
            return Response(403)
        response = hub.answer(request)
        response.hold = (10, release)
        return response

    with HubServer() as hub, LoopbackServer(answer) as server:
        hub.publish("org/name", {f"{n}.bin": bytes(100_000) for n in range(8)})
        pod.map(f"hf://={server.url}")
        pod.plan(
            PlanFetch(
                step="model", uri="hf://org/name", target="bert", kind=FetchKind.MODEL, whole=True
            )
        )
        code, report = pod.load()
    assert code == 2, pod.output
    assert "returned 403" in report.findings[0].message
    assert len([request for request in server.requests if "/resolve/" in request.path]) < 8
    assert pod.tree() == []
    # Nor were those under way brought to their end.
    assert list(pod.options.state.rglob("*.done.json")) == []


def test_a_volume_that_fills_up_while_a_file_of_unknown_size_comes(small: Pod) -> None:
    data = b"Z" * (SIZE * 2)
    chunked = (
        b"".join(
            b"10000\r\n" + data[at : at + 65536] + b"\r\n" for at in range(0, len(data), 65536)
        )
        + b"0\r\n\r\n"
    )

    def answer(_: object) -> Response:
        return Response(200, {"Transfer-Encoding": "chunked"}, chunked)

    with LoopbackServer(answer, length=False) as server:
        small.map(f"https://models.example.com/={server.url}/")
        small.plan(item(server.url))
        code, report = small.load()
    finding = report.findings[0]
    assert (code, finding.reason, finding.step) == (2, LoadReason.NO_SPACE, "model"), small.output
    assert finding.message.startswith(
        "spec.model.source https://models.example.com/model.bin requires more"
    )
    assert not (small.models / "model/1/model.bin").exists()


def test_configuration_on_a_full_volume(small: Pod) -> None:
    (small.options.revision / "big").write_bytes(bytes(SIZE + 1))
    small.plan(files=[PlanFile(key="big", path="model/config.pbtxt")])
    code, report = small.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.NO_SPACE), small.output
    assert f"requires {SIZE + 1} bytes" in report.findings[0].message


def test_sigterm_ends_the_loader_at_once(pod: Pod) -> None:
    with LoopbackServer(lambda _: Response(503, {"Retry-After": "60"})) as server:
        pod.map(f"https://models.example.com/={server.url}/")
        pod.plan(item(server.url))
        process = pod.start("--retry-delay=20")
        server.wait_for(1)
        process.terminate()
        pod.output += process.communicate(timeout=10)[0]
    assert process.returncode == 143
