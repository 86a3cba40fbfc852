"""Vector search, exact and by signs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphrag_ray.store.search import vector_index
from graphrag_ray.store.search.mapped_arrays import InMemory
from graphrag_ray.store.search.vector_index import DIGITS, Floats, VectorShard

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)
MATRICES = st.integers(1, 8).flatmap(
    lambda d: st.tuples(
        hnp.arrays(np.float32, st.tuples(st.integers(1, 30), st.just(d)), elements=FINITE),
        hnp.arrays(np.float32, (1, d), elements=FINITE),
    )
)
Hits = list[tuple[str, float]]


def make_id(n: int) -> str:
    return f"{n:016x}{n:016x}"


def make_ids(matrix: Floats) -> list[str]:
    return [make_id(n) for n in range(len(matrix))]


def build_shard(ids: list[str], matrix: Floats, signs: bool = False) -> VectorShard:
    return vector_index.read(InMemory.of(vector_index.build(ids, matrix, signs)))


def search_matrix(
    matrix: Floats, wanted: Floats, k: int, among: list[str] | None = None, n: int = 1, signs: bool = False
) -> Hits:
    """Search the vectors in n shards."""
    ids = make_ids(matrix)
    shards = [build_shard(ids[at::n], matrix[at::n], signs) for at in range(min(n, len(ids)))]
    return vector_index.search(shards, vector_index.normalize(wanted)[0], k, among)


def cosines(matrix: Floats, wanted: Floats) -> np.ndarray:
    with np.errstate(all="ignore"):
        m, w = matrix.astype(np.float64), wanted[0].astype(np.float64)
        lengths = np.linalg.norm(m, axis=1) * np.linalg.norm(w)
        return np.where(lengths > 0, m @ w / lengths, 0.0)


def is_close(hits: Hits, others: Hits, atol: float = 2 * 10**-DIGITS) -> bool:
    return len(hits) == len(others) and np.allclose([s for _, s in hits], [s for _, s in others], atol=atol)


@given(MATRICES, st.integers(1, 40), st.integers(1, 3))
def test_results_equal_brute_force(drawn: tuple[Floats, Floats], k: int, n: int):
    matrix, wanted = drawn
    hits, expected = search_matrix(matrix, wanted, k, n=n), cosines(matrix, wanted)
    assert len(hits) == min(k, len(matrix))
    scores = [score for _, score in hits]
    assert np.allclose(scores, np.sort(expected)[::-1][:k], atol=1e-5)
    assert np.allclose(scores, [expected[int(id_[16:], 16)] for id_, _ in hits], atol=1e-5)
    assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))


@given(MATRICES, st.data(), st.integers(1, 3), st.booleans())
def test_search_is_limited_to_given_ids(
    drawn: tuple[Floats, Floats], data: st.DataObject, n: int, signs: bool
):
    matrix, wanted = drawn
    all_hits = search_matrix(matrix, wanted, len(matrix), n=n, signs=signs)
    assert len(all_hits) == len(matrix)
    only = data.draw(st.lists(st.sampled_from([id_ for id_, _ in all_hits]), unique=True))
    expected = [hit for hit in all_hits if hit[0] in only]
    hits = search_matrix(matrix, wanted, 5, [*only, make_id(10**6)], n, signs)
    assert {id_ for id_, _ in hits} <= set(only) and is_close(hits, expected[:5])


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("signs", [False, True])
def test_equal_vectors_are_sorted_by_id(n: int, signs: bool):
    vector = np.random.default_rng(7).normal(size=256).astype(np.float32)
    hits = search_matrix(np.tile(vector, (1_000, 1)), vector[None], 5, n=n, signs=signs)
    assert [id_ for id_, _ in hits] == [make_id(at) for at in range(5)]


def test_ids_with_equal_first_halves_are_distinguished():
    ids = [f"{7:016x}{n:016x}" for n in range(3)]
    shard = build_shard(ids, np.array([[1, 0], [0, 1], [1, 1]], np.float32))
    assert [id_ for id_, _ in vector_index.search([shard], np.array([0, 1], np.float32), 2)] == [
        ids[1],
        ids[2],
    ]


@pytest.mark.parametrize("k", [0, -3])
def test_k_of_zero_finds_nothing(k: int):
    assert search_matrix(np.ones((3, 2), np.float32), np.ones((1, 2), np.float32), k) == []
    assert vector_index.search([], np.ones(2, np.float32), 5) == []


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("signs", [False, True])
def test_zero_vector_has_cosine_zero(bad: float, signs: bool):
    matrix = np.array([[1, 1], [bad, bad], [-1, -1]], np.float32)
    expected = [(make_id(0), 1.0), (make_id(1), 0.0), (make_id(2), -1.0)]
    assert is_close(
        search_matrix(matrix, np.array([[1, 1]], np.float32), 3, signs=signs), expected, atol=1e-3
    )


@pytest.mark.parametrize("bad", ["", "a", "x" * 32, "0" * 31, "0" * 30 + "  "])
def test_invalid_id_is_refused(bad: str):
    ids = [*(make_id(n) for n in range(15)), bad]
    with pytest.raises(ValueError, match=r"hex|multiple|arg"):
        vector_index.build(ids, np.ones((16, 2), np.float32))


def test_ids_with_wrong_lengths_are_refused_even_if_the_sum_matches():
    """`fromhex` skips whitespace, so 16 such ids would parse as 15."""
    with pytest.raises(ValueError, match="32 hex digits"):
        vector_index.build(["0" * 30 + "  "] * 16, np.ones((16, 2), np.float32))


def test_search_only_reads_loaded_bytes():
    matrix = np.random.default_rng(7).normal(size=(100, 16)).astype(np.float32)
    source = InMemory.of(vector_index.build(make_ids(matrix), matrix))
    shard = vector_index.read(source)
    assert np.shares_memory(shard.vectors.values, source.data) and not shard.vectors.values.flags.writeable


# search by signs


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits so that low_limits vectors are searched by signs."""
    monkeypatch.setattr(vector_index, "SIGN_CANDIDATES", 4_096)
    monkeypatch.setattr(vector_index, "PRODUCT_CANDIDATES", 512)
    monkeypatch.setattr(vector_index, "PRODUCT_CANDIDATES_PER_RESULT", 8)


@pytest.fixture(scope="module")
def clustered() -> Floats:
    """Vectors around a hundred centres."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(100, 32))
    return (centres[rng.integers(0, 100, 12_000)] + 0.5 * rng.normal(size=(12_000, 32))).astype(np.float32)


@pytest.fixture(scope="module")
def data(clustered: Floats) -> bytes:
    return vector_index.build(make_ids(clustered), clustered, signs=True)


@pytest.fixture(scope="module")
def exact(clustered: Floats) -> list[VectorShard]:
    return [build_shard(make_ids(clustered), clustered)]


@pytest.fixture(scope="module")
def sharded(clustered: Floats, data: bytes) -> dict[str, list[VectorShard]]:
    """Shards with signs: one, three, and two next to an exact one."""
    ids = make_ids(clustered)
    thirds = [build_shard(ids[at::3], clustered[at::3], signs=at < 3) for at in range(3)]
    mixed = [thirds[0], build_shard(ids[1::3], clustered[1::3]), thirds[2]]
    return {"one": [vector_index.read(InMemory.of(data))], "three": thirds, "mixed": mixed}


@pytest.mark.parametrize("kind", ["one", "three", "mixed"])
@pytest.mark.parametrize(
    ("k", "min_share"),
    [(1, 0.95), (10, 0.95), (100, 0.95), (599, 0.95), (4_000, 0.99), (20_000, 1.0)],
)
def test_search_by_signs_equals_exact_search(
    exact: list[VectorShard],
    sharded: dict[str, list[VectorShard]],
    clustered: Floats,
    kind: str,
    k: int,
    min_share: float,
):
    shares = []
    noise = np.random.default_rng(8).normal(size=(40, 32)).astype(np.float32)
    for wanted in vector_index.normalize(clustered[:40] + 0.5 * noise):
        expected, hits = (vector_index.search(shards, wanted, k) for shards in (exact, sharded[kind]))
        assert len(hits) == min(k, len(clustered)) == len({id_ for id_, _ in hits})
        assert is_close(expected[:1], hits[:1], atol=0.05)
        assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))
        shares.append(len({id_ for id_, _ in expected} & {id_ for id_, _ in hits}) / len(hits))
    assert np.mean(shares) >= min_share


@pytest.mark.parametrize("kind", ["one", "three", "mixed"])
@pytest.mark.parametrize("n", [0, 1, 30, 1_000, 3_000, 11_999])
@pytest.mark.parametrize("k", [5, 200])
def test_search_by_signs_finds_all_given_ids(
    exact: list[VectorShard],
    sharded: dict[str, list[VectorShard]],
    clustered: Floats,
    kind: str,
    n: int,
    k: int,
):
    only = np.random.default_rng(n).permutation(make_ids(clustered))[:n].tolist()
    for wanted in vector_index.normalize(clustered[:5]):
        expected, hits = (vector_index.search(shards, wanted, k, only) for shards in (exact, sharded[kind]))
        assert len(hits) == min(k, n) and {id_ for id_, _ in hits} <= set(only)
        assert is_close(hits, expected, atol=0.02)


def test_distant_records_are_found_if_the_search_is_limited_to_them(
    sharded: dict[str, list[VectorShard]], clustered: Floats
):
    wanted = vector_index.normalize(clustered[:1])[0]
    far = [id_ for id_, _ in vector_index.search(sharded["one"], wanted, len(clustered))][-1_000:]
    hits = vector_index.search(sharded["one"], wanted, 20, far)
    assert len(hits) == 20 and {id_ for id_, _ in hits} <= set(far)


def test_only_vectors_with_similar_signs_are_read(data: bytes, clustered: Floats, watched: Any):
    """Vectors that were not read would contain bytes of 255."""
    source = watched(data)
    seen, plain = vector_index.read(source), vector_index.read(InMemory.of(data))
    wanted = vector_index.normalize(clustered[:1])[0]
    assert vector_index.search([seen], wanted, 10) == vector_index.search([plain], wanted, 10)
    array = seen.vectors
    read = source.needed[array.begin : array.begin + array.values.nbytes]
    assert 0 < read.mean() < 0.3
    high = seen.arrays["high"]
    assert source.needed[high.begin : high.begin + high.values.nbytes].sum() < 100 * 8


@pytest.mark.parametrize("signs", [False, True])
def test_limited_search_only_reads_the_vectors_of_given_ids(signs: bool, clustered: Floats, watched: Any):
    data = vector_index.build(make_ids(clustered), clustered, signs)
    source, only = watched(data), [make_id(n) for n in (0, 1, 2, 500, 7_777, 11_999)]
    seen, plain = vector_index.read(source), vector_index.read(InMemory.of(data))
    wanted = vector_index.normalize(clustered[:1])[0]
    assert vector_index.search([seen], wanted, 3, only) == vector_index.search([plain], wanted, 3, only)
    array = seen.vectors
    read = source.needed[array.begin : array.begin + array.values.nbytes]
    assert read.sum() == len(only) * array.values.strides[0]


@pytest.mark.parametrize("signs", [False, True])
def test_bytes_do_not_depend_on_the_machine(clustered: Floats, signs: bool):
    ids, matrix = make_ids(clustered)[:3_000], clustered[:3_000]
    order = np.random.default_rng(3).permutation(len(ids))
    assert vector_index.build(ids, matrix, signs) == vector_index.build(
        [ids[i] for i in order], matrix[order], signs
    )


def test_batch_search_equals_single_searches(sharded: dict[str, list[VectorShard]], clustered: Floats):
    questions = list(vector_index.normalize(clustered[:100]))
    one_by_one = [vector_index.search(sharded["three"], q, 10) for q in questions]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda q: vector_index.search(sharded["three"], q, 10), questions)) == one_by_one


def test_signs_of_single_or_zero_vectors_can_be_searched():
    for matrix in (np.ones((1, 4), np.float32), np.zeros((600, 4), np.float32)):
        hits = search_matrix(matrix, np.ones((1, 4), np.float32), 1, signs=True)
        assert hits[0][0] == make_id(0)


@given(st.integers(1, 700), st.integers(1, 4), st.integers(1, 9))
def test_repeated_vectors_are_all_found(n: int, d: int, different: int):
    rng = np.random.default_rng([n, d, different])
    matrix = rng.normal(size=(different, d)).astype(np.float32)[rng.integers(0, different, n)]
    hits = search_matrix(matrix, matrix[:1], n, signs=True)
    assert {id_ for id_, _ in hits} == set(make_ids(matrix))
    assert np.allclose([s for _, s in hits], np.sort(cosines(matrix, matrix[:1]))[::-1], atol=0.02)
