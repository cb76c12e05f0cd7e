"""A good repository that has nearly every field.

The module also has the small changes that ``breaks`` consists of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from .engine import FOLDER, Repository

Change = Callable[[Repository], None]

_TENSORS: Final = """
    input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
    input { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] optional: true allow_ragged_batch: true }
    output { name: "scores" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }
    output { name: "pooled" data_type: TYPE_FP32 dims: [ 2, 4 ] reshape { shape: [ 8 ] } }
"""  # noqa: E501
GOOD: Final = {
    "tok": """
        name: "tok" backend: "null" max_batch_size: 16
        input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } }
        output { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
        output { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
        dynamic_batching {
          preferred_batch_size: [ 4, 16 ] max_queue_delay_microseconds: 100 priority_levels: 2 default_priority_level: 1
          default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1000 max_queue_size: 64 }
          priority_queue_policy { key: 2 value { timeout_action: DELAY default_timeout_microseconds: 5 allow_timeout_override: true } }
        }
        instance_group { kind: KIND_CPU count: 2 }
        version_policy { specific { versions: 1 } }
        model_warmup { name: "w" batch_size: 2 inputs { key: "TEXT" value { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } } }
        model_warmup { name: "zeros" batch_size: 1 count: 2 inputs { key: "TEXT" value { data_type: TYPE_STRING dims: [ 1 ] random_data: true } } }
        response_cache { enable: true }
    """,  # noqa: E501
    "model": f"""
        name: "model" platform: "onnxruntime_onnx" max_batch_size: 8 {_TENSORS}
        dynamic_batching {{ preserve_ordering: true }}
        instance_group {{ kind: KIND_MODEL }}
        batch_input {{ kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_INT32 source_input: "ids" }}
        batch_output {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "scores" source_input: "ids" }}
        optimization {{ execution_accelerators {{ gpu_execution_accelerator {{ name: "tensorrt" }} }} }}
        parameters {{ key: "TRITON_BATCH_STRATEGY_PATH" value {{ string_value: "{FOLDER}/strategy.so" }} }}
        model_warmup {{
          name: "w" batch_size: 1
          inputs {{ key: "ids" value {{ data_type: TYPE_INT64 dims: [ 3 ] input_data_file: "ids" }} }}
        }}
    """,  # noqa: E501
    "plan": """
        name: "plan" backend: "tensorrt" max_batch_size: 8
        input { name: "image" data_type: TYPE_FP16 format: FORMAT_NCHW dims: [ 3, 8, 8 ] is_non_linear_format_io: true }
        input { name: "shape" data_type: TYPE_INT32 dims: [ 2 ] is_shape_tensor: true }
        output { name: "out" data_type: TYPE_FP32 dims: [ 2 ] }
        instance_group { kind: KIND_AUTO profile: [ "0", "1" ] }
    """,  # noqa: E501
    "sequence": """
        name: "sequence" backend: "null" max_batch_size: 4
        input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
        sequence_batching {
          oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2, 4 ] }
          control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
          control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } }
          control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
          control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
          state { input_name: "si" output_name: "so" data_type: TYPE_FP32 dims: [ -1, 2 ]
                  initial_state { name: "i" data_type: TYPE_FP32 dims: [ 1, 2 ] data_file: "zeros" } }
          state { input_name: "ti" output_name: "to" data_type: TYPE_INT32 dims: [ 1 ] initial_state { name: "j" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }
        }
    """,  # noqa: E501
    "direct": """
        name: "direct" backend: "null" max_batch_size: 4
        input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
        sequence_batching { direct { minimum_slot_utilization: 0.5 } }
        version_policy { latest { num_versions: 2 } }
    """,
    "stream": """
        name: "stream" backend: "null" max_batch_size: 8
        input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
        model_transaction_policy { decoupled: true }
    """,
    "e": """
        name: "e" platform: "ensemble" max_batch_size: 8
        input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
        output { name: "scores" data_type: TYPE_FP32 dims: [ 2 ] }
        ensemble_scheduling {
          step { model_name: "tok" model_version: 1 input_map { key: "TEXT" value: "TEXT" }
                 output_map { key: "ids" value: "tok.ids" } output_map { key: "mask" value: "tok.mask" } }
          step { model_name: "model" model_version: -1 input_map { key: "ids" value: "tok.ids" } input_map { key: "mask" value: "tok.mask" }
                 output_map { key: "scores" value: "scores" } }
        }
    """,  # noqa: E501
    "outer": """
        name: "outer" platform: "ensemble" max_batch_size: 4
        input { name: "t" data_type: TYPE_STRING dims: [ -1 ] }
        output { name: "u" data_type: TYPE_FP32 dims: [ 2 ] }
        ensemble_scheduling {
          step { model_name: "stream" model_version: -1 input_map { key: "x" value: "s2" } output_map { key: "y" value: "u" } }
          step { model_name: "echo" model_version: -1 input_map { key: "x" value: "t" } output_map { key: "y" value: "s2" } }
        }
    """,  # noqa: E501
    "echo": """
        name: "echo" backend: "null" max_batch_size: 0
        input { name: "x" data_type: TYPE_STRING dims: [ -1, 1 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ -1, 2 ] }
    """,
}


def good(library: bytes = b"") -> Repository:
    """The good repository.

    Args:
        library: some shared library, which is no batching strategy but may stand for one; a server
            does not take an empty one.
    """
    configs = {name: text_format.Parse(text, pb.ModelConfig()) for name, text in GOOD.items()}
    files = {name: {"1/": b""} for name in configs}
    files["model"] |= {"labels.txt": b"a\nb\n", "warmup/ids": bytes(24), "strategy.so": library}
    files["sequence"]["initial_state/zeros"] = bytes(8)
    files["direct"]["3/"] = b""
    return Repository(configs, files)


def set_field(model: str, path: str, value: Any) -> Change:
    """Set a scalar field: ``input[0].data_type``; a list replaces a repeated scalar field."""

    def change(repository: Repository) -> None:
        *parents, last = path.split(".")
        message = _at(repository.configs[model], parents)
        if last.endswith("]"):
            name, index = last[:-1].split("[")
            getattr(message, name)[int(index)] = value
        elif isinstance(value, list):
            message.ClearField(last)
            getattr(message, last).extend(value)
        elif value is None:
            message.ClearField(last)
        elif value is ...:
            getattr(message, last).SetInParent()
        else:
            setattr(message, last, value)

    return change


def _at(message: Any, parents: list[str]) -> Any:
    for part in parents:
        name, _, index = part.rstrip("]").partition("[")
        values = getattr(message, name)
        message = values if not index else values[int(index)] if index.isdigit() else values[index]
    return message


def merge(model: str, text: str) -> Change:
    """Add fields to a config, in text form."""

    def change(repository: Repository) -> None:
        text_format.Merge(text, repository.configs[model])

    return change


def map_entries(model: str, step: int, side: str, entries: dict[str, str | None]) -> Change:
    """Change entries of a step's map; None removes one."""

    def change(repository: Repository) -> None:
        target = getattr(repository.configs[model].ensemble_scheduling.step[step], side)
        for key, value in entries.items():
            if value is None:
                del target[key]
            else:
                target[key] = value

    return change


def add_model(name: str, text: str) -> Change:
    """Add one more model."""

    def change(repository: Repository) -> None:
        repository.configs[name] = text_format.Parse(f'name: "{name}" {text}', pb.ModelConfig())

    return change


def drop_files(model: str, *paths: str) -> Change:
    """Remove files."""

    def change(repository: Repository) -> None:
        for path in paths:
            del repository.files[model][path]

    return change


def put_file(model: str, path: str, content: bytes) -> Change:
    """Put or replace a file."""

    def change(repository: Repository) -> None:
        repository.files[model][path] = content

    return change


def both(*changes: Change) -> Change:
    """Several changes."""

    def change(repository: Repository) -> None:
        for one in changes:
            one(repository)

    return change
