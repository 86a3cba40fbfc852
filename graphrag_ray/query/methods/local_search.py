"""Local search: fill one context with the neighbourhood of the entities nearest to a question.

The paper has no local search; this follows the documentation of Microsoft GraphRAG. Entities found by their
embeddings lead to their relationships, claims, community reports and chunks. Chunks, reports, and all other
records have a share of the context each.

Where we differ: entities that the question mentions literally come first. Each entity contributes one report,
of its finest community with a report down to the level, and not the reports of all levels above. Chunks are
ranked by a random walk from the question (`chunk_walk.py`), which finds more relevant ones: see "Walks" in
benchmarks/RESULTS.md. Without the walk (`query.local_pagerank: false`, or an index made by an earlier
version), chunks of the entities are ranked by how many of the mentioned entities they contain, then by
similarity to the question, so that a frequent entity does not fill the context.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import groupby, islice, zip_longest

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.arrow_arrays import to_arrow_strings
from graphrag_ray.base.ids import report_id
from graphrag_ray.base.schema import NAME_LINKS_TABLE, RELATIONSHIP_ENDS, search_index_table
from graphrag_ray.graph.report_context import Context, Record, claim_record
from graphrag_ray.query.methods.chunk_walk import walk_chunks
from graphrag_ray.query.methods.context_filling import Share, fill
from graphrag_ray.query.methods.document_filters import RelatedChunks, matching_chunks, matching_ids
from graphrag_ray.query.methods.hierarchy_choice import check_embedded, communities_of, resolve_hierarchy
from graphrag_ray.query.methods.levels import build_levels, is_auto
from graphrag_ray.query.methods.method import (
    By,
    Kind,
    Method,
    Question,
    Rows,
    Search,
    SearchEnv,
    Similarities,
    Steps,
)
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import add_neighbours, fuse, rank, relevant, similarities_of
from graphrag_ray.query.methods.question_names import find_entities, rarest_first
from graphrag_ray.query.methods.record_loading import Row, distinct, load_records, prefix_that_fits
from graphrag_ray.query.methods.single_context import answer_from

NAME = "local"
NO_REPORTS = "Community reports were left out, because they also draw on other documents."
DEFAULT_LEVEL = 2
"""Level that Microsoft GraphRAG's command line reads. An index with fewer levels uses its finest one."""
MIN_CHUNK_TOKENS = 32
"""Assumed minimum size of a chunk, which limits how many are considered. Others count as left out."""
MAX_LISTED_CHUNKS = 2_000
"""The chunks of a more frequent entity are not listed. Instead, chunks near the question are checked."""
MAX_EDGES = 1_000
"""Maximum number of relationships per entity that are compared with the question, most important first. A
frequent name may have a million."""
MAX_CLAIMS = 200
"""Maximum number of claims per entity that are compared with the question."""
GRAPH_WEIGHT = 0.25
"""Weight of the order in the graph relative to the similarity to the question."""

MEMBERS = ["id", "level", "entity_ids"]
EDGES = ["id", "source_id", "target_id", "combined_degree", "weight"]
CLAIMS = ["id", "subject_id", "object_id", "type", "status", "start_date", "end_date", "description"]
CLAIMS += ["subject_entity_id", "text_unit_ids"]


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the neighbourhood of the entities nearest to the question."""
    chunks = yield from matching_chunks(question.where)
    check_embedded(env, NAME, ["entity"])
    finest = yield from finest_level(question.level, env)
    context = yield from context_for(question.text, env, finest=finest, chunks=chunks)
    notes = [] if chunks is None else [NO_REPORTS]
    return (yield from answer_from(question.text, env, NAME, context, notes))


METHOD = MethodKind(
    search,
    stages=("embed", "rerank", "answer"),
    description="entities near the question and their neighbourhood",
    levels=True,
    graph=True,
    suggestions=("hybrid", "global"),
    reports=True,
)


def context_for(
    text: str, env: SearchEnv, *, finest: int = DEFAULT_LEVEL, chunks: Collection[str] | None = None
) -> Steps[Context]:
    """Fill a context of at most `query.context_tokens`. It is empty if no entity is near the question.

    It has reports down to level `finest`, or none if the question is restricted to `chunks`.
    """
    resolve_hierarchy(env, over="entity")
    check_embedded(env, NAME, ["entity"])
    query = env.settings.query
    near, named, similar = yield from _near(text, env, chunks)
    edges, claims, communities = yield from _elements_around(text, list(near), env, chunks)
    shown = {*named, *relevant(near, similar, query.local_min_similarity)}
    # Entities first, then relationships and claims alternately, so that neither displaces the other.
    ids: list[tuple[Kind, str]] = [("entity", id_) for id_ in near if id_ in shown]
    ids += [("relationship", edge["id"]) for edge in edges]
    records = yield from load_records(ids, env, chunks, distinct_texts=True)
    related = [record for record in records if record.section == "Relationships"]
    elements = [record for record in records if record.section == "Entities"]
    pairs = zip_longest(related, distinct(map(claim_record, claims)))
    elements += [record for pair in pairs for record in pair if record]
    limit = min(query.local_chunks, max(1, query.context_tokens // MIN_CHUNK_TOKENS))
    if query.local_pagerank and NAME_LINKS_TABLE in env.n_rows:
        (hits,) = yield from walk_chunks([text], env, limit, chunks)
        order, n_containing = [hit.id for hit in hits], len(hits)
    else:
        order, n_containing = yield from _chunks_around(text, near, named, edges, env, chunks, limit)
    chosen, _ = yield from prefix_that_fits(order, env)
    sources = yield from load_records((("text_unit", id_) for id_ in chosen), env, distinct_texts=True)
    left_out = n_containing - len(chosen)
    reports: list[Record] = []
    if chunks is None:
        around = yield from reports_around(near, env, communities, finest)
        kind = resolve_hierarchy(env).report_kind
        share, report_ids = query.local_min_similarity, [id_ for _, id_ in around]
        similar = yield from similarities_of(kind, report_ids, text, env, share)
        report_ids = relevant(report_ids, similar, share)
        reports = yield from load_records(((kind, id_) for id_ in report_ids), env, distinct_texts=True)
    shares = [
        Share(sources, query.local_text_share),
        Share(elements, 1 - query.local_text_share - query.local_report_share),
        Share(reports, query.local_report_share),
    ]
    shares = [s for s in shares if s.of > 0]
    context = fill(shares, query.context_tokens, env.count, left_out)
    return (yield from add_neighbours(context, shares, env, left_out))


def finest_level(level: str | int | None, env: SearchEnv) -> Steps[int]:
    """Parse the requested level. None and auto mean DEFAULT_LEVEL. Raises LevelNotFound."""
    kind = resolve_hierarchy(env, over="entity")
    if is_auto(level):
        return DEFAULT_LEVEL
    communities = yield communities_of(kind)
    no_reports = communities.slice(0, 0).rename_columns(["community", "n_tokens", "parent", "hierarchy"])
    return build_levels(communities, no_reports, kind.name).parse(level, 0)


def _near(
    text: str, env: SearchEnv, chunks: Collection[str] | None
) -> Steps[tuple[dict[str, int], list[str], dict[str, float]]]:
    """Find mentioned, then nearest entities.

    Returns:
        The number of chunks of each, the ids of those mentioned, and the similarity of the nearest.
    """
    possible = yield from matching_ids("entity", chunks)
    mentioned = yield from find_entities(text)
    k, columns = env.settings.query.local_entities, ["id", "frequency"]
    rows, hits = yield (
        Rows("entities", columns, list(mentioned.spans)),
        Search("entity", "vector", text, k, possible),
    )
    frequency = {row["id"]: row["frequency"] or 0 for row in rows.to_pylist()}
    counted = frequency.keys() if possible is None else frequency.keys() & set(possible)
    named = rarest_first(mentioned, {id_: frequency[id_] for id_ in counted})[:k]
    order = dict.fromkeys([*named, *(hit.id for hit in hits)])
    others = yield Rows("entities", columns, [id_ for id_ in order if id_ not in frequency])
    frequency |= {row["id"]: row["frequency"] or 0 for row in others.to_pylist()}
    near = {id_: frequency[id_] for id_ in order if id_ in frequency}
    return near, named, {hit.id: hit.score for hit in hits}


def _elements_around(
    text: str, entities: Sequence[str], env: SearchEnv, chunks: Collection[str] | None
) -> Steps[tuple[list[Row], list[Row], pa.Table]]:
    """Find the most relevant relationships and claims of entities, and the communities that contain them."""
    query, position = env.settings.query, {id_: n for n, id_ in enumerate(entities)}
    # With conditions there is no limit, because the matching rows may have the lowest rank.
    share = query.local_min_similarity
    n_claims = max(MAX_CLAIMS, query.local_claims) if share else query.local_claims
    most_edges, most_claims = (MAX_EDGES, n_claims) if chunks is None else (None, None)
    columns = EDGES if chunks is None else [*EDGES, "text_unit_ids"]
    tables = yield (
        Rows("relationships", columns, entities, by=RELATIONSHIP_ENDS, limit_per_id=most_edges),
        Rows("covariates", CLAIMS, entities, by="subject_entity_id", limit_per_id=most_claims),
        communities_around(entities, env),
    )
    only = set(chunks or ())
    edges, claims = (
        [r for r in table.to_pylist() if chunks is None or not only.isdisjoint(r["text_unit_ids"])]
        for table in tables[:2]
    )
    if isinstance(chunks, RelatedChunks):
        edges = [row for row in edges if row["id"] in chunks.relationship]
    ids = {row["id"] for row in edges}
    similar = yield from similarities_of("relationship", ids, text, env, share)
    edges = relevant_rows(edges, similar, share)
    chosen = relationships_in_order(edges, position, query.local_relationships, similar)
    if chunks is None:
        with_chunks = yield Rows("relationships", ["id", "text_unit_ids"], [row["id"] for row in chosen])
        lists = {row["id"]: row for row in with_chunks.to_pylist()}
        chosen = [{**row, **lists[row["id"]]} for row in chosen if row["id"] in lists]
    if share and claims:
        scores: list[float] = yield Similarities(text, [row["description"] or "" for row in claims])
        similar = {row["id"]: score for row, score in zip(claims, scores, strict=True)}
        claims = relevant_rows(claims, similar, share)
    return chosen, claims_in_order(claims, position, query.local_claims, similar), tables[2]


def _chunks_around(
    text: str,
    near: Mapping[str, int],
    named: Collection[str],
    edges: Sequence[Row],
    env: SearchEnv,
    chunks: Collection[str] | None,
    limit: int,
) -> Steps[tuple[list[str], int]]:
    """Without a walk, find the first `limit` chunks that contain any of the entities, and count them all."""
    search_types: list[By] = ["vector"] if env.n_rows.get("embeddings_text_unit") else []
    if search_index_table("text_unit", "keyword") in env.n_rows:
        search_types.append("keyword")
    frequent = {id_ for id_, n in near.items() if n > MAX_LISTED_CHUNKS} if search_types else set()
    rows = yield Rows("entities", ["id", "text_unit_ids"], [id_ for id_ in near if id_ not in frequent])
    lists = {row["id"]: row["text_unit_ids"] or [] for row in rows.to_pylist()}
    containing = {c for listed in lists.values() for c in listed if chunks is None or c in chunks}
    candidates = chunks if frequent else containing
    only_ids = None if candidates is None else sorted(candidates)
    searches = [Search("text_unit", by, text, only_ids=only_ids) for by in search_types]
    order = [id_ for _, id_ in (yield from rank(searches, env, limit))]
    if frequent:
        rows = yield Rows("text_units", ["id", "entity_ids"], order)
        contained = {row["id"]: frequent.intersection(row["entity_ids"] or ()) for row in rows.to_pylist()}
        lists |= {id_: [c for c in order if id_ in contained.get(c, ())] for id_ in frequent}
        containing.update(c for c in order if contained.get(c))
    positions = {id_: position for position, id_ in enumerate(id_ for id_ in order if id_ in containing)}
    entities = [{"id": id_, "text_unit_ids": lists.get(id_, [])} for id_ in near]
    n_containing = max([len(containing), *(near[id_] for id_ in frequent if chunks is None)])
    return chunks_in_order(entities, edges, named, positions, chunks, limit), n_containing


def communities_around(entities: Sequence[str], env: SearchEnv) -> Rows:
    """Request the communities that contain any of the entities."""
    return Rows(resolve_hierarchy(env).communities_table, MEMBERS, entities, by="entity_ids", trim_lists=True)


def reports_around(
    entities: Collection[str],
    env: SearchEnv,
    communities: pa.Table | None = None,
    finest: int = DEFAULT_LEVEL,
) -> Steps[list[tuple[Kind, str]]]:
    """Find the reports of the finest communities of entities, down to a level, largest overlap first."""
    kind = resolve_hierarchy(env, over="entity")
    if communities is None:
        communities = yield communities_around(list(entities), env)
    members = memberships(communities, entities, finest)
    report = {m.community: report_id(m.community) for m in members}
    rows = (yield Rows(kind.reports_table, ["id", "rank"], list(report.values()))).to_pylist()
    ranks = {row["id"]: row["rank"] for row in rows}
    ranked = {c: ranks[id_] for c, id_ in report.items() if id_ in ranks}
    return [(kind.report_kind, report[c]) for c in communities_in_order(members, ranked)]


def relevant_rows(rows: Iterable[Row], similarity: Mapping[str, float], share: float) -> list[Row]:
    by_id = {row["id"]: row for row in rows}
    return [by_id[id_] for id_ in relevant(by_id, similarity, share)]


def relationships_in_order(
    rows: Iterable[Row],
    position: Mapping[str, int],
    per_entity: int,
    similarity: Mapping[str, float] | None = None,
) -> list[Row]:
    """Order relationships (EDGES) by similarity to the question and by their order in the graph.

    The order in the graph is Microsoft GraphRAG's: relationships between the entities, then `per_entity` to
    others, shared ones first, and in each group by importance. With similarities, each entity has at most
    `per_entity` relationships.
    """
    inside: list[Row] = []
    outside: list[tuple[str, Row]] = []
    touched: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        ends = [row["source_id"], row["target_id"]]
        others = [e for e in ends if e not in position]
        if not others:
            inside.append(row)
        elif len(others) == 1:
            outside.append((others[0], row))
            touched[others[0]].update(e for e in ends if e in position)
    inside.sort(key=by_importance)
    outside.sort(key=lambda edge: (-len(touched[edge[0]]), by_importance(edge[1])))
    if not similarity:
        return inside + [row for _, row in outside[: per_entity * len(position)]]
    order = {row["id"]: row for row in (*inside, *(row for _, row in outside))}
    in_graph = {id_: -float(n) for n, id_ in enumerate(order)}
    scores = {id_: similarity.get(id_, 0.0) for id_ in order}
    n_shown: Counter[str] = Counter()
    chosen = []
    for id_ in fuse([scores, in_graph], [1 - GRAPH_WEIGHT, GRAPH_WEIGHT]):
        row = order[id_]
        near = {row["source_id"], row["target_id"]} & position.keys()
        if all(n_shown[end] < per_entity for end in near):
            n_shown.update(near)
            chosen.append(row)
    return chosen


def by_importance(row: Row) -> tuple[float, float, str]:
    """Return a sort key for relationships: most connected entities first, then the strongest."""
    return -row["combined_degree"], -row["weight"], row["id"]


def claims_in_order(
    rows: Iterable[Row],
    position: Mapping[str, int],
    per_entity: int,
    similarity: Mapping[str, float] | None = None,
) -> list[Row]:
    """Order claims by subject, similarity and number of chunks, at most `per_entity` of each subject."""
    similar = similarity or {}
    order = sorted(
        rows,
        key=lambda r: (
            *(position[r["subject_entity_id"]], -similar.get(r["id"], 0.0)),
            *(-len(r["text_unit_ids"]), r["id"]),
        ),
    )
    by_subject = groupby(order, lambda r: r["subject_entity_id"])
    return [row for _, claims in by_subject for row in islice(claims, per_entity)]


def chunks_in_order(
    entities: Sequence[Row],
    relationships: Iterable[Row],
    named: Collection[str],
    near: Mapping[str, int],
    chunks: Collection[str] | None,
    limit: int,
) -> list[str]:
    """Choose the first `limit` chunks that contain any of the entities.

    Chunks with the most mentioned entities come first. Among equals, the entities take turns, each with its
    chunk nearest to the question, then with most of its relationships, then first in the corpus.

    Args:
        entities: Rows with id and text_unit_ids, by descending priority.
        relationships: Rows with source_id, target_id and text_unit_ids.
        named: Ids of the entities that the question mentions.
        near: Chunk -> its position among the chunks nearest to the question.
        chunks: Chunks to which the question is restricted. None allows all.
    """
    stated: dict[str, Counter[str]] = {e["id"]: Counter() for e in entities}
    for row in relationships:
        for end in {row["source_id"], row["target_id"]} & stated.keys():
            stated[end].update(row["text_unit_ids"])
    lists = {e["id"]: [c for c in e["text_unit_ids"] if chunks is None or c in chunks] for e in entities}
    n_named = Counter(c for id_ in lists.keys() & set(named) for c in set(lists[id_]))
    by_n_named: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for id_, listed in lists.items():
        for chunk in listed:
            by_n_named[n_named[chunk]][id_].append(chunk)

    def nearest_first(id_: str, listed: Iterable[str]) -> list[str]:
        return nsmallest(limit, listed, key=lambda c: (near.get(c, len(near)), -stated[id_][c]))

    chosen: dict[str, None] = {}
    for n in sorted(by_n_named, reverse=True):
        for chunk in by_turns(nearest_first(id_, listed) for id_, listed in by_n_named[n].items()):
            chosen[chunk] = None
            if len(chosen) == limit:
                return list(chosen)
    return list(chosen)


def by_turns(lists: Iterable[Sequence[str]]) -> Iterator[str]:
    """Merge lists round-robin, without duplicates."""
    seen: set[str] = set()
    remaining = [iter(ids) for ids in lists]
    while remaining:
        unfinished = []
        for ids in remaining:
            new = next((id_ for id_ in ids if id_ not in seen), None)
            if new is not None:
                seen.add(new)
                unfinished.append(ids)
                yield new
        remaining = unfinished


@dataclass(frozen=True, slots=True)
class Membership:
    """A community, and the entities of a question that belong to it."""

    community: str
    level: int
    members: frozenset[str]


def memberships(communities: pa.Table, entities: Collection[str], level: int) -> list[Membership]:
    """Find the communities (id, level, entity_ids) down to `level` that contain any of the entities."""
    coarse = communities.filter(pc.less_equal(communities["level"], level))
    lists = coarse["entity_ids"].combine_chunks()
    ids = lists.flatten()
    mask = pc.is_in(ids, value_set=to_arrow_strings(sorted(entities)))
    members: dict[int, set[str]] = defaultdict(set)
    parents = pc.list_parent_indices(lists).filter(mask).to_pylist()
    for parent, id_ in zip(parents, ids.filter(mask).to_pylist(), strict=True):
        members[parent].add(id_)
    rows = coarse.select(["id", "level"]).to_pylist()
    return [Membership(rows[i]["id"], rows[i]["level"], frozenset(m)) for i, m in sorted(members.items())]


def communities_in_order(members: Sequence[Membership], rank: Mapping[str, float]) -> list[str]:
    """Choose the finest community of each entity whose report has a rank, largest overlap first."""
    coarsest_first = sorted(members, key=lambda m: m.level)
    finest = {entity: m for m in coarsest_first if m.community in rank for entity in m.members}
    chosen = {m.community: m for m in finest.values()}.values()
    return [
        m.community for m in sorted(chosen, key=lambda m: (-len(m.members), -rank[m.community], m.community))
    ]
