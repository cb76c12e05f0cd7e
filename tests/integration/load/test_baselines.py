"""The three architectures of the benchmark S3 give the same answers.

They take load from many clients without an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import numpy as np
import pytest

from bench.baselines import OURS, PLAINLY, WELL, measured, refuse_different, targets
from triton_pipelines.tools.loadgen import LoadTarget

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def ways() -> Iterator[Mapping[str, LoadTarget]]:
    """All three; their answers have been compared."""
    with targets([WELL, PLAINLY]) as found:
        yield found


def test_all_ways_carry_load(ways: Mapping[str, LoadTarget]) -> None:
    results = measured(ways, clients=8, runs=1, seconds=0.3)
    assert set(results) == {OURS, WELL, PLAINLY}
    for name, item in results.items():
        assert not item.load.errors, name
        assert item.load.runs[0].requests > 0, name
        # From text to answer through several processes: neither free nor half a second of CPU.
        assert 1e-5 < item.costs[0] < 0.5, name
    # Of the ensemble the tokenizer is a step of its own; of the others Triton sees the model alone.
    assert "tokenizer" in results[OURS].load.runs[0].steps


def test_a_way_with_another_answer_is_refused(
    ways: Mapping[str, LoadTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_different(ways, ["a text", "one more of them"])
    seen = httpx.Response.json
    # A service whose answer is off by one in one place.
    monkeypatch.setattr(httpx.Response, "json", lambda response: _off_by_one(seen(response)))
    with pytest.raises(AssertionError, match="service, micro-batches, gRPC"):
        refuse_different(ways, ["a text", "one more of them"])


def _off_by_one(answer: dict[str, Any]) -> dict[str, Any]:
    if "logits" in answer:
        answer["logits"] = (np.array(answer["logits"]) + 1).tolist()
    return answer
