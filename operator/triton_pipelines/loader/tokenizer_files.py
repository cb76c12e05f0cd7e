"""Tokenizer files: find them, build tokenizer.json from a BERT vocabulary, check that it loads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer
from tokenizers.models import WordLevel, WordPiece

from triton_pipelines.api.loadplan import LoadFinding, LoadReason
from triton_pipelines.loader.errors import LoaderError

TOKENIZER_JSON: Final = "tokenizer.json"
VOCABULARY: Final = "vocab.txt"
CONFIGURATION: Final = "tokenizer_config.json"
SPECIAL_TOKENS: Final = "special_tokens_map.json"
KNOWN_IDS: Final = "known_ids.json"
"""File next to tokenizer.json if the model does not know some of its tokens.

The content is {"ids": n}: the model knows the ids 0 to n - 1. The built-in tokenizer reads it.
"""
PAD_TOKENS: Final = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "pad")
"""Tokens that pad rows if tokenizer.json sets no padding, as in the built-in tokenizer."""

MOST_WORD_CHARS: Final = 1000
"""Most characters of a word that WordPiece looks up, as in the built-in tokenizer.

The time for a word grows with the square of its length.
"""
TRIED: Final = 64
"""Tokens of a vocabulary that are tried as texts if it does not encode the first text.

They are spread over the whole vocabulary.
"""
_PATTERN: Final = re.compile(r'"Regex"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")')
"""A regex pattern in the text of a tokenizer.json."""
_GROUP_CALL: Final = re.compile(r"(?<!\\)(?:\\\\)*(\\g[<'][^>']{0,64}.?)")
"""A call of a group in a regex pattern."""
_WORDPIECE_CLASSES: Final = frozenset(
    f"{name}Tokenizer{suffix}"
    for name in ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "RetriBert")
    for suffix in ("", "Fast")
)
"""Classes whose vocab.txt is a WordPiece vocabulary with BERT's normalizer and template.

The template is [CLS] A [SEP] B [SEP].
"""


def build_from_vocabulary(
    vocabulary: Path, configuration: Mapping[str, Any], special: Mapping[str, Any]
) -> str:
    """Return the tokenizer.json of a BERT WordPiece vocabulary.

    Args:
        vocabulary: vocab.txt.
        configuration: content of tokenizer_config.json.
        special: content of special_tokens_map.json.

    Raises:
        ValueError: the files describe another kind of tokenizer.
    """
    name = configuration.get("tokenizer_class")
    if name is not None and name not in _WORDPIECE_CLASSES:
        raise ValueError(
            f"{CONFIGURATION} has tokenizer_class {name}, for which tokenizer.json cannot "
            f"be built from {VOCABULARY}"
        )
    if configuration.get("do_basic_tokenize", True) is not True:
        raise ValueError(
            f"{CONFIGURATION} disables do_basic_tokenize, which has no equivalent in tokenizer.json"
        )
    tokens = {
        role: _token(role, configuration, special) for role in ("unk", "sep", "cls", "pad", "mask")
    }
    try:
        words = WordPiece.read_file(str(vocabulary))
    except Exception as error:
        raise ValueError(f"{VOCABULARY} cannot be read: {error}") from error
    absent = [
        token
        for role, token in tokens.items()
        if role in ("unk", "sep", "cls") and token not in words
    ]
    if absent:
        raise ValueError(f"{VOCABULARY} does not contain {', '.join(absent)}")
    built = BertWordPieceTokenizer(
        vocab=words,
        unk_token=tokens["unk"],
        sep_token=tokens["sep"],
        cls_token=tokens["cls"],
        pad_token=tokens["pad"],
        mask_token=tokens["mask"],
        handle_chinese_chars=_flag(configuration, "tokenize_chinese_chars") is not False,
        # null: BERT strips accents if it lowercases, which is also the library's rule.
        strip_accents=_flag(configuration, "strip_accents"),
        lowercase=_flag(configuration, "do_lower_case") is not False,
    )
    return str(built.to_str())


def _token(role: str, configuration: Mapping[str, Any], special: Mapping[str, Any]) -> str:
    """Return a special token's text: from the configuration, the map, or BERT's default."""
    key = f"{role}_token"
    for value in (configuration.get(key), special.get(key)):
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str) and text:
            return text
    return f"[{role.upper()}]"


def _flag(configuration: Mapping[str, Any], key: str) -> bool | None:
    value = configuration.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{CONFIGURATION}: {key} must be true, false or null, not {value!r}")
    return value


def convert(files: Mapping[str, Path]) -> str:
    """Return the tokenizer.json built from fetched ``files`` (by name).

    Raises:
        ValueError: they cannot be read, or describe another kind of tokenizer.
    """
    return build_from_vocabulary(
        files[VOCABULARY], _object(files[CONFIGURATION]), _object(files.get(SPECIAL_TOKENS))
    )


def _object(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} must contain a JSON object")
    return value


def check(path: Path, *, cuts_pairs: bool = False) -> str | None:
    """Load ``path`` as the runtime will; return its own settings that are ignored, for messages.

    Raises:
        ValueError: it does not load, cannot encode, can exhaust the server, or has no template for
            single texts or, if it ``cuts_pairs`` of texts, for these.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    if text.startswith("version https://git-lfs"):
        raise ValueError(
            "it is a Git LFS pointer, not the file; fetch the file with git lfs pull before"
            " mirroring"
        )
    if text.lstrip()[:1] == "<":
        raise ValueError(
            "the file is an HTML or XML page, not a model; use the URI of the file itself, "
            "not the URI of a web page or login page"
        )
    _check_patterns(text)
    with _library_errors_as_value_errors():
        tokenizer = Tokenizer.from_str(text)
    _check_added_tokens(tokenizer)
    _check_word_length(tokenizer)
    _encodes(tokenizer)
    ignored = []
    if (truncation := tokenizer.truncation) is not None:
        ignored.append(f"truncation to {truncation['max_length']} tokens")
    if (padding := tokenizer.padding) is not None:
        ignored.append(
            f"padding to {padding['length']} tokens"
            if padding.get("length")
            else "padding to the longest text"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Special tokens do not affect how often the texts occur; the step may disable them.
    check_template(tokenizer, pairs=cuts_pairs, special_tokens=False)
    return " and ".join(ignored) or None


def check_template(tokenizer: Any, *, pairs: bool, special_tokens: bool) -> None:
    """Check that single texts or pairs can be cut, as the built-in tokenizer does at load.

    Args:
        tokenizer: a tokenizer that neither pads nor cuts.
        pairs: whether rows are pairs.
        special_tokens: whether texts get special tokens.

    Raises:
        ValueError: a text does not occur exactly once. After a cut, it would be unknown how many of
            its tokens remain.
    """
    template = "[CLS] $A [SEP] $B:1 [SEP]:1" if pairs else "[CLS] $A [SEP]"
    way_out = f"save it with a template such as {template}"
    # A vocabulary made for this purpose: no text is sure to be in that of ``tokenizer``.
    texts = Tokenizer(WordLevel({"0": 0, "1": 1}))
    second = texts.encode("1") if pairs else None
    try:
        with _library_errors_as_value_errors():
            made = tokenizer.post_process(texts.encode("0"), second, special_tokens)
    except ValueError as error:
        action = "combine two texts" if pairs else "process a text"
        raise ValueError(
            f"its post_processor does not {action} ({error.__cause__}): {way_out}"
        ) from error
    layout = [
        token for word, token in zip(made.word_ids, made.ids, strict=True) if word is not None
    ]
    for text, name in enumerate(("first text", "second text") if pairs else ("text",)):
        if (times := layout.count(text)) != 1:
            rule = (
                f"pairs can be truncated only if each text occurs once; {way_out}, or set"
                " truncation to Refuse"
                if pairs
                else f"the text must occur once; {way_out}"
            )
            raise ValueError(f"its post_processor inserts the {name} {times} times, but {rule}")


def _check_patterns(text: str) -> None:
    """Check the regex patterns of a tokenizer.json before the library compiles them.

    Raises:
        ValueError: a pattern calls a group. A chain of calls can overflow the stack.
    """
    for pattern in _PATTERN.finditer(text):
        if call := _GROUP_CALL.search(json.loads(pattern[1], strict=False)):
            raise ValueError(
                f"one of its regex patterns calls a group ({call[1]}), which can overflow the"
                " stack; replace the call with the content of the group"
            )


def _check_added_tokens(tokenizer: Any) -> None:
    """Check that the normalizer leaves something of each added token.

    Raises:
        ValueError: it leaves nothing of one. The library would find the empty text without end, and
            allocate memory for each match.
    """
    if tokenizer.normalizer is None:
        return
    for token in tokenizer.get_added_tokens_decoder().values():
        if not token.normalized:
            continue
        with _library_errors_as_value_errors():
            text = tokenizer.normalizer.normalize_str(token.content)
        if not text:
            raise ValueError(
                f"its normalizer turns the added token {token.content!r} into an empty text; remove"
                ' the token from added_tokens, or set "normalized": false for it'
            )


def _check_word_length(tokenizer: Any) -> None:
    """Check the longest word that the model looks up.

    Raises:
        ValueError: it exceeds :data:`MOST_WORD_CHARS`.
    """
    model = tokenizer.model
    if isinstance(model, WordPiece) and model.max_input_chars_per_word > MOST_WORD_CHARS:
        raise ValueError(
            f"its model sets max_input_chars_per_word to {model.max_input_chars_per_word}, more"
            f" than the {MOST_WORD_CHARS} allowed; set it to at most {MOST_WORD_CHARS}"
        )


def _encodes(tokenizer: Any) -> None:
    """Check that the tokenizer encodes any text.

    No single text is enough: without a token for unknown words, a vocabulary refuses texts that it
    does not cover. Its own tokens, decoded, are texts that it should cover.

    Raises:
        ValueError: it encodes nothing.
    """
    vocabulary = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=itemgetter(1))
    step = max(1, len(vocabulary) // TRIED)
    own = [
        text
        for token, number in vocabulary[::step][:TRIED]
        for text in (tokenizer.decode([number], skip_special_tokens=False), token)
    ]
    failed: ValueError | None = None
    for text in ("a", *own):
        try:
            with _library_errors_as_value_errors():
                tokenizer.encode(text)
            return
        except ValueError as error:
            failed = failed or error
    raise failed or ValueError("it encodes no text")


@contextmanager
def _library_errors_as_value_errors() -> Iterator[None]:
    """Turn errors of the tokenizers library into :class:`ValueError`.

    Its panics are not an :class:`Exception`, and would end the loader without a report. PyO3 raises
    them as ``pyo3_runtime.PanicException``, a class that cannot be imported, so it is known by
    name.
    """
    try:
        yield
    except BaseException as error:
        # The class cannot be imported. Any other error that is not an Exception asks the process to
        # end.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ValueError(f"the tokenizers library reports an error ({error})") from error
        raise


@dataclass(frozen=True)
class HighestTokenId:
    """The highest token id that texts lead to."""

    id: int
    """The id."""
    token: str
    """Its token; "" if the vocabulary has none (padding, templates)."""
    highest_written: int = 0
    """The highest of all ids.

    This counts special tokens that appear only if a text spells them out.
    """


def highest_token_id(path: Path) -> HighestTokenId:
    """Return the highest id of a tokenizer.json that passed :func:`check`.

    Considers vocabulary, added tokens, template and padding. Any other special token appears only
    if a text spells it out. There are models without a row for such a token that work well without
    it: their tokenizer belongs to a family of models.
    """
    tokenizer = Tokenizer.from_file(str(path))
    padding, own = tokenizer.padding, tokenizer.get_vocab(with_added_tokens=False)
    added = [
        number
        for number, token in tokenizer.get_added_tokens_decoder().items()
        if not token.special
    ]
    # As the built-in tokenizer does.
    pads = [number for token in PAD_TOKENS if (number := tokenizer.token_to_id(token)) is not None]
    ids = [*own.values(), *added, *([int(padding["pad_id"])] if padding else pads[:1])]
    for texts in (("",), ("", "")):  # a template need not have a form for pairs
        with suppress(ValueError), _library_errors_as_value_errors():
            ids += tokenizer.encode(*texts).ids
    found = max(ids, default=0)
    return HighestTokenId(
        found,
        tokenizer.id_to_token(found) or "",
        max((found, *tokenizer.get_vocab(with_added_tokens=True).values())),
    )


def finding_of_settings(ignored: str, step: str, field: str) -> LoadFinding:
    """Return the note that settings of tokenizer.json are ignored."""
    return LoadFinding(
        step=step,
        reason=LoadReason.TOKENIZER_SETTINGS_IGNORED,
        field=field,
        message=(
            f"tokenizer.json sets {ignored}, which is ignored; maxLength, truncation and padding of"
            " the step apply instead."
        ),
    )


def invalid(message: str, step: str, field: str) -> LoaderError:
    """Return the error for a tokenizer that cannot be used."""
    return LoaderError(LoadReason.INVALID_TOKENIZER, message, step=step, field=field)
