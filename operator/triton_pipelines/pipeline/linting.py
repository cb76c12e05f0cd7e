"""Warnings: what works but is probably not meant."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.optimization import MAX_TOKENS
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .defaults import DEFAULT_MAX_LENGTH
from .example import lint_example
from .graph import Graph, Implementation, Role
from .options import Options
from .schedulerlint import lint_schedulers
from .server import millis
from .sources import PLACEHOLDER, pinned

# One instance beside so many cores is probably not meant.
MANY_CORES = 4
# Backends whose engine takes its GPUs by itself, whatever the instance kind says.
ENGINES = ("vllm", "tensorrtllm")


def lint(pipeline: InferencePipeline, graph: Graph, options: Options) -> list[Finding]:
    """What works but is probably not meant: warnings with what to write instead. Never blocks."""
    return list(_lint(pipeline, graph, options))


def _lint(pipeline: InferencePipeline, graph: Graph, options: Options) -> Iterator[Finding]:
    yield from _batching(pipeline, graph)
    yield from _sources(graph)
    yield from _names(graph)
    yield from _padding(pipeline, graph)
    yield from _instances(pipeline, graph)
    yield from _plans(pipeline, graph)
    yield from _sequences(pipeline, graph)
    yield from lint_schedulers(graph)
    yield from lint_example(pipeline, graph)


def _batching(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    slo = pipeline.spec.slo
    budget = None if slo.p99_milliseconds is None else slo.p99_milliseconds - slo.network_and_queue_budget_milliseconds
    if budget is not None and budget <= 0:
        yield _warn(
            "spec.slo.networkAndQueueBudgetMilliseconds",
            f"leaves {max(budget, 0)} ms of the goal of {slo.p99_milliseconds} ms for the server; no batching fits into that",
        )
    for step in graph.models:
        if step.batching is None and step.sequences is None and step.max_batch_size > 1 and step.backend != "vllm":
            yield _warn(
                f"{step.path}.dynamicBatching.mode",
                f"batching is off: {step.name} runs request by request; leave it on unless answers depend on their company",
            )
        delay = step.batching.max_queue_delay_microseconds if step.batching else None
        if delay and budget is not None and delay / 1000 >= max(budget, 0):
            yield _warn(
                f"{step.path}.dynamicBatching.maxQueueDelayMicroseconds",
                f"{delay / 1000:g} ms is as long as slo.p99Milliseconds leaves for the whole request ({max(budget, 0)} ms); a request that comes alone waits it out",
            )
    first = graph.steps[0] if graph.steps else None
    if first is not None and first.batching is not None:
        policy = first.batching.queue_policy
        if policy is None or not policy.max_queue_size:
            yield _warn(
                f"{first.path}.dynamicBatching.queuePolicy",
                "the queue is unbounded: under overload every request waits; set maxQueueSize and a timeout to shed load early",
            )


def _sources(graph: Graph) -> Iterator[Finding]:
    for path, source in {item.path: item.source for item in graph.fetches}.items():
        if source.uri == PLACEHOLDER or source.uri.startswith(f"{PLACEHOLDER}/"):
            yield _warn(f"{path}.uri", f"{PLACEHOLDER} is a placeholder: write where the file lies, such as s3://bucket/key")
        if not pinned(source):
            yield _warn(
                path,
                # A query may hold a signature.
                f"{source.uri.partition('?')[0]} is not pinned: what it holds may change; add revision or sha256 (this pipeline revision keeps what it resolved to first)",
            )


def _names(graph: Graph) -> Iterator[Finding]:
    if (escaped := quote(graph.model_name)) != graph.model_name:
        # Measured, Triton 24.10: such a name is served, but its HTTP server decodes no path, and tritonclient.http quotes names.
        yield _warn(
            "spec.ensemble.modelName",
            f"HTTP clients that escape it, tritonclient among them, ask for {escaped!r}, which Triton does not find; use letters, digits and -_.~",
        )


def _padding(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    if graph.padding is None or graph.tokenizer is None:
        return
    chosen = graph.padding.chosen
    readers = [step for step in graph.steps if any(entry.source and entry.source.step == graph.tokenizer.name for entry in step.inputs)]
    equal = [step for step in readers if step.implementation is Implementation.BACKEND and not any(entry.ragged for entry in step.inputs)]
    if chosen in (Padding.LONGEST, Padding.BUCKETED) and equal:
        yield _warn(
            "spec.tokenizer.padding",
            f"{chosen.value} gives requests different lengths, and the model step batches equal lengths only; Fixed or Auto batches all of them",
        )
    if chosen is Padding.LONGEST and any(step.implementation is Implementation.ONNX_RUNNER for step in readers):
        yield _warn("spec.tokenizer.padding", "Longest computes padding that Ragged does not; leave padding out")
    longest = (pipeline.spec.tokenizer.max_length if pipeline.spec.tokenizer else None) or DEFAULT_MAX_LENGTH
    for step in readers:
        low = (step.lengths.min if step.lengths else None) or 1
        high = (step.lengths.max if step.lengths else None) or MAX_TOKENS
        for index, bucket in enumerate(pipeline.spec.tokenizer.buckets if pipeline.spec.tokenizer else ()):
            if not low <= bucket <= high:
                yield _warn(
                    f"spec.tokenizer.buckets[{index}]", f"{bucket} is outside of {step.path}.lengths, {low} to {high}: such a batch will fail"
                )
        if longest > high:
            yield _warn(
                "spec.tokenizer.maxLength", f"{longest} is more than {step.path}.lengths.max {high}: longer texts will fail; set it to {high}"
            )
        if chosen in (Padding.RAGGED, Padding.LONGEST) and low > 1:
            yield _warn(
                f"{step.path}.lengths.min",
                f"short texts have fewer than {low} tokens and are not padded to that with {chosen.value}; use Bucketed or Fixed",
            )
    for step in graph.steps:
        if step is graph.tokenizer or step.implementation is not Implementation.BACKEND or step.max_batch_size == 0:
            continue
        for entry in step.inputs:
            maker = graph.step(entry.source.step) if entry.source else None
            made = graph.resolve(entry.source) if entry.source else None
            if maker is not None and maker is not graph.tokenizer and made is not None and made.variable and not entry.ragged:
                yield _warn(
                    entry.path,
                    f"{entry.source} has another shape for every request, and {step.backend} batches equal shapes only: requests will hardly be batched; make the shape fixed in {maker.name}",
                )


def _instances(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    server = pipeline.spec.server
    no_gpu = server.gpu.count == 0
    cores = server.resources.limits.cpu or server.resources.requests.cpu
    tokenizer = graph.tokenizer
    if tokenizer is not None and cores is not None and tokenizer.instances.high == 1 and millis(cores) >= MANY_CORES * 1000:
        yield _warn(
            "spec.tokenizer.instances",
            f"one instance beside {cores} cores: text will wait while cores idle; set instances.max, and leave counts to scaling",
        )
    for step in graph.models:
        if step.path == "spec.tokenizer":
            continue
        if step.python and step.role in (Role.STEP, Role.POSTPROCESS) and step.instances.kind == "KIND_GPU":
            yield _warn(f"{step.path}.instances.kind", "GPU starts one process per GPU for a python step; write CPU unless its code uses the GPU")
    kinds = {step.instances.kind for step in graph.models}
    uses = kinds & {"KIND_GPU", "KIND_MODEL", "KIND_AUTO"} or any(step.backend in ENGINES for step in graph.models)
    substituted = any(step.implementation is Implementation.ONNX_RUNNER for step in graph.models)
    if not no_gpu and not uses and not substituted:
        yield _warn("spec.server.gpu.count", "pods reserve a GPU that no step uses, since model.instances.kind is CPU; set it to 0")


def _plans(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    if not any(step.platform == "tensorrt_plan" for step in graph.models):
        return
    server = pipeline.spec.server
    if not server.gpu.products:
        yield _warn(
            "spec.server.gpu.products",
            "a TensorRT plan runs only on the GPU model it was built for; name the product so that pods do not land elsewhere",
        )
    if server.image is None:
        yield _warn("spec.server.image", "a TensorRT plan runs only on the TensorRT version it was built with; pin the image")


def _sequences(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    stateful = [step.name for step in graph.models if step.sequences is not None]
    if stateful and pipeline.spec.replicas > 1:
        yield _warn(
            "spec.replicas",
            f"{', '.join(stateful)} keeps sequences in one pod: clients stay on theirs by address only, and those behind one proxy share it; a pod that goes ends its sequences",
        )


def _warn(path: str, message: str) -> Finding:
    return Finding(path, message, Severity.WARNING)
