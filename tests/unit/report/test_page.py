"""The report's page: what it shows, that texts stay texts, and that nothing is loaded."""

from __future__ import annotations

import datetime as dt
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.support import builders
from triton_pipelines.cli.explain import explanation_document
from triton_pipelines.cli.report import tuning_plot
from triton_pipelines.tools.report import ReportData, page

NOW = dt.datetime(2026, 11, 24, 12, 0, tzinfo=dt.UTC)
HOSTILE = '"><script>alert(1)</script>'
STATUS: dict[str, Any] = {
    "observedGeneration": 2,
    "revision": "new",
    "servingRevision": "old",
    "replicas": 2,
    "readyReplicas": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "InvalidSpec",
            "message": HOSTILE,
            "observedGeneration": 2,
            "lastTransitionTime": "2026-11-24T11:00:00Z",
        },
        {
            "type": "Stalled",
            "status": "False",
            "reason": "Healthy",
            "message": "fine",
            "observedGeneration": 3,
            "lastTransitionTime": "2026-11-24T11:00:00Z",
        },
    ],
    "steps": [
        {
            "name": "tokenizer",
            "modelName": "tokenizer",
            "role": "Tokenizer",
            "pods": 2,
            "readyPods": 2,
            "instances": 3,
            "desiredInstances": 4,
            "verdict": "TokenizerBound",
            "verdictReason": "3 instances are 96% busy",
        }
    ],
    "scaling": {
        "bottleneck": "TokenizerBound",
        "mode": "Active",
        "figures": [
            {
                "step": "tokenizer",
                "requestsPerSecond": 321,
                "busyPercent": 96,
                "waitMilliseconds": 12,
            }
        ],
        "history": [
            {
                "time": "2026-11-24T11:59:00Z",
                "step": "tokenizer",
                "from": 3,
                "to": 4,
                "reason": "TokenizerBound",
            }
        ],
    },
    "tuning": {
        "request": "monday",
        "state": "Succeeded",
        "points": [
            {"name": "current", "requestsPerSecond": 100, "p99Microseconds": 25_500},
            {"name": "candidate", "requestsPerSecond": 150, "predictedP99Microseconds": 30_000},
        ],
    },
    "warnings": [{"path": "spec.model", "message": "careful"}],
}


class Texts(HTMLParser):
    """Collects the tags, attributes and texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def read(html: str) -> Texts:
    texts = Texts()
    texts.feed(html)
    texts.text = " ".join(texts.text.split())
    return texts


def report(status: dict[str, Any] | None = None, **changes: Any) -> str:
    document = builders.document()
    document["metadata"]["generation"] = 3
    if status is not None:
        document["status"] = status
    values: dict[str, Any] = {
        "graph": builders.built().graph,
        "files": {"tokenizer/config.pbtxt": 'name: "tokenizer"'},
    }
    return page(
        ReportData(document, explanation_document(document), NOW, "1.2.3", **values | changes)
    )


def test_the_page_shows_every_part_of_the_status() -> None:
    text = read(report(STATUS, warnings=["spec.x: odd"], notes=["one file is missing"])).text
    for part in (
        "nlp/sentiment",
        "read at 2026-11-24 12:00:00 UTC with tritonpipe 1.2.3",
        "Revision new, serving old",
        "Pods ready: 1 of 2",
        "(about generation 2)",
        "TokenizerBound",
        "2/2 3 4 321 96 12",
        "2026-11-24T11:59:00Z tokenizer 3 4",
        "Request monday: Succeeded",
        "25.5",
        "30.0",
        "spec.x: odd",
        "Operator: spec.model: careful",
        'name: "tokenizer"',
        "one file is missing",
    ):
        assert part in text, part


def test_texts_of_the_cluster_stay_texts() -> None:
    shown = read(report(STATUS, files={HOSTILE: HOSTILE}, errors=[HOSTILE], notes=[HOSTILE]))
    assert "script" not in shown.tags
    assert shown.text.count("<script>alert(1)</script>") == 5


def test_the_page_loads_nothing() -> None:
    html = report(STATUS)
    shown = read(html)
    assert "link" not in shown.tags
    assert shown.addresses == []
    assert "default-src 'none'" in html
    assert re.findall(r"url\((?!#)", html) == []


def test_a_pipeline_without_a_status_has_a_report() -> None:
    text = read(report(graph=None, errors=["spec.model: missing"])).text
    assert "The operator has not written a status yet." in text
    assert "The current spec is invalid" in text
    assert "spec.model: missing" in text
    assert "Last tuning run" not in text


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        ("Ready", "True", "good"),
        ("Ready", "False", "bad"),
        ("Stalled", "True", "bad"),
        ("Stalled", "False", "good"),
        ("Ready", "Unknown", "unknown"),
    ],
)
def test_the_colour_of_a_condition_depends_on_its_meaning(
    kind: str, status: str, expected: str
) -> None:
    condition = {"type": kind, "status": status, "reason": "R", "message": "m"}
    assert f'<td class="{expected}">{status}</td>' in report({"conditions": [condition]})


def test_a_large_file_is_cut_with_a_note() -> None:
    text = read(report(STATUS, files={"big": "x" * 200_005})).text
    assert "… 5 more characters" in text


def test_a_tuning_run_is_plotted_with_its_slo() -> None:
    document = builders.document(slo={"p99Milliseconds": 40}) | {"status": STATUS}
    plot = tuning_plot(document)
    assert plot.startswith("<svg")
    assert "SLO: 40 ms" in plot
    assert tuning_plot(builders.document()) == ""
