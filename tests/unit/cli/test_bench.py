"""`tritonpipe bench`: its loads, its requests, and the shape of what it prints."""

from __future__ import annotations

import csv
import io
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.support.messages import Messages
from triton_pipelines.cli.bench_loads import build_requests, concurrencies, rates
from triton_pipelines.cli.bench_report import (
    BASELINE,
    COLUMNS,
    BenchReport,
    as_csv,
    bench_document,
    chart,
    plot,
    tables,
    warnings_of,
)
from triton_pipelines.cli.errors import EXIT_USAGE, CommandError
from triton_pipelines.cli.model_metadata import ModelMetadata, TensorMetadata
from triton_pipelines.cli.output import print_wide
from triton_pipelines.cli.plot_output import check_plottable
from triton_pipelines.tools.loadgen import (
    LoadSpec,
    LoadStability,
    LoadSummary,
    StepStatistics,
    SweepResult,
)
from triton_pipelines.tools.loadgen.plots import svg

TEXT = TensorMetadata("TEXT", "BYTES", (-1, 1))
MODEL = ModelMetadata((TEXT,), ("LABEL",), batched=True)
IDS = ModelMetadata((TensorMetadata("IDS", "INT64", (-1, -1)),), ("OUT",), batched=True)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("8", [8]),
        ("1:128", [1, 2, 4, 8, 16, 32, 64, 128]),
        ("1:100", [1, 2, 4, 8, 16, 32, 64, 100]),
        ("4:4", [4]),
        ("2:11:3", [2, 5, 8, 11]),
        ("16,1,4", [1, 4, 16]),
    ],
)
def test_concurrencies(written: str, meant: list[int]) -> None:
    assert concurrencies(written) == meant


def test_rates() -> None:
    assert rates("50:200:50") == [50, 100, 150, 200]
    assert rates("0.5,7") == [0.5, 7]


@pytest.mark.parametrize(
    "written",
    ["", "x", "0", "-1", "4:1", "1:2:3:4", "1.5", "1:8:0", "1:9999:1", "nan", "inf", "9999"],
)
def test_wrong_concurrencies_name_the_option(written: str) -> None:
    with pytest.raises(CommandError, match=r"--concurrency") as caught:
        concurrencies(written)
    assert caught.value.code == EXIT_USAGE


@pytest.mark.parametrize("written", ["50:400", "1:100:0.1", "a:b:c", "1:2:1e-320"])
def test_wrong_rates_name_the_option(written: str) -> None:
    with pytest.raises(CommandError, match=r"--rate"):
        rates(written)


def requests(model: ModelMetadata = MODEL, **options: Any) -> Any:
    return build_requests(
        model,
        **{
            "file": None,
            "lengths": None,
            "rows": 1,
            "values": (),
            "files": (),
            "seed": 0,
            **options,
        },
    )


def test_requests_of_a_distribution() -> None:
    found = requests(lengths="median=10,sigma=0,cap=20", rows=3)
    assert found.arrays[0]["TEXT"].shape == (3, 1)
    assert {len(text.split()) for item in found.arrays for text in item["TEXT"].ravel()} == {
        8
    }  # and [CLS], [SEP]
    assert np.array_equal(
        found.arrays[5]["TEXT"],
        requests(lengths="median=10,sigma=0,cap=20", rows=3).arrays[5]["TEXT"],
    )
    split = found.split()
    assert len(split.arrays) == 3 * len(found.arrays)
    assert split.arrays[4]["TEXT"].tolist() == [found.arrays[1]["TEXT"][1].tolist()]


def test_requests_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("one\ntwo\n")
    assert [item["TEXT"].tolist() for item in requests(file=file).arrays] == [
        [[b"one"]],
        [[b"two"]],
    ]


def test_requests_of_perf_analyzers_input_data(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text(
        '{"data": [{"IDS": [1, 2]}, {"IDS": {"content": [3, 4], "shape": [2]}},'
        ' {"IDS": {"b64": "BQAAAAAAAAAGAAAAAAAAAA=="}}]}'
    )
    assert [item["IDS"].tolist() for item in requests(IDS, file=file).arrays] == [
        [[1, 2]],
        [[3, 4]],
        [[5, 6]],
    ]
    assert requests(IDS, file=file, rows=3).arrays[0]["IDS"].tolist() == [[1, 2], [3, 4], [5, 6]]
    file.write_text('{"data": [{"TEXT": ["a text"]}]}')
    assert requests(file=file).arrays[0]["TEXT"].tolist() == [[b"a text"]]


def test_other_inputs_are_the_same_in_every_request() -> None:
    model = ModelMetadata((TEXT, TensorMetadata("TOP", "INT32", (-1, 1))), ("LABEL",), batched=True)
    found = requests(model, values=["TOP=3"], rows=2)
    assert found.arrays[0]["TOP"].tolist() == found.arrays[9]["TOP"].tolist() == [[3], [3]]
    assert requests(IDS, values=["IDS=1,2,3"]).arrays[0]["IDS"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "--texts"),
        ("one\n", {"lengths": "median=3"}, "--lengths"),
        ('{"data": [{"OTHER": [1]}]}', {}, "OTHER"),
        (
            '{"data": [{"TEXT": {"content": ["a", "b"], "shape": [7]}}]}',
            {},
            "data[0].TEXT",
        ),
        ('{"data": 3}', {}, '"data"'),
        (None, {}, "--texts"),
        (None, {"file": None, "lengths": "median=0"}, "--lengths"),
        (
            None,
            {"file": None, "model": ModelMetadata((TEXT,), ("L",), batched=False), "rows": 2},
            "--rows 2",
        ),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, content: str | None, options: dict[str, Any], message: str, messages: Messages
) -> None:
    file = tmp_path / "texts"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CommandError) as caught:
        requests(**{"file": file, **options})
    assert message in str(caught.value)
    messages.check(str(caught.value))
    assert caught.value.code == EXIT_USAGE


# --- what is printed


def summary(
    rate: float, p99: float = 0.02, *, stable: bool = True, rows: int = 1, **fields: Any
) -> LoadSummary:
    step = StepStatistics(
        "tokenizer",
        100,
        0,
        100,
        50,
        0.001,
        0.0001,
        0.002,
        0.0001,
        2.0,
        0.0022,
        0.5,
        {2: 50},
    )
    values: dict[str, Any] = {
        "load": "",
        "requests_per_s": rate,
        "rows_per_s": rate * rows,
        "requests": 100,
        "failed": 0,
        "mean_s": 0.01,
        "p50_s": 0.01,
        "p90_s": 0.012,
        "p95_s": 0.015,
        "p99_s": p99,
        "max_s": 0.05,
        "lag_p99_s": 0.0001,
        "cpu_per_request_s": 4e-5,
        "cpu_share": 0.1,
        "errors": {},
        "stability": LoadStability(
            stable, "" if stable else "p99 differs by 40% between windows", ()
        ),
        "steps": {"tokenizer": step},
    }
    return LoadSummary(**{**values, **fields})


def report(**fields: Any) -> BenchReport:
    points = [
        SweepResult(LoadSpec(concurrency=1), (summary(90), summary(100), summary(98))),
        SweepResult(
            LoadSpec(concurrency=8), (summary(400, 0.05), summary(420, 0.06), summary(410, 0.055))
        ),
        SweepResult(LoadSpec(rate=200), (summary(199, 0.03),) * 3),
    ]
    values: dict[str, Any] = {
        "model": "sentiment",
        "address": "http://h:8000",
        "protocol": "http",
        "source": "texts.txt",
        "rows": 1,
        "seconds": 6.0,
        "warmup_seconds": 1.0,
        "points": points,
        "baseline": {BASELINE: points[0]},
        "names": ("tokenizer",),
    }
    return BenchReport(**{**values, **fields})


def test_csv_has_a_line_for_each_load() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(report()))))
    assert list(rows[0]) == list(COLUMNS)
    assert [row["load"] for row in rows] == [BASELINE, "concurrency 8", "200/s poisson"]
    assert rows[1] == {
        "load": "concurrency 8",
        "requests_per_second": "410.0000",
        "requests_per_second_min": "400.0000",
        "requests_per_second_max": "420.0000",
        "rows_per_second": "410.0000",
        "p50_ms": "10.0000",
        "p90_ms": "12.0000",
        "p95_ms": "15.0000",
        "p99_ms": "55.0000",
        "max_ms": "50.0000",
        "requests": "300",
        "failed": "0",
        "stable": "yes",
        "runs": "3",
    }


def test_json_has_every_run() -> None:
    document = bench_document(report())
    assert list(document) == [
        "version",
        "model",
        "address",
        "protocol",
        "requests",
        "secondsMeasured",
        "secondsWarmUp",
        "baseline",
        "points",
    ]
    assert [point["load"] for point in document["points"]] == [
        {"concurrency": 1},
        {"concurrency": 8},
        {"rate": 200, "arrivals": "poisson"},
    ]
    run = document["points"][1]["runs"][2]
    assert len(document["points"][1]["runs"]) == 3
    assert run["p99Milliseconds"] == 55.0
    assert run["generator"] == {
        "lagP99Milliseconds": 0.1,
        "cpuMicrosecondsPerRequest": 40.0,
        "cores": 0.1,
    }
    assert run["steps"]["tokenizer"]["queueMilliseconds"] == 1.0
    assert run["steps"]["tokenizer"]["batches"] == {"2": 50}
    # The median is one whole run, so that its figures go together.
    assert document["points"][1]["median"]["requestsPerSecond"] == 410.0


def test_a_load_without_an_answer_is_printed_without_numbers(messages: Messages) -> None:
    silent = summary(
        0, math.nan, p50_s=math.nan, errors={"503: no": 9}, failed=9, requests=0, steps={}
    )
    found = report(points=[SweepResult(LoadSpec(concurrency=2), (silent,))], baseline={})
    assert bench_document(found)["points"][0]["median"]["p99Milliseconds"] is None
    assert ",," in as_csv(found)
    (warning,) = warnings_of(found)
    assert "503" in warning
    messages.check(warning)
    ET.fromstring(svg(chart(found)))


def test_table_shows_loads_steps_and_remarks() -> None:
    out = Console(width=220, record=True, file=io.StringIO())
    for part in tables(report()):
        out.print(part)
    text = out.export_text()
    for words in (
        "× one by one",
        "concurrency 8",
        "4.18",
        "200/s poisson",
        "tokenizer",
        "time per request at concurrency 8",
        "rows/s",
    ):
        assert words in text


def test_a_narrow_terminal_cuts_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for part in tables(report()):
        print_wide(part)
    text = capsys.readouterr().out
    assert "…" not in text
    assert "× one by one" in text
    assert "4.18" in text


def test_remarks_say_what_makes_figures_doubtful() -> None:
    points = [
        SweepResult(LoadSpec(concurrency=1), (summary(100, stable=False),)),
        SweepResult(LoadSpec(concurrency=64), (summary(9000, cpu_share=0.95),)),
        SweepResult(
            LoadSpec(rate=500),
            (
                summary(
                    300,
                    0.02,
                    lag_p99_s=0.004,
                    stable=False,
                    failed=7,
                    errors={"no response within 30 s": 7},
                ),
            ),
        ),
    ]
    text = "\n".join(warnings_of(report(points=points, baseline={})))
    assert "not stable: concurrency 1 (p99 differs by 40% between windows)" in text
    assert "used a full core at concurrency 64" in text
    assert "sent late at 500/s poisson" in text
    assert "overloaded at 500/s poisson: only 300 requests/s complete, and latency grows" in text
    assert "percentiles exclude the failed requests" in text
    assert "500/s poisson (p99 differs" not in text, (
        "a longer measurement of a queue that grows is no steadier"
    )
    assert warnings_of(report()) == []


def test_plots_hold_every_point() -> None:
    page = svg(chart(report()))
    points = [
        item
        for item in ET.fromstring(page).iter("{http://www.w3.org/2000/svg}g")
        if item.get("id", "").startswith("point-")
    ]
    # p99 and p50 of two loads in a closed loop and one in an open one, and the baseline.
    assert len(points) == 2 * 3 + 1
    drawn = plot(report().points)
    assert drawn.count("c") - "closed".count("c") - drawn.count("c closed") == 2
    assert "410 rows/s" in drawn


def test_without_matplotlib_a_plot_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with messages.raises(CommandError, match="--plot") as error:
        check_plottable(tmp_path / "curve.svg")
    assert error.value.code == EXIT_USAGE
    check_plottable(None)


def test_the_command_line_starts_without_importing_matplotlib() -> None:
    code = "import sys, triton_pipelines.cli.main; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
