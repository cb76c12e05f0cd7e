"""How often a TLS Secret is read, and what is reported if it cannot be."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping
from typing import Any

from tests.support import builders
from tests.support.certificates import DAY, Authority
from tests.support.reconcilers import KEY, AcceptingClient, stored
from tests.support.worlds import START
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import Forbidden, NotFound
from triton_pipelines.cluster.resources import SECRETS, Resource
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.tls_secret import POLL_SECONDS, TlsSecrets

AUTHORITY = Authority(START)
LATER = dt.timedelta(seconds=POLL_SECONDS)


class Secrets(AcceptingClient):
    """A fake API server with at most one Secret."""

    def __init__(self, content: Mapping[str, bytes] | None, *, forbidden: bool = False) -> None:
        super().__init__()
        self.content, self.forbidden, self.version, self.reads = content, forbidden, "1", 0

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        assert (resource, namespace, name) == (SECRETS, KEY[0], "certs")
        self.reads += 1
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


async def test_a_certificate_that_expires_is_reported_without_a_change() -> None:
    secrets = TlsSecrets(Secrets(AUTHORITY.secret(after=DAY)))
    assert (await observed(secrets)).certificate is not None
    found = await observed(secrets, START + 2 * DAY)
    assert found.certificate is None
    assert "Secret certs: tls.crt expired" in found.certificate_problem


async def test_a_missing_secret_is_read_again_at_once() -> None:
    client = Secrets(None)
    secrets = TlsSecrets(client)
    assert (await observed(secrets)).certificate_problem == (
        "spec.server.tls.secretName: Secret certs does not exist in namespace nlp; create it"
    )
    client.content = AUTHORITY.secret()
    assert (await observed(secrets)).certificate is not None


async def test_a_missing_right_names_its_remedy() -> None:
    found = await observed(TlsSecrets(Secrets(None, forbidden=True)))
    assert "may not be read by the operator in namespace nlp" in found.certificate_problem
    assert "rbac.tlsSecrets" in found.certificate_problem


async def test_without_tls_no_secret_is_read() -> None:
    client = Secrets(None)
    found = await observed(TlsSecrets(client), tls=None)
    assert (found.certificate, found.certificate_problem, client.reads) == (None, "", 0)
