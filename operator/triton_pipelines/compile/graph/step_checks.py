"""Checks of single steps: batching, tokenizer, postprocess, models and their files."""

from __future__ import annotations

from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.postprocess import CLASSIFIERS, POOLINGS, PostprocessType
from triton_pipelines.api.python import Runner
from triton_pipelines.api.source import ModelSource
from triton_pipelines.api.steps import Platform, StepFields
from triton_pipelines.api.suggestions import did_you_mean
from triton_pipelines.api.tensors import DataType, TokenTensor
from triton_pipelines.api.tokenizer import Padding, TokenizerType
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .defaults import (
    DEFAULT_MAX_LENGTH,
    ENGINE_FILE,
    ENVIRONMENT_PARAMETER,
    POSTPROCESS,
    STRATEGY_PARAMETER,
    TOKENIZER,
    USUAL_NAMES,
)
from .graph import Graph, Implementation, Reference, Step
from .options import Options
from .source_checks import RESERVED_FILES, check_source, names_file
from .tensorrt_profiles import boxes, uncovered, unfit

FLOATS = (DataType.FP16, DataType.FP32, DataType.FP64, DataType.BF16)
INTEGERS = (DataType.INT32, DataType.INT64)


def check_batching(graph: Graph) -> Iterator[Finding]:
    """Batch sizes of the steps against each other and against what their batchers say."""
    for step in graph.steps:
        if graph.entry is None and graph.max_batch_size > step.max_batch_size > 0:
            yield Finding(
                "spec.ensemble.maxBatchSize",
                f"allows {graph.max_batch_size} rows, but {step.name} takes only {step.max_batch_size}; lower it or raise {step.path}.maxBatchSize",
                code=FindingCode.BATCH_SIZE_MISMATCH,
            )
    for step in graph.models:
        sizes = step.batching.preferred_batch_sizes if step.batching else ()
        for size in sizes:
            if size > step.max_batch_size:
                yield Finding(
                    f"{step.path}.dynamicBatching.preferredBatchSizes",
                    f"{size} is above maxBatchSize {step.max_batch_size}",
                    code=FindingCode.BATCH_SIZE_MISMATCH,
                )
        if step.sequences is not None:
            for size in step.sequences.preferred_batch_sizes:
                if size > max(step.max_batch_size, 1):
                    yield Finding(
                        f"{step.path}.sequenceBatching.preferredBatchSizes",
                        f"{size} is above maxBatchSize {step.max_batch_size}",
                        code=FindingCode.BATCH_SIZE_MISMATCH,
                    )


def check_tokenizer(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Token tensors and padding."""
    spec, step = pipeline.spec.tokenizer, graph.tokenizer
    if spec is None or step is None:
        return
    own = spec.type is TokenizerType.PYTHON
    for index, output in enumerate(spec.outputs):
        if (
            output.tensor is None
            and output.name.lower() not in USUAL_NAMES
            and (not own or output.dims is None)
        ):
            also = ", or dims" if own else ""
            yield Finding(
                f"spec.tokenizer.outputs[{index}].tensor",
                f"is needed{also}: {output.name!r} is no usual name; write one of {', '.join(TokenTensor)}",
                code=FindingCode.REQUIRED,
            )
    for reader in graph.steps:
        for entry in reader.inputs:
            reads = entry.source is not None and entry.source.step == step.name
            if (
                reads
                and not spec.outputs
                and entry.source is not None
                and entry.source.tensor.lower() not in USUAL_NAMES
            ):
                # Where the names differ, `from` is written already.
                said = (
                    f"write from, such as tokenizer.input_ids, or name {entry.source.tensor} under spec.tokenizer.outputs"
                    if entry.source.tensor == entry.tensor.name
                    else f"from may name {', '.join(USUAL_NAMES)}, or what spec.tokenizer.outputs declares"
                )
                yield Finding(
                    entry.path,
                    f"{entry.source.tensor!r} is no usual name of a token tensor; {said}"
                    + did_you_mean(entry.source.tensor, USUAL_NAMES),
                    code=FindingCode.UNKNOWN_TENSOR,
                )
    for tensor in step.outputs:
        if tensor.data_type not in INTEGERS:
            readers = (
                entry.path
                for other in graph.steps
                for entry in other.inputs
                if entry.source == Reference(step.name, tensor.name)
            )
            yield Finding(
                next(readers, "spec.tokenizer.outputs"),
                f"{tensor.name} is {tensor.data_type.value}; tokens are INT64 or INT32",
                code=FindingCode.DATA_TYPE_MISMATCH,
            )
    if step.instances.kind == "KIND_GPU":
        yield Finding(
            "spec.tokenizer.instances.kind",
            "the tokenizer runs on CPU: kind GPU would start one per GPU; write CPU, or leave it out",
            code=FindingCode.GPU_UNAVAILABLE,
        )
    yield from _text_shape(graph, step, own)
    yield from _padding(pipeline, graph)


def _text_shape(graph: Graph, step: Step, own: bool) -> Iterator[Finding]:
    if own:
        return
    for entry in step.inputs:
        made = graph.resolve(entry.source) if entry.source is not None else None
        dims = entry.tensor.dims if made is None else made.dims
        if step.max_batch_size > 0 and dims != (1,):
            yield Finding(
                entry.path,
                f"has dims {list(dims)}: the tokenizer reads one text per row, dims [1];"
                " for texts of shape [n] or [1, n] set maxBatchSize: 0 on tokenizer and model, whose dims then name the rows",
                code=FindingCode.SHAPE_MISMATCH,
            )


def _padding(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    yield from _profiles(pipeline, graph)
    if graph.padding is None or graph.padding.chosen is not Padding.RAGGED:
        return
    for path, why in graph.padding.stiff.items():
        yield Finding(
            "spec.tokenizer.padding",
            f"Ragged needs a model step that takes a request's own length; {path}: {why}: use Fixed, Bucketed or Auto",
            code=FindingCode.PADDING_UNSUPPORTED,
        )


def _profiles(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Every batch that padding makes has to lie in a profile of each TensorRT plan that reads tokens."""
    for step in graph.steps:
        count = len(step.lengths.profiles) if step.lengths is not None else 0
        for place, name in enumerate(step.instances.profiles):
            if count and int(name) >= count:
                yield Finding(
                    f"{step.path}.instances.profiles[{place}]",
                    f"{name} is none of the {count} profiles in {step.path}.lengths.profiles",
                    code=FindingCode.UNKNOWN_PROFILE,
                )
    tokenizer, choice = pipeline.spec.tokenizer, graph.padding
    if tokenizer is None or choice is None or choice.chosen is Padding.AUTO:
        return
    readers = [
        step
        for step in graph.steps
        if any(entry.source is not None and entry.source.step == TOKENIZER for entry in step.inputs)
    ]
    declared = [step for step in readers if step.lengths is not None and step.lengths.profiles]
    if choice.chosen is Padding.BUCKETED and not (tokenizer.buckets or declared or choice.measured):
        yield Finding(
            "spec.tokenizer.buckets",
            "padding Bucketed needs buckets: list them, or declare a TensorRT plan's lengths.profiles",
            code=FindingCode.REQUIRED,
        )
    longest = tokenizer.max_length or DEFAULT_MAX_LENGTH
    for step in declared:
        held, rows = boxes(step.lengths, step.instances.profiles), max(1, step.max_batch_size)
        told = f"no profile that {step.path} loads takes a batch of {{}} rows x {{}} tokens ({'; '.join(map(str, held)) or 'none'}); "
        if choice.chosen in (Padding.RAGGED, Padding.LONGEST):
            for tokens, gap in list(uncovered(held, longest, rows))[:1]:
                yield Finding(
                    "spec.tokenizer.padding",
                    told.format(gap, tokens) + "use Bucketed, or build a plan for all lengths",
                    code=FindingCode.LENGTH_NOT_COVERED,
                )
            continue
        for tokens in choice.buckets or (longest,):
            size = unfit(held, tokens, rows)
            if size is not None:
                written = tokens in tokenizer.buckets
                path = (
                    f"spec.tokenizer.buckets[{tokenizer.buckets.index(tokens)}]"
                    if written
                    else "spec.tokenizer.maxLength"
                )
                fix = "take a length of a profile, lower maxBatchSize to its rows, or name further profiles in instances.profiles"
                yield Finding(
                    path, told.format(size, tokens) + fix, code=FindingCode.LENGTH_NOT_COVERED
                )


def check_postprocess(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """What the postprocess reads must be what its type is made for."""
    post = pipeline.spec.postprocess
    step = graph.step(POSTPROCESS)
    if step is None or post.type is None or post.type is PostprocessType.PYTHON:
        return
    rows = 0 if step.max_batch_size > 0 else 1  # axes of rows in dims
    whole = " (with maxBatchSize 0 dims are the whole shape, rows first)" if rows else ""

    def shape(dims: str) -> str:
        return f"[-1, {dims}]" if rows else f"[{dims}]"

    read, source = step.inputs[0].tensor, step.inputs[0].source
    if source is not None and graph.resolve(source) is None:
        return  # told by the wiring
    if read.data_type not in FLOATS:
        yield Finding(
            "spec.postprocess.from",
            f"{post.type.value} reads numbers (FP16, BF16, FP32, FP64), but {source} is {read.data_type.value}",
            code=FindingCode.DATA_TYPE_MISMATCH,
        )
    if post.type in CLASSIFIERS:
        if len(read.dims) - rows not in (1, 2) or read.dims[-1] < 1:
            yield Finding(
                "spec.postprocess.from",
                f"{post.type.value} reads one score per class, dims {shape('C')}, or {shape('-1, C')} per token{whole}; {source} has {list(read.dims)}",
                code=FindingCode.SHAPE_MISMATCH,
            )
        elif post.labels and len(post.labels) != read.dims[-1]:
            yield Finding(
                "spec.postprocess.labels",
                f"has {len(post.labels)} labels, but {source} has {read.dims[-1]} classes; give one label per class",
                code=FindingCode.LABEL_COUNT,
            )
    if post.type in POOLINGS and (len(read.dims) - rows != 2 or read.dims[-1] < 1):
        yield Finding(
            "spec.postprocess.from",
            f"{post.type.value} reads one vector per token, dims {shape('-1, D')}{whole}; {source} has {list(read.dims)}",
            code=FindingCode.SHAPE_MISMATCH,
        )
    if post.type is PostprocessType.MEAN_POOLING:
        mask = step.inputs[1]
        if (
            mask.source is not None
            and graph.resolve(mask.source) is not None
            and mask.tensor.data_type not in INTEGERS
        ):
            yield Finding(
                "spec.postprocess.maskFrom",
                f"the mask must be INT64 or INT32, but {mask.source} is {mask.tensor.data_type.value}",
                code=FindingCode.DATA_TYPE_MISMATCH,
            )


def check_models(pipeline: InferencePipeline, graph: Graph, options: Options) -> Iterator[Finding]:
    """Model, further steps and auxiliary models, and own code wherever it stands."""
    spec = pipeline.spec
    fields: dict[str, StepFields] = {} if spec.model is None else {"spec.model": spec.model}
    fields |= {f"spec.steps[{index}]": step for index, step in enumerate(spec.steps)}
    fields |= {
        f"spec.auxiliaryModels[{index}]": step for index, step in enumerate(spec.auxiliary_models)
    }
    for step in graph.models:
        if step.implementation is Implementation.CODE and not options.custom_code_allowed:
            field = "python.code"
            yield Finding(
                f"{step.path}.{field}",
                "own code is forbidden by this operator (--custom-code=forbid); use a model file, or ask whoever runs the operator",
                code=FindingCode.FORBIDDEN,
            )
        if step.path in fields:
            yield from _model(fields[step.path], step, pipeline, options)


def _model(
    fields: StepFields, step: Step, pipeline: InferencePipeline, options: Options
) -> Iterator[Finding]:
    gpu = pipeline.spec.server.gpu
    no_gpu = gpu.count == 0
    if fields.platform is Platform.TENSORRT and step.instances.kind in ("KIND_CPU", "KIND_MODEL"):
        path = "spec.server.gpu.count" if no_gpu else f"{step.path}.instances.kind"
        yield Finding(
            path,
            "a TensorRT plan runs on GPUs only; ask for a GPU and leave instances.kind out",
            code=FindingCode.GPU_UNAVAILABLE,
        )
    if step.instances.kind == "KIND_GPU" and no_gpu and step.path != "spec.model":
        yield Finding(
            f"{step.path}.instances.kind",
            "GPU needs a GPU, but server.gpu.count is 0; set kind to CPU or ask for a GPU",
            code=FindingCode.GPU_UNAVAILABLE,
        )
    for index in step.instances.gpus:
        if gpu.claim_template is None and not no_gpu and index >= gpu.count:
            yield Finding(
                f"{step.path}.instances.gpus",
                f"names GPU {index}, but a pod has {gpu.count}, counted from 0; raise server.gpu.count",
                code=FindingCode.GPU_UNAVAILABLE,
            )
    if fields.instances.ranged and pipeline.spec.server.auto_complete == "Enabled":
        yield Finding(
            f"{step.path}.instances",
            "no step is scaled live with server.autoComplete Enabled; write count",
            code=FindingCode.NOT_SCALABLE,
        )
    for key in fields.parameters:
        if key == STRATEGY_PARAMETER:
            yield Finding(
                f"{step.path}.parameters",
                f"{key}: write batchStrategy instead, which sees to it that the library is there",
                code=FindingCode.FIELD_COMBINATION,
            )
        if (
            key == ENVIRONMENT_PARAMETER
            and fields.python is not None
            and fields.python.environment is not None
        ):
            yield Finding(
                f"{step.path}.parameters",
                f"{key} is what python.environment sets; remove one of them",
                code=FindingCode.FIELD_COMBINATION,
            )
        if key.startswith(RUNTIME_PARAMETER_PREFIX):
            yield Finding(
                f"{step.path}.parameters",
                f"{key!r}: names that start with {RUNTIME_PARAMETER_PREFIX!r} belong to the operator; choose another",
                code=FindingCode.RESERVED,
            )
    if step.implementation is Implementation.ONNX_RUNNER and step.source is None:
        yield Finding(
            f"{step.path}.source",
            "is needed: the runner runs an ONNX file",
            code=FindingCode.REQUIRED,
        )
    if (
        fields.python is not None
        and fields.python.runner is Runner.ONNX_RUNTIME
        and (fields.python.files or fields.python.environment)
    ):
        part = "files" if fields.python.files else "environment"
        yield Finding(
            f"{step.path}.python.{part}",
            "goes with own code only; the runner takes nothing beside its ONNX file",
            code=FindingCode.FIELD_COMBINATION,
        )
    if (
        fields.platform in (Platform.ONNX, Platform.TENSORRT, Platform.PYTORCH)
        and step.source is None
        and step.path != "spec.model"
    ):
        yield Finding(
            f"{step.path}.source",
            f"is needed: {fields.platform.value} runs a file",
            code=FindingCode.REQUIRED,
        )
    if (
        fields.platform is Platform.VLLM
        and step.source is None
        and not (fields.vllm and "model" in fields.vllm.engine_args)
    ):
        yield Finding(
            f"{step.path}.vllm.engineArgs",
            "names no model; set model to a name that vLLM knows, or give a source with the weights",
            code=FindingCode.REQUIRED,
        )
    yield from _versions(fields, step)
    yield from _strategy(fields, step)


def _versions(fields: StepFields, step: Step) -> Iterator[Finding]:
    policy, source = fields.version_policy, step.source
    pinned = fields.version is not None and fields.version != 1
    if policy is not None and not policy.default and (source is None or names_file(source)):
        yield Finding(
            f"{step.path}.versionPolicy",
            "needs a source that is a folder of numbered versions; a single file is version 1: remove it, or name the folder",
            code=FindingCode.VERSION_MISMATCH,
        )
    if pinned and (source is None or names_file(source)):
        yield Finding(
            f"{step.path}.version",
            f"pins version {fields.version}, but the source is a single file, which is version 1; remove it",
            code=FindingCode.VERSION_MISMATCH,
        )
    if (
        policy is not None
        and fields.version is not None
        and policy.specific
        and fields.version not in policy.specific
    ):
        served = ", ".join(map(str, sorted(policy.specific)))
        yield Finding(
            f"{step.path}.version",
            f"pins version {fields.version}, which versionPolicy.specific does not serve; it serves {served}",
            code=FindingCode.VERSION_MISMATCH,
        )


def _strategy(fields: StepFields, step: Step) -> Iterator[Finding]:
    if fields.batch_strategy is None:
        return
    if fields.batch_strategy.path is not None and step.source is None:
        yield Finding(
            f"{step.path}.batchStrategy.path",
            "names a library in the model's folder, but the step has no source that brings one; write source",
            code=FindingCode.REQUIRED,
        )
    if step.max_batch_size == 0:
        yield Finding(
            f"{step.path}.batchStrategy",
            "has nothing to decide with maxBatchSize 0; remove it",
            code=FindingCode.NO_EFFECT,
        )


def check_sources(graph: Graph) -> Iterator[Finding]:
    """Addresses, and files that would overwrite what the renderer writes."""
    given = {item.path: item.source for item in graph.fetches}
    for path, source in given.items():
        yield from check_source(source, path)
    models = {item.path for item in graph.fetches if item.kind is FetchKind.MODEL}
    for path, source in given.items():
        if (
            isinstance(source, ModelSource)
            and source.file_name is not None
            and path not in models
            and not names_file(source)
        ):
            yield Finding(
                f"{path}.fileName",
                "names a model's file; this source brings none: write path to name a file in it",
                code=FindingCode.FIELD_COMBINATION,
            )
    for step in graph.models:
        targets: dict[str, str] = {}
        for item in step.fetches:
            name = item.target.rsplit("/", 1)[-1]
            own = step.code is not None or any(other.slot == "code" for other in step.fetches)
            if own and item.slot != "code" and item.kind == "file" and name in RESERVED_FILES:
                yield Finding(
                    item.path,
                    f"brings a file {name}, where python.code stands; give the file another name",
                    code=FindingCode.FILE_CONFLICT,
                )
            if item.kind == "file" and name == ENGINE_FILE and step.files:
                yield Finding(
                    item.path,
                    f"brings a file {name}, which vllm.engineArgs is written to; give the file another name",
                    code=FindingCode.FILE_CONFLICT,
                )
            if item.kind == "file" and item.target in targets:
                yield Finding(
                    item.path,
                    f"is laid at {item.target}, where {targets[item.target]} is laid already; give it another path",
                    code=FindingCode.FILE_CONFLICT,
                )
            targets.setdefault(item.target, item.path)
