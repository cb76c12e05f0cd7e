"""Check who owns an object whose name a pipeline needs. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.controllers.timestamps import moment

from .snapshot import Object

# The shortest and the longest time (seconds) between two attempts while the garbage collector
# deletes children of a former pipeline. They usually go within moments, but a finalizer may keep
# them forever.
_FORMER_CHILD_SECONDS: Final = (2.0, 60.0)


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


def former_child_wait(pipeline: Object, now: dt.datetime) -> float:
    """Return the seconds until the next attempt while children of a former pipeline remain.

    It is as long as the pipeline has existed, and so doubles with each attempt.
    """
    shortest, longest = _FORMER_CHILD_SECONDS
    created = moment(str(pipeline["metadata"].get("creationTimestamp") or ""))
    age = (now - created).total_seconds() if created is not None else 0.0
    return min(max(age, shortest), longest)


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
