"""A changed TLS certificate replaces the pods, and an unusable one changes nothing that runs."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.certificates import CLIENT, SERVER, Authority
from tests.support.worlds import BAD, LOADS, PASSES, START, World
from triton_pipelines.api import names
from triton_pipelines.api.tls import TlsMode
from triton_pipelines.controllers.pipeline.certificate_checks import read_certificate
from triton_pipelines.controllers.pipeline.certificate_state import CertificateState
from triton_pipelines.controllers.pipeline.server_certificate import ServerCertificate
from triton_pipelines.controllers.pipeline.tls_trust import NO_TLS, TlsTrust, tls_trust

AUTHORITY = Authority(START)
TLS = {"tls": {"secretName": "certs"}}
PROBLEM = "spec.server.tls.secretName: Secret certs: key tls.crt is missing or empty; add it"


OTHER = Authority(START, "another authority")
# Changes of the spec that cannot be acted on: a rule of the schema, a check, a missing source.
REFUSED: dict[str, dict[str, Any]] = {
    "schema": {"tokenizer": {"maxLength": "many"}},
    "check": {"postprocess": {"labels": ["a", "b", "c"]}},
    "missing": {"tokenizer": {"maxLength": 64}},
}


def certificate(mode: TlsMode = TlsMode.SIMPLE) -> ServerCertificate:
    return read_certificate(AUTHORITY.secret(), "certs", mode)


def other_certificate() -> ServerCertificate:
    return read_certificate(OTHER.secret(), "other", TlsMode.SIMPLE)


def name_another_secret(world: World, **spec: Any) -> ServerCertificate:
    """The spec now names another Secret; return the certificate in the first one."""
    assert world.certificate is not None
    before, world.certificate = world.certificate, other_certificate()
    world.other_certificates = (before,)
    world.change(server={"tls": {"secretName": "other"}}, **spec)
    return before


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
    assert world.reasons()["Ready"] == "True Succeeded"
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
    assert identity.alternatives == ()  # the host name is the same
    world.settle()
    trust = tls_trust(world.observed(), TlsTrust())
    assert old.roots.encode() not in trust.roots
    assert set(world.state.certificate.roots) == {renewed.digest}


@pytest.mark.parametrize("mode", TlsMode)
def test_a_pod_may_present_a_renewed_certificate_before_it_is_rolled_out(mode: TlsMode) -> None:
    """The volume of a running pod is updated, and Triton reads it when its container restarts."""
    world, usages = serving(), [SERVER, CLIENT]
    before = AUTHORITY.secret("before.nlp.svc", usages=usages)
    world.certificate = read_certificate(before, "certs", mode)
    known = tls_trust(world.settle().observed(), NO_TLS)
    world.may_roll = False
    renewed = read_certificate(AUTHORITY.secret("after.nlp.svc", usages=usages), "certs", mode)
    world.certificate = renewed
    world.settle()
    trust = tls_trust(world.observed(), known)
    identity = trust.identity(world.observed().pods[0])
    assert identity is not None
    assert (identity.name, identity.client) == (
        "before.nlp.svc",
        next(iter(known.clients.values()), None),
    )
    assert [(one.name, one.client) for one in identity.alternatives] == [
        ("after.nlp.svc", renewed.client)
    ]


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
    assert world.reasons()["Ready"] == "False InvalidCertificate"
    assert world.condition("Ready")["message"] == PROBLEM
    assert world.reasons()["Available"] == "True Serving"
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
    assert world.reasons()["Ready"] == "False InvalidCertificate"
    assert world.children == {}
    world.certificate, world.certificate_problem = certificate(), ""
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"


def test_tls_is_switched_on_and_off_like_any_other_setting() -> None:
    world = World(builders.document(replicas=2)).started()
    assert digests(world) == {""}
    world.certificate = certificate()
    world.change(server=TLS).settle()
    assert digests(world) == {world.certificate.digest}
    world.certificate = None
    world.change(server={"tls": None}).settle()
    assert digests(world) == {""}


@pytest.mark.parametrize("how", REFUSED)
def test_a_spec_that_cannot_be_acted_on_rolls_no_other_secret_out(how: str) -> None:
    world = serving()
    pods = {pod.name for pod in world.pods}
    world.missing_sources = (
        {"model": "ConfigMap weights does not exist"} if how == "missing" else {}
    )
    serves = name_another_secret(world, **REFUSED[how])
    world.settle()
    assert {pod.name for pod in world.pods} == pods
    assert digests(world) == {serves.digest}
    roots = tls_trust(world.observed(), TlsTrust()).roots
    assert roots == serves.roots.encode()


@pytest.mark.parametrize("how", REFUSED)
def test_the_secret_that_pods_mount_is_renewed_while_the_spec_names_another(how: str) -> None:
    world = serving()
    world.missing_sources = (
        {"model": "ConfigMap weights does not exist"} if how == "missing" else {}
    )
    name_another_secret(world, **REFUSED[how])
    world.settle()
    renewed = certificate()
    world.other_certificates = (renewed,)
    world.settle()
    assert digests(world) == {renewed.digest}
    assert tls_trust(world.observed(), TlsTrust()).roots == renewed.roots.encode()


@pytest.mark.parametrize("tls", [{"secretName": "other"}, None], ids=["another Secret", "no TLS"])
def test_a_rollback_returns_to_the_certificate_of_its_revision(tls: dict[str, Any] | None) -> None:
    world = serving(rollout={"strategy": "NoSurge"})
    pods, revision = {pod.name for pod in world.pods}, world.deployed
    serves = name_another_secret(world)
    world.certificate = other_certificate() if tls else None
    world.change(server={"tls": tls}, tokenizer={"maxLength": 64}).step()
    world.verdicts[world.status["revision"]] = BAD
    world.other_certificates = ()  # unreadable for a while
    world.settle()
    assert world.reasons()["Ready"] == "False RolledBack"
    assert (world.deployed, digests(world)) == (revision, {serves.digest})
    # NoSurge stopped one of them.
    assert len(pods & {pod.name for pod in world.pods}) == 1
    renewed = certificate()
    world.other_certificates = (renewed,)
    world.settle()
    assert digests(world) == {renewed.digest}


@pytest.mark.parametrize("tls", [{"secretName": "other"}, None], ids=["another Secret", "no TLS"])
def test_during_a_preflight_the_certificate_of_the_serving_pods_is_renewed(
    tls: dict[str, Any] | None,
) -> None:
    world = serving(rollout={"strategy": "NoSurge"})
    world.preflight = LOADS
    revision, serves = world.deployed, name_another_secret(world)
    world.certificate = other_certificate() if tls else None
    world.change(server={"tls": tls}, tokenizer={"maxLength": 64}).settle()
    assert (world.deployed, digests(world)) == (revision, {serves.digest})
    renewed = certificate()
    world.other_certificates = (renewed,)
    world.settle()
    assert (world.deployed, digests(world)) == (revision, {renewed.digest})
    assert tls_trust(world.observed(), TlsTrust()).roots == renewed.roots.encode()


def test_another_secret_is_rolled_out_with_its_revision() -> None:
    world = serving()
    name_another_secret(world)
    first = world.step()
    world.settle()
    assert world.certificate is not None
    assert digests(world) == {world.certificate.digest}
    assert "CertificateChanged" not in [event.reason for event in first.action_events]
    assert tls_trust(world.observed(), TlsTrust()).roots == world.certificate.roots.encode()
    assert dict(world.state.certificate.digests) == {"other": world.certificate.digest}


def test_a_new_revision_does_not_wait_for_the_turn_of_a_renewal() -> None:
    world = serving()
    world.may_roll = False
    world.certificate = renewed = certificate()
    first = world.change(tokenizer={"maxLength": 64}).step()
    assert "CertificateChanged" not in [event.reason for event in first.action_events]
    assert digests(world.settle()) == {renewed.digest}


def test_nothing_is_kept_of_certificates_after_tls() -> None:
    world = serving()
    world.certificate = None
    world.change(server={"tls": None}).settle()
    assert world.state.certificate == CertificateState()
    assert tls_trust(world.observed(), TlsTrust(b"PEM")) == NO_TLS


def test_pods_stay_if_record_and_secret_are_both_gone() -> None:
    world = serving()
    before = digests(world)
    pods = {pod.name for pod in world.pods}
    del world.children["ConfigMap", names.live_name(world.name)]
    world.certificate, world.certificate_problem = None, PROBLEM
    world.change(replicas=3).settle()
    assert digests(world) == before
    assert pods < {pod.name for pod in world.pods}


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
    assert list(known.clients) == [world.certificate.digest]
    world.certificate = None
    assert tls_trust(world.observed(), known).clients == known.clients
    assert "PRIVATE" not in repr(known)
    live = world.children["ConfigMap", names.live_name(world.name)]
    assert "PRIVATE" not in str(live)


def test_nothing_is_sent_in_plaintext_to_a_pod_whose_certificate_is_unknown() -> None:
    identity = TlsTrust().identity(serving().observed().pods[0])
    assert identity is not None
    assert identity.name == "unknown.invalid"


def reachable(world: World) -> tuple[list[str], list[Any], list[str]]:
    """Names of the Service's ports, ports that the NetworkPolicy admits, and the endpoints."""
    ports = [port["name"] for port in world.children["Service", world.name]["spec"]["ports"]]
    policy = world.children["NetworkPolicy", world.name]["spec"]["ingress"][0]
    return ports, [port["port"] for port in policy["ports"]], sorted(world.status["endpoints"])


PLAINTEXT = (["http", "grpc", "metrics"], ["http", "grpc"], ["grpc", "http", "metrics"])
ENCRYPTED = (["grpc", "metrics"], ["grpc"], ["grpc", "metrics"])


@pytest.mark.parametrize("preflight", [PASSES, LOADS])
@pytest.mark.parametrize("is_added", [True, False])
def test_ports_are_those_of_the_pods_after_a_rollback_and_during_a_preflight(
    is_added: bool, preflight: str
) -> None:
    expected, rollout = PLAINTEXT if is_added else ENCRYPTED, {"strategy": "NoSurge"}
    server: dict[str, Any] = {} if is_added else TLS
    world = World(builders.document(server=server, rollout=rollout), room=1, preflight=preflight)
    world.certificate = before = certificate()
    world.settle()
    old = world.deployed
    assert reachable(world) == expected
    if not is_added:
        world.other_certificates, world.certificate = (before,), None
    world.change(server=TLS if is_added else {"tls": None}, tokenizer={"maxLength": 64}).step()
    world.verdicts[world.status["revision"]] = BAD
    world.settle()
    assert world.deployed == old
    reason = "RolledBack" if preflight == PASSES else "Preflight"
    assert world.reasons()["Ready"] == f"False {reason}"
    assert reachable(world) == expected
