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

from .server_certificate import PATH, CertificateError, ServerCertificate
from .snapshot import Snapshot
from .tls_trust import deployed_tls

# How often (seconds) a Secret is read again.
POLL_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a Secret was found to contain."""

    at: dt.datetime
    version: str
    """``resourceVersion`` of the Secret."""
    certificate: ServerCertificate | None
    problem: str


@dataclass(slots=True)
class TlsSecrets:
    """The last readings of each pipeline's TLS Secrets; one instance per process."""

    client: Client
    _readings: dict[Key, dict[Tls, _Reading]] = field(default_factory=dict)

    def forget(self, key: Key) -> None:
        """Drop what was read for a deleted pipeline."""
        self._readings.pop(key, None)

    def recheck_after(self, key: Key, now: dt.datetime) -> float | None:
        """Return the seconds until a Secret has to be read again; ``None`` without TLS."""
        ages = [(now - one.at).total_seconds() for one in self._readings.get(key, {}).values()]
        return max(POLL_SECONDS - max(ages), 0.0) if ages else None

    async def observe(
        self, key: Key, pipeline: InferencePipeline | None, snapshot: Snapshot, now: dt.datetime
    ) -> Snapshot:
        """Return the snapshot with the certificates of the pipeline, or why there are none.

        Two Secrets are read while the spec names another one than the pods mount.

        Args:
            key: the pipeline.
            pipeline: its spec; ``None`` while that is invalid.
            snapshot: what is known of it.
            now: UTC.
        """
        declared = pipeline.spec.server.tls if pipeline is not None else None
        desired, before = deployed_tls(snapshot), self._readings.get(key, {})
        readings = {
            tls: await self._current(key[0], tls, before.get(tls), now)
            for tls in {declared, desired}
            if tls is not None
        }
        self._readings[key] = readings
        if not readings:
            self.forget(key)
        certificate, problem = _usable(readings.get(declared) if declared else None, now)
        return replace(
            snapshot,
            certificate=certificate,
            certificate_problem=problem,
            deployed_certificate=_usable(readings.get(desired) if desired else None, now)[0],
        )

    async def _current(
        self, namespace: str, tls: Tls, last: _Reading | None, now: dt.datetime
    ) -> _Reading:
        # An unusable Secret is read at once, because its correction is being waited for.
        if last is None or last.problem or (now - last.at).total_seconds() >= POLL_SECONDS:
            return await self._read(namespace, tls, last, now)
        return last

    async def _read(
        self, namespace: str, tls: Tls, last: _Reading | None, now: dt.datetime
    ) -> _Reading:
        name = tls.secret_name
        place = f"{PATH}: Secret {name}"
        try:
            secret = await self.client.get(SECRETS, namespace, name)
        except NotFound:
            problem = f"{place} does not exist in namespace {namespace}; create the Secret"
            return _Reading(now, "", None, problem)
        except Forbidden:
            problem = (
                f"{PATH}: the operator is not allowed to read Secret {name} in namespace "
                f"{namespace}; add the Secret to rbac.tlsSecrets in the chart, or bind the "
                "operator's service account to a Role that grants get on this Secret"
            )
            return _Reading(now, "", None, problem)
        version = str(secret["metadata"].get("resourceVersion") or "")
        if last is not None and version and last.version == version:
            return replace(last, at=now)
        try:
            return _Reading(now, version, _certificate(secret, tls), "")
        except CertificateError as error:
            return _Reading(now, version, None, f"{place}: {error}")


def _usable(reading: _Reading | None, now: dt.datetime) -> tuple[ServerCertificate | None, str]:
    """Return the certificate that can be used now, or why there is none."""
    if reading is None:
        return None, ""
    found = reading.certificate
    problem = reading.problem or (found.problem(now) if found is not None else "")
    return (None, problem) if problem else (found, "")


def _certificate(secret: Object, tls: Tls) -> ServerCertificate:
    from .certificate_checks import read_certificate

    data: dict[str, bytes] = {}
    for key, text in (secret.get("data") or {}).items():
        try:
            data[key] = base64.b64decode(text, validate=True)
        except (binascii.Error, TypeError):
            continue  # the API server admits none
    return read_certificate(data, tls.secret_name, tls.mode)
