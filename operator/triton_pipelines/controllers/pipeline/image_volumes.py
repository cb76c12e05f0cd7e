"""Ask the API server whether it supports image volumes, before it gets a Deployment with one.

Kubernetes 1.31 to 1.34 removes image volumes without an error unless the feature gate ImageVolume
is enabled. Reasons for these rules: docs/decisions/0039-image-volumes.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.rollout_strategy import RolloutStrategy
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Forbidden, Invalid
from triton_pipelines.cluster.impersonation import Writer
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.graph.acting_account import acting_account
from triton_pipelines.compile.render.objects import deployment
from triton_pipelines.compile.render.pod_volumes import image_fields

from .compiled_pipeline import CompiledPipeline
from .snapshot import Snapshot

# How often (seconds) an API server without support is asked again.
RECHECK_SECONDS: Final = 60.0


@dataclass(slots=True)
class ImageVolumes:
    """Whether the API server supports image volumes; one instance per process.

    Support is never asked for again. A lack of support is: an administrator may enable it.
    """

    client: Client
    options: Options
    _answer: bool | None = field(default=None, init=False)
    """``None``: no answer yet."""
    _answered: dt.datetime = field(default=dt.datetime.min.replace(tzinfo=dt.UTC), init=False)
    """When the last answer came."""

    async def observe(
        self,
        compiled: CompiledPipeline | list[Finding],
        snapshot: Snapshot,
        now: dt.datetime,
    ) -> Snapshot:
        """Return the snapshot with the reason why its image sources cannot be mounted, if any.

        Args:
            compiled: what the spec compiles to.
            snapshot: what is known of the pipeline.
            now: UTC.
        """
        if self._answer or not isinstance(compiled, CompiledPipeline):
            return snapshot
        fields = image_fields(compiled.graph, self.options)
        if not fields or await self._is_supported(compiled, now):
            return snapshot
        problem = (
            f"{', '.join(f'{path}.uri' for path in fields)}: the API server does not support "
            "image volumes; use oci:// instead of image://, or enable the feature gate "
            "ImageVolume of the API server and the kubelets"
        )
        return replace(snapshot, image_problem=problem)

    async def _is_supported(self, compiled: CompiledPipeline, now: dt.datetime) -> bool:
        age = (now - self._answered).total_seconds()
        if self._answer is None or age >= RECHECK_SECONDS:
            pipeline = compiled.pipeline
            account = acting_account(pipeline.spec.service_account_name, self.options)
            writer = Writer.of(self.client, pipeline.namespace, account)
            answer = await _probe(writer.client, compiled, self.options.loader_image)
            if answer is not None:
                self._answer, self._answered = answer, now
        # Without an answer, the API server rejects the Deployment itself, and says why.
        return self._answer is not False


async def _probe(client: Client, compiled: CompiledPipeline, image: str) -> bool | None:
    """Return whether the API server keeps image volumes, by a dry run of the Deployment.

    ``None`` if something else in the Deployment, or a policy, keeps it from answering.
    """
    pipeline = compiled.pipeline
    desired = deployment(pipeline, compiled.revision.template, RolloutStrategy.SURGE, None)
    try:
        return _images(desired) <= _images(await client.apply(desired, dry_run=True))
    except Forbidden:
        return None
    except Invalid:
        # An API server that does not know the field rejects it. The spec may be invalid as well, so
        # the answer for all pipelines comes from a Deployment that has nothing of this one.
        return await _probe_minimal(client, pipeline, image)


async def _probe_minimal(client: Client, pipeline: InferencePipeline, image: str) -> bool | None:
    """Return whether the API server keeps an image volume in a Deployment with nothing else.

    ``None`` if a policy rejects that Deployment. The policies of the operator's own chart do.
    """
    pod = {
        "containers": [{"name": names.CONTAINER_LOADER, "image": image}],
        "volumes": [{"name": "image", "image": {"reference": image}}],
    }
    template = {"metadata": {"labels": names.selector(pipeline.name)}, "spec": pod}
    minimal = deployment(pipeline, template, RolloutStrategy.SURGE, None)
    minimal["metadata"]["name"] += "-image-volumes"
    try:
        return _images(minimal) <= _images(await client.apply(minimal, dry_run=True))
    except Forbidden:
        return None
    except Invalid as error:
        return False if error.violates_schema else None


def _images(item: Object) -> set[str]:
    """Return the names of the image volumes of a Deployment's pods."""
    pod: Mapping[str, Any] = item["spec"]["template"]["spec"]
    return {volume["name"] for volume in pod.get("volumes") or () if volume.get("image")}
