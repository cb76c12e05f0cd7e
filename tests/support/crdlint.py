"""Conventions of a CustomResourceDefinition, one function per rule.

The rules follow Kube-API-Linter and the API server's own requirements.

A rule takes the definition and yields violations, as (path, what is wrong). Exceptions are a table
of the caller: rule → path pattern → reason (``*`` matches any part of a path). An exception that
nothing needs anymore is a violation itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from triton_pipelines.api import structural_schema
from triton_pipelines.api.open_fields import is_open

from . import cel

Definition = Mapping[str, Any]
Finding = tuple[str, str]
Check = Callable[[Definition], Iterator[Finding]]

CLIENT_SIDE_APPLY_LIMIT = (
    262_144  # bytes of all annotations (apimachinery, TotalAnnotationSizeLimitB)
)
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
RULES = "x-kubernetes-validations"
# Keywords that apiextensions v1 accepts in a structural schema, as far as a good CRD needs them.
# `nullable` and `uniqueItems` are left out on purpose.
STRUCTURAL = {
    *(
        "type",
        "description",
        "properties",
        "items",
        "additionalProperties",
        "required",
        "enum",
        "format",
        "pattern",
        "default",
        "anyOf",
    ),
    *(
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
    ),
    *(
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
        RULES,
        INT_OR_STRING,
        PRESERVE,
    ),
}
UNITS = ("Seconds", "Milliseconds", "Microseconds", "Percent")
ABBREVIATIONS = {
    *(
        "addr",
        "cfg",
        "cmd",
        "cnt",
        "conf",
        "dest",
        "dev",
        "dir",
        "dst",
        "err",
        "fmt",
        "freq",
        "idx",
        "img",
        "info",
        "len",
        "lib",
        "mem",
        "mgr",
        "mins",
    ),
    *(
        "misc",
        "ms",
        "msg",
        "ns",
        "num",
        "obj",
        "opt",
        "opts",
        "param",
        "params",
        "pct",
        "perf",
        "pkg",
        "pol",
        "pos",
        "pref",
        "prev",
        "prio",
        "proc",
    ),
    *(
        "pwd",
        "qty",
        "req",
        "res",
        "resp",
        "sa",
        "sec",
        "secs",
        "seq",
        "spec",
        "src",
        "str",
        "svc",
        "sync",
        "temp",
        "tmp",
        "tok",
        "us",
        "usec",
        "val",
    ),
    *("var", "ver", "vol"),
}
FILLER = {
    "a",
    "an",
    "the",
    "of",
    "this",
    "that",
    "its",
    "it",
    "is",
    "for",
    "to",
    "in",
    "and",
    "or",
    "value",
    "field",
    "object",
    "list",
    "optional",
}
ADVICE = re.compile(
    r"\b(must|needs?|need|goes? with|only|remove|use|set|write|written|takes?|cannot|at most|"
    r"at least|exactly|distinct|differ|give|required|forbidden|allowed|choose|excludes?|is for|"
    r"are for|never)\b",
    re.IGNORECASE,
)
SECRETS = re.compile(r"(password|token|secret|credential|privateKey|accessKey)$", re.IGNORECASE)
CONDITION_FIELDS = ("type", "status", "reason", "message", "lastTransitionTime")


def schema_of(definition: Definition) -> Mapping[str, Any]:
    """The one version's schema."""
    schema: Mapping[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def nodes(definition: Definition) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All nodes of spec and status, with their paths."""
    return (
        (path, node)
        for path, node in structural_schema.walk(schema_of(definition))
        if path.split(".")[0] in ("spec", "status")
    )


def _named(definition: Definition) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Path, name and node of everything that has a name: no items, no values of mappings."""
    for path, node in nodes(definition):
        if not path.endswith(("[]", "{}")):
            yield path, path.rsplit(".", 1)[-1], node


def _typed(definition: Definition, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((path, node) for path, node in nodes(definition) if node.get("type") == kind)


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _description(definition: Definition) -> Iterator[Finding]:
    for path, name, node in _named(definition):
        text = node.get("description", "")
        if not text.strip():
            yield path, "has no description"
            continue
        reported = (
            {word.rstrip("s") for word in re.findall(r"[a-z]+", text.lower())}
            - FILLER
            - {word.rstrip("s") for word in _words(name)}
        )
        if not reported:
            yield path, f"its description says nothing that the name does not say: {text!r}"
        if text != text.strip() or not text.endswith((".", ")")):
            yield path, "its description does not end with a full stop"


def _names(definition: Definition) -> Iterator[Finding]:
    for path, name, _ in _named(definition):
        if not re.fullmatch(r"[a-z][a-zA-Z0-9]*", name):
            yield path, "is not camelCase"
        if short := ABBREVIATIONS & set(_words(name)) - ({"spec"} if path == "spec" else set()):
            yield path, f"is abbreviated: {', '.join(sorted(short))}"
        if re.match(r"(is|has|enable|enabled|disable|no|use|should|allow[A-Z]?)(?=[A-Z]|$)", name):
            yield (
                path,
                "is named like a boolean: name the thing, and let an enum say what becomes of it",
            )
        if name == "phase":
            yield path, "phase is not used any more: conditions say more"


def _types(definition: Definition) -> Iterator[Finding]:
    for path, node in nodes(definition):
        if unknown := set(node) - STRUCTURAL:
            yield (
                path,
                (
                    f"has keywords that are not wanted in a structural schema: "
                    f"{', '.join(sorted(unknown))}"
                ),
            )
        if node.get("type") in ("boolean", "number", "null"):
            yield (
                path,
                (
                    f"is a {node['type']}: use an enum, an integer with its unit, or leave "
                    f"the field out"
                ),
            )
        if "type" not in node and not node.get(INT_OR_STRING):
            yield path, "has no type"
        if isinstance(node.get("additionalProperties"), bool):
            yield path, "has additionalProperties that is no schema"


def _integers(definition: Definition) -> Iterator[Finding]:
    for path, node in _typed(definition, "integer"):
        width = {"int32": 31, "int64": 63}.get(str(node.get("format")))
        if width is None:
            yield path, "has neither format int32 nor int64"
        elif "minimum" not in node or "maximum" not in node:
            yield path, "lacks a bound"
        elif not -(2**width) <= node["minimum"] <= node["maximum"] < 2**width:
            yield path, f"its bounds do not fit {node['format']}"


def _strings(definition: Definition) -> Iterator[Finding]:
    for path, node in nodes(definition):
        if (node.get("type") == "string" or node.get(INT_OR_STRING)) and not {
            "maxLength",
            "enum",
        } & set(node):
            yield path, "has neither maxLength nor enum"


def _lists(definition: Definition) -> Iterator[Finding]:
    for path, node in _typed(definition, "array"):
        items = node.get("items", {})
        if "maxItems" not in node:
            yield path, "has no maxItems"
        match node.get("x-kubernetes-list-type"):
            case "map":
                keys = set(node.get("x-kubernetes-list-map-keys", []))
                if not keys or not keys <= set(items.get("required", [])):
                    yield path, "its map keys are not required fields of its items"
            case "set":
                if items.get("type") not in ("string", "integer"):
                    yield path, "is a set of what is neither text nor number"
            case "atomic":
                pass
            case other:
                yield path, f"says not how it merges (list type {other})"


def _atomic_lists(definition: Definition) -> Iterator[Finding]:
    for path, node in _typed(definition, "array"):
        if node.get("x-kubernetes-list-type") == "atomic":
            yield path, "is replaced as a whole when two writers meet"


def _maps(definition: Definition) -> Iterator[Finding]:
    for path, node in nodes(definition):
        if "additionalProperties" in node and not is_open(node):
            yield path, "is a mapping with free keys"


def _map_bounds(definition: Definition) -> Iterator[Finding]:
    for path, node in nodes(definition):
        if "additionalProperties" in node:
            if is_open(node):
                continue  # Its levels have bounds of their own.
            if "maxProperties" not in node:
                yield path, "has no maxProperties"
            if not any("size(key)" in rule["rule"] for rule in node.get(RULES, [])):
                yield path, "its keys have no bound"


def _open_objects(definition: Definition) -> Iterator[Finding]:
    for path, node in nodes(definition):
        if (
            PRESERVE in node
            or is_open(node)
            or (
                node.get("type") == "object"
                and not {"properties", "additionalProperties"} & set(node)
            )
        ):
            yield path, "takes anything"


def _units(definition: Definition) -> Iterator[Finding]:
    for path, name, node in _named(definition):
        if node.get("type") != "integer":
            continue
        wanted = re.search(
            r"delay|timeout|deadline|drain|period|idle|cooldown|interval|stabili[sz]ation|backlog|stale|age$|percent|utili[sz]ation",
            name,
            re.I,
        )
        reported = re.search(
            r"\b(milliseconds|microseconds|seconds|minutes|percent)\b|%",
            node.get("description", ""),
        )
        if (wanted or reported) and not name.endswith(UNITS):
            yield (
                path,
                f"is a number with a unit that its name does not end with ({', '.join(UNITS)})",
            )
        if reported and name.endswith(UNITS):
            unit = "Percent" if reported[0] in ("percent", "%") else reported[0].capitalize()
            if not name.endswith(unit):
                yield path, f"its description speaks of {reported[0]}, its name does not"


def _enums(definition: Definition) -> Iterator[Finding]:
    for path, node in nodes(definition):
        for value in node.get("enum", []):
            if not re.fullmatch(r"[A-Z][a-z0-9]+([A-Z][a-z0-9]*)*", str(value)):
                yield path, f"its choice {value!r} is not CamelCase"


def _yaml_traps(definition: Definition) -> Iterator[Finding]:
    for path, node in nodes(definition):
        for value in node.get("enum", []):
            if str(value).lower() in (
                "y",
                "n",
                "yes",
                "no",
                "on",
                "off",
                "true",
                "false",
                "null",
                "~",
            ):
                yield path, f"its choice {value!r} is no text to YAML unless it is quoted"


def _defaults(definition: Definition) -> Iterator[Finding]:
    for path, node in nodes(definition):
        if "default" not in node:
            continue
        if not path.startswith("spec."):
            yield path, "has a default outside spec: the operator writes what stands there"
        if "[]" in path or "{}" in path:
            yield (
                path,
                "has a default below a list: GitOps tools would show its items as changed for ever",
            )
        if not isinstance(node["default"], (str, int)) or isinstance(node["default"], bool):
            yield path, "has a default that is neither text nor number"
        if node["default"] not in node.get("enum", [node["default"]]):
            yield path, "has a default that is not among its choices"


def _tested_defaults(definition: Definition) -> Iterator[Finding]:
    found = dict(nodes(definition))
    tested: set[str] = set()
    for path, node in structural_schema.walk(schema_of(definition)):
        for rule in node.get(RULES, []):
            tested |= cel.tested(rule["rule"], node, path)
    for path in sorted(tested):
        if "default" in found.get(path, {}):
            yield (
                path,
                (
                    "has a default and is tested by a rule: the API server judges with the "
                    "default filled in"
                ),
            )


def _required(definition: Definition) -> Iterator[Finding]:
    for path, node in structural_schema.walk(schema_of(definition)):
        for name in node.get("required", []):
            child = node.get("properties", {}).get(name)
            if child is None:
                yield path, f"requires {name}, which is no field"
            elif "default" in child:
                yield f"{path}.{name}", "is required and has a default: one of them"


def _times(definition: Definition) -> Iterator[Finding]:
    for path, name, node in _named(definition):
        if path.startswith("spec") and (
            str(node.get("format", "")).startswith("date")
            or re.search(r"(Duration|Time|Timestamp|Minutes|Hours)$", name)
        ):
            yield path, "is a time or a duration: write whole seconds, milliseconds or microseconds"


def _secrets(definition: Definition) -> Iterator[Finding]:
    for path, name, node in _named(definition):
        if path.startswith("spec") and SECRETS.search(name) and node.get("type") == "string":
            yield path, "looks like a secret in the resource: refer to a Secret"


def _references(definition: Definition) -> Iterator[Finding]:
    for path, name, node in _named(definition):
        if (
            name.endswith("Ref")
            and node.get("type") == "object"
            and "name" not in node.get("required", [])
        ):
            yield path, "is a reference without a required name"


def _conditions(definition: Definition) -> Iterator[Finding]:
    status = schema_of(definition)["properties"]["status"]
    if next(iter(status["properties"])) != "conditions":
        yield "status", "conditions do not come first"
    node = status["properties"].get("conditions", {})
    item = node.get("items", {})
    if node.get("x-kubernetes-list-type") != "map" or node.get("x-kubernetes-list-map-keys") != [
        "type"
    ]:
        yield "status.conditions", "do not merge by type"
    if missing := set(CONDITION_FIELDS) - set(item.get("required", [])):
        yield (
            "status.conditions[]",
            f"lacks required fields of a condition: {', '.join(sorted(missing))}",
        )
    if set(item.get("properties", {}).get("status", {}).get("enum", [])) != {
        "True",
        "False",
        "Unknown",
    }:
        yield "status.conditions[].status", "is not True, False or Unknown"
    if "observedGeneration" not in item.get("properties", {}):
        yield "status.conditions[]", "has no observedGeneration"


def _status(definition: Definition) -> Iterator[Finding]:
    version = definition["spec"]["versions"][0]
    if "status" not in version.get("subresources", {}):
        yield "status", "is no subresource"
    if "status" in schema_of(definition).get("required", []):
        yield "status", "is required"
    known = {path for path, _ in nodes(definition)}
    scale = version.get("subresources", {}).get("scale", {})
    columns = {
        column["name"]: column["jsonPath"] for column in version.get("additionalPrinterColumns", [])
    }
    for what, path in {**scale, **columns}.items():
        plain = re.sub(r"\[\?\(.*?\)\]", "[]", path.removeprefix("."))
        if not plain.startswith("metadata.") and plain not in known:
            yield plain, f"is shown or scaled by {what}, and is no field"


def _messages(definition: Definition) -> Iterator[Finding]:
    known = dict(structural_schema.walk(schema_of(definition)))
    for path, node in known.items():
        for rule in node.get(RULES, []):
            text, target = (
                rule.get("message", ""),
                f"{path}{rule.get('fieldPath', '')}".removeprefix("." if not path else ""),
            )
            read = {
                where.rsplit(".", 1)[-1] for where in cel.tested(rule["rule"], node, path)
            } | set(re.findall(r"self\.metadata\.(\w+)", rule["rule"]))
            if target not in known and target != "metadata.name":
                yield path, f"a rule points at {rule['fieldPath']}, which is no field"
            if not text or text != text.strip() or text.endswith(".") or "\n" in text:
                yield (
                    path,
                    (
                        f"a rule's message is empty, or is no single clause without a full "
                        f"stop: {text!r}"
                    ),
                )
            reported = (
                "fieldPath" in rule or "size(key)" in rule["rule"]
            )  # the API server puts the path before the message
            if (
                not reported
                and read
                and not any(re.search(rf"\b{re.escape(name)}\b", text) for name in read)
            ):
                yield (
                    path,
                    (
                        f"a rule's message names none of the fields it reads "
                        f"({', '.join(sorted(read))}): {text!r}"
                    ),
                )
            if not ADVICE.search(text):
                yield path, f"a rule's message does not say what to write: {text!r}"


def stored_size(definition: Definition) -> int:
    """Return the bytes that client-side apply writes into its annotation.

    These are compact JSON as Go writes it (``<``, ``>`` and ``&`` escaped), and a line end.
    """
    text = json.dumps(definition, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return len(text.encode()) + 1 + len(LAST_APPLIED)


def _size(definition: Definition) -> Iterator[Finding]:
    if (size := stored_size(definition)) >= CLIENT_SIDE_APPLY_LIMIT:
        yield "", f"client-side apply would store {size} bytes, more than {CLIENT_SIDE_APPLY_LIMIT}"


CHECKS: Mapping[str, Check] = {
    "description": _description,
    "names": _names,
    "types": _types,
    "integers": _integers,
    "strings": _strings,
    "lists": _lists,
    "atomic lists": _atomic_lists,
    "maps": _maps,
    "map bounds": _map_bounds,
    "open objects": _open_objects,
    "units": _units,
    "enums": _enums,
    "yaml traps": _yaml_traps,
    "defaults": _defaults,
    "tested defaults": _tested_defaults,
    "required": _required,
    "times": _times,
    "secrets": _secrets,
    "references": _references,
    "conditions": _conditions,
    "status": _status,
    "messages": _messages,
    "size": _size,
}


def findings(definition: Definition, exceptions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return violations that are no exceptions, and exceptions that nothing needs.

    They are sorted, one per line.
    """
    lines = []
    for rule, check in CHECKS.items():
        allowed = exceptions.get(rule, {})
        used = set()
        for path, wrong in check(definition):
            patterns = {pattern for pattern in allowed if matches(path, pattern)}
            used |= patterns
            if not patterns:
                lines.append(f"{rule}: {path or '(all)'} {wrong}")
        lines += [
            f"{rule}: the exception {pattern} is no longer needed"
            for pattern in set(allowed) - used
        ]
    return sorted(lines)


def matches(path: str, pattern: str) -> bool:
    """Whether a path fits a pattern with ``*``; brackets stand for themselves."""
    return fnmatchcase(path, pattern.replace("[", "[[]"))
