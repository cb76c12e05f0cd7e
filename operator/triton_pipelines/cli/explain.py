"""``tritonpipe explain``: what limits a pipeline, and what to do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from triton_pipelines.autoscaling.types import Verdict
from triton_pipelines.autoscaling.verdict_advice import ADVICE, VerdictAdvice
from triton_pipelines.controllers.scaling_conditions import reported_metrics_failure

from .option_groups import expand_options
from .output import printable
from .result_output import print_change, structured
from .scaling_view import METRICS, abnormal_conditions, metrics_of, scaled_steps, scaling_of
from .shared_options import ClusterOptions, OutputFormat, PipelineName
from .status import StatusQuery, exit_on_interrupt, no_pipelines, pipeline_query, poll_pipelines


@expand_options
def explain(cluster: ClusterOptions, name: PipelineName = None) -> None:
    """Explain what limits a pipeline, with the numbers behind it and what to do.

    Without NAME, explain all pipelines.

    Exit codes: 2 the pipeline does not exist, 3 the cluster cannot be reached.
    """
    with exit_on_interrupt(cluster):
        asyncio.run(_run(pipeline_query(name, cluster), cluster))


async def _run(query: StatusQuery, cluster: ClusterOptions) -> None:
    shown = ""
    async for pipelines in poll_pipelines(query, watch_seconds=math.inf if cluster.watch else 0.0):
        text = _format(query, pipelines, cluster.output)
        shown = print_change(text, shown, cluster.output)


def _format(
    query: StatusQuery, pipelines: Sequence[Mapping[str, Any]], output: OutputFormat
) -> str:
    documents = [explanation_document(pipeline) for pipeline in pipelines]
    if (text := structured(documents if query.name is None else documents[0], output)) is not None:
        return text
    parts = ["\n".join(explanation(printable(pipeline))) for pipeline in pipelines]
    return "\n\n".join(parts or [no_pipelines(query)]) + "\n"


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
            for kinds, reason, message in abnormal_conditions(pipeline)
        ],
        "advice": _moves(pipeline, advice, bottleneck) if advice and bottleneck else [],
        "figuresTime": state.get("figuresTime"),
        "padding": (pipeline.get("status") or {}).get("padding") or {},
        "lastChange": next(iter(state.get("history") or ()), None),
    }


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
    conditions = list(abnormal_conditions(pipeline))
    moves = _moves(pipeline, advice, state["bottleneck"])
    return [
        f"{name}: {state['bottleneck']}",
        f"Bottleneck: {advice.means}",
        _heading(state),
        *_step_lines(pipeline),
        *(f"  {kind} {reason}: {message}" for kind, reason, message in conditions),
        "What to do:" if moves else "What to do: no action is needed.",
        *(f"  {number}. {move}" for number, move in enumerate(moves, 1)),
        *_padding_lines(pipeline),
        *_last_change(state),
    ]


def _heading(state: Mapping[str, Any]) -> str:
    at = state.get("figuresTime")
    return f"Values from {at}:" if at else "Values:"


def _step_lines(pipeline: Mapping[str, Any]) -> Iterator[str]:
    """Yield each scaled step with its metrics and the reason of its verdict.

    During a metrics outage the conditions give the reason of Unknown, once for all steps.
    """
    has_outage = bool(reported_metrics_failure(pipeline.get("status") or {}))
    for item in scaled_steps(pipeline):
        metrics = metrics_of(pipeline, item)
        load = (
            ", ".join(f"{metrics[key]} {unit}" for key, unit in METRICS.items() if key in metrics)
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
        else VerdictAdvice(
            f"{verdict}: this verdict is from a newer operator and is unknown to this version "
            "of tritonpipe."
        )
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
