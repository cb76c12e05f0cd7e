"""Compare whole resources with a real Triton.

What the product accepts, Triton loads. What the product refuses by one of Triton's rules, Triton
refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.differential import Differential, passages, resources, running
from tests.support.differential.engine import DisagreementError

pytestmark = pytest.mark.integration

_EXAMPLES = 600
_SEED = 907


@pytest.fixture(scope="module")
def differential(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Differential]:
    """One server whose every backend, python too, is the null backend: the configs count here."""
    with running(tmp_path_factory.mktemp("resources") / "server", python=False) as result:
        yield result


@pytest.mark.parametrize(
    "document", resources.samples(), ids=lambda document: str(document["metadata"]["name"])
)
def test_every_sample_loads(differential: Differential, document: resources.Document) -> None:
    tally = passages.Tally()
    passages.compare(differential, document, tally)
    newer = (document["spec"].get("ensemble") or {}).get("maxInflightRequests") is not None
    assert (tally.loaded, tally.refused) == ((0, 1) if newer else (1, 0)), (
        "a field of a newer Triton alone keeps a sample from loading here"
    )


def _two_steps(**second: Any) -> resources.Document:
    """Return a pipeline in which one python step reads the output of another one."""
    python = {
        "platform": "python",
        "maxBatchSize": 8,
        "python": {"code": {"inline": "class TritonPythonModel: ...\n"}},
    }

    def tensor(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "dataType": "FP32", "dims": [1], **more}

    first = {"name": "first", "inputs": [tensor("x", **{"from": "pipeline.IN"})]}
    last = {"name": "last", "inputs": [tensor("x", **{"from": "first.y"})]}
    return {
        "apiVersion": "tritonpipelines.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {"name": "two", "namespace": "nlp"},
        "spec": {
            "steps": [
                {**python, "outputs": [tensor("y")], **first},
                {**python, "outputs": [tensor("y")], **last, **second},
            ],
            "ensemble": {
                "inputs": [tensor("IN")],
                "outputs": [{"name": "OUT", "from": "last.y"}],
                "maxBatchSize": 8,
            },
        },
    }


def _runs_twice(document: resources.Document) -> resources.Document:
    """Let a further step run the model of the last one."""
    spec = document["spec"]
    inputs = [{"name": "x", "from": "first.y"}]
    spec["repeatedSteps"] = [{"name": "again", "step": "last", "inputs": inputs}]
    spec["ensemble"]["outputs"].append({"name": "AGAIN", "from": "again.y"})
    return document


_OWN_RULES = {
    "has sequenceBatching": _runs_twice(_two_steps(sequenceBatching={"strategy": "Direct"})),
    "mode Disabled cannot be combined": _two_steps(
        dynamicBatching={"mode": "Disabled", "queuePolicy": {"maxQueueSize": 4}}
    ),
    "since only one side batches": _two_steps(
        maxBatchSize=0,
        inputs=[{"name": "x", "dataType": "FP32", "dims": [1], "from": "first.y"}],
    ),
}


@pytest.mark.parametrize("message", _OWN_RULES)
def test_what_answers_wrongly_is_refused_though_triton_loads_it(
    differential: Differential, message: str
) -> None:
    """These messages say what Triton would do with requests, not that it would refuse a load."""
    tally = passages.Tally()
    document = _OWN_RULES[message]
    assert message in str(resources.through(document).findings[0])
    passages.compare(differential, document, tally)
    assert tally.own.total() == 1


def test_a_file_that_the_image_lacks_is_known_to_triton_alone(differential: Differential) -> None:
    tally = passages.Tally()
    document = _two_steps(configPatch={"runtime": "libnone.so"})
    passages.compare(differential, document, tally)
    assert tally.image == 1


def test_what_claims_a_rule_of_triton_is_refused_by_it(differential: Differential) -> None:
    other = {"name": "x", "dataType": "INT64", "dims": [1], "from": "first.y"}
    labels = {"output": [{"name": "y", "label_filename": "none.txt"}]}
    tally = passages.Tally()
    for document in (_two_steps(inputs=[other]), _two_steps(configPatch=labels)):
        findings = resources.through(document).findings
        assert any(passages.claims_triton(finding) for finding in findings), findings
        passages.compare(differential, document, tally)
    assert tally.refused == 2


@pytest.mark.timeout(300)
def test_generated_resources_agree(
    differential: Differential, record_property: Callable[[str, object], None]
) -> None:
    tally = passages.campaign(differential, number=_SEED, examples=_EXAMPLES)
    record_property("figures", str(tally))
    assert tally.loads >= 300
    assert tally.loaded >= 100
    assert tally.refused >= 20


def test_a_renderer_that_breaks_a_rule_is_noticed(
    differential: Differential, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = resources.through(dict(resources.samples()[0]))
    assert made.repository is not None
    next(iter(made.repository.configs.values())).max_batch_size = -1
    monkeypatch.setattr(passages, "through", lambda document: made)
    with pytest.raises(
        DisagreementError, match=r"the product accepts, Triton refuses:\n.*must be non-negative"
    ):
        passages.compare(differential, {}, passages.Tally())
