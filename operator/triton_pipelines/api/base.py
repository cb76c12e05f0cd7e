"""Base of the resource's models: strict parsing, rules across fields, and findings.

Each rule has two forms side by side: CEL for the API server and Python for the command line. The
tests check with a corpus of valid and invalid resources that both forms agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from .finding_codes import FindingCode
from .open_fields import FORM, ITEMS_FORM, OpenForm, outside


class Severity(StrEnum):
    """How serious a finding is: an error prevents a revision, a warning does not."""

    ERROR = "Error"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a resource."""

    path: str
    """Field of the resource, such as ``spec.tokenizer.buckets``."""
    message: str
    """What is wrong and what to write instead."""
    severity: Severity = Severity.ERROR
    """Whether the problem prevents a revision."""
    code: str = field(kw_only=True)
    """Kind of the problem: a :class:`FindingCode`, or the id of a violated rule of Triton."""
    config_place: str = field(default="", kw_only=True)
    """Model, and field of its rendered config, that the problem is in; "" without a config."""

    def __str__(self) -> str:
        place = f" (in the config of {self.config_place})" if self.config_place else ""
        return f"{self.path}: {self.message}{place}"


@dataclass(frozen=True, slots=True)
class FieldRule:
    """A rule across the fields of one model, in CEL and in Python."""

    cel: str
    """The rule for the CRD, in ``x-kubernetes-validations`` of the object."""
    message: str
    """What is wrong and what to write instead."""
    holds: Callable[[Any], bool]
    """The same rule over the parsed model."""
    field: str | None = None
    """The field (camelCase) that the message is about; ``None``: the whole object."""


class ApiModel(BaseModel):
    """Base of all models: camelCase in JSON, no unknown fields, immutable once parsed."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_enum_values=False,
        defer_build=True,
    )

    rules: ClassVar[tuple[FieldRule, ...]] = ()

    def broken_rules(self, path: str) -> Iterator[Finding]:
        """Yield the broken rules of this model and of all models below it."""
        for rule in self.rules:
            if not rule.holds(self):
                yield Finding(
                    f"{path}.{rule.field}" if rule.field else path,
                    rule.message,
                    code=FindingCode.FIELD_COMBINATION,
                )
        for name, info in type(self).model_fields.items():
            value, key = getattr(self, name), info.alias or name
            yield from _outside_form(value, info, f"{path}.{key}")
            if isinstance(value, ApiModel):
                yield from value.broken_rules(f"{path}.{key}")
            elif isinstance(value, tuple):
                yield from _duplicates(value, info, f"{path}.{key}")
                for index, item in enumerate(value):
                    if isinstance(item, ApiModel):
                        yield from item.broken_rules(f"{path}.{key}[{index}]")


def _outside_form(value: Any, info: FieldInfo, path: str) -> Iterator[Finding]:
    """Yield the first part of an open field that is nested too deeply or has too many items."""
    extra = info.json_schema_extra
    marks = extra if isinstance(extra, dict) else {}
    fields: list[tuple[str, Any, Any]] = []
    if FORM in marks and value is not None:
        fields = [(path, marks[FORM], value)]
    elif ITEMS_FORM in marks:
        fields = [(f"{path}[{index}]", marks[ITEMS_FORM], item) for index, item in enumerate(value)]
    for where, form, item in fields:
        problem = outside(item, OpenForm(str(form)))
        if problem is not None:
            yield Finding(f"{where}{problem.path}", problem.message, code=FindingCode.TOO_LARGE)


def _duplicates(items: tuple[Any, ...], info: FieldInfo, path: str) -> Iterator[Finding]:
    """Yield repeated items of a list that the API server treats as a set or as a map by key."""
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
            yield Finding(
                f"{path}[{index}]",
                f"duplicate {shown}; change or remove one entry",
                code=FindingCode.DUPLICATE,
            )
        seen.add(identity)


def _at_key(item: ApiModel, key: str) -> Any:
    """Return the value of a field by its JSON name."""
    return next(
        getattr(item, name)
        for name, info in type(item).model_fields.items()
        if (info.alias or name) == key
    )


class Switch(StrEnum):
    """On or off as an enum, so that a third option needs no new field."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


# Names of models: any name that Triton accepts as one folder name ("must not contain path traversal
# characters") and that needs no quoting in a URL.
TRITON_NAME_PATTERN = r"^[A-Za-z0-9_+=@~-]+(\.[A-Za-z0-9_+=@~-]+)*$"
TritonName = Annotated[str, Field(min_length=1, max_length=128, pattern=TRITON_NAME_PATTERN)]
# Names of tensors: any that Triton accepts (854, input.1, a/b:0); only control characters are not
# allowed.
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
# Users write both `cpu: 2` and `cpu: "2"`. The API server accepts both; the models store text.
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
# A part of the Kubernetes API that is passed on as written. The API server validates it when the
# child object is applied.
Passthrough = dict[str, Any]
