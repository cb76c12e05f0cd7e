"""Cache of raw objects, kept up to date by watches and indexed by name and by owning pipeline.

Objects in the store are shared: never change them.

Watches alone are not enough. After a 410 Kopf lists again and never reports what was deleted
meanwhile, so a periodic LIST is compared with the store (:func:`relist`). The operator's own writes
are put here at once, so that the next reconcile reads them; a later watch event with the same or an
older state changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import structlog

from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import ClusterError, NotFound
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS, Resource
from triton_pipelines.cluster.shared_values import SharedValues

_log = structlog.get_logger(__name__)

Key = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name."""


def key_of(obj: Object) -> Key:
    """Return namespace and name of a raw object."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def owner_key(resource: Resource, obj: Object) -> Key | None:
    """Return the pipeline that an object belongs to: itself, or the one that its label names.

    ``None`` for an object of no pipeline.
    """
    namespace, name = key_of(obj)
    if resource == INFERENCE_PIPELINES:
        return namespace, name
    pipeline = (obj["metadata"].get("labels") or {}).get(names.LABEL_PIPELINE)
    return (namespace, pipeline) if pipeline else None


@dataclass(slots=True)
class _Entry:
    obj: Object
    owner: Key | None
    touched: int


@dataclass(slots=True)
class Store:
    """In-memory objects by resource and by owning pipeline. One event loop's thread only."""

    _objects: dict[Resource, dict[Key, _Entry]] = field(
        default_factory=lambda: defaultdict(dict), init=False
    )
    _owned: dict[tuple[Resource, Key], set[Key]] = field(
        default_factory=lambda: defaultdict(set), init=False
    )
    _changed: dict[Key, int] = field(default_factory=dict, init=False)
    """When an object of a pipeline last changed."""
    _matching: dict[Resource, dict[Callable[[Object], bool], set[Key]]] = field(
        default_factory=lambda: defaultdict(dict), init=False
    )  # by kind and predicate
    _removed: dict[Resource, dict[Key, int]] = field(
        default_factory=lambda: defaultdict(dict), init=False
    )  # when; until the next LIST
    _shared: SharedValues = field(default_factory=SharedValues, init=False)
    _clock: int = field(
        default=0, init=False
    )  # counts changes; orders them against a LIST in progress

    def put(self, resource: Resource, obj: Object, *, since: int | None = None) -> bool:
        """Store an object from a watch or from the answer to a write.

        An older state of the same object (by resourceVersion) is ignored, so a late watch event
        does not replace a newer state.

        Args:
            resource: the object's kind.
            obj: the object.
            since: for the answer to a write, the :meth:`mark` from before it was sent. If the watch
                has reported the object's deletion since, the answer is outdated, and the object
                would otherwise stay in the store until the next LIST.

        Returns:
            Whether the store changed.
        """
        entry = self._objects[resource].get(key_of(obj))
        if entry is not None and not _is_newer(obj, entry.obj):
            return False
        if (
            entry is None
            and since is not None
            and self._removed[resource].get(key_of(obj), 0) > since
        ):
            return False
        self._set(resource, obj)
        return True

    def remove(
        self, resource: Resource, namespace: str, name: str, *, uid: str | None = None
    ) -> bool:
        """Remove an object.

        Args:
            resource: the object's kind.
            namespace: its namespace.
            name: its name.
            uid: if given, a later object of the same name is not removed.

        Returns:
            Whether the store changed.
        """
        entry = self._objects[resource].get((namespace, name))
        if entry is None or (uid is not None and entry.obj["metadata"].get("uid") != uid):
            return False
        self._drop(resource, (namespace, name), entry)
        return True

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return one object, or None."""
        entry = self._objects[resource].get((namespace, name))
        return entry.obj if entry else None

    def all(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """Return all objects of a kind, in one namespace or in all, in no particular order."""
        return [
            entry.obj
            for key, entry in self._objects[resource].items()
            if namespace is None or key[0] == namespace
        ]

    def children(self, resource: Resource, pipeline: Key) -> list[Object]:
        """Return the objects of a kind with the pipeline's label, sorted by name."""
        owned = self._owned.get((resource, pipeline))
        if not owned:
            return []
        objects = self._objects[resource]
        return [objects[key].obj for key in sorted(owned)]

    def matching(self, resource: Resource, predicate: Callable[[Object], bool]) -> frozenset[Key]:
        """Return the keys of the objects of a kind for which a predicate holds.

        The predicate is called once for each state of an object, when that is stored. So a call
        costs as much as there are matches, however many objects there are.

        Args:
            resource: the kind.
            predicate: depends on the object alone. One function, not a new one per call.
        """
        found = self._matching[resource].get(predicate)
        if found is None:
            objects = self._objects[resource].items()
            found = {key for key, entry in objects if predicate(entry.obj)}
            self._matching[resource][predicate] = found
        return frozenset(found)

    def state_of(self, pipeline: Key) -> int:
        """Return a value that changes whenever an object of a pipeline does, the pipeline included.

        It is the logical time of the last change; 0 if the pipeline has no objects.
        """
        return self._changed.get(pipeline, 0)

    def count(self, resource: Resource) -> int:
        """Return the number of objects of a kind."""
        return len(self._objects[resource])

    def pipelines(self) -> Iterator[Key]:
        """Return the keys of all pipelines."""
        return iter(tuple(self._objects[INFERENCE_PIPELINES]))

    # --- comparison with a LIST -----------------------------------------------------------------

    def mark(self) -> int:
        """Return the store's logical time, to be read before a LIST or a write is sent."""
        return self._clock

    def replace(
        self,
        resource: Resource,
        items: Iterable[Object],
        *,
        since: int,
        namespace: str | None = None,
    ) -> set[Key]:
        """Replace the objects of a kind by those of a LIST.

        Objects that were put or removed since are kept: their state may be newer than the list.

        Args:
            resource: the listed kind.
            items: all its objects (of the namespace, if given).
            since: the :meth:`mark` from before the LIST.
            namespace: the listed namespace; objects of others are not changed.

        Returns:
            Owners of objects that were missing, outdated or deleted: what the watch had missed.
        """
        known, removed = self._objects[resource], self._removed[resource]
        changed: set[Key | None] = set()
        listed: set[Key] = set()
        for item in items:
            key = key_of(item)
            listed.add(key)
            if self.is_outdated(resource, item, since=since):
                changed.update(self._owners(known.get(key)), [owner_key(resource, item)])
                self._set(resource, item)
        for key, entry in tuple(known.items()):
            if (
                key not in listed
                and entry.touched <= since
                and (namespace is None or key[0] == namespace)
            ):
                changed.update(self._owners(entry))
                self._drop(resource, key, entry)
        for key, moment in tuple(removed.items()):
            if moment <= since:
                del removed[key]
        return {owner for owner in changed if owner is not None}

    def is_outdated(self, resource: Resource, listed: Object, *, since: int) -> bool:
        """Return whether the store misses a listed state of an object, and had no news of it since.

        Args:
            resource: the object's kind.
            listed: the object from a LIST; its metadata is enough.
            since: the :meth:`mark` from before the LIST.
        """
        key = key_of(listed)
        entry = self._objects[resource].get(key)
        touched = entry.touched if entry else self._removed[resource].get(key, 0)
        return touched <= since and (entry is None or _version(entry.obj) != _version(listed))

    @staticmethod
    def _owners(entry: _Entry | None) -> list[Key | None]:
        return [entry.owner] if entry else []

    def _set(self, resource: Resource, obj: Object) -> None:
        self._clock += 1
        if resource == PODS:
            _slim(obj)
        obj = self._shared.share(obj)
        key = key_of(obj)
        old = self._objects[resource].get(key)
        entry = _Entry(obj, owner_key(resource, obj), self._clock)
        if old is not None and old.owner != entry.owner:
            self._unlink(resource, key, old)
        self._objects[resource][key] = entry
        for predicate, found in self._matching[resource].items():
            (found.add if predicate(obj) else found.discard)(key)
        if entry.owner is not None:
            self._owned[resource, entry.owner].add(key)
            self._changed[entry.owner] = self._clock

    def _drop(self, resource: Resource, key: Key, entry: _Entry) -> None:
        self._clock += 1
        self._unlink(resource, key, entry)
        del self._objects[resource][key]
        for found in self._matching[resource].values():
            found.discard(key)
        self._removed[resource][key] = self._clock

    def _unlink(self, resource: Resource, key: Key, entry: _Entry) -> None:
        if entry.owner is None:
            return
        owned = self._owned[resource, entry.owner]
        owned.discard(key)
        if not owned:
            del self._owned[resource, entry.owner]
        if any((kind, entry.owner) in self._owned for kind in self._objects):
            self._changed[entry.owner] = self._clock
        else:
            self._changed.pop(entry.owner, None)


async def relist(
    client: Client,
    store: Store,
    resource: Resource,
    *,
    namespace: str | None = None,
    label_selector: str | None = None,
    metadata_only: bool = False,
) -> set[Key]:
    """List a kind and update the store.

    Args:
        client: client of the API server.
        store: the store.
        resource: the kind.
        namespace: the namespace; ``None`` lists all.
        label_selector: as in the watch.
        metadata_only: list only metadata and read the objects that differ from the store. Cheaper
            if the store is nearly up to date.

    Returns:
        Pipelines of which the watch had missed a change.
    """
    since = store.mark()
    listing = await client.list(
        resource, namespace, label_selector=label_selector, metadata_only=metadata_only
    )
    items = listing.items
    if metadata_only:
        items = await _with_outdated_read(
            client, store, resource, items, since=since, label_selector=label_selector
        )
    return store.replace(resource, items, since=since, namespace=namespace)


async def _with_outdated_read(
    client: Client,
    store: Store,
    resource: Resource,
    listed: list[Object],
    *,
    since: int,
    label_selector: str | None,
) -> list[Object]:
    """Return listed metadata, with the whole object where the store does not have that state.

    An object that cannot be read keeps its state in the store: it must not keep others from being
    compared. One that is no longer selected, since it was replaced by another of its name or lost
    its label, is left out as if it were deleted.
    """

    async def read(item: Object) -> Object | None:
        key = key_of(item)
        try:
            found = await client.get(resource, *key)
        except NotFound:
            return None  # deleted since
        except ClusterError as error:
            await _log.awarning(
                "object not read", kind=resource.kind, namespace=key[0], object=key[1], error=error
            )
            return store.get(resource, *key)
        return found if _is_selected(found, label_selector) else None

    outdated = [item for item in listed if store.is_outdated(resource, item, since=since)]
    keys = {key_of(item) for item in outdated}
    found = await asyncio.gather(*map(read, outdated))
    return [
        *(item for item in listed if key_of(item) not in keys),
        *(item for item in found if item is not None),
    ]


def _is_selected(obj: Object, label_selector: str | None) -> bool:
    """Return whether an object has the label of a selector of the form ``key=value``."""
    if label_selector is None:
        return True
    key, _, value = label_selector.partition("=")
    return bool((obj["metadata"].get("labels") or {}).get(key) == value)


def _slim(pod: Object) -> None:
    """Drop a pod's managedFields, except those of in-place resizes.

    Pods are never applied, and their managedFields are the larger half of them.
    """
    kept = [
        entry
        for entry in pod["metadata"].pop("managedFields", None) or ()
        if entry.get("subresource") == "resize"
    ]
    if kept:
        pod["metadata"]["managedFields"] = kept


def _version(obj: Object) -> tuple[str | None, str | None]:
    metadata = obj["metadata"]
    return metadata.get("uid"), metadata.get("resourceVersion")


def _is_newer(new: Object, old: Object) -> bool:
    """Return whether ``new`` is a later state than ``old``, which has the same name.

    Resource versions of one kind are increasing decimal numbers (KEP-5504), also across objects of
    the same name; other forms are taken in the order of the watch.
    """
    later, earlier = (
        new["metadata"].get("resourceVersion") or "",
        old["metadata"].get("resourceVersion") or "",
    )
    if later.isdecimal() and earlier.isdecimal():
        return int(later) > int(earlier)
    return _version(new) != _version(old)
