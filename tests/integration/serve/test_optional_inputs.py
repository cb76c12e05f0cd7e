"""An ensemble in the shape of an LLM front end, whose clients omit most inputs.

Python steps stand in for the engine: each echoes what it received.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.integration.serve.test_questions import ECHO, IMPORTS, SEEN, ask, serving
from tests.support.builders import document
from triton_pipelines.triton.client import TritonClient

pytestmark = pytest.mark.integration

# The optional inputs of the TensorRT-LLM backend's front end, with their types.
OPTIONAL = {
    **dict.fromkeys(
        ("top_k", "beam_width", "min_length", "end_id", "pad_id", "num_return_sequences"), "INT32"
    ),
    **dict.fromkeys(
        (
            "top_p",
            "top_p_min",
            "top_p_decay",
            "temperature",
            "length_penalty",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "len_penalty",
            "early_stopping",
        ),
        "FP32",
    ),
    **dict.fromkeys(("random_seed", "prompt_table_id", "lora_task_id"), "UINT64"),
    **dict.fromkeys(
        (
            "stream",
            "return_log_probs",
            "return_context_logits",
            "return_generation_logits",
            "exclude_input_in_output",
            "return_perf_metrics",
        ),
        "BOOL",
    ),
    **dict.fromkeys(("bad_words", "stop_words", "system", "guide", "draft"), "STRING"),
}
REQUIRED = {"text_input": "STRING", "max_tokens": "INT32"}


def tensors(named: dict[str, str], **fields: str) -> list[dict[str, Any]]:
    return [{"name": name, "dataType": kind, "dims": [1], **fields} for name, kind in named.items()]


def step(name: str, inputs: list[dict[str, Any]], output: str) -> dict[str, Any]:
    code = ECHO.replace("SHAPE", "(1, 1)").replace('"SEEN"', f'"{output}"')
    return {
        "name": name,
        "modelName": name,
        "platform": "python",
        "python": {"code": {"inline": IMPORTS + code}},
        "inputs": inputs,
        "outputs": [{**SEEN, "name": output}],
    }


def front_end() -> dict[str, Any]:
    optional = {"optional": "Enabled"}
    prompt = {"name": "prompt", "dataType": "STRING", "dims": [1], "from": "preprocessing.PROMPT"}
    seen = {"name": "seen", "dataType": "STRING", "dims": [1], "from": "model.GENERATED"}
    engine = step(
        "engine", [prompt, *tensors(REQUIRED), *tensors(OPTIONAL, **optional)], "GENERATED"
    )
    del engine["name"]
    return document(
        name="front-end",
        tokenizer=None,
        postprocess=None,
        model={**engine, "source": None},
        steps=[
            step("preprocessing", [*tensors({"text_input": "STRING"}),
                                   *tensors({"system": "STRING"}, **optional)], "PROMPT"),
            step("detokenizing", [seen, *tensors({"stream": "BOOL"}, **optional)], "TEXT"),
        ],
        ensemble={
            "inputs": [*tensors(REQUIRED), *tensors(OPTIONAL, **optional)],
            "outputs": [
                {"name": "generated", "from": "model.GENERATED"},
                {"name": "prompt", "from": "preprocessing.PROMPT"},
                {"name": "text_output", "from": "detokenizing.TEXT"},
            ],
        },
        health={
            "inputs": [
                {"name": "text_input", "shape": [1, 1], "data": ["hello"]},
                {"name": "max_tokens", "shape": [1, 1], "data": ["3"]},
            ]
        },
    )  # fmt: skip


@pytest.mark.proves("spec.ensemble.inputs[].optional", "behaviour")
async def test_a_client_sends_two_of_thirty_inputs(tmp_path: Path) -> None:
    assert len(OPTIONAL) == 30
    async with AsyncExitStack() as stack:
        running, parsed = stack.enter_context(serving(front_end(), tmp_path))
        found = await ask(running, parsed)
        assert found.healthy, found
        assert "top_k INT32[-1, 1] (optional)" in running.said
        assert "text_input BYTES[-1, 1]," in running.said

        # HTTP.
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=running.model_url, timeout=60)
        )
        body = {
            "inputs": [
                {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hello"]},
                {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [3]},
            ]
        }
        answer = (await http.post("/infer", json=body)).raise_for_status().json()
        # Triton may return outputs in another order than the configuration has.
        texts = {output["name"]: output["data"][0] for output in answer["outputs"]}
        assert set(texts) == {"generated", "prompt", "text_output"}
        assert set(json.loads(texts["generated"])) == {"prompt", "text_input", "max_tokens"}
        assert set(json.loads(texts["prompt"])) == {"text_input"}
        assert set(json.loads(texts["text_output"])) == {"seen"}

        # generate, with two further inputs.
        simple = {"text_input": "hello", "max_tokens": 3, "temperature": 0.5, "stream": False}
        answer = (await http.post("/generate", json=simple)).raise_for_status().json()
        assert json.loads(answer["generated"])["temperature"] == ["float32", [1, 1], [0.5]]
        assert set(json.loads(answer["text_output"])) == {"seen", "stream"}

        # gRPC, with one further input.
        async with TritonClient(running.endpoint.grpc) as client:
            given = {
                "text_input": np.array([[b"hello"]], dtype=object),
                "max_tokens": np.array([[3]], dtype=np.int32),
                "system": np.array([[b"be brief"]], dtype=object),
            }
            outputs = await client.infer("front-end", given)
        seen = {"prompt", "text_input", "max_tokens", "system"}
        assert set(json.loads(outputs["generated"].item())) == seen
        assert set(json.loads(outputs["prompt"].item())) == {"text_input", "system"}

        # A required input is still required.
        refused = await http.post("/generate", json={"text_input": "hello"})
        assert refused.status_code == 400
        assert "missing required input(s) ['max_tokens']" in refused.text
