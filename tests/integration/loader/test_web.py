"""Load https sources from a real TLS server with its own CA.

The server injects every fault that the loader must tolerate.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from e2e.local.pki import Authority
from tests.integration.loader.conftest import Pod
from tests.integration.loader.faulty import BUFFER, DATA, ETAG, SHA, TOKEN, Faulty, fetched, item
from tests.support.web import LoopbackServer, Request, Response
from triton_pipelines.api.loadplan import LoadReason

pytestmark = pytest.mark.integration


def test_a_file_with_its_etag(trusting: Pod, server: LoopbackServer) -> None:
    trusting.plan(item(f"{server.url}/a/model.bin", sha256=SHA))
    code, report = trusting.load()
    assert code == 0, trusting.output
    assert fetched(trusting) == DATA
    assert (report.sources[0].resolved_revision, report.sources[0].sha256) == (ETAG, SHA)
    assert "fetched 2.9 MiB of 2.9 MiB (100 %)" in trusting.output
    assert server.requests[0].headers["accept-encoding"] == "identity"


def test_an_unknown_ca_is_final_and_says_what_to_do(pod: Pod, server: LoopbackServer) -> None:
    pod.plan(item(f"{server.url}/model.bin", ca=False))
    code, report = pod.load()
    assert (code, report.findings[0].reason, report.findings[0].field) == (
        2,
        LoadReason.SOURCE_UNAVAILABLE,
        "spec.model.source.uri",
    )
    assert "set its CA in source.caRef" in report.findings[0].message
    assert "attempt" not in pod.output


def test_a_broken_ca_bundle_is_named(pod: Pod, server: LoopbackServer) -> None:
    (pod.options.ca / "model").mkdir()
    (pod.options.ca / "model" / "ca.crt").write_text("no pem")
    pod.plan(item(f"{server.url}/model.bin"))
    code, report = pod.load()
    assert code == 2
    assert "caRef cannot be used" in report.findings[0].message


def test_503_then_ok_is_retried_with_the_reason_logged(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    faulty.script = [faulty.status(503, Retry_After="0"), faulty.status(429), faulty.status(502)]
    trusting.plan(item(f"{server.url}/model.bin"))
    code, _ = trusting.load()
    assert (code, len(server.requests)) == (0, 4)
    for number, status in ((1, 503), (2, 429), (3, 502)):
        assert f"attempt {number} failed" in trusting.output
        assert f"returned {status}" in trusting.output


def test_retries_are_bounded_and_leave_another_start_to_try(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    faulty.script = [faulty.status(500)] * 20
    trusting.plan(item(f"{server.url}/model.bin"))
    code, report = trusting.load()
    assert (code, len(server.requests), report.findings[0].reason) == (
        3,
        4,
        LoadReason.SOURCE_UNAVAILABLE,
    )
    assert "attempt 4 failed, giving up" in trusting.output


def test_a_missing_file_is_final(trusting: Pod, server: LoopbackServer, faulty: Faulty) -> None:
    faulty.script = [faulty.status(404)]
    trusting.plan(item(f"{server.url}/models/nope.bin"))
    code, report = trusting.load()
    assert (code, len(server.requests)) == (2, 1)
    assert report.findings[0].message == (
        f"spec.model.source {server.url}/models/nope.bin: 127.0.0.1 has no file "
        "/models/nope.bin (404); check uri, path and revision"
    )


def test_a_server_that_is_not_there_is_retried(pod: Pod) -> None:
    with LoopbackServer(lambda _: Response()) as gone:
        port = gone.port
    pod.plan(item(f"https://127.0.0.1:{port}/model.bin", ca=False))
    code, report = pod.load()
    assert (code, report.findings[0].reason) == (3, LoadReason.SOURCE_UNAVAILABLE)
    assert "giving up: ConnectError" in pod.output


def test_truncated_bodies_are_resumed_where_they_ended(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    # More cuts than tries in a row without progress: each brought something new.
    faulty.script = [faulty.cut(400_000)] * 6
    trusting.plan(item(f"{server.url}/model.bin", sha256=SHA))
    code, _ = trusting.load()
    assert code == 0, trusting.output
    assert fetched(trusting) == DATA
    ranges = [request.headers.get("range") for request in server.requests]
    assert ranges == [None, *(f"bytes={400_000 * number}-" for number in range(1, 7))]
    assert {request.headers.get("if-range") for request in server.requests[1:]} == {ETAG}


def test_a_body_shorter_than_announced_never_gets_the_files_name(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    faulty.ranges = False
    faulty.script = [faulty.cut(1_000_000)] * 20
    trusting.plan(item(f"{server.url}/model.bin"))
    code, _ = trusting.load()
    assert code == 3
    assert not (trusting.models / "model/1/model.bin").exists()


def test_a_file_replaced_in_mid_download_is_not_mixed(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    def replaced(request: Request) -> Response:
        response = faulty.cut(1_000_000)(request)
        faulty.data, faulty.etag = DATA[::-1], '"v2"'
        return response

    faulty.script = [replaced]
    trusting.plan(item(f"{server.url}/model.bin"))
    code, report = trusting.load()
    assert code == 0
    assert fetched(trusting) == DATA[::-1]
    assert report.sources[0].resolved_revision == '"v2"'


@pytest.mark.proves("spec.source.sha256", "behaviour")
def test_a_wrong_checksum_shows_both(trusting: Pod, server: LoopbackServer) -> None:
    trusting.plan(item(f"{server.url}/model.bin", sha256="0" * 64))
    code, report = trusting.load()
    finding = report.findings[0]
    assert (code, finding.reason, finding.field) == (
        2,
        LoadReason.CHECKSUM_MISMATCH,
        "spec.model.source.sha256",
    )
    assert "0" * 64 in finding.message
    assert SHA in finding.message
    assert not (trusting.models / "model/1/model.bin").exists()
    assert len(server.requests) == 1


def test_a_spoiled_part_is_fetched_again_from_the_start(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    faulty.script = [faulty.cut(1_000_000), *[faulty.status(500)] * 3]
    trusting.plan(item(f"{server.url}/model.bin", sha256=SHA))
    assert trusting.load()[0] == 3
    part = next(trusting.options.state.rglob("*.part"))
    part.write_bytes(b"\0" * part.stat().st_size)
    code, _ = trusting.load()
    assert code == 0
    assert fetched(trusting) == DATA
    assert "fetching all of it again" in trusting.output


def test_a_part_that_is_already_complete_or_longer_is_fetched_again(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    faulty.script = [faulty.cut(1_000_000), *[faulty.status(500)] * 3]
    trusting.plan(item(f"{server.url}/model.bin"))
    assert trusting.load()[0] == 3
    next(trusting.options.state.rglob("*.part")).write_bytes(bytes(len(DATA)))
    code, _ = trusting.load()
    assert code == 0, trusting.output
    assert "cannot continue where the last attempt ended" in trusting.output
    assert fetched(trusting) == DATA


def test_the_first_load_decides_for_every_later_pod(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    trusting.plan(item(f"{server.url}/model.bin"))
    trusting.resolved("model", '"v0"', hashlib.sha256(b"then").hexdigest())
    code, report = trusting.load()
    finding = report.findings[0]
    assert (code, finding.reason, finding.field) == (
        2,
        LoadReason.SOURCE_CHANGED,
        "spec.model.source",
    )
    for part in ('"v0"', hashlib.sha256(b"then").hexdigest(), ETAG, SHA):
        assert part in finding.message
    assert not (trusting.models / "model/1/model.bin").exists()


def test_the_same_content_under_another_etag_is_no_change(
    trusting: Pod, server: LoopbackServer
) -> None:
    trusting.plan(item(f"{server.url}/model.bin"))
    trusting.resolved("model", '"mirror"', SHA)
    assert trusting.load()[0] == 0


def test_another_etag_without_a_known_digest_is_a_change(
    trusting: Pod, server: LoopbackServer
) -> None:
    trusting.plan(item(f"{server.url}/model.bin"))
    trusting.resolved("model", '"v0"', None)
    code, report = trusting.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_CHANGED)


def test_what_another_revision_resolved_to_does_not_count(
    trusting: Pod, server: LoopbackServer
) -> None:
    trusting.plan(item(f"{server.url}/model.bin"))
    trusting.resolved("model", '"v0"', "0" * 64, of="another")
    assert trusting.load()[0] == 0


@pytest.mark.proves("spec.source.path", "behaviour")
def test_a_folder_of_a_web_server_and_a_path_in_it(
    trusting: Pod, server: LoopbackServer, authority: Authority
) -> None:
    trusting.trust("model.b", authority.identity)
    trusting.plan(
        item(f"{server.url}/folder/?sig=x"),
        item(f"{server.url}/other", path="deep/net.bin", target="model/1/b.bin", slot="b"),
    )
    assert trusting.load()[0] == 0
    assert [urlsplit(request.path).path for request in server.requests] == [
        "/folder/model.bin",
        "/other/deep/net.bin",
    ]


def test_http_needs_a_source_map(pod: Pod, faulty: Faulty) -> None:
    pod.plan(item("http://models.example.com/model.bin", ca=False))
    code, report = pod.load()
    assert code == 2
    assert "use https://, or map it with --source-map" in report.findings[0].message
    with LoopbackServer(faulty) as mirror:
        pod.map(f"http://models.example.com/={mirror.url}/mirror/")
        assert pod.load()[0] == 0
        assert [request.path for request in mirror.requests] == ["/mirror/model.bin"]


def test_a_slow_server_is_waited_for(trusting: Pod, server: LoopbackServer, faulty: Faulty) -> None:
    gate = threading.Event()

    def slow(request: Request) -> Response:
        response = faulty.whole(request)
        response.hold = (1_000_000, gate)
        return response

    faulty.script = [slow]
    trusting.plan(item(f"{server.url}/model.bin"))
    process = trusting.start()
    part = _growing(trusting, 1_000_000 - BUFFER)
    assert process.poll() is None
    assert part.stat().st_size <= 1_000_000
    gate.set()
    trusting.output += process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert fetched(trusting) == DATA


def test_killed_in_mid_download_and_resumed(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    gate = threading.Event()

    def stuck(request: Request) -> Response:
        response = faulty.whole(request)
        response.hold = (2_000_000, gate)
        return response

    faulty.script = [stuck]
    trusting.secret("model", token=TOKEN)
    trusting.plan(item(f"{server.url}/model.bin", credentials=True, sha256=SHA))
    process = trusting.start()
    part = _growing(trusting, 2_000_000 - BUFFER)
    process.send_signal(signal.SIGKILL)
    trusting.output += process.communicate(timeout=30)[0]
    gate.set()
    kept = part.stat().st_size
    assert 2_000_000 - BUFFER <= kept <= 2_000_000
    assert not (trusting.models / "model/1/model.bin").exists()
    second = trusting.start()
    trusting.output += second.communicate(timeout=60)[0]
    assert second.returncode == 0, trusting.output
    assert fetched(trusting) == DATA
    assert server.requests[1].headers["range"] == f"bytes={kept}-"
    assert "resumes at 1.9 MiB" in trusting.output
    assert not list(trusting.options.state.rglob("*.part*"))


def _growing(pod: Pod, size: int) -> Path:
    """The unfinished file, once it holds ``size`` bytes."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for part in pod.options.state.rglob("*.part"):
            if part.stat().st_size >= size:
                return part
        threading.Event().wait(0.02)
    raise TimeoutError(f"no part of {size} bytes within 30 s")
