"""Settings of the operator's tokenizer, typed until its ``config.pbtxt`` is rendered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from triton_pipelines.api.base import Switch
from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.tensors import TokenTensor
from triton_pipelines.api.tokenizer import Padding, Truncation


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What the built-in tokenizer is configured with."""

    text: str
    """Input tensor of the text."""
    text_pair: str | None
    """Input tensor of the second text; ``None``: single texts."""
    max_length: int
    """Most tokens in a row; longer texts are cut or refused."""
    truncation: Truncation
    """How texts that are too long are cut."""
    special_tokens: Switch
    """Whether special tokens are added."""
    padding: Padding
    """The padding in force."""
    buckets: tuple[int, ...]
    """Row lengths of padding Bucketed; empty for the others."""
    outputs: Mapping[str, TokenTensor]
    """Output tensor → what it carries."""

    @property
    def cuts_pairs(self) -> bool:
        """Return whether pairs of texts that are too long are cut."""
        return self.text_pair is not None and self.truncation is not Truncation.REFUSE

    def parameters(self) -> dict[str, str]:
        """Return the settings as parameters of a ModelConfig."""
        written = {
            "text": self.text,
            "max_length": str(self.max_length),
            "truncation": self.truncation.value,
            "special_tokens": self.special_tokens.value,
            "padding": self.padding.value,
            "outputs": json.dumps(
                {name: kind.value for name, kind in self.outputs.items()}, ensure_ascii=False
            ),
        }
        if self.text_pair is not None:
            written["text_pair"] = self.text_pair
        if self.buckets:
            written["buckets"] = ",".join(map(str, self.buckets))
        return prefixed(written)


def prefixed(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return parameters of a runtime file under the prefix that is reserved for the operator."""
    return {RUNTIME_PARAMETER_PREFIX + key: value for key, value in parameters.items()}
