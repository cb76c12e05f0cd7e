"""Whether a graph can be fed with ragged batches without changing an answer; if not, every reason with what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import onnx

from triton_pipelines.api.loadplan import PlanAdapt, shape_input
from triton_pipelines.loader.ragged.graph_walk import (
    dims,
    element_type,
    every_node,
    inputs,
    opset,
    reached,
    values,
)
from triton_pipelines.loader.ragged.input_limits import company, indexes, positions, table_size

OPSET: Final = 13
"""The first version of the standard operators in which the adapter's operators take their axes as inputs."""
_T: Final = onnx.TensorProto
TOKENS: Final = frozenset({_T.INT64, _T.INT32, _T.FLOAT, _T.FLOAT16, _T.BOOL})
"""Element types of inputs that may become flat."""
_INTEGERS: Final = frozenset({_T.INT64, _T.INT32})
MARKED: Final = frozenset({_T.DOUBLE, _T.FLOAT, _T.FLOAT16, _T.INT64, _T.INT32})
"""Element types of outputs with a value that is no answer: not-a-number, -1."""
FIXED: Final = "set spec.tokenizer.padding to Fixed"


@dataclass(frozen=True)
class Obstacle:
    """Why a graph cannot be adapted, and what the user can do."""

    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.what}: {self.do}"


@dataclass(frozen=True)
class Refusal:
    """A graph that cannot be adapted."""

    reasons: tuple[Obstacle, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.reasons))


@dataclass(frozen=True)
class Adaptable:
    """A graph that can be adapted, and what it is adapted for.

    ``sizes`` are the numbers of values that an input may have (0 to size - 1); ``max_length`` is the most tokens a row may have. What is not known is not guarded.
    ``masks`` are the inputs that hide padding. ``shown``: the file itself says how many tokens a row may have.
    """

    plan: PlanAdapt
    opset: int
    max_length: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    masks: tuple[str, ...] = ()
    shown: bool = False


def examine(model: Any, plan: PlanAdapt) -> Adaptable | Refusal:
    """Look at a graph (an ``onnx.ModelProto``, its external data need not be loaded) with the plan's inputs and token-level outputs.

    An older opset than :data:`OPSET` is no obstacle here: see :func:`triton_pipelines.loader.ragged.opset_upgrade.upgraded`.
    """
    given = inputs(model.graph)
    sizes = {
        item.name: size
        for item in plan.inputs
        if (size := table_size(model.graph, item.name)) is not None
    }
    if plan.vocabulary is not None:
        sizes.setdefault(plan.inputs[0].name, plan.vocabulary)
    # Positions that are counted from a mask: only 0 and 1 count to what the table has.
    sizes |= {
        name: sizes.get(name, 2) for name in _masks(model, plan) if indexes(model.graph, name)
    }
    sizes = {
        name: size
        for name, size in sizes.items()
        if name in given and element_type(given[name]) in _INTEGERS
    }
    reasons = (
        *_of_inputs(model, plan),
        *_of_mask(model, plan),
        *_of_outputs(model, plan),
        *_of_nodes(model),
        *_of_values(model, plan, sizes),
    )
    if reasons:
        return Refusal(reasons)
    shown = positions(model.graph)
    return Adaptable(
        plan, opset(model), shown or plan.max_length, sizes, _masks(model, plan), shown is not None
    )


def _of_inputs(model: Any, plan: PlanAdapt) -> Iterator[Obstacle]:
    given, names = inputs(model.graph), values(model.graph)
    read = {name for node in every_node(model) for name in node.input}
    planned = {item.name for item in plan.inputs}
    for item in plan.inputs:
        if (value := given.get(item.name)) is None:
            yield Obstacle(
                f"the file has no input {item.name}",
                f"spec.model.inputs names the file's inputs: {', '.join(sorted(given))}",
            )
            continue
        shape = dims(value)
        if shape is None or len(shape) != 2:
            yield Obstacle(f"input {item.name} is not [rows, tokens]", FIXED)
        elif isinstance(shape[0], int) or isinstance(shape[1], int):
            axis = "rows" if isinstance(shape[0], int) else "tokens"
            length = shape[1] if isinstance(shape[1], int) else None
            advice = f" and spec.tokenizer.maxLength to {length}" if length else ""
            yield Obstacle(
                f"input {item.name} has a fixed axis of {axis}",
                f"{FIXED}{advice}, or export the model with a dynamic axis",
            )
        if element_type(value) not in TOKENS:
            yield Obstacle(
                f"input {item.name} is {_T.DataType.Name(element_type(value))}",
                "export it as INT64",
            )
        if item.name not in read:
            yield Obstacle(
                f"input {item.name} is read by no operator",
                f"export the model without it, or {FIXED}",
            )
        if shape_input(item.name) in names:
            yield Obstacle(
                f"the graph holds a tensor {shape_input(item.name)}, the name that the lengths need",
                "rename it in the export",
            )
    for name, value in given.items():
        shape = dims(value)
        if name not in planned and (
            shape is None or any(not isinstance(dim, int) for dim in shape[1:])
        ):
            what = (
                "positions, which no tokenizer gives"
                if "position" in name.lower()
                else "an axis of variable length that is not made from the tokens"
            )
            yield Obstacle(f"input {name} has {what}", f"export the model without it, or {FIXED}")
        elif name not in planned and isinstance(shape[0] if shape else 1, int):
            yield Obstacle(
                f"input {name} has no axis of rows", f"export the model without it, or {FIXED}"
            )


def _masks(model: Any, plan: PlanAdapt) -> tuple[str, ...]:
    """The inputs that are masks by their names; where none is called so, those behind the first that index no table."""
    named = tuple(item.name for item in plan.inputs if "mask" in item.name.lower())
    return named or tuple(
        item.name for item in plan.inputs[1:] if table_size(model.graph, item.name) is None
    )


def _of_mask(model: Any, plan: PlanAdapt) -> Iterator[Obstacle]:
    masks = _masks(model, plan)
    if not masks:
        yield Obstacle(
            "the model has no attention mask, so padding would change answers",
            f"export it with the input attention_mask, or {FIXED}",
        )
    elif not reached(model.graph, masks) & {value.name for value in model.graph.output}:
        yield Obstacle(
            f"no output hangs on {masks[0]}: the model ignores its mask",
            "export it anew with a mask that works",
        )


def _of_outputs(model: Any, plan: PlanAdapt) -> Iterator[Obstacle]:
    given, made = (
        {value.name for value in model.graph.input},
        {value.name: value for value in model.graph.output},
    )
    for name in plan.token_outputs:
        shape = dims(made[name]) if name in made else None
        if name not in made:
            yield Obstacle(
                f"the file has no output {name}",
                f"spec.model.outputs names the file's outputs: {', '.join(made)}",
            )
        elif shape is not None and (len(shape) < 2 or isinstance(shape[1], int)):
            yield Obstacle(
                f"output {name} has no axis of tokens behind the rows",
                f"give its dims in spec.model.outputs as the file has them, or {FIXED}",
            )
    for name, value in made.items():
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            yield Obstacle(
                f"output {name} is no tensor but a {str(kind or 'nothing').removesuffix('_type')}",
                "export the model without it",
            )
        elif element_type(value) not in MARKED:
            yield Obstacle(
                f"output {name} is {_T.DataType.Name(element_type(value))}, which has no value to mark a broken row with",
                FIXED,
            )
        elif dims(value) is None:
            yield Obstacle(
                f"the file does not say the shape of output {name}",
                "export it with shapes (onnx.shape_inference)",
            )
        elif not dims(value) or isinstance((dims(value) or (1,))[0], int):
            yield Obstacle(f"output {name} has no axis of rows", "export the model without it")
        elif name in given:
            yield Obstacle(
                f"output {name} is an input that is handed through", "export the model without it"
            )


def _of_values(model: Any, plan: PlanAdapt, sizes: Mapping[str, int]) -> Iterator[Obstacle]:
    masks = _masks(model, plan)
    for item in plan.inputs:
        if sizes.get(item.name, 1) < 1:
            yield Obstacle(
                f"input {item.name} indexes a table without rows", "export the model anew"
            )
        if item.name not in sizes and item.name not in masks and indexes(model.graph, item.name):
            yield Obstacle(
                f"which values input {item.name} may have does not show: one out of range would fail everybody's requests in its batch",
                f"export the model so that {item.name} indexes its table directly, or {FIXED}",
            )
    for function in model.functions:
        yield Obstacle(
            f"the graph calls the local function {function.name}, into which its inputs cannot be followed",
            f"export it without, or {FIXED}",
        )


def _of_nodes(model: Any) -> Iterator[Obstacle]:
    for operator, why in company(every_node(model)).items():
        again = (
            "take the model without dynamic quantization, or quantize it statically"
            if "quantization" in why
            else "export it otherwise"
        )
        yield Obstacle(f"operator {operator}: {why}", f"{again}, or {FIXED}")
