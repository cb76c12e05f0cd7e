"""Does a CustomResourceDefinition only grow? What a newer one takes away from those who wrote for an older one.

Compatible is: what the old definition accepts, the new one accepts and reads in the same meaning, and what programs read from status is
still there. So no field may go, change its type or how its list merges, lose a choice, become required, or get another default; bounds
and patterns may only widen; and a rule over what existed may not be new or stricter. A rule that cannot fail without a new field or a new
choice (:mod:`tests.support.celnew`), and one that only adds alternatives (``||``) to an older one, take nothing away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis
import hypothesis.strategies as st

from triton_pipelines.api import crd

from . import cel, celnew

Change = tuple[str, str]
"""A path and what changed there."""

# keyword → whether the new value may be lower or higher
_LOWER = ("minimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "maxLength", "maxItems", "maxProperties")
_SAME = (
    *(
        "type",
        "format",
        "default",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
    ),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "anyOf"),
)
_PATTERN_EXAMPLES = 100


def breaking(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Everything that an upgrade from ``old`` to ``new`` (whole definitions) breaks, in the order of the old one's fields."""
    return [*_names(old["spec"], new["spec"]), *_schemas(_schema(old), _schema(new))]


def _schema(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _names(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for key in ("group", "scope"):
        if old[key] != new[key]:
            yield key, f"was {old[key]}, is {new[key]}"
    for key, value in old["names"].items():
        now = new["names"].get(key)
        if now != value and not (isinstance(value, list) and set(value) <= set(now or [])):
            yield f"names.{key}", f"was {value}, is {now}"
    served = {version["name"] for version in new["versions"] if version["served"]}
    yield from (
        (f"versions.{one['name']}", "is no longer served")
        for one in old["versions"]
        if one["served"] and one["name"] not in served
    )
    before, after = (
        old["versions"][0].get("subresources", {}),
        new["versions"][0].get("subresources", {}),
    )
    yield from (
        (f"subresources.{key}", f"was {value}, is {after.get(key)}")
        for key, value in before.items()
        if after.get(key) != value
    )


def _schemas(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = dict(crd.walk(old)), dict(crd.walk(new))
    for path, was in before.items():
        now = after.get(path)
        if now is None:
            parent = re.sub(r"(\.[^.\[{]+|\[\]|\{\})$", "", path)
            if parent == path or parent in after:  # of what went, only the top is told
                yield path, "is gone"
            continue
        yield from ((path, change) for change in _node(was, now))
        yield from ((path, change) for change in _rules(path, was, now, before))


def _node(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in _SAME:
        if was.get(key) != now.get(key):
            yield f"{key} was {was.get(key)}, is {now.get(key)}"
    for key in _LOWER:
        if key in now and now[key] > was.get(key, float("-inf") if key == "minimum" else 0):
            yield f"{key} rose from {was.get(key)} to {now[key]}"
    for key in _UPPER:
        if key in now and now[key] < was.get(key, float("inf")):
            yield f"{key} fell from {was.get(key)} to {now[key]}"
    if "enum" in now and (
        lost := [value for value in was.get("enum", ["any text"]) if value not in now["enum"]]
    ):
        yield f"choices are gone: {lost}"
    if added := sorted(set(now.get("required", [])) - set(was.get("required", []))):
        yield f"became required: {', '.join(added)}"
    if (
        "pattern" in now
        and now["pattern"] != was.get("pattern")
        and (text := _no_longer_matched(was.get("pattern"), now["pattern"])) is not None
    ):
        yield f"pattern {now['pattern']} refuses {text!r}, which {was.get('pattern')} took"


def _no_longer_matched(was: str | None, now: str) -> str | None:
    """A text that the old pattern takes and the new one does not, if drawing at random finds one."""
    lost: list[str] = []

    @hypothesis.settings(
        max_examples=_PATTERN_EXAMPLES, derandomize=True, database=None, deadline=None
    )
    @hypothesis.given(st.from_regex(was) if was else st.text())
    def draw(text: str) -> None:
        text = text.removesuffix("\n")  # Python's $ takes one more line end than the API server's
        if not lost and not re.search(now, text):
            lost.append(text)

    draw()
    return lost[0] if lost else None


def _rules(
    path: str,
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    before: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    known = [rule["rule"] for rule in was.get("x-kubernetes-validations", [])]
    for rule in now.get("x-kubernetes-validations", []):
        looser = any(
            set(cel.alternatives(old)) <= set(cel.alternatives(rule["rule"])) for old in known
        )
        if not looser and not celnew.holds_for_older(rule["rule"], path, before):
            yield f"has a new rule: {rule['message']}"
