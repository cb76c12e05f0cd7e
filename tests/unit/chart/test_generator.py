"""Test the chart's generated parts: braces, comments, schema and table."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hack import chart

VALUES = yaml.safe_load((chart.CHART / "values.yaml").read_text())
SCHEMA = json.loads((chart.CHART / "values.schema.json").read_text())
CI_VALUES = sorted((chart.CHART / "ci").glob("*-values.yaml"))

CRD = """\
# A comment of the generator.
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: things.example.com
  annotations:
    example.com/template: "{{ x }}"
spec:
  group: example.com
"""


def test_every_crd_is_in_the_chart() -> None:
    sources = {path.name for path in chart.CRDS.glob("*.yaml")} - {"kustomization.yaml"}
    assert sources
    assert {path.name for path in chart.CRD_TEMPLATES.glob("*.yaml")} == sources
    listed = yaml.safe_load((chart.CRDS / "kustomization.yaml").read_text())["resources"]
    assert set(listed) == sources


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain { } text", "plain { } text"),
        ("{{ x }}", '{{ "{{" }} x {{ "}}" }}'),
        ("size(self.a) > 0 ? {{}} : 1", 'size(self.a) > 0 ? {{ "{{" }}{{ "}}" }} : 1'),
        ("{{{a}}}", '{{ "{{" }}{a{{ "}}" }}}'),
    ],
)
def test_braces_are_escaped(text: str, escaped: str) -> None:
    assert chart.escape_braces(text) == escaped


def test_crd_template_has_switches_and_keeps_own_annotations() -> None:
    template = chart.crd_template(CRD, "crds/things.yaml")
    assert template.startswith(
        "{{- /* Made by `python -m hack.chart`; edit crds/things.yaml instead. */}}\n"
        "{{- if .Values.crds.enabled }}\n"
    )
    assert template.endswith("{{- end }}\n")
    assert 'example.com/template: "{{ "{{" }} x {{ "}}" }}"' in template
    assert "{{- if .Values.crds.keep }}\n    helm.sh/resource-policy: keep" in template
    assert "A comment of the generator" not in template


@pytest.mark.parametrize(
    "text",
    [
        "kind: ConfigMap\nmetadata:\n  name: x\n",
        "kind: CustomResourceDefinition\nmetadata: {name: x}\n",
    ],
)
def test_what_is_no_crd_is_refused_by_file(text: str) -> None:
    with pytest.raises(chart.ChartError, match=r"crds/x\.yaml"):
        chart.crd_template(text, "crds/x.yaml")


def test_comments_become_values_with_their_defaults() -> None:
    text = (
        "# A heading.\na:\n  # -- First line\n  # and second.\n  b: 1\n"
        "  c:\n    # -- Deep.\n    d: [x]\n# -- Top.\ne: {}\nf: 1\n"
    )
    assert chart.documented_values(text) == [
        chart.Value(("a", "b"), 1, "First line and second."),
        chart.Value(("a", "c", "d"), ["x"], "Deep."),
        chart.Value(("e",), {}, "Top."),
    ]
    assert chart.undocumented_values(text) == ["f"]


def test_every_value_is_documented() -> None:
    assert chart.undocumented_values((chart.CHART / "values.yaml").read_text()) == []


def test_a_value_without_a_schema_is_named() -> None:
    with pytest.raises(chart.ChartError, match=r"image\.colour"):
        chart.described_schema(SCHEMA, [chart.Value(("image", "colour"), "", "No such thing.")])


def objects_of(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = []
    if "properties" in schema:
        found.append((path or "(root)", schema))
        for key, item in schema["properties"].items():
            found += objects_of(item, f"{path}.{key}" if path else key)
    if isinstance(schema.get("items"), dict):
        found += objects_of(schema["items"], f"{path}[]")
    return found


def test_schema_is_closed_and_described() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    objects = objects_of(SCHEMA)
    assert len(objects) > 15
    assert [path for path, item in objects if item.get("additionalProperties") is not False] == []
    documented = {
        ".".join(value.path)
        for value in chart.documented_values((chart.CHART / "values.yaml").read_text())
    }
    undescribed = [path for path in documented if "description" not in _property(path)]
    assert undescribed == []


def _property(path: str) -> dict[str, Any]:
    node: dict[str, Any] = SCHEMA
    for key in path.split("."):
        node = node["properties"][key]
    return node


def test_schema_knows_every_value_and_no_other() -> None:
    def leaves(node: Any, path: tuple[str, ...] = ()) -> set[str]:
        if (
            isinstance(node, dict)
            and node
            and path != ("nodeSelector",)
            and path[-1:] != ("requests",)
            and path[-1:] != ("limits",)
        ):
            return {leaf for key, item in node.items() for leaf in leaves(item, (*path, key))}
        return {".".join(path)}

    def properties(schema: dict[str, Any], path: tuple[str, ...] = ()) -> set[str]:
        if "properties" in schema:
            return {
                leaf
                for key, item in schema["properties"].items()
                for leaf in properties(item, (*path, key))
            }
        return {".".join(path)}

    inner = {"affinity"}  # free form with known keys, empty by default
    known = {leaf for leaf in properties(SCHEMA) if leaf.split(".")[0] not in inner} - {"global"}
    assert known == leaves(VALUES) - inner


@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.name)
def test_ci_values_fit_the_schema(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), SCHEMA)


def test_full_values_differ_from_every_default() -> None:
    full = yaml.safe_load((chart.CHART / "ci" / "full-values.yaml").read_text())
    # The file shows alternatives to these: see namespaced-values.yaml and minimal-values.yaml.
    exempt = {
        "watch.namespaces",
        "crds.enabled",
        "serviceAccount.create",
        "rbac.create",
        "rbac.aggregate",
        "networkPolicy.enabled",
        "metrics.service.enabled",
        "prometheus.url",
    }
    same = []
    for value in chart.documented_values((chart.CHART / "values.yaml").read_text()):
        node: Any = full
        for key in value.path:
            node = node.get(key, value.default) if isinstance(node, dict) else value.default
        if node == value.default:
            same.append(".".join(value.path))
    assert set(same) == exempt
