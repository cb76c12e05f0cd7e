"""Find the fields that a CEL rule tests.

This module reads just enough CEL for that; the API server evaluates rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_MACRO = re.compile(r"\b(\w+(?:\.\w+)*)\.(?:all|exists|exists_one|filter|map)\((\w+),")
_CHAIN = re.compile(r"(?<![\w.'\"])([A-Za-z_]\w*(?:\.\w+)*)")


def without_texts(rule: str) -> str:
    """The rule with every string literal emptied, at the same length."""
    return _TEXT.sub(lambda match: "'" + " " * (len(match[0]) - 2) + "'", rule)


def tested(rule: str, node: Mapping[str, Any], path: str) -> set[str]:
    """Return paths of the fields that a rule at ``path`` reads.

    Paths go as deep as the schema below ``node`` follows them.

    Variables of macros (``self.buckets.all(b, …)``) stand for the items they run over, or for a
    mapping's keys.
    """
    text = without_texts(rule)
    bound: dict[str, list[tuple[str, Mapping[str, Any]]]] = {"self": [(path, node)]}
    for _ in range(4):  # macros nest: each round binds one level more
        for source, variable in _MACRO.findall(text):
            items = [_inside(where, found) for where, found in _follow(source, bound)]
            known = bound.setdefault(variable, [])
            known += [item for item in items if item is not None and item not in known]
    paths = {where for chain in _CHAIN.findall(text) for where, _ in _follow(chain, bound)}
    return {re.sub(r"(\[\]|\{\})+$", "", where) for where in paths} - {path}


def _inside(path: str, node: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    return (f"{path}[]", node["items"]) if isinstance(node.get("items"), Mapping) else None


def _follow(
    chain: str, bound: Mapping[str, list[tuple[str, Mapping[str, Any]]]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where ``a.b.c`` leads; the last parts may be methods, so it ends where the schema does."""
    first, *rest = chain.split(".")
    for start, found in bound.get(first, []):
        path, node = start, found
        for part in rest:
            if part not in node.get("properties", {}):
                break
            path, node = f"{path}.{part}" if path else part, node["properties"][part]
        yield path, node


def alternatives(rule: str) -> list[str]:
    """Return the parts that ``||`` joins at the rule's top level.

    The whole rule is returned if its top level is a condition (``a ? b : c``).
    """
    plain, depth, parts, start = without_texts(rule), 0, [], 0
    for index, sign in enumerate(plain):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0 and sign == "?":
            return [rule.strip()]
        if depth == 0 and plain.startswith("||", index):
            parts.append(rule[start:index].strip())
            start = index + 2
    return [*parts, rule[start:].strip()]
