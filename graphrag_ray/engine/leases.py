"""Which worker has which item, and when too many items have failed. Pure.

A worker that has free places gets more items, so one slow call holds nothing up. A lease ends when the item
is finished, which means journalled. The leases of a worker that died go back to the queue.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from graphrag_ray.base.unforeseen import REPORT_IT

P = TypeVar("P")


ORDINARY_LOSSES = 1
"""Items that were lost with their worker so often are handed out like any other: mostly a node is gone."""
GROUP = 16
"""Of items that were lost once more so many are handed out together, to a worker that has nothing else;
of those that were lost even then, one."""
MOST_LOSSES, MOST_ALONE = 3, 2
"""An item that was lost so often, and so often of these as the only one in its worker's hands, is given up.
One such loss may be somebody else's doing."""


@dataclass
class _Item(Generic[P]):
    """lost_in: the number of the last loss in which it was lost; 0: none was."""

    payload: P
    lost_in: int = 0
    times_lost: int = 0
    lost_alone: int = 0


class LeaseBook(Generic[P]):
    """Items by id, queued or leased. Every item added is handed out until it is finished, or condemned.

    Where a worker dies, all that it had are suspects. Those that were lost twice wait until nothing else
    does, and then are handed out few at a time and in the end alone, so that the one that kills is found
    and no other is blamed.

    reissued   leases that were lost with their worker
    losses     how often a worker was lost with leases, or left and handed back what it had begun
    finished   items that ended
    condemned  items that kill whoever works on them, and how many died; handed out no more
    """

    def __init__(self) -> None:
        self._items: dict[int, _Item[P]] = {}
        self._queue, self._suspects = deque[int](), deque[int]()
        self._held: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._holder: dict[int, str] = {}
        self._quarantined = set[str]()
        self.reissued = self.losses = self.finished = 0
        self.condemned: dict[int, int] = {}

    def add(self, items: Iterable[tuple[int, P]]) -> None:
        for id_, payload in items:
            self._items[id_] = _Item(payload)
            self._queue.append(id_)

    def held(self, worker: str) -> Collection[int]:
        """The worker's items, in the order in which it got them."""
        return self._held[worker].keys()

    def lose(self, worker: str) -> None:
        """A worker died. Its leases are handed out again."""
        lost = list(self.held(worker))
        self.losses += bool(lost)
        self.reissued += len(lost)
        for id_ in reversed(lost):
            item = self._items[id_]
            item.lost_in = self.losses
            item.times_lost += 1
            item.lost_alone += len(lost) == 1
            if item.times_lost >= MOST_LOSSES and item.lost_alone >= MOST_ALONE:
                self.condemned[id_] = item.times_lost
            self._take_back(id_)

    def hand_back(self, worker: str, ids: Iterable[int], begun: bool) -> None:
        """A worker that leaves gives leases back: they are nobody's fault, and are handed out first.

        begun: it may have journalled something of them
        """
        given = [id_ for id_ in ids if self._holder.get(id_) == worker]
        self.losses += begun and bool(given)
        for id_ in reversed(given):
            if begun:
                self._items[id_].lost_in = self.losses
            self._take_back(id_)

    def _take_back(self, id_: int) -> None:
        del self._held[self._holder.pop(id_)][id_]
        if self._items[id_].times_lost > ORDINARY_LOSSES:
            self._suspects.append(id_)
        else:
            self._queue.appendleft(id_)

    def lease(self, worker: str, places: int) -> list[tuple[int, P]]:
        """Up to `places` items; none for a worker that has suspects."""
        held = self._held[worker]
        if not held:
            self._quarantined.discard(worker)
        if worker in self._quarantined or places <= 0:
            return []
        given = list(islice(self._waiting_in(self._queue), places))
        if not given and not held:
            for id_ in self._waiting_in(self._suspects):
                alone = self._items[id_].times_lost > ORDINARY_LOSSES + 1
                if alone and given:
                    self._suspects.appendleft(id_)
                    break
                given.append(id_)
                if alone or len(given) == min(places, GROUP):
                    break
            self._quarantined.add(worker)
        for id_ in given:
            self._holder[id_] = worker
            held[id_] = None
        return [(id_, self._items[id_].payload) for id_ in given]

    def _waiting_in(self, queue: deque[int]) -> Iterator[int]:
        """Take items out that are neither finished, condemned nor leased."""
        while queue:
            id_ = queue.popleft()
            if id_ in self._items and id_ not in self._holder and id_ not in self.condemned:
                yield id_

    def losses_of(self, ids: Iterable[int]) -> dict[int, int]:
        """The latest of the `losses` in which each of these items was lost, as far as any was."""
        return {id_: lost_in for id_ in ids if (lost_in := self._items[id_].lost_in)}

    def finish(self, id_: int) -> bool:
        """The item's outcome is journalled. False when somebody else finished it before."""
        if (holder := self._holder.pop(id_, None)) is not None:
            del self._held[holder][id_]
        self.condemned.pop(id_, None)
        known = self._items.pop(id_, None) is not None
        self.finished += known
        return known

    def give_up(self) -> list[tuple[int, P, int]]:
        """The condemned items, each with how many died of it. They count as finished from now on."""
        found = [(id_, self._items[id_].payload, times) for id_, times in self.condemned.items()]
        for id_, _, _ in found:
            self.finish(id_)
        return found

    @property
    def open(self) -> int:
        """Items queued or leased."""
        return len(self._items)

    @property
    def leased(self) -> int:
        return len(self._holder)

    @property
    def waiting(self) -> int:
        return len(self._items) - len(self._holder)


@dataclass
class FailureWatch:
    """Stops a run in which too much fails: from the first 20 items on, before the money is gone; and at
    the end of a sweep that found no endpoint, however few the items, where nothing was done before.

    fresh              no item of this dialogue was ever completed
    bad_replies_count  whether items count as failed whose replies could not be used, or that were refused for
                       good; else those alone that nobody answered
    """

    max_fraction: float
    fresh: bool = True
    bad_replies_count: bool = True
    finished: int = 0
    failed: int = 0
    passing: int = 0
    bugs: int = 0
    first: Counter[str] = field(default_factory=Counter)
    at_least: int = 20

    def note(self, status: str, error: str = "", known: bool = False) -> None:
        """One more finished item: its outcome's status ("complete", "failed", "retry") and error. known: it
        failed so in an earlier run, which went on all the same."""
        if known:
            return
        self.finished += 1
        if status == "retry" or (status == "failed" and self.bad_replies_count):
            self.failed += 1
            bug = error.startswith(REPORT_IT)
            self.bugs += bug
            self.passing += status == "retry" and not bug
            if len(self.first) < 50 or error in self.first:
                self.first[error] += 1

    def tripped(self, running: int = 0) -> bool:
        """running: items that are begun and not finished. Failures by bugs come at once, before what was
        begun beside them has an answer: they are too many where that could not outweigh them."""
        if self.finished < self.at_least:
            return False
        sure = self.failed > self.max_fraction * (self.finished + running)
        return sure or self.failed - self.bugs > self.max_fraction * self.finished

    @property
    def in_vain(self) -> bool:
        """At the end of a sweep: most of it failed in a way that may pass, and there is nothing else to
        build on."""
        return self.fresh and self.passing > self.max_fraction * self.finished

    def message(self, stage: str) -> str:
        common = next((error for error, _ in self.first.most_common(1)), "")
        again = "items that failed for now are tried again."
        if self.failed > self.passing:
            again += (
                " Items whose replies could not be used are asked again when their prompt or model changes, "
                "and when `graphrag-ray failures --retry` puts them back."
            )
        return (
            f"{self.failed} of the first {self.finished} items of stage {stage} failed "
            f"(run.max_failed_fraction is {self.max_fraction:g}). Most common: {common}. "
            f"What was answered is kept. Repair the cause and run the same command again: {again}"
        )
