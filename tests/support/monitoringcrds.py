"""CustomResourceDefinitions of PodMonitor and PrometheusRule.

They have the Prometheus operator's names. Their schemas contain only the fields that are written
here, with the original types. The API server drops any other field, as with the originals.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tests.support.operators import CRDS, apply_any, eventually
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import POD_MONITORS, PROMETHEUS_RULES, Resource

TEXT: dict[str, Any] = {"type": "string"}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT}
NAMED: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
DURATION: dict[str, Any] = {
    **TEXT,
    "pattern": (
        "^(0|"
        "(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"
    ),
}


def _fields(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        **({"required": list(required)} if required else {}),
    }


def _list(of: dict[str, Any], *keys: str) -> dict[str, Any]:
    listed = {"type": "array", "items": of}
    return (
        {**listed, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
        if keys
        else listed
    )


POD_MONITOR = _fields(
    ("selector",),
    selector=_fields(matchLabels=NAMED),
    namespaceSelector=_fields(any={"type": "boolean"}, matchNames=TEXTS),
    podMetricsEndpoints=_list(
        _fields(
            port=TEXT,
            path=TEXT,
            interval=DURATION,
            scrapeTimeout=DURATION,
            honorLabels={"type": "boolean"},
            relabelings=_list(
                _fields(sourceLabels=TEXTS, targetLabel=TEXT, action={**TEXT, "default": "replace"})
            ),
        )
    ),
)
RULE = _fields(("expr",), record=TEXT, alert=TEXT,
               expr={"anyOf": [{"type": "integer"}, TEXT], "x-kubernetes-int-or-string": True},
               **{"for": DURATION, "labels": NAMED, "annotations": NAMED})  # fmt: skip
PROMETHEUS_RULE = _fields(
    groups=_list(_fields(("name",), name={**TEXT, "minLength": 1}, rules=_list(RULE)), "name")
)


def definition(resource: Resource, spec: dict[str, Any]) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": TEXT,
            "kind": TEXT,
            "metadata": {"type": "object"},
            "spec": spec,
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{resource.group}",
        },
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "listKind": f"{resource.kind}List",
            },
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


@asynccontextmanager
async def served(client: Client) -> AsyncIterator[None]:
    """Serve both kinds for the duration of the context.

    Afterwards they and all their objects are removed, because other tests share the server.
    """
    for resource, spec in ((POD_MONITORS, POD_MONITOR), (PROMETHEUS_RULES, PROMETHEUS_RULE)):
        await apply_any(client, CRDS, definition(resource, spec))
    try:
        for resource in (POD_MONITORS, PROMETHEUS_RULES):
            await eventually(f"{resource.plural} are served", partial(client.list, resource))
        yield
    finally:
        for resource in (POD_MONITORS, PROMETHEUS_RULES):
            await client.delete(CRDS, None, f"{resource.plural}.{resource.group}")

            async def gone(resource: Resource = resource) -> bool:
                try:
                    await client.list(resource)
                except NotFound:
                    return True
                return False

            await eventually(f"{resource.plural} are gone", gone)
