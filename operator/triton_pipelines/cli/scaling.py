"""``tritonpipe scaling``: what scaling does, live on request."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .live_figures import LiveFigures
from .option_groups import expand_options
from .output import console, printable
from .result_output import print_change, structured, table
from .scaling_view import METRICS, abnormal_conditions, metrics_of, scaled_steps, scaling_of
from .shared_options import ClusterOptions, OutputFormat, PipelineName
from .status import StatusQuery, exit_on_interrupt, no_pipelines, pipeline_query, poll_pipelines

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
PLOT_COLUMNS: Final = 120
"""Samples in the plot: four minutes at two seconds each."""


@expand_options
def scaling(cluster: ClusterOptions, name: PipelineName = None) -> None:
    """Show a pipeline's instance counts, load, wait and verdicts, and the last changes.

    Without NAME, show all pipelines. A watch of one pipeline reads its pods every two seconds,
    through a port-forward, and plots their figures on a terminal.

    Exit codes: 2 the pipeline does not exist, 3 the cluster cannot be reached.
    """
    query = pipeline_query(name, cluster)
    show = _watch if cluster.watch else _once
    with exit_on_interrupt(cluster):
        asyncio.run(show(query, cluster.output))


async def _once(query: StatusQuery, output: OutputFormat) -> None:
    async for pipelines in poll_pipelines(query):
        print_change(_format(query, pipelines, output), "", output)


async def _watch(query: StatusQuery, output: OutputFormat) -> None:
    page = console()
    async with LiveFigures(query.kubeconfig, query.context) as live:
        if query.name is not None and output.is_table and page.is_terminal:
            await _plot(query, live, page)
            return
        shown = note = ""
        async for found in poll_pipelines(query, watch_seconds=math.inf):
            pipelines: Sequence[Mapping[str, Any]] = found
            if query.name is not None:
                pipelines = [await live.updated(found[0])]
                if live.note != note:
                    typer.echo(note := live.note, err=True)
            shown = print_change(_format(query, pipelines, output), shown, output)


async def _plot(query: StatusQuery, live: LiveFigures, page: Console) -> None:
    history = ScalingHistory()
    with Live(console=page, auto_refresh=False) as drawn:
        async for (found,) in poll_pipelines(query, watch_seconds=math.inf):
            pipeline = printable(await live.updated(found))
            history.add(pipeline, time.time())
            drawn.update(
                Group(
                    *summary_lines(pipeline),
                    Text(live.note),
                    *history.plot(min(PLOT_COLUMNS, page.width - 32)),
                ),
                refresh=True,
            )


def _format(
    query: StatusQuery, pipelines: Sequence[Mapping[str, Any]], output: OutputFormat
) -> str:
    documents = [scaling_document(pipeline) for pipeline in pipelines]
    if query.name is None:
        documents = [
            {"namespace": item["metadata"]["namespace"], "name": item["metadata"]["name"], **rest}
            for item, rest in zip(pipelines, documents, strict=True)
        ]
    if (text := structured(documents if query.name is None else documents[0], output)) is not None:
        return text
    parts = [_tables(printable(pipeline), console()) for pipeline in pipelines]
    return "\n".join(parts or [no_pipelines(query) + "\n"])


def _tables(pipeline: Mapping[str, Any], page: Console) -> str:
    with page.capture() as text:
        for line in summary_lines(pipeline):
            page.print(line)
        steps = [
            (
                item["name"],
                f"{item.get('instances', '-')}/{item.get('desiredInstances', '-')}",
                f"{item.get('podsWithDesiredInstances', '-')}/{item.get('pods', '-')}",
                *(str(metrics_of(pipeline, item).get(name, "-")) for name in METRICS),
                item.get("verdict", "-"),
                item.get("verdictReason", ""),
            )
            for item in scaled_steps(pipeline)
        ]
        table(
            page,
            (
                "step",
                "instances/desired",
                "pods at desired",
                *METRICS.values(),
                "verdict",
                "reason",
            ),
            steps,
        )
        history = (scaling_of(pipeline)).get("history") or ()
        table(
            page,
            ("time", "step", "from", "to", "reason"),
            [
                tuple(str(item.get(key, "")) for key in ("time", "step", "from", "to", "reason"))
                for item in history
            ],
        )
    return text.get()


def scaling_document(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``scaling`` prints in formats for programs."""
    return {"scaling": scaling_of(pipeline), "steps": scaled_steps(pipeline)}


def summary_lines(pipeline: Mapping[str, Any]) -> list[Text]:
    """Return name, mode and verdict, and the abnormal conditions."""
    metadata, state = pipeline["metadata"], scaling_of(pipeline)
    head = (
        f"  {state.get('mode', '-')}  {state.get('bottleneck') or 'no verdict'}  last change "
        f"{state.get('lastScaleTime', '-')}  values from {state.get('figuresTime', '-')}"
    )
    result = [Text.assemble((f"{metadata['namespace']}/{metadata['name']}", "bold"), head)]
    return result + [
        Text(f"{kind} {reason}: {message}")
        for kind, reason, message in abnormal_conditions(pipeline)
    ]


@dataclass(slots=True)
class ScalingHistory:
    """Samples of a watch."""

    series: dict[tuple[str, str], deque[float]] = field(default_factory=dict)
    """Values by step and metric, newest last."""
    began: float | None = None
    """Time of the first sample, Unix seconds."""
    ended: float = 0.0
    """Time of the last sample, Unix seconds."""

    def add(self, pipeline: Mapping[str, Any], now: float) -> None:
        """Add a sample; ``now``: Unix seconds."""
        self.began, self.ended = now if self.began is None else self.began, now
        for item in scaled_steps(pipeline):
            values = {
                "instances": item.get("instances", 0),
                "desired": item.get("desiredInstances", 0),
            }
            values |= {
                unit: metrics_of(pipeline, item).get(key, math.nan) for key, unit in METRICS.items()
            }
            for unit, value in values.items():
                self.series.setdefault((item["name"], unit), deque(maxlen=PLOT_COLUMNS)).append(
                    float(value)
                )

    def plot(self, width: int) -> list[Text]:
        """Return a line for each series: name, newest value, sparkline."""
        seconds = self.ended - (self.began or self.ended)
        result = [Text(f"the last {seconds:.0f} s")]
        for (step, unit), values in self.series.items():
            newest = "-" if math.isnan(values[-1]) else f"{values[-1]:.0f}"
            line = sparkline(list(values)[-max(1, width) :])
            result.append(Text(f"{step:>12.12} {unit:<10} {newest:>6} {line}"))
        return result


def sparkline(values: Sequence[float]) -> str:
    """Return values as blocks from 0 to the largest; a blank for NaN (unknown)."""
    top = max((value for value in values if not math.isnan(value)), default=0.0)
    return "".join(
        _BLOCKS[0] if not value > 0 else _BLOCKS[max(1, round(value / top * (len(_BLOCKS) - 1)))]
        for value in values
    )
