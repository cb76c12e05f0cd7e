"""Mutations of the good repository.

Each breaks exactly one rule once, so that both sides must refuse the one model for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as pb

from triton_pipelines.compile.validation import RuleId

from .engine import FOLDER
from .good import Change, add_model, both, drop_files, map_entries, merge, put_file, set_field

_CONTROLS: Final = "sequence_batching.control_input"
_STATE: Final = "sequence_batching.state"
_BATCHING: Final = "dynamic_batching"
_STRATEGY: Final = 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "%s" } }'
_WARM: Final = 'model_warmup { name: "v" batch_size: 1 inputs { key: "TEXT" value { %s } } }'
_DELAY: Final = "timeout_action: DELAY default_timeout_microseconds: 5"


@dataclass(frozen=True)
class Break:
    """One mutation.

    Attributes:
        rule: the rule it breaks.
        model: the model that must be refused.
        change: makes the change.
        label: short text for reports; "" where the rule says it all.
    """

    rule: RuleId
    model: str
    change: Change
    label: str = ""

    def __str__(self) -> str:
        return f"{self.rule} {self.label}".strip()


def _set(rule: RuleId, model: str, path: str, value: Any, label: str = "") -> Break:
    """Return the break that sets one field of the refused model."""
    return Break(rule, model, set_field(model, path, value), label)


def _add(rule: RuleId, model: str, text: str, label: str = "") -> Break:
    """Return the break that adds fields, in text form, to the refused model."""
    return Break(rule, model, merge(model, text), label)


MODELS: Final = (
    _set(RuleId.DIRECTORY_NAME, "tok", "name", "other"),
    _set(RuleId.BACKEND, "tok", "backend", "", "none"),
    Break(
        RuleId.BACKEND,
        "tok",
        both(set_field("tok", "backend", ""), set_field("tok", "platform", "caffe")),
        "platform of none",
    ),
    _set(RuleId.BACKEND, "e", "backend", "null", "of an ensemble"),
    _set(RuleId.BACKEND_PLATFORM, "model", "backend", "pytorch"),
    Break(
        RuleId.BACKEND_PLATFORM,
        "model",
        both(
            set_field("model", "backend", "onnxruntime"), set_field("model", "platform", "custom")
        ),
        "unknown platform",
    ),
    _set(RuleId.BACKEND_UNKNOWN, "tok", "backend", "nil"),
    _set(RuleId.RUNTIME, "tok", "runtime", "libnone.so", "missing"),
    _set(RuleId.RUNTIME, "tok", "runtime", "model.py", "of a backend written in Python"),
    _set(RuleId.RUNTIME, "tok", "runtime", "../onnxruntime/libtriton_onnxruntime.so", "elsewhere"),
    Break(
        RuleId.MAX_BATCH_SIZE,
        "tok",
        both(
            set_field("tok", "max_batch_size", -1),
            set_field("tok", f"{_BATCHING}.preferred_batch_size", []),
        ),
    ),
    _set(RuleId.VERSION_POLICY, "direct", "version_policy.latest.num_versions", 0, "0 versions"),
    _set(
        RuleId.VERSION_POLICY, "tok", "version_policy.specific.versions", [2], "version not there"
    ),
    _set(RuleId.VERSION_POLICY, "tok", "version_policy.specific.versions", [], "no version named"),
    Break(RuleId.VERSION_POLICY, "model", drop_files("model", "1/"), "no version directory"),
    _add(RuleId.FIELD_VERSION, "tok", "model_metrics { }", "model_metrics"),
    _set(
        RuleId.FIELD_VERSION,
        "e",
        "ensemble_scheduling.max_inflight_requests",
        4,
        "max_inflight_requests",
    ),
    _set(RuleId.RESPONSE_CACHE, "sequence", "response_cache.enable", True, "sequences"),
    _set(RuleId.RESPONSE_CACHE, "stream", "response_cache.enable", True, "decoupled"),
    _set(RuleId.RESPONSE_CACHE, "outer", "response_cache.enable", True, "decoupled step"),
    Break(RuleId.LABELS, "model", drop_files("model", "labels.txt")),
    Break(RuleId.BATCH_STRATEGY, "model", drop_files("model", "strategy.so"), "missing"),
    Break(
        RuleId.BATCH_STRATEGY,
        "direct",
        both(merge("direct", _STRATEGY % f"{FOLDER}/s.so"), put_file("direct", "s.so", b"")),
        "sequences",
    ),
)

TENSORS: Final = (
    _add(
        RuleId.TENSOR_NAME, "echo", "input { data_type: TYPE_FP32 dims: 1 optional: true }", "input"
    ),
    _add(RuleId.TENSOR_NAME, "echo", "output { data_type: TYPE_FP32 dims: 1 }", "output"),
    _set(RuleId.DATA_TYPE, "model", "output[1].data_type", 0),
    Break(
        RuleId.DIMS,
        "model",
        both(
            set_field("model", "output[1].dims", []), set_field("model", "output[1].reshape", None)
        ),
        "none",
    ),
    _set(RuleId.DIMS, "direct", "input[0].dims", [0], "0"),
    _set(RuleId.DIMS, "direct", "output[0].dims", [-2], "-2"),
    _set(RuleId.RESHAPE, "model", "output[1].reshape.shape", [7], "size"),
    _set(RuleId.RESHAPE, "model", "output[1].reshape.shape", [-1], "variable"),
    _set(RuleId.RESHAPE, "model", "output[1].reshape.shape", [8, 0], "0"),
    _set(RuleId.RESHAPE, "model", "output[1].reshape.shape", [], "empty"),
    _add(
        RuleId.RESHAPE,
        "echo",
        'output { name: "z" data_type: TYPE_FP32 dims: 1 reshape { } }',
        "empty without batching",
    ),
    _add(
        RuleId.RESHAPE,
        "echo",
        'output { name: "z" data_type: TYPE_FP32 dims: [2, -1, 6] reshape { shape: [3, -1, 4] } }',
        "runs",
    ),
    _set(RuleId.FORMAT, "echo", "input[0].format", pb.ModelInput.FORMAT_NHWC),
    _set(RuleId.SHAPE_TENSOR, "stream", "input[0].is_shape_tensor", True, "input"),
    _set(RuleId.SHAPE_TENSOR, "stream", "output[0].is_shape_tensor", True, "output"),
    _set(
        RuleId.NON_LINEAR_FORMAT, "stream", "output[0].is_non_linear_format_io", True, "no TensorRT"
    ),
    _set(RuleId.NON_LINEAR_FORMAT, "plan", "output[0].is_non_linear_format_io", True, "dims"),
    _set(
        RuleId.BATCH_INPUT, "model", "batch_input[0].source_input", ["ids", "mask"], "two sources"
    ),
    _set(RuleId.BATCH_INPUT, "model", "batch_input[0].source_input", [], "no source"),
    _set(RuleId.BATCH_INPUT, "model", "batch_input[0].source_input", ["scores"], "unknown source"),
    _set(RuleId.BATCH_INPUT, "model", "batch_input[0].data_type", pb.TYPE_INT64, "type"),
    _set(RuleId.BATCH_OUTPUT, "model", "batch_output[0].source_input", ["x"], "unknown source"),
    _set(RuleId.BATCH_OUTPUT, "model", "batch_output[0].target_name", ["ids"], "unknown target"),
    _set(
        RuleId.BATCH_OUTPUT,
        "model",
        "batch_output[0].target_name",
        ["scores", "scores"],
        "target twice",
    ),
)

BATCHING: Final = (
    _set(RuleId.PREFERRED_BATCH_SIZE, "tok", f"{_BATCHING}.preferred_batch_size", [17], "above"),
    _set(RuleId.PREFERRED_BATCH_SIZE, "tok", f"{_BATCHING}.preferred_batch_size", [4, 0], "0"),
    _set(
        RuleId.PREFERRED_BATCH_SIZE,
        "sequence",
        "sequence_batching.oldest.preferred_batch_size",
        [5],
        "oldest above",
    ),
    _set(
        RuleId.PREFERRED_BATCH_SIZE,
        "sequence",
        "sequence_batching.oldest.preferred_batch_size",
        [-1],
        "oldest -1",
    ),
    _set(RuleId.PRIORITY, "tok", f"{_BATCHING}.default_priority_level", 3, "default above"),
    _set(RuleId.PRIORITY, "tok", f"{_BATCHING}.default_priority_level", 0, "no default"),
    _add(
        RuleId.PRIORITY,
        "tok",
        "dynamic_batching { priority_queue_policy { key: 3 value { } } }",
        "policy above",
    ),
    _add(
        RuleId.PRIORITY,
        "tok",
        "dynamic_batching { priority_queue_policy { key: 0 value { } } }",
        "policy 0",
    ),
    _add(
        RuleId.PRESERVE_ORDERING,
        "model",
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 }",
        "levels",
    ),
    _add(
        RuleId.PRESERVE_ORDERING,
        "model",
        f"dynamic_batching {{ default_queue_policy {{ {_DELAY} }} }}",
        "delay",
    ),
    _add(
        RuleId.PRESERVE_ORDERING,
        "model",
        f"dynamic_batching {{ priority_levels: 1 default_priority_level: 1 "
        f"priority_queue_policy {{ key: 1 value {{ {_DELAY} }} }} }}",
        "delay of a level",
    ),
)

SEQUENCES: Final = (
    _set(RuleId.SEQUENCE_CONTROL, "sequence", f"{_CONTROLS}[0].name", "", "no name"),
    _set(
        RuleId.SEQUENCE_CONTROL,
        "sequence",
        f"{_CONTROLS}[0].control[0].int32_false_true",
        [],
        "no values",
    ),
    _set(
        RuleId.SEQUENCE_CONTROL,
        "sequence",
        f"{_CONTROLS}[1].control[0].fp32_false_true",
        [1],
        "one value",
    ),
    _set(
        RuleId.SEQUENCE_CONTROL,
        "sequence",
        f"{_CONTROLS}[2].control[0].int32_false_true",
        [0, 1],
        "two kinds of values",
    ),
    _set(RuleId.SEQUENCE_CONTROL_TWICE, "sequence", f"{_CONTROLS}[1].name", "START", "name"),
    _set(RuleId.SEQUENCE_CONTROL_TWICE, "sequence", f"{_CONTROLS}[1].control[0].kind", 0, "kind"),
    _set(
        RuleId.CORRELATION_ID,
        "sequence",
        f"{_CONTROLS}[3].control[0].data_type",
        pb.TYPE_FP32,
        "type",
    ),
    _set(
        RuleId.CORRELATION_ID,
        "sequence",
        f"{_CONTROLS}[3].control[0].int32_false_true",
        [0, 1],
        "values",
    ),
    _set(
        RuleId.SLOT_UTILIZATION,
        "direct",
        "sequence_batching.direct.minimum_slot_utilization",
        1.5,
        "above",
    ),
    _set(
        RuleId.SLOT_UTILIZATION,
        "direct",
        "sequence_batching.direct.minimum_slot_utilization",
        -0.1,
        "below",
    ),
)

INSTANCES: Final = (
    _set(RuleId.INSTANCE_GPUS, "tok", "instance_group[0].gpus", [0], "KIND_CPU"),
    _set(RuleId.INSTANCE_GPUS, "model", "instance_group[0].gpus", [0], "KIND_MODEL"),
    _set(RuleId.INSTANCE_GPUS, "plan", "instance_group[0].gpus", [0], "KIND_AUTO"),
    _add(RuleId.INSTANCE_GPUS, "stream", "instance_group { kind: KIND_GPU gpus: 0 }", "KIND_GPU"),
    _add(RuleId.INSTANCE_NO_GPU, "stream", "instance_group { kind: KIND_GPU }"),
    _set(RuleId.INSTANCE_PROFILE, "tok", "instance_group[0].profile", ["0"], "no TensorRT"),
    _set(RuleId.INSTANCE_PROFILE, "plan", "instance_group[0].profile", ["-1"], "negative"),
    _set(RuleId.INSTANCE_PROFILE, "plan", "instance_group[0].profile", ["first"], "no number"),
    _set(RuleId.INSTANCE_PROFILE, "plan", "instance_group[0].profile", [""], "empty"),
    _add(
        RuleId.WARMUP, "tok", _WARM % "data_type: TYPE_STRING dims: -1 zero_data: true", "variable"
    ),
    _add(RuleId.WARMUP, "tok", _WARM % "data_type: TYPE_STRING dims: 1", "no data"),
    _add(RuleId.WARMUP, "tok", _WARM % "data_type: TYPE_FP32 dims: 1 zero_data: true", "type"),
    _add(RuleId.WARMUP, "tok", _WARM % "data_type: TYPE_STRING dims: 2 zero_data: true", "dims"),
    _add(
        RuleId.WARMUP, "tok", _WARM % "data_type: TYPE_STRING dims: [1, 1] zero_data: true", "rank"
    ),
    _add(RuleId.WARMUP, "tok", 'model_warmup { name: "v" batch_size: 1 }', "no input"),
    Break(RuleId.WARMUP, "model", drop_files("model", "warmup/ids"), "no file"),
    Break(RuleId.WARMUP, "model", put_file("model", "warmup/ids", bytes(23)), "file too short"),
)

ENSEMBLES: Final = (
    _set(RuleId.ENSEMBLE_PLATFORM, "e", "ensemble_scheduling", None, "no steps at all"),
    Break(
        RuleId.ENSEMBLE_PLATFORM,
        "e",
        both(set_field("e", "platform", ""), set_field("e", "backend", "null")),
        "backend",
    ),
    _add(RuleId.ENSEMBLE_PLATFORM, "e", "dynamic_batching { }", "dynamic_batching instead"),
    _add(RuleId.ENSEMBLE_FIELD, "e", "instance_group { }", "instance_group"),
    _add(RuleId.ENSEMBLE_FIELD, "e", "optimization { }", "optimization"),
    _add(RuleId.ENSEMBLE_FIELD, "e", "model_warmup { }", "model_warmup"),
    Break(
        RuleId.ENSEMBLE_STEP,
        "e",
        both(
            set_field("e", "ensemble_scheduling", None), set_field("e", "ensemble_scheduling", ...)
        ),
        "no step",
    ),
    _set(RuleId.ENSEMBLE_STEP, "e", "ensemble_scheduling.step[1].model_name", "", "model_name"),
    Break(
        RuleId.ENSEMBLE_STEP,
        "e",
        both(
            merge("e", 'output { name: "n" data_type: TYPE_FP32 dims: 2 }'),
            merge(
                "e",
                (
                    'ensemble_scheduling { step { model_name: "echo" model_version: -1 '
                    'output_map { key: "y" value: "n" } } }'
                ),
            ),
        ),
        "input_map",
    ),
    _add(
        RuleId.ENSEMBLE_STEP,
        "e",
        'ensemble_scheduling { step { model_name: "stream" model_version: -1 '
        'input_map { key: "x" value: "scores" } } }',
        "output_map",
    ),
    _add(
        RuleId.TENSOR_WRITTEN_TWICE,
        "e",
        'ensemble_scheduling { step { model_name: "model" model_version: -1 input_map '
        '{ key: "ids" value: "tok.ids" } output_map { key: "scores" value: "scores" } '
        "} }",
        "by two steps",
    ),
    Break(
        RuleId.TENSOR_WRITTEN_TWICE,
        "e",
        map_entries("e", 1, "output_map", {"pooled": "scores"}),
        "by one step",
    ),
    Break(
        RuleId.TENSOR_NOT_WRITTEN,
        "e",
        both(
            map_entries("e", 1, "input_map", {"mask": "nothing"}),
            map_entries("e", 0, "output_map", {"mask": None}),
        ),
        "input of a step",
    ),
    _add(
        RuleId.TENSOR_NOT_WRITTEN,
        "e",
        'output { name: "more" data_type: TYPE_FP32 dims: 1 }',
        "output",
    ),
    _add(RuleId.TENSOR_UNUSED, "e", 'input { name: "more" data_type: TYPE_FP32 dims: 1 }', "input"),
    Break(
        RuleId.TENSOR_UNUSED,
        "e",
        map_entries("e", 1, "output_map", {"pooled": "nobody"}),
        "written",
    ),
    _add(
        RuleId.ENSEMBLE_CYCLE,
        "e",
        "ensemble_scheduling {"
        ' step { model_name: "stream" model_version: -1 input_map { key: "x" value: "one" } '
        'output_map { key: "y" value: "two" } }'
        ' step { model_name: "stream" model_version: -1 input_map { key: "x" value: "two" } '
        'output_map { key: "y" value: "one" } } }',
        "of steps",
    ),
    Break(
        RuleId.ENSEMBLE_CYCLE,
        "outer",
        both(
            merge(
                "outer",
                (
                    'ensemble_scheduling { step { model_name: "outer" model_version: -1 '
                    'input_map { key: "t" value: "t" } output_map { key: "u" value: "v" } } }'
                ),
            ),
            merge("outer", 'output { name: "v" data_type: TYPE_FP32 dims: 2 }'),
        ),
        "of ensembles",
    ),
    _set(RuleId.STEP_MODEL, "e", "ensemble_scheduling.step[1].model_name", "modle"),
    _set(RuleId.STEP_VERSION, "e", "ensemble_scheduling.step[0].model_version", 2, "not there"),
    _set(RuleId.STEP_VERSION, "e", "ensemble_scheduling.step[0].model_version", 0, "0"),
    _set(RuleId.STEP_BATCH_SIZE, "e", "max_batch_size", 9),
    Break(
        RuleId.STEP_TENSOR, "e", map_entries("e", 1, "input_map", {"masks": "tok.mask"}), "input"
    ),
    Break(
        RuleId.STEP_TENSOR,
        "e",
        map_entries("e", 1, "output_map", {"scores": None, "logits": "scores"}),
        "output",
    ),
    Break(
        RuleId.STEP_INPUT_UNMAPPED,
        "e",
        both(
            map_entries("e", 1, "input_map", {"ids": None}),
            map_entries("e", 0, "output_map", {"ids": None}),
        ),
    ),
    _set(RuleId.STEP_DATA_TYPE, "e", "output[0].data_type", pb.TYPE_FP16, "output"),
    Break(
        RuleId.STEP_DATA_TYPE,
        "e",
        set_field("tok", "output[0].data_type", pb.TYPE_INT32),
        "between steps",
    ),
    _set(RuleId.STEP_SHAPE, "e", "output[0].dims", [3], "output"),
    Break(RuleId.STEP_SHAPE, "e", set_field("tok", "output[0].dims", [-1, 1]), "between steps"),
    Break(
        RuleId.DECOUPLED_JOIN,
        "outer",
        both(
            merge("outer", 'output { name: "s" data_type: TYPE_FP32 dims: 2 }'),
            merge(
                "outer",
                (
                    'ensemble_scheduling { step { model_name: "e" model_version: -1 input_map '
                    '{ key: "TEXT" value: "t" } output_map { key: "scores" value: "s" } } }'
                ),
            ),
        ),
    ),
)

LIMITED: Final = (
    _add(
        RuleId.TENSOR_NAME_TWICE,
        "direct",
        'output { name: "y" data_type: TYPE_FP32 dims: 1 }',
        "output",
    ),
    _add(
        RuleId.TENSOR_NAME_TWICE,
        "direct",
        'input { name: "x" data_type: TYPE_FP32 dims: 1 }',
        "input",
    ),
    _add(RuleId.ENUM_VALUE, "echo", 'output { name: "z" data_type: 99 dims: 1 }'),
    _add(
        RuleId.DIMS_SIZE, "echo", 'output { name: "z" data_type: TYPE_FP32 dims: [ 65536, 65536 ] }'
    ),
    _add(RuleId.BATCH_STRATEGY_FOLDER, "stream", _STRATEGY % "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    # A file that exists: the server's log, next to the repository.
    _set(RuleId.LABELS_FOLDER, "stream", "output[0].label_filename", "../../tritonserver.log"),
    _set(RuleId.STATE_TWICE, "sequence", f"{_STATE}[1].output_name", "so"),
    _add(
        RuleId.WARMUP_REQUIRED,
        "model",
        'model_warmup { name: "v" batch_size: 1 inputs { key: "mask" value { '
        "data_type: TYPE_INT64 dims: 1 zero_data: true } } }",
    ),
    Break(
        RuleId.TENSOR_INPUT_WRITTEN,
        "e",
        both(
            merge("e", 'input { name: "more" data_type: TYPE_FP32 dims: 2 }'),
            merge(
                "e",
                (
                    'ensemble_scheduling { step { model_name: "stream" model_version: -1 '
                    'input_map { key: "x" value: "more" } output_map { key: "y" value: "more" '
                    "} } }"
                ),
            ),
        ),
    ),
    Break(
        RuleId.STEP_SHAPE_BETWEEN,
        "e",
        both(
            add_model(
                "late",
                (
                    'backend: "null" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 '
                    'dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 2 }'
                ),
            ),
            set_field("e", "output[0].dims", [-1]),
            merge("e", 'output { name: "last" data_type: TYPE_FP32 dims: 2 }'),
            merge(
                "e",
                (
                    'ensemble_scheduling { step { model_name: "late" model_version: -1 '
                    'input_map { key: "x" value: "scores" } output_map { key: "y" value: '
                    '"last" } } }'
                ),
            ),
        ),
    ),
)

FATAL: Final = (
    _set(RuleId.INITIAL_STATE, "sequence", f"{_STATE}[0].initial_state[0].name", "", "name"),
    _set(
        RuleId.INITIAL_STATE,
        "sequence",
        f"{_STATE}[0].initial_state[0].data_type",
        pb.TYPE_FP64,
        "type",
    ),
    _set(RuleId.INITIAL_STATE, "sequence", f"{_STATE}[0].initial_state[0].dims", [2], "rank"),
    _set(RuleId.INITIAL_STATE, "sequence", f"{_STATE}[0].initial_state[0].dims", [1, 1], "dims"),
    _set(
        RuleId.INITIAL_STATE, "sequence", f"{_STATE}[0].initial_state[0].dims", [-1, 2], "variable"
    ),
    _set(
        RuleId.INITIAL_STATE, "sequence", f"{_STATE}[1].initial_state[0].zero_data", None, "no data"
    ),
    _set(
        RuleId.INITIAL_STATE,
        "sequence",
        f"{_STATE}[0].initial_state[0].dims",
        [2, 2],
        "file too short",
    ),
    _set(
        RuleId.INITIAL_STATE,
        "sequence",
        f"{_STATE}[0].initial_state[0].data_file",
        "none",
        "no file",
    ),
    _set(RuleId.INITIAL_STATE, "sequence", f"{_STATE}[1].input_name", "si", "state twice"),
    _add(
        RuleId.INITIAL_STATE,
        "sequence",
        "sequence_batching { state { input_name: 'a' output_name: 'b' data_type: "
        "TYPE_INT8 dims: 1 initial_state { name: 'k' data_type: TYPE_INT8 dims: 1 "
        "zero_data: true } initial_state { name: 'l' data_type: TYPE_INT8 dims: 1 "
        "zero_data: true } } }",
        "two values",
    ),
    _add(RuleId.METRIC_TAG, "tok", 'metric_tags { key: "cost-centre" value: "a" }', "dash"),
    _add(RuleId.METRIC_TAG, "tok", 'metric_tags { key: "__name" value: "a" }', "two underscores"),
    _add(RuleId.METRIC_TAG, "tok", 'metric_tags { key: "_name" value: "a" }', "underscore"),
)
"""The server ends itself instead of refusing these."""

DEADLY: Final = (
    _set(RuleId.SEQUENCE_SLOTS, "direct", "max_batch_size", 2**31 - 1),
    _add(
        RuleId.STATE_TENSOR,
        "sequence",
        "sequence_batching { state { input_name: 'a' output_name: 'b' data_type: "
        "TYPE_INT8 dims: -3 } }",
    ),
    _set(RuleId.INSTANCE_PROFILE_NUMBER, "plan", "instance_group[0].profile", ["99999999999"]),
    _set(RuleId.INSTANCE_COUNT, "tok", "instance_group[0].count", 1_000_000),
    _add(
        RuleId.WARMUP_SIZE,
        "tok",
        'model_warmup { name: "v" batch_size: 4000000000 inputs { key: "TEXT" value { '
        "data_type: TYPE_STRING dims: 1 zero_data: true } } }",
    ),
)

REFUSED: Final = (*MODELS, *TENSORS, *BATCHING, *SEQUENCES, *INSTANCES, *ENSEMBLES)
"""Both sides refuse."""

ELSEWHERE: Final = {
    RuleId.MODEL_NAME: "no folder can have such a name",
    RuleId.METRICS: "the local Triton is older than the field (24.11)",
    RuleId.RATE_LIMITER: "needs a server with --rate-limit=execution_count: a test of its own",
}
"""Rules that no mutation breaks on the one server, and why."""
