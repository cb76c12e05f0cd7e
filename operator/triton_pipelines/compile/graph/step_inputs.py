"""Inputs of a step: as declared, or those that its platform and the tokenizer imply."""

from __future__ import annotations

from dataclasses import replace

from triton_pipelines.api.base import Switch
from triton_pipelines.api.steps import Platform, StepFields
from triton_pipelines.api.tensors import InputTensor, TokenTensor

from .defaults import TOKENIZER, VLLM_INPUTS, VLLM_REQUIRED
from .graph import Input, Reference, Tensor
from .step_context import StepContext


def step_inputs(
    fields: StepFields, path: str, batch: int, python: bool, context: StepContext
) -> tuple[Input, ...]:
    """Return the inputs of a model, each with the tensor that feeds it.

    Args:
        fields: The model as declared.
        path: Its field in the resource.
        batch: Rows in a batch; 0: dims include the batch axis.
        python: Whether a python process runs it, which accepts rows of different lengths.
        context: The rest of the pipeline.
    """
    if fields.inputs:
        return tuple(
            _declared_input(tensor, f"{path}.inputs[{index}]", python, context)
            for index, tensor in enumerate(fields.inputs)
        )
    if fields.platform is Platform.VLLM:
        return _vllm_inputs(path, context)
    result = []
    for tensor in context.token_tensors:
        kind = context.tokens[tensor.name].kind
        dims = tensor.dims[1:] if batch > 0 and not context.tokenizer_batches else tensor.dims
        axis = 0 if batch > 0 else 1
        # Declared as the file has it (any length), also where every row is padded to one length.
        shape = tuple(
            -1 if index == axis and kind is not TokenTensor.LENGTHS else size
            for index, size in enumerate(dims)
        )
        read = replace(tensor, dims=shape)
        ragged = python and read.variable and batch > 0
        result.append(
            Input(
                read,
                Reference(TOKENIZER, tensor.name),
                f"spec.tokenizer.outputs ({tensor.name})",
                ragged=ragged,
            )
        )
    return tuple(result)


def _vllm_inputs(path: str, context: StepContext) -> tuple[Input, ...]:
    """Return the inputs of the vLLM backend.

    The text is connected, and each other input that ``spec.ensemble.inputs`` lists as optional.
    """
    listed = {one.name for one in context.spec.ensemble.inputs if one.optional is Switch.ENABLED}
    result = []
    for tensor in VLLM_INPUTS:
        optional = tensor.name != VLLM_REQUIRED
        declared = InputTensor(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            optional=Switch.ENABLED if optional else None,
        )
        is_connected = not optional or tensor.name in listed
        source = context.source_of(declared) if is_connected else None
        result.append(Input(tensor, source, f"{path}.inputs", optional=optional))
    return tuple(result)


def _declared_input(declared: InputTensor, path: str, python: bool, context: StepContext) -> Input:
    """Return an input of a model."""
    tensor = Tensor(declared.name, declared.data_type, declared.dims, declared.reshape)
    ragged = declared.ragged is Switch.ENABLED or (
        declared.ragged is None and python and tensor.variable and declared.reshape is None
    )
    optional = declared.optional is Switch.ENABLED
    return Input(tensor, context.source_of(declared), path, ragged=ragged, optional=optional)


def input_of(declared: InputTensor, path: str, source: Reference | None) -> Input:
    """Return an input of a step with custom code, read from ``source``."""
    tensor = Tensor(declared.name, declared.data_type, declared.dims, declared.reshape)
    ragged = declared.ragged is Switch.ENABLED or (
        declared.ragged is None and tensor.variable and declared.reshape is None
    )
    optional = declared.optional is Switch.ENABLED
    return Input(tensor, source, path, ragged=ragged, optional=optional)
