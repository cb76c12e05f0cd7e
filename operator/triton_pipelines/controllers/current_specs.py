"""The specs that passes go by, for what looks at pipelines beside the passes. No I/O.

While a spec cannot be acted on, passes go by the last one that could be (reconcile/keeping.py), which lies in the live ConfigMap. Whoever went by
the present one meanwhile would change what runs for a spec that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from triton_pipelines.api import names
from triton_pipelines.api.parse import parse
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.resources import CONFIG_MAPS
from triton_pipelines.cluster.store import Key, Store
from triton_pipelines.controllers.pipeline.effective_spec import EffectiveSpec
from triton_pipelines.controllers.pipeline.owner_references import owned
from triton_pipelines.controllers.pipeline.policies.last_good_spec import last_good_snapshot
from triton_pipelines.controllers.pipeline.snapshot import Object, Snapshot


@dataclass(frozen=True, slots=True)
class _Version:
    """Which spec it is: ``recorded`` by the passes, "" for one that was not (too long, or of an earlier release); ``None``: no pass has
    recorded anything."""

    uid: str
    generation: int
    recorded: str | None


@dataclass(slots=True)
class Specs:
    """Pipelines by what passes go by, read anew when that changes: as long as it does not, the same object comes back. ``going``: what passes
    of this process go by, before which there is only the record."""

    going: Callable[[Object], EffectiveSpec | None] = lambda _: None
    _known: dict[Key, tuple[_Version, InferencePipeline | None]] = field(default_factory=dict)

    def of(self, store: Store, raw: Object) -> InferencePipeline | None:
        """The pipeline with the spec that was last acted on; before the first pass with the present one. The last valid one stays; ``None``:
        there was none yet."""
        metadata = raw["metadata"]
        key = (str(metadata["namespace"]), str(metadata["name"]))
        if (going := self.going(raw)) is not None:
            self._known.pop(key, None)
            return going.pipeline
        live = store.get(CONFIG_MAPS, key[0], names.live_name(key[1]))
        if live is not None and not owned(live, str(metadata.get("uid"))):
            live = None  # of a former pipeline of this name
        recorded = (
            None if live is None else str((live.get("data") or {}).get(names.KEY_ACCEPTED) or "")
        )
        version = _Version(str(metadata.get("uid")), int(metadata.get("generation") or 0), recorded)
        known, last = self._known.get(key, (None, None))
        if known is not None and known.uid != version.uid:
            known = last = None  # another pipeline of the same name
        # A ConfigMap that somebody has deleted comes back with the next pass.
        gone = known is not None and known.recorded is not None and recorded is None
        if known == version or gone:
            return last
        found = _read(raw, live) or last
        self._known[key] = version, found
        return found

    def keep(self, keys: Collection[Key]) -> None:
        """Forget all other pipelines."""
        self._known = {key: known for key, known in self._known.items() if key in keys}


def _read(raw: Object, live: Object | None) -> InferencePipeline | None:
    """The recorded spec, or the present one where there is none that this release takes."""
    last = (
        last_good_snapshot(
            Snapshot(raw, {("ConfigMap", names.live_name(raw["metadata"]["name"])): live})
        )
        if live is not None
        else None
    )
    for document in (last.pipeline if last is not None else None, raw):
        if document is not None:
            pipeline, findings = parse(document)
            if pipeline is not None and not findings:
                return pipeline
    return None
