"""Test the terminology check: what it reads and rejects. `make lint` checks the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hack import terminology
from hack.terminology import Rules, read_rules

RULES = read_rules(
    {
        "terms": [
            {"term": "narrow place", "write": "bottleneck"},
            {"term": "beside", "write": "next to"},
            {"term": "look", "pattern": r"\b(?:a|the) look\b", "write": "probe"},
        ],
        "covered": ["."],
        "generated": ["generated/"],
        "allowed": [{"file": "old.md", "term": "beside", "reason": "quotes a message"}],
    }
)


def found(tmp_path: Path, name: str, text: str, rules: Rules = RULES) -> list[tuple[int, str]]:
    """Line and text of the findings in a file."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return [
        (finding.line, finding.found)
        for finding in terminology.check_files([path], rules, tmp_path)
    ]


def test_markdown_prose_is_checked(tmp_path: Path) -> None:
    text = "Fine.\nThe GPU is the Narrow place, beside it\nlook here, a look there\n"
    assert found(tmp_path, "page.md", text) == [
        (2, "Narrow place"),
        (2, "beside"),
        (3, "a look"),
    ]


def test_code_spans_links_and_addresses_are_not_prose(tmp_path: Path) -> None:
    text = "`beside`, ``beside``, [name](beside.md#beside), https://example.com/beside\n"
    assert found(tmp_path, "page.md", text) == []


def test_output_blocks_are_read_when_the_rules_say_so(tmp_path: Path) -> None:
    text = "```text\nbeside\n```\nbeside\n```yaml\nname: x  # beside\n```\n"
    without = read_rules(
        {
            "terms": [{"term": "beside", "write": "next to"}],
            "covered": ["."],
            "output_blocks": False,
        }
    )
    assert [line for line, _ in found(tmp_path, "page.md", text)] == [2, 4, 6]
    assert [line for line, _ in found(tmp_path, "page.md", text, without)] == [4, 6]


def test_only_comments_of_samples_are_checked(tmp_path: Path) -> None:
    text = "name: beside # it stands beside the model\n# beside\nuri: 'x#beside'\n"
    assert [line for line, _ in found(tmp_path, "sample.yaml", text)] == [1, 2]


def test_python_literals_and_docstrings_are_checked_but_no_keys(tmp_path: Path) -> None:
    text = (
        '"""Module.\n\nStored beside the model.\n"""\n'
        "keys = {'beside': 1}\n"
        "message = f'{keys} is the narrow place'\n"
    )
    assert found(tmp_path, "module.py", text) == [(3, "beside"), (6, "narrow place")]


@pytest.mark.parametrize(
    "text",
    [
        "def rows_beside_texts(): ...",
        "class RowsBesideTexts: ...",
        "_BESIDE = 1",
        "f = lambda beside: 1",
        "f.beside = 1",
        "for a, (b, beside) in c: ...",
        "class A:\n    HTTPBeside: int",
    ],
)
def test_names_that_python_defines_are_checked(tmp_path: Path, text: str) -> None:
    ((line, _),) = found(tmp_path, "module.py", text)
    assert line == text.count("\n") + 1


def test_names_that_python_uses_are_not_checked(tmp_path: Path) -> None:
    assert found(tmp_path, "module.py", "other.beside(beside, beside=beside)") == []


def test_the_name_of_a_module_is_checked(tmp_path: Path) -> None:
    assert found(tmp_path, "rows_beside.py", "") == [(1, "rows_beside")]


def test_a_term_may_have_another_expression_for_names(tmp_path: Path) -> None:
    rules = read_rules(
        {
            "terms": [
                {"term": "look", "pattern": "the look", "in_names": r"\blooks?\b", "write": "probe"}
            ],
            "covered": ["."],
        }
    )
    assert found(tmp_path, "module.py", "LOOKS = 'he looks'\nlooking = 1", rules) == [(1, "LOOKS")]


def named(*allowed: dict[str, str]) -> Rules:
    terms = [{"term": "beside", "write": "next to"}]
    return read_rules({"terms": terms, "covered": ["*.py"], "allowed_names": allowed})


def test_a_name_may_be_allowed_in_one_file_or_in_all(tmp_path: Path) -> None:
    allowed = {"name": "beside", "reason": "is stored"}
    assert found(tmp_path, "a.py", "beside = 1", named(allowed)) == []
    assert found(tmp_path, "a.py", "beside = 1", named(allowed | {"file": "a.py"})) == []
    assert found(tmp_path, "b.py", "beside = 1", named(allowed | {"file": "a.py"}))
    assert found(tmp_path, "b.py", "beside_it = 1", named(allowed))


def test_an_allowed_name_that_nothing_defines_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("beside = 1", encoding="utf-8")
    allowed = {"name": "beside", "reason": "is stored"}
    assert terminology.unused_exceptions(named(allowed), tmp_path) == []
    rules = named(allowed | {"file": "b.py"}, {"name": "besides", "reason": "is stored"})
    assert terminology.unused_exceptions(rules, tmp_path) == [
        "b.py: the exception for the name beside is not used; remove it",
        "any file: the exception for the name besides is not used; remove it",
    ]


def test_an_allowed_name_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="exception for the name beside: no reason"):
        named({"name": "beside"})


def test_an_exception_holds_for_its_file_alone(tmp_path: Path) -> None:
    assert found(tmp_path, "old.md", "beside") == []
    assert found(tmp_path, "new.md", "beside") == [(1, "beside")]


def test_generated_files_are_left_out(tmp_path: Path) -> None:
    assert found(tmp_path, "generated/page.md", "beside") == []


def test_an_exception_that_is_not_used_is_reported(tmp_path: Path) -> None:
    assert terminology.unused_exceptions(RULES, tmp_path) == [
        "old.md: the exception for 'beside' is not used; remove it"
    ]


@pytest.mark.parametrize("change", [{"term": "unknown"}, {"reason": ""}], ids=str)
def test_an_exception_needs_a_known_term_and_a_reason(change: dict[str, str]) -> None:
    item = {"file": "old.md", "term": "beside", "reason": "quotes a message"} | change
    with pytest.raises(ValueError, match=r"exception for old\.md"):
        read_rules(
            {
                "terms": [{"term": "beside", "write": "next to"}],
                "covered": [],
                "allowed": [item],
            }
        )


def test_a_term_that_is_listed_twice_is_rejected() -> None:
    term = {"term": "beside", "write": "next to"}
    with pytest.raises(ValueError, match="listed twice: beside"):
        read_rules({"terms": [term, term], "covered": []})


def test_a_covered_place_without_files_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gone names no file"):
        terminology.files_below(["gone"], tmp_path)


# One right and one rejected use of every kind of word with legitimate uses.
@pytest.mark.parametrize(
    ("rejected", "right"),
    [
        ("the next pass writes it", "pass the option, one pass over the data"),
        ("the pods are asked", "the size that is asked for"),
        ("your own tokenizer", "in its own namespace"),
        ("which is taken back", "it comes back, back to the old spec"),
        ("the server goes on serving", "the lamp goes on and off"),
        ("it stands in the queue", "a stub stands for the model"),
        ("results lie in out/", "a lie"),
        ("the promise is kept", "what the API promises"),
        ("ProcessDied", "BackendProcessDied"),
        ("beyond the wall", "wall clock, the wall clock"),
        ("every such layout is no JSON", "there is no JSON, it is no longer needed"),
        ("the judge refuses it", "judge for yourself"),
        ("all but for one", "but for other settings"),
    ],
)
def test_words_with_right_uses_are_matched_narrowly(rejected: str, right: str) -> None:
    rules = terminology.load_rules()
    assert list(terminology.check_texts("page.md", [(1, rejected)], rules))
    assert not list(terminology.check_texts("page.md", [(1, right)], rules))


def test_every_term_matches_itself_or_has_its_own_expression() -> None:
    for term in terminology.load_rules().terms:
        default = rf"\b{re.escape(term.name)}\b"
        assert term.pattern.pattern != default or term.pattern.search(term.name)


def test_the_command_fails_on_a_bad_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "page.md"
    bad.write_text("The GPU is the narrow place.\n", encoding="utf-8")
    assert terminology.main([str(bad)], tmp_path) == 1
    assert "page.md:1: 'narrow place': write bottleneck" in capsys.readouterr().out
