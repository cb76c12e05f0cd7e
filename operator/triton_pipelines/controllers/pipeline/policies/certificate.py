"""Roll a changed TLS certificate out: Triton reads it only when it starts. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.tls import Tls
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.render.pod_volumes import mounted_tls
from triton_pipelines.controllers.pipeline.certificate_state import CertificateState
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.status_events import Event

from .revision import WAITING_SECONDS
from .rollout import Rollout


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Record the certificate that new pods mount, and keep the trust in those that pods still use.

    That is the certificate of the revision to run. While the current spec cannot be acted on, or
    was rolled back, it may name another Secret.

    A change is not part of the revision: sources without a version would be resolved again. Like a
    new operator release, it rolls a few pipelines at a time.
    """
    revision, state = _runs(draft), draft.state.certificate
    tls = _tls_of(snapshot, draft, revision)
    if tls is None:
        return Outcome(states=(_needed(state, snapshot, draft),))
    secret = tls.secret_name
    readings = (snapshot.deployed_certificate, snapshot.certificate)
    found = next((one for one in readings if one is not None and one.secret == secret), None)
    before = state.digests.get(secret) or _deployed(snapshot, secret)
    is_renewal = (
        found is not None
        and before not in ("", found.digest)
        and revision == snapshot.deployed_revision()
    )
    requeue_after = WAITING_SECONDS if is_renewal and not draft.context.may_roll else None
    if found is None or requeue_after is not None:
        state = _with_digest(state, secret, before)
    else:
        state = CertificateState(
            {**state.digests, secret: found.digest},
            {**state.roots, found.digest: found.roots},
            {**state.hosts, found.digest: found.name},
        )
    text = f"the certificate in Secret {secret} changed; the pods are replaced one by one"
    event = Event(False, "CertificateChanged", "RollOut", text)
    return Outcome(
        states=(_needed(state, snapshot, draft),),
        events=(event,) if is_renewal and requeue_after is None else (),
        requeue_after=requeue_after,
    )


def with_deployed_tls(snapshot: Snapshot, draft: Draft) -> InferencePipeline:
    """Return the effective pipeline with ``server.tls`` of the revision to run.

    Ports have to match its pods: after a rollback and during a preflight, the spec may set TLS
    differently.
    """
    pipeline = draft.of(ReconciledSpec).pipeline
    tls = _tls_of(snapshot, draft, _runs(draft))
    server = pipeline.spec.server.model_copy(update={"tls": tls})
    return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"server": server})})


def _runs(draft: Draft) -> str:
    """Return the revision of the Deployment's template: the old one during a preflight."""
    rollout = draft.of(Rollout)
    return rollout.preflight.kept_revision or rollout.target


def _tls_of(snapshot: Snapshot, draft: Draft, revision: str) -> Tls | None:
    """Return ``server.tls`` of a revision; ``None`` without TLS."""
    record, spec = snapshot.revision_record(revision), draft.of(ReconciledSpec)
    if record is not None:
        return mounted_tls(record["template"])
    return spec.pipeline.spec.server.tls if revision == spec.revision.name else None


def _deployed(snapshot: Snapshot, secret: str) -> str:
    """Return the hash that the Deployment names for a Secret: the record of it may be lost."""
    template = ((snapshot.deployment or {}).get("spec") or {}).get("template") or {}
    tls = mounted_tls(template)
    if tls is None or tls.secret_name != secret:
        return ""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(names.ANNOTATION_CERTIFICATE, ""))


def _with_digest(state: CertificateState, secret: str, digest: str) -> CertificateState:
    digests = {**state.digests, secret: digest} if digest else state.digests
    return CertificateState(digests, state.roots, state.hosts)


def _needed(state: CertificateState, snapshot: Snapshot, draft: Draft) -> CertificateState:
    """Return the state without certificates that no pod uses, and no pod would after a rollback."""
    named = (_runs(draft), draft.of(Rollout).state.verified)
    revisions = [_tls_of(snapshot, draft, one) for one in named]
    secrets = {tls.secret_name for tls in revisions if tls is not None}
    digests = {secret: one for secret, one in state.digests.items() if secret in secrets}
    used = {*digests.values(), *(pod.certificate for pod in snapshot.pods)}
    return CertificateState(
        digests,
        {one: roots for one, roots in state.roots.items() if one in used},
        {one: host for one, host in state.hosts.items() if one in used},
    )


def with_certificate(template: Mapping[str, Any], state: CertificateState) -> Mapping[str, Any]:
    """Return a pod template that names its certificate, so that another one rolls the pods.

    Templates of revisions without TLS stay as they are.
    """
    tls = mounted_tls(template)
    digest = state.digests.get(tls.secret_name) if tls is not None else None
    if not digest:
        return template
    copy = deepcopy(dict(template))
    metadata = copy["metadata"]
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        names.ANNOTATION_CERTIFICATE: digest,
    }
    return copy
