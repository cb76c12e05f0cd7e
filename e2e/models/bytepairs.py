"""Train a tokenizer of the other common type: byte-level BPE.

RoBERTa, ModernBERT and the GPTs use this type.

It looks at spaces, so the tokenizer step cannot put a text together from words that it remembers
(docs/decisions/0018-tokenizer-word-cache.md): each text is tokenized whole, which is what loads of
tokenizing are shown with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

SENTENCES: Final = Path(__file__).resolve().parent / "data" / "train.tsv"
SPECIAL: Final = ("<s>", "<pad>", "</s>", "<unk>")
"""As RoBERTa has them, numbers 0 to 3."""
VOCABULARY: Final = 2000
"""Some as many as the sentences give: they are few."""


def sentences() -> list[str]:
    """The training sentences of the sample `sentiment`, without their labels."""
    return [
        line.split("\t")[1]
        for line in SENTENCES.read_text(encoding="utf-8").splitlines()
        if "\t" in line
    ]


def train() -> Tokenizer:
    """The tokenizer; the same each time."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(sentences(), trainer)
    ends = [(token, SPECIAL.index(token)) for token in ("<s>", "</s>")]
    made.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return made
