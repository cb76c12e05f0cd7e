"""Hypothesis strategies for the config of one model.

They cover every field of ModelConfig. The config is valid except for faults that are injected
elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

Draw = st.DrawFn

TYPES: Final = tuple(number for number in pb.DataType.values() if number != pb.TYPE_INVALID)
BACKENDS: Final = ("null", "null", "null", "onnxruntime", "tensorrt", "pytorch", "vllm")
_PLATFORMS: Final = {
    "tensorrt": "tensorrt_plan",
    "onnxruntime": "onnxruntime_onnx",
    "pytorch": "pytorch_libtorch",
}
_NAMES: Final = st.sampled_from(
    (
        "x",
        "y",
        "INPUT_IDS",
        "attention_mask",
        "a.b",
        "a b",
        "x/0",
        'q"uote',
        "tä",
        "back\\slash",
        "0",
        "__",
    )
)
_CONTROL: Final = pb.ModelSequenceBatching.Control


def dims(low: int = 1, high: int = 3) -> st.SearchStrategy[list[int]]:
    """Shapes of small sizes, some of them variable."""
    return st.lists(st.sampled_from((1, 2, 3, 4, 8, -1)), min_size=low, max_size=high)


def chance(draw: Draw, percent: int) -> bool:
    """True in about ``percent`` of a hundred draws; shrinks to False."""
    return draw(st.integers(0, 99)) >= 100 - percent


def tensor_names(draw: Draw, low: int, high: int) -> list[str]:
    """Distinct tensor names, odd ones among them."""
    return draw(st.lists(_NAMES, min_size=low, max_size=high, unique=True))


def tensor(
    draw: Draw,
    target: Any,
    name: str,
    data_type: int,
    shape: list[int],
    *,
    batching: bool,
    tensorrt: bool,
    output: bool,
) -> None:
    """Fill one input or output."""
    target.name, target.data_type = name, data_type
    target.dims.extend(shape)
    if chance(draw, 20):
        _reshape(draw, target, shape, batching)
    if tensorrt and chance(draw, 15):
        target.is_shape_tensor = True
    if tensorrt and len(shape) == 3 and chance(draw, 20):
        target.is_non_linear_format_io = True
    if output:
        return
    if len(shape) == 3 and chance(draw, 20):
        target.format = draw(
            st.sampled_from((pb.ModelInput.FORMAT_NCHW, pb.ModelInput.FORMAT_NHWC))
        )
    target.allow_ragged_batch = chance(draw, 15)
    target.optional = chance(draw, 15)


def _reshape(draw: Draw, target: Any, shape: list[int], batching: bool) -> None:
    """Return another shape with as many elements: sizes of 1 added or removed, neighbors joined."""
    target.reshape.SetInParent()
    if batching and all(dim == 1 for dim in shape) and chance(draw, 50):
        return
    new: list[int] = []
    for dim in shape:
        if new and new[-1] > 0 and dim > 0 and chance(draw, 30):
            new[-1] *= dim
        elif dim != 1 or chance(draw, 50):
            new.append(dim)
        if chance(draw, 20):
            new.append(1)
    target.reshape.shape.extend(new or [1])


def decorate(draw: Draw, config: Any, files: dict[str, bytes]) -> None:
    """Draw everything of a model that has its tensors and ``max_batch_size`` but no backend.

    ``files`` receives the files that it needs.
    """
    config.backend = draw(st.sampled_from(BACKENDS))
    if chance(draw, 50):
        config.platform = _PLATFORMS.get(config.backend, "")
    if chance(draw, 10) and config.backend in _PLATFORMS:
        config.platform, config.backend = _PLATFORMS[config.backend], ""
    if chance(draw, 10) and config.backend:
        config.runtime = f"libtriton_{config.backend}.so"
    if chance(draw, 10):
        config.default_model_filename = draw(
            st.sampled_from(("model.bin", "model.onnx", "dir/model"))
        )
    scheduler = draw(st.sampled_from(("", "dynamic", "dynamic", "direct", "oldest", "sequence")))
    if scheduler == "dynamic":
        _dynamic(draw, config)
    elif scheduler:
        _sequence(draw, config, scheduler, files)
    _versions(draw, config, files)
    _instances(draw, config)
    if not config.HasField("sequence_batching"):
        _warmup(draw, config, files)
    _batch_io(draw, config)
    _rest(draw, config, files)


def _queue_policy(draw: Draw, policy: Any, ordered: bool) -> None:
    policy.timeout_action = draw(
        st.sampled_from((pb.ModelQueuePolicy.REJECT, pb.ModelQueuePolicy.DELAY))
    )
    if not ordered or policy.timeout_action == pb.ModelQueuePolicy.REJECT:
        policy.default_timeout_microseconds = draw(st.sampled_from((0, 1, 100_000)))
    policy.allow_timeout_override = draw(st.booleans())
    policy.max_queue_size = draw(st.sampled_from((0, 1, 128)))


def _sizes(draw: Draw, config: Any) -> list[int]:
    return (
        draw(st.lists(st.integers(1, config.max_batch_size), max_size=3))
        if config.max_batch_size
        else []
    )


def _dynamic(draw: Draw, config: Any) -> None:
    batching = config.dynamic_batching
    batching.SetInParent()
    batching.preferred_batch_size.extend(_sizes(draw, config))
    batching.max_queue_delay_microseconds = draw(st.sampled_from((0, 100, 10**9)))
    batching.preserve_ordering = chance(draw, 30)
    if chance(draw, 50):
        levels = 1 if batching.preserve_ordering else draw(st.integers(1, 4))
        batching.priority_levels = levels
        batching.default_priority_level = draw(st.integers(1, levels))
        for level in draw(st.lists(st.integers(1, levels), max_size=2, unique=True)):
            _queue_policy(draw, batching.priority_queue_policy[level], batching.preserve_ordering)
    if chance(draw, 50):
        _queue_policy(draw, batching.default_queue_policy, batching.preserve_ordering)


def _sequence(draw: Draw, config: Any, strategy: str, files: dict[str, bytes]) -> None:
    batching = config.sequence_batching
    batching.SetInParent()
    if strategy == "direct":
        batching.direct.minimum_slot_utilization = draw(st.sampled_from((0.0, 0.5, 1.0)))
        batching.direct.max_queue_delay_microseconds = draw(st.sampled_from((0, 100)))
    elif strategy == "oldest":
        batching.oldest.max_candidate_sequences = draw(st.sampled_from((0, 1, 4, 16)))
        batching.oldest.preferred_batch_size.extend(_sizes(draw, config))
        batching.oldest.preserve_ordering = draw(st.booleans())
        batching.oldest.max_queue_delay_microseconds = draw(st.sampled_from((0, 100)))
    batching.max_sequence_idle_microseconds = draw(st.sampled_from((0, 1_000, 60_000_000)))
    batching.iterative_sequence = chance(draw, 20)
    for kind in draw(st.lists(st.sampled_from(_CONTROL.Kind.values()), max_size=4, unique=True)):
        tensor = batching.control_input.add(name=f"control-{kind}")
        control = tensor.control.add(kind=kind)
        if kind == _CONTROL.CONTROL_SEQUENCE_CORRID:
            control.data_type = draw(
                st.sampled_from(
                    (pb.TYPE_UINT64, pb.TYPE_INT64, pb.TYPE_UINT32, pb.TYPE_INT32, pb.TYPE_STRING)
                )
            )
        else:
            field = draw(
                st.sampled_from(("int32_false_true", "fp32_false_true", "bool_false_true"))
            )
            getattr(control, field).extend([0, 1])
    for index in range(draw(st.integers(0, 2))):
        _state(
            draw,
            batching.state.add(input_name=f"in-{index}", output_name=f"out-{index}"),
            index,
            files,
        )


def _state(draw: Draw, state: Any, index: int, files: dict[str, bytes]) -> None:
    state.data_type = draw(st.sampled_from(TYPES))
    state.dims.extend(draw(dims()))
    state.use_same_buffer_for_input_output = chance(draw, 20)
    if not chance(draw, 50):
        return
    initial = state.initial_state.add(name=f"initial-{index}", data_type=state.data_type)
    initial.dims.extend(2 if dim == -1 else dim for dim in state.dims)
    if chance(draw, 50):
        initial.zero_data = True
    else:
        initial.data_file = f"state-{index}"
        files[f"initial_state/{initial.data_file}"] = bytes(8 * 2 ** len(initial.dims) * 64)


def _versions(draw: Draw, config: Any, files: dict[str, bytes]) -> None:
    folders = draw(st.sampled_from(((1,), (1,), (1, 2), (0, 7))))
    files |= {f"{folder}/": b"" for folder in folders}
    choice = draw(st.sampled_from(("", "", "latest", "all", "specific", "empty")))
    if choice == "latest":
        config.version_policy.latest.num_versions = draw(st.integers(1, 3))
    elif choice == "all":
        config.version_policy.all.SetInParent()
    elif choice == "specific":
        config.version_policy.specific.versions.extend(
            [folders[0], 99] if chance(draw, 20) else [folders[0]]
        )
    elif choice == "empty":
        config.version_policy.SetInParent()


def _instances(draw: Draw, config: Any) -> None:
    group_type = pb.ModelInstanceGroup
    for _ in range(draw(st.sampled_from((0, 1, 1, 2)))):
        kind = draw(
            st.sampled_from((group_type.KIND_CPU, group_type.KIND_MODEL, group_type.KIND_AUTO))
        )
        group = config.instance_group.add(kind=kind, count=draw(st.sampled_from((-1, 0, 1, 2))))
        group.name = draw(st.sampled_from(("", "group")))
        group.passive = chance(draw, 10)
        group.host_policy = draw(st.sampled_from(("", "", "numa-1")))
        if config.backend == "tensorrt" and chance(draw, 40):
            group.profile.extend(draw(st.lists(st.sampled_from(("0", "1", "7")), max_size=2)))
        if chance(draw, 15):
            group.secondary_devices.add(
                kind=group.SecondaryDevice.KIND_NVDLA, device_id=draw(st.integers(0, 1))
            )
        if chance(draw, 15):
            group.rate_limiter.priority = 2
            resource = group.rate_limiter.resources.add(name="R", count=draw(st.integers(1, 3)))
            setattr(resource, "global", draw(st.booleans()))


def _warmup(draw: Draw, config: Any, files: dict[str, bytes]) -> None:
    """Draw samples of all required inputs.

    In Triton's warm-up, shape tensors have their own batch dimension, so a model with shape tensors
    gets no samples.
    """
    if any(tensor.is_shape_tensor for tensor in config.input):
        return
    for number in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        sample = config.model_warmup.add(
            name=f"sample-{number}",
            batch_size=draw(st.sampled_from((0, 1, 2))),
            count=draw(st.integers(0, 2)),
        )
        for tensor in config.input:
            if tensor.optional and chance(draw, 50):
                continue
            given = sample.inputs[tensor.name]
            given.data_type = tensor.data_type
            given.dims.extend(2 if dim == -1 else dim for dim in tensor.dims)
            source = draw(st.sampled_from(("zero_data", "random_data", "file")))
            if source != "file" or tensor.data_type == pb.TYPE_STRING:
                setattr(given, "zero_data" if source == "file" else source, True)
            else:
                given.input_data_file = "sample"
                files["warmup/sample"] = bytes(8 * 8**3)


def _batch_io(draw: Draw, config: Any) -> None:
    names, outputs = (
        [tensor.name for tensor in config.input],
        [tensor.name for tensor in config.output],
    )
    if names and chance(draw, 15):
        batch = config.batch_input.add(kind=draw(st.sampled_from(pb.BatchInput.Kind.values())))
        batch.data_type = draw(st.sampled_from((pb.TYPE_INT32, pb.TYPE_FP32)))
        batch.target_name.extend(draw(st.lists(st.just("lengths"), max_size=1)))
        batch.source_input.append(draw(st.sampled_from(names)))
    if names and outputs and chance(draw, 15):
        output = config.batch_output.add(kind=pb.BatchOutput.BATCH_SCATTER_WITH_INPUT_SHAPE)
        output.target_name.append(draw(st.sampled_from(outputs)))
        output.source_input.append(draw(st.sampled_from(names)))


def _rest(draw: Draw, config: Any, files: dict[str, bytes]) -> None:
    if chance(draw, 10):
        config.model_transaction_policy.decoupled = True
    elif not config.HasField("sequence_batching") and chance(draw, 20):
        config.response_cache.enable = True
    if chance(draw, 25):
        _optimization(draw, config.optimization)
    for key in draw(
        st.lists(
            st.sampled_from(("EXECUTION_ENV_PATH", "k", "ä b", "x.y")), max_size=2, unique=True
        )
    ):
        config.parameters[key].string_value = draw(
            st.sampled_from(("", "1", 'a "quoted" text', "line\nbreak", "${X}", "\\"))
        )
    for key in draw(st.lists(st.sampled_from(("tag", "team")), max_size=1)):
        config.metric_tags[key] = "v"
    if config.output and chance(draw, 20):
        draw(st.sampled_from(list(config.output))).label_filename = "labels.txt"
        files["labels.txt"] = b"no\nyes\n"
    if chance(draw, 10):
        config.model_operations.op_library_filename.append("libops.so")
    if chance(draw, 10):
        config.cc_model_filenames["8.0"] = "model80.plan"


def _optimization(draw: Draw, target: Any) -> None:
    target.SetInParent()
    target.priority = draw(st.sampled_from(pb.ModelOptimizationPolicy.ModelPriority.values()))
    target.eager_batching = draw(st.booleans())
    target.gather_kernel_buffer_threshold = draw(st.sampled_from((0, 2)))
    target.input_pinned_memory.enable = draw(st.booleans())
    if chance(draw, 30):
        target.graph.level = draw(st.integers(-1, 2))
    if chance(draw, 30):
        target.cuda.graphs = True
        spec = target.cuda.graph_spec.add(batch_size=draw(st.integers(0, 4)))
        spec.input["x"].dim.append(2)
    if chance(draw, 40):
        accelerator = target.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
        accelerator.parameters["precision_mode"] = draw(st.sampled_from(("FP32", "FP16", "INT8")))
