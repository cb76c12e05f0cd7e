"""Tokenizers of every kind and texts for them, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram
from tokenizers.processors import ByteLevel as ByteLevelOffsets
from tokenizers.processors import RobertaProcessing, TemplateProcessing
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from tests.support.tokenizerkinds import ODD, SPECIAL, Make

SENTENCES = (
    "the quick brown fox jumps over the lazy dog and the other dogs",
    "hello hello world, hello there! New York isn't new; it's old.",
    "l'été à la plage, où l'on mange du pain grillé",
    "日本語のテキスト と 中文 字符 in one line",
    "numbers 12345 67.89 and 1,000,000 with e-mail a.b@c.de",
    "Straße ΑΣ İstanbul naïve café ﬁne ½ ①",
)
"""Texts from which vocabularies are made."""
RANGES = ((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700))
MORE_RANGES = ((0xE00, 0xE80), (0x2000, 0x2100), (0x3040, 0x3100), (0x4E00, 0x4F00))
RARE_RANGES = ((0, 0x20), (0x1100, 0x1200), (0xAC00, 0xAD00), (0xFB00, 0xFB07), (0x1F300, 0x1F700))
ADDED = ("newyork", "new york", "É!", "日本", "<x>", "the")


def _added(rng: random.Random) -> tuple[tuple[str, tuple[bool, ...]], ...]:
    chosen = rng.sample(ADDED, rng.choice((0, 0, 1, 2)))
    return tuple(
        (text, tuple(rng.random() < 0.3 for _ in range(5)) if rng.random() < 0.5 else (False,) * 5)
        for text in chosen
    )


def _make(rng: random.Random, model: str, splitters: tuple[str, ...]) -> Tokenizer:
    return Make(
        model=model,
        normalizer=rng.choice(("bert", "bert", "bert", "lower", "none")),
        accents=rng.choice((None, True, False)),
        chinese=rng.random() < 0.5,
        clean=rng.random() < 0.5,
        splitter=rng.choice(splitters),
        template=rng.choice(("bert", "types", "none", "roberta", "behind")),
        added=_added(rng),
        longest_word=rng.choice((4, 100)),
    ).build()


def word_piece(rng: random.Random) -> Tokenizer:
    """WordPiece or words, of letters or trained, with the normalizers and splitters of BERT."""
    model = rng.choice(("pieces", "pieces", "words"))
    made = _make(rng, model, ("bert", "bert", "words", "spaces"))
    if model == "pieces" and rng.random() < 0.5:
        trainer = WordPieceTrainer(
            vocab_size=300, special_tokens=list(SPECIAL), show_progress=False
        )
        made.train_from_iterator(SENTENCES, trainer)
    return made


def bpe(rng: random.Random) -> Tokenizer:
    """BPE over words."""
    if rng.random() < 0.3:
        return _make(rng, "bpe", ("bert", "words", "spaces", "mark"))
    made = Tokenizer(
        BPE(unk_token="[UNK]", fuse_unk=rng.random() < 0.5, end_of_word_suffix=_suffix(rng))
    )
    made.normalizer = _normalizer(rng)
    made.pre_tokenizer = rng.choice(
        (
            pre_tokenizers.Whitespace(),
            pre_tokenizers.BertPreTokenizer(),
            pre_tokenizers.Sequence(
                [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(rng.random() < 0.5)]
            ),
        )
    )
    trainer = BpeTrainer(vocab_size=400, special_tokens=list(SPECIAL), show_progress=False)
    made.train_from_iterator(SENTENCES, trainer)
    return _finished(rng, made)


def byte_level(rng: random.Random) -> Tokenizer:
    """BPE over bytes, as GPT-2 and RoBERTa have it."""
    made = Tokenizer(BPE())
    if rng.random() < 0.3:
        made.normalizer = normalizers.NFC()
    splits = pre_tokenizers.ByteLevel(add_prefix_space=rng.random() < 0.5)
    if rng.random() < 0.3:
        pattern = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
        splits = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pattern, "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    made.pre_tokenizer = splits
    made.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=500,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(SENTENCES, trainer)
    made = _finished(rng, made)
    if rng.random() < 0.4:
        made.post_processor = ByteLevelOffsets(trim_offsets=rng.random() < 0.5)
    return made


def unigram(rng: random.Random) -> Tokenizer:
    """Unigram, with or without bytes for unknown characters."""
    made = Tokenizer(_unigram(rng, ""))
    made.normalizer = _normalizer(rng)
    made.pre_tokenizer = rng.choice(
        (pre_tokenizers.WhitespaceSplit(), pre_tokenizers.UnicodeScripts())
    )
    return _finished(rng, made)


def metaspace(rng: random.Random) -> Tokenizer:
    """Unigram or BPE with marks for spaces, as SentencePiece writes them."""
    scheme = rng.choice(("always", "first", "never"))
    space = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=rng.random() < 0.5)
    if rng.random() < 0.5:
        made = Tokenizer(_unigram(rng, "▁"))
        made.normalizer = _normalizer(rng)
        made.pre_tokenizer = space
        return _finished(rng, made)
    made = Tokenizer(BPE(unk_token="[UNK]", fuse_unk=True, byte_fallback=rng.random() < 0.5))
    if rng.random() < 0.5:
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        made.pre_tokenizer = space
    bytes_of = [f"<0x{value:02X}>" for value in range(256)] if rng.random() < 0.5 else []
    trainer = BpeTrainer(vocab_size=700, special_tokens=[*SPECIAL, *bytes_of], show_progress=False)
    made.train_from_iterator(SENTENCES, trainer)
    return _finished(rng, made)


KINDS: dict[str, Callable[[random.Random], Tokenizer]] = {
    "WordPiece": word_piece,
    "BPE": bpe,
    "byte-level BPE": byte_level,
    "Unigram": unigram,
    "Metaspace": metaspace,
}


def _suffix(rng: random.Random) -> str:
    return rng.choice(("", "</w>"))


def _normalizer(rng: random.Random) -> Any:
    return rng.choice(
        (
            None,
            normalizers.Lowercase(),
            normalizers.NFKC(),
            normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
            normalizers.Sequence(
                [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
            ),
        )
    )


def _unigram(rng: random.Random, mark: str) -> Unigram:
    words = sorted({mark + word for text in SENTENCES for word in text.split()})
    pieces = {letter for word in words for letter in word}
    for word in rng.sample(words, 30):
        end = rng.randint(1, len(word))
        pieces |= {word, word[:end], word[end // 2 : end]}
    listed = [(piece, -rng.uniform(1, 9)) for piece in sorted(pieces - {""})]
    fallback = rng.random() < 0.4
    if fallback:
        listed += [(f"<0x{value:02X}>", -10.0) for value in range(256)]
    special = [(token, 0.0) for token in SPECIAL]
    return Unigram([*special, *listed], unk_id=1, byte_fallback=fallback)


def _finished(rng: random.Random, made: Tokenizer) -> Tokenizer:
    """Add tokens, a template, and truncation and padding that must not count."""
    made.add_special_tokens(list(SPECIAL))
    for text, marks in _added(rng):
        lstrip, rstrip, normalized, single, special = marks
        token = AddedToken(
            text,
            lstrip=lstrip,
            rstrip=rstrip,
            normalized=normalized,
            single_word=single,
            special=special,
        )
        (made.add_special_tokens if special else made.add_tokens)([token])
    cls, sep = (("[CLS]", made.token_to_id("[CLS]")), ("[SEP]", made.token_to_id("[SEP]")))
    template = rng.choice(("types", "roberta", "behind", "none"))
    if template == "types":
        made.post_processor = TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[cls, sep],
        )
    elif template == "roberta":
        made.post_processor = RobertaProcessing(
            sep, cls, trim_offsets=rng.random() < 0.5, add_prefix_space=rng.random() < 0.5
        )
    elif template == "behind":
        made.post_processor = TemplateProcessing(
            single="$A:1 [SEP]:1", pair="$A:0 $B:1 [SEP]:1", special_tokens=[sep]
        )
    made.enable_truncation(5, direction="left")
    made.enable_padding(pad_id=rng.choice((0, 3)), pad_token="[PAD]", length=9)
    return made


def text(rng: random.Random, words: list[str]) -> str:
    """A text whose words are partly those of earlier texts, which ``words`` collects."""
    count = rng.choice((0, 1, 3, 8, 14, 14, 40))
    if rng.random() < 0.01:
        count = 400
    chosen = [_word(rng, words) for _ in range(count)]
    joined = rng.choice((" ", " ", " ", "", "  ", "\n")).join(chosen)
    return f" {joined} " if rng.random() < 0.1 else joined


def _word(rng: random.Random, words: list[str]) -> str:
    if words and rng.random() < 0.5:
        return rng.choice(words)
    drawn = rng.random()
    if drawn < 0.35:
        word = rng.choice(ODD)
    elif drawn < 0.6:
        word = rng.choice(rng.choice(SENTENCES).split())
    else:
        ranges = RANGES if drawn < 0.8 else RANGES + MORE_RANGES + RARE_RANGES
        word = "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randint(1, 9)))
    words.append(word)
    return word
