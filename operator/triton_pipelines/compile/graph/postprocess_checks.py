"""Check that the postprocess step can read its tensors."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.postprocess import CLASSIFIERS, POOLINGS, Postprocess, PostprocessType
from triton_pipelines.api.tensors import FLOAT_TYPES, INTEGER_TYPES
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .defaults import POSTPROCESS
from .graph import Graph, Input, Step
from .model_pooling import pooling_blocker

_OF_THE_STEP = frozenset(
    {"instances", "resources_per_instance", "dynamic_batching", "config_patch"}
)


def check_postprocess(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Yield what the type of the postprocess step cannot read."""
    post = pipeline.spec.postprocess
    step = graph.step(POSTPROCESS)
    yield from _without_effect(post)
    if step is None or post.type is None or post.type is PostprocessType.PYTHON:
        return
    read, source = step.inputs[0].tensor, step.inputs[0].source
    if source is not None and graph.resolve(source) is None:
        return  # The wiring reports it.
    if read.data_type not in FLOAT_TYPES:
        yield Finding(
            "spec.postprocess.from",
            f"{post.type.value} requires FP16, BF16, FP32 or FP64, but {source} is"
            f" {read.data_type.value}; read another tensor, or change its dataType",
            code=FindingCode.DATA_TYPE_MISMATCH,
        )
    if post.pools_in_model:
        yield Finding(
            "spec.postprocess.placement",
            f"Model is not possible, because {pooling_blocker(graph)}; remove placement to use a "
            "postprocess step",
            code=FindingCode.FIELD_COMBINATION,
        )
    yield from _postprocess_shape(post, step)
    if post.type is PostprocessType.MEAN_POOLING:
        yield from _mask_type(graph, step.inputs[1])


def _without_effect(post: Postprocess) -> Iterator[Finding]:
    """Yield the fields that have no effect because of the placement, or on it."""
    if post.placement is not None and post.type not in POOLINGS:
        kind = (post.type or PostprocessType.NONE).value
        yield Finding(
            "spec.postprocess.placement",
            f"no effect with type {kind}, only with MeanPooling or FirstToken; remove placement",
            code=FindingCode.NO_EFFECT,
        )
    elif post.pools_in_model:
        for name in sorted(post.model_fields_set & _OF_THE_STEP):
            yield Finding(
                f"spec.postprocess.{to_camel(name)}",
                "no effect with placement Model, which has no postprocess step; remove this field",
                code=FindingCode.NO_EFFECT,
            )


def _postprocess_shape(post: Postprocess, step: Step) -> Iterator[Finding]:
    assert post.type is not None
    batched = step.max_batch_size > 0
    read, source = step.inputs[0].tensor, step.inputs[0].source
    axes = len(read.dims) if batched else len(read.dims) - 1
    note = (
        ""
        if batched
        else " (with maxBatchSize 0, dims are the whole shape, starting with the rows)"
    )

    def shape(dims: str) -> str:
        return f"[{dims}]" if batched else f"[-1, {dims}]"

    expected = ""
    if post.type in CLASSIFIERS and (axes not in (1, 2) or read.dims[-1] < 1):
        expected = f"one score per class (dims {shape('C')}, or {shape('-1, C')} per token)"
    elif post.type in POOLINGS and (axes != 2 or read.dims[-1] < 1):
        expected = f"one vector per token (dims {shape('-1, D')})"
    if expected:
        yield Finding(
            "spec.postprocess.from",
            f"{post.type.value} requires {expected}{note}, but {source} has dims"
            f" {list(read.dims)}; read another tensor, or correct its dims",
            code=FindingCode.SHAPE_MISMATCH,
        )
    elif post.type in CLASSIFIERS and post.labels and len(post.labels) != read.dims[-1]:
        yield Finding(
            "spec.postprocess.labels",
            f"the list has {len(post.labels)} labels, but {source} has {read.dims[-1]} "
            "classes; list one label per class",
            code=FindingCode.LABEL_COUNT,
        )


def _mask_type(graph: Graph, mask: Input) -> Iterator[Finding]:
    if (
        mask.source is not None
        and graph.resolve(mask.source) is not None
        and mask.tensor.data_type not in INTEGER_TYPES
    ):
        yield Finding(
            "spec.postprocess.maskFrom",
            f"the mask must be INT64 or INT32, but {mask.source} is {mask.tensor.data_type.value};"
            " set maskFrom to another tensor",
            code=FindingCode.DATA_TYPE_MISMATCH,
        )
