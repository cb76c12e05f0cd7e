"""Check ``spec.server``.

The checks find settings that would stop Triton, expose its control API, or produce a pod that the
API server rejects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.server import ServerSpec
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .acting_account import check_acting_account
from .container_resources import sizes
from .graph import Graph
from .options import Options, PodTemplateMode
from .quantities import bytes_of, millis
from .restricted_references import check_references
from .server_settings import (
    FLAG_RELEASES,
    OWNED_ARGUMENTS,
    TRACE_ARGUMENTS,
    default_image,
    flag_of,
    refused_variable,
    same_flag,
    server_version,
)

# With server.autoComplete every change of a count would reload the model.
FIXED_COUNTS = (
    "server.autoComplete Enabled prevents live scaling; use count instead of initial, min and max"
)
FLOOR_VERSION = (24, 8)
INFLIGHT_VERSION = (25, 11)
# Arguments that a field of the resource replaces.
INSTEAD_OF_ARGUMENTS = {
    "--disable-auto-complete-config": "server.autoComplete",
    "--strict-model-config": "server.autoComplete",
    "--exit-timeout-secs": "rollout.drainSeconds",
    "--grpc-max-connection-age": "rollout.drainSeconds",
    "--load-model": "auxiliaryModels",
}


def check_server(pipeline: InferencePipeline, graph: Graph, options: Options) -> Iterator[Finding]:
    """Yield the findings about ``spec.server`` and ``spec.serviceAccountName``."""
    server = pipeline.spec.server
    image = server.image or default_image(graph, options)
    version = server_version(server.version, image)
    yield from _version(version, image)
    yield from _arguments(pipeline, version)
    yield from _environment(server)
    inflight = pipeline.spec.ensemble.max_inflight_requests
    if inflight and version is not None and version < INFLIGHT_VERSION:
        yield Finding(
            "spec.ensemble.maxInflightRequests",
            "the field requires Triton 25.11 or later, but the server is Triton "
            f"{_spelled(version)}; remove the field, or use a newer image",
            code=FindingCode.UNSUPPORTED_RELEASE,
        )
    if server.pod_template is not None and options.pod_template is PodTemplateMode.FORBID:
        yield Finding(
            "spec.server.podTemplate",
            "this operator forbids podTemplate (--pod-template=forbid); use other fields of "
            "spec.server, or ask the operator's administrator to set --pod-template=allow",
            code=FindingCode.FORBIDDEN,
        )
    yield from check_references(pipeline, graph, options)
    yield from check_acting_account(pipeline.spec.service_account_name, options)
    yield from _fixed(pipeline, graph)
    yield from _resources(pipeline, graph)
    yield from _affinity(server)


def _version(version: tuple[int, int] | None, image: str) -> Iterator[Finding]:
    """Check that the Triton release is known and supported."""
    if version is None:
        yield Finding(
            "spec.server.version",
            f"required, because the tag of the image {image} does not contain a Triton "
            "release; set version as YY.MM, for example '24.10'",
            code=FindingCode.REQUIRED,
        )
    elif not 1 <= version[1] <= 12:
        yield Finding(
            "spec.server.version",
            f"{_spelled(version)} is not a Triton release; use year and month as YY.MM, for"
            " example 24.10",
            code=FindingCode.UNSUPPORTED_RELEASE,
        )
    elif version < FLOOR_VERSION:
        yield Finding(
            "spec.server.version",
            f"{_spelled(version)} is too old, because live scaling without reloads requires 24.08"
            " or later; use a newer image",
            code=FindingCode.UNSUPPORTED_RELEASE,
        )


def _environment(server: ServerSpec) -> Iterator[Finding]:
    """Check environment variables that the operator sets itself, and their values."""
    for index, variable in enumerate(server.env):
        if why := refused_variable(variable.name, variable.value, server):
            yield Finding(f"spec.server.env[{index}].name", why, code=FindingCode.RESERVED)
        if variable.value is not None and variable.value_from is not None:
            yield Finding(
                f"spec.server.env[{index}]",
                "value and valueFrom cannot be combined; remove one of these fields",
                code=FindingCode.FIELD_COMBINATION,
            )


def _spelled(version: tuple[int, int]) -> str:
    return f"{version[0]:02d}.{version[1]:02d}"


def _arguments(pipeline: InferencePipeline, version: tuple[int, int] | None) -> Iterator[Finding]:
    """Find arguments that the operator sets itself, and those that the server does not know.

    Either would stop Triton or expose its control API.
    """
    tracing = pipeline.spec.observability.tracing is not None
    for index, argument in enumerate(pipeline.spec.server.args):
        path, flag = f"spec.server.args[{index}]", flag_of(argument)
        if owned := same_flag(flag, OWNED_ARGUMENTS):
            instead = (
                f"; use {instead} instead"
                if (instead := INSTEAD_OF_ARGUMENTS.get(owned))
                else "; remove the flag"
            )
            yield Finding(
                path, f"{owned} is set by the operator{instead}", code=FindingCode.RESERVED
            )
        elif tracing and (owned := same_flag(flag, TRACE_ARGUMENTS)):
            yield Finding(
                path,
                f"{owned} is also set by spec.observability.tracing; remove one of the two "
                "settings",
                code=FindingCode.FIELD_COMBINATION,
            )
        elif not argument.startswith("-"):
            yield Finding(
                path,
                f"{argument!r} is not a flag; write each flag as one item, --flag=value",
                code=FindingCode.INVALID_FORMAT,
            )
        elif version is not None and version < (since := FLAG_RELEASES.get(flag, version)):
            yield Finding(
                path,
                f"{flag} requires Triton {_spelled(since)} or later, but the server is Triton"
                f" {_spelled(version)}, which exits on unknown flags; remove the flag, or use"
                " a newer image",
                code=FindingCode.UNSUPPORTED_RELEASE,
            )


def _fixed(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Yield ranges of counts in a pipeline whose counts cannot change."""
    spec = pipeline.spec
    if not graph.auto_complete:
        return
    for path, slot in (("spec.tokenizer", spec.tokenizer), ("spec.postprocess", spec.postprocess)):
        if slot is not None and slot.instances is not None and slot.instances.ranged:
            yield Finding(
                f"{path}.instances",
                FIXED_COUNTS,
                code=FindingCode.NOT_SCALABLE,
            )


def _resources(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Find requests above limits, and a memory limit that shared memory alone would use up.

    The API server rejects requests above limits.
    """
    given = pipeline.spec.server.resources
    for name, read in (("cpu", millis), ("memory", bytes_of)):
        requested, capped = getattr(given.requests, name), getattr(given.limits, name)
        if requested is not None and capped is not None and read(requested) > read(capped):
            yield Finding(
                f"spec.server.resources.requests.{name}",
                f"{requested} exceeds limits.{name} {capped}; raise the limit, or lower the"
                " request",
                code=FindingCode.OUT_OF_RANGE,
            )
    shared = sizes(pipeline, graph).shared_memory
    if given.limits.memory is not None and bytes_of(given.limits.memory) <= bytes_of(shared):
        yield Finding(
            "spec.server.resources.limits.memory",
            f"{given.limits.memory} must exceed the shared memory of {shared}, which counts "
            "toward the limit; raise the limit, or lower server.sharedMemory",
            code=FindingCode.OUT_OF_RANGE,
        )


def _affinity(server: ServerSpec) -> Iterator[Finding]:
    """Check the shape of the affinity parts into which GPU products are merged."""
    value: Any = server.affinity
    path = "spec.server.affinity"
    for key, shape in (
        ("nodeAffinity", Mapping),
        ("requiredDuringSchedulingIgnoredDuringExecution", Mapping),
        ("nodeSelectorTerms", list),
    ):
        value = (value or {}).get(key)
        path += f".{key}"
        if value is not None and not isinstance(value, shape):
            yield Finding(
                path,
                f"must be {'a list' if shape is list else 'a mapping'}, as in a Pod's affinity",
                code=FindingCode.WRONG_TYPE,
            )
            return
    for index, term in enumerate(value or []):
        if not isinstance(term, Mapping):
            yield Finding(
                f"{path}[{index}]",
                "must be a mapping, as in a Pod's affinity",
                code=FindingCode.WRONG_TYPE,
            )
        elif not isinstance(term.get("matchExpressions") or [], list):
            yield Finding(
                f"{path}[{index}].matchExpressions",
                "must be a list, as in a Pod's affinity",
                code=FindingCode.WRONG_TYPE,
            )
