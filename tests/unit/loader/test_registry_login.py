"""Test that a registry's password goes only to the token server that the registry itself names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import httpx
import pytest

from tests.support.web import LoopbackServer, Request, Response
from triton_pipelines.loader.credentials import SourceCredentials
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.sources.oci import OciSource
from triton_pipelines.loader.uris import parse_registry

DATA = b"weights"
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
MANIFEST = json.dumps(
    {
        "layers": [
            {
                "digest": DIGEST,
                "size": len(DATA),
                "mediaType": "application/octet-stream",
                "annotations": {"org.opencontainers.image.title": "model.bin"},
            }
        ]
    }
).encode()


def source(client: httpx.Client, registry: LoopbackServer, workspace: Path) -> OciSource:
    return OciSource(
        client,
        parse_registry("oci://registry.test/model"),
        None,
        endpoint=registry.url,
        credentials=SourceCredentials(user=("ada", "s3cret")),
        on_secret=lambda _: None,
        workspace=workspace,
    )


@pytest.mark.parametrize("redirected", ["manifests", "blobs"])
@pytest.mark.parametrize("kind", ["Bearer", "Basic"])
def test_a_challenge_behind_a_redirect_gets_no_credentials(
    tmp_path: Path, redirected: str, kind: str
) -> None:
    def challenge(_: Request) -> Response:
        realm = f'{kind} realm="{evil.url}/token",service="registry"'
        return Response(401, {"WWW-Authenticate": realm})

    def answer(request: Request) -> Response:
        if f"/{redirected}/" in request.path:
            return Response(307, {"Location": f"{cdn.url}/content"})
        return Response(200, {}, MANIFEST)

    with (
        LoopbackServer(lambda _: Response(200, {}, b'{"token": "t"}')) as evil,
        LoopbackServer(challenge) as cdn,
        LoopbackServer(answer) as registry,
        httpx.Client(trust_env=False) as client,
    ):
        opened = source(client, registry, tmp_path / "image").open("model.bin")
        with pytest.raises(SourceError, match="401"), opened as body:
            b"".join(body.chunks)
        assert evil.requests == []
        assert all("authorization" not in request.headers for request in cdn.requests)


def test_a_challenge_of_the_registry_itself_counts(tmp_path: Path) -> None:
    def answer(request: Request) -> Response:
        if request.headers.get("authorization") != "Bearer t":
            realm = f'Bearer realm="{tokens.url}/token",service="registry"'
            return Response(401, {"WWW-Authenticate": realm})
        if "/blobs/" in request.path:
            return Response(307, {"Location": f"{cdn.url}/content"})
        return Response(200, {}, MANIFEST)

    with (
        LoopbackServer(lambda _: Response(200, {}, b'{"token": "t"}')) as tokens,
        LoopbackServer(lambda _: Response(200, {}, DATA)) as cdn,
        LoopbackServer(answer) as registry,
        httpx.Client(trust_env=False) as client,
    ):
        with source(client, registry, tmp_path / "image").open("model.bin") as body:
            assert b"".join(body.chunks) == DATA
        assert tokens.requests[0].headers["authorization"].startswith("Basic ")
        assert "authorization" not in cdn.requests[0].headers
