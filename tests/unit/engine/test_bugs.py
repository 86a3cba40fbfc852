"""An unexpected error fails one item, which every run retries at no cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import StoreError
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Message, Reply
from graphrag_ray.base.unexpected_errors import DESCRIPTION_PREFIX
from graphrag_ray.engine.feed import Feed, label_item, start_item
from graphrag_ray.engine.leases import FailureWatch
from graphrag_ray.engine.work import DialogueIO, Outcome, Row, Work, replay_outcomes, run_item, start_items
from graphrag_ray.llm.model_client import CallResult
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.retry_rows import find_failed

CALL = CallParameters("default", "m")
ERRORS: Sequence[BaseException] = (ZeroDivisionError("by nothing"), MemoryError(), RecursionError("too deep"))


def request(text: str) -> ChatRequest:
    return ChatRequest("p", (Message("user", text),), CALL)


def dialogue(read: Callable[[str], Any] = str.upper) -> Callable[[Store, Row], Generator[Any, Any, Any]]:
    """Sends the text and parses the reply."""

    def start(store: Store, row: Row) -> Generator[Any, Any, Any]:
        reply = yield request(row["text"])
        return read(reply.text)

    return start


def fails(error: BaseException) -> Callable[..., Any]:
    def do(*args: Any) -> Any:
        raise error

    return do


class Bench:
    """Runs items on a store, and records the requests in `requests`."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(str(folder))
        self.requests: list[str] = []
        self.answer: Callable[[str], str] = lambda text: f"re: {text}"

    def run(self, start: Callable[..., Any], *texts: str) -> list[Outcome[Any]]:
        work: Work[Any] = Work("echo", start, lambda row: (row["text"], ""))
        index = JournalIndex.load(self.store, "echo")
        writer = JournalWriter(self.store, "echo", f"w{len(self.requests)}-{id(start)}")

        async def ask(request: Any, stage: str) -> CallResult[Reply]:
            self.requests.append(request.messages[0].content)
            return CallResult(ChatReply(self.answer(self.requests[-1])))

        async def run_all() -> list[Outcome[Any]]:
            asking = DialogueIO(ask, writer.append, index.next_time)
            begun = start_items(work, self.store, index, [{"text": t} for t in texts])
            return [await run_item("echo", driver, rows, asking) for driver, rows in begun]

        done = asyncio.run(run_all())
        writer.flush()
        return done

    def replayed(self, start: Callable[..., Any], *texts: str) -> list[Outcome[Any]]:
        work: Work[Any] = Work("echo", start, lambda row: (row["text"], ""))
        index = JournalIndex.load(self.store, "echo")
        return [o for _, o in replay_outcomes(work, self.store, index, [{"text": t} for t in texts])]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("error", ERRORS)
def test_an_item_that_cannot_be_started_fails_alone(bench: Bench, error: BaseException):
    def start(store: Store, row: Row) -> Any:
        return (fails(error) if row["text"] == "bad" else dialogue())(store, row)

    bad, good = bench.run(start, "bad", "good")
    assert good.status == "complete" and bad.status == "retry" and len(bad.key) == 64
    assert type(error).__name__ in bad.error and "engine/work.py:" in bad.error and not bad.known_failure
    (again,) = bench.replayed(start, "bad")
    assert (again.key, again.status, again.error) == (bad.key, bad.status, bad.error)


@pytest.mark.parametrize("error", ERRORS)
def test_replies_survive_a_bug_in_their_parser_and_a_fixed_version_reuses_them(
    bench: Bench, error: BaseException
):
    (failed,) = bench.run(dialogue(fails(error)), "a")
    assert failed.status == "retry" and type(error).__name__ in failed.error
    (repaired,) = bench.replayed(dialogue(), "a")
    assert (repaired.status, repaired.result) == ("complete", "RE: A") and bench.requests == ["a"]


def test_a_bug_that_recurs_is_not_journalled_again(bench: Bench):
    (first,) = bench.run(dialogue(fails(ERRORS[0])), "a")
    journalled = JournalIndex.load(bench.store, "echo").all_rows([first.key])
    (again,) = bench.run(dialogue(fails(ERRORS[0])), "a")
    assert again.known_failure and not first.known_failure and again.last_at == first.last_at
    assert JournalIndex.load(bench.store, "echo").all_rows([first.key]) == journalled
    (rows,) = find_failed(bench.store, "echo").values()
    assert first.error in [r.error for r in rows]


@pytest.mark.parametrize("error", ERRORS)
def test_an_unexpected_error_in_a_call_is_retried_by_the_next_run(bench: Bench, error: BaseException):
    bench.answer = fails(error)
    (failed,) = bench.run(dialogue(), "a")
    assert failed.status == "retry" and type(error).__name__ in failed.error
    (again,) = bench.run(dialogue(), "a")
    assert again.known_failure, "the same, once more"
    bench.answer = str.upper
    assert [o.result for o in bench.run(dialogue(), "a")] == ["A"]


def test_a_request_that_cannot_be_hashed_fails_its_item_alone(bench: Bench):
    bad, good = bench.run(dialogue(), "half a pair: \ud800", "good")
    assert bad.status == "retry" and "TypeError" in bad.error and good.status == "complete"


def test_a_reply_with_lone_surrogates_is_read_as_it_is_stored(bench: Bench):
    bench.answer = lambda text: "half \ud83d of a pair"
    read: list[str] = []
    (done,) = bench.run(dialogue(read.append), "a")
    assert done.status == "complete" and read == ["half \ufffd of a pair"]
    bench.replayed(dialogue(read.append), "a")
    assert read[0] == read[1] and bench.requests == ["a"]


def test_a_storage_error_is_not_a_failure_of_the_item(bench: Bench):
    for start in (fails(StoreError("no storage")), dialogue(fails(StoreError("no storage")))):
        with pytest.raises(StoreError, match="no storage"):
            bench.run(start, "a")


def test_interrupts_are_not_caught(bench: Bench):
    bench.answer = fails(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        bench.run(dialogue(), "a")


@given(st.integers(20, 60), st.integers(1, 19))
def test_known_failures_do_not_stop_the_next_run(known: int, news: int):
    watch = FailureWatch(0.5)
    for number in range(known + news):
        watch.note("retry", "a bug", known=number < known)
    assert not watch.tripped()
    watch.note("retry", "a bug")
    assert watch.tripped() == (news + 1 >= watch.at_least)


def test_dialogues_that_fail_before_their_first_request_get_different_keys(tmp_path: Path):
    store = Store(str(tmp_path))
    feed = Feed(Work("echo", start_item, label_item), store, JournalIndex.load(store, "echo"))

    def broken(name: str) -> Generator[Any, Any, str]:
        raise ValueError(name)
        yield

    outcomes = asyncio.run(feed.ask(0, "question 1", [lambda: broken("one"), lambda: broken("two")]))
    assert [("one" in o.error, "two" in o.error) for o in outcomes] == [(True, False), (False, True)]
    assert feed.waiting == 0


def test_bugs_stop_a_run_only_if_running_items_cannot_outweigh_them():
    watch = FailureWatch(0.5)
    for _ in range(25):
        watch.note("retry", f"{DESCRIPTION_PREFIX}: MemoryError")
    assert not watch.tripped(running=50) and watch.tripped(running=10) and watch.tripped()
    assert not watch.mostly_transient, "it was no endpoint that failed"
