"""What stands around the entities that a question is near, in the order of Microsoft GraphRAG's local search
(as its documentation describes it), except for chunks: what comes first is shown first, what does not fit is
left out.

Entities come in by falling priority; `place` is theirs: entity id -> 0, 1, …
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.arrow_arrays import arrow, strings

Row: TypeAlias = Mapping[str, Any]


def relationships_in_order(rows: Iterable[Row], place: Mapping[str, int], per_entity: int) -> list[Row]:
    """Relationships between the entities, then at most `per_entity` for each entity of those that lead
    elsewhere: first those to what many of the entities lead to.

    rows: id, source_id, target_id, combined_degree, weight
    """
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
    """Claims by the place of their subject, at most `per_entity` of each: those that most chunks state.

    rows: id, subject_entity_id, text_unit_ids
    """
    taken: Counter[str] = Counter()
    chosen = []
    order = sorted(rows, key=lambda r: (place[r["subject_entity_id"]], -len(r["text_unit_ids"]), r["id"]))
    for row in order:
        taken[row["subject_entity_id"]] += 1
        if taken[row["subject_entity_id"]] <= per_entity:
            chosen.append(row)
    return chosen


def chunks_in_order(
    entities: Sequence[Row],
    relationships: Iterable[Row],
    named: Collection[str],
    near: Mapping[str, int],
    within: Collection[str] | None,
    most: int,
) -> list[str]:
    """Ids of the first `most` chunks that hold some of the entities: first those that hold most of the named
    ones; among these the entities take turns, each with its chunk that is nearest to the question.

    entities       id, text_unit_ids; by falling priority
    relationships  the first of theirs: source_id, target_id, text_unit_ids
    named          ids of the entities that the question names
    near           places of the chunks that are nearest to the question; the others of an entity follow by
                   how many of its relationships they state, then as they stand in the corpus
    within         the only chunks that count; None: all

    Takes time in proportion to the lists of ids, and log(most) a chunk.
    """
    stated = _stated({e["id"] for e in entities}, relationships)
    chunks = {e["id"]: [c for c in e["text_unit_ids"] if within is None or c in within] for e in entities}
    held = Counter(c for id_ in chunks.keys() & set(named) for c in set(chunks[id_]))
    by_held: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for id_, own in chunks.items():
        for chunk in own:
            by_held[held[chunk]][id_].append(chunk)
    chosen: dict[str, None] = {}
    for n in sorted(by_held, reverse=True):
        lists = by_held[n].items()
        for chunk in by_turns(_nearest_first(own, near, stated[id_], most) for id_, own in lists):
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


def _nearest_first(
    chunks: Iterable[str], near: Mapping[str, int], stated: Mapping[str, int], most: int
) -> list[str]:
    far = len(near)
    return nsmallest(most, chunks, key=lambda c: (near.get(c, far), -stated[c]))


def _stated(entities: Collection[str], relationships: Iterable[Row]) -> dict[str, Counter[str]]:
    """How many relationships of each entity a chunk states."""
    stated: dict[str, Counter[str]] = {id_: Counter() for id_ in entities}
    for row in relationships:
        for end in {row["source_id"], row["target_id"]} & stated.keys():
            stated[end].update(row["text_unit_ids"])
    return stated


@dataclass(frozen=True, slots=True)
class Membership:
    """A community, and which of the entities are in it."""

    community: str
    level: int
    members: frozenset[str]


def memberships(communities: pa.Table, entities: Collection[str], level: int) -> list[Membership]:
    """The communities of at most `level` that hold some of the entities.

    communities: id, level, entity_ids; the coarsest may list all entities of the index, so that no Python
    object is made of any but ours
    """
    levels = communities["level"].to_pylist()
    own = communities.take(arrow(np.flatnonzero([of <= level for of in levels])))
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
    hold most of the entities first, then by their reports' rank.

    rank: of the report of each community that has one
    """
    finest: dict[str, Membership] = {}
    for membership in (m for m in found if m.community in rank):
        for entity in membership.members:
            known = finest.get(entity)
            if known is None or membership.level > known.level:
                finest[entity] = membership
    chosen = {m.community: m for m in finest.values()}.values()
    return [
        m.community for m in sorted(chosen, key=lambda m: (-len(m.members), -rank[m.community], m.community))
    ]
