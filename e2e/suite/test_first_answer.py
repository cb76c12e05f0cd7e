"""The samples, from `kubectl apply` to right answers, and what people see of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
import tritonclient.grpc
import yaml
from tritonclient.utils import InferenceServerException

from e2e.suite import clients
from e2e.suite.kube import Kube, wait_for
from e2e.suite.pipelines import Pipeline, check_answer, golden, small
from e2e.suite.reach import Endpoint, Reach
from triton_pipelines.api import names

SAMPLES = ("sentiment", "embedding")
BATCHES = (1, 2, 64)


@pytest.fixture(scope="module")
def serving(
    kube: Kube, module_namespace: str, reach: Reach
) -> Iterator[dict[str, tuple[Pipeline, Endpoint]]]:
    """Both samples, applied and waited for with kubectl alone."""
    manifests = yaml.safe_dump_all([small(name) for name in SAMPLES])
    kube.kubectl("apply", f"--namespace={module_namespace}", "--filename=-", input=manifests)
    kube.kubectl(
        "wait",
        f"--namespace={module_namespace}",
        "--for=condition=Ready",
        "--timeout=120s",
        *(f"ipl/{name}" for name in SAMPLES),
    )
    with (
        reach.service(module_namespace, "sentiment") as first,
        reach.service(module_namespace, "embedding") as second,
    ):
        yield {
            name: (Pipeline(kube, module_namespace, name), way)
            for name, way in zip(SAMPLES, (first, second), strict=True)
        }


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("client", clients.CLIENTS)
@pytest.mark.parametrize("rows", BATCHES)
def test_answers_are_the_golden_ones(
    serving: dict[str, tuple[Pipeline, Endpoint]], sample: str, client: str, rows: int
) -> None:
    # A request is padded to its longest row. 64 rows of 512 tokens would keep a small node busy for
    # half a minute.
    cases = golden(sample, rows, longest=512 if rows < 64 else 32)
    answer = clients.CLIENTS[client](serving[sample][1], sample, [case["text"] for case in cases])
    check_answer(sample, cases, answer)


def test_status_says_what_serves_and_how_to_ask_it(
    serving: dict[str, tuple[Pipeline, Endpoint]],
) -> None:
    types = ("Ready", "Available", "ModelsReady", "MetricsAvailable", "ScalingActive")
    # Scaling reports its conditions one after the other, once it has seen two samples.
    item = serving["sentiment"][0].wait(
        "these conditions, all True",
        lambda item: (
            {entry["type"]: entry["status"] for entry in item["status"]["conditions"]}
            == dict.fromkeys(types, "True")
        ),
    )
    status = item["status"]
    assert {entry["observedGeneration"] for entry in status["conditions"]} == {
        item["metadata"]["generation"]
    }
    assert status["observedGeneration"] == item["metadata"]["generation"]
    assert status["revision"] == status["servingRevision"] != ""
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (1, 1, 1)
    host = f"sentiment.{item['metadata']['namespace']}.svc"
    assert status["endpoints"] == {
        "http": f"http://{host}:8000",
        "grpc": f"{host}:8001",
        "metrics": f"http://{host}:8002/metrics",
    }
    assert status["ensemble"] == {
        "modelName": "sentiment",
        "inputs": [{"name": "TEXT", "dataType": "BYTES", "shape": [-1, 1]}],
        "outputs": [
            {"name": "PROBABILITIES", "dataType": "FP32", "shape": [-1, 2]},
            {"name": "LABEL", "dataType": "BYTES", "shape": [-1, 1]},
            {"name": "SCORE", "dataType": "FP32", "shape": [-1, 1]},
        ],
    }
    assert {
        entry["role"]: (entry["readyPods"], entry["pods"]) for entry in status["steps"]
    } == dict.fromkeys(("Tokenizer", "Model", "Postprocess"), (1, 1))
    # What the unpinned sources were at the first load.
    resolved = {entry["step"]: entry for entry in status["sources"]}
    assert len(resolved["tokenizer"]["resolvedRevision"]) == 40
    assert len(resolved["model"]["sha256"]) == 64


def test_status_describes_the_model_that_the_server_serves(
    serving: dict[str, tuple[Pipeline, Endpoint]],
) -> None:
    pipeline, endpoint = serving["embedding"]
    reported = pipeline.status()["ensemble"]
    metadata = (
        httpx.get(
            f"{endpoint.http}/v2/models/{reported['modelName']}",
            timeout=clients.SECONDS,
            trust_env=False,
        )
        .raise_for_status()
        .json()
    )
    for kind in ("inputs", "outputs"):
        assert [
            {"name": t["name"], "dataType": t["datatype"], "shape": t["shape"]}
            for t in metadata[kind]
        ] == reported[kind]


def test_events_tell_the_story(serving: dict[str, tuple[Pipeline, Endpoint]]) -> None:
    pipeline = serving["sentiment"][0]
    revision = pipeline.status()["revision"]
    pipeline.wait_event("Succeeded")
    reported = {event["reason"]: event for event in pipeline.events()}
    assert reported["RolloutStarted"]["note"] == f"rolling out revision {revision}"
    assert reported["Succeeded"]["type"] == "Normal"
    assert revision in reported["Succeeded"]["note"]
    # The server of the local cluster is an old release, and the operator warns about it.
    assert {reason for reason, event in reported.items() if event["type"] != "Normal"} == {
        "SpecWarning"
    }
    assert "security bulletins" in reported["SpecWarning"]["note"]


def test_kubectl_shows_columns_for_people(
    kube: Kube, serving: dict[str, tuple[Pipeline, Endpoint]]
) -> None:
    pipeline = serving["sentiment"][0]
    pipeline.wait_condition(
        "ScalingActive", "True"
    )  # columns are told apart by blanks here: none may be empty

    def columns() -> dict[str, str]:
        title, row = kube.kubectl(
            "get", "ipl", "sentiment", f"--namespace={pipeline.namespace}"
        ).splitlines()
        shown = dict(zip(title.split(), row.split(), strict=False))
        return {name: shown[name] for name in ("NAME", "READY", "TOKENIZERS", "BOTTLENECK")}

    def expected() -> dict[str, str]:
        status = pipeline.status()
        return {
            "NAME": "sentiment",
            "READY": "True",
            "TOKENIZERS": status["tokenizer"]["summary"],
            "BOTTLENECK": status["scaling"]["bottleneck"],
        }

    # The status may change between two reads of it.
    wait_for(
        "the columns of the status",
        lambda: (columns(), expected()),
        lambda seen: seen[0] == seen[1],
        60,
    )
    wide = kube.kubectl("get", "inference", f"--namespace={pipeline.namespace}", "--output=wide")
    assert pipeline.status()["revision"] in wide


def test_tritonpipe_status_for_people_and_for_programs(
    kube: Kube, serving: dict[str, tuple[Pipeline, Endpoint]]
) -> None:
    pipeline = serving["sentiment"][0]

    def ask(*arguments: str) -> str:
        command = [
            sys.executable,
            "-m",
            "triton_pipelines.cli.main",
            "status",
            "sentiment",
            f"--namespace={pipeline.namespace}",
        ]
        command += [f"--context={kube.context}", *arguments]
        environment = {**os.environ, "KUBECONFIG": str(kube.kubeconfig), "COLUMNS": "200"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    assert json.loads(ask("-o", "json"))["servingRevision"] == pipeline.status()["servingRevision"]
    text = ask()
    for expected in (
        f"{pipeline.namespace}/sentiment",
        pipeline.status()["revision"],
        "Succeeded",
        "tokenizer",
        "hf://sentence-transformers",
    ):
        assert expected in text


OPEN = (
    "v2/models/sentiment/stats",
    "v2/models/sentiment/config",
    "v2/models/sentiment/ready",
    "v2/health/ready",
)
CONTROL = (
    ("POST", "v2/repository/index"),
    ("POST", "v2/repository/models/tokenizer/load"),
    ("POST", "v2/repository/models/tokenizer/unload"),
    ("GET", "v2/systemsharedmemory/status"),
    ("GET", "v2/trace/setting"),
    ("POST", "v2/trace/setting"),
    ("GET", "v2/logging"),
    ("POST", "v2/logging"),
)


@pytest.mark.parametrize("path", OPEN)
def test_http_is_open_for_what_clients_need(
    serving: dict[str, tuple[Pipeline, Endpoint]], path: str
) -> None:
    url = f"{serving['sentiment'][1].http}/{path}"
    answer = httpx.get(url, timeout=clients.SECONDS, trust_env=False)
    assert answer.status_code == httpx.codes.OK


@pytest.mark.parametrize(
    ("method", "path"), CONTROL, ids=[f"{method}-{path}" for method, path in CONTROL]
)
def test_http_control_is_closed_without_the_key(
    serving: dict[str, tuple[Pipeline, Endpoint]], method: str, path: str
) -> None:
    for headers in ({}, {names.CONTROL_HEADER: "guessed"}):
        answer = httpx.request(
            method,
            f"{serving['sentiment'][1].http}/{path}",
            json={},
            headers=headers,
            timeout=clients.SECONDS,
            trust_env=False,
        )
        assert answer.status_code == httpx.codes.FORBIDDEN, answer.text


def test_the_key_opens_control_over_both_protocols(
    serving: dict[str, tuple[Pipeline, Endpoint]],
) -> None:
    pipeline, endpoint = serving["sentiment"]
    key = pipeline.control_key()
    answer = httpx.post(
        f"{endpoint.http}/v2/repository/index",
        json={},
        headers={names.CONTROL_HEADER: key},
        timeout=clients.SECONDS,
        trust_env=False,
    )
    assert {item["name"] for item in answer.raise_for_status().json()} >= {"sentiment"}
    client = tritonclient.grpc.InferenceServerClient(endpoint.grpc)
    try:
        index = client.get_model_repository_index(headers={names.CONTROL_GRPC_METADATA: key})
        assert {item.name for item in index.models} >= {"sentiment"}
    finally:
        client.close()


def test_grpc_control_is_closed_and_the_rest_open_without_the_key(
    serving: dict[str, tuple[Pipeline, Endpoint]],
) -> None:
    client = tritonclient.grpc.InferenceServerClient(serving["sentiment"][1].grpc)
    try:
        closed = (
            client.get_model_repository_index,
            lambda: client.load_model("tokenizer"),
            lambda: client.unload_model("tokenizer"),
            client.get_system_shared_memory_status,
            client.get_trace_settings,
            client.get_log_settings,
        )
        for call in closed:
            with pytest.raises(InferenceServerException, match="restricted"):
                call()
        assert client.is_model_ready("sentiment")
        assert client.get_model_config("sentiment").config.name == "sentiment"
        assert client.get_inference_statistics("sentiment").model_stats
    finally:
        client.close()
