"""What the small files beside a model say of it: lengths, classes, pooling. Pure: parsed JSON in, values and their origin out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CONFIG: Final = "config.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
TOKENIZER: Final = "tokenizer.json"
SENTENCE: Final = "sentence_bert_config.json"
MODULES: Final = "modules.json"
POOLING: Final = "1_Pooling/config.json"
SPECIAL_TOKENS: Final = "special_tokens_map.json"
# Everything that is looked at beside the graph and the tokenizer itself.
SMALL_FILES: Final = (CONFIG, TOKENIZER_CONFIG, SPECIAL_TOKENS, SENTENCE, MODULES, POOLING)
# transformers writes int(1e30) where a tokenizer has no limit (VERY_LARGE_INTEGER); no model reads a million tokens of such files.
_NO_LIMIT: Final = 1_000_000
# Architectures whose positions start behind the padding token's id (transformers: create_position_ids_from_input_ids).
_OFFSET_POSITIONS: Final = frozenset(
    {
        "roberta",
        "xlm-roberta",
        "xlm-roberta-xl",
        "camembert",
        "mpnet",
        "longformer",
        "roberta-prelayernorm",
        "data2vec-text",
    }
)
_WIDTHS: Final = ("hidden_size", "dim", "d_model", "n_embd")

Files = Mapping[str, Any]


@dataclass(frozen=True)
class Told:
    """A value and the file that says it; ``value`` None: nothing says it."""

    value: Any
    origin: str


def config(files: Files, name: str = CONFIG) -> Mapping[str, Any]:
    """A JSON object by file name; empty where it is not there."""
    found = files.get(name)
    return found if isinstance(found, Mapping) else {}


def lengths(files: Files) -> list[Told]:
    """Longest rows in tokens, the word that counts most first; empty where nothing says."""
    told = []
    if limit := _number(config(files, SENTENCE).get("max_seq_length")):
        # What sentence-transformers cuts to, whatever the encoder could read.
        return [Told(limit, f"max_seq_length of {SENTENCE}")]
    own = config(files)
    if limit := _number(own.get("max_position_embeddings")):
        origin = f"max_position_embeddings of {CONFIG}"
        if own.get("model_type") in _OFFSET_POSITIONS and limit > 2:
            offset = (_number(own.get("pad_token_id"), least=0) or 0) + 1
            limit, origin = (
                limit - offset,
                f"{origin}, less {offset}: positions of {own['model_type']} start behind the padding's",
            )
        told.append(Told(limit, origin))
    if limit := _number(config(files, TOKENIZER_CONFIG).get("model_max_length")):
        told.append(Told(limit, f"model_max_length of {TOKENIZER_CONFIG}"))
    if not told and (
        limit := _number((config(files, TOKENIZER).get("truncation") or {}).get("max_length"))
    ):
        told.append(Told(limit, f"the truncation of {TOKENIZER}"))
    return sorted(told, key=lambda one: int(one.value))


def _number(value: Any, least: int = 1) -> int | None:
    """A whole number that can be meant; exporters write 1e30 and 512.0."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not least <= value < _NO_LIMIT
    ):
        return None
    return int(value)


def width(files: Files) -> Told:
    """Length of a token's vector."""
    for key in _WIDTHS:
        if found := _number(config(files).get(key)):
            return Told(found, f"{key} of {CONFIG}")
    return Told(None, CONFIG)


def classes(files: Files) -> tuple[str, ...]:
    """Names of the classes in the model's order, as ``id2label`` has them; empty where they are not all there."""
    named = config(files).get("id2label")
    if not isinstance(named, Mapping):
        return ()
    try:
        numbered = {int(key): str(value) for key, value in named.items()}
    except ValueError:
        return ()
    return (
        tuple(numbered[index] for index in sorted(numbered))
        if sorted(numbered) == list(range(len(numbered)))
        else ()
    )


def generic(labels: tuple[str, ...]) -> bool:
    """Whether the names are those that exporters invent."""
    return all(re.fullmatch(r"(?i)label[_ -]?[0-9]+", label) for label in labels)


def architecture(files: Files) -> str:
    """The class of the model, such as BertForSequenceClassification; empty where it is not told."""
    named = config(files).get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def pooling(files: Files) -> Told:
    """How token vectors become one: ``MeanPooling``, ``FirstToken``, another mode's own name, or None."""
    said = config(files, POOLING)
    if not said:
        return Told(None, POOLING)
    modes = [
        key.removeprefix("pooling_mode_")
        for key, value in said.items()
        if key.startswith("pooling_mode_") and value is True
    ]
    if isinstance(said.get("pooling_mode"), str):  # newer files name the mode
        modes = [said["pooling_mode"]]
    known = {
        "mean_tokens": "MeanPooling",
        "mean": "MeanPooling",
        "cls_token": "FirstToken",
        "cls": "FirstToken",
    }
    if len(modes) == 1 and modes[0] in known:
        return Told(known[modes[0]], f"{modes[0]} in {POOLING}")
    return Told("+".join(sorted(modes)) or None, POOLING)


def modules(files: Files) -> list[str]:
    """Last parts of the types of a sentence-transformers model's modules, such as Pooling and Normalize."""
    listed = files.get(MODULES)
    if not isinstance(listed, list):
        return []
    return [
        str(item.get("type", "")).rpartition(".")[2] for item in listed if isinstance(item, Mapping)
    ]


def activation(files: Files) -> str | None:
    """The activation behind a cross-encoder's single logit, as sentence-transformers names it: ``Sigmoid``, ``Identity``, …; None where not told."""
    own = config(files)
    nested = own.get("sentence_transformers")
    named = (nested.get("activation_fn") if isinstance(nested, Mapping) else None) or own.get(
        "sbert_ce_default_activation_function"
    )
    return str(named).rpartition(".")[2] if named else None
