"""What the loader finds out about fetched models, and what it does to them before Triton reads them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from triton_pipelines.api.loadplan import (
    LoadFinding,
    LoadPlan,
    LoadReason,
    PlanAdapt,
    PlanCheck,
    PlanPlace,
    PlanTokens,
)
from triton_pipelines.loader.download import write_atomically
from triton_pipelines.loader.errors import LoadError
from triton_pipelines.loader.onnx_file import compare, read_onnx
from triton_pipelines.loader.ragged import Adapted, Refusal, adapt_file
from triton_pipelines.loader.ragged.eligibility import FIXED, Obstacle
from triton_pipelines.loader.repository import below
from triton_pipelines.loader.tokenizer_files import Highest, highest
from triton_pipelines.loader.tokenizer_fit import Misfit, known_ids, misfits
from triton_pipelines.runtime.tokenizer.encoder import KNOWN_IDS

_OTHERS = (OSError, MemoryError)
"""Errors that say nothing about the file which is looked at."""


class Inspection:
    """The checks and adaptations of a plan, for files that were fetched.

    ``written`` is each fetched file below ``models`` with the URI that it came from. Errors and notes go to the lists that are given.
    """

    def __init__(
        self,
        plan: LoadPlan,
        models: Path,
        written: Mapping[str, str],
        errors: list[LoadError],
        notes: list[LoadFinding],
        log: logging.Logger,
    ) -> None:
        self._plan, self._models, self._written, self._log = plan, models, written, log
        self._errors, self._notes = errors, notes
        self._tokenizers: dict[str, Highest] = {}
        self._known: dict[str, int] = {}

    def run(self) -> None:
        """Check everything, then adapt what passed. Raises :class:`OSError` where the volume is full."""
        targets = {item.target for item in self._plan.fetch}
        for check in self._plan.checks:
            for path in self._paths(check):
                if path in self._written or (check.path is not None and path not in targets):
                    self._check(check, path)
        for tokenizer, size in self._known.items():
            write_atomically(
                below(self._models, tokenizer).with_name(KNOWN_IDS),
                json.dumps({"ids": size}).encode(),
            )
        for wanted in self._plan.adapt:
            # What does not fit what is declared is told as that, and not adapted.
            if all(error.step != wanted.step for error in self._errors):
                for path in self._paths(wanted):
                    if path in self._written:
                        self._adapt(wanted, path)

    def _paths(self, place: PlanPlace) -> list[str]:
        """The files meant: the one named, or that of every version of a model."""
        if place.path is not None:
            return [place.path]
        folders = (self._models / str(place.model)).glob("[1-9]*")
        return [
            f"{place.model}/{folder.name}/{place.file}"
            for folder in sorted(folders, key=lambda folder: (len(folder.name), folder.name))
        ]

    def _uri(self, place: PlanPlace, path: str) -> str:
        uri = self._written.get(path, path)
        return uri if place.model is None else f"{uri} (version {path.split('/')[1]})"

    def _check(self, check: PlanCheck, path: str) -> None:
        uri, file, found = self._uri(check, path), below(self._models, path), list[Misfit]()
        try:
            if message := compare(check, read_onnx(file), uri):
                found.append(Misfit(message))
        except ValueError as error:
            found.append(Misfit(f"{uri} {error}"))
        if (
            not found
            and check.tokens is not None
            and (known := self._highest(check.tokens)) is not None
        ):
            found = self._misfits(check.tokens, known, file, uri)
        for item in found:
            self._errors.append(
                LoadError(
                    LoadReason.MODEL_MISMATCH,
                    item.message,
                    step=check.step,
                    field=item.field or check.field,
                )
            )
        if not found:
            self._log.info("%s: inputs and outputs of %s fit", check.field, uri)

    def _misfits(self, tokens: PlanTokens, known: Highest, file: Path, uri: str) -> list[Misfit]:
        try:
            found = list(
                misfits(
                    file, tokens, known, uri, self._written.get(tokens.tokenizer, tokens.tokenizer)
                )
            )
            if (
                not found
                and known.written > known.id
                and (size := known_ids(file, tokens)) is not None
                and size <= known.written
            ):
                self._known[tokens.tokenizer] = min(size, self._known.get(tokens.tokenizer, size))
        except _OTHERS:
            raise
        except Exception as error:
            # A graph that nobody foresaw may be one that Triton runs.
            self._log.warning(
                "%s cannot be looked into for tokens and lengths that it does not take (%s)",
                uri,
                _named(error),
                exc_info=True,
            )
            return []
        return found

    def _adapt(self, item: PlanAdapt, path: str) -> None:
        uri = self._uri(item, path)
        tokens = next(
            (check.tokens for check in self._plan.checks if check.step == item.step), None
        )
        if (
            tokens is not None
            and item.vocabulary is None
            and (known := self._highest(tokens)) is not None
        ):
            item = item.model_copy(update={"vocabulary": known.written + 1})
        done: Adapted | Refusal
        try:
            done = adapt_file(below(self._models, path), item)
        except _OTHERS:
            raise
        except Exception as error:
            self._log.warning("%s cannot be adapted", uri, exc_info=True)
            done = Refusal(
                (
                    Obstacle(
                        f"the graph is built in a way that is not understood ({_named(error)})",
                        FIXED,
                    ),
                )
            )
        if isinstance(done, Refusal):
            message = f"{uri} cannot take requests of different length in one batch: {done}"
            self._errors.append(
                LoadError(LoadReason.RAGGED_UNSUPPORTED, message, step=item.step, field=item.field)
            )
            return
        self._log.info("%s: %s %s", item.field, uri, done)
        if not done.proven:
            self._notes.append(
                LoadFinding(
                    step=item.step,
                    reason=LoadReason.ANSWERS_NOT_COMPARED,
                    field=item.field,
                    message=f"{uri} {done}",
                )
            )

    def _highest(self, tokens: PlanTokens) -> Highest | None:
        """The highest token id of a tokenizer that was fetched; what did not come is told elsewhere."""
        file = below(self._models, tokens.tokenizer)
        if tokens.tokenizer not in self._tokenizers and file.is_file():
            self._tokenizers[tokens.tokenizer] = highest(file)
        return self._tokenizers.get(tokens.tokenizer)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
