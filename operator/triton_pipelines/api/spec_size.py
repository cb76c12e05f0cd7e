"""Limit of a spec's size.

The operator keeps every pipeline in memory, about 2.5 times as large as its JSON. The API server
stores objects of up to 1.5 MiB, so a hundred of those would exceed the operator's memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

MAX_SPEC_BYTES: Final = 256 * 1024
"""Bytes of a spec as JSON. Real ones have a few KiB; `kubectl apply` stops at 256 KiB, too."""
_OMITTED: Final = "omittedBytes"


def spec_size(spec: Any) -> int:
    """Return the size of a spec as JSON (bytes), also of one that was omitted.

    Raises:
        RecursionError: the spec is nested too deeply; check the depth first.
    """
    if isinstance(spec, Mapping) and isinstance(size := spec.get(_OMITTED), int):
        return size
    return len(json.dumps(spec, ensure_ascii=False, default=str).encode(errors="surrogatepass"))


def omit_large_spec(pipeline: dict[str, Any]) -> None:
    """Replace a spec above :data:`MAX_SPEC_BYTES` by its size, in place.

    The list of managed fields, whose size follows from the spec, is removed as well. Annotations
    stay: the API server limits them to 256 KiB, and one of them pauses the pipeline.
    """
    size = spec_size(pipeline.get("spec"))
    if size > MAX_SPEC_BYTES:
        pipeline["spec"] = {_OMITTED: size}
        pipeline["metadata"].pop("managedFields", None)
