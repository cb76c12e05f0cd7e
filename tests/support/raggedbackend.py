"""A simulation of how Triton's ONNX Runtime backend handles a ragged batch.

No package contains the backend itself.

It follows a ``ModelConfig`` as the backend does (measured with Triton 2.51.0 and the backend built
from its sources): the requests' data of a ragged input is laid end to end in one tensor without
axes; BATCH_ITEM_SHAPE gives a line per row with the sizes behind the batch axis; an output without
``batch_output`` is cut by rows; BATCH_SCATTER_WITH_INPUT_SHAPE gives each request as many elements
as its declared shape has with open axes taken from the named input's axis at the same place. Behind
the first request with an empty input nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2

from triton_pipelines.compile.graph.graph import Tensor
from triton_pipelines.compile.graph.ragged_config import ragged_config

Array = NDArray[Any]
Request = Mapping[str, Array]


def session(model: Any) -> onnxruntime.InferenceSession:
    """ONNX Runtime on a ``ModelProto`` or a file, quiet and with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    what = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(what, options, providers=["CPUExecutionProvider"])


class SimulatedBackend:
    """One model instance."""

    def __init__(self, model: Any, config: Any, open_model: Callable[[Any], Any] = session) -> None:
        self._session, self._config = open_model(model), config
        self._ragged = {tensor.name for tensor in config.input if tensor.allow_ragged_batch}
        named = [tensor.name for tensor in config.input] + [
            name for entry in config.batch_input for name in entry.target_name
        ]
        held = {tensor.name: tensor for tensor in self._session.get_inputs()}
        if sorted(named) != sorted(held):
            raise ValueError(
                f"configuration expects the inputs {sorted(named)}, model provides {sorted(held)}"
            )
        for tensor in config.input:
            rank = 1 if tensor.name in self._ragged else 1 + len(tensor.dims)
            if len(held[tensor.name].shape) != rank:
                raise ValueError(
                    f"input {tensor.name} has rank {len(held[tensor.name].shape)}, not {rank}"
                )
        scattered = {name for entry in config.batch_output for name in entry.target_name}
        made = {tensor.name: tensor for tensor in self._session.get_outputs()}
        for tensor in config.output:
            open_dims = [dim if isinstance(dim, int) else -1 for dim in made[tensor.name].shape]
            batched = [-1] if config.max_batch_size else []
            # The backend compares exactly, but for outputs that are scattered.
            if tensor.name not in scattered and open_dims != [*batched, *tensor.dims]:
                raise ValueError(
                    f"output {tensor.name} is {open_dims}, not {[*batched, *tensor.dims]}"
                )

    def execute(self, requests: Sequence[Request]) -> list[dict[str, Array]]:
        """Answer a batch; an error of ONNX Runtime is that of every request in it."""
        fed = {tensor.name: self._input(tensor.name, requests) for tensor in self._config.input}
        for entry in self._config.batch_input:
            (source,) = entry.source_input
            lines = [
                request[source].shape[1:]
                for request in requests
                for _ in range(len(request[source]))
            ]
            fed[entry.target_name[0]] = np.array(lines, np.int32)
        names = [tensor.name for tensor in self._config.output]
        made = dict(zip(names, self._session.run(names, fed), strict=True))
        scattered = {
            entry.target_name[0]: entry.source_input[0] for entry in self._config.batch_output
        }
        answers: list[dict[str, Array]] = [{} for _ in requests]
        for tensor in self._config.output:
            place = 0
            for answer, request in zip(answers, requests, strict=True):
                if tensor.name in scattered:
                    from_input = request[scattered[tensor.name]].shape
                    shape = [
                        from_input[axis] if dim == -1 else dim
                        for axis, dim in enumerate([-1, *tensor.dims])
                    ]
                    size = int(np.prod(shape))
                    answer[tensor.name] = (
                        made[tensor.name].reshape(-1)[place : place + size].reshape(shape)
                    )
                    place += size
                else:
                    rows = len(next(iter(request.values())))
                    answer[tensor.name] = made[tensor.name][place : place + rows]
                    place += rows
        return answers

    def _input(self, name: str, requests: Sequence[Request]) -> Array:
        if name not in self._ragged:
            return np.concatenate([request[name] for request in requests])
        parts = [request[name].reshape(-1) for request in requests]
        # After the first empty input, memory has undefined content. Here it is a value that no
        # table has.
        empty = next((number for number, part in enumerate(parts) if part.size == 0), len(parts))
        return np.concatenate(
            [
                part if number <= empty else np.full_like(part, 7_654_321)
                for number, part in enumerate(parts)
            ]
        )


def config_of(inputs: Sequence[Tensor], outputs: Sequence[Tensor], max_batch_size: int = 64) -> Any:
    """Return the ``ModelConfig`` of an adapted step with these declared tensors.

    It follows ``ragged_config``.
    """
    ragged = ragged_config(inputs, outputs)
    made = model_config_pb2.ModelConfig(
        name="model", backend="onnxruntime", max_batch_size=max_batch_size
    )
    for tensor in inputs:
        kind = model_config_pb2.DataType.Value(f"TYPE_{tensor.data_type.value}")
        made.input.add(
            name=tensor.name,
            data_type=kind,
            dims=tensor.dims,
            allow_ragged_batch=tensor.name in ragged.flat,
        )
    for tensor in outputs:
        made.output.add(
            name=tensor.name,
            data_type=model_config_pb2.DataType.Value(f"TYPE_{tensor.data_type.value}"),
            dims=tensor.dims,
        )
    for entry in ragged.batch_inputs:
        kind = model_config_pb2.BatchInput.Kind.Value(entry.kind)
        data_type = model_config_pb2.DataType.Value(f"TYPE_{entry.data_type.value}")
        made.batch_input.add(
            kind=kind, target_name=[entry.target], data_type=data_type, source_input=[entry.source]
        )
    for output in ragged.batch_outputs:
        made.batch_output.add(
            kind=model_config_pb2.BatchOutput.Kind.Value(output.kind),
            target_name=[output.target],
            source_input=[output.source],
        )
    made.dynamic_batching.SetInParent()
    return made
