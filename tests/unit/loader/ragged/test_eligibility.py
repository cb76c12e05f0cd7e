"""Which graphs are adapted, for what, and which are refused with which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.messages import Messages
from tests.support.raggedgraphs import (
    CLASSES,
    POSITIONS,
    TYPES,
    VOCABULARY,
    WIDTH,
    Encoder,
    Head,
    Places,
    as_calls,
    make,
)
from triton_pipelines.api.loadplan import PlanAdapt, PlanRaggedInput
from triton_pipelines.loader.onnx_graph.inline_functions import inline_local_functions
from triton_pipelines.loader.ragged import AdaptationRefusal
from triton_pipelines.loader.ragged.eligibility import Adaptable, check_eligibility
from triton_pipelines.loader.ragged.graph_adapter import adapt

Change = Callable[[Any], None]


def said(model: Any, plan: PlanAdapt) -> str:
    found = check_eligibility(model, plan)
    assert isinstance(found, AdaptationRefusal)
    assert all(reason.problem and reason.advice for reason in found.reasons)
    return str(found)


def axis(name: str, number: int, length: int) -> Change:
    def change(model: Any) -> None:
        value = next(
            value for value in (*model.graph.input, *model.graph.output) if value.name == name
        )
        value.type.tensor_type.shape.dim[number].dim_value = length

    return change


def more_input(name: str, *dims: Any) -> Change:
    return lambda model: model.graph.input.append(
        helper.make_tensor_value_info(name, TensorProto.INT64, list(dims))
    )


def more_output(name: str, kind: int, *dims: Any) -> Change:
    def change(model: Any) -> None:
        model.graph.node.append(helper.make_node("Cast", ["attention_mask"], [name], to=kind))
        model.graph.output.append(helper.make_tensor_value_info(name, kind, list(dims)))

    return change


def more_node(operator: str, count: int, domain: str = "", **attributes: Any) -> Change:
    def change(model: Any) -> None:
        model.graph.node.append(
            helper.make_node(
                operator, ["v0"], [f"more{n}" for n in range(count)], domain=domain, **attributes
            )
        )

    return change


def without_shape(model: Any) -> None:
    model.graph.output[0].type.tensor_type.ClearField("shape")


def inside_a_function(model: Any) -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    model.functions.append(
        helper.make_function(
            "local", "Quantize", ["x"], ["y"], [node], [helper.make_opsetid("", 17)]
        )
    )


REFUSED: dict[str, tuple[Change, str]] = {
    "tokens fixed": (
        axis("input_ids", 1, 128),
        "input 'input_ids' has a fixed axis of tokens; set spec.tokenizer.padding to Fixed and "
        "spec.tokenizer.maxLength to 128",
    ),
    "rows fixed": (axis("attention_mask", 0, 1), "input 'attention_mask' has a fixed axis of rows"),
    "positions": (
        more_input("position_ids", "batch", "sequence"),
        "input 'position_ids' has positions, which tokenizers do not provide; export the "
        "model without",
    ),
    "another axis": (
        more_input("pixels", "batch", 3, "width"),
        "input 'pixels' has a dynamic axis whose size the tokenizer does not determine",
    ),
    "no rows": (more_input("scale", 1), "input 'scale' has no row axis"),
    "a taken name": (
        more_input("input_ids__shape", "batch", 1),
        "the name of tensor 'input_ids__shape' is reserved",
    ),
    "a text": (
        more_output("text", TensorProto.STRING, "batch"),
        "output 'text' has type STRING, a type that has no value to mark invalid rows",
    ),
    "a switch": (
        more_output("yes", TensorProto.BOOL, "batch", "sequence"),
        "output 'yes' has type BOOL",
    ),
    "one answer": (more_output("total", TensorProto.FLOAT, 1), "output 'total' has no row axis"),
    "any shape": (without_shape, "output 'logits' has no shape in the file"),
    "int8": (
        more_node("DynamicQuantizeLinear", 3),
        "operator DynamicQuantizeLinear: its scale is computed over the whole batch",
    ),
    "int8, fused": (
        more_node("DynamicQuantizeMatMul", 1, "com.microsoft"),
        "operator DynamicQuantizeMatMul: its scale is computed",
    ),
    "int8, in a function": (
        inside_a_function,
        "operator DynamicQuantizeLinear: its scale is computed",
    ),
    "recurrent": (
        more_node("LSTM", 1, hidden_size=4),
        "operator LSTM: a recurrent layer without sequence_lens",
    ),
    "random": (
        more_node("RandomNormalLike", 1),
        "operator RandomNormalLike: its values are random",
    ),
    "training": (
        more_node("BatchNormalization", 1, training_mode=1),
        "operator BatchNormalization: in training mode",
    ),
}


@pytest.mark.parametrize(("change", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_adapted_is_refused_in_words(change: Change, words: str) -> None:
    encoder = Encoder()
    model = make(encoder)
    assert isinstance(check_eligibility(model, encoder.plan()), Adaptable)
    change(model)
    assert words in said(model, encoder.plan())


def test_every_reason_is_told_at_once() -> None:
    encoder = Encoder()
    model = make(encoder)
    for change in (
        axis("input_ids", 1, 128),
        more_input("position_ids", "batch", "sequence"),
        more_node("DynamicQuantizeLinear", 3),
    ):
        change(model)
    found = check_eligibility(model, encoder.plan())
    assert isinstance(found, AdaptationRefusal)
    assert len(found.reasons) == 3


def test_a_model_needs_a_mask_that_does_something() -> None:
    encoder = Encoder()
    plan = encoder.plan()
    model = make(encoder)
    assert "the model has no attention mask" in said(
        model, plan.model_copy(update={"inputs": plan.inputs[:1]})
    )
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[place] = "input_ids"
    model.graph.node.append(helper.make_node("Identity", ["attention_mask"], ["unread"]))
    assert "no output depends on 'attention_mask'" in said(model, plan)
    del model.graph.node[-1]
    assert "no operator reads input 'attention_mask'" in said(model, plan)


def test_a_mask_need_not_be_called_so() -> None:
    encoder = Encoder(types=True)
    model = make(encoder)
    names = {"attention_mask": "attn", "input_ids": "tokens", "token_type_ids": "segments"}
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
    for value in model.graph.input:
        value.name = names[value.name]
    inputs = tuple(PlanRaggedInput(name=names[name]) for name in encoder.inputs)
    found = check_eligibility(model, encoder.plan().model_copy(update={"inputs": inputs}))
    assert isinstance(found, Adaptable)
    assert found.masks == ("attn",)


def test_a_fused_embedding_shows_its_tables() -> None:
    """Test what ONNX Runtime's optimizer makes of BERT's three embeddings.

    It is one operator that reads ids, types and all tables.
    """
    tables = {
        "words": (VOCABULARY, WIDTH),
        "places": (POSITIONS, WIDTH),
        "types": (TYPES, WIDTH),
        "gamma": (WIDTH,),
        "beta": (WIDTH,),
    }
    node = helper.make_node(
        "EmbedLayerNormalization",
        ["ids", "segments", *tables, "mask"],
        ["x", "count"],
        domain="com.microsoft",
    )
    batch = ["batch", "sequence"]
    graph = helper.make_graph(
        [node],
        "fused",
        [
            helper.make_tensor_value_info(name, TensorProto.INT32, batch)
            for name in ("ids", "segments", "mask")
        ],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*batch, WIDTH])],
        [
            numpy_helper.from_array(np.zeros(shape, np.float32), name)
            for name, shape in tables.items()
        ],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    )
    inputs = tuple(PlanRaggedInput(name=name) for name in ("ids", "segments", "mask"))
    found = check_eligibility(
        model, PlanAdapt(step="model", path="m/1/model.onnx", inputs=inputs, token_outputs=("x",))
    )
    assert isinstance(found, Adaptable), str(found)
    assert (found.max_length, found.sizes) == (POSITIONS, {"ids": VOCABULARY, "segments": TYPES})


def test_names_of_the_plan_that_the_file_does_not_have(messages: Messages) -> None:
    encoder = Encoder(heads=(Head.HIDDEN,))
    other = PlanAdapt(
        step="model",
        path="m/1/model.onnx",
        inputs=(PlanRaggedInput(name="ids"), PlanRaggedInput(name="attention_mask")),
        token_outputs=("states",),
    )
    words = said(make(encoder), other)
    assert "spec.model.inputs" in words
    assert "spec.model.outputs" in words
    messages.check(words)


def test_an_output_per_token_has_tokens() -> None:
    encoder = Encoder(heads=(Head.LOGITS,))
    assert "output 'logits' has no token axis" in said(
        make(encoder), encoder.plan().model_copy(update={"token_outputs": ("logits",)})
    )


@pytest.mark.parametrize("places", Places)
def test_what_the_graph_says_of_itself(places: Places) -> None:
    encoder = Encoder(places=places, types=True)
    found = check_eligibility(make(encoder), encoder.plan(max_length=12, vocabulary=9))
    assert isinstance(found, Adaptable)
    # What counts positions must be 0 or 1.
    counted = {"attention_mask": 2} if places is Places.MASK else {}
    assert found.sizes == {"input_ids": VOCABULARY, "token_type_ids": TYPES, **counted}
    shown = {Places.SLICED_TABLE, Places.BUFFER, Places.RANGE}
    # What the file shows counts; the plan's word is for what it does not show.
    assert found.max_length == (POSITIONS if places in shown else 12)


def test_a_vocabulary_behind_other_operators_comes_from_the_plan() -> None:
    encoder = Encoder()
    model = make(encoder)
    node = model.graph.node[0]
    assert node.op_type == "Gather"
    model.graph.node.insert(0, helper.make_node("Add", ["input_ids", "shift"], ["shifted"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "shift"))
    node.input[1] = "shifted"
    found = check_eligibility(model, encoder.plan(vocabulary=9))
    assert isinstance(found, Adaptable)
    assert found.sizes == {"input_ids": 9}
    # Where nobody knows it, one id out of range would fail a whole batch.
    assert "the valid values of input 'input_ids' are unknown" in said(model, encoder.plan())


def in_a_body(model: Any) -> None:
    """The lookup of the token ids stands in both branches of an If."""
    lookup = model.graph.node[0]
    assert lookup.op_type == "Gather"
    bodies = {}
    for name in ("then_branch", "else_branch"):
        node = helper.make_node("Gather", list(lookup.input), [name])
        bodies[name] = helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    lookup.CopyFrom(helper.make_node("If", ["always"], list(lookup.output), **bodies))


def quantized(model: Any) -> None:
    """The table is kept as int8 and made real numbers when the model runs."""
    lookup = model.graph.node[0]
    table = next(tensor for tensor in model.graph.initializer if tensor.name == lookup.input[0])
    table.CopyFrom(numpy_helper.from_array(np.ones((VOCABULARY, WIDTH), np.int8), table.name))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "scale"))
    model.graph.node.insert(
        0, helper.make_node("DequantizeLinear", [table.name, "scale"], ["real"])
    )
    lookup.input[0] = "real"


@pytest.mark.parametrize("change", [in_a_body, quantized])
def test_a_table_is_found_where_it_is_read(change: Change) -> None:
    encoder = Encoder()
    model = make(encoder)
    change(model)
    onnx.checker.check_model(model)
    found = check_eligibility(model, encoder.plan())
    assert isinstance(found, Adaptable), str(found)
    assert found.sizes == {"input_ids": VOCABULARY}


def test_local_functions_are_written_out() -> None:
    encoder = Encoder()
    model = make(encoder)
    as_calls(model)
    onnx.checker.check_model(model)
    weights = [tensor.SerializeToString() for tensor in model.graph.initializer]
    assert "calls the local function Look, in which its inputs cannot be tracked" in said(
        model, encoder.plan()
    )
    inline_local_functions(model)
    onnx.checker.check_model(model)
    assert not model.functions
    assert [tensor.SerializeToString() for tensor in model.graph.initializer] == weights
    found = check_eligibility(model, encoder.plan())
    assert isinstance(found, Adaptable), str(found)
    assert found.sizes == {"input_ids": VOCABULARY}


def test_a_graph_that_is_adapted_already_is_refused(messages: Messages) -> None:
    encoder = Encoder()
    model = make(encoder)
    found = check_eligibility(model, encoder.plan())
    assert isinstance(found, Adaptable)
    once = adapt(model, found)
    onnx.checker.check_model(once, full_check=True)
    words = said(once, encoder.plan())
    assert "input_ids" in words
    assert "input_ids__shape" in words
    messages.check(words)


def test_an_adapted_graph_keeps_its_contract() -> None:
    encoder = Encoder(small_ids=True, types=True, heads=(Head.LOGITS, Head.HIDDEN, Head.TAGS))
    model = make(encoder)
    found = check_eligibility(model, encoder.plan())
    assert isinstance(found, Adaptable)
    weights = len(model.graph.initializer)
    graph = adapt(model, found).graph
    shapes = {
        value.name: [dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {
        **{name: [-1] for name in encoder.inputs},
        **{f"{name}__shape": [-1, 1] for name in encoder.inputs},
        "logits": [-1, CLASSES],
        "hidden": [-1, WIDTH],
        "tags": [-1],
    }
    assert {value.type.tensor_type.elem_type for value in graph.input} == {TensorProto.INT32}
    assert len(graph.initializer) > weights
    assert all(node.domain == "" for node in graph.node)
