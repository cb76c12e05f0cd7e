"""Check that exactly one reconcile follows a rejected resize of a pod's CPU, at once.

That reconcile reports the rejection.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from tests.support import builders
from tests.support.passes import cached, good, seen
from tests.support.reconcilers import KEY, AcceptingClient, reconciler_of
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import Forbidden
from triton_pipelines.controllers.pipeline.resize_rejections import BACKOFF

SPEC: dict[str, Any] = {
    "scaling": {"cpuResize": "InPlace"},
    "tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}},
}


class Refusing(AcceptingClient):
    """A fake API server that accepts everything but a resize."""

    def __init__(self, document: Object) -> None:
        super().__init__()
        self.document, self.asked = document, 0

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        return {**self.document, "status": obj["status"]}

    async def resize_pod(self, namespace: str, name: str, patch: Object, **_: Any) -> Object:
        self.asked += 1
        raise Forbidden(403, "Forbidden", f'pods "{name}" is forbidden: exceeded quota: q')


async def test_the_next_pass_follows_at_once_and_none_after_it() -> None:
    world = World(builders.document(**SPEC)).started()
    live = world.children["ConfigMap", names.live_name(world.name)]
    live["data"] = {**live["data"], names.KEY_PODS: '{"cpuMillis": 3350}'}
    client, store, elapsed = Refusing(seen(world.document)), cached(world), 0.0

    def clock() -> dt.datetime:
        return world.now + dt.timedelta(seconds=elapsed)

    client.replica_sets = world.replica_sets
    reconciler = reconciler_of(client, store, prober=good, clock=clock, options=world.options)
    first = await reconciler.reconcile(KEY)
    assert (first.requeue_after, client.asked, len(reconciler.handover.resize_rejections[KEY])) == (
        0.0,
        1,
        1,
    )
    for _ in range(3):
        reported = await reconciler.reconcile(KEY)
        assert reported.requeue_after
        assert client.asked == 1
    elapsed = BACKOFF.total_seconds() + 1.0
    assert (await reconciler.reconcile(KEY)).requeue_after == 0.0
    assert client.asked == 2
    assert (await reconciler.reconcile(KEY)).requeue_after
