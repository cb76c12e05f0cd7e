"""Image sources on API servers with and without image volumes."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.passes import cached, good, seen
from tests.support.reconcilers import KEY, AcceptingClient, reconciler_of
from tests.support.worlds import START, World
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import ClusterError, Forbidden, Invalid
from triton_pipelines.compile.graph import Options
from triton_pipelines.controllers.pipeline.image_volumes import RECHECK_SECONDS

Behavior = Callable[[Object], Object]

DIGEST = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
IMAGE = {"source": {"uri": f"image://registry.example/sst2@sha256:{DIGEST}"}}
LATER = dt.timedelta(seconds=RECHECK_SECONDS)


def keeps(item: Object) -> Object:
    """Answer as an API server with image volumes."""
    return item


def drops(item: Object) -> Object:
    """Answer as Kubernetes 1.31 to 1.34 by default: image volumes and their mounts are removed."""
    kept = copy.deepcopy(item)
    pod = kept["spec"]["template"]["spec"]
    pod["volumes"] = [one for one in pod["volumes"] if "image" not in one]
    return kept


def rejects(item: Object) -> Object:
    """Answer as Kubernetes 1.30, which does not know the field."""
    if any("image" in one for one in item["spec"]["template"]["spec"]["volumes"]):
        raise Invalid(500, "InternalError", ".image: field not declared in schema")
    return item


def is_minimal(item: Object) -> bool:
    """Return whether a Deployment has nothing of the pipeline's pod."""
    return bool(item["metadata"]["name"] != KEY[1])


def fails(error: ClusterError) -> Behavior:
    """Answer every Deployment that has containers of a pipeline with an error."""

    def behave(item: Object) -> Object:
        if is_minimal(item):
            return item
        raise error

    return behave


class ImageClient(AcceptingClient):
    """A fake API server whose support for image volumes the test chooses."""

    def __init__(self, behave: Behavior, pipeline: Object) -> None:
        super().__init__()
        self.behave, self.pipeline = behave, pipeline
        self.users: list[str] = []
        self.dry_runs: list[Object] = []
        self.applied: list[Object] = []

    def acting_as(self, user: str) -> ImageClient:
        self.users.append(user)
        return self

    async def apply(self, obj: Object, *, dry_run: bool = False, **_: Any) -> Object:
        (self.dry_runs if dry_run else self.applied).append(obj)
        return self.behave(obj) if obj["kind"] == "Deployment" else obj

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        await super().apply_status(obj)
        version = str(1 + len(self.statuses))
        metadata = {**self.pipeline["metadata"], "resourceVersion": version}
        return {**self.pipeline, "metadata": metadata, "status": obj["status"]}

    def deployments(self) -> list[Object]:
        return [item for item in self.applied if item["kind"] == "Deployment"]


class Cluster:
    """A pipeline, the reconciler, and the API server."""

    def __init__(
        self, behave: Behavior, world: World | None = None, options: Options | None = None
    ) -> None:
        self.world = world or World(builders.document(model=IMAGE))
        self.client = ImageClient(behave, seen(self.world.document))
        self.client.replica_sets = self.world.replica_sets
        self.now = START
        self.reconciler = reconciler_of(
            self.client,
            cached(self.world),
            prober=good,
            clock=lambda: self.now,
            options=options,
        )

    async def reconcile(self) -> dict[str, tuple[str, str, str]]:
        """Run an iteration; return status, reason and message of the conditions by type."""
        self.result = await self.reconciler.reconcile(KEY)
        return {
            item["type"]: (item["status"], item["reason"], item["message"])
            for item in self.client.statuses[-1]["conditions"]
        }


async def test_the_server_is_asked_once_if_it_has_image_volumes() -> None:
    cluster = Cluster(keeps)
    found = await cluster.reconcile()
    assert "Stalled" not in found
    (deployment,) = cluster.client.deployments()
    (volume,) = (one for one in deployment["spec"]["template"]["spec"]["volumes"] if "image" in one)
    assert volume["image"]["reference"].endswith(f"sst2@sha256:{DIGEST}")
    assert len(cluster.client.dry_runs) == 1
    cluster.now += LATER
    await cluster.reconcile()
    assert len(cluster.client.dry_runs) == 1


@pytest.mark.parametrize("behave", [drops, rejects])
async def test_without_image_volumes_the_field_and_the_remedy_are_reported(
    behave: Behavior, messages: Messages
) -> None:
    cluster = Cluster(behave)
    stalled = (await cluster.reconcile())["Stalled"]
    assert stalled[:2] == ("True", "SourceUnavailable")
    for text in ("spec.model.source.uri", "oci://", "feature gate ImageVolume"):
        assert text in stalled[2]
    messages.check(stalled[2])
    assert cluster.client.deployments() == []
    assert cluster.result.requeue_after is not None
    assert cluster.result.requeue_after <= RECHECK_SECONDS


async def test_the_last_good_spec_runs_without_image_volumes() -> None:
    world = World(builders.document(replicas=2)).started()
    deployed = world.deployed
    world.change(model=IMAGE)
    cluster = Cluster(drops, world)
    found = await cluster.reconcile()
    assert found["Stalled"][1] == "SourceUnavailable"
    assert found["Available"][0] == "True"
    assert cluster.client.statuses[-1]["revision"] == deployed
    # Neither the Deployment nor the record of the last good spec has the source.
    assert DIGEST not in str(cluster.client.applied)
    # Iterations without changes do not end the checks.
    for _ in range(3):
        await cluster.reconcile()
    cluster.client.behave = keeps
    cluster.now += LATER
    await cluster.reconcile()
    assert DIGEST in str(cluster.client.applied)


async def test_support_that_is_enabled_later_is_found() -> None:
    cluster = Cluster(drops)
    assert "Stalled" in await cluster.reconcile()
    asked = len(cluster.client.dry_runs)
    cluster.client.behave = keeps
    cluster.now += LATER / 2
    assert "Stalled" in await cluster.reconcile()
    assert len(cluster.client.dry_runs) == asked
    cluster.now += LATER
    assert "Stalled" not in await cluster.reconcile()
    assert len(cluster.client.deployments()) == 1


async def test_an_invalid_deployment_is_no_answer() -> None:
    cluster = Cluster(fails(Invalid(422, "Invalid", "spec.template: Invalid value")))
    stalled = (await cluster.reconcile())["Stalled"]
    assert stalled[1] == "InvalidSpec"
    assert "Invalid value" in stalled[2]
    # The second dry run has nothing of the pipeline's pod, which could be the invalid part.
    _, minimal = cluster.client.dry_runs
    assert minimal["metadata"]["name"] != KEY[1]
    assert DIGEST not in str(minimal)


def denies(item: Object) -> Object:
    """Answer as an API server with a policy that no Deployment of these tests meets."""
    raise Invalid(400, "BadRequest", "admission webhook denied the request: no label team")


async def test_a_policy_against_each_deployment_is_no_answer() -> None:
    cluster = Cluster(denies)
    stalled = (await cluster.reconcile())["Stalled"]
    assert stalled[1] == "InvalidSpec"
    assert "no label team" in stalled[2]


def drops_if_minimal(item: Object) -> Object:
    """Answer as Kubernetes 1.31 to 1.34 by default, which also rejects the pipeline's pod."""
    if is_minimal(item):
        return drops(item)
    raise Invalid(422, "Invalid", "spec.template: Invalid value")


async def test_a_volume_that_is_dropped_from_the_minimal_deployment_is_an_answer() -> None:
    cluster = Cluster(drops_if_minimal)
    assert (await cluster.reconcile())["Stalled"][1] == "SourceUnavailable"


async def test_a_forbidden_deployment_is_no_answer() -> None:
    cluster = Cluster(fails(Forbidden(403, "Forbidden", "exceeded quota")))
    with pytest.raises(Forbidden):
        await cluster.reconcile()
    assert len(cluster.client.dry_runs) == 1
    assert cluster.client.statuses[-1]["conditions"][0]["reason"] == "APIError"


async def test_the_pipelines_account_asks() -> None:
    options = replace(builders.options(), impersonated_accounts=("writer",))
    document = builders.document(model=IMAGE, serviceAccountName="writer")
    cluster = Cluster(keeps, World(document), options)
    await cluster.reconcile()
    assert cluster.client.users[0] == "system:serviceaccount:nlp:writer"


async def test_a_pipeline_without_image_sources_asks_nothing() -> None:
    cluster = Cluster(drops, World(builders.document()))
    await cluster.reconcile()
    assert cluster.client.dry_runs == []


async def test_a_source_map_to_a_registry_needs_no_image_volumes() -> None:
    options = replace(builders.options(), source_map=("image://=oci://",))
    cluster = Cluster(drops, options=options)
    assert "Stalled" not in await cluster.reconcile()
    assert cluster.client.dry_runs == []
