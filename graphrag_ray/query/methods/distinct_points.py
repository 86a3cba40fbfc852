"""Remove points that several partial answers repeat, and merge their references.

A point is a cited sentence, or a whole answer. Two points are equal if their words are, without references,
case and Markdown. A point is contained in a longer one that begins with it. Only beginnings count: in
"it is untrue that …", the end of a sentence says the opposite of the sentence. For the same reason a sentence
stays if others of its line follow, because these may refer to it ("He sold it").

The rule sorts points once, so it takes linear time apart from sorting, and it knows no language.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from graphrag_ray.base.context_records import (
    Reference,
    find_references,
    parse_references,
    strip_references,
    write_reference,
)
from graphrag_ray.query.methods.map_reduce import MapAnswer

MIN_WORDS = 4
"""Minimum number of words of a point that can be contained in another one."""

_HEADING = re.compile(r"\*\*[^*\n]{1,500}\*\* ")
_SENTENCE_ENDS = ".!?…。！？।؟"
_END = re.compile(rf"[{_SENTENCE_ENDS}]?[\"'”’»)」』]{{0,3}}(?:\s+|$)")
_MARKDOWN = str.maketrans(dict.fromkeys('*_`#>"“”', " "))
_BULLET = re.compile(r"\A\s*+(?:[-+•]\s|\d{1,3}[.)]\s)")
_PUNCTUATION = f" ,;:،；：-–—{_SENTENCE_ENDS}"
_GOES_ON = (" ", ", ", "; ", ": ")
_GOES_ON_AFTER_NUMBER = _GOES_ON[1:]


@dataclass(slots=True)
class _Point:
    """A point of an answer. `added` are the references of its removed repetitions."""

    text: str
    key: str
    source: MapAnswer
    removable: bool
    score: float
    added: dict[Reference, None] = field(default_factory=dict)
    removed: bool = False


def distinct_points(answers: Iterable[MapAnswer]) -> list[MapAnswer]:
    """Keep each point where the score is highest, with the references of its repetitions.

    Returns:
        The answers that still have text, by descending score.
    """
    helpful = [a for a in answers if a.score > 0 and a.text]
    order = sorted(helpful, key=lambda a: (-a.score, a.position, a.text))
    headings = [match.group() if (match := _HEADING.match(a.text)) else "" for a in order]
    lines_of = [_points(a, len(heading)) for a, heading in zip(order, headings, strict=True)]
    _merge(lines_of)
    result = []
    for answer, heading, lines in zip(order, headings, lines_of, strict=True):
        kept = [[point for point in line if not point.removed] for line in lines]
        points = [point for line in kept for point in line]
        score = max((point.score for point in points), default=0.0)
        added = tuple(reference for point in points for reference in point.added)
        if kept != lines or added or score > answer.score:
            written = (
                "".join(map(_with_references, new))
                for new, old in zip(kept, lines, strict=True)
                if new or not old
            )
            text = "\n".join(line.rstrip() for line in written).strip()
            references = tuple(dict.fromkeys([*answer.references, *added]))
            if text:
                result.append(replace(answer, text=heading + text, references=references, score=score))
        else:
            result.append(answer)
    return sorted(result, key=lambda a: -a.score)


def _points(answer: MapAnswer, start: int) -> list[list[_Point]]:
    """Split an answer into lines, and each line after sentences that end with a reference."""
    lines = []
    for line in answer.text[start:].split("\n"):
        ends = []
        for _, match in find_references(line):
            before = line[: match.start()].rstrip()[-1:]
            end = _END.match(line, match.end())
            if end and (end.group().strip() or before in _SENTENCE_ENDS or end.end() == len(line)):
                ends.append(end.end())
        if not ends or ends[-1] < len(line):
            ends.append(len(line))
        texts = [line[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        cited = [(text, bool(next(find_references(text), None))) for text in texts if text]
        lines.append([_Point(text, _key(text), answer, is_cited, answer.score) for text, is_cited in cited])
    filled = [line for line in lines if line]
    if len(filled) == 1 and len(filled[0]) == 1:
        filled[0][0].removable = True  # a whole answer
    return lines


def _key(text: str) -> str:
    """Fold a point: only words and the punctuation between them remain."""
    plain = unicodedata.normalize("NFKC", _BULLET.sub("", strip_references(text), count=1))
    return " ".join(plain.casefold().translate(_MARKDOWN).split()).strip(_PUNCTUATION)


def _merge(lines_of: Sequence[Sequence[Sequence[_Point]]]) -> None:
    """Remove points that others repeat or contain, from the end of each line."""
    lines = [line for of_answer in lines_of for line in of_answer]
    first: dict[str, _Point] = {}
    for line in lines:
        for point in line:
            first.setdefault(point.key, point)
    longer: dict[str, str] = {}
    for after, short in pairwise(sorted(first, reverse=True)):
        if _contains(after, short):
            longer[short] = longer.get(after, after)
    for line in lines:
        for point in reversed(line):
            kept = first[longer.get(point.key, point.key)]
            if kept is point or not point.key or not point.removable:
                break
            point.removed = True
            kept.score = max(kept.score, point.score)
            # A text may look like a reference to a record that the answer did not cite.
            known = set(point.source.references)
            kept.added |= {r: None for r in parse_references(point.text) if r in known}


def _contains(longer: str, short: str) -> bool:
    if not longer.startswith(short) or short.count(" ") < MIN_WORDS - 1:
        return False
    after = _GOES_ON_AFTER_NUMBER if short[-1].isdigit() else _GOES_ON
    return longer.startswith(after, len(short))


def _with_references(point: _Point) -> str:
    """Write a point with the references of its repetitions in its last reference."""
    if point.added.keys() <= set(parse_references(point.text)):
        return point.text
    matches = [match for _, match in find_references(point.text)]
    if not matches:
        return f"{point.text.rstrip()} {_reference(point.added)}"
    last = matches[-1]
    merged = _reference([*parse_references(last.group()), *point.added])
    return point.text[: last.start()] + merged + point.text[last.end() :]


def _reference(references: Iterable[Reference]) -> str:
    sections: dict[str, dict[str, None]] = {}
    for reference in references:
        sections.setdefault(reference.section, {})[reference.id] = None
    return write_reference(sections)
