"""Checks of single steps: batching, tokenizer, postprocess, models and their files."""

from __future__ import annotations

from collections.abc import Iterator

from triton_pipelines.api.base import Finding, Switch
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.postprocess import CLASSIFIERS, POOLINGS, Postprocess, PostprocessType
from triton_pipelines.api.python import Runner
from triton_pipelines.api.source import ModelSource, SourceSpec
from triton_pipelines.api.steps import Platform, StepFields
from triton_pipelines.api.suggestions import did_you_mean
from triton_pipelines.api.tensors import DataType, TokenTensor
from triton_pipelines.api.tokenizer import Padding, Tokenizer, TokenizerType
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
from .graph import Graph, Implementation, Input, PaddingChoice, Reference, Step
from .options import Options
from .server_checks import FIXED_COUNTS
from .source_checks import RESERVED_FILES, check_source, names_file
from .tensorrt_profiles import boxes, uncovered, unfit

FLOATS = (DataType.FP16, DataType.FP32, DataType.FP64, DataType.BF16)
INTEGERS = (DataType.INT32, DataType.INT64)


def check_batching(graph: Graph) -> Iterator[Finding]:
    """Yield batch sizes that contradict each other or the settings of a batcher."""
    for step in graph.steps:
        if graph.entry is None and graph.max_batch_size > step.max_batch_size > 0:
            yield Finding(
                "spec.ensemble.maxBatchSize",
                f"allows {graph.max_batch_size} rows, but {step.name} accepts only"
                f" {step.max_batch_size}; lower it or raise {step.path}.maxBatchSize",
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
    """Yield what is wrong with the tokenizer, its tensors and the padding."""
    spec, step = pipeline.spec.tokenizer, graph.tokenizer
    if spec is None or step is None:
        return
    custom = spec.type is TokenizerType.PYTHON
    yield from _declared_outputs(spec, custom)
    if not spec.outputs:
        yield from _undeclared_outputs(graph, step)
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
            "the tokenizer runs on CPU, and kind GPU would start one process per GPU;"
            " write CPU, or omit kind",
            code=FindingCode.GPU_UNAVAILABLE,
        )
    yield from _text_shape(graph, step, custom)
    yield from _padding(pipeline, graph)


def _declared_outputs(spec: Tokenizer, custom: bool) -> Iterator[Finding]:
    """Yield declared outputs of which it is unknown what they carry."""
    for index, output in enumerate(spec.outputs):
        unknown = output.tensor is None and output.name.lower() not in USUAL_NAMES
        if unknown and (not custom or output.dims is None):
            alternative = ", or dims" if custom else ""
            yield Finding(
                f"spec.tokenizer.outputs[{index}].tensor",
                f"is required{alternative}: {output.name!r} is not a known name;"
                f" write one of {', '.join(TokenTensor)}",
                code=FindingCode.REQUIRED,
            )


def _undeclared_outputs(graph: Graph, tokenizer: Step) -> Iterator[Finding]:
    """Yield inputs that read a token tensor of unknown name."""
    for entry in (entry for reader in graph.steps for entry in reader.inputs):
        source = entry.source
        if source is None or source.step != tokenizer.name or source.tensor.lower() in USUAL_NAMES:
            continue
        # Where the names differ, `from` is written already.
        fix = (
            f"write from, such as tokenizer.input_ids, or declare {source.tensor}"
            " in spec.tokenizer.outputs"
            if source.tensor == entry.tensor.name
            else f"from may name {', '.join(USUAL_NAMES)}, or an output that"
            " spec.tokenizer.outputs declares"
        )
        yield Finding(
            entry.path,
            f"{source.tensor!r} is not a known name of a token tensor; {fix}"
            + did_you_mean(source.tensor, USUAL_NAMES),
            code=FindingCode.UNKNOWN_TENSOR,
        )


def _text_shape(graph: Graph, step: Step, custom: bool) -> Iterator[Finding]:
    if custom:
        return
    for entry in step.inputs:
        made = graph.resolve(entry.source) if entry.source is not None else None
        dims = entry.tensor.dims if made is None else made.dims
        if step.max_batch_size > 0 and dims != (1,):
            yield Finding(
                entry.path,
                f"has dims {list(dims)}, but the tokenizer reads one text per row, dims [1];"
                " for texts of shape [n] or [1, n] set maxBatchSize: 0 on tokenizer and model,"
                " whose dims then include the rows",
                code=FindingCode.SHAPE_MISMATCH,
            )


def _padding(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    yield from _profiles(pipeline, graph)
    if graph.padding is None or graph.padding.chosen is not Padding.RAGGED:
        return
    for path, why in graph.padding.fixed_length.items():
        yield Finding(
            "spec.tokenizer.padding",
            f"Ragged needs steps that accept requests of any length, but {path} does not"
            f" ({why}); use Fixed, Bucketed or Auto",
            code=FindingCode.PADDING_UNSUPPORTED,
        )


def _profiles(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Check that each TensorRT plan that reads tokens has a profile for every padded batch."""
    for step in graph.steps:
        yield from _unknown_profiles(step)
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
            "padding Bucketed needs buckets: list them,"
            " or declare lengths.profiles of a TensorRT plan",
            code=FindingCode.REQUIRED,
        )
    for step in declared:
        yield from _uncovered_lengths(step, tokenizer, choice)


def _unknown_profiles(step: Step) -> Iterator[Finding]:
    count = len(step.lengths.profiles) if step.lengths is not None else 0
    for place, name in enumerate(step.instances.profiles):
        if count and int(name) >= count:
            yield Finding(
                f"{step.path}.instances.profiles[{place}]",
                f"{name} is not an index of the {count} profiles in {step.path}.lengths.profiles",
                code=FindingCode.UNKNOWN_PROFILE,
            )


def _uncovered_lengths(
    step: Step, tokenizer: Tokenizer, choice: PaddingChoice
) -> Iterator[Finding]:
    """Yield the batches that no loaded profile of a plan accepts."""
    longest = tokenizer.max_length or DEFAULT_MAX_LENGTH
    profiles, rows = boxes(step.lengths, step.instances.profiles), max(1, step.max_batch_size)

    def finding(path: str, size: int, tokens: int, fix: str) -> Finding:
        loaded = "; ".join(map(str, profiles)) or "none"
        return Finding(
            path,
            f"no profile that {step.path} loads accepts a batch of {size} rows x {tokens} tokens"
            f" ({loaded}); {fix}",
            code=FindingCode.LENGTH_NOT_COVERED,
        )

    if choice.chosen in (Padding.RAGGED, Padding.LONGEST):
        for tokens, gap in list(uncovered(profiles, longest, rows))[:1]:
            yield finding(
                "spec.tokenizer.padding",
                gap,
                tokens,
                "use Bucketed, or build a plan for all lengths",
            )
        return
    for tokens in choice.buckets or (longest,):
        size = unfit(profiles, tokens, rows)
        if size is None:
            continue
        path = (
            f"spec.tokenizer.buckets[{tokenizer.buckets.index(tokens)}]"
            if tokens in tokenizer.buckets
            else "spec.tokenizer.maxLength"
        )
        yield finding(
            path,
            size,
            tokens,
            "use a length of a profile, lower maxBatchSize to its rows,"
            " or add profiles to instances.profiles",
        )


def check_postprocess(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Yield what the type of the postprocess step cannot read."""
    post = pipeline.spec.postprocess
    step = graph.step(POSTPROCESS)
    if step is None or post.type is None or post.type is PostprocessType.PYTHON:
        return
    read, source = step.inputs[0].tensor, step.inputs[0].source
    if source is not None and graph.resolve(source) is None:
        return  # The wiring reports it.
    if read.data_type not in FLOATS:
        yield Finding(
            "spec.postprocess.from",
            f"{post.type.value} reads FP16, BF16, FP32 or FP64, but {source} is"
            f" {read.data_type.value}",
            code=FindingCode.DATA_TYPE_MISMATCH,
        )
    yield from _postprocess_shape(post, step)
    if post.type is PostprocessType.MEAN_POOLING:
        yield from _mask_type(graph, step.inputs[1])


def _postprocess_shape(post: Postprocess, step: Step) -> Iterator[Finding]:
    assert post.type is not None
    batched = step.max_batch_size > 0
    read, source = step.inputs[0].tensor, step.inputs[0].source
    axes = len(read.dims) if batched else len(read.dims) - 1
    note = "" if batched else " (with maxBatchSize 0 dims are the whole shape, rows first)"

    def shape(dims: str) -> str:
        return f"[{dims}]" if batched else f"[-1, {dims}]"

    expected = ""
    if post.type in CLASSIFIERS and (axes not in (1, 2) or read.dims[-1] < 1):
        expected = f"one score per class, dims {shape('C')}, or {shape('-1, C')} per token"
    elif post.type in POOLINGS and (axes != 2 or read.dims[-1] < 1):
        expected = f"one vector per token, dims {shape('-1, D')}"
    if expected:
        yield Finding(
            "spec.postprocess.from",
            f"{post.type.value} reads {expected}{note}; {source} has {list(read.dims)}",
            code=FindingCode.SHAPE_MISMATCH,
        )
    elif post.type in CLASSIFIERS and post.labels and len(post.labels) != read.dims[-1]:
        yield Finding(
            "spec.postprocess.labels",
            f"has {len(post.labels)} labels, but {source} has {read.dims[-1]} classes;"
            " write one label per class",
            code=FindingCode.LABEL_COUNT,
        )


def _mask_type(graph: Graph, mask: Input) -> Iterator[Finding]:
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
    """Yield what is wrong with the model, further steps and auxiliary models, and custom code."""
    spec = pipeline.spec
    fields: dict[str, StepFields] = {} if spec.model is None else {"spec.model": spec.model}
    fields |= {f"spec.steps[{index}]": step for index, step in enumerate(spec.steps)}
    fields |= {
        f"spec.auxiliaryModels[{index}]": step for index, step in enumerate(spec.auxiliary_models)
    }
    for step in graph.models:
        if step.implementation is Implementation.CODE and not options.custom_code_allowed:
            yield Finding(
                f"{step.path}.python.code",
                "custom code is forbidden by this operator (--custom-code=forbid);"
                " use a model file, or ask the operator's administrator",
                code=FindingCode.FORBIDDEN,
            )
        if step.path in fields:
            declared = fields[step.path]
            yield from _placement(declared, step, pipeline)
            yield from _parameters(declared, step)
            yield from _needed_files(declared, step)
            yield from _versions(declared, step)
            yield from _strategy(declared, step)


def _placement(fields: StepFields, step: Step, pipeline: InferencePipeline) -> Iterator[Finding]:
    """Yield instances that cannot run where they are placed, or cannot be scaled."""
    gpu = pipeline.spec.server.gpu
    no_gpu = gpu.count == 0
    if fields.platform is Platform.TENSORRT and step.instances.kind in ("KIND_CPU", "KIND_MODEL"):
        yield Finding(
            "spec.server.gpu.count" if no_gpu else f"{step.path}.instances.kind",
            "a TensorRT plan runs only on GPUs; request a GPU and omit instances.kind",
            code=FindingCode.GPU_UNAVAILABLE,
        )
    if step.instances.kind == "KIND_GPU" and no_gpu and step.path != "spec.model":
        yield Finding(
            f"{step.path}.instances.kind",
            "GPU needs a GPU, but server.gpu.count is 0; set kind to CPU or request a GPU",
            code=FindingCode.GPU_UNAVAILABLE,
        )
    for index in step.instances.gpus:
        if gpu.claim_template is None and not no_gpu and index >= gpu.count:
            yield Finding(
                f"{step.path}.instances.gpus",
                f"GPU {index} does not exist: a pod has {gpu.count}, counted from 0;"
                " raise server.gpu.count",
                code=FindingCode.GPU_UNAVAILABLE,
            )
    if fields.instances.ranged and pipeline.spec.server.auto_complete is Switch.ENABLED:
        yield Finding(f"{step.path}.instances", FIXED_COUNTS, code=FindingCode.NOT_SCALABLE)


def _parameters(fields: StepFields, step: Step) -> Iterator[Finding]:
    """Yield parameters that another field or the operator sets."""
    path = f"{step.path}.parameters"
    for key in fields.parameters:
        if key == STRATEGY_PARAMETER:
            yield Finding(
                path,
                f"{key} is set by batchStrategy, which also provides the library;"
                " write batchStrategy instead",
                code=FindingCode.FIELD_COMBINATION,
            )
        if (
            key == ENVIRONMENT_PARAMETER
            and fields.python is not None
            and fields.python.environment is not None
        ):
            yield Finding(
                path,
                f"{key} is set by python.environment; remove one of them",
                code=FindingCode.FIELD_COMBINATION,
            )
        if key.startswith(RUNTIME_PARAMETER_PREFIX):
            yield Finding(
                path,
                f"{key!r} is reserved: names that start with {RUNTIME_PARAMETER_PREFIX!r} belong"
                " to the operator; choose another name",
                code=FindingCode.RESERVED,
            )


def _needed_files(fields: StepFields, step: Step) -> Iterator[Finding]:
    """Yield sources and model names that a step's platform or runner needs, or cannot use."""
    if step.implementation is Implementation.ONNX_RUNNER and step.source is None:
        yield Finding(
            f"{step.path}.source",
            "is required: the runner runs an ONNX file",
            code=FindingCode.REQUIRED,
        )
    python = fields.python
    if python is not None and python.runner is Runner.ONNX_RUNTIME:
        for part, given in (("files", python.files), ("environment", python.environment)):
            if given:
                yield Finding(
                    f"{step.path}.python.{part}",
                    "needs custom code; the runner uses nothing but its ONNX file",
                    code=FindingCode.FIELD_COMBINATION,
                )
                break
    if (
        fields.platform in (Platform.ONNX, Platform.TENSORRT, Platform.PYTORCH)
        and step.source is None
        and step.path != "spec.model"
    ):
        yield Finding(
            f"{step.path}.source",
            f"is required: {fields.platform.value} runs a file",
            code=FindingCode.REQUIRED,
        )
    named = fields.vllm is not None and "model" in fields.vllm.engine_args
    if fields.platform is Platform.VLLM and step.source is None and not named:
        yield Finding(
            f"{step.path}.vllm.engineArgs",
            "has no model; set model to a name that vLLM knows, or add a source with the weights",
            code=FindingCode.REQUIRED,
        )


def _versions(fields: StepFields, step: Step) -> Iterator[Finding]:
    policy, source = fields.version_policy, _versioned_source(fields, step)
    pinned = fields.version is not None and fields.version != 1
    if policy is not None and not policy.default and (source is None or names_file(source)):
        yield Finding(
            f"{step.path}.versionPolicy",
            "needs a source that is a folder of numbered versions, but a single file is version 1;"
            " remove it, or name the folder",
            code=FindingCode.VERSION_MISMATCH,
        )
    if pinned and (source is None or names_file(source)):
        yield Finding(
            f"{step.path}.version",
            f"pins version {fields.version}, but the source is a single file, which is version 1;"
            " remove it",
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
            f"pins version {fields.version}, but versionPolicy.specific serves only {served}",
            code=FindingCode.VERSION_MISMATCH,
        )


def _versioned_source(fields: StepFields, step: Step) -> SourceSpec | None:
    """Return the source that may have numbered versions: of custom code, that of its model.py."""
    python = fields.python
    if python is not None and python.code is not None:
        return python.code.source
    return step.source


def _strategy(fields: StepFields, step: Step) -> Iterator[Finding]:
    if fields.batch_strategy is None:
        return
    if fields.batch_strategy.path is not None and step.source is None:
        yield Finding(
            f"{step.path}.batchStrategy.path",
            "names a library in the model's folder, but the step has no source that contains one;"
            " write source",
            code=FindingCode.REQUIRED,
        )
    if step.max_batch_size == 0:
        yield Finding(
            f"{step.path}.batchStrategy",
            "has no effect with maxBatchSize 0; remove it",
            code=FindingCode.NO_EFFECT,
        )


def check_sources(graph: Graph) -> Iterator[Finding]:
    """Yield invalid sources, and files that would overwrite what the renderer writes."""
    sources = {item.path: item.source for item in graph.fetches}
    for path, source in sources.items():
        yield from check_source(source, path)
    models = {item.path for item in graph.fetches if item.kind is FetchKind.MODEL}
    for path, source in sources.items():
        if (
            isinstance(source, ModelSource)
            and source.file_name is not None
            and path not in models
            and not names_file(source)
        ):
            yield Finding(
                f"{path}.fileName",
                "names a model's file, but this source contains no model;"
                " write path to select a file in it",
                code=FindingCode.FIELD_COMBINATION,
            )
    for step in graph.models:
        yield from _file_conflicts(step)


def _file_conflicts(step: Step) -> Iterator[Finding]:
    """Yield files of a step's sources that take the place of another file."""
    has_code = step.code is not None or any(item.slot == "code" for item in step.fetches)
    targets: dict[str, str] = {}
    for item in step.fetches:
        name = item.target.rsplit("/", 1)[-1]
        taken_by = []
        if item.kind is FetchKind.FILE:
            if has_code and item.slot != "code" and name in RESERVED_FILES:
                taken_by.append(f"the file {name} replaces that of python.code")
            if name == ENGINE_FILE and step.files:
                taken_by.append(f"the file {name} replaces the one written from vllm.engineArgs")
            if item.target in targets:
                taken_by.append(f"{item.target} is already written by {targets[item.target]}")
        for conflict in taken_by:
            yield Finding(
                item.path,
                f"{conflict}; give the file another name",
                code=FindingCode.FILE_CONFLICT,
            )
        targets.setdefault(item.target, item.path)
