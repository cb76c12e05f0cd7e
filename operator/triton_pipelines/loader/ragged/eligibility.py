"""Decide whether a graph can take ragged batches without changing an output, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import onnx

from triton_pipelines.api.loadplan import PlanAdapt, shape_input
from triton_pipelines.api.wording import numbered
from triton_pipelines.loader.onnx_graph.graph_walk import (
    dims,
    element_type,
    every_node,
    inputs,
    opset,
    reached,
    values,
)
from triton_pipelines.loader.onnx_graph.input_limits import indexes, positions, table_size
from triton_pipelines.loader.ragged.batch_dependence import batch_dependent_operators

OPSET: Final = 13
"""First opset in which the adapter's operators take their axes as inputs."""
_T: Final = onnx.TensorProto
TOKENS: Final = frozenset({_T.INT64, _T.INT32, _T.FLOAT, _T.FLOAT16, _T.BOOL})
"""Element types of inputs that may become flat."""
_INTEGERS: Final = frozenset({_T.INT64, _T.INT32})
MARKED: Final = frozenset({_T.DOUBLE, _T.FLOAT, _T.FLOAT16, _T.INT64, _T.INT32})
"""Element types of outputs that have a value to mark a broken row with: not-a-number, or -1."""
FIXED: Final = "set spec.tokenizer.padding to Fixed"


@dataclass(frozen=True)
class Obstacle:
    """One reason why a graph cannot be adapted."""

    problem: str
    """What is wrong."""
    advice: str
    """What the user can do."""

    def __str__(self) -> str:
        return f"{self.problem}; {self.advice}"


@dataclass(frozen=True)
class AdaptationRefusal:
    """A graph that cannot be adapted."""

    reasons: tuple[Obstacle, ...]
    """All obstacles."""

    @classmethod
    def of(cls, problem: str, advice: str) -> AdaptationRefusal:
        """Return a refusal with a single reason."""
        return cls((Obstacle(problem, advice),))

    def __str__(self) -> str:
        return numbered([str(reason) for reason in self.reasons])


@dataclass(frozen=True)
class Adaptable:
    """A graph that can be adapted, and what it is adapted for."""

    plan: PlanAdapt
    """Inputs and outputs per token, from the load plan."""
    opset: int
    """The graph's version of the standard operators."""
    max_length: int | None = None
    """Maximum tokens of a row; ``None`` if unknown, and then not guarded."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Input → number of values (0 to size - 1); inputs that are absent are not guarded."""
    masks: tuple[str, ...] = ()
    """Inputs that hide padding."""
    stated_by_graph: bool = False
    """Whether ``max_length`` comes from the graph itself rather than from the plan."""
    output_dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Output → its declared dims without the batch axis; -1 where an axis is open."""


def check_eligibility(
    model: Any, plan: PlanAdapt, output_dims: Mapping[str, tuple[int, ...]] | None = None
) -> Adaptable | AdaptationRefusal:
    """Check a graph against the plan's inputs and outputs per token.

    An opset older than :data:`OPSET` is not an obstacle here: see
    :func:`triton_pipelines.loader.ragged.opset_upgrade.upgraded`.

    Args:
        model: an ``onnx.ModelProto``; its external data need not be loaded.
        plan: what the load plan says about the file.
        output_dims: output → its declared dims without the batch axis.
    """
    sizes = _input_sizes(model, plan)
    reasons = (
        *_input_obstacles(model, plan),
        *_further_input_obstacles(model, plan),
        *_mask_obstacles(model, plan),
        *_output_obstacles(model, plan),
        *_operator_obstacles(model),
        *_value_obstacles(model, plan, sizes),
    )
    if reasons:
        return AdaptationRefusal(reasons)
    stated = positions(model.graph)
    return Adaptable(
        plan,
        opset(model),
        stated or plan.max_length,
        sizes,
        _masks(model, plan),
        stated is not None,
        output_dims or {},
    )


def _input_sizes(model: Any, plan: PlanAdapt) -> dict[str, int]:
    """Return how many values each integer input may have, where that is known."""
    graph_inputs = inputs(model.graph)
    sizes = {
        item.name: size
        for item in plan.inputs
        if (size := table_size(model.graph, item.name)) is not None
    }
    if plan.vocabulary is not None:
        sizes.setdefault(plan.inputs[0].name, plan.vocabulary)
    # Where positions are counted from a mask, only 0 and 1 stay within the table.
    sizes |= {
        name: sizes.get(name, 2) for name in _masks(model, plan) if indexes(model.graph, name)
    }
    return {
        name: size
        for name, size in sizes.items()
        if name in graph_inputs and element_type(graph_inputs[name]) in _INTEGERS
    }


def _input_obstacles(model: Any, plan: PlanAdapt) -> Iterator[Obstacle]:
    """Check the inputs that the tokenizer fills."""
    graph_inputs, names = inputs(model.graph), values(model.graph)
    read = {name for node in every_node(model) for name in node.input}
    for item in plan.inputs:
        value = graph_inputs.get(item.name)
        if value is None:
            yield Obstacle(
                f"the file has no input {item.name!r}",
                "use the names of the file's inputs in spec.model.inputs: "
                f"{', '.join(sorted(graph_inputs))}",
            )
            continue
        yield from _shape_obstacles(item.name, dims(value))
        if element_type(value) not in TOKENS:
            yield Obstacle(
                f"input {item.name!r} has type {_T.DataType.Name(element_type(value))}",
                "export the input as INT64",
            )
        if item.name not in read:
            yield Obstacle(
                f"no operator reads input {item.name!r}",
                f"export the model without this input, or {FIXED}",
            )
        if shape_input(item.name) in names:
            yield Obstacle(
                f"the name of tensor {shape_input(item.name)!r} is reserved for row lengths",
                "rename the tensor in the export",
            )


def _shape_obstacles(name: str, shape: tuple[int | str | None, ...] | None) -> Iterator[Obstacle]:
    """Check that an input has two dynamic axes."""
    if shape is None or len(shape) != 2:
        yield Obstacle(f"the shape of input {name!r} is not [rows, tokens]", FIXED)
        return
    rows, tokens = shape
    if not isinstance(rows, int) and not isinstance(tokens, int):
        return
    axis = "rows" if isinstance(rows, int) else "tokens"
    has_length = isinstance(tokens, int) and tokens > 0
    length = f" and spec.tokenizer.maxLength to {tokens}" if has_length else ""
    yield Obstacle(
        f"input {name!r} has a fixed axis of {axis}",
        f"{FIXED}{length}, or export the model with a dynamic axis",
    )


def _further_input_obstacles(model: Any, plan: PlanAdapt) -> Iterator[Obstacle]:
    """Check the inputs that the tokenizer does not fill."""
    planned, graph_inputs = {item.name for item in plan.inputs}, inputs(model.graph)
    if not planned <= graph_inputs.keys():
        return  # A wrong name is reported already, and may be that of another input.
    advice = f"export the model without this input, or {FIXED}"
    for name, value in graph_inputs.items():
        if name in planned:
            continue
        shape = dims(value)
        if shape is None or any(not isinstance(dim, int) for dim in shape[1:]):
            problem = (
                "positions, which tokenizers do not provide"
                if "position" in name.lower()
                else "a dynamic axis whose size the tokenizer does not determine"
            )
            yield Obstacle(f"input {name!r} has {problem}", advice)
        elif isinstance(shape[0] if shape else 1, int):
            yield Obstacle(f"input {name!r} has no row axis", advice)


def _masks(model: Any, plan: PlanAdapt) -> tuple[str, ...]:
    """Return the inputs that are named masks; else those after the first that index no table."""
    named = tuple(item.name for item in plan.inputs if "mask" in item.name.lower())
    return named or tuple(
        item.name for item in plan.inputs[1:] if table_size(model.graph, item.name) is None
    )


def _mask_obstacles(model: Any, plan: PlanAdapt) -> Iterator[Obstacle]:
    masks = _masks(model, plan)
    if not masks:
        yield Obstacle(
            "the model has no attention mask, so padding would change outputs",
            f"export the model with the input attention_mask, or {FIXED}",
        )
    elif not reached(model.graph, masks) & {value.name for value in model.graph.output}:
        yield Obstacle(
            f"no output depends on {masks[0]!r}, so the model ignores its mask",
            "export the model again with a mask that affects the outputs",
        )


def _output_obstacles(model: Any, plan: PlanAdapt) -> Iterator[Obstacle]:
    graph_inputs = {value.name for value in model.graph.input}
    graph_outputs = {value.name: value for value in model.graph.output}
    for name in plan.token_outputs:
        shape = dims(graph_outputs[name]) if name in graph_outputs else None
        if name not in graph_outputs:
            yield Obstacle(
                f"the file has no output {name!r}",
                "use the names of the file's outputs in spec.model.outputs: "
                f"{', '.join(graph_outputs)}",
            )
        elif shape is not None and (len(shape) < 2 or isinstance(shape[1], int)):
            yield Obstacle(
                f"output {name!r} has no token axis after the rows",
                f"set the dims in spec.model.outputs to those in the file, or {FIXED}",
            )
    for name, value in graph_outputs.items():
        obstacle = _output_obstacle(name, value)
        if obstacle is not None:
            yield obstacle
        elif name in graph_inputs:
            yield Obstacle(
                f"output {name!r} is an unchanged input", "export the model without this output"
            )


def _output_obstacle(name: str, value: Any) -> Obstacle | None:
    """Check type and shape of one output."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Obstacle(
            (
                f"output {name!r} is not a tensor but a "
                f"{str(kind or 'nothing').removesuffix('_type')}"
            ),
            "export the model without this output",
        )
    if element_type(value) not in MARKED:
        return Obstacle(
            f"output {name!r} has type {_T.DataType.Name(element_type(value))}, a type that "
            "has no value to mark invalid rows",
            FIXED,
        )
    shape = dims(value)
    if shape is None:
        return Obstacle(
            f"output {name!r} has no shape in the file",
            "export the model with shapes (onnx.shape_inference)",
        )
    if not shape or isinstance(shape[0], int):
        return Obstacle(f"output {name!r} has no row axis", "export the model without this output")
    return None


def _value_obstacles(model: Any, plan: PlanAdapt, sizes: Mapping[str, int]) -> Iterator[Obstacle]:
    masks = _masks(model, plan)
    for item in plan.inputs:
        if sizes.get(item.name, 1) < 1:
            yield Obstacle(
                f"input {item.name!r} indexes a table without rows", "export the model again"
            )
        if item.name not in sizes and item.name not in masks and indexes(model.graph, item.name):
            yield Obstacle(
                f"the valid values of input {item.name!r} are unknown, and one invalid "
                "value would fail the whole batch",
                f"export the model so that {item.name!r} indexes its embedding table directly, "
                f"or {FIXED}",
            )
    for function in model.functions:
        yield Obstacle(
            f"the graph calls the local function {function.name}, in which its inputs "
            "cannot be tracked",
            f"export the model without this function, or {FIXED}",
        )


def _operator_obstacles(model: Any) -> Iterator[Obstacle]:
    for operator, dependence in batch_dependent_operators(every_node(model)).items():
        yield Obstacle(
            f"operator {operator}: {dependence.value}", f"{dependence.advice}, or {FIXED}"
        )
