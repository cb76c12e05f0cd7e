"""Merge ``server.podTemplate``, a partial PodTemplateSpec, over the rendered pod template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.options import Options

from .errors import RefusedError
from .passthrough import plain
from .pod_owned_fields import PATH, owned_fields
from .pod_schema import KEYS, check_template

APPENDED = frozenset({"tolerations"})


def merged(
    template: Mapping[str, Any], pipeline: InferencePipeline, options: Options
) -> dict[str, Any]:
    """Return the template with ``server.podTemplate`` merged over it.

    Raises :class:`RefusedError` with everything in it that is the operator's, or of which the API
    server would not make a pod.
    """
    given = plain(pipeline.spec.server.pod_template)
    result: dict[str, Any] = merge(template, given)
    findings = [*owned_fields(given, template, pipeline, options)]
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

    Mappings are merged, and a ``null`` removes its key. Lists in :data:`podshape.KEYS` are merged
    item by item, by that key; new items go behind. Tolerations are appended, where they are not
    there yet. Every other list, and every other value, takes the place of what was there.
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
    for wanted in patch:
        place = _place(items, wanted, KEYS[field]) if field in KEYS else None
        if place is not None:
            items[place] = merge(items[place], wanted)
        elif field not in APPENDED or (wanted := merge(None, wanted)) not in items:
            items.append(merge(None, wanted))
    return items


def _place(items: list[Any], wanted: Any, key: str) -> int | None:
    """Return the index of the item with the same key; ``None`` if there is none."""
    if not isinstance(wanted, Mapping) or key not in wanted:
        return None
    return next(
        (
            index
            for index, item in enumerate(items)
            if isinstance(item, Mapping) and item.get(key) == wanted[key]
        ),
        None,
    )
