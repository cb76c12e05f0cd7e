"""Texts of ConfigMaps are parsed once, and take a bounded part of the memory."""

from __future__ import annotations

import json

from tests.support.peakmemory import MIB, peak_growth
from triton_pipelines.controllers.pipeline.text_cache import TextCache

EDITS = """
from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

REVISION = "0123456789"

def edited(number, length):
    items = "{}," * (length // 3) + "{}"
    state = f'{{"tuning_run": {{"request": "{number}", "items": [{items}]}}}}'
    record = f'{{"serverImage": "{number}", "template": {{"items": [{items}]}}}}'
    children = {
        ("ConfigMap", names.live_name("p")): {"data": {names.KEY_STATE: state}},
        ("ConfigMap", names.revision_name("p", REVISION)): {"data": {names.KEY_TEMPLATE: record}},
    }
    return Snapshot({"metadata": {"name": "p", "namespace": "n"}}, children)

async def main():
    for number in range(14):
        snapshot = edited(number, 600_000)
        assert snapshot.state().tuning_run.document["request"] == str(number)
        assert snapshot.revision_record(REVISION)["serverImage"] == str(number)
"""


def test_edits_take_a_bounded_part_of_the_memory() -> None:
    """Anyone who may edit the ConfigMaps of a pipeline may do so any number of times."""
    assert peak_growth(EDITS) < 200 * MIB


def test_what_was_used_last_is_kept() -> None:
    parsed: list[str | None] = []

    def parse(text: str | None) -> object:
        parsed.append(text)
        return json.loads(text or "0")

    cache = TextCache(parse, 700)
    for text in ("1", None, "1", "2" * 350, "1", None, "3" * 350, "1", "2" * 350):
        assert cache(text) == json.loads(text or "0")
    assert parsed == ["1", None, "2" * 350, "3" * 350, "2" * 350]


def test_a_text_beyond_the_limit_is_parsed_and_not_kept() -> None:
    cache = TextCache(lambda text: text, 200)
    for _ in range(3):
        assert cache("x" * 300) == "x" * 300
    assert not cache._results
    assert cache._characters == 0
