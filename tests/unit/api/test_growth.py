"""The contract only grows: what was written for an older version is accepted by this one, in the same meaning.

Each folder of tests/corpus/grown is one older version: its CRD, resources that it took, what it made of them, and the differences
that are wanted all the same (``accepted.yaml``). See docs/decisions/0011-additive-api-changes.md.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.corpus import GROWN, Sample, grown, versions
from tests.support import celnew, crdlint, growth, libyaml
from tests.support.meaning import differences, meaning
from triton_pipelines.api import crd, parse

VERSIONS = versions()
SAMPLES = [(version, sample) for version in VERSIONS for sample in grown(version)]


def _accepted(version: str, part: str) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = libyaml.load(
        (GROWN / version / "accepted.yaml").read_text(encoding="utf-8")
    )[part]
    assert all(entry["reason"].strip() for entry in entries)
    return entries


@pytest.mark.parametrize("version", VERSIONS)
def test_the_definition_only_grows(version: str) -> None:
    old = libyaml.load((GROWN / version / "crd.yaml").read_text(encoding="utf-8"))
    accepted = _accepted(version, "schema")
    needed = []
    refused = []
    for path, change in growth.breaking(old, crd.definition()):
        fitting = [
            entry
            for entry in accepted
            if crdlint.matches(path, entry["path"]) and change.startswith(entry["change"])
        ]
        needed += fitting
        refused += [] if fitting else [f"{path}: {change}"]
    assert refused == []
    assert [entry for entry in accepted if entry not in needed] == [], (
        "accepted, and no longer needed"
    )


@pytest.mark.parametrize(
    ("version", "sample"),
    SAMPLES,
    ids=lambda value: value.name if isinstance(value, Sample) else value,
)
def test_resources_of_older_versions_are_taken(version: str, sample: Sample) -> None:
    pipeline, findings = parse(sample.document)
    assert findings == []
    assert pipeline is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_an_upgrade_rolls_no_pods_of_unchanged_resources(version: str) -> None:
    """What an older version rendered is rendered still; a wanted difference is an entry of accepted.yaml, and a line of the release notes."""
    accepted = _accepted(version, "meaning")
    needed, refused = [], []
    for sample in grown(version):
        stored = libyaml.load(
            (GROWN / version / "meaning" / sample.file.name).read_text(encoding="utf-8")
        )
        assert stored.keys() == {"models", "plan", "template"}
        for path in differences(stored, meaning(sample.document), sample.name):
            fitting = [entry for entry in accepted if crdlint.matches(path, entry["path"])]
            needed += fitting
            refused += [] if fitting else [path]
    assert refused == [], "pods would be rolled by the operator's upgrade"
    assert [entry for entry in accepted if entry not in needed] == [], (
        "accepted, and no longer needed"
    )


def test_a_difference_in_meaning_is_found() -> None:
    sample = grown(VERSIONS[0])[0]
    changed = copy.deepcopy(sample.document)
    changed["spec"]["model"]["maxBatchSize"] = 3
    found = set(differences(meaning(sample.document), meaning(changed), ""))
    assert "/models/pipeline/config.pbtxt/max_batch_size" in found
    assert (
        list(differences(meaning(sample.document), meaning(copy.deepcopy(sample.document)), ""))
        == []
    )


OLD = crd.definition()
NODES = dict(crdlint.nodes(OLD))
Change = Callable[[dict[str, Any]], object]


def _node(definition: dict[str, Any], path: str) -> dict[str, Any]:
    found = {
        where: node for where, node in crd.walk(crdlint.schema_of(definition)) if where == path
    }
    return found[path]  # type: ignore[return-value]


def _set(path: str, **values: Any) -> Change:
    return lambda definition: _node(definition, path).update(
        {key.replace("list_type", "x-kubernetes-list-type"): value for key, value in values.items()}
    )


def _drop(path: str, *keys: str) -> Change:
    def change(definition: dict[str, Any]) -> None:
        node = _node(definition, path)
        for key in keys[:-1]:
            node = node[key]
        del node[keys[-1]]

    return change


def _rule(path: str, rule: str, field: str = "colour") -> Change:
    """A new field beside a new rule."""

    def change(definition: dict[str, Any]) -> None:
        node = _node(definition, path)
        node["properties"][field] = {"type": "string", "maxLength": 9, "description": "New."}
        node.setdefault("x-kubernetes-validations", []).append(
            {"rule": rule, "message": "colour must be grey"}
        )

    return change


def _alternative(path: str, more: str) -> Change:
    """A further way to fulfil the first rule of a node that is made of alternatives."""

    def change(definition: dict[str, Any]) -> None:
        rule = next(
            rule
            for rule in _node(definition, path)["x-kubernetes-validations"]
            if "||" in rule["rule"]
        )
        rule["rule"] = f"{rule['rule']} || {more}"

    return change


REPLICAS = "spec.replicas"
BREAKS: list[tuple[str, str, Change]] = [
    (REPLICAS, "is gone", _drop("spec", "properties", "replicas")),
    (REPLICAS, "type was integer, is string", _set(REPLICAS, type="string")),
    (REPLICAS, "format was int32, is int64", _set(REPLICAS, format="int64")),
    (REPLICAS, "default was 1, is 2", _set(REPLICAS, default=2)),
    (REPLICAS, "default was 1, is None", _drop(REPLICAS, "default")),
    (REPLICAS, "minimum rose from 0 to 1", _set(REPLICAS, minimum=1)),
    (REPLICAS, "maximum fell", _set(REPLICAS, maximum=3)),
    ("spec.suspend", "choices are gone: ['Disabled']", _set("spec.suspend", enum=["Enabled"])),
    ("spec.source.uri", "choices are gone", _set("spec.source.uri", enum=["https://one"])),
    ("spec.source.uri", "maxLength fell", _set("spec.source.uri", maxLength=5)),
    ("spec.source.uri", "pattern ^hf:.*$ refuses", _set("spec.source.uri", pattern="^hf:.*$")),
    (
        "spec.source.region",
        "pattern ^[a-z]+$ refuses",
        _set("spec.source.region", pattern="^[a-z]+$"),
    ),
    ("spec.tokenizer.buckets", "maxItems fell", _set("spec.tokenizer.buckets", maxItems=1)),
    (
        "spec.tokenizer.buckets",
        "x-kubernetes-list-type was atomic, is set",
        _set("spec.tokenizer.buckets", list_type="set"),
    ),
    (
        "spec",
        "became required",
        _set("spec", required=["replicas", *NODES["spec"].get("required", []), "tokenizer"]),
    ),
    ("spec", "has a new rule", _rule("spec", "self.replicas < 9")),
    ("spec", "has a new rule", _rule("spec", "has(self.colour) || self.replicas < 9")),
    ("spec", "has a new rule", _rule("spec", "!has(self.replicas) || self.replicas < 9")),
    (
        "spec",
        "has a new rule",
        _rule("spec", "!has(self.colour) && self.replicas < 9 || self.replicas < 3"),
    ),
    ("group", "was", lambda definition: definition["spec"].update(group="example.com")),
    (
        "names.shortNames",
        "was",
        lambda definition: definition["spec"]["names"].update(shortNames=[]),
    ),
    ("names.kind", "was", lambda definition: definition["spec"]["names"].update(kind="Pipe")),
    (
        "versions.v1alpha1",
        "is no longer served",
        lambda definition: definition["spec"]["versions"][0].update(served=False),
    ),
    (
        "subresources.scale",
        "was",
        lambda definition: definition["spec"]["versions"][0]["subresources"].pop("scale"),
    ),
]
GROWTH: list[tuple[str, Change]] = [
    ("wider bounds", _set(REPLICAS, minimum=-1, maximum=2**31 - 1)),
    ("a further choice", _set("spec.suspend", enum=["Enabled", "Disabled", "Scheduled"])),
    ("any text", _drop("spec.source.uri", "pattern")),
    (
        "a wider pattern",
        _set(
            "spec.source.uri", pattern=NODES["spec.source.uri"]["pattern"].replace("^(", "^(gs|az|")
        ),
    ),
    ("another description", _set("spec.source.uri", description="Somewhere.")),
    (
        "a rule about a new field",
        _rule("spec", "!has(self.colour) || self.replicas < 9 && self.colour == 'grey'"),
    ),
    (
        "an older rule with a further alternative",
        _alternative("spec.source", "self.uri.startsWith('new://')"),
    ),
    ("a new field alone", _rule("spec", "true || self.replicas < 9 || !has(self.colour)")),
]


@pytest.mark.parametrize(
    ("path", "change", "doctor"), BREAKS, ids=[f"{path} {change}" for path, change, _ in BREAKS]
)
def test_each_break_is_found(path: str, change: str, doctor: Change) -> None:
    new = copy.deepcopy(OLD)
    doctor(new)
    found = growth.breaking(OLD, new)
    assert [one for one in found if one[0] == path and one[1].startswith(change)], found
    assert len(found) <= 2  # nothing else is said to break


@pytest.mark.parametrize(("what", "doctor"), GROWTH, ids=[what for what, _ in GROWTH])
def test_growth_is_no_break(what: str, doctor: Change) -> None:
    new = copy.deepcopy(OLD)
    doctor(new)
    assert new != OLD
    assert growth.breaking(OLD, new) == []


OLDER = {
    "": {"required": ["must"]},
    "must": {},
    "a": {},
    "kind": {"enum": ["X", "Y"]},
    "items": {},
    "items[]": {},
    "items[].a": {},
}


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("!has(self.new) || self.a > 3", True),
        ("!(has(self.a) && has(self.new) && self.new == 'x')", True),
        ("!(has(self.a) && self.a == 'x')", False),
        ("has(self.new) == has(self.other)", True),
        ("has(self.new) == has(self.a)", False),
        ("has(self.new) != has(self.other)", False),
        ("has(self.new) != has(self.must)", True),
        ("has(self.must) && self.must == 1", False),
        ("(has(self.kind) && self.kind == 'Z') == has(self.new)", True),
        ("(has(self.kind) && self.kind == 'X') == has(self.new)", False),
        ("!(self.kind in ['Z', 'W'])", True),
        ("!(self.kind in ['Z', 'X'])", False),
        ("self.kind != 'Z' || self.a == 1", True),
        ("self.kind == 'Z' ? self.a > 3 : true", True),
        ("has(self.a) ? !has(self.new) : true", True),
        ("has(self.a) ? has(self.new) : true", False),
        ("self.items.all(i, !has(i.new) || i.a > 3)", True),
        ("self.items.all(i, i.a > 3)", False),
        ("self.items.all(i, self.items.all(j, !has(j.new) || i.a != j.a))", True),
        ("size(self.items) < 3 && !has(self.new)", False),
        (
            "!has(self.new) || self.items.exists_one(i, i == self.new) && self.new.matches('^a|b$')",
            True,
        ),
    ],
)
def test_a_rule_is_read_as_an_older_resource_meets_it(rule: str, holds: bool) -> None:
    assert celnew.holds_for_older(rule, "", OLDER) is holds


@pytest.mark.parametrize("rule", ["has(self.a", "self.a ||", "(self.a) self.b"])
def test_a_rule_that_cannot_be_read_is_an_error(rule: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        celnew.holds_for_older(rule, "", OLDER)


def test_a_rule_about_a_new_choice_is_no_break() -> None:
    new = copy.deepcopy(OLD)
    _set("spec.suspend", enum=["Enabled", "Disabled", "Scheduled"])(new)
    _rule("spec", "self.suspend != 'Scheduled' || self.replicas == 1")(new)
    assert growth.breaking(OLD, new) == []
    _rule("spec", "self.suspend != 'Enabled' || self.replicas == 1")(new)
    assert growth.breaking(OLD, new) == [("spec", "has a new rule: colour must be grey")]
