"""``tritonpipe explain`` and ``tritonpipe scaling``: the bottleneck and what scaling does."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from triton_pipelines.autoscaling.types import Verdict
from triton_pipelines.autoscaling.verdict_advice import ADVICE, VerdictAdvice
from triton_pipelines.controllers.scaling_conditions import reported_metrics_failure

from .cluster_output import Output, OutputFormat, print_change, structured, table
from .output import console
from .shared_options import Context, Kubeconfig, Namespace
from .status import StatusQuery, context_namespace, poll_pipelines

CONDITIONS: Final = ("MetricsAvailable", "ScalingActive", "ScalingLimited")
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
PLOT_COLUMNS: Final = 120
"""Samples in the plot: four minutes at two seconds each."""
_METRICS: Final = {
    "requestsPerSecond": "requests/s",
    "busyPercent": "busy %",
    "waitMilliseconds": "wait ms",
}

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]


def explain(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Explain what limits a pipeline, with the numbers behind it and what to do.

    Exit codes: 2 the pipeline does not exist, 3 the cluster cannot be reached.
    """

    async def once(query: StatusQuery) -> None:
        async for (pipeline,) in poll_pipelines(query):
            text = structured(explanation_document(pipeline), output)
            typer.echo("\n".join(explanation(pipeline)) if text is None else text, nl=text is None)

    asyncio.run(once(_query(name, namespace, context, kubeconfig)))


def scaling(
    name: Name,
    namespace: Namespace = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Plot it live; Ctrl-C to stop. In a pipe, print each change.",
        ),
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show a pipeline's instance counts, load, wait and verdicts, and the last changes.

    Exit codes: 2 the pipeline does not exist, 3 the cluster cannot be reached.
    """
    try:
        asyncio.run(_run(_query(name, namespace, context, kubeconfig), watch=watch, output=output))
    except KeyboardInterrupt:
        raise typer.Exit(0 if watch else 128 + signal.SIGINT) from None


def _query(
    name: str, namespace: str | None, context: str | None, kubeconfig: Path | None
) -> StatusQuery:
    # Warnings of the client repeat what our own message says.
    logging.getLogger("kubernetes").setLevel(logging.ERROR)
    path = str(kubeconfig) if kubeconfig else None
    return StatusQuery(namespace or context_namespace(path, context), name, path, context)


async def _run(query: StatusQuery, *, watch: bool, output: OutputFormat) -> None:
    page = console()
    tables = output in (OutputFormat.TABLE, OutputFormat.WIDE)
    if watch and tables and page.is_terminal:
        history = ScalingHistory()
        with Live(console=page, auto_refresh=False) as live:
            async for (pipeline,) in poll_pipelines(query, watch_seconds=math.inf):
                history.add(pipeline, time.time())
                live.update(
                    Group(
                        *summary_lines(pipeline), *history.plot(min(PLOT_COLUMNS, page.width - 32))
                    ),
                    refresh=True,
                )
        return
    shown = ""
    async for (pipeline,) in poll_pipelines(query, watch_seconds=math.inf if watch else 0.0):
        text = structured(scaling_document(pipeline), output) or _format(pipeline, page)
        shown = print_change(text, shown, output)


def _format(pipeline: Mapping[str, Any], page: Console) -> str:
    with page.capture() as text:
        for line in summary_lines(pipeline):
            page.print(line)
        steps = [
            (
                item["name"],
                f"{item.get('instances', '-')}/{item.get('desiredInstances', '-')}",
                f"{item.get('podsWithDesiredInstances', '-')}/{item.get('pods', '-')}",
                *(str(metrics_of(pipeline, item).get(name, "-")) for name in _METRICS),
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
                *_METRICS.values(),
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


def scaling_of(pipeline: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``status.scaling``; empty if it is missing."""
    return (pipeline.get("status") or {}).get("scaling") or {}


def scaled_steps(pipeline: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the steps of the status that scaling manages: those with a verdict."""
    return [
        item for item in (pipeline.get("status") or {}).get("steps") or () if item.get("verdict")
    ]


def metrics_of(pipeline: Mapping[str, Any], step: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a step's metrics from the status.

    Empty while its verdict is Unknown: an unmeasured load is not zero.
    """
    if step.get("verdict") == Verdict.UNKNOWN.value:
        return {}
    return next(
        (
            item
            for item in scaling_of(pipeline).get("figures") or ()
            if item.get("step") == step["name"]
        ),
        {},
    )


def scaling_document(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``scaling`` prints in formats for programs."""
    return {"scaling": scaling_of(pipeline), "steps": scaled_steps(pipeline)}


def explanation_document(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``explain`` prints in formats for programs; without a verdict, no advice."""
    state = scaling_of(pipeline)
    bottleneck = None if _is_suspended(pipeline) else state.get("bottleneck")
    advice = _advice_for(bottleneck) if bottleneck else None
    return {
        "namespace": pipeline["metadata"]["namespace"],
        "name": pipeline["metadata"]["name"],
        "bottleneck": bottleneck,
        "meaning": advice.means if advice else _missing_verdict_reason(pipeline),
        "steps": [
            {**item, "figures": dict(metrics_of(pipeline, item))} for item in scaled_steps(pipeline)
        ],
        "conditions": [
            {"types": kinds, "reason": reason, "message": message}
            for kinds, reason, message in _abnormal_conditions(pipeline)
        ],
        "advice": _moves(pipeline, advice, bottleneck) if advice and bottleneck else [],
        "padding": (pipeline.get("status") or {}).get("padding") or {},
        "lastChange": next(iter(state.get("history") or ()), None),
    }


def summary_lines(pipeline: Mapping[str, Any]) -> list[Text]:
    """Return name, mode and verdict, and the abnormal conditions."""
    metadata, state = pipeline["metadata"], scaling_of(pipeline)
    head = (
        f"  {state.get('mode', '-')}  {state.get('bottleneck') or 'no verdict'}"
        f"  last change {state.get('lastScaleTime', '-')}"
    )
    result = [Text.assemble((f"{metadata['namespace']}/{metadata['name']}", "bold"), head)]
    return result + [
        Text(f"{kind} {reason}: {message}")
        for kind, reason, message in _abnormal_conditions(pipeline)
    ]


def _abnormal_conditions(pipeline: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the types, reason and message of abnormal conditions; equal messages are merged."""
    types: dict[tuple[str, str], list[str]] = {}
    for item in (pipeline.get("status") or {}).get("conditions") or ():
        good = "False" if item["type"] == "ScalingLimited" else "True"
        if item["type"] in CONDITIONS and item["status"] != good:
            types.setdefault(
                (item["reason"], item["message"].removeprefix(f"{item['reason']}: ")), []
            ).append(item["type"])
    for (reason, message), kinds in types.items():
        yield ", ".join(kinds), reason, message


def _padding_lines(pipeline: Mapping[str, Any]) -> list[str]:
    """Return the padding mode in use and its reason; nothing for a pipeline without tokens."""
    padding = (pipeline.get("status") or {}).get("padding") or {}
    if not padding.get("chosen"):
        return []
    return [f"Padding: {padding['chosen']}: {padding.get('reason', '')}"]


def explanation(pipeline: Mapping[str, Any]) -> list[str]:
    """Return what limits a pipeline, the numbers behind it, and what to do, line by line."""
    metadata, state = pipeline["metadata"], scaling_of(pipeline)
    name = f"{metadata['namespace']}/{metadata['name']}"
    if not state.get("bottleneck") or _is_suspended(pipeline):
        return [f"{name}: {_missing_verdict_reason(pipeline)}", *_padding_lines(pipeline)]
    advice = _advice_for(state["bottleneck"])
    conditions = list(_abnormal_conditions(pipeline))
    moves = _moves(pipeline, advice, state["bottleneck"])
    return [
        f"{name}: {state['bottleneck']}",
        f"Bottleneck: {advice.means}",
        "Numbers:",
        *_step_lines(pipeline),
        *(f"  {kind} {reason}: {message}" for kind, reason, message in conditions),
        "What to do:" if moves else "What to do: nothing.",
        *(f"  {number}. {move}" for number, move in enumerate(moves, 1)),
        *_padding_lines(pipeline),
        *_last_change(state),
    ]


def _step_lines(pipeline: Mapping[str, Any]) -> Iterator[str]:
    """Yield each scaled step with its metrics and the reason of its verdict.

    During a metrics outage the conditions give the reason of Unknown, once for all steps.
    """
    has_outage = bool(reported_metrics_failure(pipeline.get("status") or {}))
    for item in scaled_steps(pipeline):
        metrics = metrics_of(pipeline, item)
        load = (
            ", ".join(f"{metrics[key]} {unit}" for key, unit in _METRICS.items() if key in metrics)
            or "load unknown"
        )
        yield (
            f"  {item['name']} ({item['verdict']}): {item.get('instances', 0)} of"
            f" {item.get('desiredInstances', 0)} desired in each pod; {load}"
        )
        is_explained = has_outage and item["verdict"] == Verdict.UNKNOWN
        if item.get("verdictReason") and not is_explained:
            yield f"    {item['verdictReason']}"


def _moves(pipeline: Mapping[str, Any], advice: VerdictAdvice, bottleneck: str) -> list[str]:
    """Return the advice for the bottleneck, then for the other verdicts, each once."""
    moves = list(advice.moves)
    for item in scaled_steps(pipeline):
        if item["verdict"] != bottleneck:
            moves += [move for move in _advice_for(item["verdict"]).moves if move not in moves]
    return moves


def _last_change(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the last change of an instance count, if there is one."""
    for item in (state.get("history") or ())[:1]:
        verb = "would go" if state.get("mode") == "Advisory" else "went"
        yield (
            f"Last change: {item['time']} {item['step']} {verb} from {item['from']}"
            f" to {item['to']}: {item['reason']}"
        )


def _advice_for(verdict: str) -> VerdictAdvice:
    known = {item.value for item in Verdict}
    return (
        ADVICE[Verdict(verdict)]
        if verdict in known
        else VerdictAdvice(f"{verdict}: reported by a newer operator than this tritonpipe knows.")
    )


def _is_suspended(pipeline: Mapping[str, Any]) -> bool:
    return (pipeline.get("spec") or {}).get("suspend") == "Enabled"


def _missing_verdict_reason(pipeline: Mapping[str, Any]) -> str:
    spec = pipeline.get("spec") or {}
    if (spec.get("scaling") or {}).get("mode") == "Disabled":
        return (
            "spec.scaling.mode is Disabled, so there is no verdict. Mode Advisory provides "
            "verdicts without changing anything."
        )
    if _is_suspended(pipeline):
        return "the pipeline is suspended, so there are no pods to measure."
    return (
        "no scaling verdict yet. It appears within a minute of a pod becoming ready, if a step can"
        " be scaled: instances.max is above instances.min, and autoComplete is off."
    )


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
                unit: metrics_of(pipeline, item).get(key, math.nan)
                for key, unit in _METRICS.items()
            }
            for unit, value in values.items():
                self.series.setdefault((item["name"], unit), deque(maxlen=PLOT_COLUMNS)).append(
                    float(value)
                )

    def plot(self, width: int) -> list[Text]:
        """Return a line for each series: name, newest value, sparkline."""
        seconds = self.ended - (self.began or self.ended)
        result = [
            Text(
                f"the last {seconds:.0f} s; metrics are read from the status, which is updated"
                " at most once a minute while nothing changes"
            )
        ]
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
