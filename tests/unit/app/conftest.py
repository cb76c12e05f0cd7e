"""Compile equal specs once: compilation is most of the time of these tests."""

from collections.abc import Iterator

import pytest

from tests.support import compilations


@pytest.fixture(autouse=True, scope="module")
def compiled_once() -> Iterator[None]:
    with compilations.compiled_once():
        yield
