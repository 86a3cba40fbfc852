"""Score answers against correct answers and retrieval against needed documents; count and cluster claims.

If the correct answer has several wordings ("the UK", "Britain"), every measure uses the best match. There are
two definitions of a word. SQuAD (`normalise`) removes articles and punctuation and then splits at whitespace:
"don't" is "dont". ROUGE (`words`) uses runs of letters and digits: "don't" is "don" and "t". We extend both
to all scripts: case and compatibility forms are ignored, and in scripts without spaces each character is a
word, as in MLQA (Lewis et al. 2020). On ASCII text, both equal the originals.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, lru_cache, partial, wraps
from types import SimpleNamespace
from typing import Any

import numpy as np

from graphrag_ray.base.ids import limit_combining_marks

ARTICLES = ("a", "an", "the")
FIXED_ANSWERS = ("yes", "no", "noanswer")  # Their words are no measure of recall (ArchRAG).
MAX_WORDS = 10_000
"""Maximum number of words per text that ROUGE-L compares. Its time is the product of the two lengths."""
THRESHOLDS = (0.5, 0.6, 0.7, 0.8)
MAX_CLAIMS = 500
"""Maximum number of claims to cluster together, because all pairs are compared. Answers in the GraphRAG
paper have about 31 claims."""
MAX_CLAIM_WORDS = 200
KS = (1, 2, 5, 8, 10, 20)

_SEPARATORS = dict.fromkeys(map(ord, "—―…"), " ")
"""Punctuation that separates words even without spaces. All other punctuation is removed."""
_UNSPACED = (
    "\u0e00-\u0fff"  # Thai, Lao, Tibetan
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # Kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_UNITS = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class _CharacterTable(dict[int, str]):
    """A table for `str.translate` that applies a rule and caches the result per character."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = replacement = self._rule(chr(code))
        return replacement


def _rule(character: str, squad: bool) -> str:
    category = unicodedata.category(character)
    # Variation selectors, invisible characters and surrogates.
    variation = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    if variation or category in ("Cf", "Cs"):
        return ""
    if squad:
        # SQuAD removes `string.punctuation`, which has members in all these categories.
        removed = category[0] == "P" or category in ("Sc", "Sk", "Sm")
        return "" if removed else " " if category == "Cc" else character
    # Marks belong to words: otherwise, Hindi words would be split at their vowel signs.
    return character if character.isalnum() or category[0] == "M" else " "


_SQUAD = _CharacterTable(partial(_rule, squad=True))
_ROUGE = _CharacterTable(partial(_rule, squad=False))


def normalise(text: str) -> str:
    """Case-fold text (NFKC) and remove articles and punctuation (SQuAD, Rajpurkar et al. 2016)."""
    return " ".join(word for word in _folded(text, _SQUAD).split() if word not in ARTICLES)


def split_words(text: str) -> list[str]:
    """Split text into runs of letters and digits in lower case, the words of ROUGE and TREX."""
    return _UNITS.findall(_folded(text, _ROUGE))


def _best(score: Callable[..., float]) -> Callable[..., float]:
    """Turn a score for one answer into a measure that uses the best of several wordings."""

    @wraps(score)
    def measure(text: str, gold: Sequence[str], **options: Any) -> float:
        if not gold:
            raise ValueError("No answer to compare with")
        return max(score(text, answer, **options) for answer in gold)

    return measure


@_best
def accuracy(text: str, answer: str) -> float:
    """Return 1.0 if the normalised text contains the normalised answer, and 0.0 otherwise.

    As in ArchRAG and HippoRAG, this is a substring test: "party" contains "art". An answer that normalises to
    nothing matches only such a text.
    """
    actual, expected = normalise(text), normalise(answer)
    return float(expected in actual if expected else not actual)


@_best
def exact_match(text: str, answer: str) -> float:
    """Return 1.0 if the normalised text equals the normalised answer, and 0.0 otherwise (SQuAD)."""
    return float(normalise(text) == normalise(answer))


@_best
def f1(text: str, answer: str) -> float:
    """Return the harmonic mean of precision and recall over words as multisets (SQuAD 2.0).

    If both sides have no words, returns 1.0; if only one has none, 0.0.
    """
    actual, expected = _squad_words(text), _squad_words(answer)
    if not actual or not expected:
        return float(actual == expected)
    return 2 * (actual & expected).total() / (actual.total() + expected.total())


@_best
def recall(text: str, answer: str) -> float:
    """Return the share of the answer's words that the text contains (ArchRAG, HippoRAG).

    If either side is "yes", "no" or "noanswer", returns 0.0, as ArchRAG's paper says. HotpotQA's script,
    which ArchRAG's code uses, returns 1.0 if both are the same.
    """
    if {normalise(text), normalise(answer)}.intersection(FIXED_ANSWERS):
        return 0.0
    actual, expected = _squad_words(text), _squad_words(answer)
    return (actual & expected).total() / expected.total() if expected else float(not actual)


@_best
def bleu_1(text: str, answer: str) -> float:
    """Return BLEU-1 (Papineni et al. 2002) with the answer as the only reference."""
    actual, expected = split_words(text), split_words(answer)
    common = (Counter(actual) & Counter(expected)).total()
    return common / len(actual) * min(1.0, math.exp(1 - len(expected) / len(actual))) if common else 0.0


@_best
def rouge_l(text: str, answer: str) -> float:
    """Return F1 by the longest common subsequence of words (ROUGE-L, Lin 2004), without stemming."""
    from rapidfuzz.distance import LCSseq

    actual, expected = split_words(text)[:MAX_WORDS], split_words(answer)[:MAX_WORDS]
    if not actual or not expected:
        return 0.0
    # rapidfuzz compares hashes. String hashes differ between processes, so pass numbers.
    number = {word: n for n, word in enumerate(dict.fromkeys([*actual, *expected]))}
    common = LCSseq.similarity([number[word] for word in actual], [number[word] for word in expected])
    return 2 * common / (len(actual) + len(expected))


@_best
def meteor(text: str, answer: str, wordnet: Any = None) -> float:
    """Return METEOR by nltk (Lavie and Agarwal 2007).

    Words match exactly, by English stem, or as synonyms in `wordnet`, nltk's reader of WordNet, in which nltk
    looks up stems. Without it, scores are slightly below published ones.
    """
    from nltk.translate.meteor_score import single_meteor_score

    stemmer, reader = _cached_stemmer(), wordnet or SimpleNamespace(synsets=lambda word: ())
    return float(single_meteor_score(split_words(answer), split_words(text), stemmer=stemmer, wordnet=reader))


def answer_scores(text: str, gold: Sequence[str], wordnet: Any = None) -> dict[str, float]:
    """Return all answer measures by name, each from 0 to 1. Raises ValueError if `gold` is empty."""
    measures = (accuracy, recall, exact_match, f1, bleu_1, rouge_l)
    scores = {measure.__name__: measure(text, gold) for measure in measures}
    return scores | {meteor.__name__: meteor(text, gold, wordnet=wordnet)}


def _folded(text: str, table: _CharacterTable) -> str:
    if text.isascii():
        return text.lower().translate(table)
    text = text.translate(_SEPARATORS)
    for _ in range(2):  # Case folding can undo NFKC and vice versa (UAX 31, 5.1.3).
        text = unicodedata.normalize("NFKC", limit_combining_marks(text)).casefold()
    # A removed character may have separated a letter from its accent.
    return unicodedata.normalize("NFKC", limit_combining_marks(text.translate(table)))


def _squad_words(text: str) -> Counter[str]:
    return Counter(_UNITS.findall(normalise(text)))


@cache
def _cached_stemmer() -> SimpleNamespace:
    """Return nltk's Porter stemmer with a cache, because it takes about ten microseconds per word."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=lru_cache(100_000)(PorterStemmer().stem))


def retrieval_scores(
    ranked: Iterable[str] = (),
    gold: Collection[str] = (),
    texts: Iterable[str] = (),
    gold_texts: Iterable[str] = (),
    answers: Sequence[str] = (),
    ks: Sequence[int] = KS,
    evidence: Iterable[str] = (),
) -> dict[str, float]:
    """Return every score that the arguments allow by name, each from 0 to 1.

    Args:
        ranked: Retrieved documents in order of rank. Repeats are ignored.
        gold: The needed documents. For each k, recall@k is the share of them among the first k, all_within@k
            is 1.0 if all of them are among the first k, and precision@k is their share of the first k.
        texts: Retrieved texts.
        gold_texts: For token_precision and token_recall (TREX) of all texts as one multiset of `words`.
        evidence: Passages to find, by default `gold_texts`. substring_recall is the share of them that one
            text contains, and substring_precision the share of texts that contain one or are part of one,
            both after `normalise` (TREX).
        answers: For answer_in_context, which is 1.0 if one text contains an answer, as in `accuracy`.

    Raises:
        ValueError: A k is below 1.
    """
    scores: dict[str, float] = {}
    if any(k < 1 for k in ks):
        raise ValueError(f"k is {min(ks)}, but must be at least 1")
    if wanted := set(gold):
        documents = list(dict.fromkeys(ranked))
        hits = {k: len(wanted.intersection(documents[:k])) for k in ks}
        scores |= {f"recall@{k}": n / len(wanted) for k, n in hits.items()}
        scores |= {f"all_within@{k}": float(n == len(wanted)) for k, n in hits.items()}
        scores |= {f"precision@{k}": n / max(1, len(documents[:k])) for k, n in hits.items()}
    texts = list(texts)
    if gold_texts := list(gold_texts):
        actual, expected = (
            Counter(word for text in side for word in split_words(text)) for side in (texts, gold_texts)
        )
        common = (actual & expected).total()
        scores["token_precision"] = common / max(actual.total(), 1)
        scores["token_recall"] = common / max(expected.total(), 1)
    normal = [normalise(text) for text in texts]
    if passages := {form for text in evidence or gold_texts if (form := normalise(text))}:
        found = sum(any(passage in text for text in normal) for passage in passages)
        useful = sum(any(p in text or (text and text in p) for p in passages) for text in normal)
        scores["substring_recall"] = found / len(passages)
        scores["substring_precision"] = useful / max(len(normal), 1)
    if answers:
        forms = [answer for answer in map(normalise, answers) if answer]
        scores["answer_in_context"] = float(any(form in text for text in normal for form in forms))
    return scores


def distinct_claims(claims: Iterable[str]) -> list[str]:
    """Remove repeated claims, compared in normal form, and claims that normalise to nothing."""
    first: dict[str, str] = {}
    for claim in claims:
        first.setdefault(normalise(claim), claim)
    first.pop("", None)
    return list(first.values())


def count_clusters(claims: Sequence[str], thresholds: Sequence[float] = THRESHOLDS) -> dict[float, int]:
    """Count the clusters of an answer's claims at each threshold (GraphRAG 4.2).

    Uses complete linkage with the distance 1 - ROUGE-L F1: no two claims of a cluster are farther apart than
    the threshold. Only the first MAX_CLAIM_WORDS words of a claim are used. More than MAX_CLAIMS claims are
    clustered in blocks, so the count is an upper bound.
    """
    from rapidfuzz import process
    from rapidfuzz.distance import LCSseq
    from scipy.cluster import hierarchy

    counts = dict.fromkeys(thresholds, 0)
    for start in range(0, len(claims), MAX_CLAIMS):
        texts = [split_words(claim)[:MAX_CLAIM_WORDS] for claim in claims[start : start + MAX_CLAIMS]]
        if len(texts) == 1:
            counts = {threshold: n + 1 for threshold, n in counts.items()}
            continue
        number: dict[str, int] = {}
        numbered = [[number.setdefault(word, len(number)) for word in text] for text in texts]
        common = process.cdist(numbered, numbered, scorer=LCSseq.similarity, dtype=np.int32, workers=1)
        length = np.array([len(text) for text in texts])
        a, b = np.triu_indices(len(texts), 1)
        both = length[a] + length[b]
        # Dividing integers once makes a distance of exactly 0.7 pass a threshold of 0.7.
        distance = (both - 2 * common[a, b]) / np.maximum(both, 1)
        distance[both == 0] = 1.0  # Claims without words are similar to nothing.
        tree = hierarchy.linkage(distance, "complete")
        # Each merge within the threshold removes one cluster, because distances of complete linkage only
        # grow.
        counts = {t: n + len(texts) - int((tree[:, 2] <= t).sum()) for t, n in counts.items()}
    return counts
