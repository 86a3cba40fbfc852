"""Find the names that a question mentions literally.

An entity's id is a hash of its name. So we look up the id of every span of the question that could be a name,
and do not have to scan all names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from graphrag_ray.base.ids import QUOTES, WORD_PATTERN, entity_id, entity_key
from graphrag_ray.query.methods.method import Rows, Steps

MAX_WORDS = 500
"""Maximum number of words of a question that are searched for names."""
MAX_NAME_WORDS = 10
"""Maximum number of words of a name or, in scripts without spaces, of characters."""
MIN_LOWERCASE = 4
"""Minimum length of a lower-case word that may be a name. Shorter ones are mostly ordinary words, such as
who, may or will, that also spell WHO, May or Will."""

_MARKS = re.compile(r"[^\w\s]*")


@dataclass(frozen=True)
class Mentions:
    """Possible names in a question. `spans` maps the id of a name to the spans that spell it."""

    question: str
    spans: Mapping[str, list[tuple[int, int]]] = field(repr=False)

    def named(self, known: Collection[str]) -> list[str]:
        """List the ids of known names that the question mentions, in order of mention.

        A name within a longer known name is ignored, and so is a short word in lower case.
        """
        mentions = sorted((s, id_) for id_ in set(known) & self.spans.keys() for s in self.spans[id_])
        outer, end = set(), -1
        for span in sorted({span for span, _ in mentions}, key=lambda s: (s[0], -s[1])):
            if span[1] > end:
                outer.add(span)
                end = span[1]
        named = [(s, id_) for s, id_ in mentions if s in outer]
        return list(
            dict.fromkeys(id_ for s, id_ in named if self._is_cased(*s) or s[1] - s[0] >= MIN_LOWERCASE)
        )

    def as_names(self, known: Collection[str]) -> list[str]:
        """Like `named`, but only list names that are unlikely to be ordinary words (data, church).

        A name must have several words, a digit, a capital letter that does not begin the question, or a
        script without capital letters.
        """
        return [
            id_
            for id_ in self.named(known)
            if any(
                len(WORD_PATTERN.findall(self.question[slice(*s)])) > 1 or self._is_cased(*s)
                for s in self.spans[id_]
            )
        ]

    def text(self, id_: str) -> str:
        """Return the text of the first span that spells this name."""
        return self.question[slice(*self.spans[id_][0])]

    def _is_cased(self, start: int, end: int) -> bool:
        """Whether a span has a digit or capital letter, or is in a script without capital letters."""
        text = self.question[start:end]
        capital = any(c.isdigit() or c != c.lower() for c in text) and self.question[:start].strip()
        return bool(capital) or text.lower() == text.upper()


def find_entities(question: str) -> Steps[Mentions]:
    """Find possible names of entities in a question, including names that entity resolution replaced."""
    mentions = find_mentions(question)
    rows = yield Rows("resolutions", ["id", "entity_id"], list(mentions.spans))
    spans = {id_: list(found) for id_, found in mentions.spans.items()}
    for row in rows.to_pylist():
        spans.setdefault(row["entity_id"], []).extend(mentions.spans[row["id"]])
    return Mentions(question, spans)


def rarest_first(mentioned: Mentions, frequency: Mapping[str, int]) -> list[str]:
    """Order mentioned entities by number of chunks (`frequency`), certain names (`as_names`) first."""
    sure = mentioned.as_names(frequency)
    unsure = [id_ for id_ in mentioned.named(frequency) if id_ not in sure]
    return [*sorted(sure, key=frequency.__getitem__), *sorted(unsure, key=frequency.__getitem__)]


def _entity_id_of(name: str) -> str:
    key = entity_key(name)
    return entity_id(key) if key else ""


def find_mentions(question: str, id_of: Callable[[str], str] = _entity_id_of) -> Mentions:
    """Find spans of up to MAX_NAME_WORDS words that have an id, also with punctuation (C++, .NET)."""
    words = [m.span() for m in WORD_PATTERN.finditer(question)][:MAX_WORDS]
    spans: dict[str, list[tuple[int, int]]] = {}
    for first, (start, _) in enumerate(words):
        before = _marks(question[max(0, start - 8) : start][::-1]).rstrip(QUOTES)
        for _, end in words[first : first + MAX_NAME_WORDS]:
            n_after = len(_marks(question[end : end + 8]))
            for span in {(start - len(before), end), *((start, end + n) for n in range(n_after + 1))}:
                if id_ := id_of(question[slice(*span)]):
                    spans.setdefault(id_, []).append(span)
    return Mentions(question, spans)


def _marks(text: str) -> str:
    match = _MARKS.match(text)
    return match.group() if match else ""
