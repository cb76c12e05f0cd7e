"""A real API server accepts every rendered object unchanged, and drops removed fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from e2e.local import api
from tests.support.builders import Built, built
from tests.support.controlplane import ControlPlane
from tests.support.golden import CASES, objects_of, path_of
from tests.support.podtemplates import WHOLE, WRONG, templated
from triton_pipelines.api import names
from triton_pipelines.cluster.diff import needs_apply
from triton_pipelines.cluster.resources import resource_of
from triton_pipelines.compile.render.objects import deployment, service
from triton_pipelines.compile.render.passthrough import plain
from triton_pipelines.compile.render.pod_template import merge
from triton_pipelines.compile.render.preflight_objects import preflight_job

pytestmark = pytest.mark.integration
NAMESPACE = "rendered"
APPLY = {"Content-Type": "application/apply-patch+yaml"}


@pytest.fixture(scope="module")
def connection(api_server: ControlPlane) -> Iterator[httpx.Client]:
    """The administrator, with a namespace for these tests."""
    with api.client(api_server.kubeconfig) as client:
        api.apply(
            client,
            f"/api/v1/namespaces/{NAMESPACE}",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        )
        yield client


def applied(connection: httpx.Client, item: dict[str, Any], *, dry: bool = True) -> httpx.Response:
    """Server-side apply as the operator does, unknown fields refused."""
    placed = {**item, "metadata": {**item["metadata"], "namespace": NAMESPACE}}
    path = resource_of(placed).path(NAMESPACE, placed["metadata"]["name"])
    query = {
        "fieldManager": names.MANAGER_CHILDREN,
        "force": "true",
        "fieldValidation": "Strict",
        **({"dryRun": "All"} if dry else {}),
    }
    content = json.dumps(placed, ensure_ascii=False).encode()  # YAML knows no pairs of escapes
    return connection.patch(path, params=query, headers=APPLY, content=content)


@pytest.mark.parametrize("case", CASES)
def test_every_object_of_the_golden_files_is_taken(connection: httpx.Client, case: str) -> None:
    parts = (
        path_of(case).read_text(encoding="utf-8").replace("REVISION", "0123456789").split("===== ")
    )
    objects = [yaml.safe_load(part.split("\n", 1)[1]) for part in parts if "\napiVersion: " in part]
    assert len(objects) >= 5
    for item in objects:
        answer = applied(connection, item)
        assert answer.status_code in (200, 201), f"{item['kind']}: {answer.text}"


def deployed(one: Built) -> dict[str, Any]:
    return deployment(one.pipeline, one.render().template, one.pipeline.spec.rollout.strategy, 1)


OWN = {"env": [{"name": "A", "value": "1"}], "nodeSelector": {"pool": "gpu", "zone": "a"}}


@pytest.mark.proves("spec.server.podTemplate", "applied")
def test_a_pod_with_everything_from_the_template_is_taken(connection: httpx.Client) -> None:
    one = templated(WHOLE, server=OWN)
    answer = applied(connection, deployed(one))
    assert answer.status_code in (200, 201), answer.text
    assert [item["name"] for item in answer.json()["spec"]["template"]["spec"]["containers"]] == [
        "triton",
        "proxy",
    ]
    for item in objects_of(one.pipeline, one.render(), one.options):
        assert applied(connection, item).status_code in (200, 201)
    answer = applied(connection, preflight_job(one.pipeline, "0123456789", one.render().template))
    assert answer.status_code in (200, 201), answer.text


# The decoder refuses a value of another shape in place of a label or number, with status 400 or
# 500.
@pytest.mark.parametrize(("template", "path", "words"), WRONG, ids=[path for _, path, _ in WRONG])
def test_what_is_refused_as_no_pod_is_refused_by_the_api_server(
    connection: httpx.Client, template: Any, path: str, words: str
) -> None:
    one = built(server=OWN)
    item = deployed(one)
    item["spec"]["template"] = merge(item["spec"]["template"], plain(template))
    answer = applied(connection, item)
    assert answer.status_code in (400, 422, 500), f"{path} ({words}) was taken"


SEQUENCES = {
    "platform": "python",
    "source": None,
    "python": {"code": {"inline": "x = 1"}},
    "instances": {"count": 1, "kind": "CPU"},
    "sequenceBatching": {
        "strategy": "Direct",
        "controls": [{"name": "START", "kind": "START", "dataType": "INT32"}],
    },
}


@pytest.mark.proves("spec.model.sequenceBatching.strategy", "parsed")
def test_affinity_comes_with_sequences_and_goes_with_them(connection: httpx.Client) -> None:
    """The API server accepts no timeout without an affinity.

    What was applied must therefore be removed as a whole.
    """

    def owned(item: dict[str, Any]) -> dict[str, Any]:
        # It has no owner here, so that the garbage collector does not interfere.
        return {
            **item,
            "metadata": {
                key: value for key, value in item["metadata"].items() if key != "ownerReferences"
            },
        }

    plain_one, sticky = (
        owned(service(built().pipeline)),
        owned(service(built(model=SEQUENCES).pipeline)),
    )
    for wanted, affinity in (
        (plain_one, "None"),
        (sticky, "ClientIP"),
        (plain_one, "None"),
        (sticky, "ClientIP"),
    ):
        answer = applied(connection, wanted, dry=False)
        assert answer.status_code in (200, 201), answer.text
        live = answer.json()
        assert live["spec"]["sessionAffinity"] == affinity
        seconds = {"clientIP": {"timeoutSeconds": 10800}}
        assert live["spec"].get("sessionAffinityConfig") == (
            seconds if affinity == "ClientIP" else None
        )
        placed = {**wanted, "metadata": {**wanted["metadata"], "namespace": NAMESPACE}}
        assert needs_apply(live, placed, names.MANAGER_CHILDREN) == []


def test_a_manually_paused_rollout_continues(connection: httpx.Client) -> None:
    one = built()
    item = deployed(one)
    item["metadata"].pop("ownerReferences")
    item["metadata"]["namespace"] = NAMESPACE
    assert applied(connection, item, dry=False).status_code == 201
    path = resource_of(item).path(NAMESPACE, one.pipeline.name)
    paused = connection.patch(
        path,
        params={"fieldManager": "kubectl-rollout"},
        headers={"Content-Type": "application/merge-patch+json"},
        json={"spec": {"paused": True}},
    ).json()
    assert paused["spec"]["paused"] is True
    assert needs_apply(paused, item, names.MANAGER_CHILDREN) == ["spec.paused"]
    live = applied(connection, item, dry=False).json()
    assert "paused" not in live["spec"]
    assert needs_apply(live, item, names.MANAGER_CHILDREN) == []
