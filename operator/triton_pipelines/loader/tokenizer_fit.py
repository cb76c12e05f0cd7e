"""Whether an ONNX file knows every token that the pipeline's tokenizer can emit, and takes rows as long as it sends. In every padding mode:
what a model cannot take fails when the first such text comes, which may be long after the rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from triton_pipelines.api.loadplan import PlanTokens
from triton_pipelines.loader.onnx_store import lean
from triton_pipelines.loader.onnx_weights import size_of
from triton_pipelines.loader.ragged.equivalence import (
    LONGEST,
    Means,
    answers,
    generate,
    givens,
    means_for,
    open_model,
)
from triton_pipelines.loader.ragged.inline_functions import inlined
from triton_pipelines.loader.ragged.input_limits import computed_positions, positions, table_size
from triton_pipelines.loader.tokenizer_files import Highest

MAX_LENGTH: Final = "spec.tokenizer.maxLength"
KEPT: Final = 2
"""Rows of a table of counted positions that belong to no token: RoBERTa and its kin keep two, and count from there (padding_idx + 1)."""
_SHORT: Final = 3
"""Tokens of a row that any encoder takes."""


@dataclass(frozen=True)
class Misfit:
    """What does not fit; ``field`` is the resource's field to change, None where that is the step itself."""

    message: str
    field: str | None = None


def misfits(
    path: Path, tokens: PlanTokens, highest: Highest, uri: str, tokenizer_uri: str
) -> Iterator[Misfit]:
    """Look at the file at ``path``, which came from ``uri`` and whose inputs are as declared. Only what is certain is told."""
    model = lean(path).model
    inlined(model)
    yield from _ids(model, tokens, highest, uri, tokenizer_uri)
    most = longest(path, model, tokens)
    if most is not None:
        yield Misfit(
            f"{uri} takes rows of at most {most} tokens, and {MAX_LENGTH} lets the tokenizer send {tokens.max_length}: "
            f"set {MAX_LENGTH} to at most {most}",
            MAX_LENGTH,
        )


def _ids(
    model: Any, tokens: PlanTokens, highest: Highest, uri: str, tokenizer_uri: str
) -> Iterator[Misfit]:
    for name in tokens.ids:
        # A table may have more rows than there are tokens: they are filled up to multiples that are fast to compute.
        size = table_size(model.graph, name)
        if size is not None and highest.id >= size:
            token = f" ({highest.token})" if highest.token else ""
            yield Misfit(
                f"{tokenizer_uri} can emit token id {highest.id}{token}, and {uri} knows {size} ids (0 to {size - 1}) for {name}: "
                "take the tokenizer that the model was trained with, or a model whose table of embeddings was resized to it"
            )


def known_ids(path: Path, tokens: PlanTokens) -> int | None:
    """How many token ids the file at ``path`` knows (0 to one less); None where it does not show."""
    model = lean(path).model
    inlined(model)
    return min(
        (size for name in tokens.ids if (size := table_size(model.graph, name)) is not None),
        default=None,
    )


def longest(path: Path, model: Any, tokens: PlanTokens) -> int | None:
    """The most tokens that the file takes, where that is certainly fewer than the tokenizer may send; else None.

    Where the graph's tables let one think so, it is tried: a table that is cut to length need not be that of the positions.
    """
    wanted, shown = tokens.max_length, positions(model.graph)
    # Both may be: RoBERTa's types are cut from a buffer that is two longer than its rows may be.
    counted = computed_positions(model.graph)
    if not (shown is not None and shown < wanted) and not (
        counted is not None and counted < wanted + KEPT
    ):
        return None
    means = means_for(size_of(path, model))
    if means is Means.NONE:
        return None
    sizes = {
        name: size for name in tokens.inputs if (size := table_size(model.graph, name)) is not None
    }
    given = givens(model, tokens.inputs)
    try:
        run = open_model(path, means)
    except Exception:
        # What this engine cannot read, Triton's may.
        return None

    def takes(length: int) -> bool:
        return answers(run, generate(given, [length], sizes, tokens.masks)[0])

    # The usual case first: exactly what the table has.
    guesses = [
        *(() if shown is None else (shown, shown + 1)),
        *(() if counted is None else (counted - KEPT, counted - KEPT + 1)),
    ]
    try:
        return _last(takes, wanted, guesses)
    except MemoryError:
        # Triton may have more.
        return None


def _last(takes: Callable[[int], bool], wanted: int, guesses: Iterable[int]) -> int | None:
    """The greatest length that is taken, below ``wanted``; None where that is taken, or as much as is ever tried, or not even a short row."""
    low, high = min(_SHORT, wanted - 1), min(wanted, LONGEST)
    if low < 1 or takes(high) or not takes(low):
        return None
    for guess in guesses:
        if low < guess < high:
            low, high = (guess, high) if takes(guess) else (low, guess)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if takes(middle) else (low, middle)
    return low
