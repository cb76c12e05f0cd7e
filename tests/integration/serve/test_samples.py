"""The samples on `tritonpipe serve`, asked by every client that the documentation names."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
import yaml

from e2e.models.weights import model_folder
from e2e.models.wordpiece import WordPiece
from e2e.suite.clients import CLIENTS, Answer
from e2e.suite.pipelines import TOLERANCE, check_answer, golden
from tests.support.serving import SAMPLES, Served, run

pytestmark = pytest.mark.integration
SHORT = 40  # tokens: the longest texts are the business of the padding tests
ROWS = [1, 2, 64]
CURL = ("curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "60")


def texts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["text"] for row in rows]


def curl_json(served: Served, rows: Sequence[str]) -> Answer:
    body = {
        "inputs": [
            {"name": "TEXT", "shape": [len(rows), 1], "datatype": "BYTES", "data": list(rows)}
        ]
    }
    answer = subprocess.run(
        [*CURL, "--data-binary", "@-", f"{served.model_url}/infer"],
        input=json.dumps(body).encode(),
        capture_output=True,
        check=True,
    )
    return from_json(json.loads(answer.stdout))


def curl_binary(served: Served, rows: Sequence[str], folder: Path) -> Answer:
    """Send a request as the docs of the binary tensor data extension describe.

    The body is a JSON header and then 4-byte lengths and bytes. A request header has the JSON
    header's length.
    """
    data = b"".join(struct.pack("<I", len(row.encode())) + row.encode() for row in rows)
    tensor = {
        "name": "TEXT",
        "shape": [len(rows), 1],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(data)},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = folder / "headers.txt"
    lengths = (
        "--header",
        f"Inference-Header-Content-Length: {len(header)}",
        "--header",
        "Content-Type: application/octet-stream",
    )
    answer = subprocess.run(
        [
            *CURL,
            *lengths,
            "--dump-header",
            str(headers),
            "--data-binary",
            "@-",
            f"{served.model_url}/infer",
        ],
        input=header + data,
        capture_output=True,
        check=True,
    )
    lines = [line.partition(":") for line in headers.read_text().splitlines()]
    length = next(
        int(value) for name, _, value in lines if name.lower() == "inference-header-content-length"
    )
    rest = answer.stdout[length:]
    result: Answer = {}
    for output in json.loads(answer.stdout[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        content, rest = rest[:size], rest[size:]
        result[output["name"]] = (
            strings(content)
            if output["datatype"] == "BYTES"
            else np.frombuffer(content, np.float32)
        ).reshape(output["shape"])
    assert rest == b""
    return result


def strings(content: bytes) -> np.ndarray[Any, Any]:
    items = []
    while content:
        (length,) = struct.unpack_from("<I", content)
        items.append(content[4 : 4 + length])
        content = content[4 + length :]
    return np.array(items, dtype=np.object_)


def from_json(answer: Mapping[str, Any]) -> Answer:
    result = {}
    for output in answer["outputs"]:
        data = (
            [item.encode() for item in output["data"]]
            if output["datatype"] == "BYTES"
            else output["data"]
        )
        result[output["name"]] = np.array(
            data, dtype=np.object_ if output["datatype"] == "BYTES" else np.float32
        ).reshape(output["shape"])
    return result


def http_without_binary(served: Served, rows: Sequence[str]) -> Answer:
    """Send the request with tritonclient, using JSON both ways."""
    client = tritonclient.http.InferenceServerClient(
        served.endpoint.http.removeprefix("http://"), network_timeout=60
    )
    try:
        tensor = tritonclient.http.InferInput("TEXT", [len(rows), 1], "BYTES")
        tensor.set_data_from_numpy(
            np.array([[row] for row in rows], dtype=np.object_), binary_data=False
        )
        names = [item["name"] for item in client.get_model_metadata(served.model)["outputs"]]
        asked = [tritonclient.http.InferRequestedOutput(name, binary_data=False) for name in names]
        return from_json(client.infer(served.model, [tensor], outputs=asked).get_response())
    finally:
        client.close()


def tritonpipe_infer(served: Served, rows: Sequence[str]) -> Answer:
    done = run("infer", served.model_url, "--output=json", "--", *rows)
    assert done.returncode == 0, done.stderr
    return from_json(json.loads(done.stdout))


def ask(way: str, served: Served, rows: Sequence[str], folder: Path) -> Answer:
    if way in CLIENTS:
        return CLIENTS[way](served.endpoint, served.model, rows)
    if way == "curl-binary":
        return curl_binary(served, rows, folder)
    return {
        "curl-json": curl_json,
        "http-no-binary": http_without_binary,
        "tritonpipe": tritonpipe_infer,
    }[way](served, rows)


@pytest.mark.parametrize("count", ROWS)
@pytest.mark.parametrize(
    "way", [*CLIENTS, "http-no-binary", "curl-json", "curl-binary", "tritonpipe"]
)
def test_sentiment_by_every_client(sentiment: Served, way: str, count: int, tmp_path: Path) -> None:
    rows = golden("sentiment", count, longest=SHORT)
    answer = ask(way, sentiment, texts(rows), tmp_path)
    check_answer("sentiment", rows, answer)
    assert {name: values.shape for name, values in answer.items()} == {
        "PROBABILITIES": (count, 2),
        "LABEL": (count, 1),
        "SCORE": (count, 1),
    }


@pytest.mark.parametrize(
    ("way", "count"),
    [
        *((way, count) for way in (*CLIENTS, "http-no-binary") for count in ROWS),
        ("curl-json", 2),
        ("curl-binary", 64),
        ("tritonpipe", 2),
    ],
)
def test_embedding_by_every_client(embedding: Served, way: str, count: int, tmp_path: Path) -> None:
    rows = golden("embedding", count, longest=SHORT)
    answer = ask(way, embedding, texts(rows), tmp_path)
    check_answer("embedding", rows, answer)
    assert answer["EMBEDDING"].shape == (count, 384)


def test_the_plain_tritonclient_program(sentiment: Served) -> None:
    """Use a client as people write it.

    It sends text in an object array and requests one output, both as binary tensors.
    """
    sentences = [
        "I love this product, it works perfectly!",
        "This is the worst purchase I have ever made.",
    ]
    array = np.array(sentences, dtype=object).reshape(-1, 1)
    client = tritonclient.http.InferenceServerClient(
        url=sentiment.endpoint.http.removeprefix("http://")
    )
    tensor = tritonclient.http.InferInput("TEXT", array.shape, "BYTES")
    tensor.set_data_from_numpy(array, binary_data=True)
    output = tritonclient.http.InferRequestedOutput("PROBABILITIES", binary_data=True)
    response = client.infer(model_name="sentiment", inputs=[tensor], outputs=[output])
    client.close()
    by_text = {row["text"]: row["probabilities"] for row in golden("sentiment", 20)}
    np.testing.assert_allclose(
        response.as_numpy("PROBABILITIES"),
        [by_text[text] for text in sentences],
        atol=TOLERANCE,
        rtol=0,
    )
    assert [item["name"] for item in response.get_response()["outputs"]] == ["PROBABILITIES"]


# --- custom-python: expected answers from words, never from the ids in the sample
QUEUES = {
    "billing": {"payment", "charged", "bill", "subscription", "price"},
    "technical": {"error", "crash", "password", "bug", "broken"},
    "shipping": {"delivery", "package", "parcel", "shipping", "courier"},
}
TICKETS = [
    "I was charged twice, please check my bill and the price of my subscription",
    "After the update I get an error, then a crash. A bug?",
    "The courier lost my parcel: no delivery, no package.",
    "My password is broken and the payment failed",
    "hello",
    "",
]


def expected_queues(rows: Sequence[str]) -> np.ndarray[Any, Any]:
    words = [[word.strip(".,?:") for word in row.lower().split()] for row in rows]
    logits = np.array(
        [[2.0 * sum(word in queue for word in row) for queue in QUEUES.values()] for row in words]
    )
    powers = np.exp(logits)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("way", "count"), [*((way, count) for way in CLIENTS for count in ROWS), ("tritonpipe", 2)]
)
def test_custom_python(custom_python: Served, way: str, count: int, tmp_path: Path) -> None:
    rows = [TICKETS[number % len(TICKETS)] for number in range(count)]
    answer = ask(way, custom_python, rows, tmp_path)
    expected = expected_queues(rows)
    np.testing.assert_allclose(answer["PROBABILITIES"], expected, atol=TOLERANCE, rtol=0)
    assert answer["LABEL"].ravel().tolist() == [
        list(QUEUES)[best].encode() for best in expected.argmax(axis=1)
    ]


def test_ids_in_the_custom_sample_are_those_of_the_words_beside_them() -> None:
    sample = yaml.safe_load((SAMPLES / "custom-python.yaml").read_text(encoding="utf-8"))
    code = sample["spec"]["model"]["python"]["code"]["inline"]
    vocabulary = WordPiece(model_folder() / "vocab.txt")
    for queue in QUEUES.values():
        for word in queue:
            (identifier,) = vocabulary.encode(word, 512)[1:-1]
            assert str(identifier) in code, word


def test_the_table_of_infer(sentiment: Served) -> None:
    done = run(
        "infer", f"{sentiment.model_url}/versions/1/ready?x=1", "[bold]ok[/bold]", "a\nb", ""
    )
    assert done.returncode == 0, done.stderr
    assert "[bold]ok[/bold]" in done.stdout
    assert "a\\nb" in done.stdout
    assert "PROBABILITIES" in done.stdout


@pytest.mark.parametrize(
    ("change", "texts", "said"),
    [
        (lambda url: url.replace("http://", "https://"), ["x"], "does not use TLS, use http:"),
        (lambda url: url.replace("sentiment", "nobody"), ["x"], "nobody"),
        (lambda url: url, ["x"] * 65, "batch-size must be <= 64"),
    ],
    ids=["https", "unknown model", "65 rows"],
)
def test_infer_says_why_it_failed(
    sentiment: Served, change: Any, texts: list[str], said: str
) -> None:
    done = run("infer", change(sentiment.model_url), *texts)
    assert done.returncode == 3
    assert said in done.stderr


def test_infer_refuses_a_model_that_takes_no_text(sentiment: Served) -> None:
    done = run("infer", sentiment.model_url.replace("/sentiment", "/model"), "x")
    assert done.returncode == 2
    assert "input_ids INT64" in done.stderr


def test_the_local_server_names_its_advisories(sentiment: Served) -> None:
    assert "warning: the local server: Triton 24.10 is affected by" in sentiment.log.read_text()
