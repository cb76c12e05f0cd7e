"""``tritonpipe explain`` and ``tritonpipe scaling``: what limits a pipeline, what would move it, and what scaling did about it."""

from __future__ import annotations

import asyncio
import json
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

from .output import console
from .status import Asked, context_namespace, looks, table

CONDITIONS: Final = ("MetricsAvailable", "ScalingActive", "ScalingLimited")
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
# Looks that the plot shows; at two seconds each four minutes.
PLOT_COLUMNS: Final = 120
_FIGURES: Final = {
    "requestsPerSecond": "requests/s",
    "busyPercent": "busy %",
    "waitMilliseconds": "wait ms",
}

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Its namespace. Default: that of the kubeconfig's context.",
    ),
]
Context = Annotated[
    str | None, typer.Option(metavar="NAME", help="kubeconfig context. Default: the current one.")
]
Kubeconfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Default: KUBECONFIG, then ~/.kube/config.")
]


def explain(
    name: Name, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None
) -> None:
    """Say in plain words what limits a pipeline, the numbers behind it, and what would move it.

    Exit code: 2 there is no such pipeline, 3 the cluster cannot be asked.
    """

    async def once(asked: Asked) -> None:
        async for (found,) in looks(asked, watch=False):
            typer.echo("\n".join(explained(found)))

    asyncio.run(once(_asked(name, namespace, context, kubeconfig)))


def scaling(
    name: Name,
    namespace: Namespace = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Plot it live, until Ctrl-C; into a pipe, print it whenever it changes.",
        ),
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print status.scaling and the scaled steps as JSON.")
    ] = False,
) -> None:
    """Show a pipeline's instance counts, load, wait and verdict, and the last changes.

    Exit code: 2 there is no such pipeline, 3 the cluster cannot be asked.
    """
    try:
        asyncio.run(
            _show(_asked(name, namespace, context, kubeconfig), watch=watch, as_json=as_json)
        )
    except KeyboardInterrupt:
        raise typer.Exit(0 if watch else 128 + signal.SIGINT) from None


def _asked(name: str, namespace: str | None, context: str | None, kubeconfig: Path | None) -> Asked:
    logging.getLogger("kubernetes").setLevel(
        logging.ERROR
    )  # what it warns of stands in our own message
    path = str(kubeconfig) if kubeconfig else None
    return Asked(namespace or context_namespace(path, context), name, path, context)


async def _show(asked: Asked, *, watch: bool, as_json: bool) -> None:
    page = console()
    if watch and not as_json and page.is_terminal:
        history = History()
        with Live(console=page, auto_refresh=False) as live:
            async for (found,) in looks(asked, watch=True):
                history.add(found, time.time())
                live.update(
                    Group(*lines(found), *history.plot(min(PLOT_COLUMNS, page.width - 32))),
                    refresh=True,
                )
        return
    shown = ""
    async for (found,) in looks(asked, watch=watch):
        text = (
            json.dumps(document(found), ensure_ascii=False) + "\n"
            if as_json
            else _printed(found, page)
        )
        if text != shown:
            typer.echo(("" if as_json or not shown else "\n") + text, nl=False)
            shown = text


def _printed(pipeline: Mapping[str, Any], page: Console) -> str:
    with page.capture() as text:
        for line in lines(pipeline):
            page.print(line)
        steps = [
            (
                item["name"],
                f"{item.get('instances', '-')}/{item.get('desiredInstances', '-')}",
                f"{item.get('podsWithDesiredInstances', '-')}/{item.get('pods', '-')}",
                *(str(figures_of(pipeline, item).get(name, "-")) for name in _FIGURES),
                item.get("verdict", "-"),
                item.get("verdictReason", ""),
            )
            for item in scaled_steps(pipeline)
        ]
        table(
            page,
            ("step", "instances/wanted", "pods in line", *_FIGURES.values(), "verdict", "why"),
            steps,
        )
        history = (scaling_of(pipeline)).get("history") or ()
        table(
            page,
            ("time", "step", "from", "to", "why"),
            [
                tuple(str(item.get(key, "")) for key in ("time", "step", "from", "to", "reason"))
                for item in history
            ],
        )
    return text.get()


# --- what the status holds -------------------------------------------------------------------------------------------------------


def scaling_of(pipeline: Mapping[str, Any]) -> Mapping[str, Any]:
    """``status.scaling``."""
    return (pipeline.get("status") or {}).get("scaling") or {}


def scaled_steps(pipeline: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Steps that scaling looks after, as the status has them."""
    return [
        item for item in (pipeline.get("status") or {}).get("steps") or () if item.get("verdict")
    ]


def figures_of(pipeline: Mapping[str, Any], step: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures of a step of the status; none while its verdict is Unknown: a load that nobody measures is not one of zero."""
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


def document(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {"scaling": scaling_of(pipeline), "steps": scaled_steps(pipeline)}


def lines(pipeline: Mapping[str, Any]) -> list[Text]:
    """Name, mode and verdict, and the conditions that are not as they should be."""
    metadata, state = pipeline["metadata"], scaling_of(pipeline)
    head = f"  {state.get('mode', '-')}  {state.get('bottleneck') or 'no verdict'}  last change {state.get('lastScaleTime', '-')}"
    result = [Text.assemble((f"{metadata['namespace']}/{metadata['name']}", "bold"), head)]
    return result + [
        Text(f"{kind} {reason}: {message}") for kind, reason, message in _troubles(pipeline)
    ]


def _troubles(pipeline: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Conditions that are not as they should be, with reason and message; those that say the same are named together."""
    told: dict[tuple[str, str], list[str]] = {}
    for item in (pipeline.get("status") or {}).get("conditions") or ():
        good = "False" if item["type"] == "ScalingLimited" else "True"
        if item["type"] in CONDITIONS and item["status"] != good:
            told.setdefault(
                (item["reason"], item["message"].removeprefix(f"{item['reason']}: ")), []
            ).append(item["type"])
    for (reason, message), kinds in told.items():
        yield ", ".join(kinds), reason, message


def _padding(pipeline: Mapping[str, Any]) -> list[str]:
    """The padding that runs, and why, with what was measured of others; nothing in a pipeline without tokens."""
    told = (pipeline.get("status") or {}).get("padding") or {}
    return [f"Padding: {told['chosen']}: {told.get('reason', '')}"] if told.get("chosen") else []


def explained(pipeline: Mapping[str, Any]) -> list[str]:
    """What limits a pipeline, in plain words."""
    metadata, state = pipeline["metadata"], scaling_of(pipeline)
    name = f"{metadata['namespace']}/{metadata['name']}"
    if not state.get("bottleneck") or _suspended(pipeline):
        return [f"{name}: {_why_silent(pipeline)}", *_padding(pipeline)]
    advice = _advice(state["bottleneck"])
    result = [f"{name}: {state['bottleneck']}", f"What limits it: {advice.means}", "The numbers:"]
    troubles = list(_troubles(pipeline))
    for item in scaled_steps(pipeline):
        figures = figures_of(pipeline, item)
        told = (
            ", ".join(f"{figures[key]} {unit}" for key, unit in _FIGURES.items() if key in figures)
            or "load not known"
        )
        result.append(
            f"  {item['name']} ({item['verdict']}): {item.get('instances', 0)} of {item.get('desiredInstances', 0)} wanted in each pod; {told}"
        )
        reason = item.get("verdictReason", "")
        for _, why, message in troubles:  # what a condition says is said once, there
            reason = (
                reason.removesuffix(message).rstrip(" :;").removesuffix(why)
                if reason.endswith(message)
                else reason
            )
        if reason:
            result.append(f"    {reason}")
    result += [f"  {kind} {reason}: {message}" for kind, reason, message in troubles]
    moves = list(advice.moves)
    for item in scaled_steps(pipeline):
        moves += [
            move
            for move in _advice(item["verdict"]).moves
            if item["verdict"] != state["bottleneck"] and move not in moves
        ]
    result.append("What would move it:" if moves else "What would move it: nothing has to.")
    result += [f"  {number}. {move}" for number, move in enumerate(moves, 1)]
    result += _padding(pipeline)
    for item in (state.get("history") or ())[:1]:
        verb = "would go" if state.get("mode") == "Advisory" else "went"
        result.append(
            f"Last change: {item['time']} {item['step']} {verb} from {item['from']} to {item['to']}: {item['reason']}"
        )
    return result


def _advice(verdict: str) -> VerdictAdvice:
    known = {item.value for item in Verdict}
    return (
        ADVICE[Verdict(verdict)]
        if verdict in known
        else VerdictAdvice(f"{verdict}: a newer operator than this tritonpipe says so.")
    )


def _suspended(pipeline: Mapping[str, Any]) -> bool:
    return (pipeline.get("spec") or {}).get("suspend") == "Enabled"


def _why_silent(pipeline: Mapping[str, Any]) -> str:
    spec = pipeline.get("spec") or {}
    if (spec.get("scaling") or {}).get("mode") == "Disabled":
        return (
            "spec.scaling.mode is Disabled: nobody looks. Mode Advisory looks, and changes nothing."
        )
    if _suspended(pipeline):
        return "it is suspended: there are no pods to look at."
    return (
        "the operator has said nothing of its scaling yet. It does within a minute of a pod being ready, where a step can be scaled:"
        " one whose instances have a max above their min, and no autoComplete."
    )


# --- the plot ----------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class History:
    """What the looks of a watch have shown: series by step and figure, newest last."""

    series: dict[tuple[str, str], deque[float]] = field(default_factory=dict)
    began: float | None = None
    ended: float = 0.0

    def add(self, pipeline: Mapping[str, Any], now: float) -> None:
        """Take in a look; ``now``: Unix seconds."""
        self.began, self.ended = now if self.began is None else self.began, now
        for item in scaled_steps(pipeline):
            values = {
                "instances": item.get("instances", 0),
                "wanted": item.get("desiredInstances", 0),
            }
            values |= {
                unit: figures_of(pipeline, item).get(key, math.nan)
                for key, unit in _FIGURES.items()
            }
            for unit, value in values.items():
                self.series.setdefault((item["name"], unit), deque(maxlen=PLOT_COLUMNS)).append(
                    float(value)
                )

    def plot(self, width: int) -> list[Text]:
        """A line for each series: its name, its newest value, and how it went."""
        seconds = self.ended - (self.began or self.ended)
        result = [
            Text(
                f"the last {seconds:.0f} s; figures are as the status has them, which is at most once a minute where nothing happens"
            )
        ]
        for (step, unit), values in self.series.items():
            newest = "-" if math.isnan(values[-1]) else f"{values[-1]:.0f}"
            result.append(
                Text(
                    f"{step:>12.12} {unit:<10} {newest:>6} {sparkline(list(values)[-max(1, width) :])}"
                )
            )
        return result


def sparkline(values: Sequence[float]) -> str:
    """Values as blocks from 0 to the largest; a blank for NaN, which is not known."""
    top = max((value for value in values if not math.isnan(value)), default=0.0)
    return "".join(
        _BLOCKS[0] if not value > 0 else _BLOCKS[max(1, round(value / top * (len(_BLOCKS) - 1)))]
        for value in values
    )
