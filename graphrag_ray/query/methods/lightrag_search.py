"""LightRAG as a baseline: search the graph by keywords of two levels.

After Guo et al. 2024, "LightRAG: Simple and Fast Retrieval-Augmented Generation", with the modes and limits
of version 1.5:

    local    entities near the low-level keywords, with their relationships
    global   relationships near the high-level keywords, with their ends
    hybrid   both, alternately
    mix      hybrid, and the chunks nearest to the question

Each mode adds chunks that mention these entities and relationships. Entities, relationships, and the whole
context have a token budget. One call lists the keywords, and one writes the answer.

Where we differ: contexts and references have the format of all our search methods. Chunks of frequent
elements are not listed. Chunks are ranked by how many of the records they mention, then by similarity to the
question; LightRAG uses similarity alone, and optionally a reranking model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, parse_reply, schema_of
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.schema import RELATIONSHIP_ENDS
from graphrag_ray.graph.report_context import Context, Record, sanitize
from graphrag_ray.query.methods.budget import calls_bound, check_budget, check_context_fits
from graphrag_ray.query.methods.context_filling import Share, fill, records_that_fit
from graphrag_ray.query.methods.document_filters import matching_chunks, matching_ids
from graphrag_ray.query.methods.hierarchy_choice import check_embedded, check_graph
from graphrag_ray.query.methods.local_search import (
    EDGES,
    MAX_EDGES,
    MAX_LISTED_CHUNKS,
    by_importance,
    by_turns,
    relationships_in_order,
)
from graphrag_ray.query.methods.map_reduce import AnswerSpec, answer_spec, build_spec, parsed_or_none
from graphrag_ray.query.methods.method import (
    Dialogues,
    Hit,
    Kind,
    Method,
    Question,
    Rows,
    Search,
    SearchEnv,
    Steps,
)
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import relevant, similarities_of
from graphrag_ray.query.methods.record_loading import load_records, prefix_that_fits
from graphrag_ray.query.methods.reranking import reranked
from graphrag_ray.query.methods.single_context import ADVICE, PHASE, answer_from

NAME = "lightrag"
CONTEXT_SETTING = "lightrag_context_tokens"
"""Key of the setting under `query` that limits the context."""
TOP_K = 40
"""Number of entities found by low-level keywords, and of relationships found by high-level keywords."""
PUBLISHED_CONTEXT_TOKENS = 30_000
"""LightRAG's own budget for a context. In smaller ones, the budgets of its parts shrink in proportion."""
MIN_ELEMENT_TOKENS = 12
"""Assumed minimum size of an entity or relationship, which limits how many are loaded for a token budget."""
MAX_NEAR_CHUNKS = 1_000
"""Maximum number of chunks that are ranked by similarity to the question."""
WITHOUT_KEYWORDS = "No keywords could be listed for this question{}. It was searched unchanged."

_KINDS: tuple[Kind, ...] = ("entity", "relationship", "text_unit")


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the entities, relationships and chunks nearest to the keywords of the question."""
    check_graph(env)
    text, query = question.text, env.settings.query
    mode = query.lightrag_mode
    unsearched = {"local": "relationship", "global": "entity"}.get(mode)
    check_embedded(env, NAME, [kind for kind in _KINDS if kind != unsearched])
    first, last = keywords_spec(env.settings, env.prompts), answer_spec(env.settings, env.prompts)
    setting = CONTEXT_SETTING if query.lightrag_context_tokens else "context_tokens"
    check_context_fits(text, env, [last], setting=setting)
    bound = calls_bound(text, env, STAGE, first, 1, 0)
    bound += calls_bound(text, env, PHASE, last, 1, query.lightrag_context_tokens or query.context_tokens)
    check_budget(bound, query, ADVICE.format(setting))
    chunks = yield from matching_chunks(question.where)
    # Search by the keywords of the mode's level. If it has none, use the other level, or the question itself.
    (outcome,) = yield Dialogues(STAGE, [partial(list_keywords, text, first)])
    keywords: DualKeywords = outcome.result or DualKeywords((text,), (text,))
    high = () if mode == "local" else keywords.high or (keywords.low if mode == "global" else ())
    low = () if mode == "global" else keywords.low or (keywords.high if mode == "local" else ())
    searched = (("Entities", low), ("Relationships", high))
    notes = [f"{what} were looked up by: {', '.join(words)}." for what, words in searched if words]
    if outcome.result is None:
        notes = [WITHOUT_KEYWORDS.format(f" ({outcome.error})" if outcome.error else "")]
    context = yield from _context(text, ", ".join(low), ", ".join(high), env, chunks)
    return (yield from answer_from(text, env, NAME, context, notes, setting))


METHOD = MethodKind(
    search,
    stages=("embed", "rerank", "keywords", "answer"),
    description="entities and relationships near keywords of the question",
    graph=True,
    suggestions=("hybrid", "global"),
    option=("mode", "lightrag_mode"),
    reply_dependent=True,
)


def _context(
    text: str, low: str, high: str, env: SearchEnv, chunks: Collection[str] | None
) -> Steps[Context]:
    """Fill the context. `chunks` restricts it to these chunks, unless it is None."""
    query, count = env.settings.query, env.count
    texts = {"entity": low, "relationship": high, "text_unit": text if query.lightrag_mode == "mix" else ""}
    allowed: dict[Kind, list[str] | None] = {}
    for kind in _KINDS:
        allowed[kind] = yield from matching_ids(kind, chunks)
    searches = [
        Search(kind, "vector", texts[kind], k, allowed[kind])
        for kind, k in zip(_KINDS, (TOP_K, TOP_K, query.lightrag_chunks), strict=True)
        if texts[kind]
    ]
    lists: list[list[Hit]] = yield tuple(searches)
    hits = {s.kind: {hit.id: hit.score for hit in found} for s, found in zip(searches, lists, strict=True)}
    near, related, near_chunks = (list(hits.get(kind, ())) for kind in _KINDS)
    context_tokens = query.lightrag_context_tokens or query.context_tokens
    tokens = (query.lightrag_entity_tokens, query.lightrag_relationship_tokens)
    shrunk = min(1.0, context_tokens / PUBLISHED_CONTEXT_TOKENS)
    budgets = [min(int(n * shrunk), context_tokens) for n in tokens]
    # With conditions, any relationship may be excluded, so read all.
    per_entity = MAX_EDGES if chunks is None else None
    tables: list[pa.Table] = yield (
        Rows("relationships", EDGES, near, by=RELATIONSHIP_ENDS, limit_per_id=per_entity),
        Rows("relationships", EDGES, related),
    )
    edges, related_edges = (table.to_pylist() for table in tables)
    if chunks is not None:
        allowed_edges = set(allowed["relationship"] or ())
        edges = [row for row in edges if row["id"] in allowed_edges]
    ends = {row["id"]: (row["source_id"], row["target_id"]) for row in (*edges, *related_edges)}
    ends_of_related = dict.fromkeys(end for id_ in related if id_ in ends for end in ends[id_])
    position = {id_: n for n, id_ in enumerate(near)}
    share, edge_ids = query.lightrag_min_similarity, {row["id"] for row in edges}
    if similar := (yield from similarities_of("relationship", edge_ids, text, env, share)):
        edges = relationships_in_order(edges, position, query.local_relationships, similar)
    else:
        edges = sorted(edges, key=by_importance)
    found = (
        list(by_turns([near, list(ends_of_related)])),
        list(by_turns([[row["id"] for row in edges], related])),
    )
    stating, n_stating = yield from _chunks_stating(text, *found, ends, env, chunks)
    in_order = []
    for kind, ids_of_kind in zip(_KINDS, found, strict=False):
        similar = yield from similarities_of(kind, ids_of_kind, text, env, share)
        kept = relevant(ids_of_kind, similar, share)
        in_order.append(sorted(kept, key=lambda id_: -similar.get(id_, 0.0)))
    elements: list[list[Record]] = []
    left_out = cut = 0
    ids = [
        (kind, id_)
        for kind, ordered, budget in zip(_KINDS, in_order, budgets, strict=False)
        for id_ in islice(ordered, 1 + budget // MIN_ELEMENT_TOKENS)
    ]
    records = yield from load_records(ids, env, chunks, distinct_texts=True)
    for section, budget in zip(("Entities", "Relationships"), budgets, strict=True):
        of_section = [record for record in records if record.section == section]
        selected, n_cut = records_that_fit(of_section, budget, count)
        elements.append(selected)
        left_out += len(of_section) - len(selected)
        cut += n_cut
    by_rank: list[tuple[Kind, str]] = [("text_unit", id_) for id_ in by_turns([near_chunks, stating])]
    (by_rank,) = yield from reranked([(text, by_rank)], env)
    order = [id_ for _, id_ in by_rank[: query.lightrag_chunks]]
    chosen, _ = yield from prefix_that_fits(order, env, context_tokens=context_tokens)
    sources = yield from load_records((("text_unit", id_) for id_ in chosen), env, distinct_texts=True)
    left_out += max(n_stating, len(order)) - len(sources)
    context = fill([Share(r) for r in (*elements, sources)], context_tokens, count, left_out)
    return replace(context, cut=context.cut + cut)


def _chunks_stating(
    text: str,
    near: Sequence[str],
    related: Sequence[str],
    ends_of: Mapping[str, tuple[str, str]],
    env: SearchEnv,
    chunks: Collection[str] | None,
) -> Steps[tuple[list[str], int]]:
    """Find the chunks that mention most of the elements, the nearest first among equals.

    Also counts the chunks. Only chunks near the question are checked for frequent elements.
    """
    ends = {id_: ends_of[id_] for id_ in related if id_ in ends_of}
    looked_up = list(dict.fromkeys([*near, *(end for pair in ends.values() for end in pair)]))
    rows = (yield Rows("entities", ["id", "frequency"], looked_up)).to_pylist()
    common = {row["id"] for row in rows if (row["frequency"] or 0) > MAX_LISTED_CHUNKS}
    # A relationship occurs in no more chunks than either of its ends.
    frequent = common.intersection(near) | {id_ for id_, pair in ends.items() if common.issuperset(pair)}
    tables: list[pa.Table] = yield tuple(
        Rows(table, ["id", "text_unit_ids"], [id_ for id_ in ids if id_ not in frequent])
        for table, ids in (("entities", near), ("relationships", related))
    )
    lists = {row["id"]: row["text_unit_ids"] or () for table in tables for row in table.to_pylist()}
    n_stated = Counter(
        chunk
        for id_ in (*near, *related)
        for chunk in dict.fromkeys(lists.get(id_, ()))
        if chunks is None or chunk in chunks
    )
    if not n_stated and not frequent:
        return [], 0
    only_ids = sorted(n_stated) if not frequent else None if chunks is None else sorted(chunks)
    hits: list[Hit] = yield Search("text_unit", "vector", text, MAX_NEAR_CHUNKS, only_ids)
    if frequent:
        columns = ["id", "entity_ids", "relationship_ids"]
        for row in (yield Rows("text_units", columns, [hit.id for hit in hits])).to_pylist():
            mentioned = [*(row["entity_ids"] or ()), *(row["relationship_ids"] or ())]
            if stated := frequent.intersection(mentioned):
                n_stated[row["id"]] += len(stated)
    position = {hit.id: n for n, hit in enumerate(hits)}
    limit = env.settings.query.lightrag_chunks
    first = nsmallest(limit, n_stated, key=lambda c: (-n_stated[c], position.get(c, len(position))))
    return first, len(n_stated)


STAGE = "keywords"
MAX_OUTPUT_TOKENS = 500
MAX_KEYWORDS, MAX_CHARACTERS = 20, 200
"""Maximum number of keywords per list, and of characters per keyword. More would blur the search."""


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
    """High-level keywords name subjects and connections, low-level ones particular things."""

    high: tuple[str, ...] = ()
    low: tuple[str, ...] = ()


def keywords_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec(STAGE, settings, prompts, MAX_OUTPUT_TOKENS)


def list_keywords(question: str, spec: AnswerSpec) -> Dialogue[DualKeywords | None]:
    """Ask for the keywords of a question. Returns None if neither the reply nor its correction has any."""
    return (yield from parsed_or_none(STAGE, question, spec, parse_keywords, KEYWORDS_SCHEMA))


def parse_keywords(reply: str) -> DualKeywords | ReplyProblem:
    """Parse keywords. A missing list counts as empty. A single string is split at commas."""
    parsed = parse_reply(reply, KeywordsReply)
    if isinstance(parsed, ReplyProblem):
        return ReplyProblem(NO_LISTS)
    lists = []
    for level in (parsed.high_level, parsed.low_level):
        parts = _SEPARATORS.split(level[0]) if len(level) == 1 else level
        keywords = dict.fromkeys(sanitize(part[:MAX_CHARACTERS]).strip() for part in parts)
        lists.append(tuple(keyword for keyword in keywords if keyword)[:MAX_KEYWORDS])
    return DualKeywords(*lists) if any(lists) else ReplyProblem(NO_LISTS)
