"""What the tokenizer makes for whom: its output tensors, their padding and shapes, and the step itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triton_pipelines.api.base import Switch
from triton_pipelines.api.batching import DynamicBatching
from triton_pipelines.api.instances import InstanceKind
from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.tensors import DataType, InputTensor, TokenTensor
from triton_pipelines.api.tokenizer import Padding, Tokenizer, TokenizerOutput
from triton_pipelines.api.v1alpha1 import Spec

from .defaults import DEFAULT_MAX_LENGTH, ENVIRONMENT_FILE, ENVIRONMENT_PARAMETER, TOKENIZER, USUAL_NAMES
from .graph import PIPELINE, Implementation, Input, Instances, PaddingChoice, Reference, Role, Step, Tensor
from .sources import code_of, python_fetches, tokenizer_fetches

LENGTH_BEARING = frozenset(TokenTensor) - {TokenTensor.LENGTHS}


@dataclass(frozen=True, slots=True)
class Token:
    """One output of the tokenizer: what it carries (``None``: unknown) and its element type."""

    kind: TokenTensor | None
    data_type: DataType
    dims: tuple[int, ...] | None = None


Tokens = Mapping[str, Token]


def prefixed(parameters: Mapping[str, str]) -> dict[str, str]:
    """Parameters of the operator's own runtime files, under the prefix that no user parameter may have."""
    return {RUNTIME_PARAMETER_PREFIX + key: value for key, value in parameters.items()}


def kind_of(output: TokenizerOutput) -> TokenTensor | None:
    """What a declared output carries, as written or as its usual name says."""
    return output.tensor or USUAL_NAMES.get(output.name.lower())


def token_read(wanted: InputTensor, tokenizer: Tokenizer | None) -> Reference | None:
    """The token tensor that an input without ``from`` reads: the tokenizer's output of that name, else the only one that carries what the name says."""
    if tokenizer is None:
        return None
    declared = [output.name for output in tokenizer.outputs]
    if wanted.name in declared:
        return Reference(TOKENIZER, wanted.name)
    usual = USUAL_NAMES.get(wanted.name.lower())
    same = [output.name for output in tokenizer.outputs if usual is not None and kind_of(output) is usual]
    if len(same) == 1:
        return Reference(TOKENIZER, same[0])
    return Reference(TOKENIZER, wanted.name) if usual is not None and not declared else None


def token_outputs(tokenizer: Tokenizer, read: Sequence[tuple[str, DataType | None]], *, default: bool, mask: bool) -> dict[str, Token]:
    """Name → output of the tokenizer, in order.

    Args:
        tokenizer: as written; its ``outputs``, where given, are all there are.
        read: names and element types under which steps read them, in order; type ``None``: the reader takes what there is.
        default: nobody says what the model reads: ids and mask, then.
        mask: a step of ours needs the attention mask, under any name.
    """
    wanted: dict[str, DataType] = {}
    for name, data_type in read:
        if data_type is not None:
            wanted.setdefault(name, data_type)
    if tokenizer.outputs:
        return {
            output.name: Token(kind_of(output), output.data_type or wanted.get(output.name, DataType.INT64), output.dims)
            for output in tokenizer.outputs
        }
    result = {}
    if default:
        result = {"input_ids": Token(TokenTensor.INPUT_IDS, DataType.INT64), "attention_mask": Token(TokenTensor.ATTENTION_MASK, DataType.INT64)}
    for name, _ in read:
        result.setdefault(name, Token(USUAL_NAMES.get(name.lower()), wanted.get(name, DataType.INT64)))
    if mask and all(token.kind is not TokenTensor.ATTENTION_MASK for token in result.values()):
        result["attention_mask"] = Token(TokenTensor.ATTENTION_MASK, DataType.INT64)
    return result


def choose_padding(tokenizer: Tokenizer, *, equal_shapes_only: bool) -> PaddingChoice:
    """The padding in force (api.md §6): until the ONNX adapter exists, Auto is Ragged for python steps and the runner, else Fixed.

    ``equal_shapes_only``: a step that reads tokens runs in a backend that batches equal shapes only.
    """
    wanted = tokenizer.padding or Padding.AUTO
    longest = tokenizer.max_length or DEFAULT_MAX_LENGTH
    if tokenizer.python is not None:
        return PaddingChoice(Padding.AUTO, "decided by the tokenizer's own code")
    if wanted is Padding.BUCKETED:
        buckets = tuple(sorted({*tokenizer.buckets, longest}))
        return PaddingChoice(Padding.BUCKETED, "asked for by tokenizer.padding", buckets)
    if wanted is not Padding.AUTO:
        return PaddingChoice(wanted, "asked for by tokenizer.padding")
    if equal_shapes_only:
        return PaddingChoice(Padding.FIXED, f"Auto: Triton batches only equal shapes for this platform, so every row has {longest} tokens")
    return PaddingChoice(
        Padding.RAGGED, "Auto: requests of different lengths need not be padded to each other here, so no token is computed for nothing"
    )


def token_dims(token: Token, length: int, batched: bool) -> tuple[int, ...]:
    """Shape of a token tensor of rows with ``length`` tokens (-1: any)."""
    if token.dims is not None:
        return token.dims
    row = (1,) if token.kind is TokenTensor.LENGTHS else (length, 2) if token.kind is TokenTensor.OFFSETS else (length,)
    return row if batched else (-1, *row)


def tokenizer_step(spec: Spec, max_batch_size: int, padding: PaddingChoice, tokens: Tokens, text_dims: tuple[int, ...]) -> Step:
    """The tokenizer as a step; ``text_dims``: shape of the texts that it reads."""
    tokenizer = spec.tokenizer
    assert tokenizer is not None
    longest = tokenizer.max_length or DEFAULT_MAX_LENGTH
    batched = max_batch_size > 0
    batching = tokenizer.dynamic_batching or (DynamicBatching() if batched else None)
    length = longest if padding.chosen is Padding.FIXED else -1
    outputs = tuple(Tensor(name, token.data_type, token_dims(token, length, batched)) for name, token in tokens.items())
    own = tokenizer.python is not None
    texts = [_text_input(tokenizer.inputs.text, tokenizer.inputs.text_from, "text", text_dims)]
    if tokenizer.inputs.text_pair is not None:
        texts.append(_text_input(tokenizer.inputs.text_pair, tokenizer.inputs.text_pair_from, "textPair", text_dims))
    parameters = {
        "text": tokenizer.inputs.text,
        "max_length": str(longest),
        "truncation": tokenizer.truncation.value,
        "special_tokens": tokenizer.special_tokens.value,
        "padding": padding.chosen.value,
        "outputs": json.dumps({name: token.kind.value for name, token in tokens.items() if token.kind}, ensure_ascii=False),
    }
    if tokenizer.inputs.text_pair is not None:
        parameters["text_pair"] = tokenizer.inputs.text_pair
    if padding.buckets:
        parameters["buckets"] = ",".join(map(str, padding.buckets))
    count = tokenizer.instances.bounds(scaled=True)
    kind = tokenizer.instances.kind or InstanceKind.CPU
    fetches = python_fetches(TOKENIZER, tokenizer.model_name, tokenizer.python, "spec.tokenizer.python") if tokenizer.python else ()
    return Step(
        name=TOKENIZER,
        role=Role.TOKENIZER,
        model_name=tokenizer.model_name,
        implementation=Implementation.CODE if own else Implementation.TOKENIZER,
        platform="",
        backend="python",
        max_batch_size=max_batch_size,
        inputs=tuple(texts),
        outputs=outputs,
        instances=Instances(
            f"KIND_{kind.value.upper()}",
            count.start,
            count.low,
            count.high,
            host_policy=tokenizer.instances.host_policy or "",
        ),
        resources=tokenizer.resources_per_instance,
        batching=None if batching is None or batching.mode is Switch.DISABLED else batching,
        path="spec.tokenizer",
        parameters=python_parameters(tokenizer.python is not None and tokenizer.python.environment is not None) if own else prefixed(parameters),
        fetches=(*tokenizer_fetches(spec), *fetches),
        file_name=None if own else "tokenizer.json",
        code=code_of(tokenizer.python),
        config_patch=tokenizer.config_patch,
    )


def python_parameters(environment: bool) -> dict[str, str]:
    """Parameters of a step with own code: where its packed environment lies (Triton knows the variable, python_backend README)."""
    return {ENVIRONMENT_PARAMETER: f"$$TRITON_MODEL_DIRECTORY/{ENVIRONMENT_FILE}"} if environment else {}


def _text_input(name: str, from_: str | None, field: str, dims: tuple[int, ...]) -> Input:
    source = Reference.parse(from_) if from_ else Reference(PIPELINE, name)
    return Input(Tensor(name, DataType.STRING, dims), source, f"spec.tokenizer.inputs.{field}" + ("From" if from_ else ""))
