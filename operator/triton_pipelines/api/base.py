"""What every model of the resource shares: strictness, cross-field rules said twice (CEL and Python), findings.

A rule is written once with both of its forms, so the API server (CEL in the CRD) and the command line (Python) judge alike;
a corpus of good and bad resources in the tests holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo


class Severity(StrEnum):
    """How much a finding weighs: errors stop a revision, warnings only teach."""

    ERROR = "Error"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong or doubtful in a resource: where (a path such as ``spec.tokenizer.buckets``), and what to write instead."""

    path: str
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A cross-field rule of one model.

    ``cel`` goes into the CRD as ``x-kubernetes-validations`` of that object; ``holds`` is the same rule over the parsed model;
    ``field`` names the field (camelCase) that the message is about, if one.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str | None = None


class ApiModel(BaseModel):
    """Base of all models: camelCase on the wire, unknown fields refused, immutable once parsed."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_enum_values=False,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    def broken_rules(self, path: str) -> Iterator[Finding]:
        """All broken rules of this model and of those below it, with their paths."""
        for rule in self.rules:
            if not rule.holds(self):
                yield Finding(f"{path}.{rule.field}" if rule.field else path, rule.message)
        for name, info in type(self).model_fields.items():
            value, key = getattr(self, name), info.alias or name
            if isinstance(value, ApiModel):
                yield from value.broken_rules(f"{path}.{key}")
            elif isinstance(value, tuple):
                yield from _duplicates(value, info, f"{path}.{key}")
                for index, item in enumerate(value):
                    if isinstance(item, ApiModel):
                        yield from item.broken_rules(f"{path}.{key}[{index}]")


def _duplicates(items: tuple[Any, ...], info: FieldInfo, path: str) -> Iterator[Finding]:
    """Items that stand twice in a list that the API server keeps as a set or as a map by some keys."""
    extra = info.json_schema_extra
    marks = extra if isinstance(extra, dict) else {}
    if marks.get("x-kubernetes-list-type") not in ("set", "map"):
        return
    keys = marks.get("x-kubernetes-list-map-keys")
    names = [str(one) for one in keys] if isinstance(keys, list) else []
    seen = set()
    for index, item in enumerate(items):
        identity = tuple(_at_key(item, name) for name in names) if names else item
        if identity in seen:
            shown = (
                ", ".join(f"{name} {value!r}" for name, value in zip(names, identity, strict=True))
                if names
                else repr(item)
            )
            yield Finding(f"{path}[{index}]", f"{shown} stands there twice; remove one")
        seen.add(identity)


def _at_key(item: ApiModel, key: str) -> Any:
    """The value of a field by its name on the wire."""
    return next(
        getattr(item, name)
        for name, info in type(item).model_fields.items()
        if (info.alias or name) == key
    )


class Switch(StrEnum):
    """A choice with two sides, never a boolean: a third side can be added without a new field."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


# Names of models: any that is one folder name to Triton ("must not contain path traversal characters") and needs no quoting in a URL.
TRITON_NAME_PATTERN = r"^[A-Za-z0-9_+=@~-]+(\.[A-Za-z0-9_+=@~-]+)*$"
TritonName = Annotated[str, Field(min_length=1, max_length=128, pattern=TRITON_NAME_PATTERN)]
# Names of tensors: any that Triton takes (854, input.1, a/b:0); only control characters are out.
TENSOR_NAME_PATTERN = r"^[^\x00-\x1f\x7f]+$"
TensorName = Annotated[str, Field(min_length=1, max_length=256, pattern=TENSOR_NAME_PATTERN)]
# STEP.OUTPUT or pipeline.INPUT, split at the first dot.
TENSOR_REFERENCE_PATTERN = r"^[a-z][a-z0-9-]*\.[^\x00-\x1f\x7f]+$"
TensorReference = Annotated[
    str, Field(min_length=3, max_length=320, pattern=TENSOR_REFERENCE_PATTERN)
]
Dimension = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Text = Annotated[str, Field(max_length=1024)]
# The pattern of Kubernetes' own Quantity (apimachinery), without exponents.
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]{1,9})?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
# Users write `cpu: 2` as readily as `cpu: "2"`: the API server takes both, the models hold text.
Quantity = Annotated[
    str,
    Field(
        max_length=32,
        pattern=QUANTITY_PATTERN,
        json_schema_extra={"x-kubernetes-int-or-string": True},
    ),
    BeforeValidator(
        lambda value: (
            str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        )
    ),
]
# A DNS subdomain: the name of a Secret, a ConfigMap, a service account, a class.
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)]
# A key of a Secret or ConfigMap, which becomes a file name.
DATA_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
DataKey = Annotated[str, Field(min_length=1, max_length=253, pattern=DATA_KEY_PATTERN)]
LabelKey = Annotated[str, Field(max_length=317)]
# A part of the Kubernetes API passed on as written; the API server judges it when the child object is applied.
Passthrough = dict[str, Any]
