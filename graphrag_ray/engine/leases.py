"""Leases of items to workers, and the decision when too many items have failed. Pure.

A worker with free slots leases more items, so a slow call delays no others. A lease ends when the item's
outcome is journalled. The leases of a dead worker return to the queue.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from graphrag_ray.base.unexpected_errors import DESCRIPTION_PREFIX

P = TypeVar("P")

ORDINARY_LOSSES = 1
"""Items lost with at most this many workers are leased normally, because usually just a node is gone."""
SUSPECT_GROUP = 16
"""Items lost once more are leased to an idle worker in groups of this size, and after another loss one by
one."""
MAX_LOSSES, MAX_LOST_ALONE = 3, 2
"""An item is given up when it was lost this often in total, and this often as its worker's only item."""


@dataclass
class _Item(Generic[P]):
    """An item. `lost_in` is the number of the last loss that included it, or 0."""

    payload: P
    lost_in: int = 0
    times_lost: int = 0
    lost_alone: int = 0


class LeaseBook(Generic[P]):
    """Items by id, queued or leased. Each item is leased until it is finished or given up.

    When a worker dies, any of its items may be responsible. Items lost twice wait until no others are queued.
    They are then leased in small groups and finally alone, which identifies the item responsible.

    Attributes:
        reissued: Number of leases lost with their worker.
        losses: How often a worker with leases died, or left and handed back items that it had begun.
        fatal: Number of worker deaths by item, for items that crash their workers. They are not leased again.
    """

    def __init__(self) -> None:
        self._items: dict[int, _Item[P]] = {}
        self._queue, self._suspects = deque[int](), deque[int]()
        self._leases: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._quarantined = set[str]()
        self.reissued = self.losses = 0
        self.fatal: dict[int, int] = {}

    def add(self, items: Iterable[tuple[int, P]]) -> None:
        for id_, payload in items:
            self._items[id_] = _Item(payload)
            self._queue.append(id_)

    def leases_of(self, worker: str) -> Collection[int]:
        """The items leased to a worker, in lease order."""
        return self._leases[worker].keys()

    def lose(self, worker: str) -> None:
        """Requeue the leases of a dead worker."""
        lost = list(self.leases_of(worker))
        self.losses += bool(lost)
        self.reissued += len(lost)
        for id_ in reversed(lost):
            item = self._items[id_]
            item.lost_in = self.losses
            item.times_lost += 1
            item.lost_alone += len(lost) == 1
            if item.times_lost >= MAX_LOSSES and item.lost_alone >= MAX_LOST_ALONE:
                self.fatal[id_] = item.times_lost
            self._take_back(worker, id_)

    def hand_back(self, worker: str, ids: Iterable[int], begun: bool) -> None:
        """Requeue leases of a leaving worker at the front, without counting a loss of the items.

        `begun` means that the worker may have journalled some of their turns.
        """
        returned = [id_ for id_ in ids if id_ in self._leases[worker]]
        self.losses += begun and bool(returned)
        for id_ in reversed(returned):
            if begun:
                self._items[id_].lost_in = self.losses
            self._take_back(worker, id_)

    def _take_back(self, worker: str, id_: int) -> None:
        del self._leases[worker][id_]
        if self._items[id_].times_lost > ORDINARY_LOSSES:
            self._suspects.append(id_)
        else:
            self._queue.appendleft(id_)

    def lease(self, worker: str, limit: int) -> list[tuple[int, P]]:
        """Lease up to `limit` items. A worker with suspects gets no others."""
        leases = self._leases[worker]
        if not leases:
            self._quarantined.discard(worker)
        if worker in self._quarantined or limit <= 0:
            return []
        leased = list(islice(self._pop_waiting(self._queue), limit))
        if not leased and not leases:
            for id_ in self._pop_waiting(self._suspects):
                alone = self._items[id_].times_lost > ORDINARY_LOSSES + 1
                if alone and leased:
                    self._suspects.appendleft(id_)
                    break
                leased.append(id_)
                if alone or len(leased) == min(limit, SUSPECT_GROUP):
                    break
            self._quarantined.add(worker)
        leases |= dict.fromkeys(leased)
        return [(id_, self._items[id_].payload) for id_ in leased]

    def _pop_waiting(self, queue: deque[int]) -> Iterator[int]:
        """Pop items that are neither finished nor fatal."""
        while queue:
            id_ = queue.popleft()
            if id_ in self._items and id_ not in self.fatal:
                yield id_

    def losses_of(self, ids: Iterable[int]) -> dict[int, int]:
        """Return the number of the latest loss of each of these items that was ever lost."""
        return {id_: lost_in for id_ in ids if (lost_in := self._items[id_].lost_in)}

    def finish(self, id_: int) -> bool:
        """Record that an outcome is journalled. Returns False if another worker already finished the item."""
        for leases in self._leases.values():
            leases.pop(id_, None)
        self.fatal.pop(id_, None)
        return self._items.pop(id_, None) is not None

    def give_up(self) -> list[tuple[int, P, int]]:
        """Finish and return the fatal items, each with its number of worker deaths."""
        given_up = [(id_, self._items[id_].payload, times) for id_, times in self.fatal.items()]
        for id_, _, _ in given_up:
            self.finish(id_)
        return given_up

    @property
    def open(self) -> int:
        """Number of items queued or leased."""
        return len(self._items)

    @property
    def leased(self) -> int:
        return sum(map(len, self._leases.values()))

    @property
    def waiting(self) -> int:
        return self.open - self.leased


@dataclass
class FailureWatch:
    """Stops a run in which too many items fail.

    It trips early, once `at_least` items have finished, to limit the cost. At the end of a first sweep it
    also trips with fewer items if most of them failed transiently (`mostly_transient`).

    Attributes:
        first_sweep: Whether no item of this kind was ever completed.
        count_bad_replies: Whether permanent failures count in addition to unanswered requests.
    """

    max_fraction: float
    first_sweep: bool = True
    count_bad_replies: bool = True
    finished: int = 0
    failed: int = 0
    transient: int = 0
    bugs: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    at_least: int = 20

    def note(self, status: str, error: str = "", known: bool = False) -> None:
        """Count a finished item by its outcome's status.

        Failures `known` from an earlier run do not count, because that run continued despite them.
        """
        if known:
            return
        self.finished += 1
        if status == "retry" or (status == "failed" and self.count_bad_replies):
            self.failed += 1
            bug = error.startswith(DESCRIPTION_PREFIX)
            self.bugs += bug
            self.transient += status == "retry" and not bug
            if len(self.errors) < 50 or error in self.errors:
                self.errors[error] += 1

    def tripped(self, running: int = 0) -> bool:
        """Whether too many items failed. `running` is the number of started, unfinished items.

        A bug fails an item immediately, before others that started with it can finish. So bugs trip the watch
        only if they exceed the limit even when all running items succeed.
        """
        if self.finished < self.at_least:
            return False
        certain = self.failed > self.max_fraction * (self.finished + running)
        return certain or self.failed - self.bugs > self.max_fraction * self.finished

    @property
    def mostly_transient(self) -> bool:
        """Whether too many items of a first sweep failed transiently, for example without an endpoint."""
        return self.first_sweep and self.transient > self.max_fraction * self.finished

    def message(self, stage: str) -> str:
        most_common = next((error for error, _ in self.errors.most_common(1)), "")
        retries = "transient failures are retried."
        if self.failed > self.transient:
            retries += (
                " Items with unusable replies are retried when their prompt or model changes, or with "
                "`graphrag-ray failures --retry`."
            )
        return (
            f"{self.failed} of the first {self.finished} items of stage {stage} failed "
            f"(run.max_failed_fraction is {self.max_fraction:g}). Most common error: {most_common}. Replies "
            f"received so far are stored. Fix the cause and run the same command again: {retries}"
        )
