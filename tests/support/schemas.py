"""Validate objects against Kubernetes' own schemas.

The library reads 2 MB of JSON for every object, and resolves their references anew; here a
validator is made once for each kind.
"""

from __future__ import annotations

import functools
from typing import Any

import jsonschema
from kubernetes_validate import utils
from referencing import Registry, Resource

VERSION = "1.36"

utils.schema_contents = functools.cache(utils.schema_contents)
utils.all_versions = functools.cache(utils.all_versions)


@functools.cache
def _validator(kind: str, api_version: str, version: str) -> jsonschema.Draft202012Validator:
    """Return the validator that the library makes for a kind; unknown fields are errors."""
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    group, _, number = api_version.rpartition("/")
    name = f"{kind.lower()}-{group.partition('.')[0]}-{number}".replace("--", "-")
    schema = utils.schema_contents(f"{folder}/{name}.json", version)
    definitions = utils.schema_contents(f"{folder}/_definitions.json", version)
    registry: Registry[Any] = Resource.from_contents(schema) @ Registry()
    registry = (Resource.from_contents(definitions) @ registry).crawl()
    return jsonschema.Draft202012Validator(schema, registry=registry)


def validate(item: dict[str, Any], version: str = VERSION) -> None:
    """Raise when Kubernetes would not take this object; unknown fields are wrong, too."""
    if not _validator(item["kind"], item["apiVersion"], version).is_valid(item):
        utils.validate(item, version, strict=True)
        raise AssertionError("the library accepts what its schema refuses")
