"""The plan's schema and the report's size."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.messages import Messages
from triton_pipelines.api.loadplan import (
    REPORT_MAX_BYTES,
    LiveCounts,
    LoadFinding,
    LoadPlan,
    LoadReason,
    LoadReport,
    PlanCount,
    PlanFetch,
    PlanVersions,
    ReportSource,
    ResolvedSource,
    ResolvedSources,
    diverged_sources,
    resolution,
)
from triton_pipelines.loader.inputs import first_error

PLAN = {
    "version": 1,
    "pipeline": "sentiment",
    "namespace": "default",
    "revision": "4f1d",
    "files": [{"key": "tokenizer.config.pbtxt", "path": "tokenizer/config.pbtxt"}],
    "emptyDirs": ["sentiment/1"],
    "counts": [
        {"step": "tokenizer", "path": "tokenizer/config.pbtxt", "initial": 1, "min": 1, "max": 4}
    ],
    "fetch": [
        {
            "step": "tokenizer",
            "uri": "hf://org/name",
            "kind": "tokenizer",
            "target": "tokenizer/1/tokenizer.json",
            "credentials": True,
        }
    ],
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
}


def plan(**changes: object) -> LoadPlan:
    return LoadPlan.model_validate_json(json.dumps({**PLAN, **changes}))


def test_a_plan_survives_its_json_and_is_canonical() -> None:
    read = plan()
    assert LoadPlan.model_validate_json(read.to_json()) == read
    assert plan(**dict(reversed(PLAN.items()))).to_json() == read.to_json()
    assert json.loads(read.to_json())["checks"][0]["maxBatchSize"] == 64
    assert read.fetch[0].spec_field == "spec.tokenizer.source"


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "/etc/passwd", "a/../b", "../a", "a//b", "a/", "./a", "a\\b", "a\0b"],
    ids=lambda path: repr(path),
)
@pytest.mark.parametrize("where", ["files", "emptyDirs", "fetch", "path"])
def test_paths_that_could_leave_the_repository_are_refused(path: str, where: str) -> None:
    if (where, path) == ("path", "a/"):
        assert PlanFetch(step="s", uri="hf://a/b", target="m/1/x", path=path).path == "a"
        return
    changes: dict[str, object] = {
        "files": {"files": [{"key": "k", "path": path}], "counts": []},
        "emptyDirs": {"emptyDirs": [path]},
        "fetch": {"fetch": [{"step": "s", "uri": "hf://a/b", "target": path}]},
        "path": {"fetch": [{"step": "s", "uri": "hf://a/b", "target": "m/1/x", "path": path}]},
    }[where]
    with pytest.raises(ValidationError):
        plan(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"novel": 1},
        {"counts": [{"step": "t", "path": "other", "initial": 1, "min": 1, "max": 1}]},
        {
            "counts": [
                {
                    "step": "t",
                    "path": "tokenizer/config.pbtxt",
                    "initial": 5,
                    "min": 1,
                    "max": 4,
                }
            ]
        },
        {"files": [{"key": "a", "path": "x"}, {"key": "b", "path": "x"}], "counts": []},
        {"files": [{"key": "../a", "path": "x"}], "counts": []},
        {"fetch": [{"step": "../up", "uri": "hf://a/b", "target": "x"}]},
        {"fetch": [{"step": "s", "uri": "hf://a/b", "target": "x", "sha256": "AB"}]},
        {"fetch": [{"step": "s", "uri": "hf://a/b", "target": "x", "credentials": "yes"}]},
    ],
)
def test_a_plan_in_error_is_refused(changes: dict[str, object], messages: Messages) -> None:
    with pytest.raises(ValidationError) as raised:
        plan(**changes)
    messages.check(first_error(raised.value))


@pytest.mark.parametrize(("wanted", "count"), [(None, 2), (0, 1), (1, 1), (3, 3), (9, 4)])
def test_counts_stay_in_their_bounds(wanted: int | None, count: int) -> None:
    assert PlanCount(step="t", path="p", initial=2, min=1, max=4).clamp(wanted) == count


def test_the_live_files_are_read_and_checked() -> None:
    assert LiveCounts.model_validate_json('{"tokenizer": 2}').root == {"tokenizer": 2}
    resolved = ResolvedSources.model_validate_json(
        '{"4f1d": {"tokenizer": {"revision": "abc"}}}'
    ).root
    assert resolved["4f1d"]["tokenizer"].revision == "abc"
    for broken in ('{"tokenizer": -1}', '{"tokenizer": "2"}', "[]"):
        with pytest.raises(ValidationError):
            LiveCounts.model_validate_json(broken)


def test_a_fetch_may_name_its_field() -> None:
    assert (
        PlanFetch(step="model", uri="hf://a/b", target="x", field="spec.source").spec_field
        == "spec.source"
    )


findings = st.lists(
    st.builds(
        LoadFinding,
        step=st.just("model"),
        reason=st.sampled_from(LoadReason),
        message=st.text(max_size=6000),
        field=st.just("spec.model"),
    ),
    max_size=12,
)
sources = st.lists(
    st.builds(
        ReportSource,
        step=st.just("model"),
        uri=st.text(max_size=900),
        resolved_revision=st.just("a" * 40),
        sha256=st.just("0" * 64),
    ),
    max_size=12,
)


@given(findings, sources)
def test_a_report_of_any_content_fits_and_is_json(
    findings: list[LoadFinding], sources: list[ReportSource]
) -> None:
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
    message = "the reason for the failure " + "x" * 9000 + " what to do"
    finding = LoadFinding(
        step="model", reason=LoadReason.MODEL_MISMATCH, message=message, field="spec.model"
    )
    source = ReportSource(step="model", uri="hf://a/b", resolved_revision="c" * 40, sha256="0" * 64)
    read = LoadReport.model_validate_json(
        LoadReport(ok=False, revision="r", sources=(source,), findings=(finding,)).to_json()
    )
    assert read.sources == (source,)
    assert read.findings[0].message.startswith("the reason for the failure xxx")
    assert read.findings[0].message.endswith("xxx what to do")
    assert len(read.findings[0].message) > 1000


def fetch(**rest: object) -> dict[str, object]:
    return {
        "step": "model",
        "uri": "hf://a/b",
        "target": "bert",
        "kind": "model",
        "file": "model.onnx",
        **rest,
    }


def test_a_plan_without_the_later_fields_keeps_its_bytes() -> None:
    """Its JSON is hashed into the revision: a new operator must not roll every pipeline."""
    text = plan().to_json()
    for later in (
        "slot",
        "sourceFile",
        "whole",
        "versions",
        "pinned",
        "cutsPairs",
        '"model":',
        '"file":',
    ):
        assert later not in text
    full = plan(
        fetch=[
            fetch(slot="weights", versions={"specific": [1, 3]}, pinned=3, sourceFile="net.onnx")
        ]
    )
    assert LoadPlan.model_validate_json(full.to_json()) == full
    pairs = plan(
        fetch=[
            {
                "step": "tokenizer",
                "uri": "hf://a/b",
                "target": "tokenizer/1/tokenizer.json",
                "kind": "tokenizer",
                "cutsPairs": True,
            }
        ]
    )
    assert LoadPlan.model_validate_json(pairs.to_json()) == pairs
    assert json.loads(full.to_json())["fetch"][0]["versions"] == {"specific": [1, 3]}


@pytest.mark.parametrize(
    "wrong",
    [
        fetch(target="bert/1"),
        fetch(file=None),
        fetch(file=None, sourceFile="x", whole=True),
        fetch(versions={}),
        fetch(versions={"latest": 1, "all": True}),
        fetch(versions={"specific": []}),
        fetch(versions={"all": False}),
        fetch(versions={"latest": 0}),
        fetch(pinned=0),
        fetch(slot="a.b"),
        fetch(kind="folder", whole=True, file=None),
        fetch(kind="file", target="bert/1/model.onnx"),
        fetch(cutsPairs=True),
    ],
)
def test_what_no_fetch_of_a_model_may_say(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        plan(fetch=[wrong])


def test_the_sources_of_a_step_have_names_of_their_own() -> None:
    read = plan(
        fetch=[
            fetch(),
            fetch(kind="folder", file=None, target="bert/1", slot="extra"),
            fetch(kind="folder", file=None, slot="more"),
        ]
    )
    assert [item.key for item in read.fetch] == ["model", "model.extra", "model.more"]
    for twice in ([fetch(), fetch(target="other")], [fetch(), fetch(slot="b")]):
        with pytest.raises(ValidationError, match="twice"):
            plan(fetch=twice)


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ({"latest": 1}, (10,)),
        ({"latest": 2}, (9, 10)),
        ({"latest": 9}, (1, 9, 10)),
        ({"all": True}, (1, 9, 10)),
        ({"specific": [9, 1, 4]}, (1, 9)),
    ],
)
def test_the_versions_that_a_policy_serves(
    policy: dict[str, object], served: tuple[int, ...]
) -> None:
    assert PlanVersions.model_validate(policy).select([10, 1, 9]) == served


def test_a_check_names_one_place() -> None:
    base = PLAN["checks"][0]  # type: ignore[index]
    named = {**base, "path": None, "model": "bert", "file": "model.onnx"}
    assert plan(checks=[named]).checks[0].model == "bert"
    for wrong in ({**base, "model": "bert"}, {**base, "path": None}, {**named, "file": None}):
        with pytest.raises(ValidationError):
            plan(checks=[wrong])


def reported(*sources: tuple[str, str, str | None, str | None]) -> LoadReport:
    made = [
        ReportSource(step=step, slot=slot, uri="s3://b/k", resolved_revision=revision, sha256=sha)
        for step, slot, revision, sha in sources
    ]
    return LoadReport(ok=True, revision="r", sources=tuple(made))


def test_a_pod_that_loaded_something_else_is_found() -> None:
    one, two = "1" * 64, "2" * 64
    first = reported(("model", "", "a", one), ("model", "extra", "b", None))
    recorded = resolution(first)
    assert recorded == {
        "model": ResolvedSource(revision="a", sha256=one),
        "model.extra": ResolvedSource(revision="b"),
    }
    assert diverged_sources(recorded, first) == ()
    # The same content under another ETag, and a source that is not recorded.
    assert (
        diverged_sources(recorded, reported(("model", "", "z", one), ("other", "", "z", two))) == ()
    )
    findings = diverged_sources(
        recorded, reported(("model", "", "a", two), ("model", "extra", "c", None))
    )
    assert [(item.step, item.reason) for item in findings] == [
        ("model", LoadReason.SOURCE_CHANGED)
    ] * 2
    assert one in findings[0].message
    assert two in findings[0].message


def test_what_sources_resolved_to_is_the_last_to_go() -> None:
    many = [
        ReportSource(
            step=f"step-{n}",
            uri="s3://bucket/" + "k" * 900,
            resolved_revision="e" * 40,
            sha256="0" * 64,
        )
        for n in range(15)
    ]
    read = LoadReport.model_validate_json(
        LoadReport(ok=True, revision="r", sources=tuple(many)).to_json()
    )
    assert [item.resolved_revision for item in read.sources] == ["e" * 40] * 15
    more = LoadReport.model_validate_json(
        LoadReport(ok=True, revision="r", sources=tuple(many * 4)).to_json()
    )
    assert len(more.sources) + more.sources_left_out == 60
    assert more.sources_left_out > 0


ADAPT = {
    "step": "model",
    "path": "model/1/model.onnx",
    "inputs": [{"name": "input_ids"}, {"name": "attention_mask", "padValue": 0}],
}


def test_a_plan_without_adapted_files_keeps_the_bytes_it_had_before_there_were_any() -> None:
    assert "adapt" not in json.loads(plan().to_json())
    read = plan(adapt=[{**ADAPT, "tokenOutputs": ["hidden"], "maxLength": 512}])
    assert LoadPlan.model_validate_json(read.to_json()) == read
    (written,) = json.loads(read.to_json())["adapt"]
    assert written == {
        "step": "model",
        "path": "model/1/model.onnx",
        "field": "spec.tokenizer.padding",
        "inputs": [{"name": "input_ids", "padValue": 0}, {"name": "attention_mask", "padValue": 0}],
        "tokenOutputs": ["hidden"],
        "maxLength": 512,
        "vocabulary": None,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"path": None},
        {"model": "model", "file": "model.onnx"},
        {"inputs": []},
        {"inputs": [{"name": "a"}, {"name": "a"}]},
        {"tokenOutputs": ["h", "h"]},
        {"maxLength": 0},
    ],
)
def test_what_an_adapted_file_needs(changes: dict[str, object], messages: Messages) -> None:
    with pytest.raises(ValidationError) as raised:
        plan(adapt=[{**ADAPT, **changes}])
    messages.check(first_error(raised.value))
