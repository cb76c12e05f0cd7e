"""A small pipeline with its ONNX file adapted by the loader, under a real Triton.

The pipeline is that of :mod:`tests.support.pipelines`.

No package contains Triton's ONNX Runtime backend, so a python model replaces it, and nothing else
is replaced. Triton itself accepts the requests, checks them against the config, and forms the
ragged batches. The replacement feeds a batch to ONNX Runtime as the backend was measured to
(:class:`tests.support.raggedbackend.SimulatedBackend`), including its faults: one error fails the
whole batch, and nothing is copied after an empty input.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format

from tests.support import pipelines, tinymodel
from tests.support.raggedbackend import config_of
from triton_pipelines.api.loadplan import PlanAdapt, PlanRaggedInput
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.graph import Tensor
from triton_pipelines.loader.ragged import AdaptedFile, adapt_file

ROOT = Path(__file__).resolve().parents[2]
INPUTS = tuple(Tensor(name, DataType.INT64, (-1,)) for name in ("input_ids", "attention_mask"))
OUTPUTS = (
    Tensor("hidden", DataType.FP32, (-1, tinymodel.WIDTH)),
    Tensor("logits", DataType.FP32, (tinymodel.CLASSES,)),
)
MODEL = f"""
import os, pathlib, sys
sys.path += os.environ["TRITONPIPE_SITE"].split(os.pathsep) + [{str(ROOT)!r}, {str(ROOT / "operator")!r}]
import numpy as np
import triton_python_backend_utils as pb_utils
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2
from tests.support.raggedbackend import SimulatedBackend

class TritonPythonModel:
    def initialize(self, args):
        config = json_format.Parse(args["model_config"], model_config_pb2.ModelConfig(), ignore_unknown_fields=True)
        file = pathlib.Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self._backend = SimulatedBackend(file, config)

    def execute(self, requests):
        asked = [{{tensor.name(): tensor.as_numpy() for tensor in request.inputs()}} for request in requests]
        try:
            answers = self._backend.execute(asked)
        except Exception as error:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)[:500])) for _ in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(name, np.ascontiguousarray(value)) for name, value in answer.items()]) for answer in answers
        ]
"""  # noqa: E501


def write_ragged_pipeline(repository: Path, delay_us: int) -> None:
    """Write tokenizer (Refuse), adapted model behind the stub, postprocess and ensemble.

    Both steps wait ``delay_us`` to batch requests.
    """
    pipelines.write_pipeline(repository, padding="Ragged", truncation="Refuse", delay_us=delay_us)
    version = repository / pipelines.MODEL / "1"
    inputs = tuple(PlanRaggedInput(name=tensor.name) for tensor in INPUTS)
    plan = PlanAdapt(
        step="model",
        path="model/1/model.onnx",
        inputs=inputs,
        token_outputs=("hidden",),
        max_length=pipelines.MAX_LENGTH,
    )
    done = adapt_file(version / "model.onnx", plan)
    assert isinstance(done, AdaptedFile), str(done)
    (version / "model.py").write_text(MODEL)
    config = config_of(INPUTS, OUTPUTS)
    config.name, config.backend = pipelines.MODEL, "python"
    config.instance_group.add(kind="KIND_CPU", count=1)
    config.dynamic_batching.max_queue_delay_microseconds = delay_us
    (repository / pipelines.MODEL / "config.pbtxt").write_text(text_format.MessageToString(config))
