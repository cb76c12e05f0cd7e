"""The other commands: help, wrong use, and a server or cluster that is not what it should be."""

from __future__ import annotations

import json
import socket
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.messages import Messages
from tests.unit.cli.conftest import Run, Serve, response
from triton_pipelines.api import crd
from triton_pipelines.cli import infer, output
from triton_pipelines.cli.errors import CommandError

ROOT = Path(__file__).parents[3]
SENTIMENT = str(ROOT / "manifests" / "samples" / "sentiment.yaml")
COMMANDS = ["validate", "render", "serve", "infer", "status", "crd", "load", "operator"]
METADATA = {
    "name": "m",
    "inputs": [{"name": "QUERY", "datatype": "BYTES", "shape": [-1, 1]}],
    "outputs": [
        {"name": "B", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "A", "datatype": "BYTES", "shape": [-1, 1]},
    ],
}
ANSWER = {
    "model_name": "m",
    "outputs": [
        {"name": "A", "datatype": "BYTES", "shape": [2, 1], "data": ["[red]", "zwei"]},
        {"name": "B", "datatype": "FP32", "shape": [2, 2], "data": [0.25, 0.75, 1.0, 0.0]},
    ],
}


# --- help and wrong use
@pytest.mark.parametrize("columns", ["60", "200"])
def test_help_names_every_command_and_its_options(
    tritonpipe: Run, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ended = tritonpipe("--help")
    assert ended.code == 0
    assert all(f" {command} " in ended.out for command in COMMANDS)
    assert "First steps" in ended.out
    assert max(map(len, ended.out.splitlines())) <= int(columns)
    for command in COMMANDS:
        ended = tritonpipe(command, "--help")
        assert ended.code == 0
        assert f"tritonpipe {command}" in ended.out


def test_the_kubectl_plugin_is_the_same_program(tritonpipe: Run) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-tritonpipe"] == scripts["tritonpipe"]
    assert (
        "Usage: kubectl tritonpipe status"
        in tritonpipe("status", "--help", program="/usr/local/bin/kubectl-tritonpipe").out
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["validate"],
        ["validate", "--nonsense", SENTIMENT],
        ["render"],
        ["render", SENTIMENT, SENTIMENT],
        ["render", SENTIMENT, "--source-map", "nonsense"],
        ["serve"],
        ["serve", SENTIMENT, "--port", "many"],
        ["serve", SENTIMENT, "--port", "65536"],
        ["serve", SENTIMENT, "--port", "7001", "--grpc-port", "7001"],
        ["serve", SENTIMENT, "--source-map", "nonsense"],
        ["serve", "no-such-file.yaml"],
        ["infer"],
        ["infer", SENTIMENT],
        ["infer", "no-such-file.yaml", "text"],
        ["infer", "http://host", "text"],
        ["infer", "http://", "text"],
        ["infer", "http://[::1/v2/models/m", "text"],
        ["infer", "http://host:99999/v2/models/m", "text"],
        ["infer", "ftp://host/v2/models/m", "text"],
        ["infer", SENTIMENT, "text", "--url", "http://"],
        ["infer", "http://host/v2/models/m", "text", "--cacert", "ca.crt"],
        ["infer", "grpc://host/v2/models/m", "text", "--servername", "name"],
        ["infer", "grpcs://host/v2/models/m", "text", "--cert", "tls.crt"],
        ["infer", "grpcs://host/v2/models/m", "text", "--cacert", "no-such-file.crt"],
        ["infer", "grpcs://host/v2/models/m", "text", "--cacert", SENTIMENT],
        ["bench", "grpc://host/v2/models/m", "--grpc-address", "host:1"],
        ["bench", "http://host/v2/models/m", "--cacert", "ca.crt"],
        ["infer", SENTIMENT, "broken \udcff"],
        ["status", "sentiment", "--all-namespaces"],
        ["crd", "more"],
        ["operator", "--workers", "0"],
        ["operator", "--custom-code", "perhaps"],
        ["load", "--nonsense"],
    ],
    ids=lambda arguments: ascii(" ".join(arguments).replace(SENTIMENT, "FILE")),
)
def test_wrong_use(tritonpipe: Run, arguments: list[str]) -> None:
    ended = tritonpipe(*arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.strip()


def test_crd_is_the_definition(tritonpipe: Run) -> None:
    ended = tritonpipe("crd")
    assert ended.code == 0
    assert ended.out == crd.render()


def test_a_defect_of_ours_is_a_message_too(
    tritonpipe: Run, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    def broken() -> str:
        raise KeyError("lost")

    monkeypatch.setattr(crd, "render", broken)
    ended = tritonpipe("crd")
    assert ended.code == 3
    assert "KeyError" in ended.err
    messages.check(ended.err)


def test_a_port_that_is_taken_is_named_before_anything_is_fetched(
    tritonpipe: Run, messages: Messages
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        ended = tritonpipe(
            "serve", SENTIMENT, "--port", "0", "--grpc-port", "0", "--metrics-port", str(port)
        )
    assert ended.code == 3
    assert str(port) in ended.err
    messages.check(ended.err)
    assert "laying out" not in ended.err


def test_serve_says_which_platform_it_cannot_run(
    tritonpipe: Run, tmp_path: Path, messages: Messages
) -> None:
    document = yaml.safe_load(Path(SENTIMENT).read_text())
    document["spec"]["model"]["platform"] = "tensorrt_plan"
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(document))
    ended = tritonpipe("serve", str(file))
    assert ended.code == 2
    assert "spec.model.platform" in ended.err
    messages.check(ended.err)


# --- infer
@pytest.mark.parametrize(
    ("target", "server", "url"),
    [
        ("http://h:1/v2/models/m", "", "http://h:1/v2/models/m"),
        ("https://h/v2/models/m/", "", "https://h/v2/models/m"),
        ("http://h:1/v2/models/m/infer", "", "http://h:1/v2/models/m"),
        ("http://h:1/v2/models/m/ready?x=1#y", "", "http://h:1/v2/models/m"),
        ("http://h:1/v2/models/m/versions/1/infer", "", "http://h:1/v2/models/m/versions/1"),
        ("https://gate/team/nlp/v2/models/m/config", "", "https://gate/team/nlp/v2/models/m"),
        ("http://[::1]:8000/v2/models/m", "", "http://[::1]:8000/v2/models/m"),
        ("localhost:8000/v2/models/m", "", "http://localhost:8000/v2/models/m"),
        (SENTIMENT, "http://h:1", "http://h:1/v2/models/sentiment"),
        (SENTIMENT, "http://h:1/", "http://h:1/v2/models/sentiment"),
        (SENTIMENT, "h:1", "http://h:1/v2/models/sentiment"),
        (SENTIMENT, "https://gate/nlp/", "https://gate/nlp/v2/models/sentiment"),
    ],
)
def test_model_url(target: str, server: str, url: str) -> None:
    assert infer.model_url(target, server) == url


def test_a_file_gives_only_its_name(tmp_path: Path) -> None:
    """Read only the name from a file, and do not validate the resource.

    Whether an operator would accept it depends on that operator's options, and the server has
    accepted it already.
    """
    document = yaml.safe_load(Path(SENTIMENT).read_text())
    document["spec"]["ensemble"] = {"modelName": "public"}
    document["spec"]["model"]["outputs"][0]["dims"] = [3]
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(document))
    assert infer.model_url(str(file), "h:1") == "http://h:1/v2/models/public"
    document["spec"]["ensemble"]["modelNam"] = "x"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(CommandError, match=r"spec\.ensemble\.modelNam"):
        infer.model_url(str(file), "h:1")


def test_an_answer_as_table_and_as_json(tritonpipe: Run, server: Serve) -> None:
    url = server({"GET": response(METADATA), "POST": response(ANSWER)})
    ended = tritonpipe("infer", url, "[bold]one", "--", "-two")
    assert ended.code == 0
    rows = [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
        for line in ended.out.splitlines()
        if "│" in line or "┃" in line
    ]
    assert rows == [
        ["text", "B", "A"],
        ["[bold]one", "0.2500 0.7500", "[red]"],
        ["-two", "1.0000 0.0000", "zwei"],
    ]
    whole = json.loads(tritonpipe("infer", url, "a", "b", "--output=json").out)
    assert [item["name"] for item in whole["outputs"]] == ["B", "A"]


@pytest.mark.parametrize(
    ("metadata", "answer", "code", "said"),
    [
        ((200, b"<html>"), None, 3, "JSON"),
        (response([1]), None, 3, "JSON"),
        (response({}), None, 3, "model metadata"),
        (response({"inputs": 1, "outputs": 2}), None, 3, "model metadata"),
        ((502, b"<html>Bad Gateway"), None, 3, "502"),
        (response({"error": "unknown model"}, 404), None, 3, "404"),
        (
            response({**METADATA, "inputs": [{"name": "X", "datatype": "FP32"}]}),
            None,
            2,
            "FP32",
        ),
        (
            response(
                {**METADATA, "inputs": [*METADATA["inputs"], {"name": "MORE", "datatype": "BYTES"}]}
            ),
            None,
            2,
            "BYTES",
        ),
        (response(METADATA), response({}), 3, "inference response"),
        (
            response(METADATA),
            response({"outputs": [{"name": "Z", "data": []}]}),
            3,
            "inference response",
        ),
        (response(METADATA), response({"error": "too many rows"}, 400), 3, "400"),
    ],
)
def test_servers_that_answer_something_else(
    tritonpipe: Run,
    server: Serve,
    metadata: tuple[int, bytes],
    answer: tuple[int, bytes] | None,
    code: int,
    said: str,
    messages: Messages,
) -> None:
    ended = tritonpipe("infer", server({"GET": metadata, "POST": answer or (200, b"")}), "x")
    assert ended.code == code
    assert said in ended.err
    messages.check(ended.err)


def test_no_server(tritonpipe: Run) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ended = tritonpipe("infer", SENTIMENT, "x", "--url", f"127.0.0.1:{unused.getsockname()[1]}")
    assert ended.code == 3
    assert "cannot reach" in ended.err


@pytest.mark.parametrize(("proxied", "code"), [("http://127.0.0.1:1", 0)])
def test_a_proxy_is_not_asked_for_this_machine(
    tritonpipe: Run, server: Serve, monkeypatch: pytest.MonkeyPatch, proxied: str, code: int
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxied)
    monkeypatch.setenv("http_proxy", proxied)
    answer = {"outputs": [{"name": "B", "data": [0.5, 0.5]}]}
    assert (
        tritonpipe("infer", server({"GET": response(METADATA), "POST": response(answer)}), "x").code
        == code
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("", ""),
        ("a\nb\t\x1b[31m", "a\\nb\\t\\x1b[31m"),
        ("ü🎉", "ü🎉"),
        ("x" * 121, "x" * 120 + "… (121 characters)"),
    ],
)
def test_shortened(text: str, shown: str) -> None:
    assert output.shorten(text) == shown
