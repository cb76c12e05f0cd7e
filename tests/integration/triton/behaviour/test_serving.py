"""Settings of a model's config other than batching.

They are versions, warm-up, host policies, the response cache, parameters, and steps that call
models.
"""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.support.recorder import Asker, Workbench
from triton_pipelines.triton.client import TritonClient

pytestmark = pytest.mark.integration
# Y says which version answered.
VERSIONED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        y = pb_utils.Tensor("Y", np.array([[self.version]], np.int32))
        return [pb_utils.InferenceResponse([y]) for _ in requests]
"""


async def ready_versions(triton: Workbench, name: str) -> set[int]:
    async with TritonClient(triton.server.grpc_address) as control:
        return {
            int(state.version)
            for state in await control.repository_index()
            if state.name == name and state.ready
        }


@pytest.mark.proves("spec.model.versionPolicy.latest", "behaviour")
@pytest.mark.proves("spec.model.versionPolicy.all", "behaviour")
@pytest.mark.proves("spec.model.versionPolicy.specific", "behaviour")
@pytest.mark.parametrize(
    ("name", "policy", "served"),
    [
        ("default", "", {10}),
        ("latest", "version_policy { latest { num_versions: 2 } }", {3, 10}),
        ("all", "version_policy { all { } }", {1, 2, 3, 10}),
        ("specific", "version_policy { specific { versions: [ 1, 3 ] } }", {1, 3}),
    ],
)
async def test_version_policies(
    triton: Workbench, client: Asker, name: str, policy: str, served: set[int]
) -> None:
    """Folders are versions by their number, not by their text.

    A request without a version gets the highest one.
    """
    model = f"versions_{name}"
    await triton.deploy(model, policy, versions=(1, 2, 3, 10), code=VERSIONED)
    assert await ready_versions(triton, model) == served
    assert (await client.ask(model, 0))["Y"] == [[max(served)]]
    for version in served:
        assert (await client.ask(model, 0, model_version=str(version)))["Y"] == [[version]]
    for version in {1, 2, 3, 10} - served:
        with pytest.raises(
            InferenceServerException, match=r"unknown model|is not at ready state|is not found"
        ):
            await client.ask(model, 0, model_version=str(version))


@pytest.mark.proves("spec.model.version", "behaviour")
@pytest.mark.parametrize(("pinned", "answer"), [(1, 1), (-1, 3)])
async def test_an_ensemble_calls_the_version_it_is_pinned_to(
    triton: Workbench, client: Asker, pinned: int, answer: int
) -> None:
    step, ensemble = f"pinned_step{pinned}", f"pinned{pinned}"
    await triton.deploy(step, "version_policy { all { } }", versions=(1, 2, 3), code=VERSIONED)
    scheduling = (
        f'ensemble_scheduling {{ step {{ model_name: "{step}" model_version: {pinned}'
        ' input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }'
    )
    await triton.deploy(ensemble, scheduling, platform='platform: "ensemble"')
    assert (await client.ask(ensemble, 0))["Y"] == [[answer]]


@pytest.mark.proves("spec.model.warmup.mode", "behaviour")
@pytest.mark.proves("spec.model.warmup.batchSizes", "behaviour")
async def test_every_instance_is_warm_before_it_serves(triton: Workbench, client: Asker) -> None:
    warmup = """
    model_warmup [
      { name: "one" batch_size: 1
        inputs { key: "X" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } },
      { name: "four" batch_size: 4 count: 2
        inputs { key: "X" value { data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "rows" } } } ]
    """
    rows = np.array([5, 6, 7, 8], np.int32)
    model = await triton.deploy(
        "warm", warmup, instances="count: 2 kind: KIND_CPU", files={"warmup/rows": rows.tobytes()}
    )
    lines = model.events("begin")
    for instance in {line["instance"] for line in model.events("load")}:
        # The sample of four rows is one request of one row, four times: each holds the file's first
        # row.
        seen = [
            [request["inputs"]["X"] for request in line["requests"]]
            for line in lines
            if line["instance"] == instance
        ]
        assert seen == [[[0]], [[5]] * 4, [[5]] * 4]
    assert len({line["instance"] for line in lines}) == 2
    await client.ask(model, 9)
    assert model.batches()[-1] == [9]
    assert len(model.batches()) == 7


@pytest.mark.parametrize(
    ("name", "group", "kind", "count"),
    [
        ("cpu", "count: 3 kind: KIND_CPU", "CPU", 3),
        ("model", "count: 2 kind: KIND_MODEL", "MODEL", 2),
        # Without a GPU.
        ("auto", "count: 2", "CPU", 2),
    ],
)
async def test_instances(
    triton: Workbench, client: Asker, name: str, group: str, kind: str, count: int
) -> None:
    """As many processes as the count says, all of which work at once."""
    model = await triton.deploy(f"instances_{name}", instances=group)
    assert [line["kind"] for line in model.events("load")] == [kind] * count
    for value in range(count):
        model.hold(value)
    tasks = [client.ask(model, value) for value in range(count)]
    for value in range(count):
        await model.until_executing(value)
    for value in range(count):
        model.release(value)
    await asyncio.gather(*tasks)
    assert len({line["instance"] for line in model.events("begin")}) == count


@pytest.mark.proves("spec.model.instances.hostPolicy", "behaviour")
async def test_a_host_policy_binds_its_instances(triton: Workbench) -> None:
    """The server's host policy ``behaviour`` binds instances to the first core.

    Without a policy, an instance uses all cores.
    """
    bound = await triton.deploy(
        "bound", instances='count: 1 kind: KIND_CPU host_policy: "behaviour"'
    )
    free = await triton.deploy("free")
    cores = sorted(os.sched_getaffinity(0))
    assert [line["cores"] for line in bound.events("load")] == [cores[:1]]
    assert [line["cores"] for line in free.events("load")] == [cores]


@pytest.mark.proves("spec.ensemble.responseCache", "behaviour")
@pytest.mark.parametrize("enabled", [True, False])
async def test_the_response_cache_answers_what_it_knows(
    triton: Workbench, client: Asker, enabled: bool
) -> None:
    name = f"cached_{enabled}".lower()
    model = await triton.deploy(name, f"response_cache {{ enable: {str(enabled).lower()} }}")
    answers = [(await client.ask(model, value))["Y"] for value in (1, 1, 2, 1)]
    assert answers == [[[2]], [[2]], [[3]], [[2]]]
    assert model.order() == ([1, 2] if enabled else [1, 1, 2, 1])
    async with TritonClient(triton.server.grpc_address) as control:
        (statistics,) = await control.statistics(name)
    assert statistics.inference_stats.cache_hit.count == (2 if enabled else 0)
    assert statistics.inference_stats.cache_miss.count == (2 if enabled else 0)


async def test_the_response_cache_of_an_ensemble(triton: Workbench, client: Asker) -> None:
    step = await triton.deploy("cached_step")
    scheduling = (
        "response_cache { enable: true } ensemble_scheduling { step { model_name: "
        '"cached_step" model_version: -1'
        ' input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }'
    )
    await triton.deploy("cached_ensemble", scheduling, platform='platform: "ensemble"')
    assert [(await client.ask("cached_ensemble", value))["Y"] for value in (1, 1, 2, 1)] == [
        [[2]],
        [[2]],
        [[3]],
        [[2]],
    ]
    assert step.order() == [1, 2]


@pytest.mark.proves("spec.model.parameters", "behaviour")
async def test_parameters_arrive_unchanged(triton: Workbench) -> None:
    """Any text, as it is."""
    texts = [
        "no",
        "8",
        "${x}",
        "$$TRITON_MODEL_DIRECTORY/x",
        "true",
        "",
        ' quo"te \\ \n tab\t ',
        "ü 🦊",
        "{}",
        "'",
    ]
    parameters = {
        **{f"own.{number}": text for number, text in enumerate(texts)},
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    }
    model = await triton.deploy("parameters", parameters=parameters)
    (line,) = model.events("load")
    assert {key: text for key, text in line["parameters"].items() if key != "record"} == parameters


DECOUPLED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            for number in range(int(x[0, 0])):
                y = pb_utils.Tensor("Y", np.array([[number]], np.int32))
                sender.send(pb_utils.InferenceResponse([y]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.proves("spec.model.decoupled", "behaviour")
async def test_a_decoupled_model_streams(triton: Workbench, client: Asker) -> None:
    """As many answers as X says, none for 0; a call that expects one answer is refused."""
    await triton.deploy("decoupled", "model_transaction_policy { decoupled: true }", code=DECOUPLED)
    for count in (0, 1, 5):
        assert await client.stream("decoupled", {"X": np.array([[count]], np.int32)}) == [
            {"Y": [[number]]} for number in range(count)
        ]
    with pytest.raises(InferenceServerException, match="decoupled"):
        await client.ask("decoupled", 1)
    # The ensemble streams as its step does.
    scheduling = (
        'ensemble_scheduling { step { model_name: "decoupled" model_version: -1'
        ' input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }'
    )
    await triton.deploy("decoupled_ensemble", scheduling, platform='platform: "ensemble"')
    assert await client.stream("decoupled_ensemble", {"X": np.array([[3]], np.int32)}) == [
        {"Y": [[number]]} for number in range(3)
    ]


ENTRY = """
import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        x = pb_utils.Tensor("X", pb_utils.get_input_tensor_by_name(request, "X").as_numpy())
        calls = [
            pb_utils.InferenceRequest(
                model_name=name, requested_output_names=["Y"], inputs=[x]
            ).async_exec()
            for name in ("left", "right")
        ]
        answers = await asyncio.gather(*calls)
        for answer in answers:
            if answer.has_error():
                error = pb_utils.TritonError(answer.error().message())
                return pb_utils.InferenceResponse(error=error)
        outputs = [pb_utils.get_output_tensor_by_name(answer, "Y") for answer in answers]
        total = sum(output.as_numpy() for output in outputs)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", total)])
"""


@pytest.mark.proves("spec.ensemble.entryPoint", "behaviour")
async def test_an_entry_model_calls_auxiliary_models(triton: Workbench, client: Asker) -> None:
    left, right = await triton.deploy("left"), await triton.deploy("right")
    await triton.deploy("entry", "dynamic_batching { }", code=ENTRY)
    answers = await asyncio.gather(*(client.ask("entry", value) for value in range(5)))
    assert [answer["Y"] for answer in answers] == [[[2 * value + 2]] for value in range(5)]
    assert sorted(left.order()) == sorted(right.order()) == list(range(5))


async def test_an_auxiliary_model_that_is_gone_is_named(triton: Workbench, client: Asker) -> None:
    await triton.deploy(
        "lonely", code=ENTRY.replace('"left"', '"absent"').replace('"right"', '"absent"')
    )
    with pytest.raises(InferenceServerException, match="absent"):
        await client.ask("lonely", 1)
