"""Test that credentials are never sent unencrypted, neither at first nor after a redirect.

127.0.0.2 stands for another host: for the loader, only 127.0.0.1 is loopback.
"""

from __future__ import annotations

import base64
import gzip
import json
import ssl
import zlib
from collections.abc import Iterator

import pytest

from e2e.local.pki import Authority
from tests.integration.loader.conftest import Pod
from tests.support.hub import HubServer
from tests.support.web import LoopbackServer, Request, Response, file_response
from triton_pipelines.api.loadplan import FetchKind, LoadReason, PlanFetch

pytestmark = pytest.mark.integration

TOKEN, PASSWORD = "s3cret-token-41d8", "s3cret-pass/word+9f00"
ACCOUNT_KEY = base64.b64encode(b"s3cret-access-key-77aa").decode()
OTHER = "127.0.0.2"


def answer(request: Request) -> Response:
    return file_response(request, b"weights", '"v1"')


@pytest.fixture
def other() -> Iterator[LoopbackServer]:
    """A server without TLS on another host."""
    with LoopbackServer(answer, address=(OTHER, 0)) as server:
        yield server


@pytest.fixture
def bare(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> Pod:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return pod


def fetch(uri: str, **rest: object) -> PlanFetch:
    values = {"step": "model", "uri": uri, "target": "m/1/model.bin", "credentials": True, **rest}
    return PlanFetch(**values)  # type: ignore[arg-type]


SENT = [
    ("https://models.example.com/m.bin", {"token": TOKEN}),
    ("https://models.example.com/m.bin", {"username": "ada", "password": PASSWORD}),
    ("hf://org/name", {"token": TOKEN}),
    ("oci://registry.example/models/x:v1", {"username": "ada", "password": PASSWORD}),
    ("az://account/models/m.bin", {"sasToken": f"sv=1&sig={TOKEN}"}),
    (
        "gs://models/m.bin",
        {
            "serviceAccountKey": json.dumps(
                {"private_key": TOKEN, "client_email": "a@b", "private_key_id": "1"}
            )
        },
    ),
]


@pytest.mark.parametrize("by", ["map", "endpoint"])
@pytest.mark.parametrize(("uri", "secret"), SENT, ids=lambda value: str(value)[:20])
def test_no_credentials_are_sent_over_http(
    bare: Pod, other: LoopbackServer, uri: str, secret: dict[str, str], by: str
) -> None:
    address = f"http://{OTHER}:{other.port}"
    if uri.startswith("https"):
        bare.map(f"https://models.example.com/={address}/")
    elif by == "map":
        bare.map(f"{uri.partition('://')[0]}://={address}")
    bare.secret("model", **secret)
    endpoint = address if by == "endpoint" and not uri.startswith("https") else None
    bare.plan(fetch(uri, endpoint=endpoint))
    code, report = bare.load()
    assert other.requests == []
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_UNAVAILABLE), bare.output
    for part in (OTHER, "http://", "spec.model.source.secretRef", "https://"):
        assert part in report.findings[0].message


def test_no_user_information_of_a_url_is_sent_over_http(bare: Pod, other: LoopbackServer) -> None:
    bare.map(f"https://models.example.com/=http://ada:{TOKEN}@{OTHER}:{other.port}/")
    bare.plan(fetch("https://models.example.com/m.bin", credentials=False))
    code, report = bare.load()
    assert (code, other.requests) == (2, []), bare.output
    assert "http://" in report.findings[0].message


def test_sources_without_credentials_may_use_http(bare: Pod, other: LoopbackServer) -> None:
    bare.map(f"https://models.example.com/=http://{OTHER}:{other.port}/")
    bare.plan(fetch("https://models.example.com/m.bin", credentials=False))
    code, report = bare.load()
    assert (code, report.findings) == (0, ()), bare.output


@pytest.mark.parametrize(
    ("uri", "secret"),
    [
        ("s3://models/m.bin", {"accessKeyId": "AKIATESTKEYID0001", "secretAccessKey": TOKEN}),
        ("az://account/models/m.bin", {"accountKey": ACCOUNT_KEY}),
    ],
    ids=["s3", "az"],
)
def test_keys_that_only_sign_are_reported(
    bare: Pod, other: LoopbackServer, uri: str, secret: dict[str, str]
) -> None:
    """A signature shows no key, so the files are fetched, and the report names the risk."""

    def dated(request: Request) -> Response:
        response = answer(request)
        response.headers["Last-Modified"] = "Sat, 21 Nov 2026 00:00:00 GMT"
        return response

    with LoopbackServer(dated, address=(OTHER, 0)) as server:
        bare.secret("model", **secret)
        bare.plan(fetch(uri, endpoint=f"http://{OTHER}:{server.port}"))
        code, report = bare.load()
    assert code == 0, bare.output
    assert [(item.reason, item.field) for item in report.findings] == [
        (LoadReason.INSECURE_SOURCE, "spec.model.source")
    ]
    for request in server.requests:
        assert not any(value in str(request) for value in secret.values() if value.startswith("s3"))


@pytest.mark.parametrize("uri", ["gs://models/m.bin", "az://account/models/m.bin"])
def test_the_identity_of_the_pod_is_not_presented_over_http(
    bare: Pod, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    def cloud(request: Request) -> Response:
        if "/token" in request.path:
            body = {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}
            return Response(200, {"Content-Type": "application/json"}, json.dumps(body).encode())
        response = answer(request)
        response.headers["Last-Modified"] = "Sat, 21 Nov 2026 00:00:00 GMT"
        return response

    monkeypatch.setenv("AZURE_STORAGE_TOKEN", TOKEN)
    with LoopbackServer(cloud) as server, LoopbackServer(cloud, address=(OTHER, 0)) as store:
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            monkeypatch.setenv(name, server.url.removeprefix("http://"))
        bare.plan(fetch(uri, endpoint=f"http://{OTHER}:{store.port}", credentials=False))
        code, _ = bare.load()
    assert code == 0, bare.output
    assert store.requests
    assert [item for item in store.requests if "authorization" in item.headers] == []


def test_a_token_server_without_tls_gets_no_password(bare: Pod, other: LoopbackServer) -> None:
    challenge = f'Bearer realm="http://{OTHER}:{other.port}/token",service="r"'

    def registry(_: Request) -> Response:
        return Response(401, {"WWW-Authenticate": challenge})

    with LoopbackServer(registry) as server:
        bare.map(f"oci://={server.url}")
        bare.secret("model", username="ada", password=PASSWORD)
        bare.plan(fetch("oci://registry.example/models/x:v1", kind=FetchKind.FOLDER, target="m"))
        code, report = bare.load()
    assert (code, other.requests) == (2, []), bare.output
    assert "without TLS" in report.findings[0].message


SIGNED = ("s3://models/m.bin", {"accessKeyId": "AKIATESTKEYID0001", "secretAccessKey": TOKEN})


@pytest.mark.parametrize("encrypted", [True, False], ids=["https-to-http", "loopback-to-http"])
@pytest.mark.parametrize(("uri", "secret"), [*SENT[:-1], SIGNED], ids=lambda v: str(v)[:20])
def test_a_redirect_to_http_takes_no_credentials(
    bare: Pod,
    other: LoopbackServer,
    tls: ssl.SSLContext,
    authority: Authority,
    uri: str,
    secret: dict[str, str],
    encrypted: bool,
) -> None:
    def elsewhere(request: Request) -> Response:
        return Response(
            307, {"Location": f"http://{OTHER}:{other.port}{request.path.partition('?')[0]}"}
        )

    with LoopbackServer(elsewhere, tls if encrypted else None) as server:
        scheme = uri.partition("://")[0]
        bare.map(
            f"https://models.example.com/={server.url}/"
            if scheme == "https"
            else f"{scheme}://={server.url}"
        )
        bare.secret("model", **secret)
        bare.trust("model", authority.identity)
        bare.plan(fetch(uri, ca=True))
        bare.load()
    assert server.requests, bare.output
    sent = [str(item) for item in other.requests]
    if encrypted:
        assert sent == []
    elif "sasToken" in secret:
        # obstore's client names the redirecting URL in Referer, with its query.
        sent = [str(item) for item in other.requests if "referer" not in item.headers]
    for text in sent:
        for hidden in (TOKEN, PASSWORD, base64.b64encode(f"ada:{PASSWORD}".encode()).decode()):
            assert hidden not in text


def test_the_hub_does_not_lead_from_https_to_http(
    bare: Pod, tls: ssl.SSLContext, authority: Authority
) -> None:
    """Without credentials, too: what the hub lists decides what is fetched."""
    with HubServer(host=OTHER) as hub:
        hub.publish("org/name", {"model.bin": b"of somebody else"})

        def elsewhere(request: Request) -> Response:
            return Response(307, {"Location": f"{hub.url}{request.path}"})

        with LoopbackServer(elsewhere, tls) as server:
            bare.map(f"hf://={server.url}")
            bare.trust("model", authority.identity)
            bare.plan(fetch("hf://org/name", path="model.bin", credentials=False, ca=True))
            code, report = bare.load()
        assert (code, hub.requests) == (2, []), bare.output
        assert "redirects from https to http" in report.findings[0].message


# --- bodies that a server compresses although nobody asked for it


def compressed(pod: Pod, body: bytes, encoding: str) -> tuple[int, str]:
    with LoopbackServer(lambda _: Response(200, {"Content-Encoding": encoding}, body)) as server:
        pod.map(f"https://models.example.com/={server.url}/")
        pod.plan(fetch("https://models.example.com/m.bin", credentials=False))
        code, report = pod.load()
    return code, report.findings[0].message if report.findings else ""


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_body_is_unpacked(bare: Pod, encoding: str) -> None:
    data = b"weights" * 100_000
    body = gzip.compress(data) if encoding == "gzip" else zlib.compress(data)
    assert compressed(bare, body, encoding) == (0, "")
    assert (bare.models / "m/1/model.bin").read_bytes() == data


def test_a_compressed_body_that_grows_too_much_is_rejected(bare: Pod) -> None:
    code, message = compressed(bare, gzip.compress(bytes(200 << 20)), "gzip")
    assert code == 2, bare.output
    assert "unpacks to more than 64.0 MiB" in message
    assert not list(bare.options.root.rglob("model.bin"))
    parts = [path.stat().st_size for path in bare.options.root.rglob("*.part")]
    assert sum(parts) <= 64 << 20


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "zstd"])
def test_other_encodings_are_rejected(bare: Pod, encoding: str) -> None:
    code, message = compressed(bare, b"x", encoding)
    assert code == 2, bare.output
    assert f"Content-Encoding {encoding}" in message


def test_a_compressed_body_that_ends_early_is_an_error(bare: Pod) -> None:
    code, message = compressed(bare, gzip.compress(b"weights" * 1000)[:-9], "gzip")
    assert code == 3, bare.output
    assert "ended early" in message
