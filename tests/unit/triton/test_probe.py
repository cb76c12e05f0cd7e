"""When an answer is sane, and what a request without one says of a pod."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.support.python_backend import texts
from triton_pipelines.triton.client import Array, ModelState
from triton_pipelines.triton.errors import translate
from triton_pipelines.triton.probe import ProbeResult, find_fault, probe

CONFIG = text_format.Parse(
    'max_batch_size: 8 output { name: "SCORE" data_type: TYPE_FP32 } output { name: "LABEL" data_type: TYPE_STRING }',
    model_config_pb2.ModelConfig(),
)
INPUTS = {"TEXT": texts("a", "b")}
LABELS = texts("x", "y")


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({"SCORE": np.ones((2, 1)), "LABEL": LABELS}, None),
        ({"SCORE": np.ones((2, 1)), "LABEL": LABELS, "MORE": np.array([np.nan])}, None),
        ({"SCORE": np.ones((2, 1))}, "output LABEL is missing from the answer"),
        ({"SCORE": np.array([[1], [np.nan]]), "LABEL": LABELS}, "output SCORE holds NaN or infinity"),
        ({"SCORE": np.array([[1], [-np.inf]]), "LABEL": LABELS}, "output SCORE holds NaN or infinity"),
        ({"SCORE": np.ones((1, 1)), "LABEL": LABELS}, "output SCORE has 1 rows for 2 rows of input"),
        ({"SCORE": np.ones((2, 0)), "LABEL": LABELS}, "output SCORE is empty: shape [2, 0]"),
    ],
)
def test_sanity(answer: dict[str, Array], fault: str | None) -> None:
    assert find_fault(CONFIG, INPUTS, answer) == fault


def test_rows_are_free_without_batching() -> None:
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(CONFIG)
    config.max_batch_size = 0
    assert find_fault(config, INPUTS, {"SCORE": np.ones((7, 1)), "LABEL": LABELS}) is None


@pytest.mark.parametrize(
    ("result", "healthy"),
    [
        (ProbeResult(True, inference_ok=True), True),
        (ProbeResult(True, inference_ok=False, inference_error="x"), False),
        (ProbeResult(False, inference_ok=True), False),
        (ProbeResult(True, inference_ok=True, error="x"), False),
    ],
)
def test_healthy_needs_all_of_it(result: ProbeResult, healthy: bool) -> None:
    assert result.healthy is healthy


def test_only_the_ready_state_serves() -> None:
    assert [ModelState("m", "1", state, "").ready for state in ("READY", "LOADING", "UNLOADING", "UNAVAILABLE", "")] == [True] + [False] * 4


class Pod:
    """Stands in for the client of a pod whose ensemble is ready and whose inference fails as a test says."""

    said = ("", "")

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def __aenter__(self) -> Pod:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def model_ready(self, *_: object) -> bool:
        return True

    async def repository_index(self, *_: object) -> list[ModelState]:
        return []

    async def model_config(self, *_: object) -> object:
        return CONFIG

    async def infer(self, *_: object, **__: object) -> dict[str, Array]:
        raise translate("inference on 'sentiment'", "10.0.0.1:8001", *self.said)


@pytest.mark.parametrize(
    ("said", "broken"),
    [
        (("UNAVAILABLE", "in ensemble 'sentiment', Exceeds maximum queue size"), False),
        (("UNAVAILABLE", "Request timeout expired"), False),
        (("DEADLINE_EXCEEDED", "Deadline Exceeded"), False),
        (("INTERNAL", "Stub process 'tokenizer_0_0' is not healthy."), True),
        (("INVALID_ARGUMENT", "row 0 of TEXT has 12 tokens, more than the 8 allowed"), True),
    ],
)
async def test_a_pod_that_is_busy_is_not_broken(monkeypatch: pytest.MonkeyPatch, said: tuple[str, str], broken: bool) -> None:
    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", Pod)
    monkeypatch.setattr(Pod, "said", said)
    result = await probe("10.0.0.1:8001", "sentiment", None, {"TEXT": np.array([[b"a"]], dtype=object)})
    assert not result.inference_ok
    assert ((result.inference_error or "") != "", (result.error or "") != "") == (broken, not broken)


async def test_an_answer_too_large_to_look_at_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", Pod)
    monkeypatch.setattr(Pod, "said", ("StatusCode.RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (33554500 vs. 16777216)"))
    result = await probe("10.0.0.1:8001", "sentiment", None, {"TEXT": np.array([[b"a"]], dtype=object)})
    assert result.healthy
