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

from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import groupby, islice, zip_longest
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.arrow_arrays import strings
from graphrag_ray.base.ids import report_id
from graphrag_ray.base.schema import ENDS, WALKS, search_table
from graphrag_ray.graph.report_context import Context, Record, claim_of
from graphrag_ray.query.methods.asked_hierarchy import asked_hierarchy, check_embedded, communities_of
from graphrag_ray.query.methods.filling import Share, fill
from graphrag_ray.query.methods.levels import is_auto, levels
from graphrag_ray.query.methods.method import By, Given, Kind, Method, Question, Rows, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import ranked, with_neighbours
from graphrag_ray.query.methods.one_context import answer_from
from graphrag_ray.query.methods.question_names import mentions, rarest_first
from graphrag_ray.query.methods.record_rows import fitting, loaded
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
    notes = [] if chunks is None else [NO_REPORTS]
    return (yield from answer_from(question.text, given, NAME, context, notes))


METHOD = MethodKind(
    search,
    asks=("embed", "answer"),
    reads="what stands around a name",
    levels=True,
    graph=True,
    others=("hybrid", "global"),
    reports=True,
)


def context_for(
    text: str, given: Given, *, finest: int = DEFAULT_LEVEL, chunks: Collection[str] | None = None
) -> Generator[Any, Any, Context]:
    """The context of a question, of at most query.context_tokens; empty where no entity is near.

    finest   level of the finest reports that are shown; see `finest_level`
    chunks   ids of the only ones that count (see where.py): nothing that others say is shown then
    """
    asked_hierarchy(given, over="entity")
    check_embedded(given, NAME, ["entity"])
    query = given.settings.query
    near, named = yield from _near(text, given, chunks)
    edges, claims, communities = yield from _around(list(near), given, chunks)
    # The entities; then relationships and claims by turns, so that neither crowds out the other.
    ids: list[tuple[Kind, str]] = [("entity", id_) for id_ in near]
    ids += [("relationship", edge["id"]) for edge in edges]
    records = yield from loaded(ids, given, chunks)
    related = [record for record in records if record.section == "Relationships"]
    turns = zip_longest(related, map(claim_of, claims))
    elements = [record for record in records if record.section == "Entities"]
    elements += [record for pair in turns for record in pair if record]
    most = max(1, query.context_tokens // MIN_CHUNK_TOKENS)
    if query.local_walk and WALKS in given.n_rows:
        (hits,) = yield from walked([text], given, most, chunks)
        found, n_held = [hit.id for hit in hits], len(hits)
    else:
        found, n_held = yield from _chunks_around(text, near, named, edges, given, chunks, most)
    chosen, _ = yield from fitting(found, given)  # those that may fit
    sources = yield from loaded((("text_unit", id_) for id_ in chosen), given)
    left_out = n_held - len(chosen)
    reports: list[Record] = []
    if chunks is None:
        reports = yield from loaded((yield from reports_around(near, given, communities, finest)), given)
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
    k, columns = given.settings.query.local_entities, ["id", "frequency"]
    rows, hits = yield (
        Rows("entities", columns, list(could_be.spans)),
        Search("entity", "vector", text, k, possible),
    )
    frequency = {row["id"]: row["frequency"] or 0 for row in rows.to_pylist()}
    counted = frequency.keys() if possible is None else frequency.keys() & set(possible)
    named = rarest_first(could_be, {id_: frequency[id_] for id_ in counted})[:k]
    order = dict.fromkeys([*named, *(hit.id for hit in hits)])
    rest = yield Rows("entities", columns, [id_ for id_ in order if id_ not in frequency])
    frequency |= {row["id"]: row["frequency"] or 0 for row in rest.to_pylist()}
    return {id_: frequency[id_] for id_ in order if id_ in frequency}, named


def _around(
    entities: Sequence[str], given: Given, chunks: Collection[str] | None
) -> Generator[Any, Any, tuple[list[Row], list[Row], pa.Table]]:
    """The first relationships and claims of entities, and the communities that hold some of them."""
    query, place = given.settings.query, {id_: n for n, id_ in enumerate(entities)}
    # What conditions allow may come last.
    most = (MOST_EDGES, query.local_claims) if chunks is None else (None, None)
    columns = EDGES if chunks is None else [*EDGES, "text_unit_ids"]
    edges, claims, communities = yield (
        Rows("relationships", columns, entities, by=ENDS, most=most[0]),
        Rows("covariates", CLAIMS, entities, by="subject_entity_id", most=most[1]),
        communities_around(entities, given),
    )
    only = set(chunks or ())
    stated, said = (
        [r for r in table.to_pylist() if chunks is None or not only.isdisjoint(r["text_unit_ids"])]
        for table in (edges, claims)
    )
    chosen = relationships_in_order(stated, place, query.local_relationships)
    if chunks is None:
        rest = yield Rows("relationships", ["id", "text_unit_ids"], [row["id"] for row in chosen])
        lists = {row["id"]: row for row in rest.to_pylist()}
        chosen = [{**row, **lists[row["id"]]} for row in chosen if row["id"] in lists]
    return chosen, claims_in_order(said, place, query.local_claims), communities


def _chunks_around(
    text: str,
    near: Mapping[str, int],
    named: Collection[str],
    edges: Sequence[Row],
    given: Given,
    chunks: Collection[str] | None,
    most: int,
) -> Generator[Any, Any, tuple[list[str], int]]:
    """Without a walk: the first chunks that hold some of the entities, and how many do."""
    ways: list[By] = ["vector"] if given.n_rows.get("embeddings_text_unit") else []
    if search_table("text_unit", "keyword") in given.n_rows:
        ways.append("keyword")
    everywhere = {id_ for id_, n in near.items() if n > MOST_CHUNKS} if ways else set()
    rows = yield Rows("entities", ["id", "text_unit_ids"], [id_ for id_ in near if id_ not in everywhere])
    lists = {row["id"]: row["text_unit_ids"] or [] for row in rows.to_pylist()}
    held = {c for own in lists.values() for c in own if chunks is None or c in chunks}
    possible = chunks if everywhere else held
    only = None if possible is None else sorted(possible)
    searches = [Search("text_unit", by, text, among=only) for by in ways]
    order = [id_ for _, id_ in (yield from ranked(searches, given, most))]
    if everywhere:
        rows = yield Rows("text_units", ["id", "entity_ids"], order)
        holds = {row["id"]: everywhere.intersection(row["entity_ids"] or ()) for row in rows.to_pylist()}
        lists |= {id_: [c for c in order if id_ in holds.get(c, ())] for id_ in everywhere}
        held.update(c for c in order if holds.get(c))
    places = {id_: place for place, id_ in enumerate(id_ for id_ in order if id_ in held)}
    entities = [{"id": id_, "text_unit_ids": lists.get(id_, [])} for id_ in near]
    n_held = max([len(held), *(near[id_] for id_ in everywhere if chunks is None)])
    return chunks_in_order(entities, edges, named, places, chunks, most), n_held


def communities_around(entities: Sequence[str], given: Given) -> Rows:
    """The communities that hold some of the entities."""
    return Rows(asked_hierarchy(given).communities, MEMBERS, entities, by="entity_ids", only_these=True)


def reports_around(
    entities: Collection[str], given: Given, communities: pa.Table | None = None, finest: int = DEFAULT_LEVEL
) -> Generator[Any, Any, list[tuple[Kind, str]]]:
    """The reports on the finest communities of entities, down to a level: those that hold most of them first.
    communities: `communities_around` them, where these are known"""
    kind = asked_hierarchy(given, over="entity")
    if communities is None:
        communities = yield communities_around(list(entities), given)
    found = memberships(communities, entities, finest)
    report = {m.community: report_id(m.community) for m in found}
    rows = (yield Rows(kind.reports_table, ["id", "rank"], list(report.values()))).to_pylist()
    ranks = {row["id"]: row["rank"] for row in rows}
    rank = {c: ranks[id_] for c, id_ in report.items() if id_ in ranks}
    return [(kind.reports, report[c]) for c in communities_in_order(found, rank)]


Row: TypeAlias = Mapping[str, Any]


def relationships_in_order(rows: Iterable[Row], place: Mapping[str, int], per_entity: int) -> list[Row]:
    """Relationships (EDGES) between the entities, then at most `per_entity` for each of those that lead
    elsewhere: first those to what many of the entities lead to."""
    inside: list[Row] = []
    outside: list[tuple[str, Row]] = []
    touched: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        ends = [row["source_id"], row["target_id"]]
        others = [e for e in ends if e not in place]
        if not others:
            inside.append(row)
        elif len(others) == 1:
            outside.append((others[0], row))
            touched[others[0]].update(e for e in ends if e in place)
    inside.sort(key=worth)
    outside.sort(key=lambda found: (-len(touched[found[0]]), worth(found[1])))
    return inside + [row for _, row in outside[: per_entity * len(place)]]


def worth(row: Row) -> tuple[float, float, str]:
    """Sorts relationships: those of the best connected entities first, then the strongest."""
    return -row["combined_degree"], -row["weight"], row["id"]


def claims_in_order(rows: Iterable[Row], place: Mapping[str, int], per_entity: int) -> list[Row]:
    """Claims by the place of their subject, at most `per_entity` of each: those that most chunks state."""
    order = sorted(rows, key=lambda r: (place[r["subject_entity_id"]], -len(r["text_unit_ids"]), r["id"]))
    of_subject = groupby(order, lambda r: r["subject_entity_id"])
    return [row for _, own in of_subject for row in islice(own, per_entity)]


def chunks_in_order(
    entities: Sequence[Row],
    relationships: Iterable[Row],
    named: Collection[str],
    near: Mapping[str, int],
    within: Collection[str] | None,
    most: int,
) -> list[str]:
    """Ids of the first `most` chunks that hold some of the entities: first those that hold most of the named
    ones; among these the entities take turns, each with its chunk that is nearest to the question, the others
    by how many of its relationships they state, then as they stand in the corpus.

    entities       id, text_unit_ids; by falling priority
    relationships  the first of theirs: source_id, target_id, text_unit_ids
    near           places of the chunks that are nearest to the question
    within         the only chunks that count; None: all
    """
    stated: dict[str, Counter[str]] = {e["id"]: Counter() for e in entities}
    for row in relationships:
        for end in {row["source_id"], row["target_id"]} & stated.keys():
            stated[end].update(row["text_unit_ids"])
    chunks = {e["id"]: [c for c in e["text_unit_ids"] if within is None or c in within] for e in entities}
    held = Counter(c for id_ in chunks.keys() & set(named) for c in set(chunks[id_]))
    by_held: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for id_, own in chunks.items():
        for chunk in own:
            by_held[held[chunk]][id_].append(chunk)

    def nearest_first(id_: str, own: Iterable[str]) -> list[str]:
        return nsmallest(most, own, key=lambda c: (near.get(c, len(near)), -stated[id_][c]))

    chosen: dict[str, None] = {}
    for n in sorted(by_held, reverse=True):
        for chunk in by_turns(nearest_first(*one) for one in by_held[n].items()):
            chosen[chunk] = None
            if len(chosen) == most:
                return list(chosen)
    return list(chosen)


def by_turns(lists: Iterable[Sequence[str]]) -> Iterator[str]:
    """What the lists hold, once each: by turns the next of each list that was not yet taken."""
    taken: set[str] = set()
    waiting = [iter(one) for one in lists]
    while waiting:
        going = []
        for rest in waiting:
            found = next((id_ for id_ in rest if id_ not in taken), None)
            if found is not None:
                taken.add(found)
                going.append(rest)
                yield found
        waiting = going


@dataclass(frozen=True, slots=True)
class Membership:
    """A community, and which of the entities are in it."""

    community: str
    level: int
    members: frozenset[str]


def memberships(communities: pa.Table, entities: Collection[str], level: int) -> list[Membership]:
    """The communities (id, level, entity_ids) of at most `level` that hold some of the entities. The coarsest
    may list all entities of the index, so no Python object is made of any but ours."""
    own = communities.filter(pc.less_equal(communities["level"], level))
    lists = own["entity_ids"].combine_chunks()
    ids = lists.flatten()
    ours = pc.is_in(ids, value_set=strings(sorted(entities)))
    members: dict[int, set[str]] = defaultdict(set)
    parents = pc.list_parent_indices(lists).filter(ours).to_pylist()
    for parent, id_ in zip(parents, ids.filter(ours).to_pylist(), strict=True):
        members[parent].add(id_)
    rows = own.select(["id", "level"]).to_pylist()
    return [Membership(rows[i]["id"], rows[i]["level"], frozenset(m)) for i, m in sorted(members.items())]


def communities_in_order(found: Sequence[Membership], rank: Mapping[str, float]) -> list[str]:
    """Ids of the communities whose reports are shown: for each entity the finest that has one; those that
    hold most of the entities first, then by their reports' rank. rank: of each community that has a report"""
    levels_up = sorted(found, key=lambda m: m.level)
    finest = {entity: m for m in levels_up if m.community in rank for entity in m.members}
    chosen = {m.community: m for m in finest.values()}.values()
    return [
        m.community for m in sorted(chosen, key=lambda m: (-len(m.members), -rank[m.community], m.community))
    ]
