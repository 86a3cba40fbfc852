"""LightRAG (Guo et al. 2024, "LightRAG: Simple and Fast Retrieval-Augmented Generation") as a baseline, with
the modes, numbers and budgets of its version 1.5: keywords of two levels, and what is near them in the graph.

    local    entities near the low-level keywords, with their relationships
    global   relationships near the high-level keywords, with their ends
    hybrid   both by turns
    mix      the same, and the chunks nearest to the question

Each comes with the chunks that state what is shown. Entities, relationships, and all together have a budget
of tokens. One call lists the keywords, one writes the answer.

Departures: contexts and references are written as in all our ways of answering. No list of chunks is read of
what is everywhere. Chunks come by how many of the records they state, then by nearness to the question; in
LightRAG by nearness alone, and a reranking model may sort them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, read_reply, schema_of
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.schema import ENDS
from graphrag_ray.graph.report_context import Context, Record, clean
from graphrag_ray.query.methods.asked_hierarchy import check_embedded, check_graph
from graphrag_ray.query.methods.budget import asking, check_room, refuse_beyond
from graphrag_ray.query.methods.filling import Share, fill, first_fitting
from graphrag_ray.query.methods.local_search import EDGES, MOST_CHUNKS, by_turns, worth
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    answer_spec,
    read_or_none,
    spec_of,
)
from graphrag_ray.query.methods.method import Dialogues, Given, Hit, Kind, Method, Question, Rows, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.one_context import ADVICE, PHASE, answer_from
from graphrag_ray.query.methods.record_rows import fitting, loaded
from graphrag_ray.query.methods.where import among, within

NAME = "lightrag"
TOKENS = "lightrag_tokens"
"""The setting of `query` that bounds the context."""
TOP_K = 40
"""Entities by the low-level keywords, and relationships by the high-level ones."""
MIN_ELEMENT_TOKENS = 12
"""No more entities or relationships are looked up than fill their budget if none is shorter."""
MOST_NEAR = 1_000
"""Chunks whose nearness to the question counts."""
WITHOUT_KEYWORDS = "No keywords could be listed for this question{}: it was looked up as it stands."

_KINDS: tuple[Kind, ...] = ("entity", "relationship", "text_unit")


def search(question: Question, given: Given) -> Method:
    """Answer from what is near the keywords of the question. Raises UsageError for an index without a graph
    or embeddings, for a question that leaves no room for data, and conditions that cannot be met;
    BudgetSpent."""
    check_graph(given)
    text, query = question.text, given.settings.query
    mode = query.lightrag_mode
    unsearched = {"local": "relationship", "global": "entity"}.get(mode)
    check_embedded(given, NAME, [kind for kind in _KINDS if kind != unsearched])
    first, last = keywords_spec(given.settings, given.prompts), answer_spec(given.settings, given.prompts)
    check_room(text, given, [last], setting=TOKENS)
    most = asking(text, given, STAGE, first, 1, 0)
    most += asking(text, given, PHASE, last, 1, query.lightrag_tokens)
    refuse_beyond(most, query, ADVICE.format(TOKENS))
    chunks = yield from within(question.where)
    # The keywords that the mode searches by; without any, the question itself.
    (ran,) = yield Dialogues(STAGE, [partial(list_keywords, text, first)])
    found: DualKeywords = ran.result or DualKeywords((text,), (text,))
    # The one list that a mode searches by may be empty: then the other one says more than nothing.
    high = () if mode == "local" else found.high or (found.low if mode == "global" else ())
    low = () if mode == "global" else found.low or (found.high if mode == "local" else ())
    told = (("Entities", low), ("Relationships", high))
    notes = [f"{what} were looked up by: {', '.join(words)}." for what, words in told if words]
    if ran.result is None:
        notes = [WITHOUT_KEYWORDS.format(f" ({ran.error})" if ran.error else "")]
    context = yield from _context(text, ", ".join(low), ", ".join(high), given, chunks)
    return (yield from answer_from(text, given, NAME, context, notes, TOKENS))


METHOD = MethodKind(
    search,
    asks=("embed", "keywords", "answer"),
    reads="what its keywords are near to in the graph",
    graph=True,
    others=("hybrid", "global"),
    option=("mode", "lightrag_mode"),
    by_replies=True,
)


def _context(
    text: str, low: str, high: str, given: Given, chunks: Collection[str] | None
) -> Generator[Any, Any, Context]:
    """chunks: ids of the only ones that count (see where.py): nothing that others say is shown then."""
    query, count = given.settings.query, given.count
    texts = {"entity": low, "relationship": high, "text_unit": text if query.lightrag_mode == "mix" else ""}
    possible: dict[Kind, list[str] | None] = {}
    for kind in _KINDS:
        possible[kind] = yield from among(kind, chunks)
    searches = [
        Search(kind, "vector", texts[kind], k, possible[kind])
        for kind, k in zip(_KINDS, (TOP_K, TOP_K, query.lightrag_chunks), strict=True)
        if texts[kind]
    ]
    lists: list[list[Hit]] = yield tuple(searches)
    hits = {one.kind: [hit.id for hit in own] for one, own in zip(searches, lists, strict=True)}
    near, related, beside = (hits.get(kind, []) for kind in _KINDS)
    tokens = (query.lightrag_entity_tokens, query.lightrag_relationship_tokens)
    budgets = [min(n, query.lightrag_tokens) for n in tokens]
    # No more are looked up than may fit. The first of all are among the first of each entity, unless
    # conditions leave some of these out.
    first_of_each = 1 + tokens[1] // MIN_ELEMENT_TOKENS if chunks is None else None
    tables: list[pa.Table] = yield (
        Rows("relationships", EDGES, near, by=ENDS, most=first_of_each),
        Rows("relationships", EDGES, related),
    )
    of_near, of_related = (table.to_pylist() for table in tables)
    if chunks is not None:
        allowed = set(possible["relationship"] or ())
        of_near = [row for row in of_near if row["id"] in allowed]
    ends = {row["id"]: (row["source_id"], row["target_id"]) for row in (*of_near, *of_related)}
    ends_of_related = dict.fromkeys(end for id_ in related if id_ in ends for end in ends[id_])
    in_order = (
        by_turns([near, list(ends_of_related)]),
        by_turns([[row["id"] for row in sorted(of_near, key=worth)], related]),
    )
    shown: list[list[Record]] = []
    left_out = cut = 0
    ids = [
        (kind, id_)
        for kind, own, budget in zip(_KINDS, in_order, budgets, strict=False)
        for id_ in islice(own, 1 + budget // MIN_ELEMENT_TOKENS)
    ]
    records = yield from loaded(ids, given, chunks)
    for section, budget in zip(("Entities", "Relationships"), budgets, strict=True):
        there = [record for record in records if record.section == section]
        first, n_cut = first_fitting(there, budget, count)
        shown.append(first)
        left_out += len(there) - len(first)
        cut += n_cut
    stating, n_stating = yield from _stating(text, shown[0], shown[1], ends, given, chunks)
    order = list(by_turns([beside, stating]))[: query.lightrag_chunks]
    chosen, _ = yield from fitting(order, given, context_tokens=query.lightrag_tokens)
    sources = yield from loaded((("text_unit", id_) for id_ in chosen), given)
    left_out += max(n_stating, len(order)) - len(sources)
    context = fill([Share(own) for own in (*shown, sources)], query.lightrag_tokens, count, left_out)
    return replace(context, cut=context.cut + cut)


def _stating(
    text: str,
    entities: Sequence[Record],
    relationships: Sequence[Record],
    ends_of: Mapping[str, tuple[str, str]],
    given: Given,
    chunks: Collection[str] | None,
) -> Generator[Any, Any, tuple[list[str], int]]:
    """The first query.lightrag_chunks chunks that state what is shown, and how many do: first those that
    state most of it, then those nearest to the question, then by what they state.

    Of what is in more than MOST_CHUNKS chunks, those near the question alone are looked at.
    """
    near, related = [r.id for r in entities], [r.id for r in relationships]
    ends = {id_: ends_of[id_] for id_ in related}
    looked_at = list(dict.fromkeys([*near, *(end for pair in ends.values() for end in pair)]))
    rows = (yield Rows("entities", ["id", "frequency"], looked_at)).to_pylist()
    often = {row["id"] for row in rows if (row["frequency"] or 0) > MOST_CHUNKS}
    # A relationship is stated in no more chunks than either of its ends is in.
    everywhere = often.intersection(near) | {id_ for id_, pair in ends.items() if often.issuperset(pair)}
    tables: list[pa.Table] = yield tuple(
        Rows(table, ["id", "text_unit_ids"], [id_ for id_ in own if id_ not in everywhere])
        for table, own in (("entities", near), ("relationships", related))
    )
    lists = {row["id"]: row["text_unit_ids"] or () for table in tables for row in table.to_pylist()}
    held = Counter(
        chunk
        for id_ in (*near, *related)
        for chunk in dict.fromkeys(lists.get(id_, ()))
        if chunks is None or chunk in chunks
    )
    if not held and not everywhere:
        return [], 0
    possible = sorted(held) if not everywhere else None if chunks is None else sorted(chunks)
    hits: list[Hit] = yield Search("text_unit", "vector", text, MOST_NEAR, possible)
    if everywhere:
        columns = ["id", "entity_ids", "relationship_ids"]
        for row in (yield Rows("text_units", columns, [hit.id for hit in hits])).to_pylist():
            if stated := everywhere.intersection(
                [*(row["entity_ids"] or ()), *(row["relationship_ids"] or ())]
            ):
                held[row["id"]] += len(stated)
    place = {hit.id: n for n, hit in enumerate(hits)}
    most = given.settings.query.lightrag_chunks
    return nsmallest(most, held, key=lambda c: (-held[c], place.get(c, len(place)))), len(held)


STAGE = "keywords"
MAX_OUTPUT_TOKENS = 500
MOST_KEYWORDS, MOST_CHARACTERS = 20, 200
"""Of one list, and of one keyword: what is more would blur what is searched for."""


class KeywordsReply(JsonReply):
    high_level: list[str] = Field(default=[])
    low_level: list[str] = Field(default=[])

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "high_level": ("highlevelkeywords",),
        "low_level": ("lowlevelkeywords",),
    }


KEYWORDS_SCHEMA: Mapping[str, Any] = schema_of(KeywordsReply)
NO_LISTS = "it holds no JSON object with the lists `high_level` and `low_level`, of which one has a keyword"

_SEPARATORS = re.compile(r"[,;\n]")


@dataclass(frozen=True, slots=True)
class DualKeywords:
    """high: subjects and kinds of connection; low: names and particular things."""

    high: tuple[str, ...] = ()
    low: tuple[str, ...] = ()


def keywords_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return spec_of(STAGE, settings, prompts, MAX_OUTPUT_TOKENS)


def list_keywords(question: str, spec: AnswerSpec) -> Dialogue[DualKeywords | None]:
    """Ask for the keywords of a question, and once more where the reply has none; None where the second has
    none either."""
    return (yield from read_or_none(STAGE, question, spec, parse_keywords, KEYWORDS_SCHEMA))


def parse_keywords(reply: str) -> DualKeywords | ReplyProblem:
    """The keywords of a reply: a list that is missing is empty, a text in its place is divided at commas."""
    said = read_reply(reply, KeywordsReply)
    if isinstance(said, ReplyProblem):
        return ReplyProblem(NO_LISTS)
    lists = []
    for level in (said.high_level, said.low_level):
        parts = _SEPARATORS.split(level[0]) if len(level) == 1 else level
        found = dict.fromkeys(clean(part[:MOST_CHARACTERS]).strip() for part in parts)
        lists.append(tuple(keyword for keyword in found if keyword)[:MOST_KEYWORDS])
    return DualKeywords(*lists) if any(lists) else ReplyProblem(NO_LISTS)
