"""Breadth-first expansion from entities, and its limits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.query.methods.fgrag_search import (
    MAX_HOPS,
    MAX_LINKS,
    MAX_TOTAL,
    MAX_WEAK,
    Element,
    expand,
)

Row = dict[str, Any]

NAMES = [f"e{n}" for n in range(40)]
pairs = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=300)
starts = st.lists(st.sampled_from(NAMES), max_size=20)


def link(source: str, target: str, degree: int = 1, weight: float = 1.0) -> Row:
    ends = {"source_id": source, "target_id": target}
    return {"id": f"{source}-{target}", **ends, "combined_degree": degree, "weight": weight}


def links(of: Sequence[tuple[str, str]]) -> list[Row]:
    return [link(a, b, degree=hash_of(a, b)) for a, b in dict.fromkeys(of)]


def hash_of(a: str, b: str) -> int:
    return (int(a[1:]) * 7 + int(b[1:]) * 13) % 5


def expanded(
    rows: Sequence[Row],
    weak: Sequence[str],
    strong: Sequence[str] = (),
    order: Callable[[list[Row]], list[Row]] = list,
    asked: list[list[str]] | None = None,
) -> list[Element]:
    """Expand with relationships in this order. `asked` collects the entities of each step."""
    expansion = expand(weak, strong)
    try:
        here = next(expansion)
        while True:
            if asked is not None:
                asked.append(list(here))
            wanted = set(here)
            here = expansion.send(order([r for r in rows if wanted & {r["source_id"], r["target_id"]}]))
    except StopIteration as ended:
        found: list[Element] = ended.value
        return found


def chain(n: int) -> list[Row]:
    return [link(f"e{a}", f"e{b}") for a, b in itertools.pairwise(range(n))]


@given(pairs, starts, starts)
def test_expansion_is_bounded_and_distinct(of: list[tuple[str, str]], weak: list[str], strong: list[str]):
    asked: list[list[str]] = []
    found = expanded(links(of), weak, strong, asked=asked)
    assert len(found) == len(set(found)) <= MAX_TOTAL
    assert len(expanded(links(of), weak)) <= MAX_WEAK
    assert len(asked) <= 2 * MAX_HOPS and all(len(here) <= MAX_TOTAL for here in asked)
    assert all(len(here) == len(set(here)) for here in asked)


@given(pairs, starts, starts, st.randoms(use_true_random=False))
def test_expansion_does_not_depend_on_row_order(
    of: list[tuple[str, str]], weak: list[str], strong: list[str], chance: random.Random
):
    def shuffled(rows: list[Row]) -> list[Row]:
        return chance.sample(rows, len(rows))

    first = expanded(links(of), weak, strong)
    assert expanded(links(of), weak, strong, shuffled) == first
    assert expanded(links(of), weak, strong, lambda rows: rows[::-1]) == first


@given(pairs, starts, starts)
def test_expansion_is_connected_to_its_start(of: list[tuple[str, str]], weak: list[str], strong: list[str]):
    """Each entity is a start, or an end of an earlier relationship."""
    rows = {row["id"]: row for row in links(of)}
    begun = {*weak, *strong}
    led_to: set[str] = set()
    for kind, id_ in expanded(list(rows.values()), weak, strong):
        if kind == "entity":
            assert id_ in begun | led_to
        else:
            ends = {rows[id_]["source_id"], rows[id_]["target_id"]}
            assert ends & (begun | led_to)
            led_to |= ends


def test_nearer_entities_come_first():
    found = expanded(chain(6), ["e0"])
    assert [id_ for _, id_ in found[:6]] == ["e0", "e0-e1", "e1", "e1-e2", "e2", "e2-e3"]


def test_number_of_hops_is_limited():
    found = expanded(chain(30), ["e0"])
    assert {id_ for kind, id_ in found if kind == "entity"} == {f"e{n}" for n in range(MAX_HOPS + 1)}


def test_relationships_among_reached_entities_come_first():
    rows = [link("e0", "e9", degree=99), link("e0", "e1")]
    found = expanded(rows, ["e0", "e1"])
    assert [id_ for kind, id_ in found if kind == "relationship"] == ["e0-e1", "e0-e9"]


def test_hub_does_not_displace_other_entities():
    hub = [link("e0", f"far{n}", degree=1_000) for n in range(500)]
    found = expanded([*hub, link("e1", "e2")], ["e0", "e1"])
    assert ("relationship", "e1-e2") in found[:5] and ("entity", "e2") in expanded([link("e1", "e2")], ["e1"])
    assert sum(id_.startswith("e0-") for _, id_ in found) <= MAX_LINKS


def test_most_important_relationships_of_hub_are_followed():
    hub = [link("e0", f"far{n}", degree=n) for n in range(500)]
    found = expanded(hub, ["e0"])
    assert ("relationship", "e0-far499") in found and ("relationship", "e0-far0") not in found


def test_strong_context_fills_remaining_room():
    rows = [link(f"e{a}", f"e{b}") for a in range(20) for b in range(20) if a < b]
    weak, strong = [f"e{n}" for n in range(10)], [f"e{n}" for n in range(5, 15)]
    assert len(expanded(rows, weak)) == MAX_WEAK
    found = expanded(rows, weak, strong)
    assert found[:MAX_WEAK] == expanded(rows, weak)
    assert len(found) == MAX_TOTAL and ("entity", "e14") in found


def test_empty_start_makes_no_requests():
    asked: list[list[str]] = []
    assert expanded(chain(3), [], [], asked=asked) == [] and asked == []
    assert expanded([], ["e0"]) == [("entity", "e0")]
