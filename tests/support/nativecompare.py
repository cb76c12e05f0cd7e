"""Compare the native tokenizer with the Python step on generated tokenizers, texts and pairs.

    make compare-native TEXTS=100000 SEED=1

Both run in this process. Everything follows from the seed. With ``--record FILE``, the requests and
the answers of the native tokenizer are recorded, for :mod:`tests.support.nativereplay`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tests.support.python_backend import InferenceRequest, start_model, texts
from tests.support.randomtokenizers import KINDS, text
from tests.support.testserver import Answer, NativeError, NativeModel
from tests.support.tokenizerkinds import OUTPUTS
from triton_pipelines.runtime.tokenizer.encoder import KNOWN_IDS

ROWS_PER_TOKENIZER = 100
LENGTHS = (None, 4, 5, 8, 16, 33, 64, 512)
TRUNCATIONS = ("LongestFirst", "OnlyFirst", "OnlySecond", "Refuse")
PADDINGS = ("Ragged", "Fixed", "Bucketed", "Longest")
SHOWN = 5

Inputs = Mapping[str, np.ndarray]


class Comparison:
    """What was compared so far."""

    def __init__(self, seed: int, recording: BinaryIO | None = None) -> None:
        self.seed = seed
        self.recording = recording
        """Receives the models and batches of the native tokenizer."""
        self.rows: Counter[str] = Counter()
        """Texts and pairs that both answered or rejected, by kind of tokenizer."""
        self.pairs = 0
        """Those that are pairs."""
        self.rejected: Counter[str] = Counter()
        """Errors of the Python step by their kind, which the native one gave as well."""
        self.differences: list[str] = []
        """Descriptions of what differs."""

    def run(self, count: int) -> None:
        """Compare until ``count`` texts or pairs are done."""
        number = 0
        while self.rows.total() < count and len(self.differences) < SHOWN:
            kind = list(KINDS)[number % len(KINDS)]
            self._tokenizer(kind, random.Random(f"{self.seed}/{number}"), number)
            number += 1

    def _tokenizer(self, kind: str, rng: random.Random, number: int) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            (folder / "1").mkdir()
            tokenizer = KINDS[kind](rng)
            tokenizer.save(str(folder / "1/tokenizer.json"))
            if rng.random() < 0.1:
                known = tokenizer.get_vocab_size() - rng.randint(1, 5)
                (folder / "1" / KNOWN_IDS).write_text(json.dumps({"ids": known}))
            names, config, parameters = _settings(rng)
            where = f"{kind}, tokenizer {number} of seed {self.seed}, {parameters}"
            try:
                python = start_model("tokenizer", folder, config, parameters)
            except ValueError as error:
                self._both_refuse(folder, config, parameters, str(error), where)
                return
            native = NativeModel(folder, config, parameters, self.recording)
            try:
                self._requests(kind, rng, names, python, native, where)
            finally:
                native.close()

    def _both_refuse(
        self,
        folder: Path,
        config: dict[str, Any],
        parameters: dict[str, str],
        expected: str,
        where: str,
    ) -> None:
        self.rejected["load"] += 1
        try:
            NativeModel(folder, config, parameters, self.recording).close()
        except ValueError as error:
            if expected not in str(error):
                self.differences.append(f"{where}: load: {expected!r}, native {str(error)!r}")
        else:
            self.differences.append(f"{where}: loads, but Python says {expected!r}")

    def _requests(
        self,
        kind: str,
        rng: random.Random,
        names: list[str],
        python: Any,
        native: NativeModel,
        where: str,
    ) -> None:
        words: list[str] = []
        done = 0
        while done < ROWS_PER_TOKENIZER:
            batch = [_request(rng, names, words) for _ in range(rng.randint(1, 4))]
            expected = _expected(python, batch)
            for inputs, one, answer in zip(batch, expected, native.execute(batch), strict=True):
                found = self._difference(one, answer)
                if found:
                    self.differences.append(f"{where}: {found}; {_shown(inputs)}")
                rows = min(len(column) for column in inputs.values())
                self.rows[kind] += rows
                self.pairs += rows * (len(names) == 2)
                done += rows

    def _difference(self, expected: Any, answer: Answer) -> str | None:
        error = expected.error()
        if error is not None:
            self.rejected["request"] += 1
            wanted = NativeError(error.code(), error.message())
            return None if answer == wanted else f"{wanted}, native {_told(answer)}"
        if isinstance(answer, NativeError):
            return f"native {answer}"
        arrays = expected.arrays()
        if set(arrays) != set(answer):
            return f"outputs {sorted(arrays)}, native {sorted(answer)}"
        for name, array in arrays.items():
            same = answer[name].dtype == array.dtype and np.array_equal(answer[name], array)
            if not same:
                return f"{name} {array.tolist()}, native {answer[name].tolist()}"
        return None


def _expected(python: Any, batch: list[dict[str, np.ndarray]]) -> list[Any]:
    """Return the responses of the Python step; good requests as if the others had not been sent.

    If a text cannot be tokenized, the Python step tokenizes each request alone, and with padding
    Longest each request gets its own width. The native step pads the good requests together.
    """
    requests = [InferenceRequest(inputs) for inputs in batch]
    responses = python.execute(requests)
    good = [number for number, one in enumerate(responses) if one.error() is None]
    if len(good) < len(batch):
        again = python.execute([requests[number] for number in good])
        for number, response in zip(good, again, strict=True):
            responses[number] = response
    return list(responses)


def _settings(rng: random.Random) -> tuple[list[str], dict[str, Any], dict[str, str]]:
    """Names of the inputs, the model's configuration, and its parameters."""
    pairs = rng.random() < 0.35
    names = ["TEXT", "OTHER"] if pairs else ["TEXT"]
    kinds = rng.sample(sorted(OUTPUTS), rng.randint(1, len(OUTPUTS)))
    if rng.random() < 0.4:  # the word cache needs these
        kinds = ["input_ids", "attention_mask"]
    outputs = {name: OUTPUTS[name] for name in kinds}
    length = rng.choice(LENGTHS)
    padding = rng.choice(PADDINGS) if length else rng.choice(("Ragged", "Longest"))
    truncation = rng.choice(TRUNCATIONS if pairs else ("LongestFirst", "OnlyFirst", "Refuse"))
    parameters = {
        "outputs": json.dumps(outputs),
        "padding": padding,
        "truncation": truncation if length else "LongestFirst",
        "special_tokens": rng.choice(("Enabled", "Enabled", "Disabled")),
    }
    if length:
        parameters["max_length"] = str(length)
    if padding == "Bucketed":
        parameters["buckets"] = rng.choice(("", "3,9", "16,8,700"))
    if pairs:
        parameters["text_pair"] = "OTHER"
    data_type = rng.choice(("TYPE_INT32", "TYPE_INT64"))
    config = {
        "max_batch_size": rng.choice((0, 64)),
        "input": [{"name": name, "data_type": "TYPE_STRING"} for name in names],
        "output": [{"name": name, "data_type": data_type} for name in outputs],
    }
    return names, config, {f"tritonpipe.{key}": value for key, value in parameters.items()}


def _request(rng: random.Random, names: list[str], words: list[str]) -> dict[str, np.ndarray]:
    rows = rng.choice((1, 1, 2, 5, 8))
    inputs = {}
    for name in names:
        more = rng.random() < 0.01
        drawn: list[str | bytes] = [text(rng, words) for _ in range(rows + more)]
        if rng.random() < 0.01:
            drawn[0] = str(drawn[0]).encode()[:-1] + rng.choice((b"\xff", b"\xe2\x82", b"\xc3("))
        inputs[name] = texts(*drawn)
    return inputs


def _told(answer: Answer) -> str:
    return str(answer) if isinstance(answer, NativeError) else f"outputs {sorted(answer)}"


def _shown(inputs: Inputs) -> str:
    return ", ".join(f"{name} {column[:, 0].tolist()}" for name, column in inputs.items())


def compare(seed: int, count: int, record: Path | None = None) -> bool:
    """Compare ``count`` texts or pairs, and print the counts; return whether all are equal."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        recording = None if record is None else stack.enter_context(record.open("wb"))
        comparison = Comparison(seed, recording)
        comparison.run(count)
    for found in comparison.differences:
        print(f"DIFFERENT: {found[:4000]}")
    print(
        f"seed {seed}: {comparison.rows.total()} texts and pairs ({comparison.pairs} pairs)"
        f" in {time.monotonic() - began:.0f} s, {len(comparison.differences)} differences;"
        f" {dict(comparison.rows)}; equal errors: {dict(comparison.rejected)}"
    )
    return not comparison.differences


def main() -> int:
    """Command line: compare, print the counts, return 1 if anything differs."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--texts", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--record", type=Path)
    given = arguments.parse_args()
    return 0 if compare(given.seed, given.texts, given.record) else 1


if __name__ == "__main__":
    sys.exit(main())
