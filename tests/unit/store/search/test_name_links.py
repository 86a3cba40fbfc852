"""Which chunks hold which names: a shard is the same whatever the order of its links, and hostile ones are
refused."""

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
def test_a_shard_does_not_depend_on_the_order_of_its_links(links: Links, seed: int) -> None:
    assert data_of(links, "xyz") == data_of(links, "zyx", seed)


@given(LINKS)
def test_links_are_found_from_both_ends_with_their_weights(links: Links) -> None:
    shard = shard_of(links)
    for name in {n for _, n in links}:
        (place,) = shard.names.places(id_halves([name_id(name)]))
        of_name = shard.of_names(np.array([place]))
        found = dict(zip(shard.ids.at(of_name.place), of_name.weight.tolist(), strict=True))
        assert found == {chunk_id(c): w for (c, n), w in links.items() if n == name}
        assert shard.holder_counts(np.array([place])).tolist() == [len(found)]
        assert shard.totals(np.array([place])).tolist() == [sum(found.values())]
        assert shard.name_texts(np.array([place])) == [name]
    for chunk in {c for c, _ in links}:
        (place,) = shard.ids.places(id_halves([chunk_id(chunk)]))
        of_chunk = shard.of_chunks(np.array([place]))
        own = dict(zip(shard.name_texts(of_chunk.place), of_chunk.weight.tolist(), strict=True))
        assert own == {n: w for (c, n), w in links.items() if c == chunk}
        assert of_chunk.total.tolist() == [sum(own.values())]


def test_of_two_links_between_the_same_the_heavier_one_counts() -> None:
    ids, names = [chunk_id("a")], {name_id("Ada"): "Ada"}
    zeros, weights = np.zeros(3, np.int64), np.array([1, 10, 3])
    shard = name_links.read(InMemory.of(name_links.build(ids, names, zeros, zeros, weights)))
    assert shard.of_chunks(np.array([0])).weight.tolist() == [10]


def test_a_weight_has_bounds() -> None:
    shard = shard_of({("a", "Ada"): 10_000, ("a", "Bert"): 1})
    assert sorted(shard.of_chunks(np.array([0])).weight.tolist()) == [1, MAX_WEIGHT]


def test_what_is_not_there_has_no_place() -> None:
    shard = shard_of({("a", "Ada"): 1})
    assert shard.names.places(id_halves([name_id("Zed")])).tolist() == [-1]
    assert shard.ids.places(id_halves([chunk_id("z")])).tolist() == [-1]
    same_half = name_id("Ada")[:16] + "0" * 16
    assert shard.names.places(id_halves([same_half])).tolist() == [-1], "the whole id counts"


def test_a_shard_may_be_empty() -> None:
    shard = name_links.read(InMemory.of(data_of({}, "ab")))
    assert len(shard) == 2
    assert shard.of_chunks(np.array([0, 1])).total.tolist() == [0, 0]
    nothing = name_links.read(InMemory.of(data_of({})))
    assert len(nothing) == 0
    assert nothing.ids.places(id_halves([chunk_id("a")])).tolist() == [-1]


def test_what_is_no_shard_is_refused() -> None:
    with pytest.raises(ValueError, match="no such arrays"):
        name_links.read(InMemory.of(b"nothing of the kind"))


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("names", NameLinks.of_chunks),
        ("names_end", NameLinks.of_chunks),
        ("holders", NameLinks.of_names),
        ("holders_end", NameLinks.of_names),
        ("text_end", NameLinks.name_texts),
    ],
)
def test_links_that_lead_elsewhere_are_refused(name: str, of: Callable[[NameLinks, Ints], object]) -> None:
    good = shard_of({("a", "Ada"): 1, ("b", "Ada"): 1, ("b", "Bert"): 1})
    arrays = {n: a.whole().copy() for n, a in good.arrays.items()}
    arrays[name][0] = 1_000
    bad = name_links.read(InMemory.of(pack(arrays)))
    with pytest.raises(ValueError, match=r"lead|order"):
        of(bad, np.array([0, 1]))
