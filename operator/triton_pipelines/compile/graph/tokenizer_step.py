"""Build the tokenizer step: its output tensors, its padding and who reads them.

Its output tensors, their padding and shapes, and the step itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triton_pipelines.api.base import Switch
from triton_pipelines.api.batching import DynamicBatching
from triton_pipelines.api.instances import InstanceKind
from triton_pipelines.api.tensors import DataType, InputTensor, TokenTensor
from triton_pipelines.api.tokenizer import Padding, Tokenizer, TokenizerOutput
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .defaults import (
    DEFAULT_MAX_LENGTH,
    ENVIRONMENT_FILE,
    ENVIRONMENT_PARAMETER,
    TOKENIZER,
    USUAL_NAMES,
)
from .fetches import inline_code, python_fetches, tokenizer_fetches
from .graph import (
    PIPELINE,
    Implementation,
    Input,
    MeasuredPadding,
    PaddingChoice,
    Reference,
    Role,
    Step,
    StepInstances,
    Tensor,
)
from .tensorrt_profiles import Box, bucket_lengths
from .tokenizer_settings import TokenizerSettings

LENGTH_BEARING = frozenset(TokenTensor) - {TokenTensor.LENGTHS}


@dataclass(frozen=True, slots=True)
class Token:
    """One output of the tokenizer: what it carries (``None``: unknown) and its element type."""

    kind: TokenTensor | None
    data_type: DataType
    dims: tuple[int, ...] | None = None


Tokens = Mapping[str, Token]


@dataclass(frozen=True, slots=True)
class TokenReader:
    """A step that reads tokens, as far as padding is concerned.

    ``backend``: one of Triton's own runs it and batches it, which takes requests of equal shape
    only, unless the file can be adapted: ``blocker`` says why not, and ``refused`` what the
    loader said when it tried. ``fixed``: its inputs are declared with one length. ``key`` tells one
    file and its use from another, ``path`` is its field. ``profiles``: those of a TensorRT plan
    that its instances load.
    """

    path: str
    backend: bool = False
    on_cpu: bool = False
    fixed: bool = False
    blocker: str = ""
    refused: str = ""
    key: str = ""
    profiles: tuple[Box, ...] = ()

    @property
    def adapted(self) -> bool:
        """Whether its file is to be adapted where padding is Ragged."""
        return (
            self.backend
            and not self.on_cpu
            and not self.fixed
            and not self.blocker
            and not self.refused
        )

    @property
    def equal_shapes_only(self) -> bool:
        """Whether its requests need one length to share a batch, and gain from that."""
        return self.backend and not self.adapted and (self.fixed or not self.on_cpu)

    @property
    def why(self) -> str:
        """Why its requests need one length."""
        if self.fixed:
            return "its inputs are declared with one length"
        return (
            f"its file cannot be adapted to ragged batches ({self.refused})"
            if self.refused
            else self.blocker
        )


def kind_of(output: TokenizerOutput) -> TokenTensor | None:
    """What a declared output carries, as written or as its usual name says."""
    return output.tensor or USUAL_NAMES.get(output.name.lower())


def token_read(wanted: InputTensor, tokenizer: Tokenizer | None) -> Reference | None:
    """The token tensor that an input without ``from`` reads.

    The tokenizer's output of that name, else the only one that carries what the name says.
    """
    if tokenizer is None:
        return None
    declared = [output.name for output in tokenizer.outputs]
    if wanted.name in declared:
        return Reference(TOKENIZER, wanted.name)
    usual = USUAL_NAMES.get(wanted.name.lower())
    same = [
        output.name
        for output in tokenizer.outputs
        if usual is not None and kind_of(output) is usual
    ]
    if len(same) == 1:
        return Reference(TOKENIZER, same[0])
    return Reference(TOKENIZER, wanted.name) if usual is not None and not declared else None


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
    wanted: dict[str, DataType] = {}
    for name, data_type in read:
        if data_type is not None:
            wanted.setdefault(name, data_type)
    if tokenizer.outputs:
        return {
            output.name: Token(
                kind_of(output),
                output.data_type or wanted.get(output.name, DataType.INT64),
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
            name, Token(USUAL_NAMES.get(name.lower()), wanted.get(name, DataType.INT64))
        )
    if mask and all(token.kind is not TokenTensor.ATTENTION_MASK for token in result.values()):
        result["attention_mask"] = Token(TokenTensor.ATTENTION_MASK, DataType.INT64)
    return result


def left_to_auto(tokenizer: Tokenizer | None) -> bool:
    """Return whether the resource leaves its padding to ``Auto``.

    ``False`` if the tokenizer's custom code decides, or there is no tokenizer.
    """
    return (
        tokenizer is not None
        and tokenizer.python is None
        and tokenizer.padding in (None, Padding.AUTO)
    )


def choose_padding(
    tokenizer: Tokenizer, readers: Sequence[TokenReader], measured: MeasuredPadding | None = None
) -> PaddingChoice:
    """The padding in force (api.md §6).

    Of ``Auto`` the cheapest that every step that reads tokens can take.

    ``measured``: what is known to be best for this very pipeline. A padding that is written goes
    before it, and so does what the steps cannot take: rows of different length, where the loader
    has refused the file since.

    By rule, without figures:

    A step on CPU pays for each padded token and gains little from batches (measured: ragged batches
    carried 0.5 to 1.1 times the requests of the plain graph on two cores), so its requests keep
    their lengths and share a batch only where these are equal. A GPU step gains most from ragged
    batches, which an ONNX file takes once adapted; what cannot take them is given rows of one
    length.
    """
    wanted = tokenizer.padding or Padding.AUTO
    longest = tokenizer.max_length or DEFAULT_MAX_LENGTH
    if tokenizer.python is not None:
        return PaddingChoice(Padding.AUTO, "decided by the tokenizer's custom code")
    if wanted is Padding.BUCKETED:
        given = tokenizer.buckets or tuple(
            length for reader in readers for length in bucket_lengths(reader.profiles, longest)
        )
        source = (
            "" if tokenizer.buckets else "; buckets are the longest rows of the plan's profiles"
        )
        return PaddingChoice(
            Padding.BUCKETED,
            f"asked for by tokenizer.padding{source}",
            tuple(sorted({*given, longest})),
        )
    refused = {reader.key: reader.refused for reader in readers if reader.refused}
    fixed_length = [reader for reader in readers if reader.equal_shapes_only]
    if wanted is not Padding.AUTO:
        return PaddingChoice(
            wanted,
            "asked for by tokenizer.padding",
            refused=refused,
            fixed_length={reader.path: reader.why for reader in fixed_length},
        )
    if measured is not None and not (fixed_length and measured.mode is Padding.RAGGED):
        buckets = (
            tuple(sorted({*measured.buckets, longest})) if measured.mode is Padding.BUCKETED else ()
        )
        return PaddingChoice(
            measured.mode, measured.said, buckets, refused=refused, automatic=True, measured=True
        )
    if fixed_length:
        why = (
            f"Auto: {fixed_length[0].path}: {fixed_length[0].why}, so every row has {longest} "
            "tokens"
        )
        return PaddingChoice(Padding.FIXED, why, refused=refused, automatic=True)
    if any(reader.on_cpu for reader in readers):
        why = (
            "a model on CPU pays for every padded token and gains little from batches, so each "
            "request keeps its own length"
        )
    elif any(reader.adapted for reader in readers):
        why = (
            "the ONNX file is adapted when it is loaded, so that requests of different lengths "
            "share batches without padding"
        )
    else:
        why = (
            "requests of different lengths need not be padded to each other here, so no token is "
            "computed for nothing"
        )
    return PaddingChoice(Padding.RAGGED, f"Auto: {why}", automatic=True)


def token_dims(token: Token, length: int, batched: bool) -> tuple[int, ...]:
    """Shape of a token tensor of rows with ``length`` tokens (-1: any)."""
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
    """The tokenizer as a step; ``text_dims``: shape of the texts that it reads."""
    tokenizer = spec.tokenizer
    assert tokenizer is not None
    longest = tokenizer.max_length or DEFAULT_MAX_LENGTH
    batched = max_batch_size > 0
    batching = tokenizer.dynamic_batching or (DynamicBatching() if batched else None)
    length = longest if padding.chosen is Padding.FIXED else -1
    outputs = tuple(
        Tensor(name, token.data_type, token_dims(token, length, batched))
        for name, token in tokens.items()
    )
    own = tokenizer.python is not None
    texts = [_text_input(tokenizer.inputs.text, tokenizer.inputs.text_from, "text", text_dims)]
    if tokenizer.inputs.text_pair is not None:
        texts.append(
            _text_input(
                tokenizer.inputs.text_pair, tokenizer.inputs.text_pair_from, "textPair", text_dims
            )
        )
    settings = TokenizerSettings(
        text=tokenizer.inputs.text,
        text_pair=tokenizer.inputs.text_pair,
        max_length=longest,
        truncation=tokenizer.truncation,
        special_tokens=tokenizer.special_tokens,
        padding=padding.chosen,
        buckets=padding.buckets,
        outputs={name: token.kind for name, token in tokens.items() if token.kind},
    )
    kind = tokenizer.instances.kind or InstanceKind.CPU
    fetches = (
        python_fetches(TOKENIZER, tokenizer.model_name, tokenizer.python, "spec.tokenizer.python")
        if tokenizer.python
        else ()
    )
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
        instances=StepInstances(
            f"KIND_{kind.value.upper()}",
            tokenizer.instances.bounds(scaled=True),
            host_policy=tokenizer.instances.host_policy or "",
        ),
        resources=tokenizer.resources_per_instance,
        batching=None if batching is None or batching.mode is Switch.DISABLED else batching,
        path="spec.tokenizer",
        parameters=python_parameters(
            tokenizer.python is not None and tokenizer.python.environment is not None
        )
        if own
        else settings.parameters(),
        fetches=(*tokenizer_fetches(spec), *fetches),
        file_name=None if own else "tokenizer.json",
        code=inline_code(tokenizer.python),
        config_patch=tokenizer.config_patch,
        tokenizer=None if own else settings,
    )


def python_parameters(environment: bool) -> dict[str, str]:
    """Parameters of a step with custom code.

    Where its packed environment lies (Triton knows the variable, python_backend README).
    """
    return (
        {ENVIRONMENT_PARAMETER: f"$$TRITON_MODEL_DIRECTORY/{ENVIRONMENT_FILE}"}
        if environment
        else {}
    )


def _text_input(name: str, from_: str | None, field: str, dims: tuple[int, ...]) -> Input:
    source = Reference.parse(from_) if from_ else Reference(PIPELINE, name)
    return Input(
        Tensor(name, DataType.STRING, dims),
        source,
        f"spec.tokenizer.inputs.{field}" + ("From" if from_ else ""),
    )
