"""Test adapting files in place.

Covered are side files, verification by both engines, rejections that leave everything unchanged,
and low memory use.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

from tests.support.messages import Messages
from tests.support.raggedbackend import SimulatedBackend, config_of, session
from tests.support.raggedgraphs import (
    POSITIONS,
    VOCABULARY,
    Encoder,
    Head,
    Masking,
    Places,
    as_calls,
    make,
)
from triton_pipelines.loader import onnx_store
from triton_pipelines.loader.onnx_graph.model_runner import Evaluator
from triton_pipelines.loader.ragged import (
    AdaptationRefusal,
    AdaptedFile,
    adapt_file,
    equivalence,
    input_padding,
)

ENCODER = Encoder(types=True, heads=(Head.LOGITS, Head.HIDDEN))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
    """A few rows for the static quantizer."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._rows = iter([ENCODER.row(random, 12) for _ in range(4)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rows, None)


def answers(file: Path, encoder: Encoder = ENCODER) -> None:
    """The file answers rows in company as the stock graph does each alone."""
    random, alone = np.random.default_rng(0), session(make(encoder))
    rows = [encoder.row(random, length) for length in (3, 11, 1)]
    for row, answer in zip(
        rows, SimulatedBackend(file, config_of(*encoder.declared)).execute(rows), strict=True
    ):
        for head in encoder.heads:
            np.testing.assert_allclose(
                answer[head.value], alone.run([head.value], row)[0], rtol=0, atol=1e-5
            )


@pytest.mark.parametrize("means", [Evaluator.ONNX_RUNTIME, Evaluator.REFERENCE])
def test_a_file_is_adapted_and_proven(
    file: Path, means: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "choose_evaluator", lambda weights: means)
    onnx.save(make(ENCODER), str(file))
    done = adapt_file(file, ENCODER.plan())
    assert isinstance(done, AdaptedFile), str(done)
    assert done.verification.evaluator is means
    assert done.verification.difference < 1
    assert f"batched rows have the same outputs as single rows in {means}" in str(done)
    assert "input_ids below 50, token_type_ids below 2, at most 40 tokens" in str(done)
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"]
    answers(file)


def test_an_axis_that_only_has_a_name_gets_its_declared_size(file: Path) -> None:
    """Older versions of ONNX Runtime infer nothing behind the adapter's nodes."""
    model = make(ENCODER)
    shape = model.graph.output[0].type.tensor_type.shape
    shape.dim[1].dim_param = "Addmmlogits_dim_1"
    onnx.save(model, str(file))
    assert isinstance(adapt_file(file, ENCODER.plan(), {"logits": (3,)}), AdaptedFile)
    stated = onnx.load(str(file)).graph.output[0].type.tensor_type.shape
    assert [dim.dim_param or dim.dim_value for dim in stated.dim] == ["batch", 3]


@pytest.mark.parametrize("dims", [(4,), (3, 1), ()])
def test_an_output_that_is_not_declared_as_it_is_computed_is_refused(
    file: Path, dims: tuple[int, ...]
) -> None:
    model = make(ENCODER)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "Addmmlogits_dim_1"
    onnx.save(model, str(file))
    refusal = adapt_file(file, ENCODER.plan(), {"logits": dims})
    assert isinstance(refusal, AdaptationRefusal)
    assert f"output logits has the dims [3], and spec.model.outputs declares {list(dims)}" in str(
        refusal
    )


def test_side_files_are_named_and_neither_read_nor_copied(file: Path) -> None:
    onnx.save(
        make(ENCODER),
        str(file),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=100,
    )
    before = (file.parent / "weights.bin").stat()
    assert isinstance(adapt_file(file, ENCODER.plan()), AdaptedFile)
    after = (file.parent / "weights.bin").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_size,
    )
    assert sorted(path.name for path in file.parent.iterdir()) == ["model.onnx", "weights.bin"]
    answers(file)


def test_what_nothing_can_run_is_adapted_by_structure_and_said_to_be(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "choose_evaluator", lambda weights: Evaluator.NONE)
    onnx.save(make(ENCODER), str(file))
    done = adapt_file(file, ENCODER.plan())
    assert isinstance(done, AdaptedFile)
    assert not done.is_verified
    assert "structure only, outputs not compared" in str(done)
    answers(file)


def test_half_precision_is_proven_without_numpys_slow_product(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "choose_evaluator", lambda weights: Evaluator.REFERENCE)
    kinds, product = [], np.matmul
    monkeypatch.setattr(
        np, "matmul", lambda a, b: kinds.append((a.dtype, b.dtype)) or product(a, b)
    )
    encoder = Encoder(half=True, heads=(Head.LOGITS, Head.POOLED, Head.HIDDEN))
    onnx.save(make(encoder), str(file))
    done = adapt_file(file, encoder.plan(max_length=POSITIONS))
    assert isinstance(done, AdaptedFile), str(done)
    assert done.is_verified
    assert set(kinds) == {(np.dtype(np.float32),) * 2}


def test_what_finds_no_memory_is_not_blamed_on_the_graph(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(path: Path, means: Evaluator) -> Any:
        raise MemoryError

    monkeypatch.setattr(equivalence, "open_model", none)
    onnx.save(make(ENCODER), str(file))
    assert "structure only, outputs not compared (there is not enough memory to run it)" in str(
        adapt_file(file, ENCODER.plan())
    )


def test_what_nothing_can_run_is_at_least_valid(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "choose_evaluator", lambda weights: Evaluator.NONE)
    model = make(ENCODER)
    model.graph.node[-1].input[0] = "nowhere"
    onnx.save(model, str(file))
    assert "the adapted graph is not valid" in str(adapt_file(file, ENCODER.plan()))


def test_a_small_table_that_is_cut_to_length_is_not_taken_for_the_positions(file: Path) -> None:
    """Do not mistake a small table that is cut to length for the positions.

    Otherwise rows that the model accepts would be answered with NaN. The limit is tested where the
    tokenizer may send more.
    """
    model = make(ENCODER)
    constants = {tensor.name for tensor in model.graph.initializer}
    positions = next(
        node for node in model.graph.node if node.op_type == "Slice" and node.input[0] in constants
    )
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((3, 1), np.float32), "small"))
    model.graph.node.append(
        helper.make_node(
            "Slice",
            ["small", positions.input[1], positions.input[2], positions.input[1]],
            ["unused"],
        )
    )
    onnx.save(model, str(file))
    stock = file.read_bytes()
    done = adapt_file(file, ENCODER.plan(max_length=40))
    assert isinstance(done, AdaptationRefusal)
    assert "limit rows to 3 tokens, but the graph accepts longer rows" in str(done)
    assert file.read_bytes() == stock


@pytest.mark.parametrize("means", list(Evaluator))
def test_fewer_positions_than_the_tokenizer_may_send_are_refused(
    file: Path, means: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reject a file with fewer positions than the tokenizer may send.

    Rows of 41 to 512 tokens would be answered with NaN, although the tokenizer correctly produces
    them.
    """
    monkeypatch.setattr(equivalence, "choose_evaluator", lambda weights: means)
    onnx.save(make(ENCODER), str(file))
    stock = file.read_bytes()
    done = adapt_file(file, ENCODER.plan(max_length=512))
    assert isinstance(done, AdaptationRefusal), str(done)
    words = (
        "the file has 40 positions, and spec.tokenizer.maxLength allows rows of 512 tokens; set "
        "spec.tokenizer.maxLength to at most 40"
    )
    assert str(done) == words
    assert file.read_bytes() == stock
    assert isinstance(adapt_file(file, ENCODER.plan(max_length=40)), AdaptedFile)


@pytest.mark.parametrize("means", [Evaluator.ONNX_RUNTIME, Evaluator.REFERENCE])
@pytest.mark.parametrize("places", [Places.MASK, Places.ONES])
def test_positions_that_do_not_show_are_tried(
    file: Path, places: Places, means: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the longest row that the tokenizer may send.

    If it fails, it fails the requests of all clients in its batch.
    """
    monkeypatch.setattr(equivalence, "choose_evaluator", lambda weights: means)
    encoder = Encoder(places=places)
    onnx.save(make(encoder), str(file))
    most = (
        POSITIONS + 1 if places is Places.MASK else POSITIONS
    )  # that table has two rows more, and counts from 1
    done = adapt_file(file, encoder.plan(max_length=most + 1))
    assert isinstance(done, AdaptationRefusal), str(done)
    assert f"it rejects rows of {most + 1} tokens, which spec.tokenizer.maxLength allows" in str(
        done
    )
    assert isinstance(adapt_file(file, encoder.plan(max_length=most)), AdaptedFile)


def test_rows_that_would_fill_the_memory_are_not_tried(file: Path) -> None:
    encoder = Encoder(places=Places.MASK)
    onnx.save(make(encoder), str(file))
    assert "it rejects rows of 2048 tokens" in str(
        adapt_file(file, encoder.plan(max_length=131_072))
    )


def test_the_highest_id_is_tried(file: Path) -> None:
    """A vocabulary that the file does not show and that is larger than its table."""
    model = make(ENCODER)
    model.graph.node.insert(0, helper.make_node("Add", ["input_ids", "shift"], ["shifted"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "shift"))
    next(
        node
        for node in model.graph.node
        if node.op_type == "Gather" and node.input[1] == "input_ids"
    ).input[1] = "shifted"
    onnx.save(model, str(file))
    done = adapt_file(file, ENCODER.plan(vocabulary=VOCABULARY + 1))
    assert isinstance(done, AdaptationRefusal)
    assert "cannot run the file unchanged" in str(done)
    assert isinstance(adapt_file(file, ENCODER.plan(vocabulary=VOCABULARY)), AdaptedFile)


def test_a_file_with_local_functions(file: Path) -> None:
    model = make(ENCODER)
    as_calls(model)
    onnx.save(model, str(file))
    done = adapt_file(file, ENCODER.plan())
    assert isinstance(done, AdaptedFile), str(done)
    assert done.adaptable.sizes["input_ids"] == VOCABULARY
    answers(file)


def test_weights_that_were_not_fetched_are_named(file: Path) -> None:
    onnx.save(
        make(ENCODER),
        str(file),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=100,
    )
    (file.parent / "weights.bin").unlink()
    assert "the weights in weights.bin are missing next to the file" in str(
        adapt_file(file, ENCODER.plan())
    )


def test_files_of_the_quantizer(file: Path, tmp_path: Path) -> None:
    """Reject dynamic scales in an int8 file from ONNX Runtime's own tool.

    Static ones are part of the graph and are accepted, unless they clip the mask values.
    """
    stock, dynamic = tmp_path / "stock.onnx", tmp_path / "dynamic.onnx"
    onnx.save(make(ENCODER), str(stock))
    quantization.quantize_dynamic(str(stock), str(dynamic))
    assert "operator DynamicQuantizeLinear: its scale is computed over the whole batch" in str(
        adapt_file(dynamic, ENCODER.plan())
    )
    quantization.quantize_static(str(stock), str(file), Calibration())
    assert "a row's output depends on the other rows" in str(adapt_file(file, ENCODER.plan()))
    quantization.quantize_static(
        str(stock), str(file), Calibration(), op_types_to_quantize=["MatMul", "Gather"]
    )
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(str(file)).graph.node)
    assert isinstance(done := adapt_file(file, ENCODER.plan()), AdaptedFile), str(done)
    assert done.verification.evaluator is Evaluator.ONNX_RUNTIME


def test_an_old_graph_that_nothing_can_prove_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    encoder = Encoder(opset=11)
    onnx.save(make(encoder), str(file))
    stock = file.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(equivalence, "choose_evaluator", lambda weights: Evaluator.NONE)
        refused = adapt_file(file, encoder.plan())
    assert isinstance(refused, AdaptationRefusal)
    messages.check(str(refused))
    assert file.read_bytes() == stock
    assert isinstance(adapt_file(file, encoder.plan()), AdaptedFile)
    answers(file, encoder)


def test_an_ancient_graph_is_refused(file: Path) -> None:
    encoder = Encoder(opset=11)
    model = make(encoder)
    model.opset_import[0].version = 8
    onnx.save(model, str(file))
    assert "opset 8 is too old; export the model with opset 13 or later" in str(
        adapt_file(file, encoder.plan())
    )


@pytest.mark.parametrize("means", [Evaluator.ONNX_RUNTIME, Evaluator.REFERENCE])
def test_a_mask_that_is_honoured_in_part_is_found_by_numbers(
    file: Path, means: Evaluator, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """Detect by numbers a mask that the graph honors only in part.

    The mean is taken over all places, including padding. The mask reaches the output through the
    attention, so the structure looks right.
    """
    monkeypatch.setattr(equivalence, "choose_evaluator", lambda weights: means)
    encoder = Encoder(heads=(Head.HIDDEN,))
    model = make(encoder)
    model.graph.node.append(
        helper.make_node("ReduceMean", ["hidden"], ["mean"], axes=[1], keepdims=0)
    )
    model.graph.output.append(
        helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["batch", 8])
    )
    onnx.save(model, str(file))
    stock = file.read_bytes()
    refused = adapt_file(file, encoder.plan())
    assert isinstance(refused, AdaptationRefusal)
    messages.check(str(refused))
    assert file.read_bytes() == stock
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"]


def test_a_guard_that_does_not_guard_is_found(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_padding, "_guard", lambda build, lengths: build.scalar(1))
    onnx.save(make(ENCODER), str(file))
    assert "the guard against rows that Triton did not fill does not work" in str(
        adapt_file(file, ENCODER.plan())
    )


def test_a_graph_that_the_engine_cannot_run_is_not_adapted_on_trust(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "choose_evaluator", lambda weights: Evaluator.REFERENCE)
    model = make(ENCODER)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    next(node for node in model.graph.node if node.op_type == "Softmax").domain = "com.microsoft"
    onnx.save(model, str(file))
    stock = file.read_bytes()
    done = adapt_file(file, ENCODER.plan())
    assert isinstance(done, AdaptationRefusal), str(done)
    assert (
        "equal outputs cannot be shown: the reference evaluator of ONNX cannot run the file "
        "unchanged" in str(done)
    )
    assert file.read_bytes() == stock


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 300), max_size=4), st.booleans(), st.sampled_from(Masking))
def test_a_model_written_in_parts_is_the_same_model(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], typed: bool, masking: Masking
) -> None:
    model = make(Encoder(masking=masking))
    model.producer_name, model.doc_string = "exporter", "words"
    model.metadata_props.add(key="k", value="v")
    for number, size in enumerate(sizes):
        value = np.arange(size, dtype=np.float32)
        tensor = (
            helper.make_tensor(f"w{number}", TensorProto.FLOAT, [size], value)
            if typed
            else numpy_helper.from_array(value, f"w{number}")
        )
        model.graph.initializer.append(tensor)
    expected = onnx.ModelProto.FromString(model.SerializeToString())
    path = tmp_path_factory.mktemp("parts") / "model.onnx"
    onnx_store.save(model, path)
    assert onnx.load(str(path)) == expected
    assert onnx_store.load(path) == expected


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 3000), max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from(Masking),
)
def test_a_model_without_its_large_weights_is_written_whole(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    typed: bool,
    parts: bool,
    masking: Masking,
) -> None:
    """Read lean and written again it is the same model, whatever its file's layout."""
    model = make(Encoder(masking=masking))
    for number, size in enumerate(sizes):
        value = np.arange(size, dtype=np.float32)
        tensor = (
            helper.make_tensor(f"w{number}", TensorProto.FLOAT, [size], value)
            if typed
            else numpy_helper.from_array(value, f"w{number}")
        )
        model.graph.initializer.append(tensor)
    expected = onnx.ModelProto.FromString(model.SerializeToString())
    folder = tmp_path_factory.mktemp("lean")
    if parts:
        onnx_store.save(model, folder / "model.onnx")
    else:
        onnx.save(model, str(folder / "model.onnx"))
    stored = onnx_store.load_without_weights(folder / "model.onnx")
    held = {
        stored.model.graph.initializer[number].name: span.length
        for number, span in stored.weights.items()
    }
    assert held == {
        f"w{number}": 4 * size
        for number, size in enumerate(sizes)
        if 4 * size > onnx_store.SMALL and not typed
    }
    onnx_store.save(stored, folder / "written.onnx")
    assert onnx.load(str(folder / "written.onnx")) == expected


@pytest.mark.parametrize(
    "broken", [b"", b"\x0f", b"\x3a\x7fshort", b"\x3a\x02\x2a\x7f", b"\xff" * 12]
)
def test_a_broken_file_is_no_model(file: Path, broken: bytes) -> None:
    file.write_bytes(broken)
    if broken:
        with pytest.raises(DecodeError):
            onnx_store.load_without_weights(file)
    else:
        assert onnx_store.load_without_weights(file).model == onnx.ModelProto()


@pytest.mark.parametrize("external", [False, True])
def test_large_weights_are_proven_without_being_held(tmp_path: Path, external: bool) -> None:
    """Limit the peak memory of adapting and verifying 96 MiB of weights to less than 72 MiB.

    A separate process uses ONNX's own evaluator.
    """
    encoder = Encoder()
    model: Any = make(encoder)
    nodes = model.graph.node
    head, nodes[-1].output[0] = nodes[-1].output[0], "narrow"
    shapes = {
        "in": (3, 2048),
        **{str(number): (2048, 2048) for number in range(6)},
        "out": (2048, 3),
    }
    last = "narrow"
    for name, shape in shapes.items():
        model.graph.initializer.append(
            numpy_helper.from_array(np.full(shape, 1 / shape[0], np.float32), f"w_{name}")
        )
        nodes.append(
            helper.make_node(
                "MatMul", [last, f"w_{name}"], [head if name == "out" else f"h_{name}"]
            )
        )
        last = f"h_{name}"
    path = tmp_path / "large.onnx"
    onnx.save(model, str(path), save_as_external_data=external, location="weights.bin")
    script = (
        "import sys, pathlib, resource\nsys.modules['onnxruntime'] = None\n"
        "from tests.support.raggedgraphs import Encoder\nfrom triton_pipelines.loader.ragged "
        "import adapt_file\n"
        # Anonymous memory is counted as data; pages of mapped files are the kernel's to take back.
        "held = next(int(l.split()[1]) for l in open('/proc/self/status') if "
        "l.startswith('VmData'))\n"
        "resource.setrlimit(resource.RLIMIT_DATA, ((held + (72 << 10)) << 10,) * 2)\n"
        "print(adapt_file(pathlib.Path(sys.argv[1]), Encoder().plan(max_length=40)))\n"
    )
    root = Path(onnx_store.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{root}:{root.parent}", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (
        "batched rows have the same outputs as single rows in the reference evaluator of ONNX"
        in done.stdout
    ), done.stderr


def test_a_large_model_is_held_once(tmp_path: Path) -> None:
    """Limit the peak memory of reading and writing 96 MiB of weights to less than 1.7 times that.

    The test uses a separate process.
    """
    weights = [
        numpy_helper.from_array(np.zeros((16 << 20) // 4, np.float32), f"w{number}")
        for number in range(6)
    ]
    model: Any = make(Encoder())
    model.graph.initializer.extend(weights)
    path = tmp_path / "large.onnx"
    onnx.save(model, str(path))
    script = (
        "import sys, pathlib\nfrom triton_pipelines.loader import onnx_store\n"
        # Anonymous memory: pages of the mapped file are the kernel's to take back.
        "def held(): return next(int(l.split()[1]) for l in open('/proc/self/status') if "
        "l.startswith('RssAnon'))\n"
        "path = pathlib.Path(sys.argv[1]); before = held()\n"
        "model = onnx_store.load(path); loaded = held(); onnx_store.save(model, "
        "path.with_suffix('.out'))\n"
        "print((loaded - before) >> 10, (held() - before) >> 10)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(onnx_store.__file__).parents[2])},
    )
    loaded, saved = map(int, done.stdout.split())
    assert path.with_suffix(".out").stat().st_size == pytest.approx(path.stat().st_size, rel=0.001)
    assert loaded < 1.2 * 96
    assert saved < 1.7 * 96
