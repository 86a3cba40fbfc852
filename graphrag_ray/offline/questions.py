"""What a question asks for: its content terms, and whether it is about the whole corpus.

A question about the whole (themes, trends, what guests often say) can be answered from the most
important reports; its words for discourse and frequency say so and carry no content themselves. What
remains are terms that an answer has to share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from graphrag_ray.offline.lexicon import lexicon
from graphrag_ray.offline.summarise import content_stems

RARE = 2.0
"""Weight of a term that is a name, a number or not an ordinary word; ordinary ones weigh 1."""

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass(frozen=True)
class Question:
    """terms: stem -> weight, of what has to be matched; all_stems: every content stem, for ranking;
    whole: about the corpus as a whole."""

    terms: dict[str, float]
    all_stems: tuple[str, ...]
    whole: bool


@lru_cache(maxsize=256)
def read_question(question: str) -> Question:
    """Divide a question's words into terms and signs that it is about the whole."""
    words = lexicon()
    whole_words, generic = words.cues["whole"], words.cues["generic"]
    whole = False
    terms: dict[str, float] = {}
    for number, match in enumerate(_WORD.finditer(question)):
        word = match.group()
        lower = word.lower().removesuffix("'s").removesuffix("’s")
        if lower in whole_words:
            whole = True
            continue
        stems = content_stems(word)
        if not stems or lower in generic:
            continue
        is_name = number > 0 and word[0].isupper()
        rare = is_name or any(c.isdigit() for c in word) or not words.is_ordinary(lower)
        terms[stems[0]] = max(terms.get(stems[0], 0.0), RARE if rare else 1.0)
    return Question(terms, tuple(dict.fromkeys(content_stems(question))), whole)


def coverage(question: Question, stems: set[str]) -> float:
    """The weighted share of a question's terms that a text has, 0–1; 0 for a question without terms."""
    total = sum(question.terms.values())
    return sum(w for t, w in question.terms.items() if t in stems) / total if total else 0.0
