"""Parts of the Kubernetes API that the resource passes on."""

from __future__ import annotations

import json
from typing import Any


def plain(value: Any) -> Any:
    """A copy of what was passed through, as JSON has it.

    YAML files may hold dates and numeric keys, which the API server never sees.
    """
    return json.loads(json.dumps(value, default=str))
