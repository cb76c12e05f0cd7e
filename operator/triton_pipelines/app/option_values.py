"""Types of the operator's options that have several values: lists and ``NAME=VALUE`` pairs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator


def split(value: Any) -> Any:
    """Split ``a,b`` from an environment variable; blanks and empty parts are dropped."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _pairs(value: Any) -> Any:
    """Return ``NAME=VALUE`` items as a mapping."""
    parts = split(value)
    if isinstance(parts, Mapping):
        return dict(parts)
    if not isinstance(parts, list | tuple):
        return parts
    pairs: dict[str, str] = {}
    for part in parts:
        left, found, right = str(part).partition("=")
        if not found or not left or not right:
            raise ValueError(f"{part!r} must have the form NAME=VALUE")
        pairs[left] = right
    return pairs


Names = Annotated[tuple[str, ...], BeforeValidator(split)]
Pairs = Annotated[Mapping[str, str], BeforeValidator(_pairs), AfterValidator(MappingProxyType)]
