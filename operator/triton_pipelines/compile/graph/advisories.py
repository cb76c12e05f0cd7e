"""Security bulletins and fatal requests that affect a Triton release, from ``advisories.yaml``."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

import yaml

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.tensors import DataType
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import listed

from .graph import Graph
from .lint_findings import warning
from .options import Options
from .server_settings import default_image, server_version

TritonRelease = tuple[int, int]
"""Year and month of a release, such as (24, 10) for 24.10."""
_IMAGE = "spec.server.image"


class AdvisorySeverity(StrEnum):
    """How bad a bulletin is: the highest severity of its CVEs, worst first."""

    CRITICAL = "Critical"
    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"


@dataclass(frozen=True, slots=True)
class Advisory:
    """A security bulletin about Triton."""

    id: str
    """Number of the bulletin."""
    source: str
    """Its address."""
    severity: AdvisorySeverity
    since: TritonRelease | None
    """The first affected release; ``None``: every release before the fix."""
    fixed_in: TritonRelease
    """The first release that is not affected."""
    effect: str
    """What an attacker can do, as a sentence."""


@dataclass(frozen=True, slots=True)
class FatalRequest:
    """A request that crashes the server although the pipeline is valid."""

    id: str
    """Its name."""
    source: str
    """Address of the page that documents the fix."""
    fixed_in: TritonRelease
    """The first release that survives it."""
    output: DataType
    """Data type of the output that the request must target."""
    request: str
    """What a client sends."""
    effect: str
    """What happens then."""


@dataclass(frozen=True, slots=True)
class KnownProblems:
    """The content of ``advisories.yaml``."""

    advisories: tuple[Advisory, ...]
    """Security bulletins, oldest first."""
    fatal_requests: tuple[FatalRequest, ...]
    """Requests that crash a server."""
    releases: dict[str, TritonRelease]
    """Release by the major and minor part of the version that a server reports."""


@functools.cache
def known_problems() -> KnownProblems:
    """Read the data file."""
    file = resources.files("triton_pipelines.compile.graph") / "advisories.yaml"
    read: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return KnownProblems(
        advisories=tuple(
            Advisory(
                id=one["id"],
                source=one["source"],
                severity=AdvisorySeverity(one["severity"]),
                since=_release(one["since"]) if "since" in one else None,
                fixed_in=_release(one["fixedIn"]),
                effect=one["effect"],
            )
            for one in read["advisories"]
        ),
        fatal_requests=tuple(
            FatalRequest(
                id=one["id"],
                source=one["source"],
                fixed_in=_release(one["fixedIn"]),
                output=DataType(one["output"]),
                request=one["request"],
                effect=one["effect"],
            )
            for one in read["fatalRequests"]
        ),
        releases={version: _release(release) for version, release in read["versions"].items()},
    )


def advisories_of(release: TritonRelease | None) -> tuple[Advisory, ...]:
    """Return the bulletins that affect a release, oldest first; none if it is unknown."""
    if release is None:
        return ()
    return tuple(
        one
        for one in known_problems().advisories
        if (one.since is None or one.since <= release) and release < one.fixed_in
    )


def fatal_requests_of(release: TritonRelease | None) -> tuple[FatalRequest, ...]:
    """Return the requests that crash a server of a release; none if it is unknown."""
    if release is None:
        return ()
    return tuple(one for one in known_problems().fatal_requests if release < one.fixed_in)


def release_of_version(version: str) -> TritonRelease | None:
    """Return the release of a server that reports this version, such as 2.51.0.

    ``None`` if the version is not in the data file.
    """
    return known_problems().releases.get(".".join(version.split(".")[:2]))


def server_image(pipeline: InferencePipeline, graph: Graph, options: Options) -> str:
    """Return the image of the server that a new revision would run."""
    return pipeline.spec.server.image or default_image(graph, options)


def lint_server(pipeline: InferencePipeline, graph: Graph, image: str) -> Iterator[Finding]:
    """Warn about a server with known security advisories, or that clients can end.

    Args:
        pipeline: The resource.
        graph: Its graph.
        image: Image of the server that runs, or would run.
    """
    release = server_version(pipeline.spec.server.version, image)
    if (text := describe_advisories(release)) is not None:
        fixed = max(one.fixed_in for one in advisories_of(release))
        yield warning(
            _IMAGE,
            f"{text}; use Triton release {spelled(fixed)} or later",
            code=FindingCode.SERVER_ADVISORY,
        )
    for fatal in fatal_requests_of(release):
        tensors = [
            f"{step.name}.{tensor.name}"
            for step in graph.models
            for tensor in step.outputs
            if tensor.data_type is fatal.output
        ]
        if tensors:
            yield warning(
                _IMAGE,
                f"a request for {fatal.request} ({listed(tensors)}) "
                f"{fatal.effect}; use Triton release {spelled(fatal.fixed_in)} or later, or "
                "allow only trusted clients",
                code=FindingCode.FATAL_REQUEST,
            )


def describe_advisories(release: TritonRelease | None) -> str | None:
    """Return which bulletins affect a release; ``None`` if none does."""
    found = advisories_of(release)
    if release is None or not found:
        return None
    critical = [one.id for one in found if one.severity is AdvisorySeverity.CRITICAL]
    named = f", {len(critical)} of them critical ({', '.join(critical)})" if critical else ""
    count = f"{len(found)} NVIDIA security bulletin{'s' if len(found) > 1 else ''}"
    return f"Triton {spelled(release)} is affected by {count}{named}"


def spelled(release: TritonRelease) -> str:
    """Return a release as in an image's tag."""
    return f"{release[0]:02d}.{release[1]:02d}"


def _release(text: str) -> TritonRelease:
    year, month = text.split(".")
    return int(year), int(month)
