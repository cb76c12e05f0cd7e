"""Compare the messages that users read with one golden file, ``tests/golden/messages.yaml``.

A test asserts the code, reason or exception, and the key words such as the field's path. The
wording stands in the golden file under the test's name, so a new wording is one reviewable diff:

    def test_an_empty_file_is_rejected(messages: Messages) -> None:
        with messages.raises(SourceError, match="token"):
            read(token)
        messages.check(world.condition("Ready")["message"])

``make golden`` rewrites the file. Varying parts are placeholders: the paths of temporary folders
and of the checkout, the ports of this machine and the hashes of revisions always, others as given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import libyaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "golden" / "messages.yaml"
FIXTURE = "messages"
"""The name of the fixture in ``tests/conftest.py``."""
PROPERTY = "golden messages"
"""The property of a test's report that carries its messages from a parallel worker."""
HEADER = (
    "# The messages that users read, by test file and test: tests/support/messages.py.\n"
    "# `make golden` rewrites this file; review the difference.\n"
)
Golden = dict[str, dict[str, list[str]]]
"""Test file, test, messages in the order in which the test checks them."""

_VARYING = (
    (re.compile(rf"{re.escape(str(ROOT))}(?![\w-])"), "<root>"),
    (re.compile(r"\b(127\.0\.0\.1(?::|', )|localhost:)\d{2,5}\b"), r"\1<port>"),
    # How well a layer compresses depends on the library.
    (re.compile(r"\b\d+\.\d [KM]iB that unpacks"), "<size> that unpacks"),
    # A hash of a revision or of a spec: some hex digits, some of them letters.
    (re.compile(r"(?<![\w.])(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{8,10}(?![\w.])"), "<hash>"),
)


@cache
def golden() -> Golden:
    """Return the content of the golden file; empty if there is none."""
    loaded = libyaml.load(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return {
        file: {test: [text] if isinstance(text, str) else text for test, text in tests.items()}
        for file, tests in (loaded or {}).items()
    }


def normalize(text: str, temporary: Path, placeholders: Mapping[str, object]) -> str:
    """Return a message with its varying parts replaced.

    Args:
        text: The message.
        temporary: The folder of all temporary folders; each of them becomes ``<tmp>``.
        placeholders: The values to replace by name: ``port=8001`` gives ``<port>``.
    """
    for name, value in placeholders.items():
        assert str(value) in text, f"{name}={value} is not part of the message: {text}"
    text = re.sub(rf"{re.escape(str(temporary))}/[\w-]+", "<tmp>", text)
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    for name, value in placeholders.items():
        text = re.sub(rf"(?<!\w){re.escape(str(value))}(?!\w)", f"<{name}>", text)
    return text


@dataclass
class Messages:
    """The messages of one test."""

    test: str
    """The node id of the test."""
    expected: list[str]
    """Its messages in the golden file."""
    temporary: Path = Path("/nonexistent")
    """The folder of all temporary folders."""
    rewrite: bool = False
    """Whether the golden file is rewritten, so nothing is compared."""
    seen: list[str] = field(default_factory=list)

    def check(self, text: object, **placeholders: object) -> None:
        """Compare a message, or the message of an exception, with the golden file.

        Args:
            text: The message.
            placeholders: The varying parts by name: ``port=8001`` is compared as ``<port>``.
        """
        message = normalize(str(text), self.temporary, placeholders)
        assert message.strip(), "the message is empty"
        number = len(self.seen)
        self.seen.append(message)
        if self.rewrite:
            return
        assert number < len(self.expected), (
            f"message {number + 1} of {self.test} is not in {FILE.name}; run `make golden`: "
            f"{message}"
        )
        assert message == self.expected[number], (
            f"the wording differs; if it is right, run `make golden`\n"
            f"{FILE.name}: {self.expected[number]}\nmessage: {message}"
        )

    @contextmanager
    def raises(
        self,
        kind: type[BaseException] | tuple[type[BaseException], ...],
        match: str | None = None,
        **placeholders: object,
    ) -> Iterator[pytest.ExceptionInfo[Any]]:
        """Expect an exception and compare its message with the golden file.

        Args:
            kind: The class of the exception, or several.
            match: A pattern for its key words, such as the field's path.
            placeholders: The varying parts of the message by name.
        """
        with pytest.raises(kind, match=match) as raised:
            yield raised
        self.check(raised.value, **placeholders)

    def finish(self) -> None:
        """Fail if the golden file has messages that the test no longer checks."""
        unused = self.expected[len(self.seen) :]
        assert self.rewrite or not unused, (
            f"{self.test} no longer checks messages of {FILE.name}; run `make golden`: {unused}"
        )


def of_test(node_id: str, temporary: Path, *, rewrite: bool) -> Messages:
    """Return the messages of a test by its node id."""
    file, test = split(node_id)
    return Messages(node_id, golden().get(file, {}).get(test, []), temporary, rewrite)


def split(node_id: str) -> tuple[str, str]:
    """Return the test file and the test of a node id."""
    file, _, test = node_id.partition("::")
    return file, test


def merged(old: Golden, recorded: Mapping[str, list[str]]) -> Golden:
    """Return the golden messages after a run.

    Args:
        old: The content of the golden file.
        recorded: The messages of each test that ran, by node id. They replace all entries of the
            test files that ran; entries of files that no longer exist are dropped.
    """
    new: Golden = {}
    for node_id, texts in recorded.items():
        file, test = split(node_id)
        new.setdefault(file, {})[test] = texts
    kept = {file: tests for file, tests in old.items() if (ROOT / file).exists()}
    return {**kept, **new}


def text_of(content: Golden) -> str:
    """Return the text of the golden file."""
    shown = {
        file: {test: texts[0] if len(texts) == 1 else texts for test, texts in tests.items()}
        for file, tests in content.items()
    }
    return HEADER + yaml.dump(
        shown, Dumper=_Dumper, sort_keys=True, allow_unicode=True, width=100_000
    )


def stale(content: Golden, collected: set[str]) -> list[str]:
    """Return the entries without a test, as far as their test files were collected.

    Args:
        content: The content of the golden file.
        collected: The node ids of the tests that were collected.
    """
    files = {split(node_id)[0] for node_id in collected}
    return [
        f"{file}::{test}"
        for file, tests in content.items()
        for test in tests
        if not (ROOT / file).exists() or (file in files and f"{file}::{test}" not in collected)
    ]


class _Dumper(yaml.SafeDumper):
    """Writes messages of several lines as blocks."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)
