"""Write results into the pages of docs/benchmarks, between marks that name them.

    python -m bench.pages [--write]

A mark such as ``<!-- results: C1 C2 -->`` begins a block, ``<!-- end -->`` ends it. Blocks:

- ``results``: goal, value, whether it is met, and why not;
- ``runs`` (of a step response), ``gpu-runs`` (before a real step), ``laws`` (simulated comparison),
  ``traces`` (control laws on a real Triton), ``changes`` (counts changed in place), ``faults`` (bad
  metrics);
- ``pipeline-counts`` (cost of the operator);
- ``ways`` (architectures side by side), ``ratios`` (to perf_analyzer), ``paddings``, ``fills``
  (batches without padding), ``stage``, ``overhead``, ``limits`` (of queues);
- ``gains``, ``costs``, ``offline`` and ``place`` (of step times on a GPU);
- ``servers``, ``servers-many``, ``outside-model``, ``shares``, ``losses`` (of model servers);
- ``setup``: workload, what was simulated or replaced, machine and command;
- ``plots``: plots by name, those that exist.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench import scaling_tables, step_tables
from bench.results import FOLDER, thresholds
from bench.server_comparison import tables as server_tables
from bench.typography import measured, typeset

ROOT = FOLDER.parent
PAGES = ROOT / "docs" / "benchmarks"
RESULTS = FOLDER / "results"
MISSED_GOALS = FOLDER / "missed_goals.json"
_BLOCK = re.compile(r"(<!-- ([a-z-]+): ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)

Result = Mapping[str, Any]


class PageError(ValueError):
    """A page names a block or a result that does not exist."""


def result(identity: str) -> Result | None:
    """A result file; ``None``: not measured yet."""
    path = RESULTS / f"{identity}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def results(identities: Sequence[str]) -> str:
    """Return goals and values as a table and, below it, why goals were missed."""
    goals, reasons = thresholds(), json.loads(MISSED_GOALS.read_text(encoding="utf-8"))
    rows, missed = [], []
    for identity in identities:
        if identity not in goals:
            raise PageError(f"no threshold of {identity}")
        what, goal, found = goals[identity]["what"], goals[identity]["goal"], result(identity)
        if found is None:
            rows.append((identity, what, goal, "not measured yet", ""))
            continue
        low, high = found["spread"]
        rows.append(
            (
                identity,
                what,
                goal,
                measured(_number(found["value"]), (_number(low), _number(high)), found["unit"]),
                "met" if found["met"] else "**missed**",
            )
        )
        if not found["met"]:
            missed.append(
                _wrapped(f"- {identity}: {reasons.get(identity, 'The reason is not known yet.')}")
            )
    text = table(
        ("ID", "What is measured", "Goal", "Result: median (min to max)", "Goal met?"), rows
    )
    return f"{text}\n\nWhy goals were missed:\n\n" + "\n".join(missed) if missed else text


def _wrapped(text: str) -> str:
    """Return a paragraph or an entry of a list, wrapped as the rest of the page is."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def plots(names: Sequence[str]) -> str:
    """Plots by name, as far as they have been made."""
    made = [name for name in names if (RESULTS / "plots" / f"{name}.svg").exists()]
    return (
        "\n".join(f"![{_title(name)}](../../bench/results/plots/{name}.svg)" for name in made)
        or "No plots have been made yet."
    )


def _title(name: str) -> str:
    """Return the title of a plot, for readers who do not see it."""
    data = RESULTS / "plots" / f"{name}.json"
    return str(json.loads(data.read_text(encoding="utf-8"))["title"]) if data.exists() else name


def _number(value: float) -> str:
    return "never" if value >= 1e9 else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def runs(found: Result) -> str:
    """Runs of the step response."""
    head = (
        "Workload",
        "Metrics read from",
        "p99 within the SLO after",
        "Violations",
        "Instance-seconds vs. oracle",
        "Counts",
        "GPU starved",
        "Failed requests",
        "Verdicts",
    )
    rows = [
        (
            one["workload"],
            one["source"],
            "never" if one["recoverySeconds"] is None else f"{one['recoverySeconds']:.0f} s",
            (
                f"{one['violationsPercent']:.1f} % ({one['violationsOfThisRunPercent']:.1f} % of "
                "this short run)"
            ),
            f"{one['cost']:.2f}",
            " → ".join(str(count) for count in one["counts"]),
            f"{one['starvedPercent']:.0f} %",
            one["failed"],
            ", ".join(one["verdicts"]),
        )
        for one in found["detail"]["runs"]
    ]
    return table(head, rows)


def laws(found: Result) -> str:
    """The table that the comparison of control laws wrote beside its result."""
    return (RESULTS / f"{found['id']}.md").read_text(encoding="utf-8").strip()


def changes(found: Result) -> str:
    """Counts changed in place."""
    head = (
        "Workload",
        "Requests/s",
        "Requests",
        "Failed",
        "Longest at a steady count",
        "Excess over it, per change",
        "Duration of a change",
    )
    rows = [
        (
            one["workload"],
            f"{one['requestsPerSecond']:g}",
            one["requests"],
            one["failed"],
            f"{one['steadyLongestMilliseconds']:.0f} ms",
            ", ".join(f"{value:.0f}" for value in one["longestBeyondSteadyMilliseconds"]) + " ms",
            f"{min(one['changeSeconds']):.2f} to {max(one['changeSeconds']):.2f} s",
        )
        for one in found["detail"]["workloads"]
    ]
    return table(head, rows)


def faults(found: Result) -> str:
    """Bad metrics and downward steps, by seed."""
    head = ("Kind", "Fault", "Scale-downs, by seed")
    shown = [
        (one["kind"], name, ", ".join(str(count) for count in one["downwardSteps"]))
        for name, one in found["detail"]["faults"].items()
    ]
    good = ", ".join(str(count) for count in found["detail"]["goodMetrics"])
    return table(head, [*shown, ("none", "good metrics, for comparison", good)])


def traces(found: Result) -> str:
    """Laws on traces of a real Triton."""
    head = (
        "Trace",
        "Control law",
        "Violations",
        "Instance-seconds vs. oracle",
        "Counts",
        "GPU starved",
        "Failed requests",
    )
    rows = [
        (
            trace,
            law,
            f"{one['violationsPercent']:.1f} %",
            f"{one['cost']:.2f}",
            " → ".join(map(str, one["counts"])),
            f"{one['starvedPercent']:.0f} %",
            one["failed"],
        )
        for trace, by_law in found["detail"].items()
        for law, one in by_law.items()
    ]
    return table(head, rows)


def ways(found: Result) -> str:
    """Architectures on one load: requests/s and p99 of each."""
    detail = found["detail"]
    rows = [
        (
            name,
            *(
                "{:.0f} ({:.0f} to {:.0f})".format(*detail[figure][name])
                for figure in ("requestsPerSecond", "p99Milliseconds", "cpuMicrosecondsPerRequest")
            ),
        )
        for name in detail["requestsPerSecond"]
    ]
    return table(
        (
            "Variant",
            "Requests/s: median (min to max)",
            "p99 (ms)",
            "CPU time per request, all servers (µs)",
        ),
        rows,
    )


def ratios(found: Result) -> str:
    """Return the ratios of `tritonpipe bench` to perf_analyzer, by protocol and client count."""
    head = ("Load", "Requests/s", "p50", "p99")
    rows = [
        (
            load,
            *(
                "{:.2f} ({:.2f} to {:.2f})".format(*line[name])
                for name in ("requests_per_s", "p50_s", "p99_s")
            ),
        )
        for load, line in found["detail"].items()
    ]
    return table(head, rows)


def setup(found: Result) -> str:
    """Return the conditions of a result.

    They are the workload, the simulated or replaced parts, and when and where it was measured.
    """
    place = (
        f"on {found['machine']}, with `{found['command']}`, on {found['date']} at commit "
        f"{found['commit']}"
    )
    return table(
        ("Setup", "Details"),
        (
            ("workload", found["workload"]),
            ("simulated or replaced", "<br>".join(found["stand_ins"]) or "nothing"),
            ("measured", place),
        ),
    )


def paddings(found: Result) -> str:
    """Return the padding modes side by side."""
    head = (
        "Mode",
        "What is computed",
        "Requests/s: median (min to max)",
        "p50",
        "p99: median (min to max)",
        "Rows per execution",
        "Model step busy",
    )
    rows = [
        (
            name,
            one["meaning"],
            _spread(one["requestsPerSecond"], ""),
            f"{one['p50Milliseconds'][0]:.3g} ms",
            _spread(one["p99Milliseconds"], " ms"),
            f"{one['rowsPerExecution'][0]:.1f}",
            f"{one['modelBusy'][0]:.0%}",
        )
        for name, one in found["detail"]["variants"].items()
    ]
    return table(head, rows)


def fills(found: Result) -> str:
    """Return the speed of batches without padding, by number of rows."""
    head = (
        "Rows",
        "Share of padded positions that contain tokens",
        "Speed relative to the padded batch",
        "Speed relative to one row at a time",
    )
    rows = [
        (
            rows,
            _spread(one["fill"], ""),
            _spread(one["paddedOverFree"], ""),
            _spread(one["plainOverFree"], ""),
        )
        for rows, one in found["detail"]["rows"].items()
    ]
    return table(head, rows)


def overhead(found: Result) -> str:
    """Return the CPU per request of the tokenizer next to a model that does nothing.

    Results that are older than the removal of the Python tokenizer have its figures as well.
    """
    labels = (
        ("a model that does nothing", "floorMicroseconds", " µs"),
        ("built-in step", "nativeMicroseconds", " µs"),
        ("Python step", "pythonMicroseconds", " µs"),
        ("Python step relative to nothing", "pythonOverFloor", " times"),
        ("Python step relative to built-in", "pythonOverNative", " times"),
    )
    detail = found["detail"]
    rows = [(text, _spread(detail[key], unit)) for text, key, unit in labels if key in detail]
    return table(("CPU of the server per request", "Median (min to max)"), rows)


def stage(found: Result) -> str:
    """Return the tokenizer stage next to the library."""
    rows = [
        (
            "tokenizer stage: Triton's compute time",
            _spread(found["detail"]["stageMicroseconds"], " µs"),
        ),
        ("library alone, one thread", _spread(found["detail"]["libraryMicroseconds"], " µs")),
        (
            "library next to a busy core",
            _spread(found["detail"]["libraryBesideABusyCoreMicroseconds"], " µs"),
        ),
        (
            "stage relative to the library next to a busy core",
            _spread(found["detail"]["ratioBesideABusyCore"], " times"),
        ),
        *(
            (
                f"texts without repeated words: {name}",
                _spread(found["detail"]["newWords"][key], unit),
            )
            for name, key, unit in (
                ("stage", "stageMicroseconds", " µs"),
                ("library", "libraryMicroseconds", " µs"),
                ("ratio", "ratio", " times"),
            )
            if "newWords" in found["detail"]
        ),
        ("rows per execution", _spread(found["detail"]["rowsPerExecution"], "")),
        ("requests/s of one instance", _spread(found["detail"]["requestsPerSecond"], "")),
    ]
    return table(("Per request", "Median (min to max)"), rows)


def limits(found: Result) -> str:
    """Return what overload does under each queue limit, round by round."""
    head = (
        "Queue limit",
        "Goodput, share of the capacity",
        "Model step busy",
        "p99 of the answered requests",
        "Rejected after",
    )
    rows = [
        (
            one["meaning"],
            ", ".join(f"{each['goodputPercent']:.0f} %" for each in one["rounds"]),
            ", ".join(
                "-" if each["modelBusy"] is None else f"{each['modelBusy']:.0%}"
                for each in one["rounds"]
            ),
            ", ".join(
                "-" if each["p99Milliseconds"] is None else f"{each['p99Milliseconds']:.0f}"
                for each in one["rounds"]
            )
            + " ms",
            ", ".join(
                "-"
                if each["refusedAfterMilliseconds"] is None
                else f"{each['refusedAfterMilliseconds']:.0f}"
                for each in one["rounds"]
            )
            + " ms",
        )
        for one in found["detail"]["limits"].values()
    ]
    return table(head, rows)


def _spread(values: Sequence[float], unit: str) -> str:
    """Median, least and most."""
    middle, low, high = (_number(value) for value in values)
    return f"{middle} ({low} to {high}){unit}"


_OF_ONE: Mapping[str, Callable[[Result], str]] = {
    "runs": runs,
    "gpu-runs": lambda found: table(*scaling_tables.gpu_runs(found)),
    "laws": laws,
    "changes": changes,
    "faults": faults,
    "traces": traces,
    "setup": setup,
    "paddings": paddings,
    "fills": fills,
    "pipeline-counts": lambda found: table(*scaling_tables.pipeline_counts(found)),
    "stage": stage,
    "overhead": overhead,
    "limits": limits,
    "ways": ways,
    "ratios": ratios,
    "gains": lambda found: table(*step_tables.gains(found)),
    "costs": lambda found: table(*step_tables.costs(found)),
    "offline": lambda found: table(*step_tables.offline(found)),
    "servers": lambda found: table(*server_tables.throughput(found, server_tables.ONE)),
    "servers-many": lambda found: table(*server_tables.throughput(found, server_tables.MANY)),
    "outside-model": lambda found: table(*server_tables.outside_model(found)),
    "shares": lambda found: table(*server_tables.shares(found)),
    "losses": lambda found: table(*server_tables.losses(found)),
    "place": lambda found: _wrapped(step_tables.place(found)),
}


def block(kind: str, names: Sequence[str]) -> str:
    """Content of a block.

    Raises:
        PageError: there is no such block.
    """
    if kind == "results":
        return results(names)
    if kind == "plots":
        return plots(names)
    if kind not in _OF_ONE or len(names) != 1:
        raise PageError(
            f"no block {kind}: {' '.join(names)}; there are results, plots and, of one "
            f"result, {', '.join(_OF_ONE)}"
        )
    found = result(names[0])
    return (
        _OF_ONE[kind](found)
        if found is not None
        else f"Not measured yet: `make bench ID={names[0]}`."
    )


def page(text: str) -> str:
    """A page with its blocks renewed."""
    return _BLOCK.sub(
        lambda match: f"{match[1]}\n{typeset(block(match[2], match[3].split()))}\n\n{match[4]}",
        text,
    )


def main(arguments: list[str]) -> int:
    """Check the pages, or write them; exit code 1 on a difference."""
    differing = 0
    for path in sorted(PAGES.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = page(before)
        if before == after:
            continue
        if "--write" in arguments:
            path.write_text(after, encoding="utf-8")
            continue
        print(
            f"{path.relative_to(ROOT)} differs from bench/results: python -m bench.pages --write",
            file=sys.stderr,
        )
        differing += 1
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
