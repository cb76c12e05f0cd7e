"""Answers of the API server are decoded at any depth."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from triton_pipelines.api.depth import is_deeper_than
from triton_pipelines.api.spec_size import excess_of
from triton_pipelines.cluster import decoding
from triton_pipelines.cluster.kopf_session import BoundedResponse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\{}[],:é\n'),
    lambda below: st.lists(below) | st.dictionaries(st.text(alphabet='a"\\{}[],:'), below),
)


def text(depth: int, name: str = "deep") -> str:
    """Return an object whose spec has ``depth`` levels; ``json`` cannot write it."""
    spec = '{"a":["}",' * (depth // 2) + "1" + "]}" * (depth // 2)
    return json.dumps({"metadata": {"name": name}, "spec": 0, "after": [1]}).replace(
        '"spec": 0', f'"spec": {spec}'
    )


@given(JSON | st.floats() | st.integers(min_value=-(2**80), max_value=2**80))
def test_values_are_those_of_json(value: Any) -> None:
    raw = json.dumps({"a": value}).encode()
    # As text, because 1, 1.0 and True are equal.
    assert repr(decoding.loads(raw)) == repr(json.loads(raw))


@pytest.mark.parametrize(
    "raw", [b'{"a": "\\ud800"}', b'{"a": 1, "a": 2}', b'{"a": 1e400}', b" [] "]
)
def test_unusual_texts_are_read_as_json_reads_them(raw: bytes) -> None:
    assert decoding.loads(raw) == json.loads(raw)


def test_values_of_the_greatest_depth_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "without_deep_values", pytest.fail)
    raw = text(decoding.MAX_DEPTH - 2).encode()
    assert decoding.loads(raw) == json.loads(raw)
    assert decoding.bounded(raw) is raw


@pytest.mark.parametrize("depth", [500, 1_000, 5_000, 9_990])
def test_deep_values_are_cut_and_the_rest_is_kept(depth: int) -> None:
    found = decoding.loads(text(depth).encode())
    assert found["metadata"] == {"name": "deep"}
    assert found["after"] == [1]
    assert not is_deeper_than(found, decoding.MAX_DEPTH)
    assert is_deeper_than(found, decoding.MAX_DEPTH - 1)
    assert copy.deepcopy(found) == found


@given(JSON, st.integers(min_value=1, max_value=4))
def test_a_cut_value_differs_only_below_its_depth(value: Any, depth: int) -> None:
    cut = json.loads(decoding.without_deep_values(json.dumps(value).encode(), depth))
    assert not is_deeper_than(cut, depth)
    assert cut == _cut(value, depth)


def _cut(value: Any, depth: int) -> Any:
    if not isinstance(value, (dict, list)):
        return value
    if not depth:
        return None
    if isinstance(value, list):
        return [_cut(item, depth - 1) for item in value]
    return {key: _cut(item, depth - 1) for key, item in value.items()}


def test_a_line_of_many_brackets_that_is_not_deep_is_returned_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Finding each bracket takes several times as long as decoding the line.
    monkeypatch.setattr(decoding, "without_deep_values", pytest.fail)
    line = json.dumps({"items": [{"text": "[{" * 300}] * 200}).encode()
    assert decoding.bounded(line) is line


@pytest.mark.parametrize("depth", [decoding.MAX_DEPTH + 2, 5_000])
def test_a_deep_line_is_cut(depth: int) -> None:
    cut = json.loads(decoding.bounded(text(depth).encode()))
    assert cut["after"] == [1]
    assert not is_deeper_than(cut, decoding.MAX_DEPTH)


def test_what_is_not_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        decoding.loads(b"<html>")


def pipeline_text(name: str, size: int) -> dict[str, Any]:
    """Return a pipeline whose spec has about ``size`` bytes of JSON."""
    return {
        "kind": "InferencePipeline",
        "metadata": {
            "name": name,
            "generation": 1,
            "managedFields": [{}],
            "annotations": {"a": ""},
        },
        "spec": {"text": "é" * (size // 2)},
        "status": {"revision": "1"},
    }


@pytest.mark.parametrize("form", ["object", "list", "event"])
def test_large_specs_are_replaced_by_their_size(form: str) -> None:
    small, large = pipeline_text("small", 300_000), pipeline_text("large", 400_000)
    documents: dict[str, Any] = {
        "object": large,
        # Items of a list have no kind.
        "list": {
            "kind": "InferencePipelineList",
            "items": [{**item, "kind": None} for item in (small, large)],
        },
        "event": {"type": "ADDED", "object": large},
    }
    raw = json.dumps(documents[form], ensure_ascii=False).encode()
    found = decoding.loads(raw)
    if form == "list":
        assert found["items"][0]["spec"] == small["spec"]
    one = {"object": found, "event": found.get("object"), "list": found.get("items", [0])[-1]}[form]
    assert excess_of(one["spec"]) == excess_of(large["spec"]) is not None
    assert len(json.dumps(one["spec"])) < 60
    assert one["metadata"] == {"name": "large", "generation": 1, "annotations": {"a": ""}}
    assert one["status"] == {"revision": "1"}
    assert json.loads(decoding.bounded(raw)) == found


def test_a_broken_line_is_passed_on() -> None:
    assert decoding.bounded(b"{" * 400_000) == b"{" * 400_000


def test_a_large_object_of_another_kind_is_kept() -> None:
    stored = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "x" * 400_000}}
    assert decoding.loads(json.dumps(stored).encode()) == stored


async def test_a_session_reads_lists_and_watches_of_any_depth() -> None:
    lines = [text(9_990, "first"), text(10, "second"), "", text(500, "third")]

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.Response(text=text(9_990), content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        body = "\n".join(lines).encode()
        for start in range(0, len(body), 7_001):  # Lines and chunks have different ends.
            await response.write(body[start : start + 7_001])
            await asyncio.sleep(0)
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        async with aiohttp.ClientSession(response_class=BoundedResponse) as session:
            async with session.get(url) as listed:
                assert (await listed.json())["metadata"]["name"] == "deep"
            async with session.get(url, params={"watch": "true"}) as watched:
                body = b"".join([chunk async for chunk in watched.content.iter_chunked(2**20)])
    finally:
        await runner.cleanup()
    found = [json.loads(line) for line in body.split(b"\n") if line]
    assert [item["metadata"]["name"] for item in found] == ["first", "second", "third"]
    assert not any(is_deeper_than(item, decoding.MAX_DEPTH) for item in found)
