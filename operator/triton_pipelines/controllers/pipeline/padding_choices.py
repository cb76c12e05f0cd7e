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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from triton_pipelines.api import names
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph, MeasuredPadding, PaddingChoice
from triton_pipelines.compile.graph.padding_choice import uses_auto_padding
from triton_pipelines.compile.graph.resource_patch import (
    PaddingSetting,
    merge_patch,
    padding_fields,
    patch_pipeline,
)
from triton_pipelines.controllers.timestamps import moment

from .ragged_fallback import REQUEST_MAX, short
from .snapshot import Snapshot
from .state import json_object
from .status_events import Event
from .tuning_run_state import MESSAGE_MAX, Run

# Choices kept: the newest ones and the one in force. A spec that is restored finds its own again.
KEPT: Final = 8
# Room in status.padding (512 in all) for the figures, and for why a choice was rolled back.
SAID_MAX: Final = 400
BARRED_MAX: Final = 160
# Names of the fields in the record, and in the status.
_TOLD: Final = {
    "mode": "padding",
    "buckets": "buckets",
    "said": "reason",
    "request": "request",
    "at": "time",
    "barred": "barred",
}
_MODES: Final = tuple(mode.value for mode in Padding if mode is not Padding.AUTO)
_BUCKETS_MAX: Final = 32
_TOKENS_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """A verified padding."""

    mode: Padding
    buckets: tuple[int, ...] = ()
    said: str = ""
    """The measured figures, as text."""
    request: str = ""
    """Request of the tuning run that verified it."""
    at: str = ""
    """When that run ended (RFC 3339)."""
    barred: str = ""
    """Why its revision was rolled back; empty if it was not."""

    @property
    def padded(self) -> PaddingSetting:
        """The way of padding."""
        return PaddingSetting(self.mode.value, self.buckets)

    def for_build(self) -> MeasuredPadding:
        """Return the padding that the graph is built with."""
        return MeasuredPadding(self.mode, self.buckets, self.said)

    @classmethod
    def parse(cls, document: Any) -> Choice | None:
        """Read a choice; ``None`` if a manual edit has made it unreadable."""
        if not isinstance(document, Mapping):
            return None
        texts = {key: document.get(key, "") for key in ("said", "request", "at", "barred")}
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
        values |= {key: getattr(self, key) for key in ("said", "request", "at", "barred")}
        return {key: value for key, value in values.items() if value}

    @classmethod
    def told(cls, entry: Mapping[str, Any]) -> Choice | None:
        """Read an entry of ``status.padding.measured``; ``None`` if it is not valid."""
        return cls.parse({key: entry[name] for key, name in _TOLD.items() if name in entry})

    def to_status(self, fingerprint: str) -> dict[str, Any]:
        """Return the entry of ``status.padding.measured``."""
        document = self.to_document()
        return {"fingerprint": fingerprint} | {
            name: document[key] for key, name in _TOLD.items() if key in document
        }

    @property
    def age(self) -> tuple[dt.datetime, bool]:
        """Sort key: greater if verified later, or if the same choice was rejected since."""
        return moment(self.at) or dt.datetime.min.replace(tzinfo=dt.UTC), bool(self.barred)


Choices = Mapping[str, Choice]


@dataclass(frozen=True, slots=True)
class PaddingResult:
    """The part of a tuning result that ``Auto`` applies by itself, and the rest."""

    result: Mapping[str, Any]
    """Fields of ``status.tuning``, whose patch no longer names a padding."""
    patch: Mapping[str, Any]
    """That patch, with the padding that belongs to it written out."""
    choices: Choices
    """The verified choice by fingerprint: none or one."""


def recorded(snapshot: Snapshot) -> dict[str, Choice]:
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
        (fingerprint, Choice.parse(item))
        for text in texts
        for fingerprint, item in json_object(text).items()
    ]
    told = (snapshot.status.get("padding") or {}).get("measured") or ()
    known[:0] = [
        (str(item["fingerprint"]), Choice.told(item))
        for item in told
        if isinstance(item, Mapping) and item.get("fingerprint")
    ]
    result: dict[str, Choice] = {}
    for fingerprint, choice in known:
        if choice is not None and (
            fingerprint not in result or choice.age >= result[fingerprint].age
        ):
            result[fingerprint] = choice
    return result


def after(before: Choices, proven: Choices, current: str, back: str) -> dict[str, Choice]:
    """Return the choices to record after this reconcile iteration.

    Args:
        before: The choices recorded so far.
        proven: What a tuning run has verified.
        current: Fingerprint of the current spec, whose choice is rejected if its revision failed.
        back: Why that revision failed; empty if it did not.
    """
    choices = dict(before)
    if back and current in choices and not choices[current].barred:
        choices[current] = replace(choices[current], barred=short(back, BARRED_MAX))
    choices |= proven
    newest = sorted(choices, key=lambda one: (one == current, choices[one].age, one), reverse=True)[
        :KEPT
    ]
    return {fingerprint: choices[fingerprint] for fingerprint in newest}


def newly_rejected(before: Choices, choices: Choices) -> list[Choice]:
    """Return the choices that this iteration has rejected."""
    return [
        choice
        for fingerprint, choice in choices.items()
        if choice.barred and fingerprint in before and not before[fingerprint].barred
    ]


def events_of(barred: Sequence[Choice]) -> tuple[Event, ...]:
    """Return the events that report rejected choices, and why."""
    said = (
        "{0}, which tuning run {1!r} measured, is taken back for this spec"
        " until another run proves it: {2}"
    )
    notes = (said.format(one.padded, short(one.request, REQUEST_MAX), one.barred) for one in barred)
    return tuple(Event(True, "PaddingReverted", "Rollout", note) for note in notes)


def with_rejection(run: Run, barred: Sequence[Choice]) -> Run:
    """Return the run with a note if the padding that it verified was rejected since.

    Its message announced that ``Auto`` uses that padding.
    """
    for choice in barred:
        if (choice.request, choice.at) == (run.request, run.end):
            add = f" Auto has taken padding {choice.padded} back since: {choice.barred}"
            message = short(str(run.result.get("message") or ""), MESSAGE_MAX - len(add)) + add
            run = replace(run, result={**run.result, "message": message.lstrip()})
    return run


def to_status(choices: Choices) -> dict[str, Any]:
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
    told: Mapping[str, Any] = decided.get("padding") or {}
    if not told.get("measured"):
        return dict(status)
    return {**status, "padding": {**(status.get("padding") or told), "measured": told["measured"]}}


def data(choices: Choices) -> dict[str, str]:
    """Return the choices as ConfigMap data; empty without any."""
    documents = {fingerprint: choice.to_document() for fingerprint, choice in choices.items()}
    return (
        {names.KEY_MEASURED_PADDING: json.dumps(documents, sort_keys=True, ensure_ascii=False)}
        if documents
        else {}
    )


def applied(choices: Choices, current: str, graph: Graph) -> dict[str, str]:
    """Return the data of a revision's ConfigMap on the choice that created the revision.

    Empty if the padding comes from Auto's rule or from the spec.
    """
    choice = choices.get(current) if graph.padding is not None and graph.padding.measured else None
    return data({current: choice}) if choice is not None else {}


def take(
    pipeline: InferencePipeline,
    in_force: PaddingChoice | None,
    result: Mapping[str, Any],
    run: tuple[str, str],
    wall: float | None,
    fingerprint: Callable[[InferencePipeline], str],
) -> PaddingResult:
    """Take out of a tuning result what ``Auto`` applies by itself.

    The result is unchanged if the resource names its padding.

    Args:
        pipeline: The pipeline that was measured.
        in_force: Its padding.
        result: Fields of ``status.tuning`` as reported by the run. A patch in it was verified.
        run: Request and end (RFC 3339) of the run.
        wall: The p99 limit in milliseconds within which requests were counted.
        fingerprint: Returns the fingerprint of a resource.
    """
    patch = patch_in(result)
    gain, untouched = int(result.get("gainPercent") or 0), PaddingResult(result, patch, {})
    if not patch or gain <= 0 or in_force is None or not uses_auto_padding(pipeline.spec.tokenizer):
        return untouched
    try:
        wanted = patch_pipeline(pipeline, patch)
        tokenizer, rest = wanted.spec.tokenizer, _without_padding(patch)
        named = tokenizer is not None and not uses_auto_padding(tokenizer)
        if tokenizer is None or not (named or in_force.measured):
            return untouched  # Auto's rule applies before and after.
        before = padded = PaddingSetting(in_force.chosen.value, in_force.buckets)
        if named and tokenizer.padding is not None:
            # Otherwise the run verified its setting with the padding in force.
            padded = PaddingSetting(tokenizer.padding.value, tokenizer.buckets)
        target = fingerprint(patch_pipeline(pipeline, rest))
    except ValueError:
        return untouched
    request, at = run
    said = _figures(padded, before, gain, wall, bool(rest))
    measured = f"; {result['padding']}" if result.get("padding") else ""
    said = short(f"{said} (tuning run {short(request, REQUEST_MAX)!r}{measured})", SAID_MAX)
    choice = Choice(Padding(padded.mode), padded.buckets, said, request, at)
    told = (
        {**result, "patch": yaml.safe_dump(rest, sort_keys=False)}
        if rest
        else {key: value for key, value in result.items() if key != "patch"}
    )
    if named:
        when = "once that patch is in the spec" if rest else "from now on for this spec"
        room = (
            1024
            - len(" Auto takes padding  , with which it was measured,.")
            - len(str(padded))
            - len(when)
        )
        told["message"] = (
            f"{short(str(result.get('message') or ''), room)} Auto takes padding {padded},"
            f" with which it was measured, {when}.".lstrip()
        )
    return PaddingResult(
        told,
        merge_patch(rest, {"spec": {"tokenizer": padding_fields(pipeline, padded)}}),
        {target: choice},
    )


def patch_in(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the merge patch of a result; empty if there is none or it cannot be read."""
    try:
        patch = yaml.safe_load(str(result.get("patch") or ""))
    except (yaml.YAMLError, ValueError, RecursionError):
        # ValueError: a text that looks like a date but is not a valid one.
        return {}
    return patch if isinstance(patch, Mapping) else {}


def note(choices: Choices, fingerprint: str, request: str, *, in_force: bool) -> str:
    """Return a note on choices that are not in force; empty without any.

    Args:
        choices: All recorded choices.
        fingerprint: Fingerprint of the current spec.
        request: Request of the run in ``status.tuning`` if it measured the desired revision; empty
            if it did not.
        in_force: Whether a choice is in force.
    """
    own = choices.get(fingerprint)
    if own is not None and own.barred:
        return (
            f"; {own.padded}, which tuning run {short(own.request, REQUEST_MAX)!r} measured,"
            f" was taken back: {own.barred}"
        )
    if own is not None and not in_force:
        return (
            f"; {own.padded}, which tuning run {short(own.request, REQUEST_MAX)!r} measured,"
            " is none that this pipeline can take"
        )
    others = [choice for choice in choices.values() if not choice.barred]
    if own is not None or not others:
        return ""
    newest = max(others, key=lambda choice: choice.age)
    run = f"tuning run {short(newest.request, REQUEST_MAX)!r}"
    if newest.request == request:
        return (
            f"; {run} measured {newest.padded} to be better together with the patch"
            " in status.tuning: Auto takes it with that"
        )
    return (
        f"; {run} measured {newest.padded} to be better, but with other knobs:"
        " another spec.tuning.request measures these"
    )


def _figures(
    padded: PaddingSetting, before: PaddingSetting, gain: int, wall: float | None, more: bool
) -> str:
    """Return the verified gain as text. ``more``: other settings changed as well."""
    within = f" within {wall:g} ms" if wall is not None else ""
    times = f"{1 + gain / 100:.2f} times"
    if padded == before:
        return (
            f"measured: {padded} stays; with the knobs of the patch it carries {times}"
            f" what it did before{within}"
        )
    if more:
        return (
            f"measured: {padded} with the knobs of the patch carries {times}"
            f" what {before} did with those before{within}"
        )
    return f"measured: {padded} carries {times} what {before} does{within}"


def _without_padding(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch without padding and buckets; empty if it has nothing else."""
    spec = dict(patch.get("spec") or {})
    tokenizer = {
        key: value
        for key, value in (spec.get("tokenizer") or {}).items()
        if key not in ("padding", "buckets")
    }
    spec = {key: value for key, value in spec.items() if key != "tokenizer"} | (
        {"tokenizer": tokenizer} if tokenizer else {}
    )
    rest = {key: value for key, value in patch.items() if key != "spec"} | (
        {"spec": spec} if spec else {}
    )
    return rest
