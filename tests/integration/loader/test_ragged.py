"""The init container adapts ONNX files.

The tests cover one file, several versions, a refusal in the termination message, and a restart.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.integration.loader.conftest import Pod
from tests.integration.loader.test_models import model
from tests.support import builders, tinymodel
from tests.support.raggedbackend import SimulatedBackend, config_of
from tests.support.raggedgraphs import Encoder, Head, make
from triton_pipelines.api.loadplan import (
    LoadReason,
    PlanAdapt,
    PlanCheck,
    PlanFetch,
    PlanTensor,
    PlanVersions,
)
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.render.model_config import parse
from triton_pipelines.loader.onnx_graph import model_runner

pytestmark = pytest.mark.integration

ENCODER = Encoder(heads=(Head.LOGITS, Head.HIDDEN))
FILE = PlanFetch(step="model", uri="pvc://models/encoder.onnx", target="model/1/model.onnx")


@pytest.fixture
def claim(pod: Pod) -> Path:
    made = pod.options.claims / "models"
    made.mkdir()
    return made


def check(**rest: Any) -> PlanCheck:
    inputs, outputs = (
        tuple(PlanTensor(name=t.name, data_type=t.data_type.value, dims=t.dims) for t in side)
        for side in ENCODER.declared
    )
    place = rest or {"path": "model/1/model.onnx"}
    return PlanCheck(
        step="model", field="spec.model", max_batch_size=8, inputs=inputs, outputs=outputs, **place
    )


def adapted(file: Path) -> bool:
    return [
        len(value.type.tensor_type.shape.dim) for value in onnx.load(str(file)).graph.input
    ] == [1, 1, 2, 2]


def test_a_file_is_checked_as_it_came_and_adapted(pod: Pod, claim: Path) -> None:
    onnx.save(make(ENCODER), str(claim / "encoder.onnx"))
    pod.plan(FILE, checks=[check()], adapt=[ENCODER.plan()])
    code, report = pod.load()
    assert (code, report.findings) == (0, ()), pod.output
    assert pod.tree() == ["model/1/model.onnx"]
    assert adapted(pod.models / "model/1/model.onnx")
    assert (
        "spec.tokenizer.padding: pvc://models/encoder.onnx adapted to ragged batches; batched "
        "rows have the same outputs as single rows" in pod.output
    )
    SimulatedBackend(pod.models / "model/1/model.onnx", config_of(*ENCODER.declared))
    # What is reported is the source's: pods whose loaders adapt otherwise still serve the same
    # model.
    first = report.sources
    pod.recorded()
    code, report = pod.load()
    assert (code, report.sources) == (0, first), pod.output
    assert adapted(pod.models / "model/1/model.onnx")


def test_every_version_is_adapted(pod: Pod, claim: Path) -> None:
    for version in (1, 3):
        (claim / "bert" / str(version)).mkdir(parents=True)
        onnx.save(
            make(Encoder(heads=ENCODER.heads, seed=version)),
            str(claim / "bert" / str(version) / "model.onnx"),
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=100,
        )
    plan = PlanAdapt(
        step="model",
        model="bert",
        file="model.onnx",
        inputs=ENCODER.plan().inputs,
        token_outputs=ENCODER.per_token,
    )
    pod.plan(
        model(versions=PlanVersions(all=True)),
        checks=[check(model="bert", file="model.onnx")],
        adapt=[plan],
    )
    code, _ = pod.load()
    assert code == 0, pod.output
    assert pod.tree() == [
        f"bert/{version}/{name}" for version in (1, 3) for name in ("model.onnx", "weights.bin")
    ]
    assert all(adapted(pod.models / f"bert/{version}/model.onnx") for version in (1, 3))
    assert "pvc://models/bert (version 3) adapted" in pod.output


def test_what_cannot_be_adapted_is_a_finding_of_its_own(pod: Pod, claim: Path) -> None:
    graph = make(ENCODER)
    graph.graph.node.append(
        onnx.helper.make_node("DynamicQuantizeLinear", ["v0"], ["q", "scale", "zero"])
    )
    onnx.save(graph, str(claim / "encoder.onnx"))
    pod.plan(FILE, checks=[check()], adapt=[ENCODER.plan(field="spec.tokenizer.padding")])
    code, report = pod.load()
    (finding,) = report.findings
    assert (code, report.ok, finding.reason, finding.step, finding.field) == (
        2,
        False,
        LoadReason.RAGGED_UNSUPPORTED,
        "model",
        "spec.tokenizer.padding",
    )
    assert finding.message.startswith(
        "pvc://models/encoder.onnx cannot process requests of different lengths in one batch: "
        "operator DynamicQuantizeLinear"
    )
    assert "set spec.tokenizer.padding to Fixed" in finding.message
    # The sources stand in the report: the next revision pins what this one saw.
    assert [item.step for item in report.sources] == ["model"]
    # Without the wish to adapt, the same file is loaded as it is.
    pod.plan(FILE, checks=[check()])
    assert pod.load()[0] == 0
    assert (pod.models / "model/1/model.onnx").read_bytes() == (claim / "encoder.onnx").read_bytes()


def test_a_file_that_does_not_fit_is_told_as_that(pod: Pod, claim: Path) -> None:
    onnx.save(make(Encoder(heads=(Head.POOLED,))), str(claim / "encoder.onnx"))
    pod.plan(FILE, checks=[check()], adapt=[ENCODER.plan()])
    code, report = pod.load()
    assert (code, [item.reason for item in report.findings]) == (2, [LoadReason.MODEL_MISMATCH])


def test_onnx_runtime_is_not_needed(pod: Pod, claim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader's image has none: ONNX's own evaluator proves the answers then."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    onnx.save(make(ENCODER), str(claim / "encoder.onnx"))
    pod.plan(FILE, checks=[check()], adapt=[ENCODER.plan()])
    assert pod.load()[0] == 0, pod.output
    assert "in the reference evaluator of ONNX" in pod.output
    assert adapted(pod.models / "model/1/model.onnx")


def test_what_is_too_large_to_be_run_is_said_in_the_report(
    pod: Pod, claim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(model_runner, "REFERENCE_MAX", 1000)
    onnx.save(make(ENCODER), str(claim / "encoder.onnx"))
    pod.plan(FILE, checks=[check()], adapt=[ENCODER.plan()])
    code, report = pod.load()
    assert (code, report.ok) == (0, True), pod.output
    (note,) = report.findings
    assert (note.reason, note.step, note.field) == (
        LoadReason.ANSWERS_NOT_COMPARED,
        "model",
        "spec.tokenizer.padding",
    )
    assert (
        "adapted to ragged batches; structure only, outputs not compared (ONNX Runtime is not "
        "installed" in note.message
    )


def test_from_the_resource_to_answers(pod: Pod, claim: Path) -> None:
    """What is rendered for a GPU step is what the loader makes of the file.

    Config and graph fit, and texts in company are answered as alone.
    """
    built = builders.built(
        tokenizer={"source": {"uri": "pvc://models/tokenizer.json"}, "maxLength": 32},
        model={
            "source": {"uri": "pvc://models/encoder.onnx"},
            "outputs": [
                {"name": "logits", "dataType": "FP32", "dims": [3]},
                {"name": "hidden", "dataType": "FP32", "dims": [-1, 8]},
            ],
        },
        postprocess={"labels": ["a", "b", "c"], "from": "model.logits"},
    )
    assert built.graph.padding is not None
    assert built.graph.padding.chosen is Padding.RAGGED
    rendered = built.render()
    for key, content in rendered.data.items():
        (pod.options.revision / key).write_text(content)
    tinymodel.tokenizer().save(str(claim / "tokenizer.json"))
    onnx.save(tinymodel.graph(), str(claim / "encoder.onnx"))
    code, report = pod.load()
    assert code == 0, report
    config = parse((pod.models / "model/config.pbtxt").read_text())
    backend = SimulatedBackend(pod.models / "model/1/model.onnx", config)
    tokenizer = tinymodel.tokenizer(baked_in=False)
    texts = [
        "the quick fox jumps over the old dog",
        "a cat",
        "very happy bird sings near the river and the red stone",
    ]
    rows = [np.array([tokenizer.encode(text).ids], np.int64) for text in texts]
    answers = backend.execute(
        [{"input_ids": ids, "attention_mask": np.ones_like(ids)} for ids in rows]
    )
    for ids, answer in zip(rows, answers, strict=True):
        # Computed in numpy, in double precision.
        np.testing.assert_allclose(
            answer["logits"][0], tinymodel.classify(ids[0]), rtol=0, atol=1e-5
        )
        np.testing.assert_allclose(answer["hidden"][0], tinymodel.encode(ids[0]), rtol=0, atol=1e-5)
