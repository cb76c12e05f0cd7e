"""Loads and requests of ``tritonpipe bench``, from its options. Pure except for reading files."""

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

from .errors import EXIT_USAGE, CommandError
from .model_metadata import BYTES, Array, ModelMetadata, TensorMetadata
from .tensors import request_arrays, text_rows

MOST_POINTS: Final = 64
# Texts generated from a distribution; fewer requests if these are large, to limit preparation.
TEXTS: Final = 2048
LEAST_REQUESTS: Final = 128
MOST_CONCURRENCY: Final = 4096


@dataclass(frozen=True)
class BenchRequests:
    """The requests of a bench."""

    arrays: Sequence[Mapping[str, Array]]
    """Arrays by input, of each request."""
    rows: int
    """Rows per request."""
    source: str
    """Description of their origin."""

    def split(self) -> BenchRequests:
        """Return the same rows, one per request."""
        single = [
            {name: array[row : row + 1] for name, array in item.items()}
            for item in self.arrays
            for row in range(self.rows)
        ]
        return BenchRequests(single, 1, self.source)


def concurrencies(text: str) -> list[int]:
    """Parse ``8``, ``1,4,16``, ``1:128`` (powers of two in between) or ``1:16:5`` (with a step).

    Raises:
        CommandError: it is none of these.
    """
    values = _values(text, "--concurrency")
    if any(value != int(value) for value in values) or values[-1] > MOST_CONCURRENCY:
        raise CommandError(
            (f"--concurrency {text}: the values must be integers from 1 to {MOST_CONCURRENCY}"),
            EXIT_USAGE,
        )
    return [int(value) for value in values]


def rates(text: str) -> list[float]:
    """Parse ``100``, ``50,100,400`` or ``50:400:50`` requests/s.

    Raises:
        CommandError: it is none of these.
    """
    if text.count(":") == 1:
        raise CommandError(
            f"--rate {text}: a range of rates requires a step; use FIRST:LAST:STEP", EXIT_USAGE
        )
    return _values(text, "--rate")


def _values(text: str, option: str) -> list[float]:
    """Return the loads, ascending."""
    if ":" not in text:
        values = sorted({_number(part, option, text) for part in text.split(",")})
    else:
        numbers = [_number(part, option, text) for part in text.split(":")]
        if len(numbers) > 3 or numbers[1] < numbers[0]:
            raise CommandError(
                (
                    f"{option} {text}: the value must be a list or range; use N, N,N,… or "
                    "FIRST:LAST[:STEP]"
                ),
                EXIT_USAGE,
            )
        values = _powers(*numbers) if len(numbers) == 2 else _steps(numbers, option, text)
    if len(values) > MOST_POINTS:
        raise CommandError(
            f"{option} {text}: {len(values)} loads are too many; use at most {MOST_POINTS}",
            EXIT_USAGE,
        )
    return values


def build_requests(
    model: ModelMetadata,
    *,
    file: Path | None,
    lengths: str | None,
    rows: int,
    values: Sequence[str],
    files: Sequence[str],
    seed: int,
) -> BenchRequests:
    """The requests of a bench.

    Args:
        model: as the server describes it.
        file: texts, one per line, or input data of perf_analyzer.
        lengths: distribution of the lengths of generated texts; ``None``: the default.
        rows: rows per request.
        values: other inputs, as ``--input``.
        files: other inputs, as ``--input-file``.
        seed: seed of the texts.

    Raises:
        CommandError: names the option or file.
    """
    if rows > 1 and not model.batched:
        raise CommandError(
            f"--rows {rows}: the model does not support batching; omit --rows", EXIT_USAGE
        )
    if file is not None and lengths is not None:
        raise CommandError(
            "--texts and --lengths cannot be combined; omit one of the two", EXIT_USAGE
        )
    content = None if file is None else _read(file)
    if file is not None and content is not None and is_perf_analyzer(content):
        try:
            return _of_perf_analyzer(model, read_perf_analyzer(content), rows, file)
        except TextsError as error:
            raise CommandError(f"--texts {file}: {error}", EXIT_USAGE) from error
    named = {piece.partition("=")[0] for piece in (*values, *files)}
    free = [
        item
        for item in model.inputs
        if item.data_type == BYTES and item.name not in named and not item.optional
    ]
    if file is not None and content is not None:
        words, source = _texts_of_file(content, file, bool(free))
    else:
        words, source = _generated_texts(lengths, rows, seed, bool(free))
    groups = batches(words, rows) if free else [[]]
    first = request_arrays(model, groups[0], groups[0] if len(free) > 1 else (), values, files)
    if len(free) > 2:
        names = ", ".join(item.name for item in free[2:])
        raise CommandError(
            f"no value for {names}; set the value with --input NAME=TEXT", EXIT_USAGE
        )
    if not free:
        rows = max((len(array) for array in first.values()), default=1) if model.batched else 1
    return BenchRequests(
        [{**first, **{item.name: text_rows(item, group) for item in free}} for group in groups],
        rows,
        source,
    )


def _texts_of_file(content: str, file: Path, has_text_input: bool) -> tuple[list[str], str]:
    """Return the texts of a file, one per line, and a description of them."""
    try:
        words = list(read_lines(content))
    except TextsError as error:
        raise CommandError(f"--texts {file}: {error}", EXIT_USAGE) from error
    if not has_text_input:
        raise CommandError(
            f"--texts {file}: the model has no text input; set its inputs with --input"
            " or --input-file",
            EXIT_USAGE,
        )
    return words, f"{file} (one text per line)"


def _generated_texts(
    lengths: str | None, rows: int, seed: int, has_text_input: bool
) -> tuple[list[str], str]:
    """Return texts with lengths from a distribution, and a description of them."""
    try:
        distribution = TextLengths.parse(lengths) if lengths is not None else TextLengths()
    except TextsError as error:
        raise CommandError(f"--lengths {error}", EXIT_USAGE) from error
    if lengths is not None and not has_text_input:
        raise CommandError("--lengths: the model has no text input; omit the option", EXIT_USAGE)
    words = list(generate_texts(distribution.sample(max(TEXTS, LEAST_REQUESTS * rows), seed), seed))
    source = (
        f"lognormal lengths in tokens: {distribution}" if has_text_input else "the given inputs"
    )
    return words, source


def _of_perf_analyzer(
    model: ModelMetadata, entries: Sequence[Mapping[str, InputValue]], rows: int, file: Path
) -> BenchRequests:
    known = {item.name: item for item in model.inputs}
    if unknown := [name for name in entries[0] if name not in known]:
        raise CommandError(
            f"--texts {file}: the model has no input {', '.join(map(repr, unknown))}; available "
            f"inputs: {', '.join(known)}",
            EXIT_USAGE,
        )
    if missing := [
        item.name for item in model.inputs if item.name not in entries[0] and not item.optional
    ]:
        raise CommandError(
            (
                f"--texts {file}: values are missing for {', '.join(missing)}; add the "
                "values to each entry"
            ),
            EXIT_USAGE,
        )
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
        raise CommandError(
            f"--texts {file}: entries of different shapes cannot share a request;"
            f" use --rows 1 ({error})",
            EXIT_USAGE,
        ) from error
    return BenchRequests(
        joined if model.batched else single, rows, f"{file} (perf_analyzer's input data)"
    )


def _array(info: TensorMetadata, tensor: InputValue, batched: bool, place: str) -> Array:
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
                raise CommandError(
                    f"{place}: more than one dimension of {info} is variable;"
                    ' write {"content": […], "shape": […]}',
                    EXIT_USAGE,
                )
            shape = tuple(flat.size // max(fixed, 1) if size < 0 else size for size in own)
        result: Array = flat.reshape((1, *shape) if batched else shape)
        return result
    except (ValueError, OverflowError, InferenceServerException, TypeError) as error:
        raise CommandError(
            f"{place}: the value does not match {info} ({error}); correct the value or its shape",
            EXIT_USAGE,
        ) from error


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--texts: cannot read {file}: {error.strerror}", EXIT_USAGE) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"--texts {file}: the file is not UTF-8: {error}", EXIT_USAGE) from error


def _number(part: str, option: str, text: str) -> float:
    try:
        value = float(part)
    except ValueError:
        raise CommandError(f"{option} {text}: {part!r} is not a number", EXIT_USAGE) from None
    if not math.isfinite(value) or value <= 0:
        raise CommandError(f"{option} {text}: {part} must be greater than 0", EXIT_USAGE)
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
        raise CommandError(
            f"{option} {text}: {count} loads are too many; use at most {MOST_POINTS}", EXIT_USAGE
        )
    return [first + number * step for number in range(count)]
