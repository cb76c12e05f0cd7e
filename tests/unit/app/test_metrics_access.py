"""Who may read the operator's metrics, and over which connection."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from kubernetes.aio.client import Configuration
from prometheus_client import CollectorRegistry, Counter

from e2e.local.pki import Authority
from e2e.local.processes import free_port
from triton_pipelines.app import metrics_access, metrics_server
from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.app.metrics_access import Access, MetricsAccess
from triton_pipelines.app.metrics_server import MetricsCertificate, guarded, serve_metrics
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Unavailable
from triton_pipelines.cluster.transport import ignore_request

USER = {
    "username": "system:serviceaccount:monitoring:prometheus",
    "uid": "u",
    "groups": ["system:authenticated"],
    "extra": {"a": ["b"]},
}


@dataclass
class Reviewer:
    """Reviews as an API server does, and counts."""

    users: dict[str, Any] = field(
        default_factory=lambda: {"good": USER, "other": {"username": "x"}}
    )
    allowed: set[str] = field(default_factory=lambda: {USER["username"]})
    fails: bool = False
    asked: list[Object] = field(default_factory=list)

    async def create(self, obj: Object, **_: Any) -> Object:
        item = obj
        self.asked.append(item)
        if self.fails:
            raise Unavailable(503, "ServiceUnavailable", "later")
        if item["kind"] == "TokenReview":
            user = self.users.get(item["spec"]["token"])
            return {"status": {"authenticated": True, "user": user} if user else {"error": "no"}}
        return {"status": {"allowed": item["spec"]["user"] in self.allowed}}


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def access(reviewer: Reviewer, clock: Clock | None = None) -> MetricsAccess:
    return MetricsAccess(cast(Client, reviewer), clock or Clock())


@pytest.mark.parametrize(
    ("token", "decision", "requests"),
    [
        ("good", Access.ALLOWED, 2),
        ("other", Access.FORBIDDEN, 2),
        ("unknown", Access.UNAUTHENTICATED, 1),
        ("", Access.UNAUTHENTICATED, 0),
        ("x" * 20_000, Access.UNAUTHENTICATED, 0),
    ],
)
async def test_decisions(token: str, decision: Access, requests: int) -> None:
    reviewer = Reviewer()
    assert await access(reviewer).check(token) is decision
    assert len(reviewer.asked) == requests


async def test_the_permission_of_the_tokens_user_counts() -> None:
    reviewer = Reviewer()
    await access(reviewer).check("good")
    assert reviewer.asked[1]["spec"] == {
        "user": USER["username"],
        "uid": "u",
        "groups": USER["groups"],
        "extra": USER["extra"],
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }


async def test_decisions_are_reused_for_a_while() -> None:
    reviewer, clock = Reviewer(), Clock()
    one = access(reviewer, clock)
    for _ in range(5):
        assert await one.check("good") is Access.ALLOWED
    assert len(reviewer.asked) == 2
    reviewer.allowed.clear()
    clock.now += metrics_access.ALLOWED_SECONDS
    assert await one.check("good") is Access.FORBIDDEN
    reviewer.allowed.add(USER["username"])
    clock.now += metrics_access.DENIED_SECONDS
    assert await one.check("good") is Access.ALLOWED


async def test_a_failing_api_server_denies_access_and_is_asked_again() -> None:
    reviewer = Reviewer(fails=True)
    one = access(reviewer)
    assert await one.check("good") is Access.UNKNOWN
    reviewer.fails = False
    assert await one.check("good") is Access.ALLOWED


async def test_tokens_do_not_fill_the_memory() -> None:
    one = access(Reviewer())
    for number in range(1000):
        await one.check(f"token {number}")
    assert len(one._known) == metrics_access._KNOWN_MAX
    assert not any(b"token" in key for key in one._known)


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        (Access.ALLOWED, "200 OK"),
        (Access.UNAUTHENTICATED, "401 Unauthorized"),
        (Access.FORBIDDEN, "403 Forbidden"),
        (Access.UNKNOWN, "503 Service Unavailable"),
    ],
)
def test_answers(decision: Access, status: str) -> None:
    seen: list[str] = []
    answered: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"secret figures"]

    def authorize(token: str) -> Access:
        seen.append(token)
        return decision

    body = guarded(app, authorize)(
        {"HTTP_AUTHORIZATION": "bearer abc "}, lambda line, _: answered.append(line)
    )
    assert (seen, answered) == (["abc"], [status])
    assert (b"".join(body) == b"secret figures") is (decision is Access.ALLOWED)


def test_other_schemes_are_no_token() -> None:
    seen: list[str] = []

    def authorize(token: str) -> Access:
        seen.append(token)
        return Access.UNAUTHENTICATED

    for header in ("Basic abc", "abc", ""):
        guarded(lambda *_: [], authorize)({"HTTP_AUTHORIZATION": header}, lambda *_: None)
    assert seen == ["", "", ""]


# --- TLS ------------------------------------------------------------------------------------------


def write_certificate(folder: Path, authority: Authority) -> ssl.SSLContext:
    """Write a new certificate for loopback; return a client that trusts only its authority."""
    identity = authority.server("metrics", ("127.0.0.1",))
    (folder / "tls.crt").write_bytes(identity.certificate)
    (folder / "tls.key").write_bytes(identity.key)
    return ssl.create_default_context(cadata=authority.identity.certificate.decode())


@pytest.fixture
def authority() -> Authority:
    return Authority(dt.datetime.now(dt.UTC))


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[int]:
    registry, port = CollectorRegistry(), free_port()
    Counter("figures", "Figures.", registry=registry).inc()
    config = OperatorConfig(metrics_host="127.0.0.1", metrics_port=port, **options)

    async def login() -> Configuration:
        return Configuration(host="http://127.0.0.1:1")

    async with serve_metrics(registry, config, login, ignore_request):
        yield port


async def test_without_settings_metrics_are_served_as_before() -> None:
    async with serving() as port, httpx.AsyncClient(trust_env=False) as client:
        assert "figures_total 1.0" in (await client.get(f"http://127.0.0.1:{port}/metrics")).text


async def test_a_rotated_certificate_is_used_for_new_connections(
    tmp_path: Path, authority: Authority
) -> None:
    trusted = write_certificate(tmp_path, authority)
    async with serving(metrics_tls_folder=tmp_path) as port:
        url = f"https://127.0.0.1:{port}/metrics"

        async def read(context: ssl.SSLContext) -> str:
            async with httpx.AsyncClient(verify=context, trust_env=False) as client:
                return (await client.get(url)).text

        assert "figures_total" in await read(trusted)
        later = write_certificate(tmp_path, Authority(dt.datetime.now(dt.UTC)))
        assert "figures_total" in await read(later)
        with pytest.raises(httpx.ConnectError):
            await read(trusted)


async def test_a_certificate_that_cannot_be_read_leaves_the_previous_one(
    tmp_path: Path, authority: Authority
) -> None:
    write_certificate(tmp_path, authority)
    certificate = MetricsCertificate(tmp_path)
    before = certificate.context()
    (tmp_path / "tls.crt").write_text("no certificate")
    assert certificate.context() is before
    (tmp_path / "tls.key").unlink()
    assert certificate.context() is before


async def test_a_client_that_does_not_speak_does_not_delay_others(
    tmp_path: Path, authority: Authority
) -> None:
    trusted = write_certificate(tmp_path, authority)
    async with serving(metrics_tls_folder=tmp_path) as port:
        _, silent = await asyncio.open_connection("127.0.0.1", port)
        async with httpx.AsyncClient(verify=trusted, trust_env=False) as client:
            found = await client.get(f"https://127.0.0.1:{port}/metrics")
        assert found.status_code == 200
        silent.close()


async def test_an_unreachable_api_server_denies_access(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "_REVIEW_SECONDS", 5.0)
    trusted = write_certificate(tmp_path, authority)
    async with (
        serving(metrics_tls_folder=tmp_path, metrics_authentication="token") as port,
        httpx.AsyncClient(verify=trusted, trust_env=False) as client,
    ):
        url = f"https://127.0.0.1:{port}/metrics"
        assert (await client.get(url)).status_code == 401
        found = await client.get(url, headers={"Authorization": "Bearer x"})
        assert (found.status_code, "figures" in found.text) == (503, False)
