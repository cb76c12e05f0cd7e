"""The requests of a tuning run.

They are given texts, generated texts, or the example request of the resource.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triton_pipelines.api.tensors import DataType, TokenTensor
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.example_request import example_of, probe_blocker
from triton_pipelines.compile.graph.graph import Graph, Step
from triton_pipelines.tools.loadgen import Array, TextLengths, generate_texts
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import TritonError

from .errors import TuneError
from .options import TuningOptions

RequestTensors = Mapping[str, Array]
MAX_TEXTS = 512
DISTINCT_REQUESTS = 256
DEFAULT_MAX_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of the real mix, and how to make some of one length."""

    requests: tuple[RequestTensors, ...]
    """Requests of the mix."""
    lengths: tuple[int, ...]
    """Tokens of the rows in the mix."""
    description: str
    """The mix, for people."""
    rows: int
    """Rows of a request."""
    text_inputs: tuple[str, ...] = ()
    """Inputs that take text; empty: requests are copies of ``example``, of one "length" 1."""
    overhead_tokens: int = 0
    """Special tokens of a row."""
    example: RequestTensors | None = None
    """The example request of the resource, if there are no ``text_inputs``."""

    @property
    def profile_lengths(self) -> tuple[int, ...]:
        """Lengths at which steps are timed: short, usual and long ones of the mix."""
        if not self.text_inputs:
            return (1,)
        found = np.quantile(np.asarray(self.lengths), (0.1, 0.5, 0.95), method="nearest")
        return tuple(sorted({max(1, int(length)) for length in found}))

    @property
    def usual_length(self) -> int:
        """The usual one of ``profile_lengths``."""
        return self.profile_lengths[len(self.profile_lengths) // 2]

    def uniform(self, tokens: int, rows: int) -> RequestTensors:
        """Return a request of ``rows`` rows, each of ``tokens`` tokens."""
        if not self.text_inputs:
            assert self.example is not None
            return {
                name: np.repeat(array[:1], rows, axis=0) for name, array in self.example.items()
            }
        return _request(
            self.text_inputs, texts_of([tokens] * rows, self.overhead_tokens, len(self.text_inputs))
        )


def texts_of(lengths: Sequence[int], overhead: int, share: int) -> list[str]:
    """Return texts with the given numbers of tokens, including special tokens.

    Each text is used in ``share`` inputs of a row.
    """
    return generate_texts(
        [max(1, (length - overhead) // share) for length in lengths], 0, special_tokens=0
    )


def _request(inputs: Sequence[str], texts: Sequence[str]) -> RequestTensors:
    rows = np.array([[text.encode()] for text in texts], dtype=object)
    return dict.fromkeys(inputs, rows)


async def workload(
    client: TritonClient, pipeline: InferencePipeline, graph: Graph, options: TuningOptions
) -> Workload:
    """Return the workload of a run; the tokenizer on the server counts the tokens of texts.

    Raises:
        TuneError: No request can be made, or the server does not answer.
    """
    required = graph.required_inputs
    texts = tuple(tensor.name for tensor in required if tensor.data_type is DataType.STRING)
    sends_optional = any(one.name in graph.optional_inputs for one in pipeline.spec.health.inputs)
    if len(texts) != len(required) or graph.tokenizer is None or sends_optional:
        return _example_workload(pipeline, graph, options)
    random = np.random.default_rng((0, 4))
    try:
        overhead = await _special_tokens(client, graph.tokenizer)
        if options.texts:
            chosen = [
                options.texts[index] for index in random.permutation(len(options.texts))[:MAX_TEXTS]
            ]
            lengths = await _tokens(client, graph.tokenizer, chosen)
            description = (
                f"{len(options.texts)} given texts, median {int(np.median(lengths))} tokens"
            )
        else:
            cap = (
                pipeline.spec.tokenizer.max_length if pipeline.spec.tokenizer else None
            ) or DEFAULT_MAX_LENGTH
            mix = options.lengths or TextLengths(cap=max(cap, int(TextLengths().median)))
            lengths = [
                min(cap, max(length, overhead + len(texts))) for length in mix.sample(MAX_TEXTS, 0)
            ]
            chosen = texts_of(lengths, overhead, len(texts))
            description = f"generated texts, lognormal lengths {mix}"
    except TritonError as error:
        raise TuneError(f"the tokenizer does not respond: {error}") from error
    rows = options.rows
    picks = (
        [random.integers(0, len(chosen), rows) for _ in range(DISTINCT_REQUESTS)]
        if rows > 1
        else [[index] for index in range(len(chosen))]
    )
    requests = tuple(_request(texts, [chosen[index] for index in pick]) for pick in picks)
    of = f"; {rows} rows per request" if rows > 1 else ""
    return Workload(requests, tuple(lengths), description + of, rows, texts, overhead)


def _example_workload(
    pipeline: InferencePipeline, graph: Graph, options: TuningOptions
) -> Workload:
    """Return copies of the example request of the resource.

    Raises:
        TuneError: The resource has none.
    """
    example = example_of(pipeline, graph)
    if example is None:
        raise TuneError(
            "spec.health.inputs: tuning requires an example request, but the pipeline has "
            f"none ({probe_blocker(pipeline, graph) or 'inference: Disabled'}); set "
            "spec.health.inputs"
        )
    request = {
        name: np.repeat(array[:1], options.rows, axis=0) for name, array in example.inputs.items()
    }
    return Workload(
        (request,),
        (1,),
        "the example request of spec.health",
        options.rows,
        example=example.inputs,
    )


async def _special_tokens(client: TritonClient, tokenizer: Step) -> int:
    """Return the special tokens of a row; 0 if words are not single tokens."""
    short, long = await _tokens(client, tokenizer, generate_texts([1, 9], special_tokens=0))
    return max(0, short - 1) if long - short == 8 else 0


async def _tokens(client: TritonClient, tokenizer: Step, texts: Sequence[str]) -> list[int]:
    """Return the tokens of each text as the tokenizer on the server counts them, without padding.

    If the tokenizer has no output with their number, words are counted.
    """
    if tokenizer.tokenizer is None:
        return [len(text.split()) for text in texts]
    kinds = tokenizer.tokenizer.outputs
    chosen = next(
        (
            name
            for kind in (TokenTensor.LENGTHS, TokenTensor.ATTENTION_MASK, TokenTensor.INPUT_IDS)
            for name, own in kinds.items()
            if own is kind
        ),
        None,
    )
    if chosen is None:
        return [len(text.split()) for text in texts]
    counted = kinds[chosen] is not TokenTensor.LENGTHS
    inputs = [one.tensor.name for one in tokenizer.inputs]
    limit = asyncio.Semaphore(16)

    # Without a batch axis the dims are the whole shape, with -1 for any number of texts.
    dims = (1, 1) if tokenizer.max_batch_size > 0 else tokenizer.inputs[0].tensor.dims
    shape = [max(size, 1) for size in dims]

    async def one(text: str) -> int:
        rows = np.full(shape, text.encode(), dtype=object)
        async with limit:
            answer = (
                await client.infer(
                    tokenizer.model_name,
                    dict.fromkeys(inputs, rows),
                    outputs=[chosen],
                    deadline_s=30.0,
                )
            )[chosen]
        return max(1, int(np.count_nonzero(answer)) if counted else int(answer.max()))

    return list(await asyncio.gather(*(one(text) for text in texts)))
