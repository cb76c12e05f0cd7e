"""Workloads for scaling tests: *documents*, *cleaner* and *short*.

Each is a sample whose GPU step is a declared stand-in.

*documents*: 16 texts of about 500 tokens per request. Tokenizing them is real CPU work that takes
longer than the GPU step, so the workload really is CPU-bound. Its tokenizer is byte-level BPE,
whose output cannot be assembled from cached words.

*cleaner*: custom Python that takes 10 ms per text, before the tokenizer. It sleeps here, so that it
needs no more cores than a small machine has.

*short*: sentences of about 20 tokens. One tokenizer instance handles far more than the load
requires, so no count has to grow.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer

from e2e.load.prepared import request_of
from e2e.models import tree
from e2e.models.bytepairs import sentences
from e2e.suite.pipelines import merged, sample

TOKENIZER = "hub/sentence-transformers/all-MiniLM-L6-v2/tokenizer.json"
TEXTS_SEED = 7
REQUESTS = 16
"""Different requests that are sent in turn."""

# Waits as long as a GPU would compute, for every token of every row including padding, and answers
# with zeros.
GPU_CODE = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        shapes = [pb_utils.get_input_tensor_by_name(request, "input_ids").shape() for request in requests]
        time.sleep(0.002 + {per_token} * sum(rows * length for rows, length in shapes))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("logits", np.zeros((rows, {classes}), np.float32))]) for rows, _ in shapes]
"""  # noqa: E501
# Own Python that takes 10 ms per text, without needing a core for it.
CLEAN_CODE = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        time.sleep(0.010 * texts.size)
        return pb_utils.InferenceResponse([pb_utils.Tensor("CLEAN", texts)])
"""


@dataclass(frozen=True)
class Workload:
    """A pipeline and what is asked of it.

    Attributes:
        name: of the workload.
        document: the resource, to be merged with what a test or benchmark wants of it.
        step: the scaled step; its model has the same name.
        rows, tokens: texts per request, and about how many tokens each has.
        low, high: requests/s before and after a step up of the load; `high` is at most 70 % of what
            the count that it needs carries on two cores.
        alone: requests/s, at most 70 % of what one instance carries.
        slo: seconds within which 99 of 100 requests are to be answered.
        service: busy seconds of one instance per request on a core of its own, as found on two
            cores of 2024; for the best possible counts only.
        stand_ins: what is not real, in words.
        tokenizer: its make.
    """

    name: str
    document: Mapping[str, Any]
    step: str
    rows: int
    tokens: int
    low: float
    high: float
    alone: float
    slo: float
    service: float
    stand_ins: tuple[str, ...]
    tokenizer: str = "WordPiece"

    @property
    def model(self) -> str:
        """Name that clients call."""
        return str(self.document["metadata"]["name"])

    @property
    def text(self) -> str:
        """What it is, in one line, for results and plots."""
        return (
            f"{self.name}: {self.rows} x ~{self.tokens} tokens ({self.tokenizer}) per request, "
            f"{self.low:g} to {self.high:g} requests/s"
        )

    def requests(self) -> list[bytes]:
        """Return the requests as sent over the wire.

        They are real sentences, combined at random with a fixed seed until they have the required
        length.
        """
        rng = random.Random(TEXTS_SEED)
        tokenizer = Tokenizer.from_file(str(tree.build() / TOKENIZER))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        known = sentences()
        return [
            request_of(
                self.model,
                "TEXT",
                [_text(rng, tokenizer, known, self.tokens) for _ in range(self.rows)],
            )
            for _ in range(REQUESTS)
        ]


def _text(rng: random.Random, tokenizer: Tokenizer, sentences: list[str], tokens: int) -> str:
    chosen: list[str] = []
    length = 0
    while length < tokens - 10:
        chosen.append(rng.choice(sentences))
        length += len(tokenizer.encode(chosen[-1], add_special_tokens=False).ids)
    return " ".join(chosen)


def _gpu_step(per_token: float, classes: int) -> dict[str, Any]:
    return {
        "platform": "python",
        "source": None,
        "python": {
            "code": {"inline": GPU_CODE.format(per_token=f"{per_token:.7f}", classes=classes)}
        },
        "inputs": [{"name": "input_ids", "dataType": "INT64", "dims": [-1]}],
        "outputs": [{"name": "logits", "dataType": "FP32", "dims": [classes]}],
    }


def _stand_in(microseconds: float) -> str:
    return (
        f"simulated GPU step: a Python step that waits 2 ms plus {microseconds:g} µs per token, "
        f"padding included"
    )


def _document(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample with changes to its spec."""
    return merged(sample(name), {"spec": changes})


def documents() -> Workload:
    """Long texts, many rows, a tokenizer of BPE: tokenizing is the work."""
    # No queue limit: what waits is answered late and counted, instead of refused.
    tokenizer = {
        "source": {"uri": "hf://tritonpipelines/byte-pairs"},
        "instances": {"initial": 1, "min": 1, "max": 3},
        "dynamicBatching": {"queuePolicy": None},
    }
    changes = {"tokenizer": tokenizer, "model": _gpu_step(0.5e-6, 4)}
    return Workload(
        name="documents",
        document=_document("documents", changes),
        step="tokenizer",
        rows=16,
        tokens=500,
        low=20.0,
        high=100.0,
        alone=55.0,
        slo=0.250,
        service=0.0115,
        stand_ins=(_stand_in(0.5),),
        tokenizer="byte-level BPE",
    )


def cleaner() -> Workload:
    """Own Python before the tokenizer, scaled like one."""
    clean = {
        **sample("cleaner")["spec"]["steps"][0],
        "instances": {"initial": 1, "min": 1, "max": 8},
        "python": {"code": {"inline": CLEAN_CODE}},
    }
    changes = {
        "steps": [clean],
        "tokenizer": {"instances": {"count": 1}},
        "model": _gpu_step(1.5e-6, 2),
    }
    return Workload(
        name="cleaner",
        document=_document("cleaner", changes),
        step="clean",
        rows=1,
        tokens=20,
        low=50.0,
        high=250.0,
        alone=70.0,
        slo=0.100,
        service=0.010,
        stand_ins=("simulated custom Python step: a sleep of 10 ms per text", _stand_in(1.5)),
    )


def short() -> Workload:
    """Short sentences: one tokenizer carries them all."""
    changes = {
        "tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}},
        "model": _gpu_step(1.5e-6, 2),
    }
    return Workload(
        name="short",
        document=merged(_document("sentiment", changes), {"metadata": {"name": "short"}}),
        step="tokenizer",
        rows=1,
        tokens=20,
        low=60.0,
        high=300.0,
        alone=300.0,
        slo=0.100,
        service=0.0003,
        stand_ins=(_stand_in(1.5),),
    )


WORKLOADS = {"documents": documents, "cleaner": cleaner, "short": short}


def write(document: Mapping[str, Any], file: Path) -> Path:
    """The resource as a YAML file."""
    file.write_text(yaml.safe_dump(dict(document), sort_keys=False), encoding="utf-8")
    return file
