"""Test for the same answer in every padding mode, at every cost of a run, in every batch.

Runner and postprocess run together after the tokens of the tokenizers library, with rows alone or
batched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import pipelines, tinymodel
from tests.support.python_backend import InferenceRequest, start_model, texts
from tests.support.testserver import outputs_of
from tests.support.tokenizeroracle import TokenizerOracle

TOLERANCE = 1e-5
TOKENS = [
    {"name": name, "data_type": "TYPE_INT64", "dims": [-1]}
    for name in ("input_ids", "attention_mask")
]
LOGITS = [{"name": "logits", "data_type": "TYPE_FP32", "dims": [tinymodel.CLASSES]}]
PROBABILITIES = [{"name": "PROBABILITIES", "data_type": "TYPE_FP32", "dims": [tinymodel.CLASSES]}]
RUNNERS = {
    "equal shapes": {},
    "every length alone": {
        "tritonpipe.pad_inputs": '{"input_ids": 0, "attention_mask": 0}',
        "tritonpipe.run_cost_tokens": "1",
    },
    "some together": {
        "tritonpipe.pad_inputs": '{"input_ids": 0, "attention_mask": 0}',
        "tritonpipe.run_cost_tokens": "12",
    },
    "all together": {
        "tritonpipe.pad_inputs": '{"input_ids": 0, "attention_mask": 0}',
        "tritonpipe.run_cost_tokens": "10000",
    },
}
TEXT = st.one_of(
    st.lists(st.sampled_from(tinymodel.WORDS), max_size=40).map(" ".join),
    st.text(max_size=20),
    st.sampled_from(["", " ", "\0", "fox\0dog", "ﬀ ﷺ", "👩‍👩‍👧"]),
)
REQUESTS = st.lists(st.lists(TEXT, min_size=1, max_size=5), min_size=1, max_size=10)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every padding of tokens, every runner and the postprocess step by name."""
    folder = tmp_path_factory.mktemp("equality")
    tinymodel.write(folder / "1")
    text = [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}]
    found = {
        padding: TokenizerOracle(
            folder,
            {"max_batch_size": 64, "input": text, "output": TOKENS},
            pipelines.tokenizer_parameters(padding, "LongestFirst"),
        )
        for padding in pipelines.PADDINGS
    }
    found |= {
        name: start("onnx_runner", folder, TOKENS, LOGITS, parameters)
        for name, parameters in RUNNERS.items()
    }
    found["postprocess"] = start(
        "postprocess",
        folder,
        LOGITS,
        PROBABILITIES,
        {"tritonpipe.type": "Softmax", "tritonpipe.input": "logits"},
    )
    return found


def start(
    step: str, folder: Path, inputs: list[Any], outputs: list[Any], parameters: dict[str, str]
) -> Any:
    return start_model(
        step, folder, {"max_batch_size": 64, "input": inputs, "output": outputs}, parameters
    )


def answers(
    steps: dict[str, Any], padding: str, runner: str, requests: list[list[str]]
) -> list[np.ndarray]:
    """Probabilities of every request, all steps called once with all of them."""
    feeds: list[dict[str, np.ndarray]] = [{"TEXT": texts(*rows)} for rows in requests]
    feeds = [outputs_of(answer) for answer in steps[padding].execute(feeds)]
    for step in (runner, "postprocess"):
        responses = steps[step].execute([InferenceRequest(feed) for feed in feeds])
        feeds = [response.arrays() for response in responses]
        if step == runner:
            feeds = [{"logits": feed["logits"]} for feed in feeds]
    return [feed["PROBABILITIES"] for feed in feeds]


def expected(row: str) -> np.ndarray:
    """The library's tokens, the encoder and softmax in numpy, one row at a time."""
    plain = tinymodel.tokenizer(baked_in=False)
    plain.enable_truncation(pipelines.MAX_LENGTH)
    logits = tinymodel.classify(np.array(plain.encode(row).ids))
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


@settings(deadline=None, max_examples=60)
@given(
    requests=REQUESTS,
    padding=st.sampled_from(pipelines.PADDINGS),
    runner=st.sampled_from(sorted(RUNNERS)),
)
def test_an_answer_does_not_depend_on_company_batch_or_mode(
    steps: dict[str, Any], requests: list[list[str]], padding: str, runner: str
) -> None:
    together = answers(steps, padding, runner, requests)
    for rows, answer in zip(requests, together, strict=True):
        np.testing.assert_allclose(answer, [expected(row) for row in rows], rtol=0, atol=TOLERANCE)
        (alone,) = answers(steps, padding, runner, [rows])
        np.testing.assert_allclose(answer, alone, rtol=0, atol=TOLERANCE)
        one_by_one = [answers(steps, "Ragged", "equal shapes", [[row]])[0][0] for row in rows]
        np.testing.assert_allclose(answer, one_by_one, rtol=0, atol=TOLERANCE)


def test_parameters_are_those_of_the_pipelines() -> None:
    """Buckets below the longest length, else nothing of them is tried."""
    buckets = pipelines.tokenizer_parameters("Bucketed", "LongestFirst")
    assert all(int(bucket) < pipelines.MAX_LENGTH for bucket in buckets["buckets"].split(","))
    assert json.loads(buckets["outputs"]) == {
        "input_ids": "InputIds",
        "attention_mask": "AttentionMask",
    }
