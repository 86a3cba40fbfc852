"""Local search: what stands around the entities that a question is near, in one context.

The way of Microsoft GraphRAG's documentation, since the paper has none: entities found by their embeddings
lead to their relationships and claims, to the reports on their communities and to their chunks; each of
text, reports and the rest has a share of the context. Departures: entities that the question names
literally are taken first; a report is one of a level (the entity's finest community down to it that has
a report), not of all levels above it too; and chunks are those that a walk from the question comes to
(`walked_chunks.py`), which finds more ("Walks" in benchmarks/RESULTS.md). Without it (`query.local_walk`),
and in an index of an earlier version, they are those of the entities, by how many of the named ones they hold
and how near they are to the question, so that an entity that is everywhere does not take all of the text.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from graphrag_ray.base.ids import report_id
from graphrag_ray.base.schema import ENDS, WALKS, search_table
from graphrag_ray.graph.report_context import Context, Record, claim_of
from graphrag_ray.query.methods.asked_hierarchy import asked_hierarchy, communities_of
from graphrag_ray.query.methods.embedded import check_embedded
from graphrag_ray.query.methods.filling import Share, fill
from graphrag_ray.query.methods.levels import is_auto, levels
from graphrag_ray.query.methods.local_ranking import (
    Row,
    chunks_in_order,
    claims_in_order,
    communities_in_order,
    memberships,
    relationships_in_order,
)
from graphrag_ray.query.methods.method import By, Given, Hit, Kind, Method, Question, Rows, Search
from graphrag_ray.query.methods.nearest import fused
from graphrag_ray.query.methods.neighbours import with_neighbours
from graphrag_ray.query.methods.one_context import answered, read
from graphrag_ray.query.methods.question_names import mentions, rarest_first
from graphrag_ray.query.methods.record_rows import fitting, looked_up
from graphrag_ray.query.methods.walked_chunks import walked
from graphrag_ray.query.methods.where import among, within

NAME = "local"
NO_REPORTS = "Reports on communities were left out: they also say what other documents say."
DEFAULT_LEVEL = 2
"""The level that Microsoft GraphRAG's command line reads; the finest of an index that has fewer."""
MIN_CHUNK_TOKENS = 32
"""No more chunks are looked at than fill a context if none is shorter; the others count as left out."""

MOST_CHUNKS = 2_000
"""Of an entity. The chunks of one that is in more are not listed: of the chunks that are near to the
question, those are taken that hold it."""

MOST_EDGES = 1_000
"""Relationships of an entity that are looked at, those with the best connected entities first: a name that is
everywhere may have a million."""

MEMBERS = ["id", "level", "entity_ids"]
EDGES = ["id", "source_id", "target_id", "combined_degree", "weight"]
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
    around = yield from _around(list(near), given, chunks)
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
) -> Generator[Any, Any, tuple[dict[str, int], list[str]]]:
    """Entities that the question names, then those whose embeddings are nearest to its own, and in how many
    chunks each is; and the ids of the named ones."""
    possible = yield from among("entity", chunks)
    could_be = mentions(text)
    k = given.settings.query.local_entities
    rows, hits = yield (
        Rows("entities", ["id", "frequency"], list(could_be.spans)),
        Search("entity", "vector", text, k, possible),
    )
    frequency = _frequency(rows)
    counted = frequency.keys() if possible is None else frequency.keys() & set(possible)
    named = rarest_first(could_be, {id_: frequency[id_] for id_ in counted})[:k]
    order = dict.fromkeys([*named, *(hit.id for hit in hits)])
    rest = yield Rows("entities", ["id", "frequency"], [id_ for id_ in order if id_ not in frequency])
    frequency |= _frequency(rest)
    return {id_: frequency[id_] for id_ in order if id_ in frequency}, named


def _frequency(entities: pa.Table) -> dict[str, int]:
    return {row["id"]: row["frequency"] or 0 for row in entities.to_pylist()}


@dataclass(frozen=True)
class _Around:
    """The first relationships and claims of entities, and the communities that hold some of them."""

    edges: list[Row]
    claims: list[Row]
    communities: pa.Table


def _around(
    entities: Sequence[str], given: Given, chunks: Collection[str] | None
) -> Generator[Any, Any, _Around]:
    query, place = given.settings.query, {id_: n for n, id_ in enumerate(entities)}
    # What conditions allow may come last.
    all_of = chunks is not None
    edges, claims, communities = yield (
        Rows(
            "relationships",
            [*EDGES, "text_unit_ids"] if all_of else EDGES,
            entities,
            by=ENDS,
            most=None if all_of else MOST_EDGES,
        ),
        Rows(
            "covariates",
            CLAIMS,
            entities,
            by="subject_entity_id",
            most=None if all_of else query.local_claims,
        ),
        Rows(asked_hierarchy(given).communities, MEMBERS, entities, by="entity_ids", only_these=True),
    )

    def stated(rows: Sequence[Row]) -> list[Row]:
        return [r for r in rows if chunks is None or not only.isdisjoint(r["text_unit_ids"])]

    only = set(chunks or ())
    own = stated(edges.to_pylist())
    chosen = relationships_in_order(own, place, query.local_relationships)
    if not all_of:
        rest = yield Rows("relationships", ["id", "text_unit_ids"], [row["id"] for row in chosen])
        lists = _by_id(rest)
        chosen = [{**row, **lists[row["id"]]} for row in chosen if row["id"] in lists]
    in_order = claims_in_order(stated(claims.to_pylist()), place, query.local_claims)
    return _Around(chosen, in_order, communities)


def _elements(
    near: Collection[str], around: _Around, given: Given, chunks: Collection[str] | None
) -> Generator[Any, Any, list[Record]]:
    """The entities; then relationships and claims by turns, so that neither crowds out the other."""
    ids: dict[Kind, list[str]] = {"entity": list(near), "relationship": [e["id"] for e in around.edges]}
    known = yield from looked_up(ids, given, chunks)
    entities, related = (_in_order(ids[kind], known[kind]) for kind in ids)
    by_turns = zip_longest(related, map(claim_of, around.claims))
    return [*entities, *(record for pair in by_turns for record in pair if record)]


def _sources(
    text: str,
    near: Mapping[str, int],
    named: Collection[str],
    around: _Around,
    given: Given,
    chunks: Collection[str] | None,
) -> Generator[Any, Any, tuple[list[Record], int]]:
    """The chunks that may fit, in order; and how many were not looked up."""
    most = max(1, given.settings.query.context_tokens // MIN_CHUNK_TOKENS)
    if given.settings.query.local_walk and WALKS in given.n_rows:
        (hits,) = yield from walked([text], given, most, chunks)
        chosen, _ = yield from fitting([hit.id for hit in hits], given)
        known = yield from looked_up({"text_unit": chosen}, given)
        return _in_order(chosen, known["text_unit"]), len(hits) - len(chosen)
    ways = _ways(given)
    everywhere = {id_ for id_, n in near.items() if n > MOST_CHUNKS} if ways else set()
    rows = yield Rows("entities", ["id", "text_unit_ids"], [id_ for id_ in near if id_ not in everywhere])
    lists = {row["id"]: row["text_unit_ids"] or [] for row in rows.to_pylist()}
    held = {c for own in lists.values() for c in own if chunks is None or c in chunks}
    order = yield from _nearest(text, ways, chunks if everywhere else held, most, given)
    if everywhere:
        rows = yield Rows("text_units", ["id", "entity_ids"], order)
        holds = {row["id"]: everywhere.intersection(row["entity_ids"] or ()) for row in rows.to_pylist()}
        lists |= {id_: [c for c in order if id_ in holds.get(c, ())] for id_ in everywhere}
        held.update(c for c in order if holds.get(c))
    places = {id_: place for place, id_ in enumerate(id_ for id_ in order if id_ in held)}
    entities = [{"id": id_, "text_unit_ids": lists.get(id_, [])} for id_ in near]
    found = chunks_in_order(entities, around.edges, named, places, chunks, most)
    chosen, _ = yield from fitting(found, given)
    known = yield from looked_up({"text_unit": chosen}, given)
    n_held = max([len(held), *(near[id_] for id_ in everywhere if chunks is None)])
    return _in_order(chosen, known["text_unit"]), n_held - len(chosen)


def _ways(given: Given) -> list[By]:
    """How an index can look for the nearest chunks."""
    ways: list[By] = []
    if given.n_rows.get("embeddings_text_unit"):
        ways.append("vector")
    if search_table("text_unit", "keyword") in given.n_rows:
        ways.append("keyword")
    return ways


def _nearest(
    text: str, ways: Sequence[By], among: Collection[str] | None, most: int, given: Given
) -> Generator[Any, Any, list[str]]:
    """The chunks, of all or of some, that keywords and embeddings find, fused as in hybrid search."""
    ids = None if among is None else sorted(among)
    lists: list[list[Hit]] = yield tuple(Search("text_unit", by, text, most, ids) for by in ways)
    weight = given.settings.query.hybrid_vector_weight
    return fused(
        [{hit.id: hit.score for hit in hits} for hits in lists],
        [weight if by == "vector" else 1 - weight for by in ways],
    )


def _reports(
    near: Collection[str], around: _Around, finest: int, given: Given
) -> Generator[Any, Any, list[Record]]:
    kind = asked_hierarchy(given)
    found = memberships(around.communities, near, finest)
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
