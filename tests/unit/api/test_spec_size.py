"""A spec has a limit of size."""

from __future__ import annotations

import pytest

from tests.support import builders
from triton_pipelines.api import parse
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.spec_size import MAX_SPEC_BYTES, omit_large_spec, spec_size


@pytest.mark.parametrize("excess", [0, 1])
def test_a_spec_above_the_limit_is_one_finding(excess: int) -> None:
    document = builders.document()
    document["spec"]["notes"] = ""
    document["spec"]["notes"] = "x" * (MAX_SPEC_BYTES - spec_size(document["spec"]) + excess)
    for _ in range(2):
        # The second time as the operator reads it: without the spec.
        pipeline, findings = parse(document)
        assert pipeline is None
        assert [item.path for item in findings] == (["spec"] if excess else ["spec.notes"])
        assert (findings[0].code is FindingCode.TOO_LARGE) == bool(excess)
        assert ("256 KiB" in findings[0].message) == bool(excess)
        omit_large_spec(document)
