"""Conventions of the CRD, after Kube-API-Linter; every exception is listed by path with its reason."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from triton_pipelines.api import crd
from triton_pipelines.api.base import ApiModel

FILE = Path(__file__).parents[3] / "crds" / "inferencepipelines.tritonpipelines.io.yaml"
PRESERVE = "x-kubernetes-preserve-unknown-fields"
SCHEMA = crd.root_schema()
NODES = {path: node for path, node in crd.walk(SCHEMA) if path.startswith(("spec", "status"))}
# What the API server takes in a structural schema (apiextensions v1), as far as this CRD needs it.
STRUCTURAL = {
    *("type", "description", "properties", "items", "additionalProperties", "required", "enum", "format", "pattern", "default", "anyOf"),
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations", "x-kubernetes-int-or-string", PRESERVE),
}

MAPS = {
    "spec.model.parameters": "Triton's own string-to-string parameters",
    "spec.server.nodeSelector": "as in a Pod",
    "spec.server.service.annotations": "annotations, as in ObjectMeta",
}
OPEN_OBJECTS = {
    "spec.server.env[].valueFrom": "as in a Pod",
    "spec.server.affinity": "as in a Pod",
    "spec.server.tolerations[]": "as in a Pod",
    "spec.server.topologySpreadConstraints[]": "as in a Pod",
    "spec.server.networkPolicy.inferenceFrom[]": "peers, as in a NetworkPolicy",
    "spec.server.networkPolicy.metricsFrom[]": "peers, as in a NetworkPolicy",
}
ATOMIC_LISTS = {
    "spec.tokenizer.buckets": "the order has a meaning",
    "spec.model.inputs[].dims": "a shape",
    "spec.model.outputs[].dims": "a shape",
    "spec.postprocess.labels": "the order is the model's; two classes may share a name",
    "spec.server.args": "a command line",
    "spec.server.tolerations": "as in a Pod",
    "spec.server.topologySpreadConstraints": "items have no key that is always there",
    "spec.server.networkPolicy.inferenceFrom": "as in a NetworkPolicy",
    "spec.server.networkPolicy.metricsFrom": "as in a NetworkPolicy",
    "status.ensemble.inputs": "in the order in which clients see them; one writer",
    "status.ensemble.outputs": "in the order in which clients see them; one writer",
    "status.ensemble.inputs[].shape": "a shape",
    "status.ensemble.outputs[].shape": "a shape",
    "status.warnings": "no key; one writer",
}


def _of_type(kind: str) -> dict[str, Mapping[str, Any]]:
    return {path: node for path, node in NODES.items() if node.get("type") == kind}


def test_the_file_is_what_the_models_say() -> None:
    """After a change of the models: ``python -m triton_pipelines.api.crd > crds/inferencepipelines.tritonpipelines.io.yaml``."""
    assert FILE.read_text(encoding="utf-8") == crd.render()
    assert yaml.safe_load(crd.render()) == crd.definition()


def test_size() -> None:
    """The API server keeps objects below 1.5 MiB, client-side apply its annotation below 256 KiB."""
    assert len(FILE.read_bytes()) < 256 * 1024
    assert len(json.dumps(crd.definition())) < 256 * 1024


def test_only_structural_keywords() -> None:
    assert {path: set(node) - STRUCTURAL for path, node in NODES.items() if set(node) - STRUCTURAL} == {}
    assert not any(isinstance(node.get("additionalProperties"), bool) for node in NODES.values())


def test_every_field_has_a_description() -> None:
    fields = {path for path in NODES if not path.endswith(("[]", "{}"))}
    assert {path for path in fields if not NODES[path].get("description", "").strip()} == set()
    assert {path for path in _of_type("object") if not path.endswith(("[]", "{}")) and "\n" in NODES[path]["description"]} == set()


def test_names_are_camel_case() -> None:
    names = {key for node in NODES.values() for key in node.get("properties", {})}
    assert {name for name in names if not re.fullmatch(r"[a-z][a-zA-Z0-9]*", name)} == set()
    assert "phase" not in names


def test_every_node_has_a_type() -> None:
    typeless = {path for path, node in NODES.items() if "type" not in node}
    assert typeless == {path for path, node in NODES.items() if node.get("x-kubernetes-int-or-string")}
    assert all(path.rsplit(".", 1)[-1] in ("cpu", "memory", "sharedMemory") for path in typeless)


def test_no_booleans_and_floats() -> None:
    assert _of_type("boolean") == {}
    assert _of_type("number") == {}


def test_integers_have_format_and_bounds() -> None:
    for path, node in _of_type("integer").items():
        assert node.get("format") in ("int32", "int64"), path
        assert "minimum" in node, path
        assert "maximum" in node, path
        width = 31 if node["format"] == "int32" else 63
        assert -(2**width) <= node["minimum"] <= node["maximum"] < 2**width, path


def test_texts_are_bounded() -> None:
    texts = _of_type("string") | {path: node for path, node in NODES.items() if node.get("x-kubernetes-int-or-string")}
    assert {path for path, node in texts.items() if "maxLength" not in node and "enum" not in node} == set()


def test_lists_are_bounded_and_say_how_they_merge() -> None:
    for path, node in _of_type("array").items():
        assert "maxItems" in node, path
        kind = node.get("x-kubernetes-list-type")
        assert kind in ("map", "set", "atomic"), path
        if kind == "map":
            keys = node["x-kubernetes-list-map-keys"]
            assert set(keys) <= set(node["items"]["required"]), path
        if kind == "set":
            assert node["items"]["type"] in ("string", "integer"), path
    atomic = {path for path, node in _of_type("array").items() if node["x-kubernetes-list-type"] == "atomic"}
    assert atomic == set(ATOMIC_LISTS)


def test_maps_are_exceptions_and_bounded() -> None:
    maps = {path for path, node in NODES.items() if "additionalProperties" in node}
    assert maps == set(MAPS)
    for path in maps:
        assert "maxProperties" in NODES[path], path
        assert any("size(key)" in rule["rule"] for rule in NODES[path]["x-kubernetes-validations"]), path


def test_open_objects_are_exceptions() -> None:
    assert {path for path, node in NODES.items() if PRESERVE in node} == set(OPEN_OBJECTS)


def test_no_times_in_spec() -> None:
    assert {path for path, node in NODES.items() if path.startswith("spec") and str(node.get("format", "")).startswith("date")} == set()
    assert not any(re.search(r"(Duration|Time|Timestamp)$", path) for path in NODES if path.startswith("spec"))


def test_durations_carry_their_unit() -> None:
    times = {path for path in _of_type("integer") if re.search(r"(delay|timeout|deadline|drain|period)", path.rsplit(".", 1)[-1], re.IGNORECASE)}
    assert times
    assert {path for path in times if not path.endswith(("Seconds", "Milliseconds", "Microseconds"))} == set()


def test_defaults_are_scalars_of_spec_and_never_below_a_list() -> None:
    defaults = {path: node["default"] for path, node in NODES.items() if "default" in node}
    assert defaults["spec.replicas"] == 1  # the scale subresource needs it
    assert defaults.pop("status") == {"observedGeneration": -1}  # or kstatus takes what nobody has looked at for current
    for path, value in defaults.items():
        assert path.startswith("spec."), path
        assert "[]" not in path, path
        assert isinstance(value, (str, int)), path
        assert value in NODES[path].get("enum", [value]), path


def test_a_field_is_required_or_has_a_default_or_neither() -> None:
    for path, node in NODES.items():
        for name in node.get("required", []):
            assert "default" not in node["properties"][name], f"{path}.{name}"


def test_enum_values_are_no_yaml_booleans() -> None:
    values = {value for node in NODES.values() for value in node.get("enum", [])}
    assert {value for value in values if str(value).lower() in ("y", "n", "yes", "no", "on", "off")} == set()
    assert all("True" not in node.get("enum", []) for path, node in NODES.items() if path != "status.conditions[].status")


def test_status_is_optional_and_a_subresource() -> None:
    version = crd.definition()["spec"]["versions"][0]
    assert "status" not in SCHEMA["required"]
    assert version["subresources"]["status"] == {}
    for path in version["subresources"]["scale"].values():
        assert path.removeprefix(".") in NODES, path


def test_conditions_come_first_and_merge_by_type() -> None:
    assert next(iter(SCHEMA["properties"]["status"]["properties"])) == "conditions"
    assert NODES["status.conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert {"type", "status", "reason", "message", "lastTransitionTime"} <= set(NODES["status.conditions[]"]["required"])


@pytest.mark.parametrize("column", crd.PRINTER_COLUMNS, ids=lambda column: column["name"])
def test_printer_columns_show_fields_that_exist(column: dict[str, Any]) -> None:
    path = column["jsonPath"].removeprefix(".")
    if path != "metadata.creationTimestamp":
        assert re.sub(r"\[\?\(.*\)\]", "[]", path) in NODES


def test_rules_stand_on_their_objects() -> None:
    placed = {(rule["rule"], rule["message"]) for node in NODES.values() for rule in node.get("x-kubernetes-validations", [])}
    wanted = {(rule.cel, rule.message) for model in crd.model_classes(ApiModel).values() for rule in model.rules}
    assert wanted <= placed
    for path, node in NODES.items():
        for rule in node.get("x-kubernetes-validations", []):
            target = f"{path}{rule['fieldPath']}" if "fieldPath" in rule else path
            assert target in NODES, f"{path}: the rule points at {rule.get('fieldPath')}, which is no field"


def test_a_union_is_refused() -> None:
    class Loose(ApiModel):
        """A model that has no structural form."""

        value: int | str = 1

    with pytest.raises(ValueError, match="union"):
        crd.structural(Loose)
