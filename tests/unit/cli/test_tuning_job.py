"""Check that `tritonpipe tune` accepts the command line that the operator gives a tuning Job.

Only the connection to the server fails.
"""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tests.support import builders
from triton_pipelines.api import names
from triton_pipelines.cli.errors import EXIT_FAILED, CommandError
from triton_pipelines.cli.main import app
from triton_pipelines.compile.render.tuning_objects import FILE_KEY, inputs, job

NOBODY = "127.0.0.1:1"


def test_the_jobs_arguments_and_files_are_understood(tmp_path: Path) -> None:
    options = builders.options(
        substitute_runner=frozenset({"onnxruntime_onnx"}),
        source_map=("s3://=http://mirror.example",),
    )
    one = builders.built(
        options, slo={"p99Milliseconds": 50}, tuning={"request": "a", "mode": "Thorough"}
    )
    revision = one.render()
    reported = inputs(
        one.pipeline,
        "12345678",
        builders.document(slo={"p99Milliseconds": 50}),
        revision.server_image,
        options,
    )
    made = job(one.pipeline, "12345678", revision.name, "10.0.0.1", revision.template, options)
    (container,) = made["spec"]["template"]["spec"]["containers"]
    for name, text in reported["data"].items():
        (tmp_path / name).write_text(text)
    (tmp_path / FILE_KEY).write_text("key")
    places = {
        names.PATH_TUNING: tmp_path,
        names.PATH_CONTROL: tmp_path,
        names.PATH_TERMINATION: tmp_path / "message",
    }
    arguments = list(container["args"])
    for path, here in places.items():
        arguments = [argument.replace(path, str(here)) for argument in arguments]
    arguments = [argument.replace("10.0.0.1:8001", NOBODY) for argument in arguments]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, CommandError), (done.output, done.exception)
    assert done.exception.code == EXIT_FAILED
    assert NOBODY in str(done.exception)
    assert json.loads(reported["data"]["operator.yaml"])["substitute_runner"] == [
        "onnxruntime_onnx"
    ]
