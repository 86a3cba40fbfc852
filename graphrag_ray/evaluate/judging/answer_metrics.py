"""Scores of answers against known ones, of retrieved documents against those that a question needs, and the
number of claims of an answer and of their clusters.

An answer often has several names ("the UK", "Britain"): every measure counts the one that fits best. Words
are those of each measure's authors. SQuAD's (`normalised`) are separated by white space once articles and
punctuation are gone: "don't" is "dont". ROUGE's (`words`) are runs of letters and digits: "don't" is "don"
and "t". Both are extended to all scripts: compatible forms and cases are equal, and of scripts without spaces
between words each character is a word, as in MLQA (Lewis et al. 2020). On ASCII text both are exactly those
of SQuAD and ROUGE.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, lru_cache, partial, wraps
from types import SimpleNamespace

import numpy as np

from graphrag_ray.base.ids import bounded_marks

ARTICLES = ("a", "an", "the")
"""English ones only, as in SQuAD."""

FIXED_ANSWERS = ("yes", "no", "noanswer")
"""Answers of which a part is no answer (HotpotQA)."""

MOST_WORDS = 10_000
"""Of each text that ROUGE-L compares: its time is the product of the two lengths."""

THRESHOLDS = (0.5, 0.6, 0.7, 0.8)
MOST_CLAIMS = 500
"""That are clustered at once: all pairs of them are compared. An answer of the paper has 31."""
MOST_CLAIM_WORDS = 200
"""Of a claim that are compared; a claim is a sentence."""

KS = (1, 2, 5, 8, 10, 20)

_GAPS = dict.fromkeys(map(ord, "—―…"), " ")
"""Written between words without spaces. All other punctuation goes without a trace."""
_UNSPACED = (
    "\u0e00-\u0fff"  # Thai, Lao, Tibetan
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # Kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_UNITS = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class _CharacterTable(dict[int, str]):
    """For `str.translate`: what becomes of each character, found when it first occurs."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = found = self._rule(chr(code))
        return found


def _rule(character: str, squad: bool) -> str:
    category = unicodedata.category(character)
    # What selects how another character looks, or shows nothing, or is half of one.
    variation = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    if variation or category in ("Cf", "Cs"):
        return ""
    if squad:
        # SQuAD takes out `string.punctuation`, of which all categories here have a member.
        gone = category[0] == "P" or category in ("Sc", "Sk", "Sm")
        return "" if gone else " " if category == "Cc" else character
    # Marks are parts of words: without their vowel signs words of Hindi would fall apart.
    return character if character.isalnum() or category[0] == "M" else " "


_SQUAD = _CharacterTable(partial(_rule, squad=True))
_ROUGE = _CharacterTable(partial(_rule, squad=False))


def normalised(text: str) -> str:
    """The text in lower case, without articles and punctuation, words apart by one space (SQuAD, Rajpurkar
    et al. 2016). Unicode NFKC, case-folded."""
    return " ".join(word for word in _folded(text, _SQUAD).split() if word not in ARTICLES)


def words(text: str) -> list[str]:
    """Runs of letters and digits in lower case, as ROUGE and TREX read a text."""
    return _UNITS.findall(_folded(text, _ROUGE))


def _best(score: Callable[[str, str], float]) -> Callable[[str, Sequence[str]], float]:
    """A measure over all wordings of the correct answer. It raises ValueError without any."""

    @wraps(score)
    def measure(text: str, gold: Sequence[str]) -> float:
        if not gold:
            raise ValueError("there is no answer to compare with")
        return max(score(text, answer) for answer in gold)

    return measure


@_best
def accuracy(text: str, answer: str) -> float:
    """1.0 where the normal form of the text contains that of an answer, 0.0 elsewhere.

    Plain containment, as ArchRAG and HippoRAG have it: the answer "art" stands in "party". An answer of which
    nothing is left is contained only in a text of which nothing is left.
    """
    said, wanted = normalised(text), normalised(answer)
    return float(wanted in said if wanted else not said)


@_best
def exact_match(text: str, answer: str) -> float:
    """1.0 where text and an answer have the same normal form, 0.0 elsewhere (SQuAD)."""
    return float(normalised(text) == normalised(answer))


@_best
def f1(text: str, answer: str) -> float:
    """The harmonic mean of precision and recall over words, as multisets (SQuAD 2.0: where text or answer has
    no words, 1.0 if neither has)."""
    said, wanted = _squad_words(text), _squad_words(answer)
    if not said or not wanted:
        return float(said == wanted)
    return 2 * (said & wanted).total() / (said.total() + wanted.total())


@_best
def recall(text: str, answer: str) -> float:
    """The share of an answer's words, as a multiset, that the text has (HotpotQA, ArchRAG, HippoRAG).

    Where text or answer is nothing but "yes" or "no", or says that there is none, the other must be the same:
    elsewhere 0.0.
    """
    forms = {normalised(text), normalised(answer)}
    if len(forms) == 2 and forms.intersection(FIXED_ANSWERS):
        return 0.0
    said, wanted = _squad_words(text), _squad_words(answer)
    return (said & wanted).total() / wanted.total() if wanted else float(not said)


@_best
def bleu_1(text: str, answer: str) -> float:
    """The share of the text's words, as a multiset, that an answer has, times BLEU's brevity penalty
    (Papineni et al. 2002). Each answer is a single reference."""
    said, wanted = words(text), words(answer)
    common = (Counter(said) & Counter(wanted)).total()
    return common / len(said) * min(1.0, math.exp(1 - len(wanted) / len(said))) if common else 0.0


@_best
def rouge_l(text: str, answer: str) -> float:
    """F1 by the longest common subsequence of words (ROUGE-L, Lin 2004), without stemming. Of each text the
    first MOST_WORDS words are read."""
    from rapidfuzz.distance import LCSseq

    said, wanted = words(text)[:MOST_WORDS], words(answer)[:MOST_WORDS]
    if not said or not wanted:
        return 0.0
    # By number: rapidfuzz compares hashes of what it is given, and those of texts change with every process.
    number = {word: n for n, word in enumerate(dict.fromkeys([*said, *wanted]))}
    common = LCSseq.similarity([number[word] for word in said], [number[word] for word in wanted])
    return 2 * common / (len(said) + len(wanted))


@_best
def meteor(text: str, answer: str) -> float:
    """METEOR by nltk (Lavie and Agarwal 2007): words match as they are or by their English stems. Published
    figures match synonyms by WordNet too and are a little higher."""
    from nltk.translate.meteor_score import single_meteor_score

    stemmer, none = _cached_stemmer(), SimpleNamespace(synsets=lambda word: ())
    return float(single_meteor_score(words(answer), words(text), stemmer=stemmer, wordnet=none))


def answer_scores(text: str, gold: Sequence[str]) -> dict[str, float]:
    """All measures of this module by their names, each from 0 to 1; METEOR is without synonyms.

    Raises ValueError without an answer.
    """
    measures = (accuracy, recall, exact_match, f1, bleu_1, rouge_l, meteor)
    return {measure.__name__: measure(text, gold) for measure in measures}


def _folded(text: str, table: _CharacterTable) -> str:
    if text.isascii():
        return text.lower().translate(table)
    text = text.translate(_GAPS)
    for _ in range(2):  # case folding can leave what NFKC would change, and vice versa (UAX 31, 5.1.3)
        text = unicodedata.normalize("NFKC", bounded_marks(text)).casefold()
    # What is taken out may have stood between a letter and its accent.
    return unicodedata.normalize("NFKC", bounded_marks(text.translate(table)))


def _squad_words(text: str) -> Counter[str]:
    return Counter(_UNITS.findall(normalised(text)))


@cache
def _cached_stemmer() -> SimpleNamespace:
    """nltk's Porter stemmer, which takes some ten microseconds a word, and is asked for the same ones."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=lru_cache(100_000)(PorterStemmer().stem))


def retrieval_scores(
    ranked: Iterable[str] = (),
    gold: Collection[str] = (),
    texts: Iterable[str] = (),
    gold_texts: Iterable[str] = (),
    answers: Sequence[str] = (),
    ks: Sequence[int] = KS,
) -> dict[str, float]:
    """Whatever can be measured, by name, each from 0 to 1. Without gold to compare with there are no scores.

    ranked, gold    documents by rank, each counted once, at its first place. For each k: recall@k, the share
                    of the gold ones among the first k; all_within@k, 1.0 where all of them are; precision@k,
                    the share of gold ones among the first k, or among all where fewer were retrieved
    texts           retrieved ones. With `gold_texts` token_precision and token_recall (TREX), over all texts
                    as one multiset of `words`; with `answers` answer_in_context, 1.0 where one text contains
                    one answer as in `accuracy`

    Raises ValueError for a k below 1.
    """
    scores: dict[str, float] = {}
    if any(k < 1 for k in ks):
        raise ValueError(f"k is {min(ks)}; it is at least 1")
    if wanted := set(gold):
        distinct = list(dict.fromkeys(ranked))
        found = {k: len(wanted.intersection(distinct[:k])) for k in ks}
        scores |= {f"recall@{k}": n / len(wanted) for k, n in found.items()}
        scores |= {f"all_within@{k}": float(n == len(wanted)) for k, n in found.items()}
        scores |= {f"precision@{k}": n / max(1, len(distinct[:k])) for k, n in found.items()}
    texts = list(texts)
    if gold_texts := list(gold_texts):
        said, meant = (Counter(word for text in some for word in words(text)) for some in (texts, gold_texts))
        common = (said & meant).total()
        scores["token_precision"] = common / max(said.total(), 1)
        scores["token_recall"] = common / max(meant.total(), 1)
    if answers:
        forms = [answer for answer in map(normalised, answers) if answer]
        scores["answer_in_context"] = float(
            any(form in said for said in map(normalised, texts) for form in forms)
        )
    return scores


def distinct(claims: Iterable[str]) -> list[str]:
    """The claims of an answer without repeats, in their order. Claims are the same whose normal forms are;
    one of which nothing is left is no claim."""
    first: dict[str, str] = {}
    for claim in claims:
        first.setdefault(normalised(claim), claim)
    first.pop("", None)
    return list(first.values())


def clusters(claims: Sequence[str], thresholds: Sequence[float] = THRESHOLDS) -> dict[float, int]:
    """For each threshold, the number of clusters of an answer's claims (GraphRAG 4.2): complete linkage over
    the distance 1 - ROUGE-L F1, so that no two claims of a cluster are farther apart than the threshold.

    Of a claim the first MOST_CLAIM_WORDS words count. More than MOST_CLAIMS claims are clustered in blocks of
    so many; clusters of different blocks are not joined, so the number is an upper bound there.
    """
    from rapidfuzz import process
    from rapidfuzz.distance import LCSseq
    from scipy.cluster import hierarchy

    found = dict.fromkeys(thresholds, 0)
    for start in range(0, len(claims), MOST_CLAIMS):
        texts = [words(claim)[:MOST_CLAIM_WORDS] for claim in claims[start : start + MOST_CLAIMS]]
        if len(texts) == 1:
            found = {threshold: n + 1 for threshold, n in found.items()}
            continue
        number: dict[str, int] = {}
        numbered = [[number.setdefault(word, len(number)) for word in text] for text in texts]
        common = process.cdist(numbered, numbered, scorer=LCSseq.similarity, dtype=np.int32, workers=1)
        length = np.array([len(text) for text in texts])
        a, b = np.triu_indices(len(texts), 1)
        both = length[a] + length[b]
        # One division of whole numbers: a distance of exactly 0.7 is not more than 0.7.
        distance = (both - 2 * common[a, b]) / np.maximum(both, 1)
        distance[both == 0] = 1.0  # without words nothing is alike
        tree = hierarchy.linkage(distance, "complete")
        # A merge within the threshold makes one cluster fewer; with complete linkage, distances only grow.
        found = {t: n + len(texts) - int((tree[:, 2] <= t).sum()) for t, n in found.items()}
    return found
