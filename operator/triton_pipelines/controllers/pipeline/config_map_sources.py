"""Read pipeline sources that are ConfigMaps.

They do not have our label and so are not cached; each reconcile iteration reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import CONFIG_MAPS
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


async def read_sources(
    client: Client, namespace: str, sources: Sequence[Fetch]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the hashes of ConfigMap ``sources`` in a namespace, and messages on missing ones."""
    digests: dict[str, str] = {}
    missing: dict[str, str] = {}
    for item in sources:
        step, uri = item.key, item.source.uri
        name, _, data_key = uri.removeprefix(_SCHEME).partition("/")
        try:
            found = await client.get(CONFIG_MAPS, namespace, name)
        except NotFound:
            missing[step] = (
                f"{item.path}: {uri}: ConfigMap {name} does not exist in namespace "
                f"{namespace}; create the ConfigMap"
            )
            continue
        content = {**(found.get("binaryData") or {}), **(found.get("data") or {})}.get(data_key)
        if content is None:
            # The message does not list the existing keys: whoever may write a pipeline need not be
            # allowed to read ConfigMaps.
            missing[step] = (
                f"{item.path}: {uri}: ConfigMap {name} has no key {data_key}; add the key, "
                "or name an existing key in the URI"
            )
            continue
        digests[step] = hashlib.sha256(content.encode()).hexdigest()
    return digests, missing
