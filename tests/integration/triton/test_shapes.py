"""The runtime files in a real Triton, with other shapes and types.

They are pairs, no batch axis, token-level answers, number types and optional inputs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import pipelines, tinymodel
from tests.support.pipelines import tensor
from tests.support.python_backend import texts
from tests.support.triton import triton_server, write_model
from triton_pipelines import runtime
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import RejectedError
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration
TOKENS = {
    "ids": "InputIds",
    "mask": "AttentionMask",
    "types": "TokenTypeIds",
    "special": "SpecialTokensMask",
    "offsets": "Offsets",
    "lengths": "Lengths",
}
LABELS = ["O", "PER", "LOC"]


def write_tokenizer(
    repository: Path,
    name: str,
    pair: bool,
    max_batch_size: int,
    dims: str,
    outputs: list[str],
    truncation: str,
) -> None:
    parameters = {
        "text": "QUERY",
        **({"text_pair": "PASSAGE"} if pair else {}),
        "max_length": "12",
        "truncation": truncation,
        "padding": "Ragged",
        "outputs": json.dumps(TOKENS),
    }
    inputs = [
        tensor(text, "TYPE_STRING", dims) for text in (("QUERY", "PASSAGE") if pair else ("QUERY",))
    ]
    config = pipelines.config(name, inputs, outputs, parameters, max_batch_size=max_batch_size)
    if not max_batch_size:
        config = config.replace("dynamic_batching { }\n", "")
    version = pipelines.write_tokenizer(repository, name, config)
    tinymodel.tokenizer().save(str(version / "tokenizer.json"))


def write_postprocess(
    repository: Path,
    name: str,
    data_type: str,
    max_batch_size: int,
    dims: str,
    outputs: list[str],
    **parameters: str,
) -> None:
    config = pipelines.config(
        name,
        [tensor("x", data_type, dims)],
        outputs,
        {"type": "Softmax", "input": "x", **parameters},
        max_batch_size=max_batch_size,
    )
    write_model(
        repository,
        name,
        config if max_batch_size else config.replace("dynamic_batching { }\n", ""),
        {"model.py": runtime.source("postprocess")},
    )


def optional_graph() -> onnx.ModelProto:
    """Return y = x * scale in FP16, with scale 10 if it is not given; odd = not flag."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["y"]),
        helper.make_node("Not", ["flag"], ["odd"]),
    ]
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        nodes,
        "optional",
        [
            value("x", TensorProto.FLOAT16, ["n", "w"]),
            value("scale", TensorProto.FLOAT16, ["m", "o"]),
            value("flag", TensorProto.BOOL, ["n", 1]),
        ],
        [value("y", TensorProto.FLOAT16, ["n", "w"]), value("odd", TensorProto.BOOL, ["n", 1])],
        [numpy_helper.from_array(np.array([[10]], np.float16), "scale")],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    repository = tmp_path_factory.mktemp("shapes")
    mixed = [
        tensor("ids", "TYPE_INT32", "-1"),
        *(tensor(name, "TYPE_INT64", "-1") for name in ("mask", "types", "special")),
        tensor("offsets", "TYPE_INT32", "-1, 2"),
        tensor("lengths", "TYPE_INT64", "1"),
    ]
    whole = [text.replace("dims: [ ", "dims: [ -1, ") for text in mixed]
    write_tokenizer(repository, "pairs", True, 64, "1", mixed, "OnlySecond")
    write_tokenizer(repository, "flat_pairs", True, 0, "-1", whole, "LongestFirst")
    for name, dims in {"flat": "-1", "row": "1, -1", "column": "-1, 1", "three": "3"}.items():
        write_tokenizer(repository, name, False, 0, dims, whole, "LongestFirst")
    probabilities = [
        tensor("PROBABILITIES", "TYPE_FP32", "3"),
        tensor("LABEL", "TYPE_STRING", "2"),
        tensor("SCORE", "TYPE_FP32", "2"),
    ]
    labels = {"labels": json.dumps(LABELS), "top_k": "2"}
    for bits in ("FP16", "BF16", "FP32", "FP64"):
        write_postprocess(repository, bits.lower(), f"TYPE_{bits}", 8, "3", probabilities, **labels)
    with_axis = [text.replace("dims: [ ", "dims: [ -1, ") for text in probabilities]
    write_postprocess(repository, "tagger", "TYPE_FP32", 8, "-1, 3", with_axis, **labels)
    write_postprocess(repository, "flat_classes", "TYPE_FP32", 0, "-1, 3", with_axis, **labels)
    inputs = [
        tensor("x", "TYPE_FP16", "-1"),
        tensor("scale", "TYPE_FP16", "1").replace(" }", " optional: true }"),
        tensor("flag", "TYPE_BOOL", "1"),
    ]
    outputs = [tensor("y", "TYPE_FP16", "-1"), tensor("odd", "TYPE_BOOL", "1")]
    config = pipelines.config("optional", inputs, outputs, {})
    version = write_model(
        repository, "optional", config, {"model.py": runtime.source("onnx_runner")}
    )
    onnx.save(optional_graph(), str(version / "model.onnx"))
    with triton_server(repository, ["*"], ready="pairs") as running:
        yield running


def encode(first: str, second: str | None, strategy: str) -> object:
    plain = tinymodel.tokenizer(baked_in=False)
    plain.enable_truncation(12, strategy=strategy)
    return plain.encode(first, second)


def check_tokens(
    answer: dict[str, np.ndarray], rows: list[tuple[str, str | None]], strategy: str
) -> None:
    assert {name: array.dtype.name for name, array in answer.items()} == {
        name: "int32" if name in ("ids", "offsets") else "int64" for name in TOKENS
    }
    expected = [encode(*row, strategy) for row in rows]
    width = max(map(len, expected))
    assert answer["offsets"].shape == (len(rows), width, 2)
    assert answer["lengths"].tolist() == [[len(encoding)] for encoding in expected]
    for i, encoding in enumerate(expected):
        blank = width - len(encoding)
        assert answer["ids"][i].tolist() == encoding.ids + [0] * blank
        assert answer["mask"][i].tolist() == [1] * len(encoding) + [0] * blank
        assert answer["types"][i].tolist() == encoding.type_ids + [0] * blank
        assert answer["special"][i].tolist() == encoding.special_tokens_mask + [1] * blank
        assert [tuple(pair) for pair in answer["offsets"][i].tolist()] == encoding.offsets + [
            (0, 0)
        ] * blank


async def test_pairs_of_many_clients(server: LocalTriton) -> None:
    """Row by row, cut in the second text alone; a request that cannot be cut so fails alone."""
    random = np.random.default_rng(5)

    def sentence(most: int) -> str:
        return " ".join(random.choice(tinymodel.WORDS, size=random.integers(1, most)))

    batches = [
        [(sentence(8), sentence(30)) for _ in range(rows)] for rows in (1, 2, 5, 1, 1, 3, 1, 8)
    ]
    async with TritonClient(server.grpc_address) as client:

        async def ask(rows: list[tuple[str, str | None]]) -> None:
            inputs = {
                "QUERY": texts(*(row[0] for row in rows)),
                "PASSAGE": texts(*(row[1] or "" for row in rows)),
            }
            check_tokens(await client.infer("pairs", inputs), rows, "only_second")

        async def refused() -> None:
            with pytest.raises(
                RejectedError,
                match=r"QUERY has 30 tokens.*OnlySecond shortens only PASSAGE; shorten QUERY",
            ):
                await client.infer(
                    "pairs", {"QUERY": texts("fox " * 30), "PASSAGE": texts("a dog")}
                )

        await asyncio.gather(refused(), *(ask(list(rows)) for rows in batches), refused())


async def test_pairs_need_equal_rows(server: LocalTriton) -> None:
    async with TritonClient(server.grpc_address) as client:
        inputs = {"QUERY": texts("a", "b").ravel(), "PASSAGE": texts("a", "b", "c").ravel()}
        with pytest.raises(RejectedError, match="QUERY has 2 rows, but PASSAGE has 3"):
            await client.infer("flat_pairs", inputs)
        rows: list[tuple[str, str | None]] = [("the fox", "a dog runs"), ("cat", "bird")]
        inputs = {
            "QUERY": texts("the fox", "cat").ravel(),
            "PASSAGE": texts("a dog runs", "bird").ravel(),
        }
        check_tokens(await client.infer("flat_pairs", inputs), rows, "longest_first")


@pytest.mark.parametrize(
    ("model", "shape"), [("flat", (3,)), ("row", (1, 3)), ("column", (3, 1)), ("three", (3,))]
)
async def test_client_shapes_without_batching(
    server: LocalTriton, model: str, shape: tuple[int, ...]
) -> None:
    rows = ["the fox e\u0301 🦊", "", "a dog sleeps near the old river and sings very far"]
    async with TritonClient(server.grpc_address) as client:
        answer = await client.infer(model, {"QUERY": texts(*rows).reshape(shape)})
    check_tokens(answer, [(row, None) for row in rows], "longest_first")


async def test_no_rows_are_an_error(server: LocalTriton) -> None:
    async with TritonClient(server.grpc_address) as client:
        with pytest.raises(RejectedError, match="QUERY has no rows; send at least one text"):
            await client.infer("flat", {"QUERY": np.zeros((0,), np.object_)})
        with pytest.raises(
            RejectedError, match=r"x has shape \[0, 3\], expected \[rows, 3\]; it has no elements"
        ):
            await client.infer("flat_classes", {"x": np.zeros((0, 3), np.float32)})


def expected_probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def check_classes(answer: dict[str, np.ndarray], logits: np.ndarray) -> None:
    expected = expected_probabilities(logits)
    np.testing.assert_allclose(answer["PROBABILITIES"], expected, rtol=1e-5)
    order = np.argsort(-expected, axis=-1, kind="stable")[..., :2]
    assert (
        answer["LABEL"].tolist()
        == np.array([label.encode() for label in LABELS], dtype=object)[order].tolist()
    )
    np.testing.assert_allclose(
        answer["SCORE"], np.take_along_axis(expected, order, axis=-1), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("model", "dtype"), [("fp16", np.float16), ("fp32", np.float32), ("fp64", np.float64)]
)
async def test_number_types(server: LocalTriton, model: str, dtype: type) -> None:
    logits = np.array([[0.5, -np.inf, 1.5], [2, 1, 0]], dtype)
    async with TritonClient(server.grpc_address) as client:
        check_classes(await client.infer(model, {"x": logits}), logits)
        for bad in ([[np.nan, 0, 0]], [[np.inf, 0, 0]], [[-np.inf] * 3]):
            with pytest.raises(
                RejectedError, match="row 0: the model's output x contains NaN or infinity"
            ):
                await client.infer(model, {"x": np.array(bad, dtype)})


async def test_bf16(server: LocalTriton) -> None:
    """Numbers that BF16 holds exactly."""
    logits = np.array([[0.5, -np.inf, 1.5], [2, -1.25, 0]], np.float32)
    async with TritonClient(server.grpc_address) as client:
        check_classes(await client.infer("bf16", {"x": logits.astype(ml_dtypes.bfloat16)}), logits)
        with pytest.raises(
            RejectedError, match="row 1: the model's output x contains NaN or infinity"
        ):
            await client.infer(
                "bf16", {"x": np.array([[0, 0, 0], [0, np.nan, 0]], ml_dtypes.bfloat16)}
            )


@pytest.mark.parametrize(("model", "shape"), [("tagger", (2, 5, 3)), ("flat_classes", (4, 3))])
async def test_token_level_and_unbatched_classes(
    server: LocalTriton, model: str, shape: tuple[int, ...]
) -> None:
    logits = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    async with TritonClient(server.grpc_address) as client:
        check_classes(await client.infer(model, {"x": logits}), logits)


async def test_optional_inputs_and_small_types_of_a_graph(server: LocalTriton) -> None:
    x, flag = np.array([[1, 2]], np.float16), np.array([[True]])
    async with TritonClient(server.grpc_address) as client:
        without, given = await asyncio.gather(
            client.infer("optional", {"x": x, "flag": flag}),
            client.infer("optional", {"x": x, "flag": ~flag, "scale": np.array([[3]], np.float16)}),
        )
    assert (without["y"].tolist(), without["odd"].tolist()) == ([[10, 20]], [[False]])
    assert (given["y"].tolist(), given["odd"].tolist()) == ([[3, 6]], [[True]])
    assert (given["y"].dtype, given["odd"].dtype) == (np.float16, np.bool_)


async def test_an_answer_per_token_of_every_client(tmp_path: Path) -> None:
    """A tagger.

    Tokens of any number per request, ragged all the way, and the labels of each row's own tokens.
    """
    pipelines.write_pipeline(tmp_path)
    tags = [f"tag{number}" for number in range(tinymodel.WIDTH)]
    outputs = [
        tensor("PROBABILITIES", "TYPE_FP32", f"-1, {tinymodel.WIDTH}"),
        tensor("LABEL", "TYPE_STRING", "-1, 1"),
    ]
    hidden = tensor("hidden", "TYPE_FP32", f"-1, {tinymodel.WIDTH}")
    parameters = {"type": "Softmax", "input": "hidden", "labels": json.dumps(tags)}
    config = pipelines.config("tags", [hidden], outputs, parameters, ragged=True)
    config = config.replace(
        "dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 100000 }"
    )  # waits for company
    write_model(tmp_path, "tags", config, {"model.py": runtime.source("postprocess")})
    both = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    steps = [
        (pipelines.TOKENIZER, {"TEXT": "TEXT"}, both),
        (pipelines.MODEL, both, {"hidden": "hidden"}),
        ("tags", {"hidden": "hidden"}, {"PROBABILITIES": "PROBABILITIES", "LABEL": "LABEL"}),
    ]
    ensemble = pipelines.ensemble("TEXT", outputs, steps).replace(
        f'name: "{pipelines.ENSEMBLE}"', 'name: "tagging"'
    )
    write_model(tmp_path, "tagging", ensemble)
    random = np.random.default_rng(9)
    with triton_server(tmp_path, ["tagging"]) as server:
        async with TritonClient(server.grpc_address) as client:

            async def ask(rows: list[str]) -> None:
                answer = await client.infer("tagging", {"TEXT": texts(*rows)})
                tokens = [tinymodel.tokenizer(baked_in=False).encode(row).ids for row in rows]
                assert answer["PROBABILITIES"].shape == (
                    len(rows),
                    max(map(len, tokens)),
                    tinymodel.WIDTH,
                )
                for i, ids in enumerate(tokens):
                    expected = expected_probabilities(tinymodel.encode(np.array(ids)))
                    np.testing.assert_allclose(
                        answer["PROBABILITIES"][i, : len(ids)], expected, atol=1e-5
                    )
                    assert answer["LABEL"][i, : len(ids), 0].tolist() == [
                        tags[best].encode() for best in expected.argmax(axis=1)
                    ]

            batches = [
                [
                    " ".join(random.choice(tinymodel.WORDS, size=random.integers(0, 20)))
                    for _ in range(rows)
                ]
                for rows in (1, 2, 1, 5, 1, 3, 1, 1)
            ]
            await asyncio.gather(*(ask(rows) for rows in batches * 2))
            (statistics,) = await client.statistics("tags")
    assert statistics.execution_count < 2 * len(batches), "the requests were not in company"
