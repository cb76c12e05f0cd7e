"""The operator's view of the cluster: raw objects kept up to date by watches, found by name or by the pipeline they belong to.

Objects in the store are shared: read them, never change them.

Watches alone are not enough. After a 410 Kopf lists again and never reports what was deleted meanwhile, so a periodic LIST is compared with the
store (:func:`relist`). And what we wrote ourselves is put here at once, so that the next pass reads its own writes; the watch's echo of it,
or of something older, then changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS, Resource

Key = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name."""


def key_of(obj: Object) -> Key:
    """Namespace and name of a raw object."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def owner_key(resource: Resource, obj: Object) -> Key | None:
    """The pipeline that an object belongs to: itself, or the one its label names. None for an object of no pipeline."""
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
    """In-memory objects per resource, indexed by owning pipeline. Plain dictionaries: one event loop's thread only."""

    _objects: dict[Resource, dict[Key, _Entry]] = field(
        default_factory=lambda: defaultdict(dict), init=False
    )
    _owned: dict[tuple[Resource, Key], set[Key]] = field(
        default_factory=lambda: defaultdict(set), init=False
    )
    _removed: dict[Resource, dict[Key, int]] = field(
        default_factory=lambda: defaultdict(dict), init=False
    )  # when; until the next LIST
    _clock: int = field(
        default=0, init=False
    )  # counts changes; orders them against a LIST in progress

    def put(self, resource: Resource, obj: Object, *, since: int | None = None) -> bool:
        """Takes in an object from a watch or from the answer to a write.

        An older state of the same object (by resourceVersion) is left aside, so a late echo does not undo what is known already.

        Args:
            resource: the object's kind.
            obj: the object.
            since: of the answer to a write, what :meth:`mark` gave before it was sent. Where the watch has told since of the object's
                deletion, the answer is the older news, and an object put back would stay until the next LIST.

        Returns:
            Whether the store knows something new.
        """
        if resource == PODS:
            _slim(obj)
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
        """Forgets an object; with ``uid`` only if it is that one and not a later one of the same name.

        Returns:
            Whether it was there.
        """
        entry = self._objects[resource].get((namespace, name))
        if entry is None or (uid is not None and entry.obj["metadata"].get("uid") != uid):
            return False
        self._drop(resource, (namespace, name), entry)
        return True

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """One object, or None."""
        entry = self._objects[resource].get((namespace, name))
        return entry.obj if entry else None

    def all(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """All objects of a kind, of one namespace or of all, in no particular order."""
        return [
            entry.obj
            for key, entry in self._objects[resource].items()
            if namespace is None or key[0] == namespace
        ]

    def children(self, resource: Resource, pipeline: Key) -> list[Object]:
        """The objects of a kind that bear the pipeline's label, sorted by name."""
        owned = self._owned.get((resource, pipeline))
        if not owned:
            return []
        objects = self._objects[resource]
        return [objects[key].obj for key in sorted(owned)]

    def count(self, resource: Resource) -> int:
        """How many objects of a kind are known."""
        return len(self._objects[resource])

    def pipelines(self) -> Iterator[Key]:
        """Keys of all known pipelines."""
        return iter(tuple(self._objects[INFERENCE_PIPELINES]))

    # --- comparison with a LIST ------------------------------------------------------------------------------------------

    def mark(self) -> int:
        """A moment in the store's own time, to be taken before a LIST or a write is sent."""
        return self._clock

    def replace(
        self,
        resource: Resource,
        items: Iterable[Object],
        *,
        since: int,
        namespace: str | None = None,
    ) -> set[Key]:
        """Brings the store in line with a LIST that was sent at ``since``.

        Objects that were put or removed since are left as they are: what is known of them may be newer than the list.

        Args:
            resource: the listed kind.
            items: all its objects (of the namespace, if given).
            since: what :meth:`mark` gave before the LIST.
            namespace: the listed namespace; objects of others are left alone.

        Returns:
            Owners of what was missing, outdated or gone: what the watch had not told.
        """
        known, removed = self._objects[resource], self._removed[resource]
        changed: set[Key | None] = set()
        listed: set[Key] = set()
        for item in items:
            key = key_of(item)
            listed.add(key)
            entry = known.get(key)
            touched = entry.touched if entry else removed.get(key, 0)
            if touched <= since and (entry is None or _version(entry.obj) != _version(item)):
                changed.update(self._owners(entry), [owner_key(resource, item)])
                if resource == PODS:
                    _slim(item)
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

    @staticmethod
    def _owners(entry: _Entry | None) -> list[Key | None]:
        return [entry.owner] if entry else []

    def _set(self, resource: Resource, obj: Object) -> None:
        self._clock += 1
        key = key_of(obj)
        old = self._objects[resource].get(key)
        entry = _Entry(obj, owner_key(resource, obj), self._clock)
        if old is not None and old.owner != entry.owner:
            self._unlink(resource, key, old)
        self._objects[resource][key] = entry
        if entry.owner is not None:
            self._owned[resource, entry.owner].add(key)

    def _drop(self, resource: Resource, key: Key, entry: _Entry) -> None:
        self._clock += 1
        self._unlink(resource, key, entry)
        del self._objects[resource][key]
        self._removed[resource][key] = self._clock

    def _unlink(self, resource: Resource, key: Key, entry: _Entry) -> None:
        if entry.owner is not None:
            owned = self._owned[resource, entry.owner]
            owned.discard(key)
            if not owned:
                del self._owned[resource, entry.owner]


async def relist(
    client: Client,
    store: Store,
    resource: Resource,
    *,
    namespace: str | None = None,
    label_selector: str | None = None,
) -> set[Key]:
    """Lists a kind and brings the store in line with it.

    Returns:
        Pipelines whose objects the store had wrong or not at all; empty as long as the watch misses nothing.
    """
    since = store.mark()
    listing = await client.list(resource, namespace, label_selector=label_selector)
    return store.replace(resource, listing.items, since=since, namespace=namespace)


def _slim(pod: Object) -> None:
    """Pods are never applied, and their managedFields are the larger half of them; of these is kept who resized the pod in place."""
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
    """Whether ``new`` is a later state than ``old``, which bears the same name.

    Resource versions of one kind are decimal numbers that grow (KEP-5504), also from one object to the next of its name; other forms are
    taken as they come, in the watch's order.
    """
    later, earlier = (
        new["metadata"].get("resourceVersion") or "",
        old["metadata"].get("resourceVersion") or "",
    )
    if later.isdecimal() and earlier.isdecimal():
        return int(later) > int(earlier)
    return _version(new) != _version(old)
