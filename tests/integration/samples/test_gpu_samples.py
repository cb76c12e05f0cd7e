"""GPU samples on a Triton with a real core, python backend and loader.

TensorRT, vLLM and ONNX Runtime are replaced by a stub backend.

The stub backend answers with zeros. The tests show that Triton's own validation accepts the whole
repository, that files are where the configs say, and that requests pass through all steps. They do
not show what the real backends make of their files. Instances run as KIND_CPU, because a Triton
without CUDA refuses KIND_GPU.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http
from tritonclient.http import InferenceServerClient as Client

from e2e.models import tree
from tests.support import nullbackend
from tests.support.samples import column
from tests.support.serving import SAMPLES
from tests.support.simulated_backends import on_simulated_backends
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.triton.distribution import Distribution
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration
TEXTS = column("Best concert of my life.", "What a waste of money, " * 20, "ok")


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    return nullbackend.distribution(tmp_path_factory.mktemp("backends") / "backends")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> SourceMap:
    """Return the samples' own sources.

    Files that nobody reads replace a plan and third-party weights.
    """
    folder, built = tmp_path_factory.mktemp("sources"), tree.build()
    for name in ("model.plan", "qwen/config.json", "qwen/model.safetensors", "qwen/tokenizer.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    return SourceMap.parse(
        [
            f"s3://models/sentiment/model.plan={(folder / 'model.plan').as_uri()}",
            f"hf://Qwen/Qwen2.5-1.5B-Instruct={(folder / 'qwen').as_uri()}",
            f"s3://={(built / 's3').as_uri()}/",
            f"hf://={(built / 'hub').as_uri()}/",
        ]
    )


def loaded(
    name: str, distribution: Distribution, sources: SourceMap, folder: Path
) -> contextlib.AbstractContextManager[tuple[LocalTriton, Client]]:
    """A sample on that server."""
    return on_simulated_backends(SAMPLES / f"{name}.yaml", distribution, sources, folder)


def infer(client: Client, model: str) -> Any:
    tensor = tritonclient.http.InferInput("TEXT", list(TEXTS.shape), "BYTES")
    tensor.set_data_from_numpy(TEXTS)
    return client.infer(model, [tensor])


@pytest.mark.proves_files("manifests/samples/tensorrt.yaml", "loaded")
def test_tensorrt(distribution: Distribution, sources: SourceMap, tmp_path: Path) -> None:
    with loaded("tensorrt", distribution, sources, tmp_path) as (_, client):
        tokens = infer(client, "tokenizer")
        # Three rows, the longest of which has more than 64 tokens: the bucket of 128, in the plan's
        # type.
        assert tokens.as_numpy("input_ids").shape == (3, 128)
        assert tokens.as_numpy("input_ids").dtype == np.int32
        np.testing.assert_allclose(
            infer(client, "tensorrt").as_numpy("PROBABILITIES"), np.full((3, 2), 0.5)
        )
        config = client.get_model_config("model")
        assert config["platform"] == "tensorrt_plan"
        (group,) = config["instance_group"]
        assert (group["count"], group["profile"]) == (2, ["0"])
        # Every bucket is warmed up, so that no client waits for a first execution.
        assert {sample["inputs"]["input_ids"]["dims"][0] for sample in config["model_warmup"]} == {
            32,
            64,
            128,
            256,
        }


@pytest.mark.proves_files("manifests/samples/mig.yaml", "loaded")
def test_mig(distribution: Distribution, sources: SourceMap, tmp_path: Path) -> None:
    with loaded("mig", distribution, sources, tmp_path) as (_, client):
        tokens = infer(client, "tokenizer")
        # Ragged: the longest row of the request and no more. The loader has adapted the file to
        # such batches.
        longest = int(tokens.as_numpy("attention_mask").sum(axis=1).max())
        assert tokens.as_numpy("input_ids").shape == (3, longest)
        assert 64 < longest < 128
        assert {
            entry["source_input"][0] for entry in client.get_model_config("model")["batch_input"]
        } == {"input_ids", "attention_mask"}
        np.testing.assert_allclose(
            infer(client, "mig").as_numpy("PROBABILITIES"), np.full((3, 2), 0.5)
        )


@pytest.mark.proves_files("manifests/samples/onnx-tensorrt.yaml", "loaded")
def test_onnx_tensorrt(distribution: Distribution, sources: SourceMap, tmp_path: Path) -> None:
    with loaded("onnx-tensorrt", distribution, sources, tmp_path) as (_, client):
        np.testing.assert_allclose(
            infer(client, "onnx-tensorrt").as_numpy("PROBABILITIES"), np.full((3, 2), 0.5)
        )
        config = client.get_model_config("model")
        (accelerator,) = config["optimization"]["execution_accelerators"][
            "gpu_execution_accelerator"
        ]
        assert accelerator["name"] == "tensorrt"
        parameters = accelerator["parameters"]
        assert parameters["precision_mode"] == "FP16"
        assert parameters["max_workspace_size_bytes"] == str(2048 * 1024**2)
        assert not Path(parameters["trt_engine_cache_path"]).is_relative_to(tmp_path / "models")
        assert sorted({int(sample["batch_size"]) for sample in config["model_warmup"]}) == [
            1,
            8,
            32,
        ]


@pytest.mark.proves_files("manifests/samples/vllm.yaml", "loaded")
def test_vllm(distribution: Distribution, sources: SourceMap, tmp_path: Path) -> None:
    """A request names the text only and omits the engine's other inputs.

    This is the reason for the entry point.
    """
    with loaded("vllm", distribution, sources, tmp_path) as (server, client):
        engine = json.loads((tmp_path / "models" / "assistant" / "1" / "model.json").read_text())
        assert engine["max_model_len"] == 4096
        assert {path.name for path in Path(engine["model"]).iterdir()} >= {
            "config.json",
            "model.safetensors",
            "tokenizer.json",
        }
        config = client.get_model_config("assistant")
        assert config["model_transaction_policy"] == {"decoupled": True}
        assert config["instance_group"][0]["kind"] == "KIND_MODEL"
        answer = httpx.post(
            f"{server.http_url}/v2/models/assistant/generate",
            json={"text_input": "What is MIG?"},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        assert "text_output" in answer.json()
        stream = {
            "text_input": "What is MIG?",
            "stream": True,
            "sampling_parameters": '{"max_tokens": 4}',
        }
        streamed = httpx.post(
            f"{server.http_url}/v2/models/assistant/generate_stream", json=stream, timeout=30
        )
        assert streamed.status_code == 200, streamed.text
        assert streamed.text.startswith("data: ")
        assert {item["name"] for item in client.get_model_repository_index()} == {"assistant"}


def test_bls(distribution: Distribution, sources: SourceMap, tmp_path: Path) -> None:
    """Custom code that calls auxiliary models, which would have GPUs in a cluster."""
    with loaded("bls", distribution, sources, tmp_path) as (_, client):
        answer = infer(client, "cascade")
        # The stub backend is never sure.
        np.testing.assert_allclose(answer.as_numpy("PROBABILITIES"), np.full((3, 2), 0.5))
        assert set(answer.as_numpy("ANSWERED_BY").ravel()) == {b"large"}
        for name in ("small", "large"):
            assert client.get_model_config(name)["instance_group"][0]["kind"] == "KIND_CPU"
