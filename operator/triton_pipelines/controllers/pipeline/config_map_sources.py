"""Read pipeline sources that are ConfigMaps.

They do not have our label and so are not cached; each reconcile iteration reads their versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import CONFIG_MAPS
from triton_pipelines.cluster.store import Key
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.graph.graph import Fetch

_SCHEME: Final = "configmap://"


def config_map_sources(pipeline: InferencePipeline) -> list[Fetch]:
    """Return the ConfigMap sources of every model, which do not depend on operator options."""
    # Most specs have none, and the graph takes longer to build than this takes to find out.
    if _SCHEME not in pipeline.spec.model_dump_json():
        return []
    return [
        item for item in build(pipeline, Options()).fetches if item.source.uri.startswith(_SCHEME)
    ]


@dataclass(frozen=True, slots=True)
class _SourceReading:
    """What a ConfigMap contained when it was last read."""

    version: tuple[str, str]
    """Its uid and ``resourceVersion``."""
    digests: Mapping[str, str | None]
    """Hashes of the values of the keys that sources name; ``None`` for a key that is missing."""


@dataclass(slots=True)
class ConfigMapSources:
    """The last readings of each pipeline's ConfigMaps; one instance per process."""

    client: Client
    _readings: dict[Key, dict[str, _SourceReading]] = field(default_factory=dict)

    def forget(self, key: Key) -> None:
        """Drop what was read for a deleted pipeline."""
        self._readings.pop(key, None)

    async def read(
        self, key: Key, sources: Sequence[Fetch]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the hashes of ConfigMap ``sources``, and messages on missing ones, by step.

        The content of a ConfigMap, up to 1 MiB, is read only if it has changed.
        """
        if not sources:
            self.forget(key)
            return {}, {}
        keys: dict[str, set[str]] = {}
        for item in sources:
            name, data_key = _place(item)
            keys.setdefault(name, set()).add(data_key)
        known, found = self._readings.get(key, {}), dict[str, _SourceReading]()
        for name, data_keys in keys.items():
            reading = await self._reading(key[0], name, data_keys, known.get(name))
            if reading is not None:
                found[name] = reading
        self._readings[key] = found
        return _results(key[0], sources, found)

    async def _reading(
        self, namespace: str, name: str, data_keys: Set[str], known: _SourceReading | None
    ) -> _SourceReading | None:
        """Return the content of a ConfigMap; ``None`` if it does not exist."""
        try:
            if known is not None and data_keys <= known.digests.keys():
                now = await self.client.get(CONFIG_MAPS, namespace, name, metadata_only=True)
                if _version(now) == known.version:
                    return known
            item = await self.client.get(CONFIG_MAPS, namespace, name)
        except NotFound:
            return None
        content = {**(item.get("binaryData") or {}), **(item.get("data") or {})}
        digests = {
            data_key: hashlib.sha256(content[data_key].encode()).hexdigest()
            if data_key in content
            else None
            for data_key in data_keys
        }
        return _SourceReading(_version(item), digests)


def _results(
    namespace: str, sources: Sequence[Fetch], readings: Mapping[str, _SourceReading]
) -> tuple[dict[str, str], dict[str, str]]:
    digests: dict[str, str] = {}
    missing: dict[str, str] = {}
    for item in sources:
        step, uri = item.key, item.source.uri
        name, data_key = _place(item)
        if (reading := readings.get(name)) is None:
            missing[step] = (
                f"{item.path}: {uri}: ConfigMap {name} does not exist in namespace "
                f"{namespace}; create the ConfigMap"
            )
        elif (digest := reading.digests.get(data_key)) is None:
            # The message does not list the existing keys: whoever may write a pipeline need not be
            # allowed to read ConfigMaps.
            missing[step] = (
                f"{item.path}: {uri}: ConfigMap {name} has no key {data_key}; add the key, "
                "or name an existing key in the URI"
            )
        else:
            digests[step] = digest
    return digests, missing


def _place(source: Fetch) -> tuple[str, str]:
    """Return the ConfigMap that a source names, and the key in it."""
    name, _, data_key = source.source.uri.removeprefix(_SCHEME).partition("/")
    return name, data_key


def _version(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return str(metadata.get("uid") or ""), str(metadata.get("resourceVersion") or "")
