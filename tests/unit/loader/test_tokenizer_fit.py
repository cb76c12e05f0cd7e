"""Test that loading a file detects tokens and lengths that it does not accept.

Nothing uncertain is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing

from tests.support.messages import Messages
from tests.support.raggedgraphs import POSITIONS, VOCABULARY, WIDTH, Encoder, Places, as_calls, make
from triton_pipelines.api.loadplan import PlanTokens
from triton_pipelines.loader import tokenizer_fit
from triton_pipelines.loader.onnx_graph.model_runner import Evaluator
from triton_pipelines.loader.tokenizer_files import HighestTokenId, highest_token_id
from triton_pipelines.loader.tokenizer_fit import TokenizerMismatch, find_mismatches

MODEL, TOKENIZER = "hf://org/model", "hf://org/tokenizer"
LAST = HighestTokenId(VOCABULARY - 1, "last")
ENGINES = [Evaluator.ONNX_RUNTIME, Evaluator.REFERENCE]


@pytest.fixture(params=ENGINES)
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tokenizer_fit, "choose_evaluator", lambda weights: request.param)
    return tmp_path / "model.onnx"


def tokens(max_length: int = POSITIONS, *, types: bool = False) -> PlanTokens:
    others = ("token_type_ids",) if types else ()
    return PlanTokens(
        tokenizer="tokenizer/1/tokenizer.json",
        ids=("input_ids",),
        masks=("attention_mask",),
        others=others,
        max_length=max_length,
    )


def found(
    file: Path, known: HighestTokenId = LAST, wanted: PlanTokens | None = None
) -> list[TokenizerMismatch]:
    return list(find_mismatches(file, wanted or tokens(), known, MODEL, TOKENIZER))


def test_a_file_that_takes_all(file: Path) -> None:
    onnx.save(make(Encoder(types=True)), str(file))
    assert found(file, wanted=tokens(types=True)) == []
    assert found(file, HighestTokenId(3, "few"), tokens(5, types=True)) == [], (
        "more rows than tokens are filling"
    )


@pytest.mark.parametrize("change", [lambda model: None, as_calls])
def test_an_id_beyond_the_table(file: Path, change: Callable[[Any], None]) -> None:
    model = make(Encoder())
    change(model)
    onnx.save(model, str(file))
    (misfit,) = found(file, HighestTokenId(VOCABULARY, "[NEW]"))
    assert misfit == TokenizerMismatch(
        "hf://org/tokenizer can emit token ID 50 ([NEW]), but hf://org/model accepts 50 IDs "
        "(0 to 49) for input_ids; use the tokenizer that the model was trained with, or "
        "resize the model's embedding table"
    )


@pytest.mark.parametrize("places", Places)
def test_rows_longer_than_the_positions(file: Path, places: Places) -> None:
    onnx.save(make(Encoder(places=places, types=True)), str(file))
    # What is counted from the mask begins at 1, in a table of two rows more.
    most = POSITIONS + 1 if places is Places.MASK else POSITIONS
    assert found(file, wanted=tokens(most, types=True)) == []
    for wanted in (most + 1, 512):
        (misfit,) = found(file, wanted=tokens(wanted, types=True))
        assert misfit == TokenizerMismatch(
            f"hf://org/model accepts at most {most} tokens per row, but "
            f"spec.tokenizer.maxLength allows {wanted}; set spec.tokenizer.maxLength to at "
            f"most {most}",
            "spec.tokenizer.maxLength",
        )


def test_a_small_table_that_is_cut_to_length_is_not_taken_for_the_positions(file: Path) -> None:
    model = make(Encoder())
    constants = {tensor.name for tensor in model.graph.initializer}
    cut = next(
        node for node in model.graph.node if node.op_type == "Slice" and node.input[0] in constants
    )
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((3, 1), np.float32), "small"))
    model.graph.node.append(
        helper.make_node("Slice", ["small", cut.input[1], cut.input[2], cut.input[1]], ["unused"])
    )
    onnx.save(model, str(file))
    assert found(file) == []


def test_a_buffer_as_long_as_the_table_hides_no_counted_positions(
    file: Path, messages: Messages
) -> None:
    # RoBERTa without token types as an input: they are cut from a buffer that has the two kept rows
    # of the table of positions, too.
    model = make(Encoder(places=Places.MASK, types=True))
    table = next(
        tensor for tensor in model.graph.initializer if tuple(tensor.dims) == (POSITIONS + 2, WIDTH)
    )
    zeros = numpy_helper.from_array(np.zeros((1, table.dims[0]), np.int64), "buffer")
    model.graph.initializer.extend(
        [
            zeros,
            *(
                numpy_helper.from_array(np.array([number], np.int64), f"at{number}")
                for number in (0, 1, 2)
            ),
        ]
    )
    model.graph.node.extend(
        [
            helper.make_node("Shape", ["input_ids"], ["shape"]),
            helper.make_node("Slice", ["shape", "at1", "at2", "at0"], ["length"]),
            helper.make_node("Slice", ["buffer", "at0", "length", "at1"], ["unused"]),
        ]
    )
    onnx.save(model, str(file))
    assert found(file, wanted=tokens(POSITIONS + 1, types=True)) == []
    (misfit,) = found(file, wanted=tokens(POSITIONS + 2, types=True))
    assert str(POSITIONS + 1) in misfit.message
    messages.check(misfit.message)


@pytest.mark.parametrize("places", [Places.SLICED_TABLE, Places.MASK])
def test_rows_that_would_fill_the_memory_are_not_run(
    file: Path, monkeypatch: pytest.MonkeyPatch, places: Places
) -> None:
    lengths = list[int]()
    onnx.save(make(Encoder(places=places)), str(file))
    monkeypatch.setattr(
        tokenizer_fit,
        "open_model",
        lambda path, means: lambda fed: lengths.append(fed["input_ids"].shape[1]) or {},
    )
    assert found(file, wanted=tokens(131_072)) == []
    assert lengths == [2048]


def test_what_does_not_fit_into_memory_is_not_blamed_on_its_length(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(fed: Any) -> Any:
        raise MemoryError

    onnx.save(make(Encoder()), str(file))
    monkeypatch.setattr(tokenizer_fit, "open_model", lambda path, means: run)
    assert found(file, wanted=tokens(512)) == []


def test_what_no_engine_runs_is_not_blamed_on_its_length(file: Path) -> None:
    model = make(Encoder())
    next(node for node in model.graph.node if node.op_type == "Softmax").domain = "nowhere"
    model.opset_import.append(helper.make_opsetid("nowhere", 1))
    onnx.save(model, str(file))
    assert found(file, wanted=tokens(512)) == []


def test_without_an_engine_only_ids_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_fit, "choose_evaluator", lambda weights: Evaluator.NONE)
    onnx.save(make(Encoder()), str(tmp_path / "model.onnx"))
    assert [
        misfit.field
        for misfit in found(
            tmp_path / "model.onnx", HighestTokenId(VOCABULARY + 9, ""), tokens(512)
        )
    ] == [None]


def _padded_with_an_added_token(made: Tokenizer) -> None:
    made.model = WordLevel({"a": 0}, "a")
    made.add_special_tokens(["[B]", "<pad>"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda made: None, HighestTokenId(3, "b")),
        (lambda made: made.add_tokens([AddedToken("[NEW]")]), HighestTokenId(4, "[NEW]")),
        # Gemma 3 of text alone has a table without a row for "<image_soft_token>", which its
        # tokenizer knows as all of the family do.
        (lambda made: made.add_special_tokens(["[A]", "[B]"]), HighestTokenId(3, "b")),
        (lambda made: made.add_special_tokens(["<pad>"]), HighestTokenId(3, "b")),
        (_padded_with_an_added_token, HighestTokenId(2, "<pad>")),
        (lambda made: made.enable_padding(pad_id=70, pad_token="[PAD]"), HighestTokenId(70, "")),
        (
            lambda made: setattr(
                made,
                "post_processor",
                TemplateProcessing(single="$A [X]", special_tokens=[("[X]", 80)]),
            ),
            HighestTokenId(80, ""),
        ),
        (
            lambda made: setattr(
                made,
                "post_processor",
                TemplateProcessing(single="$A", pair="$A [X] $B", special_tokens=[("[X]", 81)]),
            ),
            HighestTokenId(81, ""),
        ),
    ],
    ids=[
        "vocabulary",
        "added",
        "special",
        "special, not used to pad",
        "special, used to pad",
        "padding",
        "template",
        "pairs",
    ],
)
def test_the_highest_id_of_a_tokenizer(
    tmp_path: Path, change: Callable[[Tokenizer], None], expected: HighestTokenId
) -> None:
    made = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    change(made)
    made.save(str(tmp_path / "tokenizer.json"))
    seen = highest_token_id(tmp_path / "tokenizer.json")
    assert (seen.id, seen.token) == (expected.id, expected.token)
    assert seen.highest_written == max(expected.id, *made.get_vocab().values())
