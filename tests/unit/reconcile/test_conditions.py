"""Test the conditions in every course that a pod can take, with hand-made pods.

The planner decides; nothing is carried out.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.support import builders
from tests.support.builders import merge
from tests.support.messages import Messages
from tests.support.worldchecks import check_status
from tests.support.worlds import World, rfc3339
from triton_pipelines.api import names
from triton_pipelines.api.conditions import KIND_OF, Reason, ReasonKind
from triton_pipelines.api.loadplan import LoadFinding, LoadReason, LoadReport
from triton_pipelines.controllers.pipeline.planner import Context, Plan, plan
from triton_pipelines.controllers.pipeline.snapshot import ModelState, Object, Pod, Probe, Snapshot
from triton_pipelines.redaction import redact_url

GPU = "nvidia.com/gpu"
GOOD_PROBE = Probe(
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    True,
    (ModelState("model", "READY"),),
    inference_error="",
)


def waiting(reason: str, message: str = "") -> Object:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def ended(code: int, message: str = "", *, phase: str = "state", reason: str = "Error") -> Object:
    return {phase: {"terminated": {"exitCode": code, "reason": reason, "message": message}}}


RUNNING: Object = {"state": {"running": {}}}


class Scene:
    """A pipeline whose children are applied, and pods as a test makes them."""

    def __init__(self, **spec: Any) -> None:
        self.world = World(builders.document(**spec))
        self.world.step()
        self.world.document.pop("status")
        self.pods: list[Object] = []
        self.probes: dict[str, Probe] = {}
        self.nodes: tuple[Object, ...] | None = None

    def pod(
        self,
        *,
        ready: bool = False,
        loader: Object | None = None,
        server: Object | None = None,
        placed: Object | None = None,
        **more: Any,
    ) -> Scene:
        name = f"pod-{len(self.pods)}"
        template = self.world.deployment["spec"]["template"]
        condition = {"type": "PodScheduled", "status": "True", **(placed or {})}
        raw: Object = {
            "metadata": {
                "name": name,
                "uid": name,
                "labels": template["metadata"]["labels"],
                "creationTimestamp": rfc3339(self.world.now),
            },
            "spec": template["spec"],
            "status": {
                "phase": "Running",
                "podIP": "10.0.0.1",
                "conditions": [
                    condition,
                    {"type": "Ready", "status": "True" if ready else "False"},
                ],
                "initContainerStatuses": [{"name": names.CONTAINER_LOADER, **(loader or ended(0))}],
                "containerStatuses": [
                    {"name": names.CONTAINER_SERVER, "ready": ready, **(server or RUNNING)}
                ],
            },
        }
        if ready:
            self.probes[name] = GOOD_PROBE
        self.pods.append(merge(raw, more))
        return self

    def probe(self, probe: Probe | None) -> Scene:
        name = self.pods[-1]["metadata"]["name"]
        self.probes.pop(name, None)
        if probe is not None:
            self.probes[name] = probe
        return self

    def plan(self) -> Plan:
        world = self.world
        observed = Snapshot(
            world.document,
            world.children,
            tuple(map(Pod.of, self.pods)),
            self.probes,
            {},
            world.missing_sources,
            self.nodes,
        )
        decided = plan(
            observed,
            Context(world.options, lambda uid, revision: f"key of {uid} {revision}"),
            world.now,
        )
        if decided.status is not None:
            check_status(decided.status)
        return decided

    def conditions(self) -> dict[str, Object]:
        status = self.plan().status
        assert status is not None
        return {item["type"]: item for item in status["conditions"]}

    def reasons(self) -> dict[str, str]:
        return {
            kind: f"{item['status']} {item['reason']}" for kind, item in self.conditions().items()
        }

    def message(self) -> str:
        return str(self.conditions()["Ready"]["message"])


def report(reason: LoadReason, message: str, field: str) -> str:
    return LoadReport(
        ok=False,
        revision="r",
        findings=(LoadFinding(step="model", reason=reason, message=message, field=field),),
    ).to_json()


def test_nothing_there_yet() -> None:
    reported = Scene().reasons()
    assert reported == {
        "Ready": "False Progressing",
        "Available": "False NoPods",
        "ModelsReady": "Unknown WaitingForPods",
        "Reconciling": "True Progressing",
    }


def test_first_rollout_step_by_step(messages: Messages) -> None:
    assert (
        Scene().pod(loader=RUNNING, server=waiting("PodInitializing")).reasons()["Ready"]
        == "False Loading"
    )
    assert Scene().pod(server=RUNNING).reasons()["Ready"] == "False Loading"
    served = Scene().pod(ready=True)
    assert served.reasons() == {
        "Ready": "True Succeeded",
        "Available": "True Serving",
        "ModelsReady": "True Succeeded",
    }
    messages.check(served.message())
    messages.check(served.conditions()["Available"]["message"])
    assert (
        served.pod(ready=True)
        .conditions()["Available"]["message"]
        .startswith("2 pods serve requests (revision ")
    )


def test_a_ready_pod_owes_a_test_inference(messages: Messages) -> None:
    for probe in (
        None,
        Probe(GOOD_PROBE.at, True),
        Probe(GOOD_PROBE.at, False, error="cannot be reached"),
    ):
        scene = Scene().pod(ready=True).probe(probe)
        assert scene.reasons()["Ready"] == "False Progressing", probe
        assert scene.reasons()["Available"] == "True Serving"
        messages.check(scene.message())
    messages.check(scene.message())
    assert (
        Scene(health={"inference": "Disabled"}).pod(ready=True).probe(None).reasons()["Ready"]
        == "True Succeeded"
    )


def test_inference_failing() -> None:
    broken = Probe(GOOD_PROBE.at, True, inference_error="output logits holds NaN or infinity")
    one = Scene().pod(ready=True).probe(broken)
    assert one.reasons() == {
        "Ready": "False InferenceFailed",
        "Available": "False InferenceFailed",
        "ModelsReady": "True Succeeded",
        "Reconciling": "True InferenceFailed",
    }
    assert "NaN" in one.message()
    two = Scene(replicas=2).pod(ready=True).pod(ready=True).probe(broken)
    assert two.reasons()["Available"] == "True Serving"
    assert two.reasons()["Ready"] == "False InferenceFailed"


NO_GPU = {
    "status": "False",
    "reason": "Unschedulable",
    "message": (
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. no new claims to deallocate, "
        "preemption: 0/2 nodes are available."
    ),
}


def node(name: str, gpus: str | None, product: str = "") -> Object:
    labels = {"nvidia.com/gpu.product": product} if product else {}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {GPU: gpus} if gpus else {}},
    }


def test_no_gpu_says_what_was_asked_and_what_is_offered(messages: Messages) -> None:
    scene = Scene(server={"gpu": {"count": 4}}).pod(placed=NO_GPU)
    assert scene.reasons()["Ready"] == "False WaitingForGPU"
    assert scene.reasons()["Reconciling"] == "True WaitingForGPU"
    assert "nvidia.com/gpu" in scene.message()
    messages.check(scene.message())
    assert "preemption" not in scene.message()
    scene.nodes = (node("a", "2", "Tesla-T4"), node("b", "0"))
    messages.check(scene.message())
    scene.nodes = (node("a", None), node("b", "0"))
    assert "nvidia.com/gpu" in scene.message()
    messages.check(scene.message())
    scene.nodes = tuple(node(f"n{index}", "1") for index in range(8))
    messages.check(scene.message())


def test_other_shortages_name_the_resource(messages: Messages) -> None:
    scene = Scene().pod(
        placed=merge(
            NO_GPU,
            {"message": "0/2 nodes are available: 2 Insufficient memory, 1 Insufficient cpu."},
        )
    )
    assert scene.reasons()["Ready"] == "False WaitingForResources"
    assert "nvidia.com/gpu" in scene.message()
    messages.check(scene.message())


@pytest.mark.parametrize("container", [names.CONTAINER_LOADER, names.CONTAINER_SERVER])
def test_image_that_cannot_be_pulled(container: str) -> None:
    status = {"image": "registry.example/x:1", **waiting("ImagePullBackOff", "manifest unknown")}
    scene = Scene().pod(**{"loader" if container == names.CONTAINER_LOADER else "server": status})
    assert scene.reasons()["Ready"] == "False ImageUnavailable"
    for word in ("registry.example/x:1", container, "manifest unknown"):
        assert word in scene.message()


LOADS = [
    (LoadReason.SOURCE_UNAVAILABLE, Reason.SOURCE_UNAVAILABLE, "Reconciling"),
    (LoadReason.NO_SPACE, Reason.NO_SPACE, "Reconciling"),
    (LoadReason.INTERNAL_ERROR, Reason.INTERNAL_ERROR, "Reconciling"),
    (LoadReason.SOURCE_CHANGED, Reason.SOURCE_CHANGED, "Stalled"),
    (LoadReason.CHECKSUM_MISMATCH, Reason.CHECKSUM_MISMATCH, "Stalled"),
    (LoadReason.MODEL_MISMATCH, Reason.MODEL_MISMATCH, "Stalled"),
    (LoadReason.INVALID_TOKENIZER, Reason.INVALID_TOKENIZER, "Stalled"),
]


@pytest.mark.parametrize(("said", "reason", "abnormal"), LOADS)
@pytest.mark.parametrize("phase", ["state", "lastState"])
def test_what_the_loader_found(
    said: LoadReason, reason: Reason, abnormal: str, phase: str, messages: Messages
) -> None:
    found = "the source has no file model.onnx; check uri and path"
    loader = ended(2, report(said, found, "spec.model.source"), phase=phase)
    if phase == "lastState":
        loader |= waiting("CrashLoopBackOff")
    scene = Scene().pod(loader=loader, server=waiting("PodInitializing"))
    assert scene.reasons()["Ready"] == f"False {reason}"
    assert scene.reasons()[abnormal] == f"True {reason}"
    assert scene.reasons()["ModelsReady"] == f"False {reason}"
    assert "spec.model.source" in scene.message()
    messages.check(scene.message())
    assert {"Reconciling", "Stalled"} & set(scene.reasons()) == {abnormal}


def test_the_finding_that_only_the_user_can_mend_speaks(messages: Messages) -> None:
    findings = (
        LoadFinding(
            step="tokenizer",
            reason=LoadReason.SOURCE_UNAVAILABLE,
            message="s3://models/sentiment: no response within 30 s",
            field="spec.tokenizer.source",
        ),
        LoadFinding(
            step="model",
            reason=LoadReason.MODEL_MISMATCH,
            message="output logits is FP16, but the spec declares FP32",
            field="spec.model",
        ),
        LoadFinding(
            step="tokenizer",
            reason=LoadReason.TOKENIZER_SETTINGS_IGNORED,
            message="just so you know",
        ),
    )
    scene = Scene().pod(
        loader=ended(2, LoadReport(ok=False, revision="r", findings=findings).to_json())
    )
    assert scene.reasons()["Ready"] == "False ModelMismatch"
    assert "spec.tokenizer.source" in scene.message()
    messages.check(scene.message())
    assert "just so you know" not in scene.message()


def test_loader_without_report(messages: Messages) -> None:
    scene = Scene().pod(loader=ended(137, "", reason="OOMKilled"))
    assert scene.reasons()["Ready"] == "False InternalError"
    assert "OOMKilled" in scene.message()
    messages.check(scene.message())


def test_a_load_that_succeeded_after_a_failure_is_forgiven() -> None:
    loader = ended(0) | ended(
        3, report(LoadReason.SOURCE_UNAVAILABLE, "once", "spec.model.source"), phase="lastState"
    )
    assert Scene().pod(loader=loader).reasons()["Ready"] == "False Loading"


def test_crash_loop_shows_the_end_of_the_log() -> None:
    server = {
        "restartCount": 5,
        **waiting("CrashLoopBackOff"),
        **ended(139, "x" * 2000 + "Segmentation fault", phase="lastState"),
    }
    scene = Scene().pod(server=server)
    assert scene.reasons()["Ready"] == "False ServerCrashed"
    assert "restarts: 5" in scene.message()
    assert scene.message().endswith("Segmentation fault")
    assert len(scene.message()) < 1000


def test_a_model_that_triton_cannot_load(messages: Messages) -> None:
    states = (
        ModelState("model", "UNAVAILABLE", "unexpected shape for input"),
        ModelState("old", "UNAVAILABLE", "unloaded"),
    )
    scene = Scene().pod().probe(Probe(GOOD_PROBE.at, False, states))
    assert scene.reasons()["Ready"] == "False ModelFailed"
    assert scene.reasons()["Stalled"] == "True ModelFailed"
    messages.check(scene.message())
    assert "old" not in scene.message()


def test_the_worst_pod_speaks(messages: Messages) -> None:
    mismatch = "output logits is FP16, but the spec declares FP32"
    bad = ended(2, report(LoadReason.MODEL_MISMATCH, mismatch, "spec.model"))
    scene = Scene(replicas=3).pod(loader=RUNNING).pod(placed=NO_GPU).pod(loader=bad)
    assert scene.reasons()["Ready"] == "False ModelMismatch"
    messages.check(scene.message())


def test_pods_on_their_way_out_do_not_count() -> None:
    scene = Scene().pod(ready=True, metadata={"deletionTimestamp": "2026-01-01T12:00:00Z"})
    assert scene.reasons()["Available"] == "False NoPods"
    status = scene.plan().status
    assert status is not None
    assert status["replicas"] == status["readyReplicas"] == 0


def test_suspended() -> None:
    scene = Scene(suspend="Enabled")
    assert scene.reasons() == {"Ready": "True Suspended", "Available": "False Suspended"}
    assert scene.world.deployment["spec"]["replicas"] == 0


def test_being_suspended_is_not_yet_suspended(messages: Messages) -> None:
    scene = Scene(suspend="Enabled").pod(ready=True)
    assert scene.reasons() == {
        "Ready": "False Draining",
        "Available": "True Serving",
        "Reconciling": "True Draining",
    }
    messages.check(scene.message())


def test_more_pods_than_wanted_is_not_ready_yet(messages: Messages) -> None:
    scene = Scene(replicas=1).pod(ready=True).pod(ready=True)
    assert scene.reasons()["Ready"] == "False Draining"
    messages.check(scene.message())


def test_no_replicas_wanted() -> None:
    scene = Scene(replicas=0)
    assert scene.reasons() == {
        "Ready": "True Succeeded",
        "Available": "False NoPods",
        "ModelsReady": "Unknown WaitingForPods",
    }


def test_all_findings_of_an_invalid_spec_in_one_message(messages: Messages) -> None:
    world = World().started()
    children = dict(world.children)
    world.change(
        postprocess={"labels": ["a", "b", "c"]},
        server={"args": ["--model-repository=/x", "--log-verbose=1"]},
    )
    decided = world.step()
    assert (decided.apply, decided.delete) == ((), ())
    assert world.children == children
    assert world.reasons() == {
        "Ready": "False InvalidSpec",
        "Available": "True Serving",
        "ModelsReady": "True Succeeded",
        "Stalled": "True InvalidSpec",
    }
    message = world.condition("Ready")["message"]
    assert "labels" in message
    assert "--model-repository" in message
    messages.check(message)
    assert world.status["observedGeneration"] == 2
    assert world.status["ensemble"]["modelName"] == "sentiment"
    assert decided.requeue_after is None
    assert world.step().is_empty


def test_missing_config_map_source_is_waited_for() -> None:
    world = World(builders.document(model={"source": {"uri": "configmap://weights/model.onnx"}}))
    world.missing_sources = {
        "model": "spec.model.source.uri: there is no ConfigMap weights; create it"
    }
    decided = world.step()
    assert decided.apply == ()
    assert world.reasons() == {
        "Ready": "False SourceUnavailable",
        "Available": "False NoPods",
        "Reconciling": "True SourceUnavailable",
    }
    assert world.status["observedGeneration"] == 0
    assert decided.requeue_after is not None
    world.missing_sources, world.digests = {}, {"model": "1" * 64}
    assert world.settle().reasons()["Ready"] == "True Succeeded"
    first = world.deployed
    world.digests = {"model": "2" * 64}
    assert world.settle().deployed != first


def test_every_reason_has_a_meaning() -> None:
    assert set(KIND_OF) == set(Reason)
    assert {reason for reason, kind in KIND_OF.items() if kind is ReasonKind.FINE} == {
        Reason.SUCCEEDED,
        Reason.SERVING,
        Reason.SUSPENDED,
        Reason.ADVISORY,
        Reason.BOUNDS_REACHED,
        Reason.TOKENIZER_BOUND,
        Reason.STEP_BOUND,
        Reason.CPU_BOUND,
        Reason.GPU_BOUND,
        Reason.CPU_CONTENDED,
        Reason.NO_PROGRESS,
        Reason.BATCHING_INEFFECTIVE,
    }


def test_observed_generation_changes_when_the_spec_is_fully_evaluated() -> None:
    world = World()
    world.step()
    assert world.status["observedGeneration"] == 0
    assert {item["observedGeneration"] for item in world.status["conditions"]} == {1}
    world.settle()
    assert world.status["observedGeneration"] == 1
    world.change(tokenizer={"maxLength": 64}).step()
    assert world.status["observedGeneration"] == 1
    assert {item["observedGeneration"] for item in world.status["conditions"]} == {2}
    assert world.settle().status["observedGeneration"] == 2


def test_transition_times_move_with_the_status_value_alone() -> None:
    world = World().started()
    times = {item["type"]: item["lastTransitionTime"] for item in world.status["conditions"]}
    available = times["Available"]
    world.pass_time(60).change(tokenizer={"maxLength": 64}).step()
    assert world.condition("Available")["lastTransitionTime"] == available
    left = world.condition("Ready")["lastTransitionTime"]
    assert left == rfc3339(world.now) != times["Ready"]
    world.pass_time(30).control().run_pods().step()
    assert world.condition("Ready")["reason"] == "Loading"
    assert world.condition("Ready")["lastTransitionTime"] == left
    world.settle()
    assert world.condition("Available")["lastTransitionTime"] == available
    assert world.condition("Ready")["lastTransitionTime"] > left


def test_what_a_pod_says_never_breaks_the_schema() -> None:
    reported = LoadReport.model_validate(
        {
            "ok": True,
            "revision": "r",
            "sources": [
                {
                    "step": "model",
                    "uri": "s3://x/y",
                    "resolvedRevision": "e" * 3000,
                    "sha256": "a" * 64,
                }
            ],
        }
    )
    scene = Scene().pod(ready=True, loader=ended(0, reported.to_json()))
    status = scene.plan().status  # validated there
    assert status is not None
    assert len(status["sources"][0]["resolvedRevision"]) == 512
    long = Probe(GOOD_PROBE.at, False, (ModelState("model", "UNAVAILABLE", "x" * 9000),))
    assert len(Scene().pod().probe(long).message()) <= 4096


def test_the_longest_spec_never_breaks_the_schema() -> None:
    """A status that the API server refuses would leave a pipeline without any word about it."""
    dims = [1] * 16
    widest = {"outputs": [{"name": "n" * 256, "dataType": "FP32", "dims": dims}]}
    status = (
        Scene(model=widest, postprocess={"type": "None", "labels": None, "topK": None})
        .pod(ready=True)
        .plan()
        .status
    )  # validated there
    assert status is not None
    assert status["ensemble"]["outputs"][0]["shape"] == [-1, *dims]
    address = f"https://files.example/{'a' * 1000}?s"
    assert len(address) == 1024
    reported = LoadReport.model_validate(
        {
            "ok": True,
            "revision": "r",
            "sources": [{"step": "model", "uri": redact_url(address), "sha256": "a" * 64}],
        }
    )
    status = Scene().pod(ready=True, loader=ended(0, reported.to_json())).plan().status
    assert status is not None
    assert status["sources"][0]["uri"].startswith(address[:1000])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "code 1;"),
        (136, "SIGFPE"),
        (137, "SIGKILL"),
        (255, "255"),
    ],
)
def test_the_signal_that_ended_triton_is_named(code: int, words: str, messages: Messages) -> None:
    scene = Scene().pod(server=ended(code, "", reason="Error"))
    assert words in scene.message()
    messages.check(scene.message())
