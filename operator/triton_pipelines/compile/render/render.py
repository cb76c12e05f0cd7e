"""Render a revision of a pipeline.

The whole of what its pods are made of, under one name that says whether anything changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.depth import MAX_DOCUMENT_DEPTH
from triton_pipelines.api.loadplan import LoadPlan
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.options import Options
from triton_pipelines.compile.graph.server_settings import (
    default_image,
    limits_rates,
    server_version,
)
from triton_pipelines.compile.validation import ServerFacts
from triton_pipelines.compile.validation.server_facts import OLDEST

from .errors import RefusedError, RenderError
from .model_config import configs
from .model_repository import load_plan, repository
from .pod import template

CONFIG_MAP_LIMIT = (
    1_000_000  # bytes of keys and values; the API server refuses ConfigMaps above 1 MiB
)


# Bytes of what the indentation of a ConfigMap's JSON adds to each bracket and comma, at most.
_INDENTATION_MAX: Final = MAX_DOCUMENT_DEPTH + 16
# Bytes of the names that are not part of the hash.
_NAMES_MAX: Final = 4096


@dataclass(frozen=True)
class Revision:
    """One rendered revision."""

    name: str
    """Hash of everything whose change must roll pods.

    Default images are not part of it, so a new operator release rolls only pods whose template
    changed. Live counts are not part of it, so scaling never rolls pods.
    """
    server_image: str
    """Image of Triton."""
    files: dict[str, str]
    """Files of the model repository by path."""
    content: Callable[[], tuple[dict[str, Any], dict[str, str]]] = field(repr=False, compare=False)
    """Renders :attr:`template` and :attr:`data`, which a revision that exists does not need."""

    @cached_property
    def _rendered(self) -> tuple[dict[str, Any], dict[str, str]]:
        return self.content()

    @property
    def template(self) -> dict[str, Any]:
        """The pod template."""
        return self._rendered[0]

    @property
    def data(self) -> dict[str, str]:
        """Content of the revision's ConfigMap, which includes the template."""
        return self._rendered[1]


def render(
    pipeline: InferencePipeline,
    graph: Graph,
    options: Options,
    digests: Mapping[str, str] | None = None,
) -> Revision:
    """Render a checked graph.

    ``digests``: step → hash of a ConfigMap source's content, so that its change is a new revision.

    Equal arguments give equal bytes. Raises :class:`RenderError` for a defect of the renderer.
    """
    image = pipeline.spec.server.image or default_image(graph, options)
    files = repository(graph, facts(pipeline, image))
    unnamed_plan = load_plan(graph, files, pipeline.namespace, "")
    unnamed = {
        "files": files,
        "plan": unnamed_plan.to_json(),
        "template": _without_default_images(
            pipeline, template(pipeline, graph, options, "", image)
        ),
        "digests": dict(digests or {}),
    }
    text = json.dumps(unnamed, sort_keys=True, ensure_ascii=False).encode()
    name = hashlib.sha256(text).hexdigest()[: names.REVISION_LENGTH]
    plan = unnamed_plan.model_copy(update={"revision": name})
    revision = Revision(
        name, image, files, partial(_content, pipeline, graph, options, plan, files, image)
    )
    if _may_exceed_limit(text):
        _ = revision.data  # raises
    return revision


def _content(
    pipeline: InferencePipeline,
    graph: Graph,
    options: Options,
    plan: LoadPlan,
    files: Mapping[str, str],
    image: str,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the pod template of a revision and the content of its ConfigMap.

    Raises:
        RenderError: The content is too large for a ConfigMap.
    """
    pod = template(pipeline, graph, options, plan.revision, image)
    record = {"template": pod, "serverImage": image}
    data = {entry.key: files[entry.path] for entry in plan.files}
    data[names.KEY_PLAN] = plan.to_json()
    data[names.KEY_TEMPLATE] = (
        json.dumps(record, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    )
    size = sum(len(key) + len(value.encode()) for key, value in data.items())
    if size > CONFIG_MAP_LIMIT:
        raise RenderError(
            f"the revision's ConfigMap would have {size} bytes, but at most "
            f"{CONFIG_MAP_LIMIT} bytes are allowed"
        )
    return pod, data


def _may_exceed_limit(text: bytes) -> bool:
    """Return whether a ConfigMap with the content of this JSON may be too large."""
    brackets_and_commas = len(text) - len(text.translate(None, b",{}[]"))
    return len(text) + _INDENTATION_MAX * brackets_and_commas + _NAMES_MAX > CONFIG_MAP_LIMIT


def review(pipeline: InferencePipeline, graph: Graph, options: Options) -> list[Finding]:
    """Return what Triton would refuse of a checked graph, with the fields of the resource.

    If the result is empty, the graph may be rendered.
    """
    image = pipeline.spec.server.image or default_image(graph, options)
    findings: list[Finding] = []
    for step in (
        lambda: configs(graph, facts(pipeline, image)),
        lambda: template(pipeline, graph, options, "", image),
    ):
        try:
            step()
        except RefusedError as refused:
            findings += refused.findings
    return findings


def facts(pipeline: InferencePipeline, image: str) -> ServerFacts:
    """Return what is known about the server before it runs."""
    gpu = pipeline.spec.server.gpu
    release = server_version(pipeline.spec.server.version, image)
    # The number of GPUs of a claim is unknown here; its template defines it.
    return ServerFacts(
        release=release or OLDEST,
        gpus=gpu.count if gpu.claim_template is None else None,
        rate_limiting=limits_rates(pipeline),
    )


def _without_default_images(pipeline: InferencePipeline, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the template without the parts that only the operator decides.

    A new release, or another default pull policy, must not roll pods.
    """
    for container in pod["spec"]["initContainers"]:
        if container["name"] == names.CONTAINER_LOADER:
            container["image"] = container["imagePullPolicy"] = ""
    for container in pod["spec"]["containers"]:
        if container["name"] != names.CONTAINER_SERVER:
            continue
        if pipeline.spec.server.image is None:
            container["image"] = ""
        if pipeline.spec.server.image_pull_policy is None:
            container["imagePullPolicy"] = ""
    return pod
