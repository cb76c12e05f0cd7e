"""Read the settings of the tokenizer step, and check them against the config of its model.

Nothing here depends on Triton. ``model.py`` documents the settings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("InputIds", "AttentionMask", "TokenTypeIds", "SpecialTokensMask", "Offsets", "Lengths")
PADDINGS = ("Ragged", "Fixed", "Bucketed", "Longest")
TRUNCATIONS = ("LongestFirst", "OnlyFirst", "OnlySecond", "Refuse")
DTYPES = {"TYPE_INT32": np.int32, "TYPE_INT64": np.int64}


def parse_buckets(text: str, max_length: int) -> tuple[int, ...]:
    """Return the bucket lengths in ascending order.

    The last one is always ``max_length``; larger ones are dropped.
    """
    given = {int(part) for part in text.split(",") if part.strip()}
    if any(bucket < 1 for bucket in given):
        raise ValueError(f"tritonpipe.buckets: {text!r} has a length below 1")
    return (*sorted(bucket for bucket in given if bucket < max_length), max_length)


def read_choice(parameters: dict[str, str], key: str, allowed: Sequence[str]) -> str:
    """Return the value of a parameter; the first of ``allowed`` is the default."""
    value = parameters.get(key, allowed[0])
    if value not in allowed:
        raise ValueError(f"{key}: {value!r} is not one of {', '.join(allowed)}")
    return value


def check_truncation(truncation: str, pairs: bool) -> None:
    """Raise an error if rows cannot be cut in this way."""
    if truncation == "OnlySecond" and not pairs:
        raise ValueError(
            "tritonpipe.truncation: OnlySecond cuts the second text of a pair, but"
            " tritonpipe.text_pair is not set"
        )


def read_inputs(config: dict[str, Any], parameters: dict[str, str]) -> list[str]:
    """Return the name of the input of texts and, for pairs, that of the second texts."""
    names = [parameters.get("tritonpipe.text", "TEXT")]
    if "tritonpipe.text_pair" in parameters:
        names.append(parameters["tritonpipe.text_pair"])
        if names[0] == names[1]:
            raise ValueError(
                f"tritonpipe.text_pair: {names[1]} is also tritonpipe.text, but a pair requires two"
                " inputs"
            )
    inputs = {tensor["name"]: tensor["data_type"] for tensor in config.get("input", [])}
    if inputs != dict.fromkeys(names, "TYPE_STRING"):
        wanted = (
            f"exactly one input, {names[0]}"
            if len(names) == 1
            else f"exactly two inputs, {names[0]} and {names[1]}"
        )
        raise ValueError(f"the tokenizer needs {wanted} of TYPE_STRING, but the model has {inputs}")
    return names


def read_max_length(parameters: dict[str, str], padding: str) -> int | None:
    """Return tritonpipe.max_length; None if there is no limit."""
    text = parameters.get("tritonpipe.max_length")
    if text is None:
        if padding in ("Fixed", "Bucketed"):
            raise ValueError(
                f"tritonpipe.max_length is missing, but tritonpipe.padding {padding} requires it"
            )
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"tritonpipe.max_length: {text!r} is not a positive number of tokens")
    return int(text)


def read_known_ids(file: Path) -> int | None:
    """Return the number of token ids that the model knows; None if it knows all."""
    return int(json.loads(file.read_text(encoding="utf-8"))["ids"]) if file.is_file() else None


def read_outputs(config: dict[str, Any], parameters: dict[str, str]) -> list[tuple[str, str, Any]]:
    """Return tensor name, kind and numpy type of every output."""
    kinds: dict[str, str] = json.loads(parameters.get("tritonpipe.outputs", "{}"))
    declared = {output["name"]: output["data_type"] for output in config.get("output", [])}
    if set(kinds) != set(declared):
        raise ValueError(
            f"tritonpipe.outputs lists {sorted(kinds)}, but the model's outputs are"
            f" {sorted(declared)}"
        )
    for name, kind in kinds.items():
        if kind not in KINDS:
            raise ValueError(
                f"tritonpipe.outputs: {name} is {kind!r}, not one of {', '.join(KINDS)}"
            )
        if declared[name] not in DTYPES:
            raise ValueError(
                f"output {name} is {declared[name]}, but tokens are {' or '.join(DTYPES)}"
            )
    return [(name, kind, DTYPES[declared[name]]) for name, kind in kinds.items()]
