"""Tokenizers of many kinds, and texts that are odd for them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase
from tokenizers.pre_tokenizers import (
    BertPreTokenizer,
    ByteLevel,
    Metaspace,
    Whitespace,
    WhitespaceSplit,
)
from tokenizers.processors import BertProcessing, RobertaProcessing, TemplateProcessing

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdehlnoprtuwxyABCÉé日本中.,!-'[]ß"
WORDS = (
    "the",
    "The",
    "new",
    "york",
    "hello",
    "été",
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
)
PLACES = {text: place for place, text in enumerate((*SPECIAL, *WORDS))}
OUTPUTS = {
    "input_ids": "InputIds",
    "attention_mask": "AttentionMask",
    "token_type_ids": "TokenTypeIds",
    "special": "SpecialTokensMask",
    "offsets": "Offsets",
    "lengths": "Lengths",
}


@dataclass(frozen=True)
class Make:
    """What a tokenizer is made of."""

    model: str
    normalizer: str
    accents: bool | None
    chinese: bool
    clean: bool
    splitter: str
    template: str
    added: tuple[tuple[str, tuple[bool, ...]], ...]
    longest_word: int

    def build(self) -> Tokenizer:
        """The tokenizer, with truncation and padding of its own, which must not count."""
        made = Tokenizer(
            {
                "pieces": lambda: WordPiece(
                    PLACES, unk_token="[UNK]", max_input_chars_per_word=self.longest_word
                ),
                "words": lambda: WordLevel(PLACES, unk_token="[UNK]"),
                "bpe": lambda: BPE(
                    {**PLACES, "th": len(PLACES), "he": len(PLACES) + 1},
                    [("t", "h"), ("h", "e")],
                    unk_token="[UNK]",
                ),
                "unigram": lambda: Unigram(
                    [(text, -1.0 - place / 9) for text, place in PLACES.items()], unk_id=1
                ),
            }[self.model]()
        )
        if self.normalizer == "bert":
            made.normalizer = BertNormalizer(
                self.clean, self.chinese, self.accents, self.accents is None
            )
        elif self.normalizer == "lower":
            made.normalizer = Lowercase()
        splitters = {
            "bert": BertPreTokenizer,
            "words": Whitespace,
            "spaces": WhitespaceSplit,
            "bytes": ByteLevel,
            "mark": Metaspace,
        }
        made.pre_tokenizer = splitters[self.splitter]()
        made.add_special_tokens(list(SPECIAL))
        for text, (lstrip, rstrip, normalized, single, special) in self.added:
            token = AddedToken(
                text,
                lstrip=lstrip,
                rstrip=rstrip,
                normalized=normalized,
                single_word=single,
                special=special,
            )
            (made.add_special_tokens if special else made.add_tokens)([token])
        cls, sep = ("[CLS]", 2), ("[SEP]", 3)
        if self.template == "bert":
            made.post_processor = BertProcessing(sep, cls)
        elif self.template == "roberta":
            made.post_processor = RobertaProcessing(sep, cls)
        elif self.template == "types":
            made.post_processor = TemplateProcessing(
                single="[CLS]:0 $A:0 [SEP]:0",
                pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
                special_tokens=[cls, sep],
            )
        elif self.template == "behind":
            made.post_processor = TemplateProcessing(
                single="$A:1 [SEP]:1", pair="$A:0 $B:1 [SEP]:1", special_tokens=[sep]
            )
        made.enable_truncation(5, direction="left")
        made.enable_padding(pad_id=0, pad_token="[PAD]", length=9)
        return made


MAKES = st.builds(
    Make,
    model=st.sampled_from(["pieces", "pieces", "pieces", "pieces", "words", "bpe", "unigram"]),
    normalizer=st.sampled_from(["bert", "bert", "bert", "lower", "none"]),
    accents=st.sampled_from([None, True, False]),
    chinese=st.booleans(),
    clean=st.booleans(),
    splitter=st.sampled_from(["bert", "bert", "bert", "bert", "words", "spaces", "bytes", "mark"]),
    template=st.sampled_from(["bert", "types", "types", "none", "roberta", "behind"]),
    added=st.lists(
        st.tuples(
            st.sampled_from(["newyork", "new york", "É!", "日本", "<x>", "the"]),
            st.just((False,) * 5) | st.tuples(*[st.booleans()] * 5),
        ),
        max_size=2,
        unique_by=lambda item: item[0],
    ).map(tuple),
    longest_word=st.sampled_from([4, 100]),
)
ODD = (
    *(
        "the",
        "The",
        "hello",
        "newyork",
        "new york",
        "newyorks",
        "[SEP]",
        "[MASK]x",
        "x[CLS]",
        "[UNK]",
        "<x>",
        "É!",
        "été",
        "e\u0301",
        "\u0301",
        "日本",
        "a中b",
    ),
    *(
        "",
        "\t",
        "\n",
        "\r\n",
        "\x00",
        "\x1f",
        "\x7f",
        "\u200b",
        "\u200d",
        "\ufeff",
        "\ufffd",
        "\xa0",
        "\u3000",
        "\u2028",
        "ΑΣ",
        "İ",
        "ß",
        "\U0001f469\u200d\U0001f467",
    ),
    *("hello" * 25, "日" * 40, "\u1112\u1161\u11ab", "\U000e0001", "don't"),
)
TEXT = st.lists(st.sampled_from(ODD) | st.text(max_size=6), max_size=14).flatmap(
    lambda words: st.sampled_from(
        [" ".join(words), "".join(words), "  ".join(words), f" {' '.join(words)} "]
    )
)
