"""Test steps with several instance groups: what is rendered, sized, found and tuned."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from triton_pipelines.compile.graph import Graph, build
from triton_pipelines.compile.graph.container_resources import sizes
from triton_pipelines.compile.graph.graph import Step
from triton_pipelines.compile.graph.instance_groups import moved_to_cpu
from triton_pipelines.compile.graph.quantities import bytes_of, millis
from triton_pipelines.compile.render.errors import RefusedError
from triton_pipelines.compile.render.model_config import configs, parse, step_config
from triton_pipelines.controllers.scaling_limits import limits_of, scaled_steps
from triton_pipelines.tools.tuner.settings import setting_grid, setting_of

CODE = {"inline": "class TritonPythonModel: ...\n"}


def groups(*listed: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Changes of the sentiment pipeline: these groups of its model."""
    return {"model": {"instances": {"groups": list(listed)}, **more}}


def model_of(graph: Graph) -> Step:
    model = graph.step("model")
    assert model is not None
    return model


def rendered(changes: dict[str, Any]) -> list[tuple[str, int, int, list[int], str]]:
    """Return name, kind, count, GPUs and host policy of the model's groups."""
    config = parse(step_config(model_of(builders.graph(**changes))))
    return [
        (one.name, one.kind, one.count, list(one.gpus), one.host_policy)
        for one in config.instance_group
    ]


def test_groups_are_rendered_in_their_order() -> None:
    assert rendered(
        groups(
            {"count": 2, "kind": "GPU", "gpus": [0]},
            {"gpus": [1]},
            {"count": 4, "kind": "CPU", "hostPolicy": "numa-0"},
        )
    ) == [
        ("model_0", 1, 2, [0], ""),
        ("model_1", 1, 1, [1], ""),
        ("model_2", 2, 4, [], "numa-0"),
    ]


def test_one_listed_group_is_the_same_as_none() -> None:
    assert rendered(groups({"count": 2, "gpus": [0]})) == rendered(
        {"model": {"instances": {"count": 2, "gpus": [0]}}}
    )


def test_a_substituted_step_has_all_its_groups_on_cpu() -> None:
    options = builders.options(substitute_runner=frozenset({"onnxruntime_onnx"}))
    graph = builders.graph(options, **groups({"count": 2, "gpus": [0]}, {"kind": "MODEL"}))
    config = parse(step_config(model_of(graph)))
    assert [(one.kind, one.count, list(one.gpus)) for one in config.instance_group] == [
        (2, 2, []),
        (2, 1, []),
    ]


def test_a_pod_is_sized_for_the_processes_of_all_groups() -> None:
    def size(instances: dict[str, Any]) -> tuple[int, int]:
        changes = {
            "model": {
                "platform": "python",
                "source": None,
                "python": {"code": CODE},
                "instances": instances,
            },
            "server": {"gpu": {"count": 2}},
        }
        pipeline = builders.pipeline(**changes)
        found = sizes(pipeline, build(pipeline, builders.options()))
        return millis(found.cpu_limit), bytes_of(found.shared_memory)

    listed = size({"groups": [{"count": 2, "kind": "GPU", "gpus": [0]}, {"kind": "GPU"}]})
    assert listed == size({"count": 4, "kind": "CPU"})


def test_the_total_counts_each_listed_gpu_and_is_never_scaled() -> None:
    changes = groups({"count": 2, "gpus": [0, 1]}, {"count": 3, "kind": "CPU"})
    graph = builders.graph(**changes, server={"gpu": {"count": 2}})
    model = model_of(graph)
    assert (model.instances.counts.initial, model.instances.scaled) == (7, False)
    assert model not in scaled_steps(graph)
    pipeline = builders.pipeline(**changes, server={"gpu": {"count": 2}})
    limits = limits_of(pipeline, graph, "r")
    assert limits.gpu_instances["model"] == 7
    assert "model" not in limits.on_cpu


def test_a_step_with_groups_on_cpu_alone_uses_no_gpu() -> None:
    changes = groups({"kind": "CPU", "hostPolicy": "a"}, {"kind": "CPU", "hostPolicy": "b"})
    graph = builders.graph(**changes)
    assert "model" in limits_of(builders.pipeline(**changes), graph, "r").on_cpu
    warned = [one.path for one in builders.built(**changes).warnings]
    assert "spec.server.gpu.count" in warned


def test_what_triton_refuses_is_found_at_its_group(messages: Messages) -> None:
    post = {
        "type": "Softmax",
        "labels": ["a", "b"],
        "instances": {"groups": [{"kind": "CPU"}, {"gpus": [0]}]},
    }
    with pytest.raises(RefusedError) as refused:
        configs(builders.graph(postprocess=post))
    (finding,) = refused.value.findings
    assert finding.path == "spec.postprocess.instances.groups[1]"
    assert "KIND_CPU" in finding.message
    messages.check(finding.message)


def test_a_patch_reaches_each_group() -> None:
    changes = groups(
        {"kind": "CPU"},
        {"kind": "CPU", "count": 2},
        configPatch={"instanceGroup": [{}, {"rateLimiter": {"priority": 2}}]},
    )
    config = parse(configs(builders.graph(**changes))["model"])
    assert [one.rate_limiter.priority for one in config.instance_group] == [0, 2]


def test_tuning_tries_no_other_counts() -> None:
    changes = groups({"count": 2, "gpus": [0]}, {"kind": "CPU"})
    pipeline, graph = builders.pipeline(**changes), builders.graph(**changes)
    found = {one.model_instances for one in setting_grid(pipeline, graph, 1, 4.0)}
    assert found == {setting_of(graph).model_instances} == {3}


@pytest.mark.parametrize(
    ("listed", "gpus", "running", "on_cpu"),
    [
        ([{"count": 1, "kind": "GPU", "gpus": [0, 1, 2, 3]}], 4, 4, 1),
        ([{"count": 2, "kind": "GPU"}], 4, 8, 2),
        ([{"count": 2, "kind": "GPU", "gpus": [0]}, {"count": 3, "kind": "CPU"}], 4, 5, 5),
    ],
    ids=str,
)
def test_running_instances_are_counted_once_per_gpu(
    listed: list[dict[str, Any]], gpus: int, running: int, on_cpu: int
) -> None:
    changes = groups(*listed, **{}) | {"server": {"gpu": {"count": gpus}}}
    graph = builders.graph(**changes)
    model = model_of(graph)
    assert model.instances.processes(gpus) == (running, running)
    limits = limits_of(builders.pipeline(**changes), graph, "r")
    assert limits.gpu_instances["model"] == running
    moved = moved_to_cpu(model.instances)
    assert moved.processes(0) == (on_cpu, on_cpu)
    assert moved.counts.initial == on_cpu
