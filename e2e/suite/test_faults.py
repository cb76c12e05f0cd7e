"""Faults around a pipeline: operator, API server, a pod's process, and user changes.

The user changes their mind while a change is in progress.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence

import pytest

from e2e.suite.access import Access
from e2e.suite.installation import NAMESPACE, RELEASE, Installation
from e2e.suite.kube import Kube, Object, wait_for
from e2e.suite.pipelines import condition
from e2e.suite.tiny import SAFE_CLIENTS, TinyPipeline, assert_none_lost, is_ready, wait_left
from triton_pipelines.api import names

BACK_SECONDS = 90.0
OUTLASTING_SECONDS = 60
"""Seconds that outlast the API server's absence and the node proxy's wait before it retries.

The proxy waits as long again and more: client-go's reflector doubles its pauses and stretches each
by up to as much.
"""
HEALTH_SECONDS = 5
"""The tiny pipeline's time between two inferences of the operator."""
DETECTED_SECONDS = 3.0 * HEALTH_SECONDS
OWNED = (
    "Deployment",
    "ReplicaSet",
    "Pod",
    "Service",
    "ConfigMap",
    "Secret",
    "NetworkPolicy",
    "PodDisruptionBudget",
)
"""Kinds of objects that a pipeline of two pods has."""
WRITES = {"applied", "deleted", "resized"}
"""Messages of the operator's log about an object that it wrote."""
# Sends SIGKILL to the postprocess's process; every Triton image has python3.
KILL_POSTPROCESS = """
import os, pathlib, signal
for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    command = path.read_bytes().decode().split('\\0')
    if 'triton_python_backend_stub' in command[0] and '/postprocess/' in command[1]:
        os.kill(int(path.parent.name), signal.SIGKILL)
        print('killed', path.parent.name)
"""


def writes(installation: Installation, namespace: str) -> Counter[tuple[str, str]]:
    """Count what the operator's process has written in one namespace, by its own log.

    Returns:
        (message, kind) → how many: applies, deletions and resizes. Status updates and events are
        not counted. Other namespaces do not count either: an earlier test's may still be
        terminating.
    """
    (pod,) = [pod for pod in installation.operator_pods() if is_ready(pod)]
    log = installation.kube.kubectl(
        "logs", f"--namespace={NAMESPACE}", pod["metadata"]["name"], "--tail=-1"
    )
    entries = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert any(entry.get("event") == "caches are filled" for entry in entries), "its whole log"
    return Counter(
        (entry["event"], entry.get("kind", "Pod"))
        for entry in entries
        if entry.get("event") in WRITES and entry.get("namespace") == namespace
    )


def wait_operator(installation: Installation, gone: Collection[str] = ()) -> None:
    """Wait for one operator that leads and is none of these pods."""

    def holds(pods: Sequence[Object]) -> bool:
        return len(pods) == 1 and is_ready(pods[0]) and pods[0]["metadata"]["name"] not in gone

    wait_for(
        "the operator is back",
        installation.operator_pods,
        holds,
        BACK_SECONDS,
        lambda pods: f"{len(pods)} pods",
    )
    # A pod is ready before it leads: the Lease of one that was killed has to expire first.
    wait_for(
        "the operator leads",
        installation.operator_log,
        lambda log: "caches are filled" in log,
        BACK_SECONDS,
        lambda log: log[-500:],
    )


def wait_surge_pod(tiny: TinyPipeline, before: set[str]) -> None:
    """Wait until a rollout is on its way: a pod that was not there before."""
    wait_for("a pod of the new revision", tiny.pod_names, lambda pods: pods - before, BACK_SECONDS)


def test_an_operator_killed_during_a_rollout_continues_it(
    kube: Kube, installation: Installation, tiny: TinyPipeline
) -> None:
    tiny.serve("old")
    before = tiny.pod_names()
    operator = {pod["metadata"]["name"] for pod in installation.operator_pods()}
    with tiny.load(clients=SAFE_CLIENTS) as load:
        tiny.change("new")
        wait_for(
            "the new revision",
            lambda: tiny.deployed_revision(),
            lambda deployed: deployed != tiny.status()["servingRevision"],
            BACK_SECONDS,
        )
        kube.kubectl(
            "delete", "pod", f"--namespace={NAMESPACE}", "--force", "--grace-period=0", *operator
        )
        wait_operator(installation, operator)
        tiny.wait_ready()
        wait_left(tiny, before)
        load.wait_requests()
    assert_none_lost(load, {"old", "new"})


def test_without_operator_the_deployment_heals_and_the_operator_then_only_records_the_new_pod(
    kube: Kube, installation: Installation, tiny: TinyPipeline
) -> None:
    tiny.serve("old")
    before = tiny.pod_names()
    kube.kubectl("scale", f"deployment/{RELEASE}", f"--namespace={NAMESPACE}", "--replicas=0")
    try:
        wait_for(
            "no operator",
            installation.operator_pods,
            lambda pods: not pods,
            BACK_SECONDS,
            lambda pods: f"{len(pods)} pods",
        )
        for pod in before:
            kube.delete("Pod", tiny.namespace, pod)
        wait_left(tiny, before)
        wait_for("a new pod serves", tiny.serving_pods, bool, BACK_SECONDS)
        with tiny.load(clients=SAFE_CLIENTS) as load:
            load.wait_requests()
        assert_none_lost(load, {"old"})
        applied = tiny.applied()
        asked = tiny.inferences()
    finally:
        kube.kubectl("scale", f"deployment/{RELEASE}", f"--namespace={NAMESPACE}", "--replicas=1")
        wait_operator(installation)
    # It has probed the pod, and nothing else sends requests to it.
    wait_for(
        "an inference of the operator", tiny.inferences, lambda count: count > asked, BACK_SECONDS
    )
    tiny.wait_ready()
    # It records that the new pod has answered, and changes nothing else.
    record = f"ConfigMap/{tiny.name}-live"
    recorded = wait_for(
        "the record of the answer",
        tiny.applied,
        lambda found: found[record] != applied[record],
        BACK_SECONDS,
    )
    assert {**recorded, record: None} == {**applied, record: None}
    assert writes(installation, tiny.namespace) == {("applied", "ConfigMap"): 1}


def test_an_absent_api_server_affects_no_request(access: Access, tiny: TinyPipeline) -> None:
    if access.local is None:
        pytest.skip("only a local cluster's API server may be stopped")
    # A pod that was terminated before the API server went away continues its drain. Until the drain
    # is over, the API server must be back to take the pod's address out of the Service, so the
    # drain has to outlast the absence.
    tiny.serve("old", rollout={"drainSeconds": OUTLASTING_SECONDS})
    before = tiny.pod_names()
    # A client that keeps its connection would hold the old pod for another drain, and a rollout
    # does not spare it.
    with tiny.load(clients=SAFE_CLIENTS) as load:
        tiny.change("new")
        wait_surge_pod(tiny, before)
        access.local.supervisor.stop("kube-apiserver")
        try:
            away = load.now()
            load.wait_requests(20)
            lost = [outcome for outcome in load.outcomes if outcome.start >= away and outcome.error]
        finally:
            access.local.supervisor.start("kube-apiserver")
        assert not lost
        tiny.wait_ready()
        wait_left(tiny, before)
        load.wait_requests()
    assert_none_lost(load, {"old", "new"})


def test_a_dead_step_is_noticed_and_healed_though_its_server_says_that_it_is_ready(
    kube: Kube, tiny: TinyPipeline
) -> None:
    tiny.serve("old")
    (pod,) = tiny.serving_pods()
    name = pod["metadata"]["name"]
    kubectl = ("exec", f"--namespace={tiny.namespace}", name, "--container=triton", "--")
    assert "killed" in kube.kubectl(*kubectl, "python3", "-c", KILL_POSTPROCESS)
    # Both conditions of one state: the next one may already be that of the new pod.
    seen = tiny.wait("the dead process in both conditions", _inference_failed, DETECTED_SECONDS)
    message = condition(seen["status"], "Ready")["message"]
    assert name in message
    assert "test inference failed" in message
    wait_left(tiny, {name})
    tiny.wait_ready()
    assert tiny.condition("Available")["status"] == "True"
    tiny.wait_event("BackendProcessDied")
    (event,) = [event for event in tiny.events() if event["reason"] == "BackendProcessDied"]
    assert f"pod {name} is deleted" in event["note"]


def _inference_failed(item: Object) -> bool:
    """Whether a state reports a failed inference in Ready and in Available."""
    return all(
        (found.get("status"), found.get("reason")) == ("False", "InferenceFailed")
        for found in (condition(item["status"], kind) for kind in ("Ready", "Available"))
    )


def test_of_ten_changes_in_a_row_the_last_one_serves(kube: Kube, tiny: TinyPipeline) -> None:
    limit = 2
    tiny.serve("old", rollout={"revisionHistoryLimit": limit})
    with tiny.load(clients=SAFE_CLIENTS) as load:
        for number in range(10):
            earlier = tiny.status()["revision"]
            tiny.change(f"r{number}")
            wait_for(
                "its revision", lambda: tiny.status()["revision"], earlier.__ne__, BACK_SECONDS
            )
        ready = tiny.wait_ready()
        wait_for("one pod", tiny.pod_names, lambda pods: len(pods) == 1, BACK_SECONDS)
        load.wait_requests(1)
        since = load.now()
        load.wait_requests()
    for client in SAFE_CLIENTS:
        assert load.summary()[client].failed == 0, [
            outcome for outcome in load.outcomes if outcome.error
        ]
    assert {outcome.answer for outcome in load.outcomes if outcome.start >= since} == {"r9"}

    def revisions(kind: str) -> set[str]:
        return {
            item["metadata"]["labels"][names.LABEL_REVISION]
            for item in tiny.children(kind)
            if names.LABEL_REVISION in item["metadata"]["labels"]
        }

    kept = wait_for(
        "old revisions pruned",
        lambda: revisions("ConfigMap"),
        lambda found: len(found) <= 1 + limit,
        BACK_SECONDS,
    )
    assert ready["status"]["revision"] in kept

    def secrets() -> set[str]:
        listed = kube.kubectl(
            "get",
            "secrets",
            f"--namespace={tiny.namespace}",
            f"--selector={names.LABEL_PIPELINE}={tiny.name}",
            "--output=name",
        )
        return {line.partition("/")[2] for line in listed.split()}

    expected = {names.revision_name(tiny.name, revision) for revision in kept}
    wait_for("the Secrets of those revisions", secrets, expected.__eq__, BACK_SECONDS)


def test_deleted_in_mid_rollout_nothing_is_left(kube: Kube, tiny: TinyPipeline) -> None:
    tiny.serve("old", replicas=2)
    before = tiny.pod_names()
    assert all(tiny.children(kind) for kind in OWNED)
    tiny.change("new")
    wait_surge_pod(tiny, before)
    kube.kubectl("delete", names.PLURAL, tiny.name, f"--namespace={tiny.namespace}", "--wait=false")
    kube.wait_gone(names.KIND, tiny.namespace, tiny.name)
    wait_for(
        "everything of it gone",
        lambda: {
            kind: [item["metadata"]["name"] for item in tiny.children(kind)] for kind in OWNED
        },
        lambda left: not any(left.values()),
        BACK_SECONDS,
    )
    # The garbage collector deletes them after the Service.
    wait_for(
        "EndpointSlices gone",
        lambda: kube.kubectl(
            "get", "endpointslices", f"--namespace={tiny.namespace}", "--output=name"
        ),
        lambda slices: slices == "",
        BACK_SECONDS,
    )


def test_nothing_is_written_without_a_change_or_after_a_restart(
    kube: Kube, installation: Installation, tiny: TinyPipeline
) -> None:
    tiny.serve("old", replicas=2, scaling={"windows": {"fastSeconds": 4, "slowSeconds": 10}})
    kinds = (
        f"{names.PLURAL},deployments,replicasets,pods,configmaps,secrets,services,endpointslices,"
        f"networkpolicies,poddisruptionbudgets"
    )
    template = "{range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}{'\\n'}{end}"

    def versions() -> set[str]:
        objects = kube.kubectl(
            "get", kinds, f"--namespace={tiny.namespace}", f"--output=jsonpath={template}"
        ).splitlines()
        # Of events only those about the pipeline: the kubelet repeats some of its own about pods.
        events = (
            f"Event/{item['metadata']['name']} {item['metadata']['resourceVersion']}"
            for item in tiny.events()
        )
        return {*objects, *events}

    def quiet() -> tuple[Counter[tuple[str, str]], set[str]]:
        return writes(installation, tiny.namespace), versions()

    # Ready comes with the first answers. The result of the next probe of both pods (states of the
    # models) may not be written yet.
    asked = tiny.inferences()
    wait_for(
        "a second look at both pods",
        tiny.inferences,
        lambda count: count >= asked + 4,
        12.0 * HEALTH_SECONDS,
    )
    # For a whole window, scaling sees only the operator's own requests.
    tiny.wait(
        "Idle", lambda item: (item["status"].get("scaling") or {}).get("bottleneck") == "Idle"
    )
    began, asked = quiet(), tiny.inferences()
    # Two pods are asked every five seconds each: more than three periods of both.
    wait_for(
        "inferences of the operator",
        tiny.inferences,
        lambda count: count >= asked + 8,
        12.0 * HEALTH_SECONDS,
    )
    ended = quiet()
    assert ended[0] == began[0]
    assert ended[1] == began[1]

    operator = {pod["metadata"]["name"] for pod in installation.operator_pods()}
    kube.kubectl("delete", "pod", f"--namespace={NAMESPACE}", *operator)
    wait_operator(installation, operator)
    asked = tiny.inferences()
    wait_for(
        "inferences of the new operator",
        tiny.inferences,
        lambda count: count >= asked + 8,
        12.0 * HEALTH_SECONDS,
    )
    assert not writes(installation, tiny.namespace)
    assert versions() == began[1]
