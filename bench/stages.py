"""S4 and S5: the overhead of Triton over tokenizing, and of an ensemble over a tokenizer.

Measured on one real Triton with one tokenizer instance. S4 compares Triton's own compute time per
request (input, compute and output of a batch, divided by its requests) with the tokenizers library,
called in a loop by one thread on the same texts in batches of the same size; each batch yields a
pair of int64 arrays. Rounds are interleaved. Triton's threads and the load generator keep the other
core busy while the server is measured. The library is therefore measured twice: alone, which is the
reported figure, and next to a busy core, which shows how much of the ratio is due to the machine.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from bench.results import NATIVE, thresholds, write
from bench.variants import Variant, described, load, served, workload
from e2e.models import tree
from triton_pipelines.tools.loadgen import LoadSpec

CLIENTS = 32
ROUNDS = int(os.environ.get("ROUNDS", "7"))
SECONDS = float(os.environ.get("SECONDS", "3"))
WARM_SECONDS = 0.5
MOST = 1.6
NAME = "stage"
NO_OP = Variant(NAME, parameters={"launch_us": "0", "token_us": "0"})


NEW_TEXTS = 8192
"""Some 56 000 words, of which the step learns a few thousand before it finds that none of them
pays.
"""


def new_words(texts: Sequence[str], count: int = NEW_TEXTS, seed: int = 1) -> list[str]:
    """Return as many texts of about the same lengths in which no word is repeated.

    Each word consists of three words of `texts` joined by hyphens, always in a new combination.
    """
    drawn = random.Random(seed)
    triples = list(
        itertools.product(sorted({word for text in texts for word in text.split()}), repeat=3)
    )
    drawn.shuffle(triples)
    left, lengths = (
        iter(triples),
        itertools.cycle(max(1, round(len(text.split()) / 5)) for text in texts),
    )
    return [
        " ".join("-".join(triple) for triple in itertools.islice(left, length))
        for length in itertools.islice(lengths, count)
    ]


def run() -> None:
    """Measure, print and write S4 and S5; 3 minutes."""
    texts, file = workload(), str(tree.build() / tree.TOKENIZER_FOLDER / "tokenizer.json")
    spec = LoadSpec(concurrency=CLIENTS, duration_s=SECONDS, warmup_s=WARM_SECONDS)
    stage, alone, busy, rates, whole, batches, new, new_alone = [], [], [], [], [], [], [], []
    unseen = new_words(texts)
    with served([NO_OP]) as server:
        for number in range(ROUNDS):
            tokenizer = load(server, f"{NAME}-tokenizer", spec, texts)
            step = tokenizer.steps[f"{NAME}-tokenizer"]
            batch = max(1, round(step.rows_per_execution))
            stage.append(step.execution_s / step.rows_per_execution * 1e6)
            batches.append(step.rows_per_execution)
            alone.append(_raw(file, texts, batch, 1))
            busy.append(_raw(file, texts, batch, 2))
            step = load(server, f"{NAME}-tokenizer", spec, unseen).steps[f"{NAME}-tokenizer"]
            new.append(step.execution_s / step.rows_per_execution * 1e6)
            new_alone.append(
                _raw(file, unseen[: len(texts)], max(1, round(step.rows_per_execution)), 1)
            )
            rates.append(tokenizer.requests_per_s)
            whole.append(load(server, NAME, spec, texts).requests_per_s)
            print(
                f"round {number + 1}: stage {stage[-1]:.0f} us in batches of {batch}, "
                f"library {alone[-1]:.0f} us, beside a busy core {busy[-1]:.0f} us; "
                f"new words: stage {new[-1]:.0f} us, library {new_alone[-1]:.0f} us; "
                f"tokenizer {rates[-1]:.0f}/s, ensemble {whole[-1]:.0f}/s",
                flush=True,
            )
    ratios = [mine / theirs for mine, theirs in zip(stage, alone, strict=True)]
    common = {
        "workload": (
            f"{described()}; {CLIENTS} clients over HTTP, {ROUNDS} rounds of {SECONDS:g} s, "
            "interleaved"
        )
    }
    write(
        f"S4{NATIVE}",
        ratios,
        unit="times",
        goal=thresholds()["S4"]["goal"],
        met=statistics.median(ratios) <= MOST,
        stand_ins=[],
        command="make bench ID=S4",
        detail={
            "stageMicroseconds": _figures(stage),
            "libraryMicroseconds": _figures(alone),
            "libraryBesideABusyCoreMicroseconds": _figures(busy),
            "ratioBesideABusyCore": _figures(
                [mine / theirs for mine, theirs in zip(stage, busy, strict=True)]
            ),
            "newWords": {
                "stageMicroseconds": _figures(new),
                "libraryMicroseconds": _figures(new_alone),
                "ratio": _figures(
                    [mine / theirs for mine, theirs in zip(new, new_alone, strict=True)]
                ),
            },
            "rowsPerExecution": _figures(batches),
            "requestsPerSecond": _figures(rates),
        },
        **common,
    )
    shares = [both / one for both, one in zip(whole, rates, strict=True)]
    write(
        f"S5{NATIVE}",
        shares,
        unit="times",
        goal=thresholds()["S5"]["goal"],
        met=True,
        stand_ins=["the model: a Python step that does nothing"],
        command="make bench ID=S5",
        detail={
            "tokenizerRequestsPerSecond": _figures(rates),
            "ensembleRequestsPerSecond": _figures(whole),
        },
        **common,
    )
    print(
        f"S4: {statistics.median(ratios):.2f} times (goal {MOST}); S5: "
        f"{statistics.median(shares):.2f} times"
    )


def _figures(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in (statistics.median(values), min(values), max(values))]


def _raw(file: str, texts: Sequence[str], batch: int, processes: int) -> float:
    """Return the microseconds of CPU-bound work per text in a single-threaded process.

    ``processes`` of them run at the same time.
    """
    # As in the pipeline's pods; read when the library is first used, so it needs a process of its
    # own.
    os.environ.update({"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"})
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        child = context.Process(
            target=_encode, args=(theirs, file, list(texts), batch, SECONDS / 2), daemon=True
        )
        child.start()
        theirs.close()
        pipes.append(ours)
        children.append(child)
    try:
        for pipe in pipes:
            pipe.recv()  # ready
        for pipe in pipes:
            pipe.send(None)
        return float(statistics.mean(pipe.recv() for pipe in pipes))
    finally:
        for child in children:
            child.join(10)


def _encode(pipe: Connection, file: str, texts: list[str], batch: int, seconds: float) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)
    pipe.send(None)
    pipe.recv()
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for start in range(0, len(texts), batch):
            for encoding in tokenizer.encode_batch_fast(
                texts[start : start + batch], add_special_tokens=True
            ):
                np.array([encoding.ids], np.int64)
                np.array([encoding.attention_mask], np.int64)
        done += len(texts)
    pipe.send((time.perf_counter() - begin) / done * 1e6)
