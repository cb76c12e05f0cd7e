"""Compare an ONNX file with the pipeline's tokenizer: token ids and row lengths.

The comparison runs in every padding mode. A model that cannot take a token or a length fails only
when the first such text arrives, which may be long after the rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from triton_pipelines.api.loadplan import PlanTokens
from triton_pipelines.loader.onnx_graph.inline_functions import inline_local_functions
from triton_pipelines.loader.onnx_graph.input_limits import (
    computed_positions,
    positions,
    table_size,
)
from triton_pipelines.loader.onnx_graph.model_runner import (
    LONGEST,
    Evaluator,
    accepts,
    choose_evaluator,
    generate_rows,
    graph_inputs,
    open_model,
)
from triton_pipelines.loader.onnx_store import load_without_weights
from triton_pipelines.loader.onnx_weights import size_of
from triton_pipelines.loader.tokenizer_files import HighestTokenId

MAX_LENGTH: Final = "spec.tokenizer.maxLength"
RESERVED_POSITIONS: Final = 2
"""Rows of a table of counted positions that belong to no token.

RoBERTa and its relatives reserve two and count from there (``padding_idx + 1``).
"""
_SHORT: Final = 3
"""Tokens of a row that any encoder accepts."""


@dataclass(frozen=True)
class TokenizerMismatch:
    """A way in which tokenizer and model do not fit."""

    message: str
    """What does not fit and what to do."""
    field: str | None = None
    """The resource's field to change; ``None`` if that is the step itself."""


def find_mismatches(
    path: Path, tokens: PlanTokens, highest: HighestTokenId, uri: str, tokenizer_uri: str
) -> Iterator[TokenizerMismatch]:
    """Yield the mismatches of a model file whose inputs are as declared.

    Only certain mismatches are reported.

    Args:
        path: the ONNX file.
        tokens: what the plan says about the tokenizer step.
        highest: the highest token id that the tokenizer emits.
        uri: where the file came from.
        tokenizer_uri: where the tokenizer came from.
    """
    model = load_without_weights(path).model
    inline_local_functions(model)
    for name in tokens.ids:
        # A table may have more rows than there are tokens: vocabularies are padded to multiples
        # that are fast to compute.
        size = table_size(model.graph, name)
        if size is not None and highest.id >= size:
            token = f" ({highest.token})" if highest.token else ""
            yield TokenizerMismatch(
                f"{tokenizer_uri} can emit token ID {highest.id}{token}, but {uri} accepts "
                f"{size} IDs (0 to {size - 1}) for {name}; use the tokenizer that the model "
                "was trained with, or resize the model's embedding table"
            )
    most = maximum_length(path, model, tokens)
    if most is not None:
        yield TokenizerMismatch(
            f"{uri} accepts at most {most} tokens per row, but {MAX_LENGTH} allows "
            f"{tokens.max_length}; set {MAX_LENGTH} to at most {most}",
            MAX_LENGTH,
        )


def known_ids(path: Path, tokens: PlanTokens) -> int | None:
    """Return how many token ids the model knows; ``None`` if the graph does not show it."""
    model = load_without_weights(path).model
    inline_local_functions(model)
    sizes = (table_size(model.graph, name) for name in tokens.ids)
    return min((size for size in sizes if size is not None), default=None)


def maximum_length(path: Path, model: Any, tokens: PlanTokens) -> int | None:
    """Return the maximum tokens of a row if that is certainly less than the tokenizer may send.

    Where the graph's tables suggest a limit, it is tried: a table that is cut to length need not
    be the table of positions.
    """
    desired = tokens.max_length
    guesses = _length_guesses(model, desired)
    if not guesses:
        return None
    evaluator = choose_evaluator(size_of(path, model))
    if evaluator is Evaluator.NONE:
        return None
    sizes = {
        name: size for name in tokens.inputs if (size := table_size(model.graph, name)) is not None
    }
    inputs = graph_inputs(model, tokens.inputs)
    try:
        run = open_model(path, evaluator)
    except Exception:
        # Triton's runtime may read what this evaluator cannot.
        return None

    def accepts_length(length: int) -> bool:
        return accepts(run, generate_rows(inputs, [length], sizes, tokens.masks)[0])

    try:
        return _longest_accepted(accepts_length, desired, guesses)
    except MemoryError:
        # Triton may have more memory.
        return None


def _length_guesses(model: Any, desired: int) -> list[int]:
    """Return lengths to try first; empty if the graph suggests no limit below ``desired``."""
    stated = positions(model.graph)
    # Both may exist: RoBERTa's types are cut from a buffer that is two longer than its rows may be.
    counted = computed_positions(model.graph)
    is_stated_less = stated is not None and stated < desired
    is_counted_less = counted is not None and counted < desired + RESERVED_POSITIONS
    if not is_stated_less and not is_counted_less:
        return []
    # The usual case first: exactly what the table has.
    guesses = [] if stated is None else [stated, stated + 1]
    if counted is not None:
        guesses += [counted - RESERVED_POSITIONS, counted - RESERVED_POSITIONS + 1]
    return guesses


def _longest_accepted(
    accepts_length: Callable[[int], bool], desired: int, guesses: Iterable[int]
) -> int | None:
    """Return the greatest accepted length below ``desired``.

    ``None`` if ``desired`` is accepted, or the longest row that is ever tried, or if not even a
    short row is accepted.
    """
    low, high = min(_SHORT, desired - 1), min(desired, LONGEST)
    if low < 1 or accepts_length(high) or not accepts_length(low):
        return None
    for guess in guesses:
        if low < guess < high:
            low, high = (guess, high) if accepts_length(guess) else (low, guess)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts_length(middle) else (low, middle)
    return low
