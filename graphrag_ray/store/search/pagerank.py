"""Personalized PageRank over names and chunks that visits only part of the graph.

A random walk starts at the names and chunks of a question (restarts). At each step it restarts with
probability 1 - DAMPING. Otherwise it follows a link from a name to a chunk that contains it or back, with a
probability proportional to the link's weight. The score of a chunk is the share of time spent there.

Scores are computed by forward push (Andersen, Chung and Lang 2006, "Local Graph Partitioning using PageRank
Vectors", section 3.1), but all eligible nodes push together in rounds. The residual of a node is pushed to
its neighbours once it is at least PRECISION per unit of link weight. So the work does not grow with the
graph, frequent names push to their many chunks only with a high residual, and a score is too low by at most
PRECISION times the link weight of the chunk.

HippoRAG 2 (Gutierrez et al. 2025) uses a graph of phrases, facts and passages with the same damping. Links
between names, from relationships, did not change our results ("Walks" in benchmarks/RESULTS.md).
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
MAX_ROUNDS = 64  # A safeguard: residuals halve in each round.

Floats: TypeAlias = npt.NDArray[np.float64]
_SHARD_BITS = 32
_NONE: Ints = np.zeros(0, np.int64)
_Links: TypeAlias = tuple[Ints, Keys, Floats]
"""Source node, key of the target node, and weight of each link."""

WalkHit: TypeAlias = tuple[str, float, tuple[str, ...]]
"""Id, score and path of a chunk. The path alternates names and chunk ids, from a restart to a name. It is ()
if the restart at the chunk contributed more to its score than any name."""


def count_holders(shards: Sequence[NameLinks], names: Sequence[str]) -> dict[str, int]:
    """Count the chunks that contain each of some names, given as ids. Unknown names are left out."""
    wanted = id_halves(names)
    counts = np.zeros(len(names), np.int64)
    for shard in shards:
        positions = shard.names.find(wanted)
        known = np.flatnonzero(positions >= 0)
        counts[known] += shard.holder_counts(positions[known])
    return {name: n for name, n in zip(names, counts.tolist(), strict=True) if n}


def walk(
    shards: Sequence[NameLinks],
    names: Mapping[str, float],
    chunks: Mapping[str, float],
    k: int,
    allowed_chunks: Sequence[str] | None = None,
    precision: float = PRECISION,
) -> list[WalkHit]:
    """Return the k chunks with the highest scores, sorted by falling score, then by id.

    Args:
        names: Restarts at names: ids (`base/ids.name_id`) -> positive weights. Unknown ids are ignored.
        chunks: Restarts at chunks: ids -> positive weights.
        among: Limits the walk to these chunk ids.
    """
    walker = _Walk(shards, names, chunks, precision, allowed_chunks)
    for _ in range(MAX_ROUNDS):
        if not (walker.push_names() | walker.push_chunks()):
            break
    return walker.best_chunks(k)


class _Nodes:
    """The names, or the chunks, that a walk visited, numbered in the order of their first visits."""

    def __init__(self) -> None:
        self.key: Keys = np.zeros(0, np.uint64)
        self.residual: Floats = np.zeros(0)  # Received but not yet pushed.
        self.score: Floats = np.zeros(0)  # So far.
        self.total: Floats = np.zeros(0)  # Weight of all links, or -1 if unknown.
        # The node of the other kind that sent the most on the first visit, or -1 for a restart.
        self.parent: Ints = _NONE
        self._sorted: Keys = self.key
        self._number: Ints = _NONE

    def receive(self, keys: Keys, amounts: Floats, senders: Ints | None = None) -> None:
        """Add to residuals of nodes. `senders` are node numbers of the other kind, or None for restarts."""
        wanted, inverse = np.unique(keys, return_inverse=True)
        numbers, before = self.find(wanted), len(self.key)
        is_new = numbers < 0
        new, n_new = wanted[is_new], int(is_new.sum())
        numbers[is_new] = before + np.arange(n_new)
        number = numbers[inverse.reshape(-1)]
        position = np.searchsorted(self._sorted, new)
        self._sorted = np.insert(self._sorted, position, new)
        self._number = np.insert(self._number, position, numbers[is_new])
        self.key = np.append(self.key, new)
        self.residual = np.append(self.residual, np.zeros(n_new))
        self.score = np.append(self.score, np.zeros(n_new))
        self.total = np.append(self.total, np.full(n_new, -1.0))
        self.parent = np.append(self.parent, np.full(n_new, -1))
        self.residual += np.bincount(number, amounts, minlength=len(self.key))
        if senders is not None and n_new:
            first = np.flatnonzero(number >= before)
            first = first[np.lexsort([senders[first], -amounts[first], number[first]])]
            first = first[np.unique(number[first], return_index=True)[1]]
            self.parent[number[first]] = senders[first]

    def find(self, keys: Keys) -> Ints:
        """Return the number of each node, or -1 if it was not visited."""
        numbers = np.full(len(keys), -1)
        position = np.searchsorted(self._sorted, keys)
        inside = np.flatnonzero(position < len(self._sorted))
        inside = inside[self._sorted[position[inside]] == keys[inside]]
        numbers[inside] = self._number[position[inside]]
        return numbers


class _Walk:
    """A walk. The key of a name is the first half of its id, and of a chunk its shard and position."""

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
        # [shards, names] Position of each name in each shard, or -1 if it is absent or unknown.
        self._position = np.full((len(shards), 0), -1)
        self._allowed: list[npt.NDArray[np.bool_]] | None = None
        if among is not None:
            self._allowed = [np.zeros(len(shard), np.bool_) for shard in shards]
            for shard, allowed in zip(shards, self._allowed, strict=True):
                allowed[shard.ids.find_existing(id_halves(among))] = True
        known = count_holders(shards, list(names))
        starts = {name: weight for name, weight in names.items() if name in known}
        name_weights = np.array(list(starts.values()), np.float64)
        keys, known_weights = [np.zeros(0, np.uint64)], [np.zeros(0)]
        weights = np.array(list(chunks.values()), np.float64)
        for number, shard in enumerate(shards):
            position = shard.ids.find(id_halves(list(chunks)))
            present = np.flatnonzero(position >= 0)
            if self._allowed is not None:
                present = present[self._allowed[number][position[present]]]
            keys.append(_chunk_keys(number, position[present]))
            known_weights.append(weights[present])
        chunk_weights = np.concatenate(known_weights)
        total = name_weights.sum() + chunk_weights.sum()
        if total > 0:  # Scale the weights of all restarts to a sum of 1.
            self._names.receive(id_halves(list(starts))[0], name_weights / total)
            self._chunks.receive(np.concatenate(keys), chunk_weights / total)
        self._restart_weights = self._chunks.residual.copy()

    def push_names(self) -> bool:
        """Push residuals from names to chunks. Return whether any was high enough."""

        def links(active: Ints) -> Iterator[_Links]:
            for number, shard in enumerate(self._shards):
                position = self._position[number, active]
                present = np.flatnonzero(position >= 0)
                found = shard.links_of_names(position[present])
                sender, target, weight = present[found.node_index], found.target, found.weight
                if self._allowed is not None:
                    allowed = self._allowed[number][target]
                    sender, target, weight = sender[allowed], target[allowed], weight[allowed]
                yield sender, _chunk_keys(number, target), weight

        return self._push(self._names, self._chunks, self._locate_names, links)

    def push_chunks(self) -> bool:
        """Push residuals from chunks to names. Return whether any was high enough."""

        def locate(numbers: Ints) -> None:
            for shard, members, positions in self._by_shard(numbers):
                self._chunks.total[numbers[members]] = shard.links_of_chunks(positions).total

        def links(active: Ints) -> Iterator[_Links]:
            for shard, members, positions in self._by_shard(active):
                found = shard.links_of_chunks(positions)
                yield members[found.node_index], shard.names.high.take(found.target), found.weight

        return self._push(self._chunks, self._names, locate, links)

    def _push(
        self,
        nodes: _Nodes,
        others: _Nodes,
        locate: Callable[[Ints], None],
        links: Callable[[Ints], Iterator[_Links]],
    ) -> bool:
        """Push from nodes to others. `locate` sets unknown totals of nodes."""
        candidates = np.flatnonzero(nodes.residual >= self._precision)  # A link's weight is at least 1.
        locate(candidates[nodes.total[candidates] < 0])
        residual, total = nodes.residual[candidates], nodes.total[candidates]
        active = candidates[(total > 0) & (residual >= self._precision * total)]
        if not len(active):
            return False
        moved = DAMPING * nodes.residual[active]
        nodes.score[active] += (1 - DAMPING) * nodes.residual[active]
        nodes.residual[active] = 0
        all_links = [*links(active), (_NONE, np.zeros(0, np.uint64), np.zeros(0))]
        sender, keys, weight = (np.concatenate(arrays) for arrays in zip(*all_links, strict=True))
        others.receive(keys, moved[sender] * weight / nodes.total[active[sender]], active[sender])
        return True

    def _locate_names(self, numbers: Ints) -> None:
        missing = len(self._names.key) - self._position.shape[1]
        self._position = np.pad(self._position, ((0, 0), (0, missing)), constant_values=-1)
        keys, total = self._names.key[numbers], np.zeros(len(numbers))
        for i, shard in enumerate(self._shards):
            position = find_positions(shard.names.high, shard.names.top, keys)
            present = np.flatnonzero(position >= 0)
            self._position[i, numbers] = position
            total[present] += shard.totals(position[present])
        self._names.total[numbers] = total

    def best_chunks(self, k: int) -> list[WalkHit]:
        """Return the best chunks, counting their residuals as if they were pushed now."""
        scores = self._chunks.score + (1 - DAMPING) * self._chunks.residual
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
            if chunk in seen:  # The walk came to the name from this chunk.
                break
            shard = int(np.flatnonzero(self._position[:, name] >= 0)[0])
            path += self._shards[shard].name_texts(self._position[shard, [name]])
            if chunk < 0:
                break
            seen.add(chunk)
            path += self._chunk_ids(np.array([chunk]))
        return tuple(reversed(path))

    def _best_sender(self, chunk: int) -> int:
        """Return the name that contributed most to a restart chunk, or -1 if the restart contributed more."""
        ((shard, _, positions),) = self._by_shard(np.array([chunk]))
        found = shard.links_of_chunks(positions)
        number = self._names.find(shard.names.high.take(found.target))
        known = np.flatnonzero(number >= 0)
        known = known[self._names.total[number[known]] > 0]
        number, weight = number[known], found.weight[known]
        pushed = DAMPING / (1 - DAMPING) * self._names.score[number]
        contributed = pushed * weight / self._names.total[number]
        if not len(contributed) or contributed.max() <= self._restart_weights[chunk]:
            return -1
        return int(number[int(np.argmax(contributed))])

    def _chunk_ids(self, numbers: Ints) -> list[str]:
        ids = [""] * len(numbers)
        for shard, members, positions in self._by_shard(numbers):
            for i, id_ in zip(members.tolist(), shard.ids.at(positions), strict=True):
                ids[i] = id_
        return ids

    def _by_shard(self, numbers: Ints) -> Iterator[tuple[NameLinks, Ints, Ints]]:
        """Group chunks by shard. Yield the shard, the indexes of its chunks, and their positions in it."""
        keys = self._chunks.key[numbers]
        shard, position = keys >> np.uint64(_SHARD_BITS), keys & np.uint64((1 << _SHARD_BITS) - 1)
        for i in np.unique(shard).tolist():
            members = np.flatnonzero(shard == i)
            yield self._shards[i], members, position[members].astype(np.int64)


def _chunk_keys(shard: int, positions: Ints) -> Keys:
    return positions.astype(np.uint64) | np.uint64(shard << _SHARD_BITS)
