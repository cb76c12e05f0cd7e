"""Choose the padding of the tokenizer's rows from what the steps that read them accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triton_pipelines.api.tokenizer import Padding, Tokenizer

from .effective_padding import MeasuredPadding, PaddingChoice
from .tensorrt_profiles import Box, bucket_lengths
from .tokenizer_step import row_length


@dataclass(frozen=True, slots=True)
class TokenReader:
    """What padding depends on for a step that reads tokens."""

    path: str
    """Its field in the resource."""
    backend: bool = False
    """Whether one of Triton's backends runs and batches it.

    A backend batches only requests of the same shape, unless the file can be adapted.
    """
    on_cpu: bool = False
    """Whether it runs on CPU."""
    fixed: bool = False
    """Whether its inputs are declared with one length."""
    blocker: str = ""
    """Why its file cannot be adapted to ragged batches; "" if it can."""
    refused: str = ""
    """The loader's message if it could not adapt the file."""
    key: str = ""
    """Identifies the file and how it is used."""
    profiles: tuple[Box, ...] = ()
    """Profiles of a TensorRT plan that its instances load."""

    @property
    def is_adaptable(self) -> bool:
        """Return whether the loader adapts its file if padding is Ragged."""
        return (
            self.backend
            and not self.on_cpu
            and not self.fixed
            and not self.blocker
            and not self.refused
        )

    @property
    def equal_shapes_only(self) -> bool:
        """Return whether its requests share a batch, and gain from it, only at the same length."""
        return self.backend and not self.is_adaptable and (self.fixed or not self.on_cpu)

    @property
    def equal_shapes_reason(self) -> str:
        """Return why its requests need one length."""
        if self.fixed:
            return "its inputs are declared with a fixed length"
        return (
            f"its file cannot be adapted to ragged batches ({self.refused})"
            if self.refused
            else self.blocker
        )


def uses_auto_padding(tokenizer: Tokenizer | None) -> bool:
    """Return whether the resource leaves its padding to ``Auto``.

    ``False`` if the tokenizer's custom code decides, or there is no tokenizer.
    """
    return (
        tokenizer is not None
        and tokenizer.python is None
        and tokenizer.padding in (None, Padding.AUTO)
    )


def choose_padding(
    tokenizer: Tokenizer, readers: Sequence[TokenReader], measured: MeasuredPadding | None = None
) -> PaddingChoice:
    """Return the effective padding.

    A padding in the resource is used as written. ``Auto`` uses a measured padding that all readers
    accept, else the cheapest padding by rule:

    A step on CPU pays for each padded token and gains little from batches (measured: ragged batches
    carried 0.5 to 1.1 times the requests of the plain graph on two cores). Its requests therefore
    keep their lengths, and share a batch only if these are equal. A GPU step gains most from ragged
    batches, which an ONNX file accepts once it is adapted. A step that cannot accept them gets rows
    of one length.

    Args:
        tokenizer: The tokenizer of the resource.
        readers: The steps that read its tokens.
        measured: The best padding by measurement for exactly this pipeline. Ragged is not used if
            the loader has refused to adapt a file since.
    """
    mode = tokenizer.padding or Padding.AUTO
    longest = row_length(tokenizer)
    if tokenizer.python is not None:
        return PaddingChoice(Padding.AUTO, "determined by the tokenizer's custom code")
    if mode is Padding.BUCKETED:
        return _bucketed(tokenizer, readers, longest)
    refused = {reader.key: reader.refused for reader in readers if reader.refused}
    fixed_length = [reader for reader in readers if reader.equal_shapes_only]
    if mode is not Padding.AUTO:
        return PaddingChoice(
            mode,
            "set by tokenizer.padding",
            refused=refused,
            fixed_length={reader.path: reader.equal_shapes_reason for reader in fixed_length},
        )
    if measured is not None and not (fixed_length and measured.mode is Padding.RAGGED):
        buckets = (
            tuple(sorted({*measured.buckets, longest})) if measured.mode is Padding.BUCKETED else ()
        )
        return PaddingChoice(
            measured.mode, measured.reason, buckets, refused=refused, automatic=True, measured=True
        )
    if fixed_length:
        first = fixed_length[0]
        reason = (
            f"Auto: {first.path}: {first.equal_shapes_reason}, so every row has {longest} tokens"
        )
        return PaddingChoice(Padding.FIXED, reason, refused=refused, automatic=True)
    return PaddingChoice(Padding.RAGGED, f"Auto: {_ragged_reason(readers)}", automatic=True)


def _bucketed(tokenizer: Tokenizer, readers: Sequence[TokenReader], longest: int) -> PaddingChoice:
    """Return padding Bucketed with the declared buckets, else those of TensorRT profiles."""
    buckets = tokenizer.buckets or tuple(
        length for reader in readers for length in bucket_lengths(reader.profiles, longest)
    )
    source = "" if tokenizer.buckets else "; buckets are the longest rows of the plan's profiles"
    return PaddingChoice(
        Padding.BUCKETED,
        f"set by tokenizer.padding{source}",
        tuple(sorted({*buckets, longest})),
    )


def _ragged_reason(readers: Sequence[TokenReader]) -> str:
    """Return why requests keep their own lengths."""
    if any(reader.on_cpu for reader in readers):
        return (
            "on a CPU, every padded token costs time and batches gain little, so each request "
            "keeps its own length"
        )
    if any(reader.is_adaptable for reader in readers):
        return (
            "the ONNX file is adapted when it is loaded, so that requests of different lengths "
            "share batches without padding"
        )
    return (
        "requests of different lengths can share a batch without padding, so no padding tokens are"
        " computed"
    )
