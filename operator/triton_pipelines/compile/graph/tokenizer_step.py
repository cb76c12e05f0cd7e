"""Build the tokenizer step and its output tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triton_pipelines.api import names
from triton_pipelines.api.base import Switch
from triton_pipelines.api.batching import DynamicBatching
from triton_pipelines.api.instances import InstanceKind
from triton_pipelines.api.tensors import DataType, InputTensor, TokenTensor
from triton_pipelines.api.tokenizer import Padding, Tokenizer, TokenizerOutput
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .defaults import (
    DEFAULT_MAX_LENGTH,
    TOKENIZER,
    USUAL_NAMES,
)
from .effective_padding import PaddingChoice
from .fetches import inline_code, python_fetches, python_parameters, tokenizer_fetches
from .graph import PIPELINE, Implementation, Input, Reference, Role, Step, Tensor
from .instance_groups import one_group
from .tokenizer_settings import TokenizerSettings


@dataclass(frozen=True, slots=True)
class Token:
    """One output of the tokenizer."""

    kind: TokenTensor | None
    """What it contains; ``None`` if that is unknown."""
    data_type: DataType
    """Its element type."""
    dims: tuple[int, ...] | None = None
    """Its declared shape; ``None`` for the shape that padding gives it."""


Tokens = Mapping[str, Token]


def kind_of(output: TokenizerOutput) -> TokenTensor | None:
    """Return what an output contains: as declared, else as its usual name suggests."""
    return output.tensor or USUAL_NAMES.get(output.name.lower())


def token_read(entry: InputTensor, tokenizer: Tokenizer | None) -> Reference | None:
    """Return the token tensor that an input without ``from`` reads.

    It is the tokenizer's output of that name, else the only output that contains what the name
    suggests.
    """
    if tokenizer is None:
        return None
    declared = [output.name for output in tokenizer.outputs]
    if entry.name in declared:
        return Reference(TOKENIZER, entry.name)
    usual = USUAL_NAMES.get(entry.name.lower())
    same = [
        output.name
        for output in tokenizer.outputs
        if usual is not None and kind_of(output) is usual
    ]
    if len(same) == 1:
        return Reference(TOKENIZER, same[0])
    return Reference(TOKENIZER, entry.name) if usual is not None and not declared else None


def token_outputs(
    tokenizer: Tokenizer, read: Sequence[tuple[str, DataType | None]], *, default: bool, mask: bool
) -> dict[str, Token]:
    """Return the outputs of the tokenizer by name, in order.

    Args:
        tokenizer: The tokenizer as declared; its ``outputs``, if given, are complete.
        read: Names and element types under which steps read the outputs, in order; with type
            ``None`` the reader accepts any type.
        default: Whether the inputs of the model are unknown; the outputs are then ids and mask.
        mask: Whether one of our steps needs the attention mask, under any name.
    """
    read_types: dict[str, DataType] = {}
    for name, data_type in read:
        if data_type is not None:
            read_types.setdefault(name, data_type)
    if tokenizer.outputs:
        return {
            output.name: Token(
                kind_of(output),
                output.data_type or read_types.get(output.name, DataType.INT64),
                output.dims,
            )
            for output in tokenizer.outputs
        }
    result = {}
    if default:
        result = {
            "input_ids": Token(TokenTensor.INPUT_IDS, DataType.INT64),
            "attention_mask": Token(TokenTensor.ATTENTION_MASK, DataType.INT64),
        }
    for name, _ in read:
        result.setdefault(
            name, Token(USUAL_NAMES.get(name.lower()), read_types.get(name, DataType.INT64))
        )
    if mask and all(token.kind is not TokenTensor.ATTENTION_MASK for token in result.values()):
        result["attention_mask"] = Token(TokenTensor.ATTENTION_MASK, DataType.INT64)
    return result


def token_dims(token: Token, length: int, batched: bool) -> tuple[int, ...]:
    """Return the shape of a token tensor whose rows have ``length`` tokens (-1: any)."""
    if token.dims is not None:
        return token.dims
    row = (
        (1,)
        if token.kind is TokenTensor.LENGTHS
        else (length, 2)
        if token.kind is TokenTensor.OFFSETS
        else (length,)
    )
    return row if batched else (-1, *row)


def tokenizer_step(
    spec: PipelineSpec,
    max_batch_size: int,
    padding: PaddingChoice,
    tokens: Tokens,
    text_dims: tuple[int, ...],
) -> Step:
    """Return the tokenizer as a step.

    Args:
        spec: The spec of the pipeline, which has a tokenizer.
        max_batch_size: Rows of a batch; 0 without a batch axis.
        padding: The effective padding.
        tokens: The tokenizer's outputs by name.
        text_dims: Shape of the texts that it reads.
    """
    tokenizer = spec.tokenizer
    assert tokenizer is not None
    batched = max_batch_size > 0
    batching = tokenizer.dynamic_batching or (DynamicBatching() if batched else None)
    length = row_length(tokenizer) if padding.chosen is Padding.FIXED else -1
    settings = _settings(tokenizer, padding, tokens) if tokenizer.python is None else None
    kind = tokenizer.instances.kind or InstanceKind.CPU
    return Step(
        name=TOKENIZER,
        role=Role.TOKENIZER,
        model_name=tokenizer.model_name,
        implementation=Implementation.TOKENIZER if settings else Implementation.CODE,
        platform="",
        backend=names.NATIVE_TOKENIZER_BACKEND if settings else "python",
        max_batch_size=max_batch_size,
        inputs=_text_inputs(tokenizer, text_dims),
        outputs=token_tensors(tokens, length, batched),
        instances=one_group(
            kind,
            tokenizer.instances.bounds(scaled=True),
            host_policy=tokenizer.instances.host_policy,
        ),
        resources=tokenizer.resources_per_instance,
        batching=None if batching is None or batching.mode is Switch.DISABLED else batching,
        path="spec.tokenizer",
        parameters=settings.parameters() if settings else python_parameters(tokenizer.python),
        fetches=(
            *tokenizer_fetches(spec),
            *python_fetches(
                TOKENIZER, tokenizer.model_name, tokenizer.python, "spec.tokenizer.python"
            ),
        ),
        file_name="tokenizer.json" if settings else None,
        code=inline_code(tokenizer.python),
        config_patch=tokenizer.config_patch,
        tokenizer=settings,
    )


def row_length(tokenizer: Tokenizer | None) -> int:
    """Return the most tokens that a row may have."""
    return (tokenizer.max_length if tokenizer else None) or DEFAULT_MAX_LENGTH


def token_tensors(tokens: Tokens, length: int, batched: bool) -> tuple[Tensor, ...]:
    """Return the tokenizer's outputs as tensors whose rows have ``length`` tokens (-1: any)."""
    return tuple(
        Tensor(name, token.data_type, token_dims(token, length, batched))
        for name, token in tokens.items()
    )


def _settings(tokenizer: Tokenizer, padding: PaddingChoice, tokens: Tokens) -> TokenizerSettings:
    return TokenizerSettings(
        text=tokenizer.inputs.text,
        text_pair=tokenizer.inputs.text_pair,
        max_length=row_length(tokenizer),
        truncation=tokenizer.truncation,
        special_tokens=tokenizer.special_tokens,
        padding=padding.chosen,
        buckets=padding.buckets,
        outputs={name: token.kind for name, token in tokens.items() if token.kind},
    )


def _text_inputs(tokenizer: Tokenizer, dims: tuple[int, ...]) -> tuple[Input, ...]:
    inputs = tokenizer.inputs
    texts = [_text_input(inputs.text, inputs.text_from, "text", dims)]
    if inputs.text_pair is not None:
        texts.append(_text_input(inputs.text_pair, inputs.text_pair_from, "textPair", dims))
    return tuple(texts)


def _text_input(name: str, from_: str | None, field: str, dims: tuple[int, ...]) -> Input:
    source = Reference.parse(from_) if from_ else Reference(PIPELINE, name)
    return Input(
        Tensor(name, DataType.STRING, dims),
        source,
        f"spec.tokenizer.inputs.{field}" + ("From" if from_ else ""),
    )
