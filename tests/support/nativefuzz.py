"""Fuzz the native tokenizer under AddressSanitizer: its files (`tokenizers`) and its requests.

    make fuzz-native SECONDS=300 TARGET=requests

The targets are in `native/fuzz/fuzz_targets`; Rust nightly compiles them. What makes one fail is
kept in `out/fuzz-native`. Inputs that reach new code are kept in the cache, outside the checkout,
so a later run begins where an earlier one ended. At its end, a run prints when it last reached new
code: how much longer runs would find.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.local import cache, native
from tests.support.randomtokenizers import KINDS

TARGETS = ("tokenizers", "requests")
TRIPLE = "x86_64-unknown-linux-gnu"
TOOLCHAIN = "+nightly"
SEEDS = 40
SERVED = 10
"""Tokenizers that requests are sent to."""
MEMORY_MIB = 4096
SLOW_SECONDS = 120
# The flags of cargo-fuzz: an address sanitizer, and coverage for libFuzzer.
SANITIZER = (
    "-Zsanitizer=address",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
    "--cfg",
    "fuzzing",
)
OUT = native.ROOT / "out" / "fuzz-native"
_PROGRESS = re.compile(r"#(\d+)\s+(\w+)\s+cov: (\d+)")


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the coverage of a run grew."""

    inputs: int
    """Inputs that were executed."""
    first: int
    """Code edges that the corpus covered at the start."""
    edges: int
    """Code edges that were covered at the end."""
    seconds: float
    """Time from the start of mutations to the end."""
    last_growth: float | None
    """Seconds from the start of mutations to the last new edge; ``None`` without one."""

    def __str__(self) -> str:
        grown = (
            "no new edge"
            if self.last_growth is None
            else f"the last new edge after {self.last_growth:.0f} s"
        )
        return (
            f"{self.inputs} inputs in {self.seconds:.0f} s; {self.first} edges at the start, "
            f"{self.edges} at the end; {grown}"
        )


def coverage(lines: Iterable[tuple[float, str]]) -> Coverage | None:
    """Return how the coverage grew, from the lines of libFuzzer with their times (seconds).

    ``None`` if it has not read its corpus.
    """
    found: Coverage | None = None
    start = 0.0
    for now, line in lines:
        match = _PROGRESS.match(line)
        if match is None:
            continue
        inputs, edges = int(match[1]), int(match[3])
        if match[2] == "INITED":
            start, found = now, Coverage(inputs, edges, edges, 0.0, None)
        elif found is not None:
            last = now - start if edges > found.edges else found.last_growth
            found = Coverage(inputs, found.first, edges, now - start, last)
    return found


def build() -> Path:
    """Compile the targets; return the folder that they are in. A cold build takes minutes."""
    target = cache.cache_root() / "native-fuzz-target"
    environment = native.settings(os.environ)
    environment |= {"CARGO_TARGET_DIR": str(target), "RUSTFLAGS": " ".join(SANITIZER)}
    # Oniguruma, the regex library in C, is checked as well.
    environment["CFLAGS"] = "-fsanitize=address"
    call = [native.find_cargo(), TOOLCHAIN, "build", "--release", "--locked"]
    call += [f"--target={TRIPLE}", "--features=fuzz"]
    subprocess.run(call, cwd=native.CRATE / "fuzz", env=environment, check=True)
    return target / TRIPLE / "release"


def write_seeds(corpus: Path, served: Path) -> list[Path]:
    """Write tokenizers of every kind as first inputs; return the files that requests use."""
    corpus.mkdir(parents=True, exist_ok=True)
    served.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(SEEDS):
        rng = random.Random(f"fuzz/{number}")
        content = list(KINDS.values())[number % len(KINDS)](rng).to_str().encode()
        (corpus / f"seed{number}").write_bytes(rng.randbytes(8) + content)
        if number < SERVED:
            files.append(served / f"{number}.json")
            files[-1].write_bytes(content)
    return files


def main() -> int:
    """Command line: run one target, or both in turn; return libFuzzer's exit code."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=int, default=300)
    arguments.add_argument("--target", choices=TARGETS)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    folder, corpora = build(), cache.cache_root() / "native-fuzz-corpus"
    files = write_seeds(corpora / "tokenizers", corpora / "served")
    OUT.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "TOKENIZERS": ":".join(map(str, files)),
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
    }
    for target in [given.target] if given.target else TARGETS:
        corpus = corpora / target
        corpus.mkdir(exist_ok=True)
        call = [str(folder / target), f"-seed={given.seed}", f"-max_total_time={given.seconds}"]
        call += ["-len_control=0", "-max_len=20000", f"-timeout={SLOW_SECONDS}"]
        call += [f"-rss_limit_mb={MEMORY_MIB}", f"-artifact_prefix={OUT}/{target}-", str(corpus)]
        call.append("-print_final_stats=1")
        with subprocess.Popen(
            call, env=environment, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as running:
            print(f"{target}: {coverage(_echoed(running))}")
        if running.returncode:
            return running.returncode
    return 0


def _echoed(running: subprocess.Popen[str]) -> Iterator[tuple[float, str]]:
    """Yield the lines of a fuzzer with their times, and print them."""
    assert running.stderr is not None
    for line in running.stderr:
        print(line, end="", flush=True)
        yield time.monotonic(), line


if __name__ == "__main__":
    sys.exit(main())
