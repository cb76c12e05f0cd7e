"""Test resources that only the operator can reject.

Each gets the findings of the golden list; each finding names a place and says what is wrong there.
"""

import re

import pytest

from tests.corpus import REFUSALS, Sample, refused
from tests.support.fields import owners
from tests.support.meaning import judged, refusals
from triton_pipelines.api import parse
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.validation import RuleId

PATHS = {"spec", *owners()}


def test_every_refusal_is_in_the_golden_list() -> None:
    """After a wanted change: ``python -m tests.corpus``, then read the difference."""
    assert len(refused()) > 35
    assert REFUSALS.read_text(encoding="utf-8") == refusals()


@pytest.mark.parametrize("sample", refused(), ids=lambda sample: sample.name)
def test_the_schema_takes_it_and_the_operator_names_the_field(sample: Sample) -> None:
    assert parse(sample.document)[1] == []
    findings = judged(sample.document)[3]
    assert findings
    for finding in findings:
        written = re.sub(r"\[\d+\]", "[]", finding.path)
        known = any(
            written == path
            or written == f"{path}[]"
            or (written.startswith(f"{path}.") and path.endswith("configPatch"))
            for path in PATHS
        )
        assert known, f"{finding.path} is no field"
        assert len(finding.message) > 20
        assert finding.code in {*FindingCode, *RuleId}
