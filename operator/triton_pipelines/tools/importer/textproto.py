"""Read ``config.pbtxt`` as found in practice.

It may have templates that were never filled in, conflicting schedulers, and fields of other
releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from .import_notes import ImportNote, ModelRepositoryError, UnfilledTemplateError

# Deeper than any field of a ModelConfig.
_MAX_DEPTH = 50
SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
_TEMPLATE = re.compile(r"\$\{([^{}]*)\}")
# Tokens for finding blocks: strings and comments (whose braces are ignored), braces, and words.
_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<comment>\#[^\n]*)|(?P<open>[{<\[])|(?P<close>[}>\]])|(?P<word>[A-Za-z_]\w*)"""
)


@dataclass(frozen=True)
class ParsedConfig:
    """A parsed config."""

    config: Any
    """The ModelConfig."""
    notes: tuple[ImportNote, ...] = ()
    """What had to be ignored to read it."""
    misplaced: Any = None
    """Batching that was set on an ensemble."""
    templates: tuple[tuple[str, str], ...] = ()
    """Templates without a value that stay in strings: name, and file and line."""


def read_config(text: str, name: str, values: Mapping[str, str]) -> ParsedConfig:
    """Parse a config.

    Args:
        text: content of the file.
        name: the file, for messages.
        values: values of templates (``${NAME}``).

    Raises:
        ModelRepositoryError: the text is not a ModelConfig; names the line.
        UnfilledTemplateError: it has templates where values are required.
    """
    _check_form(text, name)
    notes: list[ImportNote] = []
    templates: list[tuple[str, str]] = []
    text = _filled(text, name, values, templates)
    misplaced = None
    present = {field for field, _, _ in _blocks(text)} & set(SCHEDULERS)
    if "ensemble_scheduling" in present and len(present) > 1:
        text, cut = _cut(text, present - {"ensemble_scheduling"})
        misplaced = _parse(cut, name, notes)
    elif len(present) > 1:
        raise ModelRepositoryError(
            f"{name}: {' and '.join(sorted(present))} cannot be combined; remove one of "
            "these settings"
        )
    return ParsedConfig(_parse(text, name, notes), tuple(notes), misplaced, tuple(templates))


def _check_form(text: str, name: str) -> None:
    """Refuse a text that is something else than protobuf's text format.

    Raises:
        ModelRepositoryError: the text is JSON, starts with a byte order mark, or is nested deeply.
    """
    if text.startswith("\ufeff"):
        raise ModelRepositoryError(
            f"{name}:1: the file starts with a byte order mark, which Triton cannot read; "
            "save the file as UTF-8 without BOM"
        )
    if text.lstrip().startswith("{"):
        raise ModelRepositoryError(
            f"{name}:1: the file is JSON, but Triton reads the protobuf text format; write "
            'fields such as backend: "python" without enclosing braces'
        )
    depth = 0
    for match in _TOKEN.finditer(text):
        depth += {"open": 1, "close": -1}.get(match.lastgroup or "", 0)
        if depth > _MAX_DEPTH:
            line = text.count("\n", 0, match.start()) + 1
            raise ModelRepositoryError(
                f"{name}:{line}: invalid ModelConfig: messages are nested more than "
                f"{_MAX_DEPTH} levels deep; check that each brace is closed"
            )


def _filled(
    text: str, name: str, values: Mapping[str, str], optional: list[tuple[str, str]]
) -> str:
    """Return the text with its templates replaced.

    Templates without a value may stay within strings; they are added to ``optional``.

    Raises:
        UnfilledTemplateError: templates without a value are where the config needs a value.
    """
    text = _TEMPLATE.sub(lambda match: values.get(match[1], match[0]), text)
    quoted = [
        match.span() for match in _TOKEN.finditer(text) if match.lastgroup in ("text", "comment")
    ]
    missing: list[tuple[str, str]] = []
    for match in _TEMPLATE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        inside = next((text[a] for a, b in quoted if a <= match.start() < b), "")
        if inside != "#":
            (optional if inside else missing).append((match[1], f"{name}:{line}"))
    if missing:
        raise UnfilledTemplateError(missing)
    return text


def _blocks(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield top-level fields with the span of their block (or word, if there is no block)."""
    depth, field, start = 0, "", 0
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "open":
            depth += 1
        elif match.lastgroup == "close":
            depth -= 1
            if depth == 0 and field:
                yield field, start, match.end()
                field = ""
        elif match.lastgroup == "word" and depth == 0:
            field, start = match[0], match.start()


def _cut(text: str, fields: set[str]) -> tuple[str, str]:
    """Return the text without the blocks of some fields, and these blocks."""
    remaining, cut, last = "", "", 0
    for field, start, end in _blocks(text):
        if field in fields:
            remaining += text[last:start] + "\n" * text.count("\n", start, end)
            cut += text[start:end] + "\n"
            last = end
    return remaining + text[last:], cut


def _parse(text: str, name: str, notes: list[ImportNote]) -> Any:
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        strict_error = error
    where, problem = _place(name, strict_error), _problem(strict_error)
    try:
        config = text_format.Parse(text, model_config_pb2.ModelConfig(), allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ModelRepositoryError(
            f"{_place(name, error)}: invalid ModelConfig: {_problem(error)}"
        ) from error
    # A field of a newer release, or one that never existed: Triton would refuse the latter.
    notes.append(ImportNote(where, f"not in ModelConfig of this release: {problem}"))
    return config


def _place(name: str, error: text_format.ParseError) -> str:
    line = error.GetLine()
    return name if line is None else f"{name}:{line}"


def _problem(error: text_format.ParseError) -> str:
    """Return protobuf's message without the position and without long quotes of the text."""
    text = re.sub(r"^[0-9]+:[0-9]+ : ", "", str(error))
    return re.sub(r"^'(?:[^'\\]|\\.)*': ", "", text).rstrip(".")
