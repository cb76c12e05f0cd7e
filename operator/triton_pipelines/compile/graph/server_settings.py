"""Arguments and environment of Triton: flags of the operator, of features, and of the user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from triton_pipelines.api import names
from triton_pipelines.api.server import ServerSpec
from triton_pipelines.api.tls import TlsMode
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .graph import Graph, Step
from .options import IMAGE_FAMILIES, Options

# Arguments that the operator sets itself. A duplicate would stop Triton or expose the control API.
OWNED_ARGUMENTS = frozenset(
    {
        "--model-repository", "--model-store", "--model-control-mode", "--load-model",
        "--disable-auto-complete-config", "--strict-model-config", "--exit-on-error", "--http-port",
        "--grpc-port", "--metrics-port", "--http-restricted-api", "--grpc-restricted-protocol",
        "--exit-timeout-secs", "--grpc-max-connection-age", "--allow-http", "--allow-grpc",
        "--allow-metrics", "--model-config-name", "--repository-poll-secs", "--http-address",
        "--grpc-address", "--metrics-address", "--model-namespacing",
        # Other front ends accept model control without the key. TLS is set by server.tls, so that
        # the operator and the probes know of it.
        "--allow-sagemaker", "--allow-vertex-ai", "--grpc-use-ssl", "--grpc-use-ssl-mutual",
        "--grpc-server-cert", "--grpc-server-key", "--grpc-root-cert",
    }
)  # fmt: skip
# Arguments that observability.tracing sets. Depending on the order of the arguments, a duplicate
# would take precedence or stop Triton.
TRACE_ARGUMENTS = frozenset(
    {
        "--trace-config",
        "--trace-file",
        "--trace-level",
        "--trace-rate",
        "--trace-count",
        "--log-frequency",
    }
)
CACHE_ARGUMENTS = frozenset({"--cache-config", "--response-cache-byte-size"})
# Cannot be abbreviated, because the name of --rate-limit-resource begins with it.
RATE_LIMIT_ARGUMENT = "--rate-limit"
METRICS_ARGUMENT = "--metrics-config"
# Its settings for reported latencies, and our values: the median and the p99 of the last minute,
# the latter to a thousandth (each quantile adds a small cost to every request).
LATENCY_SETTINGS = ("summary_latencies", "summary_quantiles")
LATENCY_ARGUMENTS = (
    f"{METRICS_ARGUMENT}=summary_latencies=true",
    f"{METRICS_ARGUMENT}=summary_quantiles=0.5:0.05,0.99:0.001",
)
# Flag → the release that introduced it (release notes and branches of
# triton-inference-server/server). An unknown flag stops Triton. All flags that the operator sets
# are older than the oldest release that it supports.
FLAG_RELEASES = {
    "--grpc-max-response-pool-size": (25, 3),
    "--grpc-infer-thread-count": (25, 4),
    "--http-max-input-size": (25, 6),
    "--allow-client-shm": (26, 4),
}
# AIP_MODE=PREDICTION makes Triton open the Vertex AI front end instead of HTTP and gRPC, without
# an argument.
OWNED_ENVIRONMENT = frozenset(
    {
        names.ENV_CONTROL_KEY,
        "TOKENIZERS_PARALLELISM",
        "RAYON_NUM_THREADS",
        "AIP_MODE",
    }
)
RESERVED_GPU_ENVIRONMENT = frozenset({"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"})
# Triton's local response cache, where it is switched on: room for many thousand answers of a
# classifier.
RESPONSE_CACHE_BYTES = 256 * 1024**2
_TAG = re.compile(r":v?(\d{2})\.(\d{2})(?:[.\-_+]|$)")


def default_image(graph: Graph, options: Options) -> str:
    """Return the operator's image for a resource without one.

    It is of the family that contains the backend of one of the models.
    """
    families = [
        IMAGE_FAMILIES[step.backend] for step in graph.models if step.backend in IMAGE_FAMILIES
    ]
    return options.family_images[families[0]] if families else options.server_image


def server_version(version: str | None, image: str) -> tuple[int, int] | None:
    """Return the Triton release as (year, month).

    It is the given one, else read from the image's tag (``…:24.10-py3``), else ``None``.
    """
    if version is not None:
        year, month = version.split(".")
        return int(year), int(month)
    match = _TAG.search(image.split("@", 1)[0])
    return (int(match[1]), int(match[2])) if match else None


def server_arguments(
    repository: str,
    load: Sequence[str],
    *,
    exit_timeout_seconds: int,
    connection_age_milliseconds: int | None,
    control_key: str | None,
    auto_complete: bool = False,
    features: Sequence[str] = (),
    extra: Sequence[str] = (),
    tls: TlsMode | None = None,
) -> list[str]:
    """Return the arguments of ``tritonserver``, the same in a pod and in ``tritonpipe serve``.

    With ``--exit-on-error=false``, the index can be queried for why a model failed; readiness
    depends on the ensemble and not on the server. ``control_key`` is the text after ``admin-key=``
    (in a pod an environment reference, so that the pod contains no secret). ``features`` are the
    result of :func:`feature_arguments`, and ``extra`` the user's own arguments. With ``tls``, gRPC
    uses TLS only, and HTTP, which cannot, rejects all but health checks without the control key.
    """
    arguments = [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in load),
        # Configs are complete. If a backend completed them, the next count change would reload
        # the model.
        *([] if auto_complete else ["--disable-auto-complete-config"]),
        "--exit-on-error=false",
        f"--exit-timeout-secs={exit_timeout_seconds}",
    ]
    if connection_age_milliseconds is not None:
        # gRPC clients keep one connection; when it ends they connect to another pod.
        arguments.append(f"--grpc-max-connection-age={connection_age_milliseconds}")
    if control_key is not None:
        restriction = f"{names.CONTROL_GROUPS}:{names.CONTROL_HEADER}={control_key}"
        others = "" if tls is None else f"{names.CLIENT_GROUPS},"
        arguments += [
            f"--http-restricted-api={others}{restriction}",
            f"--grpc-restricted-protocol={restriction}",
        ]
    if tls is not None:
        arguments += _tls_arguments(tls)
    return [*arguments, *features, *extra]


def _tls_arguments(mode: TlsMode) -> list[str]:
    folder = names.PATH_TLS
    mutual = [
        "--grpc-use-ssl-mutual=true",
        f"--grpc-root-cert={folder}/{names.KEY_AUTHORITIES}",
    ]
    return [
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={folder}/{names.KEY_CERTIFICATE}",
        f"--grpc-server-key={folder}/{names.KEY_PRIVATE}",
        *(mutual if mode is TlsMode.MUTUAL else []),
    ]


def without_tls(arguments: Sequence[str], mode: TlsMode) -> list[str]:
    """Return the arguments of the same server without ``server.tls``."""
    added, others = set(_tls_arguments(mode)), f"{names.CLIENT_GROUPS},{names.CONTROL_GROUPS}:"
    return [
        item.replace(others, f"{names.CONTROL_GROUPS}:", 1)
        if item.startswith("--http-restricted-api=")
        else item
        for item in arguments
        if item not in added
    ]


def flag_of(argument: str) -> str:
    """Return the name of an argument's flag."""
    return re.split(r"[=\s]", argument, maxsplit=1)[0]


def same_flag(flag: str, known: Iterable[str]) -> str | None:
    """Return the flag of ``known`` that this flag abbreviates.

    Triton's parser accepts every unambiguous prefix of a name (getopt_long).
    """
    if flag in (known := sorted(known)):
        return flag
    return next(
        (one for one in known if len(flag) > 2 and flag.startswith("--") and one.startswith(flag)),
        None,
    )


def feature_arguments(pipeline: InferencePipeline, graph: Graph) -> list[str]:
    """Return the arguments of the response cache, of reported latencies and of tracing."""
    arguments: list[str] = []
    if pipeline.spec.slo.p99_milliseconds is not None and latency_argument(pipeline) is None:
        # Fixed at start, so adding an SLO creates a new revision; changing its value does not.
        arguments += LATENCY_ARGUMENTS
    if size := cache_bytes(graph) if cache_argument(pipeline) is None else 0:
        arguments.append(f"--cache-config=local,size={size}")
    if (tracing := graph.tracing) is not None:
        # OTLP over HTTP, fixed at start. The service is named after the pipeline, because one
        # collector receives the traces of several pipelines.
        arguments += [
            "--trace-config=mode=opentelemetry",
            f"--trace-config=opentelemetry,url={tracing.otlp_endpoint}",
            f"--trace-config=opentelemetry,resource=service.name={pipeline.name}",
            f"--trace-config=opentelemetry,resource=service.namespace={pipeline.namespace}",
            f"--trace-config=rate={tracing.sample_every}",
            "--trace-config=level=TIMESTAMPS",
        ]
    return arguments


def latency_argument(pipeline: InferencePipeline) -> str | None:
    """Return the user's argument for reported latencies, which replaces the operator's."""
    for item in pipeline.spec.server.args:
        flag, _, value = item.partition("=")
        if same_flag(flag, (METRICS_ARGUMENT,)) and value.startswith(LATENCY_SETTINGS):
            return item
    return None


def cache_argument(pipeline: InferencePipeline) -> str | None:
    """Return the user's argument for the response cache, which replaces the operator's."""
    return next(
        (item for item in pipeline.spec.server.args if same_flag(flag_of(item), CACHE_ARGUMENTS)),
        None,
    )


def limits_rates(pipeline: InferencePipeline) -> bool:
    """Return whether the user's arguments enable Triton's rate limiter, which is off by default.

    As in Triton, the last argument takes effect, and its value may have capital letters.
    """
    values = [
        item.partition("=")[2].lower()
        for item in pipeline.spec.server.args
        if flag_of(item) == RATE_LIMIT_ARGUMENT
    ]
    return bool(values) and values[-1] == "execution_count"


def cache_bytes(graph: Graph) -> int:
    """Return the bytes of the response cache; 0 if no config, patched ones included, uses it."""
    used = graph.response_cache or any(
        step.response_cache or "response_cache" in _patched(step) for step in graph.models
    )
    return RESPONSE_CACHE_BYTES if used else 0


def _patched(step: Step) -> set[str]:
    """Return the fields that ``configPatch`` sets, in the spelling of the proto file."""
    return {re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower() for key in step.config_patch or {}}


def refused_variable(name: str, value: str | None, server: ServerSpec) -> str | None:
    """Return why the Triton container may not have this environment variable, else ``None``."""
    hidden = server.gpu.count == 0 and value in ("", "void", "none", "-1")
    if name in RESERVED_GPU_ENVIRONMENT and not hidden:
        return (
            f"{name} would give the pod access to GPUs that the scheduler did not assign; "
            f"remove {name}, and request GPUs with server.gpu"
        )
    return f"{name} is set by the operator; remove {name}" if name in OWNED_ENVIRONMENT else None
