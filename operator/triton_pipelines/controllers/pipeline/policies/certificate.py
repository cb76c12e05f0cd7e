"""Roll a changed TLS certificate out: Triton reads it only when it starts. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.certificate_state import CertificateState
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.status_events import Event

from .revision import WAITING_SECONDS


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Record the certificate of the Secret, and keep the trust in those that pods still use.

    A change is not part of the revision: sources without a version would be resolved again. Like a
    new operator release, it rolls a few pipelines at a time.
    """
    state, found = draft.state.certificate, snapshot.certificate
    if found is None or found.digest == state.digest:
        return Outcome(states=(_needed(state, snapshot),))
    if state.digest and not draft.context.may_roll:
        return Outcome(states=(_needed(state, snapshot),), requeue_after=WAITING_SECONDS)
    recorded = CertificateState(
        found.digest,
        {**state.roots, found.digest: found.roots},
        {**state.hosts, found.digest: found.name},
    )
    text = f"the certificate in Secret {found.secret} changed; the pods are replaced one by one"
    event = Event(False, "CertificateChanged", "RollOut", text)
    return Outcome(states=(_needed(recorded, snapshot),), events=(event,) if state.digest else ())


def _needed(state: CertificateState, snapshot: Snapshot) -> CertificateState:
    """Return the state without certificates that no pod uses."""
    used = {state.digest, *(pod.certificate for pod in snapshot.pods)}
    return CertificateState(
        state.digest,
        {one: roots for one, roots in state.roots.items() if one in used},
        {one: host for one, host in state.hosts.items() if one in used},
    )


def with_certificate(template: Mapping[str, Any], state: CertificateState) -> Mapping[str, Any]:
    """Return a pod template that names its certificate, so that another one rolls the pods.

    Templates of revisions without TLS stay as they are.
    """
    volumes = template["spec"].get("volumes") or ()
    if not state.digest or not any(item.get("name") == names.VOLUME_TLS for item in volumes):
        return template
    copy = deepcopy(dict(template))
    metadata = copy["metadata"]
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        names.ANNOTATION_CERTIFICATE: state.digest,
    }
    return copy
