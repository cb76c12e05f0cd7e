"""Test the table of field coverage.

The tests cover how marks are read, what each field requires, and that this checkout's table is
complete and current.
"""

from pathlib import Path

import pytest

from hack import field_coverage
from tests.support.fields import fields, fields_of, owners
from triton_pipelines.api import crd, structural_schema

NAMES = {
    "spec.model.maxBatchSize": "StepFields.maxBatchSize",
    "spec.steps[].maxBatchSize": "StepFields.maxBatchSize",
    "spec.replicas": "Spec.replicas",
}
MODULE = """
import pytest
CASES = [pytest.param(1, marks=pytest.mark.proves("spec.b", "loaded")), pytest.param(2)]
OTHER = [pytest.param(1, marks=pytest.mark.proves("spec.unused", "loaded"))]
pytestmark = [pytest.mark.integration, pytest.mark.proves_files("good", "accepted")]

@pytest.mark.proves("spec.a", "behaviour")
@pytest.mark.proves("spec.a2", "parsed")
def test_a(): ...

@pytest.mark.parametrize("case", CASES)
async def test_b(case): ...

@pytest.mark.proves("spec.c", "applied")
class TestC:
    @pytest.mark.parametrize("case", \
[pytest.param(1, marks=[pytest.mark.proves("spec.d", "applied")])])
    def test_d(self, case): ...
"""


def test_marks_are_read_from_the_source(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "test_x.py"
    file.parent.mkdir()
    file.write_text(MODULE, encoding="utf-8")
    assert field_coverage.all_claims(tmp_path) == [
        field_coverage.Claim("tests/test_x.py", "good", "accepted", files=True),
        field_coverage.Claim("tests/test_x.py::test_a", "spec.a", "behaviour"),
        field_coverage.Claim("tests/test_x.py::test_a", "spec.a2", "parsed"),
        field_coverage.Claim("tests/test_x.py::test_b", "spec.b", "loaded"),
        field_coverage.Claim("tests/test_x.py::TestC", "spec.c", "applied"),
        field_coverage.Claim("tests/test_x.py::TestC::test_d", "spec.d", "applied"),
    ]


@pytest.mark.parametrize(
    "mark",
    ['proves(f"spec.{x}", "loaded")', 'proves("spec.a")', 'proves(path="spec.a", level="loaded")'],
)
def test_a_mark_that_cannot_be_read_is_an_error(tmp_path: Path, mark: str) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(f"import pytest\n@pytest.mark.{mark}\ndef test_x(): ...\n", encoding="utf-8")
    with pytest.raises(ValueError, match="two plain texts"):
        list(field_coverage.claims_of(file, tmp_path))


def _claim(target: str, level: str, *, files: bool = False) -> field_coverage.Claim:
    return field_coverage.Claim("tests/test_x.py::test_x", target, level, files)


ENOUGH = [
    _claim("spec.*.maxBatchSize", "parsed"),
    _claim("spec.model.maxBatchSize", "loaded"),
    _claim("spec.replicas", "applied"),
]


def test_one_place_beyond_the_first_level_and_all_at_it_are_enough() -> None:
    found, wrong = field_coverage.match_claims(NAMES, ENOUGH, {})
    assert wrong == []
    assert [(field.name, field.level, len(field.places)) for field in found] == [
        ("StepFields.maxBatchSize", "loaded", 2),
        ("Spec.replicas", "applied", 1),
    ]
    page = field_coverage.render(found)
    assert (
        "| `maxBatchSize` | `spec.model.maxBatchSize` and 1 more | loaded | "
        "[test_x](../../tests/test_x.py) |"
    ) in page


def test_a_way_stands_for_the_fields_below_it() -> None:
    found, wrong = field_coverage.match_claims(
        NAMES, [_claim("spec.model", "loaded"), _claim("spec.steps", "parsed"), ENOUGH[2]], {}
    )
    assert wrong == []
    assert found[0].level == "loaded"


@pytest.mark.parametrize(
    ("claims", "reasons", "reported"),
    [
        (
            [],
            {},
            (
                "StepFields.maxBatchSize: no test shows it parsed at spec.model.maxBatchSize, "
                "spec.steps[].maxBatchSize"
            ),
        ),
        (
            ENOUGH[1:],
            {},
            "StepFields.maxBatchSize: no test shows it parsed at spec.steps[].maxBatchSize",
        ),
        ([ENOUGH[0], ENOUGH[2]], {}, "StepFields.maxBatchSize: no test shows it loaded"),
        (
            [*ENOUGH[:2], _claim("spec.replicas", "accepted")],
            {},
            "Spec.replicas: no test shows it applied",
        ),
        ([*ENOUGH, _claim("spec.colour", "applied")], {}, "there is no field spec.colour"),
        ([*ENOUGH, _claim("spec.*.colour", "applied")], {}, "there is no field spec.*.colour"),
        (
            [*ENOUGH, _claim("spec.replicas", "loaded")],
            {},
            "spec.replicas has the levels accepted, applied, behaviour, not loaded",
        ),
        ([*ENOUGH, _claim("spec.replicas", "seen")], {}, "there is no level seen"),
        (
            [*ENOUGH, _claim("tests/nowhere", "applied", files=True)],
            {},
            "no resource in tests/nowhere",
        ),
        (
            ENOUGH,
            {"spec.replicas": "no cluster at hand"},
            "nothing needs the reason for spec.replicas",
        ),
        (ENOUGH, {"spec.colour": "no paint at hand"}, "nothing needs the reason for spec.colour"),
    ],
)
def test_what_is_missing_or_needless_is_told(
    claims: list[field_coverage.Claim], reasons: dict[str, str], reported: str
) -> None:
    _, wrong = field_coverage.match_claims(NAMES, claims, reasons)
    assert any(reported in line for line in wrong), wrong


def test_a_reason_stands_in_for_a_level_and_is_shown() -> None:
    found, wrong = field_coverage.match_claims(
        NAMES, [ENOUGH[0], ENOUGH[2]], {"spec.*.maxBatchSize": "no GPU at hand"}
    )
    assert wrong == []
    assert "| parsed | [test_x](../../tests/test_x.py); no GPU at hand |" in field_coverage.render(
        found
    )


def test_files_claim_the_fields_that_they_write(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    text = (
        "kind: InferencePipeline\nspec: {replicas: 2, model: {maxBatchSize: 4, inputs: null}, "
        "steps: [{name: a, maxBatchSize: 2}]}\n"
    )
    (tmp_path / "good" / "a.yaml").write_text(text, encoding="utf-8")
    claims = [
        _claim("good", "parsed", files=True),
        _claim("good", "accepted", files=True),
        ENOUGH[1],
    ]
    found, wrong = field_coverage.match_claims(
        NAMES, claims, {"spec.replicas": "no cluster at hand"}, tmp_path
    )
    assert wrong == []
    assert [field.level for field in found] == ["loaded", "accepted"]
    spared = field_coverage.Claim(
        "tests/test_x.py::test_x", "good", "applied", True, ("spec.replicas",)
    )
    assert field_coverage.match_claims(
        NAMES, [*claims, spared], {"spec.replicas": "no cluster at hand"}, tmp_path
    ) == (found, [])
    _, wrong = field_coverage.match_claims(
        NAMES,
        [*claims, field_coverage.Claim("t", "good", "applied", True, ("spec.colour",))],
        {},
        tmp_path,
    )
    assert wrong == ["t: spec.colour excepts nothing"]


def test_fields_are_what_takes_a_value() -> None:
    known = fields()
    assert {
        "spec.replicas",
        "spec.tokenizer.buckets",
        "spec.model.parameters",
        "spec.server.affinity",
        "spec.model.inputs[].dims",
    } <= set(known)
    assert not {
        "spec.model",
        "spec.model.inputs",
        "spec.model.inputs[]",
        "spec.tokenizer.buckets[]",
        "spec.model.parameters{}",
    } & set(known)
    assert set(known) <= set(owners())
    assert {
        path for path, _ in structural_schema.walk(crd.root_schema()) if path.startswith("spec.")
    } >= set(known)
    document = {
        "spec": {
            "model": {
                "inputs": [{"name": "a", "dims": [1]}, {"from": "x.y"}],
                "parameters": {"a": "b"},
                "outputs": None,
                "nonsense": 1,
            }
        }
    }
    inputs = {f"spec.model.inputs[].{name}" for name in ("name", "dims", "from")}
    assert fields_of(document) == inputs | {"spec.model.parameters"}


def test_no_field_of_this_checkout_lacks_coverage() -> None:
    _, wrong = field_coverage.current()
    assert wrong == []


def test_every_test_that_is_linked_exists() -> None:
    linked = {test.split("::")[0] for field in field_coverage.current()[0] for test in field.tests}
    assert linked
    assert {file for file in linked if not (field_coverage.ROOT / file).is_file()} == set()
