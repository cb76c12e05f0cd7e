"""Build the postprocess step, which follows the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from triton_pipelines.api.base import Switch
from triton_pipelines.api.batching import DynamicBatching
from triton_pipelines.api.instances import InstanceKind, InstanceResources
from triton_pipelines.api.postprocess import CLASSIFIERS, Postprocess, PostprocessType
from triton_pipelines.api.tensors import DataType, InputTensor, TokenTensor
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .defaults import MODEL, POSTPROCESS, TOKENIZER
from .fetches import inline_code, python_fetches, python_parameters
from .graph import PIPELINE, Implementation, Input, Reference, Role, Step, Tensor
from .instance_groups import StepInstances, one_group, several_groups
from .model_step import FIXED_RESOURCES
from .step_inputs import input_of
from .tokenizer_settings import prefixed
from .tokenizer_step import Tokens


def postprocess_read(entry: InputTensor, spec: PipelineSpec) -> Reference | None:
    """Return the model's output of the same name, which custom code reads without ``from``."""
    if (
        not entry.from_
        and spec.model is not None
        and any(output.name == entry.name for output in spec.model.outputs)
    ):
        return Reference(MODEL, entry.name)
    return None


def postprocess_step(
    post: Postprocess,
    steps: Sequence[Step],
    tokens: Tokens,
    texts: Sequence[Tensor],
    read: Mapping[str, Reference | None],
) -> Step:
    """Return the postprocess step.

    Args:
        post: The postprocess of the resource.
        steps: The steps before it.
        tokens: The tokenizer's tensors.
        texts: The pipeline's inputs that the tokenizer reads.
        read: The tensor that feeds each input of custom code.
    """
    model = next((step for step in steps if step.role is Role.MODEL), steps[-1])
    instances = _instances(post)
    inputs, outputs, parameters = (
        _custom(post, read)
        if post.python is not None
        else _built_in(post, model, steps, tokens, texts)
    )
    return Step(
        name=POSTPROCESS,
        role=Role.POSTPROCESS,
        model_name=post.model_name,
        implementation=Implementation.CODE
        if post.python is not None
        else Implementation.POSTPROCESS,
        platform="",
        backend="python",
        max_batch_size=model.max_batch_size,
        inputs=inputs,
        outputs=outputs,
        instances=instances,
        resources=post.resources_per_instance
        or (InstanceResources() if instances.scaled else FIXED_RESOURCES),
        batching=_batching(post, model.max_batch_size > 0),
        path="spec.postprocess",
        parameters=parameters,
        fetches=python_fetches(
            POSTPROCESS, post.model_name, post.python, "spec.postprocess.python"
        ),
        code=inline_code(post.python),
        config_patch=post.config_patch,
    )


def _instances(post: Postprocess) -> StepInstances:
    declared = post.instances
    if declared.groups:
        return several_groups(declared.groups, InstanceKind.CPU)
    return one_group(
        declared.kind or InstanceKind.CPU,
        declared.bounds(scaled=False),
        gpus=declared.gpus,
        host_policy=declared.host_policy,
    )


def _batching(post: Postprocess, batched: bool) -> DynamicBatching | None:
    if post.dynamic_batching is None:
        return DynamicBatching() if batched else None
    return None if post.dynamic_batching.mode is Switch.DISABLED else post.dynamic_batching


Parts = tuple[tuple[Input, ...], tuple[Tensor, ...], dict[str, str]]


def _custom(post: Postprocess, read: Mapping[str, Reference | None]) -> Parts:
    """Return inputs, outputs and parameters of a postprocess with custom code."""
    inputs = tuple(
        input_of(tensor, f"spec.postprocess.inputs[{index}]", read.get(tensor.name))
        for index, tensor in enumerate(post.inputs)
    )
    outputs = tuple(
        Tensor(tensor.name, tensor.data_type, tensor.dims, tensor.reshape)
        for tensor in post.outputs
    )
    return (
        inputs,
        outputs,
        python_parameters(post.python),
    )


def _built_in(
    post: Postprocess, model: Step, steps: Sequence[Step], tokens: Tokens, texts: Sequence[Tensor]
) -> Parts:
    """Return inputs, outputs and parameters of a postprocess that comes with the operator."""
    assert post.type is not None
    known = {Reference(PIPELINE, text.name): text for text in texts}
    known |= {
        Reference(step.name, tensor.name): replace(tensor, reshape=None)
        for step in steps
        for tensor in step.outputs
    }
    batched = model.max_batch_size > 0
    first = model.outputs[0].name if model.outputs else "output"
    source = Reference.parse(post.from_) if post.from_ else Reference(model.name, first)
    # The checks report an unknown source.
    tensor = known.get(source) or Tensor(
        source.tensor, DataType.FP32, (-1,) if batched else (-1, -1)
    )
    inputs = [Input(tensor, source, "spec.postprocess.from", ragged=tensor.variable and batched)]
    parameters = {"type": post.type.value, "input": tensor.name}
    if post.type is PostprocessType.MEAN_POOLING:
        mask = _mask(post, tensor, known, tokens, batched)
        inputs.append(mask)
        parameters["mask"] = mask.tensor.name
    outputs, settings = (_class_scores if post.type in CLASSIFIERS else _embedding)(post, tensor)
    return tuple(inputs), tuple(outputs), prefixed(parameters | settings)


def _mask(
    post: Postprocess,
    pooled: Tensor,
    known: Mapping[Reference, Tensor],
    tokens: Tokens,
    batched: bool,
) -> Input:
    """Return the input of the mask that pooling reads: as declared, else the attention mask."""
    usual = next(
        (name for name, token in tokens.items() if token.kind is TokenTensor.ATTENTION_MASK),
        "attention_mask",
    )
    source = Reference.parse(post.mask_from) if post.mask_from else Reference(TOKENIZER, usual)
    mask = known.get(source) or Tensor(source.tensor, DataType.INT64, (-1,))
    if mask.name == pooled.name:  # of another step: the inputs of one step need different names
        mask = replace(mask, name=f"{mask.name}_mask")
    # The mask has variable length: the pooled tensor may be only as long as the longest row.
    mask = replace(mask, dims=(-1,) if batched else (-1, -1))
    return Input(mask, source, "spec.postprocess.maskFrom", ragged=batched)


def _class_scores(post: Postprocess, scores: Tensor) -> tuple[list[Tensor], dict[str, str]]:
    """Return outputs and parameters of a classifier: one score per class and row, or per token."""
    *outer, classes = scores.dims
    outputs = [Tensor("PROBABILITIES", DataType.FP32, (*outer, classes))]
    if not post.labels:
        return outputs, {}
    top = post.top_k or 1
    outputs += [
        Tensor("LABEL", DataType.STRING, (*outer, top)),
        Tensor("SCORE", DataType.FP32, (*outer, top)),
    ]
    return outputs, {
        "labels": json.dumps(list(post.labels), ensure_ascii=False),
        "top_k": str(top),
    }


def _embedding(post: Postprocess, vectors: Tensor) -> tuple[list[Tensor], dict[str, str]]:
    """Return output and parameters of pooling: one vector per row."""
    output = Tensor("EMBEDDING", DataType.FP32, (*vectors.dims[:-2], vectors.dims[-1]))
    return [output], {"normalize": (post.normalize or Switch.ENABLED).value}
