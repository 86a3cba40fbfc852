"""Vector search: exact, by cosine, ties by id."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphrag_ray.search import vectors
from graphrag_ray.search.vectors import DIGITS, Floats

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)
MATRICES = st.integers(1, 8).flatmap(
    lambda d: st.tuples(
        hnp.arrays(np.float32, st.tuples(st.integers(1, 30), st.just(d)), elements=FINITE),
        hnp.arrays(np.float32, (1, d), elements=FINITE),
    )
)


def found(matrix: Floats, wanted: Floats, k: int, among: list[str] | None = None) -> list[tuple[str, float]]:
    ids = [f"{i:03}" for i in range(len(matrix))]
    shard = vectors.read(vectors.build(ids, matrix))
    only = None if among is None else pa.array(among, pa.string())
    return vectors.search(shard, vectors.unit(wanted)[0], k, only)


def cosines(matrix: Floats, wanted: Floats) -> np.ndarray:
    with np.errstate(all="ignore"):
        m, w = matrix.astype(np.float64), wanted[0].astype(np.float64)
        lengths = np.linalg.norm(m, axis=1) * np.linalg.norm(w)
        return np.where(lengths > 0, m @ w / lengths, 0.0)


@given(MATRICES, st.integers(1, 40))
def test_the_nearest_are_those_of_brute_force(drawn: tuple[Floats, Floats], k: int):
    matrix, wanted = drawn
    hits, expected = found(matrix, wanted, k), cosines(matrix, wanted)
    assert len(hits) == min(k, len(matrix))
    scores = [score for _, score in hits]
    assert np.allclose(scores, np.sort(expected)[::-1][:k], atol=1e-5)
    assert np.allclose(scores, [expected[int(id_)] for id_, _ in hits], atol=1e-5)
    assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))


@given(MATRICES, st.data())
def test_only_records_among_the_wanted_ones_count(drawn: tuple[Floats, Floats], data: st.DataObject):
    matrix, wanted = drawn
    everything = found(matrix, wanted, len(matrix))
    only = data.draw(st.lists(st.sampled_from([id_ for id_, _ in everything]), unique=True))
    expected = [hit for hit in everything if hit[0] in only]
    hits = found(matrix, wanted, 5, only)
    assert [id_ for id_, _ in hits] == [id_ for id_, _ in expected[:5]] or np.allclose(
        [s for _, s in hits], [s for _, s in expected[:5]], atol=2 * 10**-DIGITS
    )


def test_equal_vectors_come_in_the_order_of_their_ids():
    vector = np.random.default_rng(7).normal(size=256).astype(np.float32)
    matrix = np.tile(vector, (1_000, 1))
    assert [id_ for id_, _ in found(matrix, vector[None], 5)] == ["000", "001", "002", "003", "004"]


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -np.inf])
def test_a_vector_without_a_direction_is_near_to_nothing(bad: float):
    matrix = np.array([[1, 1], [bad, 1], [-1, -1]], np.float32)
    matrix[1] = [bad, bad]
    assert found(matrix, np.array([[1, 1]], np.float32), 3) == [("000", 1.0), ("001", 0.0), ("002", -1.0)]


def test_a_shard_is_mapped_and_not_copied(tmp_path):
    matrix = np.random.default_rng(7).normal(size=(100, 16)).astype(np.float32)
    path = tmp_path / "shard"
    path.write_bytes(vectors.build([str(i) for i in range(100)], matrix))
    before = pa.total_allocated_bytes()
    shard = vectors.read(pa.memory_map(str(path)).read_buffer())
    assert not shard.vectors.flags.writeable and pa.total_allocated_bytes() == before


# by the graph


@pytest.fixture(scope="module")
def many() -> Floats:
    """Vectors around some hundred centres."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(100, 32))
    return (centres[rng.integers(0, 100, 6_000)] + 0.5 * rng.normal(size=(6_000, 32))).astype(np.float32)


@pytest.fixture(scope="module")
def both(many: Floats) -> tuple[vectors.VectorShard, vectors.VectorShard]:
    """The same, exact and with a graph."""
    ids = [f"{i:04}" for i in range(len(many))]
    return (vectors.read(vectors.build(ids, many)), vectors.read(vectors.build(ids, many, graph=True)))


@pytest.mark.parametrize("k", [1, 10, 100, 599, 2_000, 10_000])
def test_the_graph_finds_what_exact_search_finds(both: tuple[vectors.VectorShard, ...], many: Floats, k: int):
    shares = []
    for wanted in vectors.unit(many[:40] + many[100:140]):
        exact, near = (vectors.search(shard, wanted, k) for shard in both)
        assert len(near) == min(k, len(many)) == len({id_ for id_, _ in near})
        assert np.allclose([s for _, s in exact][:1], [s for _, s in near][:1], atol=0.05)
        shares.append(len({id_ for id_, _ in exact} & {id_ for id_, _ in near}) / len(near))
    assert np.mean(shares) > 0.97


@pytest.mark.parametrize("n", [0, 1, 30, 1_000, 3_000, 5_999])
@pytest.mark.parametrize("k", [5, 200])
def test_the_graph_finds_all_that_there_are_among_the_wanted_records(
    both: tuple[vectors.VectorShard, ...], many: Floats, n: int, k: int
):
    only = pa.array(np.random.default_rng(n).permutation([f"{i:04}" for i in range(len(many))])[:n].tolist())
    for wanted in vectors.unit(many[:10]):
        exact, near = (vectors.search(shard, wanted, k, only.cast(pa.string())) for shard in both)
        assert len(near) == min(k, n) and {id_ for id_, _ in near} <= set(only.to_pylist())
        assert np.allclose([s for _, s in near], [s for _, s in exact], atol=0.02)


def test_records_far_from_the_question_are_found_where_only_they_are_wanted(many: Floats):
    """The graph would pass them over: all that is near to the question is not wanted."""
    ids = [f"{i:04}" for i in range(len(many))]
    shard = vectors.read(vectors.build(ids, many, graph=True))
    wanted = vectors.unit(many[:1])[0]
    far = [id_ for id_, _ in vectors.search(shard, wanted, len(many))][-1_000:]
    assert len(vectors.search(shard, wanted, 20, pa.array(far))) == 20


def test_a_graph_is_the_same_whoever_makes_it(many: Floats):
    ids = [f"{i:04}" for i in range(len(many))]
    backwards = vectors.build(ids[::-1], many[::-1], graph=True)
    assert vectors.build(ids, many, graph=True).equals(backwards)


def test_many_questions_at_once_have_the_answers_of_one_after_the_other(
    both: tuple[vectors.VectorShard, ...], many: Floats
):
    questions = list(vectors.unit(many[:200]))
    one_by_one = [vectors.search(both[1], q, 10) for q in questions]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda q: vectors.search(both[1], q, 10), questions)) == one_by_one


def test_a_graph_of_one_vector_or_of_none_with_a_direction_can_be_searched():
    for matrix in (np.ones((1, 4), np.float32), np.zeros((50, 4), np.float32)):
        shard = vectors.read(vectors.build([f"{i:02}" for i in range(len(matrix))], matrix, graph=True))
        assert vectors.search(shard, vectors.unit(np.ones((1, 4), np.float32))[0], 1)[0][0] == "00"
