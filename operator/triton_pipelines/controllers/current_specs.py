"""Provide effective specs to parts other than the pipeline controller. No I/O.

While a spec cannot be compiled, the pipeline controller keeps reconciling the last good spec, which
is recorded in the live ConfigMap. A part that used the present spec meanwhile would change what
runs for the sake of a spec that was rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from triton_pipelines.api import names
from triton_pipelines.api.parse import parse
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import CONFIG_MAPS
from triton_pipelines.cluster.store import Key, Store, key_of
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.owner_references import owned
from triton_pipelines.controllers.pipeline.policies.last_good_spec import last_good_snapshot
from triton_pipelines.controllers.pipeline.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class _SpecVersion:
    """Identify the spec that was read."""

    uid: str
    generation: int
    recorded: str | None
    """The last good spec as recorded; empty if it was not, because it is too long.

    ``None`` if there is no live ConfigMap.
    """


def _parse(document: Object) -> InferencePipeline | None:
    """Return a pipeline without findings, else ``None``."""
    pipeline, findings = parse(document)
    return None if findings else pipeline


@dataclass(slots=True)
class CurrentSpecs:
    """Return effective specs, parsed again only when they change.

    As long as a spec does not change, the same object is returned.
    """

    handover: Handover
    """Has the effective specs of this process; before the first reconcile only the record does."""
    parse: Callable[[Object], InferencePipeline | None] = _parse
    """Returns a pipeline without findings, else ``None``. The operator passes the cache of the
    pipeline controller, which needs the same specs soon."""
    _known: dict[Key, tuple[_SpecVersion, InferencePipeline | None]] = field(default_factory=dict)

    def of(self, store: Store, raw: Object) -> InferencePipeline | None:
        """Return a pipeline with its effective spec; ``None`` if no valid one is known yet.

        Args:
            store: The caches, with the live ConfigMap.
            raw: The pipeline as the API server has it.
        """
        key, metadata = key_of(raw), raw["metadata"]
        if (effective := self.handover.effective_spec(raw)) is not None:
            self._known.pop(key, None)
            return effective.pipeline
        live = store.get(CONFIG_MAPS, key[0], names.live_name(key[1]))
        if live is not None and not owned(live, str(metadata.get("uid"))):
            live = None  # of an earlier pipeline of this name
        recorded = (
            None if live is None else str((live.get("data") or {}).get(names.KEY_ACCEPTED) or "")
        )
        generation = int(metadata.get("generation") or 0)
        version = _SpecVersion(str(metadata.get("uid")), generation, recorded)
        known, last = self._known.get(key, (None, None))
        if known is not None and known.uid != version.uid:
            known = last = None  # another pipeline of the same name
        # A deleted live ConfigMap is recreated by the next reconcile.
        is_deleted = known is not None and known.recorded is not None and recorded is None
        if known == version or is_deleted:
            return last
        found = self._read(raw, live) or last
        self._known[key] = version, found
        return found

    def keep(self, keys: Collection[Key]) -> None:
        """Forget all other pipelines."""
        self._known = {key: known for key, known in self._known.items() if key in keys}

    def _read(self, raw: Object, live: Object | None) -> InferencePipeline | None:
        """Return the recorded spec, or the present one if this release accepts no recorded one."""
        for document in _candidates(raw, live):
            if (pipeline := self.parse(document)) is not None:
                return pipeline
        return None


def _candidates(raw: Object, live: Object | None) -> Iterator[Object]:
    """Return the specs that may be effective, the preferred one first."""
    if live is not None:
        children = {("ConfigMap", names.live_name(raw["metadata"]["name"])): live}
        snapshot = Snapshot(raw, children)
        if snapshot.state().revision.spec == snapshot.spec_hash:
            yield raw  # It is the recorded one, as usual.
        if (last := last_good_snapshot(snapshot)) is not None:
            yield last.pipeline
    yield raw
