"""Test the schema's messages.

Every pattern is explained in words, and an unknown field name leads to the one that was meant.
"""

import re

import pytest

from tests.support.fields import whole_schema
from triton_pipelines.api import parse, structural_schema
from triton_pipelines.api.field_paths import _CALLED, _places, unknown_field, written
from triton_pipelines.api.pattern_descriptions import PATTERN_DESCRIPTIONS
from triton_pipelines.api.suggestions import did_you_mean, nearest

PATTERNS = sorted(
    {
        node["pattern"]
        for path, node in structural_schema.walk(whole_schema())
        if "pattern" in node and path.startswith("spec")
    }
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_is_said_in_words(pattern: str) -> None:
    text = PATTERN_DESCRIPTIONS[pattern]
    assert re.match(r"(is not|must be) an? \w", text)
    assert pattern not in text


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_example_of_each_pattern_fits_it(pattern: str) -> None:
    description = PATTERN_DESCRIPTIONS[pattern]
    named = re.search(
        r"(?:such as|for example) (\S+?)[,;)]?(?: |$)|source URI; it must start with (\S+?),",
        description,
    )
    if named is None:
        # Too long to be shown, or nothing to imitate.
        assert re.search(r"64 lowercase hex digits|; remove the (spaces|control)", description)
        return
    example = f"{named[2]}org/name" if named[2] else named[1].strip("'")
    assert re.search(pattern, example), example


def test_fields_that_others_name_lead_to_fields_that_are_there() -> None:
    ends = {
        ".".join(part.removesuffix("[]") for part in place[-length:])
        for place in _places()
        for length in (1, 2, 3)
    }
    wanted = {chain.replace("[]", "") for chains in _CALLED.values() for chain in chains if chain}
    assert wanted - ends == set()


@pytest.mark.parametrize(
    ("location", "meant"),
    [
        (("spec", "tokenizer", "max_length"), "maxLength"),
        (("spec", "tokenizer", "MaxLength"), "maxLength"),
        (("spec", "tokenizer", "bukets"), "buckets"),
        (("spec", "model", "maxLength"), "spec.tokenizer.maxLength"),
        (("spec", "gpu"), "spec.server.gpu"),
        (("spec", "model", "gpu"), "spec.server.gpu"),
        (("spec", "steps", 1, "uri"), "spec.steps[1].source.uri"),
        (
            ("spec", "steps", 0, "maxQueueDelayMicroseconds"),
            (
                "spec.steps[0].dynamicBatching.maxQueueDelayMicroseconds or "
                "spec.steps[0].sequenceBatching.maxQueueDelayMicroseconds"
            ),
        ),
        (("spec", "model", "outputs", 2, "shape"), "dims"),
        (("spec", "model", "name"), "modelName"),
        (("spec", "model", "implementation"), "platform"),
        (("spec", "name"), "metadata.name"),
        (("spec", "tokenizer", "replicas"), "spec.tokenizer.instances.count"),
        (("replicas",), "spec.replicas"),
        (("spec", "version"), "spec.model.version or spec.server.version"),
    ],
    ids=lambda value: written(value) if isinstance(value, tuple) else None,
)
def test_an_unknown_name_leads_to_the_field_that_was_meant(
    location: tuple[str | int, ...], meant: str
) -> None:
    assert unknown_field(location) == f"unknown field; did you mean {meant}?"


def test_a_name_like_nothing_leads_to_all_that_may_stand_there() -> None:
    assert unknown_field(("spec", "slo", "colour")) == (
        "unknown field; the fields of spec.slo are p99Milliseconds, "
        "networkAndQueueBudgetMilliseconds, minThroughputPerSecond"
    )
    assert (
        unknown_field(("colour",))
        == "unknown field; the fields of the document are apiVersion, kind, metadata, spec"
    )


def test_a_removed_field_is_not_taken_for_a_field_of_another_step() -> None:
    assert unknown_field(("spec", "tokenizer", "implementation")) == (
        "this field was removed, because the built-in tokenizer has only one implementation;"
        " delete it"
    )


def test_only_alike_names_are_suggested() -> None:
    assert nearest("logit", ["LOGITS", "scores"]) == "LOGITS"
    assert nearest("score", ["logits", "hidden"]) is None
    assert did_you_mean("score", ["logits"]) == ""
    assert did_you_mean("logit", ["logits"], before="model.") == "; did you mean model.logits?"


@pytest.mark.parametrize(
    "steps",
    [
        None,
        "text",
        {"a": 1},
        [1, None, {"name": 3}, {"name": "a", "outputs": "x"}, {"name": "b", "outputs": [1, {}]}],
    ],
)
def test_a_reference_in_a_broken_document_gets_a_message(steps: object) -> None:
    document = {
        "apiVersion": "tritonpipelines.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {"name": "x"},
    }
    spec = {
        "tokenizer": "text",
        "steps": steps,
        "ensemble": {"outputs": [{"name": "y", "from": "Model.y"}]},
    }
    _, findings = parse({**document, "spec": spec})
    assert any(
        finding.path == "spec.ensemble.outputs[0].from" and "STEP.OUTPUT" in finding.message
        for finding in findings
    )


@pytest.mark.parametrize(
    "uri",
    [
        "http://user:hunter2@host/a",
        "gcs://user:hunter2@host/a",
        "docker://host/a?signature=hunter2",
        "user:hunter2@host",
    ],
)
def test_no_suggestion_shows_a_secret(uri: str) -> None:
    document = {
        "apiVersion": "tritonpipelines.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {"name": "x"},
        "spec": {"source": {"uri": uri}},
    }
    _, findings = parse(document)
    said = [finding.message for finding in findings if finding.path == "spec.source.uri"]
    assert said
    assert uri == "user:hunter2@host" or "hunter2" not in said[0]
