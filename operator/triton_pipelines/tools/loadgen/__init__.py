"""Generate load on a model that Triton serves and measure latency, throughput and time per step.

Independent of pipelines and clusters: it knows Triton's inference protocols and statistics only.

Put a load on a model: :class:`LoadTarget` (which model, which requests), :class:`LoadSpec` (how
many requests, for how long), then :func:`run_load` or :func:`run_blocking`, and :func:`sweep` for
several loads in turn. :class:`LoadResult` holds every request of a load, :class:`LoadSummary` its
figures; :func:`summary_document` is their one JSON form. :class:`TextLengths` and
:func:`generate_texts` make texts, :func:`read_lines` and :func:`read_perf_analyzer` read them.
"""

from triton_pipelines.tools.loadgen.arrivals import due_times
from triton_pipelines.tools.loadgen.engine import run_blocking, run_load
from triton_pipelines.tools.loadgen.event_loop import precise_event_loop
from triton_pipelines.tools.loadgen.grpc_client import INFER_METHOD, channel_arguments
from triton_pipelines.tools.loadgen.http_client import trusted_authorities
from triton_pipelines.tools.loadgen.load_spec import (
    Array,
    Arrivals,
    ClientTls,
    InferenceProtocol,
    LoadGeneratorError,
    LoadProgress,
    LoadSpec,
    LoadTarget,
)
from triton_pipelines.tools.loadgen.payloads import (
    LENGTH_HEADER,
    encode_requests,
    grpc_request,
    http_body,
)
from triton_pipelines.tools.loadgen.summary import (
    LoadResult,
    LoadStability,
    LoadSummary,
    stability,
    summarize,
    summary_document,
)
from triton_pipelines.tools.loadgen.sweep import (
    OnSweepProgress,
    SweepEndedError,
    SweepResult,
    sweep,
)
from triton_pipelines.tools.loadgen.texts import (
    InputValue,
    TextLengths,
    TextsError,
    batches,
    generate_texts,
    is_perf_analyzer,
    read_lines,
    read_perf_analyzer,
)
from triton_pipelines.tools.loadgen.triton_statistics import (
    StepStatistics,
    step_statistics,
)

__all__ = [
    "INFER_METHOD",
    "LENGTH_HEADER",
    "Array",
    "Arrivals",
    "ClientTls",
    "InferenceProtocol",
    "InputValue",
    "LoadGeneratorError",
    "LoadProgress",
    "LoadResult",
    "LoadSpec",
    "LoadStability",
    "LoadSummary",
    "LoadTarget",
    "OnSweepProgress",
    "StepStatistics",
    "SweepEndedError",
    "SweepResult",
    "TextLengths",
    "TextsError",
    "batches",
    "channel_arguments",
    "due_times",
    "encode_requests",
    "generate_texts",
    "grpc_request",
    "http_body",
    "is_perf_analyzer",
    "precise_event_loop",
    "read_lines",
    "read_perf_analyzer",
    "run_blocking",
    "run_load",
    "stability",
    "step_statistics",
    "summarize",
    "summary_document",
    "sweep",
    "trusted_authorities",
]
