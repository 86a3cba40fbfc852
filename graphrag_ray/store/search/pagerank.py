"""Personalized PageRank over names and chunks that visits only a part of the graph.

A walker starts at the names and chunks of a question (restarts). At each step it restarts with probability 1
- DAMPING; else it follows a link, with a probability proportional to its weight, from a name to a chunk that
contains it or back. A chunk's score is the share of time that the walker spends there.

Scores are computed by forward push (Andersen, Chung and Lang 2006, "Local Graph Partitioning using PageRank
Vectors", section 3.1), pushing all eligible nodes together in rounds. What arrived at a node is pushed on
once it reaches PRECISION per unit of its links' weight. So the work does not grow with the graph, frequent
names push to their many chunks only if much arrived at them, and a score is too low by at most PRECISION
times the weight of the chunk's links.

HippoRAG 2 (Gutierrez et al. 2025) walks over phrases, facts and passages with the same damping. Links between
names, from relationships, did not change our results ("Walks" in benchmarks/RESULTS.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from graphrag_ray.store.search.mapped_arrays import Ints, Keys, find_positions, id_halves
from graphrag_ray.store.search.name_links import NameLinks
from graphrag_ray.store.search.vector_index import kth_highest

DAMPING = 0.5
PRECISION = 1e-6
MAX_ROUNDS = 64  # Never reached: what waits halves in each round.

Floats: TypeAlias = npt.NDArray[np.float64]
_SHARD_BITS = 32
_NONE: Ints = np.zeros(0, np.int64)
_Links: TypeAlias = tuple[Ints, Keys, Floats]
"""For each link: the node that it leads from, the key of the node that it leads to, and its weight."""

WalkHit: TypeAlias = tuple[str, float, tuple[str, ...]]
"""Id, score and path of a chunk. The path alternates names and chunk ids, from a restart to a name. It is ()
if the chunk is a restart to which no name brought more than that."""


def count_holders(shards: Sequence[NameLinks], names: Sequence[str]) -> dict[str, int]:
    """Count the chunks that contain each of some names (ids); unknown names are left out."""
    wanted = id_halves(names)
    counts = np.zeros(len(names), np.int64)
    for shard in shards:
        places = shard.names.places(wanted)
        known = np.flatnonzero(places >= 0)
        counts[known] += shard.holder_counts(places[known])
    return {name: n for name, n in zip(names, counts.tolist(), strict=True) if n}


def walk(
    shards: Sequence[NameLinks],
    names: Mapping[str, float],
    chunks: Mapping[str, float],
    k: int,
    among: Sequence[str] | None = None,
    precision: float = PRECISION,
) -> list[WalkHit]:
    """Return the k chunks with the highest scores, best first, ties by id.

    Args:
        names: Restarts: ids (`base/ids.name_id`) and positive weights. Unknown ids are ignored.
        chunks: Restarts: ids and positive weights.
        among: Chunk ids to which the walk is limited.
    """
    walker = _Walk(shards, names, chunks, precision, among)
    for _ in range(MAX_ROUNDS):
        if not (walker.push_names() | walker.push_chunks()):
            break
    return walker.best_chunks(k)


class _Nodes:
    """The names, or the chunks, that a walk reached, numbered in this order."""

    def __init__(self) -> None:
        self.key: Keys = np.zeros(0, np.uint64)
        self.waiting: Floats = np.zeros(0)  # Arrived and not pushed on.
        self.score: Floats = np.zeros(0)  # So far.
        self.total: Floats = np.zeros(0)  # Weight of all links; -1: unknown.
        # The node of the other kind that sent the most on the first visit; -1 for a restart.
        self.parent: Ints = _NONE
        self._sorted: Keys = self.key
        self._number: Ints = _NONE

    def receive(self, keys: Keys, amounts: Floats, senders: Ints | None = None) -> None:
        """Add to what waits at nodes. `senders` are node numbers of the other kind; None: restarts."""
        wanted, inverse = np.unique(keys, return_inverse=True)
        numbers, before = self.find(wanted), len(self.key)
        is_new = numbers < 0
        new, n_new = wanted[is_new], int(is_new.sum())
        numbers[is_new] = before + np.arange(n_new)
        number = numbers[inverse.reshape(-1)]
        at = np.searchsorted(self._sorted, new)
        self._sorted = np.insert(self._sorted, at, new)
        self._number = np.insert(self._number, at, numbers[is_new])
        self.key = np.append(self.key, new)
        self.waiting = np.append(self.waiting, np.zeros(n_new))
        self.score = np.append(self.score, np.zeros(n_new))
        self.total = np.append(self.total, np.full(n_new, -1.0))
        self.parent = np.append(self.parent, np.full(n_new, -1))
        self.waiting += np.bincount(number, amounts, minlength=len(self.key))
        if senders is not None and n_new:
            at = np.flatnonzero(number >= before)
            at = at[np.lexsort([senders[at], -amounts[at], number[at]])]
            at = at[np.unique(number[at], return_index=True)[1]]
            self.parent[number[at]] = senders[at]

    def find(self, keys: Keys) -> Ints:
        """Return the number of each node; -1 if it was not reached."""
        numbers = np.full(len(keys), -1)
        at = np.searchsorted(self._sorted, keys)
        inside = np.flatnonzero(at < len(self._sorted))
        inside = inside[self._sorted[at[inside]] == keys[inside]]
        numbers[inside] = self._number[at[inside]]
        return numbers


class _Walk:
    """Keys are the first half of a name's id (unique in practice), and the shard and position of a chunk."""

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
        # [shards, names] The position of each name in each shard; -1 if it is not there or unknown.
        self._place = np.full((len(shards), 0), -1)
        self._allowed: list[npt.NDArray[np.bool_]] | None = None
        if among is not None:
            self._allowed = [np.zeros(len(shard), np.bool_) for shard in shards]
            for shard, allowed in zip(shards, self._allowed, strict=True):
                allowed[shard.ids.held(id_halves(among))] = True
        known = count_holders(shards, list(names))
        starts = {name: weight for name, weight in names.items() if name in known}
        name_weights = np.array(list(starts.values()), np.float64)
        keys, known_weights = [np.zeros(0, np.uint64)], [np.zeros(0)]
        weights = np.array(list(chunks.values()), np.float64)
        for number, shard in enumerate(shards):
            place = shard.ids.places(id_halves(list(chunks)))
            found = np.flatnonzero(place >= 0)
            if self._allowed is not None:
                found = found[self._allowed[number][place[found]]]
            keys.append(_chunk_keys(number, place[found]))
            known_weights.append(weights[found])
        chunk_weights = np.concatenate(known_weights)
        total = name_weights.sum() + chunk_weights.sum()
        if total > 0:  # The weights of restarts are scaled to a sum of 1.
            self._names.receive(id_halves(list(starts))[0], name_weights / total)
            self._chunks.receive(np.concatenate(keys), chunk_weights / total)
        self._restart_weights = self._chunks.waiting.copy()

    def push_names(self) -> bool:
        """Push what waits at names on to chunks; return whether there was enough anywhere."""

        def links(active: Ints) -> Iterator[_Links]:
            for number, shard in enumerate(self._shards):
                place = self._place[number, active]
                found = np.flatnonzero(place >= 0)
                linked = shard.of_names(place[found])
                sender, to, weight = found[linked.node_index], linked.place, linked.weight
                if self._allowed is not None:
                    kept = self._allowed[number][to]
                    sender, to, weight = sender[kept], to[kept], weight[kept]
                yield sender, _chunk_keys(number, to), weight

        return self._push(self._names, self._chunks, self._locate_names, links)

    def push_chunks(self) -> bool:
        """Push what waits at chunks on to names; return whether there was enough anywhere."""

        def locate(numbers: Ints) -> None:
            for shard, members, place in self._by_shard(numbers):
                self._chunks.total[numbers[members]] = shard.of_chunks(place).total

        def links(active: Ints) -> Iterator[_Links]:
            for shard, members, place in self._by_shard(active):
                linked = shard.of_chunks(place)
                yield members[linked.node_index], shard.names.high.take(linked.place), linked.weight

        return self._push(self._chunks, self._names, locate, links)

    def _push(
        self,
        nodes: _Nodes,
        others: _Nodes,
        locate: Callable[[Ints], None],
        links: Callable[[Ints], Iterator[_Links]],
    ) -> bool:
        """Push from nodes to others. `locate` sets the totals of nodes that are not known yet."""
        enough = np.flatnonzero(nodes.waiting >= self._precision)  # A link's weight is at least 1.
        locate(enough[nodes.total[enough] < 0])
        waiting, total = nodes.waiting[enough], nodes.total[enough]
        active = enough[(total > 0) & (waiting >= self._precision * total)]
        if not len(active):
            return False
        moved = DAMPING * nodes.waiting[active]
        nodes.score[active] += (1 - DAMPING) * nodes.waiting[active]
        nodes.waiting[active] = 0
        all_links = [*links(active), (_NONE, np.zeros(0, np.uint64), np.zeros(0))]
        sender, keys, weight = (np.concatenate(arrays) for arrays in zip(*all_links, strict=True))
        others.receive(keys, moved[sender] * weight / nodes.total[active[sender]], active[sender])
        return True

    def _locate_names(self, numbers: Ints) -> None:
        missing = len(self._names.key) - self._place.shape[1]
        self._place = np.pad(self._place, ((0, 0), (0, missing)), constant_values=-1)
        keys, total = self._names.key[numbers], np.zeros(len(numbers))
        for i, shard in enumerate(self._shards):
            place = find_positions(shard.names.high, shard.names.top, keys)
            found = np.flatnonzero(place >= 0)
            self._place[i, numbers] = place
            total[found] += shard.totals(place[found])
        self._names.total[numbers] = total

    def best_chunks(self, k: int) -> list[WalkHit]:
        """Return the best chunks, counting what waits there as if it were pushed now."""
        scores = self._chunks.score + (1 - DAMPING) * self._chunks.waiting
        chosen = np.flatnonzero((scores > 0) & (scores >= kth_highest(scores, k, 0.0))) if k > 0 else _NONE
        ids = self._chunk_ids(chosen)
        order = sorted(zip(chosen.tolist(), ids, strict=True), key=lambda c: (-scores[c[0]], c[1]))[:k]
        return [(id_, float(scores[chunk]), self._path(chunk)) for chunk, id_ in order]

    def _path(self, chunk: int) -> tuple[str, ...]:
        path: list[str] = []
        seen = {chunk}
        while True:
            name = int(self._chunks.parent[chunk])
            name = self._best_sender(chunk) if name < 0 else name
            if name < 0:
                break
            chunk = int(self._names.parent[name])
            if chunk in seen:  # The name was reached from this chunk.
                break
            shard = int(np.flatnonzero(self._place[:, name] >= 0)[0])
            path += self._shards[shard].name_texts(self._place[shard, [name]])
            if chunk < 0:
                break
            seen.add(chunk)
            path += self._chunk_ids(np.array([chunk]))
        return tuple(reversed(path))

    def _best_sender(self, chunk: int) -> int:
        """Return the name that brought most to a restart chunk; -1 if the chunk started with more."""
        ((shard, _, place),) = self._by_shard(np.array([chunk]))
        linked = shard.of_chunks(place)
        number = self._names.find(shard.names.high.take(linked.place))
        known = np.flatnonzero(number >= 0)
        known = known[self._names.total[number[known]] > 0]
        number, weight = number[known], linked.weight[known]
        pushed = DAMPING / (1 - DAMPING) * self._names.score[number]
        brought = pushed * weight / self._names.total[number]
        if not len(brought) or brought.max() <= self._restart_weights[chunk]:
            return -1
        return int(number[int(np.argmax(brought))])

    def _chunk_ids(self, numbers: Ints) -> list[str]:
        ids = [""] * len(numbers)
        for shard, members, place in self._by_shard(numbers):
            for i, id_ in zip(members.tolist(), shard.ids.at(place), strict=True):
                ids[i] = id_
        return ids

    def _by_shard(self, numbers: Ints) -> Iterator[tuple[NameLinks, Ints, Ints]]:
        """Group chunks by shard; yield the shard, which of the chunks it holds, and their positions there."""
        keys = self._chunks.key[numbers]
        shard, place = keys >> np.uint64(_SHARD_BITS), keys & np.uint64((1 << _SHARD_BITS) - 1)
        for i in np.unique(shard).tolist():
            members = np.flatnonzero(shard == i)
            yield self._shards[i], members, place[members].astype(np.int64)


def _chunk_keys(shard: int, places: Ints) -> Keys:
    return places.astype(np.uint64) | np.uint64(shard << _SHARD_BITS)
