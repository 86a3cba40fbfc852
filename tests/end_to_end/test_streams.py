"""Streamed answers: the same text in pieces, and clear errors."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import toy_model
from endpoint import BROKEN, WRONG_KEY, Answer, Broken, Response
from terminals import Terminal
from world import REJECTED, Command, World, prompt_of

from graphrag_ray.base.errors import GraphRagError, ModelUnavailable, UsageError
from graphrag_ray.query.answer_streams import CORRECTED, FAILED_MIDWAY, AnswerStream, StartsAgain
from graphrag_ray.query.methods.answer import UNREADABLE

THEMES = "What are the THEMES?"
OFFLINE = {"default": {"provider": "offline"}}


def reducing(world: World, *replies: Response) -> None:
    """Reduce calls get these responses, the last one repeatedly; all other calls get the usual ones."""
    left = list(replies)

    def respond(body: dict[str, Any]) -> Response:
        if prompt_of(body) != "reduce":
            return toy_model.respond(body)
        return left.pop(0) if len(left) > 1 else left[0]

    world.endpoint.respond = respond


def test_the_streamed_text_is_the_answer(town: World):
    asked = town.open().ask(THEMES)
    with town.open().stream(THEMES) as stream:
        pieces = list(stream)
    assert len(pieces) > 3 and not any(isinstance(p, StartsAgain) for p in pieces)
    assert "".join(pieces) == stream.answer.text == asked.text
    assert stream.answer.references == asked.references and stream.answer.phases.keys() == {"map", "reduce"}
    assert stream.answer.phases["reduce"].completion_tokens > 0 and stream.answer.seconds is not None


def test_pieces_arrive_before_the_reply_ends(town: World):
    told = threading.Event()
    reducing(town, Answer("One thing, and another thing, and a last thing.", until=told))
    with town.open().stream(THEMES) as stream:
        pieces = iter(stream)
        assert next(pieces).startswith("One")
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.answer
        told.set()
        assert "".join(pieces).endswith("last thing.")
    assert stream.answer.text.startswith("One thing")


def test_streamed_references_are_valid_short_ids(town: World):
    (top,) = [r for r in town.table("community_reports") if r["level"] == 0][:1]
    reducing(town, "Sold [Data: Reports (1, 99)] and gone [Data: Reports (77)] for good.")
    with town.open().stream("What did DAVE do?") as stream:
        text = "".join(stream)
    assert text == stream.answer.text and stream.answer.dropped_references == 2
    number = {r["id"]: r["human_readable_id"] for r in town.table("community_reports")}
    (cited,) = stream.answer.references
    assert text == f"Sold [Data: Reports ({number[cited.id]})] and gone for good." and top


@pytest.mark.parametrize("how", ["drop", "end", "error", "garbage"])
def test_a_failure_midway_is_reported_and_the_answer_restarts(town: World, how: str):
    reducing(town, Broken("The ferry was sold, and nobody", 3, how), "All is well.")
    with town.open().stream(THEMES) as stream:
        pieces = list(stream)
    at = next(i for i, p in enumerate(pieces) if isinstance(p, StartsAgain))
    assert pieces[at] == FAILED_MIDWAY and "".join(pieces[:at]).startswith("The ferry was")
    assert "".join(pieces[at + 1 :]) == stream.answer.text == "All is well."


def test_a_failure_before_the_first_word_is_not_reported(town: World):
    reducing(town, BROKEN, "All is well.")
    with town.open().stream(THEMES) as stream:
        assert "".join(stream) == "All is well."


def test_repeated_failures_midway_end_the_stream_with_the_error(town: World):
    reducing(town, Broken("The ferry was sold", 2))
    pieces = []
    stream = town.open(run={"max_attempts": 2}).stream(THEMES)
    with pytest.raises(GraphRagError, match="The reply broke off"):
        pieces += iter(stream)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="has not ended"):
        _ = stream.answer


def test_a_truncated_reply_shows_no_partial_reference(town: World):
    reducing(town, Answer("All is sold [Data: Reports (1", finish_reason="length"))
    with town.open().stream(THEMES) as stream:
        assert "".join(stream) == stream.answer.text == "All is sold"


def test_a_changed_text_is_corrected_visibly(town: World):
    """A reference within a reference, which only malicious replies have."""
    reducing(town, "x [Data: Re [Data: Reports (99)]ports (1)] y")
    with town.open().stream(THEMES) as stream:
        pieces = list(stream)
    at = pieces.index(CORRECTED)
    assert isinstance(pieces[at], StartsAgain) and "".join(pieces[at + 1 :]) == stream.answer.text


def test_an_answer_without_a_model_call_is_streamed(town: World):
    with town.open().stream("Who is NOBODY ?") as stream:
        assert "".join(stream) == stream.answer.text and not stream.answer.found
    town.endpoint.respond = lambda body: REJECTED
    with town.open().stream(THEMES) as stream:
        assert "".join(stream) == stream.answer.text and stream.answer.text.startswith(UNREADABLE)


def test_the_offline_engine_is_streamed(town: World):
    opened = town.open(models=OFFLINE)
    with opened.stream(THEMES) as stream:
        assert "".join(stream) == stream.answer.text == opened.ask(THEMES).text


def test_an_endpoint_without_streaming_works(town: World):
    town.endpoint.streams = False
    with town.open().stream(THEMES) as stream:
        assert "".join(stream) == stream.answer.text


def test_only_the_last_reply_is_streamed(town: World):
    asked = town.asked()
    with town.open().stream(THEMES) as stream:
        list(stream)
    streamed = {prompt_of(b): bool(b.get("stream")) for b in town.endpoint.bodies()[asked:]}
    assert streamed == {"map": False, "reduce": True}


def test_an_async_stream_gives_the_same_events(town: World):
    async def read() -> tuple[list[str], str]:
        async with town.open().stream_async(THEMES) as stream:
            pieces = [piece async for piece in stream]
            return pieces, stream.answer.text

    pieces, text = asyncio.run(read())
    assert len(pieces) > 3 and "".join(pieces) == text == town.open().ask(THEMES).text


def test_async_streams_run_concurrently(town: World):
    async def read(stream: Any) -> str:
        async with stream:
            return "".join([piece async for piece in stream])

    async def both() -> list[str]:
        opened = town.open()
        return await asyncio.gather(
            *(read(opened.stream_async(f"What about {n} ?")) for n in ("DAVE", "HEIDI"))
        )

    assert asyncio.run(both()) == [town.open().ask(f"What about {n} ?").text for n in ("DAVE", "HEIDI")]


def test_a_stream_can_be_read_inside_a_running_event_loop(town: World):
    async def notebook() -> str:
        with town.open().stream(THEMES) as stream:
            return "".join(stream)

    assert asyncio.run(notebook()) == town.open().ask(THEMES).text


def test_closing_a_stream_early_cancels_calls_in_flight(town: World):
    never = threading.Event()
    reducing(town, Answer("One thing, and another thing.", until=never))
    with town.open().stream(THEMES) as stream:
        next(iter(stream))
    assert not any(t.name == "ask" for t in threading.enumerate())
    never.set()


def test_closing_an_async_stream_early_cancels_calls_in_flight(town: World):
    never = threading.Event()
    reducing(town, Answer("One thing, and another thing.", until=never))

    async def read() -> int:
        async with town.open().stream_async(THEMES) as stream:
            async for _ in stream:
                break
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(read()) == 0
    never.set()


def test_invalid_questions_are_reported_before_streaming(town: World):
    with pytest.raises(UsageError, match="The question is empty"):
        town.open().stream("  \n")
    with pytest.raises(UsageError, match="Unknown search method 'nope'"):
        town.open().stream_async(THEMES, method="nope")


def test_failures_are_raised_by_the_iterator(town: World):
    town.endpoint.respond = lambda body: WRONG_KEY
    stream: AnswerStream = town.open().stream(THEMES)
    with pytest.raises(ModelUnavailable):
        list(stream)
    with pytest.raises(UsageError, match="There is no level 'C9'"):
        list(town.open().stream(THEMES, "C9"))


# Command line


def test_a_terminal_shows_the_text_while_it_is_written(town: World):
    told = threading.Event()
    reducing(town, Answer("The ferry was **sold**\x1b[2J in the autumn.", until=told))
    with Terminal("query", THEMES, "--root", town.root) as terminal:
        terminal.wait_for("The ferry was sold")
        assert "autumn" not in terminal.shown
        told.set()
        assert terminal.end() == 0
    assert (
        "The ferry was sold\\x1b[2J in the autumn.\n" in terminal.shown.replace("\r", "")
        and "**" not in terminal.shown
    )
    assert "global search, level C0" in terminal.shown


def test_raw_output_shows_the_text_unchanged(town: World):
    reducing(town, "The ferry was **sold**\x1b[2J in the autumn.")
    with Terminal("query", THEMES, "--root", town.root, "--raw") as terminal:
        assert terminal.end() == 0
    assert terminal.shown.count("The ferry was **sold**\\x1b[2J in the autumn.\n") == 1


def test_no_stream_and_pipes_get_the_whole_answer(town: World, run: Command):
    reducing(town, Answer("The ferry was **sold**."))
    asked = town.asked()
    with Terminal("query", THEMES, "--root", town.root, "--no-stream") as terminal:
        assert terminal.end() == 0
    assert "The ferry was sold." in terminal.shown
    assert "The ferry was **sold**." in run("query", THEMES, "--root", town.root).stdout
    assert not any(b.get("stream") for b in town.endpoint.bodies()[asked:])


def test_a_terminal_shows_that_the_answer_restarts(town: World):
    reducing(town, Broken("The ferry was sold", 2), "All is well.")
    with Terminal("query", THEMES, "--root", town.root) as terminal:
        assert terminal.end() == 0
    before, _, after = terminal.shown.partition(FAILED_MIDWAY.strip())
    assert "The ferry" in before and "All is well.\n" in after


def test_ctrl_c_cancels_a_question(town: World):
    never = threading.Event()
    reducing(town, Answer("The ferry was sold in the autumn.", until=never))
    with Terminal("query", THEMES, "--root", town.root) as terminal:
        terminal.wait_for("The ferry")
        terminal.interrupt()
        assert terminal.end() == 130
    assert "graphrag-ray: Stopped" in terminal.shown and "Traceback" not in terminal.shown
    never.set()
