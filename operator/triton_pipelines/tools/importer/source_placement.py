"""Where files of a resource will lie: addresses below a prefix, and the placeholder that stands for one that nobody has named."""

from __future__ import annotations

from typing import Any

from triton_pipelines.compile.graph.source_checks import PLACEHOLDER

__all__ = ["PLACEHOLDER", "located"]


def located(prefix: str, place: str) -> dict[str, Any]:
    """The ``source`` of what lies at ``place`` below ``prefix``; a place that ends with ``/``, or an empty one, is a folder.

    Repositories of models (hf) and images (oci) are named whole, and the place in them by ``path``.
    """
    scheme, _, rest = prefix.partition("://")
    if scheme == "hf":
        repository, _, revision = rest.partition("@")
        parts = [part for part in repository.split("/") if part]
        source: dict[str, Any] = {"uri": "hf://" + "/".join(parts[:2])}
        if revision:
            source["revision"] = revision
        path = "/".join([*parts[2:], place]).strip("/")
        return {**source, "path": path} if path else source
    if scheme == "oci":
        return {"uri": prefix, "path": place.strip("/")} if place.strip("/") else {"uri": prefix}
    return {"uri": f"{prefix.rstrip('/')}/{place}"}
