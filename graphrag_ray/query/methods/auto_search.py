"""The way of answering, chosen by rules that anybody can follow in their head (`route`).

It asks no model: the rules look at the question, and at the entities that it names. The answer is that of the
chosen method, under its name; a note says which rule held.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from graphrag_ray.base.schema import search_table
from graphrag_ray.base.wording import plural
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Given, Method, Question, Rows
from graphrag_ray.query.methods.methods import METHODS, MethodKind
from graphrag_ray.query.methods.question_names import mentions, rarest_first

NAME = "auto"
FEW_CHUNKS = 10
"""About as many as one context holds."""
RARE_SHARE = 0.05
"""Of all chunks: what stands in more of them is a theme of the corpus more than one of its things."""
QUOTED_WORDS = 4
"""Of a quotation; fewer are as often a title or a word that is meant ironically."""

_QUOTED = re.compile(r"“([^“”]++)”|„([^„“”]++)[“”]|«([^«»]++)»|\"([^\"]++)\"")
_CODE = re.compile(r"\b(?=[a-z]{1,30}[0-9])[a-z0-9]{4,32}\b", re.IGNORECASE | re.ASCII)
_EXACT = re.compile(
    r"^\W*when\b|\bhow (?:many|much|often|old|long|far)\b|\b(?:what|which) (?:year|month|day|date|number|"
    r"percentage|amount|price|address)\b|\bquot(?:e|es|ed|ation|ations)\b|\bverbatim\b|\bpassages?\b|"
    r"\bexact (?:words?|wording|text)\b|\bword for word\b",
    re.IGNORECASE,
)
_PERIOD = re.compile(
    r"\b(?:January|February|April|June|July|August|September|October|November|December|Q[1-4])\b"
    r"|(?<=[a-z,] )(?:March|May)\b"
)
"""A month or a quarter: documents differ by them, reports are written from all."""


def search(question: Question, given: Given) -> Method:
    """Answer by the method that the rules choose. Raises what that method raises."""
    could_be = mentions(question.text)
    columns = ["id", "title", "text_unit_ids"]
    rows = {row["id"]: row for row in (yield Rows("entities", columns, list(could_be.spans))).to_pylist()}
    order = rarest_first(could_be, {id_: len(row["text_unit_ids"]) for id_, row in rows.items()})
    sure = set(could_be.as_names(rows))
    named = [(rows[id_]["title"], len(rows[id_]["text_unit_ids"])) for id_ in order if id_ in sure]
    has = given.n_rows
    method, why = route(
        question.text,
        named,
        has.get("text_units", 0),
        restricted=bool(question.where),
        local=bool(has.get("embeddings_entity")),
        hybrid=bool(has.get("embeddings_text_unit")) and search_table("text_unit", "keyword") in has,
        reports=bool(given.settings.hierarchies),
    )
    answer: Answer = yield from METHODS[method].search(question, given)
    return replace(answer, notes=(f"Answered by {method} search: {why}.", *answer.notes))


METHOD = MethodKind(
    search,
    asks=("embed", "answer", "map", "reduce"),
    reads="what one of these reads",
    dynamic=True,
    by_replies=True,
)


def route(
    text: str,
    named: Sequence[tuple[str, int]],
    n_chunks: int,
    *,
    restricted: bool = False,
    local: bool = True,
    hybrid: bool = True,
    reports: bool = True,
) -> tuple[str, str]:
    """The method for a question, and why, as the end of a sentence, by the first rule that holds:

    1. it names an entity that is rare, in at most FEW_CHUNKS chunks or RARE_SHARE of all: local
    2. it asks for a passage, a number or a date, or names a month or a quarter (English words for it, a
       quotation of QUOTED_WORDS words, or a code of letters and digits): hybrid
    3. it is restricted to some documents, which reports are not: hybrid
    4. else: global

    named          entities that it names for sure (`Mentions.as_names`): titles, and how many chunks each
                   stands in, by rising number
    local, hybrid  whether the index has what these search
    reports        whether it has any: ppr stands for local and global where it has none
    """
    rare = next(((t, n) for t, n in named if n <= max(FEW_CHUNKS, RARE_SHARE * n_chunks)), None)
    if rare and (local or not reports):
        where = f"{plural(rare[1], 'chunk')} of {n_chunks:,}"
        return "local" if reports else "ppr", f"the question names {rare[0]}, which stands in {where}"
    if hybrid and asks_for_a_place(text):
        return "hybrid", "the question asks for a passage, a number or a date, or names a month"
    if restricted:
        return "hybrid", "conditions restrict it to some documents, which reports are not"
    if not reports:
        return "ppr", "the index was made with --build names and has no reports"
    return "global", "the question names nothing rare and asks for no passage, number or date"


def asks_for_a_place(text: str) -> bool:
    """Whether an answer stands in one passage, as far as the words tell."""
    quoted = [found for match in _QUOTED.finditer(text) for found in match.groups() if found]
    long_ = any(len(q.split()) >= QUOTED_WORDS for q in quoted)
    return long_ or any(marks.search(text) for marks in (_EXACT, _CODE, _PERIOD))
