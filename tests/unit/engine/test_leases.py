"""Leases: every item is worked on until it is finished, whoever dies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.engine.leases import FailureWatch, LeaseBook


def book(n: int) -> LeaseBook[str]:
    out: LeaseBook[str] = LeaseBook()
    out.add((i, f"item {i}") for i in range(n))
    return out


def test_a_worker_gets_as_many_items_as_it_has_places():
    b = book(5)
    me = b.register("w")
    assert [i for i, _ in b.lease("w", me, 3)] == [0, 1, 2]
    assert (b.open, b.leased, b.waiting) == (5, 3, 2)


def test_items_of_a_dead_worker_are_handed_out_again_before_others():
    b = book(4)
    first = b.register("w")
    b.lease("w", first, 2)
    again = b.register("w")
    assert again == first + 1
    assert [i for i, _ in b.lease("w", again, 4)] == [0, 1, 2, 3]
    assert b.reissued == 2


def test_an_earlier_life_of_a_worker_gets_nothing():
    b = book(2)
    old = b.register("w")
    b.register("w")
    assert b.lease("w", old, 2) == []


def test_a_call_of_a_lost_worker_that_comes_late_gets_nothing():
    b = book(1)
    lost = b.register("w")
    b.forget("w")
    assert b.lease("w", lost, 1) == [], "nobody would ever finish it"
    assert len(b.lease("v", b.register("v"), 1)) == 1


def test_an_item_that_was_lost_says_in_which_loss():
    b = book(3)
    b.lease("w", b.register("w"), 1)
    b.forget("w")
    b.forget("w")
    assert (b.losses, b.last_loss([0]), b.last_loss([1]), b.last_loss([])) == (1, 1, 0, 0)
    b.lease("v", b.register("v"), 2)
    b.forget("v")
    assert (b.losses, b.last_loss([0, 1]), b.last_loss([2])) == (2, 2, 0)


def test_an_item_is_finished_once_whoever_reports_it():
    b = book(1)
    me = b.register("w")
    b.lease("w", me, 1)
    b.forget("w")
    other = b.register("v")
    b.lease("v", other, 1)
    assert b.finish(0) and not b.finish(0)
    assert b.open == 0


def test_an_item_finished_by_a_dead_worker_is_not_handed_out_again():
    b = book(1)
    me = b.register("w")
    b.lease("w", me, 1)
    b.forget("w")
    assert b.finish(0)
    assert b.lease("v", b.register("v"), 5) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["lease", "die", "finish"])), max_size=60))
def test_no_item_is_lost_whatever_workers_do(steps):
    b = book(10)
    alive = {w: b.register(w) for w in "abc"}
    held: dict[str, list[int]] = {w: [] for w in "abc"}
    finished = set()
    for worker, what in steps:
        if what == "lease":
            held[worker] += [i for i, _ in b.lease(worker, alive[worker], 2)]
        elif what == "die":
            alive[worker] = b.register(worker)
            held[worker] = []
        elif held[worker]:
            item = held[worker].pop()
            assert b.finish(item) == (item not in finished)
            finished.add(item)
    assert b.open == 10 - len(finished)
    for w in "abc":
        b.forget(w)
    rest = {i for i, _ in b.lease("z", b.register("z"), 100)}
    assert rest == set(range(10)) - finished


def test_a_run_goes_on_while_few_items_fail():
    watch = FailureWatch(0.5)
    for i in range(100):
        watch.note("failed" if i % 2 else "complete", "500")
    assert not watch.tripped


def test_a_run_stops_when_most_of_the_first_items_fail():
    watch = FailureWatch(0.5)
    for _ in range(19):
        watch.note("failed", "garbage")
    assert not watch.tripped
    watch.note("failed", "garbage")
    assert watch.tripped
    assert "20 of the first 20" in watch.message("extract") and "garbage" in watch.message("extract")


def test_a_sweep_that_failed_in_passing_is_not_built_on_however_few_its_items():
    watch = FailureWatch(0.5)
    watch.note("retry", "connection refused")
    assert not watch.tripped and watch.in_vain
    assert "tried again" in watch.message("extract")
    before = FailureWatch(0.5, fresh=False)
    before.note("retry", "connection refused")
    assert not before.in_vain


def test_a_few_items_that_failed_for_good_are_rows_and_stop_nothing():
    watch = FailureWatch(0.5)
    watch.note("failed", "400")
    assert not watch.tripped and not watch.in_vain
