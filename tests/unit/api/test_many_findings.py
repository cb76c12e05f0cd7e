"""Documents with thousands of mistakes, such as an edited record of a spec."""

from __future__ import annotations

from tests.support import builders
from tests.support.messages import Messages
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.parse import FINDINGS_MAX, parse


def test_thousands_of_findings_are_counted(messages: Messages) -> None:
    document = builders.document()
    document["spec"] |= {f"unknown{number}": 0 for number in range(FINDINGS_MAX + 2_000)}
    pipeline, findings = parse(document)
    assert pipeline is None
    assert len(findings) == FINDINGS_MAX + 1
    assert {finding.code for finding in findings} == {FindingCode.UNKNOWN_FIELD}
    last = findings[-1]
    assert last.path == f"spec.unknown{FINDINGS_MAX}"
    assert "2000 further" in last.message
    messages.check(last.message)


def test_so_many_findings_as_are_shown_are_not_counted() -> None:
    document = builders.document()
    document["spec"] |= {f"unknown{number}": 0 for number in range(FINDINGS_MAX)}
    assert len(parse(document)[1]) == FINDINGS_MAX
