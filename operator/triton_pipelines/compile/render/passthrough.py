"""Parts of the Kubernetes API that the resource passes on."""

from __future__ import annotations

import json
from typing import Any


def plain(value: Any) -> Any:
    """Return a copy that contains only JSON types.

    YAML files may hold dates and numeric keys, which the API server never sees.
    """
    return json.loads(json.dumps(value, default=str))
