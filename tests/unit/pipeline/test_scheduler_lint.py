"""Warnings about schedulers that load and then do not do what is meant."""

from typing import Any

import pytest

from tests.support import builders
from triton_pipelines.api.parse import parse
from triton_pipelines.compile.graph import Options, build, check, lint

CODE = {"platform": "python", "python": {"code": {"inline": "pass"}}, "source": None}
STATE = {"inputName": "S", "outputName": "T", "dataType": "FP32", "dims": [1]}
LIBRARY = {"source": {"uri": "s3://b/lib.so", "revision": "1"}}


@pytest.mark.parametrize(
    ("model", "path", "words"),
    [
        (
            {"batchStrategy": LIBRARY},
            "dynamicBatching.maxQueueDelayMicroseconds",
            "its limit is not enforced",
        ),
        (
            {"batchStrategy": LIBRARY, "dynamicBatching": {"maxQueueDelayMicroseconds": 1000}},
            None,
            "",
        ),
        (
            {
                **CODE,
                "sequenceBatching": {
                    "strategy": "Direct",
                    "controls": [{"name": "ID", "kind": "CORRID", "dataType": "STRING"}],
                },
            },
            "sequenceBatching.controls[0].dataType",
            "every request to the Python backend fails",
        ),
        (
            {
                **CODE,
                "sequenceBatching": {
                    "strategy": "Direct",
                    "controls": [{"name": "ID", "kind": "CORRID"}],
                },
            },
            None,
            "",
        ),
        (
            {**CODE, "sequenceBatching": {"strategy": "Direct", "states": [STATE]}},
            "sequenceBatching.states",
            "never stores states",
        ),
        ({"sequenceBatching": {"strategy": "Direct", "states": [STATE]}}, None, ""),
    ],
)
def test_says_what_does_not_work_as_meant(
    model: dict[str, Any], path: str | None, words: str
) -> None:
    pipeline, findings = parse(builders.document(model=model))
    assert pipeline is not None
    assert findings == []
    graph = build(pipeline, Options())
    assert check(pipeline, graph, Options()) == []
    said = {item.path: item.message for item in lint(pipeline, graph)}
    watched = ("sequenceBatching.", "QueueDelay")
    hits = {where: text for where, text in said.items() if any(word in where for word in watched)}
    assert list(hits) == ([f"spec.model.{path}"] if path else [])
    assert all(words in text for text in hits.values())
