"""A user with all permissions of one namespace attacks the operator and other namespaces.

Each attack goes through a real API server. It must not reach beyond the attacker's namespace, and
the pipeline of another namespace must still be reconciled.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support.operators import eventually, patch
from tests.support.tenants import Place, Tenants
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import Invalid
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    PODS,
)
from triton_pipelines.controllers.autoscaler import pipeline_state

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]
LARGE = "x" * 900_000


GARBAGE = {
    "deep": "[" * 100_000,
    "large": LARGE,
    "infinite": '{"version": 1e999, "steps": NaN, "revision": -Infinity}',
    "digits": '{"version": ' + "9" * 5_000 + "}",
    "types": '{"rollout": [], "replicas": 7, "slo_guard": {"since": 5}, "spec": [], "digests": 1}',
    "times": json.dumps(
        {
            policy: {"since": moment, "until": moment, "at": moment, "started": moment}
            for policy, moment in (
                ("slo_guard", "9999-12-31T23:59:59+00:00"),
                ("pod_repair", "0001-01-01T00:00:00-23:59"),
                ("replicas", "9999-12-31T23:59:59-23:59"),
            )
        }
    ),
    "surrogates": '"\\ud800\\u0000"',
}


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_in_the_live_config_map_affects_nothing(place: Place, kind: str) -> None:
    async with place.tenants() as tenants:
        live = names.live_name("p")
        found = await tenants.admin.get(CONFIG_MAPS, tenants.hostile, live)
        keys = {*found["data"], names.KEY_ACCEPTED, names.KEY_STATE, "scaling"}
        # The API server stores at most 1 MiB in a ConfigMap.
        text = dict.fromkeys(sorted(keys)[:1] if kind == "large" else keys, GARBAGE[kind])
        await patch(tenants.admin, CONFIG_MAPS, tenants.hostile, live, {"data": text})

        async def is_repaired() -> bool:
            now = await tenants.admin.get(CONFIG_MAPS, tenants.hostile, live)
            return GARBAGE[kind] not in [now["data"].get(key) for key in found["data"]]

        await eventually("repair", is_repaired)
        assert tenants.errors() == 0
        await tenants.others_are_served(f"after-{kind}")


async def test_many_foreign_objects_with_the_labels_of_a_pipeline_change_nothing(
    place: Place,
) -> None:
    """Deployments, Services and pods with its labels, long names and large annotations."""
    async with place.tenants() as tenants:
        pipeline = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, "p")
        before = pipeline["metadata"]["resourceVersion"]
        template = (await tenants.admin.get(DEPLOYMENTS, tenants.hostile, "p"))["spec"]
        created = []
        for number in range(60):
            metadata = {
                "name": f"{'n' * 240}-{number}",
                "namespace": tenants.hostile,
                "labels": names.labels("p" if number % 2 else f"no-such-{number}"),
                "annotations": {"large": "x" * 200_000},
            }
            created.append(
                {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "metadata": metadata,
                    "spec": template,
                }
            )
            pod = {**metadata, "ownerReferences": [owner_of(pipeline)]}
            containers = [{"name": "c", "image": "i"}]
            created.append(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": pod,
                    "spec": {"containers": containers, "automountServiceAccountToken": False},
                }
            )
        await asyncio.gather(*(tenants.admin.create(item) for item in created))
        await eventually("the pods are seen", lambda: tenants.running.store.count(PODS) >= 60)
        await tenants.others_are_served("after-objects")
        assert tenants.errors() == 0
        for item in created:
            kind = DEPLOYMENTS if item["kind"] == "Deployment" else PODS
            assert await tenants.admin.get(kind, tenants.hostile, item["metadata"]["name"])
        now = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, "p")
        assert (now.get("status") or {}).get("replicas", 0) == 0, before


def owner_of(pipeline: Object) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": pipeline["metadata"]["name"],
        "uid": pipeline["metadata"]["uid"],
    }


FUTURE = "9999-12-31T23:59:59Z"
MANY = 10**9
REVISION = "f" * 10


def forged_condition(kind: str) -> Object:
    return {
        "type": kind,
        "status": "True",
        "reason": "Forged",
        "message": "forged",
        "observedGeneration": 2**53,
        "lastTransitionTime": FUTURE,
    }


def traces(status: Object) -> set[str]:
    """Return which forged values are in a status."""
    text = json.dumps(status).lower()
    return {
        item for item in ("forged", FUTURE.lower(), str(MANY), str(2**53), REVISION) if item in text
    }


STATUSES: dict[str, Object] = {
    "empty": {"conditions": [], "steps": [], "warnings": []},
    "absurd values": {
        "observedGeneration": 2**53,
        "revision": REVISION,
        "servingRevision": REVISION,
        "replicas": MANY,
        "readyReplicas": MANY,
        "updatedReplicas": MANY,
        "selector": "forged",
        "endpoints": dict.fromkeys(("http", "grpc", "metrics"), "http://forged"),
        "tokenizer": {"instances": MANY, "desiredInstances": MANY, "summary": "forged"},
        "conditions": [
            forged_condition(kind) for kind in ("Ready", "Available", "Stalled", "ModelsReady")
        ],
        "steps": [
            {
                "name": name,
                "modelName": "forged",
                "role": "forged",
                **dict.fromkeys(("readyPods", "pods", "instances", "desiredInstances"), MANY),
            }
            for name in ("tokenizer", "model", "forged")
        ],
    },
    "full lists": {
        "conditions": [forged_condition(f"Forged{number}") for number in range(16)],
        "steps": [
            {"name": f"forged-{number}", "modelName": "forged", "role": "forged"}
            for number in range(64)
        ],
        "sources": [{"step": f"forged-{number}", "uri": "s3://forged"} for number in range(64)],
        "warnings": [{"path": "forged", "message": "forged"} for _ in range(20)],
    },
    "results that never were": {
        "scaling": {
            "bottleneck": "forged",
            "mode": "forged",
            "lastScaleTime": FUTURE,
            "figuresTime": FUTURE,
            "history": [
                {"time": FUTURE, "step": "model", "from": 1, "to": MANY, "reason": "forged"}
            ]
            * 5,
            "figures": [
                {"step": f"forged-{number}", "requestsPerSecond": MANY} for number in range(64)
            ],
        },
        "tuning": {"request": "forged", "state": "Running", "startTime": FUTURE},
    },
}


@pytest.mark.parametrize("kind", STATUSES)
async def test_a_forged_status_is_corrected(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write the status cannot deceive the operator, nor its users for long."""
    # As long as the operator keeps a reported verdict, forged or not, after its start.
    monkeypatch.setattr(pipeline_state, "SETTLING_SECONDS", 2.0)
    async with place.tenants() as tenants:

        async def has_status() -> bool:
            return bool(await tenants.condition("Ready"))

        await eventually("a status", has_status)
        before = await applied(tenants)
        body = {"status": STATUSES[kind]}
        await patch(tenants.admin, INFERENCE_PIPELINES, tenants.hostile, "p", body, "status")

        async def is_corrected() -> bool:
            found = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, "p")
            return "Ready" in str(found["status"]) and traces(found["status"]) == set()

        await eventually("correction", is_corrected)
        await tenants.others_are_served(f"after-{kind.replace(' ', '-')}")
        assert await applied(tenants) == before
        assert tenants.errors() == 0
        assert tenants.running.samples("pipeline_pods")


@pytest.mark.parametrize(
    "status",
    [
        {"replicas": "many"},
        {"replicas": 2**31},
        {"conditions": {"Ready": True}},
        {"conditions": [forged_condition(f"Forged{number}") for number in range(17)]},
        {"revision": "x" * 513},
        {"steps": [{"name": ["tokenizer"]}]},
        {"scaling": [1]},
        {"observedGeneration": 1e300},
    ],
)
async def test_a_status_of_wrong_types_or_sizes_is_rejected(place: Place, status: Object) -> None:
    async with place.tenants() as tenants:
        with pytest.raises(Invalid):
            await patch(
                tenants.admin,
                INFERENCE_PIPELINES,
                tenants.hostile,
                "p",
                {"status": status},
                "status",
            )


async def applied(tenants: Tenants) -> dict[str, Object]:
    """Return what the operator has written for the attacker's pipeline, by kind and name.

    Of the live ConfigMap, only the counts: it also records what was reported.
    """
    found = {}
    for resource in (DEPLOYMENTS, CONFIG_MAPS):
        listed = await tenants.admin.list(resource, tenants.hostile)
        found |= {
            f"{resource.kind} {item['metadata']['name']}": item.get("spec") or item.get("data")
            for item in listed.items
        }
    live = f"{CONFIG_MAPS.kind} {names.live_name('p')}"
    return {**found, live: found[live].get(names.KEY_COUNTS)}
