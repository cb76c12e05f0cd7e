"""Is the graph one that Triton loads and that answers what the user means? All findings at once, each with its field.

The rules are Triton's own (ensemble_utils.cc, model_config_utils.cc; facts measured against Triton 24.10) and the few of this
product; a message says what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.steps import CLASSIFIERS, POOLINGS, DataType, Padding, PostprocessType, TokenTensor
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .build import USUAL_NAMES
from .graph import PIPELINE, Graph, Implementation, Input, Step, Tensor
from .options import Options
from .server import OWNED_ARGUMENTS, OWNED_ENVIRONMENT, server_version

FLOOR_VERSION = (24, 8)
FLOATS = (DataType.FP16, DataType.FP32, DataType.FP64)
INTEGERS = (DataType.INT32, DataType.INT64)


def check(pipeline: InferencePipeline, graph: Graph, options: Options) -> list[Finding]:
    """Everything that would keep this pipeline from loading or from answering rightly. Empty: it may be rendered."""
    return [
        *_wiring(graph),
        *_names(graph),
        *_batching(graph),
        *_tokenizer(pipeline, graph),
        *_postprocess(pipeline, graph),
        *_model(pipeline, options),
        *_server(pipeline, options),
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
            yield Finding(
                f"{step.path}.modelName",
                f"{step.model_name!r} is already the name given by {seen[step.model_name]} (metadata.name where that is left out); choose another",
            )
        seen.setdefault(step.model_name, f"{step.path}.modelName")
        for kind, tensors in (("inputs", [entry.tensor for entry in step.inputs]), ("outputs", list(step.outputs))):
            names = [tensor.name for tensor in tensors]
            for name in sorted({name for name in names if names.count(name) > 1}):
                yield Finding(f"{step.path}.{kind}", f"the tensor name {name!r} stands more than once; each must be distinct")
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
    for tensor in step.outputs:
        if tensor.data_type not in INTEGERS:
            yield Finding("spec.tokenizer.outputs", f"{tensor.name} is {tensor.data_type.value}; tokens are INT64 or INT32")
    model = graph.steps[1]
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


def _model(pipeline: InferencePipeline, options: Options) -> Iterator[Finding]:
    spec = pipeline.spec.model
    for key in spec.parameters:
        if key.startswith(RUNTIME_PARAMETER_PREFIX):
            yield Finding(
                "spec.model.parameters", f"{key!r}: names that start with {RUNTIME_PARAMETER_PREFIX!r} belong to the operator; choose another"
            )
    if spec.python is not None and spec.python.code is not None and not options.custom_code_allowed:
        yield Finding(
            "spec.model.python.code",
            "own code is forbidden by this operator (--custom-code=forbid); use a model file, or ask whoever runs the operator",
        )


def _server(pipeline: InferencePipeline, options: Options) -> Iterator[Finding]:
    server = pipeline.spec.server
    image = server.image or options.server_image
    version = server_version(server.version, image)
    if version is None:
        yield Finding(
            "spec.server.version", f"is needed: the tag of the image {image} does not name a Triton release; write it as YY.MM, such as 24.10"
        )
    elif version < FLOOR_VERSION:
        yield Finding(
            "spec.server.version", f"{version[0]:02d}.{version[1]:02d} is too old: live scaling without reloads came with 24.08; use a newer image"
        )
    for index, argument in enumerate(server.args):
        flag = re.split(r"[=\s]", argument, maxsplit=1)[0]
        if flag in OWNED_ARGUMENTS:
            yield Finding(f"spec.server.args[{index}]", f"{flag} belongs to the operator; remove it")
        elif not argument.startswith("-"):
            yield Finding(f"spec.server.args[{index}]", f"{argument!r} is no flag; write --flag=value as one item")
    for index, variable in enumerate(server.env):
        if variable.name in OWNED_ENVIRONMENT:
            yield Finding(f"spec.server.env[{index}].name", f"{variable.name} belongs to the operator; remove it")
        if variable.value is not None and variable.value_from is not None:
            yield Finding(f"spec.server.env[{index}]", "has both value and valueFrom; write one of them")


def lint(pipeline: InferencePipeline, graph: Graph, options: Options) -> list[Finding]:
    """What works but is probably not meant: warnings with what to write instead. Never blocks."""
    return list(_lint(pipeline, graph, options))


def _lint(pipeline: InferencePipeline, graph: Graph, options: Options) -> Iterator[Finding]:
    from triton_pipelines.api.base import Severity, Switch

    def warn(path: str, message: str) -> Finding:
        return Finding(path, message, Severity.WARNING)

    for step in graph.steps:
        if step.batching.mode is Switch.DISABLED and step.max_batch_size > 1:
            yield warn(
                f"{step.path}.dynamicBatching.mode",
                f"batching is off: {step.name} runs request by request; leave it on unless answers depend on their company",
            )
        source = step.source
        if source is not None and source.revision is None and source.sha256 is None and source.uri.split("://")[0] in ("hf", "https", "s3"):
            yield warn(
                f"{step.path}.source",
                f"{source.uri} is not pinned: what it holds may change; add revision or sha256 (this pipeline revision keeps what it resolved to first)",
            )
    model: Step = graph.steps[1]
    if graph.padding.chosen in (Padding.LONGEST, Padding.BUCKETED) and not model.python:
        yield warn(
            "spec.tokenizer.padding",
            f"{graph.padding.chosen.value} gives requests different lengths, and the model step batches equal lengths only; Fixed or Auto batches all of them",
        )
    if graph.padding.chosen is Padding.LONGEST and model.implementation is Implementation.ONNX_RUNNER:
        yield warn("spec.tokenizer.padding", "Longest computes padding that Ragged does not; leave padding out")
    if model.platform == "tensorrt_plan" and not pipeline.spec.server.gpu.products:
        yield warn(
            "spec.server.gpu.products",
            "a TensorRT plan runs only on the GPU model it was built for; name the product so that pods do not land elsewhere",
        )
    if model.platform == "tensorrt_plan" and pipeline.spec.server.image is None:
        yield warn("spec.server.image", "a TensorRT plan runs only on the TensorRT version it was built with; pin the image")
    batching = graph.steps[0].batching
    if batching.mode is Switch.ENABLED and (batching.queue_policy is None or not batching.queue_policy.max_queue_size):
        yield warn(
            "spec.tokenizer.dynamicBatching.queuePolicy",
            "the queue is unbounded: under overload every request waits; set maxQueueSize and a timeout to shed load early",
        )
