"""ONNX model step for Triton servers without the ONNX Runtime backend, run by Triton's python backend.

Configuration (``parameters`` of config.pbtxt; tensor names, data types and dims come from the config itself):
    tritonpipe.model_file        file in the version folder (default model.onnx)
    tritonpipe.intra_op_threads  threads of one run (default 1; 0 lets ONNX Runtime take all cores)
    tritonpipe.run_cost_tokens   fixed cost of a run, in tokens computed (default: measured on sample input while loading)
    tritonpipe.pad_inputs        JSON: input name -> pad value, for inputs [rows, tokens] that may be padded so that requests of different length
                                 share a run; absent: only requests of equal shape share one

With max_batch_size 0 every request is a run of its own, with the dims as they are. An input that the config calls optional must have a default in the
graph (an initializer of its name), which counts where a request leaves it out.

Requests of one call share runs where that is safe. Padding is only used when the model has proven, on sample input while loading, that a padded
row gets the same answer as alone (a graph that ignores its mask does not, nor a dynamically quantized one). Output axes that follow the length are
cut back to each request's own length. Requests are sorted by length and cut into the runs that compute the fewest padded tokens, each run counted
with its fixed cost, measured while loading: padding never costs more than the runs it saves, however long one row among short ones is. When a shared
run fails, its requests run one by one, so that a bad one hurts only itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

# Appended, so that the image's own packages win.
sys.path += [folder for folder in os.environ.get("TRITONPIPE_SITE", "").split(os.pathsep) if folder and folder not in sys.path]

import numpy as np
import triton_python_backend_utils as pb_utils

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
# ONNX Runtime's names of the types that numpy and Triton share.
_SAME = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "string")
DATA_TYPES = {f"tensor({name})": f"TYPE_{name.upper()}" for name in _SAME}
DATA_TYPES |= {"tensor(float16)": "TYPE_FP16", "tensor(float)": "TYPE_FP32", "tensor(double)": "TYPE_FP64"}
# What starting one more run costs, in tokens computed, where it cannot be measured: about 0.1 ms against 20 us a token on CPUs, a launch of about
# 2 ms against 1.5 us a token on GPUs. Only the choice of runs hangs on it, never an answer.
RUN_COST_TOKENS = {"CPU": 8, "GPU": 1300}
COST_TOKENS, COST_ROWS, COST_RUNS, MOST_COST_TOKENS = 16, 8, 5, 10_000
RELATIVE, ABSOLUTE = 1e-4, 1e-5  # a padded answer may be so far from the one alone: rounding of FP32 sums in another order


class RequestError(ValueError):
    """One request cannot be answered; the text goes to its client."""


def cheapest_runs(rows_by_length: dict[int, int], run_cost: int) -> list[list[int]]:
    """Lengths of each run of the cheapest partition; a run costs ``run_cost`` + its rows x its longest length, in tokens.

    An optimal partition consists of neighbours in sorted order. Its padding never exceeds ``run_cost`` for every length that shares a run.
    """
    lengths = sorted(rows_by_length)
    best: list[tuple[int, int]] = [(0, 0)]  # cheapest cost of the first n lengths, and where its last run begins
    for end in range(1, len(lengths) + 1):
        rows = 0
        choice = (sys.maxsize, 0)
        for begin in range(end - 1, -1, -1):
            rows += rows_by_length[lengths[begin]]
            choice = min(choice, (best[begin][0] + run_cost + rows * lengths[end - 1], begin))
        best.append(choice)
    runs: list[list[int]] = []
    end = len(lengths)
    while end:
        begin = best[end][1]
        runs.append(lengths[begin:end])
        end = begin
    return runs[::-1]


def run_cost_tokens(run: Callable[[Feed], Any], sample: Feed, clock: Callable[[], float] = time.perf_counter) -> int:
    """What a run costs beside its tokens, in tokens: from the best times of ``sample``, a row of ``COST_TOKENS``, alone and ``COST_ROWS`` times."""
    best = []
    for rows in (1, COST_ROWS):
        feed = {name: np.repeat(array, rows, axis=0) for name, array in sample.items()}
        times = []
        for _ in range(COST_RUNS):
            begin = clock()
            run(feed)
            times.append(clock() - begin)
        best.append(min(times))
    row = max((best[1] - best[0]) / (COST_ROWS - 1), 1e-9)
    return round(min(max((best[0] / row - 1) * COST_TOKENS, 1), MOST_COST_TOKENS))


def merge(arrays: Sequence[Array], pad: int | None) -> Array:
    """Rows of all requests in one array; with ``pad``, arrays [rows, tokens] of different length are filled up on the right."""
    if len(arrays) == 1:
        return arrays[0]
    if pad is None or len({array.shape[1] for array in arrays}) == 1:
        return np.concatenate(arrays)
    width = max(array.shape[1] for array in arrays)
    merged = np.full((sum(len(array) for array in arrays), width), pad, dtype=arrays[0].dtype)
    row = 0
    for array in arrays:
        merged[row : row + len(array), : array.shape[1]] = array
        row += len(array)
    return merged


def cut_back(output: Array, axes: Sequence[int], length: int) -> Array:
    """The first ``length`` entries along each of ``axes``."""
    return output[tuple(slice(length if axis in axes else None) for axis in range(output.ndim))]


class BatchRunner:
    """Runs a model for several requests at once where that is safe; knows nothing of Triton.

    Args:
        run: runs the model once: inputs by name to outputs in the order of ``outputs``, which are their names.
        pads: pad value of each input [rows, tokens] that may be padded.
        combine: whether requests may share a run at all (the model has a batch dimension).
        run_cost: fixed cost of a run, in tokens; may be set later.
        warn: told in words when requests will not share runs.
    """

    def __init__(
        self,
        run: Callable[[Feed], list[Array]],
        outputs: Sequence[str],
        pads: dict[str, int],
        combine: bool,
        run_cost: int,
        warn: Callable[[str], None],
    ) -> None:
        self._run = run
        self._outputs = list(outputs)
        self._pads = pads
        self._combine = combine
        self.run_cost = run_cost
        self._warn = warn
        self._length_axes: list[list[int]] = [[] for _ in outputs]
        self._proven: frozenset[str] = frozenset()  # inputs of the sample

    @property
    def pads(self) -> dict[str, int]:
        """Pad values in use; empty when requests of different length do not share runs."""
        return dict(self._pads)

    def check(self, sample: Callable[[int], Feed]) -> None:
        """Find out whether padding is safe, and which output axes follow the length; ``sample`` makes one row of so many tokens."""
        if not (self._combine and self._pads):
            return
        short, long = sample(3), sample(5)
        self._proven = frozenset(short)
        try:
            alone = [self._run(short), self._run(long)]
            if [a.ndim for a in alone[0]] != [a.ndim for a in alone[1]]:
                raise ValueError("the number of output dimensions depends on the length")
            self._length_axes = [[axis for axis in range(1, a.ndim) if (a.shape[axis], b.shape[axis]) == (3, 5)] for a, b in zip(*alone, strict=True)]
            together = self._together([short, long])
        except Exception as error:
            self._pads = {}
            self._warn(f"requests of different length will not share runs: the sample input was refused ({_first_line(error)})")
            return
        for name, *pairs in zip(self._outputs, *alone, *(list(answer.values()) for answer in together), strict=True):
            if not all(_same(pairs[i], pairs[i + 2]) for i in (0, 1)):
                self._pads = {}
                self._warn(f"requests of different length will not share runs: padding a row changes its {name}, the graph ignores its mask")
                return

    def answer(self, feeds: list[Feed]) -> list[dict[str, Array] | Exception]:
        """Outputs of every request, or the error of the ones that failed, in order."""
        answers: list[Any] = [None] * len(feeds)
        for members in self._runs(feeds):
            try:
                results: list[Any] = self._together([feeds[i] for i in members])
            except Exception as error:
                # One request may have made the run fail: only that one may suffer.
                results = [error] if len(members) == 1 else [self.answer([feeds[i]])[0] for i in members]
            for i, result in zip(members, results, strict=True):
                answers[i] = result
        return answers

    def _runs(self, feeds: list[Feed]) -> list[list[int]]:
        """Indices of the requests of each run."""
        if not self._combine or len(feeds) == 1:
            return [[i] for i in range(len(feeds))]
        groups: dict[Any, dict[int, list[int]]] = {}
        for i, feed in enumerate(feeds):
            length = self._length(feed)
            key = tuple((name, "padded" if length is not None and name in self._pads else array.shape[1:]) for name, array in feed.items())
            groups.setdefault(key, {}).setdefault(length or 0, []).append(i)
        runs = []
        for by_length in groups.values():
            rows = {length: sum(_rows(feeds[i]) for i in members) for length, members in by_length.items()}
            runs += [[i for length in run for i in by_length[length]] for run in cheapest_runs(rows, self.run_cost)]
        return runs

    def _length(self, feed: Feed) -> int | None:
        """Tokens per row of a request whose padded inputs agree in shape; None when it cannot be padded.

        Nothing was proven for a request that leaves an optional input out (its default may be a mask that does not know of padding).
        """
        if not self._proven <= set(feed):
            return None
        shapes = {feed[name].shape for name in self._pads if name in feed}
        if len(shapes) != 1:
            return None
        shape = shapes.pop()
        return int(shape[1]) if len(shape) == 2 else None

    def _together(self, feeds: list[Feed]) -> list[dict[str, Array]]:
        if len(feeds) == 1:
            return [dict(zip(self._outputs, self._run(feeds[0]), strict=True))]
        lengths = [self._length(feed) for feed in feeds]
        padded = len(set(lengths)) > 1
        results = self._run({name: merge([feed[name] for feed in feeds], self._pads.get(name)) for name in feeds[0]})
        ends = np.cumsum([_rows(feed) for feed in feeds]).tolist()
        if any(len(result) != ends[-1] for result in results):
            raise ValueError("an output does not have one entry per row")
        answers = []
        for feed, length, end in zip(feeds, lengths, ends, strict=True):
            parts = [result[end - _rows(feed) : end] for result in results]
            if padded and length is not None:
                parts = [cut_back(part, axes, length) for part, axes in zip(parts, self._length_axes, strict=True)]
            answers.append(dict(zip(self._outputs, parts, strict=True)))
        return answers


def _rows(feed: Feed) -> int:
    return len(next(iter(feed.values())))


def _same(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    return bool(np.allclose(a, b, RELATIVE, ABSOLUTE, equal_nan=True)) if a.dtype.kind in "fc" else bool((a == b).all())


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


class TritonPythonModel:
    """The interface Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the graph and compare it with the config; an exception here is the reason Triton gives for the failed load."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._inputs = {tensor["name"]: tensor for tensor in config["input"]}
        self._outputs = {tensor["name"]: tensor for tensor in config["output"]}
        self._batched = config.get("max_batch_size", 0) > 0
        pads = {name: int(value) for name, value in json.loads(parameters.get("tritonpipe.pad_inputs", "{}")).items()}
        if unknown := set(pads) - set(self._inputs):
            raise ValueError(f"tritonpipe.pad_inputs names {sorted(unknown)}, none of the model's inputs {sorted(self._inputs)}")
        self._tokens = frozenset(pads if self._batched else ())
        file = Path(args["model_repository"]) / args["model_version"] / parameters.get("tritonpipe.model_file", "model.onnx")
        kind = args.get("model_instance_kind", "CPU")
        self._session = _session(file, int(parameters.get("tritonpipe.intra_op_threads", "1")), kind, args.get("model_instance_device_id", "0"))
        needed, defaults = self._session.get_inputs(), self._session.get_overridable_initializers()
        _check_tensors("input", self._inputs, [*needed, *defaults], self._batched, {tensor.name for tensor in needed})
        _check_tensors("output", self._outputs, self._session.get_outputs(), self._batched)
        self._runner = BatchRunner(self._run, list(self._outputs), pads, self._batched, RUN_COST_TOKENS.get(kind, 8), pb_utils.Logger.log_warn)
        self._runner.check(self._sample)
        if "tritonpipe.run_cost_tokens" in parameters:
            self._runner.run_cost = int(parameters["tritonpipe.run_cost_tokens"])
        elif self._runner.pads:
            with contextlib.suppress(Exception):  # a model may refuse the sample
                self._runner.run_cost = run_cost_tokens(self._run, self._sample(COST_TOKENS))

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order."""
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
                # ONNX Runtime refuses input it cannot compute (a token id outside the vocabulary, a row that is too long).
                responses[index] = _error(f"the model failed on this request: {_first_line(answer)}", pb_utils.TritonError.INVALID_ARG)
            else:
                responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor(name, _outgoing(array)) for name, array in answer.items()])
        return responses

    def _run(self, feed: Feed) -> list[Array]:
        return list(self._session.run(list(self._outputs), feed))

    def _read(self, request: Any) -> Feed:
        feed = {}
        for name, tensor in self._inputs.items():
            given = pb_utils.get_input_tensor_by_name(request, name)
            if given is None and tensor.get("optional", False):
                continue
            if given is None:
                raise RequestError(f"input {name} is missing")
            array = given.as_numpy()
            expected = pb_utils.triton_string_to_numpy(tensor["data_type"])
            if array.dtype != expected:
                raise RequestError(f"input {name} has type {array.dtype}, expected {np.dtype(expected)} ({tensor['data_type']})")
            if array.size == 0:
                raise RequestError(f"input {name} has shape {list(array.shape)}: it holds nothing")
            feed[name] = array if array.dtype != np.object_ else _decode(name, array)
        if not feed:
            raise RequestError("none of the inputs is given, all are optional: send at least one")
        rows = {name: len(array) for name, array in feed.items()}
        if self._batched and len(set(rows.values())) > 1:
            raise RequestError(f"the inputs differ in rows: {rows}")
        shapes = {name: array.shape for name, array in feed.items() if name in self._tokens}
        if len(set(shapes.values())) > 1:  # a mask of length 1 would be taken for all tokens
            raise RequestError(f"the token inputs differ in shape: {shapes}")
        return feed

    def _sample(self, length: int) -> Feed:
        """One row of ones; 1 is a valid token id, mask and segment in every model."""
        feed = {}
        for name, tensor in self._inputs.items():
            padded = name in self._runner.pads
            dims = [length if padded else max(dim, 1) for dim in _dims(tensor)]
            feed[name] = np.ones([1, *dims], dtype=pb_utils.triton_string_to_numpy(tensor["data_type"]))
        return feed


def _session(file: Path, threads: int, kind: str, device: str) -> Any:
    """ONNX Runtime's session, on the instance's GPU where the image's ONNX Runtime has CUDA."""
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeError(
            "the Triton image must carry onnxruntime for this runner (install the Python package onnxruntime in it), "
            "or use an image with the onnxruntime backend"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin while idle would take the cores of the other instances.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors only: a refused request is answered, not logged
    providers: list[Any] = ["CPUExecutionProvider"]
    if kind == "GPU" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": device}))
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=providers)
    except Exception as error:
        raise ValueError(f"{file.name}: ONNX Runtime cannot load it ({_first_line(error)})") from error


def _dims(tensor: dict[str, Any]) -> list[int]:
    """Dims as the model sees them: Triton applies a reshape before and after."""
    return [int(dim) for dim in (tensor["reshape"]["shape"] if "reshape" in tensor else tensor["dims"])]


def _check_tensors(role: str, wanted: dict[str, Any], graph: Sequence[Any], batched: bool, needed: Set[str] = frozenset()) -> None:
    """Compare the config's tensors with the graph's; the message shows both sides. ``needed``: those that the graph has no default for."""
    offered = {tensor.name: tensor for tensor in graph}
    if set(wanted) - set(offered) or needed - set(wanted):
        raise ValueError(f"{role} names differ: the config has {sorted(wanted)}, the graph {sorted(offered)}")
    if bad := sorted(name for name in needed if wanted[name].get("optional", False)):
        raise ValueError(f"the config calls inputs {bad} optional, but the graph has no default for them: leave optional out")
    for name, tensor in wanted.items():
        if tensor["data_type"] not in DATA_TYPES.values():
            raise ValueError(
                f"{role} {name} is {tensor['data_type']}, which this runner cannot hand to ONNX Runtime: use a server with the onnxruntime backend"
            )
        data_type = DATA_TYPES.get(offered[name].type)
        if data_type != tensor["data_type"]:
            raise ValueError(f"{role} {name} is {tensor['data_type']} in the config, {data_type or offered[name].type} in the graph")
        dims = [-1, *_dims(tensor)] if batched else _dims(tensor)
        shape = offered[name].shape
        # ONNX Runtime gives an empty shape for an output whose rank it does not know.
        if not shape:
            continue
        if len(shape) != len(dims):
            raise ValueError(f"{role} {name} has {len(dims)} dimensions in the config (batch included), but {shape} in the graph")
        if any(isinstance(size, int) and size > 0 and dim not in (-1, size) for dim, size in zip(dims, shape, strict=True)):
            raise ValueError(f"{role} {name} has dims {dims[batched:]} in the config, but {shape} in the graph (batch included)")
        if batched and isinstance(shape[0], int) and shape[0] > 0:
            raise ValueError(f"{role} {name} has the fixed shape {shape} in the graph: max_batch_size must be 0, or the first axis of the graph free")


def _decode(name: str, array: Array) -> Array:
    """BYTES as ONNX Runtime wants them."""
    try:
        return np.array([value.decode() for value in array.ravel().tolist()], dtype=np.object_).reshape(array.shape)
    except UnicodeDecodeError as error:
        raise RequestError(f"input {name} holds text that is not valid UTF-8") from error


def _outgoing(array: Array) -> Array:
    """An output as Triton wants it: contiguous, texts as bytes."""
    if array.dtype != np.object_:
        return np.ascontiguousarray(array)
    return np.array([str(value).encode() for value in array.ravel().tolist()], dtype=np.object_).reshape(array.shape)


def _error(message: str, code: int) -> Any:
    """A response that fails this one request."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
