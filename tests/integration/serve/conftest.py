"""The samples, served once per module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.serving import SAMPLES, Served, sample_sources, served


def _serve(name: str, factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(
        SAMPLES / f"{name}.yaml", *sample_sources(), log=factory.mktemp(name) / "serve.log"
    ) as running:
        yield running


@pytest.fixture(scope="package")
def sentiment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """manifests/samples/sentiment.yaml."""
    yield from _serve("sentiment", tmp_path_factory)


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """manifests/samples/embedding.yaml."""
    yield from _serve("embedding", tmp_path_factory)


@pytest.fixture(scope="module")
def custom_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """manifests/samples/custom-python.yaml."""
    yield from _serve("custom-python", tmp_path_factory)
