"""Proof by numbers: the adapted graph with rows in company against the stock graph with each row alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from triton_pipelines.api.loadplan import shape_input
from triton_pipelines.loader.onnx_weights import opened
from triton_pipelines.loader.ragged.eligibility import Adaptable
from triton_pipelines.loader.ragged.graph_walk import dims, element_type, inputs

Array = NDArray[Any]
Answers = Mapping[str, Array]
Run = Callable[[Mapping[str, Array]], Answers]

LENGTHS: Final = (3, 7, 1, 5, 7)
"""Tokens of the rows: shorter and longer than their neighbours, one token alone, the longest twice."""
TOLERANCE: Final = {
    np.dtype(np.float16): 3e-2,
    np.dtype(np.float32): 1e-4,
    np.dtype(np.float64): 1e-4,
}
"""Largest difference that rounding explains, relative to the largest absolute answer where that is above 1. A mask that does not work differs by far more."""
REFERENCE_MAX: Final = 4 << 30
"""Bytes of weights up to which ONNX's own evaluator is used. They stay in their files and are mapped, but each of a dozen runs reads them all, and
what does not fit beside a loader's 2 GiB comes from the disk each time."""
LONGEST: Final = 2048
"""Tokens of the longest row that is run. The scores of a layer grow with their square: with 16 heads in FP32 they are 0.25 GiB here and 4 GiB for 8192 tokens,
some of them at once, and a loader that is killed for its memory has nothing told."""

SCARCE: Final = "there is not enough memory to run it"


class Means(StrEnum):
    """What a graph was run with."""

    ONNX_RUNTIME = "ONNX Runtime"
    REFERENCE = "the reference evaluator of ONNX"
    NONE = "nothing"


@dataclass(frozen=True)
class Proof:
    """How a graph was proven. ``difference`` is the largest one seen, as a share of the tolerance; ``fault`` what is wrong; ``why`` nothing was run."""

    means: Means
    difference: float = 0.0
    fault: str = ""
    why: str = ""


@dataclass(frozen=True)
class Given:
    """An input of the stock graph: element type and the shape of one row without its axis of tokens."""

    name: str
    dtype: np.dtype[Any]
    flat: bool
    shape: tuple[int, ...]


def givens(model: Any, flat: Collection[str]) -> tuple[Given, ...]:
    """The inputs of a stock graph, to be read before it is adapted; ``flat`` are those of one value per token."""
    return tuple(
        Given(
            name,
            onnx.helper.tensor_dtype_to_np_dtype(element_type(value)),
            name in flat,
            ()
            if name in flat
            else tuple(int(dim) for dim in (dims(value) or ())[1:] if isinstance(dim, int)),
        )
        for name, value in inputs(model.graph).items()
    )


def generate(
    given: Sequence[Given],
    lengths: Sequence[int],
    sizes: Mapping[str, int],
    masks: Collection[str],
    seed: int = 0,
) -> list[dict[str, Array]]:
    """Rows to ask, of ``lengths``: input → [1, tokens] or [1, …], random within what the tables hold (``sizes``), ``masks`` of ones.

    The first row has the lowest values and the last has the highest: what the tables seem to hold is tried to its ends.
    """
    random = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(lengths):
        row: dict[str, Array] = {}
        for item in given:
            if not item.flat:
                row[item.name] = random.uniform(0, 1, (1, *item.shape)).astype(item.dtype)
            elif item.name in masks:
                row[item.name] = np.ones((1, length), item.dtype)
            else:
                size = sizes.get(item.name, 2)
                values = random.integers(0, size, (1, length))
                if number in (0, len(lengths) - 1):
                    values[0, -1] = 0 if number == 0 else size - 1
                row[item.name] = values.astype(item.dtype)
        rows.append(row)
    return rows


def together(rows: Sequence[Mapping[str, Array]], flat: Sequence[str]) -> dict[str, Array]:
    """What Triton's ONNX Runtime backend feeds for requests in one batch: flat inputs laid end to end, their row lengths beside them."""
    fed = {
        name: np.concatenate([row[name].reshape(-1) if name in flat else row[name] for row in rows])
        for name in rows[0]
    }
    for name in flat:
        fed[shape_input(name)] = np.concatenate(
            [np.full((len(row[name]), 1), row[name].shape[1], np.int32) for row in rows]
        )
    return fed


def apart(
    answers: Answers, rows: Sequence[Mapping[str, Array]], first: str, per_token: Sequence[str]
) -> list[dict[str, Array]]:
    """The answers of a batch cut into requests, as the backend does: by rows, and outputs per token by the shape of the input ``first``."""
    cut: list[dict[str, Array]] = []
    row = token = 0
    for request in rows:
        count, length = request[first].shape
        here = {}
        for name, value in answers.items():
            if name in per_token:
                here[name] = value[token : token + count * length].reshape(
                    count, length, *value.shape[1:]
                )
            else:
                here[name] = value[row : row + count]
        row, token = row + count, token + count * length
        cut.append(here)
    return cut


def prove(
    plain: Path, adapted: Path, given: Sequence[Given], adaptable: Adaptable, weights: int
) -> Proof:
    """Run both files, which have ``weights`` bytes, on generated rows. Runs nothing where there is nothing to run them with, and says so."""
    try:
        return _prove(plain, adapted, given, adaptable, weights)
    finally:
        # Evaluators hold each other in circles; the weights of the next model need the room.
        gc.collect()


def _prove(
    plain: Path, adapted: Path, given: Sequence[Given], adaptable: Adaptable, weights: int
) -> Proof:
    means = means_for(weights)
    if means is Means.NONE:
        return Proof(
            means,
            why=f"ONNX Runtime is not here, and the weights are larger than {REFERENCE_MAX >> 30} GiB",
        )
    lengths = [min(length, adaptable.max_length or length) for length in LENGTHS]
    rows = generate(given, lengths, adaptable.sizes, adaptable.masks)
    flat = [item.name for item in given if item.flat]
    try:
        run = open_model(plain, means)
        alone = [run(row) for row in rows]
        fault = _bounded(run, given, adaptable)
        del run
        gc.collect()
    except MemoryError:
        return Proof(Means.NONE, why=SCARCE)
    except Exception as error:
        # Operators of others, most of all: nobody can show here that a row's answer does not hang on its company.
        return Proof(
            means,
            fault=f"equal answers cannot be shown: {means} does not run the file as it is ({_short(error)})",
        )
    if fault:
        return Proof(means, fault=fault)
    try:
        run = open_model(adapted, means)
        company = apart(
            run(together(rows, flat)),
            rows,
            adaptable.plan.inputs[0].name,
            adaptable.plan.token_outputs,
        )
    except MemoryError:
        return Proof(Means.NONE, why=SCARCE)
    except Exception as error:
        return Proof(means, fault=f"the adapted graph does not run: {_short(error)}")
    worst = 0.0
    for one, other in zip(alone, company, strict=True):
        for name, answer in one.items():
            if (
                name not in adaptable.plan.token_outputs
                and answer.shape != other[name].shape
                and answer.ndim > 1
            ):
                # An output with the tokens' axis that nobody asked for keeps its padding.
                continue
            worst = max(worst, difference(answer, other[name]))
    if worst > 1:
        return Proof(
            means,
            worst,
            fault="a row's answer hangs on the other rows of its batch: the graph does not honour its mask everywhere",
        )
    empty = [
        {**row, **{name: row[name][:, :0] for name in flat}} if number == 1 else row
        for number, row in enumerate(rows)
    ]
    try:
        run(together(empty, flat))
    except Exception:
        return Proof(means, worst)
    return Proof(means, worst, fault="the guard against rows without tokens does not work")


def _bounded(run: Run, given: Sequence[Given], adaptable: Adaptable) -> str:
    """What is wrong with the most tokens that a row may have: the stock graph has to take so many, and no more where it says so itself."""
    bound, sent = adaptable.max_length, adaptable.plan.max_length

    def takes(length: int) -> bool:
        return answers(run, generate(given, [length], adaptable.sizes, adaptable.masks)[0])

    if bound is None:
        return ""
    if not adaptable.shown:
        tried = min(bound, LONGEST)
        return (
            ""
            if takes(tried)
            else f"it does not take rows of {tried} tokens, which spec.tokenizer.maxLength allows"
        )
    if sent is not None and bound < sent and takes(bound + 1):
        return f"a table of the graph seems to end its rows at {bound} tokens, but it takes longer ones"
    return ""


def answers(run: Run, row: Mapping[str, Array]) -> bool:
    """Whether a row is answered."""
    try:
        run(row)
    except MemoryError:
        raise
    except Exception:
        return False
    return True


def difference(one: Array, other: Array) -> float:
    """The largest difference of two answers as a share of what rounding explains; infinite for other shapes or integers."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    tolerance = TOLERANCE.get(one.dtype)
    if tolerance is None:
        return 0.0 if np.array_equal(one, other) else float("inf")
    if not one.size:
        return 0.0
    scale = max(1.0, float(np.abs(one).max()))
    largest = (
        float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max()) / scale / tolerance
    )
    return float("inf") if np.isnan(largest) else largest


def means_for(weights: int) -> Means:
    """What there is to run a model of so many bytes with."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return Means.REFERENCE if weights <= REFERENCE_MAX else Means.NONE
    return Means.ONNX_RUNTIME


def open_model(path: Path, means: Means) -> Run:
    """What runs the model of a file."""
    if means is Means.REFERENCE:
        return opened(path)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    made = [value.name for value in session.get_outputs()]
    return lambda fed: dict(zip(made, session.run(made, dict(fed)), strict=True))


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
