"""Levels and the reports that represent them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import LevelNotFound
from graphrag_ray.query.methods.levels import Levels, build_levels, compute_level_sizes

# community: (level, parent).   10 ─┬─ 20 ─┬─ 30      11 is a leaf at C0, 21 at C1.
#                                   │      └─ 31
#                                   └─ 21
TREE = {10: (0, -1), 11: (0, -1), 20: (1, 10), 21: (1, 10), 30: (2, 20), 31: (2, 20)}


def tables(
    tree: dict[int, tuple[int, int]], tokens: dict[int, int], hierarchy: str = "leiden"
) -> tuple[pa.Table, pa.Table]:
    communities = pa.table(
        {
            "community": pa.array(list(tree), pa.int64()),
            "level": pa.array([level for level, _ in tree.values()], pa.int64()),
            "parent": pa.array([parent for _, parent in tree.values()], pa.int64()),
            "hierarchy": pa.array([hierarchy] * len(tree), pa.string()),
        }
    )
    reports = pa.table(
        {
            "community": pa.array(list(tokens), pa.int64()),
            "n_tokens": pa.array(list(tokens.values()), pa.int64()),
            "hierarchy": pa.array([hierarchy] * len(tokens), pa.string()),
        }
    )
    return communities, reports


def read(tokens: dict[int, int], tree: dict[int, tuple[int, int]] = TREE) -> tuple[Levels, list[int]]:
    """Return the levels, and the community of each row of the reports table."""
    return build_levels(*tables(tree, tokens), "leiden"), list(tokens)


ALL = {10: 100, 11: 50, 20: 300, 21: 200, 30: 400, 31: 500}


@pytest.mark.parametrize(
    ("level", "communities", "n_tokens"),
    [(0, {10, 11}, 150), (1, {20, 21, 11}, 550), (2, {30, 31, 21, 11}, 1150)],
)
def test_level_includes_leaves_above(level, communities, n_tokens) -> None:
    found, rows = read(dict(reversed(ALL.items())))
    at = found.reports_of_level(level)
    assert {rows[r] for r in at.rows} == communities
    assert at.n_tokens == n_tokens
    assert (at.replaced, at.missing) == ((), ())


def test_children_represent_community_without_report() -> None:
    found, rows = read({k: v for k, v in ALL.items() if k not in (10, 20)})
    at = found.reports_of_level(0)
    assert {rows[r] for r in at.rows} == {11, 21, 30, 31}
    assert (at.replaced, at.missing) == ((10,), ())


def test_uncovered_community_is_missing() -> None:
    found, rows = read({10: 1, 20: 1, 21: 1, 31: 1})
    assert found.reports_of_level(0).missing == (11,)
    at = found.reports_of_level(2)
    assert {rows[r] for r in at.rows} == {21, 31}
    assert set(at.missing) == {11, 30}
    assert at.replaced == ()


@st.composite
def trees(draw) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tree: dict[int, tuple[int, int]] = {}
    for number in rng.permutation(100)[: rng.integers(1, 40)].tolist():
        above = int(rng.choice(list(tree))) if tree and rng.random() < 0.7 else -1
        tree[number] = (tree[above][0] + 1 if above >= 0 else 0, above)
    return tree, {k: int(rng.integers(1, 100)) for k in tree if rng.random() < 0.8}


@given(trees())
def test_reports_and_gaps_cover_each_leaf_once(case) -> None:
    tree, tokens = case
    found, rows = read(tokens, tree)

    def leaves(community: int) -> list[int]:
        below = [c for c, (_, parent) in tree.items() if parent == community]
        return [leaf for c in below for leaf in leaves(c)] or [community]

    every = sorted(c for c in tree if leaves(c) == [c])
    for level in range(found.n_levels):
        at = found.reports_of_level(level)
        used = [rows[r] for r in at.rows]
        assert sorted(leaf for c in [*used, *at.missing] for leaf in leaves(c)) == every
        assert at.n_tokens == sum(tokens[c] for c in used)


@pytest.mark.parametrize(("context_tokens", "level"), [(100, 0), (151, 1), (551, 2), (10_000, 2)])
def test_default_is_coarsest_level_that_fills_context(context_tokens: int, level: int) -> None:
    assert read(ALL)[0].default(context_tokens) == level


@pytest.mark.parametrize("written", ["C1", "c1", "1", " C 1 ", 1])
def test_level_formats_are_parsed(written) -> None:
    assert read(ALL)[0].parse(written, 8000) == 1


@pytest.mark.parametrize("written", ["C3", "x", "", "-1", "C99999999999"])
def test_unknown_level_lists_existing_levels(written: str) -> None:
    with pytest.raises(LevelNotFound, match="C0, C1, C2"):
        read(ALL)[0].parse(written, 8000)


def test_index_without_communities_is_reported() -> None:
    with pytest.raises(LevelNotFound, match="no communities"):
        read({}, {})[0].parse(None, 8000)
    with pytest.raises(LevelNotFound, match="No community has a report"):
        read({})[0].parse(None, 8000)


def test_other_hierarchies_are_ignored() -> None:
    other = tables({1: (0, -1), 10: (0, -1)}, {10: 9, 1: 9}, hierarchy="other")
    own = tables(TREE, ALL)
    both = [pa.concat_tables(pair) for pair in zip(other, own, strict=True)]
    at = build_levels(*both, "leiden").at(0)
    assert at.rows.tolist() == [2, 3]
    assert at.n_tokens == 150


def test_units_are_levels_and_source_text() -> None:
    found = compute_level_sizes(read(ALL)[0], pa.chunked_array([[600, 600], [800]]))
    assert [(u.name, u.n_units, u.n_tokens) for u in found] == [
        ("C0", 2, 150),
        ("C1", 3, 550),
        ("C2", 4, 1150),
        ("TS", 3, 2000),
    ]
    assert [u.share for u in found] == [0.075, 0.275, 0.575, 1.0]


@given(trees(), st.lists(st.integers(0, 900), max_size=9))
def test_shares_are_relative_to_largest_row(case, chunks: list[int]) -> None:
    tree, tokens = case
    found = compute_level_sizes(read(tokens, tree)[0], np.array(chunks, dtype=np.int64))
    most = max(u.n_tokens for u in found)
    assert all(u.share == (u.n_tokens / most if most else 0.0) for u in found)
    assert [u.name for u in found][-1] == "TS"


def test_units_count_missing_communities() -> None:
    assert [u.missing for u in compute_level_sizes(read({10: 1, 20: 1, 21: 1, 31: 1})[0], [])] == [1, 1, 2, 0]


def test_empty_index_has_no_tokens() -> None:
    assert [(u.name, u.n_units, u.share) for u in compute_level_sizes(read({}, {})[0], [])] == [
        ("TS", 0, 0.0)
    ]
