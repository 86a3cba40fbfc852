"""Breadth-first expansion over the graph, for FG-RAG: the entities and relationships around some entities.

A generator that does no I/O: it yields the ids of entities, is sent their relationships, and returns what it
reached. The paper leaves the order within a step open. Here the entities take turns, each with its next
relationship, so that one with many relationships does not take all the room; and a relationship to an entity
that was reached already comes before one that leads on.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TypeAlias

from graphrag_ray.query.methods.local_ranking import Row, by_turns
from graphrag_ray.query.methods.method import Kind

MOST_WEAK = 75
"""Entities and relationships that are reached from the weak context; as in the paper."""
MOST_IN_ALL = 150
"""From the weak and the strong context together; as in the paper."""
MOST_HOPS = 4
"""From the first entities: what is farther says little of them, and each hop is a reading of its own. The
paper has no such bound."""
MOST_LINKS = 50
"""Relationships of an entity that are looked at, those with the best connected entities first: an entity may
have a million."""

Reached: TypeAlias = tuple[Kind, str]
"""A kind, entity or relationship, and an id."""

Expansion: TypeAlias = Generator[Sequence[str], Sequence[Row], list[Reached]]


def expand(weak: Sequence[str], strong: Sequence[str]) -> Expansion:
    """What is reached from the weak context, up to MOST_WEAK, then from the strong one, up to MOST_IN_ALL, in
    this order and each once.

    weak, strong: ids of entities by falling nearness

    Yields at most as many ids as may still be reached, and is sent rows in any order: id, source_id,
    target_id, combined_degree, weight.
    """
    reached: dict[Reached, None] = {}
    for start, most in ((weak, MOST_WEAK), (strong, MOST_IN_ALL)):
        yield from _breadth_first(start, most, reached)
    return list(reached)


def _breadth_first(
    start: Sequence[str], most: int, reached: dict[Reached, None]
) -> Generator[Sequence[str], Sequence[Row], None]:
    """Adds to `reached` until it holds `most`, or nothing new is found."""
    here = list(dict.fromkeys(start))[:most]
    for hop in range(MOST_HOPS + 1):
        _add(reached, (("entity", id_) for id_ in here), most)
        if not here or hop == MOST_HOPS or len(reached) >= most:
            return
        rows = yield here
        links = {row["id"]: row for row in rows}
        order = by_turns(_links_in_order(links.values(), here, reached).values())
        before = len(reached)
        _add(reached, (("relationship", id_) for id_ in order), most)
        new = [id_ for kind, id_ in list(reached)[before:] if kind == "relationship"]
        ends = (links[id_][end] for id_ in new for end in ("source_id", "target_id"))
        here = [id_ for id_ in dict.fromkeys(ends) if ("entity", id_) not in reached]


def _add(reached: dict[Reached, None], found: Iterable[Reached], most: int) -> None:
    for one in found:
        if len(reached) >= most:
            return
        reached[one] = None


def _links_in_order(
    rows: Iterable[Row], here: Sequence[str], reached: Mapping[Reached, None]
) -> dict[str, list[str]]:
    """Of each of these entities the first MOST_LINKS relationships: those to what was reached already, then
    those of the best connected entities."""
    links: dict[str, list[Row]] = {id_: [] for id_ in here}
    for row in rows:
        for end in {row["source_id"], row["target_id"]} & links.keys():
            links[end].append(row)

    def worth(row: Row) -> tuple[float, float, str]:
        return -row["combined_degree"], -row["weight"], row["id"]

    def leads_on(row: Row) -> bool:
        return any(("entity", row[end]) not in reached for end in ("source_id", "target_id"))

    best = {id_: sorted(own, key=worth)[:MOST_LINKS] for id_, own in links.items()}
    return {id_: [row["id"] for row in sorted(own, key=leads_on)] for id_, own in best.items()}
