"""Warnings: what works but is probably not meant."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from triton_pipelines.api.base import Finding, Severity, Switch
from triton_pipelines.api.steps import InstanceKind, Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .graph import Graph, Implementation
from .options import Options
from .sources import pinned


def lint(pipeline: InferencePipeline, graph: Graph, options: Options) -> list[Finding]:
    """What works but is probably not meant: warnings with what to write instead. Never blocks."""
    return list(_lint(pipeline, graph, options))


def _lint(pipeline: InferencePipeline, graph: Graph, options: Options) -> Iterator[Finding]:
    for step in graph.steps:
        if step.batching.mode is Switch.DISABLED and step.max_batch_size > 1:
            yield _warn(
                f"{step.path}.dynamicBatching.mode",
                f"batching is off: {step.name} runs request by request; leave it on unless answers depend on their company",
            )
    sources = {step.source_path: step.source for step in graph.steps if step.source is not None}
    for path, source in sources.items():
        if not pinned(source):
            yield _warn(
                path,
                # A query may hold a signature.
                f"{source.uri.partition('?')[0]} is not pinned: what it holds may change; add revision or sha256 (this pipeline revision keeps what it resolved to first)",
            )
    if (escaped := quote(graph.model_name)) != graph.model_name:
        # Measured, Triton 24.10: such a name is served, but its HTTP server decodes no path, and tritonclient.http quotes names.
        yield _warn(
            "spec.ensemble.modelName",
            f"HTTP clients that escape it, tritonclient among them, ask for {escaped!r}, which Triton does not find; use letters, digits and -_.~",
        )
    model = graph.steps[1]
    if graph.padding.chosen in (Padding.LONGEST, Padding.BUCKETED) and not model.python:
        yield _warn(
            "spec.tokenizer.padding",
            f"{graph.padding.chosen.value} gives requests different lengths, and the model step batches equal lengths only; Fixed or Auto batches all of them",
        )
    if graph.padding.chosen is Padding.LONGEST and model.implementation is Implementation.ONNX_RUNNER:
        yield _warn("spec.tokenizer.padding", "Longest computes padding that Ragged does not; leave padding out")
    if model.platform == "tensorrt_plan" and not pipeline.spec.server.gpu.products:
        yield _warn(
            "spec.server.gpu.products",
            "a TensorRT plan runs only on the GPU model it was built for; name the product so that pods do not land elsewhere",
        )
    if model.platform == "tensorrt_plan" and pipeline.spec.server.image is None:
        yield _warn("spec.server.image", "a TensorRT plan runs only on the TensorRT version it was built with; pin the image")
    if pipeline.spec.model.instances.kind is InstanceKind.CPU and pipeline.spec.server.gpu.count:
        yield _warn("spec.server.gpu.count", "pods reserve a GPU that no step uses, since model.instances.kind is CPU; set it to 0")
    batching = graph.steps[0].batching
    if batching.mode is Switch.ENABLED and (batching.queue_policy is None or not batching.queue_policy.max_queue_size):
        yield _warn(
            "spec.tokenizer.dynamicBatching.queuePolicy",
            "the queue is unbounded: under overload every request waits; set maxQueueSize and a timeout to shed load early",
        )


def _warn(path: str, message: str) -> Finding:
    return Finding(path, message, Severity.WARNING)
