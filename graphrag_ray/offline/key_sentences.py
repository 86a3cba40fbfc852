"""Which sentence says most about a thing, and how a sentence is quoted.

A quotation is a stretch of the text as it stands, white space folded. Copulas and appositions are the
classical patterns of definitional sentences (Hearst 1992, "Automatic acquisition of hyponyms from large
text corpora"; Fleischman, Hovy and Echihabi 2003, "Offline strategies for online question answering").
"""

from __future__ import annotations

import re
from itertools import pairwise

from graphrag_ray.offline.mentions import Reading, Thing
from graphrag_ray.offline.sentences import fold, has_cells

MAX_QUOTE_CHARS = 480
"""A longer sentence is cut at a clause, around what it is quoted for."""

_PAIRS = [re.compile(r"(?P<opening>“)|”"), re.compile(r"(?P<opening>\()|\)")]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_COPULA = re.compile(
    r"['’]?s?\)?,? (?:is|was|are|were|has been|became|remains) (?:a|an|the|one of|my|our|his|her|known)\b"
)
_APPOSITION = re.compile(
    r",? ?(?:\([^)]{2,12}\))?, (?:a|an|the|who|whose|which|our|my|his|her|their|its|formerly|now|then)\b"
)
_ROLE = re.compile(
    r",? (?:chief|president|director|founder|head|chair\w*|professor|editor|author|mayor|leader|owner)\b"
)
_INTRODUCTION = re.compile(r"(?:I['’]m|I am|my name is|[Tt]his is|guest|host)[^.?!]{0,25}$")
_CLAUSE = re.compile(r"[;:,–—-]\s+|\s+(?=(?:and|but|so|because|which|when|where)\s)")
_FILLER = re.compile(
    r"^(?:yeah|yes|so|and|but|um|uh|well|right|ok|okay|no|oh|like|you know)\b", re.IGNORECASE
)


def describe(reading: Reading, thing: Thing) -> str:
    """The quotation that says most about a thing of the chunk."""
    if thing.speaker:
        own = reading.said_by.get(thing.key, [])
        mentioned = [p for p in thing.places if not _is_label(reading, p)]
        if not mentioned and own:
            return _own_words(reading, own)
        places = mentioned or thing.places
    else:
        places = thing.places
    best = max(places[:12], key=lambda place: (_worth(reading, place), -place[1]))
    return quote(reading, best[0], [(best[1], best[2])])


def quote(reading: Reading, index: int, spans: list[tuple[int, int]]) -> str:
    """Sentence `index`, cut at clauses around the `spans` where it is long."""
    sentence = reading.script.sentences[index]
    start = min([sentence.start, *(a for a, _ in spans)])
    end = sentence.end
    if end - start > MAX_QUOTE_CHARS:
        first, last = min((a for a, _ in spans), default=start), max((b for _, b in spans), default=start)
        if last - first > MAX_QUOTE_CHARS:  # far apart: around the second of two
            first = max(a for a, _ in spans)
        start, end = _clip(reading.text, start, end, first, last)
    return balanced(fold(reading.text[start:end]))


def balanced(text: str) -> str:
    """The longest stretch without control characters, which a context would show as spaces, and without
    a quotation mark or parenthesis that opens or closes nothing, which would be taken for one of ours,
    or of a record, when it is read back."""
    if not text.isprintable():
        text = max(_CONTROL.split(text), key=len).strip()
    before = None
    while text != before:  # a cut at one kind of mark may leave half a pair of the other
        before = text
        for pair in _PAIRS:
            text = _balanced(text, pair)
    return text


def _balanced(text: str, pair: re.Pattern[str]) -> str:
    opened: list[int] = []
    cuts = [-1]
    for mark in pair.finditer(text):
        if mark.lastgroup == "opening":
            opened.append(mark.start())
        elif opened:
            opened.pop()
        else:
            cuts.append(mark.start())
    cuts = sorted([*cuts, *opened, len(text)])
    if len(cuts) == 2:
        return text
    start, end = max(pairwise(cuts), key=lambda c: c[1] - c[0])
    return text[start + 1 : end].strip()


def _is_label(reading: Reading, place: tuple[int, int, int]) -> bool:
    return place[1] < reading.script.sentences[place[0]].start


def _own_words(reading: Reading, said: list[int]) -> str:
    """For a speaker whom nobody names: the sentence of theirs that says most, without the label."""

    def worth(index: int) -> float:
        sentence = reading.sentence(index)
        size = sentence.end - sentence.start
        filler = _FILLER.match(reading.text[sentence.start : sentence.start + 12]) is not None
        question = reading.text[sentence.end - 1] == "?"
        return (
            (size if size <= 300 else 300 - size) - 60 * filler - 100 * question - 200 * (not sentence.whole)
        )

    return quote(reading, max(said, key=lambda i: (worth(i), -i)), [])


def _worth(reading: Reading, place: tuple[int, int, int]) -> float:
    """How much a sentence says about what it mentions at a place."""
    index, start, end = place
    sentence = reading.sentence(index)
    text = reading.text
    size = sentence.end - sentence.start
    after = text[end : min(sentence.end, end + 40)]
    worth = min(2.0, size / 100) - max(0.0, (size - 300) / 200)
    if _COPULA.match(after):
        worth += 3.0
    elif _APPOSITION.match(after):
        worth += 2.5
    elif _ROLE.match(after):
        worth += 2.0
    if _INTRODUCTION.search(text[max(sentence.start, start - 40) : start]):
        worth += 1.5
    worth += min(3, len(reading.in_sentence.get(index, ()))) * 0.3
    worth += 0.6 * (start - sentence.start < 0.3 * size)
    worth -= 4.0 * has_cells(text[sentence.start : sentence.end])  # less than any sentence is worth
    worth -= 2.0 * (not sentence.whole) + 0.7 * (text[sentence.end - 1] == "?")
    worth -= 0.5 * (_FILLER.match(text[sentence.start : sentence.start + 12]) is not None)
    return worth


def _clip(text: str, start: int, end: int, first: int, last: int) -> tuple[int, int]:
    """The largest stretch of at most MAX_QUOTE_CHARS around first…last that begins and ends at a clause,
    or at a word."""
    room = max(0, MAX_QUOTE_CHARS - (last - first))
    low, high = max(start, first - room // 2), min(end, last + room // 2)
    if low > start:
        cuts = [m.end() for m in _CLAUSE.finditer(text, low, first)]
        low = cuts[0] if cuts else text.find(" ", low, first) + 1 or first
    if high < end:
        cuts = [m.start() for m in _CLAUSE.finditer(text, last, high)]
        high = cuts[-1] if cuts else max(text.rfind(" ", last, high), last)
    return low, high
