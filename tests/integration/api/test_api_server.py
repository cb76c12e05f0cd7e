"""The corpus before a real API server.

The API server and the command line give the same verdicts, and stored objects are stable.
"""

import calendar
import copy
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.local import api
from tests.corpus import Sample, bad, good, refused
from tests.support import libyaml
from tests.support.causes import causes_of
from tests.support.controlplane import ControlPlane
from tests.support.fields import fields_of, owners
from triton_pipelines.api import crd, names, parse, structural_schema

pytestmark = pytest.mark.integration

CRD_FILE = Path(__file__).parents[3] / "crds" / "inferencepipelines.tritonpipelines.io.yaml"
SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PIPELINES = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
APPLY = {"Content-Type": "application/apply-patch+yaml"}


@pytest.fixture(scope="module")
def connection(api_server: ControlPlane) -> Iterator[httpx.Client]:
    """Authenticated client of an API server that serves the CRD."""
    with api.client(api_server.kubeconfig) as client:
        answer = client.patch(
            f"{DEFINITIONS}/{names.PLURAL}.{names.GROUP}",
            params={"fieldManager": "test", "force": "true", "fieldValidation": "Strict"},
            headers=APPLY,
            content=json.dumps(libyaml.load(CRD_FILE.read_text(encoding="utf-8"))),
        )
        assert answer.status_code in (200, 201), answer.text
        api.wait_for("the kind", lambda: client.get(PIPELINES).status_code == 200, 60.0)
        yield client


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def test_the_definition_is_accepted_without_a_complaint(connection: httpx.Client) -> None:
    stored = connection.get(f"{DEFINITIONS}/{names.PLURAL}.{names.GROUP}").json()
    conditions = {
        one["type"]: (one["status"], one.get("message")) for one in stored["status"]["conditions"]
    }
    assert conditions["Established"][0] == "True"
    assert conditions["NamesAccepted"][0] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("sample", bad(), ids=lambda sample: sample.name)
def test_bad_resources_are_refused_with_the_message_they_name(
    connection: httpx.Client, sample: Sample
) -> None:
    answer = connection.post(
        PIPELINES, params={"dryRun": "All", "fieldValidation": "Strict"}, json=sample.document
    )
    assert answer.status_code in (400, 422), answer.text
    status = answer.json()
    if not sample.server_path:  # the server refuses to read it at all, and names no causes
        assert sample.server_text in status["message"]
        return
    causes = causes_of(status)
    assert any(
        field == sample.server_path and sample.server_text in message for field, message in causes
    ), causes
    if (
        sample.server_text == sample.message
    ):  # a cross-field rule: exactly this one, like the command line's single finding
        assert len(causes) == 1, causes


@pytest.mark.proves_files("tests/corpus/good", "accepted")
@pytest.mark.parametrize("sample", good(), ids=lambda sample: sample.name)
def test_defaults_of_the_server_are_those_of_the_models(
    connection: httpx.Client, sample: Sample
) -> None:
    answer = connection.post(
        PIPELINES, params={"dryRun": "All", "fieldValidation": "Strict"}, json=sample.document
    )
    assert answer.status_code == 201, answer.text
    assert "warning" not in answer.headers
    stored = answer.json()["spec"]
    pipeline, findings = parse(sample.document)
    assert findings == []
    assert pipeline is not None
    ours = dict(_leaves(pipeline.spec.model_dump(by_alias=True, mode="json")))
    quantities = {path for path in ours if path.endswith((".cpu", ".memory", "haredMemory"))}
    for path, value in _leaves(stored):
        assert path in ours, path
        assert ours[path] == (str(value) if path in quantities else value), path
    # and the other way round: what the server stored means the same as what the user wrote
    again, _ = parse(answer.json())
    assert again is not None
    assert again.spec == pipeline.spec


@pytest.mark.parametrize("sample", refused(), ids=lambda sample: sample.name)
def test_specs_that_only_the_operator_can_validate_are_stored(
    connection: httpx.Client, sample: Sample
) -> None:
    answer = connection.post(
        PIPELINES, params={"dryRun": "All", "fieldValidation": "Strict"}, json=sample.document
    )
    assert answer.status_code == 201, answer.text


def test_the_server_fills_in_every_default_of_the_schema(connection: httpx.Client) -> None:
    """Return one place of each type, since a source occurs in many places."""
    owner = owners()
    filled: dict[str, Any] = {}
    for sample in good():
        stored = connection.post(PIPELINES, params={"dryRun": "All"}, json=sample.document).json()
        assert stored["status"] == {"observedGeneration": crd.NOT_OBSERVED}
        written = fields_of(sample.document)
        filled |= {
            path: value
            for path, value in _leaves({"spec": stored["spec"]})
            if path in owner and path not in written
        }
    wanted = {
        path: node["default"]
        for path, node in structural_schema.walk(crd.root_schema())
        if "default" in node and path in owner
    }
    assert "spec.source.caRef.key" in wanted
    assert {path: value for path, value in filled.items() if wanted[path] != value} == {}
    assert {owner[path] for path in wanted} - {owner[path] for path in filled} == set()


def _write_status(connection: httpx.Client, name: str, status: dict[str, Any]) -> httpx.Response:
    return connection.patch(
        f"{PIPELINES}/{name}/status",
        headers={"Content-Type": "application/merge-patch+json"},
        content=json.dumps({"status": status}),
    )


def _places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield every place of a document.

    Parts of the Kubernetes API that are passed on as written are not descended into.
    """
    if place:
        yield place
    if place and place[-1] in ("affinity", "tolerations", "topologySpreadConstraints", "valueFrom"):
        return
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from _places(item, (*place, key))


@pytest.mark.parametrize("strange", ["a\n", -1, 2**31, True, 1.5, [], {}, None], ids=repr)
def test_both_validations_agree_on_unusual_values(connection: httpx.Client, strange: Any) -> None:
    document = next(one for one in good() if one.name == "everything").document
    places = [place for place in _places(document) if place[0] == "spec"]
    assert len(places) > 150
    differing = []
    for place in places:
        changed = copy.deepcopy(document)
        target: Any = changed
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = strange
        answer = connection.post(
            PIPELINES, params={"dryRun": "All", "fieldValidation": "Strict"}, json=changed
        )
        if (answer.status_code == 201) == bool(parse(changed)[1]):
            differing.append((place, answer.status_code, answer.text))
    assert differing == []


def _applied() -> Iterator[Any]:
    """Yield every good file in both ways of applying.

    Files with nulls are left out, see test_server_side_apply_refuses_nulls.
    """
    for file in [*(sample.file for sample in good()), *sorted(SAMPLES.glob("*.yaml"))]:
        yield pytest.param(file, False, id=f"{file.stem}-client-side")
        if file.stem != "nulls":
            yield pytest.param(file, True, id=f"{file.stem}-server-side")


def _stored(connection: httpx.Client, name: str) -> dict[str, Any]:
    answer = connection.get(f"{PIPELINES}/{name}")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


@pytest.mark.parametrize(("file", "server_side"), _applied())
def test_applying_twice_with_kubectl_changes_nothing(
    api_server: ControlPlane, connection: httpx.Client, file: Path, server_side: bool
) -> None:
    name = libyaml.load(file.read_text(encoding="utf-8"))["metadata"]["name"]
    environment = {**os.environ, "KUBECONFIG": str(api_server.kubeconfig)}

    def kubectl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(api_server.kubectl), *arguments, "-f", str(file)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    options = ["--server-side"] if server_side else []
    try:
        first = kubectl("apply", *options)
        assert first.returncode == 0, first.stderr
        assert "Warning" not in first.stderr
        # The operator's first write. Until then, the default of status is not stored, and the next
        # apply stores it.
        seen = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "status": {"observedGeneration": 1},
        }
        api.apply(connection, f"{PIPELINES}/{name}/status", seen)
        # The operator does this at once. Otherwise the default of status, which so far is only
        # shown, is stored by the next write, whoever writes.
        _write_status(connection, name, {"observedGeneration": 1, "replicas": 0})
        before = _stored(connection, name)
        # Times in managedFields have a resolution of one second. A second write in a later second
        # would be visible.
        api.wait_for("the next second", lambda: time.time() // 1 > _second(before), 5.0)
        second = kubectl("apply", *options)
        assert second.returncode == 0, second.stderr
        assert "Warning" not in second.stderr
        after = _stored(connection, name)
        assert after == before
        assert after["metadata"]["generation"] == 1
        difference = kubectl("diff", *options)
        assert difference.returncode == 0, difference.stdout + difference.stderr
    finally:
        connection.delete(f"{PIPELINES}/{name}")
        api.wait_for(
            "deletion", lambda: connection.get(f"{PIPELINES}/{name}").status_code == 404, 10.0
        )


def test_server_side_apply_refuses_nulls(connection: httpx.Client) -> None:
    """The server judges nulls in two ways.

    Create and client-side apply drop a null field. Server-side apply keeps it and refuses it.

    The command line follows the first, because what is stored never holds a null.
    """
    sample = next(one for one in good() if one.name == "nulls")
    answer = connection.patch(
        f"{PIPELINES}/nulls",
        params={"fieldManager": "test", "dryRun": "All"},
        headers=APPLY,
        content=json.dumps(sample.document),
    )
    assert answer.status_code == 422
    assert ("spec.server", "null") in {
        (field, message.rsplit('"', 2)[-2]) for field, message in causes_of(answer.json())
    }


def test_a_new_resource_has_no_observed_generation(connection: httpx.Client) -> None:
    document = {**good()[0].document, "metadata": {"name": "unseen"}}
    try:
        assert connection.post(PIPELINES, json=document).status_code == 201
        assert _stored(connection, "unseen")["status"] == {"observedGeneration": -1}
    finally:
        connection.delete(f"{PIPELINES}/unseen")


def _second(stored: dict[str, Any]) -> float:
    written = stored["metadata"]["creationTimestamp"]
    return float(calendar.timegm(time.strptime(written, "%Y-%m-%dT%H:%M:%SZ")))


def test_status_and_scale_are_subresources(connection: httpx.Client) -> None:
    document = {**good()[0].document, "metadata": {"name": "subresources"}}
    path = f"{PIPELINES}/subresources"
    try:
        assert connection.post(PIPELINES, json=document).status_code == 201
        status = {
            "replicas": 1,
            "readyReplicas": 1,
            "selector": "a=b",
            "tokenizer": {"summary": "1/4"},
            "scaling": {"bottleneck": "Balanced"},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Succeeded",
                    "message": "1 of 1 pods",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                    "observedGeneration": 1,
                }
            ],
        }
        answer = _write_status(connection, "subresources", status)
        assert answer.status_code == 200, answer.text
        assert answer.json()["metadata"]["generation"] == 1
        scale = connection.get(f"{path}/scale").json()
        assert scale["spec"]["replicas"] == 1
        assert scale["status"] == {"replicas": 1, "selector": "a=b"}
        table = connection.get(
            path, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        ).json()
        shown = {
            column["name"]: cell
            for column, cell in zip(
                table["columnDefinitions"], table["rows"][0]["cells"], strict=True
            )
        }
        assert shown | {"Age": ""} == {
            "Name": "subresources",
            "Ready": "True",
            "Replicas": 1,
            "Tokenizers": "1/4",
            "Bottleneck": "Balanced",
            "Age": "",
            "Revision": None,
            "Reason": "Succeeded",
            "Message": "1 of 1 pods",
        }
    finally:
        connection.delete(path)


def test_a_bad_status_is_refused(connection: httpx.Client) -> None:
    document = {**good()[0].document, "metadata": {"name": "bad-status"}}
    path = f"{PIPELINES}/bad-status"
    try:
        assert connection.post(PIPELINES, json=document).status_code == 201
        answer = _write_status(
            connection, "bad-status", {"conditions": [{"type": "Ready", "status": "Maybe"}]}
        )
        assert answer.status_code == 422
        fields = {field for field, _ in causes_of(answer.json())}
        assert {
            "status.conditions[0].status",
            "status.conditions[0].reason",
            "status.conditions[0].lastTransitionTime",
        } <= fields
    finally:
        connection.delete(path)
