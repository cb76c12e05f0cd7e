"""Write a resource as readable YAML.

Fields are in the order of the reference, short parts on one line, and comments name the origin
of values.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from triton_pipelines.api import names

WIDTH = 130
# Strings that YAML 1.2 readers (such as kubectl) parse as numbers or booleans. PyYAML does not, so
# it would not quote them.
AMBIGUOUS = re.compile(r"^[-+.0-9].*$|^[yYnN]$")


@dataclass
class ResourceDraft:
    """A resource that is being built: its fields, and comments by the field they are above.

    A comment on a missing field is below the fields of the mapping that would contain it.
    """

    name: str
    spec: dict[str, Any] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)
    comments: dict[str, list[str]] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """Return the resource as the API server would get it."""
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": self.name},
            "spec": self.spec,
        }

    def comment(self, path: str, *texts: str) -> None:
        """Add comments above the field at a path such as ``spec.model.outputs[0]``."""
        texts_here = self.comments.setdefault(path, [])
        for text in texts:
            if text not in texts_here:
                texts_here.append(text)

    def text(self) -> str:
        """Return the YAML."""
        homeless = [path for path in self.comments if not _reachable(self.document, path)]
        header = [
            *self.header,
            *(f"{path}: {text}" for path in homeless for text in self.comments[path]),
        ]
        lines = [line for text in header for line in _comment(text, "")]
        lines += _mapping(self.document, "", "", self.comments)
        text = "\n".join(lines) + "\n"
        if yaml.safe_load(text) != self.document:
            raise AssertionError("the generated YAML does not match the intended resource")
        return text


def slug(text: str, longest: int) -> str:
    """Return a DNS label that starts with a letter, derived from any name.

    ``pipeline`` if nothing is left of the name.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = re.sub(r"^[^a-z]+", "", plain)[:longest].strip("-")
    return plain or "pipeline"


class _ResourceDumper(yaml.SafeDumper):
    """Write strings plain if every reader takes them for strings; multi-line ones as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _readable(text: str) -> bool:
    """Return whether a string needs no escapes in YAML."""
    return all(character in "\n\t" or character.isprintable() for character in text)


def _key(key: str) -> str:
    """Return a key on one line."""
    plain = _readable(key) and "\n" not in key
    return (
        _dump([key], flow=True)[1:-1]
        if plain
        else yaml.dump(
            key, Dumper=yaml.SafeDumper, default_style='"', width=float("inf"), allow_unicode=True
        ).strip()
    )


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    if not _readable(value):
        style: str | None = '"'
    else:
        style = "|" if "\n" in value else '"' if AMBIGUOUS.match(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_ResourceDumper.add_representer(str, _text)


def _dump(value: Any, *, flow: bool) -> str:
    text = yaml.dump(
        value,
        Dumper=_ResourceDumper,
        default_flow_style=flow,
        sort_keys=False,
        width=float("inf"),
        allow_unicode=True,
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _reachable(value: Any, path: str) -> bool:
    """Return whether the mapping that contains, or would contain, the field exists."""
    for part in re.findall(r"[^.\[\]]+", path)[:-1]:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return False
    return isinstance(value, (Mapping, list))


def _comment(text: str, indent: str) -> list[str]:
    lines = []
    for line in text.split("\n"):
        # A line that starts with spaces is an example to be copied, and is not wrapped.
        lines += (
            [line]
            if line.startswith(" ")
            else textwrap.wrap(
                line, WIDTH - len(indent) - 2, break_long_words=False, break_on_hyphens=False
            )
        )
    return [f"{indent}# {line}" for line in lines]


def _comment_lines(comments: Mapping[str, list[str]], path: str, indent: str) -> list[str]:
    return [line for text in comments.get(path, ()) for line in _comment(text, indent)]


def _mapping(
    value: Mapping[str, Any], path: str, indent: str, comments: Mapping[str, list[str]]
) -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        here = f"{path}.{key}" if path else key
        lines += _comment_lines(comments, here, indent)
        lines += _entry(_key(key), item, here, indent, comments)
    missing = [
        where
        for where in comments
        if where.rpartition(".")[0] == path
        and "[" not in where.rpartition(".")[2]
        and _last(where) not in value
    ]
    return lines + [line for where in missing for line in _comment_lines(comments, where, indent)]


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _entry(
    key: str, item: Any, path: str, indent: str, comments: Mapping[str, list[str]]
) -> list[str]:
    flow = _flow(item, path, len(indent) + len(key) + 2, comments)
    if flow is not None:
        return [f"{indent}{key}: {flow}"]
    if isinstance(item, Mapping):
        return [f"{indent}{key}:", *_mapping(item, path, f"{indent}  ", comments)]
    if isinstance(item, list):
        return [f"{indent}{key}:", *_list(item, path, f"{indent}  ", comments)]
    # Numbers, booleans and strings; a multi-line string is a block, whose lines are indented.
    first, *rest = _dump({"k": item}, flow=False).split("\n")
    return [
        f"{indent}{key}:{first.removeprefix('k:')}",
        *(f"{indent}{line}" if line else "" for line in rest),
    ]


def _list(items: list[Any], path: str, indent: str, comments: Mapping[str, list[str]]) -> list[str]:
    lines: list[str] = []
    for index, item in enumerate(items):
        here = f"{path}[{index}]"
        lines += _comment_lines(comments, here, indent)
        flow = _flow(item, here, len(indent) + 2, comments)
        if flow is not None:
            lines.append(f"{indent}- {flow}")
        elif isinstance(item, Mapping):
            # The first key is on the line of the dash; a comment above it would separate them,
            # so it is above the dash.
            first, *_ = item
            lines += _comment_lines(comments, f"{here}.{first}", indent)
            block = _mapping(
                item,
                here,
                f"{indent}  ",
                {path: texts for path, texts in comments.items() if path != f"{here}.{first}"},
            )
            lines += [f"{indent}- {block[0][len(indent) + 2 :]}", *block[1:]]
        else:
            lines += [f"{indent}- {_dump([item], flow=True)[1:-1]}"]
    return lines


def _flow(item: Any, path: str, column: int, comments: Mapping[str, list[str]]) -> str | None:
    """Return a value on one line; ``None`` if it is long, or a part needs comments or lines."""
    if not isinstance(item, (Mapping, list)):
        return None if isinstance(item, str) and "\n" in item else _dump([item], flow=False)[2:]
    if item and (
        any(other.startswith((f"{path}.", f"{path}[")) for other in comments) or _deep(item)
    ):
        return None
    text = _dump(item, flow=True)
    return text if len(text) + column <= WIDTH and "\n" not in text else None


def _deep(item: Mapping[str, Any] | list[Any]) -> bool:
    """Return whether a value contains more than scalars and short lists of them."""
    if isinstance(item, Mapping) and any("\n" in key for key in item):
        return True
    return any(_nested(value) for value in (item.values() if isinstance(item, Mapping) else item))


def _nested(value: Any) -> bool:
    if isinstance(value, str):
        return "\n" in value
    if isinstance(value, list):
        return any(isinstance(one, (Mapping, list)) for one in value)
    return isinstance(value, Mapping) and bool(value)
