"""A simulated Prometheus for the tests of the collector."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.web import LoopbackServer
from tests.unit.metrics.test_collector import Stand


@pytest.fixture
def stand() -> Stand:
    return Stand()


@pytest.fixture
def url(stand: Stand) -> Iterator[str]:
    with LoopbackServer(stand.answer) as server:
        yield server.url
