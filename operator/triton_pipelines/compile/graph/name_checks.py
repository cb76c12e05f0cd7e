"""Check names of models, and the shapes of declared tensors."""

from __future__ import annotations

from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.postprocess import PostprocessType
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .graph import Graph, Implementation, Role, Step, Tensor

NO_ELEMENTS = "must be at least 1, or -1 for any length, not 0"


def check_names(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Yield invalid names of models, which are folders of one repository, and shapes of tensors."""
    seen: dict[str, str] = (
        {} if graph.entry is not None else {graph.model_name: "spec.ensemble.modelName"}
    )
    for step in graph.models:
        if step.model_name in seen:
            default = (
                " (default: metadata.name)"
                if step.model_name == graph.model_name and graph.entry is None
                else ""
            )
            yield Finding(
                f"{step.path}.modelName",
                f"{step.model_name!r} is already used by {seen[step.model_name]}{default}; choose"
                " another name",
                code=FindingCode.DUPLICATE,
            )
        seen.setdefault(step.model_name, f"{step.path}.modelName")
        for path, tensor in _declared(step):
            yield from _shape(step, tensor, path)
    for index, public in enumerate(pipeline.spec.ensemble.inputs):
        if 0 in public.dims:
            yield Finding(
                f"spec.ensemble.inputs[{index}].dims[{public.dims.index(0)}]",
                NO_ELEMENTS,
                code=FindingCode.OUT_OF_RANGE,
            )
    if pipeline.spec.postprocess.type not in (None, PostprocessType.NONE) and not any(
        step.role is Role.MODEL for step in graph.steps
    ):
        post = pipeline.spec.postprocess
        if post.from_ is None and post.python is None:
            yield Finding(
                "spec.postprocess.from",
                "required, because without spec.model there is no default tensor; use STEP.OUTPUT",
                code=FindingCode.REQUIRED,
            )


def _declared(step: Step) -> Iterator[tuple[str, Tensor]]:
    """Return the tensors that the resource declares for a step, each with its field.

    Tensors added by defaults have no field.
    """
    yield from (
        (entry.path, entry.tensor)
        for entry in step.inputs
        if entry.path.startswith(f"{step.path}.inputs[")
    )
    if step.tokenizer is None and step.implementation is not Implementation.POSTPROCESS:
        yield from (
            (f"{step.path}.outputs[{index}]", tensor) for index, tensor in enumerate(step.outputs)
        )


def _shape(step: Step, tensor: Tensor, path: str) -> Iterator[Finding]:
    """Check for axes without elements, and Triton's rules for a reshape (model_config_utils.cc).

    A reshape must keep the number of elements, and a scalar requires a batch axis.
    """
    for name, sizes in (("dims", tensor.dims), ("reshape", tensor.reshape or ())):
        if 0 in sizes:
            yield Finding(
                f"{path}.{name}[{sizes.index(0)}]", NO_ELEMENTS, code=FindingCode.OUT_OF_RANGE
            )
    if tensor.reshape is None:
        return
    where = f"{path}.reshape"
    if not tensor.reshape and step.max_batch_size == 0:
        yield Finding(
            where,
            "[] (a scalar) requires a batch axis; set maxBatchSize, or use [1]",
            code=FindingCode.SHAPE_MISMATCH,
        )
    if _elements(tensor.dims) != _elements(tensor.reshape) or tensor.dims.count(
        -1
    ) != tensor.reshape.count(-1):
        yield Finding(
            where,
            f"{list(tensor.reshape)} and dims {list(tensor.dims)} of {tensor.name} must "
            "have the same number of elements and the same number of -1 entries; change "
            "reshape or dims",
            code=FindingCode.SHAPE_MISMATCH,
        )


def _elements(dims: tuple[int, ...]) -> int:
    result = 1
    for size in dims:
        result *= size if size > 0 else 1
    return result
