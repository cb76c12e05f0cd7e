"""How often a TLS Secret is read, and what is reported if it cannot be."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support import builders
from tests.support.certificates import CLIENT, DAY, SERVER, Authority
from tests.support.messages import Messages
from tests.support.passes import cached, good
from tests.support.reconcilers import KEY, AcceptingClient, reconciler_of, stored
from tests.support.worlds import START, World
from triton_pipelines.api.tls import TlsMode
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import Forbidden, NotFound
from triton_pipelines.cluster.resources import SECRETS, Resource
from triton_pipelines.controllers.pipeline.certificate_checks import read_certificate
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.tls_secret import POLL_SECONDS, TlsSecrets
from triton_pipelines.controllers.pipeline.tls_trust import NO_TLS, tls_trust

AUTHORITY = Authority(START)
CONTENT = AUTHORITY.secret(usages=[SERVER, CLIENT])
LATER = dt.timedelta(seconds=POLL_SECONDS)


class Secrets(AcceptingClient):
    """A fake API server with the Secret ``certs`` at most, and no other one."""

    def __init__(self, content: Mapping[str, bytes] | None, *, forbidden: bool = False) -> None:
        super().__init__()
        self.content, self.forbidden, self.version, self.reads = content, forbidden, "1", 0

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        if resource != SECRETS:
            return await super().get(resource, namespace, name)
        assert namespace == KEY[0]
        self.reads += 1
        if name != "certs":
            raise NotFound(404, "NotFound", name)
        if self.forbidden:
            raise Forbidden(403, "Forbidden", "no")
        if self.content is None:
            raise NotFound(404, "NotFound", name)
        data = {key: base64.b64encode(value).decode() for key, value in self.content.items()}
        return {"metadata": {"name": name, "resourceVersion": self.version}, "data": data}


async def observed(secrets: TlsSecrets, now: dt.datetime = START, **server: Any) -> Snapshot:
    pipeline = builders.pipeline(server={"tls": {"secretName": "certs"}} | server)
    return await secrets.observe(KEY, pipeline, Snapshot(stored()), now)


async def test_a_usable_secret_is_read_every_30_seconds() -> None:
    client = Secrets(AUTHORITY.secret())
    secrets = TlsSecrets(client)
    first = await observed(secrets)
    assert first.certificate is not None
    assert first.certificate_problem == ""
    assert (await observed(secrets, START + LATER / 2)).certificate is first.certificate
    assert client.reads == 1
    assert (await observed(secrets, START + LATER)).certificate is first.certificate
    assert client.reads == 2
    client.content, client.version = AUTHORITY.secret(), "2"
    changed = await observed(secrets, START + 2 * LATER)
    assert changed.certificate is not None
    assert changed.certificate.digest != first.certificate.digest


async def test_a_certificate_that_expires_is_reported_without_a_change(messages: Messages) -> None:
    secrets = TlsSecrets(Secrets(AUTHORITY.secret(after=DAY)))
    assert (await observed(secrets)).certificate is not None
    found = await observed(secrets, START + 2 * DAY)
    assert found.certificate is None
    assert "tls.crt" in found.certificate_problem
    messages.check(found.certificate_problem)


async def test_a_missing_secret_is_read_again_at_once(messages: Messages) -> None:
    client = Secrets(None)
    secrets = TlsSecrets(client)
    missing = (await observed(secrets)).certificate_problem
    assert "spec.server.tls.secretName" in missing
    messages.check(missing)
    client.content = AUTHORITY.secret()
    assert (await observed(secrets)).certificate is not None


async def test_a_missing_right_names_its_remedy(messages: Messages) -> None:
    found = await observed(TlsSecrets(Secrets(None, forbidden=True)))
    assert "rbac.tlsSecrets" in found.certificate_problem
    messages.check(found.certificate_problem)


async def test_without_tls_no_secret_is_read() -> None:
    client = Secrets(None)
    found = await observed(TlsSecrets(client), tls=None)
    assert (found.certificate, found.certificate_problem, client.reads) == (None, "", 0)


def world_with(mode: TlsMode, **spec: Any) -> World:
    """A pipeline whose pods mount the Secret ``certs``."""
    tls = {"secretName": "certs", "mode": mode.value}
    world = World(builders.document(server={"tls": tls}, **spec))
    world.certificate = read_certificate(CONTENT, "certs", mode)
    return world.settle()


@pytest.mark.parametrize("invalid", [True, False])
async def test_the_secret_that_pods_mount_is_read_whatever_the_spec_names(invalid: bool) -> None:
    """An operator that was just started gets its client certificate."""
    world = world_with(TlsMode.MUTUAL)
    world.change(server={"tls": {"secretName": "other"}})
    pipeline = None if invalid else builders.pipeline(server={"tls": {"secretName": "other"}})
    client = Secrets(CONTENT)
    found = await TlsSecrets(client).observe(KEY, pipeline, world.observed(), world.now)
    assert found.certificate is None
    assert ("Secret other does not exist" in found.certificate_problem) is not invalid
    assert found.deployed_certificate is not None
    assert found.deployed_certificate.secret == "certs"
    trust = tls_trust(found, NO_TLS)
    identity = trust.identity(found.pods[0])
    assert identity is not None
    assert identity.client == found.deployed_certificate.client is not None


async def test_the_next_reading_is_30_seconds_after_the_last_one() -> None:
    world = world_with(TlsMode.SIMPLE)
    client = Secrets(AUTHORITY.secret())
    secrets = TlsSecrets(client)
    pipeline = builders.pipeline(server={"tls": {"secretName": "certs"}})
    for seconds, reads in ((0, 1), (POLL_SECONDS / 2, 1), (POLL_SECONDS, 2)):
        now = world.now + dt.timedelta(seconds=seconds)
        snapshot = await secrets.observe(KEY, pipeline, world.observed(), now)
        assert client.reads == reads
        assert snapshot.certificate is snapshot.deployed_certificate
        assert secrets.recheck_after(KEY, now) == POLL_SECONDS - seconds % POLL_SECONDS
    await secrets.observe(KEY, builders.pipeline(), Snapshot(stored()), world.now)
    assert secrets.recheck_after(KEY, world.now) is None


async def test_a_reconcile_follows_when_the_secret_has_to_be_read_again() -> None:
    world = world_with(TlsMode.SIMPLE, health={"periodSeconds": 300})
    client = Secrets(CONTENT)
    client.replica_sets = world.replica_sets
    reconciler = reconciler_of(
        client, cached(world), prober=good, clock=lambda: world.now, options=world.options
    )
    await reconciler.reconcile(KEY)
    assert (await reconciler.reconcile(KEY)).requeue_after == POLL_SECONDS == 30
    assert client.reads == 1
