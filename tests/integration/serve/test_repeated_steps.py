"""An ensemble that calls one model three times, on a real Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.serve.test_process import wait_until
from tests.integration.serve.test_questions import IMPORTS, TEXT, pipeline, serving

pytestmark = pytest.mark.integration

REVERSE = """class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            turned = [[text[::-1] for text in row] for row in texts]
            tensor = pb_utils.Tensor("TURNED", np.array(turned, dtype=object))
            answers.append(pb_utils.InferenceResponse([tensor]))
        return answers
"""
JOIN = """class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            left, right = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()
                for name in ("LEFT", "RIGHT")
            )
            joined = [[a + b"|" + b] for a, b in zip(left, right)]
            tensor = pb_utils.Tensor("JOINED", np.array(joined, dtype=object))
            answers.append(pb_utils.InferenceResponse([tensor]))
        return answers
"""


def text(name: str, **more: str) -> dict[str, Any]:
    return {**TEXT, "name": name, **more}


def resource() -> dict[str, Any]:
    return pipeline(
        "thrice",
        REVERSE,
        [text("TEXT", **{"from": "pipeline.LEFT"})],
        [text("TURNED")],
        model={"modelName": "reverse"},
        steps=[
            {
                "name": "join",
                "platform": "python",
                "python": {"code": {"inline": IMPORTS + JOIN}},
                "inputs": [
                    text("LEFT", **{"from": "model.TURNED"}),
                    text("RIGHT", **{"from": "second.TURNED"}),
                ],
                "outputs": [text("JOINED")],
            }
        ],
        repeatedSteps=[
            {
                "name": "back",
                "step": "model",
                "inputs": [{"name": "TEXT", "from": "join.JOINED"}],
            },
            {
                "name": "second",
                "step": "model",
                "inputs": [{"name": "TEXT", "from": "pipeline.RIGHT"}],
            },
        ],
        ensemble={
            "outputs": [
                {"name": "LEFT_TURNED", "from": "model.TURNED"},
                {"name": "BOTH", "from": "back.TURNED"},
            ]
        },
    )


@pytest.mark.proves("spec.repeatedSteps", "behaviour")
@pytest.mark.proves("spec.repeatedSteps[].*", "behaviour")
def test_each_call_of_a_model_reads_its_own_tensors(tmp_path: Path) -> None:
    with serving(resource(), tmp_path) as (running, _):
        base = running.model_url.partition("/v2/")[0]
        with httpx.Client(base_url=base, timeout=30) as http:
            # `serve` sends its test inference, two rows, once it has printed the addresses.
            wait_until(lambda: _executed(http) == 6, running.process)
            body = {
                "inputs": [
                    {"name": "LEFT", "datatype": "BYTES", "shape": [2, 1], "data": ["ab", "cd"]},
                    {"name": "RIGHT", "datatype": "BYTES", "shape": [2, 1], "data": ["12", "34"]},
                ]
            }
            answer = http.post("/v2/models/thrice/infer", json=body).raise_for_status().json()
            found = {one["name"]: one["data"] for one in answer["outputs"]}
            assert found == {"LEFT_TURNED": ["ba", "dc"], "BOTH": ["12|ab", "34|cd"]}
            # One folder is loaded, and its figures contain all three calls of two rows, the last of
            # them some time after the response.
            wait_until(lambda: _executed(http) == 12, running.process)
            index = http.post("/v2/repository/index", json={})
            names = {one["name"] for one in index.json()} if index.is_success else set()
            assert names in (set(), {"thrice", "reverse", "join"})


def _executed(http: httpx.Client) -> int:
    stats = http.get("/v2/models/reverse/stats").raise_for_status().json()
    return int(stats["model_stats"][0]["inference_count"])
