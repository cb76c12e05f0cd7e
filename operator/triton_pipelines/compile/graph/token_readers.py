"""Find the inputs that read the tokenizer's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triton_pipelines.api.base import Switch
from triton_pipelines.api.postprocess import PostprocessType
from triton_pipelines.api.steps import Platform, StepFields
from triton_pipelines.api.tensors import DataType, InputTensor
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .declared_steps import DeclaredStep
from .defaults import TOKENIZER
from .graph import PIPELINE, Implementation, Reference
from .model_step import implementation_of, max_batch_size
from .options import Options
from .padding_choice import TokenReader
from .postprocess_step import postprocess_read
from .ragged_eligibility import (
    PAD_VALUE,
    RaggedRejections,
    adaptation_blocker,
    on_cpu,
    rejection_key,
)
from .repeated_steps import tokenizer_names
from .tensorrt_profiles import boxes
from .tokenizer_step import Token, Tokens, token_outputs, token_read


def input_source(tensor: InputTensor, spec: PipelineSpec) -> Reference | None:
    """Return the tensor that feeds an input.

    It is the declared source, else the tokenizer's tensor with that conventional name, else the
    pipeline's input of that name. ``None`` if an optional input is not connected.
    """
    if tensor.from_:
        return Reference.parse(tensor.from_)
    token = token_read(tensor, spec.tokenizer)
    if token is not None:
        return token
    public = any(one.name == tensor.name for one in spec.ensemble.inputs)
    if tensor.optional is Switch.ENABLED and not public:
        return None
    # With a tokenizer an unknown name is rather a misspelt token tensor than another input of the
    # pipeline.
    return Reference(PIPELINE if public or spec.tokenizer is None else TOKENIZER, tensor.name)


def tokens_read(spec: PipelineSpec, declared: Sequence[DeclaredStep]) -> dict[str, Token]:
    """Return the tokenizer's outputs by name, as the steps and clients read them."""
    if spec.tokenizer is None:
        return {}
    tokenizers = tokenizer_names(spec)
    read: list[tuple[str, DataType | None]] = _read_again(spec, declared)
    for item in declared:
        for tensor in item.fields.inputs:
            reference = input_source(tensor, spec)
            if reference is not None and reference.step in tokenizers:
                read.append((reference.tensor, tensor.data_type))
    post = spec.postprocess
    for tensor in post.inputs:
        reference = postprocess_read(tensor, spec) or input_source(tensor, spec)
        if reference is not None and reference.step in tokenizers:
            read.append((reference.tensor, tensor.data_type))
    texts = [post.from_, post.mask_from, *(output.from_ for output in spec.ensemble.outputs)]
    named = [Reference.parse(text) for text in texts if text]
    read += [(one.tensor, None) for one in named if one.step in tokenizers]
    return token_outputs(
        spec.tokenizer,
        read,
        default=any(_reads_tokens_by_default(item.fields) for item in declared),
        mask=post.type is PostprocessType.MEAN_POOLING and post.mask_from is None,
    )


def _read_again(
    spec: PipelineSpec, declared: Sequence[DeclaredStep]
) -> list[tuple[str, DataType | None]]:
    """Return the tokens that repeated steps read, with the types of the same inputs elsewhere."""
    types = {
        (item.name, tensor.name): tensor.data_type
        for item in declared
        for tensor in item.fields.inputs
    }
    tokenizers = tokenizer_names(spec)
    return [
        (source.tensor, types.get((step.step, entry.name)))
        for step in spec.repeated_steps
        for entry in step.inputs
        if (source := Reference.parse(entry.from_)).step in tokenizers
    ]


def _reads_tokens_by_default(fields: StepFields) -> bool:
    """Return whether a step without declared inputs reads the tokenizer's.

    The vLLM engine reads text instead.
    """
    return not fields.inputs and fields.platform is not Platform.VLLM


def token_readers(
    spec: PipelineSpec,
    declared: Sequence[DeclaredStep],
    tokens: Tokens,
    options: Options,
    refused: RaggedRejections,
) -> dict[str, TokenReader]:
    """Return the steps that read tokens by name, with what padding depends on.

    Args:
        spec: The spec of the pipeline.
        declared: The model and the further steps.
        tokens: The tokenizer's outputs.
        options: The operator's options.
        refused: Files that the loader could not adapt to ragged batches.
    """
    if spec.tokenizer is None:
        return {}
    result = {}
    for item in declared:
        sources = [(tensor, input_source(tensor, spec)) for tensor in item.fields.inputs]
        own = {
            tensor.name: (tensor, source)
            for tensor, source in sources
            if source is not None and source.step in tokenizer_names(spec)
        }
        if own or _reads_tokens_by_default(item.fields):
            result[item.name] = _token_reader(item, spec, own, tokens, options, refused)
    return result


def _token_reader(
    item: DeclaredStep,
    spec: PipelineSpec,
    own: Mapping[str, tuple[InputTensor, Reference]],
    tokens: Tokens,
    options: Options,
    refused: RaggedRejections,
) -> TokenReader:
    """Return what padding depends on for one step.

    ``own`` holds its declared inputs that read tokens; if it is empty, the step reads all tokens.
    """
    fields = item.fields
    ragged = bool(own) and all(tensor.ragged is Switch.ENABLED for tensor, _ in own.values())
    if (
        ragged
        or max_batch_size(fields) == 0
        or implementation_of(fields, options) is not Implementation.BACKEND
    ):
        return TokenReader(item.path)
    kinds = {
        name: tokens[source.tensor].kind
        for name, (_, source) in own.items()
        if source.tensor in tokens
    }
    if not own:
        kinds = {name: token.kind for name, token in tokens.items()}
    key = rejection_key(fields, spec)
    return TokenReader(
        item.path,
        backend=True,
        on_cpu=on_cpu(fields, spec),
        fixed=any(
            kinds.get(name) in PAD_VALUE and -1 not in tensor.dims
            for name, (tensor, _) in own.items()
        ),
        blocker=adaptation_blocker(fields, spec, kinds),
        refused=refused.get(key, ""),
        key=key,
        profiles=boxes(fields.lengths, fields.instances.loaded_profiles),
    )
