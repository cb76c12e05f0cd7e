"""Golden answers of the small models, word by word in plain Python and FP64.

There are no masks and no padding, and no code of the graphs is used.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from e2e.models.reference import Matrix, softmax
from e2e.models.sentiment import WORDS_HEAD_FILE
from e2e.models.wordpiece import WordPiece
from e2e.models.words import (
    CONTINUED,
    FIRST_WORD,
    HALF,
    LISTED,
    NEIGHBOUR,
    ORDINARY,
    PAIR_MIDDLE,
    PAIR_SCALE,
    PAIR_SEED,
    PAIR_WIDTH,
    SPECIAL,
    TAGGED,
    TAGS,
    TOPIC_SCORE,
    TOPICS,
)

# Texts of the classifier by words, of `article`, `two-models`, `bls` and `unbatched`.
WORDS_TEXTS: Final = (
    "I love this product, it works perfectly!",
    "This is the worst purchase I have ever made.",
    "The delivery was fast and the staff were friendly.",
    "Terrible service: they ignored us for an hour.",
    "ok",
    "",
    "Naïve café owners déjà vu, ÅNGSTRÖM and straße",
    "What a waste of money.",
)
QUERY: Final = "how do I reset my password"
OTHER_QUERY: Final = "Which planet has rings?"
PASSAGES: Final = (
    (QUERY, "To reset your password, open the settings and choose a new one."),
    (QUERY, "Our shop opens at nine and closes at six."),
    (QUERY, "If you forgot your login, an e-mail with a code lets you change it."),
    (QUERY, ""),
    (OTHER_QUERY, "Saturn is known for its bright rings; other planets have faint ones."),
    (OTHER_QUERY, "The moon has no rings."),
    (OTHER_QUERY, "To reset your password, open the settings and choose a new one."),
    ("", "A passage without a question."),
)
NER_TEXTS: Final = (
    "John Smith flew from Berlin to New York for NASA.",
    "A new coach, a new team: nothing happened in Paris.",
    "Mary, Emma and David met Toyota's engineers in Tokyo.",
    "nobody and nowhere",
    "",
    "Grüße aus 東京: Anna works for the BBC in London 😀 since 2019.",
)
REPORTS: Final = {
    "business": (
        "Shares of the company rose after it reported a record profit, and investors expect more "
        "trade and higher prices."
    ),
    "politics": (
        "The minister lost the vote in parliament, so the government will call an election and "
        "the president must sign the law."
    ),
    "science": (
        "In the laboratory scientists repeated the experiment on living cells, and their research "
        "supports the theory."
    ),
    "sports": (
        "The coach praised the team for a late goal in the last match of the season, a victory "
        "that decides the league."
    ),
}


def _ids(vocabulary: Path) -> dict[str, int]:
    return {
        token: number
        for number, token in enumerate(vocabulary.read_text(encoding="utf-8").split("\n"))
        if token
    }


def words_logits(vectors: Matrix, token_ids: list[int]) -> Matrix:
    """Logits of the classifier by words."""
    head = json.loads(WORDS_HEAD_FILE.read_text(encoding="utf-8"))
    result: Matrix = vectors[token_ids].mean(axis=0) @ np.array(head["weight"]) + np.array(
        head["bias"]
    )
    return result


def topic_logits(tokens: list[str]) -> Matrix:
    """Logits of the topics classifier: the share of a topic's words among the tokens."""
    return np.array(
        [
            TOPIC_SCORE * sum(token in words for token in tokens) / len(tokens)
            for words in TOPICS.values()
        ]
    )


def _tag_score(token: str, tag: str) -> float:
    if tag == "O":
        return CONTINUED if token.startswith("##") else ORDINARY
    return (
        LISTED
        if token in TAGGED[tag]
        else HALF[token][1]
        if HALF.get(token, ("", 0.0))[0] == tag
        else 0.0
    )


def tag_logits(tokens: list[str]) -> Matrix:
    """Logits of the tagger, ``[tokens, tags]``."""
    rows = []
    for place, token in enumerate(tokens):
        beside = [tokens[other] for other in (place - 1, place + 1) if 0 <= other < len(tokens)]
        rows.append(
            [
                _tag_score(token, tag)
                + (0 if tag == "O" else NEIGHBOUR * sum(_tag_score(other, tag) for other in beside))
                for tag in TAGS
            ]
        )
    return np.array(rows)


def entities(text: str, tokens: list[str], logits: Matrix) -> list[dict[str, Any]]:
    """Return what the sample's custom postprocess makes of the logits.

    Neighboring tokens with one tag form an entity with characters ``[start, end)`` of the text.

    Tokens are found in the text again by looking for them in order: lower case and without accents,
    as the tokenizer made them.
    """
    found: list[dict[str, Any]] = []
    position, previous = 0, "O"
    plain = text.lower()
    for place, token in enumerate(tokens):
        if token in SPECIAL:
            previous = "O"
            continue
        piece = token.removeprefix("##")
        match = re.compile(re.escape(piece)).search(plain, position)
        best = int(np.argmax(logits[place]))
        if match is not None:
            begin, position = match.span()
        if TAGS[best] != "O":
            assert match is not None, (
                f"{token!r} of {text!r} cannot be found again; give the text no accents there"
            )
            score = float(softmax(logits[place : place + 1])[0, best])
            if TAGS[best] == previous:
                found[-1].update(
                    end=position,
                    text=text[found[-1]["start"] : position],
                    score=min(found[-1]["score"], score),
                )
            else:
                found.append(
                    {
                        "label": TAGS[best],
                        "start": begin,
                        "end": position,
                        "text": text[begin:position],
                        "score": score,
                    }
                )
        previous = TAGS[best]
    return [{**entity, "score": round(entity["score"], 8)} for entity in found]


class PairScorer:
    """How well a passage covers a query, from the word vectors of a checkpoint."""

    def __init__(self, vectors: Matrix, vocabulary: dict[str, int]) -> None:
        directions = np.random.default_rng(PAIR_SEED).normal(size=(vectors.shape[1], PAIR_WIDTH))
        self._meanings = (vectors - vectors.mean(axis=0)) @ directions
        self._special = {vocabulary[token] for token in SPECIAL}

    def logit(self, query: list[int], passage: list[int]) -> float:
        """The logit for the ids of both texts, special tokens among them or not."""
        covered = every = 0.0
        for word in query:
            if word in self._special:
                continue
            weight = math.log1p(max(word - FIRST_WORD, 0) / 100.0)
            covered += weight * max(
                [
                    0.0,
                    *(
                        self._similar(word, other)
                        for other in passage
                        if other not in self._special
                    ),
                ]
            )
            every += weight
        return PAIR_SCALE * (covered / max(every, 1e-6) - PAIR_MIDDLE)

    def _similar(self, one: int, other: int) -> float:
        a, b = self._meanings[one], self._meanings[other]
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def report(topic: str, other: str, sentences: int) -> str:
    """Return a long document that is mostly about ``topic``.

    Every fifth sentence is about ``other``, with words of no topic in between.
    """
    between = (
        "Afterwards they drank coffee in the garden and talked about the weather until the "
        "evening. "
    )
    return " ".join(
        (REPORTS[other] if number % 5 == 4 else REPORTS[topic]) + " " + between * (number % 3)
        for number in range(sentences)
    )


def compute(vectors: Matrix, vocabulary: Path, max_length: int = 512) -> dict[str, dict[str, Any]]:
    """Golden files of the small models by name; numbers are rounded by the caller."""
    tokenizer, ids = WordPiece(vocabulary), _ids(vocabulary)
    names = {number: token for token, number in ids.items()}
    by_words = []
    for text in WORDS_TEXTS:
        token_ids = tokenizer.encode(text, max_length)
        logits = words_logits(vectors, token_ids)
        by_words.append(
            {
                "text": text,
                "inputIds": token_ids,
                "logits": logits,
                "probabilities": softmax(logits),
            }
        )
    scorer = PairScorer(vectors, ids)
    pairs = []
    for query, passage in PASSAGES:
        first, second = (
            tokenizer.encode(query, max_length),
            tokenizer.encode(passage, max_length)[1:],
        )
        logit = scorer.logit(first, second)
        score = np.array([1.0 / (1.0 + math.exp(-logit))])
        pairs.append(
            {
                "query": query,
                "passage": passage,
                "inputIds": first + second,
                "logits": np.array([logit]),
                "probabilities": score,
            }
        )
    tagged = []
    for text in NER_TEXTS:
        token_ids = tokenizer.encode(text, max_length)
        tokens = [names[number] for number in token_ids]
        tagged.append(
            {
                "text": text,
                "inputIds": token_ids,
                "entities": entities(text, tokens, tag_logits(tokens)),
            }
        )
    documents = []
    topics = list(TOPICS)
    for number, topic in enumerate(topics):
        for sentences in (1, 6, 40):
            text = report(topic, topics[(number + 1) % len(topics)], sentences)
            token_ids = tokenizer.encode(text, max_length)
            probabilities = softmax(topic_logits([names[one] for one in token_ids]))
            documents.append(
                {
                    "text": text,
                    "inputIds": token_ids,
                    "probabilities": probabilities,
                    "label": topics[int(np.argmax(probabilities))],
                }
            )
    return {
        "words.json": {"sample": "article", "maxLength": max_length, "cases": by_words},
        "reranker.json": {"sample": "reranker", "maxLength": max_length, "cases": pairs},
        "ner.json": {"sample": "ner", "maxLength": max_length, "cases": tagged},
        "documents.json": {"sample": "documents", "maxLength": max_length, "cases": documents},
    }
