"""Merge ``server.podTemplate``, a partial PodTemplateSpec, over the rendered pod template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.options import Options, PodTemplateMode

from .errors import RefusedError
from .passthrough import plain
from .pod_owned_fields import PATH, owned_fields
from .pod_schema import KEYS, check_template
from .restricted_pod import restricted_fields

APPENDED = frozenset({"tolerations"})


def merged(
    template: Mapping[str, Any], pipeline: InferencePipeline, options: Options
) -> dict[str, Any]:
    """Return the template with ``server.podTemplate`` merged over it.

    Raises:
        RefusedError: It sets fields that only the operator may set or that the operator's options
            forbid, or the API server would reject the result.
    """
    given = plain(pipeline.spec.server.pod_template)
    result: dict[str, Any] = merge(template, given)
    findings = [*owned_fields(given, template, pipeline, options)]
    if options.pod_template is PodTemplateMode.RESTRICTED:
        findings += restricted_fields(given, pipeline.namespace, options, PATH)
    refused = [finding.path for finding in findings]
    before = set(check_template(template, PATH))
    # Errors from other fields of the resource are not reported for this field, and a rejected part
    # is reported only once.
    findings += [
        finding
        for finding in check_template(result, PATH)
        if finding not in before
        and f"{PATH}.spec.volumes" not in refused
        and not any(finding.path.startswith(path) for path in refused)
    ]
    if findings:
        raise RefusedError(findings)
    return result


def merge(base: Any, patch: Any, field: str = "") -> Any:
    """Return ``patch`` merged over ``base``; neither is changed.

    Mappings are merged, and ``null`` removes a key. Lists in :data:`KEYS` are merged item by item,
    by their key, and new items are appended. New tolerations are appended. All other lists and
    values are replaced.
    """
    if isinstance(patch, Mapping):
        result = dict(base) if isinstance(base, Mapping) else {}
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merge(result.get(key), value, key)
        return result
    if not isinstance(patch, list):
        return patch
    items = list(base) if isinstance(base, list) and (field in KEYS or field in APPENDED) else []
    for entry in patch:
        index = _index_of(items, entry, KEYS[field]) if field in KEYS else None
        added = merge(None, entry)
        if index is not None:
            items[index] = merge(items[index], entry)
        elif field not in APPENDED or added not in items:
            items.append(added)
    return items


def _index_of(items: list[Any], entry: Any, key: str) -> int | None:
    """Return the index of the item with the same key; ``None`` if there is none."""
    if not isinstance(entry, Mapping) or key not in entry:
        return None
    return next(
        (
            index
            for index, item in enumerate(items)
            if isinstance(item, Mapping) and item.get(key) == entry[key]
        ),
        None,
    )
