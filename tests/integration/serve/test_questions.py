"""Pipelines of several shapes on `tritonpipe serve`.

They are queried as the operator queries pods, and by `tritonpipe infer`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.integration.serve.test_process import wait_until
from tests.support.builders import document
from tests.support.serving import Served, run, served
from triton_pipelines.api import InferencePipeline, parse
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.graph.example_request import example_of
from triton_pipelines.controllers.pipeline.prober import probe_request
from triton_pipelines.triton.client import UNLIMITED_BYTES, TritonClient
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe import ProbeResult, probe

pytestmark = pytest.mark.integration

IMPORTS = "import json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\n"
# Answers with what it got: types, shapes and elements, and of a sequence its signals.
ECHO = """class TritonPythonModel:
    def execute(self, requests):
        seen = [pb_utils.Tensor("SEEN", self.seen(request)) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in seen]

    def seen(self, request):
        found = {}
        for tensor in request.inputs():
            array = tensor.as_numpy()
            values = array.ravel().tolist()
            values = [item.decode() if isinstance(item, bytes) else item for item in values]
            found[tensor.name()] = [str(array.dtype), list(array.shape), values]
        return np.array([json.dumps(found).encode()], dtype=object).reshape(SHAPE)
"""
# One answer for each word, and none for no word.
WORDS = """class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            (text,) = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().ravel()
            for word in text.decode().split():
                answer = pb_utils.Tensor("WORD", np.array([word.encode()], dtype=object))
                sender.send(pb_utils.InferenceResponse([answer]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SEEN = {"name": "SEEN", "dataType": "STRING", "dims": [1]}
TEXT = {"name": "TEXT", "dataType": "STRING", "dims": [1]}


def pipeline(
    name: str, code: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], **spec: Any
) -> dict[str, Any]:
    """A pipeline of one python step; `model` in `spec` adds to it."""
    step = {
        "platform": "python",
        "python": {"code": {"inline": IMPORTS + code}},
        "source": None,
        "inputs": inputs,
        "outputs": outputs,
    }
    return document(
        name=name,
        **{
            "tokenizer": None,
            "postprocess": None,
            **spec,
            "model": {**step, **spec.get("model", {})},
        },
    )


@contextmanager
def serving(resource: dict[str, Any], folder: Path) -> Iterator[tuple[Served, InferencePipeline]]:
    file = folder / f"{resource['metadata']['name']}.yaml"
    file.write_text(yaml.safe_dump(resource), encoding="utf-8")
    parsed, findings = parse(resource)
    assert parsed is not None, findings
    with served(file, log=folder / "serve.log") as running:
        yield running, parsed


async def ask(running: Served, resource: InferencePipeline) -> ProbeResult:
    """Probe it once with the example request of its resource."""
    graph = build(resource, Options())
    example = example_of(resource, graph)
    assert example is not None
    return await probe(running.endpoint.grpc, graph.model_name, None, probe_request(example))


KINDS: dict[str, tuple[list[int], list[str], Any]] = {
    "BOOL": ([2], ["true", "false"], [True, False]),
    "UINT8": ([2], ["255", "0"], [255, 0]),
    "INT16": ([2], ["-3", "4"], [-3, 4]),
    "UINT64": ([1], ["18446744073709551615"], [2**64 - 1]),
    "INT32": ([2, 2], ["7"], [7, 7, 7, 7]),
    "FP16": ([2], ["0.5", "-2"], [0.5, -2.0]),
    "FP32": ([-1], ["0.25"], [0.25, 0.25, 0.25]),
    "FP64": ([1], ["0.1"], [0.1]),
    "STRING": ([2], ["a", "\u00e9"], ["a", "\u00e9"]),
}


@pytest.mark.proves("spec.health.inputs", "behaviour")
@pytest.mark.proves("spec.health.inputs[].*", "behaviour")
async def test_an_example_of_every_type_arrives_as_written(tmp_path: Path) -> None:
    """BF16 is left out: the python backend gives it to no NumPy."""
    inputs = [
        {"name": kind, "dataType": kind, "dims": dims} for kind, (dims, _, _) in KINDS.items()
    ]
    examples = [
        {"name": kind, "shape": [1, *(3 if size < 0 else size for size in dims)], "data": data}
        for kind, (dims, data, _) in KINDS.items()
    ]
    resource = pipeline(
        "typed", ECHO.replace("SHAPE", "(1, 1)"), inputs, [SEEN], health={"inputs": examples}
    )
    with serving(resource, tmp_path) as (running, parsed):
        looked = await ask(running, parsed)
        assert looked.healthy, looked
        example = example_of(parsed, build(parsed, Options()))
        assert example is not None
        async with TritonClient(running.endpoint.grpc) as client:
            seen = json.loads((await client.infer("typed", example.inputs))["SEEN"].item())
        assert {kind: values for kind, (_, _, values) in seen.items()} == {
            kind: values for kind, (_, _, values) in KINDS.items()
        }
        # The same by hand.
        given = [
            f"--input={kind}={','.join(data)}"
            for kind, (_, data, _) in KINDS.items()
            if kind not in ("STRING", "FP32")
        ]
        np.save(tmp_path / "fp32.npy", np.full((1, 3), 0.25, np.float32))
        answer = run(
            "infer",
            running.model_url,
            *given,
            "--input=STRING=a",
            "--input=STRING=\u00e9",
            f"--input-file=FP32={tmp_path}/fp32.npy",
            "--output=json",
        )
        assert answer.returncode == 0, answer.stderr
        (output,) = json.loads(answer.stdout)["outputs"]
        assert json.loads(output["data"][0]) == seen


async def test_a_decoupled_pipeline_is_asked_over_a_stream_and_prints_as_it_answers(
    tmp_path: Path,
) -> None:
    word = {"name": "WORD", "dataType": "STRING", "dims": [1]}
    resource = pipeline(
        "words",
        WORDS,
        [TEXT],
        [word],
        model={"decoupled": "Enabled", "maxBatchSize": 0, "dynamicBatching": None},
    )
    with serving(resource, tmp_path) as (running, parsed):
        looked = await ask(running, parsed)
        assert looked.healthy, looked
        silent = ProbeRequest({"TEXT": np.array([b""], dtype=object)}, stream=True)
        assert (await probe(running.endpoint.grpc, "words", None, silent)).healthy
        # Not over a stream, such a pipeline refuses.
        alone = ProbeRequest({"TEXT": np.array([b"a"], dtype=object)})
        assert not (await probe(running.endpoint.grpc, "words", None, alone)).healthy
        answer = run("infer", running.model_url, "one two three")
        assert (answer.returncode, answer.stdout) == (0, "one\ntwo\nthree\n"), answer.stderr
        over_grpc = f"grpc://{running.endpoint.grpc}/v2/models/words"
        answer = run("infer", over_grpc, "one two three")
        assert (answer.returncode, answer.stdout) == (0, "one\ntwo\nthree\n"), answer.stderr


async def test_a_question_is_a_sequence_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether each inference got a response: a probe that waits for a slot in vain is healthy, too.
    answered: list[bool] = []
    infer = TritonClient.infer

    async def recorded(*arguments: Any, **options: Any) -> Any:
        answered.append(False)
        outputs = await infer(*arguments, **options)
        answered[-1] = True
        return outputs

    monkeypatch.setattr(TritonClient, "infer", recorded)
    controls = [{"name": name, "kind": name} for name in ("START", "END", "READY")] + [
        {"name": "ID", "kind": "CORRID"}
    ]
    sequences = {
        "strategy": "Direct",
        "controls": controls,
        "maxSequenceIdleMicroseconds": 60_000_000,
    }
    model = {"sequenceBatching": sequences, "maxBatchSize": 1, "instances": {"count": 1}}
    code = ECHO.replace("SHAPE", "(1, 1)")
    resource = pipeline("spoken", code, [TEXT], [SEEN], model=model, health={"text": "hello"})
    with serving(resource, tmp_path) as (running, parsed):
        looked = await ask(running, parsed)
        assert looked.healthy, looked
        assert answered == [True], looked
        async with TritonClient(running.endpoint.grpc, None, 60.0, UNLIMITED_BYTES) as client:
            text = {"TEXT": np.array([[b"a"]], dtype=object)}
            seen = json.loads((await client.infer("spoken", text, sequence_id=77))["SEEN"].item())
            assert {name: seen[name][2] for name in ("START", "END", "ID")} == {
                "START": [1],
                "END": [1],
                "ID": [77],
            }
            # A client's sequence holds the one slot: the pod is busy, and good.
            await client._client.infer("spoken", [_text(b"a")], sequence_id=5, sequence_start=True)
            graph = build(parsed, Options())
            example = example_of(parsed, graph)
            assert example is not None
            # The deadline also covers what comes before the inference: connecting, readiness and
            # the index. A pod that is late there counts as unreachable.
            held = await probe(
                running.endpoint.grpc, "spoken", None, probe_request(example), deadline_s=5.0
            )
            assert held.healthy, held
            assert answered == [True, True, False], held
            last = await client._client.infer(
                "spoken", [_text(b"a")], sequence_id=5, sequence_end=True
            )
            # What waited in vain did not begin a sequence in the place of the client's.
            assert json.loads(last.as_numpy("SEEN").item())["ID"][2] == [5]
        looked = await ask(running, parsed)
        assert answered == [True, True, False, True], looked


def _text(text: bytes) -> Any:
    from tritonclient.grpc import InferInput

    tensor = InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text]], dtype=object))
    return tensor


async def test_an_entry_point_without_its_optional_input_and_without_a_batch_axis(
    tmp_path: Path,
) -> None:
    inputs = [
        {**TEXT, "dims": [1, -1]},
        {"name": "K", "dataType": "INT32", "dims": [1], "optional": "Enabled"},
    ]
    step = {
        "name": "entry",
        "platform": "python",
        "python": {"code": {"inline": IMPORTS + ECHO.replace("SHAPE", "(1,)")}},
    }
    resource = document(
        name="called",
        tokenizer=None,
        postprocess=None,
        model=None,
        steps=[{**step, "inputs": inputs, "outputs": [SEEN], "maxBatchSize": 0}],
        ensemble={"entryPoint": "entry"},
    )
    with serving(resource, tmp_path) as (running, parsed):
        looked = await ask(running, parsed)
        assert looked.healthy, looked
        answer = run("infer", running.model_url, "a", "b", "--output=json")
        assert answer.returncode == 0, answer.stderr
        (output,) = json.loads(answer.stdout)["outputs"]
        assert json.loads(output["data"][0]) == {"TEXT": ["object", [1, 2], ["a", "b"]]}
        shown = run("infer", running.model_url, "a", "--input=K=3")
        assert "SEEN BYTES[1]: " in shown.stdout
        assert '"K": ["int32", [1], [3]]' in shown.stdout


FIRST_ROW = """class TritonPythonModel:
    def execute(self, requests):
        score = pb_utils.Tensor("SCORE", np.ones((1, 1), np.float32))
        return [pb_utils.InferenceResponse([score]) for _ in requests]
"""
DOUBLES = """class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "TEXT") for request in requests]
        raw = [pb_utils.Tensor("RAW", np.ones((len(text.as_numpy()), 2))) for text in texts]
        return [pb_utils.InferenceResponse([tensor]) for tensor in raw]
"""
SCORE = {"name": "SCORE", "dataType": "FP32", "dims": [1]}
RAW = {"name": "RAW", "dataType": "FP32", "dims": [2]}


@pytest.mark.parametrize(
    ("resource", "reported"),
    [
        pytest.param(
            pipeline("scored", FIRST_ROW, [TEXT], [SCORE]),
            "output SCORE has 1 rows, but the input has 2 (produced by spec.model: step "
            "'model' must return its output as declared, SCORE FP32[1])",
            id="of every request the first row alone",
        ),
        pytest.param(
            pipeline("raw", DOUBLES, [TEXT], [RAW]),
            "output RAW is FP64, but is declared as FP32 (produced by spec.model: step "
            "'model' must return its output as declared, RAW FP32[2])",
            id="another type, read by clients",
        ),
        pytest.param(
            pipeline("read", DOUBLES, [TEXT], [RAW], postprocess={"type": "Softmax"}),
            "inference input 'RAW' data-type is 'FP64', but model 'postprocess' expects "
            "'FP32' (produced by spec.model: step 'model' must return its output as "
            "declared, RAW FP32[2])",
            id="another type, read by a step",
        ),
    ],
)
def test_own_code_that_answers_something_else_than_it_declares(
    tmp_path: Path, resource: dict[str, Any], reported: str
) -> None:
    """Triton passes on invalid outputs; `serve` warns, and a pod does not become Ready."""
    with serving(resource, tmp_path) as (running, parsed):
        assert not asyncio.run(ask(running, parsed)).healthy
        log = tmp_path / "serve.log"
        wait_until(lambda: "InferenceFailed" in log.read_text(), running.process)
        assert reported in log.read_text()
