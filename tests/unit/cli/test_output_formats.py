"""Test that commands print their results in kubectl's formats, and share their options."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import typer.testing
import yaml

from tests.unit.cli.conftest import Run, Serve, response
from tests.unit.cli.test_commands import METADATA
from tests.unit.cli.test_scaling import pipeline
from tests.unit.cli.test_status import kubeconfig
from triton_pipelines.cli.main import app
from triton_pipelines.cli.option_groups import expand_options

FORMATS = ("table", "wide", "json", "yaml")
BAD = """apiVersion: tritonpipelines.io/v1alpha1
kind: InferencePipeline
metadata: {name: broken}
spec: {tokenizer: {maxLength: many}}
"""


def options(command: str) -> dict[str, Any]:
    """Return the parameters of a command by their options."""
    known = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {option: item for item in known.params for option in item.opts}


@pytest.mark.parametrize(
    "command", ["validate", "infer", "tune", "bench", "status", "scaling", "explain"]
)
def test_commands_with_results_have_the_formats_of_kubectl(command: str) -> None:
    known = options(command)
    assert known["--output"] is known["-o"]
    help_text = typer.testing.CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert "|".join(FORMATS) in help_text.output


@pytest.mark.parametrize("command", ["status", "scaling", "explain"])
def test_commands_that_read_a_cluster_have_the_options_of_kubectl(command: str) -> None:
    wanted = {"--namespace", "-n", "--all-namespaces", "-A", "--context", "--kubeconfig"}
    assert wanted | {"--watch", "-w"} <= set(options(command))


@pytest.mark.parametrize("command", ["init", "import"])
def test_files_are_written_with_another_option(command: str) -> None:
    assert "--output-file" in options(command)
    assert not {"--output", "-o"} & set(options(command))


def test_findings_are_for_programs_as_well(tritonpipe: Run) -> None:
    ended = tritonpipe("validate", "-", "-o", "json", text=BAD.encode())
    (found,) = json.loads(ended.out)
    assert (ended.code, found["valid"], found["file"]) == (1, False, "-")
    assert found["errors"][0]["path"] == "spec.tokenizer.maxLength"
    assert found["errors"][0]["code"]
    assert yaml.safe_load(tritonpipe("validate", "-", "-o", "yaml", text=BAD.encode()).out) == [
        found
    ]
    wide = tritonpipe("validate", "-", "-o", "wide", text=BAD.encode())
    assert f"[{found['errors'][0]['code']}]" in wide.out


def test_a_response_is_wide_or_for_programs(tritonpipe: Run, server: Serve) -> None:
    numbers = [number / 8 for number in range(40)]
    answer = {
        "model_name": "m",
        "outputs": [
            {"name": "B", "datatype": "FP32", "shape": [1, 40], "data": numbers},
            {"name": "A", "datatype": "BYTES", "shape": [1, 1], "data": ["x" * 200]},
        ],
    }
    url = server({"GET": response(METADATA), "POST": response(answer)})
    assert "x" * 200 not in tritonpipe("infer", url, "a").out.replace("\n", "")
    wide = tritonpipe("infer", url, "a", "-o", "wide").out
    assert "4.875" in wide
    assert "40" not in wide.replace("4.0", "")
    found = yaml.safe_load(tritonpipe("infer", url, "a", "-o", "yaml").out)
    assert found == json.loads(tritonpipe("infer", url, "a", "-o", "json").out)
    assert found["outputs"][0]["data"] == numbers


@pytest.mark.parametrize("command", ["scaling", "explain"])
def test_without_a_name_every_pipeline_is_shown(
    command: str, tritonpipe: Run, server: Serve, tmp_path: Path
) -> None:
    other = pipeline("Balanced")
    other["metadata"] = {"namespace": "other", "name": "topics"}
    listed = {"metadata": {}, "items": [pipeline(), other]}
    file = kubeconfig(tmp_path / "config", server({"GET": response(listed)}).partition("/v2")[0])
    text = tritonpipe(command, "-A", "--kubeconfig", file).out
    assert text.index("nlp/sentiment") < text.index("other/topics")
    found = json.loads(tritonpipe(command, "-A", "-o", "json", "--kubeconfig", file).out)
    assert [item["name"] for item in found] == ["sentiment", "topics"]
    refused = tritonpipe(command, "sentiment", "-A", "--kubeconfig", file)
    assert refused.code == 2
    server({"GET": response({"metadata": {}, "items": []})})
    assert "no pipelines found in namespace nlp" in tritonpipe(command, "--kubeconfig", file).out


def test_figures_have_the_time_of_their_last_change(
    tritonpipe: Run, server: Serve, tmp_path: Path
) -> None:
    document = pipeline()
    document["status"]["scaling"]["figuresTime"] = "2026-01-01T12:00:07Z"
    file = kubeconfig(tmp_path / "config", server({"GET": response(document)}).partition("/v2")[0])
    assert (
        "values from 2026-01-01T12:00:07Z"
        in tritonpipe("scaling", "sentiment", "--kubeconfig", file).out
    )
    assert (
        "Values from 2026-01-01T12:00:07Z:"
        in tritonpipe("explain", "sentiment", "--kubeconfig", file).out
    )


@dataclass(frozen=True)
class Colors:
    """Options of a command of this test."""

    shade: Annotated[str, typer.Option("--shade", "-s", help="Shade.")] = "dark"
    """Shade."""
    count: Annotated[int, typer.Option(min=1, help="Number.")] = 1
    """Number."""


def test_a_dataclass_of_options_becomes_options() -> None:
    seen = []

    @expand_options
    def paint(what: Annotated[str, typer.Argument()], colors: Colors, fast: bool = False) -> None:
        """Paint."""
        seen.append((what, colors, fast))

    made = typer.Typer()
    made.command()(paint)
    runner = typer.testing.CliRunner()
    assert runner.invoke(made, ["wall", "-s", "light", "--count", "2", "--fast"]).exit_code == 0
    assert runner.invoke(made, ["wall"]).exit_code == 0
    assert runner.invoke(made, ["wall", "--count", "0"]).exit_code == 2
    assert seen == [("wall", Colors("light", 2), True), ("wall", Colors(), False)]
