"""``tritonpipe report``: one HTML page about a pipeline."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

import triton_pipelines
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import LoadPlan
from triton_pipelines.cluster.client import Client, ClientOptions
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import CONFIG_MAPS
from triton_pipelines.tools.loadgen.plots import Chart, LimitLine, PlotError, Point, Series, svg
from triton_pipelines.tools.report import ReportData, page

from .documents import check_resource
from .explain import explanation_document
from .options import OperatorConfigFile, operator_options
from .output import check_writable, write_file
from .shared_options import Context, Kubeconfig, Namespace
from .status import StatusQuery, context_namespace, poll_pipelines


def report(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")],
    output_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the page to this file. Default: NAME.html."),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    operator_config: OperatorConfigFile = None,
) -> None:
    """Write one self-contained HTML page about a pipeline, for example for a ticket.

    The page shows conditions, topology, load, instances, verdicts, the last tuning run, checks and
    the rendered configuration. It contains no Secret. Anyone can open it without access to the
    cluster.

    Exit codes: 2 the pipeline does not exist or the file cannot be written, 3 the cluster cannot be
    reached.
    """
    file = output_file or Path(f"{name}.html")
    check_writable(file, "--output-file")
    # Warnings of the client repeat what our own message says.
    logging.getLogger("kubernetes").setLevel(logging.ERROR)
    path = str(kubeconfig) if kubeconfig else None
    query = StatusQuery(namespace or context_namespace(path, context), name, path, context)
    pipeline, files, notes = asyncio.run(_read(query))
    checked = check_resource(name, pipeline, operator_options(operator_config))
    try:
        plot = tuning_plot(pipeline)
    except PlotError as error:
        plot, notes = "", [*notes, f"The tuning run is not plotted: {error}."]
    data = ReportData(
        pipeline,
        explanation_document(pipeline),
        dt.datetime.now(dt.UTC),
        triton_pipelines.__version__,
        checked.graph,
        [str(item) for item in checked.findings],
        [str(item) for item in checked.warnings],
        files,
        notes,
        plot,
    )
    write_file(file, page(data), "--output-file")
    typer.echo(f"wrote {file}", err=True)


async def _read(query: StatusQuery) -> tuple[dict[str, Any], Mapping[str, str], list[str]]:
    """Return the pipeline, the rendered files of its serving revision, and what was not read."""
    ((pipeline,),) = [pipelines async for pipelines in poll_pipelines(query)]
    status = pipeline.get("status") or {}
    revision = status.get("servingRevision") or status.get("revision")
    if not revision:
        return pipeline, {}, []
    config_map = names.revision_name(pipeline["metadata"]["name"], revision)
    try:
        async with Client(
            lambda: load_configuration(query.kubeconfig, query.context),
            ClientOptions(attempts=2, timeout_seconds=15.0),
        ) as client:
            found = await client.get(CONFIG_MAPS, pipeline["metadata"]["namespace"], config_map)
        return pipeline, _rendered_files(found.get("data") or {}), []
    except (ClusterError, ValidationError, KeyError) as error:
        note = f"The rendered configuration (ConfigMap {config_map}) could not be read: {error}."
        return pipeline, {}, [note]


def _rendered_files(data: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a revision's ConfigMap by their path in the model repository.

    Raises:
        KeyError: the load plan, or a file that it names, is missing.
        ValidationError: the load plan is invalid.
    """
    plan = LoadPlan.model_validate_json(data[names.KEY_PLAN])
    return {item.path: data[item.key] for item in plan.files}


def tuning_plot(pipeline: Mapping[str, Any]) -> str:
    """Return the points of the last tuning run as SVG; empty without any.

    Raises:
        PlotError: matplotlib is not installed.
    """
    tuning = (pipeline.get("status") or {}).get("tuning") or {}
    measured, predicted = [], []
    for item in tuning.get("points") or ():
        rate, name = float(item.get("requestsPerSecond") or 0), str(item.get("name") or "")
        if p99 := item.get("p99Microseconds"):
            measured.append(Point(rate, p99 / 1000, name))
        elif p99 := item.get("predictedP99Microseconds"):
            predicted.append(Point(rate, p99 / 1000, name, hollow=True))
    if not measured and not predicted:
        return ""
    slo = ((pipeline.get("spec") or {}).get("slo") or {}).get("p99Milliseconds")
    series = [
        Series(label, points, marks_only=True)
        for label, points in (("measured", measured), ("predicted", predicted))
        if points
    ]
    return svg(
        Chart(
            f"Tuning run {tuning.get('request', '')}",
            series,
            limits=(LimitLine("SLO", float(slo)),) if slo else (),
            hollow="predicted, not measured" if predicted else "",
        )
    )
