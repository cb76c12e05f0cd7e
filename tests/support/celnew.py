"""Could a CEL rule fail for what an older schema could say? Three-valued reading: what the older one had is unknown, what is new is absent.

``has()`` of a new field is false, of one that was required true; a comparison with a choice that is new is false; ``&&``, ``||``, ``!``, ``==`` and ``?:`` are those of
Kleene's logic; all else is unknown. A rule that comes out true holds for every older resource.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r"\s*('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[A-Za-z_]\w*|\d+(?:\.\d+)?|\|\||&&|[=!<>]=|.)"
)
_RELATIONS = ("==", "!=", "<", "<=", ">", ">=", "in", "+", "-", "*", "/", "%")


@dataclass(frozen=True)
class _Value:
    """What a part of a rule is: a truth value (``None``: unknown), and where it is known to be one, the field or the text."""

    truth: bool | None = None
    path: str | None = None
    text: str | None = None
    items: tuple[str | None, ...] = ()


class _Reader:
    """Recursive descent over one rule; see CEL's grammar."""

    def __init__(self, rule: str, path: str, before: Mapping[str, Mapping[str, Any]]) -> None:
        self._tokens = [token for token in _TOKEN.findall(rule) if token.strip()]
        self._at = 0
        self._names = {"self": path}
        self._before = before

    def read(self) -> bool | None:
        value = self._condition()
        if self._at != len(self._tokens):
            raise ValueError(f"cannot read {''.join(self._tokens[self._at :])!r}")
        return value.truth

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._peek()
        if wanted and token != wanted:
            raise ValueError(f"{wanted!r} is missing before {token!r}")
        self._at += 1
        return token

    def _condition(self) -> _Value:
        test = self._any()
        if self._peek() != "?":
            return test
        self._take()
        yes = self._condition()
        self._take(":")
        no = self._condition()
        if test.truth is not None:
            return yes if test.truth else no
        return _Value(yes.truth if yes.truth == no.truth else None)

    def _any(self) -> _Value:
        value = self._all()
        while self._peek() == "||":
            self._take()
            value = _Value(_or(value.truth, self._all().truth))
        return value

    def _all(self) -> _Value:
        value = self._relation()
        while self._peek() == "&&":
            self._take()
            value = _Value(_not(_or(_not(value.truth), _not(self._relation().truth))))
        return value

    def _relation(self) -> _Value:
        value = self._unary()
        while self._peek() in _RELATIONS:
            value = self._compared(self._take(), value, self._unary())
        return value

    def _compared(self, sign: str, left: _Value, right: _Value) -> _Value:
        equal: bool | None = None
        if sign in ("==", "!=") and left.truth is not None and right.truth is not None:
            equal = left.truth == right.truth
        choices = right.items if sign == "in" else (right.text,)
        if (
            left.path in self._before
            and "enum" in self._before[left.path]
            and None not in choices
            and sign in ("==", "!=", "in")
        ):
            equal = (
                False
                if choices and not set(choices) & set(self._before[left.path]["enum"])
                else equal
            )
        return _Value(_not(equal) if sign == "!=" else equal if sign in ("==", "in") else None)

    def _unary(self) -> _Value:
        if self._peek() in ("!", "-"):
            return _Value(_not(self._unary().truth) if self._take() == "!" else None)
        value = self._primary()
        while self._peek() in (".", "[", "("):
            value = self._after(value)
        return value

    def _after(self, value: _Value) -> _Value:
        sign = self._take()
        if sign == ".":
            name = self._take()
            if name == "all" and self._peek() == "(":
                return self._for_all(value)
            return _Value(
                path=None if value.path is None else f"{value.path}.{name}" if value.path else name
            )
        self._list("]" if sign == "[" else ")")
        return _Value()

    def _for_all(self, value: _Value) -> _Value:
        """``list.all(item, rule)`` holds where the rule holds for any item; without the list there is no item."""
        self._take("(")
        name = self._take()
        self._take(",")
        outer = self._names.get(name)
        self._names[name] = f"{value.path}[]" if value.path is not None else "?"
        truth = self._condition().truth
        self._take(")")
        if outer is None:
            del self._names[name]
        else:
            self._names[name] = outer
        return _Value(True if truth else None)

    def _primary(self) -> _Value:
        token = self._take()
        if token == "(":
            value = self._condition()
            self._take(")")
            return value
        if token == "[":
            return _Value(items=tuple(item.text for item in self._list("]")))
        if token == "has":
            self._take("(")
            path = self._unary().path
            self._take(")")
            return _Value(self._present(path))
        if token in ("true", "false"):
            return _Value(token == "true")
        if token[0] in "'\"":
            return _Value(text=token[1:-1])
        if token in self._names:
            return _Value(path=self._names[token])
        return _Value()

    def _present(self, path: str | None) -> bool | None:
        """``has()``: false of what is new, true of what an older resource had to say, else unknown."""
        if path is None:
            return None
        parent, _, name = path.rpartition(".")
        return (
            False
            if path not in self._before
            else True
            if name in self._before[parent].get("required", [])
            else None
        )

    def _list(self, end: str) -> list[_Value]:
        """What stands up to ``end``: arguments of a call, or a list; a macro's variable is read as an unknown name."""
        items = []
        while self._peek() != end:
            items.append(self._condition())
            if self._peek() == ",":
                self._take()
        self._take(end)
        return items


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _or(left: bool | None, right: bool | None) -> bool | None:
    if left or right:
        return True
    return False if left is False and right is False else None


def holds_for_older(rule: str, path: str, before: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a rule of the node at ``path`` holds for everything that the schema ``before`` (its nodes by path) could say.

    Raises :class:`ValueError` for a rule that this reading does not understand.
    """
    return _Reader(rule, path, before).read() is True
