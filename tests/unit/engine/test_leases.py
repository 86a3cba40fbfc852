"""Every item is leased until it is finished, even if workers die."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.engine.leases import SUSPECT_GROUP, FailureWatch, LeaseBook


def book(n: int) -> LeaseBook[str]:
    out: LeaseBook[str] = LeaseBook()
    out.add((i, f"item {i}") for i in range(n))
    return out


def test_a_worker_gets_as_many_items_as_it_has_slots():
    b = book(5)
    assert [i for i, _ in b.lease("w", 3)] == [0, 1, 2]
    assert (b.open, b.leased, b.waiting) == (5, 3, 2)


def test_items_of_a_dead_worker_are_leased_again_before_others():
    b = book(4)
    b.lease("w", 2)
    b.lose("w")
    assert [i for i, _ in b.lease("w", 4)] == [0, 1, 2, 3]
    assert b.reissued == 2


def test_a_lost_item_reports_its_latest_loss():
    b = book(3)
    b.lease("w", 1)
    b.lose("w")
    b.lose("w")
    assert (b.losses, b.losses_of([0, 1])) == (1, {0: 1})
    b.lease("v", 2)
    b.lose("v")
    assert (b.losses, b.losses_of([0, 1, 2])) == (2, {0: 2, 1: 2})


def test_an_item_finishes_only_once():
    b = book(1)
    b.lease("w", 1)
    b.lose("w")
    b.lease("v", 1)
    assert b.finish(0) and not b.finish(0)
    assert b.open == 0


def test_an_item_finished_by_a_dead_worker_is_not_leased_again():
    b = book(1)
    b.lease("w", 1)
    b.lose("w")
    assert b.finish(0)
    assert b.lease("v", 5) == []


def test_items_handed_back_go_first_and_are_not_suspects():
    b = book(6)
    b.lease("w", 4)
    b.hand_back("w", [2, 3, 5], begun=False)
    assert b.leased == 2 and b.losses_of(range(6)) == {}, "they cannot have journal rows"
    assert [i for i, _ in b.lease("v", 2)] == [2, 3]
    b.hand_back("w", b.leases_of("w"), begun=True)
    assert [i for i, _ in b.lease("v", 6)] == [0, 1, 4, 5]
    assert b.losses_of([0, 1, 2, 4]) == {0: 1, 1: 1}
    assert b.reissued == 0 and b.lease("w", 1) == []


def test_an_item_of_leaving_workers_is_never_a_suspect():
    b = book(1)
    for i in range(10):
        assert b.lease(f"w{i}", 1)
        b.hand_back(f"w{i}", b.leases_of(f"w{i}"), begun=True)
    assert b.open == 1 and not b.fatal


def test_a_suspect_that_is_handed_back_stays_a_suspect():
    b = book(2)
    for name in "ab":
        b.lease(name, 1)
        b.lose(name)
    assert [i for i, _ in b.lease("v", 1)] == [1]
    b.finish(1)
    assert [i for i, _ in b.lease("v", 1)] == [0]
    b.hand_back("v", b.leases_of("v"), begun=True)
    b.add([(2, "item 2")])
    assert [i for i, _ in b.lease("u", 2)] == [2], "suspects are leased alone"


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["lease", "die", "finish", "leave", "hand back"])),
        max_size=60,
    )
)
def test_no_item_is_ever_lost(steps):
    b = book(10)
    held: dict[str, list[int]] = {w: [] for w in "abc"}
    finished = set()
    for worker, what in steps:
        if what == "lease":
            held[worker] += [i for i, _ in b.lease(worker, 2)]
        elif what == "die":
            b.lose(worker)
            held[worker] = []
        elif what == "leave":
            b.hand_back(worker, b.leases_of(worker), begun=True)
            held[worker] = []
        elif what == "hand back":
            b.hand_back(worker, held[worker][:1], begun=False)
            del held[worker][:1]
        elif held[worker]:
            item = held[worker].pop()
            assert b.finish(item) == (item not in finished)
            finished.add(item)
    assert b.open == 10 - len(finished)
    for w in "abc":
        b.lose(w)
    rest = set(b.fatal)
    while given := [i for i, _ in b.lease("z", 100)]:
        rest |= set(given)
        for item in given:
            b.finish(item)
    assert rest == set(range(10)) - finished


@given(
    st.integers(1, 60),
    st.sets(st.integers(0, 59), max_size=3),
    st.lists(st.integers(0, 2), max_size=1),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_only_items_that_crash_their_workers_are_given_up(n, fatal, outages, places, rng):
    """Workers finish their items in any order. A worker with a fatal item may die at any moment, and one
    worker may die for another reason."""
    b = book(n)
    fatal = {g for g in fatal if g < n}
    held: list[list[int]] = [[] for _ in range(3)]
    outages = list(outages)
    for _ in range(5_000):
        if len(b.fatal) == b.open:
            break
        w = rng.randrange(3)
        given = [i for i, _ in b.lease(str(w), places - len(held[w]))]
        held[w] += given
        deadly = fatal.intersection(held[w])
        if (deadly and rng.random() < 0.5) or (w in outages and held[w] and rng.random() < 0.1):
            if not deadly:
                outages.remove(w)
            b.lose(str(w))
            held[w] = []
        elif held[w]:
            item = held[w].pop(rng.randrange(len(held[w])))
            if item in fatal:
                held[w].append(item)
            else:
                b.finish(item)
    assert {i for i, _, _ in b.give_up()} == fatal
    assert b.open == 0


def test_suspects_wait_for_an_idle_worker_and_for_ordinary_items():
    b = book(40)
    for _ in range(2):
        b.lease("w", 30)
        b.lose("w")
    assert [i for i, _ in b.lease("w", 100)] == list(range(30, 40)), "lost twice: the first thirty"
    assert b.lease("w", 100) == [], "it has other items"
    for i in range(30, 40):
        b.finish(i)
    assert len(b.lease("w", 100)) == SUSPECT_GROUP and b.lease("w", 100) == []
    b.add([(40, "item 40")])
    assert b.lease("w", 100) == [], "other items must not become suspects with them"
    b.lose("w")
    assert [i for i, _ in b.lease("w", 100)] == [40]


def test_an_item_is_given_up_only_after_being_lost_alone_more_than_once():
    b = book(2)
    for _ in range(3):
        assert len(b.lease("w", 5)) == 2
        b.lose("w")
    ((suspect, _),) = b.lease("w", 5)
    b.lose("w")
    assert b.fatal == {}
    ((other, _),) = b.lease("w", 5)
    assert other == 1 - suspect and b.finish(other)
    assert len(b.lease("w", 5)) == 1
    b.lose("w")
    assert b.fatal == {suspect: 5}
    assert [(i, times) for i, _, times in b.give_up()] == [(suspect, 5)] and b.fatal == {}
    assert b.open == 0 and b.lease("w", 5) == []


def test_a_run_continues_while_few_items_fail():
    watch = FailureWatch(0.5)
    for i in range(100):
        watch.note("failed" if i % 2 else "complete", "500")
    assert not watch.tripped()


def test_a_run_stops_when_most_of_the_first_items_fail():
    watch = FailureWatch(0.5)
    for _ in range(19):
        watch.note("failed", "garbage")
    assert not watch.tripped()
    watch.note("failed", "garbage")
    assert watch.tripped()
    assert "20 of the first 20" in watch.message("extract") and "garbage" in watch.message("extract")


def test_even_a_small_first_sweep_with_transient_failures_stops_the_run():
    watch = FailureWatch(0.5)
    watch.note("retry", "connection refused")
    assert not watch.tripped() and watch.mostly_transient
    assert "are retried" in watch.message("extract")
    before = FailureWatch(0.5, first_sweep=False)
    before.note("retry", "connection refused")
    assert not before.mostly_transient


def test_missing_answers_stop_a_run_even_if_bad_replies_do_not_count():
    watch = FailureWatch(0.5, count_bad_replies=False)
    for _ in range(50):
        watch.note("failed", "nonsense")
    assert not watch.tripped()
    for _ in range(60):
        watch.note("retry", "500")
    assert watch.tripped()


def test_a_few_permanent_failures_do_not_stop_a_run():
    watch = FailureWatch(0.5)
    watch.note("failed", "400")
    assert not watch.tripped() and not watch.mostly_transient
