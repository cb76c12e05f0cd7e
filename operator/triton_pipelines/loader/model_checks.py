"""Check fetched models, and adapt them before Triton reads them."""

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
    PlanPool,
    PlanTokens,
)
from triton_pipelines.loader.errors import LoaderError
from triton_pipelines.loader.files import write_atomically
from triton_pipelines.loader.model_pooling import pool_file
from triton_pipelines.loader.onnx_file import compare, read_onnx
from triton_pipelines.loader.onnx_shapes import external_shape_constants
from triton_pipelines.loader.onnx_store import load_without_weights
from triton_pipelines.loader.ragged import (
    AdaptationRefusal,
    AdaptedFile,
    adapt_file,
    not_understood,
)
from triton_pipelines.loader.repository import below, runs_on_cpu
from triton_pipelines.loader.tokenizer_files import KNOWN_IDS, HighestTokenId, highest_token_id
from triton_pipelines.loader.tokenizer_fit import TokenizerMismatch, find_mismatches, known_ids

_MACHINE_ERRORS = (OSError, MemoryError)
"""Errors that say nothing about the inspected file."""


class ModelInspection:
    """The checks and adaptations of a plan, for files that were fetched."""

    def __init__(
        self,
        plan: LoadPlan,
        models: Path,
        written: Mapping[str, str],
        errors: list[LoaderError],
        notes: list[LoadFinding],
        log: logging.Logger,
    ) -> None:
        """Prepare the inspection; :meth:`run` does it.

        Args:
            plan: the load plan.
            models: the model repository.
            written: fetched file (relative to ``models``) → URI that it came from.
            errors: list to which errors are added.
            notes: list to which findings that do not fail the load are added.
            log: the loader's log.
        """
        self._plan, self._models, self._written, self._log = plan, models, written, log
        self._errors, self._notes = errors, notes
        self._tokenizers: dict[str, HighestTokenId] = {}
        self._known: dict[str, int] = {}

    def run(self) -> None:
        """Check all files, then add pooling to those that passed, and adapt them.

        Raises:
            OSError: the volume is full.
        """
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
        for pooling in self._plan.pool:
            for path in self._sound_paths(pooling):
                self._pool(pooling, path)
        for adaptation in self._plan.adapt:
            for path in self._sound_paths(adaptation):
                self._adapt(adaptation, path)

    def _sound_paths(self, place: PlanPlace) -> list[str]:
        """Return the fetched files of a step, or none if the step has an error already.

        A file that does not match its declaration is reported as that, and not changed.
        """
        if any(error.step == place.step for error in self._errors):
            return []
        return [path for path in self._paths(place) if path in self._written]

    def _paths(self, place: PlanPlace) -> list[str]:
        """Return the files meant: the one that is named, or that of every version of a model."""
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
        uri, file = self._uri(check, path), below(self._models, path)
        found = self._tensor_mismatches(check, file, uri)
        if not found and check.tokens is not None:
            highest = self._highest_token_id(check.tokens)
            if highest is not None:
                found = self._tokenizer_mismatches(check.tokens, highest, file, uri)
        for item in found:
            self._errors.append(
                LoaderError(
                    LoadReason.MODEL_MISMATCH,
                    item.message,
                    step=check.step,
                    field=item.field or check.field,
                )
            )
        if not found:
            self._log.info("%s: inputs and outputs of %s match", check.field, uri)

    def _tensor_mismatches(self, check: PlanCheck, file: Path, uri: str) -> list[TokenizerMismatch]:
        """Compare the file's inputs and outputs with the declared ones."""
        try:
            is_adapted = any(item.step == check.step for item in self._plan.adapt)
            message = compare(check, read_onnx(file), uri, is_adapted=is_adapted)
            message = message or _external_shapes(file, uri)
        except ValueError as error:
            message = f"{uri} {error}"
        return [TokenizerMismatch(message)] if message else []

    def _tokenizer_mismatches(
        self, tokens: PlanTokens, highest: HighestTokenId, file: Path, uri: str
    ) -> list[TokenizerMismatch]:
        """Compare the file with its tokenizer; note how many ids it knows where that is fewer."""
        tokenizer_uri = self._written.get(tokens.tokenizer, tokens.tokenizer)
        try:
            found = list(find_mismatches(file, tokens, highest, uri, tokenizer_uri))
            if not found and highest.highest_written > highest.id:
                size = known_ids(file, tokens)
                if size is not None and size <= highest.highest_written:
                    least = self._known.get(tokens.tokenizer, size)
                    self._known[tokens.tokenizer] = min(size, least)
        except _MACHINE_ERRORS:
            raise
        except Exception as error:
            # Triton may be able to run a graph that these checks do not understand.
            self._log.warning(
                "%s cannot be checked for unknown tokens and rows that are too long (%s)",
                uri,
                _first_line(error),
                exc_info=True,
            )
            return []
        return found

    def _pool(self, item: PlanPool, path: str) -> None:
        uri = self._uri(item, path)
        obstacle = pool_file(below(self._models, path), item)
        if obstacle:
            message = (
                f"pooling cannot be added to {uri}, because {obstacle}; remove {item.field} to "
                "use a postprocess step"
            )
            self._errors.append(
                LoaderError(LoadReason.MODEL_MISMATCH, message, step=item.step, field=item.field)
            )
            return
        self._log.info("%s: %s returns %s", item.field, uri, item.embedding)

    def _adapt(self, item: PlanAdapt, path: str) -> None:
        uri = self._uri(item, path)
        result = self._adapted(self._with_vocabulary(item), path, uri)
        if isinstance(result, AdaptationRefusal):
            message = f"{uri} cannot process requests of different lengths in one batch: {result}"
            self._errors.append(
                LoaderError(
                    LoadReason.RAGGED_UNSUPPORTED, message, step=item.step, field=item.field
                )
            )
            return
        self._log.info("%s: %s %s", item.field, uri, result)
        if not result.is_verified:
            self._notes.append(
                LoadFinding(
                    step=item.step,
                    reason=LoadReason.ANSWERS_NOT_COMPARED,
                    field=item.field,
                    message=f"{uri} {result}",
                )
            )

    def _with_vocabulary(self, item: PlanAdapt) -> PlanAdapt:
        """Return ``item`` with the tokenizer's number of ids where the plan has none."""
        tokens = next(
            (check.tokens for check in self._plan.checks if check.step == item.step), None
        )
        if tokens is None or item.vocabulary is not None:
            return item
        highest = self._highest_token_id(tokens)
        if highest is None:
            return item
        return item.model_copy(update={"vocabulary": highest.highest_written + 1})

    def _adapted(self, item: PlanAdapt, path: str, uri: str) -> AdaptedFile | AdaptationRefusal:
        try:
            on_cpu = runs_on_cpu(self._models, path.split("/", 1)[0])
            dims = self._output_dims(item)
            return adapt_file(below(self._models, path), item, dims, on_cpu=on_cpu)
        except _MACHINE_ERRORS:
            raise
        except Exception as error:
            self._log.warning("%s cannot be adapted", uri, exc_info=True)
            return not_understood(_first_line(error))

    def _output_dims(self, item: PlanAdapt) -> dict[str, tuple[int, ...]]:
        """Return the declared dims of the step's outputs as fetched, without the batch axis.

        The output of pooling states its own dims.
        """
        return {
            tensor.name: tensor.dims
            for check in self._plan.checks
            if check.step == item.step
            for tensor in check.outputs
        }

    def _highest_token_id(self, tokens: PlanTokens) -> HighestTokenId | None:
        """Return the tokenizer's highest id; ``None`` if it was not fetched.

        A tokenizer that failed to arrive is already reported by its own fetch item.
        """
        file = below(self._models, tokens.tokenizer)
        if tokens.tokenizer not in self._tokenizers and file.is_file():
            self._tokenizers[tokens.tokenizer] = highest_token_id(file)
        return self._tokenizers.get(tokens.tokenizer)


def _external_shapes(file: Path, uri: str) -> str | None:
    """Return that ONNX Runtime will refuse the file for its side files; ``None`` if it will not."""
    names = external_shape_constants(file, load_without_weights(file).model)
    if not names:
        return None
    listed = f"{', '.join(names[:3])}{', …' if names[3:] else ''}"
    return (
        f"{uri} stores tensors from which shapes are computed in separate files ({listed}). "
        "ONNX Runtime does not load such a model. Save it with onnx.save_model(…, "
        "save_as_external_data=True, size_threshold=1024), so that small tensors are "
        "stored in the model's file"
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
