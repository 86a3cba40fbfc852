"""Which worker has which item, and when too many items have failed. Pure.

A worker with free slots gets more items, so one slow call delays nothing. A lease ends when the item is
finished, that is, journalled. The leases of a dead worker return to the queue.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from graphrag_ray.base.unexpected_errors import REPORT_HINT

P = TypeVar("P")

ORDINARY_LOSSES = 1
"""Items lost this often with their worker are handed out normally: usually a node is gone."""
GROUP = 16
"""Items lost once more go to an idle worker in groups of this size; those lost even then, one by one."""
MAX_LOSSES, MAX_LOST_ALONE = 3, 2
"""An item lost this often in total, and this often as its worker's only item, is given up. One loss alone may
have another cause."""


@dataclass
class _Item(Generic[P]):
    """`lost_in` is the number of the last loss that included the item; 0 if there was none."""

    payload: P
    lost_in: int = 0
    times_lost: int = 0
    lost_alone: int = 0


class LeaseBook(Generic[P]):
    """Items by id, queued or leased. Each is handed out until it is finished or condemned.

    When a worker dies, all its items are suspects. Those lost twice wait until nothing else does. They are
    then handed out in small groups and finally alone, so that the culprit is found and no other item is
    blamed.

    Attributes:
        reissued: Number of leases lost with their worker.
        losses: How often a worker with leases died, or left and handed back items that it had begun.
        condemned: Items that kill their workers, with the number of deaths. They are no longer handed out.
    """

    def __init__(self) -> None:
        self._items: dict[int, _Item[P]] = {}
        self._queue, self._suspects = deque[int](), deque[int]()
        self._held: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._quarantined = set[str]()
        self.reissued = self.losses = 0
        self.condemned: dict[int, int] = {}

    def add(self, items: Iterable[tuple[int, P]]) -> None:
        for id_, payload in items:
            self._items[id_] = _Item(payload)
            self._queue.append(id_)

    def held(self, worker: str) -> Collection[int]:
        """The worker's items in the order in which it got them."""
        return self._held[worker].keys()

    def lose(self, worker: str) -> None:
        """Requeue the leases of a worker that died."""
        lost = list(self.held(worker))
        self.losses += bool(lost)
        self.reissued += len(lost)
        for id_ in reversed(lost):
            item = self._items[id_]
            item.lost_in = self.losses
            item.times_lost += 1
            item.lost_alone += len(lost) == 1
            if item.times_lost >= MAX_LOSSES and item.lost_alone >= MAX_LOST_ALONE:
                self.condemned[id_] = item.times_lost
            self._take_back(worker, id_)

    def hand_back(self, worker: str, ids: Iterable[int], begun: bool) -> None:
        """Requeue leases of a leaving worker at the front, without suspicion.

        If `begun`, the worker may have journalled some of their turns.
        """
        returned = [id_ for id_ in ids if id_ in self._held[worker]]
        self.losses += begun and bool(returned)
        for id_ in reversed(returned):
            if begun:
                self._items[id_].lost_in = self.losses
            self._take_back(worker, id_)

    def _take_back(self, worker: str, id_: int) -> None:
        del self._held[worker][id_]
        if self._items[id_].times_lost > ORDINARY_LOSSES:
            self._suspects.append(id_)
        else:
            self._queue.appendleft(id_)

    def lease(self, worker: str, limit: int) -> list[tuple[int, P]]:
        """Lease up to `limit` items, or none to a worker that has suspects."""
        held = self._held[worker]
        if not held:
            self._quarantined.discard(worker)
        if worker in self._quarantined or limit <= 0:
            return []
        leased = list(islice(self._pop_waiting(self._queue), limit))
        if not leased and not held:
            for id_ in self._pop_waiting(self._suspects):
                alone = self._items[id_].times_lost > ORDINARY_LOSSES + 1
                if alone and leased:
                    self._suspects.appendleft(id_)
                    break
                leased.append(id_)
                if alone or len(leased) == min(limit, GROUP):
                    break
            self._quarantined.add(worker)
        held |= dict.fromkeys(leased)
        return [(id_, self._items[id_].payload) for id_ in leased]

    def _pop_waiting(self, queue: deque[int]) -> Iterator[int]:
        """Pop items that are neither finished nor condemned."""
        while queue:
            id_ = queue.popleft()
            if id_ in self._items and id_ not in self.condemned:
                yield id_

    def losses_of(self, ids: Iterable[int]) -> dict[int, int]:
        """For each of these items that was ever lost, the number of its latest loss."""
        return {id_: lost_in for id_ in ids if (lost_in := self._items[id_].lost_in)}

    def finish(self, id_: int) -> bool:
        """Record that the outcome is journalled. Returns False if another worker finished the item before."""
        for held in self._held.values():
            held.pop(id_, None)
        self.condemned.pop(id_, None)
        return self._items.pop(id_, None) is not None

    def give_up(self) -> list[tuple[int, P, int]]:
        """Finish and return the condemned items, each with the number of deaths."""
        given_up = [(id_, self._items[id_].payload, times) for id_, times in self.condemned.items()]
        for id_, _, _ in given_up:
            self.finish(id_)
        return given_up

    @property
    def open(self) -> int:
        """Number of items queued or leased."""
        return len(self._items)

    @property
    def leased(self) -> int:
        return sum(map(len, self._held.values()))

    @property
    def waiting(self) -> int:
        return self.open - self.leased


@dataclass
class FailureWatch:
    """Stops a run in which too much fails.

    It trips from the first `at_least` items on, before the money is gone, and at the end of a first sweep
    that reached no endpoint, however few its items.

    Attributes:
        first_sweep: Whether no item of this kind was ever completed.
        count_bad_replies: Whether permanent failures count, and not only requests without an answer.
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

        Failures already `known` from an earlier run, which continued despite them, do not count.
        """
        if known:
            return
        self.finished += 1
        if status == "retry" or (status == "failed" and self.count_bad_replies):
            self.failed += 1
            bug = error.startswith(REPORT_HINT)
            self.bugs += bug
            self.transient += status == "retry" and not bug
            if len(self.errors) < 50 or error in self.errors:
                self.errors[error] += 1

    def tripped(self, running: int = 0) -> bool:
        """Whether too many items failed; `running` items have begun but not finished.

        Bugs fail items at once, before those begun beside them have answers, so they trip the watch only if
        the running items could not outweigh them.
        """
        if self.finished < self.at_least:
            return False
        certain = self.failed > self.max_fraction * (self.finished + running)
        return certain or self.failed - self.bugs > self.max_fraction * self.finished

    @property
    def mostly_transient(self) -> bool:
        """Whether most of a first sweep failed transiently, so that there is nothing to build on."""
        return self.first_sweep and self.transient > self.max_fraction * self.finished

    def message(self, stage: str) -> str:
        common = next((error for error, _ in self.errors.most_common(1)), "")
        again = "transient failures are retried."
        if self.failed > self.transient:
            again += (
                " Items with unusable replies are asked again when their prompt or model changes, or after "
                "`graphrag-ray failures --retry`."
            )
        return (
            f"{self.failed} of the first {self.finished} items of stage {stage} failed "
            f"(run.max_failed_fraction is {self.max_fraction:g}). Most common error: {common}. Replies "
            f"received so far are kept. Fix the cause and run the same command again: {again}"
        )
