"""Decide which nodes of a graph run on flat tokens and which on padded matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from triton_pipelines.loader.onnx_graph.graph_walk import names_read
from triton_pipelines.loader.ragged.padding_free.position_wise import (
    HEAVY,
    FlatOperator,
    Reading,
    flat_operator,
)
from triton_pipelines.loader.ragged.padding_free.tensor_facts import Facts

_CONTRACTING: Final = frozenset({"MatMul", "Gemm", "Einsum", "Conv", "Attention", "QLinearMatMul"})
"""Operators that sum over the places of a row.

What padding adds to the sum is multiplied by 0, or the graph would not be adaptable.
"""


_SHAPES: Final = frozenset({"Shape", "Size"})
"""Operators that do not read the elements of their input."""


class PaddingContent(Enum):
    """What the places behind a row hold in the padded form of a tensor."""

    FREE = "anything: no output depends on it"
    SET = "values that the mask decides, and that the graph may need there"


@dataclass(frozen=True)
class Placement:
    """Where each node runs."""

    flat: Mapping[int, FlatOperator]
    """Number of a node → how it runs on flat tokens."""
    neutral: frozenset[int]
    """Numbers of the nodes that do not depend on the inputs."""
    flat_products: int
    """Matrix products with weights that run on flat tokens."""
    products: int
    """All matrix products with weights."""
    blocker: str = ""
    """The first matrix product with weights that does not run on flat tokens; empty if all do."""


def place_nodes(nodes: Sequence[Any], facts: Facts, sources: Sequence[str]) -> Placement:
    """Decide where each node of a stock graph runs.

    Args:
        nodes: the graph's nodes, in order.
        facts: facts about its tensors.
        sources: the inputs with one value per token.
    """
    neutral = frozenset(
        number
        for number, node in enumerate(nodes)
        if all((fact := facts.get(name)) and fact.is_neutral for name in node.output if name)
    )
    candidates = {
        number: operator
        for number, node in enumerate(nodes)
        if number not in neutral and (operator := flat_operator(node, facts)) is not None
    }
    flat = _downstream_of_lookups(nodes, candidates, facts)
    _require_padding_values(nodes, candidates, flat, facts, sources)
    _drop_light_islands(nodes, flat)
    return _placement(nodes, flat, neutral, facts)


def _downstream_of_lookups(
    nodes: Sequence[Any], candidates: Mapping[int, FlatOperator], facts: Facts
) -> dict[int, FlatOperator]:
    """Return the candidates that read something flat, or are wide enough to begin with it.

    What is computed from masks alone has one value per token, and stays padded.
    """
    flat: dict[int, FlatOperator] = {}
    made: set[str] = set()
    for number, operator in candidates.items():
        node = nodes[number]
        if _begins_flat(node, operator, facts) or made.intersection(node.input):
            flat[number] = operator
            made.update(node.output)
    return flat


def _begins_flat(node: Any, operator: FlatOperator, facts: Facts) -> bool:
    """Return whether a node is worth laying its input out flat: products and wide lookups."""
    if node.op_type in HEAVY:
        return True
    if node.op_type != "Gather" or operator.readings[0] is not Reading.AS_IS:
        return False
    tokens = facts[node.output[0]].tokens
    return tokens is not None and any(dim > 1 for dim in (*tokens.before, *tokens.behind))


def _require_padding_values(
    nodes: Sequence[Any],
    candidates: Mapping[int, FlatOperator],
    flat: dict[int, FlatOperator],
    facts: Facts,
    sources: Sequence[str],
) -> None:
    """Run nodes padded whose results a padded node needs with the values behind the rows.

    Flat tokens have no such values. They can be put back only where they are all the same.
    """
    padding = _paddings(nodes, candidates, facts, sources)
    producer = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    waiting = [number for number in range(len(nodes)) if number not in flat]
    while waiting:
        number = waiting.pop()
        for name in names_read(nodes[number]):
            source = producer.get(name)
            if source not in flat or padding.get(name) is not PaddingContent.SET:
                continue
            if facts[name].filler is None:
                del flat[source]
                waiting.append(source)


def _paddings(
    nodes: Sequence[Any],
    candidates: Mapping[int, FlatOperator],
    facts: Facts,
    sources: Sequence[str],
) -> dict[str, PaddingContent]:
    """Return what each tensor that depends on the inputs has behind its rows."""
    padding = dict.fromkeys(sources, PaddingContent.SET)
    for number, node in enumerate(nodes):
        read = [name for name in names_read(node) if name in padding]
        if not read:
            continue
        is_set = any(padding[name] is PaddingContent.SET for name in read)
        if node.op_type in _SHAPES:
            is_set = False
        elif number in candidates:
            is_set = is_set and not _is_free(node, candidates[number], padding, facts)
        elif node.op_type in _CONTRACTING and len(read) > 1:
            is_set = False
        padding.update(
            dict.fromkeys(node.output, PaddingContent.SET if is_set else PaddingContent.FREE)
        )
    return padding


def _is_free(
    node: Any, operator: FlatOperator, padding: Mapping[str, PaddingContent], facts: Facts
) -> bool:
    """Return whether a position-wise node hides what the mask decided behind the rows."""
    if node.op_type == "Gather" and operator.readings[0] is Reading.AS_IS:
        # The table's entry of the padding id is as good as that of any other.
        return True
    if node.op_type not in {"Add", "Sub"}:
        return False
    states = {padding.get(name) for name in node.input}
    zeros = all(
        facts[name].filler == 0 for name in node.input if padding.get(name) is PaddingContent.SET
    )
    return zeros and PaddingContent.FREE in states


def _drop_light_islands(nodes: Sequence[Any], flat: dict[int, FlatOperator]) -> None:
    """Run flat nodes padded where no matrix product depends on laying their tensors out flat.

    Groups of nodes that hand flat tensors to each other are kept or dropped as a whole.
    """
    group = {number: number for number in flat}

    def root(number: int) -> int:
        while group[number] != number:
            number = group[number]
        return number

    producer = {name: number for number in flat for name in nodes[number].output if name}
    for number in flat:
        for name in nodes[number].input:
            if name in producer:
                group[root(producer[name])] = root(number)
    heavy = {root(number) for number in flat if nodes[number].op_type in HEAVY}
    for number in [number for number in flat if root(number) not in heavy]:
        del flat[number]


def _placement(
    nodes: Sequence[Any], flat: Mapping[int, FlatOperator], neutral: frozenset[int], facts: Facts
) -> Placement:
    products = [
        number
        for number, node in enumerate(nodes)
        if number not in neutral and _is_projection(node, facts)
    ]
    padded = [number for number in products if number not in flat]
    return Placement(
        flat,
        neutral,
        len(products) - len(padded),
        len(products),
        nodes[padded[0]].name or nodes[padded[0]].output[0] if padded else "",
    )


def _is_projection(node: Any, facts: Facts) -> bool:
    """Return whether a node multiplies what each token, not each row, has with weights."""
    fact = facts.get(node.output[0])
    weights = facts.get(node.input[1]) if len(node.input) > 1 else None
    return (
        node.op_type in HEAVY
        and weights is not None
        and weights.is_neutral
        and fact is not None
        and fact.tokens is not None
    )
