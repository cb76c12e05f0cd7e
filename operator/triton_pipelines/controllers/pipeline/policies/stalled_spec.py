"""End a tuning run while no spec compiles and no revision is known that could be kept. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.actions import Apply, ApplyStage
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import TuningRunState
from triton_pipelines.controllers.pipeline.tuning_run_inputs import cleared
from triton_pipelines.controllers.pipeline.tuning_run_state import Run, with_tuning

from .last_good_spec import Stalled
from .tuning_run import interrupt


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Report why nothing can be done; of the live ConfigMap, change the tuning run alone."""
    stalled = draft.of(Stalled)
    before = Run.parse(draft.state.tuning_run.document)
    tuned = interrupt(before, now, *stalled.reasons)
    live = snapshot.child("ConfigMap", names.live_name(snapshot.name))
    shared = Outcome(
        status=stalled.status,
        clear=cleared(snapshot, ()),
        events=tuned.events,
        requeue_after=stalled.requeue_after,
    )
    if live is None or tuned.run == before:
        return shared
    state = TuningRunState(tuned.run.to_document())
    kept = {
        key: live["metadata"][key]
        for key in ("name", "namespace", "labels", "ownerReferences")
        if key in live["metadata"]
    }
    data = {**live["data"], names.KEY_STATE: draft.state.with_states(state).to_json()}
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": kept, "data": data}
    return replace(
        shared,
        states=(state,),
        apply=(Apply(ApplyStage.LIVE_CONFIG_MAP, item, always=True),),
        status=with_tuning(stalled.status, tuned.status()),
    )
