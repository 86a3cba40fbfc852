"""Names that stand in a question literally, found without looking through all names: an entity's id is a
hash of its name, so every stretch of the question that could be a name is looked up by its id."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from graphrag_ray.base.ids import QUOTES, WORD, entity_id, entity_key

MAXWORDS = 500
"""Of a question; names are looked for in these."""
MAX_NAMEWORDS = 10
"""Of a name; characters, in scripts without spaces."""
MIN_PLAIN = 4
"""Letters of a name of one word that the question does not write as a name: with fewer, most are words
such as who, may, will not meaning the WHO, May or Will."""

_MARKS = re.compile(r"[^\w\s]*")


@dataclass(frozen=True)
class Mentions:
    """What could be a name in a question: id of the name -> the stretches that would be it."""

    question: str
    spans: Mapping[str, list[tuple[int, int]]] = field(repr=False)

    def named(self, known: Collection[str]) -> list[str]:
        """Which of the known names, by id, stand in the question, in its order.

        A name inside a longer one that is known too is not meant, nor is a short word in small letters.
        """
        found = sorted((s, id_) for id_ in set(known) & self.spans.keys() for s in self.spans[id_])
        outer, end = set(), -1
        for span in sorted({span for span, _ in found}, key=lambda s: (s[0], -s[1])):
            if span[1] > end:
                outer.add(span)
                end = span[1]
        own = [(s, id_) for s, id_ in found if s in outer]
        return list(dict.fromkeys(id_ for s, id_ in own if self._is_written(*s) or s[1] - s[0] >= MIN_PLAIN))

    def as_names(self, known: Collection[str]) -> list[str]:
        """Those of `named` that cannot be words that only happen to be a name as well (data, church): names
        of several words, with a digit, with a capital that does not begin the question, or in a script
        without capitals."""
        return [
            id_
            for id_ in self.named(known)
            if any(len(WORD.findall(self._text(s))) > 1 or self._is_written(*s) for s in self.spans[id_])
        ]

    def text(self, id_: str) -> str:
        """The first stretch that would be this name."""
        return self._text(self.spans[id_][0])

    def _text(self, span: tuple[int, int]) -> str:
        return self.question[slice(*span)]

    def _is_written(self, start: int, end: int) -> bool:
        """Whether a stretch is written as names are, where the script allows to tell."""
        text = self.question[start:end]
        capital = any(c.isdigit() or c != c.lower() for c in text) and self.question[:start].strip()
        return bool(capital) or text.lower() == text.upper()


def rarest_first(could_be: Mentions, frequency: Mapping[str, int]) -> list[str]:
    """Ids of the entities that a question names: those that are surely names (`as_names`), then the others;
    in both, those that stand in the fewest chunks first, then as the question has them.

    frequency: chunks of each entity that is known
    """
    sure = could_be.as_names(frequency)
    rest = [id_ for id_ in could_be.named(frequency) if id_ not in sure]
    return [*sorted(sure, key=frequency.__getitem__), *sorted(rest, key=frequency.__getitem__)]


def _id_of_entity(name: str) -> str:
    key = entity_key(name)
    return entity_id(key) if key else ""


def mentions(question: str, id_of: Callable[[str], str] = _id_of_entity) -> Mentions:
    """Stretches of up to MAX_NAMEWORDS words, each also with the marks around it (C++, .NET). id_of: of what
    stands there; "": it can be no name"""
    words = [m.span() for m in WORD.finditer(question)][:MAXWORDS]
    spans: dict[str, list[tuple[int, int]]] = {}
    for first, (start, _) in enumerate(words):
        before = _marks(question[max(0, start - 8) : start][::-1]).rstrip(QUOTES)
        for _, end in words[first : first + MAX_NAMEWORDS]:
            behind = len(_marks(question[end : end + 8]))
            for span in {(start - len(before), end), *((start, end + n) for n in range(behind + 1))}:
                if id_ := id_of(question[slice(*span)]):
                    spans.setdefault(id_, []).append(span)
    return Mentions(question, spans)


def _marks(text: str) -> str:
    found = _MARKS.match(text)
    return found.group() if found else ""
