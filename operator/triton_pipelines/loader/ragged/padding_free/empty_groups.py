"""Skip the operators of a group of rows where the batch has none for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from onnx import helper, numpy_helper

from triton_pipelines.loader.onnx_graph.graph_walk import names_read

LEAST: Final = 5
"""Operators for which a branch is worth its own cost."""


@dataclass(frozen=True)
class GroupResult:
    """A tensor that a group adds to the flat tokens."""

    name: str
    """Its name."""
    is_empty: str
    """Name of the tensor that tells whether the group is empty."""
    shape: tuple[int, ...]
    """Its shape for an empty group, which has one place."""
    dtype: np.dtype[Any]
    """Its element type."""


def skip_empty_groups(
    nodes: Sequence[Any], results: Collection[GroupResult], outputs: Collection[str]
) -> list[Any]:
    """Return the nodes, with those that only one result needs in a branch of an If.

    Args:
        nodes: nodes of a graph, in order.
        results: results of groups that may be empty.
        outputs: tensors that are needed after these nodes.
    """
    readers: dict[str, set[int]] = defaultdict(set)
    producer: dict[str, int] = {}
    for number, node in enumerate(nodes):
        for name in names_read(node):
            readers[name].add(number)
        producer.update(dict.fromkeys(node.output, number))
    kept: list[Any] = list(nodes)
    for result in results:
        last = producer.get(result.name)
        if last is None:
            continue
        own = {last}
        for number in range(last - 1, -1, -1):
            read_by = set().union(*(readers[name] for name in nodes[number].output))
            if read_by and read_by <= own and not set(outputs).intersection(nodes[number].output):
                own.add(number)
        if len(own) < LEAST:
            continue
        for number in own:
            kept[number] = None
        kept[last] = _branch([nodes[number] for number in sorted(own)], result)
    return [node for node in kept if node is not None]


def _branch(nodes: Sequence[Any], result: GroupResult) -> Any:
    """Return an If that runs the nodes unless the group is empty."""
    kind = helper.np_dtype_to_tensor_dtype(result.dtype)
    none, some = f"{result.name}/none", f"{result.name}/some"
    zeros = numpy_helper.from_array(np.zeros(result.shape, result.dtype))
    last = type(nodes[-1]).FromString(nodes[-1].SerializeToString())
    last.output[0] = some
    empty = helper.make_node("Constant", [], [none], value=zeros)
    return helper.make_node(
        "If",
        [result.is_empty],
        [result.name],
        name=f"{result.name}/If",
        then_branch=helper.make_graph(
            [empty], "empty", [], [helper.make_tensor_value_info(none, kind, None)]
        ),
        else_branch=helper.make_graph(
            [*nodes[:-1], last], "rows", [], [helper.make_tensor_value_info(some, kind, None)]
        ),
    )
