"""When an answer is sane, and what a request without one says of a pod."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc.service_pb2 import ModelStatistics

from tests.support.python_backend import texts
from triton_pipelines.triton.errors import translate
from triton_pipelines.triton.infer_requests import Array
from triton_pipelines.triton.model_index import ModelIndexEntry
from triton_pipelines.triton.output_faults import FaultSeverity, ProbeRequest, find_output_fault
from triton_pipelines.triton.probe import ProbeResult, probe

CONFIG = text_format.Parse(
    'max_batch_size: 8 output { name: "SCORE" data_type: TYPE_FP32 dims: 1 } output { name: '
    '"LABEL" data_type: TYPE_STRING dims: 1 }',
    model_config_pb2.ModelConfig(),
)
ASKED = ProbeRequest({"TEXT": texts("a", "b")}, finite=("SCORE",))
LABELS = texts("x", "y")


def fault_text(config: object, question: ProbeRequest, answer: dict[str, Array]) -> str | None:
    fault = find_output_fault(config, question, answer)
    return fault.text if fault is not None else None


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({"SCORE": ones(2, 1), "LABEL": LABELS}, None),
        ({"SCORE": ones(2, 1), "LABEL": LABELS, "MORE": np.array([np.nan])}, None),
        ({"SCORE": ones(2, 1)}, "output LABEL is missing from the response"),
        (
            {"SCORE": np.array([[1], [np.nan]], np.float32), "LABEL": LABELS},
            "output SCORE contains NaN",
        ),
        (
            {"SCORE": np.array([[1], [-np.inf]], np.float32), "LABEL": LABELS},
            "output SCORE contains infinity",
        ),
        ({"SCORE": ones(1, 1), "LABEL": LABELS}, "output SCORE has 1 rows, but the input has 2"),
        ({"SCORE": ones(3, 1), "LABEL": LABELS}, "output SCORE has 3 rows, but the input has 2"),
        ({"SCORE": ones(2, 0), "LABEL": LABELS}, "output SCORE is empty: shape [2, 0]"),
        (
            {"SCORE": np.ones((2, 1)), "LABEL": LABELS},
            "output SCORE is FP64, but is declared as FP32",
        ),
        (
            {"SCORE": np.ones((2, 1), np.int64), "LABEL": LABELS},
            "output SCORE is INT64, but is declared as FP32",
        ),
        (
            {"SCORE": texts("a", "b"), "LABEL": LABELS},
            "output SCORE is STRING, but is declared as FP32",
        ),
        (
            {"SCORE": ones(2, 1), "LABEL": ones(2, 1)},
            "output LABEL is FP32, but is declared as STRING",
        ),
        (
            {"SCORE": ones(2), "LABEL": LABELS},
            "output SCORE has shape [2], but is declared as [-1, 1]",
        ),
        (
            {"SCORE": ones(2, 1, 1), "LABEL": LABELS},
            "output SCORE has shape [2, 1, 1], but is declared as [-1, 1]",
        ),
        (
            {"SCORE": ones(2, 4), "LABEL": LABELS},
            "output SCORE has shape [2, 4], but is declared as [-1, 1]",
        ),
        (
            {"SCORE": np.array(1, np.float32), "LABEL": LABELS},
            "output SCORE has shape [], but is declared as [-1, 1]",
        ),
    ],
)
def test_sanity(answer: dict[str, Array], fault: str | None) -> None:
    assert fault_text(CONFIG, ASKED, answer) == fault


RAW = text_format.Parse(
    'max_batch_size: 8 output { name: "logits" data_type: TYPE_FP32 dims: [ -1 ] }',
    model_config_pb2.ModelConfig(),
)


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [
        (np.array([[-np.inf, 0.5]], np.float32), None),  # masked logits
        (np.array([[np.inf, 0.5]], np.float32), "output logits contains infinity"),
        (np.array([[np.nan, 0.5]], np.float32), "output logits contains NaN"),
        (np.array([[np.nan, 0.5]], np.float16), "output logits contains NaN"),
        (np.array([[np.nan, 0.5]], ml_dtypes.bfloat16), "output logits contains NaN"),
        (np.array([[-np.inf, 0.5]], ml_dtypes.bfloat16), None),
        (np.empty((1, 0), np.float32), None),  # nothing found in an image
    ],
)
def test_a_custom_output_is_not_validated_like_the_postprocess_step(
    numbers: Array, fault: str | None
) -> None:
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(RAW)
    config.output[0].data_type = {
        "float16": model_config_pb2.TYPE_FP16,
        "bfloat16": model_config_pb2.TYPE_BF16,
    }.get(numbers.dtype.name, model_config_pb2.TYPE_FP32)
    assert (
        fault_text(config, ProbeRequest({"IMAGE": np.zeros((1, 3))}), {"logits": numbers}) == fault
    )


def test_a_response_of_a_stream_may_leave_outputs_out_and_has_rows_of_its_own() -> None:
    asked = ProbeRequest(ASKED.inputs, stream=True)
    assert fault_text(CONFIG, asked, {}) is None
    assert fault_text(CONFIG, asked, {"SCORE": ones(1, 1)}) is None
    assert fault_text(CONFIG, asked, {"SCORE": ones(7)}) is None
    assert (
        fault_text(CONFIG, asked, {"SCORE": np.ones((1, 1))})
        == "output SCORE is FP64, but is declared as FP32"
    )
    assert (
        fault_text(CONFIG, asked, {"SCORE": np.array([[np.nan]], np.float32)})
        == "output SCORE contains NaN"
    )


# Of NVIDIA's postprocess of TensorRT-LLM: one flat array for all rows and beams, and placeholders
# where nothing was asked for.
LLM = text_format.Parse(
    'max_batch_size: 8 output { name: "text_output" data_type: TYPE_STRING dims: -1 } output '
    '{ name: "cum_log_probs" data_type: TYPE_FP32 dims: -1 }'
    ' output { name: "output_log_probs" data_type: TYPE_FP32 dims: [ -1, -1 ] }',
    model_config_pb2.ModelConfig(),
)
ONE, TWO = texts("a"), texts("a", "a")


def flat(*words: bytes) -> Array:
    return np.array(words, dtype=object)


def test_a_shape_without_a_fixed_size_is_no_error() -> None:
    answer = {
        "text_output": flat(b"x"),
        "cum_log_probs": ones(1, 1),
        "output_log_probs": ones(1, 1, 1),
    }
    assert find_output_fault(LLM, ProbeRequest({"TEXT": ONE}), answer) is None
    assert (
        find_output_fault(LLM, ProbeRequest({"TEXT": ONE}), answer | {"output_log_probs": ones(1)})
        is None
    )
    assert (
        fault_text(LLM, ProbeRequest({"TEXT": ONE}), answer | {"cum_log_probs": np.ones((1, 1))})
        == "output cum_log_probs is FP64, but is declared as FP32"
    )
    assert (
        fault_text(LLM, ProbeRequest({"TEXT": ONE}), answer | {"cum_log_probs": ones(2, 1)})
        == "output cum_log_probs has 2 rows, but the input has 1"
    )


@pytest.mark.parametrize(
    ("config", "asked", "answer", "kind"),
    [
        (CONFIG, ASKED, {"SCORE": np.ones((2, 1)), "LABEL": LABELS}, FaultSeverity.MISMATCH),
        (CONFIG, ASKED, {"SCORE": ones(2, 4), "LABEL": LABELS}, FaultSeverity.MISMATCH),
        (CONFIG, ASKED, {"SCORE": np.full((2, 1), np.nan), "LABEL": LABELS}, FaultSeverity.BROKEN),
        (CONFIG, ASKED, {"SCORE": np.ones((2, 1))}, FaultSeverity.BROKEN),
        # Whoever wrote the rows of the request meant them.
        (CONFIG, ASKED, {"SCORE": ones(1, 1), "LABEL": LABELS}, FaultSeverity.BROKEN),
        (
            CONFIG,
            ProbeRequest({"TEXT": TWO}, fallback_inputs={"TEXT": ONE}),
            {"SCORE": ones(1, 1), "LABEL": LABELS},
            FaultSeverity.MISMATCH,
        ),
        (
            LLM,
            ProbeRequest({"TEXT": TWO}, fallback_inputs={"TEXT": ONE}),
            {
                "text_output": flat(b"x", b"x"),
                "cum_log_probs": ones(1, 1),
                "output_log_probs": ones(1, 1, 1),
            },
            FaultSeverity.ROWS_OF_FREE_SHAPE,
        ),
    ],
)
def test_the_worst_fault_is_told(
    config: object, asked: ProbeRequest, answer: dict[str, Array], kind: FaultSeverity
) -> None:
    fault = find_output_fault(config, asked, answer)
    assert fault is not None
    assert fault.severity is kind


@pytest.mark.parametrize(
    ("scores", "faulty"),
    [
        ({}, "SCORE"),
        ({"SCORE": np.ones((2, 1))}, "SCORE"),
        ({"SCORE": ones(1, 1)}, "SCORE"),
        ({"SCORE": np.full((2, 1), np.nan, np.float32)}, None),
    ],
)
def test_a_fault_names_the_output_that_is_not_as_declared(
    scores: dict[str, Array], faulty: str | None
) -> None:
    fault = find_output_fault(CONFIG, ASKED, {**scores, "LABEL": LABELS})
    assert fault is not None
    assert (fault.tensor.name if fault.tensor is not None else None) == faulty


def test_rows_are_free_without_batching() -> None:
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(CONFIG)
    config.max_batch_size = 0
    config.output[0].dims[:] = [-1, 1]
    config.output[1].dims[:] = [-1, 1]
    assert fault_text(config, ASKED, {"SCORE": ones(7, 1), "LABEL": LABELS}) is None
    assert (
        fault_text(config, ASKED, {"SCORE": ones(7, 2), "LABEL": LABELS})
        == "output SCORE has shape [7, 2], but is declared as [-1, 1]"
    )


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
    assert [
        ModelIndexEntry("m", "1", state, "").ready
        for state in ("READY", "LOADING", "UNLOADING", "UNAVAILABLE", "")
    ] == [True] + [False] * 4


class Pod:
    """A fake client of a pod whose ensemble is ready and whose inference fails as set."""

    said = ("", "")
    received_bytes = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def __aenter__(self) -> Pod:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def model_ready(self, *_: object) -> bool:
        return True

    async def repository_index(self, *_: object) -> list[ModelIndexEntry]:
        return []

    async def model_config(self, *_: object) -> object:
        return CONFIG

    async def infer(self, *_: object, **__: object) -> dict[str, Array]:
        raise translate("inference on 'sentiment'", "10.0.0.1:8001", *self.said)

    async def statistics(self, name: str, *_: object) -> list[ModelStatistics]:
        assert name == "sentiment", "steps before one that hangs continue"
        return [ModelStatistics(inference_count=number) for number in (3, 4)]


@pytest.mark.parametrize(
    ("said", "broken"),
    [
        (("UNAVAILABLE", "in ensemble 'sentiment', Exceeds maximum queue size"), False),
        (("UNAVAILABLE", "Request timeout expired"), False),
        (("DEADLINE_EXCEEDED", "Deadline Exceeded"), False),
        (("INTERNAL", "Stub process 'tokenizer_0_0' is not healthy."), True),
        (
            ("INVALID_ARGUMENT", "row 0 of TEXT has 12 tokens, but at most 8 tokens are allowed"),
            True,
        ),
    ],
)
async def test_a_pod_that_is_busy_is_not_broken(
    monkeypatch: pytest.MonkeyPatch, said: tuple[str, str], broken: bool
) -> None:
    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", Pod)
    monkeypatch.setattr(Pod, "said", said)
    result = await probe(
        "10.0.0.1:8001", "sentiment", None, ProbeRequest({"TEXT": np.array([[b"a"]], dtype=object)})
    )
    assert not result.inference_ok
    assert ((result.inference_error or "") != "", (result.error or "") != "") == (
        broken,
        not broken,
    )


@pytest.mark.parametrize(
    ("said", "completed"),
    [
        (("DEADLINE_EXCEEDED", "Deadline Exceeded"), 7),
        # The queue before a model that hangs is full as well.
        (("UNAVAILABLE", "Exceeds maximum queue size"), 7),
        (("INTERNAL", "Stub process 'tokenizer_0_0' is not healthy."), None),
    ],
)
async def test_without_a_response_the_completed_inferences_are_counted(
    monkeypatch: pytest.MonkeyPatch, said: tuple[str, str], completed: int | None
) -> None:
    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", Pod)
    monkeypatch.setattr(Pod, "said", said)
    assert (await probe("10.0.0.1:8001", "sentiment", None, ASKED)).completed == completed


@pytest.mark.parametrize("is_full", [True, False])
async def test_a_model_that_finds_no_shared_memory_is_told_from_others(
    monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    reason = (
        "Internal: Unable to initialize shared memory key 'triton_python_backend_shm_region_1' to"
        f" requested size. Error: {'No space left on device' if is_full else 'Permission denied'}"
    )

    async def index(*_: object) -> list[ModelIndexEntry]:
        return [ModelIndexEntry("tokenizer", "1", "UNAVAILABLE", reason)]

    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", Pod)
    monkeypatch.setattr(Pod, "repository_index", index)
    result = await probe("10.0.0.1:8001", "sentiment", None, None)
    assert result.shared_memory_full is is_full


@pytest.mark.parametrize("dead", [True, False])
async def test_a_dead_process_is_told_from_a_refusal(
    monkeypatch: pytest.MonkeyPatch, dead: bool
) -> None:
    said = (
        "in ensemble 'sentiment', Stub process 'tokenizer_0_0' is not healthy."
        if dead
        else "the input is not healthy"
    )
    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", Pod)
    monkeypatch.setattr(Pod, "said", ("INTERNAL", said))
    result = await probe("10.0.0.1:8001", "sentiment", None, ASKED)
    assert result.inference_error
    assert result.dead_process is dead


@pytest.mark.parametrize(
    "said",
    [("DEADLINE_EXCEEDED", "Deadline Exceeded"), ("UNAVAILABLE", "Exceeds maximum queue size")],
)
async def test_where_every_slot_is_a_clients_sequence_the_pod_is_busy_and_good(
    monkeypatch: pytest.MonkeyPatch, said: tuple[str, str]
) -> None:
    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", Pod)
    monkeypatch.setattr(Pod, "said", said)
    asked = ProbeRequest(ASKED.inputs, sequence_id=2**30)
    assert (await probe("10.0.0.1:8001", "sentiment", None, asked)).healthy


@pytest.mark.parametrize("sequence_id", [0, 2**30])
async def test_a_connection_that_breaks_says_nothing_of_the_answers(
    monkeypatch: pytest.MonkeyPatch, sequence_id: int
) -> None:
    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", Pod)
    monkeypatch.setattr(Pod, "said", ("UNAVAILABLE", "recvmsg:Connection reset by peer"))
    result = await probe(
        "10.0.0.1:8001", "sentiment", None, ProbeRequest(ASKED.inputs, sequence_id=sequence_id)
    )
    assert (result.inference_error, result.healthy) == (None, False)
    assert "cannot be reached" in (result.error or "")


async def test_an_answer_too_large_to_look_at_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", Pod)
    monkeypatch.setattr(
        Pod,
        "said",
        (
            "StatusCode.RESOURCE_EXHAUSTED",
            "CLIENT: Received message larger than max (33554500 vs. 16777216)",
        ),
    )
    result = await probe(
        "10.0.0.1:8001", "sentiment", None, ProbeRequest({"TEXT": np.array([[b"a"]], dtype=object)})
    )
    assert result.healthy


class TakesOne(Pod):
    """A fake client of a pod that rejects two rows or answers them with ``two``.

    It answers one row with ``one``.
    """

    two: dict[str, Array] | tuple[str, str] = (
        "INTERNAL",
        "expected one prompt per request, none of two was found",
    )
    one: dict[str, Array] | tuple[str, str] = {"SCORE": ones(1, 1), "LABEL": texts("x")}  # noqa: RUF012
    config: object = CONFIG
    asked: list[int] = []  # noqa: RUF012

    async def model_config(self, *_: object) -> object:
        return self.config

    async def infer(self, *given: Any, **_: object) -> dict[str, Array]:
        rows = len(given[1]["TEXT"])
        self.asked.append(rows)
        answer = self.one if rows == 1 else self.two
        if isinstance(answer, tuple):
            raise translate("inference on 'sentiment'", "10.0.0.1:8001", *answer)
        return answer


NAN = {"SCORE": np.array([[np.nan]], np.float32), "LABEL": texts("x")}
PLACEHOLDERS = {
    "text_output": flat(b"x"),
    "cum_log_probs": ones(1, 1),
    "output_log_probs": ones(1, 1, 1),
}


@pytest.mark.parametrize(
    ("pod", "asked", "error"),
    [
        pytest.param({}, [2, 1], None, id="refuses two"),
        pytest.param(
            {"two": ("INVALID_ARGUMENT", "model 'x' not found for two rows")},
            [2, 1],
            None,
            id="refuses two in words of a missing model",
        ),
        pytest.param(
            {"one": ("INTERNAL", "no")},
            [2, 1],
            "inference on 'sentiment' at 10.0.0.1:8001: no",
            id="refuses one as well",
        ),
        pytest.param({"one": NAN}, [2, 1], "output SCORE contains NaN", id="answers one wrongly"),
        pytest.param(
            {"config": LLM, "two": PLACEHOLDERS, "one": PLACEHOLDERS},
            [2, 1],
            None,
            id="placeholders of free shape",
        ),
        pytest.param(
            {"two": TakesOne.one},
            [2],
            "output SCORE has 1 rows, but the input has 2",
            id="answers the first row alone",
        ),
    ],
)
async def test_the_example_falls_back_to_one_row(
    monkeypatch: pytest.MonkeyPatch, pod: dict[str, object], asked: list[int], error: str | None
) -> None:
    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", TakesOne)
    for name, value in (pod | {"asked": []}).items():
        monkeypatch.setattr(TakesOne, name, value)
    result = await probe(
        "10.0.0.1:8001",
        "sentiment",
        None,
        ProbeRequest({"TEXT": TWO}, fallback_inputs={"TEXT": ONE}),
    )
    assert TakesOne.asked == asked
    assert result.inference_error == error
    assert result.inference_ok is (error is None)
    assert result.used_fallback is (asked == [2, 1])
    assert result.mismatch is (asked == [2])


async def test_a_dead_process_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_pipelines.triton.probe.TritonClient", TakesOne)
    monkeypatch.setattr(
        TakesOne, "two", ("INTERNAL", "Stub process 'tokenizer_0_0' is not healthy.")
    )
    monkeypatch.setattr(TakesOne, "asked", [])
    result = await probe(
        "10.0.0.1:8001",
        "sentiment",
        None,
        ProbeRequest({"TEXT": TWO}, fallback_inputs={"TEXT": ONE}),
    )
    assert result.dead_process
    assert TakesOne.asked == [2]
