"""A changed TLS certificate replaces the pods, and an unusable one changes nothing that runs."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

from tests.support import builders
from tests.support.certificates import Authority
from tests.support.worlds import START, World
from triton_pipelines.api import names
from triton_pipelines.api.tls import TlsMode
from triton_pipelines.controllers.pipeline.server_certificate import (
    ServerCertificate,
    read_certificate,
)
from triton_pipelines.controllers.pipeline.tls_trust import TlsTrust, tls_trust

AUTHORITY = Authority(START)
TLS = {"tls": {"secretName": "certs"}}
PROBLEM = "spec.server.tls.secretName: Secret certs: key tls.crt is missing or empty; add it"


def certificate(mode: TlsMode = TlsMode.SIMPLE) -> ServerCertificate:
    return read_certificate(AUTHORITY.secret(), "certs", mode)


def serving(**spec: Any) -> World:
    world = World(builders.document(replicas=2, server=TLS, **spec))
    world.certificate = certificate()
    return world.settle()


def digests(world: World) -> set[str]:
    """What the pods were created for."""
    return {pod.certificate for pod in world.observed().pods}


def test_pods_name_the_certificate_that_they_were_created_for() -> None:
    world = serving()
    assert world.certificate is not None
    assert digests(world) == {world.certificate.digest}
    assert world.step().is_empty


def test_another_certificate_replaces_the_pods_but_not_the_revision() -> None:
    world = serving()
    revision, before = world.deployed, {pod.name for pod in world.pods}
    world.certificate = renewed = certificate()
    first = world.step()
    assert [event.reason for event in first.action_events] == ["CertificateChanged"]
    world.settle()
    assert digests(world) == {renewed.digest}
    assert world.deployed == revision
    assert before.isdisjoint(pod.name for pod in world.pods)
    assert world.told()["Ready"] == "True Succeeded"
    assert world.step().is_empty


def test_pods_of_both_certificates_are_trusted_until_the_old_ones_are_gone() -> None:
    world = serving()
    old = world.certificate
    assert old is not None
    world.certificate = renewed = certificate()
    world.step()
    trust = tls_trust(world.observed(), TlsTrust())
    for one in (old, renewed):
        assert one.roots.encode() in trust.roots
    pod = world.observed().pods[0]
    identity = trust.identity(pod)
    assert identity is not None
    assert identity.name == old.name
    world.settle()
    trust = tls_trust(world.observed(), TlsTrust())
    assert old.roots.encode() not in trust.roots
    assert set(world.state.certificate.roots) == {renewed.digest}


def test_rotations_of_many_pipelines_wait_for_each_other() -> None:
    world = serving()
    before = digests(world)
    world.may_roll = False
    world.certificate = renewed = certificate()
    decided = world.step()
    assert digests(world.settle()) == before
    assert decided.requeue_after is not None
    world.may_roll = True
    assert digests(world.settle()) == {renewed.digest}


def test_an_unusable_secret_is_reported_and_what_runs_stays() -> None:
    world = serving()
    before, pods = digests(world), {pod.name for pod in world.pods}
    world.certificate, world.certificate_problem = None, PROBLEM
    world.settle()
    assert world.told()["Ready"] == "False InvalidCertificate"
    assert world.condition("Ready")["message"] == PROBLEM
    assert world.told()["Available"] == "True Serving"
    assert (digests(world), {pod.name for pod in world.pods}) == (before, pods)
    world.edit("Deployment", ["spec", "template", "metadata", "annotations"], {})
    world.settle()
    template = world.deployment["spec"]["template"]["metadata"]
    assert template["annotations"][names.ANNOTATION_CERTIFICATE] in before
    # The operator still knows what to trust, from its own record.
    assert tls_trust(world.observed(), TlsTrust()).roots


def test_without_a_usable_secret_no_pod_is_created() -> None:
    world = World(builders.document(server=TLS))
    world.certificate_problem = PROBLEM
    world.step()
    assert world.told()["Ready"] == "False InvalidCertificate"
    assert world.children == {}
    world.certificate, world.certificate_problem = certificate(), ""
    world.settle()
    assert world.told()["Ready"] == "True Succeeded"


def test_tls_is_switched_on_and_off_like_any_other_setting() -> None:
    world = World(builders.document(replicas=2)).settle()
    assert digests(world) == {""}
    world.certificate = certificate()
    world.change(server=TLS).settle()
    assert digests(world) == {world.certificate.digest}
    world.certificate = None
    world.change(server={"tls": None}).settle()
    assert digests(world) == {""}


def test_a_late_renewal_is_in_the_status() -> None:
    world = serving()
    assert world.certificate is not None
    world.certificate = replace(world.certificate, not_after=START + dt.timedelta(hours=1))
    world.step()
    found = {item["path"]: item["message"] for item in world.status["warnings"]}
    assert "has not been renewed yet" in found["spec.server.tls.secretName"]


def test_a_client_certificate_outlives_an_unreadable_secret_in_memory() -> None:
    world = serving()
    world.certificate = certificate(TlsMode.MUTUAL)
    known = tls_trust(world.observed(), TlsTrust())
    assert known.key
    world.certificate = None
    assert tls_trust(world.observed(), known).key == known.key
    assert "PRIVATE" not in repr(known)
    live = world.children["ConfigMap", names.live_name(world.name)]
    assert "PRIVATE" not in str(live)


def test_nothing_is_sent_in_plaintext_to_a_pod_whose_certificate_is_unknown() -> None:
    identity = TlsTrust().identity(serving().observed().pods[0])
    assert identity is not None
    assert identity.name == "unknown.invalid"
