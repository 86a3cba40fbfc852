"""The graph of names and chunks: deterministic shards, lookups, and hostile files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from linked_names import Links, chunk_id, data_of, shard_of

from graphrag_ray.base.ids import name_id
from graphrag_ray.store.search import name_links
from graphrag_ray.store.search.mapped_arrays import InMemory, Ints, id_halves, pack
from graphrag_ray.store.search.name_links import MAX_WEIGHT, NameLinks

NAMES = st.sampled_from(["Ada", "Bert", "Cyd", "Dora", "Эмма", "陳", "F."])
LINKS = st.dictionaries(st.tuples(st.sampled_from("abcdefgh"), NAMES), st.integers(1, 20), max_size=30)


@given(LINKS, st.integers(0, 100))
def test_bytes_do_not_depend_on_the_order_of_links(links: Links, seed: int) -> None:
    assert data_of(links, "xyz") == data_of(links, "zyx", seed)


@given(LINKS)
def test_links_have_weights_in_both_directions(links: Links) -> None:
    shard = shard_of(links)
    for name in {n for _, n in links}:
        (position,) = shard.names.find(id_halves([name_id(name)]))
        of_name = shard.links_of_names(np.array([position]))
        found = dict(zip(shard.ids.at(of_name.target), of_name.weight.tolist(), strict=True))
        assert found == {chunk_id(c): w for (c, n), w in links.items() if n == name}
        assert shard.holder_counts(np.array([position])).tolist() == [len(found)]
        assert shard.totals(np.array([position])).tolist() == [sum(found.values())]
        assert shard.name_texts(np.array([position])) == [name]
    for chunk in {c for c, _ in links}:
        (position,) = shard.ids.find(id_halves([chunk_id(chunk)]))
        of_chunk = shard.links_of_chunks(np.array([position]))
        linked = dict(zip(shard.name_texts(of_chunk.target), of_chunk.weight.tolist(), strict=True))
        assert linked == {n: w for (c, n), w in links.items() if c == chunk}
        assert of_chunk.total.tolist() == [sum(linked.values())]


def test_heaviest_of_several_links_counts() -> None:
    ids, names = [chunk_id("a")], {name_id("Ada"): "Ada"}
    zeros, weights = np.zeros(3, np.int64), np.array([1, 10, 3])
    shard = name_links.read(InMemory.of(name_links.build(ids, names, zeros, zeros, weights)))
    assert shard.links_of_chunks(np.array([0])).weight.tolist() == [10]


def test_weights_are_clipped() -> None:
    shard = shard_of({("a", "Ada"): 10_000, ("a", "Bert"): 1})
    assert sorted(shard.links_of_chunks(np.array([0])).weight.tolist()) == [1, MAX_WEIGHT]


def test_unknown_ids_are_not_found() -> None:
    shard = shard_of({("a", "Ada"): 1})
    assert shard.names.find(id_halves([name_id("Zed")])).tolist() == [-1]
    assert shard.ids.find(id_halves([chunk_id("z")])).tolist() == [-1]
    same_half = name_id("Ada")[:16] + "0" * 16
    assert shard.names.find(id_halves([same_half])).tolist() == [-1], "the whole id counts"


def test_shard_may_be_empty() -> None:
    shard = name_links.read(InMemory.of(data_of({}, "ab")))
    assert len(shard) == 2
    assert shard.links_of_chunks(np.array([0, 1])).total.tolist() == [0, 0]
    empty = name_links.read(InMemory.of(data_of({})))
    assert len(empty) == 0
    assert empty.ids.find(id_halves([chunk_id("a")])).tolist() == [-1]


def test_other_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        name_links.read(InMemory.of(b"nothing of the kind"))


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("names", NameLinks.links_of_chunks),
        ("names_end", NameLinks.links_of_chunks),
        ("holders", NameLinks.links_of_names),
        ("holders_end", NameLinks.links_of_names),
        ("text_end", NameLinks.name_texts),
    ],
)
def test_out_of_range_links_are_refused(name: str, of: Callable[[NameLinks, Ints], object]) -> None:
    good = shard_of({("a", "Ada"): 1, ("b", "Ada"): 1, ("b", "Bert"): 1})
    arrays = {n: a.whole().copy() for n, a in good.arrays.items()}
    arrays[name][0] = 1_000
    bad = name_links.read(InMemory.of(pack(arrays)))
    with pytest.raises(ValueError, match=r"lead|order"):
        of(bad, np.array([0, 1]))
