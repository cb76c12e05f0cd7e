"""Mutations of the good repository: each breaks one rule once and nothing else, so that both sides must refuse the one model for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tritonclient.grpc import model_config_pb2 as pb

from triton_pipelines.compile.validation import Rule

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

    rule: Rule
    model: str
    change: Change
    label: str = ""

    def __str__(self) -> str:
        return f"{self.rule} {self.label}".strip()


MODELS: Final = (
    Break(Rule.DIRECTORY_NAME, "tok", set_field("tok", "name", "other")),
    Break(Rule.BACKEND, "tok", set_field("tok", "backend", ""), "none"),
    Break(
        Rule.BACKEND,
        "tok",
        both(set_field("tok", "backend", ""), set_field("tok", "platform", "caffe")),
        "platform of none",
    ),
    Break(Rule.BACKEND, "e", set_field("e", "backend", "null"), "of an ensemble"),
    Break(Rule.BACKEND_PLATFORM, "model", set_field("model", "backend", "pytorch")),
    Break(
        Rule.BACKEND_PLATFORM,
        "model",
        both(
            set_field("model", "backend", "onnxruntime"), set_field("model", "platform", "custom")
        ),
        "unknown platform",
    ),
    Break(Rule.BACKEND_UNKNOWN, "tok", set_field("tok", "backend", "nil")),
    Break(Rule.RUNTIME, "tok", set_field("tok", "runtime", "libnone.so"), "missing"),
    Break(
        Rule.RUNTIME,
        "tok",
        set_field("tok", "runtime", "../onnxruntime/libtriton_onnxruntime.so"),
        "elsewhere",
    ),
    Break(
        Rule.MAX_BATCH_SIZE,
        "tok",
        both(
            set_field("tok", "max_batch_size", -1),
            set_field("tok", f"{_BATCHING}.preferred_batch_size", []),
        ),
    ),
    Break(
        Rule.VERSION_POLICY,
        "direct",
        set_field("direct", "version_policy.latest.num_versions", 0),
        "0 versions",
    ),
    Break(
        Rule.VERSION_POLICY,
        "tok",
        set_field("tok", "version_policy.specific.versions", [2]),
        "version not there",
    ),
    Break(
        Rule.VERSION_POLICY,
        "tok",
        set_field("tok", "version_policy.specific.versions", []),
        "no version named",
    ),
    Break(Rule.VERSION_POLICY, "model", drop_files("model", "1/"), "no version folder"),
    Break(Rule.FIELD_VERSION, "tok", merge("tok", "model_metrics { }"), "model_metrics"),
    Break(
        Rule.FIELD_VERSION,
        "e",
        set_field("e", "ensemble_scheduling.max_inflight_requests", 4),
        "max_inflight_requests",
    ),
    Break(
        Rule.RESPONSE_CACHE,
        "sequence",
        set_field("sequence", "response_cache.enable", True),
        "sequences",
    ),
    Break(
        Rule.RESPONSE_CACHE,
        "stream",
        set_field("stream", "response_cache.enable", True),
        "decoupled",
    ),
    Break(
        Rule.RESPONSE_CACHE,
        "outer",
        set_field("outer", "response_cache.enable", True),
        "decoupled step",
    ),
    Break(Rule.LABELS, "model", drop_files("model", "labels.txt")),
    Break(
        Rule.REPOSITORY_AGENT,
        "tok",
        merge("tok", 'model_repository_agents { agents { name: "checksum" } }'),
    ),
    Break(Rule.BATCH_STRATEGY, "model", drop_files("model", "strategy.so"), "missing"),
    Break(
        Rule.BATCH_STRATEGY,
        "direct",
        both(merge("direct", _STRATEGY % f"{FOLDER}/s.so"), put_file("direct", "s.so", b"")),
        "sequences",
    ),
)

TENSORS: Final = (
    Break(
        Rule.TENSOR_NAME,
        "echo",
        merge("echo", "input { data_type: TYPE_FP32 dims: 1 optional: true }"),
        "input",
    ),
    Break(
        Rule.TENSOR_NAME, "echo", merge("echo", "output { data_type: TYPE_FP32 dims: 1 }"), "output"
    ),
    Break(Rule.DATA_TYPE, "model", set_field("model", "output[1].data_type", 0)),
    Break(
        Rule.DIMS,
        "model",
        both(
            set_field("model", "output[1].dims", []), set_field("model", "output[1].reshape", None)
        ),
        "none",
    ),
    Break(Rule.DIMS, "direct", set_field("direct", "input[0].dims", [0]), "0"),
    Break(Rule.DIMS, "direct", set_field("direct", "output[0].dims", [-2]), "-2"),
    Break(Rule.RESHAPE, "model", set_field("model", "output[1].reshape.shape", [7]), "size"),
    Break(Rule.RESHAPE, "model", set_field("model", "output[1].reshape.shape", [-1]), "variable"),
    Break(Rule.RESHAPE, "model", set_field("model", "output[1].reshape.shape", [8, 0]), "0"),
    Break(Rule.RESHAPE, "model", set_field("model", "output[1].reshape.shape", []), "empty"),
    Break(
        Rule.RESHAPE,
        "echo",
        merge("echo", 'output { name: "z" data_type: TYPE_FP32 dims: 1 reshape { } }'),
        "empty without batching",
    ),
    Break(
        Rule.RESHAPE,
        "echo",
        merge(
            "echo",
            'output { name: "z" data_type: TYPE_FP32 dims: [2, -1, 6] reshape { shape: [3, -1, 4] } }',
        ),
        "runs",
    ),
    Break(Rule.FORMAT, "echo", set_field("echo", "input[0].format", pb.ModelInput.FORMAT_NHWC)),
    Break(
        Rule.SHAPE_TENSOR, "stream", set_field("stream", "input[0].is_shape_tensor", True), "input"
    ),
    Break(
        Rule.SHAPE_TENSOR,
        "stream",
        set_field("stream", "output[0].is_shape_tensor", True),
        "output",
    ),
    Break(
        Rule.NON_LINEAR_FORMAT,
        "stream",
        set_field("stream", "output[0].is_non_linear_format_io", True),
        "no TensorRT",
    ),
    Break(
        Rule.NON_LINEAR_FORMAT,
        "plan",
        set_field("plan", "output[0].is_non_linear_format_io", True),
        "dims",
    ),
    Break(
        Rule.BATCH_INPUT,
        "model",
        set_field("model", "batch_input[0].source_input", ["ids", "mask"]),
        "two sources",
    ),
    Break(
        Rule.BATCH_INPUT,
        "model",
        set_field("model", "batch_input[0].source_input", []),
        "no source",
    ),
    Break(
        Rule.BATCH_INPUT,
        "model",
        set_field("model", "batch_input[0].source_input", ["scores"]),
        "unknown source",
    ),
    Break(
        Rule.BATCH_INPUT,
        "model",
        set_field("model", "batch_input[0].data_type", pb.TYPE_INT64),
        "type",
    ),
    Break(
        Rule.BATCH_OUTPUT,
        "model",
        set_field("model", "batch_output[0].source_input", ["x"]),
        "unknown source",
    ),
    Break(
        Rule.BATCH_OUTPUT,
        "model",
        set_field("model", "batch_output[0].target_name", ["ids"]),
        "unknown target",
    ),
    Break(
        Rule.BATCH_OUTPUT,
        "model",
        set_field("model", "batch_output[0].target_name", ["scores", "scores"]),
        "target twice",
    ),
)

BATCHING: Final = (
    Break(
        Rule.PREFERRED_BATCH_SIZE,
        "tok",
        set_field("tok", f"{_BATCHING}.preferred_batch_size", [17]),
        "above",
    ),
    Break(
        Rule.PREFERRED_BATCH_SIZE,
        "tok",
        set_field("tok", f"{_BATCHING}.preferred_batch_size", [4, 0]),
        "0",
    ),
    Break(
        Rule.PREFERRED_BATCH_SIZE,
        "sequence",
        set_field("sequence", "sequence_batching.oldest.preferred_batch_size", [5]),
        "oldest above",
    ),
    Break(
        Rule.PREFERRED_BATCH_SIZE,
        "sequence",
        set_field("sequence", "sequence_batching.oldest.preferred_batch_size", [-1]),
        "oldest -1",
    ),
    Break(
        Rule.PRIORITY,
        "tok",
        set_field("tok", f"{_BATCHING}.default_priority_level", 3),
        "default above",
    ),
    Break(
        Rule.PRIORITY,
        "tok",
        set_field("tok", f"{_BATCHING}.default_priority_level", 0),
        "no default",
    ),
    Break(
        Rule.PRIORITY,
        "tok",
        merge("tok", "dynamic_batching { priority_queue_policy { key: 3 value { } } }"),
        "policy above",
    ),
    Break(
        Rule.PRIORITY,
        "tok",
        merge("tok", "dynamic_batching { priority_queue_policy { key: 0 value { } } }"),
        "policy 0",
    ),
    Break(
        Rule.PRESERVE_ORDERING,
        "model",
        merge("model", "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"),
        "levels",
    ),
    Break(
        Rule.PRESERVE_ORDERING,
        "model",
        merge("model", f"dynamic_batching {{ default_queue_policy {{ {_DELAY} }} }}"),
        "delay",
    ),
    Break(
        Rule.PRESERVE_ORDERING,
        "model",
        merge(
            "model",
            f"dynamic_batching {{ priority_levels: 1 default_priority_level: 1 priority_queue_policy {{ key: 1 value {{ {_DELAY} }} }} }}",
        ),
        "delay of a level",
    ),
)

SEQUENCES: Final = (
    Break(
        Rule.SEQUENCE_CONTROL,
        "sequence",
        set_field("sequence", f"{_CONTROLS}[0].name", ""),
        "no name",
    ),
    Break(
        Rule.SEQUENCE_CONTROL,
        "sequence",
        set_field("sequence", f"{_CONTROLS}[0].control[0].int32_false_true", []),
        "no values",
    ),
    Break(
        Rule.SEQUENCE_CONTROL,
        "sequence",
        set_field("sequence", f"{_CONTROLS}[1].control[0].fp32_false_true", [1]),
        "one value",
    ),
    Break(
        Rule.SEQUENCE_CONTROL,
        "sequence",
        set_field("sequence", f"{_CONTROLS}[2].control[0].int32_false_true", [0, 1]),
        "two kinds of values",
    ),
    Break(
        Rule.SEQUENCE_CONTROL_TWICE,
        "sequence",
        set_field("sequence", f"{_CONTROLS}[1].name", "START"),
        "name",
    ),
    Break(
        Rule.SEQUENCE_CONTROL_TWICE,
        "sequence",
        set_field("sequence", f"{_CONTROLS}[1].control[0].kind", 0),
        "kind",
    ),
    Break(
        Rule.CORRELATION_ID,
        "sequence",
        set_field("sequence", f"{_CONTROLS}[3].control[0].data_type", pb.TYPE_FP32),
        "type",
    ),
    Break(
        Rule.CORRELATION_ID,
        "sequence",
        set_field("sequence", f"{_CONTROLS}[3].control[0].int32_false_true", [0, 1]),
        "values",
    ),
    Break(
        Rule.SLOT_UTILIZATION,
        "direct",
        set_field("direct", "sequence_batching.direct.minimum_slot_utilization", 1.5),
        "above",
    ),
    Break(
        Rule.SLOT_UTILIZATION,
        "direct",
        set_field("direct", "sequence_batching.direct.minimum_slot_utilization", -0.1),
        "below",
    ),
)

INSTANCES: Final = (
    Break(Rule.INSTANCE_GPUS, "tok", set_field("tok", "instance_group[0].gpus", [0]), "KIND_CPU"),
    Break(
        Rule.INSTANCE_GPUS, "model", set_field("model", "instance_group[0].gpus", [0]), "KIND_MODEL"
    ),
    Break(
        Rule.INSTANCE_GPUS, "plan", set_field("plan", "instance_group[0].gpus", [0]), "KIND_AUTO"
    ),
    Break(
        Rule.INSTANCE_GPUS,
        "stream",
        merge("stream", "instance_group { kind: KIND_GPU gpus: 0 }"),
        "KIND_GPU",
    ),
    Break(Rule.INSTANCE_NO_GPU, "stream", merge("stream", "instance_group { kind: KIND_GPU }")),
    Break(
        Rule.INSTANCE_PROFILE,
        "tok",
        set_field("tok", "instance_group[0].profile", ["0"]),
        "no TensorRT",
    ),
    Break(
        Rule.INSTANCE_PROFILE,
        "plan",
        set_field("plan", "instance_group[0].profile", ["-1"]),
        "negative",
    ),
    Break(
        Rule.INSTANCE_PROFILE,
        "plan",
        set_field("plan", "instance_group[0].profile", ["first"]),
        "no number",
    ),
    Break(
        Rule.INSTANCE_PROFILE, "plan", set_field("plan", "instance_group[0].profile", [""]), "empty"
    ),
    Break(
        Rule.WARMUP,
        "tok",
        merge("tok", _WARM % "data_type: TYPE_STRING dims: -1 zero_data: true"),
        "variable",
    ),
    Break(Rule.WARMUP, "tok", merge("tok", _WARM % "data_type: TYPE_STRING dims: 1"), "no data"),
    Break(
        Rule.WARMUP,
        "tok",
        merge("tok", _WARM % "data_type: TYPE_FP32 dims: 1 zero_data: true"),
        "type",
    ),
    Break(
        Rule.WARMUP,
        "tok",
        merge("tok", _WARM % "data_type: TYPE_STRING dims: 2 zero_data: true"),
        "dims",
    ),
    Break(
        Rule.WARMUP,
        "tok",
        merge("tok", _WARM % "data_type: TYPE_STRING dims: [1, 1] zero_data: true"),
        "rank",
    ),
    Break(Rule.WARMUP, "tok", merge("tok", 'model_warmup { name: "v" batch_size: 1 }'), "no input"),
    Break(Rule.WARMUP, "model", drop_files("model", "warmup/ids"), "no file"),
    Break(Rule.WARMUP, "model", put_file("model", "warmup/ids", bytes(23)), "file too short"),
)

ENSEMBLES: Final = (
    Break(
        Rule.ENSEMBLE_PLATFORM, "e", set_field("e", "ensemble_scheduling", None), "no steps at all"
    ),
    Break(
        Rule.ENSEMBLE_PLATFORM,
        "e",
        both(set_field("e", "platform", ""), set_field("e", "backend", "null")),
        "backend",
    ),
    Break(
        Rule.ENSEMBLE_PLATFORM, "e", merge("e", "dynamic_batching { }"), "dynamic_batching instead"
    ),
    Break(Rule.ENSEMBLE_FIELD, "e", merge("e", "instance_group { }"), "instance_group"),
    Break(Rule.ENSEMBLE_FIELD, "e", merge("e", "optimization { }"), "optimization"),
    Break(Rule.ENSEMBLE_FIELD, "e", merge("e", "model_warmup { }"), "model_warmup"),
    Break(
        Rule.ENSEMBLE_STEP,
        "e",
        both(
            set_field("e", "ensemble_scheduling", None), set_field("e", "ensemble_scheduling", ...)
        ),
        "no step",
    ),
    Break(
        Rule.ENSEMBLE_STEP,
        "e",
        set_field("e", "ensemble_scheduling.step[1].model_name", ""),
        "model_name",
    ),
    Break(
        Rule.ENSEMBLE_STEP,
        "e",
        both(
            merge("e", 'output { name: "n" data_type: TYPE_FP32 dims: 2 }'),
            merge(
                "e",
                'ensemble_scheduling { step { model_name: "echo" model_version: -1 output_map { key: "y" value: "n" } } }',
            ),
        ),
        "input_map",
    ),
    Break(
        Rule.ENSEMBLE_STEP,
        "e",
        merge(
            "e",
            'ensemble_scheduling { step { model_name: "stream" model_version: -1 input_map { key: "x" value: "scores" } } }',
        ),
        "output_map",
    ),
    Break(
        Rule.TENSOR_WRITTEN_TWICE,
        "e",
        merge(
            "e",
            'ensemble_scheduling { step { model_name: "model" model_version: -1 input_map { key: "ids" value: "tok.ids" } output_map { key: "scores" value: "scores" } } }',
        ),
        "by two steps",
    ),
    Break(
        Rule.TENSOR_WRITTEN_TWICE,
        "e",
        map_entries("e", 1, "output_map", {"pooled": "scores"}),
        "by one step",
    ),
    Break(
        Rule.TENSOR_NOT_WRITTEN,
        "e",
        both(
            map_entries("e", 1, "input_map", {"mask": "nothing"}),
            map_entries("e", 0, "output_map", {"mask": None}),
        ),
        "input of a step",
    ),
    Break(
        Rule.TENSOR_NOT_WRITTEN,
        "e",
        merge("e", 'output { name: "more" data_type: TYPE_FP32 dims: 1 }'),
        "output",
    ),
    Break(
        Rule.TENSOR_UNUSED,
        "e",
        merge("e", 'input { name: "more" data_type: TYPE_FP32 dims: 1 }'),
        "input",
    ),
    Break(
        Rule.TENSOR_UNUSED, "e", map_entries("e", 1, "output_map", {"pooled": "nobody"}), "written"
    ),
    Break(
        Rule.ENSEMBLE_CYCLE,
        "e",
        merge(
            "e",
            "ensemble_scheduling {"
            ' step { model_name: "stream" model_version: -1 input_map { key: "x" value: "one" } output_map { key: "y" value: "two" } }'
            ' step { model_name: "stream" model_version: -1 input_map { key: "x" value: "two" } output_map { key: "y" value: "one" } } }',
        ),
        "of steps",
    ),
    Break(
        Rule.ENSEMBLE_CYCLE,
        "outer",
        both(
            merge(
                "outer",
                'ensemble_scheduling { step { model_name: "outer" model_version: -1 input_map { key: "t" value: "t" } output_map { key: "u" value: "v" } } }',
            ),
            merge("outer", 'output { name: "v" data_type: TYPE_FP32 dims: 2 }'),
        ),
        "of ensembles",
    ),
    Break(Rule.STEP_MODEL, "e", set_field("e", "ensemble_scheduling.step[1].model_name", "modle")),
    Break(
        Rule.STEP_VERSION,
        "e",
        set_field("e", "ensemble_scheduling.step[0].model_version", 2),
        "not there",
    ),
    Break(
        Rule.STEP_VERSION, "e", set_field("e", "ensemble_scheduling.step[0].model_version", 0), "0"
    ),
    Break(Rule.STEP_BATCH_SIZE, "e", set_field("e", "max_batch_size", 9)),
    Break(Rule.STEP_TENSOR, "e", map_entries("e", 1, "input_map", {"masks": "tok.mask"}), "input"),
    Break(
        Rule.STEP_TENSOR,
        "e",
        map_entries("e", 1, "output_map", {"scores": None, "logits": "scores"}),
        "output",
    ),
    Break(
        Rule.STEP_INPUT_UNMAPPED,
        "e",
        both(
            map_entries("e", 1, "input_map", {"ids": None}),
            map_entries("e", 0, "output_map", {"ids": None}),
        ),
    ),
    Break(Rule.STEP_DATA_TYPE, "e", set_field("e", "output[0].data_type", pb.TYPE_FP16), "output"),
    Break(
        Rule.STEP_DATA_TYPE,
        "e",
        set_field("tok", "output[0].data_type", pb.TYPE_INT32),
        "between steps",
    ),
    Break(Rule.STEP_SHAPE, "e", set_field("e", "output[0].dims", [3]), "output"),
    Break(Rule.STEP_SHAPE, "e", set_field("tok", "output[0].dims", [-1, 1]), "between steps"),
    Break(
        Rule.DECOUPLED_JOIN,
        "outer",
        both(
            merge("outer", 'output { name: "s" data_type: TYPE_FP32 dims: 2 }'),
            merge(
                "outer",
                'ensemble_scheduling { step { model_name: "e" model_version: -1 input_map { key: "TEXT" value: "t" } output_map { key: "scores" value: "s" } } }',
            ),
        ),
    ),
)

LIMITED: Final = (
    Break(
        Rule.TENSOR_NAME_TWICE,
        "direct",
        merge("direct", 'output { name: "y" data_type: TYPE_FP32 dims: 1 }'),
        "output",
    ),
    Break(
        Rule.TENSOR_NAME_TWICE,
        "direct",
        merge("direct", 'input { name: "x" data_type: TYPE_FP32 dims: 1 }'),
        "input",
    ),
    Break(Rule.ENUM_VALUE, "echo", merge("echo", 'output { name: "z" data_type: 99 dims: 1 }')),
    Break(
        Rule.DIMS_SIZE,
        "echo",
        merge("echo", 'output { name: "z" data_type: TYPE_FP32 dims: [ 65536, 65536 ] }'),
    ),
    Break(
        Rule.BATCH_STRATEGY_FOLDER,
        "stream",
        merge("stream", _STRATEGY % "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    ),
    # A file that is there: the server's log, beside the repository.
    Break(
        Rule.LABELS_FOLDER,
        "stream",
        set_field("stream", "output[0].label_filename", "../../tritonserver.log"),
    ),
    Break(Rule.STATE_TWICE, "sequence", set_field("sequence", f"{_STATE}[1].output_name", "so")),
    Break(
        Rule.WARMUP_REQUIRED,
        "model",
        merge(
            "model",
            'model_warmup { name: "v" batch_size: 1 inputs { key: "mask" value { data_type: TYPE_INT64 dims: 1 zero_data: true } } }',
        ),
    ),
    Break(
        Rule.TENSOR_INPUT_WRITTEN,
        "e",
        both(
            merge("e", 'input { name: "more" data_type: TYPE_FP32 dims: 2 }'),
            merge(
                "e",
                'ensemble_scheduling { step { model_name: "stream" model_version: -1 input_map { key: "x" value: "more" } output_map { key: "y" value: "more" } } }',
            ),
        ),
    ),
    Break(
        Rule.STEP_SHAPE_BETWEEN,
        "e",
        both(
            add_model(
                "late",
                'backend: "null" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 2 }',
            ),
            set_field("e", "output[0].dims", [-1]),
            merge("e", 'output { name: "last" data_type: TYPE_FP32 dims: 2 }'),
            merge(
                "e",
                'ensemble_scheduling { step { model_name: "late" model_version: -1 input_map { key: "x" value: "scores" } output_map { key: "y" value: "last" } } }',
            ),
        ),
    ),
)

FATAL: Final = (
    Break(
        Rule.INITIAL_STATE,
        "sequence",
        set_field("sequence", f"{_STATE}[0].initial_state[0].name", ""),
        "name",
    ),
    Break(
        Rule.INITIAL_STATE,
        "sequence",
        set_field("sequence", f"{_STATE}[0].initial_state[0].data_type", pb.TYPE_FP64),
        "type",
    ),
    Break(
        Rule.INITIAL_STATE,
        "sequence",
        set_field("sequence", f"{_STATE}[0].initial_state[0].dims", [2]),
        "rank",
    ),
    Break(
        Rule.INITIAL_STATE,
        "sequence",
        set_field("sequence", f"{_STATE}[0].initial_state[0].dims", [1, 1]),
        "dims",
    ),
    Break(
        Rule.INITIAL_STATE,
        "sequence",
        set_field("sequence", f"{_STATE}[0].initial_state[0].dims", [-1, 2]),
        "variable",
    ),
    Break(
        Rule.INITIAL_STATE,
        "sequence",
        set_field("sequence", f"{_STATE}[1].initial_state[0].zero_data", None),
        "no data",
    ),
    Break(
        Rule.INITIAL_STATE,
        "sequence",
        set_field("sequence", f"{_STATE}[0].initial_state[0].dims", [2, 2]),
        "file too short",
    ),
    Break(
        Rule.INITIAL_STATE,
        "sequence",
        set_field("sequence", f"{_STATE}[0].initial_state[0].data_file", "none"),
        "no file",
    ),
    Break(
        Rule.INITIAL_STATE,
        "sequence",
        set_field("sequence", f"{_STATE}[1].input_name", "si"),
        "state twice",
    ),
    Break(
        Rule.INITIAL_STATE,
        "sequence",
        merge(
            "sequence",
            "sequence_batching { state { input_name: 'a' output_name: 'b' data_type: TYPE_INT8 dims: 1 initial_state { name: 'k' data_type: TYPE_INT8 dims: 1 zero_data: true } initial_state { name: 'l' data_type: TYPE_INT8 dims: 1 zero_data: true } } }",
        ),
        "two values",
    ),
)
"""The server ends itself instead of refusing these."""

DEADLY: Final = (
    Break(Rule.SEQUENCE_SLOTS, "direct", set_field("direct", "max_batch_size", 2**31 - 1)),
    Break(
        Rule.STATE_TENSOR,
        "sequence",
        merge(
            "sequence",
            "sequence_batching { state { input_name: 'a' output_name: 'b' data_type: TYPE_INT8 dims: -3 } }",
        ),
    ),
    Break(
        Rule.INSTANCE_PROFILE_NUMBER,
        "plan",
        set_field("plan", "instance_group[0].profile", ["99999999999"]),
    ),
    Break(Rule.INSTANCE_COUNT, "tok", set_field("tok", "instance_group[0].count", 1_000_000)),
    Break(
        Rule.WARMUP_SIZE,
        "tok",
        merge(
            "tok",
            'model_warmup { name: "v" batch_size: 4000000000 inputs { key: "TEXT" value { data_type: TYPE_STRING dims: 1 zero_data: true } } }',
        ),
    ),
)

REFUSED: Final = (*MODELS, *TENSORS, *BATCHING, *SEQUENCES, *INSTANCES, *ENSEMBLES)
"""Both sides refuse."""

ELSEWHERE: Final = {
    Rule.MODEL_NAME: "no folder can have such a name",
    Rule.METRICS: "the local Triton is older than the field (24.11)",
    Rule.RATE_LIMITER: "needs a server with --rate-limit=execution_count: a test of its own",
}
"""Rules that no mutation breaks on the one server, and why."""
