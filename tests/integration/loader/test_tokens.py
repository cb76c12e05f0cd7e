"""The init container detects a tokenizer that does not match the model, and bad rows.

Bad rows are those that the model does not accept, in every padding mode.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tritonclient.grpc import model_config_pb2

from tests.integration.loader.conftest import Pod
from tests.support import builders, tinymodel
from tests.support.python_backend import texts
from tests.support.raggedbackend import SimulatedBackend
from tests.support.testserver import NativeModel, error_of, outputs_of
from triton_pipelines.api.loadplan import LoadReason
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.render.model_config import parse

pytestmark = pytest.mark.integration

VOCABULARY = len(tinymodel.SPECIAL) + len(tinymodel.WORDS)
PADDINGS = [padding.value for padding in Padding if padding is not Padding.AUTO]


@pytest.fixture
def claim(pod: Pod) -> Path:
    made = pod.options.claims / "models"
    made.mkdir()
    tinymodel.tokenizer().save(str(made / "tokenizer.json"))
    onnx.save(tinymodel.graph(), str(made / "encoder.onnx"))
    return made


def plan(pod: Pod, padding: str = "Ragged", max_length: int = 32) -> None:
    """The pod gets what is rendered for a pipeline on a GPU."""
    built = builders.built(
        tokenizer={
            "source": {"uri": "pvc://models/tokenizer.json"},
            "maxLength": max_length,
            "padding": padding,
        }
        | ({"buckets": [8, 16]} if padding == "Bucketed" else {}),
        model={
            "source": {"uri": "pvc://models/encoder.onnx"},
            "outputs": [
                {"name": "logits", "dataType": "FP32", "dims": [3]},
                {"name": "hidden", "dataType": "FP32", "dims": [-1, 8]},
            ],
        },
        postprocess={"labels": ["a", "b", "c"], "from": "model.logits"},
    )
    for key, content in built.render().data.items():
        (pod.options.revision / key).write_text(content)


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_token_that_the_model_does_not_know(pod: Pod, claim: Path, padding: str) -> None:
    grown = tinymodel.tokenizer()
    grown.add_tokens(["covid"])
    grown.save(str(claim / "tokenizer.json"))
    plan(pod, padding)
    code, report = pod.load()
    finding = report.findings[0]
    assert (code, finding.reason, finding.step, finding.field) == (
        2,
        LoadReason.MODEL_MISMATCH,
        "model",
        "spec.model",
    )
    assert finding.message.startswith(
        f"pvc://models/tokenizer.json can emit token ID {VOCABULARY} (covid), but "
        f"pvc://models/encoder.onnx accepts {VOCABULARY} IDs"
    )


def grown_special(claim: Path) -> None:
    grown = tinymodel.tokenizer()
    grown.add_special_tokens(["[NEW]"])
    grown.save(str(claim / "tokenizer.json"))


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_special_token_that_only_spelling_it_out_leads_to_may_be_unknown(
    pod: Pod, claim: Path, padding: str
) -> None:
    grown_special(claim)
    plan(pod, padding)
    assert pod.load()[0] == 0, pod.output
    # The tokenizer step that was loaded refuses the request that spells it out, and answers its
    # neighbours.
    config = parse((pod.models / "tokenizer/config.pbtxt").read_text())
    tensors = {
        side: [
            {
                "name": item.name,
                "data_type": model_config_pb2.DataType.Name(item.data_type),
                "dims": list(item.dims),
            }
            for item in getattr(config, side)
        ]
        for side in ("input", "output")
    }
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    step = NativeModel(
        pod.models / "tokenizer",
        {"max_batch_size": config.max_batch_size, **tensors},
        parameters,
    )
    good, wrong = step.execute(
        [{"TEXT": texts(*rows)} for rows in (["good film"], ["good", "good [NEW] film"])]
    )
    outputs_of(good)
    assert error_of(wrong).message == (
        f"row 1 of TEXT contains the token [NEW] (id {VOCABULARY}), which the model does "
        "not know; remove this token from the text"
    )


def test_where_the_model_knows_all_tokens_nothing_lies_beside_the_tokenizer(
    pod: Pod, claim: Path
) -> None:
    plan(pod)
    assert pod.load()[0] == 0, pod.output
    assert [
        path.name for path in (pod.models / "tokenizer/1").iterdir() if path.suffix == ".json"
    ] == ["tokenizer.json"]


def test_another_start_of_the_container_comes_to_the_same(pod: Pod, claim: Path) -> None:
    grown_special(claim)
    plan(pod)
    for _ in range(2):
        assert pod.load()[0] == 0, pod.output
        assert json.loads((pod.models / "tokenizer/1/known_ids.json").read_text()) == {
            "ids": VOCABULARY
        }


@pytest.mark.parametrize("padding", PADDINGS)
def test_rows_longer_than_the_model_takes(pod: Pod, claim: Path, padding: str) -> None:
    plan(pod, padding, tinymodel.POSITIONS)
    assert pod.load()[0] == 0, pod.output
    plan(pod, padding, tinymodel.POSITIONS + 1)
    code, report = pod.load()
    finding = report.findings[0]
    assert (code, finding.reason, finding.step, finding.field) == (
        2,
        LoadReason.MODEL_MISMATCH,
        "model",
        "spec.tokenizer.maxLength",
    )
    assert (
        f"accepts at most {tinymodel.POSITIONS} tokens per row, but "
        "spec.tokenizer.maxLength allows 65" in finding.message
    )


@pytest.mark.parametrize("special", [0, 1])
def test_where_the_file_does_not_show_its_vocabulary_the_tokenizers_is_the_bound(
    pod: Pod, claim: Path, special: int
) -> None:
    graph, known = tinymodel.graph(), VOCABULARY + special
    if special:
        # Such a token has a row as a rule, and is answered then.
        grown_special(claim)
        table = next(tensor for tensor in graph.graph.initializer if tensor.dims[0] == VOCABULARY)
        rows = numpy_helper.to_array(table)
        table.CopyFrom(numpy_helper.from_array(np.concatenate([rows, rows[-1:]]), table.name))
    graph.graph.node.insert(0, helper.make_node("Add", ["input_ids", "shift"], ["shifted"]))
    graph.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "shift"))
    graph.graph.node[1].input[1] = "shifted"
    onnx.save(graph, str(claim / "encoder.onnx"))
    plan(pod)
    assert pod.load()[0] == 0, pod.output
    assert f"rows are accepted with input_ids below {known}" in pod.output
    backend = SimulatedBackend(
        pod.models / "model/1/model.onnx", parse((pod.models / "model/config.pbtxt").read_text())
    )
    rows = [np.array([ids], np.int64) for ids in ([5, 6, 7], [5, known], [9])]
    answers = backend.execute(
        [{"input_ids": ids, "attention_mask": np.ones_like(ids)} for ids in rows]
    )
    assert np.isnan(answers.pop(1)["logits"]).all()
    for ids, answer in zip((rows[0], rows[2]), answers, strict=True):
        np.testing.assert_allclose(
            answer["logits"][0], tinymodel.classify(ids[0]), rtol=0, atol=1e-5
        )
