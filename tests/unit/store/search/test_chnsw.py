"""C-HNSW: search, construction, and untrusted files."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphrag_ray.store.search import chnsw
from graphrag_ray.store.search.chnsw import ChnswIndex
from graphrag_ray.store.search.mapped_arrays import InMemory, join_halves, pack
from graphrag_ray.store.search.vector_index import Floats, ScoredId, normalize
from tests.examples import fewer

pytest.importorskip("numba")
FINITE = st.floats(-(2.0**100), 2.0**100, width=32)
Levels = list[tuple[list[str], Floats]]


def matrices(d: int) -> Any:
    return hnp.arrays(np.float32, st.tuples(st.integers(0, 40), st.just(d)), elements=FINITE)


DRAWN = st.integers(1, 70).flatmap(
    lambda d: st.tuples(
        st.lists(matrices(d), max_size=4), hnp.arrays(np.float32, st.just(d), elements=FINITE)
    )
)


def make_levels(matrices: list[Floats]) -> Levels:
    """Return levels whose ids contain the level and the position in it."""
    return [
        ([f"{level:016x}{at:016x}" for at in range(len(matrix))], matrix)
        for level, matrix in enumerate(matrices)
    ]


def build_index(levels: Levels, **options: Any) -> ChnswIndex:
    return chnsw.read(InMemory.of(chnsw.build(levels, **options)))


def ids_at(index: ChnswIndex, level: int) -> list[str]:
    start, end = (int(index.starts[at]) for at in (level, level + 1))
    return join_halves(*(index.arrays[half].run(start, end) for half in ("high", "low")))


def make_clusters(sizes: list[int], d: int = 32, seed: int = 7) -> list[Floats]:
    """Return levels whose vectors are clustered around the vectors of the level above."""
    rng = np.random.default_rng(seed)
    found: list[Floats] = [rng.normal(size=(sizes[-1], d)).astype(np.float32)]
    for n in reversed(sizes[:-1]):
        around = found[0][rng.integers(0, len(found[0]), n)]
        found.insert(0, (around + 0.4 * rng.normal(size=(n, d))).astype(np.float32))
    return found


def brute_force(levels: Levels, wanted: Floats, k: int) -> list[ScoredId]:
    found = []
    for ids, matrix in levels:
        scores = normalize(matrix).astype(np.float64) @ normalize(wanted[None])[0].astype(np.float64)
        order = np.lexsort((np.arange(len(ids)), -scores))[:k]
        found.append([(ids[at], float(scores[at])) for at in order])
    return found


def are_close(hits: list[list[ScoredId]], expected: list[list[ScoredId]], atol: float = 3e-4) -> bool:
    return len(hits) == len(expected) and all(
        len(a) == len(b) and np.allclose([s for _, s in a], [s for _, s in b], atol=atol)
        for a, b in zip(hits, expected, strict=True)
    )


def read_links(index: ChnswIndex, level: int) -> np.ndarray:
    """Return the links of a level as positions in it, negative for no link: [nodes, links]."""
    first, n = int(index.firsts[level]), int(index.starts[level + 1] - index.starts[level])
    links = index.links.whole()[first : first + n].astype(np.int64)
    return np.where(links < 0, -1, links - index.starts[level])


@pytest.fixture(scope="module")
def levels() -> Levels:
    return make_levels(make_clusters([6_000, 1_500, 400, 60, 9]))


@pytest.fixture(scope="module")
def data(levels: Levels) -> bytes:
    return chnsw.build(levels, m=8, ef=60, exact=100)


@pytest.fixture(scope="module")
def index(data: bytes) -> ChnswIndex:
    return chnsw.read(InMemory.of(data))


@pytest.fixture(scope="module")
def questions(levels: Levels) -> Floats:
    rng = np.random.default_rng(8)
    near = levels[0][1][:60]
    return np.asarray(near + 0.3 * rng.normal(size=near.shape), np.float32)


# search


@given(DRAWN, st.integers(1, 50))
def test_small_levels_equal_brute_force(drawn: tuple[list[Floats], Floats], k: int):
    matrices, wanted = drawn
    levels = make_levels(matrices)
    hits = build_index(levels).nearest(wanted, k)
    assert are_close(hits, brute_force(levels, wanted, k))
    expected_scores = [dict(level) for level in brute_force(levels, wanted, 50)]
    for level, scores in zip(hits, expected_scores, strict=True):
        assert len({id_ for id_, _ in level}) == len(level)
        assert np.allclose([score for _, score in level], [scores[id_] for id_, _ in level], atol=3e-4)
        assert level == sorted(level, key=lambda hit: (-hit[1], hit[0]))


@fewer(2)
@given(DRAWN, st.integers(1, 50))
def test_walk_with_enough_candidates_is_exact(drawn: tuple[list[Floats], Floats], k: int):
    matrices, wanted = drawn
    levels = make_levels(matrices)
    found = build_index(levels, exact=0, m=2).nearest(wanted, k, ef=50)
    assert are_close(found, brute_force(levels, wanted, k))


def test_recall_is_high_in_every_level(index: ChnswIndex, levels: Levels, questions: Floats):
    shares = np.zeros((len(questions), len(levels)))
    for row, wanted in zip(shares, questions, strict=True):
        expected = brute_force(levels, wanted, 5)
        for at, (hits, right) in enumerate(zip(index.nearest(wanted, 5, ef=40), expected, strict=True)):
            row[at] = len({id_ for id_, _ in hits} & {id_ for id_, _ in right}) / len(right)
    assert shares.mean() > 0.95 and (shares.mean(axis=0)[3:] == 1).all()


def test_larger_ef_increases_recall(index: ChnswIndex, levels: Levels, questions: Floats):
    def best(ef: int) -> float:
        return float(np.sum([[s for hits in index.nearest(q, 5, ef) for _, s in hits] for q in questions]))

    assert best(5) <= best(20) <= best(100) <= best(6_000)
    for wanted in questions[:5]:
        assert are_close(index.nearest(wanted, 5, ef=6_000), brute_force(levels, wanted, 5))


def test_results_are_distinct_and_in_their_level(index: ChnswIndex, questions: Floats):
    for wanted in questions:
        for k in (1, 7, 300):
            for at, hits in enumerate(index.nearest(wanted, k)):
                ids = [id_ for id_, _ in hits]
                assert len(set(ids)) == len(ids) == min(k, len(ids_at(index, at)))
                assert {int(id_[:16], 16) for id_ in ids} == {at}


def test_batch_search_equals_single_searches(index: ChnswIndex, questions: Floats):
    one_by_one = [index.nearest(q, 10) for q in questions]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda q: index.nearest(q, 10), questions)) == one_by_one
    positions, cosines, counts = index.nearest_positions(questions, 10)
    assert (counts == [[len(hits) for hits in levels] for levels in one_by_one]).all()
    assert cosines[:, 0, 0].tolist() == [levels[0][0][1] for levels in one_by_one]
    assert [ids_at(index, 0)[at] for at in positions[:, 0, 0]] == [levels[0][0][0] for levels in one_by_one]


# construction


def test_each_node_is_in_one_level(index: ChnswIndex, levels: Levels):
    assert [ids_at(index, at) for at in range(index.n_levels)] == [ids for ids, _ in levels]
    with pytest.raises(ValueError, match="twice"):
        chnsw.build(make_levels([np.ones((2, 2), np.float32)]) * 2)


@pytest.mark.parametrize("exact", [0, 100, 10_000])
def test_down_links_lead_to_the_level_below(levels: Levels, exact: int):
    index = build_index(levels[1:], m=8, exact=exact)
    down = index.arrays["down"].whole()
    assert (down[: index.starts[1]] == -1).all()
    for level in range(1, index.n_levels):
        targets = down[index.starts[level] : index.starts[level + 1]]
        assert ((index.starts[level - 1] <= targets) & (targets < index.starts[level])).all()


def test_most_down_links_lead_to_the_nearest_node(index: ChnswIndex, levels: Levels):
    down = index.arrays["down"].whole()
    for level in range(1, index.n_levels):
        targets = down[index.starts[level] : index.starts[level + 1]] - index.starts[level - 1]
        cosines = normalize(levels[level][1]) @ normalize(levels[level - 1][1]).T
        assert (cosines[np.arange(len(targets)), targets] > cosines.max(axis=1) - 0.01).mean() > 0.93


def test_links_are_distinct_bounded_and_within_their_level(index: ChnswIndex):
    assert [first >= 0 for first in index.firsts] == [True, True, True, False, False]
    for level in range(3):
        links = read_links(index, level)
        assert links.shape[1] == 16 and links.max() < len(links)
        for node, row in enumerate(links):
            linked = row[row >= 0]
            assert (row[len(linked) :] < 0).all(), "links come first"
            assert len(linked) >= 8 and len(set(linked.tolist()) - {node}) == len(linked)


def test_almost_every_node_is_reachable(index: ChnswIndex):
    down = index.arrays["down"].whole()
    for level in range(3):
        links = read_links(index, level)
        edge = down[index.starts[level + 1] : index.starts[level + 2]] - index.starts[level]
        seen = np.zeros(len(links), np.bool_)
        while len(edge):
            seen[edge] = True
            edge = np.unique(links[edge])
            edge = edge[(edge >= 0) & ~seen[edge]]
        assert seen.mean() > 0.999


def test_bytes_do_not_depend_on_the_order_of_nodes(data: bytes, levels: Levels):
    rng = np.random.default_rng(3)
    orders = [rng.permutation(len(ids)) for ids, _ in levels]
    mixed = [([ids[i] for i in o], vectors[o]) for (ids, vectors), o in zip(levels, orders, strict=True)]
    assert chnsw.build(mixed, m=8, ef=60, exact=100) == data


def test_vector_lengths_do_not_matter(levels: Levels):
    scaled = [(ids, vectors * np.float32(4)) for ids, vectors in levels[3:]]
    assert chnsw.build(scaled) == chnsw.build(levels[3:])


# edge cases


def test_index_without_levels_finds_nothing():
    index = build_index([])
    assert index.n_levels == 0 and index.nearest(np.ones(3, np.float32), 5) == []


def test_empty_levels_find_nothing():
    none = np.zeros((0, 4), np.float32)
    for matrices in ([none], [none, none], [np.ones((3, 4), np.float32), none, np.ones((2, 4), np.float32)]):
        for exact in (0, 500):
            hits = build_index(make_levels(matrices), exact=exact).nearest(np.ones(4, np.float32), 5)
            assert [len(level) for level in hits] == [len(matrix) for matrix in matrices]


@pytest.mark.parametrize("exact", [0, 500])
def test_single_node_is_found(exact: int):
    index = build_index(make_levels([np.ones((1, 3), np.float32)] * 2), exact=exact)
    assert are_close(index.nearest(np.ones(3, np.float32), 5), [[("", 1.0)], [("", 1.0)]])


@pytest.mark.parametrize("k", [0, -3])
def test_k_of_zero_finds_nothing(index: ChnswIndex, questions: Floats, k: int):
    assert index.nearest(questions[0], k) == [[]] * 5


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("exact", [0, 500])
def test_zero_vector_has_cosine_zero(bad: float, exact: int):
    matrix = np.array([[1, 1], [bad, bad], [-1, -1]], np.float32)
    index = build_index(make_levels([matrix]), exact=exact)
    expected = [[("", 1.0), ("", 0.0), ("", -1.0)]]
    assert are_close(index.nearest(np.ones(2, np.float32), 3), expected)
    assert are_close(index.nearest(np.array([bad, bad], np.float32), 3), [[("", 0.0)] * 3])


@pytest.mark.parametrize("m", [0, -1, 1 << 20])
def test_invalid_number_of_links_is_refused(m: int):
    with pytest.raises(ValueError, match="links"):
        chnsw.build([], m=m)


@pytest.mark.parametrize("m", [2, 3])
def test_few_links_are_enough_for_small_levels(levels: Levels, questions: Floats, m: int):
    index = build_index(levels[1:], m=m, exact=50)
    found = [index.nearest(q, 5, ef=100) for q in questions[:20]]
    assert all(len(hits) == 5 for levels in found for hits in levels)


def test_vectors_of_other_dimensions_are_refused(index: ChnswIndex):
    with pytest.raises(ValueError, match="dimensions"):
        index.nearest(np.ones(31, np.float32), 5)
    with pytest.raises(ValueError, match="dimensions"):
        chnsw.build([(["0" * 32], np.ones((1, 2), np.float32)), (["1" * 32], np.ones((1, 3), np.float32))])
    with pytest.raises(ValueError, match="Each id needs one vector"):
        chnsw.build([(["0" * 32], np.ones((2, 2), np.float32))])


@pytest.mark.parametrize("vector", [np.ones(16, np.float32), np.zeros(16, np.float32)])
def test_many_equal_vectors_build_quickly_and_sort_by_id(vector: Floats):
    """With 20,000 nodes, the time must be linear."""
    took = []
    for n in (10_000, 20_000):
        levels = make_levels([np.tile(vector, (n, 1)), np.tile(vector, (600, 1))])
        started = time.process_time()
        index = build_index(levels, m=8, ef=40)
        took.append(time.process_time() - started)
        assert read_links(index, 0).shape == (n, 16)
        hits = index.nearest(np.ones(16, np.float32), 5)
        assert all(len({score for _, score in level}) == 1 and len(level) == 5 for level in hits)
    assert took[1] < 4 * took[0] + 1


def test_many_equal_vectors_do_not_hide_others():
    """There are 3,000 equal vectors, more than a node has links."""
    others = make_clusters([2_000, 200], d=16)
    crowd = np.concatenate([np.tile(others[0][:1], (3_000, 1)), others[0][1:]])
    order = np.random.default_rng(1).permutation(len(crowd))
    levels = make_levels([crowd[order], others[1]])
    index = build_index(levels, m=8, exact=100)
    found = [index.nearest(vector, 1, ef=20)[0][0][1] for vector in others[0][1:301]]
    assert np.mean(np.isclose(found, 1.0, atol=1e-3)) > 0.97


def test_hub_has_no_more_links_than_others():
    rng = np.random.default_rng(5)
    matrix = np.concatenate([np.ones((1, 24)), 1 + 0.9 * rng.normal(size=(2_000, 24))]).astype(np.float32)
    index = build_index(make_levels([matrix]), m=4, exact=100)
    assert read_links(index, 0).shape[1] == 8
    assert index.nearest(matrix[0], 1)[0][0][0] == f"{0:032x}"


# untrusted files


def search_bytes(data: bytes) -> None:
    index = chnsw.read(InMemory.of(data))
    wanted = np.linspace(-1, 1, index.dimensions, dtype=np.float32)
    if index.dimensions < 1_000:
        for k, ef in ((5, 5), (30, 20)):
            for at, hits in enumerate(index.nearest(wanted, k, ef)):
                assert len({id_ for id_, _ in hits} - set(ids_at(index, at))) == 0
                assert len(hits) <= k and np.isfinite([score for _, score in hits]).all()


@pytest.fixture(scope="module")
def small() -> bytes:
    return chnsw.build(make_levels(make_clusters([300, 60, 8], d=8)), m=3, exact=20)


def test_changed_bytes_are_refused_or_searched_safely(small: bytes):
    search_bytes(small)
    refused = 0
    for seed in range(600):
        dice, changed = random.Random(seed), bytearray(small)
        for _ in range(dice.choice((1, 2, 8, 60))):
            at = dice.randrange(dice.choice((0, max(0, len(changed) - 900))), len(changed) - 4)
            n = dice.choice((1, 4, 8))
            changed[at : at + n] = dice.choice((b"\xff" * n, bytes(n), dice.randbytes(n), b"9" * n))
        try:
            search_bytes(bytes(changed))
        except ValueError:
            refused += 1
    assert 0 < refused < 600


@pytest.mark.parametrize("dice", range(3))
def test_arbitrary_arrays_are_refused_or_searched_safely(small: bytes, dice: int):
    rng = np.random.default_rng(dice)
    whole = {name: array.whole() for name, array in chnsw.read(InMemory.of(small)).arrays.items()}
    refused = set()
    for name, array in whole.items():
        for replacement in (
            np.frombuffer(rng.bytes(array.nbytes), array.dtype),
            np.frombuffer(bytes([255]) * array.nbytes, array.dtype),
            np.frombuffer(bytes([127]) * array.nbytes, array.dtype),
            np.zeros_like(array),
            array[::-1],
            array[rng.permutation(len(array))],
            rng.integers(-5, 400, len(array)).astype(array.dtype),
            array[: len(array) // 2],
            np.concatenate([array, array]),
            array[:0],
        ):
            try:
                search_bytes(pack(whole | {name: replacement}))
            except ValueError:
                refused.add(name)
    assert refused == set(whole), "arrays of other lengths must be refused"


def test_truncated_file_is_refused(small: bytes):
    for size in (0, 5, 8, 100, len(small) // 2, len(small) - 1):
        with pytest.raises(ValueError, match="arrays"):
            chnsw.read(InMemory.of(small[:size]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": np.array([8, 6, 1])}, "lengths"),
        ({"shape": np.array([0, 6])}, "size"),
        ({"shape": np.array([1 << 40, 6])}, "size"),
        ({"shape": np.array([8, 0])}, "size"),
        ({"shape": np.array([8, 7])}, "lengths"),
        ({"shape": np.array([65, 6])}, "lengths"),
        ({"step": np.array([np.nan], np.float32)}, "size"),
        ({"step": np.array([-1], np.float32)}, "size"),
        ({"starts": np.array([0, 300, 360, 369])}, "not in order"),
        ({"starts": np.array([0, 360, 300, 368])}, "not in order"),
        ({"starts": np.array([1, 300, 360, 368])}, "not in order"),
        ({"starts": np.array([0, 300, 368])}, "lengths"),
        ({"starts": np.array([], np.int64)}, "lengths"),
        ({"linked": np.array([1, 1, 1], np.uint8)}, "lengths"),
        (
            {
                "starts": np.array([0] * 1_001 + [368]),
                "linked": np.zeros(1_001, np.uint8),
                "links": np.zeros(0, np.int32),
            },
            "lengths",
        ),
        ({"down": np.array([1], np.int32)}, "lengths"),
        ({"more": np.array([1])}, "cannot be read"),
        ({"links": None}, "it lacks"),
    ],
)
def test_inconsistent_file_is_refused(small: bytes, changes: dict[str, Any], message: str):
    whole = {name: array.whole() for name, array in chnsw.read(InMemory.of(small)).arrays.items()}
    arrays = {name: array for name, array in (whole | changes).items() if array is not None}
    with pytest.raises(ValueError, match=message):
        chnsw.read(InMemory.of(pack(arrays)))


def test_refusals_come_from_the_byte_source(small: bytes, watched: Any, not_the_file: type[Exception]):
    with pytest.raises(not_the_file):
        chnsw.read(watched(small[:-20] + bytes(12) + small[-8:]))


def test_only_loaded_bytes_are_read(small: bytes, watched: Any):
    source = watched(small)
    index, plain = chnsw.read(source), chnsw.read(InMemory.of(small))
    high = index.arrays["high"]
    assert not source.needed[high.begin : high.begin + high.values.nbytes].any()
    wanted = np.ones(8, np.float32)
    assert index.nearest(wanted, 3) == plain.nearest(wanted, 3)
    assert source.needed[high.begin : high.begin + high.values.nbytes].sum() == 8 * 9
