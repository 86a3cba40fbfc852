"""Personalised PageRank over names and chunks, without looking at the whole graph.

A walker begins at names and chunks that a question gives (restarts). At each step it begins anew with
probability 1 - DAMPING, else it takes a link of where it stands, the heavier the likelier: from a name to a
chunk that holds it, from a chunk to a name. The score of a chunk is how often the walker is there.

Scores are found by forward push (Andersen, Chung and Lang 2006, "Local Graph Partitioning using PageRank
Vectors", section 3.1): what has arrived at a node waits there, and is passed on when it is at least PRECISION
for each unit of weight of the node's links. So a name that is everywhere is passed on to its many chunks only
where much has arrived at it, what is looked at does not grow with the graph, and a score is too low by at
most PRECISION times the weight of the chunk's links. All nodes that have enough are pushed together, round by
round.

HippoRAG 2 (Gutierrez et al. 2025) walks with the same damping over phrases, facts and passages. Here there
are names and chunks alone: links between names, from relationships, changed no result of ours ("Walks" in
benchmarks/RESULTS.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from graphrag_ray.store.search.mapped_arrays import Ints, Keys, halves, places_in
from graphrag_ray.store.search.name_links import NameLinks
from graphrag_ray.store.search.vectors import kth

DAMPING = 0.5
PRECISION = 1e-6
MOST_ROUNDS = 64
"""They end earlier: what waits is halved in each."""

Floats: TypeAlias = npt.NDArray[np.float64]
_SHARD_BITS = 32
_NONE: Ints = np.zeros(0, np.int64)
_Links: TypeAlias = tuple[Ints, Keys, Floats]
"""Of each link: which node it leads from, the key of that it leads to, and its weight."""


Walked: TypeAlias = tuple[str, float, tuple[str, ...]]
"""Id and score of a chunk, and its path: names and ids of chunks by turns, from a restart on, a name last.
The path is () where the chunk is a restart and no name brought more to it than that."""


def count_holders(shards: Sequence[NameLinks], names: Sequence[str]) -> dict[str, int]:
    """Of those of these names that the index knows, how many chunks hold each. names: ids."""
    wanted = halves(names)
    counts = np.zeros(len(names), np.int64)
    for shard in shards:
        places = shard.names.places(wanted)
        there = np.flatnonzero(places >= 0)
        counts[there] += shard.holder_counts(places[there])
    return {name: n for name, n in zip(names, counts.tolist(), strict=True) if n}


def walk(
    shards: Sequence[NameLinks],
    names: Mapping[str, float],
    chunks: Mapping[str, float],
    k: int,
    among: Sequence[str] | None = None,
    precision: float = PRECISION,
) -> list[Walked]:
    """The k chunks with the highest scores, best first, ties by id.

    names, chunks   restarts: ids (of names: `base/ids.name_id`) and weights above 0. What no shard knows is
                    none
    among           ids of the only chunks that count: no other one is walked through
    """
    going = _Walk(shards, names, chunks, precision, among)
    for _ in range(MOST_ROUNDS):
        if not (going.push_names() | going.push_chunks()):
            break
    return going.best_chunks(k)


class _Nodes:
    """The names, or the chunks, that a walk came to, in the order in which it did.

    key      of each
    waiting  what arrived and was not passed on
    score    as far as it is known
    total    the weights of its links together; -1 where nobody has looked
    parent   the node of the other side from which most came when it was first reached; -1 for a restart
    """

    def __init__(self) -> None:
        self.key: Keys = np.zeros(0, np.uint64)
        self.waiting: Floats = np.zeros(0)
        self.score: Floats = np.zeros(0)
        self.total: Floats = np.zeros(0)
        self.parent: Ints = _NONE
        self._sorted: Keys = self.key
        self._number: Ints = _NONE

    def receive(self, keys: Keys, moved: Floats, senders: Ints | None = None) -> None:
        """What came to these. senders: numbers of the nodes that it came from; None: they are restarts."""
        wanted, inverse = np.unique(keys, return_inverse=True)
        numbers, before = self.known(wanted), len(self.key)
        is_new = numbers < 0
        new, more = wanted[is_new], int(is_new.sum())
        numbers[is_new] = before + np.arange(more)
        number = numbers[inverse.reshape(-1)]
        at = np.searchsorted(self._sorted, new)
        self._sorted = np.insert(self._sorted, at, new)
        self._number = np.insert(self._number, at, numbers[is_new])
        self.key = np.append(self.key, new)
        self.waiting = np.append(self.waiting, np.zeros(more))
        self.score = np.append(self.score, np.zeros(more))
        self.total = np.append(self.total, np.full(more, -1.0))
        self.parent = np.append(self.parent, np.full(more, -1))
        self.waiting += np.bincount(number, moved, minlength=len(self.key))
        if senders is not None and more:
            at = np.flatnonzero(number >= before)
            at = at[np.lexsort([senders[at], -moved[at], number[at]])]
            at = at[np.unique(number[at], return_index=True)[1]]
            self.parent[number[at]] = senders[at]

    def known(self, keys: Keys) -> Ints:
        """The number of each; -1 for one that it did not come to."""
        numbers = np.full(len(keys), -1)
        at = np.searchsorted(self._sorted, keys)
        inside = np.flatnonzero(at < len(self._sorted))
        inside = inside[self._sorted[at[inside]] == keys[inside]]
        numbers[inside] = self._number[at[inside]]
        return numbers


class _Walk:
    """Keys of names are the first halves of their ids: two names with the same half, which nobody meets, are
    one. Keys of chunks are the shard and the place there."""

    def __init__(
        self,
        shards: Sequence[NameLinks],
        names: Mapping[str, float],
        chunks: Mapping[str, float],
        precision: float,
        among: Sequence[str] | None,
    ) -> None:
        self._shards, self._precision = shards, precision
        self._names, self._chunks = _Nodes(), _Nodes()
        self._place = np.full((len(shards), 0), -1)
        """[shards, names] the place of each name in each shard; -1: not there, or nobody has looked."""
        self._allowed: list[npt.NDArray[np.bool_]] | None = None
        if among is not None:
            self._allowed = [np.zeros(len(shard), np.bool_) for shard in shards]
            for shard, allowed in zip(shards, self._allowed, strict=True):
                allowed[shard.ids.held(halves(among))] = True
        known = count_holders(shards, list(names))
        starts = {name: weight for name, weight in names.items() if name in known}
        name_weights = np.array(list(starts.values()), np.float64)
        keys, of_chunks = [np.zeros(0, np.uint64)], [np.zeros(0)]
        weights = np.array(list(chunks.values()), np.float64)
        for number, shard in enumerate(shards):
            place = shard.ids.places(halves(list(chunks)))
            there = np.flatnonzero(place >= 0)
            if self._allowed is not None:
                there = there[self._allowed[number][place[there]]]
            keys.append(_keys(number, place[there]))
            of_chunks.append(weights[there])
        chunk_weights = np.concatenate(of_chunks)
        every = name_weights.sum() + chunk_weights.sum()
        if every > 0:  # the weights of restarts are brought to a sum of 1
            self._names.receive(halves(list(starts))[0], name_weights / every)
            self._chunks.receive(np.concatenate(keys), chunk_weights / every)
        self._begun = self._chunks.waiting.copy()

    def push_names(self) -> bool:
        """Pass on to chunks what waits at names; whether enough did anywhere."""

        def links(active: Ints) -> Iterator[_Links]:
            for number, shard in enumerate(self._shards):
                place = self._place[number, active]
                there = np.flatnonzero(place >= 0)
                linked = shard.of_names(place[there])
                own, to, weight = there[linked.whose], linked.place, linked.weight
                if self._allowed is not None:
                    kept = self._allowed[number][to]
                    own, to, weight = own[kept], to[kept], weight[kept]
                yield own, _keys(number, to), weight

        return self._push(self._names, self._chunks, self._look_for_names, links)

    def push_chunks(self) -> bool:
        """Pass on to names what waits at chunks; whether enough did anywhere."""

        def look(numbers: Ints) -> None:
            for shard, there, place in self._by_shard(numbers):
                self._chunks.total[numbers[there]] = shard.of_chunks(place).total

        def links(active: Ints) -> Iterator[_Links]:
            for shard, there, place in self._by_shard(active):
                linked = shard.of_chunks(place)
                yield there[linked.whose], shard.names.high.take(linked.place), linked.weight

        return self._push(self._chunks, self._names, look, links)

    def _push(
        self,
        nodes: _Nodes,
        others: _Nodes,
        look: Callable[[Ints], None],
        links: Callable[[Ints], Iterator[_Links]],
    ) -> bool:
        enough = np.flatnonzero(nodes.waiting >= self._precision)  # a link weighs 1 at least
        look(enough[nodes.total[enough] < 0])
        waiting, total = nodes.waiting[enough], nodes.total[enough]
        active = enough[(total > 0) & (waiting >= self._precision * total)]
        if not len(active):
            return False
        moved = DAMPING * nodes.waiting[active]
        nodes.score[active] += (1 - DAMPING) * nodes.waiting[active]
        nodes.waiting[active] = 0
        some = [*links(active), (_NONE, np.zeros(0, np.uint64), np.zeros(0))]
        own, keys, weight = (np.concatenate(arrays) for arrays in zip(*some, strict=True))
        others.receive(keys, moved[own] * weight / nodes.total[active[own]], active[own])
        return True

    def _look_for_names(self, numbers: Ints) -> None:
        missing = len(self._names.key) - self._place.shape[1]
        self._place = np.pad(self._place, ((0, 0), (0, missing)), constant_values=-1)
        keys, total = self._names.key[numbers], np.zeros(len(numbers))
        for at, shard in enumerate(self._shards):
            place = places_in(shard.names.high, shard.names.top, keys)
            there = np.flatnonzero(place >= 0)
            self._place[at, numbers] = place
            total[there] += shard.totals(place[there])
        self._names.total[numbers] = total

    def best_chunks(self, k: int) -> list[Walked]:
        """With what waits there counted as if it were passed on now."""
        scores = self._chunks.score + (1 - DAMPING) * self._chunks.waiting
        chosen = np.flatnonzero((scores > 0) & (scores >= kth(scores, k, 0.0))) if k > 0 else _NONE
        ids = self._chunk_ids(chosen)
        order = sorted(zip(chosen.tolist(), ids, strict=True), key=lambda c: (-scores[c[0]], c[1]))[:k]
        return [(id_, float(scores[at]), self._path(at)) for at, id_ in order]

    def _path(self, chunk: int) -> tuple[str, ...]:
        found: list[str] = []
        seen = {chunk}
        while True:
            name = int(self._chunks.parent[chunk])
            name = self._bringer(chunk) if name < 0 else name
            if name < 0:
                break
            chunk = int(self._names.parent[name])
            if chunk in seen:  # it is itself what brought the name
                break
            shard = int(np.flatnonzero(self._place[:, name] >= 0)[0])
            found += self._shards[shard].name_texts(self._place[shard, [name]])
            if chunk < 0:
                break
            seen.add(chunk)
            found += self._chunk_ids(np.array([chunk]))
        return tuple(reversed(found))

    def _bringer(self, chunk: int) -> int:
        """The name that brought most to a chunk that is a restart; -1 where it began with more."""
        ((shard, _, place),) = self._by_shard(np.array([chunk]))
        linked = shard.of_chunks(place)
        number = self._names.known(shard.names.high.take(linked.place))
        there = np.flatnonzero(number >= 0)
        there = there[self._names.total[number[there]] > 0]
        number, weight = number[there], linked.weight[there]
        passed_on = DAMPING / (1 - DAMPING) * self._names.score[number]
        brought = passed_on * weight / self._names.total[number]
        if not len(brought) or brought.max() <= self._begun[chunk]:
            return -1
        return int(number[int(np.argmax(brought))])

    def _chunk_ids(self, numbers: Ints) -> list[str]:
        ids = [""] * len(numbers)
        for shard, there, place in self._by_shard(numbers):
            for n, id_ in zip(there.tolist(), shard.ids.at(place), strict=True):
                ids[n] = id_
        return ids

    def _by_shard(self, numbers: Ints) -> Iterator[tuple[NameLinks, Ints, Ints]]:
        """Chunks by their shards: which of them lie in each, and at which places."""
        keys = self._chunks.key[numbers]
        shard, place = keys >> np.uint64(_SHARD_BITS), keys & np.uint64((1 << _SHARD_BITS) - 1)
        for at in np.unique(shard).tolist():
            there = np.flatnonzero(shard == at)
            yield self._shards[at], there, place[there].astype(np.int64)


def _keys(shard: int, places: Ints) -> Keys:
    return places.astype(np.uint64) | np.uint64(shard << _SHARD_BITS)
