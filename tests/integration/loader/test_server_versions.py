"""Adapted files in the ONNX Runtime of every supported Triton release.

The backend compares declared outputs with the shapes that its ONNX Runtime infers, so what a newer
version accepts proves nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.raggedbackend import SimulatedBackend, config_of, session
from tests.support.raggedgraphs import POSITIONS, Encoder, Head, Masking, Places, make
from tests.support.raggedpoison import POISON, Row, without_tokens
from tests.support.serverort import VERSIONS, ServerError, ServerOnnxRuntime
from tests.support.shapegraphs import CONSTANTS, GRAPHS, constant_graph, save_beside, shape_graph
from triton_pipelines.api.loadplan import PlanCheck, PlanTensor
from triton_pipelines.loader.onnx_file import compare, read_onnx
from triton_pipelines.loader.onnx_shapes import external_shape_constants
from triton_pipelines.loader.onnx_store import load_without_weights
from triton_pipelines.loader.ragged import AdaptedFile, adapt_file

pytestmark = pytest.mark.integration
LAYOUTS = [
    Encoder(places=places, masking=masking, types=True, heads=tuple(Head))
    for places in Places
    for masking in Masking
]
DOUBTFUL = {
    "a shape of constants": (-1, 4),
    "a shape of the tensor's own axis": (-1, 4),
    "an operator of ONNX Runtime": (-1, 4, 5),
}
"""Graph → declared sizes that the loader cannot judge."""
MEMORY_MIB, BATCHES = 400, 4
OPSETS = [Encoder(opset=opset, half=opset % 2 == 0, heads=tuple(Head)) for opset in range(13, 22)]


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[ServerOnnxRuntime]:
    with ServerOnnxRuntime(request.param) as running:
        yield running


def with_symbolic_outputs(encoder: Encoder) -> Any:
    """Return the stock graph with its fixed output axes named, as torch exports write them."""
    model = make(encoder)
    for value in model.graph.output:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
                dim.dim_param = f"Addmm{value.name}_dim_{axis}"
    return model


@pytest.fixture(scope="module")
def adapted_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[bool], dict[Encoder, Path]]:
    """Adapts the files of all encoders, for all servers together."""

    @functools.cache
    def adapt_all(on_cpu: bool) -> dict[Encoder, Path]:
        made: dict[Encoder, Path] = {}
        for encoder in (*LAYOUTS, *OPSETS):
            file = tmp_path_factory.mktemp("adapted") / "model.onnx"
            onnx.save(with_symbolic_outputs(encoder), str(file))
            outputs = {tensor.name: tensor.dims for tensor in encoder.declared[1]}
            result = adapt_file(file, encoder.plan(max_length=POSITIONS), outputs, on_cpu=on_cpu)
            assert isinstance(result, AdaptedFile), str(result)
            made[encoder] = file
        return made

    return adapt_all


@pytest.fixture(scope="module", params=[False, True], ids=["padded", "padding-free"])
def adapted(
    request: pytest.FixtureRequest, adapted_once: Callable[[bool], dict[Encoder, Path]]
) -> dict[Encoder, Path]:
    """Adapted files of all encoders; on CPUs some are computed without padding."""
    return adapted_once(request.param)


def test_files_with_symbolic_output_axes_are_served(
    server: ServerOnnxRuntime, adapted: dict[Encoder, Path]
) -> None:
    for encoder, file in adapted.items():
        # Refuses what the backend refuses: an output that is not inferred as declared.
        backend = SimulatedBackend(file, config_of(*encoder.declared), server.session)
        random = np.random.default_rng(encoder.seed)
        rows = [encoder.row(random, length) for length in (3, 19, 1, 7)]
        alone = session(make(encoder))
        tolerance = 2e-2 if encoder.half else 1e-5
        for row, answer in zip(rows, backend.execute(rows), strict=True):
            expected = alone.run([head.value for head in encoder.heads], row)
            for head, value in zip(encoder.heads, expected, strict=True):
                assert answer[head.value].shape == value.shape, encoder
                np.testing.assert_allclose(
                    answer[head.value], value, rtol=0, atol=tolerance, err_msg=str(encoder)
                )


def test_good_rows_are_answered_beside_malformed_ones(
    server: ServerOnnxRuntime, adapted: dict[Encoder, Path]
) -> None:
    """Batches of good and malformed requests at random, in every layout."""
    for encoder in LAYOUTS:
        backend = SimulatedBackend(adapted[encoder], config_of(*encoder.declared), server.session)
        alone = server.session(make(encoder))
        for seed in range(BATCHES):
            random = np.random.default_rng([seed, encoder.seed])
            requests: list[tuple[bool, Row]] = []
            for _ in range(12):
                row = encoder.row(random, int(random.integers(1, POSITIONS + 1)))
                requests.append((True, row))
                if random.random() < 0.4:
                    length = int(random.integers(3, POSITIONS))
                    poison = POISON[str(random.choice(sorted(POISON)))]
                    requests.append((False, poison(encoder.row(random, length))))
            requests = [requests[place] for place in random.permutation(len(requests))]
            # Triton fills the rows in front of the first one without tokens.
            requests += [(False, without_tokens(encoder, 2))] * int(random.integers(0, 3))
            answers = backend.execute([row for _, row in requests])
            for (is_good, row), answer in zip(requests, answers, strict=True):
                expected = alone.run([head.value for head in encoder.heads], row) if is_good else ()
                for head, value in zip(encoder.heads, expected, strict=False):
                    np.testing.assert_allclose(
                        answer[head.value], value, rtol=0, atol=1e-5, err_msg=f"{encoder} {seed}"
                    )
                if not is_good:
                    assert np.isnan(answer["logits"]).all()


def test_one_long_row_takes_memory_for_its_own_tokens_only(
    server: ServerOnnxRuntime, adapted: dict[Encoder, Path]
) -> None:
    """A matrix of all rows and the longest would take 2.6 GiB here."""
    encoder = LAYOUTS[0]
    backend = SimulatedBackend(adapted[encoder], config_of(*encoder.declared), server.session)
    random = np.random.default_rng(0)
    rows = [encoder.row(random, 5) for _ in range(63)]
    expected = backend.execute(rows)
    before = server.peak_mib()
    long = {name: np.ones((1, 1_000_000), np.int64) for name in encoder.inputs}
    *answers, marked = backend.execute([*rows[:30], long, *rows[30:]])[:31]
    assert marked["hidden"].shape == (1, 1_000_000, 8)
    assert np.isnan(marked["hidden"]).all()
    for answer, value in zip(answers, expected, strict=False):
        np.testing.assert_allclose(answer["hidden"], value["hidden"], rtol=0, atol=1e-5)
    # Inputs and outputs of the row alone take 56 MiB, and twice that on their way here.
    assert server.peak_mib() - before < MEMORY_MIB


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("size", [-1, 4, 5])
def test_the_loader_rejects_what_the_server_would_reject(
    server: ServerOnnxRuntime, graph: str, size: int, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(shape_graph(graph), str(file))
    check = PlanCheck(
        step="model",
        path="model/1/model.onnx",
        field="spec.model",
        max_batch_size=8,
        inputs=(PlanTensor(name="x", data_type="FP32", dims=(4,)),),
        outputs=(PlanTensor(name="y", data_type="FP32", dims=(size,)),),
    )
    (output,) = server.session(file).get_outputs()
    is_served = [dim if isinstance(dim, int) else -1 for dim in output.shape] == [-1, size]
    is_accepted = compare(check, read_onnx(file), "pvc://claim/model.onnx") is None
    # Where ONNX Runtime may know more or less than the loader, the loader accepts both.
    is_doubtful = graph in DOUBTFUL and size in DOUBTFUL[graph]
    assert is_accepted == (is_served or is_doubtful)


@pytest.mark.parametrize("case", CONSTANTS)
def test_constants_in_side_files_are_reported_where_the_server_would_not_load_them(
    server: ServerOnnxRuntime, case: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    save_beside(constant_graph(case), file)
    found = external_shape_constants(file, load_without_weights(file).model)
    if not found:
        server.session(file)
        return
    with pytest.raises(ServerError, match="integers"):
        server.session(file)
