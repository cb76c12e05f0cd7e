"""Padding modes that tuning runs have verified, for ``spec.tokenizer.padding: Auto``. Pure.

A choice holds for one fingerprint
(:func:`~triton_pipelines.compile.graph.fingerprint.cost_fingerprint`): that of the spec with the
patch that was measured together with it. It is stored in the live ConfigMap, in
``status.padding.measured`` and in the ConfigMap of the revision that it created. If one of them is
lost, or its write was rejected by the API server, the others still have it. A choice whose revision
failed or was rolled back is rejected until another run verifies it again.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.graph.effective_padding import MeasuredPadding
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import (
    PaddingSetting,
)
from triton_pipelines.controllers.timestamps import moment

from .ragged_fallback import REQUEST_MAX, shorten
from .snapshot import Snapshot
from .state import json_object
from .status_events import Event
from .tuning_run_state import MESSAGE_MAX, Run

# Choices kept: the newest ones and the one in force. A spec that is restored finds its own again.
KEPT_PADDINGS: Final = 8
# Room in status.padding (512 in all) for why a choice was rolled back.
REVERT_REASON_MAX: Final = 160
# Names of the fields of a choice, in the record and in the status.
_STATUS_NAMES: Final = {
    "mode": "padding",
    "buckets": "buckets",
    "figures": "reason",
    "request": "request",
    "at": "time",
    "revert_reason": "revertReason",
}
# Text fields of a choice.
_TEXTS: Final = ("figures", "request", "at", "revert_reason")
_MODES: Final = tuple(mode.value for mode in Padding if mode is not Padding.AUTO)
_BUCKETS_MAX: Final = 32
_TOKENS_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class VerifiedPadding:
    """A verified padding."""

    mode: Padding
    buckets: tuple[int, ...] = ()
    figures: str = ""
    """The measured figures, as text."""
    request: str = ""
    """Value of spec.tuning.request for the tuning run that verified this padding."""
    at: str = ""
    """When that run ended (RFC 3339)."""
    revert_reason: str = ""
    """Why its revision was rolled back; empty if it was not."""

    @property
    def setting(self) -> PaddingSetting:
        """The way of padding."""
        return PaddingSetting(self.mode.value, self.buckets)

    def as_measured(self) -> MeasuredPadding:
        """Return the padding that the graph is built with."""
        return MeasuredPadding(self.mode, self.buckets, self.figures)

    @classmethod
    def parse(cls, document: Any) -> VerifiedPadding | None:
        """Read a choice; ``None`` if a manual edit has made it unreadable."""
        if not isinstance(document, Mapping):
            return None
        texts = {name: document.get(name, "") for name in _TEXTS}
        buckets = document.get("buckets", [])
        if document.get("mode") not in _MODES or not all(
            isinstance(text, str) for text in texts.values()
        ):
            return None
        if (
            not isinstance(buckets, list)
            or len(buckets) > _BUCKETS_MAX
            or not all(type(one) is int and 0 < one <= _TOKENS_MAX for one in buckets)
        ):
            return None
        if texts["at"] and moment(texts["at"]) is None:
            return None
        return cls(Padding(document["mode"]), tuple(buckets), **texts)

    def to_document(self) -> dict[str, Any]:
        """Return the record, without empty fields."""
        values: dict[str, Any] = {"mode": self.mode.value, "buckets": list(self.buckets)}
        values |= {name: getattr(self, name) for name in _TEXTS}
        return {key: value for key, value in values.items() if value}

    @classmethod
    def from_status(cls, entry: Mapping[str, Any]) -> VerifiedPadding | None:
        """Read an entry of ``status.padding.measured``; ``None`` if it is not valid."""
        return cls.parse({key: entry[name] for key, name in _STATUS_NAMES.items() if name in entry})

    def to_status(self, fingerprint: str) -> dict[str, Any]:
        """Return the entry of ``status.padding.measured``."""
        document = self.to_document()
        return {"fingerprint": fingerprint} | {
            name: document[key] for key, name in _STATUS_NAMES.items() if key in document
        }

    @property
    def age(self) -> tuple[dt.datetime, bool]:
        """Sort key: greater if verified later, or if the same choice was rejected since."""
        return moment(self.at) or dt.datetime.min.replace(tzinfo=dt.UTC), bool(self.revert_reason)


VerifiedPaddings = Mapping[str, VerifiedPadding]


def recorded(snapshot: Snapshot) -> dict[str, VerifiedPadding]:
    """Return all recorded choices by fingerprint.

    They come from the deployed revision, the status and the live ConfigMap. Of two for one spec the
    newer counts: since the status was written, a ConfigMap may have been lost or edited, or its
    write may have been rejected.
    """
    made = snapshot.child(
        "ConfigMap", names.revision_name(snapshot.name, snapshot.deployed_revision())
    )
    texts = [
        ((made or {}).get("data") or {}).get(names.KEY_MEASURED_PADDING),
        snapshot.live_data().get(names.KEY_MEASURED_PADDING),
    ]
    known = [
        (fingerprint, VerifiedPadding.parse(item))
        for text in texts
        for fingerprint, item in json_object(text).items()
    ]
    from_status = (snapshot.status.get("padding") or {}).get("measured") or ()
    known[:0] = [
        (str(item["fingerprint"]), VerifiedPadding.from_status(item))
        for item in from_status
        if isinstance(item, Mapping) and item.get("fingerprint")
    ]
    result: dict[str, VerifiedPadding] = {}
    for fingerprint, choice in known:
        if choice is not None and (
            fingerprint not in result or choice.age >= result[fingerprint].age
        ):
            result[fingerprint] = choice
    return result


def updated(
    before: VerifiedPaddings, verified: VerifiedPaddings, current: str, failure: str
) -> dict[str, VerifiedPadding]:
    """Return the choices to record after this reconcile iteration.

    Args:
        before: The choices recorded so far.
        verified: What a tuning run has verified.
        current: Fingerprint of the current spec, whose choice is rejected if its revision failed.
        failure: Why that revision failed; empty if it did not.
    """
    choices = dict(before)
    if failure and current in choices and not choices[current].revert_reason:
        choices[current] = replace(
            choices[current], revert_reason=shorten(failure, REVERT_REASON_MAX)
        )
    choices |= verified
    newest = sorted(choices, key=lambda one: (one == current, choices[one].age, one), reverse=True)[
        :KEPT_PADDINGS
    ]
    return {fingerprint: choices[fingerprint] for fingerprint in newest}


def newly_rejected(before: VerifiedPaddings, choices: VerifiedPaddings) -> list[VerifiedPadding]:
    """Return the choices that this iteration has rejected."""
    return [
        choice
        for fingerprint, choice in choices.items()
        if choice.revert_reason and fingerprint in before and not before[fingerprint].revert_reason
    ]


def events_of(reverted: Sequence[VerifiedPadding]) -> tuple[Event, ...]:
    """Return the events that report rejected choices, and why."""
    template = (
        "{0}, which tuning run {1!r} measured, is not used for this spec until another run "
        "verifies it: {2}"
    )
    notes = (
        template.format(one.setting, shorten(one.request, REQUEST_MAX), one.revert_reason)
        for one in reverted
    )
    return tuple(Event(True, "PaddingReverted", "Rollout", note) for note in notes)


def with_reverted_paddings(run: Run, reverted: Sequence[VerifiedPadding]) -> Run:
    """Return the run with a note if the padding that it verified was rejected since.

    Its message announced that ``Auto`` uses that padding.
    """
    for choice in reverted:
        if (choice.request, choice.at) == (run.request, run.end):
            add = f" Auto has since reverted padding {choice.setting}: {choice.revert_reason}"
            message = shorten(str(run.result.get("message") or ""), MESSAGE_MAX - len(add)) + add
            run = replace(run, result={**run.result, "message": message.lstrip()})
    return run


def to_status(choices: VerifiedPaddings) -> dict[str, Any]:
    """Return the fields of ``status.padding``, the newest choice first; empty without any."""
    newest = sorted(choices, key=lambda one: (choices[one].age, one), reverse=True)
    return (
        {"measured": [choices[fingerprint].to_status(fingerprint) for fingerprint in newest]}
        if choices
        else {}
    )


def with_choices(status: Mapping[str, Any], decided: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``status`` with the choices of the ``decided`` one.

    The choices hold even if other objects could not be applied.
    """
    from_status: Mapping[str, Any] = decided.get("padding") or {}
    if not from_status.get("measured"):
        return dict(status)
    return {
        **status,
        "padding": {**(status.get("padding") or from_status), "measured": from_status["measured"]},
    }


def data(choices: VerifiedPaddings) -> dict[str, str]:
    """Return the choices as ConfigMap data; empty without any."""
    documents = {fingerprint: choice.to_document() for fingerprint, choice in choices.items()}
    return (
        {names.KEY_MEASURED_PADDING: json.dumps(documents, sort_keys=True, ensure_ascii=False)}
        if documents
        else {}
    )


def revision_data(choices: VerifiedPaddings, current: str, graph: Graph) -> dict[str, str]:
    """Return the data of a revision's ConfigMap on the choice that created the revision.

    Empty if the padding comes from Auto's rule or from the spec.
    """
    choice = choices.get(current) if graph.padding is not None and graph.padding.measured else None
    return data({current: choice}) if choice is not None else {}


def note_on_others(
    choices: VerifiedPaddings, fingerprint: str, request: str, *, is_in_force: bool
) -> str:
    """Return a note on choices that are not in force; empty without any.

    Args:
        choices: All recorded choices.
        fingerprint: Fingerprint of the current spec.
        request: Request of the run in ``status.tuning`` if it measured the desired revision; empty
            if it did not.
        is_in_force: Whether a choice is in force.
    """
    current = choices.get(fingerprint)
    if current is not None:
        measured = f"; {current.setting}, which {_run_text(current)} measured,"
        if current.revert_reason:
            return f"{measured} was reverted: {current.revert_reason}"
        return "" if is_in_force else f"{measured} does not suit this pipeline"
    others = [choice for choice in choices.values() if not choice.revert_reason]
    if not others:
        return ""
    newest = max(others, key=lambda choice: choice.age)
    run = _run_text(newest)
    if newest.request == request:
        return (
            f"; {run} measured {newest.setting} to be better together with the patch"
            " in status.tuning; Auto uses it once the patch is applied"
        )
    return (
        f"; {run} measured {newest.setting} to be better, but with other settings;"
        " change spec.tuning.request to measure the current ones"
    )


def _run_text(choice: VerifiedPadding) -> str:
    return f"tuning run {shorten(choice.request, REQUEST_MAX)!r}"
