"""Check a PodTemplateSpec against Kubernetes' schema (podschema.yaml, generated)."""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import resources
from itertools import chain, islice
from typing import Any

import yaml

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode

# Fields that tell the items of a list apart, by the list's name.
KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}
MAX_FINDINGS = 100
"""Maximum number of findings per template. Each needs a search for the intended field."""
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SCALARS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "must be a string; put the value in quotes"),
    "integer": ((int,), "must be an integer"),
    "boolean": ((bool,), "must be true or false"),
    "quantity": ((str, int, float), "must be a quantity such as 500m or 2Gi"),
    "integer or string": ((int, str), "must be an integer or a string"),
}


@functools.cache
def _schema() -> Mapping[str, Mapping[str, str]]:
    text = (resources.files("triton_pipelines.compile.render") / "podschema.yaml").read_text(
        encoding="utf-8"
    )
    read: dict[str, dict[str, str]] = yaml.safe_load(text)
    return read


def check_template(template: Any, path: str) -> list[Finding]:
    """Return why the API server would reject ``template`` as a PodTemplateSpec.

    ``path`` is its field in the resource. Shapes are checked first. Relations between parts are
    checked only if every part has the right shape.
    """
    return list(islice(_check(template, "PodTemplateSpec", path, ""), MAX_FINDINGS)) or list(
        islice(
            chain(_metadata(template, path), _pod(template.get("spec") or {}, f"{path}.spec")),
            MAX_FINDINGS,
        )
    )


def item_path(field: str, index: int, item: Any) -> str:
    """Return ``[triton]`` for an item with a key, ``[3]`` for any other."""
    key = item.get(KEYS[field]) if field in KEYS and isinstance(item, Mapping) else None
    return f"[{key}]" if isinstance(key, str) else f"[{index}]"


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one; a later check reports the type."""
    return value if isinstance(value, Mapping) else {}


def mapping_items(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield path and item of every mapping in the list at ``path``."""
    for index, item in enumerate(value if isinstance(value, list) else []):
        if isinstance(item, Mapping):
            yield f"{path}{item_path(path.rpartition('.')[2], index, item)}", item


def _check(value: Any, kind: str, path: str, field: str) -> Iterator[Finding]:
    if kind.startswith("["):
        if not isinstance(value, list):
            yield Finding(path, "must be a list", code=FindingCode.WRONG_TYPE)
            return
        for index, item in enumerate(value):
            yield from _check(item, kind[1:-1], path + item_path(field, index, item), "")
    elif kind.startswith("{"):
        if not isinstance(value, Mapping):
            yield Finding(path, "must be a mapping", code=FindingCode.WRONG_TYPE)
            return
        for key, item in value.items():
            yield from _check(item, kind[1:-1], f"{path}[{key}]", "")
    elif kind in _SCALARS:
        types, message = _SCALARS[kind]
        # bool is an int in Python alone.
        if not isinstance(value, types) or (isinstance(value, bool) and kind != "boolean"):
            yield Finding(path, message, code=FindingCode.INVALID_FORMAT)
    elif kind in _schema():
        yield from _fields(value, kind, path)


def _fields(value: Any, kind: str, path: str) -> Iterator[Finding]:
    if not isinstance(value, Mapping):
        yield Finding(
            path,
            f"must be a mapping with fields of Kubernetes' {kind}",
            code=FindingCode.WRONG_TYPE,
        )
        return
    known = {name.rstrip("!"): part for name, part in (_schema()[kind] or {}).items()}
    for key, item in value.items():
        if key in known:
            yield from _check(item, known[key], f"{path}.{key}", key)
        else:
            near = difflib.get_close_matches(str(key), known, n=1)
            yield Finding(
                f"{path}.{key}",
                f"unknown field of Kubernetes' {kind}"
                + (f"; did you mean {near[0]}?" if near else "; remove this field"),
                code=FindingCode.UNKNOWN_FIELD,
            )
    for name in _schema()[kind] or {}:
        if name.endswith("!") and name[:-1] not in value:
            yield Finding(f"{path}.{name[:-1]}", "required", code=FindingCode.REQUIRED)


def _metadata(template: Mapping[str, Any], path: str) -> Iterator[Finding]:
    for key, value in ((template.get("metadata") or {}).get("labels") or {}).items():
        if not _LABEL_VALUE.fullmatch(value):
            yield Finding(
                f"{path}.metadata.labels[{key}]",
                f"{value!r} is not a valid label value; use at most 63 letters, digits, '-', '_'"
                " and '.', starting and ending with a letter or digit",
                code=FindingCode.INVALID_FORMAT,
            )


def _pod(spec: Mapping[str, Any], path: str) -> Iterator[Finding]:
    volumes = spec.get("volumes") or []
    yield from _names([item["name"] for item in volumes], f"{path}.volumes")
    for item in volumes:
        kinds = sorted(set(item) - {"name"})
        if len(kinds) > 1:  # without any it is an emptyDir
            yield Finding(
                f"{path}.volumes[{item['name']}]",
                f"must have one volume type, but has {' and '.join(kinds)}; set all but one "
                "to null",
                code=FindingCode.FIELD_COMBINATION,
            )
    parts = [
        (part, item) for part in ("containers", "initContainers") for item in spec.get(part) or []
    ]
    yield from _names([item["name"] for _, item in parts], f"{path}.containers")
    for part, item in parts:
        yield from _container(
            item, f"{path}.{part}[{item['name']}]", {volume["name"] for volume in volumes}
        )


def _names(found: list[str], path: str) -> Iterator[Finding]:
    for name, count in Counter(found).items():
        if not _DNS_LABEL.fullmatch(name):
            yield Finding(
                f"{path}[{name}].name",
                "not a valid name; use at most 63 lowercase letters, digits and '-'",
                code=FindingCode.INVALID_FORMAT,
            )
        if count > 1:
            yield Finding(
                f"{path}[{name}]",
                "used by two containers or init containers; choose another name",
                code=FindingCode.DUPLICATE,
            )


def _container(item: Mapping[str, Any], path: str, volumes: set[str]) -> Iterator[Finding]:
    if "image" not in item:
        yield Finding(f"{path}.image", "required", code=FindingCode.REQUIRED)
    for variable in item.get("env") or []:
        if "value" in variable and "valueFrom" in variable:
            yield Finding(
                f"{path}.env[{variable['name']}]",
                "value and valueFrom cannot be combined; set one of these fields to null",
                code=FindingCode.FIELD_COMBINATION,
            )
    for mount in item.get("volumeMounts") or []:
        if mount["name"] not in volumes:
            yield Finding(
                f"{path}.volumeMounts[{mount['mountPath']}].name",
                f"{mount['name']!r} is not a volume of the pod; use one of: "
                f"{', '.join(sorted(volumes))}",
                code=FindingCode.UNKNOWN_VOLUME,
            )
