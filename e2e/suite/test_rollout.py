"""How a new revision takes over on a real node, with clients on the pipeline all the while."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from e2e.load.generator import Load
from e2e.suite.kube import Kube, Object
from e2e.suite.measured import Record
from e2e.suite.story import version, watched
from e2e.suite.tiny import (
    LOADED_DRAIN_SECONDS,
    SAFE_CLIENTS,
    TinyPipeline,
    assert_none_lost,
    wait_left,
)
from triton_pipelines.api import names

OTHER_MODEL = {"source": {"uri": "configmap://tiny-sources/other.onnx"}}
MISSING_MODEL = {"source": {"uri": "s3://missing/models/sentiment/model.onnx"}}


@pytest.mark.parametrize(("strategy", "replicas"), [("Surge", 1), ("Surge", 2), ("NoSurge", 2)])
def test_no_request_is_lost(
    tiny: TinyPipeline, measured: Record, strategy: str, replicas: int
) -> None:
    rollout = {"strategy": strategy, "drainSeconds": LOADED_DRAIN_SECONDS}
    tiny.serve("old", replicas=replicas, rollout=rollout)
    before = tiny.pod_names()
    with tiny.load() as load, watched(tiny.kube, tiny.namespace, names.PLURAL) as story:
        tiny.change("new")
        tiny.wait_ready()
        wait_left(tiny, before)
        load.wait_requests()
    measured(f"{strategy}, replicas {replicas}", load.summary())
    assert_none_lost(load, {"old", "new"})
    assert {status for status, _, _ in story.conditions("Available")} == {"True"}
    # After the last old pod has terminated, the old revision is not reported anymore.
    assert {outcome.answer for outcome in load.outcomes[-3:]} == {"new"}


def test_recreate_announces_the_gap_and_answers_after_it(
    tiny: TinyPipeline, measured: Record
) -> None:
    tiny.serve("old", rollout={"strategy": "Recreate", "drainSeconds": 1})
    with tiny.load() as load, watched(tiny.kube, tiny.namespace, names.PLURAL) as story:
        tiny.change("new")
        tiny.wait_ready()
        load.wait_requests(answered=True)
    measured("Recreate, replicas 1", load.summary())
    assert any(
        "the strategy is Recreate, so the old pod is removed before the new pod starts" in message
        for _, _, message in story.conditions("Ready")
    )
    assert [status for status, _, _ in story.conditions("Available")] == ["True", "False", "True"]
    assert_in_turn(load)
    assert load.summary()["http-new-connection"].failed > 0


@pytest.fixture(scope="module")
def running(module_tiny: TinyPipeline) -> TinyPipeline:
    """Return a pipeline that is Ready at least once."""
    module_tiny.serve("old")
    return module_tiny


@pytest.fixture
def served(running: TinyPipeline) -> Iterator[TinyPipeline]:
    """Return a pipeline that serves and has no other revision; its spec is restored at the end.

    The same pod must serve all tests: no edit replaces it.
    """
    pods = running.pod_names()
    with running.restored():
        yield running
    assert running.pod_names() == pods


@pytest.mark.parametrize(
    ("model", "reason", "words"),
    [
        (OTHER_MODEL, "ModelMismatch", ("spec.model", "logits", "hidden", "other.onnx")),
        (
            MISSING_MODEL,
            "SourceUnavailable",
            ("spec.model.source", "s3://missing/models/sentiment/model.onnx", "404"),
        ),
    ],
    ids=["mismatch", "missing"],
)
def test_a_failed_surge_costs_nothing(
    served: TinyPipeline, model: Mapping[str, Any], reason: str, words: tuple[str, ...]
) -> None:
    tiny, old = served, served.status()["revision"]
    before = tiny.pod_names()
    with tiny.load() as load:
        tiny.change("new", model=model)
        reported = tiny.wait_condition("Ready", "False", reason)
        load.wait_requests()
    for word in words:
        assert word in reported["message"]
    assert tiny.condition("Available")["status"] == "True"
    assert tiny.status()["servingRevision"] == old != tiny.status()["revision"]
    if reason == "ModelMismatch":
        assert tiny.condition("Stalled")["status"] == "True"
        assert f"revision {old} keeps serving" in reported["message"]
    assert before <= {pod["metadata"]["name"] for pod in tiny.serving_pods()}
    assert not [outcome for outcome in load.outcomes if outcome.error]
    assert {answer for summary in load.summary().values() for answer in summary.answers} == {"old"}


@pytest.mark.parametrize(
    ("model", "reason", "words"),
    [
        (OTHER_MODEL, "ModelMismatch", ("spec.model", "logits", "other.onnx")),
        (
            MISSING_MODEL,
            "SourceUnavailable",
            ("spec.model.source", "s3://missing/models/sentiment/model.onnx", "404"),
        ),
    ],
    ids=["mismatch", "missing"],
)
def test_without_room_a_wrong_edit_costs_nothing(
    kube: Kube, tiny: TinyPipeline, model: Mapping[str, Any], reason: str, words: tuple[str, ...]
) -> None:
    served = tiny.serve("old", server=gpu_node(kube), rollout={"drainSeconds": 1})
    old, before = served["status"]["revision"], tiny.pod_names()
    with tiny.load() as load, watched(kube, tiny.namespace, names.PLURAL) as story:
        tiny.change("new", model=model)
        reported = tiny.wait_condition("Ready", "False", reason)
        load.wait_requests()
    for word in ("preflight: pod ", *words, f"revision {old} keeps serving"):
        assert word in reported["message"]
    assert {status for status, _, _ in story.conditions("Available")} == {"True"}
    assert before <= {pod["metadata"]["name"] for pod in tiny.serving_pods()}
    assert not [outcome for outcome in load.outcomes if outcome.error]
    assert {answer for summary in load.summary().values() for answer in summary.answers} == {"old"}

    # It continues with the corrected spec.
    tiny.change("best", model={"source": {"uri": "configmap://tiny-sources/model.onnx"}})
    tiny.wait_ready()
    assert not tiny.children("Job")


def test_on_one_gpu_the_old_pod_goes_first_and_comes_back_when_the_new_one_fails(
    kube: Kube, tiny: TinyPipeline, measured: Record
) -> None:
    gpus = gpu_node(kube)
    tiny.serve("old", server=gpus, rollout={"drainSeconds": 1})
    count, resource = gpus["gpu"]["count"], "nvidia.com/gpu"
    (old,) = tiny.serving_pods()
    pods_selector = f"{names.LABEL_PIPELINE}={tiny.name}"
    with (
        tiny.load() as load,
        watched(kube, tiny.namespace, names.PLURAL) as story,
        watched(kube, tiny.namespace, "pods", pods_selector) as pods,
    ):
        tiny.change("new")
        tiny.wait_ready()
        load.wait_requests(answered=True)
    measured("Auto on one GPU, replicas 1", load.summary())
    assert_in_turn(load)
    waiting = [
        message for _, reason, message in story.conditions("Ready") if reason == "WaitingForGPU"
    ]
    assert waiting
    assert (
        f"requests {count} {resource}; available: {count} on node "
        f"{gpus['nodeSelector']['kubernetes.io/hostname']}"
    ) in waiting[0]
    assert f"Insufficient {resource}" in waiting[0]
    announced = min(
        version(state)
        for state in story.states()
        if "the pipeline serves no requests until the new pod is ready" in json_of(state, "Ready")
    )
    left = min(
        version(state)
        for state in pods.states()
        if state["metadata"]["uid"] == old["metadata"]["uid"]
        and state["metadata"].get("deletionTimestamp")
    )
    assert announced < left, "the old pod left before status announced it"

    # A revision does not come up, and the previous one is restored.
    serving = tiny.status()["revision"]
    with watched(kube, tiny.namespace, names.PLURAL) as story:
        tiny.change("worse", model=OTHER_MODEL, rollout={"preflight": "Disabled"})
        reported = tiny.wait_condition("Ready", "False", "RolledBack")
        tiny.wait_condition("Available", "True")
    failed = tiny.status()["revision"]
    for words in (
        f"revision {failed} failed",
        f"rolled back to revision {serving} ",
        "ModelMismatch",
        "other.onnx",
    ):
        assert words in reported["message"]
    assert tiny.condition("Stalled")["status"] == "True"
    assert tiny.status()["servingRevision"] == serving
    available = story.conditions("Available")
    assert [status for status, _, _ in available] == ["True", "False", "True"], available
    with tiny.load(clients=SAFE_CLIENTS) as load:
        load.wait_requests(1)
    assert {answer for summary in load.summary().values() for answer in summary.answers} == {"new"}

    # It continues with the corrected spec.
    tiny.change("best", model={"source": {"uri": "configmap://tiny-sources/model.onnx"}})
    tiny.wait_ready()
    assert tiny.condition("Stalled") == {}
    with tiny.load(clients=SAFE_CLIENTS) as load:
        load.wait_requests(1)
    assert {answer for summary in load.summary().values() for answer in summary.answers} == {"best"}


def assert_in_turn(load: Load) -> None:
    """First the old revision answers, then the new one, never the old one again."""
    answers = [
        outcome.answer
        for outcome in sorted(load.outcomes, key=lambda item: item.end)
        if not outcome.error
    ]
    assert answers == sorted(answers, key=("old", "new").index)
    assert set(answers) == {"old", "new"}


def gpu_node(kube: Kube) -> dict[str, Any]:
    """Settings of a server that takes all GPUs of one node, so that no second pod finds any."""
    for node in kube.objects("Node"):
        count = int((node["status"].get("allocatable") or {}).get("nvidia.com/gpu", 0))
        if count:
            return {
                "gpu": {"count": count},
                "nodeSelector": {
                    "kubernetes.io/hostname": node["metadata"]["labels"]["kubernetes.io/hostname"]
                },
            }
    pytest.skip("no node of the cluster offers nvidia.com/gpu")


def json_of(state: Object, kind: str) -> str:
    """The message of a condition in a state of the resource."""
    return next(
        (
            item["message"]
            for item in (state.get("status") or {}).get("conditions") or ()
            if item["type"] == kind
        ),
        "",
    )
