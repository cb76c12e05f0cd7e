"""Adapt an ONNX file on disk in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx

from triton_pipelines.api.loadplan import PlanAdapt
from triton_pipelines.loader.files import replace_durably
from triton_pipelines.loader.onnx_graph.graph_walk import opset
from triton_pipelines.loader.onnx_graph.inline_functions import inline_local_functions
from triton_pipelines.loader.onnx_graph.model_runner import (
    Evaluator,
    GraphInput,
    choose_evaluator,
    graph_inputs,
)
from triton_pipelines.loader.onnx_store import Stored, load, load_without_weights, save, skeleton
from triton_pipelines.loader.onnx_weights import side_files_of, size_of
from triton_pipelines.loader.ragged.eligibility import (
    FIXED,
    OPSET,
    Adaptable,
    AdaptationRefusal,
    check_eligibility,
)
from triton_pipelines.loader.ragged.equivalence import Verification, verify
from triton_pipelines.loader.ragged.graph_adapter import adapt
from triton_pipelines.loader.ragged.opset_upgrade import CONVERTED_MAX, too_old, upgraded
from triton_pipelines.loader.ragged.padding_free.analysis import Padded, PaddingFree, analyze

SLOWER_ON_GPU: Final = "on a GPU, batches of typical size are faster with padding"
"""Measured on an H100: see docs/decisions/0031-padding-free-graphs.md."""


@dataclass(frozen=True)
class AdaptedFile:
    """A file that now takes ragged batches."""

    adaptable: Adaptable
    """What it was adapted for."""
    verification: Verification
    """How it was verified."""
    form: PaddingFree | Padded
    """Whether it computes padding."""

    @property
    def is_verified(self) -> bool:
        """Whether outputs were compared, rather than only the structure checked."""
        return self.verification.evaluator is not Evaluator.NONE

    def __str__(self) -> str:
        limits = [f"{name} below {size}" for name, size in self.adaptable.sizes.items()]
        if self.adaptable.max_length is not None:
            limits.append(f"at most {self.adaptable.max_length} tokens")
        verified = f"structure only, outputs not compared ({self.verification.why})"
        if self.is_verified:
            verified = (
                "batched rows have the same outputs as single rows in "
                f"{self.verification.evaluator}"
            )
        accepted = ", ".join(limits) or "any values"
        return (
            f"adapted to ragged batches; {verified}; {self.form}; rows are accepted with {accepted}"
        )


class _RefusedError(Exception):
    """The file cannot be adapted."""

    def __init__(self, refusal: AdaptationRefusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def adapt_file(
    path: Path,
    plan: PlanAdapt,
    output_dims: Mapping[str, tuple[int, ...]] | None = None,
    *,
    on_cpu: bool = False,
) -> AdaptedFile | AdaptationRefusal:
    """Adapt the model at ``path``.

    The new file takes its name only when it is complete and verified as far as possible here.
    External data is not copied, and read only for the verification: the adapted graph names the
    same side files. A graph that the adapter does not understand is refused like any other.

    Args:
        path: the ONNX file.
        plan: inputs and outputs per token, from the load plan.
        output_dims: output → its declared dims without the batch axis. The adapted file states
            them.
        on_cpu: whether it will run on CPUs only.

    Raises:
        OSError: the volume is full.
        MemoryError: the model does not fit into memory.
        google.protobuf.message.DecodeError: the file is not a model.
    """
    try:
        with _new_enough(path) as source:
            stored = _read_model(source)
            adaptable = _check(path, stored.model, plan, output_dims or {})
            file = _FileAdaptation(
                path,
                source,
                graph_inputs(stored.model, [item.name for item in plan.inputs]),
                adaptable,
                size_of(path, stored.model),
                on_cpu,
            )
            return file.run()
    except _RefusedError as error:
        return error.refusal


def not_understood(error: str) -> AdaptationRefusal:
    """Return the refusal of a graph on which the adapter failed with ``error``."""
    return AdaptationRefusal.of(
        f"the adapter does not support the structure of the graph ({error})", FIXED
    )


@contextmanager
def _new_enough(path: Path) -> Iterator[Path]:
    """Yield a file with an opset that the adapter knows: ``path``, or its conversion."""
    version = opset(load_without_weights(path).model)
    if version >= OPSET:
        yield path
        return
    # A file that is too large to be converted may be too large to be parsed as a whole.
    too_large = path.stat().st_size > CONVERTED_MAX
    whole = too_old(version) if too_large else upgraded(load(path))
    if isinstance(whole, AdaptationRefusal):
        raise _RefusedError(whole)
    converted = path.with_name(f".{path.name}.converted")
    try:
        save(whole, converted)
        yield converted
    finally:
        converted.unlink(missing_ok=True)


def _read_model(path: Path) -> Stored:
    """Return the model with its local functions inlined."""
    stored = load_without_weights(path)
    inline_local_functions(stored.model)
    return stored


def _check(
    path: Path, model: Any, plan: PlanAdapt, output_dims: Mapping[str, tuple[int, ...]]
) -> Adaptable:
    """Return what the graph can be adapted for. Raises :class:`_RefusedError`."""
    adaptable = check_eligibility(model, plan, output_dims)
    if isinstance(adaptable, AdaptationRefusal):
        raise _RefusedError(adaptable)
    missing = sorted(side for side in side_files_of(model) if not (path.parent / side).is_file())
    if missing:
        raise _RefusedError(
            AdaptationRefusal.of(
                f"the weights in {', '.join(missing)} are missing next to the file",
                "use a source that contains all of its files",
            )
        )
    return adaptable


@dataclass(frozen=True)
class _FileAdaptation:
    """One file on its way to the adapted one."""

    path: Path
    source: Path
    """The file, or its conversion to a newer opset, which only comparing outputs can verify."""
    inputs: tuple[GraphInput, ...]
    """Inputs of the stock graph."""
    adaptable: Adaptable
    weights: int
    """Bytes of the model's weights."""
    on_cpu: bool
    """Whether the file will run on CPUs only."""

    def run(self) -> AdaptedFile:
        """Write, verify and publish the adapted file. Raises :class:`_RefusedError`.

        Where a graph changes its outputs without padding, it is adapted with padding.
        """
        try:
            form = self._form()
            if isinstance(form, PaddingFree):
                return self._adapt(form)
        except _RefusedError as error:
            form = Padded(f"without padding, its outputs differ ({error})")
        except (OSError, MemoryError):
            raise
        except Exception as error:
            # An unexpected kind of graph can still be adapted with padding.
            form = Padded(
                (f"the structure of the graph is not supported ({type(error).__name__}: {error})")[
                    :300
                ]
            )
        return self._adapt(form)

    def _form(self) -> PaddingFree | Padded:
        if not self.on_cpu:
            return Padded(SLOWER_ON_GPU)
        if choose_evaluator(self.weights) is Evaluator.NONE:
            return Padded("it is too large to compare its outputs")
        return analyze(_read_model(self.source), self.inputs, self.adaptable)

    def _adapt(self, form: PaddingFree | Padded) -> AdaptedFile:
        stored = _read_model(self.source)
        temporary = self.path.with_name(f".{self.path.name}.ragged")
        try:
            adapt(stored.model, self.adaptable, form if isinstance(form, PaddingFree) else None)
            save(stored, temporary)
            bare = skeleton(stored.model)
            # `save` has emptied the model, so its weights do not take memory during the runs.
            verification = verify(
                self.path,
                temporary,
                self.inputs,
                self.adaptable,
                self.weights,
                is_padding_free=isinstance(form, PaddingFree),
            )
            self._check_verification(verification, bare, form)
            self._check_length()
            replace_durably(temporary, self.path)
        except onnx.checker.ValidationError as error:
            reason = str(error).partition("\n")[0]
            raise _RefusedError(
                AdaptationRefusal.of(f"the adapted graph is not valid ({reason})", FIXED)
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
        return AdaptedFile(self.adaptable, verification, form)

    def _check_verification(
        self, verification: Verification, bare: Any, form: PaddingFree | Padded
    ) -> None:
        """Refuse a file that is wrong or, where needed, not verified."""
        if verification.evaluator is Evaluator.NONE:
            if isinstance(form, PaddingFree):
                raise _RefusedError(AdaptationRefusal.of(verification.why, FIXED))
            if self.source != self.path:
                raise _RefusedError(
                    AdaptationRefusal.of(
                        f"the conversion of the graph to opset {OPSET} cannot be verified in "
                        "this environment",
                        f"export the model with opset {OPSET}",
                    )
                )
            onnx.checker.check_model(bare)
        if verification.fault:
            raise _RefusedError(
                AdaptationRefusal.of(
                    verification.fault,
                    f"{FIXED}, or export the model so that every operation applies the mask",
                )
            )

    def _check_length(self) -> None:
        """Refuse a file that is shorter than the rows that the tokenizer may send.

        Such rows are valid for the tokenizer, but the adapted graph would mark them as broken.
        """
        most, sent = self.adaptable.max_length, self.adaptable.plan.max_length
        if most is not None and most < (sent or 0):
            raise _RefusedError(
                AdaptationRefusal.of(
                    f"the file has {most} positions, and spec.tokenizer.maxLength allows rows of "
                    f"{sent} tokens",
                    f"set spec.tokenizer.maxLength to at most {most}",
                )
            )
