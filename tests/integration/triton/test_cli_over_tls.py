"""``tritonpipe infer`` and ``bench`` with a real Triton that serves gRPC over TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.triton.test_tls import AUTHORITY, MUTUAL, OTHER, tls_server
from tests.support import pipelines
from tests.support.certificates import CLIENT, HOST
from tests.support.serving import run, run_here
from triton_pipelines.api.tls import TlsMode
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a client of this authority."""
    folder = tmp_path_factory.mktemp("client")
    for name, data in AUTHORITY.secret("client", usages=[CLIENT]).items():
        (folder / name).write_bytes(data)
    (folder / "other.crt").write_bytes(OTHER.certificate)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    folder = tmp_path_factory.mktemp("mutual")
    pipelines.write_pipeline(folder / "models")
    with tls_server(folder / "models", folder / "tls", MUTUAL, TlsMode.MUTUAL) as running:
        yield running


def url(server: LocalTriton, scheme: str = "grpcs") -> str:
    return f"{scheme}://{server.grpc_address}/v2/models/{pipelines.ENSEMBLE}"


def options(files: Path, authority: str = "ca.crt", host: str = HOST) -> list[str]:
    """Options of a client, which connects by address."""
    identity = [f"--cert={files}/tls.crt", f"--key={files}/tls.key"]
    return [f"--cacert={files}/{authority}", f"--servername={host}", *identity]


def test_infer_prints_the_answer(server: LocalTriton, files: Path) -> None:
    done = run("infer", url(server), "the quick fox", "a dog", "--output=json", *options(files))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["model_name"] == pipelines.ENSEMBLE
    outputs = {item["name"]: item for item in document["outputs"]}
    assert outputs["LABEL"]["shape"] == [2, 2]
    assert set(outputs["LABEL"]["data"]) <= set(pipelines.LABELS)
    code, table, errors = run_here("infer", url(server), "a dog", *options(files))
    assert (code, errors) == (0, "")
    assert "a dog" in table
    assert outputs["LABEL"]["data"][2] in table


@pytest.mark.parametrize("how", ["authority", "host", "no certificate", "plaintext"])
def test_without_the_right_certificates_it_says_what_to_check(
    server: LocalTriton, files: Path, how: str
) -> None:
    arguments = {
        "authority": options(files, authority="other.crt"),
        "host": options(files, host="other.nlp.svc"),
        "no certificate": options(files)[:2],
        "plaintext": [],
    }[how]
    scheme = "grpc" if how == "plaintext" else "grpcs"
    code, out, errors = run_here("infer", url(server, scheme), "a", "--timeout=5", *arguments)
    assert (code, out) == (3, "")
    assert ("use grpcs://HOST:PORT" if how == "plaintext" else "check --cacert") in errors
    assert "BEGIN" not in errors


def test_bench_measures_over_tls(server: LocalTriton, files: Path) -> None:
    short = ["--duration=0.6", "--warmup=0.1", "--runs=1", "--concurrency=2", "--output=json"]
    done = run("bench", url(server), "--no-baseline", *short, *options(files))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["protocol"] == "grpc"
    assert pipelines.TOKENIZER in done.stdout  # Triton's statistics were read
