"""ONNX model step for Triton servers without the ONNX Runtime backend.

Triton's python backend runs this file.

Configuration (``parameters`` of config.pbtxt; the config itself gives the names, data types and
dims of the tensors):
    tritonpipe.model_file        file in the version folder (default model.onnx)
    tritonpipe.intra_op_threads  threads of one run (default 1; 0 lets ONNX Runtime use all cores)
    tritonpipe.run_cost_tokens   fixed cost of a run, as a number of computed tokens (default:
                                 measured on sample input while loading)
    tritonpipe.pad_inputs        JSON: input name -> pad value, for inputs [rows, tokens] that may
                                 be padded so that requests of different length share a run. If
                                 absent, only requests of equal shape share a run
    tritonpipe.pooled_outputs    JSON list of outputs [rows, tokens, ..] whose values at padding
                                 positions are never read

With max_batch_size 0, every request is a separate run, with the dims as they are. An input that the
config declares optional must have a default in the graph: an initializer of its name. The default
is used if a request leaves the input out.

Shared runs. Requests of one call share runs if this is safe. The step tests this while loading: two
different rows of sample input must get the same answers together as alone. The rows of a
dynamically quantized graph do not. Each request is then a separate run, and the log has a warning.
If a shared run fails, its requests run one by one, so that a bad request fails alone.

Padding. Rows are padded only if the sample shows that a padded row gets the same answer as alone. A
graph that ignores its mask fails this test. Output axes that follow the length are cut back to the
length of each request. Requests are sorted by length and split into the runs that compute the
fewest padded tokens. The fixed cost of each run is included, so padding never costs more than the
runs it saves, even with one long row among short ones. Rows that a request itself padded with the
pad values are sorted by their own lengths in the same way. This happens if all this padding costs
more than a run, and if pooled outputs are the only ones that follow the length.

Memory. A run of several rows computes at most 4096 tokens, or 64 times its fixed cost if that is
more. A full batch of long rows therefore needs no more memory than a few of them. The limit applies
if rows may share runs, tritonpipe.pad_inputs names the token inputs, and the model accepted the
sample. Every other request is computed whole. This includes the requests of a dynamically quantized
graph, and requests whose outputs cannot be joined row by row, which shows after their parts have
run. The memory for these is limited by max_batch_size.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

# Appended, so that the image's own packages win.
sys.path += [
    folder
    for folder in os.environ.get("TRITONPIPE_SITE", "").split(os.pathsep)
    if folder and folder not in sys.path
]

import numpy as np
import triton_python_backend_utils as pb_utils

from triton_pipelines.runtime.backend_helpers import quicken
from triton_pipelines.runtime.onnx_runner.batches import BatchRunner, first_line
from triton_pipelines.runtime.onnx_runner.sample_runs import (
    COST_TOKENS,
    Array,
    Feed,
    run_cost_tokens,
)

# ONNX Runtime's names of the types that numpy and Triton share.
_SAME = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "string")
DATA_TYPES = {f"tensor({name})": f"TYPE_{name.upper()}" for name in _SAME}
DATA_TYPES |= {
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
}
# Fixed cost of a run in computed tokens, where it cannot be measured. On CPUs a run costs about
# 0.1 ms and a token 20 us. On GPUs a launch costs about 2 ms and a token 1.5 us (H100: 500 tokens
# for BERT-base in FP32, 2000 for MiniLM in FP32, more in lower precision). The value affects only
# the choice of runs, never an answer.
RUN_COST_TOKENS = {"CPU": 8, "GPU": 1300}


class RequestError(ValueError):
    """One request cannot be answered; the text goes to its client."""


class TritonPythonModel:
    """The interface Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the graph and compare it with the config.

        If this raises an exception, Triton reports it as the reason for the failed load.
        """
        quicken(pb_utils)
        config = json.loads(args["model_config"])
        parameters = {
            key: value["string_value"] for key, value in config.get("parameters", {}).items()
        }
        self._inputs = {tensor["name"]: tensor for tensor in config["input"]}
        self._outputs = {tensor["name"]: tensor for tensor in config["output"]}
        self._batched = config.get("max_batch_size", 0) > 0
        pads = _pads(parameters, set(self._inputs))
        self._tokens = frozenset(pads if self._batched else ())
        self._session = _session(args, parameters)
        needed, defaults = self._session.get_inputs(), self._session.get_overridable_initializers()
        required = {tensor.name for tensor in needed}
        _check_tensors("input", self._inputs, [*needed, *defaults], self._batched, required)
        _check_tensors("output", self._outputs, self._session.get_outputs(), self._batched)
        # Looked up once, not for every request.
        self._dtypes = {
            name: np.dtype(pb_utils.triton_string_to_numpy(tensor["data_type"]))
            for name, tensor in self._inputs.items()
        }
        self._optional = frozenset(
            name for name, tensor in self._inputs.items() if tensor.get("optional", False)
        )
        kind = _instance_kind(args)
        self._runner = BatchRunner(
            self._run,
            list(self._outputs),
            pads,
            self._batched,
            RUN_COST_TOKENS.get(kind, 8),
            pb_utils.Logger.log_warn,
            exact=kind != "GPU",
            pooled=json.loads(parameters.get("tritonpipe.pooled_outputs", "[]")),
        )
        self._runner.check(self._sample)
        if "tritonpipe.run_cost_tokens" in parameters:
            self._runner.run_cost = int(parameters["tritonpipe.run_cost_tokens"])
        elif self._runner.pads:
            with contextlib.suppress(Exception):  # a model may reject the sample
                self._runner.run_cost = run_cost_tokens(self._run, self._sample(COST_TOKENS))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request, in order."""
        responses: list[Any] = [None] * len(requests)
        feeds, indices = [], []
        for index, request in enumerate(requests):
            try:
                feeds.append(self._read(request))
                indices.append(index)
            except RequestError as error:
                responses[index] = _error(str(error), pb_utils.TritonError.INVALID_ARG)
        for index, answer in zip(indices, self._runner.answer(feeds), strict=True):
            if isinstance(answer, Exception):
                # ONNX Runtime rejects input that it cannot compute, such as a token id outside the
                # vocabulary or a row that is too long.
                responses[index] = _error(
                    f"the model failed on this request: {first_line(answer)}",
                    pb_utils.TritonError.INVALID_ARG,
                )
            else:
                responses[index] = pb_utils.InferenceResponse(
                    [pb_utils.Tensor(name, _outgoing(array)) for name, array in answer.items()]
                )
        return responses

    def _run(self, feed: Feed) -> list[Array]:
        return list(self._session.run(list(self._outputs), feed))

    def _read(self, request: Any) -> Feed:
        sent = {tensor.name(): tensor for tensor in request.inputs()}
        feed: Feed = {}
        for name, dtype in self._dtypes.items():
            given = sent.get(name)
            if given is None:
                if name in self._optional:
                    continue
                raise RequestError(f"input {name} is missing")
            array = given.as_numpy()
            if array.dtype != dtype:
                raise RequestError(
                    f"input {name} has type {array.dtype}, expected {dtype}"
                    f" ({self._inputs[name]['data_type']})"
                )
            if not array.size:
                raise RequestError(
                    f"input {name} has shape {list(array.shape)}, which has no elements"
                )
            feed[name] = array if dtype.kind != "O" else _decode(name, array)
        if not feed:
            raise RequestError("the request has no inputs; send at least one input")
        shapes = {name: array.shape for name, array in feed.items()}
        if len(set(shapes.values())) > 1:
            self._compare(shapes)
        return feed

    def _compare(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Reject a request whose inputs do not fit each other."""
        rows = {name: shape[0] for name, shape in shapes.items() if shape}
        if self._batched and len(set(rows.values())) > 1:
            raise RequestError(f"the inputs have different numbers of rows: {rows}")
        shapes = {name: shape for name, shape in shapes.items() if name in self._tokens}
        if len(set(shapes.values())) > 1:  # a mask of length 1 would apply to all tokens
            raise RequestError(f"the token inputs have different shapes: {shapes}")

    def _sample(self, length: int) -> Feed:
        """Return a row of ones; 1 is a valid token id, mask and segment in every model."""
        feed = {}
        for name, tensor in self._inputs.items():
            padded = name in self._runner.pads
            dims = [length if padded else max(dim, 1) for dim in _dims(tensor)]
            feed[name] = np.ones(
                [1, *dims], dtype=pb_utils.triton_string_to_numpy(tensor["data_type"])
            )
        return feed


def _pads(parameters: dict[str, str], inputs: Set[str]) -> dict[str, int]:
    """Return the pad value of each input that may be padded."""
    pads = {
        name: int(value)
        for name, value in json.loads(parameters.get("tritonpipe.pad_inputs", "{}")).items()
    }
    if unknown := set(pads) - inputs:
        raise ValueError(
            f"tritonpipe.pad_inputs lists {sorted(unknown)}, but the model's inputs are"
            f" {sorted(inputs)}"
        )
    return pads


def _instance_kind(args: dict[str, str]) -> str:
    return args.get("model_instance_kind", "CPU")


def _session(args: dict[str, str], parameters: dict[str, str]) -> Any:
    """Return ONNX Runtime's session.

    It runs on the instance's GPU if the image's ONNX Runtime has CUDA.
    """
    file = (
        Path(args["model_repository"])
        / args["model_version"]
        / parameters.get("tritonpipe.model_file", "model.onnx")
    )
    threads = int(parameters.get("tritonpipe.intra_op_threads", "1"))
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeError(
            "this runner requires the Python package onnxruntime in the Triton image; "
            "install onnxruntime, or use an image with the onnxruntime backend"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads that spin would use the cores of the other instances.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors only; a rejected request is not logged
    providers: list[Any] = ["CPUExecutionProvider"]
    cuda = "CUDAExecutionProvider"
    if _instance_kind(args) == "GPU" and cuda in onnxruntime.get_available_providers():
        device = args.get("model_instance_device_id", "0")
        providers.insert(0, (cuda, {"device_id": device}))
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=providers)
    except Exception as error:
        raise ValueError(
            f"{file.name}: ONNX Runtime cannot load it ({first_line(error)})"
        ) from error


def _dims(tensor: dict[str, Any]) -> list[int]:
    """Return the dims that the model sees; Triton applies a reshape before and after."""
    return [
        int(dim) for dim in (tensor["reshape"]["shape"] if "reshape" in tensor else tensor["dims"])
    ]


def _check_tensors(
    role: str,
    wanted: dict[str, Any],
    graph: Sequence[Any],
    batched: bool,
    needed: Set[str] = frozenset(),
) -> None:
    """Compare the config's tensors with the graph's; the message shows both sides.

    ``needed`` are the names for which the graph has no default.
    """
    offered = {tensor.name: tensor for tensor in graph}
    if set(wanted) - set(offered) or needed - set(wanted):
        raise ValueError(
            f"{role} names differ: the config has {sorted(wanted)}, the graph {sorted(offered)}"
        )
    if bad := sorted(name for name in needed if wanted[name].get("optional", False)):
        raise ValueError(
            f"inputs {bad} are optional in the config, but the graph has no default for "
            "these inputs; remove optional"
        )
    for name, tensor in wanted.items():
        _check_tensor(f"{role} {name}", tensor, offered[name], batched)


def _check_tensor(title: str, tensor: dict[str, Any], offered: Any, batched: bool) -> None:
    """Compare the type and the dims of a tensor in the config with those in the graph."""
    if tensor["data_type"] not in DATA_TYPES.values():
        raise ValueError(
            f"{title} is {tensor['data_type']}, which this runner cannot pass to ONNX"
            " Runtime; use a server with the onnxruntime backend"
        )
    data_type = DATA_TYPES.get(offered.type)
    if data_type != tensor["data_type"]:
        raise ValueError(
            f"{title} is {tensor['data_type']} in the config,"
            f" {data_type or offered.type} in the graph"
        )
    dims = [-1, *_dims(tensor)] if batched else _dims(tensor)
    shape = offered.shape
    # ONNX Runtime gives an empty shape for an output whose rank it does not know.
    if not shape:
        return
    if len(shape) != len(dims):
        raise ValueError(
            f"{title} has {len(dims)} dimensions in the config (batch included), but"
            f" {shape} in the graph"
        )
    if any(
        isinstance(size, int) and size > 0 and dim not in (-1, size)
        for dim, size in zip(dims, shape, strict=True)
    ):
        raise ValueError(
            f"{title} has dims {dims[batched:]} in the config, but {shape} in the graph"
            " (batch included)"
        )
    if batched and isinstance(shape[0], int) and shape[0] > 0:
        raise ValueError(
            f"{title} has the fixed shape {shape} in the graph; set max_batch_size to 0,"
            " or export the graph with a dynamic first axis"
        )


def _decode(name: str, array: Array) -> Array:
    """Return BYTES as the strings that ONNX Runtime expects."""
    try:
        return np.array(
            [value.decode() for value in array.ravel().tolist()], dtype=np.object_
        ).reshape(array.shape)
    except UnicodeDecodeError as error:
        raise RequestError(f"input {name} contains text that is not valid UTF-8") from error


def _outgoing(array: Array) -> Array:
    """Return an output as Triton expects it: contiguous, texts as bytes."""
    if array.dtype.kind != "O":
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return np.array(
        [str(value).encode() for value in array.ravel().tolist()], dtype=np.object_
    ).reshape(array.shape)


def _error(message: str, code: int) -> Any:
    """Return a response that fails this request only."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
