"""Is the graph one that Triton loads and that answers what the user means? All findings at once, each with its field.

The rules are Triton's own (ensemble_utils.cc, model_config_utils.cc; facts measured against Triton 24.10) and the few of this
product; a message says what to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.postprocess import CLASSIFIERS, POOLINGS, PostprocessType
from triton_pipelines.api.steps import DataType, Padding, Platform, TokenTensor
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .build import USUAL_NAMES
from .graph import PIPELINE, Graph, Implementation, Input, Reference, Tensor
from .options import Options
from .servercheck import check_server
from .sources import RESERVED_FILES, check_source

FLOATS = (DataType.FP16, DataType.FP32, DataType.FP64)
INTEGERS = (DataType.INT32, DataType.INT64)
BATCH_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
# Of the resource as JSON. What is rendered of it must fit one ConfigMap (1 MiB): quoting doubles a text at worst, and the
# operator's own files, the pod template and the load plan come on top.
SPEC_BYTES_MAX = 350_000


def check(pipeline: InferencePipeline, graph: Graph, options: Options) -> list[Finding]:
    """Everything that would keep this pipeline from loading or from answering rightly. Empty: it may be rendered."""
    return [
        *_wiring(graph),
        *_names(graph),
        *_batching(graph),
        *_tokenizer(pipeline, graph),
        *_postprocess(pipeline, graph),
        *_model(pipeline, graph, options),
        *_sources(graph),
        *check_server(pipeline, graph, options),
        *_size(pipeline),
    ]


def _wiring(graph: Graph) -> Iterator[Finding]:
    position = {step.name: index for index, step in enumerate(graph.steps)}
    for index, step in enumerate(graph.steps):
        for entry in step.inputs:
            made_by = entry.source.step
            if made_by != PIPELINE and made_by not in position:
                known = ", ".join([PIPELINE, *position])
                yield Finding(entry.path, f"from names the step {made_by!r}, which does not exist; known are {known}")
                continue
            if made_by != PIPELINE and position[made_by] >= index:
                yield Finding(entry.path, f"reads {entry.source}, which is made by the same or a later step; a step reads earlier steps only")
                continue
            made = graph.resolve(entry.source)
            if made is None:
                yield Finding(
                    entry.path,
                    f"reads {entry.source}, but {made_by} has no such {'input' if made_by == PIPELINE else 'output'}; it has {_have(graph, made_by)}",
                )
                continue
            yield from _fits(entry, made)

    for step in graph.steps:
        if not step.inputs or not any(reference.step == step.name for reference in _read(graph)):
            # Triton: an ensemble step needs both maps.
            yield Finding(
                step.path,
                f"no other step and no output of the pipeline reads what {step.name} makes; read one of {_have(graph, step.name)} with from",
            )
    public = {output.tensor.name for output in graph.outputs}
    for tensor in graph.inputs:
        if tensor.name in public:
            yield Finding("spec.tokenizer.inputs.text", f"{tensor.name!r} is an output of the pipeline, too; choose another name for the input")


def _read(graph: Graph) -> list[Reference]:
    """Every tensor that somebody reads: a step or a client."""
    return [*(entry.source for step in graph.steps for entry in step.inputs), *(output.source for output in graph.outputs)]


def _have(graph: Graph, name: str) -> str:
    step = graph.step(name)
    tensors: tuple[Tensor, ...] = graph.inputs if step is None else step.outputs
    return ", ".join(tensor.name for tensor in tensors) or "none"


def _fits(entry: Input, made: Tensor) -> Iterator[Finding]:
    read = entry.tensor
    if made.data_type is not read.data_type:
        yield Finding(
            entry.path,
            f"inconsistent data type: {read.name} reads {read.data_type.value}, but {entry.source} is {made.data_type.value}; declare the same dataType on both sides",
        )
    if len(made.dims) != len(read.dims):
        yield Finding(
            entry.path,
            f"inconsistent shape: {read.name} has dims {list(read.dims)}, but {entry.source} has {list(made.dims)}; the number of dims must be equal",
        )
    elif any(a != b and -1 not in (a, b) for a, b in zip(made.dims, read.dims, strict=True)):
        yield Finding(
            entry.path,
            f"inconsistent shape: {read.name} has dims {list(read.dims)}, but {entry.source} has {list(made.dims)}; only -1 fits any length",
        )


def _names(graph: Graph) -> Iterator[Finding]:
    seen: dict[str, str] = {graph.model_name: "spec.ensemble.modelName"}
    for step in graph.steps:
        if step.model_name in seen:
            default = " (metadata.name where that is left out)" if step.model_name == graph.model_name else ""
            yield Finding(
                f"{step.path}.modelName", f"{step.model_name!r} is already the name given by {seen[step.model_name]}{default}; choose another"
            )
        seen.setdefault(step.model_name, f"{step.path}.modelName")
        for tensor in [*[entry.tensor for entry in step.inputs], *step.outputs]:
            if 0 in tensor.dims:
                yield Finding(f"{step.path}", f"{tensor.name}: a dim must be at least 1, or -1 for any length")


def _batching(graph: Graph) -> Iterator[Finding]:
    for step in graph.steps:
        if graph.max_batch_size > step.max_batch_size:
            yield Finding(
                "spec.ensemble.maxBatchSize",
                f"allows {graph.max_batch_size} rows, but {step.name} takes only {step.max_batch_size}; lower it or raise {step.path}.maxBatchSize",
            )
        for size in step.batching.preferred_batch_sizes:
            if size > step.max_batch_size:
                yield Finding(f"{step.path}.dynamicBatching.preferredBatchSizes", f"{size} is above maxBatchSize {step.max_batch_size}")


def _tokenizer(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    spec = pipeline.spec.tokenizer
    step = graph.steps[0]
    for index, output in enumerate(spec.outputs):
        if output.tensor is None and output.name.lower() not in USUAL_NAMES:
            yield Finding(
                f"spec.tokenizer.outputs[{index}].tensor", f"is needed: {output.name!r} is no usual name; write one of {', '.join(TokenTensor)}"
            )
    for entry in graph.steps[1].inputs:
        if entry.source.step == step.name and not spec.outputs and entry.source.tensor.lower() not in USUAL_NAMES:
            yield Finding(
                entry.path, f"{entry.source.tensor!r} is no usual token tensor name; add from, or name the tensor under spec.tokenizer.outputs"
            )
    model = graph.steps[1]
    for tensor in step.outputs:
        if tensor.data_type not in INTEGERS:
            readers = (entry.path for entry in model.inputs if entry.source == Reference(step.name, tensor.name))
            yield Finding(next(readers, "spec.tokenizer.outputs"), f"{tensor.name} is {tensor.data_type.value}; tokens are INT64 or INT32")
    if graph.padding.chosen is Padding.RAGGED and not model.python:
        yield Finding(
            "spec.tokenizer.padding",
            f"Ragged needs a model step that takes a request's own length; {pipeline.spec.model.platform.value} batches equal shapes only: use Fixed, Bucketed, Longest or Auto",
        )


def _postprocess(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    post = pipeline.spec.postprocess
    step = graph.step("postprocess")
    if step is None or post.type is None:
        return
    read = step.inputs[0].tensor
    if read.data_type not in FLOATS:
        yield Finding(
            "spec.postprocess.from", f"{post.type.value} reads numbers (FP16, FP32, FP64), but {step.inputs[0].source} is {read.data_type.value}"
        )
    if post.type in CLASSIFIERS:
        if len(read.dims) != 1 or read.dims[0] < 1:
            yield Finding(
                "spec.postprocess.from", f"{post.type.value} reads one score per class, dims [C]; {step.inputs[0].source} has {list(read.dims)}"
            )
        elif post.labels and len(post.labels) != read.dims[0]:
            yield Finding(
                "spec.postprocess.labels",
                f"has {len(post.labels)} labels, but {step.inputs[0].source} has {read.dims[0]} classes; give one label per class",
            )
    if post.type in POOLINGS and (len(read.dims) != 2 or read.dims[1] < 1):
        yield Finding(
            "spec.postprocess.from", f"{post.type.value} reads one vector per token, dims [-1, D]; {step.inputs[0].source} has {list(read.dims)}"
        )
    if post.type is PostprocessType.MEAN_POOLING:
        mask = step.inputs[1]
        if graph.resolve(mask.source) is not None and mask.tensor.data_type not in INTEGERS:
            yield Finding("spec.postprocess.maskFrom", f"the mask must be INT64 or INT32, but {mask.source} is {mask.tensor.data_type.value}")


def _model(pipeline: InferencePipeline, graph: Graph, options: Options) -> Iterator[Finding]:
    spec = pipeline.spec.model
    if spec.platform is Platform.TENSORRT and graph.steps[1].instances.kind == "KIND_CPU":
        path = "spec.server.gpu.count" if pipeline.spec.server.gpu.count == 0 else "spec.model.instances.kind"
        yield Finding(path, "a TensorRT plan runs on GPUs only; ask for a GPU and leave instances.kind out")
    for key in spec.parameters:
        if key == BATCH_STRATEGY:
            yield Finding("spec.model.parameters", f"{key}: no such library is in the model's folder, and Triton would refuse to load it; remove it")
        if key.startswith(RUNTIME_PARAMETER_PREFIX):
            yield Finding(
                "spec.model.parameters", f"{key!r}: names that start with {RUNTIME_PARAMETER_PREFIX!r} belong to the operator; choose another"
            )
    if spec.python is not None and spec.python.code is not None and not options.custom_code_allowed:
        yield Finding(
            "spec.model.python.code",
            "own code is forbidden by this operator (--custom-code=forbid); use a model file, or ask whoever runs the operator",
        )


def _sources(graph: Graph) -> Iterator[Finding]:
    given = {step.source_path: step.source for step in graph.steps if step.source is not None}
    for path, source in given.items():
        yield from check_source(source, path)
    for step in graph.steps:
        if step.source is None or step.implementation is not Implementation.CODE:
            continue
        if step.file_name is None or step.file_name in (".", ".."):
            yield Finding(step.source_path, "names no file, and own code has no usual file name; name the file with path")
        elif step.file_name in RESERVED_FILES:
            yield Finding(step.source_path, f"brings a file {step.file_name}, where python.code stands; give the file another name")


def _size(pipeline: InferencePipeline) -> Iterator[Finding]:
    spec = pipeline.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    total = _bytes(spec)
    if total > SPEC_BYTES_MAX:
        parts = {f"spec.{name}.{key}": _bytes(value) for name, part in spec.items() if isinstance(part, dict) for key, value in part.items()}
        largest = max(parts, key=lambda name: parts[name])
        yield Finding(
            largest,
            f"the resource is {total} bytes long, {parts[largest]} of them here; what is made of it must fit one ConfigMap, so at most {SPEC_BYTES_MAX} go: shorten this",
        )


def _bytes(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str).encode())
