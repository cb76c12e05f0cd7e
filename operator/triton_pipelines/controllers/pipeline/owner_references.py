"""Check who owns an object whose name a pipeline needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton_pipelines.api import names

from .snapshot import Object


class NameTaken(Exception):  # noqa: N818 - named after the condition
    """An object whose name the pipeline needs belongs to another owner."""


class FormerChild(Exception):  # noqa: N818
    """An object of a former pipeline of the same name has not gone yet."""


class UnsafeTemplate(Exception):  # noqa: N818
    """A recorded pod template would give pods more than authors of pipelines may give them."""


def owned(item: Mapping[str, Any], uid: str) -> bool:
    """Return whether the pipeline with this ``uid`` is an owner of the object."""
    return any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences") or ())


def check_owner(known: Object | None, item: Object, uid: str) -> None:
    """Raise unless ``item`` may take the place of ``known``.

    It may if there is no such object, if it is owned by this pipeline (by its ``uid``), or if it
    was left behind by a pipeline of this name.

    Raises:
        FormerChild: The object belongs to a former pipeline of the name and is about to go.
        NameTaken: The object belongs to another owner.
    """
    if known is None or owned(known, uid):
        return
    owners = known["metadata"].get("ownerReferences") or []
    if not owners and _left_by_us(known, item):
        return
    what = f"{item['kind']} {item['metadata']['name']}"
    if any(
        owner.get("kind") == names.KIND
        and owner.get("apiVersion", "").startswith(names.GROUP)
        # Another pipeline's object can have this name: that of a-headless is one of a's too.
        and owner.get("name") == item["metadata"]["labels"][names.LABEL_PIPELINE]
        for owner in owners
    ):
        raise FormerChild(what)
    raise NameTaken(
        f"{what} exists in this namespace and does not belong to this pipeline; delete or "
        "rename that object, or change metadata.name of the pipeline"
    )


def _left_by_us(known: Object, item: Object) -> bool:
    """Return whether an object without an owner was applied by us for a pipeline of this name.

    Then only its owner reference was removed by hand.
    """
    applied = any(
        entry.get("manager") == names.MANAGER_CHILDREN
        for entry in known["metadata"].get("managedFields") or ()
    )
    labels = known["metadata"].get("labels") or {}
    return (
        applied
        and labels.get(names.LABEL_PIPELINE) == item["metadata"]["labels"][names.LABEL_PIPELINE]
    )
