"""Check the corpus through the command line; tests/integration/api asks the API server."""

import re
from collections.abc import Iterator

import pytest

from tests.corpus import GOLDEN, Sample, bad, good, messages
from triton_pipelines.api import parse
from triton_pipelines.api.base import ApiModel
from triton_pipelines.api.crd import root_schema
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.open_fields import is_open
from triton_pipelines.api.parse import _normalized
from triton_pipelines.api.structural_schema import model_classes, walk


@pytest.mark.parametrize("sample", good(), ids=lambda sample: sample.name)
def test_good_resources_have_no_findings(sample: Sample) -> None:
    pipeline, findings = parse(sample.document)
    assert findings == []
    assert pipeline is not None
    assert pipeline.name == sample.document["metadata"]["name"]


@pytest.mark.parametrize("sample", bad(), ids=lambda sample: sample.name)
def test_bad_resources_have_exactly_the_finding_they_name(sample: Sample) -> None:
    _, findings = parse(sample.document)
    assert [(finding.path, finding.message) for finding in findings] == [
        (sample.path, sample.message)
    ]
    assert findings[0].code in set(FindingCode)


def test_every_message_is_in_the_golden_list() -> None:
    """After a wanted change: ``python -m tests.corpus``, then read the difference."""
    assert GOLDEN.read_text(encoding="utf-8") == messages()


def _models(value: object) -> Iterator[ApiModel]:
    if isinstance(value, ApiModel):
        yield value
        for name in type(value).model_fields:
            yield from _models(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _models(item)


def test_every_rule_is_broken_by_a_bad_resource() -> None:
    rules = {rule for model in model_classes(ApiModel).values() for rule in model.rules}
    broken = {
        rule
        for sample in bad()
        for model in _models(parse(sample.document)[0])
        for rule in model.rules
        if not rule.holds(model)
    }
    assert len(rules) > 20
    assert {rule.message for rule in rules - broken} == set()


def test_all_findings_come_at_once() -> None:
    document = good()[0].document | {
        "spec": {"replicas": "2", "tokenizer": {"maxLength": 0}, "model": {"outputs": [{}]}}
    }
    _, findings = parse(document)
    missing = {f"spec.model.outputs[0].{name}" for name in ("name", "dataType", "dims")}
    assert {finding.path for finding in findings} == missing | {
        "spec.replicas",
        "spec.tokenizer.maxLength",
    }


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "text",
        5,
        {},
        {"spec": None},
        {"metadata": []},
        {"spec": {"tokenizer": {"source": []}}},
    ],
)
def test_any_document_gets_findings_and_never_an_exception(document: object) -> None:
    pipeline, findings = parse(document)  # type: ignore[arg-type]
    assert pipeline is None
    assert findings
    assert all(str(finding) for finding in findings)


def test_status_and_foreign_metadata_are_ignored() -> None:
    document = good()[0].document
    seen = {
        **document,
        "status": {"anything": 1},
        "metadata": {**document["metadata"], "managedFields": [{}], "generation": 7, "uid": "u"},
    }
    pipeline, findings = parse(seen)
    assert findings == []
    assert pipeline is not None
    assert pipeline.metadata.generation == 7


def test_parts_of_other_apis_keep_their_nulls() -> None:
    """As the API server stores them, and as a configPatch clears a field."""
    kept = {
        re.sub(r"\[\]$", "", path).rsplit(".", 1)[-1]
        for path, node in walk(root_schema())
        if is_open(node)
    }
    assert kept
    for key in kept:
        assert _normalized({"a": {key: {"b": None}, "c": None}}) == {"a": {key: {"b": None}}}, key


@pytest.mark.parametrize(
    "secret",
    [
        "https://user:hunter2@host/a b",
        "https://host/a b?signature=hunter2",
        "ftp://user:hunter2@host/a",
    ],
)
def test_no_message_shows_a_secret_of_a_uri(secret: str) -> None:
    document = {**good()[0].document, "spec": {"source": {"uri": secret}}}
    _, findings = parse(document)
    assert any(finding.path == "spec.source.uri" for finding in findings)
    assert "hunter2" not in "".join(map(str, findings))


def test_no_message_shows_the_value_of_an_environment_variable() -> None:
    document = {**good()[0].document, "spec": {"server": {"env": [{"name": "PIN", "value": 4711}]}}}
    _, findings = parse(document)
    assert any(finding.path == "spec.server.env[0].value" for finding in findings)
    assert "4711" not in "".join(map(str, findings))
