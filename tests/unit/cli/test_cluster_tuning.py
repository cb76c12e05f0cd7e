"""What `tritonpipe tune NAME --in-cluster` prints."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.support.messages import Messages
from tests.support.serving import SAMPLES
from triton_pipelines.api.tuning import Tuning, TuningMode
from triton_pipelines.cli.cluster_tuning import tuning_commands
from triton_pipelines.cli.errors import EXIT_USAGE, CommandError
from triton_pipelines.cli.main import app
from triton_pipelines.cli.tune_options import ClusterRunOptions

NOW = dt.datetime(2026, 2, 1, 12, 30, tzinfo=dt.UTC)
NLP = ClusterRunOptions(in_cluster=True, namespace="nlp")


@pytest.mark.parametrize(
    ("thorough", "mode"), [(False, TuningMode.QUICK), (True, TuningMode.THOROUGH)]
)
def test_the_command_patches_the_request_alone(thorough: bool, mode: TuningMode) -> None:
    said = [
        line
        for line in tuning_commands("sentiment", NLP, thorough, NOW).splitlines()
        if not line.startswith("#")
    ]
    patch, follow = (shlex.split(line) for line in said)
    assert patch[:8] == [
        "kubectl",
        "patch",
        "inferencepipeline",
        "sentiment",
        "--namespace",
        "nlp",
        "--type",
        "merge",
    ]
    body = json.loads(patch[9])
    assert list(body["spec"]) == ["tuning"]
    assert Tuning.model_validate(body["spec"]["tuning"]) == Tuning(
        request="2026-02-01T12:30:00Z", mode=mode
    )
    assert follow[:4] == ["kubectl", "get", "inferencepipeline", "sentiment"]


def test_kubectl_gets_the_context() -> None:
    done = CliRunner().invoke(app, ["tune", "sentiment", "--in-cluster", "--context", "east"])
    assert done.exit_code == 0, done.output
    assert done.output.count("sentiment --context east") == 2
    refused = CliRunner().invoke(app, ["tune", str(SAMPLES / "sentiment.yaml"), "--context=east"])
    assert isinstance(refused.exception, CommandError)
    assert "--context is allowed only with --in-cluster" in str(refused.exception)


def test_without_a_namespace_kubectl_takes_its_own() -> None:
    assert "--namespace" not in tuning_commands("sentiment", ClusterRunOptions(), False, NOW)


@pytest.mark.parametrize("name", ["sentiment.yaml", "./x", "a b", ""])
def test_a_file_is_no_name(name: str) -> None:
    with pytest.raises(CommandError, match="--in-cluster"):
        tuning_commands(name, ClusterRunOptions(), False, NOW)


def test_the_option(messages: Messages) -> None:
    done = CliRunner().invoke(app, ["tune", "sentiment", "--in-cluster", "--namespace", "nlp"])
    assert done.exit_code == 0, done.output
    assert "--namespace" in done.output
    (now,) = re.findall(r"\d{4}-\d\d-\d\dT[\d:]+Z", done.output)
    messages.check(done.output, now=now)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        (["--slo", "50"], "spec.slo.p99Milliseconds"),
        (["--rows", "2"], "omit this option"),
        (["--output", "json"], "status.tuning"),
        (["--cores", "2"], "spec.server"),
    ],
)
def test_an_option_that_is_not_carried_is_refused_by_name(option: list[str], instead: str) -> None:
    failure, said = refused("sentiment", "--in-cluster", *option)
    assert f"{option[0]} is not supported with --in-cluster" in str(failure)
    assert instead in str(failure)
    assert said == ""


def test_a_namespace_goes_with_the_cluster(messages: Messages) -> None:
    namespaced = str(refused("sentiment.yaml", "--namespace", "nlp")[0])
    assert "--in-cluster" in namespaced
    messages.check(namespaced)


def refused(*arguments: str) -> tuple[CommandError, str]:
    """The failure of a wrong use of ``tritonpipe tune``, and what was printed before."""
    done = CliRunner().invoke(app, ["tune", *arguments])
    assert isinstance(done.exception, CommandError)
    assert done.exception.code == EXIT_USAGE
    return done.exception, done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slo", "inf"], "--slo: inf is not a finite number"),
        (["--seconds", "inf"], "--seconds: "),
        (["--cores", "inf"], "--cores: "),
        (["--rate", "inf"], "--rate: "),
        (["--texts", "texts.txt", "--lengths", "median=8"], "--texts and --lengths "),
        (["--server", "127.0.0.1:1", "--mounts", "/tmp"], "--mounts: "),
        (
            ["--plot", "no-such-folder/plot.svg"],
            "--plot: cannot write no-such-folder/plot.svg: directory no-such-folder does not exist",
        ),
        (["--report-file", "."], "--report-file: cannot write .: is a directory"),
        (["--server", ""], "--server: '' is not the address"),
        (
            ["--server", "http://127.0.0.1:8001"],
            "--server: 'http://127.0.0.1:8001' is not the address",
        ),
        (["--server", "127.0.0.1"], "--server: '127.0.0.1' is not the address"),
        (["--server", "127.0.0.1:port"], "--server: '127.0.0.1:port' is not the address"),
    ],
)
def test_wrong_use_is_told_before_anything_is_measured(arguments: list[str], said: str) -> None:
    failure, printed = refused("sentiment.yaml", *arguments)
    assert str(failure).startswith(said)
    assert printed == ""


@pytest.mark.parametrize("server", [[], ["--server", "127.0.0.1:1"], ["--server", "[::1]:1"]])
def test_requests_of_more_rows_than_the_pipeline_takes_are_refused_before_anything_is_started(
    server: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "sentiment.yaml"
    document = yaml.safe_load((SAMPLES / "sentiment.yaml").read_text())
    document["spec"]["model"]["maxBatchSize"] = 8
    file.write_text(yaml.safe_dump(document))
    failure, printed = refused(str(file), "--slo", "100", "--rows", "16", *server)
    assert str(failure).startswith("--rows 16: a request exceeds spec.model.maxBatchSize (8)")
    assert printed == ""
