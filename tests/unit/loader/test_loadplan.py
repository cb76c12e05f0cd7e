"""The plan's schema and the report's size."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from triton_pipelines.api.loadplan import (
    REPORT_MAX_BYTES,
    Finding,
    LiveCounts,
    LoadPlan,
    LoadReport,
    PlanCount,
    PlanFetch,
    Reason,
    ReportSource,
    ResolvedSources,
)

PLAN = {
    "version": 1,
    "pipeline": "sentiment",
    "namespace": "default",
    "revision": "4f1d",
    "files": [{"key": "tokenizer.config.pbtxt", "path": "tokenizer/config.pbtxt"}],
    "emptyDirs": ["sentiment/1"],
    "counts": [{"step": "tokenizer", "path": "tokenizer/config.pbtxt", "initial": 1, "min": 1, "max": 4}],
    "fetch": [{"step": "tokenizer", "uri": "hf://org/name", "kind": "tokenizer", "target": "tokenizer/1/tokenizer.json", "credentials": True}],
    "checks": [
        {
            "step": "model",
            "format": "onnx",
            "path": "model/1/model.onnx",
            "field": "spec.model",
            "maxBatchSize": 64,
            "inputs": [{"name": "input_ids", "dataType": "INT64", "dims": [-1]}],
            "outputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}],
        }
    ],
    "site": ["tokenizers"],
}


def plan(**changes: object) -> LoadPlan:
    return LoadPlan.model_validate_json(json.dumps({**PLAN, **changes}))


def test_a_plan_survives_its_json_and_is_canonical() -> None:
    read = plan()
    assert LoadPlan.model_validate_json(read.to_json()) == read
    assert plan(**dict(reversed(PLAN.items()))).to_json() == read.to_json()
    assert json.loads(read.to_json())["checks"][0]["maxBatchSize"] == 64
    assert read.fetch[0].spec_field == "spec.tokenizer.source"


@pytest.mark.parametrize("path", ["", ".", "..", "/etc/passwd", "a/../b", "../a", "a//b", "a/", "./a", "a\\b", "a\0b"], ids=lambda path: repr(path))
@pytest.mark.parametrize("where", ["files", "emptyDirs", "fetch", "path"])
def test_paths_that_could_leave_the_repository_are_refused(path: str, where: str) -> None:
    changes: dict[str, object] = {
        "files": {"files": [{"key": "k", "path": path}], "counts": []},
        "emptyDirs": {"emptyDirs": [path]},
        "fetch": {"fetch": [{"step": "s", "uri": "hf://a/b", "target": path}]},
        "path": {"fetch": [{"step": "s", "uri": "hf://a/b", "target": "m/1/x", "path": path}]},
    }[where]
    with pytest.raises(ValidationError):
        plan(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "Input should be 1"),
        ({"novel": 1}, "Extra inputs"),
        ({"counts": [{"step": "t", "path": "other", "initial": 1, "min": 1, "max": 1}]}, "files that the plan does not write: other"),
        ({"counts": [{"step": "t", "path": "tokenizer/config.pbtxt", "initial": 5, "min": 1, "max": 4}]}, "initial 5"),
        ({"files": [{"key": "a", "path": "x"}, {"key": "b", "path": "x"}], "counts": []}, "written twice: x"),
        ({"files": [{"key": "../a", "path": "x"}], "counts": []}, "String should match"),
        ({"fetch": [{"step": "../up", "uri": "hf://a/b", "target": "x"}]}, "String should match"),
        ({"fetch": [{"step": "s", "uri": "hf://a/b", "target": "x", "sha256": "AB"}]}, "String should match"),
        ({"fetch": [{"step": "s", "uri": "hf://a/b", "target": "x", "credentials": "yes"}]}, "valid boolean"),
    ],
)
def test_a_plan_in_error_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        plan(**changes)


@pytest.mark.parametrize(("wanted", "count"), [(None, 2), (0, 1), (1, 1), (3, 3), (9, 4)])
def test_counts_stay_in_their_bounds(wanted: int | None, count: int) -> None:
    assert PlanCount(step="t", path="p", initial=2, min=1, max=4).clamp(wanted) == count


def test_the_live_files_are_read_and_checked() -> None:
    assert LiveCounts.model_validate_json('{"tokenizer": 2}').root == {"tokenizer": 2}
    resolved = ResolvedSources.model_validate_json('{"4f1d": {"tokenizer": {"revision": "abc"}}}').root
    assert resolved["4f1d"]["tokenizer"].revision == "abc"
    for broken in ('{"tokenizer": -1}', '{"tokenizer": "2"}', "[]"):
        with pytest.raises(ValidationError):
            LiveCounts.model_validate_json(broken)


def test_a_fetch_may_name_its_field() -> None:
    assert PlanFetch(step="model", uri="hf://a/b", target="x", field="spec.source").spec_field == "spec.source"


findings = st.lists(
    st.builds(Finding, step=st.just("model"), reason=st.sampled_from(Reason), message=st.text(max_size=6000), field=st.just("spec.model")),
    max_size=12,
)
sources = st.lists(
    st.builds(ReportSource, step=st.just("model"), uri=st.text(max_size=900), resolved_revision=st.just("a" * 40), sha256=st.just("0" * 64)),
    max_size=12,
)


@given(findings, sources)
def test_a_report_of_any_content_fits_and_is_json(findings: list[Finding], sources: list[ReportSource]) -> None:
    report = LoadReport(ok=False, revision="4f1d", sources=tuple(sources), findings=tuple(findings))
    text = report.to_json()
    assert len(text.encode()) <= REPORT_MAX_BYTES
    read = LoadReport.model_validate_json(text)
    assert read.revision == "4f1d"
    if findings:
        # Whatever is cut, what failed first keeps its reason.
        assert read.findings
    if len(report.model_dump_json(by_alias=True, exclude_none=True).encode()) <= REPORT_MAX_BYTES:
        assert read == report


def test_long_messages_are_cut_in_the_middle_and_sources_survive() -> None:
    message = "why it failed " + "x" * 9000 + " what to do"
    finding = Finding(step="model", reason=Reason.MODEL_MISMATCH, message=message, field="spec.model")
    source = ReportSource(step="model", uri="hf://a/b", resolved_revision="c" * 40, sha256="0" * 64)
    read = LoadReport.model_validate_json(LoadReport(ok=False, revision="r", sources=(source,), findings=(finding,)).to_json())
    assert read.sources == (source,)
    assert read.findings[0].message.startswith("why it failed")
    assert read.findings[0].message.endswith("what to do")
    assert len(read.findings[0].message) > 1000
