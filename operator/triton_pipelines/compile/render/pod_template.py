"""Merge ``server.podTemplate``, a partial PodTemplateSpec, over the rendered pod template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.options import Options, PodTemplateMode

from .errors import RefusedError
from .passthrough import plain
from .pod_owned_fields import PATH, owned_fields
from .pod_schema import KEYS, MAX_FINDINGS, check_template
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
    findings = [*islice(owned_fields(given, template, pipeline, options), MAX_FINDINGS)]
    if options.pod_template is PodTemplateMode.RESTRICTED:
        restricted = restricted_fields(given, pipeline.namespace, options, PATH)
        findings += islice(restricted, MAX_FINDINGS)
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
    known = base if isinstance(base, list) and (field in KEYS or field in APPENDED) else []
    return _merge_items(known, patch, field)


def _merge_items(base: list[Any], patch: list[Any], field: str) -> list[Any]:
    """Merge a list; linear in the length of both."""
    items = list(base)
    indexes: dict[str, int] = {}
    for place, item in enumerate(items):
        indexes.setdefault(_identity(item, field), place)
    for entry in patch:
        identity = _identity(entry, field)
        index = indexes.get(identity) if identity else None
        if index is None:
            indexes.setdefault(identity, len(items))
            items.append(merge(None, entry))
        elif field not in APPENDED:
            items[index] = merge(items[index], entry)
    return items


def _identity(item: Any, field: str) -> str:
    """Return the merge key of a list item; empty if it has none."""
    if field in APPENDED:
        return json.dumps(merge(None, item), sort_keys=True)
    if field not in KEYS or not isinstance(item, Mapping) or KEYS[field] not in item:
        return ""
    return json.dumps(item[KEYS[field]], sort_keys=True)
