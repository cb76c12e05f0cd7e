"""Choose where a new resource computes its embedding: in the model's file wherever that works."""

from __future__ import annotations

from triton_pipelines.api.parse import parse
from triton_pipelines.api.postprocess import POOLINGS, PoolingPlacement
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.graph.model_pooling import pooling_blocker
from triton_pipelines.loader.model_pooling import OPSET
from triton_pipelines.loader.onnx_file import OnnxFile

from .yaml_document import ResourceDraft


def place_pooling(resource: ResourceDraft, file: OnnxFile) -> None:
    """Let the model's file compute the embedding, if the resource and the file allow it.

    Args:
        resource: The resource, without a placement.
        file: The model's file.
    """
    pipeline, findings = parse(resource.document)
    if pipeline is None or findings or pipeline.spec.postprocess.type not in POOLINGS:
        return
    graph = build(pipeline, Options())
    (embedding,) = (output.tensor.name for output in graph.outputs)
    is_taken = any(tensor.name == embedding for tensor in file.outputs)
    if file.opset < OPSET or is_taken or pooling_blocker(graph):
        return
    resource.spec["postprocess"]["placement"] = PoolingPlacement.MODEL.value
    resource.comment(
        "spec.postprocess.placement",
        "The ONNX file computes the embedding, which needs less CPU than a Python process (Step).",
    )
