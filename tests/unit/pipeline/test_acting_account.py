"""In the name of which service account the operator writes."""

from __future__ import annotations

import datetime as dt

import pytest

from tests.support import builders
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.graph import Options, build, check
from triton_pipelines.compile.graph.acting_account import acting_account
from triton_pipelines.compile.render import render
from triton_pipelines.controllers.pipeline.chain import Context
from triton_pipelines.controllers.pipeline.planner import plan
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OFF = builders.options(impersonated_accounts=())
LISTED = builders.options(impersonated_accounts=("deployer",))
DEFAULT = builders.options(default_account="writer", impersonated_accounts=("writer", "deployer"))
UNKNOWN = builders.options()


@pytest.mark.parametrize(
    ("declared", "options", "account"),
    [
        (None, OFF, ""),
        (None, LISTED, ""),
        (None, DEFAULT, "writer"),
        ("deployer", LISTED, "deployer"),
        ("deployer", DEFAULT, "deployer"),
        ("deployer", UNKNOWN, "deployer"),
        ("admin", DEFAULT, "writer"),
    ],
)
def test_account(declared: str | None, options: Options, account: str) -> None:
    assert acting_account(declared, options) == account


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (OFF, "with its own account; remove this field, or ask the operator's administrator to"),
        (OFF, "--impersonated-service-accounts=admin"),
        (LISTED, "admin is not a service account that the operator can impersonate (deployer)"),
        (DEFAULT, "(writer, deployer); use one of these, or ask"),
    ],
)
def test_other_accounts_are_refused(options: Options, words: str) -> None:
    pipeline = builders.pipeline(serviceAccountName="admin")
    (found,) = check(pipeline, build(pipeline, options), options)
    assert (found.path, found.code) == ("spec.serviceAccountName", FindingCode.FORBIDDEN)
    assert words in found.message


@pytest.mark.parametrize("options", [UNKNOWN, DEFAULT])
def test_allowed_accounts_are_not_refused(options: Options) -> None:
    pipeline = builders.pipeline(serviceAccountName="deployer")
    assert check(pipeline, build(pipeline, options), options) == []


def planned(options: Options, **spec: object) -> str:
    document = builders.document(**spec)
    return plan(Snapshot(document, {}), Context(options, lambda *_: "key"), NOW).account


def test_a_plan_names_the_account() -> None:
    assert planned(DEFAULT) == "writer"
    assert planned(DEFAULT, serviceAccountName="deployer") == "deployer"
    assert planned(OFF) == ""


def test_an_invalid_spec_does_not_fall_back_to_the_operators_rights() -> None:
    assert planned(DEFAULT, serviceAccountName="admin") == "writer"
    assert planned(DEFAULT, postprocess={"labels": ["a"]}) == "writer"
    assert planned(DEFAULT, serviceAccountName=["deployer"]) == "writer"


def test_another_account_rolls_no_pod() -> None:
    revisions = set()
    for account in (None, "deployer", "writer"):
        pipeline = builders.pipeline(serviceAccountName=account)
        revisions.add(render(pipeline, build(pipeline, DEFAULT), DEFAULT).name)
    assert len(revisions) == 1
