"""An operator with two tenants: an attacker and another team, each in a namespace of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import Running, apply_any, eventually, operator
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES
from triton_pipelines.cluster.work_queue import BUG


class Tenants:
    """The namespace of the attacker with a pipeline ``p``, and another one."""

    def __init__(self, admin: Client, running: Running, hostile: str, other: str) -> None:
        self.admin, self.running, self.hostile, self.other = admin, running, hostile, other

    async def create(self, namespace: str, name: str) -> None:
        """Create a pipeline."""
        document = builders.document(name=name, namespace=namespace)
        document["metadata"].pop("uid")
        await apply_any(self.admin, INFERENCE_PIPELINES, document)

    async def is_applied(self, namespace: str, name: str) -> bool:
        """Return whether a pipeline has its Deployment."""
        return bool(await self.admin.get(DEPLOYMENTS, namespace, name))

    async def others_are_served(self, name: str) -> None:
        """Assert that another namespace is reconciled, and that the process lives."""
        await self.create(self.other, name)
        await eventually(f"{name} is applied", lambda: self.is_applied(self.other, name))
        async with httpx.AsyncClient(timeout=30) as probes:
            url = f"http://127.0.0.1:{self.running.config.liveness_port}/healthz"
            assert (await probes.get(url)).status_code == 200

    async def condition(self, kind: str, name: str = "p") -> Object:
        """Return a condition of the attacker's pipeline, or an empty one."""
        found = await self.admin.get(INFERENCE_PIPELINES, self.hostile, name)
        conditions = (found.get("status") or {}).get("conditions", ())
        return next((item for item in conditions if item["type"] == kind), {})

    def errors(self) -> float:
        """Return the number of reconciles that ended with an unexpected error."""
        return self.running.samples("reconciles_total").get((("result", BUG.name),), 0.0)


@dataclass(frozen=True)
class Place:
    """Where the attacks happen."""

    admin: Client
    proxy: FaultProxy
    hostile: str
    other: str
    folder: Path

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Tenants]:
        """Run the operator without any pipeline."""
        async with operator(self.proxy, self.folder, self.hostile, self.other) as running:
            yield Tenants(self.admin, running, self.hostile, self.other)

    @contextlib.asynccontextmanager
    async def tenants(self) -> AsyncIterator[Tenants]:
        """Run the operator, with the first objects of the attacker's pipeline."""
        async with self.running() as made:
            await made.create(self.hostile, "p")
            await eventually("the first objects", lambda: made.is_applied(self.hostile, "p"))
            yield made
