"""A spec has a limit of size."""

from __future__ import annotations

import pytest

from tests.support import builders
from triton_pipelines.api import parse
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.spec_size import MAX_SPEC_BYTES, json_size, omit_large_spec


@pytest.mark.parametrize("excess", [0, 1])
def test_a_spec_above_the_limit_is_one_finding(excess: int) -> None:
    document = builders.document()
    server = document["spec"]["server"] = {"notes": ""}
    server["notes"] = "x" * (MAX_SPEC_BYTES - json_size(document["spec"]) + excess)
    for _ in range(2):
        # The second time as the operator reads it: without the large fields.
        pipeline, findings = parse(document)
        assert pipeline is None
        assert [item.path for item in findings] == ["spec.server.notes"]
        assert (findings[0].code is FindingCode.TOO_LARGE) == bool(excess)
        assert (f"most {MAX_SPEC_BYTES}" in findings[0].message) == bool(excess)
        omit_large_spec(document)


def test_the_largest_field_is_named() -> None:
    document = builders.document(postprocess={"labels": ["字" * 30] * 4096})
    _, findings = parse(document)
    assert [item.path for item in findings] == ["spec.postprocess.labels"]


def test_small_fields_stay() -> None:
    document = builders.document(replicas=4)
    document["spec"] |= {"suspend": "Enabled", "serviceAccountName": "team", "notes": "x" * 400_000}
    small = {key: document["spec"][key] for key in ("replicas", "suspend", "serviceAccountName")}
    omit_large_spec(document)
    assert small.items() <= document["spec"].items()
    assert len(str(document)) < 5_000
