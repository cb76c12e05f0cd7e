"""Load s3:// sources from a real S3 server, with TLS, keys and versions.

The server is Versity S3 Gateway on a POSIX folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from e2e.local import binaries
from e2e.local.pki import Authority
from e2e.local.processes import Process, reserved_ports
from tests.integration.loader.conftest import Pod
from tests.integration.loader.servers import running
from tests.support.relay import Relay
from triton_pipelines.api.loadplan import FetchKind, LoadReason, PlanFetch
from triton_pipelines.loader.sources.stores import s3_store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

ACCESS, SECRET = "AKIATESTKEYID0001", "s3cret-access-key-77aa"
DATA = os.urandom(9_000_000)
SHA = hashlib.sha256(DATA).hexdigest()


@dataclass
class Gateway:
    """The running server; ``store(bucket)`` writes to it."""

    url: str
    ca: Path
    process: Process
    folder: Path

    def bucket(self, name: str) -> S3Store:
        (self.folder / name).mkdir(exist_ok=True)
        return s3_store(
            name, endpoint=self.url, region=None, keys=(ACCESS, SECRET, None), ca=self.ca
        )


@pytest.fixture(scope="module")
def gateway(
    authority: Authority, server_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("s3")
    for name in ("data", "versions"):
        (folder / name).mkdir()
    ca = folder / "ca.crt"
    ca.write_bytes(authority.identity.certificate)
    with reserved_ports(1) as (port,):
        pass
    certificate, key = server_files
    command = [
        str(binaries.path_of("versitygw")),
        "--port",
        f"127.0.0.1:{port}",
        "--cert",
        str(certificate),
        "--key",
        str(key),
    ]
    environment = {"ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
    whole = [*command, "posix", "--versioning-dir", str(folder / "versions"), str(folder / "data")]
    url = f"https://127.0.0.1:{port}"
    with running("versitygw", whole, folder, url, environment) as process:
        yield Gateway(url, ca, process, folder / "data")


@pytest.fixture
def keyed(pod: Pod, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Pod:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    pod.secret("model", accessKeyId=ACCESS, secretAccessKey=SECRET)
    pod.trust("model", authority.identity)
    return pod


def item(gateway: Gateway, uri: str, **rest: object) -> PlanFetch:
    defaults = {
        "step": "model",
        "uri": uri,
        "target": "model/1/model.bin",
        "ca": True,
        "credentials": True,
        "endpoint": gateway.url,
    }
    return PlanFetch(**{**defaults, **rest})  # type: ignore[arg-type]


@pytest.mark.proves("spec.source.endpoint", "behaviour")
def test_an_object_with_its_etag(keyed: Pod, gateway: Gateway) -> None:
    etag = obstore.put(gateway.bucket("models"), "a b/net+1.bin", DATA)["e_tag"]
    keyed.plan(item(gateway, "s3://models/a b/net+1.bin", sha256=SHA, region="us-east-1"))
    code, report = keyed.load()
    assert code == 0, keyed.output
    assert (keyed.models / "model/1/model.bin").read_bytes() == DATA
    assert (report.sources[0].resolved_revision, report.sources[0].sha256) == (etag, SHA)
    assert "8.6 MiB of 8.6 MiB" in keyed.output


def test_the_endpoint_of_a_source_map(keyed: Pod, gateway: Gateway) -> None:
    obstore.put(gateway.bucket("models"), "mapped/model.bin", b"weights")
    keyed.map(f"s3://={gateway.url}")
    keyed.plan(item(gateway, "s3://models/mapped/", endpoint="https://192.0.2.1"))
    assert keyed.load()[0] == 0, keyed.output
    assert (keyed.models / "model/1/model.bin").read_bytes() == b"weights"


def test_the_identity_of_the_environment_without_a_secret(
    pod: Pod, gateway: Gateway, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(gateway.bucket("models"), "ambient.bin", b"weights")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    pod.trust("model", authority.identity)
    pod.plan(item(gateway, "s3://models/ambient.bin", credentials=False))
    assert pod.load()[0] == 0, pod.output
    assert (pod.models / "model/1/model.bin").read_bytes() == b"weights"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    pod.plan(
        item(gateway, "s3://models/ambient.bin", credentials=False, target="model/1/again.bin")
    )
    code, report = pod.load()
    assert code == 2
    assert "the pod's own identity cannot read ambient.bin" in report.findings[0].message


def test_a_tokenizer_folder(
    keyed: Pod, gateway: Gateway, minilm: Path, authority: Authority
) -> None:
    store = gateway.bucket("models")
    for name in ("vocab.txt", "tokenizer_config.json"):
        obstore.put(store, f"bert/{name}", (minilm / name).read_bytes())
    keyed.secret("tokenizer", accessKeyId=ACCESS, secretAccessKey=SECRET)
    keyed.trust("tokenizer", authority.identity)
    keyed.plan(
        item(
            gateway,
            "s3://models/bert",
            step="tokenizer",
            kind=FetchKind.TOKENIZER,
            target="tokenizer/1/tokenizer.json",
        )
    )
    code, _ = keyed.load()
    assert code == 0, keyed.output
    assert (keyed.models / "tokenizer/1/tokenizer.json").exists()


@pytest.mark.parametrize(
    ("uri", "secret", "says"),
    [
        ("s3://models/nope.bin", SECRET, "no object nope.bin; check bucket, key and revision"),
        ("s3://nobucket/nope.bin", SECRET, "check bucket, key and revision"),
        (
            "s3://models/nope.bin",
            "wrong-s3cret-pass/word+9f00",
            "the secret of source.secretRef cannot read nope.bin",
        ),
    ],
)
def test_refusals_are_final_and_clear(
    keyed: Pod, gateway: Gateway, uri: str, secret: str, says: str
) -> None:
    gateway.bucket("models")
    keyed.secret("model", secretAccessKey=secret)
    keyed.plan(item(gateway, uri))
    code, report = keyed.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_UNAVAILABLE), keyed.output
    assert says in report.findings[0].message
    assert "attempt" not in keyed.output


def test_an_unknown_ca_is_final(keyed: Pod, gateway: Gateway) -> None:
    keyed.plan(item(gateway, "s3://models/x.bin", ca=False))
    code, report = keyed.load()
    assert code == 2, keyed.output
    assert "set its CA in source.caRef" in report.findings[0].message


def test_a_server_that_is_not_there_is_retried(keyed: Pod, gateway: Gateway) -> None:
    with reserved_ports(1) as (port,):
        pass
    keyed.plan(item(gateway, "s3://models/x.bin", endpoint=f"https://127.0.0.1:{port}"))
    code, _ = keyed.load()
    assert code == 3
    assert "attempt 4 failed, giving up" in keyed.output


def test_a_part_is_continued_while_the_etag_holds(keyed: Pod, gateway: Gateway) -> None:
    """What a killed attempt leaves behind, continued by ranged reads."""
    etag = obstore.put(gateway.bucket("models"), "resume.bin", DATA)["e_tag"]
    plan = keyed.plan(item(gateway, "s3://models/resume.bin", sha256=SHA))
    _leave_part(keyed, plan.fetch[0], DATA[:5_000_000], str(etag))
    code, _ = keyed.load()
    assert code == 0, keyed.output
    assert "resumes at 4.8 MiB" in keyed.output
    assert (keyed.models / "model/1/model.bin").read_bytes() == DATA


def test_a_part_of_another_object_is_not_continued(keyed: Pod, gateway: Gateway) -> None:
    obstore.put(gateway.bucket("models"), "replaced.bin", DATA)
    plan = keyed.plan(item(gateway, "s3://models/replaced.bin"))
    _leave_part(keyed, plan.fetch[0], b"\0" * 5_000_000, '"00000000000000000000000000000000"')
    code, report = keyed.load()
    assert (code, report.sources[0].sha256) == (0, SHA), keyed.output
    assert "resumes" not in keyed.output


def test_a_part_that_is_already_complete_is_fetched_again(keyed: Pod, gateway: Gateway) -> None:
    etag = obstore.put(gateway.bucket("models"), "whole.bin", DATA)["e_tag"]
    plan = keyed.plan(item(gateway, "s3://models/whole.bin"))
    _leave_part(keyed, plan.fetch[0], bytes(len(DATA)), str(etag))
    code, report = keyed.load()
    assert (code, report.sources[0].sha256) == (0, SHA), keyed.output


def test_killed_in_mid_download_and_resumed(keyed: Pod, gateway: Gateway) -> None:
    obstore.put(gateway.bucket("models"), "large.bin", DATA)
    with Relay(gateway.url, stop_after=6_000_000) as relay:
        keyed.plan(item(gateway, "s3://models/large.bin", sha256=SHA, endpoint=relay.url))
        first = keyed.start()
        part = _wait_for_part(keyed)
        first.kill()
        keyed.output += first.communicate(timeout=30)[0]
        kept = part.stat().st_size
        assert 0 < kept < len(DATA)
        relay.stop_after = None
        second = keyed.start()
        keyed.output += second.communicate(timeout=60)[0]
    assert second.returncode == 0, keyed.output
    assert "resumes at" in keyed.output
    assert (keyed.models / "model/1/model.bin").read_bytes() == DATA


def test_a_connection_that_breaks_is_resumed(keyed: Pod, gateway: Gateway) -> None:
    obstore.put(gateway.bucket("models"), "breaks.bin", DATA)
    with Relay(gateway.url, stop_after=6_000_000, breaks=True) as relay:
        keyed.plan(item(gateway, "s3://models/breaks.bin", sha256=SHA, endpoint=relay.url))
        code, _ = keyed.load()
    assert code == 0, keyed.output
    assert "attempt 1 failed" in keyed.output
    assert "resumes at" in keyed.output
    assert (keyed.models / "model/1/model.bin").read_bytes() == DATA


def test_a_changed_object_is_a_changed_source(keyed: Pod, gateway: Gateway) -> None:
    store = gateway.bucket("models")
    before = obstore.put(store, "moving.bin", b"first")["e_tag"]
    obstore.put(store, "moving.bin", b"second")
    keyed.plan(item(gateway, "s3://models/moving.bin"))
    keyed.resolved("model", before, None)
    code, report = keyed.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_CHANGED), keyed.output
    assert str(before) in report.findings[0].message
    assert hashlib.sha256(b"second").hexdigest() in report.findings[0].message


@pytest.mark.proves("spec.source.revision", "behaviour")
def test_versions_are_recorded_and_fetched_again(keyed: Pod, gateway: Gateway) -> None:
    store = gateway.bucket("versioned")
    _enable_versioning(gateway, "versioned")
    obstore.put(store, "model.bin", b"first")
    keyed.plan(item(gateway, "s3://versioned/model.bin"))
    code, report = keyed.load()
    version = report.sources[0].resolved_revision
    assert code == 0, keyed.output
    assert version is not None
    assert '"' not in version
    obstore.put(store, "model.bin", b"second")
    shutil.rmtree(keyed.options.root)
    keyed.resolved("model", version, None)
    code, report = keyed.load()
    assert (code, report.sources[0].resolved_revision) == (0, version), keyed.output
    assert (keyed.models / "model/1/model.bin").read_bytes() == b"first"


def _enable_versioning(gateway: Gateway, bucket: str) -> None:
    body = (
        b"<VersioningConfiguration "
        b'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>'
    )
    # curl signs AWS requests, so that no second S3 client is needed for one call.
    command = [
        "curl",
        "-sSf",
        "--cacert",
        str(gateway.ca),
        "--aws-sigv4",
        "aws:amz:us-east-1:s3",
        "--config",
        "-",
        "-X",
        "PUT",
    ]
    headers = [
        "-H",
        f"x-amz-content-sha256: {hashlib.sha256(body).hexdigest()}",
        "-H",
        "Content-Type: application/xml",
    ]
    subprocess.run(
        [*command, *headers, "--data-binary", body.decode(), f"{gateway.url}/{bucket}?versioning="],
        input=f'user = "{ACCESS}:{SECRET}"\n'.encode(),
        check=True,
        timeout=20,
    )


def _leave_part(pod: Pod, fetch: PlanFetch, data: bytes, validator: str) -> None:
    """An unfinished download as the loader keeps it."""
    from triton_pipelines.loader.fetching import _key
    from triton_pipelines.loader.partial_file import PartialFile

    staging = pod.options.state / _key(fetch)
    staging.mkdir(parents=True)
    part = PartialFile(staging / Path(fetch.uri).name)
    part.path.write_bytes(data)
    part.write(validator)


def _wait_for_part(pod: Pod) -> Path:
    """The unfinished file, once something is in it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in pod.options.state.rglob("*.part"):
            if path.stat().st_size:
                return path
        threading.Event().wait(0.01)
    raise TimeoutError("no download began within 60 s")


def test_versions_below_a_key_and_their_listing(keyed: Pod, gateway: Gateway) -> None:
    store = gateway.bucket("models")
    for name in (
        "served/1/model.bin",
        "served/2/model.bin",
        "served/2/data/w.bin",
        "served/labels.txt",
    ):
        obstore.put(store, name, name.encode())
    keyed.plan(
        item(gateway, "s3://models/served/", kind=FetchKind.MODEL, file="model.bin", target="bert")
    )
    code, report = keyed.load()
    assert code == 0, keyed.output
    assert keyed.tree() == ["bert/2/data/w.bin", "bert/2/model.bin"]
    assert (report.sources[0].resolved_revision or "").startswith("versions=2;listing=")
    assert [finding.reason for finding in report.findings] == [LoadReason.FILES_IGNORED]
    assert "labels.txt" in report.findings[0].message
    keyed.recorded()
    obstore.put(store, "served/10/model.bin", b"newest")
    keyed.another()
    assert keyed.load()[0] == 0, keyed.output
    assert keyed.tree() == ["bert/2/data/w.bin", "bert/2/model.bin"]
    obstore.put(store, "served/2/data/more.bin", b"added")
    keyed.another()
    code, report = keyed.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_CHANGED), keyed.output
    keyed.plan(
        item(
            gateway,
            "s3://models/served",
            path="2/data",
            kind=FetchKind.FOLDER,
            target="bert/1/data",
        ),
        revision="other",
    )
    keyed.another()
    assert keyed.load()[0] == 0, keyed.output
    assert keyed.tree() == ["bert/1/data/more.bin", "bert/1/data/w.bin"]
