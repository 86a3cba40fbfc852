"""What a question asks for: its content terms, and whether it is about the whole corpus.

A question about the whole (themes, trends, what guests talk about) speaks of the corpus itself; its words
for that carry no content. What remains are terms that an answer has to share with the question.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from graphrag_ray.offline.lexicon import lexicon
from graphrag_ray.offline.summarise import content_stems

RARE = 2.0
"""Weight of a term that is a name, a number or not an ordinary word; ordinary ones weigh 1."""

MIN_COVERAGE = 0.5
"""Share of a question's terms, by weight, that one report must have; of a long question's, less."""
MIN_COVERAGE_LONG = 0.4
LONG = 4

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass(frozen=True)
class Question:
    """What is asked.

    terms  stem -> weight, of what has to be matched
    words  the same terms as the question writes them
    names  stems of those terms that are written as names
    stems  every content stem of the question, for ranking
    whole  about the corpus as a whole
    """

    terms: dict[str, float]
    words: tuple[str, ...]
    names: frozenset[str]
    stems: tuple[str, ...]
    whole: bool

    def coverage(self, stems: Collection[str]) -> float:
        """The weighted share of the terms that a text has, 0–1; 0 for a question without terms."""
        total = sum(self.terms.values())
        return sum(w for t, w in self.terms.items() if t in stems) / total if total else 0.0

    def concerns(self, reports: list[Collection[str]], sentences: list[Collection[str]]) -> bool:
        """Whether texts, given as stems, say something to the question.

        One common word in common is chance: a report has to have half of the terms, and either a rare one
        or two in one sentence. For a question about the whole one term is enough, of its names if it has any,
        and without terms everything is.
        """
        if self.whole:
            wanted = self.names or self.terms.keys()
            return not wanted or any(not wanted.isdisjoint(s) for s in sentences)
        rare = {t for t, w in self.terms.items() if w >= RARE}
        has_rare = any(not rare.isdisjoint(s) for s in sentences)
        needed = MIN_COVERAGE_LONG if len(self.terms) >= LONG else MIN_COVERAGE
        if not any(self.coverage(r) >= needed for r in reports):
            return False
        together = max((len(self.terms.keys() & set(s)) for s in sentences), default=0)
        return has_rare or together >= 2 or (len(self.terms) == 1 and together == 1)


@lru_cache(maxsize=256)
def read_question(question: str) -> Question:
    """Divide a question's words into terms and signs that it is about the whole."""
    words = lexicon()
    terms: dict[str, float] = {}
    written: dict[str, str] = {}
    names: set[str] = set()
    whole = False
    for number, match in enumerate(_WORD.finditer(question)):
        word = match.group()
        lower = word.lower().removesuffix("'s").removesuffix("’s")
        if lower in words.cues["whole"]:
            whole = True
            continue
        stems = content_stems(word)
        if not stems or lower in words.cues["generic"]:
            continue
        is_name = number > 0 and word[0].isupper()
        rare = is_name or any(c.isdigit() for c in word) or not words.is_ordinary(lower)
        if is_name:
            names.add(stems[0])
        terms[stems[0]] = max(terms.get(stems[0], 0.0), RARE if rare else 1.0)
        written.setdefault(stems[0], word)
    stems_of_all = tuple(dict.fromkeys(content_stems(question)))
    return Question(terms, tuple(written.values()), frozenset(names), stems_of_all, whole)
