"""Choose the sentences that answer a question, and those that only may help.

A sentence is judged with its neighbours and the title of its record, because a text names its subject once. A
sentence answers a part of the question if this window has its rarest specific term and enough of its other
terms, or most of its terms, or a name in it and the number, date or person that the question asks for. The
sentence must have the number or date that the question asks for. All other sentences only may help.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from graphrag_ray.corpus.document_dates import is_month
from graphrag_ray.offline.lexicon import LEXICON
from graphrag_ray.offline.question_terms import RARE, QuestionTerms
from graphrag_ray.offline.quotations import Floats, content_stems, find_words

PREVIOUS, FOLLOWING, TITLE = 0.8, 0.6, 0.8
"""How much a term counts that the neighbours or the title have instead of the sentence."""
MIN_REST = 0.5
"""Share of the terms other than the rarest, by rarity, that the window of an answer must contain."""
MOST = 0.7
"""Share of the terms that is enough even if the rarest is missing."""
NAMED, WITH_KIND = 0.4, 0.2
"""Shares of the names, and of all terms, that are enough with the number, date or person asked for."""
MIN_WEIGHT = 0.8
"""Minimum weight of a term, because a verb relates the other terms."""
WITHOUT_KIND = 0.5
"""Factor for a sentence that lacks what the question asks for, such as a name other than those in it."""

_DIGIT = re.compile(r"\d|[一二三四五六七八九十百千万億亿兩两]")
_YEAR = re.compile(r"\d{3,4}|\d\d?(?:st|nd|rd|th)\b|\d[./]\d|\d\s?[年月日년월일]")
_NUMBER_WORDS = frozenset(LEXICON.question_words["number_word"])
_REASON = re.compile(
    r"\b(?:because|since|due to|caused by|owing to|weil|wegen|denn|parce|à cause|porque|debido|perché|omdat|"
    r"потому|из-за)|因为|由于|ため|क्योंकि|بسبب",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Group:
    """The sentences of a record and its title. `adjacent`: the sentences follow each other in a text."""

    title: str
    sentences: Sequence[str]
    adjacent: bool


@dataclass(frozen=True, slots=True)
class Ranking:
    """One value per sentence, in the order of the groups.

    Attributes:
        relevance: How well the sentence relates the terms of the question, 0–1.
        coverage: Weighted share of the terms of one part of the question in its window, 0–1.
        answers: Whether it may answer the question.
        lacks: Whether the sentence lacks the person or reason that the question asks for.
        terms: The terms in the sentence itself.
    """

    relevance: Floats
    coverage: Floats
    answers: npt.NDArray[np.bool_]
    lacks: npt.NDArray[np.bool_]
    terms: Sequence[frozenset[str]]


def rank_sentences(question: QuestionTerms, groups: Sequence[Group]) -> Ranking:
    """Rank sentences by the share of the question's terms in their windows, weighted by rarity."""
    columns = {term: i for i, term in enumerate(question.terms)}
    n, n_terms = sum(len(g.sentences) for g in groups), len(columns)
    own, title = np.zeros((n, n_terms)), np.zeros((n, n_terms))
    before, after = np.zeros((n, n_terms)), np.zeros((n, n_terms))
    found: list[frozenset[str]] = []
    kind = np.ones(n)
    has_kind = np.ones(n, dtype=bool)
    for group in groups:
        start = len(found)
        in_title = [columns[t] for t in question.found_in(content_stems(group.title))]
        for text in group.sentences:
            row, terms = len(found), question.found_in(content_stems(text))
            found.append(terms)
            own[row, [columns[t] for t in terms]] = 1
            title[row, in_title] = 1
            kind[row], has_kind[row] = _kind_of(question, text) if terms else (1.0, True)
        if group.adjacent:
            for row in range(start + 1, len(found)):
                if not _opens_with_name(group.sentences[row - start]):  # It continues the sentence before it.
                    before[row], after[row - 1] = own[row - 1], own[row]
    if not n or not n_terms:
        nothing = np.zeros(n, dtype=bool)
        return Ranking(np.zeros(n), np.zeros(n), nothing, nothing, found)
    window = np.maximum.reduce([own, PREVIOUS * before, FOLLOWING * after, TITLE * title])
    window *= own.max(axis=1, keepdims=True)
    frequency = np.maximum(own, title).sum(axis=0)
    rarity = np.log1p((n - frequency + 0.5) / (frequency + 0.5)) / log(1 + (n + 0.5) / 0.5)
    rarity = 0.25 + 0.75 * rarity
    weight = np.maximum(np.fromiter(question.terms.values(), np.float64), MIN_WEIGHT) * rarity
    coverage, answers = np.zeros(n), np.zeros(n, dtype=bool)
    for units in question.parts:
        members = [columns[t] for unit in units for t in unit]
        share = window[:, members] @ weight[members] / weight[members].sum()
        coverage = np.maximum(coverage, share)
        # Names, numbers and unusual words are specific. The rarest decides what the question is about.
        specific = [i for i in members if weight[i] >= RARE * rarity[i]] or members
        lowest = min(frequency[i] for i in specific)
        rarest = {i for i in specific if frequency[i] == lowest}
        of_units = [[columns[t] for t in unit] for unit in units]
        decides = np.array([not rarest.isdisjoint(i) for i in of_units])
        has = np.stack([window[:, i].max(axis=1) for i in of_units], axis=1)
        most = np.array([rarity[i].max() for i in of_units])
        others = (has @ most)[:, None] - has * most >= MIN_REST * (most.sum() - most) - 1e-9
        answers |= ((has > 0) & others & decides).any(axis=1)
        part_of = np.stack([window[:, i].mean(axis=1) for i in of_units], axis=1)
        heavy = np.array([weight[i].max() for i in of_units])
        covered = part_of @ heavy / heavy.sum()
        answers |= covered >= MOST
        named = heavy * [not question.names.isdisjoint(unit) for unit in units]
        if question.asks_for not in ("", "reason") and named.any():
            has_names = part_of @ named >= NAMED * named.sum()
            answers |= has_names & (kind == 1) & (covered >= WITH_KIND)
    answers &= has_kind
    return Ranking(coverage * kind, coverage, answers, kind < 1, found)


def _opens_with_name(text: str) -> bool:
    """Whether a sentence has a subject of its own, so that it does not continue the one before it."""
    first = next(find_words(text), None)
    return first is not None and first.group()[0].isupper() and not LEXICON.is_ordinary(first.group().lower())


def _kind_of(question: QuestionTerms, text: str) -> tuple[float, bool]:
    """Return a factor for what the question asks for, and whether the sentence has the number or date."""
    words = [m.group() for m in find_words(text)]
    if question.asks_for == "reason":
        return (1.0 if _REASON.search(text) else WITHOUT_KIND), True
    if question.asks_for == "person":
        known = set(question.stems)
        named = any(
            w[0].isupper()
            and (i or not LEXICON.is_ordinary(w.lower()))
            and known.isdisjoint(content_stems(w))
            for i, w in enumerate(words)
        )
        return (1.0 if named or not any(c.isupper() for c in text) else WITHOUT_KIND), True
    if question.asks_for:
        lower = {w.lower() for w in words}
        if question.asks_for == "number":
            has = bool(_DIGIT.search(text)) or not lower.isdisjoint(_NUMBER_WORDS)
        else:
            has = bool(_YEAR.search(text)) or any(w in LEXICON.calendar or is_month(w) for w in lower)
        # Words for numbers and days are known in English only.
        return (1.0 if has else WITHOUT_KIND), has or not text.isascii()
    return 1.0, True
