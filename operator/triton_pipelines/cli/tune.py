"""``tritonpipe tune``: batching chosen by measurement."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .failure import EXIT_FAILED, Failure
from .options import OperatorConfigFile, SubstituteRunner


class Output(StrEnum):
    """How the report is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def tune(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file with one InferencePipeline; - reads standard input.")],
    server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="gRPC address of a Triton that runs this pipeline and serves nobody else. Default: it is served here."
        ),
    ] = None,
    control_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --server: file with the key of its control API, where that is restricted.")
    ] = None,
    thorough: Annotated[bool, typer.Option("--thorough", help="Longer runs, repeated, with confidence intervals.")] = False,
    slo: Annotated[float | None, typer.Option(metavar="MS", min=1, help="p99 to keep, in milliseconds. Default: spec.slo.p99Milliseconds.")] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", min=0.1, help="Requests per second that it gets. Default: as many as it can carry.")
    ] = None,
    texts: Annotated[Path | None, typer.Option(metavar="FILE", help="Texts of the real traffic, one a line.")] = None,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Lengths in tokens of made-up texts: 128, 16,64,256 or lognormal:MEDIAN,SIGMA. Default: lognormal:32,0.6."),
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Rows (texts) of a request.")] = 1,
    output: Annotated[Output, typer.Option("--output", "-o", help="How the report is printed; yaml is the patch alone.")] = Output.TABLE,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the throughput-latency curve as SVG.")] = None,
    report_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as JSON, in the shape of status.tuning.")] = None,
    source_map: Annotated[
        list[str] | None,
        typer.Option(metavar="PREFIX=TARGET", help="Where sources really lie; repeatable.", envvar="TRITONPIPE_SOURCE_MAP"),
    ] = None,
    mounts: Annotated[Path | None, typer.Option(metavar="FOLDER", help="What a pod would have mounted, as of `tritonpipe serve`.")] = None,
    operator_config: OperatorConfigFile = None,
    substitute_runner: SubstituteRunner = None,
) -> None:
    """Measure a pipeline, choose its batching for the SLO and prove it; prints a patch for the resource.

    Exit code: 0 measured (whether or not anything better is proven), 1 the resource is not valid, 2 wrong use, 3 the server failed.
    """
    raise Failure("not built yet", EXIT_FAILED)
