"""Encode the options of ``tritonpipe infer`` into the tensors of a request.

Pure except for reading files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from tritonclient.utils import (
    triton_to_np_dtype,
)

from triton_pipelines.api.tensors import DataType
from triton_pipelines.api.wording import counted
from triton_pipelines.compile.graph.example_request import parse_element
from triton_pipelines.tools.loadgen import http_body

from .errors import EXIT_USAGE, CommandError
from .model_metadata import BYTES, Array, ModelMetadata, TensorMetadata

NUMPY_SUFFIX = ".npy"


def request_arrays(
    model: ModelMetadata,
    texts: Sequence[str],
    pairs: Sequence[str],
    values: Sequence[str],
    files: Sequence[str],
) -> dict[str, Array]:
    """Return the arrays of a request, by input name.

    An input of one row is repeated for all rows of the others, if the model batches.

    Args:
        model: the model as the server describes it.
        texts: values of the first text input that nothing else sets.
        pairs: values of the second one.
        values: ``NAME=VALUE`` items.
        files: ``NAME=PATH`` items.

    Raises:
        CommandError: a value does not fit the model.
    """
    known = {item.name: item for item in model.inputs}
    named_values = _by_input("--input", values, known)
    named_files = _by_input("--input-file", files, known)
    if twice := sorted(named_values.keys() & named_files.keys()):
        raise CommandError(
            (
                f"{', '.join(twice)}: --input and --input-file cannot be combined for the "
                "same input; omit one of these options"
            ),
            EXIT_USAGE,
        )
    arrays = {name: _value(known[name], words) for name, words in named_values.items()}
    for name, paths in named_files.items():
        arrays[name] = _file(known[name], [Path(path) for path in paths])
    arrays = _text_arrays(model, texts, pairs, arrays.keys()) | arrays
    missing = [item for item in model.inputs if item.name not in arrays and not item.optional]
    if missing:
        raise CommandError(
            f"values are missing for {_listed(missing)}; pass texts as TEXT arguments (the "
            "second text of a pair with --pair), and values of other inputs with --input "
            "NAME=VALUE or --input-file NAME=PATH",
            EXIT_USAGE,
        )
    return _repeat_rows(arrays) if model.batched else arrays


def _by_input(
    option: str, items: Sequence[str], known: Mapping[str, TensorMetadata]
) -> dict[str, list[str]]:
    """Return the values of ``NAME=VALUE`` items by input."""
    result: dict[str, list[str]] = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator or name not in known:
            raise CommandError(
                f"{option} {item!r:.80}: the value must have the form NAME=VALUE, where "
                f"NAME is one of the model's inputs: {_listed(tuple(known.values()))}",
                EXIT_USAGE,
            )
        result.setdefault(name, []).append(value)
    return result


def _text_arrays(
    model: ModelMetadata, texts: Sequence[str], pairs: Sequence[str], taken: Collection[str]
) -> dict[str, Array]:
    """Return the arrays of the text inputs that TEXT and --pair fill."""
    free = [item for item in model.inputs if item.data_type == BYTES and item.name not in taken]
    arrays: dict[str, Array] = {}
    for option, words in (("TEXT", texts), ("--pair", pairs)):
        if not words:
            continue
        if not free:
            raise CommandError(
                f"{option}: the model has no text input for this value; available inputs: "
                f"{_listed(model.inputs)}",
                EXIT_USAGE,
            )
        target = free.pop(0)
        arrays[target.name] = text_rows(target, words)
    return arrays


def text_rows(info: TensorMetadata, words: Sequence[str]) -> Array:
    """Return texts in the shape of a text input, one per row.

    Raises:
        CommandError: their number does not fit the shape.
    """
    return _fitted(info, _elements(info, words), texts=True)


def _repeat_rows(arrays: dict[str, Array]) -> dict[str, Array]:
    rows = max((len(array) for array in arrays.values()), default=1)
    for name, array in arrays.items():
        if len(array) not in (1, rows):
            counts = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
            raise CommandError(
                f"the inputs have different numbers of rows ({counts}); specify one row for "
                f"{name}, or as many rows as for the other inputs",
                EXIT_USAGE,
            )
    return {
        name: np.repeat(array, rows, axis=0) if len(array) < rows else array
        for name, array in arrays.items()
    }


def _elements(info: TensorMetadata, words: Iterable[str]) -> Array:
    kind = DataType.STRING if info.data_type == BYTES else DataType(info.data_type)
    elements = []
    for word in words:
        try:
            elements.append(parse_element(word, kind))
        except ValueError as error:
            raise CommandError(
                f"{info.name} ({info.data_type}): {word!r:.60} {error}", EXIT_USAGE
            ) from error
    array = np.empty(len(elements), dtype=triton_to_np_dtype(info.data_type))
    array[:] = elements
    return array


def _value(info: TensorMetadata, words: Sequence[str]) -> Array:
    """Parse ``--input``: texts as they are, numbers separated by commas, or nested JSON lists."""
    if info.data_type == BYTES:
        return _fitted(info, _elements(info, words), texts=True)
    if len(words) > 1:
        raise CommandError(
            f"--input {info.name}: the option is specified {len(words)} times; combine all "
            f"numbers in one option, for example {info.name}=1,2,3",
            EXIT_USAGE,
        )
    (text,) = words
    if not text.lstrip().startswith("["):
        return _fitted(info, _elements(info, [part.strip() for part in text.split(",")]))
    try:
        # As text, so that no digit is lost before the type is known.
        nested = np.array(
            json.loads(text, parse_int=str, parse_float=str, parse_constant=str), dtype=np.object_
        )
    except ValueError as error:
        raise CommandError(
            f"--input {info.name}: {text!r:.60} is not a JSON list of numbers: {error}", EXIT_USAGE
        ) from error
    flat = [str(item).lower() if isinstance(item, bool) else item for item in nested.ravel()]
    if not all(isinstance(item, str) for item in flat):
        raise CommandError(
            f"--input {info.name}: {text!r:.60} must contain only numbers, in lists of the "
            "same length",
            EXIT_USAGE,
        )
    elements = _elements(info, flat)
    return (
        _fitted(info, elements)
        if nested.ndim == 1
        else _exact(info, elements.reshape(nested.shape))
    )


def _file(info: TensorMetadata, places: Sequence[Path]) -> Array:
    """Read ``--input-file``: an array saved by NumPy, or the bytes of each file.

    Bytes become an element of a text input, or the numbers of a UINT8 input.
    """
    try:
        if places[0].suffix == NUMPY_SUFFIX and len(places) == 1:
            return _saved(info, places[0])
        contents = [place.read_bytes() for place in places]
    except OSError as error:
        raise CommandError(
            f"--input-file {info.name}: cannot read {error.filename}: {error.strerror}",
            EXIT_USAGE,
        ) from error
    if info.data_type == BYTES:
        array = np.empty(len(contents), dtype=np.object_)
        array[:] = contents
        return _fitted(info, array, texts=True)
    if info.data_type == "UINT8" and len(contents) == 1:
        return _fitted(info, np.frombuffer(contents[0], np.uint8))
    raise CommandError(
        f"--input-file {info.name}: an input of type {info.data_type} requires one file "
        f"saved by numpy.save ({NUMPY_SUFFIX})",
        EXIT_USAGE,
    )


def _saved(info: TensorMetadata, place: Path) -> Array:
    try:
        array = np.load(place, allow_pickle=False)
    except ValueError as error:
        raise CommandError(
            f"--input-file {info.name}: {place} is not an array of numbers or texts: {error}",
            EXIT_USAGE,
        ) from error
    expected = np.dtype(triton_to_np_dtype(info.data_type))
    if array.dtype.kind in "US" and info.data_type == BYTES:
        array = np.array(
            [item.encode() if isinstance(item, str) else bytes(item) for item in array.ravel()],
            np.object_,
        ).reshape(array.shape)
    elif array.dtype != expected and (info.data_type != "BF16" or array.dtype.kind != "f"):
        raise CommandError(
            f"--input-file {info.name}: {place} has type {array.dtype}, but the input has "
            f"type {info.data_type}; save the array as {expected}",
            EXIT_USAGE,
        )
    return _exact(info, array.astype(expected))


def _exact(info: TensorMetadata, array: Array) -> Array:
    """Return an array that has a shape; a batch axis of one row may be missing."""
    if array.ndim == len(info.shape) - 1 and info.shape[0] == -1:
        array = array[np.newaxis]
    if array.ndim != len(info.shape) or any(
        a not in (-1, b) for a, b in zip(info.shape, array.shape, strict=True)
    ):
        raise CommandError(
            (
                f"the value of {info} has shape {list(array.shape)}; specify a value "
                "whose shape matches the input's"
            ),
            EXIT_USAGE,
        )
    return array


def _fitted(info: TensorMetadata, flat: Array, *, texts: bool = False) -> Array:
    """Return a flat array in the input's shape.

    Texts fill the first axis of variable length (one per row), numbers the last.
    """
    fixed = math.prod(size for size in info.shape if size >= 0)
    free = [index for index, size in enumerate(info.shape) if size < 0]
    shape = [max(size, 1) if size < 0 else size for size in info.shape]
    if flat.size == 1:
        return np.full(shape, flat[0], dtype=flat.dtype)
    if fixed and flat.size % fixed == 0 and free:
        shape[free[0] if texts else free[-1]] = flat.size // fixed
    if math.prod(shape) != flat.size:
        raise CommandError(
            (
                f"the value of {info} has {counted(flat.size, 'element')}, which do not fit this "
                "shape; specify a matching number of elements"
            ),
            EXIT_USAGE,
        )
    return flat.reshape(shape)


def _listed(tensors: Sequence[TensorMetadata]) -> str:
    return ", ".join(map(str, tensors)) or "nothing"


def encode(arrays: Mapping[str, Array], model: ModelMetadata) -> tuple[bytes, int]:
    """Return the body of an inference request with binary tensors, and its JSON part's length.

    The length has to be in the request's header.
    """
    # Types come from the model: NumPy has no BF16, and JSON has no form of BF16 and FP16.
    return http_body(arrays, model.outputs, {item.name: item.data_type for item in model.inputs})
