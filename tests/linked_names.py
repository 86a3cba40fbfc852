"""Shards of the walk index from a literal list of links."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphrag_ray.base.ids import name_id, stable_id
from graphrag_ray.store.search import name_links
from graphrag_ray.store.search.mapped_arrays import InMemory
from graphrag_ray.store.search.name_links import NameLinks

Links = Mapping[tuple[str, str], int]
"""(chunk, name) -> weight."""


def chunk_id(name: str) -> str:
    return stable_id("chunk", name)


def data_of(
    links: Links,
    more_chunks: Sequence[str] = (),
    seed: int = 0,
    id_of: Callable[[str], str] = chunk_id,
) -> bytes:
    """`id_of` returns the id of a chunk."""
    pairs = list(links.items())
    random.Random(seed).shuffle(pairs)
    chunks = list(dict.fromkeys([*(c for (c, _), _ in pairs), *more_chunks]))
    names = list(dict.fromkeys(n for (_, n), _ in pairs))
    return name_links.build(
        [id_of(c) for c in chunks],
        {name_id(n): n for n in names},
        np.array([chunks.index(c) for (c, _), _ in pairs], np.int64),
        np.array([names.index(n) for (_, n), _ in pairs], np.int64),
        np.array([w for _, w in pairs], np.int64),
    )


def shard_of(
    links: Links, more_chunks: Sequence[str] = (), id_of: Callable[[str], str] = chunk_id
) -> NameLinks:
    return name_links.read(InMemory.of(data_of(links, more_chunks, id_of=id_of)))
