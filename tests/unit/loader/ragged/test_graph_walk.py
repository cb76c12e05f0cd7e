"""Renaming sees what a body sees, and no more."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper

from triton_pipelines.loader.onnx_graph.graph_walk import every_node, reached, rename


def body(name: str, reads: str, makes: str, output: str, *inner: Any) -> Any:
    nodes = [*inner, helper.make_node("Identity", [reads], [makes])]
    return helper.make_graph(
        nodes, name, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    )


def outer(*branches: Any) -> Any:
    node = helper.make_node(
        "If", ["condition"], ["y"], then_branch=branches[0], else_branch=branches[1]
    )
    return helper.make_graph(
        [node], "outer", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )


def identity(graph: Any) -> tuple[str, str, str]:
    node = graph.node[-1]
    return node.input[0], node.output[0], graph.output[0].name


def branches(graph: Any) -> list[Any]:
    held = {attribute.name: attribute.g for attribute in graph.node[0].attribute}
    return [held["then_branch"], held["else_branch"]]


def test_bodies_read_the_new_name_and_keep_what_hides_it() -> None:
    hides = body(
        "else", "x", "x_else", "x_else", helper.make_node("Constant", [], ["x"], value_float=1.0)
    )
    graph = outer(body("then", "x", "x_then", "x_then"), hides)
    rename(graph, {"x": "new"})
    assert [identity(one) for one in branches(graph)] == [
        ("new", "x_then", "x_then"),
        ("x", "x_else", "x_else"),
    ]


def test_a_body_in_a_body() -> None:
    nested = outer(body("a", "x", "xa", "xa"), body("b", "x", "xb", "xb")).node[0]
    graph = outer(body("then", "y0", "yt", "yt", nested), body("else", "z", "ye", "ye"))
    rename(graph, {"x": "new", "y": "inner"})
    assert graph.node[0].output[0] == "inner"
    # The inner If has an output y of its own.
    inside = branches(graph)[0].node[0]
    assert inside.output[0] == "y"
    assert [attribute.g.node[0].input[0] for attribute in inside.attribute] == ["new", "new"]


def test_a_body_that_hands_an_outer_value_out() -> None:
    graph = outer(body("then", "z", "zt", "x"), body("else", "z", "ze", "ze"))
    rename(graph, {"x": "new"})
    assert identity(branches(graph)[0]) == ("z", "zt", "new")


def test_what_a_body_reads_reaches_its_node() -> None:
    graph = outer(body("then", "mask", "a", "a"), body("else", "other", "b", "b"))
    assert reached(graph, ["mask"]) == {"mask", "y"}
    assert reached(graph, ["nothing"]) == {"nothing"}


def test_nodes_of_bodies_and_functions_are_seen() -> None:
    function = helper.make_function(
        "local",
        "F",
        ["x"],
        ["y"],
        [helper.make_node("Relu", ["x"], ["y"])],
        [helper.make_opsetid("", 17)],
    )
    made = helper.make_model(
        outer(body("then", "x", "a", "a"), body("else", "x", "b", "b")), functions=[function]
    )
    assert [node.op_type for node in every_node(made)] == ["If", "Identity", "Identity", "Relu"]
