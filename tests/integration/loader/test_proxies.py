"""Every scheme uses the proxy from the environment, except where NO_PROXY excludes it."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.integration.loader.conftest import Pod
from tests.integration.loader.servers import Gcs, gcs
from tests.support.connectproxy import ConnectProxy
from tests.support.hub import HubServer
from tests.support.web import LoopbackServer, Request, Response, file_response
from triton_pipelines.api.loadplan import PlanFetch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PASSWORD = "s3cret-pass/word+9f00"


@pytest.fixture(scope="module")
def google(
    server_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gcs]:
    with gcs(tmp_path_factory.mktemp("gcs"), server_files) as started:
        started.put("models", "x.bin", b"weights")
        yield started


@pytest.fixture
def servers(tls: ssl.SSLContext, google: Gcs) -> Iterator[dict[str, tuple[str, str | None]]]:
    """Of each scheme a URI and an endpoint, behind TLS."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "layers": [],
    }
    layer = {
        "mediaType": "x",
        "digest": f"sha256:{'0' * 64}",
        "size": 7,
        "annotations": {"org.opencontainers.image.title": "x.bin"},
    }

    def registry(request: Request) -> Response:
        digest = hashlib.sha256(b"weights").hexdigest()
        if "/blobs/" in request.path:
            return file_response(request, b"weights", '"b"')
        return Response(
            200,
            {},
            json.dumps({**manifest, "layers": [{**layer, "digest": f"sha256:{digest}"}]}).encode(),
        )

    def dated(request: Request) -> Response:
        answer = file_response(request, b"weights", '"v1"')
        answer.headers["Last-Modified"] = "Sat, 21 Nov 2026 00:00:00 GMT"
        return answer

    with (
        HubServer() as hub,
        LoopbackServer(dated, tls) as web,
        LoopbackServer(registry, tls) as oci,
        LoopbackServer(hub.answer, tls) as models,
    ):
        hub.publish("org/name", {"x.bin": b"weights"})
        yield {
            "https": (f"{web.url}/x.bin", None),
            "oci": (f"oci://{oci.url.removeprefix('https://')}/models/x:v1", None),
            "hf": ("hf://org/name", models.url),
            "gs": ("gs://models/x.bin", google.url),
            "s3": ("s3://models/x.bin", web.url),
            "az": ("az://account/models/x.bin", web.url),
        }


@pytest.fixture
def ready(trusting: Pod) -> Pod:
    """A pod with a secret that fits each scheme, and no proxy in its environment."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    trusting.secret(
        "model",
        accessKeyId="AKIATESTKEYID0001",
        secretAccessKey="s3cret-access-key-77aa",
        accountKey=base64.b64encode(b"s3cret-access-key-77aa").decode(),
        serviceAccountKey=json.dumps(
            {"private_key": pem, "private_key_id": "k", "client_email": "a@b"}
        ),
        token="s3cret-token-41d8",
        username="ada",
        password=PASSWORD,
    )
    return trusting


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def plan(pod: Pod, uri: str, endpoint: str | None) -> None:
    name = "x.bin" if uri.startswith(("hf", "oci")) else None
    pod.plan(
        PlanFetch(
            step="model",
            uri=uri,
            endpoint=endpoint,
            path=name,
            target="model/1/x.bin",
            credentials=True,
            ca=True,
        )
    )


SCHEMES = ("https", "oci", "hf", "gs", "s3", "az")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_proxy_of_the_environment_is_used(
    ready: Pod,
    servers: dict[str, tuple[str, str | None]],
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
    with ConnectProxy(f"Basic {user}") as proxy:
        monkeypatch.setenv(
            "HTTPS_PROXY", f"http://ada:{quote(PASSWORD, safe='')}@127.0.0.1:{proxy.port}"
        )
        plan(ready, *servers[scheme])
        code, _ = ready.load()
        assert code == 0, ready.output
        assert (ready.models / "model/1/x.bin").read_bytes() == b"weights"
        assert proxy.targets
        assert {target.partition(":")[0] for target in proxy.targets} == {"127.0.0.1"}
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        proxy.targets.clear()
        ready.another()
        assert ready.load()[0] == 0, ready.output
        assert proxy.targets == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_proxy_that_refuses_is_told_without_its_password(
    ready: Pod,
    servers: dict[str, tuple[str, str | None]],
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ConnectProxy("Basic nobody") as proxy:
        monkeypatch.setenv(
            "HTTPS_PROXY", f"http://ada:{quote(PASSWORD, safe='')}@127.0.0.1:{proxy.port}"
        )
        plan(ready, *servers[scheme])
        code, report = ready.load()
    assert code == 2, ready.output
    assert proxy.targets == []
    assert "the proxy in HTTPS_PROXY rejects the credentials (407)" in report.findings[0].message
    said = ready.output + report.to_json()
    for form in (
        PASSWORD,
        quote(PASSWORD, safe=""),
        base64.b64encode(f"ada:{PASSWORD}".encode()).decode(),
    ):
        assert form not in said
