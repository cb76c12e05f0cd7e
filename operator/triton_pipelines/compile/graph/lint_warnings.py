"""Warn about settings that work but are probably unintended."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.optimization import MAX_TOKENS
from triton_pipelines.api.scaling import CpuResize, ScalingMode
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .defaults import DEFAULT_MAX_LENGTH
from .example_request import lint_example
from .graph import Graph, Implementation, Input, Role
from .options import Options
from .scheduler_lint import lint_schedulers
from .server_settings import cpu_range, millis
from .source_checks import PLACEHOLDER, pinned

# A single instance on this many cores is probably unintended.
MANY_CORES = 4
# Backends whose engine takes its GPUs by itself, whatever the instance kind says.
ENGINES = ("vllm", "tensorrtllm")
# NAME__INDEX as the PyTorch backend reads it: split at the first "__", digits behind it.
_INDEXED = re.compile(r"(?:(?!__).)*__(\d*)$", re.DOTALL)


def lint(pipeline: InferencePipeline, graph: Graph, options: Options) -> list[Finding]:
    """What works but is probably not meant: warnings with what to write instead. Never blocks."""
    return list(_lint(pipeline, graph, options))


def _lint(pipeline: InferencePipeline, graph: Graph, options: Options) -> Iterator[Finding]:
    yield from _batching(pipeline, graph)
    yield from _sources(graph)
    yield from _names(graph)
    yield from _labels(pipeline.spec.postprocess.labels)
    yield from _padding(pipeline, graph)
    yield from _shapes(pipeline, graph)
    yield from _torchscript(graph)
    yield from _instances(pipeline, graph)
    yield from _plans(pipeline, graph)
    yield from _sequences(pipeline, graph)
    yield from _pods(pipeline, graph)
    yield from lint_schedulers(graph)
    yield from lint_example(pipeline, graph)


def _batching(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    slo = pipeline.spec.slo
    budget = slo.latency_budget_milliseconds()
    if budget is not None and budget <= 0:
        yield _warn(
            "spec.slo.networkAndQueueBudgetMilliseconds",
            f"leaves {max(budget, 0)} ms of the SLO of {slo.p99_milliseconds} ms for the server,"
            " which is too short for batching",
            code=FindingCode.LATENCY_BUDGET_EXHAUSTED,
        )
    for step in graph.models:
        if (
            step.batching is None
            and step.sequences is None
            and step.max_batch_size > 1
            and step.backend != "vllm"
        ):
            yield _warn(
                f"{step.path}.dynamicBatching.mode",
                f"batching is off, so {step.name} runs one request at a time; keep it on unless"
                " outputs depend on the rest of the batch",
                code=FindingCode.BATCHING_DISABLED,
            )
        delay = step.batching.max_queue_delay_microseconds if step.batching else None
        if delay and budget is not None and delay / 1000 >= max(budget, 0):
            yield _warn(
                f"{step.path}.dynamicBatching.maxQueueDelayMicroseconds",
                f"{delay / 1000:g} ms is at least the latency budget of the whole request"
                f" ({max(budget, 0)} ms), and a single request waits the full delay; lower it",
                code=FindingCode.DELAY_EXCEEDS_BUDGET,
            )
    first = graph.steps[0] if graph.steps else None
    if first is not None and first.batching is not None:
        policy = first.batching.queue_policy
        if policy is None or not policy.max_queue_size:
            yield _warn(
                f"{first.path}.dynamicBatching.queuePolicy",
                "the queue is unbounded, so every request waits under overload; set maxQueueSize"
                " and a timeout to shed load early",
                code=FindingCode.QUEUE_UNBOUNDED,
            )


def _sources(graph: Graph) -> Iterator[Finding]:
    given = {item.path: item.source for item in graph.fetches}
    for path, source in given.items():
        if source.uri == PLACEHOLDER or source.uri.startswith(f"{PLACEHOLDER}/"):
            yield _warn(
                f"{path}.uri",
                f"{PLACEHOLDER} is a placeholder; write the location of the file, such as"
                " s3://bucket/key",
                code=FindingCode.SOURCE_PLACEHOLDER,
            )
    loose = {path: source for path, source in given.items() if not pinned(source)}
    if not loose:
        return
    first, *others = loose
    # A query may hold a signature.
    said = f"{loose[first].uri.partition('?')[0]} is not pinned"
    if others:
        said += (
            f", nor {'are' if len(others) > 1 else 'is'} {_listed(others)}: their content may "
            "change; add revision or sha256 to each"
        )
    else:
        said += ": its content may change; add revision or sha256"
    yield _warn(
        first,
        f"{said} (this pipeline revision keeps what it first resolved to)",
        code=FindingCode.SOURCE_NOT_PINNED,
    )


def _torchscript(graph: Graph) -> Iterator[Finding]:
    """Warn about tensor names whose index the PyTorch backend ignores.

    The rules are those of GetNamingConvention in the backend's source, which are the same in
    releases 24.10 and 26.04. Outputs are either all named NAME__INDEX or all taken in the order of
    the config. Inputs are either all named after arguments of ``forward``, which no config shows,
    or follow the same rule as outputs. An index is therefore ignored if any other name has none.
    """
    for step in graph.models:
        if step.platform == "pytorch_libtorch":
            yield from _torchscript_names(
                f"{step.path}.inputs", "inputs", [entry.tensor.name for entry in step.inputs]
            )
            yield from _torchscript_names(
                f"{step.path}.outputs", "outputs", [tensor.name for tensor in step.outputs]
            )


def _torchscript_names(path: str, what: str, given: Sequence[str]) -> Iterator[Finding]:
    indexes = {name: int(found[1] or 0) for name in given if (found := _INDEXED.match(name))}
    if not indexes:
        return
    if len(indexes) < len(given):
        plain = next(name for name in given if name not in indexes)
        yield _warn(
            path,
            f"{plain!r} is not of the form NAME__INDEX, unlike {next(iter(indexes))!r}: Triton"
            f" then uses the {what} in the order written here and ignores the indexes; use"
            " NAME__INDEX for all of them",
            code=FindingCode.TORCHSCRIPT_NAMES,
        )
    elif len(set(indexes.values())) < len(indexes):
        twice = [name for name, index in indexes.items() if list(indexes.values()).count(index) > 1]
        yield _warn(
            path,
            f"{_listed(twice)} have the same index, so Triton treats them as one tensor of the"
            " model; use different indexes",
            code=FindingCode.TORCHSCRIPT_NAMES,
        )


def _names(graph: Graph) -> Iterator[Finding]:
    if (escaped := quote(graph.model_name)) != graph.model_name:
        # Measured, Triton 24.10: such a name is served, but its HTTP server decodes no path, and
        # tritonclient.http quotes names.
        yield _warn(
            "spec.ensemble.modelName",
            f"HTTP clients that escape URLs, such as tritonclient, request {escaped!r}, which"
            " Triton does not find; use only letters, digits and -_.~",
            code=FindingCode.NAME_NEEDS_ESCAPING,
        )


def _labels(labels: Sequence[str]) -> Iterator[Finding]:
    twice = sorted(label for label, count in Counter(labels).items() if count > 1)
    if twice:
        yield _warn(
            "spec.postprocess.labels",
            f"{_listed(twice)} occurs more than once, so clients cannot tell these classes apart",
            code=FindingCode.DUPLICATE_LABEL,
        )


def _padding(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    spec = pipeline.spec.tokenizer
    # Custom code decides its lengths itself.
    if graph.padding is None or graph.tokenizer is None or spec is None or spec.python is not None:
        return
    chosen = graph.padding.chosen
    doubtful = chosen is Padding.LONGEST and not graph.padding.measured
    readers = [
        step
        for step in graph.steps
        if any(entry.source and entry.source.step == graph.tokenizer.name for entry in step.inputs)
    ]
    equal = [
        step
        for step in readers
        if step.implementation is Implementation.BACKEND
        and not any(entry.ragged for entry in step.inputs)
    ]
    if doubtful and equal:
        yield _warn(
            "spec.tokenizer.padding",
            f"with Longest almost every request has another length, but {equal[0].name} batches"
            " only equal lengths; use Fixed or Auto to batch all of them, or Bucketed to batch"
            " those of a bucket",
            code=FindingCode.PADDING_PREVENTS_BATCHING,
        )
    if doubtful and any(step.implementation is Implementation.ONNX_RUNNER for step in readers):
        yield _warn(
            "spec.tokenizer.padding",
            "Longest computes padding that Ragged avoids; omit padding",
            code=FindingCode.PADDING_COSTS_COMPUTE,
        )
    longest = spec.max_length or DEFAULT_MAX_LENGTH
    for step in readers:
        low = (step.lengths.min if step.lengths else None) or 1
        high = (step.lengths.max if step.lengths else None) or MAX_TOKENS
        for index, bucket in enumerate(spec.buckets):
            if not low <= bucket <= high:
                yield _warn(
                    f"spec.tokenizer.buckets[{index}]",
                    f"{bucket} is outside {step.path}.lengths ({low} to {high}), so such a batch"
                    " fails",
                    code=FindingCode.LENGTH_OUT_OF_RANGE,
                )
        if longest > high:
            yield _warn(
                "spec.tokenizer.maxLength",
                f"{longest} is more than {step.path}.lengths.max ({high}), so longer texts fail;"
                f" set it to {high}",
                code=FindingCode.LENGTH_OUT_OF_RANGE,
            )
        if chosen in (Padding.RAGGED, Padding.LONGEST) and low > 1:
            yield _warn(
                f"{step.path}.lengths.min",
                f"{chosen.value} does not pad short texts to {low} tokens; use Bucketed or Fixed",
                code=FindingCode.LENGTH_OUT_OF_RANGE,
            )


def _shapes(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Warn about variable-length tensors from custom code that a backend cannot batch.

    The backend batches only requests of equal shape, and the code decides the length.
    """
    own = pipeline.spec.tokenizer is not None and pipeline.spec.tokenizer.python is not None
    for step in graph.steps:
        if step.implementation is not Implementation.BACKEND or step.max_batch_size == 0:
            continue
        by_origin: dict[str, list[Input]] = {}
        for entry in step.inputs:
            made = graph.resolve(entry.source) if entry.source else None
            origin = graph.step(entry.source.step) if entry.source else None
            # What our own tokenizer makes is padded, and the padding is checked separately.
            if (
                origin is not None
                and (origin is not graph.tokenizer or own)
                and made is not None
                and made.variable
                and not entry.ragged
            ):
                by_origin.setdefault(origin.name, []).append(entry)
        for name, entries in by_origin.items():
            has = "have" if len(entries) > 1 else "has"
            yield _warn(
                entries[0].path,
                f"{_listed([str(entry.source) for entry in entries])} {has} another shape in every"
                f" request, but {step.backend} batches only equal shapes, so few requests share a"
                f" batch; make the shape fixed in {name}",
                code=FindingCode.SHAPES_PREVENT_BATCHING,
            )


def _instances(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    server = pipeline.spec.server
    no_gpu = server.gpu.count == 0
    cores = server.resources.limits.cpu or server.resources.requests.cpu
    tokenizer = graph.tokenizer
    if (
        tokenizer is not None
        and cores is not None
        and tokenizer.instances.counts.max == 1
        and millis(cores) >= MANY_CORES * 1000
    ):
        yield _warn(
            "spec.tokenizer.instances",
            f"one instance cannot use {cores} cores, so texts wait while cores are idle; set"
            " instances.max to let scaling add instances",
            code=FindingCode.IDLE_CORES,
        )
    for step in graph.models:
        if step.path == "spec.tokenizer":
            continue
        if (
            step.python
            and step.role in (Role.STEP, Role.POSTPROCESS)
            and step.instances.kind == "KIND_GPU"
        ):
            yield _warn(
                f"{step.path}.instances.kind",
                "kind GPU starts one process per GPU for a python step; write CPU unless its code"
                " uses the GPU",
                code=FindingCode.GPU_INSTANCES_OF_PYTHON,
            )
    kinds = {step.instances.kind for step in graph.models}
    uses = kinds & {"KIND_GPU", "KIND_MODEL", "KIND_AUTO"} or any(
        step.backend in ENGINES for step in graph.models
    )
    substituted = any(step.implementation is Implementation.ONNX_RUNNER for step in graph.models)
    if not no_gpu and not uses and not substituted:
        yield _warn(
            "spec.server.gpu.count",
            "pods reserve a GPU that no step uses, because model.instances.kind is CPU; set it to"
            " 0",
            code=FindingCode.UNUSED_GPU,
        )


def _plans(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    if not any(step.platform == "tensorrt_plan" for step in graph.models):
        return
    server = pipeline.spec.server
    if not server.gpu.products:
        yield _warn(
            "spec.server.gpu.products",
            "a TensorRT plan runs only on the GPU model it was built for; write the product so"
            " that pods run only there",
            code=FindingCode.PLAN_NEEDS_GPU_PRODUCT,
        )
    if server.image is None:
        yield _warn(
            "spec.server.image",
            "a TensorRT plan runs only on the TensorRT version it was built with; pin the image",
            code=FindingCode.PLAN_NEEDS_IMAGE,
        )


def _sequences(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    stateful = [step.name for step in graph.models if step.sequences is not None]
    if stateful and pipeline.spec.replicas > 1:
        yield _warn(
            "spec.replicas",
            f"{', '.join(stateful)} keeps each sequence in one pod: clients are assigned to a pod"
            " by IP address, clients behind one proxy share a pod, and a sequence ends with its"
            " pod",
            code=FindingCode.SEQUENCES_NEED_AFFINITY,
        )


def _pods(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    scaling, replicas = pipeline.spec.scaling, pipeline.spec.replicas
    scaled = any(step.instances.scaled for step in graph.models) and not graph.auto_complete
    if (pods := scaling.pods) is not None:
        # 1 is the default of the API server.
        if replicas != 1 and not pods.low <= replicas <= pods.max:
            yield _warn(
                "spec.replicas",
                f"{replicas} is ignored: spec.scaling.pods owns the number of pods ({pods.low} to"
                f" {pods.max}); remove one of them",
                code=FindingCode.REPLICAS_IGNORED,
            )
        if not scaled:
            yield _warn(
                "spec.scaling.pods",
                "no step is scaled live, so nothing indicates when pods are needed; set"
                " instances.max of a CPU step above its min",
                code=FindingCode.POD_SCALING_WITHOUT_STEP,
            )
        elif scaling.mode is ScalingMode.DISABLED:
            yield _warn(
                "spec.scaling.pods",
                "the number of pods does not change while scaling.mode is Disabled",
                code=FindingCode.POD_SCALING_DISABLED,
            )
    if scaling.cpu_resize is CpuResize.IN_PLACE:
        if pipeline.spec.server.resources.limits.cpu:
            yield _warn(
                "spec.scaling.cpuResize",
                f"server.resources.limits.cpu ({pipeline.spec.server.resources.limits.cpu}) is a"
                " fixed limit, so pods cannot be resized in place; remove it to start with the"
                " limit that"
                " the initial instances need",
                code=FindingCode.CPU_RESIZE_BLOCKED,
            )
        elif cpu_range(pipeline, graph) is None:
            yield _warn(
                "spec.scaling.cpuResize",
                "has no effect: no Python step has instances.max above initial with"
                " resourcesPerInstance.cpu",
                code=FindingCode.CPU_RESIZE_BLOCKED,
            )


def _listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _warn(path: str, message: str, *, code: FindingCode) -> Finding:
    return Finding(path, message, Severity.WARNING, code=code)
