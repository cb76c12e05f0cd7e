"""The native tokenizer on pairs of texts.

The reference is direct calls of the tokenizers library, one pair at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import (
    BertProcessing,
    ByteLevel,
    RobertaProcessing,
    Sequence,
    TemplateProcessing,
)

from tests.support import tinymodel
from tests.support.python_backend import TritonError, texts
from tests.support.testserver import NativeModel, error_of, outputs_of
from tests.support.tokenizerkinds import OUTPUTS
from tests.support.tokenizeroracle import STRATEGIES

pytestmark = pytest.mark.integration
MAX_LENGTH = 12
KINDS = {kind.lower(): kind for kind in OUTPUTS.values()}


def start(
    folder: Path,
    max_batch_size: int = 64,
    kinds: dict[str, str] = KINDS,
    inputs: tuple[str, ...] = ("QUERY", "PASSAGE"),
    **parameters: str,
) -> NativeModel:
    config = {
        "max_batch_size": max_batch_size,
        "input": [{"name": name, "data_type": "TYPE_STRING", "dims": [1]} for name in inputs],
        "output": [{"name": name, "data_type": "TYPE_INT64", "dims": [-1]} for name in kinds],
    }
    values = {
        "text": "QUERY",
        "text_pair": "PASSAGE",
        "max_length": str(MAX_LENGTH),
        "outputs": json.dumps(kinds),
        **parameters,
    }
    return NativeModel(
        folder, config, {f"tritonpipe.{key}": value for key, value in values.items()}
    )


def request(*pairs: tuple[str | bytes, str | bytes]) -> dict[str, np.ndarray]:
    return {
        "QUERY": texts(*(pair[0] for pair in pairs)),
        "PASSAGE": texts(*(pair[1] for pair in pairs)),
    }


def reference(pair: tuple[str, str], special: bool, strategy: str = "longest_first") -> Any:
    """The library's own answer for one pair; an exception where it has none."""
    plain = tinymodel.tokenizer(baked_in=False)
    plain.enable_truncation(MAX_LENGTH, strategy=strategy)
    return plain.encode(*pair, add_special_tokens=special)


words = st.lists(
    st.sampled_from((*tinymodel.WORDS, "Unknown", "ü", "🦊", "e\u0301")), max_size=14
).map(" ".join)
pairs_strategy = st.lists(
    st.lists(st.tuples(words, words), min_size=1, max_size=4), min_size=1, max_size=5
)


@pytest.mark.proves("spec.tokenizer.truncation", "behaviour")
@settings(deadline=None, max_examples=150)
@given(batches=pairs_strategy, truncation=st.sampled_from(tuple(STRATEGIES)), special=st.booleans())
def test_every_pair_is_tokenized_as_alone(
    folder: Path, batches: list[list[tuple[str, str]]], truncation: str, special: bool
) -> None:
    model = start(
        folder,
        truncation=truncation,
        padding="Ragged",
        special_tokens="Enabled" if special else "Disabled",
    )
    responses = model.execute([request(*pairs) for pairs in batches])
    for response, pairs in zip(responses, batches, strict=True):
        try:
            expected = [reference(pair, special, STRATEGIES[truncation]) for pair in pairs]
        except Exception:
            # The library refuses a pair whose other text alone fills the length.
            assert f"truncation {truncation} shortens" in error_of(response).message
            continue
        arrays = outputs_of(response)
        for i, encoding in enumerate(expected):
            length = max(len(encoding), 1)
            assert arrays["lengths"][i].tolist() == [length]
            assert arrays["attentionmask"][i].sum() == length
            if len(encoding):
                assert arrays["inputids"][i, :length].tolist() == encoding.ids
                assert arrays["tokentypeids"][i, :length].tolist() == encoding.type_ids
                assert (
                    arrays["specialtokensmask"][i, :length].tolist() == encoding.special_tokens_mask
                )
                assert [
                    tuple(pair) for pair in arrays["offsets"][i, :length].tolist()
                ] == encoding.offsets
            assert not arrays["inputids"][i, length:].any()
            assert not arrays["tokentypeids"][i, length:].any()


def test_an_example_by_hand(folder: Path) -> None:
    """[CLS] the fox [SEP] a big dog [SEP], and a shorter pair padded to it."""
    (response,) = start(folder).execute([request(("the fox", "A big dog"), ("cat", "bird"))])
    ids = {word: 4 + i for i, word in enumerate(tinymodel.WORDS)}
    assert {name: array.tolist() for name, array in outputs_of(response).items()} == {
        "inputids": [
            [2, ids["the"], ids["fox"], 3, ids["a"], ids["big"], ids["dog"], 3],
            [2, ids["cat"], 3, ids["bird"], 3, 0, 0, 0],
        ],
        "attentionmask": [[1] * 8, [1, 1, 1, 1, 1, 0, 0, 0]],
        "tokentypeids": [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0]],
        "specialtokensmask": [[1, 0, 0, 1, 0, 0, 0, 1], [1, 0, 1, 0, 1, 1, 1, 1]],
        "offsets": [
            [[0, 0], [0, 3], [4, 7], [0, 0], [0, 1], [2, 5], [6, 9], [0, 0]],
            [[0, 0], [0, 3], [0, 0], [0, 4], [0, 0], [0, 0], [0, 0], [0, 0]],
        ],
        "lengths": [[8], [5]],
    }


LONG = "fox " * 30


@pytest.mark.parametrize(
    ("truncation", "bad", "message"),
    [
        (
            "Refuse",
            (LONG, "a dog"),
            "row 1 of QUERY and PASSAGE has 35 tokens, but at most 12 tokens are allowed; "
            "shorten the text",
        ),
        (
            "OnlyFirst",
            ("a dog", LONG),
            "row 1: PASSAGE has 30 tokens, which with 3 special tokens leaves no room for "
            "QUERY within the maximum of 12, and truncation OnlyFirst shortens only QUERY; "
            "shorten PASSAGE",
        ),
        (
            "OnlySecond",
            (LONG, "a dog"),
            "row 1: QUERY has 30 tokens, which with 3 special tokens leaves no room for "
            "PASSAGE within the maximum of 12, and truncation OnlySecond shortens only "
            "PASSAGE; shorten QUERY",
        ),
    ],
)
def test_a_pair_that_cannot_be_cut_fails_alone(
    folder: Path, truncation: str, bad: tuple[str, str], message: str
) -> None:
    model = start(folder, truncation=truncation)
    fine = (
        [("a cat", "the dog"), ("fox " * 4, "dog " * 4)]
        if truncation == "Refuse"
        else [bad[::-1], ("a cat", "the dog")]
    )
    if truncation == "Refuse":
        fine.pop()
    first, refused, last = model.execute(
        [request(*fine), request(("a", "b"), bad), request(("fox", "dog"))]
    )
    assert error_of(refused).message == message
    assert error_of(refused).code == TritonError.INVALID_ARG
    strategy = STRATEGIES.get(truncation, "longest_first")
    for response, pairs in ((first, fine), (last, [("fox", "dog")])):
        for row, pair in zip(outputs_of(response)["inputids"].tolist(), pairs, strict=True):
            expected = reference(pair, True, strategy).ids
            assert row == expected + [0] * (len(row) - len(expected))
    # The next call cuts as before.
    (again,) = model.execute([request(fine[0])])
    assert outputs_of(again)["lengths"].tolist() == [[len(reference(fine[0], True, strategy))]]


def test_a_wrong_request_fails_alone(folder: Path) -> None:
    model = start(folder)
    wrong = {
        "QUERY has 2 rows, but PASSAGE has 3; send the same number of rows in both": {
            "QUERY": texts("a", "b"),
            "PASSAGE": texts("a", "b", "c"),
        },
        "PASSAGE is missing": {"QUERY": texts("a")},
        "row 1 of PASSAGE is not valid UTF-8": {
            "QUERY": texts("a", "b"),
            "PASSAGE": texts("a", b"\xc3\x28"),
        },
        "row 0 of QUERY is not valid UTF-8": {"QUERY": texts(b"\xff"), "PASSAGE": texts("a")},
        "PASSAGE has no rows": {"QUERY": texts("a"), "PASSAGE": texts()},
        "PASSAGE has shape [1, 2], expected [rows, 1]": {
            "QUERY": texts("a"),
            "PASSAGE": np.array([[b"a", b"b"]], dtype=np.object_),
        },
    }
    *refused, good = model.execute([*wrong.values(), request(("the fox", "a dog"))])
    for response, fragment in zip(refused, wrong, strict=True):
        assert fragment in error_of(response).message
        assert error_of(response).code == TritonError.INVALID_ARG
    assert outputs_of(good)["inputids"].tolist() == [reference(("the fox", "a dog"), True).ids]


def test_a_text_that_breaks_the_tokenizer_again_fails_alone(tmp_path: Path) -> None:
    """Use a vocabulary without a token for unknown words.

    Searching for the cause runs into the same error.
    """
    (tmp_path / "1").mkdir()
    tokenizer = Tokenizer(models.WordLevel({"fox": 0, "dog": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "1" / "tokenizer.json"))
    model = start(tmp_path, truncation="OnlyFirst")
    first, second = model.execute([request(("unheard", "dog")), request(("fox", "dog"))])
    assert "Missing [UNK] token" in error_of(first).message
    assert outputs_of(second)["inputids"].tolist() == [[0, 1]]


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 1)], ids=str)
def test_without_batching_every_element_is_a_row(folder: Path, shape: tuple[int, ...]) -> None:
    inputs = {
        "QUERY": texts("a", "the fox").reshape(shape),
        "PASSAGE": texts("dog", "cat").reshape(shape),
    }
    (response,) = start(folder, max_batch_size=0).execute([inputs])
    arrays = outputs_of(response)
    assert {name: array.shape for name, array in arrays.items()} == {
        "inputids": (2, 6),
        "attentionmask": (2, 6),
        "tokentypeids": (2, 6),
        "specialtokensmask": (2, 6),
        "offsets": (2, 6, 2),
        "lengths": (2, 1),
    }
    assert arrays["inputids"][1].tolist() == reference(("the fox", "cat"), True).ids


@pytest.mark.parametrize(
    ("inputs", "parameters", "fragment"),
    [
        (("QUERY",), {}, "exactly two inputs, QUERY and PASSAGE of TYPE_STRING"),
        (
            ("QUERY", "PASSAGE"),
            {"text_pair": "TITLE"},
            "exactly two inputs, QUERY and TITLE of TYPE_STRING",
        ),
        (
            ("QUERY",),
            {"text_pair": "QUERY"},
            "tritonpipe.text_pair: QUERY is also tritonpipe.text",
        ),
        (
            ("QUERY", "PASSAGE"),
            {"max_length": "3"},
            "tritonpipe.max_length: 3 leaves no room for text next to 3 special tokens",
        ),
        (
            ("QUERY", "PASSAGE"),
            {"truncation": "First"},
            "tritonpipe.truncation: 'First' is not one of LongestFirst, OnlyFirst, ",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_at_load(
    folder: Path, inputs: tuple[str, ...], parameters: dict[str, str], fragment: str
) -> None:
    with pytest.raises(ValueError) as caught:
        start(folder, inputs=inputs, **parameters)
    assert fragment in str(caught.value)


def test_second_texts_have_their_type_without_a_post_processor(tmp_path: Path) -> None:
    made = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "1").mkdir()
    made.save(str(tmp_path / "1/tokenizer.json"))
    model = start(tmp_path, kinds={"ids": "InputIds", "types": "TokenTypeIds"})
    (response,) = model.execute([request(("a b", "b"), ("a", "b a"))])
    assert outputs_of(response)["types"].tolist() == [[0, 0, 1], [0, 1, 1]]


def template(pair: str, single: str = "$A") -> TemplateProcessing:
    return TemplateProcessing(single=single, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])


def save(path: Path, post_processor: Any) -> Tokenizer:
    """Write a model version whose tokenizer has this post-processor."""
    made = tinymodel.tokenizer(baked_in=False)
    made.post_processor = post_processor
    (path / "1").mkdir()
    made.save(str(path / "1" / "tokenizer.json"))
    return made


BERT = BertProcessing(("[SEP]", 3), ("[CLS]", 2))


@pytest.mark.parametrize(
    "processor",
    [
        pytest.param(template("$B:1 [SEP] $A"), id="the second text in front"),
        pytest.param(template("$A $B"), id="no special token"),
        pytest.param(RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)), id="two separators"),
        pytest.param(
            Sequence([ByteLevel(), template("[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS] $A [SEP]")]),
            id="bytes, then a template",
        ),
        # The library takes special tokens for texts of their own, or for one of the pair's, where
        # another step follows the template.
        pytest.param(
            Sequence([template("[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS] $A [SEP]"), ByteLevel()]),
            id="a template, then bytes",
        ),
        pytest.param(Sequence([BERT, ByteLevel()]), id="BERT's, then bytes"),
        pytest.param(Sequence([BERT, BERT]), id="BERT's twice"),
    ],
)
@pytest.mark.parametrize("truncation", ["LongestFirst", "OnlySecond"])
@pytest.mark.parametrize("special", [True, False])
def test_odd_templates(tmp_path: Path, processor: Any, truncation: str, special: bool) -> None:
    made = save(tmp_path, processor)
    pairs = [
        ("the fox runs", "a dog " * 9),
        ("a cat", "a bird"),
        ("a quick red fox", "the old dog " * 4),
        ("", "a dog " * 9),
    ]
    model = start(
        tmp_path, truncation=truncation, special_tokens="Enabled" if special else "Disabled"
    )
    (response,) = model.execute([request(*pairs)])
    made.enable_truncation(MAX_LENGTH, strategy=STRATEGIES[truncation])
    for row, pair in enumerate(pairs):
        expected = made.encode(*pair, add_special_tokens=special)
        arrays = {
            name: array[row, : len(expected)].tolist()
            for name, array in outputs_of(response).items()
        }
        assert (arrays["inputids"], arrays["tokentypeids"]) == (expected.ids, expected.type_ids)
        assert arrays["offsets"] == [list(offset) for offset in expected.offsets]


TWICE = template("[CLS] $A [SEP] $B [SEP] $A", "[CLS] $A [SEP]")


WAY_OUT = "save it with a template such as [CLS] $A [SEP] $B:1 [SEP]:1"
ONCE = (
    f"but pairs can be truncated only if each text occurs once; {WAY_OUT}, "
    "or set truncation to Refuse"
)


@pytest.mark.parametrize("special_tokens", ["Enabled", "Disabled"])
@pytest.mark.parametrize(
    ("processor", "says"),
    [
        (TWICE, f"inserts the first text 2 times, {ONCE}"),
        (template("$B $A $B"), f"inserts the second text 2 times, {ONCE}"),
        (Sequence([TWICE, ByteLevel()]), f"inserts the first text 2 times, {ONCE}"),
    ],
)
def test_a_template_that_cannot_be_cut_is_refused_at_load(
    tmp_path: Path, processor: Any, says: str, special_tokens: str
) -> None:
    save(tmp_path, processor)
    with pytest.raises(ValueError) as caught:
        start(tmp_path, special_tokens=special_tokens)
    assert str(caught.value) == f"tokenizer.json: its post_processor {says}"


def test_a_template_that_breaks_the_library_is_refused_at_load(tmp_path: Path) -> None:
    """With special tokens; without them the same one does."""
    save(tmp_path, Sequence([template("$A [SEP] $B"), template("$A [SEP] $B")]))
    with pytest.raises(ValueError) as caught:
        start(tmp_path)
    assert (
        str(caught.value)
        == "tokenizer.json: its post_processor does not combine two texts (not yet implemented): "
        f"{WAY_OUT}"
    )
    (response,) = start(tmp_path, kinds={"ids": "InputIds"}, special_tokens="Disabled").execute(
        [request(("fox", "dog"))]
    )
    assert outputs_of(response)["ids"].tolist() == [[6, 7]]


def test_a_template_that_is_never_cut_may_have_a_text_twice(tmp_path: Path) -> None:
    made = save(tmp_path, TWICE)
    config = {
        "max_batch_size": 8,
        "input": [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]}],
    }
    single = NativeModel(
        tmp_path,
        config,
        {"tritonpipe.max_length": "4", "tritonpipe.outputs": '{"ids": "InputIds"}'},
    )
    (response,) = single.execute([{"TEXT": texts("the quick red fox")}])
    assert outputs_of(response)["ids"].tolist() == [
        [2, *made.encode("the quick", add_special_tokens=False).ids, 3]
    ]
    short, long = start(tmp_path, kinds={"ids": "InputIds"}, truncation="Refuse").execute(
        [request(("fox", "dog")), request(("fox " * 6, "dog"))]
    )
    assert outputs_of(short)["ids"].tolist() == [made.encode("fox", "dog").ids]
    assert error_of(long).message == (
        "row 0 of QUERY and PASSAGE has 16 tokens, but at most 12 tokens are allowed; "
        "shorten the text"
    )


MEMORY = """
import resource, sys
from pathlib import Path
from tests.integration.triton.test_native_pairs import outputs_of, request, start
length, first, second = map(int, sys.argv[2:5])
model = start(
    Path(sys.argv[1]), kinds={"ids": "InputIds"}, max_length=str(length), truncation=sys.argv[5]
)
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (400 << 20), -1))
(response,) = model.execute([request(("fox " * first, "dog " * second))])
ids = outputs_of(response)["ids"][0].tolist()
print(ids.count(6), ids.count(7), len(ids))
"""


@pytest.mark.parametrize(
    ("truncation", "first", "kept"),
    [("LongestFirst", 20_000, (254, 255)), ("OnlySecond", 508, (508, 1))],
)
@pytest.mark.parametrize(
    "processor",
    [None, Sequence([BERT, ByteLevel()])],
    ids=["of its own", "that the library loses track of"],
)
def test_two_long_texts_fill_no_memory(
    tmp_path: Path, processor: Any, truncation: str, first: int, kept: tuple[int, int]
) -> None:
    """The library's own cut keeps every part with every part: gigabytes for a request of 200 kB."""
    save(tmp_path, processor or tinymodel.tokenizer(baked_in=False).post_processor)
    root = Path(__file__).parents[3]
    environment = {"PYTHONPATH": f"{root}:{root / 'operator'}", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-c", MEMORY, str(tmp_path), "512", str(first), "20000", truncation]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr[-1000:]
    assert tuple(map(int, done.stdout.split())) == (*kept, 512)
