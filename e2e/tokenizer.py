"""The tokenizer implementation of the pipelines of tests and benchmarks.

`TOKENIZER=Python` selects the Python step; without it, pipelines have the default, `Native`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from e2e.local import native
from triton_pipelines.api.tokenizer import TokenizerImplementation, TokenizerType
from triton_pipelines.compile.graph.options import DEFAULT_TOKENIZER

ENV_TOKENIZER: Final = "TOKENIZER"


def chosen(environment: Mapping[str, str]) -> TokenizerImplementation:
    """Return the implementation that the environment selects.

    Raises:
        ValueError: It selects an unknown one.
    """
    given = environment.get(ENV_TOKENIZER) or DEFAULT_TOKENIZER
    if given not in list(TokenizerImplementation):
        raise ValueError(f"{ENV_TOKENIZER}={given}: use {' or '.join(TokenizerImplementation)}")
    return TokenizerImplementation(given)


IMPLEMENTATION: Final = chosen(os.environ)


def is_native() -> bool:
    """Return whether the native tokenizer is selected."""
    return IMPLEMENTATION is TokenizerImplementation.NATIVE


def prepare() -> None:
    """Put the library into the package if it is selected.

    Raises:
        NativeBuildError: It cannot be built.
    """
    if is_native():
        native.install()


def suffix() -> str:
    """Return what follows the id of a result: each implementation has results of its own."""
    return "-native" if is_native() else ""


def command(identity: str) -> str:
    """Return the command that repeats a measurement with the selected implementation."""
    variable = "" if IMPLEMENTATION is DEFAULT_TOKENIZER else f"{ENV_TOKENIZER}={IMPLEMENTATION} "
    return f"{variable}make bench ID={identity}"


def with_implementation(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with the selected implementation.

    A spec stays as it is if the default is selected, or if it has no built-in tokenizer.
    """
    tokenizer = spec.get("tokenizer")
    if (
        IMPLEMENTATION is DEFAULT_TOKENIZER
        or not tokenizer
        or tokenizer.get("type") == TokenizerType.PYTHON
    ):
        return dict(spec)
    return {**spec, "tokenizer": {**tokenizer, "implementation": str(IMPLEMENTATION)}}
