"""Reading ``config.pbtxt`` as people write it: with templates that were never filled in, schedulers that exclude each other, fields of other releases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from .import_notes import ConfigError, Note, Weight

SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
_TEMPLATE = re.compile(r"\$\{([^{}]*)\}")
# What counts for finding blocks: texts and comments (whose braces mean nothing), braces, and words.
_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<comment>\#[^\n]*)|(?P<open>[{<\[])|(?P<close>[}>\]])|(?P<word>[A-Za-z_]\w*)"""
)


@dataclass(frozen=True)
class Read:
    """A config as it stands in its file, what had to be passed over to read it, and batching that stood on an ensemble."""

    config: Any
    notes: tuple[Note, ...] = ()
    misplaced: Any = None


def read_config(text: str, name: str, values: Mapping[str, str]) -> Read:
    """Parse the text of the file ``name``; ``values`` fill templates (``${NAME}``). Raises :class:`ConfigError`."""
    notes: list[Note] = []
    text = _filled(text, name, values, notes)
    misplaced = None
    present = {field for field, _, _ in _blocks(text)} & set(SCHEDULERS)
    if "ensemble_scheduling" in present and len(present) > 1:
        text, cut = _cut(text, present - {"ensemble_scheduling"})
        misplaced = _parse(cut, name, notes)
    elif len(present) > 1:
        raise ConfigError(
            f"{name}: declares both {' and '.join(sorted(present))}, which exclude each other, so that Triton does not load it; remove one"
        )
    return Read(_parse(text, name, notes), tuple(notes), misplaced)


def _filled(text: str, name: str, values: Mapping[str, str], notes: list[Note]) -> str:
    """The text with its templates filled in; those within a text may stay, since they are text."""
    text = _TEMPLATE.sub(lambda match: values.get(match[1], match[0]), text)
    quoted = [
        match.span() for match in _TOKEN.finditer(text) if match.lastgroup in ("text", "comment")
    ]
    missing: dict[str, int] = {}
    for match in _TEMPLATE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        inside = next((text[a] for a, b in quoted if a <= match.start() < b), "")
        if not inside:
            missing.setdefault(match[1], line)
        elif inside != "#":
            notes.append(
                Note(
                    f"{name}:{line}",
                    f"{match[0]} is a template that was never filled in; it stays as it is (--set {match[1]}=VALUE fills it)",
                    Weight.INFO,
                )
            )
    if missing:
        listed = ", ".join(f"{key} (line {line})" for key, line in missing.items())
        options = " ".join(f"--set {key}=VALUE" for key in missing)
        raise ConfigError(
            f"{name}: has templates where numbers or words belong: {listed}; fill them in, or give {options}"
        )
    return text


def _blocks(text: str) -> Iterator[tuple[str, int, int]]:
    """Fields at the top level with the span of their value's block (or of the word alone, where no block follows)."""
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
    """The text without the blocks of ``fields``, and these blocks."""
    kept, cut, last = "", "", 0
    for field, start, end in _blocks(text):
        if field in fields:
            kept += text[last:start] + "\n" * text.count("\n", start, end)
            cut += text[start:end] + "\n"
            last = end
    return kept + text[last:], cut


def _parse(text: str, name: str, notes: list[Note]) -> Any:
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        where, problem = _place(name, error), _problem(error)
    unknown = re.search(r'has no field named "([^"]+)"', problem)
    if unknown is None:
        raise ConfigError(f"{where}: is no ModelConfig: {problem}")
    # A field of a newer release, or one that was never there: Triton itself would refuse the latter.
    notes.append(
        Note(where, f"the field {unknown[1]} is unknown to ModelConfig as this release knows it")
    )
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig(), allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ConfigError(f"{_place(name, error)}: is no ModelConfig: {_problem(error)}") from error


def _place(name: str, error: text_format.ParseError) -> str:
    line = error.GetLine()
    return name if line is None else f"{name}:{line}"


def _problem(error: text_format.ParseError) -> str:
    """Protobuf's message without the place, and without the text that it quotes at length."""
    text = re.sub(r"^[0-9]+:[0-9]+ : ", "", str(error))
    return re.sub(r"^'(?:[^'\\]|\\.)*': ", "", text).rstrip(".")
