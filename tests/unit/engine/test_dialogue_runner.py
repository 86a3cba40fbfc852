"""Running dialogues and replaying them from a journal."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Message, item_key
from graphrag_ray.engine.dialogue_runner import (
    Complete,
    DialogueRunner,
    GaveUp,
    Waiting,
    latest_failure,
    replay,
    run_dialogue,
)
from graphrag_ray.store.journal_rows import JournalRow

CALL = CallParameters("default", "m")


def request(text: str) -> ChatRequest:
    return ChatRequest("p", (Message("user", text),), CALL)


def count_down(n: int) -> Generator[Any, Any, list[str]]:
    """Sends n requests, each of which quotes the previous reply."""
    got: list[str] = []
    for i in range(n):
        reply = yield request(f"{i}:{got[-1] if got else ''}")
        got.append(reply.text)
    return got


def ask_together(texts: Sequence[str]) -> Generator[Any, Any, list[str]]:
    replies = yield [request(t) for t in texts]
    return [r.text for r in replies]


@dataclass
class Script:
    """Answers with numbered replies and journals them as an executor would."""

    rows: list[JournalRow]
    n: int = 0

    def run(self, runner: DialogueRunner[Any], turns: int | None = None) -> None:
        while isinstance(runner.state, Waiting) and (turns is None or turns > 0):
            state = runner.state
            replies = []
            for slot, r in enumerate(state.requests):
                self.n += 1
                text = f"reply {self.n}"
                self.rows.append(
                    JournalRow(
                        key=runner.key,
                        turn=state.turn,
                        slot=slot,
                        request_hash=r.hash,
                        kind="turn",
                        prompt="p",
                        reply=text,
                        at=float(self.n),
                    )
                )
                replies.append(ChatReply(text))
            runner.send(replies)
            turns = None if turns is None else turns - 1


def test_a_dialogue_gets_each_reply_and_returns_its_value():
    assert run_dialogue(count_down(3), lambda r: ChatReply(r.messages[0].content.upper())) == [
        "0:",
        "1:0:",
        "2:1:0:",
    ]


def test_requests_of_one_turn_are_answered_together_and_in_order():
    assert run_dialogue(ask_together(["a", "b"]), lambda r: ChatReply(r.messages[0].content * 2)) == [
        "aa",
        "bb",
    ]


def test_a_dialogue_without_requests_completes_immediately_and_has_no_key():
    runner = DialogueRunner(count_down(0))
    assert runner.state == Complete([]) and runner.key == ""


def test_the_key_of_an_item_is_the_hash_of_its_first_turn():
    assert DialogueRunner(count_down(2)).key == item_key(request("0:")) == request("0:").hash
    assert DialogueRunner(ask_together(["a", "b"])).key == item_key([request("a"), request("b")])


@given(n=st.integers(0, 6), done=st.integers(0, 6))
def test_a_dialogue_killed_at_any_turn_resumes_at_that_turn(n, done):
    script = Script([])
    first = DialogueRunner(count_down(n))
    script.run(first, turns=done)
    again = DialogueRunner(count_down(n))
    state = replay(again, script.rows)
    if done >= n:
        assert isinstance(state, Complete)
    else:
        assert isinstance(state, Waiting) and state.turn == done
    script.run(first)
    script2 = Script(script.rows, script.n)
    script2.run(again)
    assert isinstance(again.state, Complete) and len(again.state.result) == n


@given(n=st.integers(1, 6))
def test_replay_of_a_journal_equals_the_first_run(n):
    script = Script([])
    first = DialogueRunner(count_down(n))
    script.run(first)
    assert replay(DialogueRunner(count_down(n)), script.rows) == first.state


def test_changing_a_later_prompt_repeats_only_its_turn():
    script = Script([])
    script.run(DialogueRunner(count_down(2)))

    def changed() -> Generator[Any, Any, str]:
        first = yield request("0:")
        second = yield request(f"another question after {first.text}")
        return second.text

    state = replay(DialogueRunner(changed()), script.rows)
    assert isinstance(state, Waiting) and state.turn == 1


def test_a_turn_with_one_missing_reply_stays_open():
    script = Script([])
    script.run(DialogueRunner(ask_together(["a", "b"])))
    assert isinstance(replay(DialogueRunner(ask_together(["a", "b"])), script.rows[:1]), Waiting)


def test_a_dialogue_that_gives_up_reports_its_reason():
    def picky() -> Generator[Any, Any, str]:
        yield request("x")
        raise DialogueFailed("still no JSON")

    runner = DialogueRunner(picky())
    assert runner.send([ChatReply("…")]) == GaveUp("still no JSON")


def test_a_dialogue_receives_replies_without_reasoning():
    text = "<think>hm</think>\nNo."
    requests: list[ChatRequest] = []

    def one() -> Generator[Any, Any, str]:
        first = request("Any?")
        reply = yield first
        requests.append(first.next_turn(reply, "again", "Sure?"))
        return str(reply.text)

    assert run_dialogue(one(), lambda _: ChatReply(text)) == "No."
    sent, recorded = requests[0].messages[1], Message("assistant", text)
    assert sent.content == "No."
    # Older journals contain the hash of a conversation that includes reasoning.
    before = (requests[0].messages[0], recorded, requests[0].messages[2])
    assert requests[0].hash == ChatRequest("again", before, CALL).hash


def test_a_bug_in_reading_a_reply_fails_the_item_and_not_the_run():
    def buggy() -> Generator[Any, Any, int]:
        reply = yield request("x")
        return int(reply.text)

    state = DialogueRunner(buggy()).send([ChatReply("no number")])
    assert isinstance(state, GaveUp) and "ValueError" in state.error


def test_a_failure_counts_only_against_the_request_that_failed():
    runner = DialogueRunner(count_down(1))
    assert isinstance(runner.state, Waiting)
    row = JournalRow(
        key=runner.key,
        turn=0,
        slot=0,
        request_hash=request("0:").hash,
        kind="failed",
        prompt="p",
        error="400",
        at=1.0,
    )
    assert latest_failure(runner.state, [row]) == row
    other = JournalRow(
        key=runner.key, turn=0, slot=0, request_hash="f" * 64, kind="failed", prompt="p", error="400", at=1.0
    )
    assert latest_failure(runner.state, [other]) is None


def test_sending_too_few_replies_is_an_error():
    with pytest.raises(ValueError, match="reply"):
        DialogueRunner(ask_together(["a", "b"])).send([ChatReply("a")])


def test_requests_and_replies_cross_process_boundaries():
    sent = request("x")
    assert pickle.loads(pickle.dumps(sent)).hash == sent.hash
