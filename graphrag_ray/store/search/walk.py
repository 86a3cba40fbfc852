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

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from graphrag_ray.store.search.mapped_arrays import Ints, Keys, halves, places_in
from graphrag_ray.store.search.name_links import NameLinks
from graphrag_ray.store.search.ranking import kth

DAMPING = 0.5
PRECISION = 1e-6
MOST_ROUNDS = 64
"""They end earlier: what waits is halved in each."""

Floats: TypeAlias = npt.NDArray[np.float64]
_SHARD_BITS = 32
_NONE: Ints = np.zeros(0, np.int64)


Walked: TypeAlias = tuple[str, float, tuple[str, ...]]
"""Id and score of a chunk, and its path: names and ids of chunks by turns, from a restart on, a name last.
The path is () where the chunk is a restart and no name brought more to it than that."""


def count_holders(shards: Sequence[NameLinks], names: Sequence[str]) -> dict[str, int]:
    """Of those of these names that the index knows, how many chunks hold each. names: ids."""
    if not names:
        return {}
    high, low = halves(names)
    counts = np.zeros(len(names), np.int64)
    for shard in shards:
        places = shard.name_places(high, low)
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
    going = _Walk(shards, precision, among)
    going.begin(names, chunks)
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
        before = len(self.key)
        number = self._numbers(keys)
        more = len(self.key) - before
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

    def push(self, active: Ints) -> Floats:
        """What these pass on."""
        waiting = self.waiting[active]
        self.score[active] += (1 - DAMPING) * waiting
        self.waiting[active] = 0
        return DAMPING * waiting

    def known(self, keys: Keys) -> Ints:
        """The number of each; -1 for one that it did not come to."""
        numbers = np.full(len(keys), -1)
        at = np.searchsorted(self._sorted, keys)
        inside = np.flatnonzero(at < len(self._sorted))
        inside = inside[self._sorted[at[inside]] == keys[inside]]
        numbers[inside] = self._number[at[inside]]
        return numbers

    def _numbers(self, keys: Keys) -> Ints:
        """The number of each. New ones are numbered."""
        wanted, inverse = np.unique(keys, return_inverse=True)
        numbers = self.known(wanted)
        is_new = numbers < 0
        new = wanted[is_new]
        numbers[is_new] = len(self.key) + np.arange(len(new))
        self.key = np.concatenate([self.key, new])
        at = np.searchsorted(self._sorted, new)
        self._sorted = np.insert(self._sorted, at, new)
        self._number = np.insert(self._number, at, numbers[is_new])
        return numbers[inverse.reshape(-1)]


class _Walk:
    """Keys of names are the first halves of their ids: two names with the same half, which nobody meets, are
    one. Keys of chunks are the shard and the place there."""

    def __init__(self, shards: Sequence[NameLinks], precision: float, among: Sequence[str] | None) -> None:
        self._shards, self._precision = shards, precision
        self._names, self._chunks = _Nodes(), _Nodes()
        self._place: Ints = np.zeros((len(shards), 0), np.int64)
        """Of each name in each shard, for the first names; -1 where it is not there."""
        self._begun = np.zeros(0)
        """Of the chunks that are restarts."""
        self._allowed = None if among is None else [_allowed(shard, among) for shard in shards]

    def begin(self, names: Mapping[str, float], chunks: Mapping[str, float]) -> None:
        """The restarts, whose weights are brought to a sum of 1."""
        known = count_holders(self._shards, list(names))
        starts = [(name, weight) for name, weight in names.items() if name in known]
        name_keys = halves([name for name, _ in starts])[0] if starts else _NONE.astype(np.uint64)
        name_weights = np.array([weight for _, weight in starts], np.float64)
        chunk_keys, chunk_weights = [np.zeros(0, np.uint64)], [np.zeros(0)]
        weights = np.array(list(chunks.values()), np.float64)
        for number, shard in enumerate(self._shards if chunks else ()):
            place = shard.chunk_places(*halves(list(chunks)))
            there = np.flatnonzero(place >= 0)
            if self._allowed is not None:
                there = there[self._allowed[number][place[there]]]
            chunk_keys.append(_keys(number, place[there]))
            chunk_weights.append(weights[there])
        of_chunks = np.concatenate(chunk_weights)
        every = name_weights.sum() + of_chunks.sum()
        if every > 0:
            self._names.receive(name_keys, name_weights / every)
            self._chunks.receive(np.concatenate(chunk_keys), of_chunks / every)
            self._begun = self._chunks.waiting.copy()

    def push_names(self) -> bool:
        """Pass on to chunks what waits at names; whether enough did anywhere."""
        active = self._active(self._names, self._look_for_names)
        if not len(active):
            return False
        moved = self._names.push(active)
        keys, amounts, senders = [np.zeros(0, np.uint64)], [np.zeros(0)], [_NONE]
        for number, shard in enumerate(self._shards):
            place = self._place[number, active]
            there = np.flatnonzero(place >= 0)
            linked = shard.of_names(place[there])
            own, to, weight = there[linked.whose], linked.place, linked.weight
            if self._allowed is not None:
                kept = self._allowed[number][to]
                own, to, weight = own[kept], to[kept], weight[kept]
            keys.append(_keys(number, to))
            amounts.append(moved[own] * weight / self._names.total[active[own]])
            senders.append(active[own])
        self._chunks.receive(np.concatenate(keys), np.concatenate(amounts), np.concatenate(senders))
        return True

    def push_chunks(self) -> bool:
        """Pass on to names what waits at chunks; whether enough did anywhere."""
        active = self._active(self._chunks, self._look_for_chunks)
        if not len(active):
            return False
        moved = self._chunks.push(active)
        number, place = _places(self._chunks.key[active])
        keys, amounts, senders = [np.zeros(0, np.uint64)], [np.zeros(0)], [_NONE]
        for at in np.unique(number).tolist():
            there = np.flatnonzero(number == at)
            linked = self._shards[at].of_chunks(place[there])
            own = there[linked.whose]
            keys.append(self._shards[at].name_halves(linked.place)[0])
            amounts.append(moved[own] * linked.weight / linked.total[linked.whose])
            senders.append(active[own])
        self._names.receive(np.concatenate(keys), np.concatenate(amounts), np.concatenate(senders))
        return True

    def best_chunks(self, k: int) -> list[Walked]:
        """With what waits there counted as if it were passed on now."""
        scores = self._chunks.score + (1 - DAMPING) * self._chunks.waiting
        chosen = np.flatnonzero((scores > 0) & (scores >= kth(scores, k, 0.0))) if k > 0 else _NONE
        ids = self._chunk_ids(chosen)
        order = sorted(zip(chosen.tolist(), ids, strict=True), key=lambda c: (-scores[c[0]], c[1]))[:k]
        return [(id_, float(scores[at]), self._path(at)) for at, id_ in order]

    def _active(self, nodes: _Nodes, look: Callable[[Ints], None]) -> Ints:
        """Numbers of the nodes that pass on: a link weighs 1 at least."""
        enough = np.flatnonzero(nodes.waiting >= self._precision)
        look(enough[nodes.total[enough] < 0])
        waiting, total = nodes.waiting[enough], nodes.total[enough]
        return enough[(total > 0) & (waiting >= self._precision * total)]

    def _look_for_names(self, numbers: Ints) -> None:
        missing = len(self._names.key) - self._place.shape[1]
        if missing:
            more = np.full((len(self._shards), missing), -1)
            self._place = np.concatenate([self._place, more], axis=1)
        if not len(numbers):
            return
        keys, total = self._names.key[numbers], np.zeros(len(numbers))
        for at, shard in enumerate(self._shards):
            place = places_in(shard.arrays["name.high"], shard.arrays["top.name"], keys)
            there = np.flatnonzero(place >= 0)
            self._place[at, numbers] = place
            total[there] += shard.totals(place[there])
        self._names.total[numbers] = total

    def _look_for_chunks(self, numbers: Ints) -> None:
        number, place = _places(self._chunks.key[numbers])
        for at in np.unique(number).tolist():
            there = np.flatnonzero(number == at)
            self._chunks.total[numbers[there]] = self._shards[at].of_chunks(place[there]).total

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
        shard, place = _places(self._chunks.key[[chunk]])
        linked = self._shards[int(shard[0])].of_chunks(place)
        number = self._names.known(self._shards[int(shard[0])].name_halves(linked.place)[0])
        there = np.flatnonzero(number >= 0)
        number, weight = number[there], linked.weight[there]
        looked = self._names.total[number] > 0
        number, weight = number[looked], weight[looked]
        passed_on = DAMPING / (1 - DAMPING) * self._names.score[number]
        brought = passed_on * weight / self._names.total[number]
        if not len(brought) or brought.max() <= self._begun[chunk]:
            return -1
        return int(number[int(np.argmax(brought))])

    def _chunk_ids(self, numbers: Ints) -> list[str]:
        number, place = _places(self._chunks.key[numbers])
        ids = [""] * len(numbers)
        for at in np.unique(number).tolist():
            there = np.flatnonzero(number == at)
            for n, id_ in zip(there.tolist(), self._shards[at].chunk_ids(place[there]), strict=True):
                ids[n] = id_
        return ids


def _keys(shard: int, places: Ints) -> Keys:
    return places.astype(np.uint64) | np.uint64(shard << _SHARD_BITS)


def _places(keys: Keys) -> tuple[Ints, Ints]:
    """The shards and the places there."""
    shard, place = keys >> np.uint64(_SHARD_BITS), keys & np.uint64((1 << _SHARD_BITS) - 1)
    return shard.astype(np.int64), place.astype(np.int64)


def _allowed(shard: NameLinks, among: Sequence[str]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(shard), np.bool_)
    if among:
        place = shard.chunk_places(*halves(among))
        found[place[place >= 0]] = True
    return found
