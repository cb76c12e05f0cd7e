"""No credential of a connection comes back through a text of the server, wherever it stands."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.web import Request, Response
from tests.unit.metrics.test_collector import KEY, Stand, collector, expected
from triton_pipelines.autoscaling.metrics.prometheus_response import TEXT_MAX
from triton_pipelines.autoscaling.metrics.samples import MetricsFailure

TOKEN = "t0ken-" + "0123456789abcdef" * 4
PASSWORD = "pass  w0rd " + "0123456789abcdef" * 2
PARTS = 6
"""Characters of a credential that are recognized."""
BASIC = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
# Where the credential begins in the text: within, at and across the cut.
STARTS = (0, TEXT_MAX - 40, TEXT_MAX - 10, TEXT_MAX + 1)


def error(status: int, text: str) -> Response:
    body = {"status": "error", "errorType": "execution", "error": text}
    return Response(status, {}, json.dumps(body).encode())


ANSWERS = {
    "a rejected query": lambda text: error(422, text),
    "rejected credentials": lambda text: error(401, text),
    "an internal error": lambda text: error(500, text),
    "a timeout": lambda text: error(503, text),
    "an error page": lambda text: Response(502, {}, text.encode()),
    "a redirect": lambda text: Response(302, {"Location": f"https://login/{text}"}, b""),
    "an error in a success": lambda text: error(200, text),
}


def replying(response: Response) -> Callable[[Request, str], Response]:
    """Return a server that always sends this response."""
    return lambda request, query: response


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_no_error_repeats_a_credential(
    stand: Stand, url: str, tmp_path: Path, answer: Any
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "user").write_text("user")
    (tmp_path / "password").write_text(PASSWORD)
    basic = {
        "usernameFile": str(tmp_path / "user"),
        "passwordFile": str(tmp_path / "password"),
    }
    for credentials, secrets in (
        ({"bearerTokenFile": str(tmp_path / "token")}, (TOKEN,)),
        ({"basicAuth": basic}, (PASSWORD, BASIC)),
    ):
        for secret in secrets:
            for start in STARTS:
                text = "x" * start + secret
                stand.before = replying(answer(text))
                async with collector(url, stand, security="Insecure", **credentials) as made:
                    found = (await made.collect(expected()))[KEY]
                assert isinstance(found, MetricsFailure)
                check(found.message, secret)


async def test_no_warning_repeats_a_credential(stand: Stand, url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    stand.scrape(999.0, 1.0)
    stand.warnings = ["x" * start + TOKEN for start in STARTS]
    token: Any = {"bearerTokenFile": str(tmp_path / "token"), "security": "Insecure"}
    async with collector(url, stand, **token) as made:
        found = (await made.collect(expected()))[KEY]
    for note in found.notes:  # type: ignore[union-attr]
        check(note, TOKEN)


async def test_a_client_key_that_cannot_be_used_is_not_repeated(
    stand: Stand, url: str, tmp_path: Path
) -> None:
    key = f"-----BEGIN PRIVATE KEY-----\n{TOKEN}\n-----END PRIVATE KEY-----\n"
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text(key)
    tls = {"certFile": str(tmp_path / "tls.crt"), "keyFile": str(tmp_path / "tls.key")}
    async with collector(url.replace("http:", "https:"), stand, tls=tls) as made:
        found = (await made.collect(expected()))[KEY]
    assert isinstance(found, MetricsFailure)
    assert "tls.keyFile" in found.message
    check(found.message, TOKEN)


def check(text: str, secret: str) -> None:
    """Fail if a text contains a part of a secret."""
    for start in range(len(secret) - PARTS):
        part = secret[start : start + PARTS]
        assert part.strip("x ") not in text or not part.strip("x "), f"{part!r} is in {text!r}"
