"""Which passages are tested for relevance, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.query.methods.passage_tests import (
    BATCH,
    CORPUS,
    FIRST_BATCH,
    MAX_MISSES,
    STRAYS,
    Batch,
    ChunkCommunities,
    PassageTests,
)


def ids(*numbers: int) -> list[str]:
    return [f"t{n}" for n in numbers]


def flat(of: Mapping[int, Collection[str]]) -> ChunkCommunities:
    """Build communities without sub-communities from their chunks."""
    chunks = {chunk for members in of.values() for chunk in members}
    of_chunk = {chunk: [c for c, members in of.items() if chunk in members] for chunk in chunks}
    return ChunkCommunities.build(dict.fromkeys(of, -1), of_chunk)


def run(tests: PassageTests, relevant: Collection[str], budget: int = 1_000, each: int = 16) -> list[Batch]:
    """Test passages until the budget is spent or none is left, and list the batches."""
    batches: list[Batch] = []
    while budget and not tests.ended:
        for batch in tests.next_batches(min(each, budget)):
            budget -= len(batch.chunks)
            batches.append(batch)
            tests.add(batch, not set(relevant).isdisjoint(batch.chunks))
    return batches


def chunks_of(batches: Collection[Batch], community: int) -> list[str]:
    return [chunk for batch in batches if batch.community == community for chunk in batch.chunks]


def test_the_nearest_passages_come_first_whatever_their_community():
    ranked = ids(*range(40))
    tests = PassageTests(ranked, flat({1: ranked[20:], 2: ranked[:20]}))
    assert tests.next_batches(100) == [Batch(CORPUS, tuple(ranked[:FIRST_BATCH]))]


def test_communities_are_ranked_by_the_mean_rank_of_their_best_chunks():
    ranked = ids(*range(60))
    early, mixed = ranked[:28], [*ranked[28:32], *ranked[36:40]]
    late = [*ranked[32:36], *ranked[40:]]
    batches = run(PassageTests(ranked, flat({1: late, 2: mixed, 3: early})), ())
    assert [batch.community for batch in batches[1:]] == [3, 2, 1]
    assert batches[1].chunks == tuple(early[FIRST_BATCH:][:BATCH])


def test_a_chunk_is_tested_for_its_best_ranked_community_only():
    ranked = ids(*range(40))
    batches = run(PassageTests(ranked, flat({1: ranked[5:], 2: ranked[:20]})), ranked)
    assert set(chunks_of(batches, 2)) == set(ranked[8:20])
    assert set(chunks_of(batches, 1)) == set(ranked[20:])


def test_tests_are_spread_over_communities_before_any_is_continued():
    ranked = ids(*range(128))
    of = {c: ranked[8 + 20 * c : 28 + 20 * c] for c in range(6)}
    batches = run(PassageTests(ranked, flat(of)), ranked)
    assert [batch.community for batch in batches if batch.community >= 0][:12] == [*range(6), *range(6)]


def test_a_community_without_a_relevant_passage_is_eliminated_with_everything_below():
    ranked = ids(*range(60))
    parent = {1: -1, 2: -1, 10: 1, 11: 1, 20: 2}
    first, second, third = ranked[8:24], ranked[24:40], ranked[40:]
    of_chunk = dict.fromkeys(first, (1, 10)) | dict.fromkeys(second, (1, 11)) | dict.fromkeys(third, (2, 20))
    batches = run(PassageTests(ranked, ChunkCommunities.build(parent, of_chunk)), [*first, *second])
    assert [batch.community for batch in batches[:3]] == [CORPUS, 1, 2]
    assert {batch.community for batch in batches[3:]} == {10, 11}
    assert set(chunks_of(batches, 1) + chunks_of(batches, 10)) >= set(first)
    assert chunks_of(batches, 2) == third[:BATCH]


def test_a_pass_ends_after_several_communities_in_a_row_without_a_relevant_passage():
    ranked = ids(*range(8 + 4 * 20))
    of = {c: ranked[8 + 4 * c : 12 + 4 * c] for c in range(20)} | {20: ranked[:8]}
    first = 2  # batches of the nearest passages
    assert len(run(PassageTests(ranked, flat(of)), (), each=BATCH)) == first + MAX_MISSES
    assert len(run(PassageTests(ranked, flat(of)), ranked[24:28], each=BATCH)) == first + 5 + MAX_MISSES


def test_a_failed_test_eliminates_nothing():
    ranked = ids(*range(20))
    tests = PassageTests(ranked, flat({1: ranked}))
    n = 0
    while not tests.ended:
        for batch in tests.next_batches(16):
            n += len(batch.chunks)
            tests.add(batch, None)
    assert n == len(ranked)


def test_passages_in_no_community_are_tested_like_those_of_a_community():
    ranked = ids(*range(30))
    batches = run(PassageTests(ranked, flat({1: ranked[:20]})), ranked)
    assert set(chunks_of(batches, STRAYS)) == set(ranked[20:])


def test_without_communities_passages_are_tested_in_order_until_too_many_are_irrelevant():
    ranked = ids(*range(100))
    batches = run(PassageTests(ranked, ChunkCommunities()), ranked[:30], each=BATCH)
    shown = [chunk for batch in batches for chunk in batch.chunks]
    assert shown == ranked[: len(shown)] and len(shown) <= 32 + MAX_MISSES * BATCH
    assert PassageTests((), ChunkCommunities()).ended


def test_chunks_are_grouped_by_the_community_that_has_most_of_them():
    parent = {1: -1, 2: -1, 10: 1, 11: 1}
    of_chunk = {"a": [1, 10], "b": [2], "c": [1, 11, 2], "d": [1, 10], "e": [1, 11], "f": []}
    communities = ChunkCommunities.build(parent, of_chunk)
    assert communities.grouped("abcdef") == ["a", "d", "c", "e", "b", "f"]
    assert communities.grouped("fab") == ["a", "b", "f"]


@st.composite
def hierarchies(draw: st.DrawFn) -> tuple[list[str], ChunkCommunities]:
    """Ranked chunks, and communities of which each chunk belongs to some, with their ancestors."""
    n_communities, n_chunks = draw(st.integers(0, 12)), draw(st.integers(0, 60))
    parent = {c: draw(st.integers(-1, c - 1)) for c in range(n_communities)}
    of_chunk: dict[str, set[int]] = {}
    for chunk in (ranked := ids(*range(n_chunks))):
        of_chunk[chunk] = (
            draw(st.sets(st.sampled_from(range(n_communities)), max_size=3)) if parent else set()
        )
        while above := {parent[c] for c in of_chunk[chunk]} - of_chunk[chunk] - {-1}:
            of_chunk[chunk] |= above
    return ranked, ChunkCommunities.build(parent, of_chunk)


@given(hierarchies(), st.data())
def test_no_passage_is_tested_twice_and_no_limit_is_exceeded(
    corpus: tuple[list[str], ChunkCommunities], data: st.DataObject
):
    ranked, communities = corpus
    tests, seen = PassageTests(ranked, communities), list[str]()
    for _ in range(2 * len(ranked) + 2):
        limit = data.draw(st.integers(1, 12))
        batches = tests.next_batches(limit)
        assert sum(len(batch.chunks) for batch in batches) <= limit
        assert batches or tests.ended
        for batch in batches:
            assert batch.chunks
            for chunk in batch.chunks if batch.community >= 0 else ():
                assert batch.community in communities.of_chunk[chunk]
            seen += batch.chunks
            tests.add(batch, data.draw(st.sampled_from([True, True, False, None])))
    assert tests.ended and len(seen) == len(set(seen)) and set(seen) <= set(ranked)
    assert sorted(communities.grouped(seen)) == sorted(seen)
