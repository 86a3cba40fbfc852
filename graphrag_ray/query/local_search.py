"""Local search: what stands around the entities that a question is near, in one context.

The way of Microsoft GraphRAG's documentation, since the paper has none: entities found by their embeddings
lead to their relationships and claims, to the reports on their communities and to their chunks; each of
text, reports and the rest has a share of the context. Three departures: entities that the question names
literally are taken first; a report is one of a level (the entity's finest community down to it that has
a report), not of all levels above it too; and chunks come by how many of the named entities they hold and
how near they are to the question, so that an entity that is everywhere does not take all of the text.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Any

import pyarrow as pa

from graphrag_ray.base.ids import report_id
from graphrag_ray.base.schema import search_table
from graphrag_ray.query.asked_hierarchy import asked_hierarchy, communities_of
from graphrag_ray.query.embedded import check_embedded
from graphrag_ray.query.filling import Share, fill
from graphrag_ray.query.levels import is_auto, levels
from graphrag_ray.query.local_ranking import (
    Row,
    chunks_in_order,
    claims_in_order,
    communities_in_order,
    memberships,
    relationships_in_order,
)
from graphrag_ray.query.method import By, Given, Hit, Kind, Method, Question, Rows, Search
from graphrag_ray.query.nearest import fused
from graphrag_ray.query.neighbours import with_neighbours
from graphrag_ray.query.one_context import answered, read
from graphrag_ray.query.question_names import mentions, rarest_first
from graphrag_ray.query.record_rows import looked_up
from graphrag_ray.query.where import among, within
from graphrag_ray.reports.report_context import Context, Record, claim_of

NAME = "local"
NO_REPORTS = "Reports on communities were left out: they also say what other documents say."
DEFAULT_LEVEL = 2
"""The level that Microsoft GraphRAG's command line reads; the finest of an index that has fewer."""
MIN_CHUNK_TOKENS = 32
"""No more chunks are looked at than fill a context if none is shorter; the others count as left out."""

MOST_AMONG = 10_000
"""Where the entities have more chunks, the nearest are looked for in the whole corpus: a list of the chunks
of an entity that is everywhere takes longer to search by than to do without."""

MOST_EDGES = 1_000
"""Relationships of an entity that are looked at in each direction and part of the table, those with the best
connected entities first: a name that is everywhere may have a million."""

ENTITIES = ["id", "text_unit_ids"]
MEMBERS = ["id", "level", "hierarchy", "entity_ids"]
EDGES = ["id", "source_id", "target_id", "combined_degree", "weight", "text_unit_ids"]
CLAIMS = ["id", "subject_id", "object_id", "type", "status", "start_date", "end_date", "description"]
CLAIMS += ["subject_entity_id", "text_unit_ids"]


def search(question: Question, given: Given) -> Method:
    """Answer from what stands around the entities that the question is near. Raises LevelNotFound, and
    UsageError for an index without a graph or embeddings of entities, or conditions that cannot be met."""
    chunks = yield from within(question.where)
    check_embedded(given, NAME, ["entity"])
    finest = yield from finest_level(question.level, given)
    context = yield from context_for(question.text, given, finest=finest, chunks=chunks)
    what = yield from read(question.text, given, context)
    return (yield from answered(question.text, NAME, what, [] if chunks is None else [NO_REPORTS]))


def context_for(
    text: str, given: Given, *, finest: int = DEFAULT_LEVEL, chunks: Collection[str] | None = None
) -> Generator[Any, Any, Context]:
    """The context of a question, of at most query.context_tokens; empty where no entity is near.

    finest   level of the finest reports that are shown; see `finest_level`
    chunks   ids of the only ones that count (see where.py): nothing that others say is shown then
    """
    asked_hierarchy(given, over="entity")
    check_embedded(given, NAME, ["entity"])
    near, named = yield from _near(text, given, chunks)
    around = yield from _around([e["id"] for e in near], given, chunks)
    elements = yield from _elements(near, around, given, chunks)
    sources, left_out = yield from _sources(text, near, named, around, given, chunks)
    reports = [] if chunks is not None else (yield from _reports(near, around, finest, given))
    query = given.settings.query
    shares = [
        Share(sources, query.local_text_share),
        Share(elements, 1 - query.local_text_share - query.local_reports_share),
        Share(reports, query.local_reports_share),
    ]
    shares = [s for s in shares if s.of > 0]
    context = fill(shares, query.context_tokens, given.count, left_out)
    return (yield from with_neighbours(context, shares, given, left_out))


def finest_level(level: str | int | None, given: Given) -> Generator[Any, Any, int]:
    """A level as the caller wrote it; None or auto: DEFAULT_LEVEL. Raises LevelNotFound."""
    kind = asked_hierarchy(given, over="entity")
    if is_auto(level):
        return DEFAULT_LEVEL
    communities = yield communities_of(kind)
    without_reports = communities.slice(0, 0).rename_columns(["community", "n_tokens", "parent", "hierarchy"])
    return levels(communities, without_reports, kind.name).parse(level, 0)


def _near(
    text: str, given: Given, chunks: Collection[str] | None
) -> Generator[Any, Any, tuple[list[Row], list[str]]]:
    """Entities that the question names, then those whose embeddings are nearest to its own; and the ids of
    the named ones."""
    possible = yield from among("entity", chunks)
    could_be = mentions(text)
    k = given.settings.query.local_entities
    rows, hits = yield (
        Rows("entities", ENTITIES, list(could_be.spans)),
        Search("entity", "vector", text, k, possible),
    )
    known = _by_id(rows)
    counted = known.keys() if possible is None else known.keys() & set(possible)
    named = rarest_first(could_be, {id_: len(known[id_]["text_unit_ids"]) for id_ in counted})[:k]
    order = dict.fromkeys([*named, *(hit.id for hit in hits)])
    rest = yield Rows("entities", ENTITIES, [id_ for id_ in order if id_ not in known])
    known |= _by_id(rest)
    return [known[id_] for id_ in order if id_ in known], named


@dataclass(frozen=True)
class _Around:
    """Relationships and claims of entities, and the communities that hold some of them."""

    edges: list[Row]
    claims: list[Row]
    communities: pa.Table


def _around(
    entities: Sequence[str], given: Given, chunks: Collection[str] | None
) -> Generator[Any, Any, _Around]:
    most = MOST_EDGES if chunks is None else None  # what conditions allow may come last
    leaving, arriving, claims, communities = yield (
        Rows("relationships", EDGES, entities, by="source_id", most=most),
        Rows("relationships", EDGES, entities, by="target_id", most=most),
        Rows("covariates", CLAIMS, entities, by="subject_entity_id"),
        Rows(asked_hierarchy(given).communities, MEMBERS, entities, by="entity_ids", only_these=True),
    )

    only = None if chunks is None else set(chunks)

    def stated(rows: Sequence[Row]) -> list[Row]:
        return [r for r in rows if only is None or not only.isdisjoint(r["text_unit_ids"])]

    edges = list((_by_id(leaving) | _by_id(arriving)).values())
    return _Around(stated(edges), stated(claims.to_pylist()), communities)


def _elements(
    near: Sequence[Row], around: _Around, given: Given, chunks: Collection[str] | None
) -> Generator[Any, Any, list[Record]]:
    """The entities; then relationships and claims by turns, so that neither crowds out the other."""
    query, place = given.settings.query, {e["id"]: n for n, e in enumerate(near)}
    edges = relationships_in_order(around.edges, place, query.local_relationships)
    claims = claims_in_order(around.claims, place, query.local_claims)
    ids: dict[Kind, list[str]] = {"entity": list(place), "relationship": [e["id"] for e in edges]}
    known = yield from looked_up(ids, given, chunks)
    entities, related = (_in_order(ids[kind], known[kind]) for kind in ids)
    by_turns = zip_longest(related, map(claim_of, claims))
    return [*entities, *(record for pair in by_turns for record in pair if record)]


def _sources(
    text: str,
    near: Sequence[Row],
    named: Collection[str],
    around: _Around,
    given: Given,
    chunks: Collection[str] | None,
) -> Generator[Any, Any, tuple[list[Record], int]]:
    """The chunks that may fit, in order; and how many were not looked up: their texts lie in as many places
    of a large corpus, so no more of them are read than fill a context."""
    budget = given.settings.query.context_tokens
    most = max(1, budget // MIN_CHUNK_TOKENS)
    held = {c for e in near for c in e["text_unit_ids"] if chunks is None or c in chunks}
    places = yield from _nearest(text, held, chunks, most, given)
    found = chunks_in_order(near, around.edges, named, places, chunks, most)
    sizes = _by_id((yield Rows("text_units", ["id", "n_tokens"], found)))
    order = [id_ for id_ in found if id_ in sizes]
    ends = accumulate(sizes[id_]["n_tokens"] for id_ in order)
    # Half as many more: the tokens are those of the model that extracted, whose vocabulary may be another.
    chosen = order[: 1 + sum(end <= 1.5 * budget for end in ends)]
    known = yield from looked_up({"text_unit": chosen}, given)
    return _in_order(chosen, known["text_unit"]), len(held) - len(chosen)


def _nearest(
    text: str, held: Collection[str], chunks: Collection[str] | None, most: int, given: Given
) -> Generator[Any, Any, dict[str, int]]:
    """Places of those of the held chunks that keywords and embeddings find, fused as in hybrid search; of
    an index that lacks one, by the other."""
    few = len(held) <= MOST_AMONG
    ids = sorted(held) if few else None if chunks is None else sorted(chunks)
    ways: list[By] = []
    if held and given.n_rows.get("embeddings_text_unit"):
        ways.append("vector")
    if held and search_table("text_unit", "keyword") in given.n_rows:
        ways.append("keyword")
    lists: list[list[Hit]] = yield tuple(Search("text_unit", by, text, most, ids) for by in ways)
    weight = given.settings.query.hybrid_vector_weight
    order = fused(
        [{hit.id: hit.score for hit in hits} for hits in lists],
        [weight if by == "vector" else 1 - weight for by in ways],
    )
    return {id_: place for place, id_ in enumerate(id_ for id_ in order if id_ in held)}


def _reports(
    near: Sequence[Row], around: _Around, finest: int, given: Given
) -> Generator[Any, Any, list[Record]]:
    kind = asked_hierarchy(given)
    found = memberships(around.communities, [e["id"] for e in near], finest, kind.name)
    report = {m.community: report_id(m.community) for m in found}
    ranks = _by_id((yield Rows(kind.reports_table, ["id", "rank"], list(report.values()))))
    rank = {c: ranks[id_]["rank"] for c, id_ in report.items() if id_ in ranks}
    ids = [report[c] for c in communities_in_order(found, rank)]
    known = yield from looked_up({kind.reports: ids}, given)
    return _in_order(ids, known[kind.reports])


def _in_order(ids: Sequence[str], records: Mapping[str, Record]) -> list[Record]:
    return [records[id_] for id_ in ids if id_ in records]


def _by_id(table: pa.Table) -> dict[str, Row]:
    return {row["id"]: row for row in table.to_pylist()}
