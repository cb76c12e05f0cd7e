"""Compile equal specs once per test process.

Compilation is pure, but most of the time of a modeled reconcile. The operator caches it as well
(:class:`~triton_pipelines.controllers.pipeline.effective_spec.Resolver`). This covers calls
without that cache. The key is every argument, so a result is never out of date.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.controllers.pipeline import compiled_pipeline

KEPT = 500
"""Results kept; one takes about 100 KB."""


class _Call:
    """The arguments of a compilation; equal if their texts and the renderer are."""

    def __init__(self, pipeline: InferencePipeline, *rest: Any) -> None:
        self.arguments = (pipeline, *rest)
        # A test of an upgrade replaces the renderer by one with other templates.
        self._renderer = compiled_pipeline.render
        # A default that is written and one that is not may compile differently, and to Python 1,
        # 1.0 and True are equal. So text is compared, with and without defaults.
        self._text = (
            pipeline.model_dump_json(),
            pipeline.model_dump_json(exclude_unset=True),
            repr(rest),
        )

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Call)
            and self._text == other._text
            and self._renderer is other._renderer
        )


_compile = compiled_pipeline._render


@functools.lru_cache(maxsize=KEPT)
def _compiled(call: _Call) -> Any:
    return _compile(*call.arguments)


def _cached(
    pipeline: InferencePipeline, options: Any, rejections: Any, digests: Any, choice: Any = None
) -> Any:
    found = _compiled(_Call(pipeline, options, dict(rejections), dict(digests), choice))
    return list(found) if isinstance(found, list) else found


@contextmanager
def compiled_once() -> Iterator[None]:
    """Compile equal specs once while this is entered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_pipeline, "_render", _cached)
        yield
