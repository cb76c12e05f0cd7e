"""One Triton for all tests of the folder; each test loads its own models into it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.recorder import Asker, Workbench
from tests.support.triton import triton_server, write_model

CORE = min(os.sched_getaffinity(0))
FLAGS = ("--cache-config=local,size=1048576", f"--host-policy=behaviour,cpu-cores={CORE}-{CORE}")
IDLE = (
    'name: "idle" backend: "python" max_batch_size: 0 input { name: "X" data_type: TYPE_INT32 '
    "dims: [ 1 ] } "
    'output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } instance_group { kind: KIND_CPU '
    "count: 1 }"
)
NOTHING = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


@pytest.fixture(scope="package")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """A server with a response cache and a host policy ``behaviour`` (the first core)."""
    repository, record = tmp_path_factory.mktemp("behaviour"), tmp_path_factory.mktemp("record")
    write_model(repository, "idle", IDLE, {"model.py": NOTHING})
    with triton_server(repository, ["idle"], extra_args=FLAGS) as server:
        yield Workbench(server, repository, record)


@pytest.fixture
async def client(triton: Workbench) -> AsyncIterator[Asker]:
    """Sends requests that need not be waited for."""
    async with Asker(triton.server) as asker:
        yield asker
