"""Choose the search method by simple rules (`route`).

The rules consider the wording of the question and the entities that it mentions, without calling a model. The
answer contains the name of the chosen method, and a note says which rule applied.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from graphrag_ray.base.schema import search_index_table
from graphrag_ray.base.wording import plural
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Method, Question, Rows, SearchEnv
from graphrag_ray.query.methods.methods import METHODS, MethodKind
from graphrag_ray.query.methods.question_names import find_entities, rarest_first

NAME = "auto"
FEW_CHUNKS = 10
"""About the number of chunks that fit into one context."""
RARE_SHARE = 0.05
"""A name in a larger share of the chunks is a theme of the corpus rather than a particular thing."""
MIN_QUOTED_WORDS = 4
"""Minimum number of words of a quotation. Shorter ones may be titles or scare quotes."""

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
"""A month or quarter, which distinguishes documents, but not reports (written from all documents)."""


def search(question: Question, env: SearchEnv) -> Method:
    """Answer with the method that the rules choose."""
    mentioned = yield from find_entities(question.text)
    columns = ["id", "title", "text_unit_ids"]
    rows = {r["id"]: r for r in (yield Rows("entities", columns, list(mentioned.spans))).to_pylist()}
    order = rarest_first(mentioned, {id_: len(row["text_unit_ids"]) for id_, row in rows.items()})
    sure = set(mentioned.as_names(rows))
    named = [(rows[id_]["title"], len(rows[id_]["text_unit_ids"])) for id_ in order if id_ in sure]
    n_rows = env.n_rows
    method, reason = route(
        question.text,
        named,
        n_rows.get("text_units", 0),
        restricted=bool(question.where),
        local=bool(n_rows.get("embeddings_entity")),
        hybrid=search_index_table("text_unit", "keyword") in n_rows
        and n_rows.get("embeddings_text_unit", 0) > 0,
        reports=bool(env.settings.hierarchies),
    )
    answer: Answer = yield from METHODS[method].search(question, env)
    return replace(answer, notes=(f"Answered by {method} search: {reason}.", *answer.notes))


METHOD = MethodKind(
    search,
    stages=("embed", "rerank", "answer", "map", "reduce"),
    description="one of the other methods, chosen by simple rules",
    dynamic=True,
    reply_dependent=True,
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
    """Choose the method for a question by the first rule that applies.

    1. It mentions a rare entity, in at most FEW_CHUNKS chunks or RARE_SHARE of all chunks: local.
    2. It asks for a passage, a number or a date, or mentions a month or quarter: hybrid. This is recognised
       by English words, a quotation of MIN_QUOTED_WORDS words, or a code of letters and digits.
    3. It is restricted to some documents, which reports do not support: hybrid.
    4. Otherwise: global.

    Args:
        named: Titles and numbers of chunks of certain mentions (`Mentions.as_names`), rarest first.
        restricted: Whether the question has conditions on documents.
        local, hybrid: Whether the index supports this method.
        reports: Whether the index has reports. Without them, ppr replaces local and global.

    Returns:
        The method, and the reason as a clause.
    """
    rare = next(((t, n) for t, n in named if n <= max(FEW_CHUNKS, RARE_SHARE * n_chunks)), None)
    if rare and (local or not reports):
        method, title, n = "local" if reports else "ppr", *rare
        return method, f"the question mentions {title}, which occurs in {plural(n, 'chunk')} of {n_chunks:,}"
    if hybrid and asks_for_passage(text):
        return "hybrid", "the question asks for a passage, a number or a date, or mentions a month"
    if restricted:
        return "hybrid", "the question is restricted to some documents, which reports do not support"
    if not reports:
        return "ppr", "the index was made with --build names and has no reports"
    return "global", "the question mentions nothing rare and asks for no passage, number or date"


def asks_for_passage(text: str) -> bool:
    """Whether the wording suggests that one passage contains the answer."""
    quotes = [group for match in _QUOTED.finditer(text) for group in match.groups() if group]
    has_quotation = any(len(q.split()) >= MIN_QUOTED_WORDS for q in quotes)
    return has_quotation or any(pattern.search(text) for pattern in (_EXACT, _CODE, _PERIOD))
