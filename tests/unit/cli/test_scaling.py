"""Test `tritonpipe explain` and `tritonpipe scaling`.

They print the scaling part of a status, for people and for programs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Run, Serve, response
from tests.unit.cli.test_status import kubeconfig
from triton_pipelines.autoscaling.types import Verdict
from triton_pipelines.autoscaling.verdict_advice import ADVICE
from triton_pipelines.cli import explain, scaling


def pipeline(verdict: str = "GPUBound", **state: Any) -> dict[str, Any]:
    status = {
        "conditions": [
            {
                "type": "MetricsAvailable",
                "status": "True",
                "reason": "Succeeded",
                "message": "metrics of every ready pod are read",
            },
            {
                "type": "ScalingLimited",
                "status": "True",
                "reason": "GPUBound",
                "message": (
                    "tokenizer: the load needs 5 instances, but the count is held at 3 (GPUBound)"
                ),
            },
        ],
        "steps": [
            {
                "name": "tokenizer",
                "modelName": "tok",
                "pods": 2,
                "instances": 3,
                "desiredInstances": 3,
                "podsWithDesiredInstances": 2,
                "verdict": verdict,
                "verdictReason": "model is 99% busy",
            },
            {
                "name": "model",
                "modelName": "model",
                "pods": 2,
                "instances": 1,
                "desiredInstances": 1,
            },
        ],
        "scaling": {
            "bottleneck": verdict,
            "mode": "Active",
            "lastScaleTime": "2026-01-01T12:00:00Z",
            "history": [
                {
                    "time": "2026-01-01T12:00:00Z",
                    "step": "tokenizer",
                    "from": 1,
                    "to": 3,
                    "reason": "TokenizerBound: 95 requests/s",
                }
            ],
            "figures": [
                {
                    "step": "tokenizer",
                    "requestsPerSecond": 200,
                    "busyPercent": 66,
                    "waitMilliseconds": 2,
                }
            ],
        },
    }
    return {
        "metadata": {"namespace": "nlp", "name": "sentiment"},
        "spec": {},
        "status": {**status, **state},
    }


@pytest.fixture
def shown(tritonpipe: Run, server: Serve, tmp_path: Path) -> Any:
    def run(document: dict[str, Any], *arguments: str) -> str:
        file = kubeconfig(
            tmp_path / "config", server({"GET": response(document)}).partition("/v2")[0]
        )
        ended = tritonpipe(*arguments, "--kubeconfig", file)
        assert ended.code == 0, ended.err
        return ended.out

    return run


def test_plain_words_numbers_and_what_would_move_it(shown: Any) -> None:
    text = shown(pipeline(), "explain", "sentiment")
    for part in (
        "nlp/sentiment: GPUBound",
        "Bottleneck: The GPU step is the bottleneck",
        "tokenizer (GPUBound): 3 of 3 desired in each pod; 200 requests/s, 66 busy %, 2 wait ms",
        "model is 99% busy",
        "ScalingLimited GPUBound: tokenizer: the load needs 5 instances",
        "1. Add pods with spec.replicas",
        "Last change: 2026-01-01T12:00:00Z tokenizer went from 1 to 3: TokenizerBound: 95"
        " requests/s",
    ):
        assert part in text
    assert "MetricsAvailable" not in text, "what is well needs no words"


def test_the_guide_shows_what_comes() -> None:
    """The example of docs/user/scaling.md."""
    document = pipeline()
    document["metadata"]["namespace"] = "default"
    reason = (
        "step 'model' is 99% busy, and the GPU is 97% utilized; 41 requests are queued for step "
        "'model' and 0 for step 'tokenizer', so more tokenizer instances would not help"
    )
    document["status"]["steps"][0]["verdictReason"] = reason
    page = (Path(__file__).parents[3] / "docs/user/scaling.md").read_text(encoding="utf-8")
    assert "```text\n" + "\n".join(explain.explanation(document)) + "\n```" in page


def test_the_guide_has_every_verdict() -> None:
    page = (Path(__file__).parents[3] / "docs/user/scaling.md").read_text(encoding="utf-8")
    assert [verdict for verdict in Verdict if f"`{verdict.value}`" not in page] == []


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_is_explained(verdict: Verdict, shown: Any) -> None:
    text = shown(pipeline(verdict.value), "explain", "sentiment")
    assert ADVICE[verdict].means in text
    assert ("What to do: no action is needed." in text) == (not ADVICE[verdict].moves)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "no scaling verdict yet"),
        ({"scaling": {"mode": "Disabled"}}, "mode is Disabled"),
        ({"suspend": "Enabled"}, "suspended"),
    ],
)
def test_why_nothing_is_known(spec: dict[str, Any], said: str, shown: Any) -> None:
    document = {"metadata": {"namespace": "nlp", "name": "sentiment"}, "spec": spec, "status": {}}
    assert said in shown(document, "explain", "sentiment")


def test_a_load_that_is_not_known_is_not_shown_as_none(shown: Any) -> None:
    """Without metrics the status keeps zeros, whatever the load is."""
    document = pipeline("Unknown")
    document["status"]["scaling"]["figures"] = [
        {"step": "tokenizer", "requestsPerSecond": 0, "busyPercent": 0, "waitMilliseconds": 0}
    ]
    text = shown(document, "explain", "sentiment")
    assert "desired in each pod; load unknown" in text
    assert "0 requests/s" not in text
    rows = shown(document, "scaling", "sentiment").splitlines()
    assert re.split(" {2,}", rows[-3])[3:6] == ["-", "-", "-"]
    history = scaling.ScalingHistory()
    history.add(pipeline(), 100.0)
    history.add(document, 102.0)
    assert [line.plain.split() for line in history.plot(80)][3] == [
        "tokenizer",
        "requests/s",
        "-",
        "█",
    ]


@pytest.mark.parametrize(
    "before",
    ["PrometheusError: ", "PrometheusError for 62 s: the count was increased to 2 (RecentMax); "],
)
def test_what_two_conditions_and_a_step_say_is_said_once(before: str) -> None:
    document = pipeline("Unknown")
    message = 'Prometheus connection "default": cannot be reached'
    trouble = {
        "status": "False",
        "reason": "PrometheusError",
        "message": f"PrometheusError: {message}",
    }
    document["status"]["conditions"] = [
        {"type": kind, **trouble} for kind in ("MetricsAvailable", "ScalingActive")
    ]
    document["status"]["steps"][0]["verdictReason"] = before + message
    lines = explain.explanation(document)
    assert [line for line in lines if "PrometheusError" in line] == [
        f"  MetricsAvailable, ScalingActive PrometheusError: {message}",
    ]


def test_a_suspended_pipeline_is_said_to_be_suspended(shown: Any) -> None:
    """Also where it was scaled before, and its status has a verdict."""
    document = {**pipeline("Unknown"), "spec": {"suspend": "Enabled"}}
    text = shown(document, "explain", "sentiment")
    assert "nlp/sentiment: the pipeline is suspended" in text
    assert "no usable metrics" not in text


def test_a_verdict_of_a_newer_operator_is_no_traceback(shown: Any) -> None:
    assert "MoonBound: this verdict is from a newer operator" in shown(
        pipeline("MoonBound"), "explain", "sentiment"
    )


def test_counts_figures_and_changes_as_tables(shown: Any) -> None:
    text = shown(pipeline(), "scaling", "sentiment")
    rows = [re.split(" {2,}", line.strip()) for line in text.splitlines()[-4:]]
    assert rows[1] == [
        "tokenizer",
        "3/3",
        "2/2",
        "200",
        "66",
        "2",
        "GPUBound",
        "model is 99% busy",
    ]
    assert rows[3] == [
        "2026-01-01T12:00:00Z",
        "tokenizer",
        "1",
        "3",
        "TokenizerBound: 95 requests/s",
    ]
    assert "Active  GPUBound  last change 2026-01-01T12:00:00Z" in text
    found = json.loads(shown(pipeline(), "scaling", "sentiment", "-o", "json"))
    assert found["scaling"]["bottleneck"] == "GPUBound"
    assert [item["name"] for item in found["steps"]] == ["tokenizer"]


def test_a_watch_into_a_pipe_prints_what_changes(
    tritonpipe: Run, server: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [pipeline(), pipeline(), pipeline("Balanced")]
    url = server({"GET": response(documents.pop(0))}).partition("/v2")[0]

    async def next_look(_: float) -> None:
        if not documents:
            raise KeyboardInterrupt
        server({"GET": response(documents.pop(0))})

    monkeypatch.setattr("triton_pipelines.cli.status.asyncio.sleep", next_look)
    ended = tritonpipe(
        "scaling", "sentiment", "--watch", "--kubeconfig", kubeconfig(tmp_path / "config", url)
    )
    assert ended.code == 0
    assert ended.out.count("Active  ") == 2
    assert ended.out.index("Active  GPUBound") < ended.out.index("Active  Balanced")


def test_the_plot_shows_how_counts_went() -> None:
    history = scaling.ScalingHistory()
    for number, count in enumerate((1, 1, 2, 4)):
        document = pipeline()
        document["status"]["steps"][0]["instances"] = count
        history.add(document, 100.0 + 2 * number)
    head, *rest = [line.plain for line in history.plot(80)]
    assert "the last 6 s" in head
    assert rest[0].split() == ["tokenizer", "instances", "4", "▂▂▄█"]
    assert len(rest) == 5
    assert [line.plain for line in history.plot(2)][1].endswith(" ▄█")


def test_blocks_rise_from_nothing_to_the_largest() -> None:
    assert scaling.sparkline([]) == ""
    assert scaling.sparkline([0, 0]) == "  "
    assert scaling.sparkline([0, 1, 8]) == " ▁█"
