"""Kubernetes' own schemas, read once: the library reads 2 MB of JSON for every object."""

from __future__ import annotations

import functools
from typing import Any

from kubernetes_validate import utils

VERSION = "1.36"

utils.schema_contents = functools.cache(utils.schema_contents)


def validate(item: dict[str, Any]) -> None:
    """Raise when Kubernetes would not take this object; unknown fields are wrong, too."""
    utils.validate(item, VERSION, strict=True)
