"""Loads and requests of ``tritonpipe bench``, from what stands on its command line. Pure but for reading files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    triton_to_np_dtype,
)

from triton_pipelines.tools.loadgen import (
    InputValue,
    TextLengths,
    TextsError,
    batches,
    generate_texts,
    is_perf_analyzer,
    read_lines,
    read_perf_analyzer,
)

from .errors import EXIT_USAGE, Failure
from .tensors import BYTES, Array, Described, Model, requests, text_rows

MOST_POINTS: Final = 64
# Texts made of a distribution; fewer requests where these are large, so that all of them are soon made.
TEXTS: Final = 2048
LEAST_REQUESTS: Final = 128
MOST_CONCURRENCY: Final = 4096


@dataclass(frozen=True)
class Requests:
    """What is sent: arrays by input of each request, rows in each, and in words where they come from."""

    arrays: Sequence[Mapping[str, Array]]
    rows: int
    source: str

    def split(self) -> Requests:
        """The same rows, each in a request of its own."""
        single = [
            {name: array[row : row + 1] for name, array in item.items()}
            for item in self.arrays
            for row in range(self.rows)
        ]
        return Requests(single, 1, self.source)


def concurrencies(text: str) -> list[int]:
    """``8``, ``1,4,16``, ``1:128`` (powers of two from the first to the last) or ``1:16:5`` (with a step).

    Raises:
        Failure: none of these.
    """
    values = _values(text, "--concurrency")
    if any(value != int(value) for value in values) or values[-1] > MOST_CONCURRENCY:
        raise Failure(
            f"--concurrency {text}: must be whole numbers up to {MOST_CONCURRENCY}", EXIT_USAGE
        )
    return [int(value) for value in values]


def rates(text: str) -> list[float]:
    """``100``, ``50,100,400`` or ``50:400:50`` requests/s.

    Raises:
        Failure: none of these.
    """
    if text.count(":") == 1:
        raise Failure(f"--rate {text}: a range of rates needs a step: FIRST:LAST:STEP", EXIT_USAGE)
    return _values(text, "--rate")


def _values(text: str, option: str) -> list[float]:
    """The loads, ascending."""
    if ":" not in text:
        values = sorted({_number(part, option, text) for part in text.split(",")})
    else:
        numbers = [_number(part, option, text) for part in text.split(":")]
        if len(numbers) > 3 or numbers[1] < numbers[0]:
            raise Failure(f"{option} {text}: write N, N,N,… or FIRST:LAST[:STEP]", EXIT_USAGE)
        values = _powers(*numbers) if len(numbers) == 2 else _steps(numbers, option, text)
    if len(values) > MOST_POINTS:
        raise Failure(
            f"{option} {text}: {len(values)} loads; at most {MOST_POINTS} in one bench", EXIT_USAGE
        )
    return values


def made(
    model: Model,
    *,
    file: Path | None,
    lengths: str | None,
    rows: int,
    values: Sequence[str],
    files: Sequence[str],
    seed: int,
) -> Requests:
    """The requests of a bench.

    Args:
        model: as the server describes it.
        file: texts, one per line, or perf_analyzer's input data.
        lengths: the distribution of the texts' lengths, where there is no file; None: the default one.
        rows: rows in each request.
        values, files: other inputs, as ``--input`` and ``--input-file``.
        seed: of the texts.

    Raises:
        Failure: names the option or file.
    """
    if rows > 1 and not model.batched:
        raise Failure(f"--rows {rows}: the model does not batch; leave it out", EXIT_USAGE)
    named = {piece.partition("=")[0] for piece in (*values, *files)}
    free = [
        item
        for item in model.inputs
        if item.data_type == BYTES and item.name not in named and not item.optional
    ]
    if file is not None:
        if lengths is not None:
            raise Failure("--texts and --lengths: choose one", EXIT_USAGE)
        content = _read(file)
        try:
            if is_perf_analyzer(content):
                return _of_perf_analyzer(model, read_perf_analyzer(content), rows, file)
            words, source = read_lines(content), f"{file} (one text per line)"
        except TextsError as error:
            raise Failure(f"--texts {file}: {error}", EXIT_USAGE) from error
        if not free:
            raise Failure(
                f"--texts {file}: the model has no text input for it; give its inputs by --input or --input-file",
                EXIT_USAGE,
            )
    else:
        try:
            wanted = TextLengths.parse(lengths) if lengths is not None else TextLengths()
        except TextsError as error:
            raise Failure(f"--lengths {error}", EXIT_USAGE) from error
        if lengths is not None and not free:
            raise Failure("--lengths: the model has no text input for it", EXIT_USAGE)
        words = generate_texts(wanted.sample(max(TEXTS, LEAST_REQUESTS * rows), seed), seed)
        source = f"lognormal lengths in tokens: {wanted}" if free else "the given inputs"
    groups = batches(words, rows) if free else [[]]
    first = requests(model, groups[0], groups[0] if len(free) > 1 else (), values, files)
    if len(free) > 2:
        raise Failure(
            f"{', '.join(item.name for item in free[2:])}: give it by --input NAME=TEXT", EXIT_USAGE
        )
    rows = (
        rows
        if free
        else max((len(array) for array in first.values()), default=1)
        if model.batched
        else 1
    )
    return Requests(
        [{**first, **{item.name: text_rows(item, group) for item in free}} for group in groups],
        rows,
        source,
    )


def _of_perf_analyzer(
    model: Model, entries: Sequence[Mapping[str, InputValue]], rows: int, file: Path
) -> Requests:
    known = {item.name: item for item in model.inputs}
    if unknown := [name for name in entries[0] if name not in known]:
        raise Failure(
            f"--texts {file}: {', '.join(unknown)}: no input; the model takes {', '.join(known)}",
            EXIT_USAGE,
        )
    if missing := [
        item.name for item in model.inputs if item.name not in entries[0] and not item.optional
    ]:
        raise Failure(f"--texts {file}: nothing is given for {', '.join(missing)}", EXIT_USAGE)
    single = [
        {
            name: _array(
                known[name], tensor, model.batched, f"--texts {file}: data[{number}].{name}"
            )
            for name, tensor in entry.items()
        }
        for number, entry in enumerate(entries)
    ]
    order = batches([str(number) for number in range(len(single))], rows)
    try:
        joined = [
            {
                name: np.concatenate([single[int(number)][name] for number in group])
                for name in single[0]
            }
            for group in order
        ]
    except ValueError as error:
        raise Failure(
            f"--texts {file}: entries of different shapes cannot stand in one request; use --rows 1 ({error})",
            EXIT_USAGE,
        ) from error
    return Requests(
        joined if model.batched else single, rows, f"{file} (perf_analyzer's input data)"
    )


def _array(info: Described, tensor: InputValue, batched: bool, place: str) -> Array:
    try:
        if info.data_type == BYTES:
            if tensor.raw is not None:
                flat = deserialize_bytes_tensor(tensor.raw)
            else:
                flat = np.empty(len(tensor.elements), dtype=np.object_)
                flat[:] = [str(item).encode() for item in tensor.elements]
        else:
            kind = triton_to_np_dtype(info.data_type)
            flat = (
                np.array(tensor.elements, dtype=kind)
                if tensor.raw is None
                else np.frombuffer(tensor.raw, dtype=kind)
            )
        shape = tensor.shape
        if shape is None:
            own = info.shape[1:] if batched else info.shape
            fixed = math.prod(size for size in own if size >= 0)
            free = [index for index, size in enumerate(own) if size < 0]
            if len(free) > 1:
                raise Failure(
                    f'{place}: more than one size is free in {info}; write {{"content": […], "shape": […]}}',
                    EXIT_USAGE,
                )
            shape = tuple(flat.size // max(fixed, 1) if size < 0 else size for size in own)
        result: Array = flat.reshape((1, *shape) if batched else shape)
        return result
    except (ValueError, OverflowError, InferenceServerException, TypeError) as error:
        raise Failure(f"{place}: does not fit {info}: {error}", EXIT_USAGE) from error


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"--texts {file}: cannot be read: {error.strerror}", EXIT_USAGE) from error
    except UnicodeDecodeError as error:
        raise Failure(f"--texts {file}: is no UTF-8 text: {error}", EXIT_USAGE) from error


def _number(part: str, option: str, text: str) -> float:
    try:
        value = float(part)
    except ValueError:
        raise Failure(f"{option} {text}: {part!r} is no number", EXIT_USAGE) from None
    if not math.isfinite(value) or value <= 0:
        raise Failure(f"{option} {text}: {part} must be greater than 0", EXIT_USAGE)
    return value


def _powers(first: float, last: float) -> list[float]:
    values, value = [], first
    while value < last:
        values.append(value)
        value *= 2
    return [*values, last]


def _steps(numbers: Sequence[float], option: str, text: str) -> list[float]:
    first, last, step = numbers
    count = math.floor(min((last - first) / step + 1e-9, 1e9)) + 1
    if count > MOST_POINTS:
        raise Failure(
            f"{option} {text}: {count} loads; at most {MOST_POINTS} in one bench", EXIT_USAGE
        )
    return [first + number * step for number in range(count)]
