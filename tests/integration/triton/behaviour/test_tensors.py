"""Tensors: optional, reshaped and ragged ones, no batch axis, and names of every kind."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.support.recorder import Asker, Workbench, tensor

pytestmark = pytest.mark.integration


@pytest.mark.proves("spec.model.inputs[].optional", "behaviour")
async def test_optional_inputs_may_be_left_out(triton: Workbench, client: Asker) -> None:
    inputs = f"{tensor('X')}, {tensor('Z', more='optional: true')}"
    model = await triton.deploy("optional", inputs=inputs)
    x, z = np.array([[1]], np.int32), np.array([[5]], np.int32)
    await client.ask(model, inputs={"X": x})
    await client.ask(model, inputs={"X": x, "Z": z})
    assert [line["requests"][0]["inputs"] for line in model.events("begin")] == [
        {"X": [1]},
        {"X": [1], "Z": [5]},
    ]
    # A required input counts: none at all is refused by the server itself.
    with pytest.raises(InferenceServerException, match="inputs"):
        await client.ask(model, inputs={})


async def test_a_step_of_an_ensemble_may_go_without_its_optional_input(
    triton: Workbench, client: Asker
) -> None:
    step = await triton.deploy(
        "optional_step", inputs=f"{tensor('X')}, {tensor('Z', more='optional: true')}"
    )
    scheduling = (
        'ensemble_scheduling { step { model_name: "optional_step" model_version: -1'
        ' input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }'
    )
    await triton.deploy("optional_ensemble", scheduling, platform='platform: "ensemble"')
    assert (await client.ask("optional_ensemble", 3))["Y"] == [[4]]
    assert step.events("begin")[0]["requests"][0]["inputs"] == {"X": [3]}


@pytest.mark.proves("spec.model.inputs[].reshape", "behaviour")
@pytest.mark.proves("spec.model.outputs[].reshape", "behaviour")
async def test_the_model_sees_reshaped_tensors(triton: Workbench, client: Asker) -> None:
    """The client's [rows, 1] and [rows, 4] are the model's [rows] and [rows, 2, 2].

    Answers are reshaped in the opposite direction.
    """
    inputs = (
        f"{tensor('X', more='reshape { shape: [ ] }')}, "
        f"{tensor('Z', dims='4', more='reshape { shape: [ 2, 2 ] }')}"
    )
    outputs = (
        f"{tensor('Y', more='reshape { shape: [ ] }')}, "
        f"{tensor('W', dims='4', more='reshape { shape: [ 2, 2 ] }')}"
    )
    model = await triton.deploy("reshaped", inputs=inputs, outputs=outputs)
    given = {"X": np.array([[1], [2]], np.int32), "Z": np.arange(8, dtype=np.int32).reshape(2, 4)}
    answer = await client.ask(model, inputs=given)
    assert model.events("begin")[0]["requests"][0]["shapes"] == {"X": [2], "Z": [2, 2, 2]}
    assert answer == {"Y": [[2], [3]], "W": [[1, 2, 3, 4], [5, 6, 7, 8]]}


@pytest.mark.proves("spec.model.inputs[].ragged", "behaviour")
@pytest.mark.parametrize("ragged", [False, True])
async def test_ragged_inputs_share_a_batch(triton: Workbench, client: Asker, ragged: bool) -> None:
    more = "allow_ragged_batch: true" if ragged else ""
    model = await triton.deploy(
        f"ragged_{ragged}".lower(),
        "dynamic_batching { }",
        inputs=tensor("X", dims="-1", more=more),
        outputs=tensor("Y", dims="-1"),
    )
    model.hold(0)
    first = client.ask(model, 0)
    await model.until_executing(0)
    tasks = []
    for row in ([1, 2], [3, 4], [5]):
        before = await model.pending()
        tasks.append(client.ask(model, inputs={"X": np.array([row], np.int32)}))
        await model.until_pending(before + 1)
    model.release(0)
    await asyncio.gather(first, *tasks)
    assert model.batches()[1:] == ([[1, 2, 3, 4, 5]] if ragged else [[1, 2, 3, 4], [5]])


@pytest.mark.proves("spec.model.maxBatchSize", "behaviour")
@pytest.mark.proves("spec.model.inputs[].dims", "behaviour")
@pytest.mark.parametrize(
    ("dims", "shape"), [("-1", (3,)), ("3", (3,)), ("1, -1", (1, 3)), ("-1, 1", (3, 1))]
)
async def test_without_a_batch_axis_dims_are_the_whole_shape(
    triton: Workbench, client: Asker, dims: str, shape: tuple[int, ...]
) -> None:
    name = "whole_" + "_".join(dims.replace("-", "m").split(", "))
    model = await triton.deploy(
        name, max_batch_size=0, inputs=tensor("X", dims=dims), outputs=tensor("Y", dims=dims)
    )
    x = np.arange(3, dtype=np.int32).reshape(shape)
    assert (await client.ask(model, inputs={"X": x}))["Y"] == (x + 1).tolist()
    assert model.events("begin")[0]["requests"][0]["shapes"] == {"X": list(shape)}
    with pytest.raises(InferenceServerException, match="unexpected shape"):
        await client.ask(model, inputs={"X": np.zeros((2, 2, 2), np.int32)})


NAMES = (
    "854",
    "input.1",
    "a/b:0",
    "with space",
    "ü",
    "x" * 300,
    "-",
    "..",
    "StatefulPartitionedCall:0",
)


@pytest.mark.proves("spec.model.inputs[].name", "behaviour")
@pytest.mark.proves("spec.model.outputs[].name", "behaviour")
@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
async def test_tensor_names_of_every_kind(triton: Workbench, client: Asker, number: int) -> None:
    """Use a name as a model's input and output at once.

    The model is called alone and through an ensemble that uses the same name.
    """
    name = NAMES[number]
    text = tensor(name)
    step = await triton.deploy(f"named_{number}", inputs=text, outputs=text)
    x = np.array([[41]], np.int32)
    assert await client.ask(step, inputs={name: x}) == {name: [[42]]}
    quoted = text.split("name: ", 1)[1].split(" data_type", 1)[0]
    scheduling = (
        f'ensemble_scheduling {{ step {{ model_name: "named_{number}" model_version: -1'
        f" input_map {{ key: {quoted} value: {quoted} }} output_map {{ key: {quoted} value: "
        f'"out" }} }} }}'
    )
    ensemble = f"named_ensemble_{number}"
    await triton.deploy(
        ensemble, scheduling, platform='platform: "ensemble"', inputs=text, outputs=tensor("out")
    )
    assert await client.ask(ensemble, inputs={name: x}) == {"out": [[42]]}
