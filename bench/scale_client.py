"""The yardstick of O1: a client that applies the same objects and does nothing else."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NETWORK_POLICIES,
    SECRETS,
    SERVICES,
)

WRITERS: Final = 8
"""Pipelines whose objects are applied at a time: as many as the operator has workers."""
_KINDS: Final = (CONFIG_MAPS, SECRETS, SERVICES, NETWORK_POLICIES, DEPLOYMENTS)
_KEPT: Final = ("apiVersion", "kind", "data", "immutable", "spec", "stringData", "type")


async def apply_copies(client: Client, sources: list[str], target: str) -> tuple[int, float, float]:
    """Apply copies of all objects of pipelines into another namespace.

    Args:
        client: The client.
        sources: The namespaces of the pipelines.
        target: An empty namespace.

    Returns:
        The number of pipelines, and CPU and wall seconds per pipeline.
    """
    pipelines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for resource in _KINDS:
        for namespace in sources:
            found = await client.list(resource, namespace, label_selector=names.MANAGED_SELECTOR)
            for item in found.items:
                owner = item["metadata"]["labels"][names.LABEL_PIPELINE]
                copied = _copy(item, target, resource.kind, resource.api_version)
                pipelines.setdefault((namespace, owner), []).append(copied)
    places = asyncio.Semaphore(WRITERS)

    async def apply_all(items: list[dict[str, Any]]) -> None:
        async with places:
            for item in items:
                await client.apply(item)

    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.gather(*map(apply_all, pipelines.values()))
    size = len(pipelines)
    return size, (time.process_time() - cpu) / size, (time.monotonic() - wall) / size


def _copy(item: dict[str, Any], namespace: str, kind: str, api_version: str) -> dict[str, Any]:
    kept = {key: value for key, value in item.items() if key in _KEPT}
    metadata = {"name": item["metadata"]["name"], "namespace": namespace}
    if kind == "Service":
        clean = {key: value for key, value in item["spec"].items() if not key.startswith("cluster")}
        kept["spec"] = clean
    return {**kept, "apiVersion": api_version, "kind": kind, "metadata": metadata}
