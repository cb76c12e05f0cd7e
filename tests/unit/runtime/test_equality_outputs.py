"""Test every kind of output in every padding mode, batch size and batch composition.

Covered are token vectors, tags, pooled embeddings and FP16, with the runner, the stock graph and
the adapted one. The reference is the stock graph's answer to the library's tokens of one text,
alone and without padding, pooled in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import pipelines, tinymodel
from tests.support.python_backend import InferenceRequest, start_model, texts
from tests.support.raggedbackend import SimulatedBackend, config_of, session
from tests.support.raggedgraphs import POSITIONS, WIDTH, Encoder, Head, Places, make
from tests.support.testserver import outputs_of
from tests.support.tokenizeroracle import TokenizerOracle
from triton_pipelines.loader.ragged.eligibility import Adaptable, check_eligibility
from triton_pipelines.loader.ragged.graph_adapter import adapt

Arrays = Mapping[str, np.ndarray]
Model = Callable[[Sequence[Arrays]], list[dict[str, np.ndarray]]]

MODELS = ("runner", "stock", "adapted")
HEADS = (Head.LOGITS, Head.POOLED, Head.HIDDEN, Head.TAGS)
TOKENS = [
    {"name": name, "data_type": "TYPE_INT64", "dims": [-1]}
    for name in ("input_ids", "attention_mask")
]
# FP16 holds about three digits, and sums over more places round otherwise; where two tags come as
# close as that, the best of them is chance.
TOLERANCE = {False: 1e-5, True: 2e-2}
WORDS = st.lists(st.sampled_from(tinymodel.WORDS), max_size=40).map(" ".join)
REQUESTS = st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=8)


class Case:
    """Tokenizers of every mode, one encoder in every way of running it, and the pooling steps."""

    def __init__(self, folder: Path, half: bool, places: Places) -> None:
        assert POSITIONS >= pipelines.MAX_LENGTH
        self.half = half
        self.encoder = Encoder(half=half, places=places, heads=HEADS)
        version = folder / "1"
        version.mkdir(parents=True)
        tinymodel.tokenizer().save(str(version / "tokenizer.json"))
        stock = make(self.encoder)
        onnx.save(stock, str(version / "model.onnx"))
        self.alone = session(stock)
        self.plain = tinymodel.tokenizer(baked_in=False)
        self.plain.enable_truncation(pipelines.MAX_LENGTH)
        text = [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}]
        self.tokenizers = {
            padding: TokenizerOracle(
                folder,
                {"max_batch_size": 64, "input": text, "output": TOKENS},
                pipelines.tokenizer_parameters(padding, "LongestFirst"),
            )
            for padding in pipelines.PADDINGS
        }
        declared = self.encoder.declared
        outputs = [
            {
                "name": tensor.name,
                "data_type": f"TYPE_{tensor.data_type.value}",
                "dims": list(tensor.dims),
            }
            for tensor in declared[1]
        ]
        runner = start(
            "onnx_runner",
            folder,
            TOKENS,
            outputs,
            {"pad_inputs": '{"input_ids": 0, "attention_mask": 0}', "run_cost_tokens": "12"},
        )
        found = check_eligibility(stock, self.encoder.plan(max_length=pipelines.MAX_LENGTH))
        assert isinstance(found, Adaptable), str(found)
        ragged = SimulatedBackend(adapt(stock, found), config_of(*declared))
        self.models: Mapping[str, Model] = {
            "runner": lambda feeds: executed(runner, feeds),
            "stock": self.equal_shapes,
            "adapted": ragged.execute,
        }
        real = f"TYPE_{'FP16' if half else 'FP32'}"
        hidden = {"name": "hidden", "data_type": real, "dims": [-1, WIDTH]}
        embedding = [{"name": "EMBEDDING", "data_type": "TYPE_FP32", "dims": [WIDTH]}]
        mean = {
            "type": "MeanPooling",
            "input": "hidden",
            "mask": "attention_mask",
            "normalize": "Enabled",
        }
        self.mean = start("postprocess", folder, [hidden, TOKENS[1]], embedding, mean)
        self.first = start(
            "postprocess",
            folder,
            [hidden],
            embedding,
            {"type": "FirstToken", "input": "hidden", "normalize": "Disabled"},
        )

    def equal_shapes(self, feeds: Sequence[Arrays]) -> list[dict[str, np.ndarray]]:
        """The stock graph in Triton's backend: requests of one shape share a batch."""
        answers: list[dict[str, np.ndarray]] = [{} for _ in feeds]
        for shape in {feed["input_ids"].shape[1] for feed in feeds}:
            members = [
                number for number, feed in enumerate(feeds) if feed["input_ids"].shape[1] == shape
            ]
            fed = {
                name: np.concatenate([feeds[number][name] for number in members])
                for name in feeds[0]
            }
            made = dict(
                zip(
                    [head.value for head in HEADS],
                    self.alone.run([head.value for head in HEADS], fed),
                    strict=True,
                )
            )
            ends = np.cumsum([len(feeds[number]["input_ids"]) for number in members])[:-1]
            for name, value in made.items():
                for number, part in zip(members, np.split(value, ends), strict=True):
                    answers[number][name] = part
        return answers

    def expected(self, text: str) -> dict[str, np.ndarray]:
        """One text alone."""
        ids = np.array([self.plain.encode(text).ids], np.int64)
        names = [head.value for head in HEADS]
        made = {
            name: value[0]
            for name, value in zip(
                names,
                self.alone.run(names, {"input_ids": ids, "attention_mask": np.ones_like(ids)}),
                strict=True,
            )
        }
        vectors = made["hidden"].astype(np.float64)
        mean = vectors.mean(axis=0)
        return {**made, "mean": mean / np.linalg.norm(mean), "first": vectors[0]}

    def answers(
        self, padding: str, model: str, batch: Sequence[Sequence[str]]
    ) -> list[dict[str, np.ndarray]]:
        """All steps called once with all requests of a batch."""
        requests = [{"TEXT": texts(*rows)} for rows in batch]
        tokens = [outputs_of(one) for one in self.tokenizers[padding].execute(requests)]
        made = self.models[model](tokens)
        pooled = executed(
            self.mean,
            [
                {"hidden": one["hidden"], "attention_mask": fed["attention_mask"]}
                for one, fed in zip(made, tokens, strict=True)
            ],
        )
        first = executed(self.first, [{"hidden": one["hidden"]} for one in made])
        return [
            {
                **one,
                "mean": mean["EMBEDDING"],
                "first": begin["EMBEDDING"],
                "width": np.array(fed["input_ids"].shape),
            }
            for one, mean, begin, fed in zip(made, pooled, first, tokens, strict=True)
        ]


def start(
    step: str, folder: Path, inputs: list[Any], outputs: list[Any], parameters: Mapping[str, str]
) -> Any:
    prefixed = {f"tritonpipe.{name}": value for name, value in parameters.items()}
    return start_model(
        step, folder, {"max_batch_size": 64, "input": inputs, "output": outputs}, prefixed
    )


def executed(step: Any, feeds: Sequence[Arrays]) -> list[dict[str, np.ndarray]]:
    return [
        response.arrays() for response in step.execute([InferenceRequest(feed) for feed in feeds])
    ]


@pytest.fixture(
    scope="module",
    params=[(False, Places.SLICED_TABLE), (True, Places.SLICED_TABLE), (False, Places.MASK)],
    ids=["FP32", "FP16", "RoBERTa"],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    half, places = request.param
    return Case(tmp_path_factory.mktemp("outputs"), half, places)


@settings(deadline=None, max_examples=80, derandomize=True)
@given(
    requests=REQUESTS,
    padding=st.sampled_from(pipelines.PADDINGS),
    model=st.sampled_from(MODELS),
    size=st.integers(1, 8),
)
def test_no_output_depends_on_company_batch_or_mode(
    case: Case, requests: list[list[str]], padding: str, model: str, size: int
) -> None:
    for begin in range(0, len(requests), size):
        batch = requests[begin : begin + size]
        for rows, answer in zip(batch, case.answers(padding, model, batch), strict=True):
            width = int(answer["width"][1])
            assert answer["hidden"].shape == (len(rows), width, WIDTH), (
                "what stands in a request shapes its answer, and nothing else"
            )
            assert answer["tags"].shape == (len(rows), width)
            for number, text in enumerate(rows):
                for name, wanted in case.expected(text).items():
                    got = answer[name][number]
                    if name == "tags":
                        assert case.half or got[: len(wanted)].tolist() == wanted.tolist()
                        continue
                    got = got[: len(wanted)] if name == "hidden" else got
                    np.testing.assert_allclose(
                        got.astype(np.float64),
                        wanted.astype(np.float64),
                        rtol=TOLERANCE[case.half],
                        atol=TOLERANCE[case.half],
                        err_msg=name,
                    )
