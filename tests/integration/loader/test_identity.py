"""Load with workload identity.

The pod has what the platform gives it. The cloud's own token servers are simulated.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.integration.loader.conftest import Pod
from tests.support.web import LoopbackServer, Request, Response, file_response
from triton_pipelines.api.loadplan import PlanFetch

pytestmark = pytest.mark.integration

GIVEN = "s3cret-token-41d8"


class Cloud:
    """Token servers and a store that wants their token."""

    def __init__(self) -> None:
        self.refused: int | None = None

    def __call__(self, request: Request) -> Response:
        if "/token" in request.path:
            body = {"access_token": GIVEN, "token_type": "Bearer", "expires_in": 3600}
            return (
                Response(self.refused, {}, b"no identity")
                if self.refused
                else Response(200, {"Content-Type": "application/json"}, json.dumps(body).encode())
            )
        if request.headers.get("authorization") != f"Bearer {GIVEN}":
            return Response(401)
        answer = file_response(request, b"weights", '"v1"')
        answer.headers["Last-Modified"] = "Sat, 21 Nov 2026 00:00:00 GMT"
        return answer


@pytest.fixture
def bare(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> Pod:
    """A pod without proxies in its environment."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return pod


def plan(pod: Pod, uri: str, endpoint: str) -> None:
    pod.plan(PlanFetch(step="model", uri=uri, endpoint=endpoint, target="model/1/model.bin"))


def test_gke_workload_identity(bare: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud()
    with LoopbackServer(cloud) as server:
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            monkeypatch.setenv(name, server.url.removeprefix("http://"))
        plan(bare, "gs://models/model.bin", server.url)
        assert bare.load()[0] == 0, bare.output
        assert server.requests[0].headers["metadata-flavor"] == "Google"
        # GKE's metadata server answers so in the first seconds of a pod's life.
        for cloud.refused in (403, 404):
            bare.another()
            code, report = bare.load()
            assert code == 3, bare.output
            assert (
                "the pod has no usable cloud identity: set source.secretRef"
                in report.findings[0].message
            )


def test_entra_workload_id(bare: Pod, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "federated").write_text("s3cret-access-key-77aa")
    with LoopbackServer(Cloud()) as server:
        for name, value in {
            "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "federated"),
            "AZURE_CLIENT_ID": "client",
            "AZURE_TENANT_ID": "tenant",
            "AZURE_AUTHORITY_HOST": server.url,
        }.items():
            monkeypatch.setenv(name, value)
        plan(bare, "az://account/models/model.bin", server.url)
        assert bare.load()[0] == 0, bare.output
    exchange = server.requests[0]
    assert (exchange.method, exchange.path) == ("POST", "/tenant/oauth2/v2.0/token")
    sent = parse_qs(exchange.body.decode())
    assert (sent["client_id"], sent["client_assertion"]) == (["client"], ["s3cret-access-key-77aa"])


def test_credentials_of_a_secret_come_before_the_identity(
    bare: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of the environment never mix with a secret's.

    The account key signs, nobody is asked for a token.
    """
    with LoopbackServer(Cloud()) as server:
        monkeypatch.setenv("AZURE_STORAGE_TOKEN", GIVEN)
        monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", f"sv=1&sig={GIVEN}")
        bare.secret("model", accountKey="czNjcmV0LWFjY2Vzcy1rZXktNzdhYQ==")
        bare.plan(
            PlanFetch(
                step="model",
                uri="az://account/models/model.bin",
                endpoint=server.url,
                target="m/1/model.bin",
                credentials=True,
            )
        )
        code, report = bare.load()
    assert code == 2
    assert "the secret of source.secretRef cannot read" in report.findings[0].message
    assert server.requests[0].headers["authorization"].startswith("SharedKey account:")
    assert GIVEN not in server.requests[0].path
