"""A feed, through which coroutines submit items to a sweep and await their outcomes."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from graphrag_ray.base.messages import CallParameters, ChatRequest, Message
from graphrag_ray.engine.feed import LABEL, Feed, Item, label_item, start_item
from graphrag_ray.engine.work import Outcome, Work, row_key
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import DONE, TURN, JournalRow

WORK = Work("answer", start_item, label_item, needs_results=True)
CALL = CallParameters("default", "m")


def request(text):
    return ChatRequest("map", (Message("user", text),), CALL)


def shout(text):
    reply = yield request(text)
    return reply.text.upper()


def silent(text):
    return text
    yield


def starts(*texts):
    return [partial(shout, text) for text in texts]


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path))


@pytest.fixture
def feed(store):
    return Feed(WORK, store, JournalIndex.load(store, "answer"))


def done(row):
    return Outcome(row["item"].key, "complete", f"<{row[LABEL]}>")


async def taken(feed, n):
    """Take the next n items as a sweep does from its own thread."""
    rows = []
    while len(rows) < n:
        rows += await asyncio.to_thread(feed.take) or []
        await asyncio.sleep(0.001)
    assert len(rows) == n
    return rows


def test_outcomes_come_in_the_order_of_the_dialogues(feed):
    async def scenario():
        pending = asyncio.ensure_future(feed.ask(0, "q", starts("a", "b")))
        rows = await taken(feed, 2)
        for number in (1, 0):
            outcome = Outcome(rows[number]["item"].key, "complete", number)
            await asyncio.to_thread(feed.on_finished, number, outcome)
        return [o.result for o in await pending]

    assert asyncio.run(scenario()) == [0, 1]


def test_earlier_questions_come_first(feed):
    async def scenario():
        pending = [asyncio.ensure_future(feed.ask(i, f"q{i}", starts(f"{i}"))) for i in (5, 1, 3)]
        while feed.waiting < 3:
            await asyncio.sleep(0.001)
        labels = [r[LABEL] for r in await taken(feed, 3)]
        for a in pending:
            a.cancel()
        return labels

    assert asyncio.run(scenario()) == ["q1", "q3", "q5"]


def test_equal_dialogues_run_once(feed):
    async def scenario():
        pending = asyncio.gather(*(feed.ask(i, f"q{i}", starts("same")) for i in range(3)))
        while feed.waiting < 1:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        (row,) = await taken(feed, 1)
        feed.on_finished(0, done(row))
        return {o[0].result for o in await pending}

    assert len(asyncio.run(scenario())) == 1


def test_journalled_replies_are_reused(store):
    writer = JournalWriter(store, "answer", "w")
    key = request("known").hash
    writer.append(JournalRow(key, 0, 0, key, TURN, 1.0, "map", reply="yes", prompt_tokens=7, model="m"))
    writer.append(JournalRow(key, 0, 0, "", DONE, 2.0))
    writer.flush()
    feed = Feed(WORK, store, JournalIndex.load(store, "answer"))
    (outcome,) = asyncio.run(feed.ask(0, "q", starts("known")))
    assert outcome.result == "YES" and feed.waiting == 0
    (reply,) = outcome.replies
    assert (reply.model_id, reply.usage.prompt_tokens, reply.prompt) == ("m", 7, "map")


def test_a_dialogue_without_requests_is_answered_immediately(feed):
    (outcome,) = asyncio.run(feed.ask(0, "q", [partial(silent, "done")]))
    assert (outcome.status, outcome.result) == ("complete", "done")


def test_a_feed_ends_when_it_is_closed_and_empty(feed):
    async def scenario():
        pending = asyncio.ensure_future(feed.ask(0, "q", starts("a")))
        while not feed.waiting:
            await asyncio.sleep(0.001)
        feed.close()
        rows, end = feed.take(), feed.take()
        pending.cancel()
        return len(rows), end

    assert feed.take() == []
    assert asyncio.run(scenario()) == (1, None)


def test_a_failure_ends_the_sweep(feed):
    feed.close(RuntimeError("the index is gone"))
    with pytest.raises(RuntimeError, match="the index is gone"):
        feed.take()


def test_an_outcome_that_nobody_awaits_is_dropped(feed):
    async def scenario():
        pending = asyncio.ensure_future(feed.ask(0, "q", starts("a")))
        rows = await taken(feed, 1)
        pending.cancel()
        return rows

    rows = asyncio.run(scenario())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(feed.on_finished, 0, done(rows[0])).result(10) is None


def test_an_item_has_the_same_identity_in_every_run():
    """Items that crashed their workers are recognised by this identity."""

    names = set()
    for _ in range(2):
        (start,) = starts("a")
        names.add(row_key(WORK, {"item": Item(start), LABEL: "q"}))
    assert len(names) == 1
