"""Requests and answers of ``tritonpipe infer``: tensors from what stands on a command line, Triton's HTTP bodies, cells for people. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    triton_to_np_dtype,
)

from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.example_request import parse_element
from triton_pipelines.tools.loadgen import http_body

from .errors import EXIT_USAGE, Failure

Array = np.ndarray[Any, Any]
BYTES = "BYTES"
SHOWN_NUMBERS = 6
NUMPY_SUFFIX = ".npy"


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor as the server describes it: its type on the wire, its shape with the batch axis (-1: any length)."""

    name: str
    data_type: str
    shape: tuple[int, ...]
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.data_type}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Model:
    """A served model as the server describes it. ``batched``: the first axis of every tensor is that of the batch; ``steps``: of an ensemble."""

    inputs: tuple[Described, ...]
    outputs: tuple[str, ...]
    batched: bool
    decoupled: bool = False
    steps: tuple[str, ...] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Model:
        """From the answers to ``/v2/models/MODEL`` and ``…/config`` (may be empty).

        Raises:
            KeyError, TypeError, ValueError: the metadata is none.
        """
        optional = {item["name"] for item in config.get("input") or () if item.get("optional")}
        inputs = tuple(
            Described(
                str(item["name"]),
                str(item["datatype"]),
                tuple(map(int, item.get("shape", (-1, 1)))),
                item["name"] in optional,
            )
            for item in metadata["inputs"]
        )
        batched = (
            int(config["max_batch_size"]) > 0
            if "max_batch_size" in config
            else all(item.shape[:1] == (-1,) for item in inputs)
        )
        decoupled = bool((config.get("model_transaction_policy") or {}).get("decoupled"))
        steps = dict.fromkeys(
            str(item["model_name"])
            for item in (config.get("ensemble_scheduling") or {}).get("step") or ()
        )
        return cls(
            inputs,
            tuple(str(item["name"]) for item in metadata["outputs"]),
            batched,
            decoupled,
            tuple(steps),
        )


# --- what is sent -----------------------------------------------------------------------------------------------------------


def requests(
    model: Model,
    texts: Sequence[str],
    pairs: Sequence[str],
    values: Sequence[str],
    files: Sequence[str],
) -> dict[str, Array]:
    """The arrays of a request, by input name.

    ``texts`` go to the first text input that nothing else fills, ``pairs`` to the second; ``values`` are ``NAME=VALUE``, ``files``
    ``NAME=PATH``. Where the model batches, an input of one row is repeated for all rows of the others.

    Raises:
        Failure: something does not fit the model.
    """
    known = {item.name: item for item in model.inputs}
    given: dict[str, list[str]] = {}
    paths: dict[str, list[Path]] = {}
    for option, pieces in (("--input", values), ("--input-file", files)):
        for piece in pieces:
            name, found, value = piece.partition("=")
            if not found or name not in known:
                raise Failure(
                    f"{option} {piece:.80}: write NAME=…, where NAME is an input; the model takes {_listed(model.inputs)}",
                    EXIT_USAGE,
                )
            if option == "--input":
                given.setdefault(name, []).append(value)
            else:
                paths.setdefault(name, []).append(Path(value))
    if twice := sorted(given.keys() & paths.keys()):
        raise Failure(
            f"{', '.join(twice)} is given by --input and by --input-file; choose one", EXIT_USAGE
        )
    free = [
        item
        for item in model.inputs
        if item.data_type == BYTES and item.name not in given and item.name not in paths
    ]
    arrays = {}
    for what, words in (("TEXT", texts), ("--pair", pairs)):
        if not words:
            continue
        if not free:
            raise Failure(
                f"{what}: no text input is left for it; the model takes {_listed(model.inputs)}",
                EXIT_USAGE,
            )
        taken = free.pop(0)
        arrays[taken.name] = _fitted(taken, _elements(taken, words), texts=True)
    arrays |= {name: _value(known[name], words) for name, words in given.items()}
    arrays |= {name: _file(known[name], places, model.batched) for name, places in paths.items()}
    if missing := [item for item in model.inputs if item.name not in arrays and not item.optional]:
        raise Failure(
            f"nothing is given for {_listed(missing)}: texts as TEXT (of a pair, the second by --pair), others by --input NAME=VALUE or --input-file NAME=PATH",
            EXIT_USAGE,
        )
    return _even(arrays) if model.batched else arrays


def text_rows(info: Described, words: Sequence[str]) -> Array:
    """Texts in the shape of a text input, a row each.

    Raises:
        Failure: as many do not fit it.
    """
    return _fitted(info, _elements(info, words), texts=True)


def _even(arrays: dict[str, Array]) -> dict[str, Array]:
    rows = max((len(array) for array in arrays.values()), default=1)
    for name, array in arrays.items():
        if len(array) not in (1, rows):
            counts = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
            raise Failure(
                f"inputs differ in rows: {counts}; give as many of {name} as of the others, or one for all",
                EXIT_USAGE,
            )
    return {
        name: np.repeat(array, rows, axis=0) if len(array) < rows else array
        for name, array in arrays.items()
    }


def _elements(info: Described, words: Iterable[str]) -> Array:
    kind = DataType.STRING if info.data_type == BYTES else DataType(info.data_type)
    elements = []
    for word in words:
        try:
            elements.append(parse_element(word, kind))
        except ValueError as error:
            raise Failure(
                f"{info.name}: {word!r:.60} {error}; it is {info.data_type}", EXIT_USAGE
            ) from error
    array = np.empty(len(elements), dtype=triton_to_np_dtype(info.data_type))
    array[:] = elements
    return array


def _value(info: Described, words: Sequence[str]) -> Array:
    """``--input``: text as it is, once for each element; of other types numbers with commas between, or nested lists as in JSON."""
    if info.data_type == BYTES:
        return _fitted(info, _elements(info, words), texts=True)
    if len(words) > 1:
        raise Failure(
            f"--input {info.name}: is given {len(words)} times; write all its numbers into one, such as {info.name}=1,2,3",
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
        raise Failure(
            f"--input {info.name}: {text:.60} is no list of numbers as in JSON: {error}", EXIT_USAGE
        ) from error
    flat = [str(item).lower() if isinstance(item, bool) else item for item in nested.ravel()]
    if not all(isinstance(item, str) for item in flat):
        raise Failure(
            f"--input {info.name}: {text:.60} holds lists of different lengths, or what is no number",
            EXIT_USAGE,
        )
    elements = _elements(info, flat)
    return (
        _fitted(info, elements)
        if nested.ndim == 1
        else _exact(info, elements.reshape(nested.shape))
    )


def _file(info: Described, places: Sequence[Path], batched: bool) -> Array:
    """``--input-file``: an array that NumPy saved; else the bytes of each file, as an element of text or as numbers of UINT8."""
    try:
        if places[0].suffix == NUMPY_SUFFIX and len(places) == 1:
            return _saved(info, places[0])
        contents = [place.read_bytes() for place in places]
    except OSError as error:
        raise Failure(
            f"--input-file {info.name}: {error.filename} cannot be read: {error.strerror}",
            EXIT_USAGE,
        ) from error
    if info.data_type == BYTES:
        array = np.empty(len(contents), dtype=np.object_)
        array[:] = contents
        return _fitted(info, array, texts=True)
    if info.data_type == "UINT8" and len(contents) == 1:
        return _fitted(info, np.frombuffer(contents[0], np.uint8))
    raise Failure(
        f"--input-file {info.name}: it is {info.data_type}; give one file that numpy.save wrote ({NUMPY_SUFFIX})",
        EXIT_USAGE,
    )


def _saved(info: Described, place: Path) -> Array:
    try:
        array = np.load(place, allow_pickle=False)
    except ValueError as error:
        raise Failure(
            f"--input-file {info.name}: {place} is no array of numbers or texts: {error}",
            EXIT_USAGE,
        ) from error
    wanted = np.dtype(triton_to_np_dtype(info.data_type))
    if array.dtype.kind in "US" and info.data_type == BYTES:
        array = np.array(
            [item.encode() if isinstance(item, str) else bytes(item) for item in array.ravel()],
            np.object_,
        ).reshape(array.shape)
    elif array.dtype != wanted and (info.data_type != "BF16" or array.dtype.kind != "f"):
        raise Failure(
            f"--input-file {info.name}: {place} holds {array.dtype}, and the input is {info.data_type}; save it as {wanted}",
            EXIT_USAGE,
        )
    return _exact(info, array.astype(wanted))


def _exact(info: Described, array: Array) -> Array:
    """An array with a shape of its own; a batch axis of one row may be left out."""
    if array.ndim == len(info.shape) - 1 and info.shape[0] == -1:
        array = array[np.newaxis]
    if array.ndim != len(info.shape) or any(
        a not in (-1, b) for a, b in zip(info.shape, array.shape, strict=True)
    ):
        raise Failure(f"{info.name}: shape {list(array.shape)} does not fit {info}", EXIT_USAGE)
    return array


def _fitted(info: Described, flat: Array, *, texts: bool = False) -> Array:
    """A row of elements in the input's shape. Of the axes of any length, texts go along the first (a row each), numbers along the last."""
    fixed = math.prod(size for size in info.shape if size >= 0)
    free = [index for index, size in enumerate(info.shape) if size < 0]
    shape = [max(size, 1) if size < 0 else size for size in info.shape]
    if flat.size == 1:
        return np.full(shape, flat[0], dtype=flat.dtype)
    if fixed and flat.size % fixed == 0 and free:
        shape[free[0] if texts else free[-1]] = flat.size // fixed
    if math.prod(shape) != flat.size:
        raise Failure(f"{info.name}: {flat.size} elements do not fit {info}", EXIT_USAGE)
    return flat.reshape(shape)


def _listed(tensors: Sequence[Described]) -> str:
    return ", ".join(map(str, tensors)) or "nothing"


# --- Triton's HTTP bodies (extension for binary tensors) ----------------------------------------------------------------------


def encode(arrays: Mapping[str, Array], model: Model) -> tuple[bytes, int]:
    """The body of an inference request with binary tensors, and the length of its JSON part, which the header has to name."""
    # The types are the model's: BF16 has no type of its own in NumPy, and no form in JSON, as FP16.
    return http_body(arrays, model.outputs, {item.name: item.data_type for item in model.inputs})


def decode(document: Mapping[str, Any], rest: bytes) -> dict[str, Array]:
    """The outputs of an answer: its JSON part and the bytes behind it.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    result: dict[str, Array] = {}
    for item in document["outputs"]:
        size = (item.get("parameters") or {}).get("binary_data_size")
        if size is None:
            array = np.array(
                item["data"],
                dtype=np.object_
                if item.get("datatype", BYTES) == BYTES
                else triton_to_np_dtype(item["datatype"]),
            )
        else:
            piece, rest = rest[:size], rest[size:]
            try:
                array = (
                    deserialize_bytes_tensor(piece)
                    if item["datatype"] == BYTES
                    else np.frombuffer(piece, triton_to_np_dtype(item["datatype"]))
                )
            except InferenceServerException as error:
                raise ValueError(str(error)) from error
        result[item["name"]] = array.reshape(item.get("shape", array.shape))
    return result


# --- what is shown -------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """An element as JSON has it: bytes as text, numbers as short as their type allows, no NaN."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, np.bool_ | bool):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, str | int) or value is None:
        return value
    number = float(str(value))
    return number if math.isfinite(number) else str(number)


def cell(array: Array) -> str:
    """The elements of one row for people: the first ones, and how many there are."""
    flat = array.ravel()
    shown = [
        f"{item:.4f}" if isinstance(item, float) else str(item)
        for item in map(plain, flat[:SHOWN_NUMBERS])
    ]
    if flat.size <= SHOWN_NUMBERS:
        return " ".join(shown)
    shape = "\u00d7".join(map(str, array.shape)) if array.ndim > 1 else str(flat.size)
    return " ".join(shown) + f" … ({shape} values)"
