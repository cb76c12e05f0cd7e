"""Check the pods of a workload before it is applied, wherever its pod template comes from.

The pod templates of earlier revisions come from ConfigMaps. Whoever can replace these must not gain
more than a restricted ``server.podTemplate`` permits to authors of pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.compile.graph.options import Options, PodTemplateMode
from triton_pipelines.compile.graph.restricted_references import forbidden

from .pod_schema import as_mapping
from .restricted_pod import restricted_fields

PATH = "spec.template"


def unsafe_fields(workload: Mapping[str, Any], options: Options) -> Iterator[Finding]:
    """Yield what a Deployment or Job of a pipeline must not give its pods.

    Args:
        workload: The object.
        options: The operator's options.
    """
    if options.pod_template is PodTemplateMode.ALLOW:
        return
    pipeline = str(workload["metadata"]["labels"][names.LABEL_PIPELINE])
    template = as_mapping(as_mapping(workload.get("spec")).get("template"))
    given = _without_own_parts(template, pipeline)
    yield from restricted_fields(given, str(workload["metadata"]["namespace"]), options, PATH)
    if given["spec"].get("automountServiceAccountToken") is not False:
        yield forbidden(
            f"{PATH}.spec.automountServiceAccountToken",
            "the field gives the pod access to the API server; set the field to false",
        )


def _without_own_parts(template: Mapping[str, Any], pipeline: str) -> dict[str, Any]:
    """Return the template without the operator's labels and the control keys of the pipeline."""
    metadata, spec = as_mapping(template.get("metadata")), as_mapping(template.get("spec"))
    labels = as_mapping(metadata.get("labels"))
    own = names.labels(pipeline)
    return {
        "metadata": {**metadata, "labels": {k: v for k, v in labels.items() if k not in own}},
        "spec": {
            **spec,
            "containers": [
                {**item, "env": [one for one in _items(item, "env") if not _has_key(one, pipeline)]}
                for item in _items(spec, "containers")
            ],
            "volumes": [
                item for item in _items(spec, "volumes") if not _mounts_key(item, pipeline)
            ],
        },
    }


def _items(parent: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    found = parent.get(field)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _has_key(variable: Mapping[str, Any], pipeline: str) -> bool:
    reference = as_mapping(as_mapping(variable.get("valueFrom")).get("secretKeyRef"))
    return _is_control_secret(reference.get("name"), pipeline)


def _mounts_key(volume: Mapping[str, Any], pipeline: str) -> bool:
    return _is_control_secret(as_mapping(volume.get("secret")).get("secretName"), pipeline)


def _is_control_secret(name: Any, pipeline: str) -> bool:
    prefix, _, revision = str(name).rpartition("-")
    return prefix == pipeline and names.is_revision(revision)
