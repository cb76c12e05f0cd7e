"""ConfigMap sources: their content is read only if it has changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from tests.support.reconcilers import KEY
from triton_pipelines.api.parse import parse
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import CONFIG_MAPS, Resource
from triton_pipelines.controllers.pipeline.config_map_sources import (
    ConfigMapSources,
    config_map_sources,
)

NAME = "weights"


class Server(Client):
    """A fake API server with one ConfigMap, which counts reads of its content and metadata."""

    def __init__(self) -> None:
        self.data: dict[str, str] | None = {"model.onnx": "1", "vocab.txt": "2"}
        self.version = 1
        self.reads: list[str] = []

    async def get(
        self, resource: Resource, namespace: str | None, name: str, *, metadata_only: bool = False
    ) -> Object:
        assert (resource, namespace, name) == (CONFIG_MAPS, KEY[0], NAME)
        self.reads.append("metadata" if metadata_only else "content")
        if self.data is None:
            raise NotFound(404, "NotFound", name)
        metadata = {"name": name, "uid": "u", "resourceVersion": str(self.version)}
        return {"metadata": metadata} | ({} if metadata_only else {"data": self.data})

    def write(self, data: dict[str, str] | None) -> None:
        self.data = data
        self.version += 1


def sources() -> list[Any]:
    """Two sources of a pipeline, in the same ConfigMap."""
    document = builders.document(
        model={"source": {"uri": f"configmap://{NAME}/model.onnx"}},
        tokenizer={"source": {"uri": f"configmap://{NAME}/vocab.txt"}},
    )
    pipeline, findings = parse(document)
    assert pipeline is not None, findings
    found = config_map_sources(pipeline)
    assert len(found) == 2
    return found


@pytest.fixture
def server() -> Server:
    return Server()


async def test_content_that_has_not_changed_is_read_once(server: Server) -> None:
    subject, fetches = ConfigMapSources(server), sources()
    first = await subject.read(KEY, fetches)
    assert (len(first[0]), first[1]) == (2, {})
    for _ in range(3):
        assert await subject.read(KEY, fetches) == first
    assert server.reads == ["content", *["metadata"] * 3]


async def test_changes_and_deletions_are_noticed_at_once(server: Server) -> None:
    subject, fetches = ConfigMapSources(server), sources()
    before, _ = await subject.read(KEY, fetches)
    server.write({"model.onnx": "3", "vocab.txt": "2"})
    after, missing = await subject.read(KEY, fetches)
    changed = [key for key in before if before[key] != after[key]]
    assert (len(changed), missing) == (1, {})
    server.write({"vocab.txt": "2"})
    after, missing = await subject.read(KEY, fetches)
    assert (len(after), len(missing)) == (1, 1)
    server.write(None)
    assert len((await subject.read(KEY, fetches))[1]) == 2
    server.write({"model.onnx": "1", "vocab.txt": "2"})
    assert await subject.read(KEY, fetches) == (before, {})


async def test_content_without_a_required_key_is_read_once(server: Server) -> None:
    subject, fetches = ConfigMapSources(server), sources()
    server.write({"vocab.txt": "2"})
    first = await subject.read(KEY, fetches)
    assert (len(first[0]), len(first[1])) == (1, 1)
    assert await subject.read(KEY, fetches) == first
    assert server.reads == ["content", "metadata"]


async def test_a_deleted_pipeline_leaves_nothing(server: Server) -> None:
    subject = ConfigMapSources(server)
    await subject.read(KEY, sources())
    subject.forget(KEY)
    assert subject._readings == {}
    await subject.read(KEY, sources())
    await subject.read(KEY, [])
    assert subject._readings == {}
