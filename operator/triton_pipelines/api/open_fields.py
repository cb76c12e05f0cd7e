"""Schemas of the fields that pass on parts of other APIs: any keys, but a bounded depth.

A structural schema has no recursion, so each level is written out. A value may be a scalar, a map
or a list; unknown keys are never pruned. The levels follow the deepest path of the API that a field
passes on, because a schema that allows everything to that depth would exceed the size that
client-side apply can store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

Schema = Mapping[str, Any]

PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
FORM: Final = "open-form"
"""Our own marker in the models: the form of this field."""
ITEMS_FORM: Final = "items-open-form"
"""Our own marker in the models: the form of this list's items."""

MAX_ITEMS: Final = 1024
"""Maximum number of items of one list: more than any pod or model has.

The operator checks it, not the schema: written out at each level, it would take 4 KB of what
client-side apply can store.
"""
MAX_KEYS: Final = 1024
"""Maximum number of keys of an open field."""

# No content, hence no nesting; the bounds do not apply to scalars.
_ITEM: Final[Schema] = {PRESERVE: True, "maxItems": 0, "maxProperties": 0}
# Every key is nullable: null removes a field here, and the API server drops other nulls.
_SCALAR: Final[Schema] = {"nullable": True, **_ITEM}


class OpenForm(StrEnum):
    """Which part of another API a field passes on."""

    REFERENCE = "reference"
    """EnvVarSource."""
    TOLERATION = "toleration"
    SELECTING = "selecting"
    """An object with label selectors: NetworkPolicyPeer, TopologySpreadConstraint."""
    EGRESS_RULE = "egress-rule"
    """NetworkPolicyEgressRule: lists of ports and of peers."""
    AFFINITY = "affinity"
    POD_TEMPLATE = "pod-template"
    MODEL_CONFIG = "model-config"
    """ModelConfig of Triton in protobuf JSON."""
    CPU_MODEL_CONFIG = "cpu-model-config"
    """ModelConfig of a tokenizer or postprocess step, without accelerators and sequences."""
    ENGINE_ARGS = "engine-args"
    """AsyncEngineArgs of vLLM."""


def _value(in_map: Schema, in_item: Schema) -> Schema:
    """Return a scalar, a map of ``in_map``, or a list of scalars or of maps of ``in_item``."""
    items = _ITEM if in_item is _SCALAR and in_map is _SCALAR else _map(in_item)
    return {
        "nullable": True,
        PRESERVE: True,
        "additionalProperties": in_map,
        "items": items,
    }


def _map(values: Schema) -> Schema:
    return {PRESERVE: True, "maxItems": 0, "additionalProperties": values}


def _object(values: Schema, *, nullable: bool = False) -> Schema:
    return {
        "type": "object",
        "maxProperties": MAX_KEYS,
        **({"nullable": True} if nullable else {}),
        "additionalProperties": values,
    }


def _levels(depth: int) -> Schema:
    """Return a value with at most ``depth`` levels of maps and lists in any order.

    Lists directly inside lists are not allowed.
    """
    if depth == 0:
        return _SCALAR
    if depth == 1:
        return _value(_SCALAR, _SCALAR)
    return _value(_levels(depth - 1), _levels(depth - 2))


def _nested_maps(depth: int) -> Schema:
    """Return a value with at most ``depth`` levels, of which only the last may be a list."""
    return _levels(1) if depth == 1 else _value(_nested_maps(depth - 1), _SCALAR)


def _selecting_value() -> Schema:
    """Return the value of one field of an object with label selectors.

    The deepest is podSelector.matchExpressions[].values[].
    """
    return _value(_value(_SCALAR, _levels(1)), _SCALAR)


def _affinity_terms() -> Schema:
    """Return the value of ``requiredDuring…`` and ``preferredDuring…``.

    Either a map with node selector terms, or a list of terms with label selectors.
    """
    return _value(_value(_SCALAR, _levels(3)), _value(_levels(4), _SCALAR))


def _pod_spec_value() -> Schema:
    """Return the value of one field of a PodSpec.

    The deepest are those of affinity, volumes[].projected.sources[].downwardAPI.items[].fieldRef
    and volumes[].ephemeral.volumeClaimTemplate.spec.selector.matchExpressions[].values[].
    """
    in_source = _value(_levels(4), _levels(1))
    in_volume = _value(_value(_value(_levels(4), _levels(1)), in_source), _levels(2))
    in_affinity = _value(_affinity_terms(), _levels(1))
    return _value(in_affinity, in_volume)


def _model_config_value() -> Schema:
    """Return the value of one field of a ModelConfig.

    The deepest are optimization.cuda.graph_spec[].graph_lower_bound.input.NAME.dim[],
    sequence_batching.state[].initial_state[].dims[] and model_warmup[].inputs.NAME.dims[].
    """
    in_optimization = _value(_value(_levels(1), _nested_maps(4)), _value(_levels(1), _levels(1)))
    return _value(in_optimization, _levels(3))


FORMS: Final[Mapping[OpenForm, Schema]] = {
    OpenForm.REFERENCE: _object(_object(_SCALAR)),
    OpenForm.TOLERATION: _object(_SCALAR),
    OpenForm.SELECTING: _object(_selecting_value()),
    OpenForm.EGRESS_RULE: _object(_value(_SCALAR, _selecting_value())),
    OpenForm.AFFINITY: _object(_object(_affinity_terms(), nullable=True)),
    OpenForm.POD_TEMPLATE: _object(_object(_pod_spec_value(), nullable=True)),
    OpenForm.MODEL_CONFIG: _object(_model_config_value()),
    OpenForm.CPU_MODEL_CONFIG: _object(_value(_levels(2), _levels(3))),
    OpenForm.ENGINE_ARGS: _object(_levels(3)),
}


def is_open(schema: Schema) -> bool:
    """Return whether a schema node is that of an open field."""
    below = schema.get("additionalProperties")
    return isinstance(below, Mapping) and (PRESERVE in below or is_open(below))


@dataclass(frozen=True, slots=True)
class OutsideForm:
    """A part of an open field that its form does not allow."""

    path: str
    """Its path below the field, such as ``.spec.volumes[0]``."""
    message: str
    """What is wrong with it, and what to do."""


def outside(value: Any, form: OpenForm) -> OutsideForm | None:
    """Return the first part of a value that a form does not allow; ``None`` without one.

    The recursion ends at the depth of the form.
    """
    return _outside(value, FORMS[form], "")


def _outside(value: Any, schema: Schema, path: str) -> OutsideForm | None:
    if not isinstance(value, (Mapping, list, tuple)):
        return None
    is_map = isinstance(value, Mapping)
    most = schema.get("maxProperties" if is_map else "maxItems", None if is_map else MAX_ITEMS)
    if most is not None and len(value) > most:
        return OutsideForm(path, _reason(len(value), most, is_map=is_map))
    below = schema.get("additionalProperties" if is_map else "items", _SCALAR)
    children = (
        [(f".{key}", child) for key, child in value.items()]
        if isinstance(value, Mapping)
        else [(f"[{index}]", child) for index, child in enumerate(value)]
    )
    for part, child in children:
        found = _outside(child, below, path + part)
        if found is not None:
            return found
    return None


def _reason(size: int, most: int, *, is_map: bool) -> str:
    if most == 0:
        return "nested too deeply for this field; use fewer levels"
    return f"must have at most {most} {'keys' if is_map else 'items'}, not {size}"
