"""Read the TLS Secrets that pipelines name, if the operator has permission to read them."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from dataclasses import dataclass, field, replace
from typing import Final

from triton_pipelines.api.tls import Tls
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Forbidden, NotFound
from triton_pipelines.cluster.resources import SECRETS
from triton_pipelines.cluster.work_queue import Key

from .server_certificate import PATH, CertificateError, ServerCertificate, read_certificate
from .snapshot import Snapshot

# How often (seconds) a Secret is read again.
POLL_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a Secret was found to contain."""

    at: dt.datetime
    tls: Tls
    version: str
    """``resourceVersion`` of the Secret."""
    certificate: ServerCertificate | None
    problem: str


@dataclass(slots=True)
class TlsSecrets:
    """The last reading of each pipeline's TLS Secret; one instance per process."""

    client: Client
    _readings: dict[Key, _Reading] = field(default_factory=dict)

    def forget(self, key: Key) -> None:
        """Drop what was read for a deleted pipeline."""
        self._readings.pop(key, None)

    def reads(self, key: Key) -> bool:
        """Return whether the pipeline has a TLS Secret, which has to be read again."""
        return key in self._readings

    async def observe(
        self, key: Key, pipeline: InferencePipeline | None, snapshot: Snapshot, now: dt.datetime
    ) -> Snapshot:
        """Return the snapshot with the certificate of the pipeline, or why there is none.

        Args:
            key: the pipeline.
            pipeline: its spec; ``None`` while that is invalid.
            snapshot: what is known of it.
            now: UTC.
        """
        tls = pipeline.spec.server.tls if pipeline is not None else None
        if tls is None:
            self.forget(key)
            return snapshot
        last = self._readings.get(key)
        age = (now - last.at).total_seconds() if last is not None else POLL_SECONDS
        # An unusable Secret is read at once, because its correction is being waited for.
        if last is None or last.tls != tls or age >= POLL_SECONDS or last.problem:
            last = self._readings[key] = await self._read(key[0], tls, last, now)
        found = last.certificate
        problem = last.problem or (found.problem(now) if found is not None else "")
        return replace(
            snapshot, certificate=None if problem else found, certificate_problem=problem
        )

    async def _read(
        self, namespace: str, tls: Tls, last: _Reading | None, now: dt.datetime
    ) -> _Reading:
        name = tls.secret_name
        place = f"{PATH}: Secret {name}"
        try:
            secret = await self.client.get(SECRETS, namespace, name)
        except NotFound:
            problem = f"{place} does not exist in namespace {namespace}; create it"
            return _Reading(now, tls, "", None, problem)
        except Forbidden:
            problem = (
                f"{place} may not be read by the operator in namespace {namespace}; add it "
                "to rbac.tlsSecrets in the chart, or create a Role that allows get for "
                "this Secret"
            )
            return _Reading(now, tls, "", None, problem)
        version = str(secret["metadata"].get("resourceVersion") or "")
        if last is not None and last.tls == tls and version and last.version == version:
            return replace(last, at=now)
        try:
            return _Reading(now, tls, version, _certificate(secret, tls), "")
        except CertificateError as error:
            return _Reading(now, tls, version, None, f"{place}: {error}")


def _certificate(secret: Object, tls: Tls) -> ServerCertificate:
    data: dict[str, bytes] = {}
    for key, text in (secret.get("data") or {}).items():
        try:
            data[key] = base64.b64decode(text, validate=True)
        except (binascii.Error, TypeError):
            continue  # the API server admits none
    return read_certificate(data, tls.secret_name, tls.mode)
