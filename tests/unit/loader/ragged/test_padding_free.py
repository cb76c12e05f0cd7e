"""Test graphs that compute only real tokens: answers, what is computed, and what has to be padded.

ONNX Runtime runs the graphs and is fed as Triton's backend feeds it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.support import oddgraphs, raggedgraphs
from tests.support.raggedbackend import SimulatedBackend, config_of, session
from tests.support.raggedgraphs import Encoder, Head, Places
from tests.support.randomencoders import (
    HEADS,
    POSITIONS,
    VOCABULARY,
    WIDTH,
    Activation,
    Embedding,
    Masking,
    Norm,
    Pooling,
    Projection,
    Structure,
    make,
    row,
)
from triton_pipelines.api.loadplan import LoadPlan
from triton_pipelines.loader.errors import LoaderError
from triton_pipelines.loader.model_checks import ModelInspection
from triton_pipelines.loader.onnx_graph.graph_walk import nodes
from triton_pipelines.loader.onnx_graph.model_runner import Evaluator, graph_inputs
from triton_pipelines.loader.onnx_store import Stored
from triton_pipelines.loader.ragged import AdaptedFile, adapt_file, equivalence, file_adapter
from triton_pipelines.loader.ragged.eligibility import Adaptable, check_eligibility
from triton_pipelines.loader.ragged.graph_adapter import adapt
from triton_pipelines.loader.ragged.padding_free import placement, position_wise, token_maps
from triton_pipelines.loader.ragged.padding_free.analysis import Padded, PaddingFree, analyze
from triton_pipelines.loader.ragged.padding_free.graph_rewriter import GraphRewriter
from triton_pipelines.loader.ragged.padding_free.position_wise import FlatOperator, Reading

LENGTHS = (3, 19, 1, 7, 7)

structures = st.builds(
    Structure,
    layers=st.integers(1, 3),
    norm=st.sampled_from(Norm),
    activation=st.sampled_from(Activation),
    projection=st.sampled_from(Projection),
    masking=st.sampled_from(Masking),
    embedding=st.sampled_from(Embedding),
    pooling=st.sampled_from(Pooling),
    opset=st.sampled_from([17, 18, 21]),
    seed=st.integers(0, 2**16),
)
batches = st.lists(st.integers(1, POSITIONS), min_size=1, max_size=8)


def analyzed(model: Any, plan: Any) -> tuple[Adaptable, PaddingFree | Padded]:
    found = check_eligibility(model, plan)
    assert isinstance(found, Adaptable), str(found)
    inputs = graph_inputs(model, [item.name for item in plan.inputs])
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    return found, analyze(Stored(copy, Path("model.onnx")), inputs, found)


def without_padding(structure: Structure, cuts: int = 0) -> tuple[Any, PaddingFree]:
    """The adapted model, which computes only real tokens, and where its nodes run."""
    found, form = analyzed(make(structure), structure.plan())
    assert isinstance(form, PaddingFree), str(form)
    form = replace(form, cuts=cuts)
    return adapt(make(structure), found, form), form


def compare(structure: Structure, lengths: list[int], cuts: int = 0) -> PaddingFree:
    """Compare a batch, with rows that the model cannot take in it, with each row alone."""
    random = np.random.default_rng(structure.seed)
    rows = [row(random, length) for length in lengths]
    too_long = row(random, POSITIONS + 9)
    unknown = {**row(random, 4), "input_ids": np.array([[5, VOCABULARY, 6, 7]])}
    adapted, form = without_padding(structure, cuts)
    backend = SimulatedBackend(adapted, config_of(*structure.declared))
    answers = backend.execute([*rows[:1], too_long, unknown, *rows[1:]])
    for marked in (answers.pop(1), answers.pop(1)):
        assert np.isnan(marked["logits"]).all()
    alone = session(make(structure))
    for request, answer in zip(rows, answers, strict=True):
        (expected,) = alone.run(["logits"], request)
        assert answer["logits"].shape == expected.shape
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(answer["logits"], expected, rtol=0, atol=1e-5 * scale)
    return form


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(structures, batches, st.integers(0, 2))
def test_every_row_is_answered_as_alone(
    structure: Structure, lengths: list[int], cuts: int
) -> None:
    compare(structure, lengths, cuts)


encoders = st.builds(
    Encoder,
    opset=st.integers(13, 21),
    half=st.booleans(),
    small_ids=st.booleans(),
    types=st.booleans(),
    places=st.sampled_from(Places),
    masking=st.sampled_from(raggedgraphs.Masking),
    heads=st.lists(st.sampled_from(Head), min_size=1, max_size=5, unique=True).map(tuple),
    seed=st.integers(0, 2**16),
)
requests = st.lists(st.tuples(st.integers(1, 3), st.integers(1, POSITIONS)), min_size=1, max_size=6)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(encoders, requests, st.integers(0, 1))
def test_layouts_of_exporters_are_answered_as_alone(
    encoder: Encoder, batch: list[tuple[int, int]], cuts: int
) -> None:
    """Requests of several rows, in all element types."""
    found, form = analyzed(raggedgraphs.make(encoder), encoder.plan())
    assert isinstance(form, PaddingFree) or encoder.per_token == ()
    cut = replace(form, cuts=cuts) if isinstance(form, PaddingFree) else None
    adapted = adapt(raggedgraphs.make(encoder), found, cut)
    backend = SimulatedBackend(adapted, config_of(*encoder.declared))
    random, alone = np.random.default_rng(encoder.seed), session(raggedgraphs.make(encoder))
    sent = []
    for count, length in batch:
        single = [encoder.row(random, length) for _ in range(count)]
        sent.append({name: np.concatenate([one[name] for one in single]) for name in single[0]})
    for request, answer in zip(sent, backend.execute(sent), strict=True):
        for number in range(len(request["input_ids"])):
            one = {name: value[number : number + 1] for name, value in request.items()}
            for head, expected in zip(encoder.heads, alone.run(None, one), strict=True):
                made = answer[head.value][number : number + 1]
                assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
                scale = max(1.0, float(np.abs(expected).max()))
                assert equivalence.difference(expected, made, scale) < 1


@pytest.mark.parametrize("part", [*Norm, *Activation, *Projection, *Masking, *Pooling], ids=str)
def test_all_products_of_every_part_compute_no_padding(part: Any) -> None:
    field = next(
        name
        for name, kind in (
            ("norm", Norm),
            ("activation", Activation),
            ("projection", Projection),
            ("masking", Masking),
            ("pooling", Pooling),
        )
        if isinstance(part, kind)
    )
    structure = Structure(layers=2, **{field: part})
    form = compare(structure, list(LENGTHS))
    assert form.placement.flat_products == form.placement.products == structure.products


@pytest.mark.parametrize("embedding", [Embedding.MASKED, Embedding.PADS_CLEARED])
def test_only_the_layer_that_reads_masked_embeddings_is_padded(embedding: Embedding) -> None:
    """Masked embeddings have values behind the rows that the first products need there."""
    structure = Structure(layers=3, embedding=embedding)
    form = compare(structure, list(LENGTHS))
    assert structure.products - 3 <= form.placement.flat_products <= structure.products


def test_products_read_as_many_rows_as_there_are_tokens() -> None:
    """The first operand of every product with weights, made an output, has [1, tokens, …]."""
    adapted, form = without_padding(Structure(layers=2))
    weights = {tensor.name for tensor in adapted.graph.initializer}
    read = {
        node.input[0]
        for node in adapted.graph.node
        if node.op_type == "MatMul" and node.input[1] in weights
    }
    adapted.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in sorted(read))
    random = np.random.default_rng(0)
    rows = [row(random, length) for length in LENGTHS]
    feed = equivalence.join_batch(rows, list(rows[0]))
    names = sorted(read - {"pooled"})
    shapes = [value.shape for value in session(adapted).run(names, feed)]
    tokens = [shape for shape in shapes if len(shape) == 3]
    assert len(tokens) >= 8
    assert {shape[:2] for shape in tokens} == {(1, sum(LENGTHS))}
    assert form.placement.blocker == ""


@pytest.mark.parametrize("cuts", [1, 2])
@pytest.mark.parametrize("lengths", [[5], [4, 4], [1, 1, 1], [2, 30, 9, 30, 3, 17, 1], [30, 2]])
@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.TOKENS])
def test_groups_of_any_lengths_keep_the_order_of_rows(
    pooling: Pooling, lengths: list[int], cuts: int
) -> None:
    structure = Structure(projection=Projection.MERGED, masking=Masking.OUTER, pooling=pooling)
    compare(structure, lengths, cuts)


@pytest.mark.parametrize("lengths", [[40] * 2 + [3] * 6, [3, 40, 3, 3, 3, 40, 3, 3]])
def test_long_rows_do_not_widen_the_attention_of_short_ones(lengths: list[int]) -> None:
    """Make the scores of the long rows an output, and what the short rows add to the tokens."""
    adapted, _ = without_padding(Structure(pooling=Pooling.FIRST), cuts=1)
    names = [node.output[0] for node in adapted.graph.node if node.op_type in {"Softmax", "If"}]
    adapted.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    random = np.random.default_rng(0)
    rows = [row(random, length) for length in lengths]
    scores, added = session(adapted).run(names, equivalence.join_batch(rows, list(rows[0])))
    assert scores.shape == (2, HEADS, 40, 40)
    assert added.shape == (6 * 3, WIDTH)


@pytest.mark.parametrize("lengths", [[7], [5, 5, 5]])
def test_rows_of_one_length_are_one_group(lengths: list[int]) -> None:
    """The branch for other rows adds one place, which no token is read from."""
    adapted, _ = without_padding(Structure(pooling=Pooling.FIRST), cuts=1)
    name = next(node.output[0] for node in adapted.graph.node if node.op_type == "If")
    adapted.graph.output.append(helper.make_empty_tensor_value_info(name))
    random = np.random.default_rng(0)
    rows = [row(random, length) for length in lengths]
    (added,) = session(adapted).run([name], equivalence.join_batch(rows, list(rows[0])))
    assert added.shape == (1, WIDTH)
    assert not added.any()


def adapted_file(model: Any, plan: Any, folder: Path, *, on_cpu: bool = True) -> AdaptedFile:
    file = folder / "model.onnx"
    onnx.save(model, str(file))
    done = adapt_file(file, plan, on_cpu=on_cpu)
    assert isinstance(done, AdaptedFile), str(done)
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]
    return done


@pytest.mark.parametrize("means", [Evaluator.ONNX_RUNTIME, Evaluator.REFERENCE])
@pytest.mark.parametrize("opset", [11, 17])
def test_the_loader_chooses_it(
    means: Evaluator, opset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "choose_evaluator", lambda weights: means)
    encoder = Encoder(opset=opset, heads=(Head.HIDDEN,))
    done = adapted_file(raggedgraphs.make(encoder), encoder.plan(), tmp_path)
    assert isinstance(done.form, PaddingFree), str(done)
    assert done.verification.evaluator is means
    assert "1 of 1 matrix products compute no padding" in str(done)


def test_on_a_gpu_it_stays_padded(tmp_path: Path) -> None:
    structure = Structure()
    done = adapted_file(make(structure), structure.plan(), tmp_path, on_cpu=False)
    assert isinstance(done.form, Padded)
    assert "on a GPU, batches of typical size are faster with padding" in str(done)


@pytest.mark.parametrize("oddity", [oddgraphs.loop, oddgraphs.scan, oddgraphs.sequences])
def test_a_graph_that_hides_its_tokens_in_a_body_still_answers_equally(
    oddity: Any, tmp_path: Path
) -> None:
    encoder = Encoder(heads=(Head.HIDDEN,))
    model = raggedgraphs.make(encoder)
    oddity(model)
    assert adapted_file(model, encoder.plan(), tmp_path).verification.difference < 1


def in_a_branch(model: Any) -> Any:
    """Move all nodes of a model into the branches of an If."""
    graph = model.graph
    body = helper.make_graph(list(graph.node), "body", [], list(graph.output))
    other = onnx.GraphProto.FromString(body.SerializeToString())
    rename = {name: f"{name}_else" for node in other.node for name in node.output}
    for node in other.node:
        node.input[:] = [rename.get(name, name) for name in node.input]
        node.output[:] = [rename[name] for name in node.output]
    for value in (*body.output, *other.output):
        value.type.tensor_type.ClearField("shape")
    names = [value.name for value in graph.output]
    for value in other.output:
        value.name = rename[value.name]
    rename_body = {name: f"{name}_then" for name in names}
    for node in body.node:
        node.input[:] = [rename_body.get(name, name) for name in node.input]
        node.output[:] = [rename_body.get(name, name) for name in node.output]
    for value in body.output:
        value.name = rename_body[value.name]
    del graph.node[:]
    size = helper.make_node("Size", ["input_ids"], ["size"])
    limit = helper.make_node("Constant", [], ["limit"], value_int=12)
    less = helper.make_node("Less", ["size", "limit"], ["is_small"])
    branch = helper.make_node("If", ["is_small"], names, then_branch=body, else_branch=other)
    graph.node.extend([size, limit, less, branch])
    return model


def test_a_graph_inside_a_branch_stays_padded(tmp_path: Path) -> None:
    structure = Structure(pooling=Pooling.FIRST)
    done = adapted_file(in_a_branch(make(structure)), structure.plan(), tmp_path)
    assert isinstance(done.form, Padded)
    assert "no matrix products with weights that process each token independently" in str(done)


def test_a_graph_with_rows_behind_places_stays_padded(tmp_path: Path) -> None:
    """A graph that transposes its tokens first names the first product that it keeps padded."""
    structure = Structure(pooling=Pooling.TOKENS)
    model = make(structure)
    body = model.graph.node
    for node in list(body):
        if node.op_type == "MatMul" and node.input[1].startswith("c"):
            place = list(body).index(node)
            there, back = f"{node.output[0]}_there", f"{node.output[0]}_back"
            body.insert(
                place, helper.make_node("Transpose", [node.input[0]], [there], perm=[1, 0, 2])
            )
            node.input[0] = there
            output, node.output[0] = node.output[0], back
            body.insert(place + 2, helper.make_node("Transpose", [back], [output], perm=[1, 0, 2]))
    done = adapted_file(model, structure.plan(), tmp_path)
    assert isinstance(done.form, Padded)


def test_without_an_evaluator_it_stays_padded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (equivalence, file_adapter):
        monkeypatch.setattr(module, "choose_evaluator", lambda weights: Evaluator.NONE)
    structure = Structure()
    done = adapted_file(make(structure), structure.plan(), tmp_path)
    assert isinstance(done.form, Padded)
    assert "too large to compare its outputs" in str(done)


def _softmax_is_position_wise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the Softmax over the places of a row as if it treated each token by itself."""
    rules = dict(position_wise._RULES)
    rules["Softmax"] = lambda case: FlatOperator((Reading.FLAT,))
    monkeypatch.setattr(position_wise, "_RULES", rules)


def _values_behind_rows_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def analyze_without_fillers(*given: Any, **options: Any) -> PaddingFree | Padded:
        return _without_fillers(analyze(*given, **options))

    monkeypatch.setattr(placement, "_require_padding_values", lambda *_: None)
    monkeypatch.setattr(file_adapter, "analyze", analyze_without_fillers)


def _without_fillers(form: PaddingFree | Padded) -> PaddingFree | Padded:
    if isinstance(form, PaddingFree):
        for fact in form.facts.values():
            object.__setattr__(fact, "filler", None)
    return form


def _rows_start_one_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def view(build: Any, starts: str, taken: str, width: str) -> Any:
        late = build.add("Mod", build.add("Add", starts, build.scalar(1)), build.scalar(20))
        return right(build, late, taken, width)

    right = token_maps._view
    monkeypatch.setattr(token_maps, "_view", view)


def _groups_lose_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def row_order(build: Any, views: Any, groups: Any, place: str) -> str:
        return build.add("Range", build.scalar(0), build.add("Size", place), build.scalar(1))

    monkeypatch.setattr(token_maps, "_row_order", row_order)


@pytest.mark.parametrize(
    ("fault", "pooling"),
    [
        (_softmax_is_position_wise, Pooling.WEIGHTED),
        (_values_behind_rows_are_free, Pooling.MEAN),
        (_rows_start_one_late, Pooling.FIRST),
        (_groups_lose_their_order, Pooling.MEAN),
    ],
)
def test_a_wrong_rewrite_is_found_and_the_file_padded(
    fault: Any, pooling: Pooling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    structure = Structure(pooling=pooling)
    fault(monkeypatch)
    done = adapted_file(make(structure), structure.plan(), tmp_path)
    assert isinstance(done.form, Padded)
    assert "without padding, its outputs differ" in str(done)
    assert done.verification.difference < 1


def test_a_graph_that_the_rewrite_does_not_understand_is_padded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewrite(*_: Any) -> None:
        raise KeyError("some tensor")

    monkeypatch.setattr(GraphRewriter, "rewrite", rewrite)
    structure = Structure()
    done = adapted_file(make(structure), structure.plan(), tmp_path)
    assert isinstance(done.form, Padded)
    assert "the structure of the graph is not supported (KeyError: 'some tensor')" in str(done)


CPU = "instance_group [{ kind: KIND_CPU }]"
GPU = "instance_group [{ kind: KIND_GPU }]"
BOTH = "instance_group [{ kind: KIND_CPU }, { kind: KIND_GPU }]"


@pytest.mark.parametrize(
    ("config", "on_cpu"), [(CPU, True), (GPU, False), (BOTH, False), ("", False), (None, False)]
)
def test_the_kind_of_the_instances_decides(
    config: str | None, on_cpu: bool, tmp_path: Path
) -> None:
    structure, errors = Structure(), list[LoaderError]()
    model = tmp_path / "model" / "1" / "model.onnx"
    model.parent.mkdir(parents=True)
    onnx.save(make(structure), str(model))
    if config is not None:
        (tmp_path / "model" / "config.pbtxt").write_text(config)
    plan = LoadPlan(pipeline="p", namespace="n", revision="r", adapt=(structure.plan(),))
    written = {"model/1/model.onnx": "pvc://models/model.onnx"}
    log = logging.getLogger("test")
    ModelInspection(plan, tmp_path, written, errors, [], log).run()
    assert not errors
    adapted = onnx.load(str(model))
    softmax = [node for node in nodes(adapted.graph) if node.op_type == "Softmax"]
    assert len(softmax) == (2 if on_cpu else 1)
