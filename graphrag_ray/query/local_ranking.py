"""What stands around the entities that a question is near, in the order of Microsoft GraphRAG's local search
(as its documentation describes it): what comes first is shown first, what does not fit is left out.

Entities come in by falling nearness; `place` is theirs: entity id -> 0, 1, …
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

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
    inside.sort(key=_worth)
    outside.sort(key=lambda found: (-len(touched[found[0]]), _worth(found[1])))
    return inside + [row for _, row in outside[: per_entity * len(place)]]


def _worth(row: Row) -> tuple[float, float, str]:
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
    entities: Sequence[Row], relationships: Iterable[Row], within: Collection[str] | None
) -> list[str]:
    """Ids of the chunks that name the entities: by the first entity named, then by how many of its
    relationships the chunk states, then as they stand in the corpus.

    entities: id, text_unit_ids; relationships: all of theirs; source_id, target_id, text_unit_ids
    within: the only chunks that count; None: all
    """
    stated: dict[str, Counter[str]] = {e["id"]: Counter() for e in entities}
    for row in relationships:
        for end in {row["source_id"], row["target_id"]} & stated.keys():
            stated[end].update(row["text_unit_ids"])
    chosen: dict[str, None] = {}
    for entity in entities:
        own = stated[entity["id"]]
        mine = [c for c in entity["text_unit_ids"] if within is None or c in within]
        chosen.update(dict.fromkeys(sorted(mine, key=lambda c: -own[c])))
    return list(chosen)


@dataclass(frozen=True, slots=True)
class Membership:
    """A community, and which of the entities are in it."""

    community: str
    level: int
    members: frozenset[str]


def memberships(
    communities: pa.Table, entities: Collection[str], level: int, hierarchy: str
) -> list[Membership]:
    """The communities of at most `level` that hold some of the entities.

    communities: id, level, hierarchy, entity_ids; the coarsest list all entities of the index, so that no
    Python object is made of any but ours
    """
    own = communities.filter(
        pc.and_(pc.equal(communities["hierarchy"], hierarchy), pc.less_equal(communities["level"], level))
    )
    lists = own["entity_ids"].combine_chunks()
    ids = lists.flatten()
    ours = pc.is_in(ids, value_set=pa.array(sorted(entities), ids.type))
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
