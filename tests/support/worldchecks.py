"""Checks of a modeled API server.

It refuses objects that do not match Kubernetes' schemas, and statuses that do not match the CRD.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema

from tests.support import libyaml, schemas
from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.snapshot import Object

CRD_FILE = Path(__file__).parents[2] / "crds" / f"{names.PLURAL}.{names.GROUP}.yaml"
KUBERNETES_VERSION = "1.35"


@functools.cache
def _schema() -> Object:
    (version,) = libyaml.load(CRD_FILE.read_text())["spec"]["versions"]
    found: Object = version["schema"]["openAPIV3Schema"]
    return found


@functools.cache
def status_validator() -> jsonschema.Draft202012Validator:
    """Return a validator for the CRD's status schema.

    A field that the schema does not name is an error here. The API server would drop it silently.
    """

    def closed(schema: Any) -> Any:
        if isinstance(schema, dict):
            result = {key: closed(value) for key, value in schema.items()}
            return (
                {**result, "additionalProperties": False}
                if schema.get("type") == "object" and "properties" in schema
                else result
            )
        return [closed(item) for item in schema] if isinstance(schema, list) else schema

    return jsonschema.Draft202012Validator(closed(_schema()["properties"]["status"]))


@functools.lru_cache(maxsize=4096)
def _status_errors(text: str) -> tuple[str, ...]:
    errors = status_validator().iter_errors(json.loads(text))
    return tuple(f"{error.json_path}: {error.message}" for error in errors)


def check_status(status: Object) -> None:
    """Raise unless a status fits the CRD.

    Most of its fields are those of the status before, so they are checked one by one.
    """
    parts = ({}, *({name: value} for name, value in status.items()))
    errors = [error for part in parts for error in _status_errors(json.dumps(part))]
    assert not errors, f"the status does not fit the CRD: {errors[0]}"


@functools.lru_cache(maxsize=4096)
def _validate(text: str) -> None:
    schemas.validate(json.loads(text), KUBERNETES_VERSION)


def check_object(item: Object) -> None:
    """Raise unless the object fits Kubernetes' own schema, unknown fields included."""
    _validate(json.dumps(item, sort_keys=True))
