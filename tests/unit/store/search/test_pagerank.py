"""Forward push equals personalized PageRank without visiting the whole graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import igraph
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linked_names import Links, chunk_id, shard_of

from graphrag_ray.base.ids import name_id
from graphrag_ray.store.search import name_links
from graphrag_ray.store.search.mapped_arrays import InMemory
from graphrag_ray.store.search.name_links import NameLinks
from graphrag_ray.store.search.pagerank import DAMPING, PRECISION, WalkHit, count_holders, walk

CHUNKS = "abcdefghijkl"
LINKS = st.dictionaries(
    st.tuples(st.sampled_from(CHUNKS), st.sampled_from([f"Name {n}" for n in range(9)])),
    st.integers(1, 10),
    min_size=1,
    max_size=60,
)


Start = tuple[Links, dict[str, float], dict[str, float]]
"""Links, and where a walk begins: names and chunks."""


def scores_by_chunk(found: Sequence[WalkHit]) -> dict[str, float]:
    name = {chunk_id(c): c for c in CHUNKS}
    return {name[id_]: score for id_, score, _ in found}


def run_walk(
    shards: Sequence[NameLinks],
    names: Mapping[str, float],
    chunks: Mapping[str, float],
    k: int = 100,
    among: str | None = None,
) -> list[WalkHit]:
    begin = {name_id(n): w for n, w in names.items()}
    only = None if among is None else [chunk_id(c) for c in among]
    return walk(shards, begin, {chunk_id(c): w for c, w in chunks.items()}, k, only)


def igraph_scores(links: Links, names: Mapping[str, float], chunks: Mapping[str, float]) -> dict[str, float]:
    """Return the scores computed by igraph."""
    nodes = list(dict.fromkeys(end for pair in links for end in pair))
    graph = igraph.Graph(len(nodes), [(nodes.index(a), nodes.index(b)) for a, b in links])
    reset = [names.get(n, 0.0) + chunks.get(n, 0.0) for n in nodes]
    scores = graph.personalized_pagerank(
        directed=False, damping=DAMPING, reset=reset, weights=list(links.values())
    )
    return {n: s for n, s in zip(nodes, scores, strict=True) if n in CHUNKS}


@st.composite
def walks(draw: st.DrawFn) -> Start:
    links = draw(LINKS)
    weights = st.floats(0.01, 5)
    names = draw(st.dictionaries(st.sampled_from(sorted({n for _, n in links})), weights, max_size=3))
    chunks = draw(st.dictionaries(st.sampled_from(sorted({c for c, _ in links})), weights, max_size=3))
    if not names and not chunks:
        chunks = {min(c for c, _ in links): 1.0}
    return links, names, chunks


@settings(deadline=None)
@given(walks())
def test_scores_equal_personalized_pagerank(
    drawn: tuple[Links, dict[str, float], dict[str, float]],
) -> None:
    links, names, chunks = drawn
    found = scores_by_chunk(run_walk([shard_of(links)], names, chunks))
    for chunk, score in igraph_scores(links, names, chunks).items():
        weight = sum(w for (c, _), w in links.items() if c == chunk)
        assert found.get(chunk, 0.0) == pytest.approx(score, abs=weight * PRECISION + 1e-9)


@settings(deadline=None)
@given(walks(), st.lists(st.integers(0, 2), min_size=12, max_size=12))
def test_division_into_shards_does_not_matter(drawn: Start, shard_numbers: list[int]) -> None:
    links, names, chunks = drawn
    of = dict(zip(CHUNKS, shard_numbers, strict=True))
    shards = [shard_of({p: w for p, w in links.items() if of[p[0]] == n}) for n in range(3)]
    apart, together = (
        scores_by_chunk(run_walk(shards, names, chunks)),
        scores_by_chunk(run_walk([shard_of(links)], names, chunks)),
    )
    assert apart == pytest.approx(together, abs=1e-12)


CHAIN: Links = {
    ("a", "Teutberga"): 10,
    ("a", "Lothair II"): 1,
    ("b", "Lothair II"): 10,
    ("b", "Piacenza"): 1,
    ("c", "Piacenza"): 10,
    ("d", "Somebody else"): 10,
}


def test_walk_finds_a_passage_that_shares_no_name_with_the_question() -> None:
    found = run_walk([shard_of(CHAIN)], {"Teutberga": 1.0}, {})
    assert list(scores_by_chunk(found)) == ["a", "b", "c"]


def test_paths_lead_from_restarts_to_chunks() -> None:
    found = {id_: path for id_, _, path in run_walk([shard_of(CHAIN)], {"Teutberga": 1.0}, {"d": 0.1})}
    assert found[chunk_id("a")] == ("Teutberga",)
    assert found[chunk_id("b")] == ("Teutberga", chunk_id("a"), "Lothair II")
    assert found[chunk_id("d")] == ()


def test_path_of_a_restart_chunk_names_the_larger_contribution() -> None:
    restarts = {"a": 1e-3, "b": 1e-3}
    found = {id_: path for id_, _, path in run_walk([shard_of(CHAIN)], {"Teutberga": 1.0}, restarts)}
    assert found[chunk_id("a")] == ("Teutberga",)
    assert found[chunk_id("b")] == ("Teutberga", chunk_id("a"), "Lothair II")
    alone = run_walk([shard_of(CHAIN)], {}, {"a": 1.0})
    assert alone[0][2] == (), "a chunk is not on its own path"


def test_names_with_the_same_words_are_equal() -> None:
    found = run_walk([shard_of(CHAIN)], {"lothair  ii": 1.0}, {})
    assert next(iter(scores_by_chunk(found))) == "b"


def test_walk_is_limited_to_given_chunks() -> None:
    shards = [shard_of(CHAIN)]
    assert list(scores_by_chunk(run_walk(shards, {"Teutberga": 1.0}, {}, among="ac"))) == ["a"]
    assert list(scores_by_chunk(run_walk(shards, {"Teutberga": 1.0}, {"b": 1.0, "d": 1.0}, among="b"))) == [
        "b"
    ]
    assert run_walk(shards, {"Teutberga": 1.0}, {}, among="") == []


def test_unknown_restarts_are_ignored() -> None:
    shards = [shard_of(CHAIN)]
    assert run_walk(shards, {"Nobody": 1.0}, {"z": 1.0}) == []
    assert run_walk(shards, {}, {}) == []
    assert run_walk([], {"Teutberga": 1.0}, {"a": 1.0}) == []


def test_chunk_without_names_is_found_as_a_restart() -> None:
    assert list(scores_by_chunk(run_walk([shard_of(CHAIN, "l")], {}, {"l": 1.0}))) == ["l"]


def test_single_node_is_a_graph() -> None:
    assert scores_by_chunk(run_walk([shard_of({("a", "Ada"): 1})], {"Ada": 3.0}, {})) == pytest.approx(
        {"a": 1 / 3}, abs=1e-5
    )


def test_ties_are_sorted_by_id() -> None:
    links = {(c, "Ada"): 1 for c in CHUNKS}
    found = run_walk([shard_of(links)], {"Ada": 1.0}, {}, k=5)
    assert [id_ for id_, _, _ in found] == sorted(chunk_id(c) for c in CHUNKS)[:5]


def test_frequent_name_with_a_low_residual_is_not_pushed() -> None:
    n = 100_000
    ids = [f"{i:032x}" for i in range(n)]
    names = {name_id("Everywhere"): "Everywhere", name_id("Rare"): "Rare"}
    chunk, name = np.append(np.arange(n), 7), np.append(np.zeros(n, np.int64), 1)
    shard = name_links.read(InMemory.of(name_links.build(ids, names, chunk, name, np.ones(n + 1, np.int64))))
    found = walk([shard], {name_id("Rare"): 1.0}, {}, 10, precision=1e-5)
    assert found[0][0] == ids[7]
    assert len(found) == 1, "the share of each of 100,000 chunks is below the precision"
    assert len(walk([shard], {name_id("Everywhere"): 1.0}, {}, 10)) == 10


def test_holders_are_counted_in_all_shards() -> None:
    shards = [shard_of({("a", "Ada"): 1, ("b", "Ada"): 1}), shard_of({("c", "Ada"): 1, ("c", "Bert"): 1})]
    wanted = [name_id(name) for name in ("Ada", "Bert", "Zed")]
    assert count_holders(shards, wanted) == {name_id("Ada"): 3, name_id("Bert"): 1}
    assert count_holders(shards, []) == {}
