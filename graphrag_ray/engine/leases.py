"""Which worker has which item, and when too many items have failed. Pure.

A worker that has free places gets more items, so one slow call holds nothing up. A lease ends when the item
is finished, which means journalled. The leases of a worker that died go back to the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
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

    _queue: deque[int] = field(default_factory=deque)
    _suspects: deque[int] = field(default_factory=deque)
    _items: dict[int, P] = field(default_factory=dict)
    _holder: dict[int, str] = field(default_factory=dict)
    _held: dict[str, dict[int, None]] = field(default_factory=dict)
    _quarantined: set[str] = field(default_factory=set)
    _lost_in: dict[int, int] = field(default_factory=dict)
    _times_lost: dict[int, int] = field(default_factory=dict)
    _lost_alone: dict[int, int] = field(default_factory=dict)
    reissued: int = 0
    losses: int = 0
    finished: int = 0
    condemned: dict[int, int] = field(default_factory=dict)

    def add(self, items: Iterable[tuple[int, P]]) -> None:
        for id_, payload in items:
            self._items[id_] = payload
            self._queue.append(id_)

    def held(self, worker: str) -> Collection[int]:
        """The worker's items, in the order in which it got them."""
        return self._held.get(worker, {}).keys()

    def lose(self, worker: str) -> None:
        """A worker died. Its leases are handed out again."""
        self._quarantined.discard(worker)
        lost = list(self.held(worker))
        self.losses += bool(lost)
        for id_ in reversed(lost):
            self._release(id_)
            self._lost_in[id_] = self.losses
            times = self._times_lost[id_] = self._times_lost.get(id_, 0) + 1
            alone = self._lost_alone[id_] = self._lost_alone.get(id_, 0) + (len(lost) == 1)
            if times >= MOST_LOSSES and alone >= MOST_ALONE:
                self.condemned[id_] = times
            else:
                self._put_back(id_)
        self.reissued += len(lost)

    def hand_back(self, worker: str, ids: Iterable[int], begun: bool) -> None:
        """A worker that leaves gives leases back: they are nobody's fault, and are handed out first.

        begun: it may have journalled something of them
        """
        given = [id_ for id_ in ids if self._holder.get(id_) == worker]
        self.losses += begun and bool(given)
        for id_ in reversed(given):
            self._release(id_)
            if begun:
                self._lost_in[id_] = self.losses
            self._put_back(id_)

    def _release(self, id_: int) -> None:
        if (holder := self._holder.pop(id_, None)) is not None:
            del self._held[holder][id_]

    def _put_back(self, id_: int) -> None:
        if self._times_lost.get(id_, 0) > ORDINARY_LOSSES:
            self._suspects.append(id_)
        else:
            self._queue.appendleft(id_)

    def lease(self, worker: str, places: int) -> list[tuple[int, P]]:
        """Up to `places` items; none for a worker that has suspects."""
        held = self._held.setdefault(worker, {})
        if worker in self._quarantined:
            if held:
                return []
            self._quarantined.discard(worker)
        given = self._take(self._queue, places)
        if not given and places and self._suspects and not held:
            given = self._take(self._suspects, min(places, GROUP), alike=True)
            self._quarantined.add(worker)
        for id_ in given:
            self._holder[id_] = worker
            held[id_] = None
        return [(id_, self._items[id_]) for id_ in given]

    def _take(self, queue: deque[int], places: int, alike: bool = False) -> list[int]:
        """The first of a queue that are not finished; alike: one alone that was lost from a small group."""
        taken: list[int] = []
        while queue and len(taken) < places:
            alone = alike and self._times_lost.get(queue[0], 0) > ORDINARY_LOSSES + 1
            if alone and taken:
                break
            id_ = queue.popleft()
            if id_ in self._items and id_ not in self._holder:
                taken.append(id_)
                if alone:
                    break
        return taken

    def losses_of(self, ids: Iterable[int]) -> dict[int, int]:
        """The latest of the `losses` in which each of these items was lost, as far as any was."""
        return {id_: self._lost_in[id_] for id_ in ids if id_ in self._lost_in}

    def finish(self, id_: int) -> bool:
        """The item's outcome is journalled. False when somebody else finished it before."""
        self._release(id_)
        for of_lost in (self._lost_in, self._times_lost, self._lost_alone, self.condemned):
            of_lost.pop(id_, None)
        known = self._items.pop(id_, None) is not None
        self.finished += known
        return known

    def give_up(self) -> list[tuple[int, P, int]]:
        """The condemned items, each with how many died of it. They count as finished from now on."""
        found = [(id_, self._items[id_], times) for id_, times in self.condemned.items()]
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
    first: dict[Hashable, int] = field(default_factory=dict)
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
                self.first[error] = self.first.get(error, 0) + 1

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
        common = max(self.first, key=lambda e: self.first[e]) if self.first else ""
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
