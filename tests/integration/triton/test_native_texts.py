"""The native tokenizer against direct calls of the tokenizers library, one text at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import tinymodel
from tests.support.python_backend import TritonError, texts
from tests.support.testserver import NativeModel, error_of, outputs_of
from tests.support.tokenizerkinds import OUTPUTS

pytestmark = pytest.mark.integration

MAX_LENGTH = 12
KINDS = {"input_ids": "InputIds", "attention_mask": "AttentionMask"}
PADDINGS = ("Ragged", "Fixed", "Bucketed", "Longest")


def config(
    outputs: dict[str, str], max_batch_size: int = 64, data_type: str = "TYPE_INT64"
) -> dict[str, Any]:
    return {
        "max_batch_size": max_batch_size,
        "input": [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": name, "data_type": data_type, "dims": [-1]} for name in outputs],
    }


def start(
    folder: Path,
    kinds: dict[str, str] = KINDS,
    data_type: str = "TYPE_INT64",
    max_batch_size: int = 64,
    **parameters: str,
) -> NativeModel:
    values = {"max_length": str(MAX_LENGTH), "buckets": "4,8", **parameters}
    return NativeModel(
        folder,
        config(kinds, max_batch_size, data_type),
        {
            "tritonpipe.outputs": json.dumps(kinds),
            **{f"tritonpipe.{key}": value for key, value in values.items()},
        },
    )


def reference(
    text: str, special_tokens: bool = True, max_length: int | None = MAX_LENGTH
) -> list[int]:
    """Token ids of one text by the library alone."""
    plain = tinymodel.tokenizer(baked_in=False)
    if max_length is not None:
        plain.enable_truncation(max_length)
    return list(plain.encode(text, add_special_tokens=special_tokens).ids)


def unpad(arrays: dict[str, np.ndarray]) -> list[list[int]]:
    """Return the ids of every row that the mask marks.

    Also check that padding is on the right and is the pad token.
    """
    rows = []
    for ids, mask in zip(arrays["input_ids"], arrays["attention_mask"], strict=True):
        length = int(mask.sum())
        assert mask.tolist() == [1] * length + [0] * (len(mask) - length)
        assert not ids[length:].any()
        rows.append(ids[:length].tolist())
    return rows


requests_strategy = st.lists(
    st.lists(
        st.lists(
            st.sampled_from((*tinymodel.WORDS, "Unknown", "ü", "🦊", "[SEP]")), max_size=20
        ).map(" ".join),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.proves("spec.tokenizer.padding", "behaviour")
@pytest.mark.proves("spec.tokenizer.buckets", "behaviour")
@pytest.mark.proves("spec.tokenizer.specialTokens", "behaviour")
@settings(deadline=None, max_examples=60)
@given(batches=requests_strategy, padding=st.sampled_from(PADDINGS), special=st.booleans())
def test_every_row_of_every_request_is_tokenized_as_alone(
    folder: Path, batches: list[list[str]], padding: str, special: bool
) -> None:
    model = start(folder, padding=padding, special_tokens="Enabled" if special else "Disabled")
    responses = model.execute([{"TEXT": texts(*rows)} for rows in batches])
    assert len(responses) == len(batches)
    expected = [[reference(text, special) or [0] for text in rows] for rows in batches]
    widths = {
        "Fixed": lambda own: MAX_LENGTH,
        "Ragged": max,
        "Bucketed": lambda own: next(b for b in (4, 8, MAX_LENGTH) if b >= max(own)),
    }
    longest = max(len(row) for rows in expected for row in rows)
    for response, rows in zip(responses, expected, strict=True):
        arrays = outputs_of(response)
        assert unpad(arrays) == rows
        width = longest if padding == "Longest" else widths[padding]([len(row) for row in rows])
        assert arrays["input_ids"].shape == arrays["attention_mask"].shape == (len(rows), width)


@pytest.mark.proves("spec.tokenizer.outputs[].tensor", "behaviour")
@pytest.mark.proves("spec.tokenizer.outputs[].dataType", "behaviour")
@pytest.mark.parametrize("data_type", ["TYPE_INT32", "TYPE_INT64"])
def test_every_kind_of_output(folder: Path, data_type: str) -> None:
    kinds = {kind.lower(): kind for kind in OUTPUTS.values()}
    model = start(folder, kinds, data_type, padding="Ragged")
    rows = ["the fox", "A große quick dog"]
    (response,) = model.execute([{"TEXT": texts(*rows)}])
    arrays = outputs_of(response)
    assert {array.dtype for array in arrays.values()} == {
        np.dtype(np.int32 if data_type == "TYPE_INT32" else np.int64)
    }
    plain = tinymodel.tokenizer(baked_in=False)
    plain.enable_padding(pad_id=0, pad_token="[PAD]")
    for i, encoding in enumerate(plain.encode_batch(rows)):
        assert arrays["inputids"][i].tolist() == encoding.ids
        assert arrays["attentionmask"][i].tolist() == encoding.attention_mask
        assert arrays["tokentypeids"][i].tolist() == encoding.type_ids
        assert arrays["specialtokensmask"][i].tolist() == encoding.special_tokens_mask
        assert [tuple(pair) for pair in arrays["offsets"][i].tolist()] == encoding.offsets
        assert arrays["lengths"][i].tolist() == [sum(encoding.attention_mask)]


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_wrong_request_fails_alone(folder: Path, padding: str) -> None:
    model = start(folder, padding=padding, truncation="Refuse")
    good = ["the fox runs", "a dog"]
    wrong = {
        "UTF-8": texts("the", b"\xff\xfe"),
        "shape": np.array([[b"a", b"b"]], dtype=np.object_),
        "no rows": texts(),
        "has 32 tokens, but at most 12 tokens are allowed": texts("a dog", "fox " * 30),
    }
    requests = [{"TEXT": array} for array in wrong.values()]
    requests.insert(2, {"TEXT": texts(*good)})
    responses = model.execute(requests)
    assert unpad(outputs_of(responses.pop(2))) == [reference(text) for text in good]
    for response, fragment in zip(responses, wrong, strict=True):
        error = error_of(response)
        assert fragment in error.message
        assert error.code == TritonError.INVALID_ARG
    assert "row 1 of TEXT" in error_of(responses[0]).message
    assert "row 1 of TEXT" in error_of(responses[3]).message


def test_text_without_tokens_has_one_attended_pad_token(folder: Path) -> None:
    kinds = {**KINDS, "lengths": "Lengths", "offsets": "Offsets"}
    model = start(folder, kinds, special_tokens="Disabled")
    (response,) = model.execute([{"TEXT": texts("")}])
    arrays = outputs_of(response)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "input_ids": [[0]],
        "attention_mask": [[1]],
        "lengths": [[1]],
        "offsets": [[[0, 0]]],
    }


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1), (1, 1, 3)], ids=str)
def test_without_batching_every_element_is_a_row(
    folder: Path, shape: tuple[int, ...], padding: str
) -> None:
    kinds = {**KINDS, "offsets": "Offsets", "lengths": "Lengths"}
    rows = ["fox", "a dog", "the quick red fox runs"]
    width = {"Ragged": 7, "Longest": 7, "Bucketed": 8, "Fixed": MAX_LENGTH}[padding]
    (response,) = start(folder, kinds, max_batch_size=0, padding=padding).execute(
        [{"TEXT": texts(*rows).reshape(shape)}]
    )
    arrays = outputs_of(response)
    assert unpad(arrays) == [reference(row) for row in rows]
    assert {name: array.shape for name, array in arrays.items()} == {
        "input_ids": (3, width),
        "attention_mask": (3, width),
        "offsets": (3, width, 2),
        "lengths": (3, 1),
    }
    assert arrays["lengths"].tolist() == [[3], [4], [7]]


def test_without_batching_no_rows_are_an_error(folder: Path) -> None:
    (response,) = start(folder, max_batch_size=0).execute([{"TEXT": np.zeros((0,), np.object_)}])
    assert "TEXT has no rows; send at least one text" in error_of(response).message


def test_only_first_cuts_single_texts(folder: Path) -> None:
    (response,) = start(folder, truncation="OnlyFirst").execute(
        [{"TEXT": texts("fox " * 30, "a dog")}]
    )
    assert unpad(outputs_of(response)) == [reference("fox " * 30), reference("a dog")]


def test_a_reshaped_text_has_no_second_axis(folder: Path) -> None:
    """With dims [1] and reshape [] the model sees [rows]."""
    (response,) = start(folder).execute([{"TEXT": texts("fox", "a dog").reshape(2)}])
    assert unpad(outputs_of(response)) == [reference("fox"), reference("a dog")]


def test_each_output_has_the_type_its_config_declares(folder: Path) -> None:
    made = config(KINDS)
    made["output"][1]["data_type"] = "TYPE_INT32"
    model = NativeModel(folder, made, {"tritonpipe.outputs": json.dumps(KINDS)})
    arrays = outputs_of(model.execute([{"TEXT": texts("a fox")}])[0])
    assert (arrays["input_ids"].dtype, arrays["attention_mask"].dtype) == (np.int64, np.int32)


def test_offsets_count_characters_not_bytes(folder: Path) -> None:
    """Compare offsets with values computed by hand.

    An e with a combining accent is two characters in three bytes, the fox face one in four.
    """
    model = start(folder, {"ids": "InputIds", "offsets": "Offsets"})
    (response,) = model.execute([{"TEXT": texts("caf\u0065\u0301 🦊 fox")}])
    arrays = outputs_of(response)
    assert arrays["offsets"].tolist() == [[[0, 0], [0, 5], [6, 7], [8, 11], [0, 0]]]
    assert arrays["ids"].tolist() == [[2, 1, 1, 4 + tinymodel.WORDS.index("fox"), 3]]


def test_an_absent_text_fails_its_request(folder: Path) -> None:
    bad, good = start(folder).execute([{}, {"TEXT": texts("fox")}])
    assert "TEXT is missing" in error_of(bad).message
    assert unpad(outputs_of(good)) == [reference("fox")]


@pytest.mark.parametrize(
    ("token", "pad_id"),
    [("[PAD]", 9), ("<pad>", 9), ("pad", 9), ("other", 0)],
    ids=["bert", "roberta", "plain", "none known"],
)
def test_pad_token_without_saved_padding(tmp_path: Path, token: str, pad_id: int) -> None:
    tokenizer = tinymodel.Tokenizer(
        tinymodel.WordLevel({"[UNK]": 1, "x": 2, "y": 3, token: 9}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tinymodel.Whitespace()
    (tmp_path / "1").mkdir()
    tokenizer.save(str(tmp_path / "1" / "tokenizer.json"))
    (response,) = start(tmp_path).execute([{"TEXT": texts("x", "x y")}])
    assert outputs_of(response)["input_ids"].tolist() == [[2, pad_id], [2, 3]]


def test_saved_padding_names_the_pad_token(tmp_path: Path) -> None:
    tokenizer = tinymodel.tokenizer(baked_in=False)
    tokenizer.enable_padding(pad_id=5, pad_token="fox", pad_type_id=1)
    (tmp_path / "1").mkdir()
    tokenizer.save(str(tmp_path / "1" / "tokenizer.json"))
    (response,) = start(tmp_path, {"ids": "InputIds", "types": "TokenTypeIds"}).execute(
        [{"TEXT": texts("a", "a a")}]
    )
    assert outputs_of(response)["ids"][0].tolist()[-1] == 5
    assert outputs_of(response)["types"].tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("parameters", "fragment"),
    [
        ({"padding": "Left"}, "tritonpipe.padding: 'Left' is not one of Ragged"),
        ({"truncation": "No"}, "tritonpipe.truncation: 'No'"),
        (
            {"truncation": "OnlySecond"},
            "OnlySecond cuts the second text of a pair, but tritonpipe.text_pair is not set",
        ),
        ({"max_length": "2"}, "leaves no room for text next to 2 special tokens"),
        ({"max_length": "-1"}, "tritonpipe.max_length: '-1' is not a positive number"),
        ({"buckets": "0,4"}, "below 1"),
        (
            {"outputs": '{"ids": "InputIds"}'},
            "the model's outputs are ['attention_mask', 'input_ids']",
        ),
        (
            {"outputs": '{"input_ids": "InputIds", "attention_mask": "Mask"}'},
            "attention_mask is 'Mask'",
        ),
        ({"text": "QUERY"}, "exactly one input, QUERY of TYPE_STRING"),
        ({"tokenizer_file": "model.onnx"}, "model.onnx: cannot be read as a tokenizer"),
        ({"tokenizer_file": "absent.json"}, "absent.json: cannot be read as a tokenizer"),
    ],
)
def test_a_wrong_configuration_is_refused_at_load(
    folder: Path, parameters: dict[str, str], fragment: str
) -> None:
    with pytest.raises(ValueError) as caught:
        start(folder, **parameters)
    assert fragment in str(caught.value)
