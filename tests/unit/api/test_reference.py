"""The API reference is what the models say, and leaves nothing out."""

import re

from tests.support.fields import whole_schema
from triton_pipelines.api import reference, structural_schema
from triton_pipelines.api.base import ApiModel
from triton_pipelines.api.conditions import KIND_OF, ConditionType, Reason, ReasonKind


def test_every_field_and_rule_is_told() -> None:
    text = reference.render()
    for path, node in structural_schema.walk(whole_schema()):
        if path.startswith(("spec.", "status.")):
            key = re.sub(r"(\[\]|\{\})+$", "", path).rsplit(".", 1)[-1]
            assert f"| `{key}` |" in text, path
        for rule in node.get("x-kubernetes-validations", []):
            if "size(key)" not in rule["rule"]:
                assert rule["message"] in text, path
    assert all(
        rule.message in text
        for model in structural_schema.model_classes(ApiModel).values()
        for rule in model.rules
    )


def test_every_condition_and_reason_has_a_meaning() -> None:
    assert set(reference.CONDITION_MEANING) == set(ConditionType)
    assert set(reference.REASON_MEANING) == set(Reason) == set(KIND_OF)
    assert set(reference.KIND_MEANING) == set(ReasonKind)


def test_links_lead_to_sections() -> None:
    text = reference.render()
    anchors = {
        line.removeprefix("### ").lower() for line in text.splitlines() if line.startswith("### ")
    }
    assert set(re.findall(r"\]\(#([a-z]+)\)", text)) <= anchors


def test_tables_are_whole() -> None:
    for line in reference.render().splitlines():
        if line.startswith("| `"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (4, 5), line


def test_long_lists_of_places_are_told_by_a_few() -> None:
    lines = [
        line.partition(" Used in ")[2]
        for line in reference.render().splitlines()
        if " Used in " in line
    ]
    counted = [
        (line, int(said[1]))
        for line in lines
        if (said := re.match(r"(\d+) places, such as ", line))
    ]
    assert counted
    assert all(
        count > reference.MAX_PLACES and line.count("`") == 2 * reference.PLACES_SHOWN
        for line, count in counted
    )
    assert all(line.count("`") <= 2 * reference.MAX_PLACES for line in lines)
