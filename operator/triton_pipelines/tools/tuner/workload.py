"""The requests of a tuning run: the user's texts, made-up texts of wanted lengths, or the resource's own example request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triton_pipelines.api.tensors import DataType, TokenTensor
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.example_request import example_of, why_unasked
from triton_pipelines.compile.graph.graph import Graph, Step
from triton_pipelines.tools.loadgen.texts import Lengths
from triton_pipelines.tools.loadgen.texts import texts as made_up
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import TritonError

from .contract import Array, Settings, TuneError

Request = Mapping[str, Array]
MOST_TEXTS = 512
DISTINCT = 256
DEFAULT_MAX_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of the real mix, and how to make some of one length.

    ``lengths``: tokens of the rows in the mix; ``said``: the mix in words. ``overhead_tokens``: special tokens of a row. ``text_inputs``:
    inputs that take text; empty: requests are copies of ``example``, of one "length" 1.
    """

    requests: tuple[Request, ...]
    lengths: tuple[int, ...]
    said: str
    rows: int
    text_inputs: tuple[str, ...] = ()
    overhead_tokens: int = 0
    example: Request | None = None

    @property
    def profile_lengths(self) -> tuple[int, ...]:
        """Lengths at which steps are timed: short, usual and long ones of the mix."""
        if not self.text_inputs:
            return (1,)
        found = np.quantile(np.asarray(self.lengths), (0.1, 0.5, 0.95), method="nearest")
        return tuple(sorted({max(1, int(length)) for length in found}))

    def uniform(self, tokens: int, rows: int) -> Request:
        """A request of ``rows`` rows, each of ``tokens`` tokens."""
        if not self.text_inputs:
            assert self.example is not None
            return {
                name: np.repeat(array[:1], rows, axis=0) for name, array in self.example.items()
            }
        return _request(
            self.text_inputs, texts_of([tokens] * rows, self.overhead_tokens, len(self.text_inputs))
        )


def texts_of(lengths: Sequence[int], overhead: int, share: int, seed: int = 0) -> list[str]:
    """Texts that have so many tokens together with the tokenizer's own, where each stands in ``share`` inputs of a row."""
    return made_up(
        [max(1, (length - overhead) // share) for length in lengths], seed, special_tokens=0
    )


def _request(inputs: Sequence[str], texts: Sequence[str]) -> Request:
    rows = np.array([[text.encode()] for text in texts], dtype=object)
    return dict.fromkeys(inputs, rows)


async def workload(
    client: TritonClient, pipeline: InferencePipeline, graph: Graph, settings: Settings
) -> Workload:
    """The workload of a run; the tokenizer on the server says how long texts are.

    Raises:
        TuneError: no request can be made up, or the server does not answer.
    """
    texts = tuple(tensor.name for tensor in graph.inputs if tensor.data_type is DataType.STRING)
    if len(texts) != len(graph.inputs) or graph.tokenizer is None:
        example = example_of(pipeline, graph)
        if example is None:
            raise TuneError(
                f"spec.health.inputs: give an example request, which tuning repeats ({why_unasked(pipeline, graph) or 'inference: Disabled'})"
            )
        request = {
            name: np.repeat(array[:1], settings.rows, axis=0)
            for name, array in example.inputs.items()
        }
        return Workload(
            (request,),
            (1,),
            "the example request of spec.health",
            settings.rows,
            example=example.inputs,
        )
    random = np.random.default_rng((settings.seed, 4))
    try:
        overhead = await _special_tokens(client, graph.tokenizer)
        if settings.texts:
            chosen = [
                settings.texts[index]
                for index in random.permutation(len(settings.texts))[:MOST_TEXTS]
            ]
            lengths = await _tokens(client, graph.tokenizer, chosen)
            said = f"{len(settings.texts)} texts given, median {int(np.median(lengths))} tokens"
        else:
            cap = (
                pipeline.spec.tokenizer.max_length if pipeline.spec.tokenizer else None
            ) or DEFAULT_MAX_LENGTH
            mix = settings.lengths or Lengths(cap=max(cap, int(Lengths().median)))
            lengths = [
                min(cap, max(length, overhead + len(texts)))
                for length in mix.sample(MOST_TEXTS, settings.seed)
            ]
            chosen = texts_of(lengths, overhead, len(texts), settings.seed)
            said = f"made-up texts, lognormal lengths {mix}"
    except TritonError as error:
        raise TuneError(f"the tokenizer does not answer: {error}") from error
    rows = settings.rows
    picks = (
        [random.integers(0, len(chosen), rows) for _ in range(DISTINCT)]
        if rows > 1
        else [[index] for index in range(len(chosen))]
    )
    requests = tuple(_request(texts, [chosen[index] for index in pick]) for pick in picks)
    of = f"; {rows} rows a request" if rows > 1 else ""
    return Workload(requests, tuple(lengths), said + of, rows, texts, overhead)


async def _special_tokens(client: TritonClient, tokenizer: Step) -> int:
    """Tokens that a row has beside its words'; 0 where its words are no single tokens."""
    short, long = await _tokens(client, tokenizer, made_up([1, 9], special_tokens=0))
    return max(0, short - 1) if long - short == 8 else 0


async def _tokens(client: TritonClient, tokenizer: Step, texts: Sequence[str]) -> list[int]:
    """Tokens of each text as the tokenizer on the server counts them, padding left out; words where it does not say."""
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

    async def one(text: str) -> int:
        rows = np.array(
            [[text.encode()]] if tokenizer.max_batch_size > 0 else [text.encode()], dtype=object
        )
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
