"""The init container adds pooling to ONNX files; every supported ONNX Runtime serves them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.integration.loader.conftest import Pod
from tests.integration.loader.test_models import model as fetched
from tests.support.python_backend import load_runtime
from tests.support.raggedbackend import SimulatedBackend, config_of, session
from tests.support.raggedgraphs import POSITIONS, WIDTH, Encoder, Head, make
from tests.support.serverort import VERSIONS, ServerOnnxRuntime
from triton_pipelines.api.loadplan import (
    LoadReason,
    PlanCheck,
    PlanFetch,
    PlanPool,
    PlanTensor,
    PlanVersions,
)
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.graph import Tensor
from triton_pipelines.loader.model_pooling import pool_file
from triton_pipelines.loader.ragged import AdaptedFile, adapt_file

pytestmark = pytest.mark.integration
step = load_runtime("postprocess")
EMBEDDING = Tensor("EMBEDDING", DataType.FP32, (WIDTH,))
PATH = "model/1/model.onnx"
FILE = PlanFetch(step="model", uri="pvc://models/encoder.onnx", target=PATH)
ENCODERS = [
    Encoder(opset=opset, half=half, types=True, heads=(Head.HIDDEN, Head.LOGITS))
    for opset, half in ((13, False), (17, True), (20, False))
]


def plan(**rest: Any) -> PlanPool:
    place = rest or {"path": PATH}
    return PlanPool(
        step="model",
        tokens=Head.HIDDEN.value,
        mask="attention_mask",
        embedding=EMBEDDING.name,
        width=WIDTH,
        normalize=True,
        **place,
    )


def outputs(encoder: Encoder) -> tuple[Tensor, ...]:
    """The declared outputs of the pooled file."""
    return tuple(
        EMBEDDING if tensor.name == Head.HIDDEN.value else tensor for tensor in encoder.declared[1]
    )


def check(encoder: Encoder, **rest: Any) -> PlanCheck:
    inputs, made = (
        tuple(PlanTensor(name=t.name, data_type=t.data_type.value, dims=t.dims) for t in side)
        for side in encoder.declared
    )
    place = rest or {"path": PATH}
    return PlanCheck(
        step="model", field="spec.model", max_batch_size=8, inputs=inputs, outputs=made, **place
    )


def embedding(hidden: Any, mask: Any) -> Any:
    return step.normalize(step.mean_pooling(hidden, mask))


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[ServerOnnxRuntime]:
    with ServerOnnxRuntime(request.param) as running:
        yield running


@pytest.fixture
def claim(pod: Pod) -> Path:
    made = pod.options.claims / "models"
    made.mkdir()
    return made


@pytest.mark.parametrize("encoder", ENCODERS, ids=str)
def test_every_server_pools_a_padded_batch(
    server: ServerOnnxRuntime, encoder: Encoder, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(make(encoder), str(file))
    assert pool_file(file, plan()) == ""
    random = np.random.default_rng(encoder.seed)
    feed = encoder.row(random, 9)
    batch = {name: np.concatenate([value] * 3) for name, value in feed.items()}
    batch["attention_mask"][1, 4:] = batch["attention_mask"][2, 1:] = 0
    stock = session(make(encoder))
    names = [Head.HIDDEN.value, Head.LOGITS.value]
    hidden, logits = stock.run(names, batch)
    made = server.session(file)
    shapes = {value.name: value.shape for value in made.get_outputs()}
    assert shapes[EMBEDDING.name][1:] == [WIDTH]
    assert not isinstance(shapes[EMBEDDING.name][0], int)
    answer, same = made.run([EMBEDDING.name, Head.LOGITS.value], batch)
    tolerance = 2e-2 if encoder.half else 1e-5
    expected = embedding(hidden, batch["attention_mask"])
    np.testing.assert_allclose(answer, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(same, logits, rtol=0, atol=tolerance)


@pytest.mark.parametrize("on_cpu", [False, True], ids=["padded", "padding-free"])
@pytest.mark.parametrize("encoder", ENCODERS, ids=str)
def test_every_server_pools_ragged_batches(
    server: ServerOnnxRuntime, encoder: Encoder, on_cpu: bool, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(make(encoder), str(file))
    assert pool_file(file, plan()) == ""
    ragged = encoder.plan(max_length=POSITIONS).model_copy(update={"token_outputs": ()})
    dims = {tensor.name: tensor.dims for tensor in encoder.declared[1]}
    result = adapt_file(file, ragged, dims, on_cpu=on_cpu)
    assert isinstance(result, AdaptedFile), str(result)
    assert result.is_verified
    backend = SimulatedBackend(
        file, config_of(encoder.declared[0], outputs(encoder)), server.session
    )
    random = np.random.default_rng(encoder.seed)
    rows = [encoder.row(random, length) for length in (3, 19, 1, 7)]
    stock = session(make(encoder))
    for row, answer in zip(rows, backend.execute(rows), strict=True):
        (hidden,) = stock.run([Head.HIDDEN.value], row)
        np.testing.assert_allclose(
            answer[EMBEDDING.name],
            embedding(hidden, row["attention_mask"]),
            rtol=0,
            atol=2e-2 if encoder.half else 1e-5,
        )


@pytest.mark.parametrize("is_ragged", [False, True])
def test_a_file_is_checked_as_it_came_and_pooled(pod: Pod, claim: Path, is_ragged: bool) -> None:
    encoder = ENCODERS[0]
    onnx.save(make(encoder), str(claim / "encoder.onnx"))
    ragged = encoder.plan().model_copy(update={"token_outputs": ()})
    pod.plan(FILE, checks=[check(encoder)], pool=[plan()], adapt=[ragged] if is_ragged else [])
    code, report = pod.load()
    assert (code, report.findings) == (0, ()), pod.output
    assert pod.tree() == [PATH]
    made = onnx.load(str(pod.models / PATH)).graph
    assert [value.name for value in made.output] == [EMBEDDING.name, Head.LOGITS.value]
    assert ("input_ids__shape" in {value.name for value in made.input}) == is_ragged
    assert "spec.postprocess.placement: pvc://models/encoder.onnx returns EMBEDDING" in pod.output
    # A restarted container starts from the source again, and the source has not changed.
    first = report.sources
    pod.recorded()
    code, report = pod.load()
    assert (code, report.sources) == (0, first), pod.output
    again = onnx.load(str(pod.models / PATH)).graph
    assert [node.name for node in again.node] == [node.name for node in made.node]


def test_every_version_is_pooled(pod: Pod, claim: Path) -> None:
    for version in (1, 3):
        (claim / "bert" / str(version)).mkdir(parents=True)
        onnx.save(
            make(ENCODERS[0]),
            str(claim / "bert" / str(version) / "model.onnx"),
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=100,
        )
    place = {"model": "bert", "file": "model.onnx"}
    pod.plan(
        fetched(versions=PlanVersions(all=True)),
        checks=[check(ENCODERS[0], **place)],
        pool=[plan(**place)],
    )
    code, _ = pod.load()
    assert code == 0, pod.output
    for version in (1, 3):
        opened = session(pod.models / f"bert/{version}/model.onnx")
        names = [one.name for one in opened.get_outputs()]
        assert names == [EMBEDDING.name, Head.LOGITS.value]


def test_a_file_that_cannot_pool_fails_with_the_remedy(pod: Pod, claim: Path) -> None:
    model = make(ENCODERS[0])
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.zeros(1, np.float32), EMBEDDING.name)
    )
    onnx.save(model, str(claim / "encoder.onnx"))
    pod.plan(FILE, checks=[check(ENCODERS[0])], pool=[plan()])
    code, report = pod.load()
    assert code != 0
    (finding,) = report.findings
    assert finding.reason is LoadReason.MODEL_MISMATCH
    assert (finding.step, finding.field) == ("model", "spec.postprocess.placement")
    assert finding.message == (
        "pooling cannot be added to pvc://models/encoder.onnx, because the graph already has a "
        "value with the name 'EMBEDDING'; remove spec.postprocess.placement to use a "
        "postprocess step"
    )
