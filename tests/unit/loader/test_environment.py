"""Test that variables of the environment cannot redirect the loader or weaken its connections."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.web import LoopbackServer, Response
from triton_pipelines.api.loadplan import LoadPlan, PlanFetch
from triton_pipelines.loader.environment import drop_ignored

OPERATOR = Path(__file__).parents[3] / "operator"
SECRET = "s3cret-access-key-77aa"


def test_settings_are_dropped_and_identities_and_proxies_stay() -> None:
    kept = {
        "HTTPS_PROXY": "http://proxy",
        "AWS_ROLE_ARN": "arn",
        "AWS_REGION": "eu-central-1",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/token",
        "AZURE_CLIENT_ID": "id",
        "AZURE_AUTHORITY_HOST": "https://login",
        "SSL_CERT_FILE": "/ca.crt",
        "AWS_ENDPOINT_URL_STS": "http://127.0.0.1:8080",
        "HOME": "/tmp",
    }
    dropped = {
        "TRITONPIPE_SOURCE_MAP": "hf://=file:///",
        "AWS_ENDPOINT_URL": "http://elsewhere",
        "aws_endpoint": "http://elsewhere",
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "GOOGLE_BASE_URL": "http://elsewhere",
        "AWS_ALLOW_INVALID_CERTIFICATES": "true",
        "HF_ENDPOINT": "http://elsewhere",
        "SSLKEYLOGFILE": "/tmp/keys",
    }
    environment = {**kept, **dropped}
    assert drop_ignored(environment) == sorted(dropped)
    assert environment == kept


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_STS", "azure_authority_host"])
@pytest.mark.parametrize(
    "value", ["http://elsewhere", "elsewhere", "", "https", "http://[", "http://127.0.0.1.test"]
)
def test_an_identity_is_presented_with_tls_alone(name: str, value: str) -> None:
    environment = {name: value}
    assert drop_ignored(environment) == [name]
    assert environment == {}


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    for name in ("revision", "live", "credentials/model", "ca", "configmaps", "claims"):
        (tmp_path / name).mkdir(parents=True)
    for key, value in (("accessKeyId", "AKIATESTKEYID0001"), ("secretAccessKey", SECRET)):
        (tmp_path / "credentials/model" / key).write_text(value)
    return tmp_path


def load(mounts: Path, uri: str, environment: dict[str, str]) -> str:
    """Run the loader's process with variables that a tenant added; its log."""
    item = PlanFetch(step="model", uri=uri, target="m/1/model.bin", credentials=True)
    plan = LoadPlan(pipeline="p", namespace="n", revision="r", fetch=(item,))
    (mounts / "revision/plan.json").write_text(plan.to_json())
    names = ("revision", "live", "credentials", "ca", "configmaps", "claims", "root", "termination")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "triton_pipelines.loader", "--retry-attempts=1"),
            *(f"--{name}={mounts / name}" for name in names),
        ],
        env={**os.environ, "PYTHONPATH": str(OPERATOR), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_a_source_map_of_the_environment_reads_no_files_of_the_container(mounts: Path) -> None:
    (mounts / "secret").write_text("of another source")
    rule = f"s3://bucket/=file://{mounts}/"
    log = load(
        mounts,
        "s3://bucket/secret",
        {"TRITONPIPE_SOURCE_MAP": rule, "HTTPS_PROXY": "http://127.0.0.1:1"},
    )
    assert "ignored environment variables: TRITONPIPE_SOURCE_MAP" in log
    assert "mapped to" not in log


def test_an_endpoint_of_the_environment_is_not_used(mounts: Path) -> None:
    with LoopbackServer(lambda _: Response(404)) as server:
        log = load(
            mounts,
            "s3://bucket/model.bin",
            {
                "AWS_ENDPOINT_URL": server.url,
                "AWS_ALLOW_HTTP": "true",
                "HTTPS_PROXY": "http://127.0.0.1:1",
            },
        )
        assert server.requests == []
    assert "AWS_ENDPOINT_URL" in log
    assert server.url not in log.partition("\n")[2]
    assert SECRET not in log
