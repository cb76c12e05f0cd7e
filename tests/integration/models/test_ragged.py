"""The real MiniLM files, adapted, against their golden answers.

The configs of adapted models are loaded under Triton's own core.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from e2e.models import tree
from tests.integration.models.test_full_model import cases
from tests.support.differential import Repository, running
from tests.support.raggedbackend import SimulatedBackend, config_of, session
from triton_pipelines.api.loadplan import PlanAdapt, PlanRaggedInput
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.graph import Tensor
from triton_pipelines.loader.ragged import AdaptedFile, adapt_file

pytestmark = pytest.mark.integration

INPUTS = tuple(Tensor(name, DataType.INT64, (-1,)) for name in ("input_ids", "attention_mask"))


@dataclass(frozen=True)
class Real:
    """One of the real files."""

    source: str
    output: Tensor

    def adapt(
        self, file: Path, limit: str = "input_ids below 30522, at most 512 tokens"
    ) -> SimulatedBackend:
        per_token = (self.output.name,) if self.output.variable else ()
        inputs = tuple(PlanRaggedInput(name=tensor.name) for tensor in INPUTS)
        done = adapt_file(
            file,
            PlanAdapt(
                step="model", path="model/1/model.onnx", inputs=inputs, token_outputs=per_token
            ),
        )
        assert isinstance(done, AdaptedFile), str(done)
        assert limit in str(done)
        return SimulatedBackend(file, config_of(INPUTS, [self.output]))


SENTIMENT = Real(tree.SENTIMENT_MODEL, Tensor("logits", DataType.FP32, (2,)))
EMBEDDING = Real(tree.EMBEDDING_MODEL, Tensor("last_hidden_state", DataType.FP32, (-1, 384)))


@pytest.fixture(scope="module")
def built() -> Path:
    return tree.build()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def requests(rows: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    return [
        {"input_ids": np.array([row], np.int64), "attention_mask": np.ones((1, len(row)), np.int64)}
        for row in rows
    ]


def test_logits_of_texts_in_company_are_golden(built: Path, file: Path) -> None:
    shutil.copy(built / SENTIMENT.source, file)
    backend, golds = SENTIMENT.adapt(file), cases("sentiment.json")
    for order in (golds, golds[::-1], golds[::3]):
        answers = backend.execute(requests([gold["inputIds"] for gold in order]))
        np.testing.assert_allclose(
            [answer["logits"][0] for answer in answers],
            [gold["logits"] for gold in order],
            rtol=0,
            atol=1e-5,
        )


def test_token_vectors_in_company_are_those_of_each_text_alone(built: Path, file: Path) -> None:
    shutil.copy(built / EMBEDDING.source, file)
    alone, backend = session(built / EMBEDDING.source), EMBEDDING.adapt(file)
    asked = requests([gold["inputIds"] for gold in cases("sentiment.json")[:8]])
    for request, answer in zip(asked, backend.execute(asked), strict=True):
        np.testing.assert_allclose(
            answer["last_hidden_state"], alone.run(None, request)[0], rtol=0, atol=1e-5
        )


def test_a_graph_that_was_fused_for_onnx_runtime(built: Path, file: Path) -> None:
    """Operators of com.microsoft, as ONNX Runtime's own optimizer writes them."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath, options.log_severity_level = str(file), 4
    onnxruntime.InferenceSession(
        str(built / SENTIMENT.source), options, providers=["CPUExecutionProvider"]
    )
    held = {
        node.op_type for node in onnx.load(str(file)).graph.node if node.domain == "com.microsoft"
    }
    assert held, "nothing was fused"
    golds = cases("sentiment.json")
    answers = SENTIMENT.adapt(file).execute(requests([gold["inputIds"] for gold in golds]))
    np.testing.assert_allclose(
        [answer["logits"][0] for answer in answers],
        [gold["logits"] for gold in golds],
        rtol=0,
        atol=1e-5,
    )


def test_the_configs_load_under_tritons_core(tmp_path: Path) -> None:
    """Triton's validation of the config is real.

    Its ONNX Runtime backend is a stub that does not check the file.
    """
    configs = {
        "sentiment": config_of(INPUTS, [SENTIMENT.output]),
        "embedding": config_of(INPUTS, [EMBEDDING.output]),
    }
    for name, config in configs.items():
        config.name = name
        config.instance_group.add(kind="KIND_CPU")
    with running(tmp_path / "server") as server:
        judged, reasons = server.outcome(Repository(configs))
    assert judged == []
    assert reasons == dict.fromkeys(configs)
