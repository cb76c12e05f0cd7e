"""Requests, retries and errors of the client against a simulated API server on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from tests.support.messages import Messages
from triton_pipelines.cluster import transport
from triton_pipelines.cluster.client import Client, ClientOptions
from triton_pipelines.cluster.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ResponseTooLarge,
    TooMany,
    Unauthorized,
    Unavailable,
)
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    INFERENCE_PIPELINES,
    NODES,
    Resource,
    resource_of,
)

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]] | Callable[[web.Request], Any]
CONFIG_MAP: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "a", "namespace": "n"},
}


def status(code: int, reason: str, message: str = "", **details: Any) -> tuple[int, Any]:
    return code, {
        "kind": "Status",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


class Script:
    """Answers requests in order from a list and keeps what was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seen: list[tuple[str, str, dict[str, str], Any, dict[str, str]]] = []
        self.raw: list[bytes] = []
        self.waits: list[float] = []
        self.observed: list[tuple[str, str, str]] = []
        self.tokens = ["first", "second", "third"]
        self.logins = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        self.raw.append(raw)
        self.seen.append(
            (request.method, request.path, dict(request.query), body, dict(request.headers))
        )
        answer = self.answers.pop(0)
        if callable(answer):
            result: web.StreamResponse = await answer(request)
            return result
        code, content, *headers = answer
        return web.json_response(content, status=code, headers=headers[0] if headers else None)

    async def login(self) -> Configuration:
        configuration = Configuration(host=self.url)
        configuration.api_key["BearerToken"] = f"Bearer {self.tokens[self.logins]}"
        self.logins += 1
        return configuration

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def observe(self, *, verb: str, resource: str, code: str, seconds: float) -> None:
        self.observed.append((verb, resource, code))

    def client(self, **options: Any) -> Client:
        return Client(
            self.login,
            options=ClientOptions(**options),
            observe=self.observe,
            sleep=self.sleep,
            uniform=lambda _low, high: high,
        )


@pytest.fixture
async def script() -> AsyncIterator[Script]:
    script = Script()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    script.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield script
    await runner.cleanup()


@pytest.fixture
async def client(script: Script) -> AsyncIterator[Client]:
    async with script.client() as client:
        yield client


async def drop(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_what_lies_beyond_the_first_plane_is_applied_as_it_is(
    script: Script, client: Client
) -> None:
    """Send characters beyond the first plane unescaped.

    The API server reads an apply as YAML, which rejects surrogate pairs of escapes with ``found
    invalid Unicode character escape code``.
    """
    script.answers = [(200, CONFIG_MAP)]
    labels = {**CONFIG_MAP, "data": {"labels": "\U0001f642 \u00e9"}}
    await client.apply(labels)
    assert script.seen[0][3] == labels
    assert b"\\u" not in script.raw[0]


async def test_apply_is_one_patch_with_manager_and_force(script: Script, client: Client) -> None:
    script.answers = [(200, CONFIG_MAP)]
    assert await client.apply(CONFIG_MAP) == CONFIG_MAP
    method, path, query, body, headers = script.seen[0]
    assert (method, path, body) == ("PATCH", "/api/v1/namespaces/n/configmaps/a", CONFIG_MAP)
    assert query == {"fieldManager": "triton-pipelines", "force": "true"}
    assert headers["Content-Type"].partition(";")[0] == "application/apply-patch+yaml"
    assert headers["Authorization"] == "Bearer first"
    assert script.observed == [("apply", "configmaps", "200")]


async def test_no_error_repeats_the_operators_token(script: Script, client: Client) -> None:
    """A proxy in front of the API server may repeat the headers of a request."""
    script.answers = [status(403, "Forbidden", "Authorization: Bearer first is not accepted")]
    with pytest.raises(Forbidden) as error:
        await client.apply(CONFIG_MAP)
    assert "first" not in f"{error.value} {error.value.message}"
    assert "***" in error.value.message


async def test_status_has_its_own_path_and_manager(script: Script, client: Client) -> None:
    pipeline = {
        "apiVersion": "tritonpipelines.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {"name": "p", "namespace": "n"},
    }
    script.answers = [(200, pipeline)]
    await client.apply_status(pipeline)
    _, path, query, *_ = script.seen[0]
    assert path == "/apis/tritonpipelines.io/v1alpha1/namespaces/n/inferencepipelines/p/status"
    assert query["fieldManager"] == "triton-pipelines-status"
    assert script.observed == [("apply status", "inferencepipelines", "200")]


async def test_list_reads_all_pages_and_names_the_kind(script: Script, client: Client) -> None:
    script.answers = [
        (
            200,
            {
                "metadata": {"continue": "t", "resourceVersion": "5"},
                "items": [{"metadata": {"name": "a"}}],
            },
        ),
        (200, {"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "b"}}]}),
    ]
    listing = await client.list(CONFIG_MAPS, label_selector="x=y")
    assert [
        (item["metadata"]["name"], item["apiVersion"], item["kind"]) for item in listing.items
    ] == [
        ("a", "v1", "ConfigMap"),
        ("b", "v1", "ConfigMap"),
    ]
    assert listing.resource_version == "5"
    assert [seen[2] for seen in script.seen] == [
        {"labelSelector": "x=y", "limit": "25"},
        {"labelSelector": "x=y", "limit": "25", "continue": "t"},
    ]


async def test_a_list_whose_token_ran_out_starts_again_once(script: Script, client: Client) -> None:
    first = (200, {"metadata": {"continue": "t"}, "items": [{"metadata": {"name": "a"}}]})
    script.answers = [first, status(410, "Expired"), first, (200, {"metadata": {}, "items": []})]
    assert len((await client.list(CONFIG_MAPS)).items) == 1
    script.answers = [status(410, "Expired"), status(410, "Expired")]
    with pytest.raises(Gone):
        await client.list(CONFIG_MAPS)


async def test_a_response_above_the_limit_is_refused_with_the_limit(script: Script) -> None:
    large = {"data": {"key": "x" * 2 * 1024**2}}
    script.answers = [(200, large), (200, {})]
    async with script.client(max_response_bytes=1024**2) as client:
        with pytest.raises(ResponseTooLarge, match="configmaps/a"):
            await client.get(CONFIG_MAPS, "n", "a")
        # It is not repeated, and the client still works.
        assert await client.get(CONFIG_MAPS, "n", "a") == {}
    assert script.observed[0] == ("get", "configmaps", "ResponseTooLarge")
    assert len(script.seen) == 2


async def test_pages_that_are_too_large_are_read_in_parts(script: Script) -> None:
    def page(name: str, token: str, size: int = 0) -> Answer:
        metadata = {"name": name, "annotations": {"a": "x" * size}}
        return 200, {"metadata": {"continue": token}, "items": [{"metadata": metadata}]}

    script.answers = [page("a", "t"), page("b", "", 10_000), page("b", "u"), page("c", "")]
    async with script.client(max_response_bytes=5_000) as client:
        listing = await client.list(CONFIG_MAPS)
        assert [item["metadata"]["name"] for item in listing.items] == ["a", "b", "c"]
        queries = [(seen[2]["limit"], seen[2].get("continue")) for seen in script.seen]
        assert queries == [("25", None), ("25", "t"), ("2", "t"), ("2", "u")]
        # A single object cannot be divided.
        script.answers = [page("a", "", 10_000)] * 3
        with pytest.raises(ResponseTooLarge):
            await client.list(CONFIG_MAPS)


async def test_delete_sends_preconditions_and_takes_absence_for_done(
    script: Script, client: Client
) -> None:
    script.answers = [(200, {}), status(404, "NotFound")]
    assert (
        await client.delete(
            CONFIG_MAPS, "n", "a", uid="u", resource_version="7", propagation="Foreground"
        )
        is True
    )
    assert script.seen[0][3] == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Foreground",
        "preconditions": {"uid": "u", "resourceVersion": "7"},
    }
    assert await client.delete(CONFIG_MAPS, "n", "a") is False


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (410, "Gone", Gone),
        (400, "BadRequest", Invalid),
        (422, "Invalid", Invalid),
    ],
)
async def test_answers_that_no_retry_helps(
    script: Script,
    client: Client,
    code: int,
    reason: str,
    kind: type[Exception],
    messages: Messages,
) -> None:
    script.answers = [
        status(
            code,
            reason,
            'cannot get configmaps "a"',
            causes=[{"field": "spec.x", "message": "bad"}],
        )
    ]
    with messages.raises(kind) as caught:
        await client.get(CONFIG_MAPS, "n", "a")
    error: Any = caught.value
    assert (error.status, error.reason) == (code, reason)
    assert [(cause.field, cause.message) for cause in error.causes] == [("spec.x", "bad")]
    assert script.waits == []


async def test_a_proxy_that_answers_in_html_is_reported_with_its_status(
    script: Script, client: Client, messages: Messages
) -> None:
    async def html(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="<html>", content_type="text/html")

    script.answers = [html] * 4
    with messages.raises(Unavailable, match="502"):
        await client.get(CONFIG_MAPS, "n", "a")
    assert script.waits == [0.2, 0.4, 0.8]


async def test_too_many_waits_as_long_as_asked_also_for_a_create(
    script: Script, client: Client
) -> None:
    script.answers = [(429, {}, {"Retry-After": "3"}), (201, CONFIG_MAP)]
    assert await client.create(CONFIG_MAP) == CONFIG_MAP
    assert script.waits == [3.2]


async def test_a_retry_after_beyond_our_patience_goes_to_the_caller(
    script: Script, client: Client
) -> None:
    script.answers = [(429, {}, {"Retry-After": "60"})]
    with pytest.raises(TooMany) as caught:
        await client.get(CONFIG_MAPS, "n", "a")
    assert caught.value.retry_after == 60
    assert script.waits == []


async def test_a_dropped_connection_repeats_an_apply_but_never_a_create(
    script: Script, client: Client
) -> None:
    script.answers = [drop, (200, CONFIG_MAP)]
    await client.apply(CONFIG_MAP)
    assert script.observed == [
        ("apply", "configmaps", "ConnectionLost"),
        ("apply", "configmaps", "200"),
    ]
    script.answers = [drop]
    with pytest.raises(Unavailable):
        await client.create(CONFIG_MAP)
    script.answers = [status(500, "InternalError")]
    with pytest.raises(Unavailable):
        await client.create(CONFIG_MAP)
    assert len(script.waits) == 1


async def test_a_refused_connection_repeats_everything(script: Script) -> None:
    script.url = "http://127.0.0.1:1"
    async with script.client(attempts=3) as client:
        with pytest.raises(Unavailable):
            await client.create(CONFIG_MAP)
    assert len(script.waits) == 2


async def test_a_stall_ends_at_the_timeout_and_is_not_repeated(
    script: Script, messages: Messages
) -> None:
    released = asyncio.Event()

    async def stall(_: web.Request) -> web.StreamResponse:
        await released.wait()
        return web.Response()

    script.answers = [stall]
    async with script.client(timeout_seconds=0.05) as client:
        with messages.raises(Unavailable):
            await client.get(CONFIG_MAPS, "n", "a")
    released.set()
    assert script.observed == [("get", "configmaps", "Timeout")]


async def test_no_more_requests_at_a_time_than_allowed(script: Script) -> None:
    running = 0
    most = 0
    both = asyncio.Event()

    async def slow(_: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            both.set()
        await both.wait()
        running -= 1
        return web.json_response(CONFIG_MAP)

    script.answers = [slow] * 6
    async with script.client(max_in_flight=2) as client:
        await asyncio.gather(*(client.get(CONFIG_MAPS, "n", "a") for _ in range(6)))
    assert most == 2


async def test_credentials_are_read_again_once_after_a_401(script: Script, client: Client) -> None:
    script.answers = [status(401, "Unauthorized")] * 2 + [(200, CONFIG_MAP)] * 2
    await asyncio.gather(client.get(CONFIG_MAPS, "n", "a"), client.get(CONFIG_MAPS, "n", "a"))
    assert script.logins == 2
    assert [seen[4]["Authorization"] for seen in script.seen] == ["Bearer first"] * 2 + [
        "Bearer second"
    ] * 2
    script.answers = [status(401, "Unauthorized")] * 2
    with pytest.raises(Unauthorized):
        await client.get(CONFIG_MAPS, "n", "a")


def test_paths_refuse_what_does_not_fit() -> None:
    assert NODES.path(name="n1") == "/api/v1/nodes/n1"
    assert CONFIG_MAPS.path() == "/api/v1/configmaps"
    assert (
        CONFIG_MAPS.path("n", "../secrets/x") == "/api/v1/namespaces/n/configmaps/..%2Fsecrets%2Fx"
    )
    for resource, arguments in (
        (NODES, ("n", "a")),
        (CONFIG_MAPS, (None, "a")),
        (CONFIG_MAPS, ("n", "")),
        (CONFIG_MAPS, ("n", None, "status")),
    ):
        with pytest.raises(ValueError):
            resource.path(*arguments)


def test_resource_of_an_object() -> None:
    found: Resource = resource_of(
        {"apiVersion": "tritonpipelines.io/v1alpha1", "kind": "InferencePipeline"}
    )
    assert found is INFERENCE_PIPELINES
    with pytest.raises(LookupError, match="Gadget"):
        resource_of({"apiVersion": "x/v1", "kind": "Gadget"})


async def test_an_error_does_not_repeat_the_secret_that_was_sent(
    script: Script, client: Client
) -> None:
    secret = {**CONFIG_MAP, "kind": "Secret", "stringData": {"admin-key": "k3y-of-triton"}}
    script.answers = [status(403, "Forbidden", "webhook: k3y-of-triton is too short")]
    with pytest.raises(Forbidden, match=r"webhook: \*\*\* is too short"):
        await client.apply(secret)


async def test_an_attempt_that_took_long_is_not_repeated(
    script: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook that hangs would keep its caller busy several times as long."""
    monkeypatch.setattr(transport, "_LONG_SECONDS", 0.0)
    script.answers = [status(500, "InternalError", "failed calling webhook")] * 2
    with pytest.raises(Unavailable, match="failed calling webhook"):
        await client.apply(CONFIG_MAP)
    assert len(script.seen) == 1
