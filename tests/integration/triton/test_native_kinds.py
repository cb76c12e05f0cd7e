"""Many kinds of tokenizer in the native tokenizer.

The reference is direct calls of the tokenizers library, one text or pair at a time.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.support.python_backend import texts
from tests.support.testserver import NativeModel, error_of, outputs_of
from tests.support.tokenizerkinds import MAKES, OUTPUTS, PLACES, TEXT, Make
from triton_pipelines.loader.tokenizer_files import KNOWN_IDS, check

pytestmark = pytest.mark.integration

ADDED = {"special": False, "lstrip": False, "rstrip": False, "single_word": False}


def _start(
    folder: Path, made: Tokenizer | None, outputs: dict[str, str], pairs: bool, **parameters: str
) -> NativeModel:
    (folder / "1").mkdir(exist_ok=True)
    if made is not None:
        made.save(str(folder / "1/tokenizer.json"))
    names = ["TEXT", "OTHER"] if pairs else ["TEXT"]
    config = {
        "max_batch_size": 64,
        "input": [{"name": name, "data_type": "TYPE_STRING", "dims": [1]} for name in names],
        "output": [{"name": name, "data_type": "TYPE_INT64", "dims": [-1]} for name in outputs],
    }
    values = {
        "outputs": json.dumps(outputs),
        **({"text_pair": "OTHER"} if pairs else {}),
        **parameters,
    }
    return NativeModel(
        folder, config, {f"tritonpipe.{key}": value for key, value in values.items()}
    )


def _expected(made: Tokenizer, row: tuple[str, ...], special: bool) -> dict[str, Any] | None:
    """What the library says of a text or pair alone; None where it refuses it."""
    try:
        one = made.encode(*row, add_special_tokens=special)
    except Exception:
        return None
    if not one.ids:
        return {"InputIds": [0], "TokenTypeIds": [0], "SpecialTokensMask": [1], "Offsets": [(0, 0)]}
    return {
        "InputIds": one.ids,
        "TokenTypeIds": one.type_ids,
        "SpecialTokensMask": one.special_tokens_mask,
        "Offsets": one.offsets,
    }


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    make=MAKES,
    outputs=st.sampled_from(
        [
            {"input_ids": "InputIds"},
            *(dict(list(OUTPUTS.items())[:kinds]) for kinds in (3, 3, 3, 4, 6)),
        ]
    ),
    pairs=st.sampled_from([False, False, False, True]),
    special=st.booleans(),
    truncation=st.sampled_from(["LongestFirst", "OnlyFirst", "OnlySecond"]),
    max_length=st.sampled_from([5, 12, 400]),
    batches=st.lists(
        st.lists(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
)
def test_every_row_is_what_the_library_says_of_it_alone(
    tmp_path: Path,
    make: Make,
    outputs: dict[str, str],
    pairs: bool,
    special: bool,
    truncation: str,
    max_length: int,
    batches: list[list[list[tuple[str, str]]]],
) -> None:
    truncation = "OnlyFirst" if truncation == "OnlySecond" and not pairs else truncation
    made = make.build()
    parameters = {
        "special_tokens": "Enabled" if special else "Disabled",
        "truncation": truncation,
        "max_length": str(max_length),
    }
    model = _start(tmp_path, made, outputs, pairs, **parameters)
    alone = Tokenizer.from_file(str(tmp_path / "1/tokenizer.json"))
    alone.no_padding()
    alone.enable_truncation(
        max_length,
        strategy={
            "LongestFirst": "longest_first",
            "OnlyFirst": "only_first",
            "OnlySecond": "only_second",
        }[truncation],
    )
    for batch in (*batches, *batches):
        asked = []
        for rows in batch:
            fed = {"TEXT": texts(*(row[0] for row in rows))}
            other = {"OTHER": texts(*(row[1] for row in rows))} if pairs else {}
            asked.append(fed | other)
        for response, rows in zip(model.execute(asked), batch, strict=True):
            wanted = [_expected(alone, row if pairs else row[:1], special) for row in rows]
            if any(row is None for row in wanted):
                error_of(response)
                continue
            arrays = outputs_of(response)
            longest = max(len(row["InputIds"]) for row in wanted if row is not None)
            for number, row in enumerate(row for row in wanted if row is not None):
                length = len(row["InputIds"])
                for name, kind in outputs.items():
                    if kind == "Lengths":
                        assert arrays[name][number].tolist() == [length]
                    elif kind == "AttentionMask":
                        assert arrays[name][number].tolist() == [1] * length + [0] * (
                            longest - length
                        )
                    else:
                        assert arrays[name][number, :length].tolist() == [
                            list(item) if kind == "Offsets" else item for item in row[kind]
                        ], (
                            kind,
                            rows,
                        )
                        assert arrays[name].shape[1] == longest


def _grown(folder: Path, known: int | None, special_tokens: str = "Enabled") -> NativeModel:
    """Return a tokenizer with two special tokens beyond its vocabulary.

    The model knows ``known`` ids.
    """
    made = Make("pieces", "bert", None, True, True, "bert", "types", (), 100).build()
    made.add_special_tokens(["<image>", "<video>"])
    (folder / "1").mkdir(exist_ok=True)
    if known is not None:
        (folder / "1" / KNOWN_IDS).write_text(json.dumps({"ids": known}))
    return _start(
        folder,
        made,
        {"input_ids": "InputIds", "attention_mask": "AttentionMask"},
        False,
        max_length="32",
        special_tokens=special_tokens,
    )


@pytest.mark.parametrize("padding_together", [True, False])
def test_a_token_that_the_model_does_not_know_fails_its_request_alone(
    tmp_path: Path, padding_together: bool
) -> None:
    model = _grown(tmp_path, len(PLACES) + 1)
    lone = "the new york" if padding_together else "the"
    batch = [
        ("the new", lone),
        ("the", "new <video> the", "<video>"),
        (lone, "new york the"),
        ("the <image>",),
        ("<video>",),
    ]
    for _ in range(2):  # new words, and known ones
        good, wrong, other, known, first = model.execute([{"TEXT": texts(*rows)} for rows in batch])
        assert error_of(wrong).message == (
            f"row 1 of TEXT contains the token <video> (id {len(PLACES) + 1}), which the "
            "model does not know; remove this token from the text"
        )
        assert error_of(first).message.startswith("row 0 of TEXT contains the token <video>")
        the, new, york = (PLACES[word] for word in ("the", "new", "york"))
        assert outputs_of(good)["input_ids"][0].tolist()[:4] == [2, the, new, 3]
        assert [row[row > 3].tolist() for row in outputs_of(other)["input_ids"]] == [
            [the, new, york] if padding_together else [the],
            [new, york, the],
        ]
        assert len(PLACES) in outputs_of(known)["input_ids"]


def test_the_first_token_of_a_row_is_that_rows(tmp_path: Path) -> None:
    model = _grown(tmp_path, len(PLACES), "Disabled")
    good, wrong = model.execute(
        [{"TEXT": texts(*rows)} for rows in (["the new"], ["york", "<image>"])]
    )
    outputs_of(good)
    assert error_of(wrong).message.startswith("row 1 of TEXT contains the token <image>")


def test_a_model_that_knows_all_tokens_refuses_none(tmp_path: Path) -> None:
    model = _grown(tmp_path, None)
    assert (
        len(PLACES) + 1 in outputs_of(model.execute([{"TEXT": texts("<video>")}])[0])["input_ids"]
    )


GROWTH = """
import resource, sys
from pathlib import Path
import numpy as np
from tests.support.python_backend import texts
from tests.support.testserver import outputs_of
from tests.integration.triton.test_native_kinds import Make, OUTPUTS, _start
made = Make("pieces", "bert", None, True, True, "bert", "types", (), 100).build()
model = _start(Path(sys.argv[1]), made, dict(list(OUTPUTS.items())[:3]), False, max_length="128")
number = 0
def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20
def ask(times):
    global number
    for _ in range(times):
        rows = []
        for _ in range(16):
            # One word in ten was never there, in its longest form that is kept.
            long = ["\\U0001f642" * 20 + f"{number + word:012d}" for word in range(20)]
            rows.append(" ".join(["the new york hello the new york the new"] * 20 + long))
            number += 20
        (answer,) = model.execute([{"TEXT": texts(*rows)}])
        assert len(outputs_of(answer)["input_ids"]) == 16
ask(250)  # 80 000 words: the memory is full, and has forgotten
full = resident()
ask(500)
print(number, full, resident())
"""


def test_texts_of_ever_new_words_fill_no_memory(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    environment = {"PYTHONPATH": f"{root}:{root / 'operator'}", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    words, full, after = map(int, done.stdout.split())
    assert words == 240_000
    assert after - full < 24, (
        f"{full} MiB when the memory was full, {after} MiB after twice as many new words again"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {
                "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True},
                "added_tokens": [ADDED | {"id": 900, "content": "\n", "normalized": True}],
            },
            "its normalizer turns the added token",
        ),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
                    "pair": [{"Sequence": {"id": id, "type_id": 0}} for id in "AB"],
                    "special_tokens": {},
                }
            },
            "its post_processor inserts the text 2 times, but the text must occur once; save it"
            " with a template such as [CLS] $A [SEP]",
        ),
        (
            {
                "model": {
                    "type": "WordPiece",
                    "unk_token": "a",
                    "continuing_subword_prefix": "##",
                    "max_input_chars_per_word": 1001,
                    "vocab": {"a": 0},
                }
            },
            "its model sets max_input_chars_per_word to 1001, more than the 1000 allowed; set it to"
            " at most 1000",
        ),
    ],
    ids=["empty added token", "repeated text", "long words"],
)
def test_the_loader_and_the_step_refuse_the_same_files(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    made = json.loads(Tokenizer(WordLevel({"a": 0}, unk_token="a")).to_str()) | change
    (tmp_path / "1").mkdir()
    file = tmp_path / "1/tokenizer.json"
    file.write_text(json.dumps(made), encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(says)):
        check(file)
    with pytest.raises(ValueError, match=re.escape(f"tokenizer.json: {says}")):
        _start(tmp_path, None, {"ids": "InputIds"}, pairs=False)
