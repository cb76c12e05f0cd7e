"""Test graphs of any form that ONNX allows.

The loader either checks and adapts a graph or rejects it with a message that names its file; no
other outcome exists.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.support import oddgraphs
from tests.support.messages import Messages
from tests.support.raggedbackend import SimulatedBackend, config_of, session
from tests.support.raggedgraphs import (
    POSITIONS,
    TYPES,
    VOCABULARY,
    Encoder,
    Head,
    Masking,
    Places,
    make,
)
from triton_pipelines.api.loadplan import (
    FetchKind,
    LoadPlan,
    LoadReason,
    LoadReport,
    PlanCheck,
    PlanFetch,
    PlanTensor,
    PlanTokens,
)
from triton_pipelines.loader.main import run
from triton_pipelines.loader.onnx_graph.input_limits import positions, table_size
from triton_pipelines.loader.options import LoadOptions
from triton_pipelines.loader.ragged.eligibility import Adaptable, check_eligibility

ENCODER = Encoder(types=True, heads=(Head.LOGITS, Head.HIDDEN))
URI = "pvc://models/model.onnx"
DECLARED = {LoadReason.MODEL_MISMATCH, LoadReason.RAGGED_UNSUPPORTED}
NOT_FORESEEN = "not understood"


class Loads:
    """Loads models as the init container of a pod does; each into a pod of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, itertools.count()
        tokenizer = Tokenizer(
            WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0")
        )
        self._tokenizer = tokenizer.to_str()

    def __call__(
        self, model: Any, encoder: Encoder = ENCODER, **saved: Any
    ) -> tuple[int, LoadReport, Path]:
        """Exit code, report, and where the model lies."""
        root = self._folder / str(next(self._count))
        claim, revision = root / "claims/models", root / "revision"
        claim.mkdir(parents=True)
        revision.mkdir()
        onnx.save(model, str(claim / "model.onnx"), **saved)
        (claim / "tokenizer.json").write_text(self._tokenizer)
        inputs, outputs = (
            tuple(
                PlanTensor(name=item.name, data_type=item.data_type.value, dims=item.dims)
                for item in side
            )
            for side in encoder.declared
        )
        tokens = PlanTokens(
            tokenizer="tokenizer/1/tokenizer.json",
            ids=("input_ids",),
            masks=("attention_mask",),
            others=("token_type_ids",) if encoder.types else (),
            max_length=POSITIONS,
        )
        plan = LoadPlan(
            pipeline="odd",
            namespace="default",
            revision="1",
            fetch=(
                PlanFetch(
                    step="tokenizer",
                    uri="pvc://models/tokenizer.json",
                    target=tokens.tokenizer,
                    kind=FetchKind.TOKENIZER,
                ),
                PlanFetch(step="model", uri=URI, target="model/1/model.onnx", kind=FetchKind.FILE),
            ),
            checks=(
                PlanCheck(
                    step="model",
                    path="model/1/model.onnx",
                    field="spec.model",
                    max_batch_size=8,
                    inputs=inputs,
                    outputs=outputs,
                    tokens=tokens,
                ),
            ),
            adapt=(encoder.plan(max_length=POSITIONS),),
        )
        (revision / "plan.json").write_text(plan.to_json())
        options = LoadOptions(
            root=root / "tritonpipe",
            revision=revision,
            claims=root / "claims",
            live=root / "live",
            termination=root / "report",
        )
        code = run(options, io.StringIO())
        return (
            code,
            LoadReport.model_validate_json((root / "report").read_bytes()),
            options.models / "model/1/model.onnx",
        )


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Loads:
    return Loads(tmp_path_factory.mktemp("loads"))


def answers(file: Path, stock: Any, encoder: Encoder = ENCODER) -> None:
    """Assert that the adapted file answers batched rows as ONNX Runtime answers each row alone.

    The reference is the stock graph. Rows with an id that a table does not have are marked.
    """
    random, alone = np.random.default_rng(0), session(stock)
    rows = [encoder.row(random, length) for length in (4, 11, 1, 7)]
    wrong = encoder.row(random, 5)
    wrong["input_ids"][0, 2] = VOCABULARY
    given = SimulatedBackend(file, config_of(*encoder.declared)).execute([*rows, wrong])
    for head in encoder.heads:
        assert np.isnan(given[-1][head.value]).all()
        for row, answer in zip(rows, given, strict=False):
            np.testing.assert_allclose(
                answer[head.value], alone.run([head.value], row)[0], rtol=0, atol=1e-5
            )


@pytest.mark.parametrize("odd", oddgraphs.LOOKUPS + oddgraphs.ALIKE)
def test_what_changes_no_answer_is_adapted(load: Loads, odd: oddgraphs.Oddity) -> None:
    model = make(ENCODER)
    odd(model)
    stock = type(model).FromString(model.SerializeToString())
    code, report, file = load(model)
    assert code == 0, report.findings
    answers(file, stock)


def test_with_its_weights_beside_it(load: Loads) -> None:
    model = make(ENCODER)
    oddgraphs.branches_with_equal_names(model)
    stock = type(model).FromString(model.SerializeToString())
    code, report, file = load(
        model, save_as_external_data=True, location="weights.bin", size_threshold=100
    )
    assert code == 0, report.findings
    answers(file, stock)


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (oddgraphs.default_as_output, "output 'given_away' is an unchanged input"),
        (oddgraphs.table_without_rows, "accepts 0 IDs"),
    ],
)
def test_what_cannot_be_adapted_is_refused(load: Loads, odd: oddgraphs.Oddity, says: str) -> None:
    model = make(ENCODER)
    odd(model)
    code, report, _ = load(model)
    assert code == 2
    assert any(says in finding.message and URI in finding.message for finding in report.findings), (
        report.findings
    )


ENCODERS = st.builds(
    Encoder,
    opset=st.integers(11, 21),
    types=st.just(True),
    places=st.sampled_from(Places),
    masking=st.sampled_from(Masking),
    heads=st.sampled_from([(Head.LOGITS,), (Head.LOGITS, Head.HIDDEN)]),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    ENCODERS,
    st.none() | st.sampled_from(oddgraphs.LOOKUPS),
    st.lists(st.sampled_from(oddgraphs.ALIKE + oddgraphs.OTHERS), max_size=4, unique=True),
    st.booleans(),
)
def test_any_mixture_is_adapted_or_refused(
    load: Loads,
    encoder: Encoder,
    lookup: oddgraphs.Oddity | None,
    odds: list[oddgraphs.Oddity],
    beside: bool,
) -> None:
    model = make(encoder)
    for odd in (*([lookup] if lookup else ()), *odds):
        odd(model)
    stock = type(model).FromString(model.SerializeToString())
    saved = (
        {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 100}
        if beside
        else {}
    )
    code, report, file = load(model, encoder, **saved)
    event("adapted" if code == 0 else "refused")
    if code == 0:
        answers(file, stock, encoder)
        return
    assert code == 2
    assert {finding.reason for finding in report.findings} <= DECLARED, report.findings
    for finding in report.findings:
        assert URI in finding.message or (finding.field or "").startswith("spec."), finding
        assert NOT_FORESEEN not in finding.message


def broken(change: Callable[[Any], Any]) -> Any:
    model = make(ENCODER)
    change(model.graph)
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: graph.node.append(helper.make_node("Identity", [], ["made"])),
        lambda graph: graph.node.append(helper.make_node("Gather", ["input_ids"], ["made"])),
        lambda graph: graph.node.append(helper.make_node("Reshape", ["input_ids"], [])),
        lambda graph: graph.node.append(helper.make_node("Slice", [], ["made"])),
        lambda graph: graph.node.append(helper.make_node("If", [], ["made"])),
        lambda graph: graph.node.extend(
            [helper.make_node("Cast", ["b"], ["a"]), helper.make_node("Cast", ["a"], ["b"])]
        ),
        lambda graph: [
            graph.node.append(helper.make_node("Gather", ["c0", "b"], ["x"])),
            graph.node.append(helper.make_node("Cast", ["b"], ["b"])),
        ],
        lambda graph: graph.output[0].type.tensor_type.ClearField("elem_type"),
        lambda graph: setattr(graph.output[0].type.tensor_type, "elem_type", 99),
        lambda graph: setattr(graph.input[2].type.tensor_type, "elem_type", 99),
        lambda graph: graph.input[2].type.Clear(),
        lambda graph: graph.output.append(graph.output[0]),
        lambda graph: graph.initializer.append(
            numpy_helper.from_array(np.array([b"text"], object), "c1")
        ),
        lambda graph: graph.ClearField("node"),
    ],
)
def test_what_is_no_graph_is_refused_with_its_name(
    load: Loads, change: Callable[[Any], Any]
) -> None:
    code, report, _ = load(broken(change))
    assert code == 2
    assert {finding.reason for finding in report.findings} <= DECLARED, report.findings
    assert all(URI in finding.message for finding in report.findings), report.findings


def test_an_unexpected_error_is_a_refusal_that_names_it(
    load: Loads, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    def adapt_file(*_: Any, **__: Any) -> Any:
        raise IndexError("list index out of range")

    monkeypatch.setattr("triton_pipelines.loader.model_checks.adapt_file", adapt_file)
    code, report, _ = load(make(ENCODER))
    (finding,) = report.findings
    assert (code, finding.reason) == (2, LoadReason.RAGGED_UNSUPPORTED)
    assert URI in finding.message
    messages.check(finding.message)


def test_an_unexpected_error_in_a_check_refuses_nothing(
    load: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_mismatches(*_: Any) -> Any:
        raise IndexError("list index out of range")

    monkeypatch.setattr("triton_pipelines.loader.model_checks.find_mismatches", find_mismatches)
    code, report, _ = load(make(ENCODER))
    assert code == 0, report.findings


@pytest.mark.parametrize("turned", [False, True])
def test_tables_of_branches_are_told_apart(turned: bool) -> None:
    model = make(ENCODER)
    oddgraphs.branches_with_tables(model)
    if turned:
        # The order of a node's attributes says nothing.
        next(node for node in model.graph.node if node.op_type == "If").attribute.reverse()
    assert table_size(model.graph, "input_ids") == VOCABULARY
    assert table_size(model.graph, "token_type_ids") == TYPES


def test_a_constant_of_a_branch_hides_no_table_of_the_graph() -> None:
    model = make(ENCODER)
    lookup = next(node for node in model.graph.node if "input_ids" in node.input)
    inside = oddgraphs.branch("input_ids", np.zeros((3, 4), np.float32), named=lookup.input[0])
    model.graph.node.insert(
        0, helper.make_node("If", ["yes"], ["unused"], then_branch=inside, else_branch=inside)
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    assert table_size(model.graph, "input_ids") == VOCABULARY
    found = check_eligibility(model, ENCODER.plan())
    assert isinstance(found, Adaptable)
    assert found.sizes["input_ids"] == VOCABULARY
    assert positions(model.graph) == POSITIONS


def test_values_that_a_loop_hands_out_are_guarded(load: Loads) -> None:
    model = make(ENCODER)
    oddgraphs.loop_that_indexes(model)
    plan = ENCODER.plan()
    assert "the valid values of input 'input_ids' are unknown" in str(
        check_eligibility(model, plan)
    )
    known = check_eligibility(model, plan.model_copy(update={"vocabulary": VOCABULARY}))
    assert isinstance(known, Adaptable)
    assert known.sizes["input_ids"] == VOCABULARY
