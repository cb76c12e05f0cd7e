"""What Kopf lists before it watches goes to the store, and Kopf gets only the resourceVersion."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web

from triton_pipelines.cluster.kopf_session import bounded_session
from triton_pipelines.cluster.resources import CONFIG_MAPS, PODS, Resource
from triton_pipelines.cluster.watch_lists import WatchLists


class Lists:
    """The lists of two kinds, and the objects that they passed on."""

    def __init__(self, *scopes: str | None) -> None:
        self.taken: list[tuple[str, str]] = []
        self.lists = WatchLists((PODS, CONFIG_MAPS), scopes or (None,), self.take)

    def take(self, resource: Resource, item: dict[str, Any]) -> None:
        self.taken.append((resource.kind, item["name"]))

    async def is_complete(self) -> bool:
        waiting = asyncio.create_task(self.lists.wait())
        await asyncio.sleep(0)
        is_complete = waiting.done()
        waiting.cancel()
        return is_complete


def page(*items: str, token: str = "") -> dict[str, Any]:
    metadata = {"resourceVersion": "7", "continue": token}
    return {"metadata": metadata, "items": [{"name": name} for name in items]}


async def test_objects_are_passed_on_and_kopf_gets_what_it_needs_to_watch() -> None:
    found = Lists()
    answer = found.lists.take_page("/api/v1/pods", page("a", "b", token="next"))
    assert answer == page(token="next")
    assert found.taken == [("Pod", "a"), ("Pod", "b")]


async def test_lists_are_complete_after_the_last_page_of_every_kind_and_namespace() -> None:
    found = Lists("one", "two words")
    paths = [
        f"/api/v1/namespaces/{namespace}/{plural}"
        for namespace in ("one", "two words")
        for plural in ("pods", "configmaps")
    ]
    for path in paths:
        found.lists.take_page(path, page("a", token="next"))
    for path in paths:
        assert not await found.is_complete()
        found.lists.take_page(path, page())
    assert await found.is_complete()


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/api/v1/secrets", page("a")),
        ("/api/v1/pods/one", {"items": [{"name": "a"}]}),
        ("/api/v1/pods", {"kind": "Status", "code": 410}),
        ("/api/v1/pods", None),
    ],
)
async def test_other_answers_are_left_to_kopf(path: str, answer: Any) -> None:
    found = Lists()
    assert found.lists.take_page(path, answer) is answer
    assert not found.taken


@pytest.mark.parametrize("root", ["", "/clusters/c1"])
async def test_a_session_takes_over_lists_of_a_server_with_any_url(root: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(page("a"))

    found, app = Lists(), web.Application()
    app.router.add_get(f"{root}/api/v1/pods", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}{root}"
    session = bounded_session(kopf.ConnectionInfo(server=server), found.lists).aiohttp_session
    try:
        async with session.get(f"{server}/api/v1/pods", params={"limit": "2"}) as listed:
            assert await listed.json() == page()
    finally:
        await session.close()
        await runner.cleanup()
    assert found.taken == [("Pod", "a")]


async def test_a_scope_that_fails_does_not_keep_others_waiting() -> None:
    found = Lists("good", "bad")
    for plural in ("pods", "configmaps"):
        found.lists.take_page(f"/api/v1/namespaces/good/{plural}", page())
    assert not await found.is_complete()
    path = "/api/v1/namespaces/bad/pods"
    found.lists.observe(path, "HTTP status 403")
    assert await found.is_complete()
    assert (found.lists.is_listed("good"), found.lists.is_listed("bad")) == (True, False)
    assert (found.lists.is_failing("good"), found.lists.is_failing("bad")) == (False, True)
    found.lists.observe(path)
    assert not found.lists.is_failing("bad")


async def test_nothing_starts_while_no_scope_is_listed() -> None:
    found = Lists("one", "two")
    for namespace in ("one", "two"):
        found.lists.observe(f"/api/v1/namespaces/{namespace}/pods", "HTTP status 503")
        found.lists.take_page(f"/api/v1/namespaces/{namespace}/pods", page())
    assert not await found.is_complete()


async def test_each_scope_is_reported_once_when_it_is_listed() -> None:
    listed: list[str | None] = []
    lists = WatchLists((PODS, CONFIG_MAPS), ("one", "two"), lambda *_: None, listed.append)
    for _ in range(2):
        lists.take_page("/api/v1/namespaces/one/pods", page())
        lists.take_page("/api/v1/namespaces/two/pods", page())
        lists.take_page("/api/v1/namespaces/two/configmaps", page())
    assert listed == ["two"]


async def test_other_requests_are_not_observed() -> None:
    found = Lists()
    found.lists.observe("/api/v1/secrets", "HTTP status 403")
    assert not found.lists.is_failing(None)


async def test_a_session_reports_failed_requests() -> None:
    app, found = web.Application(), Lists()
    answers = iter([403, 200])
    app.router.add_get(
        "/api/v1/pods", lambda _: _answer(web.json_response(page(), status=next(answers)))
    )
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    session = bounded_session(kopf.ConnectionInfo(server=server), found.lists).aiohttp_session
    try:
        for is_failing in (True, False):
            async with session.get(f"{server}/api/v1/pods"):
                assert found.lists.is_failing(None) is is_failing
        await runner.cleanup()
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"{server}/api/v1/pods")
        assert found.lists.is_failing(None)
    finally:
        await session.close()
        await runner.cleanup()


async def _answer(response: web.Response) -> web.Response:
    return response
