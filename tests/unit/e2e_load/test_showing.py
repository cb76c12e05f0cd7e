"""The demo's live line, its closing line, and what its Prometheus is told."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from e2e.load.bins import Figures, Second
from e2e.scaling_demo import Shown
from e2e.showing import PLAIN_EVERY, SHOWN, cells, live_line
from e2e.suite.kube import Kube
from e2e.suite.scraping import Scraper
from tests.support.prometheus import PrometheusServer
from triton_pipelines.api import names

BUSY = Second(
    at=1.0,
    answered=80,
    latencies=(0.25,) * 80,
    gpu_busy=0.41,
    count=1,
    starved=True,
    verdict="TokenizerBound",
)
GOOD = Second(at=2.0, answered=100, latencies=(0.05,) * 100, gpu_busy=0.6, count=2)


def test_cells_are_means_of_the_last_seconds_and_the_newest_count() -> None:
    assert cells(7, [BUSY, GOOD]) == ["7 s", "2", "90", "250 ms", "50 %", "50 %", "-"]
    assert cells(1, [Second(at=1.0)]) == ["1 s", "0", "0", "-", "0 %", "0 %", "-"]


def shown(terminal: bool, seconds: int) -> str:
    out = io.StringIO()
    with live_line(Console(file=out, force_terminal=terminal, width=110)) as live:
        for _ in range(seconds):
            live.add(BUSY)
    return out.getvalue()


def test_plain_lines_now_and_then_where_there_is_no_terminal() -> None:
    lines = shown(False, 2 * PLAIN_EVERY + 1).splitlines()
    assert len(lines) == 2
    assert (
        lines[0].split()
        == (
            f"{PLAIN_EVERY} s: tokenizers 1, 80 requests/s, p99 250 ms, GPU busy 41 %, "
            "starved 100 %, TokenizerBound"
        ).split()
    )


def test_one_table_kept_up_to_date_on_a_terminal() -> None:
    assert "tokenizers" in shown(True, SHOWN)


def test_closing_line() -> None:
    said = Shown(
        Figures(78.4, 0.262, 1.0, 1.0, 0), Figures(97.0, 0.081, 0.08, 2.0, 0), 6, 1, 2, 4321, 0
    ).closing()
    assert said == (
        "documents with 1 tokenizer fixed: 78 requests/s, p99 262 ms, GPU starved 100 %; "
        "managed (1 → 2 in place after 6 s): "
        "97 requests/s, p99 81 ms, GPU starved 8 %; 0 of 4321 requests failed"
    )


class Pods:
    """Stands in for a cluster: two pods of pipelines, one without an address yet."""

    def objects(self, kind: str, namespace: str, selector: str) -> list[dict[str, Any]]:
        assert (kind, namespace, selector) == ("Pod", "demo", names.LABEL_PIPELINE)
        labels = {names.LABEL_PIPELINE: "documents"}
        return [
            {
                "metadata": {"name": "documents-a", "labels": labels},
                "status": {"podIP": "10.244.0.7"},
            },
            {"metadata": {"name": "documents-b", "labels": labels}, "status": {}},
        ]


def test_prometheus_scrapes_pods_that_have_an_address(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    Scraper(PrometheusServer(), file).watch(cast(Kube, Pods()), "demo")
    labels = {"namespace": "demo", "pod": "documents-a", "pipeline": "documents"}
    assert json.loads(file.read_text()) == [
        {"targets": [f"10.244.0.7:{names.PORT_METRICS}"], "labels": labels}
    ]
