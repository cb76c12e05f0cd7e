"""Source addresses of files below a prefix, and the placeholder for an unknown prefix."""

from __future__ import annotations

from typing import Any

from triton_pipelines.compile.graph.source_checks import PLACEHOLDER

__all__ = ["PLACEHOLDER", "located"]


def located(prefix: str, place: str) -> dict[str, Any]:
    """Return the ``source`` of a file or folder below a prefix.

    Args:
        prefix: address of the repository.
        place: path below it; a folder if it is empty or ends with ``/``.

    Hub repositories (hf) and images (oci, image) have the whole as URI, and the place as ``path``.
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
    if scheme in ("oci", "image"):
        return {"uri": prefix, "path": place.strip("/")} if place.strip("/") else {"uri": prefix}
    return {"uri": f"{prefix.rstrip('/')}/{place}"}
