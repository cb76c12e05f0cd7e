"""Only pods that a pipeline's own Deployment or Job controls are its pods."""

from __future__ import annotations

import copy
import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import builders, ownership
from tests.support.loops import loop_of
from tests.support.passes import Recording, passed
from tests.support.reconcilers import (
    KEY,
    AcceptingClient,
    ready_pod,
    reconciler_of,
    stored,
)
from tests.support.tuningworld import RESULT, asked
from tests.support.worlds import START, World, rfc3339
from tests.unit.app.test_slo_latency import staged
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import Forbidden
from triton_pipelines.cluster.resources import (
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    JOBS,
    PODS,
    REPLICA_SETS,
    Resource,
)
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.render.preflight_objects import preflight_job
from triton_pipelines.controllers.pipeline.deployment_progress import (
    PREFLIGHT_TIME,
    STALLED_TIME,
    may_roll,
    rolling_pipelines,
)
from triton_pipelines.controllers.pipeline.pod_observer import READS_MAX, REREAD_SECONDS
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import LABEL_TEMPLATE_HASH, Probe
from triton_pipelines.controllers.pod_ownership import owned_pods

SCALED: dict[str, Any] = {"tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}}}


def reference(**fields: Any) -> Object:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "sentiment-hash", "uid": "rs"}
    return {**owner, "controller": True, **fields}


FORGED: dict[str, Callable[[Object], object]] = {
    "no owner": lambda metadata: metadata.pop("ownerReferences"),
    "an owner that is no controller": lambda metadata: metadata.update(
        ownerReferences=[{**metadata["ownerReferences"][0], "controller": False}]
    ),
    "another kind of controller": lambda metadata: metadata.update(
        ownerReferences=[{**metadata["ownerReferences"][0], "kind": "StatefulSet"}]
    ),
    "another group of the kind": lambda metadata: metadata.update(
        ownerReferences=[{**metadata["ownerReferences"][0], "apiVersion": "other.example/v1"}]
    ),
    "the pipeline itself": lambda metadata: metadata.update(
        ownerReferences=[reference(apiVersion=names.API_VERSION, kind=names.KIND, uid="uid")]
    ),
    "the Deployment itself": lambda metadata: metadata.update(
        ownerReferences=[reference(kind="Deployment", uid="uid-sentiment")]
    ),
    "an unknown uid under the ReplicaSet's name": lambda metadata: metadata.update(
        ownerReferences=[{**metadata["ownerReferences"][0], "uid": "forged"}]
    ),
    "another template's hash": lambda metadata: metadata["labels"].update(
        {LABEL_TEMPLATE_HASH: "other"}
    ),
}


@pytest.fixture
def place() -> tuple[Store, Object, Object, Object]:
    """Caches with a pipeline and its Deployment; Deployment, ReplicaSet and a pod of it."""
    store, document = Store(), stored()
    store.put(INFERENCE_PIPELINES, document)
    deployment = ownership.deployment(document)
    deployment["spec"] = {"template": {"metadata": {"labels": names.labels("sentiment")}}}
    store.put(DEPLOYMENTS, deployment)
    made = ownership.replica_set(
        deployment, ownership.template_hash(deployment["spec"]["template"])
    )
    return store, deployment, made, ready_pod(deployment)


Place = tuple[Store, Object, Object, Object]


def test_a_pod_of_the_deployments_replica_set_is_owned(place: Place) -> None:
    store, _, made, pod = place
    store.put(PODS, pod)
    assert owned_pods(store, ownership.read(made), KEY).server == (pod,)
    assert owned_pods(store, {}, KEY).server == ()


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_labels_alone_make_no_pod_the_pipelines(
    place: Place, forge: Callable[[Object], object]
) -> None:
    store, _, made, pod = place
    forge(pod["metadata"])
    store.put(PODS, pod)
    assert store.children(PODS, KEY) == [pod]
    assert owned_pods(store, ownership.read(made), KEY) == owned_pods(Store(), {}, KEY)


@pytest.mark.parametrize("owner", [None, "uid of an earlier pipeline"])
def test_a_deployment_of_another_owner_has_no_pods_of_the_pipeline(
    place: Place, owner: str | None
) -> None:
    store, deployment, made, pod = place
    references = [{**deployment["metadata"]["ownerReferences"][0], "uid": owner}] if owner else []
    metadata = {"ownerReferences": references, "resourceVersion": "2"}
    store.put(DEPLOYMENTS, {**deployment, "metadata": deployment["metadata"] | metadata})
    store.put(PODS, pod)
    assert owned_pods(store, ownership.read(made), KEY).server == ()


async def test_an_unowned_pod_gets_no_key_and_makes_no_pipeline_ready(place: Place) -> None:
    store, _, _, pod = place
    del pod["metadata"]["ownerReferences"]
    store.put(PODS, pod)
    client = AcceptingClient()
    # Its prober fails the test: a probe sends the control key.
    await reconciler_of(client, store).reconcile(KEY)
    ready = next(item for item in client.statuses[-1]["conditions"] if item["type"] == "Ready")
    assert ready["status"] == "False"
    assert client.statuses[-1]["replicas"] == 0


class CountingClient(AcceptingClient):
    """A fake API server that counts the ReplicaSets it is asked for."""

    def __init__(self, *replica_sets: Object) -> None:
        super().__init__()
        self.replica_sets = list(replica_sets)
        self.asked: list[str] = []

    async def apply(self, obj: Object, **_: Any) -> Object:
        uid = f"uid-{obj['metadata']['name']}"
        return {**obj, "metadata": {**obj["metadata"], "uid": uid}}

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        if resource == REPLICA_SETS:
            self.asked.append(name)
        return await super().get(resource, namespace, name)


async def answers(target: ProbeTarget, now: dt.datetime) -> Probe:
    return Probe(now, ensemble_ready=True, inference_error="")


async def test_each_replica_set_is_read_once_and_dropped_with_its_pods(place: Place) -> None:
    store, _, made, pod = place
    client = CountingClient(made)
    reconciler = reconciler_of(client, store, prober=answers)
    for number in range(3):
        name = f"pod-{number}"
        store.put(PODS, {**pod, "metadata": pod["metadata"] | {"name": name, "uid": name}})
        await reconciler.reconcile(KEY)
    assert client.asked == [made["metadata"]["name"]]
    assert list(reconciler.handover.replica_sets[KEY]) == [made["metadata"]["uid"]]
    for number in range(3):
        store.remove(PODS, KEY[0], f"pod-{number}")
    await reconciler.reconcile(KEY)
    assert reconciler.handover.replica_sets[KEY] == {}


async def test_a_replica_set_of_another_is_read_again_after_a_while(place: Place) -> None:
    """A Deployment that was recreated adopts the ReplicaSets of its predecessor."""
    store, deployment, made, pod = place
    orphan = copy.deepcopy(made)
    orphan["metadata"]["ownerReferences"] = []
    client, elapsed = CountingClient(orphan), 0.0
    reconciler = reconciler_of(
        client, store, prober=answers, clock=lambda: START + dt.timedelta(seconds=elapsed)
    )
    store.put(PODS, pod)
    result = await reconciler.reconcile(KEY)
    assert result.requeue_after is not None
    assert result.requeue_after <= REREAD_SECONDS
    elapsed = REREAD_SECONDS / 2
    await reconciler.reconcile(KEY)
    assert client.asked == [made["metadata"]["name"]]
    orphan["metadata"]["ownerReferences"] = ownership.controlled_by(deployment)
    elapsed = REREAD_SECONDS
    await reconciler.reconcile(KEY)
    assert client.asked == [made["metadata"]["name"]] * 2
    (known,) = reconciler.handover.replica_sets[KEY].values()
    assert known.deployment == deployment["metadata"]["uid"]


@pytest.mark.parametrize(
    "name",
    ["other-hash", "sentiment-../../secrets/key", "sentiment-" + "x" * 300, "sentiment-\n", ""],
)
async def test_no_request_is_sent_for_names_that_no_deployment_gives(
    place: Place, name: str
) -> None:
    store, _, _, pod = place
    pod["metadata"]["ownerReferences"] = [reference(name=name)]
    store.put(PODS, pod)
    client = CountingClient()
    await reconciler_of(client, store).reconcile(KEY)
    assert client.asked == []


async def test_forged_owner_references_cause_a_bounded_number_of_requests(place: Place) -> None:
    store, _, made, pod = place
    for number in range(3 * READS_MAX):
        metadata = pod["metadata"] | {
            "name": f"pod-{number}",
            "uid": f"{number}",
            "ownerReferences": [reference(name=f"sentiment-{number}", uid=f"forged-{number}")],
        }
        store.put(PODS, {**pod, "metadata": metadata})
    client = CountingClient(made)
    await reconciler_of(client, store).reconcile(KEY)
    assert len(client.asked) == READS_MAX


async def test_forged_owner_references_cost_fewer_and_fewer_requests(place: Place) -> None:
    """Half of the ReplicaSets do not exist, and half belong to others."""
    store, _, made, pod = place
    others = []
    for number in range(READS_MAX):
        name = f"sentiment-{number}"
        owner = reference(name=name, uid=f"rs-{number}")
        metadata = pod["metadata"] | {"name": f"pod-{number}", "uid": f"{number}"}
        store.put(PODS, {**pod, "metadata": metadata | {"ownerReferences": [owner]}})
        if number % 2:
            foreign = {**made["metadata"], "name": name, "uid": f"rs-{number}"}
            others.append({**made, "metadata": foreign | {"ownerReferences": [reference()]}})
    client, elapsed = CountingClient(*others), 0.0
    subject = reconciler_of(client, store, clock=lambda: START + dt.timedelta(seconds=elapsed))
    while elapsed < 3600:
        result = await subject.reconcile(KEY)
        assert result.requeue_after is not None
        elapsed += min(result.requeue_after, 10.0)
    assert 5 * READS_MAX <= len(client.asked) <= 10 * READS_MAX


async def test_a_replica_set_is_read_again_once_the_pipeline_has_a_new_deployment(
    place: Place,
) -> None:
    store, deployment, made, pod = place
    made["metadata"]["ownerReferences"] = []
    client, elapsed = CountingClient(made), 0.0
    subject = reconciler_of(
        client, store, prober=answers, clock=lambda: START + dt.timedelta(seconds=elapsed)
    )
    store.put(PODS, pod)
    while elapsed < 3600:
        await subject.reconcile(KEY)
        elapsed += 10.0
    adopting = copy.deepcopy(store.get(DEPLOYMENTS, *KEY) or deployment)
    adopting["metadata"] |= {"uid": "new", "resourceVersion": "999"}
    made["metadata"]["ownerReferences"] = ownership.controlled_by(adopting)
    store.put(DEPLOYMENTS, adopting)
    before = len(client.asked)
    await subject.reconcile(KEY)
    assert len(client.asked) == before + 1
    (known,) = subject.handover.replica_sets[KEY].values()
    assert known.deployment == "new"


async def test_without_the_right_to_read_replica_sets_nothing_is_decided(place: Place) -> None:
    store, _, _, pod = place
    store.put(PODS, pod)

    class RefusingClient(AcceptingClient):
        async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
            raise Forbidden(403, "Forbidden", f'{resource.plural} "{name}" is forbidden')

    client = RefusingClient()
    with pytest.raises(Forbidden, match="replicasets"):
        await reconciler_of(client, store).reconcile(KEY)
    assert client.statuses == []


async def test_the_scaling_loop_reaches_no_unowned_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of(monkeypatch, World(builders.document(**SCALED)).started())
    cache = loop.cache

    def with_foreign_pod() -> None:
        cache()
        pod = copy.deepcopy(loop.store.children(PODS, loop.key)[0])
        del pod["metadata"]["ownerReferences"]
        pod["metadata"] |= {"name": "foreign", "uid": "foreign"}
        loop.store.put(PODS, pod)

    loop.cache = with_foreign_pod  # type: ignore[method-assign]
    loop.flow(10.0)
    for _ in range(3):
        await loop.tick()
    assert loop.tritons.asked
    assert "foreign" not in loop.tritons.asked
    assert "foreign" not in {pod.name for pod in loop.scaler._states[loop.key].all_pods}
    assert all("foreign" not in one.pods for call in loop.collector.asked for one in call.values())


async def test_the_latency_of_unowned_pods_is_not_read() -> None:
    stage = staged()
    stage.watch.handover.replica_sets.clear()
    await stage.look(2)
    assert stage.reader.asked == []


@pytest.mark.parametrize("uid", ["", "forged"])
async def test_the_result_of_a_tuning_run_comes_from_its_own_job(uid: str) -> None:
    world = asked().measuring()
    ended = {"exitCode": 0, "reason": "Completed", "message": json.dumps(RESULT)}
    container = {"name": names.CONTAINER_TUNER, "state": {"terminated": ended}}
    world.pod("Job", phase="Succeeded", containerStatuses=[container])
    (owner,) = world.run_pods_raw[-1]["metadata"]["ownerReferences"]
    owner["uid"] = uid or owner["uid"]
    reported = await passed(world, Recording(world))
    assert (("status", "Succeeded") in reported) is (uid == "")


@pytest.mark.parametrize("owned", [True, False])
def test_a_preflight_of_its_own_counts_as_a_rollout_for_a_while(place: Place, owned: bool) -> None:
    store, deployment, _, _ = place
    store.put(DEPLOYMENTS, {**deployment, **settled(deployment)})
    assert rolling_pipelines(store, START) == set()
    one = builders.built()
    job = preflight_job(one.pipeline, "0123456789", one.render().template)
    job["metadata"] |= {"uid": "job", "resourceVersion": "1", "creationTimestamp": rfc3339(START)}
    job["metadata"]["ownerReferences"] = ownership.controlled_by(stored()) if owned else []
    store.put(JOBS, job)
    pod = {"metadata": {"name": "x", "namespace": KEY[0], "uid": "x", "resourceVersion": "1"}}
    pod["metadata"] |= {
        "labels": job["spec"]["template"]["metadata"]["labels"],
        "ownerReferences": ownership.controlled_by(job),
    }
    store.put(PODS, pod)
    found = owned_pods(store, {}, KEY)
    assert (found.preflight, found.tuning) == ((pod,) if owned else (), ())
    assert rolling_pipelines(store, START + PREFLIGHT_TIME) == ({KEY} if owned else set())
    later = START + PREFLIGHT_TIME + dt.timedelta(seconds=1)
    assert rolling_pipelines(store, later) == set()


def settled(deployment: Object) -> Object:
    """What changes in a Deployment when its rollout is complete."""
    done = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    metadata = {**deployment["metadata"], "resourceVersion": "2"}
    return {"metadata": metadata, "status": {"conditions": [done]}}


def test_only_own_deployments_take_the_places_of_rollouts(place: Place) -> None:
    store, deployment, _, _ = place
    assert rolling_pipelines(store, START) == {KEY}
    document = stored()
    document["metadata"] |= {"name": "no-such-pipeline", "uid": "forged"}
    store.put(DEPLOYMENTS, ownership.deployment(document))
    store.put(DEPLOYMENTS, ownership.deployment(stored(), name="renamed", uid="renamed"))
    unowned = {**deployment["metadata"], "ownerReferences": [], "resourceVersion": "2"}
    store.put(DEPLOYMENTS, {**deployment, "metadata": unowned})
    assert rolling_pipelines(store, START) == set()


@pytest.mark.parametrize("reason", ["DeploymentPaused", "ReplicaSetUpdated"])
def test_a_rollout_without_progress_takes_a_place_for_a_while(place: Place, reason: str) -> None:
    """The owner of a namespace can pause Deployments, or set a deadline of a day."""
    store, deployment, _, _ = place
    metadata = {**deployment["metadata"], "generation": 2, "resourceVersion": "2"}
    progress = {"type": "Progressing", "reason": reason, "lastUpdateTime": rfc3339(START)}
    status = {"observedGeneration": 2, "conditions": [progress]}
    store.put(DEPLOYMENTS, {**deployment, "metadata": metadata, "status": status})
    assert rolling_pipelines(store, START + STALLED_TIME) == {KEY}
    later = START + STALLED_TIME + dt.timedelta(seconds=1)
    assert rolling_pipelines(store, later) == set()
    changed = {**metadata, "generation": 3, "resourceVersion": "3"}
    store.put(DEPLOYMENTS, {**deployment, "metadata": changed, "status": status})
    assert rolling_pipelines(store, later) == {KEY}, "its controller has not seen the template"


def test_a_namespace_leaves_a_place_for_rollouts_of_others() -> None:
    hostile = {("hostile", str(number)) for number in range(20)}
    assert may_roll(hostile, ("other", "a"), 5)
    assert not may_roll({*hostile, ("other", "a")}, ("other", "b"), 5)
    assert not may_roll(hostile, ("hostile", "another"), 5)
    alone = {("other", str(number)) for number in range(4)}
    assert may_roll(alone, ("other", "another"), 5)
    assert may_roll({("other", "a")}, ("other", "a"), 1)
    assert not may_roll({("other", "a")}, ("other", "b"), 1)


async def test_forged_owner_references_do_not_keep_a_real_one_from_being_read(
    place: Place,
) -> None:
    store, _, made, pod = place
    for number in range(READS_MAX):
        metadata = pod["metadata"] | {
            "name": f"aaa-{number:02}",
            "uid": f"{number}",
            "ownerReferences": [reference(name=f"sentiment-{number}", uid=f"forged-{number}")],
        }
        store.put(PODS, {**pod, "metadata": metadata})
    store.put(PODS, pod)
    client = CountingClient(made)
    reconciler = reconciler_of(client, store)
    first = await reconciler.reconcile(KEY)
    assert first.requeue_after is not None
    assert first.requeue_after <= 1.0
    await reconciler.reconcile(KEY)
    assert len(client.asked) > READS_MAX
    real = pod["metadata"]["ownerReferences"][0]["uid"]
    assert reconciler.handover.replica_sets[KEY][real].deployment
