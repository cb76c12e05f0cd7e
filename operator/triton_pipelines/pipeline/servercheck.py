"""Checks of ``spec.server``: what would end Triton, open its control API, or make a pod that the API server refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from triton_pipelines.api.base import Finding
from triton_pipelines.api.server import Server
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .graph import Graph
from .options import Options
from .server import OWNED_ARGUMENTS, OWNED_ENVIRONMENT, RESERVED_GPU_ENVIRONMENT, bytes_of, default_image, millis, server_version, sizes

FLOOR_VERSION = (24, 8)


def check_server(pipeline: InferencePipeline, graph: Graph, options: Options) -> Iterator[Finding]:
    server = pipeline.spec.server
    image = server.image or default_image(graph, options)
    version = server_version(server.version, image)
    if version is None:
        yield Finding(
            "spec.server.version", f"is needed: the tag of the image {image} does not name a Triton release; write it as YY.MM, such as 24.10"
        )
    elif not 1 <= version[1] <= 12:
        yield Finding(
            "spec.server.version",
            f"{version[0]:02d}.{version[1]:02d} is no Triton release: releases are year and month; write it as YY.MM, such as 24.10",
        )
    elif version < FLOOR_VERSION:
        yield Finding(
            "spec.server.version", f"{version[0]:02d}.{version[1]:02d} is too old: live scaling without reloads came with 24.08; use a newer image"
        )
    for index, argument in enumerate(server.args):
        flag = re.split(r"[=\s]", argument, maxsplit=1)[0]
        if owned := _owned(flag):
            yield Finding(f"spec.server.args[{index}]", f"{owned} belongs to the operator; remove it")
        elif not argument.startswith("-"):
            yield Finding(f"spec.server.args[{index}]", f"{argument!r} is no flag; write --flag=value as one item")
    for index, variable in enumerate(server.env):
        hidden = server.gpu.count == 0 and variable.value in ("", "void", "none", "-1")
        if variable.name in RESERVED_GPU_ENVIRONMENT and not hidden:
            yield Finding(
                f"spec.server.env[{index}].name",
                f"{variable.name} would show the pod GPUs that the scheduler did not give it; remove it and ask for GPUs with server.gpu",
            )
        if variable.name in OWNED_ENVIRONMENT:
            yield Finding(f"spec.server.env[{index}].name", f"{variable.name} belongs to the operator; remove it")
        if variable.value is not None and variable.value_from is not None:
            yield Finding(f"spec.server.env[{index}]", "has both value and valueFrom; write one of them")
    yield from _resources(pipeline, graph)
    yield from _affinity(server)


def _owned(flag: str) -> str | None:
    """The operator's argument that this one is: Triton's parser takes every unambiguous beginning of a name (getopt_long)."""
    if flag in OWNED_ARGUMENTS:
        return flag
    return next((owned for owned in sorted(OWNED_ARGUMENTS) if len(flag) > 2 and flag.startswith("--") and owned.startswith(flag)), None)


def _resources(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Requests above limits, which the API server refuses, and memory that the shared memory alone would use up."""
    given = pipeline.spec.server.resources
    for name, read in (("cpu", millis), ("memory", bytes_of)):
        asked, capped = getattr(given.requests, name), getattr(given.limits, name)
        if asked is not None and capped is not None and read(asked) > read(capped):
            yield Finding(f"spec.server.resources.requests.{name}", f"{asked} is above limits.{name} {capped}; raise the limit or lower the request")
    shared = sizes(pipeline, graph).shared_memory
    if given.limits.memory is not None and bytes_of(given.limits.memory) <= bytes_of(shared):
        yield Finding(
            "spec.server.resources.limits.memory",
            f"{given.limits.memory} is used up by the shared memory of {shared}, which counts into it; raise it, or lower server.sharedMemory",
        )


def _affinity(server: Server) -> Iterator[Finding]:
    """The parts of the affinity that GPU products are merged into must be of the Kubernetes shape."""
    value: Any = server.affinity
    path = "spec.server.affinity"
    for key, shape in (("nodeAffinity", Mapping), ("requiredDuringSchedulingIgnoredDuringExecution", Mapping), ("nodeSelectorTerms", list)):
        value = (value or {}).get(key)
        path += f".{key}"
        if value is not None and not isinstance(value, shape):
            yield Finding(path, f"must be {'a list' if shape is list else 'a mapping'}, as in a Pod's affinity")
            return
    for index, term in enumerate(value or []):
        if not isinstance(term, Mapping):
            yield Finding(f"{path}[{index}]", "must be a mapping, as in a Pod's affinity")
        elif not isinstance(term.get("matchExpressions") or [], list):
            yield Finding(f"{path}[{index}].matchExpressions", "must be a list, as in a Pod's affinity")
