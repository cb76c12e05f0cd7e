"""Derive server settings from the Triton release and the number of python instances.

The settings are flags, shared memory, CPU and memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from triton_pipelines.api import names
from triton_pipelines.api.scaling import CpuResize
from triton_pipelines.api.server import ServerSpec
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
        # Other front ends accept model control without the key. The operator and the probes use
        # plain gRPC and HTTP.
        "--allow-sagemaker", "--allow-vertex-ai", "--grpc-use-ssl", "--grpc-use-ssl-mutual",
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
METRICS_ARGUMENT = "--metrics-config"
# Its settings for reported latencies, and our values: the median and the p99 of the last minute,
# the latter to a thousandth (each quantile adds a small cost to every request).
LATENCY_SETTINGS = ("summary_latencies", "summary_quantiles")
LATENCY_ARGUMENTS = (
    f"{METRICS_ARGUMENT}=summary_latencies=true",
    f"{METRICS_ARGUMENT}=summary_quantiles=0.5:0.05,0.99:0.001",
)
# Flag → the release that brought it (release notes and branches of triton-inference-server/server);
# an unknown flag ends Triton. All that the operator itself writes are older than the oldest release
# that it takes.
FLAG_RELEASES = {
    "--grpc-max-response-pool-size": (25, 3),
    "--grpc-infer-thread-count": (25, 4),
    "--http-max-input-size": (25, 6),
    "--allow-client-shm": (26, 4),
}
# AIP_MODE=PREDICTION makes Triton open the Vertex AI front end in place of HTTP and gRPC, without
# an argument.
OWNED_ENVIRONMENT = frozenset(
    {
        names.ENV_SITE,
        names.ENV_CONTROL_KEY,
        "TOKENIZERS_PARALLELISM",
        "RAYON_NUM_THREADS",
        "AIP_MODE",
    }
)
RESERVED_GPU_ENVIRONMENT = frozenset({"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"})

# Need of the server itself, before any python instance: host memory for the model while it loads,
# CUDA contexts, Triton.
BASE_CPU_MILLIS = 250
BASE_MEMORY = 2 * 1024**3
# Triton's local response cache, where it is switched on: room for many thousand answers of a
# classifier.
RESPONSE_CACHE_BYTES = 256 * 1024**2
# Triton's own default of max_sequence_idle_microseconds (core: sequence_batch_scheduler.cc).
DEFAULT_IDLE_MICROSECONDS = 1_000_000
# Between a last sequence's end and the server's: unloading took 3 s (measured, 24.10).
UNLOAD_SECONDS = 5
# One shared-memory region per python instance: 1 MB growing in 1 MB steps from 24.10, 64 MB in
# older ones (python_backend).
SHARED_MEMORY_BASE = 64 * 1024**2
SHARED_MEMORY_PER_INSTANCE = 64 * 1024**2

_SUFFIX = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
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


def millis(quantity: str) -> int:
    """A CPU quantity in thousandths of a core."""
    if quantity.endswith("m"):
        return _ceiling(Decimal(quantity[:-1]))
    return _ceiling(_number(quantity) * 1000)


def bytes_of(quantity: str) -> int:
    """A memory quantity in bytes."""
    if quantity.endswith("m"):
        return _ceiling(Decimal(quantity[:-1]) / 1000)
    return _ceiling(_number(quantity))


def _ceiling(value: Decimal) -> int:
    """Rounded up, as Kubernetes does with more precision than it keeps."""
    return int(value.to_integral_value(rounding="ROUND_CEILING"))


def _number(quantity: str) -> Decimal:
    match = re.match(r"^([0-9.]+)([A-Za-z]*)$", quantity)
    if match is None or match[2] not in _SUFFIX:
        raise ValueError(f"{quantity!r} is no quantity")
    return Decimal(match[1]) * _SUFFIX[match[2]]


def cpu(thousandths: int) -> str:
    """The canonical spelling of a CPU quantity, as the API server stores it."""
    return _decimal(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def memory(count: int) -> str:
    """The canonical spelling of a memory quantity in bytes."""
    for power, suffix in enumerate(("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")):
        unit = 1024 ** (6 - power)
        if count and count % unit == 0:
            return f"{count // unit}{suffix}"
    return _decimal(count)


def _decimal(count: int) -> str:
    for power, suffix in enumerate(("E", "P", "T", "G", "M", "k")):
        unit = 1000 ** (6 - power)
        if count and count % unit == 0:
            return f"{count // unit}{suffix}"
    return str(count)


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
) -> list[str]:
    """Return the arguments of ``tritonserver``, the same in a pod and in ``tritonpipe serve``.

    With ``--exit-on-error=false``, the index can be queried for why a model failed; readiness
    depends on the ensemble and not on the server. ``control_key`` is the text after ``admin-key=``
    (in a pod an environment reference, so that the pod contains no secret). ``features`` are the
    result of :func:`feature_arguments`, and ``extra`` the user's own arguments.
    """
    arguments = [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in load),
        # Configs are complete: what a backend would fill in makes the next count change a full
        # reload.
        *([] if auto_complete else ["--disable-auto-complete-config"]),
        "--exit-on-error=false",
        f"--exit-timeout-secs={exit_timeout_seconds}",
    ]
    if connection_age_milliseconds is not None:
        # gRPC clients stick to one connection; its end makes them look for another pod.
        arguments.append(f"--grpc-max-connection-age={connection_age_milliseconds}")
    if control_key is not None:
        restriction = f"{names.CONTROL_GROUPS}:{names.CONTROL_HEADER}={control_key}"
        arguments += [
            f"--http-restricted-api={restriction}",
            f"--grpc-restricted-protocol={restriction}",
        ]
    return [*arguments, *features, *extra]


def flag_of(argument: str) -> str:
    """The name of an argument's flag."""
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
    """Arguments that fields of the resource ask for: the response cache, latencies, traces."""
    arguments: list[str] = []
    if pipeline.spec.slo.p99_milliseconds is not None and latency_argument(pipeline) is None:
        # Fixed at start, so that the first promise is a new revision; another figure for it is
        # none.
        arguments += LATENCY_ARGUMENTS
    if size := _cache_bytes(graph) if cache_argument(pipeline) is None else 0:
        arguments.append(f"--cache-config=local,size={size}")
    if (tracing := graph.tracing) is not None:
        # OTLP over HTTP, fixed at start. The pipeline's name is the service: traces of several
        # arrive at one collector.
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
    """Return the user's own setting of reported latencies, which replaces ours."""
    for item in pipeline.spec.server.args:
        flag, _, value = item.partition("=")
        if same_flag(flag, (METRICS_ARGUMENT,)) and value.startswith(LATENCY_SETTINGS):
            return item
    return None


def cache_argument(pipeline: InferencePipeline) -> str | None:
    """Return the user's own setting of the response cache, which replaces ours."""
    return next(
        (item for item in pipeline.spec.server.args if same_flag(flag_of(item), CACHE_ARGUMENTS)),
        None,
    )


def _cache_bytes(graph: Graph) -> int:
    """Room for the response cache, 0 where nothing uses it. A patched config may use it, too."""
    used = graph.response_cache or any(
        step.response_cache or "response_cache" in _patched(step) for step in graph.models
    )
    return RESPONSE_CACHE_BYTES if used else 0


def _patched(step: Step) -> set[str]:
    """Fields that ``configPatch`` writes, as the proto spells them."""
    return {re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower() for key in step.config_patch or {}}


def sequence_idle_seconds(pipeline: InferencePipeline) -> int | None:
    """Return the longest time that a sequence of any step may pause, rounded up.

    ``None`` if no step has sequences.
    """
    spec = pipeline.spec
    steps = [
        step
        for step in (spec.model, *spec.steps, *spec.auxiliary_models)
        if step is not None and step.sequence_batching is not None
    ]
    idle = [
        step.sequence_batching.max_sequence_idle_microseconds or DEFAULT_IDLE_MICROSECONDS
        for step in steps
        if step.sequence_batching
    ]
    return -(-max(idle) // 1_000_000) if idle else None


def drain_seconds(pipeline: InferencePipeline) -> int:
    """Return the seconds to wait before Triton is stopped.

    At least 1, because older API servers reject a preStop sleep of 0.
    """
    return max(pipeline.spec.rollout.drain_seconds, 1)


def exit_timeout_seconds(pipeline: InferencePipeline) -> int:
    """Return the seconds that Triton has to exit.

    It is as long as the drain, and long enough for the last open sequence. Measured (24.10): after
    the signal to stop, Triton continues to answer on open connections and waits until every
    sequence ends or is dropped as idle. If its exit timeout expires first, the sequences are lost
    and it exits with code 1.
    """
    idle = sequence_idle_seconds(pipeline)
    return max(drain_seconds(pipeline), 0 if idle is None else idle + UNLOAD_SECONDS)


def connection_age_milliseconds(pipeline: InferencePipeline) -> int | None:
    """Return the milliseconds after which a gRPC client must reconnect.

    It is a third of the drain, so that all clients reconnect while a pod drains. ``None`` with
    sequences: a client that reconnects during a sequence loses it, so it stays until the pod is
    gone.
    """
    return (
        None
        if sequence_idle_seconds(pipeline) is not None
        else max(1000, drain_seconds(pipeline) * 1000 // 3)
    )


def refused_variable(name: str, value: str | None, server: ServerSpec) -> str | None:
    """Why the Triton container may not have this environment variable; ``None``: it may."""
    hidden = server.gpu.count == 0 and value in ("", "void", "none", "-1")
    if name in RESERVED_GPU_ENVIRONMENT and not hidden:
        return (
            f"{name} would show the pod GPUs that the scheduler did not give it; remove it and "
            "ask for GPUs with server.gpu"
        )
    return f"{name} is set by the operator; remove it" if name in OWNED_ENVIRONMENT else None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Return the resources of the Triton container, in canonical spelling.

    ``shared_memory`` counts towards the memory limit.
    """

    cpu_request: str
    cpu_limit: str
    memory_request: str
    memory_limit: str
    shared_memory: str


def _processes(step: Step, count: int, gpus: int) -> int:
    """Return the number of python processes of a step.

    Triton counts instances of KIND_GPU per GPU, and any of them per served version.
    """
    versions = 1
    if step.version_policy is not None:
        versions = max(step.version_policy.latest or 1, len(step.version_policy.specific))
    per_gpu = (
        (len(step.instances.gpus) or max(gpus, 1))
        if step.instances.kind in ("KIND_GPU", "KIND_AUTO")
        else 1
    )
    return count * per_gpu * versions


def sizes(pipeline: InferencePipeline, graph: Graph) -> Sizes:
    """Own need plus initial (requests) or max (limits) times ``resourcesPerInstance``.

    What the user wrote wins.

    A computed request never exceeds a limit that the user wrote: the API server refuses such a pod.
    """
    server = pipeline.spec.server
    python = [step for step in graph.models if step.python]
    low = [
        (step, _processes(step, step.instances.counts.initial, server.gpu.count)) for step in python
    ]
    high = [
        (step, _processes(step, step.instances.counts.max, server.gpu.count)) for step in python
    ]
    shared = SHARED_MEMORY_BASE + SHARED_MEMORY_PER_INSTANCE * sum(count for _, count in high)
    if server.shared_memory:
        shared = bytes_of(server.shared_memory)
    given = cache_argument(pipeline)
    cache = _given_cache(given) if given is not None else _cache_bytes(graph)
    asked, capped = server.resources.requests, server.resources.limits
    request_cpu = millis(asked.cpu) if asked.cpu else BASE_CPU_MILLIS + _cpu(low)
    request_memory = bytes_of(asked.memory) if asked.memory else BASE_MEMORY + cache + _memory(low)
    # Where pods grow in place they start with what the initial instances need, and the rest is free
    # for others until it is needed.
    held = low if pipeline.spec.scaling.cpu_resize is CpuResize.IN_PLACE else high
    limit_cpu = millis(capped.cpu) if capped.cpu else max(request_cpu, BASE_CPU_MILLIS + _cpu(held))
    limit_memory = (
        bytes_of(capped.memory)
        if capped.memory
        else max(request_memory, BASE_MEMORY + cache + _memory(high)) + shared
    )
    if not asked.cpu:
        request_cpu = min(request_cpu, limit_cpu)
    if not asked.memory:
        request_memory = min(request_memory, limit_memory)
    return Sizes(
        cpu(request_cpu),
        cpu(limit_cpu),
        memory(request_memory),
        memory(limit_memory),
        memory(shared),
    )


def cpu_range(pipeline: InferencePipeline, graph: Graph) -> tuple[int, int] | None:
    """Return the initial CPU limit of a pod and the limit for the most instances, in millicores.

    ``None`` if the limit does not change. A limit that the user sets is never changed.
    """
    if (
        pipeline.spec.scaling.cpu_resize is not CpuResize.IN_PLACE
        or pipeline.spec.server.resources.limits.cpu
    ):
        return None
    start = millis(sizes(pipeline, graph).cpu_limit)
    high = [
        (step, _processes(step, step.instances.counts.max, pipeline.spec.server.gpu.count))
        for step in graph.models
        if step.python
    ]
    most = BASE_CPU_MILLIS + _cpu(high)
    return (start, most) if most > start else None


def _given_cache(argument: str) -> int:
    """Bytes of a response cache that the user's own argument sets up; 0 where it does not say."""
    match = re.search(r"size=([0-9]+)", argument) or re.fullmatch(
        r"--response-cache-byte-size[= ]([0-9]+)", argument
    )
    return int(match[1]) if match else 0


def _cpu(steps: Sequence[tuple[Step, int]]) -> int:
    return sum(millis(step.resources.cpu) * count for step, count in steps)


def _memory(steps: Sequence[tuple[Step, int]]) -> int:
    return sum(bytes_of(step.resources.memory) * count for step, count in steps)
