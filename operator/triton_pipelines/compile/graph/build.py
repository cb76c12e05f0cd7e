"""Build the graph of a resource with every default resolved; checks.py validates it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from triton_pipelines.api.base import Switch
from triton_pipelines.api.postprocess import PostprocessType
from triton_pipelines.api.steps import Platform, StepFields
from triton_pipelines.api.tensors import DataType, InputTensor
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline, PipelineSpec

from .defaults import DEFAULT_MAX_LENGTH, MODEL, POSTPROCESS, TOKENIZER
from .graph import (
    PIPELINE,
    Graph,
    Implementation,
    MeasuredPadding,
    PaddingChoice,
    PublicTensor,
    Reference,
    Role,
    Step,
    Tensor,
)
from .model_step import Surroundings, implementation_of, max_batch_size, model_step
from .options import Options
from .postprocess_step import postprocess_read, postprocess_step
from .ragged_eligibility import PAD_VALUE, Refusals, adaptation_blocker, on_cpu, pads, refusal_key
from .tensorrt_profiles import boxes
from .tokenizer_step import (
    Token,
    TokenReader,
    Tokens,
    choose_padding,
    token_dims,
    token_outputs,
    token_read,
    tokenizer_step,
)


def build(
    pipeline: InferencePipeline,
    options: Options,
    refused: Refusals | None = None,
    measured: MeasuredPadding | None = None,
) -> Graph:
    """The graph of a resource that its schema and rules accept.

    Wrong references stay in it for the checks to find.

    ``refused``: files that the loader could not adapt to ragged batches; their rows are padded
    instead. ``measured``: the padding that Auto takes, where it was measured for this very
    resource.
    """
    spec = pipeline.spec
    wired = _fields(spec)
    sizes = [max_batch_size(fields) for _, _, _, _, fields in wired]
    tokenizer_batch = _tokenizer_batch(spec, sizes)
    tokens = _tokens(spec, wired, options)
    readers = _readers(spec, wired, tokens, options, refused or {})
    padding = (
        choose_padding(spec.tokenizer, list(readers.values()), measured)
        if spec.tokenizer is not None
        else None
    )
    batched = tokenizer_batch is not None and tokenizer_batch > 0
    length = (
        (spec.tokenizer.max_length or DEFAULT_MAX_LENGTH)
        if spec.tokenizer and padding and padding.chosen is Padding.FIXED
        else -1
    )
    token_tensors = [
        Tensor(name, token.data_type, token_dims(token, length, batched))
        for name, token in tokens.items()
    ]
    around = Surroundings(
        spec=spec,
        tokens=tokens,
        token_tensors=token_tensors,
        lengths=_lengths(spec, padding),
        read=lambda wanted: _reader(wanted, spec),
        options=options,
    )
    steps: list[Step] = []
    if spec.tokenizer is not None and tokenizer_batch is not None and padding is not None:
        steps.append(
            tokenizer_step(
                spec, tokenizer_batch, padding, tokens, _text_dims(spec, tokenizer_batch)
            )
        )
    adapts = padding is not None and padding.chosen is Padding.RAGGED
    for name, role, model_name, path, fields in wired:
        step = model_step(name, role, model_name, path, fields, around)
        reader = readers.get(name)
        steps.append(
            _adapted(step, tokens) if adapts and reader is not None and reader.adapted else step
        )
    auxiliary = tuple(
        model_step(name, role, model_name, path, fields, around)
        for name, role, model_name, path, fields in _auxiliary(spec)
    )
    post = spec.postprocess
    if post.type not in (None, PostprocessType.NONE):
        read = {
            tensor.name: postprocess_read(tensor, spec) or _reader(tensor, spec)
            for tensor in post.inputs
        }
        steps.append(
            postprocess_step(post, steps, tokens, _text_inputs(spec, tokenizer_batch), read)
        )
    if spec.ensemble.response_cache is Switch.ENABLED and spec.ensemble.entry_point is not None:
        steps = [
            replace(step, response_cache=step.name == spec.ensemble.entry_point) for step in steps
        ]
    if spec.server.auto_complete is Switch.ENABLED:
        steps, auxiliary = [_fixed(step) for step in steps], tuple(map(_fixed, auxiliary))
    graph = Graph(
        pipeline=pipeline.name,
        model_name=pipeline.public_name,
        max_batch_size=_ensemble_batch(spec, steps),
        inputs=(),
        outputs=(),
        steps=tuple(steps),
        auxiliary=auxiliary,
        padding=padding,
        entry=spec.ensemble.entry_point,
        max_inflight_requests=spec.ensemble.max_inflight_requests or 0,
        response_cache=spec.ensemble.response_cache is Switch.ENABLED,
        auto_complete=spec.server.auto_complete is Switch.ENABLED,
        tracing=spec.observability.tracing,
    )
    return _entered(graph) if graph.entry is not None else _wired(graph, spec, tokenizer_batch)


def _fixed(step: Step) -> Step:
    """Return the step with its initial count.

    If the backend completes the config, every change of a count would reload the model.
    """
    return replace(step, instances=replace(step.instances, counts=step.instances.counts.fixed()))


# Name, role, model name, path in the resource, fields.
Wanted = tuple[str, Role, str, str, StepFields]


def _fields(spec: PipelineSpec) -> list[Wanted]:
    """Model and further steps."""
    result: list[Wanted] = []
    if spec.model is not None:
        result.append((MODEL, Role.MODEL, spec.model.model_name, "spec.model", spec.model))
    result += [
        (step.name, Role.STEP, step.model_name or step.name, f"spec.steps[{index}]", step)
        for index, step in enumerate(spec.steps)
    ]
    return result


def _auxiliary(spec: PipelineSpec) -> list[Wanted]:
    return [
        (
            step.name,
            Role.AUXILIARY,
            step.model_name or step.name,
            f"spec.auxiliaryModels[{index}]",
            step,
        )
        for index, step in enumerate(spec.auxiliary_models)
    ]


def _tokenizer_batch(spec: PipelineSpec, sizes: Sequence[int]) -> int | None:
    """Rows of the tokenizer's batch: as written, else the model's."""
    if spec.tokenizer is None:
        return None
    if spec.tokenizer.max_batch_size is not None:
        return spec.tokenizer.max_batch_size
    return sizes[0] if sizes else 0


def _ensemble_batch(spec: PipelineSpec, steps: Sequence[Step]) -> int:
    if spec.ensemble.max_batch_size is not None:
        return spec.ensemble.max_batch_size
    # If one step has no batch axis, the whole pipeline has none. The axis is then part of the dims
    # of every tensor.
    return min((step.max_batch_size for step in steps), default=0)


def _text_dims(spec: PipelineSpec, batch: int) -> tuple[int, ...]:
    """Return the shape of the text tensors.

    It is the shape of the pipeline's input if declared, else one text per row. Without a batch axis
    it is any number of texts.
    """
    name = spec.tokenizer.inputs.text if spec.tokenizer else ""
    declared = next((one.dims for one in spec.ensemble.inputs if one.name == name), None)
    return declared or ((1,) if batch > 0 else (-1,))


def _text_inputs(spec: PipelineSpec, batch: int | None) -> list[Tensor]:
    """Return the public inputs that the tokenizer reads."""
    if spec.tokenizer is None or batch is None:
        return []
    texts = spec.tokenizer.inputs
    dims = _text_dims(spec, batch)
    result = [] if texts.text_from else [Tensor(texts.text, DataType.STRING, dims)]
    if texts.text_pair is not None and not texts.text_pair_from:
        result.append(Tensor(texts.text_pair, DataType.STRING, dims))
    return result


def _reader(wanted: InputTensor, spec: PipelineSpec) -> Reference | None:
    """Return the tensor that feeds an input.

    It is the declared source, else the tokenizer's tensor with that conventional name, else the
    pipeline's input of that name.
    """
    if wanted.from_:
        return Reference.parse(wanted.from_)
    token = token_read(wanted, spec.tokenizer)
    if token is not None:
        return token
    public = any(one.name == wanted.name for one in spec.ensemble.inputs)
    if wanted.optional is Switch.ENABLED and not public:
        return None
    # With a tokenizer an unknown name is rather a misspelt token tensor than another input of the
    # pipeline.
    return Reference(PIPELINE if public or spec.tokenizer is None else TOKENIZER, wanted.name)


def _tokens(spec: PipelineSpec, wired: Sequence[Wanted], options: Options) -> dict[str, Token]:
    if spec.tokenizer is None:
        return {}
    read: list[tuple[str, DataType | None]] = []
    for _, _, _, _, fields in wired:
        for tensor in fields.inputs:
            reference = _reader(tensor, spec)
            if reference is not None and reference.step == TOKENIZER:
                read.append((reference.tensor, tensor.data_type))
    post = spec.postprocess
    for tensor in post.inputs:
        reference = postprocess_read(tensor, spec) or _reader(tensor, spec)
        if reference is not None and reference.step == TOKENIZER:
            read.append((reference.tensor, tensor.data_type))
    texts = [post.from_, post.mask_from, *(output.from_ for output in spec.ensemble.outputs)]
    named = [Reference.parse(text) for text in texts if text]
    read += [(one.tensor, None) for one in named if one.step == TOKENIZER]
    default = any(_takes_tokens(fields) for _, _, _, _, fields in wired)
    return token_outputs(
        spec.tokenizer,
        read,
        default=default,
        mask=post.type is PostprocessType.MEAN_POOLING and post.mask_from is None,
    )


def _takes_tokens(fields: StepFields) -> bool:
    """Whether a step that names no inputs reads the tokenizer's; the vLLM engine reads text."""
    return not fields.inputs and fields.platform is not Platform.VLLM


def _readers(
    spec: PipelineSpec, wired: Sequence[Wanted], tokens: Tokens, options: Options, refused: Refusals
) -> dict[str, TokenReader]:
    """The steps that read tokens, by name, as far as padding is concerned."""
    if spec.tokenizer is None:
        return {}
    result = {}
    for name, _, _, path, fields in wired:
        own = [
            tensor
            for tensor in fields.inputs
            if (read := _reader(tensor, spec)) is not None and read.step == TOKENIZER
        ]
        if not own and not _takes_tokens(fields):
            continue
        ragged = bool(own) and all(tensor.ragged is Switch.ENABLED for tensor in own)
        if (
            ragged
            or max_batch_size(fields) == 0
            or implementation_of(fields, options) is not Implementation.BACKEND
        ):
            result[name] = TokenReader(path)
            continue
        kinds = {
            tensor.name: tokens[read.tensor].kind
            for tensor in own
            if (read := _reader(tensor, spec)) is not None and read.tensor in tokens
        }
        kinds = kinds if own else {token: made.kind for token, made in tokens.items()}
        key = refusal_key(fields, spec)
        result[name] = TokenReader(
            path,
            backend=True,
            on_cpu=on_cpu(fields, spec),
            fixed=any(
                kinds.get(tensor.name) in PAD_VALUE and -1 not in tensor.dims for tensor in own
            ),
            blocker=adaptation_blocker(fields, spec, kinds),
            refused=refused.get(key, ""),
            key=key,
            profiles=boxes(fields.lengths, fields.instances.profiles),
        )
    return result


def _adapted(step: Step, tokens: Tokens) -> Step:
    """The step with its file adapted to ragged batches."""
    fed = {
        entry.tensor.name: entry.source
        for entry in step.inputs
        if entry.source is not None and entry.source.step == TOKENIZER
    }
    kinds = {
        name: tokens[source.tensor].kind for name, source in fed.items() if source.tensor in tokens
    }
    flat = pads(step.inputs, kinds)
    return replace(
        step,
        flat=flat,
        inputs=tuple(replace(entry, ragged=entry.tensor.name in flat) for entry in step.inputs),
    )


def _lengths(spec: PipelineSpec, padding: PaddingChoice | None) -> tuple[int, ...]:
    """Lengths, in tokens, that a row may have when it is padded; warm-up runs each."""
    longest = (spec.tokenizer.max_length if spec.tokenizer else None) or DEFAULT_MAX_LENGTH
    return padding.buckets if padding is not None and padding.buckets else (longest,)


def _entered(graph: Graph) -> Graph:
    """Return the graph of a pipeline whose entry point calls the other models itself.

    No steps are wired, and the entry point's tensors are the public ones.
    """
    entry = next((step for step in graph.models if step.name == graph.entry), None)
    if entry is None:
        return graph

    def unwired(step: Step) -> Step:
        return replace(step, inputs=tuple(replace(one, source=None) for one in step.inputs))

    return replace(
        graph,
        max_batch_size=entry.max_batch_size,
        inputs=tuple(one.tensor for one in entry.inputs),
        outputs=tuple(
            PublicTensor(tensor, Reference(entry.name, tensor.name), entry.path)
            for tensor in entry.outputs
        ),
        steps=tuple(map(unwired, graph.steps)),
        auxiliary=tuple(map(unwired, graph.auxiliary)),
    )


def _wired(graph: Graph, spec: PipelineSpec, tokenizer_batch: int | None) -> Graph:
    """The ensemble around the steps: the order of the data, public inputs and outputs."""
    steps = tuple(in_order(graph.steps))
    declared = tuple(Tensor(one.name, one.data_type, one.dims) for one in spec.ensemble.inputs)
    inputs = declared or tuple(_collected(_text_inputs(spec, tokenizer_batch), steps))
    graph = replace(graph, steps=steps, inputs=inputs)
    return replace(graph, outputs=tuple(_outputs(graph, spec)))


def _collected(texts: Iterable[Tensor], steps: Sequence[Step]) -> list[Tensor]:
    """Return the pipeline's inputs: first the texts, then the other inputs that steps read.

    Each input appears once, as its first reader declares it.
    """
    result = {tensor.name: tensor for tensor in texts}
    for step in steps:
        for entry in step.inputs:
            if entry.source is not None and entry.source.step == PIPELINE:
                result.setdefault(
                    entry.source.tensor,
                    replace(entry.tensor, name=entry.source.tensor, reshape=None),
                )
    return list(result.values())


def _outputs(graph: Graph, spec: PipelineSpec) -> list[PublicTensor]:
    if spec.ensemble.outputs:
        result = []
        for index, wanted in enumerate(spec.ensemble.outputs):
            source = Reference.parse(wanted.from_)
            made = graph.resolve(source) or Tensor(wanted.name, DataType.FP32, (-1,))
            tensor = replace(made, name=wanted.name, reshape=None)
            result.append(PublicTensor(tensor, source, f"spec.ensemble.outputs[{index}].from"))
        return result
    last = _last(graph)
    if last is None:
        return []
    return [
        PublicTensor(replace(tensor, reshape=None), Reference(last.name, tensor.name), last.path)
        for tensor in last.outputs
    ]


def _last(graph: Graph) -> Step | None:
    """Return the step whose outputs are the pipeline's.

    It is the postprocess, else the last step that no other step reads.
    """
    read = {
        entry.source.step
        for step in graph.steps
        for entry in step.inputs
        if entry.source is not None
    }
    post = graph.step(POSTPROCESS)
    unread = [step for step in graph.steps if step.name not in read]
    return post or (unread[-1] if unread else None)


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Return the steps in the order of the data flow, else in the declared order.

    Steps of a cycle come last, so that the checks find them.
    """
    left, done = list(steps), {PIPELINE}
    result: list[Step] = []
    known = {step.name for step in steps}
    while left:
        ready = next(
            (
                step
                for step in left
                if all(
                    entry.source is None
                    or entry.source.step in done
                    or entry.source.step not in known
                    for entry in step.inputs
                )
            ),
            None,
        )
        if ready is None:
            return [*result, *left]
        left.remove(ready)
        result.append(ready)
        done.add(ready.name)
    return result
