"""Credentials of https sources: presented where they belong, and shown nowhere."""

from __future__ import annotations

import base64
import ssl
from urllib.parse import quote

import pytest

from tests.integration.loader.conftest import Pod
from tests.integration.loader.faulty import DATA, PASSWORD, TOKEN, Faulty, fetched, item
from tests.support.web import LoopbackServer, Response

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("values", "header"),
    [
        ({"token": TOKEN}, f"Bearer {TOKEN}"),
        (
            {"username": "ada", "password": PASSWORD},
            "Basic " + base64.b64encode(f"ada:{PASSWORD}".encode()).decode(),
        ),
    ],
)
def test_credentials_are_presented_and_never_shown(
    trusting: Pod, server: LoopbackServer, faulty: Faulty, values: dict[str, str], header: str
) -> None:
    faulty.script = [lambda request: Response(503, {"X-Echo": request.headers["authorization"]})]
    trusting.secret("model", **values)
    trusting.plan(item(f"{server.url}/model.bin", credentials=True))
    code, _ = trusting.load()
    assert code == 0
    assert [request.headers["authorization"] for request in server.requests] == [header, header]
    assert header not in trusting.output


def test_refused_credentials_are_final(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    faulty.script = [faulty.status(403)]
    trusting.secret("model", token=TOKEN)
    trusting.plan(item(f"{server.url}/model.bin", credentials=True))
    code, report = trusting.load()
    assert (code, len(server.requests)) == (2, 1)
    assert "check the Secret in source.secretRef" in report.findings[0].message


BASIC = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()


@pytest.mark.parametrize(
    ("values", "echoed"),
    [
        ({"token": TOKEN}, TOKEN),
        ({"username": "ada", "password": PASSWORD}, PASSWORD),
        ({"username": "ada", "password": PASSWORD}, BASIC),
    ],
)
def test_credentials_that_a_server_echoes_are_masked(
    trusting: Pod, server: LoopbackServer, faulty: Faulty, values: dict[str, str], echoed: str
) -> None:
    sent = quote(echoed, safe="")
    faulty.script = [lambda _: Response(302, {"Location": f"/login/{sent}"}), faulty.status(404)]
    trusting.secret("model", **values)
    trusting.plan(item(f"{server.url}/model.bin", credentials=True))
    code, report = trusting.load()
    assert code == 2
    assert sent in server.requests[1].path
    assert "/login/***" in report.findings[0].message
    assert sent not in trusting.output + report.to_json()


def test_a_secret_without_its_keys_is_named(trusting: Pod, server: LoopbackServer) -> None:
    trusting.secret("model", password=PASSWORD)
    trusting.plan(item(f"{server.url}/model.bin", credentials=True))
    code, report = trusting.load()
    assert (code, server.requests) == (2, [])
    assert (
        "must contain token, or username and password (it has password)"
        in report.findings[0].message
    )


def test_user_information_and_signatures_of_urls_are_redacted(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    faulty.script = [faulty.status(500), faulty.status(404)]
    trusting.plan(
        item(
            f"https://ada:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{server.port}/model.bin"
            f"?X-Signature={TOKEN}"
        )
    )
    code, report = trusting.load()
    assert code == 2
    assert server.requests[0].path.endswith(f"?X-Signature={TOKEN}")
    assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert f"https://***@127.0.0.1:{server.port}/model.bin?***" in report.findings[0].message
    assert PASSWORD.replace("/", "%2F") not in trusting.output + report.to_json()


def test_a_redirect_takes_no_credentials_to_another_origin(
    trusting: Pod, server: LoopbackServer, faulty: Faulty, tls: ssl.SSLContext
) -> None:
    with LoopbackServer(faulty.whole, tls) as other:
        faulty.script = [
            lambda _: Response(302, {"Location": "/moved?Signature=abc"}),
            lambda _: Response(302, {"Location": f"{other.url}/cdn"}),
        ]
        trusting.secret("model", token=TOKEN)
        trusting.plan(item(f"{server.url}/model.bin", credentials=True))
        code, _ = trusting.load()
        assert code == 0, trusting.output
        assert [("authorization" in request.headers) for request in server.requests] == [True, True]
        assert ["authorization" in request.headers for request in other.requests] == [False]
    assert fetched(trusting) == DATA


def test_a_redirect_to_http_is_refused(
    trusting: Pod, server: LoopbackServer, faulty: Faulty
) -> None:
    with LoopbackServer(faulty.whole) as plain:
        faulty.script = [lambda _: Response(302, {"Location": f"{plain.url}/x"})]
        trusting.plan(item(f"{server.url}/model.bin"))
        code, report = trusting.load()
        assert (code, plain.requests) == (2, [])
    assert "redirects from https to http://" in report.findings[0].message
