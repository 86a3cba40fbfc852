"""An answer while it is written: what of it may be shown already.

People see short ids in references, and only those that hold; so `[Data: Reports (3, …` is held back until it
is closed. So is what may become a score, which is none of the answer, and white space, which the end of the
text, or a reference that is taken out, would take with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphrag_ray.base.records import Reference, may_become_reference, resolve_references
from graphrag_ray.query.methods.cited_numbers import shown_to_people

_SCORE = re.compile(r"<\s{0,8}/?\s{0,8}ANSWER[\s_]{0,8}HELPFULNESS", re.IGNORECASE)
_SCORE_LETTERS = "answerhelpfulness"
_LONGEST_SCORE = 48
_EMPHASIS = "*`"
"""May stand around a score."""
_LONGEST_REFERENCE = 1_000
"""A bracket that is open for longer is taken for text. Should it be a reference, the end corrects it."""
_UNDECIDED = re.compile(rf"[\s{_EMPHASIS}]*")


class Written:
    """Takes the pieces of a reply, gives what may be shown: the beginning of the text that the whole reply
    comes to, as far as it is certain. Its end, and what a score stands before, are held back for good.

    numbering   (section, local number) -> id of the records that the reply may cite
    number      their short ids
    """

    def __init__(self, numbering: Mapping[tuple[str, int], str], number: Mapping[Reference, int]) -> None:
        self._numbering, self._number = numbering, number
        self._raw = ""
        self._pending: list[str] = []
        self._space = ""
        self._begun = False
        self._over = False

    def add(self, piece: str) -> str:
        """What can be shown now."""
        if self._over:
            return ""
        self._pending.append(piece)
        if _UNDECIDED.fullmatch(piece):  # however much of it comes, it is looked at once
            return ""
        self._raw, self._pending = "".join([self._raw, *self._pending]), []
        self._over = _SCORE.search(self._raw) is not None
        decided = _decided(self._raw)
        resolved, _, _ = resolve_references(self._raw[:decided], self._numbering)
        self._raw = self._raw[decided:]
        text = self._space + shown_to_people(resolved, self._number)
        if not self._begun:
            text = text.lstrip()
        shown = text.rstrip()
        self._space = text[len(shown) :]
        self._begun = self._begun or bool(shown)
        return shown


def _decided(text: str) -> int:
    """How many characters of a text mean the same whatever follows."""
    if score := _score_from(text):
        text = text[: score - 1].rstrip(_EMPHASIS)
    tail = max(0, len(text) - _LONGEST_REFERENCE)
    if (opened := may_become_reference(text[tail:])) is not None:
        text = text[: tail + opened]
    # A reference takes the blanks before it with it, a score the marks.
    return min(len(text.rstrip(" \t")), len(text.rstrip(_EMPHASIS)))


def _score_from(text: str) -> int:
    """Where the bracket of what is a score, or may become one, ends; 0 where there is none."""
    if found := _SCORE.search(text):
        return found.start() + 1
    last = text.rfind("<")
    letters = re.sub(r"[\s_/]", "", text[last + 1 :][:_LONGEST_SCORE]).lower()
    may_be = last >= 0 and len(text) - last <= _LONGEST_SCORE and _SCORE_LETTERS.startswith(letters)
    return last + 1 if may_be else 0
