"""``tritonpipe status``: one pipeline, all of them, a watch, and clusters that cannot be asked."""

from __future__ import annotations

import itertools
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.support.messages import Messages
from tests.unit.cli.conftest import Run, Serve, response
from triton_pipelines.cli import status


def kubeconfig(path: Path, server: str, namespace: str | None = "nlp") -> str:
    context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
                "contexts": [
                    {"name": "here", "context": context},
                    {"name": "bare", "context": {"cluster": "c", "user": "u"}},
                ],
            }
        )
    )
    return str(path)


def test_namespace_of_the_context(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "config", "http://127.0.0.1:1")
    assert status.context_namespace(file, None) == "nlp"
    assert status.context_namespace(file, "bare") == "default"
    assert status.context_namespace(file, "unknown") == "default"
    assert status.context_namespace(str(tmp_path / "none"), None) == "default"


def test_no_kubeconfig(tritonpipe: Run, tmp_path: Path, messages: Messages) -> None:
    ended = tritonpipe("status", "sentiment", "--kubeconfig", str(tmp_path / "none"))
    assert ended.code == 3
    assert str(tmp_path / "none") in ended.err
    messages.check(ended.err)


def test_a_context_that_does_not_exist(tritonpipe: Run, tmp_path: Path) -> None:
    ended = tritonpipe(
        "status",
        "sentiment",
        "--kubeconfig",
        kubeconfig(tmp_path / "config", "http://127.0.0.1:1"),
        "--context",
        "nowhere",
    )
    assert ended.code == 3
    assert "'nowhere'" in ended.err


def test_no_api_server(tritonpipe: Run, tmp_path: Path, messages: Messages) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        file = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{unused.getsockname()[1]}")
        ended = tritonpipe("status", "sentiment", "--kubeconfig", file)
    assert ended.code == 3
    messages.check(ended.err)
    assert "secret" not in ended.err


def not_found(message: str, name: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "NotFound",
        "code": 404,
        "message": message,
        "details": {"name": name} if name else {},
    }


@pytest.mark.parametrize(
    ("message", "name", "code", "said"),
    [
        (
            'inferencepipelines.tritonpipelines.io "sentiment" not found',
            "sentiment",
            2,
            "InferencePipeline",
        ),
        (
            "the server could not find the requested resource",
            "",
            3,
            "InferencePipeline",
        ),
    ],
)
def test_what_is_not_there(
    tritonpipe: Run,
    server: Serve,
    tmp_path: Path,
    message: str,
    name: str,
    code: int,
    said: str,
    messages: Messages,
) -> None:
    url = server({"GET": response(not_found(message, name), 404)}).partition("/v2")[0]
    ended = tritonpipe("status", "sentiment", "--kubeconfig", kubeconfig(tmp_path / "config", url))
    assert ended.code == code
    assert said in ended.err
    messages.check(ended.err)


def test_a_status_for_people(tritonpipe: Run, server: Serve, tmp_path: Path) -> None:
    state = {
        "observedGeneration": 2,
        "revision": "abc",
        "servingRevision": "old",
        "replicas": 1,
        "readyReplicas": 1,
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "InvalidSpec",
                "message": "spec.model [bold]: wrong",
            }
        ],
        "steps": [
            {"name": "tokenizer", "modelName": "tok", "pods": 1, "readyPods": 1, "instances": 2}
        ],
        "tokenizer": {"summary": "2/4"},
        "ensemble": {
            "modelName": "sentiment",
            "inputs": [{"name": "TEXT", "dataType": "STRING", "shape": [-1, 1]}],
            "outputs": [],
        },
        "endpoints": {"http": "http://sentiment.nlp.svc:8000"},
        "sources": [
            {
                "step": "model",
                "uri": "s3://m/x",
                "resolvedRevision": "v7",
                "sha256": "0123456789abcdef",
            }
        ],
        "warnings": [{"path": "spec.model", "message": "careful"}],
        "tuning": {
            "request": "monday",
            "state": "Succeeded",
            "message": "batch 32 is recommended",
            "advice": "Compute-bound: fuller batches",
        },
    }
    document = {
        "metadata": {"namespace": "nlp", "name": "sentiment", "generation": 3},
        "status": state,
    }
    url = server({"GET": response(document)}).partition("/v2")[0]
    file = kubeconfig(tmp_path / "config", url)
    shown = tritonpipe("status", "sentiment", "--kubeconfig", file)
    assert shown.code == 1
    for text in (
        *(
            "nlp/sentiment",
            "revision abc (serving old)",
            "tokenizers 2/4",
            "has not been processed yet",
            "spec.model [bold]: wrong",
        ),
        *(
            "TEXT STRING[-1, 1]",
            "http://sentiment.nlp.svc:8000",
            "at v7 sha256 0123456789ab",
            "warning: spec.model: careful",
        ),
        *(
            "tuning 'monday': Succeeded: batch 32 is recommended",
            "tuning advice: Compute-bound: fuller batches",
        ),
    ):
        assert text in shown.out
    assert (
        json.loads(tritonpipe("status", "sentiment", "--kubeconfig", file, "-o", "json").out)
        == state
    )


def listed(*pipelines: dict[str, Any]) -> tuple[int, bytes]:
    return response(
        {
            "kind": "InferencePipelineList",
            "apiVersion": "tritonpipelines.io/v1alpha1",
            "metadata": {},
            "items": list(pipelines),
        }
    )


def pipeline(name: str, ready: str, **state: Any) -> dict[str, Any]:
    conditions = [
        {
            "type": "Ready",
            "status": ready,
            "reason": "Succeeded" if ready == "True" else "Loading",
            "message": f"of {name}",
        }
    ]
    return {
        "metadata": {"namespace": "nlp", "name": name},
        "status": {"conditions": conditions, "readyReplicas": 1, "replicas": 2, **state},
    }


def test_without_a_name_each_pipeline_has_a_line(
    tritonpipe: Run, server: Serve, tmp_path: Path
) -> None:
    answer = listed(
        pipeline("topics", "False"), pipeline("sentiment", "True", tokenizer={"summary": "2/4"})
    )
    file = kubeconfig(tmp_path / "config", server({"GET": answer}).partition("/v2")[0])
    rows = [
        ["sentiment", "True", "1/2", "2/4", "-", "Succeeded"],
        ["topics", "False", "1/2", "-", "-", "Loading"],
    ]
    narrow = tritonpipe("status", "--kubeconfig", file).out.splitlines()
    assert narrow[0].split() == ["NAME", "READY", "PODS", "TOKENIZERS", "REVISION", "REASON"]
    assert [line.split() for line in narrow[1:]] == rows
    wide = tritonpipe("status", "-o", "wide", "--kubeconfig", file).out.splitlines()
    assert [line.split() for line in wide[1:]] == [[*row, "of", row[0]] for row in rows]
    everywhere = tritonpipe("status", "-A", "--output=json", "--kubeconfig", file)
    assert [item["metadata"] for item in json.loads(everywhere.out)] == [
        {"namespace": "nlp", "name": name} for name in ("sentiment", "topics")
    ]


def test_no_pipelines(tritonpipe: Run, server: Serve, tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "config", server({"GET": listed()}).partition("/v2")[0])
    assert tritonpipe("status", "--kubeconfig", file).out == "no pipelines found in namespace nlp\n"
    assert tritonpipe("status", "sentiment", "-A", "--kubeconfig", file).code == 2


def test_a_watch_prints_what_changes_and_outlasts_an_absence(
    tritonpipe: Run, server: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [
        listed(pipeline("a", "False")),
        listed(pipeline("a", "False")),
        response({"kind": "Status", "message": "away"}, 403),
        listed(pipeline("a", "True")),
    ]
    url = server({"GET": looks.pop(0)}).partition("/v2")[0]

    async def next_look(_: float) -> None:
        if not looks:
            raise KeyboardInterrupt
        server({"GET": looks.pop(0)})

    monkeypatch.setattr("triton_pipelines.cli.status.asyncio.sleep", next_look)
    ended = tritonpipe(
        "status", "--watch", "-o", "wide", "--kubeconfig", kubeconfig(tmp_path / "config", url)
    )
    assert ended.code == 0
    assert ended.out.count("of a") == 2
    assert ended.out.index("Loading") < ended.out.index("Succeeded")
    assert "retrying" in ended.err


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({}, 1),
        ({"observedGeneration": 2}, 0),
        ({"observedGeneration": 1}, 1),
    ],
    ids=["no status", "ready", "ready in an earlier generation"],
)
def test_the_exit_code_says_whether_the_pipeline_is_ready(
    tritonpipe: Run, server: Serve, tmp_path: Path, state: dict[str, Any], code: int
) -> None:
    item = pipeline("sentiment", "True", **state)
    item["metadata"]["generation"] = 2
    if not state:
        del item["status"]
    file = kubeconfig(tmp_path / "config", server({"GET": response(item)}).partition("/v2")[0])
    for output in ("table", "json", "yaml"):
        ended = tritonpipe("status", "sentiment", "-o", output, "--kubeconfig", file)
        assert ended.code == code
    assert yaml.safe_load(ended.out) == item.get("status", {})


def test_wait_ends_when_the_pipeline_is_ready(
    tritonpipe: Run, server: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [response(pipeline("a", "False")), response(pipeline("a", "True"))]
    url = server({"GET": looks.pop(0)}).partition("/v2")[0]

    async def next_look(_: float) -> None:
        server({"GET": looks.pop(0)})

    monkeypatch.setattr("triton_pipelines.cli.status.asyncio.sleep", next_look)
    file = kubeconfig(tmp_path / "config", url)
    ended = tritonpipe("status", "a", "--wait", "--kubeconfig", file)
    assert ended.code == 0
    assert "Succeeded" in ended.out
    assert "Loading" not in ended.out


def test_wait_takes_at_most_its_timeout(tritonpipe: Run, server: Serve, tmp_path: Path) -> None:
    url = server({"GET": response(pipeline("a", "False"))}).partition("/v2")[0]
    file = kubeconfig(tmp_path / "config", url)
    ended = tritonpipe("status", "a", "--wait", "--timeout", "0", "--kubeconfig", file)
    assert ended.code == 1
    assert "Loading" in ended.out
    for arguments in (("--wait",), ("a", "--wait", "--watch")):
        assert tritonpipe("status", *arguments, "--kubeconfig", file).code == 2


def test_wait_ends_in_time_while_the_api_server_fails(
    tritonpipe: Run, server: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server({"GET": response(pipeline("a", "False"))}).partition("/v2")[0]
    clock = SimpleNamespace(monotonic=itertools.count().__next__)
    monkeypatch.setattr("triton_pipelines.cli.status.time", clock)
    failed = []

    async def next_look(_: float) -> None:
        failed.append(server({"GET": response({"kind": "Status", "message": "away"}, 403)}))
        assert len(failed) < 100, "the wait does not end"

    monkeypatch.setattr("triton_pipelines.cli.status.asyncio.sleep", next_look)
    file = kubeconfig(tmp_path / "config", url)
    ended = tritonpipe("status", "a", "--wait", "--timeout", "20", "--kubeconfig", file)
    assert ended.code == 1
    assert "Loading" in ended.out, "the last status that was read"
    assert "retrying" in ended.err
    assert 0 < len(failed) < 20


def test_wait_reads_once_more_when_the_time_is_over(
    tritonpipe: Run, server: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server({"GET": response(pipeline("a", "False"))}).partition("/v2")[0]
    now = [0.0]
    monkeypatch.setattr(
        "triton_pipelines.cli.status.time", SimpleNamespace(monotonic=lambda: now[0])
    )

    async def next_look(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 1.0:
            server({"GET": response(pipeline("a", "True"))})

    monkeypatch.setattr("triton_pipelines.cli.status.asyncio.sleep", next_look)
    file = kubeconfig(tmp_path / "config", url)
    assert tritonpipe("status", "a", "--wait", "--timeout", "1", "--kubeconfig", file).code == 0
