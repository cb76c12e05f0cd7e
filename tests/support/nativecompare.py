"""Compare the native tokenizer with the library on generated tokenizers, texts and pairs.

    make compare-native TEXTS=100000 SEED=1

The reference is :mod:`tests.support.tokenizeroracle`. Everything follows from the seed. With
``--record FILE``, the requests and the answers of the native tokenizer are recorded, for
:mod:`tests.support.nativereplay`.
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

from tests.support.python_backend import texts
from tests.support.randomtokenizers import KINDS, text
from tests.support.testserver import NativeError, NativeModel
from tests.support.tokenizerkinds import OUTPUTS
from tests.support.tokenizeroracle import TokenizerOracle, difference
from triton_pipelines.loader.tokenizer_files import KNOWN_IDS

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
        """Texts and pairs that were answered or rejected, by kind of tokenizer."""
        self.pairs = 0
        """Those that are pairs."""
        self.rejected: Counter[str] = Counter()
        """Expected errors by their kind, which the native tokenizer gave."""
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
                oracle = TokenizerOracle(folder, config, parameters)
            except ValueError as error:
                self._refused_load(folder, config, parameters, str(error), where)
                return
            native = NativeModel(folder, config, parameters, self.recording)
            try:
                self._requests(kind, rng, names, oracle, native, where)
            finally:
                native.close()

    def _refused_load(
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
                self.differences.append(f"{where}: load: expected {expected!r}, but {str(error)!r}")
        else:
            self.differences.append(f"{where}: load: expected {expected!r}, but it loads")

    def _requests(
        self,
        kind: str,
        rng: random.Random,
        names: list[str],
        oracle: TokenizerOracle,
        native: NativeModel,
        where: str,
    ) -> None:
        words: list[str] = []
        done = 0
        while done < ROWS_PER_TOKENIZER:
            batch = [_request(rng, names, words) for _ in range(rng.randint(1, 4))]
            answers = zip(batch, oracle.execute(batch), native.execute(batch), strict=True)
            for inputs, expected, answer in answers:
                self.rejected["request"] += isinstance(expected, NativeError)
                found = difference(expected, answer)
                if found:
                    self.differences.append(f"{where}: {found}; {_shown(inputs)}")
                rows = min(len(column) for column in inputs.values())
                self.rows[kind] += rows
                self.pairs += rows * (len(names) == 2)
                done += rows


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
