"""Test what a command imports.

Every pod's init container waits for the imports, and so does every user at a terminal.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from triton_pipelines.cli import main as cli

REPOSITORY = Path(__file__).parents[3]
IMPORTED = (
    "import sys; from triton_pipelines.cli.main import application;"
    " application(sys.argv[1]); print(*sys.modules)"
)


def imported_for(command: str) -> set[str]:
    return set(run_python(IMPORTED, command).split())


def run_python(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


OF_OTHERS = {
    "kopf",
    "triton_pipelines.app.main",
    "triton_pipelines.cli.operator_command",
    "triton_pipelines.cli.bench",
}


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("load", {"kubernetes", "aiohttp", "matplotlib", "grpc", "tritonclient.grpc"}),
        ("render", set()),
        ("validate", set()),
        ("serve", set()),
        ("status", {"onnx", "tokenizers", "matplotlib"}),
    ],
)
def test_a_command_imports_no_other_and_no_library_that_it_does_not_call(
    command: str, heavy: set[str]
) -> None:
    imported = imported_for(command)
    assert f"triton_pipelines.cli.{command}" in imported
    assert not (OF_OTHERS | heavy) & imported


def test_the_version_needs_no_library() -> None:
    assert not {"pydantic", "yaml", "numpy", "jinja2", "rich"} & imported_for("--version")


def test_validate_runs_without_libraries_that_it_does_not_call() -> None:
    """The command is run: an import in a function would otherwise not be seen."""
    done = run_python(
        "import sys; from triton_pipelines.cli.main import main\n"
        "sys.argv[:] = ['tritonpipe', 'validate', 'manifests/samples/sentiment.yaml']\n"
        "try: main()\nfinally: print(*sys.modules)"
    )
    imported = set(done.split())
    assert "triton_pipelines.compile.render.render" in imported
    assert (
        not {
            *("aiohttp", "grpc", "httpx", "kubernetes", "matplotlib", "ml_dtypes", "numpy"),
            *("onnx", "rich", "tokenizers", "tritonclient.grpc"),
        }
        & imported
    )


def test_messages_of_the_client_library_are_those_of_validation() -> None:
    """Whichever is imported first: Triton's client must accept and return the same messages."""
    first, second = (
        "from triton_pipelines.compile.model_config_proto import model_config_pb2 as own",
        "from tritonclient.grpc import model_config_pb2 as library, service_pb2",
    )
    check = (
        "assert own is library; config = own.ModelConfig(name='m')\n"
        "assert service_pb2.ModelConfigResponse(config=config).config == config"
    )
    run_python(f"{first}\n{second}\n{check}")
    run_python(f"{second}\n{first}\n{check}")


def test_an_unknown_command_is_told_beside_all_others() -> None:
    made = {command.name for command in cli.application("nonsense").registered_commands}
    assert {"validate", "serve", "operator", "load"} <= made
    assert [command.name for command in cli.application("load").registered_commands] == ["load"]


def test_grpc_does_not_write_what_pods_cause_it_to_write() -> None:
    """gRPC reads the variable when it is imported, which is after the command line has started."""
    program = (
        "import atexit, os, sys; sys.argv[1:] = ['operator', '--help'];"
        " os.environ.pop('GRPC_VERBOSITY', None); from triton_pipelines.cli import main;"
        " sys.stderr.write(str('grpc' in sys.modules));"
        " atexit.register(lambda: sys.stderr.write(os.environ['GRPC_VERBOSITY'])); main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "FalseNONE"
    assert done.returncode == 0
