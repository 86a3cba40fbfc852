"""Quotations: write and parse them, compare their words, and rank them by LexRank and MMR.

A description joins quotations by ` […] `. Reports and answers put each quotation between “ and ”, followed by
a reference. Quotations may contain quotation marks if these are balanced.

LexRank: Erkan and Radev, JAIR 2004, in its continuous form with idf-modified cosines. MMR: Carbonell and
Goldstein, SIGIR 1998.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import log

import numpy as np
import numpy.typing as npt

from graphrag_ray.corpus.boundaries import CLOSERS, STOPS
from graphrag_ray.corpus.quotes import quotations_in
from graphrag_ray.offline.extraction_reply import CONVERSE
from graphrag_ray.offline.lexicon import LEXICON
from graphrag_ray.offline.sentences import fold, has_cells, is_opening
from graphrag_ray.store.search.tokenizer import FUNCTION_WORDS, is_unspaced, stem_word, word_pattern

Floats = npt.NDArray[np.float64]

_SUFFIX = re.compile(
    r"(?<=\w{4})(?:ationally|i[sz]ations?|ational|fulness|iveness|ousness|ations?|ingly|edly|ments?|ities|itions?"
    r"|ement|ional|ively|ently|antly|ances?|ences?|at(?:ing|ed|es?|ive|ors?)|ness|able|ible|ally|ical|ions?|ious|ists?"
    r"|isms?|i[sz](?:ed?|es|ing)|ity|ie[sd]|ive|ing|ous|ful|ers?|ors|est|ant|ent|ial|ual|ed|or|ly|al|ic|es|[yse])$"
)
_IRREGULAR = dict(pair.split("=") for pair in LEXICON.question_words["irregular"])
MAX_SENTENCES = 240  # Maximum number of sentences to compare, because the number of pairs is quadratic.

_ASCII_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_ELISION = re.compile(r"(?:[cdjlmnst]|qu|dell|nell|all)['’](?=\w{2})")  # l'ancienne, dell'acqua
_SCRIPTS = {"greek": "\u0370-\u03ff\u1f00-\u1fff", "russian": "\u0400-\u052f", "arabic": "\u0600-\u06ff",
            "hindi": "\u0900-\u097f"}  # fmt: skip
"""Scripts whose most common language has a Snowball stemmer. Words in Latin letters are stemmed by `stem`."""
_SCRIPT = re.compile("|".join(f"(?P<{name}>[{letters}])" for name, letters in _SCRIPTS.items()))
_FUNCTION_WORDS = {name: frozenset(FUNCTION_WORDS[name].split()) for name in _SCRIPTS}


def find_words(text: str) -> Iterator[re.Match[str]]:
    """Find words in any script. A run of a script without spaces is one word."""
    return (_ASCII_WORD if text.isascii() else word_pattern("'’-")).finditer(text)


@lru_cache(maxsize=1 << 17)
def stem(word: str) -> str:
    """Stem a lower-case word: remove the longest listed suffix that leaves four letters.

    This is deliberately coarser than Porter (1980), so that innovate, innovation and innovative match. Forms
    of irregular verbs have the stem of their base.
    """
    if not word.isalpha() or len(word) < 3:
        return word
    word = _IRREGULAR.get(word, word)
    if len(word) < 4:
        return word
    if len(word) == 4:  # eels, died, used
        plural = word.endswith("s") and word[2] not in "sui"
        past = word.endswith("ed") and (word[1] in "aiouy" or word[0] in "aeiou")
        return word[:3] if plural or past else word
    for ending in ("ed", "ing"):
        if word.endswith(ending) and len(word) < len(ending) + 4:  # voted, voting
            base = word.removesuffix(ending)
            word = next((w for w in (base + "e", base, base[:-1]) if w in LEXICON.verbs), word)
            if not word.endswith(ending):
                return word
    suffix = _SUFFIX.search(word)
    if suffix:
        return word[: suffix.start()]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


@lru_cache(maxsize=1 << 17)
def _content(word: str) -> tuple[str, ...]:
    if is_unspaced(word):
        return tuple(map("".join, pairwise(word))) or (word,)
    lower = word.lower()
    if script := _SCRIPT.match(lower):
        language = str(script.lastgroup)
        return () if lower in _FUNCTION_WORDS[language] else (stem_word(lower, language),)
    base = _ELISION.sub("", lower[:-2] if lower.endswith(("'s", "’s")) else lower)
    if (
        base in LEXICON.stop
        or lower.replace("’", "'") in LEXICON.stop
        or (len(base) < 2 and not base.isdigit())
    ):
        return ()
    return (stem(base),)


def content_stems(text: str) -> list[str]:
    """Return the stems of a text's content words, in order, with repetitions.

    In scripts without spaces between words, they are pairs of characters.
    """
    return [s for w in find_words(text) for s in _content(w.group())]


def similarities(sentences: Sequence[Sequence[str]]) -> Floats:
    """Return [n, n] idf-modified cosines of sentences (as stems): 1 on the diagonal, 0 for empty ones.

    Words that occur in only one sentence affect only its length.
    """
    n = len(sentences)
    counts = [Counter(s) for s in sentences]
    frequency: Counter[str] = Counter(w for c in counts for w in c)
    idf = {w: log((n + 1) / (f + 0.5)) for w, f in frequency.items()}
    shared = {w: i for i, w in enumerate(w for w, f in frequency.items() if f > 1)}
    matrix = np.zeros((n, max(1, len(shared))))
    length = np.zeros(n)
    for row, words in enumerate(counts):
        for word, count in words.items():
            weight = count * idf[word]
            length[row] += weight * weight
            if word in shared:
                matrix[row, shared[word]] = weight
    matrix /= np.maximum(np.sqrt(length), 1e-9)[:, None]
    out: Floats = matrix @ matrix.T
    np.fill_diagonal(out, 1.0)
    return out


def lexrank(similarity: Floats, damping: float = 0.85, rounds: int = 30) -> Floats:
    """Return the salience [n] of sentences, scaled to a maximum of 1.

    Unlike the paper, we ignore the similarity of a sentence with itself, which would make isolated sentences
    as salient as the average.
    """
    n = len(similarity)
    if n < 3:
        return np.ones(n)
    others = similarity - np.diag(np.diag(similarity))
    weights = others / np.maximum(others.sum(axis=1, keepdims=True), 1e-9)
    rank = np.full(n, 1.0 / n)
    for _ in range(rounds):
        rank = (1 - damping) / n + damping * (rank @ weights)
    out: Floats = rank / rank.max()
    return out


def mmr(
    relevance: Floats,
    similarity: Floats,
    limit: int,
    trade_off: float = 0.7,
    groups: Sequence[int] | None = None,
    per_group: int = 0,
) -> list[int]:
    """Choose up to `limit` sentences, each penalised for its similarity to sentences chosen before.

    Near-copies of a chosen sentence (similarity from 0.85) and sentences without relevance are never chosen.

    Args:
        trade_off: Lambda in the paper: 1 for relevance only, 0 for novelty only.
        groups, per_group: Choose at most `per_group` sentences per group (0: no limit).

    Returns:
        Indices, best first.
    """
    n = len(relevance)
    nearest = np.zeros(n)
    free = relevance > 0
    taken: Counter[int] = Counter()
    chosen: list[int] = []
    while len(chosen) < limit and free.any():
        value = np.where(free, trade_off * relevance - (1 - trade_off) * nearest, -np.inf)
        best = int(value.argmax())
        chosen.append(best)
        nearest = np.maximum(nearest, similarity[best])
        free &= nearest < 0.85
        free[best] = False
        if groups is not None and per_group:
            taken[groups[best]] += 1
            if taken[groups[best]] >= per_group:
                free &= np.array([g != groups[best] for g in groups])
    return chosen


JOIN = " […] "
MARK = "Written without a language model: text in quotation marks is quoted from the corpus."
NONE = "NONE"
CHARS_PER_TOKEN = 3.4  # A conservative value for English prose.

_JOIN = re.compile(r"(?:(?<!\s)\s++)?\[…\]\s*")
_MARKS = re.compile("[“”]")
_CUT = "…"
_ENDS = frozenset(STOPS + CLOSERS)
_LABELLED = re.compile(r"[A-Z][A-Z.'’ -]+: ")
_POINTS_BACK = re.compile(r"(?:But|And|So|Then|He|She|It|They|This|That|These|Those|His|Her|Its|Their)\b")
_BOILERPLATE = re.compile(
    r"forward[- ]looking statement|safe harbou?r|differ materially|(?:no|any) obligation to update|"
    r"all rights reserved|without (?:any )?warrant|terms (?:of use|and conditions)|privacy policy|"
    r"(?:not|no) constitute\b.{0,40}\b(?:advice|offer)|unsubscribe|reconciliations? of .{0,20}non-GAAP|"
    r"this (?:call|conference|webcast) is being recorded|replay of th",
    re.IGNORECASE,
)
_PLEASANTRY = re.compile(
    r"(?:(?:yeah|yes|well|great|okay|ok|and|so|all right|hi|hello|hey)[,.!]? )*"
    r"(?:thank(?:s| you)\b|good (?:morning|afternoon|evening|day)\b|you're welcome|welcome (?:to|back)\b|"
    r"(?:our|the|your) next question\b|please go ahead|congrat)",
    re.IGNORECASE,
)
_HEADING = re.compile(r"(?:^|\s)##\s+")


def pieces(description: str) -> list[str]:
    """Return the quotations of a description, except one that was truncated at the end of a context."""
    quotations = [p for p in _JOIN.split(fold(description)) if p and p != CONVERSE]
    if quotations and quotations[-1].endswith(_CUT) and len(quotations[-1]) > 1:
        quotations.pop()
    return quotations


def is_balanced(text: str) -> bool:
    depth = 0
    for mark in _MARKS.findall(text):
        depth += 1 if mark == "“" else -1
        if depth < 0:
            return False
    return depth == 0


@lru_cache(maxsize=1 << 14)
def stands_alone(text: str) -> float:
    """Return how well a quotation can be understood out of context, from 0 to 1.

    Legal notices, courtesies, questions, headings, table rows, fragments and sentences that refer back (he,
    this, but) score low (Paice 1990, "Constructing literature abstracts by computer").
    """
    if _BOILERPLATE.search(text) or _PLEASANTRY.match(text):
        return 0.1
    if has_cells(text):
        return 0.2
    value = 0.6 if "?" in text else 1.0
    if _LABELLED.match(text) or text[-1:] not in _ENDS:
        value *= 0.6
    if _POINTS_BACK.match(text):
        value *= 0.8
    return value if is_opening(text[:1]) or text[:1].isdigit() else value * 0.7


def report_parts(content: str) -> list[tuple[str, list[str]]]:
    """Parse a report on one line: (subject of a finding, its quotations). The summary has the subject ""."""
    parts = []
    for number, part in enumerate(_HEADING.split(content)):
        head, _, _ = part.partition("“")
        parts.append((first_name(head) if number else "", quotations_in(part)))
    return parts


def first_name(heading: str) -> str:
    """Return the first name in a heading or title of this engine (`Mara Venn — with …`, `A, B, C`)."""
    head = re.split(r" — |, ", heading.strip(), maxsplit=1)[0]
    return fold(head)


def number_in(variables: Mapping[str, str], name: str, default: int) -> int:
    """Parse a positive number in a variable, or return the default."""
    text = variables.get(name, "")
    return (int(text) or default) if text.isdecimal() and len(text) < 10 else default


def room_in(variables: Mapping[str, str], default_tokens: int) -> float:
    """Return the length in characters of a reply of `max_tokens`."""
    return number_in(variables, "max_tokens", default_tokens) * CHARS_PER_TOKEN
