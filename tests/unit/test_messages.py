"""Check the golden messages: wording is compared, and no entry is stale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.messages import (
    FILE,
    ROOT,
    Messages,
    golden,
    merged,
    normalize,
    stale,
    text_of,
)

HERE = "tests/unit/test_messages.py"


def test_wording_is_that_of_the_golden_file(messages: Messages) -> None:
    messages.check("cannot listen on port 8001: Address already in use", port=8001)
    messages.check("the pipeline is not valid:\n  spec.model.outputs: required")
    with messages.raises(ValueError, match=r"spec\.model"):
        raise ValueError("spec.model is missing; add the model")


def test_another_wording_fails() -> None:
    with pytest.raises(AssertionError, match=r"(?s)make golden.*: is missing\nmessage: is absent"):
        Messages("a::b", ["is missing"]).check("is absent")


def test_a_message_without_entry_fails() -> None:
    with pytest.raises(AssertionError, match="run `make golden`: is missing"):
        Messages("a::b", []).check("is missing")


def test_an_empty_message_fails_even_while_rewriting() -> None:
    with pytest.raises(AssertionError, match="empty"):
        Messages("a::b", [""], rewrite=True).check(ValueError())


def test_a_message_that_is_no_longer_checked_fails() -> None:
    messages = Messages("a::b", ["is missing", "is absent"])
    messages.check("is missing")
    with pytest.raises(AssertionError, match=r"no longer checks.*is absent"):
        messages.finish()


def test_varying_parts_are_placeholders(tmp_path: Path) -> None:
    text = f"file://{tmp_path}/a: 127.0.0.1:8001 of sentiment-0a1b2c3d4e refuses 12 of {ROOT}/b"
    assert normalize(text, tmp_path.parent, {"count": 12}) == (
        "file://<tmp>/a: 127.0.0.1:<port> of sentiment-<hash> refuses <count> of <root>/b"
    )
    assert normalize("('127.0.0.1', 8001)", tmp_path, {}) == "('127.0.0.1', <port>)"
    with pytest.raises(AssertionError, match="count=13 is not part"):
        normalize("refuses 12", tmp_path, {"count": 13})


def test_rewriting_replaces_the_entries_of_the_files_that_ran() -> None:
    old = {HERE: {"gone": ["a"], "kept": ["b"]}, "tests/none.py": {"x": ["c"]}, "Makefile": {}}
    new = merged(old, {f"{HERE}::kept": ["changed"], f"{HERE}::new": ["d", "e"]})
    assert new == {HERE: {"kept": ["changed"], "new": ["d", "e"]}, "Makefile": {}}


def test_entries_without_a_test_are_stale() -> None:
    content = {HERE: {"gone": ["a"], "here": ["b"]}, "tests/none.py": {"x": ["c"]}, "Makefile": {}}
    assert stale(content, {f"{HERE}::here"}) == [f"{HERE}::gone", "tests/none.py::x"]


def test_no_golden_message_is_stale(request: pytest.FixtureRequest) -> None:
    """In a run of the whole tier this covers every entry; a selection of tests proves nothing."""
    option = request.config.option
    if option.keyword or option.markexpr or any("::" in item for item in request.config.args):
        pytest.skip("only some tests of each file were collected")
    assert not stale(golden(), {item.nodeid for item in request.session.items})


def test_the_golden_file_is_as_rewriting_writes_it() -> None:
    assert FILE.read_text(encoding="utf-8") == text_of(golden())


def test_parallel_workers_write_the_same_file(tmp_path: Path) -> None:
    written = tmp_path / "messages.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", HERE, "-q", "-n", "2", f"--write-messages={written}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert written.read_text(encoding="utf-8") == FILE.read_text(encoding="utf-8")
