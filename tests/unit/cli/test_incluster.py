"""What `tritonpipe tune NAME --in-cluster` prints."""

from __future__ import annotations

import datetime as dt
import json
import shlex

import pytest
from typer.testing import CliRunner

from triton_pipelines.api.v1alpha1 import Tuning, TuningMode
from triton_pipelines.cli.failure import Failure
from triton_pipelines.cli.incluster import asking
from triton_pipelines.cli.main import app

NOW = dt.datetime(2026, 2, 1, 12, 30, tzinfo=dt.UTC)


@pytest.mark.parametrize(("thorough", "mode"), [(False, TuningMode.QUICK), (True, TuningMode.THOROUGH)])
def test_the_command_patches_the_request_alone(thorough: bool, mode: TuningMode) -> None:
    said = [line for line in asking("sentiment", "nlp", thorough, NOW).splitlines() if not line.startswith("#")]
    patch, follow = (shlex.split(line) for line in said)
    assert patch[:8] == ["kubectl", "patch", "inferencepipeline", "sentiment", "--namespace", "nlp", "--type", "merge"]
    body = json.loads(patch[9])
    assert list(body["spec"]) == ["tuning"]
    assert Tuning.model_validate(body["spec"]["tuning"]) == Tuning(request="2026-02-01T12:30:00Z", mode=mode)
    assert follow[:4] == ["kubectl", "get", "inferencepipeline", "sentiment"]


def test_without_a_namespace_kubectl_takes_its_own() -> None:
    assert "--namespace" not in asking("sentiment", None, False, NOW)


@pytest.mark.parametrize("name", ["sentiment.yaml", "./x", "a b", ""])
def test_a_file_is_no_name(name: str) -> None:
    with pytest.raises(Failure, match="--in-cluster"):
        asking(name, None, False, NOW)


def test_the_option() -> None:
    done = CliRunner().invoke(app, ["tune", "sentiment", "--in-cluster", "--namespace", "nlp"])
    assert done.exit_code == 0, done.output
    assert "kubectl patch inferencepipeline sentiment --namespace nlp" in done.output
