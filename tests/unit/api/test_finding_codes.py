"""Codes of findings: unique, kebab-case, and apart from the ids of Triton's rules."""

import re

from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.validation import RuleId


def test_codes_are_kebab_case_and_no_rule_ids() -> None:
    values = [code.value for code in FindingCode]
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", value) for value in values)
    assert not set(values) & {rule.value for rule in RuleId}
