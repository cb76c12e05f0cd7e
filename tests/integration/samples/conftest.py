"""The samples on `tritonpipe serve`, each served for the tests of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.samples import Client
from tests.support.serving import SAMPLES, sample_sources, served


@pytest.fixture(scope="module")
def sample(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Serve the sample of a test's ``on`` mark, once for consecutive tests with that mark."""
    name: str = request.param
    with served(
        SAMPLES / f"{name}.yaml", *sample_sources(), log=tmp_path_factory.mktemp(name) / "serve.log"
    ) as running:
        client = Client(running)
        try:
            yield client
        finally:
            client.close()
