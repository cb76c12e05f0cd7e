"""Odd but valid constructs that ONNX allows in a graph.

Each is inserted into an encoder of :mod:`tests.support.raggedgraphs`.

None of them changes what the encoder answers, unless it says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.support.raggedgraphs import WIDTH, as_calls

Oddity = Callable[[Any], None]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def _fresh(model: Any, name: str) -> str:
    """A name that the graph does not have."""
    taken = {value for node in model.graph.node for value in (*node.input, *node.output)} | {
        tensor.name for tensor in model.graph.initializer
    }
    return next(made for number in range(1000) if (made := f"{name}_{number}") not in taken)


def _constant(model: Any, value: Any) -> str:
    name = _fresh(model, "odd")
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def _node(model: Any, place: int, operator: str, inputs: list[str], **rest: Any) -> str:
    name = _fresh(model, operator.lower())
    model.graph.node.insert(place, helper.make_node(operator, inputs, [name], **rest))
    return name


def _embedded(model: Any) -> int:
    """Return the position after the lookup of the token ids.

    The result there is FLOAT [rows, tokens, WIDTH].
    """
    return 1 + next(place for place, node in enumerate(model.graph.node) if "v0" in node.output)


def _hook(model: Any) -> tuple[str, Callable[[str], None]]:
    """The embedded tokens, and what puts another value of their shape in their place."""
    place = _embedded(model)
    old = model.graph.node[place - 1].output[0]
    readers = [node for node in model.graph.node[place:] if old in node.input]

    def put(new: str) -> None:
        for node in readers:
            for number, name in enumerate(node.input):
                if name == old:
                    node.input[number] = new

    return old, put


def _value(name: str, kind: int = FLOAT, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def node_without_inputs(model: Any) -> None:
    """A Constant, the one operator of encoders that reads nothing; its attribute is no tensor."""
    value, put = _hook(model)
    zero = _node(model, 0, "Constant", [], value_float=0.0)
    put(_node(model, _embedded(model), "Add", [value, zero]))


def left_out_inputs(model: Any) -> None:
    """Clip without its lower bound, Slice without axes."""
    value, put = _hook(model)
    high, starts, ends, steps = (
        _constant(model, item)
        for item in (np.float32(1e9), np.array([0]), np.array([1 << 40]), np.array([1]))
    )
    cut = _node(model, _embedded(model), "Slice", [value, starts, ends, "", steps])
    place = 1 + next(number for number, node in enumerate(model.graph.node) if cut in node.output)
    put(_node(model, place, "Clip", [cut, "", high]))


def _if(model: Any, then: Any, otherwise: Any) -> str:
    condition = _constant(model, np.array(True))
    return _node(
        model, _embedded(model), "If", [condition], then_branch=then, else_branch=otherwise
    )


def branch(value: str, constant: Any, operator: str = "Add", named: str = "shared") -> Any:
    """A branch whose constant and result have the names of those in the other branch."""
    node = helper.make_node(operator, [value, named], ["result"])
    return helper.make_graph(
        [node],
        "branch",
        [],
        [_value("result")],
        [numpy_helper.from_array(np.asarray(constant), named)],
    )


def branches_with_equal_names(model: Any) -> None:
    value, put = _hook(model)
    put(_if(model, branch(value, np.float32(0)), branch(value, np.zeros((2, 1, 1), np.float32))))


def _lookup(table: Any) -> Any:
    gather = helper.make_node("Gather", ["table", "index"], ["result"])
    index = helper.make_node("Identity", ["input_ids"], ["index"])
    return helper.make_graph(
        [index, gather], "lookup", [], [_value("result")], [numpy_helper.from_array(table, "table")]
    )


def branches_with_tables(model: Any) -> None:
    """Look up the ids in a branch.

    The table of the other branch has the same name and fewer rows, and is not for ids.
    """
    place = _embedded(model)
    lookup = model.graph.node[place - 1]
    table = next(
        numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.name == lookup.input[0]
    )
    other = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "index"], ["result"]),
        ],
        "other",
        [],
        [_value("result")],
        [
            numpy_helper.from_array(np.zeros((3, WIDTH), table.dtype), "table"),
            numpy_helper.from_array(np.zeros((1, 1), np.int64), "index"),
        ],
    )
    new = helper.make_node(
        "If",
        [_constant(model, np.array(True))],
        [lookup.output[0]],
        then_branch=_lookup(table),
        else_branch=other,
    )
    model.graph.node[place - 1].CopyFrom(new)


def nested_branches(model: Any) -> None:
    value, put = _hook(model)
    inner = helper.make_node(
        "If",
        ["inside"],
        ["result"],
        then_branch=branch(value, np.float32(0), named="deep"),
        else_branch=branch(value, np.float32(1), named="deep"),
    )
    inner.attribute[0].g.output[0].name = inner.attribute[0].g.node[0].output[0] = "deep_result"
    inner.attribute[1].g.output[0].name = inner.attribute[1].g.node[0].output[0] = "deep_result"
    outer = helper.make_graph(
        [inner],
        "outer",
        [],
        [_value("result")],
        [numpy_helper.from_array(np.array(True), "inside")],
    )
    put(_if(model, outer, branch(value, np.float32(0))))


def loop(model: Any) -> None:
    """Three times nothing is added to the embedded tokens, which a Loop carries."""
    value, put = _hook(model)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("Add", ["carried", "nothing"], ["next"]),
        ],
        "body",
        [_value("turn", INT64, []), _value("going", TensorProto.BOOL, []), _value("carried")],
        [_value("on", TensorProto.BOOL, []), _value("next")],
        [numpy_helper.from_array(np.array(0, np.float32), "nothing")],
    )
    put(
        _node(
            model, _embedded(model), "Loop", [_constant(model, np.array(3)), "", value], body=body
        )
    )


def loop_that_indexes(model: Any) -> None:
    """Pass the ids through a Loop whose output indexes the table.

    The number of rows is therefore not visible.
    """
    place = _embedded(model)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("Identity", ["carried"], ["next"]),
        ],
        "body",
        [
            _value("turn", INT64, []),
            _value("going", TensorProto.BOOL, []),
            _value("carried", INT64),
        ],
        [_value("on", TensorProto.BOOL, []), _value("next", INT64)],
    )
    ids = _node(
        model, place - 1, "Loop", [_constant(model, np.array(1)), "", "input_ids"], body=body
    )
    model.graph.node[place].input[1] = ids


def scan(model: Any) -> None:
    """Each token's embedding goes through the body of a Scan."""
    value, put = _hook(model)
    body = helper.make_graph(
        [helper.make_node("Identity", ["one"], ["same"])], "body", [_value("one")], [_value("same")]
    )
    put(
        _node(
            model,
            _embedded(model),
            "Scan",
            [value],
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[1],
            scan_output_axes=[1],
        )
    )


def hidden_names(model: Any) -> None:
    """A branch has a constant of its own under the name of a constant of the graph."""
    value, put = _hook(model)
    name = next(tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2)
    put(
        _if(
            model,
            branch(value, np.float32(0), named=name),
            branch(value, np.float32(0), named=name),
        )
    )


def initializer_as_output(model: Any) -> None:
    """Add an output that depends on nothing."""
    model.graph.initializer.append(
        numpy_helper.from_array(np.ones((1, 2), np.float32), "given_away")
    )
    model.graph.output.append(_value("given_away", FLOAT, ["batch", 2]))


def default_as_output(model: Any) -> None:
    """The same, and callers may give it."""
    initializer_as_output(model)
    model.graph.input.append(_value("given_away", FLOAT, [1, 2]))


def overridable(model: Any) -> None:
    """Weights that callers may give, as all were before IR version 4."""
    model.graph.input.extend(
        _value(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in model.graph.initializer
    )


def sparse(model: Any) -> None:
    value, put = _hook(model)
    values = numpy_helper.from_array(np.zeros(1, np.float32), _fresh(model, "sparse"))
    indices = numpy_helper.from_array(np.array([[0, 3]]), "")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [1, WIDTH]))
    put(_node(model, _embedded(model), "Add", [value, values.name]))


def no_elements(model: Any) -> None:
    """A tensor without elements is joined to the embedded tokens."""
    value, put = _hook(model)
    whole = _node(model, _embedded(model), "Shape", [value])
    flat = _node(model, _embedded(model), "Reshape", [value, _constant(model, np.array([-1]))])
    at = 1 + next(number for number, node in enumerate(model.graph.node) if flat in node.output)
    joined = _node(model, at, "Concat", [flat, _constant(model, np.zeros(0, np.float32))], axis=0)
    at = 1 + max(
        number for number, node in enumerate(model.graph.node) if {joined, whole} & set(node.output)
    )
    put(_node(model, at, "Reshape", [joined, whole]))


def sequences(model: Any) -> None:
    """The embedded tokens in a sequence of one, and out of it again."""
    value, put = _hook(model)
    made = _node(model, _embedded(model), "SequenceConstruct", [value])
    at = 1 + next(number for number, node in enumerate(model.graph.node) if made in node.output)
    put(_node(model, at, "ConcatFromSequence", [made], axis=0))


def other_name_of_the_domain(model: Any) -> None:
    for node in model.graph.node[::2]:
        node.domain = "ai.onnx"


def more_domains(model: Any) -> None:
    """An operator of ONNX Runtime, and a domain that nothing is of."""
    value, put = _hook(model)
    model.opset_import.extend(
        [helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ai.onnx.ml", 3)]
    )
    one = _constant(model, np.eye(WIDTH, dtype=np.float32))
    put(
        _node(
            model, _embedded(model), "FusedMatMul", [value, one], domain="com.microsoft", alpha=1.0
        )
    )


def names_like_the_adapters(model: Any) -> None:
    value, put = _hook(model)
    model.graph.node.insert(
        _embedded(model),
        helper.make_node("Identity", [value], ["ragged/constant_0"], name="ragged/Concat_1"),
    )
    put("ragged/constant_0")


def wrong_order(model: Any) -> None:
    """Place the lookup after its reader: ONNX forbids that, and ONNX Runtime sorts it."""
    place = _embedded(model) - 1
    lookup = type(model.graph.node[0]).FromString(model.graph.node[place].SerializeToString())
    del model.graph.node[place]
    model.graph.node.append(lookup)


def counted_from_the_end(model: Any) -> None:
    """The axis of the lookup is that many from the last."""
    lookup = model.graph.node[_embedded(model) - 1]
    lookup.attribute.append(helper.make_attribute("axis", -2))


def table_without_rows(model: Any) -> None:
    """Nothing can be looked up: no text is answered, as long as the model is."""
    lookup = model.graph.node[_embedded(model) - 1]
    table = next(tensor for tensor in model.graph.initializer if tensor.name == lookup.input[0])
    table.CopyFrom(numpy_helper.from_array(np.zeros((0, WIDTH), np.float32), table.name))


def notes(model: Any) -> None:
    """What says something about the graph and is none of it."""
    model.metadata_props.add(key="made", value="here")
    model.graph.doc_string = "odd"
    model.graph.value_info.append(_value("nowhere", FLOAT, [0]))
    annotation = model.graph.quantization_annotation.add(tensor_name="logits")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="nowhere")


LOOKUPS: tuple[Oddity, ...] = (
    as_calls,
    branches_with_tables,
    loop_that_indexes,
    counted_from_the_end,
)
"""Graphs with another lookup of the token ids.

It replaces that of the encoder, or precedes all others.
"""
ALIKE: tuple[Oddity, ...] = (
    node_without_inputs,
    left_out_inputs,
    branches_with_equal_names,
    nested_branches,
    loop,
    scan,
    hidden_names,
    initializer_as_output,
    overridable,
    sparse,
    no_elements,
    sequences,
    other_name_of_the_domain,
    more_domains,
    names_like_the_adapters,
    notes,
)
"""With these and with those the encoder takes ragged batches as well as without."""
OTHERS: tuple[Oddity, ...] = (default_as_output, wrong_order)
