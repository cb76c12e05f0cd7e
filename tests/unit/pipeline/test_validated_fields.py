"""Test fields that the operator only validates and writes nowhere.

The tests show what they change in its findings and warnings.
"""

import copy
from typing import Any

import pytest

from tests.corpus import good
from tests.support.meaning import OPTIONS
from triton_pipelines.api import parse
from triton_pipelines.compile.graph import build, check, lint

TEXTS: dict[str, Any] = next(sample.document for sample in good() if sample.name == "pair")


def _messages(**changes: dict[str, Any]) -> dict[str, str]:
    """Return path → message of all findings and warnings for a changed reranker.

    Args:
        **changes: Fields to change, by slot.
    """
    document = copy.deepcopy(TEXTS)
    for slot, fields in changes.items():
        document["spec"].setdefault(slot, {}).update(fields)
    pipeline, findings = parse(document)
    assert pipeline is not None, findings
    assert findings == []
    graph = build(pipeline, OPTIONS)
    return {
        finding.path: finding.message
        for finding in (*check(pipeline, graph, OPTIONS), *lint(pipeline, graph))
    }


@pytest.mark.proves("spec.model.lengths.max", "behaviour")
def test_texts_longer_than_the_model_takes_are_warned_of() -> None:
    assert (
        "(256), so longer texts fail; set tokenizer.maxLength to 256"
        in _messages(model={"lengths": {"max": 256}})["spec.tokenizer.maxLength"]
    )
    assert "spec.tokenizer.maxLength" not in _messages(model={"lengths": {"max": 512}})


@pytest.mark.proves("spec.model.lengths.min", "behaviour")
def test_buckets_shorter_than_the_model_takes_are_warned_of() -> None:
    bucketed = {"padding": "Bucketed", "buckets": [16, 32]}
    assert _messages(tokenizer=bucketed, model={"lengths": {"min": 32}})[
        "spec.tokenizer.buckets[0]"
    ].startswith("16 is outside spec.model.lengths (32 to")
    assert "spec.tokenizer.buckets[0]" not in _messages(
        tokenizer=bucketed, model={"lengths": {"min": 16}}
    )


@pytest.mark.proves("spec.server.version", "behaviour")
def test_the_release_decides_what_a_server_takes() -> None:
    new = {"maxInflightRequests": 8}
    assert (
        "requires Triton 25.11"
        in _messages(ensemble=new, server={"version": "24.10"})["spec.ensemble.maxInflightRequests"]
    )
    assert "spec.ensemble.maxInflightRequests" not in _messages(
        ensemble=new, server={"version": "25.11"}
    )


@pytest.mark.proves("spec.slo.p99Milliseconds", "behaviour")
@pytest.mark.proves("spec.slo.networkAndQueueBudgetMilliseconds", "behaviour")
def test_a_delay_that_uses_the_goal_up_is_warned_of() -> None:
    path, waiting = (
        "spec.model.dynamicBatching.maxQueueDelayMicroseconds",
        {"dynamicBatching": {"maxQueueDelayMicroseconds": 15_000}},
    )
    assert (
        "(10 ms)"
        in _messages(
            model=waiting, slo={"p99Milliseconds": 20, "networkAndQueueBudgetMilliseconds": 10}
        )[path]
    )
    assert path not in _messages(
        model=waiting, slo={"p99Milliseconds": 20, "networkAndQueueBudgetMilliseconds": 2}
    )
    assert path not in _messages(
        model=waiting, slo={"p99Milliseconds": 50, "networkAndQueueBudgetMilliseconds": 10}
    )
