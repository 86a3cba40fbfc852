"""Cached replies to questions: a repeated question is free, and the answer says so."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import toy_model
from endpoint import BROKEN, Answer, Response
from world import REJECTED, WITHOUT_A_TREE, Command, World, model_options, prompt_of

from graphrag_ray import open_index
from graphrag_ray.base.errors import LockHeld, StoreError
from graphrag_ray.query import batch
from graphrag_ray.query.ask import Index
from graphrag_ray.query.batch import answer_batch
from graphrag_ray.store import locks
from graphrag_ray.store.files import Store
from graphrag_ray.store.local_files import LocalFiles

ABOUT_DAVE = "What about DAVE ?"
FREE = "Every reply came from the cache: no model was called."


@pytest.fixture
def cache(world: World) -> Path:
    return world.root.parent / "cache"


def opened(world: World, cache: Path, **changes: object) -> Index:
    """Open the index again, as another user would."""
    settings = world.settings(**changes) if changes else None
    return open_index(str(world.root), settings=settings, cache=str(cache))


@pytest.mark.parametrize("method", WITHOUT_A_TREE)
def test_a_repeated_question_is_free_and_says_so(town: World, cache: Path, method: str):
    first = opened(town, cache).ask(ABOUT_DAVE, method=method)
    asked = town.asked()
    again = opened(town, cache).ask(ABOUT_DAVE, method=method)
    assert town.asked() == asked and FREE not in first.notes
    assert (again.text, again.references, again.contexts) == (first.text, first.references, first.contexts)
    assert again.notes == (*first.notes, FREE)
    assert again.phases == {} and again.cost_usd == 0


def test_it_is_free_in_the_same_session(town: World, cache: Path):
    index = opened(town, cache)
    index.ask(ABOUT_DAVE)
    asked = town.asked()
    assert FREE in index.ask(ABOUT_DAVE).notes and town.asked() == asked


def test_it_is_free_for_another_snapshot_with_the_same_contexts(town: World, cache: Path):
    index = opened(town, cache)
    index.ask(ABOUT_DAVE)
    asked = town.asked()
    assert (
        FREE in index.open_snapshot(index.manifest, index.settings).ask(ABOUT_DAVE).notes
        and town.asked() == asked
    )
    assert len(list(cache.rglob("*.parquet"))) == 1, "however many phases it had"


def test_a_partially_answered_question_pays_only_for_the_rest(town: World, cache: Path):
    town.endpoint.respond = lambda body: BROKEN if prompt_of(body) == "reduce" else toy_model.respond(body)
    with pytest.raises(Exception, match="could not be combined"):
        opened(town, cache, run={"max_attempts": 1}).ask(ABOUT_DAVE)
    town.endpoint.respond = toy_model.respond
    asked = town.asked()
    answer = opened(town, cache).ask(ABOUT_DAVE)
    assert town.prompts(asked) == {"reduce": 1} and "1 of 2 replies came from the cache." in answer.notes


def test_another_question_is_not_answered_from_the_cache(town: World, cache: Path):
    opened(town, cache).ask(ABOUT_DAVE)
    asked = town.asked()
    assert "HEIDI" in opened(town, cache).ask("What about HEIDI ?").text
    assert town.prompts(asked) == {"map": 1, "reduce": 1}


def test_permanent_failures_are_not_retried(town: World, cache: Path):
    town.endpoint.respond = lambda body: REJECTED
    first = opened(town, cache).ask(ABOUT_DAVE)
    asked = town.asked()
    assert opened(town, cache).ask(ABOUT_DAVE).text == first.text and town.asked() == asked


def test_a_cached_answer_is_streamed(town: World, cache: Path):
    first = opened(town, cache).ask(ABOUT_DAVE)
    with opened(town, cache).stream(ABOUT_DAVE) as stream:
        assert "".join(stream) == first.text and FREE in stream.answer.notes


def test_the_index_is_not_written(town: World, cache: Path):
    def listing() -> dict[str, bytes]:
        return {i.path: town.store.read(i.path) for i in town.store.list()}

    before = listing()
    opened(town, cache).ask(ABOUT_DAVE)
    assert listing() == before and list(cache.rglob("*.parquet"))


def test_concurrent_questions_share_a_cache(town: World, cache: Path):
    async def all_of(names: tuple[str, ...]) -> list[str]:
        index = opened(town, cache)
        answers = await asyncio.gather(*(index.ask_async(f"What about {n} ?") for n in names))
        return [a.text for a in answers]

    names = ("DAVE", "HEIDI", "ERIN")
    first = asyncio.run(all_of(names))
    asked = town.asked()
    assert asyncio.run(all_of(names)) == first and town.asked() == asked


def test_replies_to_an_interrupted_question_are_kept(town: World, cache: Path):
    never = threading.Event()

    def respond(body: dict[str, Any]) -> Response:
        text = toy_model.respond(body)
        return Answer(text, until=never) if prompt_of(body) == "reduce" else text

    town.endpoint.respond = respond
    with opened(town, cache).stream(ABOUT_DAVE) as stream:
        next(iter(stream))
    never.set()
    town.endpoint.respond = toy_model.respond
    asked = town.asked()
    opened(town, cache).ask(ABOUT_DAVE)
    assert town.prompts(asked) == {"reduce": 1}


def test_an_unreadable_cache_is_reported_before_any_call(town: World, cache: Path):
    cache.write_text("a file")
    asked = town.asked()
    with pytest.raises(StoreError, match="Cannot list"):
        opened(town, cache).ask(ABOUT_DAVE)
    assert town.asked() == asked


def test_answers_survive_a_full_disk(town: World, cache: Path, monkeypatch: pytest.MonkeyPatch):
    def full(self: LocalFiles, path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFiles, "write", full)
    answer = opened(town, cache).ask(ABOUT_DAVE)
    assert "ERIN" in answer.text
    assert any("could not be cached: Cannot write" in note for note in answer.notes)


def test_batch_journals_and_caches_are_interchangeable(town: World, cache: Path):
    questions, out = cache.parent / "q.csv", cache.parent / "answers.parquet"
    questions.write_text(f"question\n{ABOUT_DAVE}\n")
    answer_batch(town.open(), str(questions), str(out))
    asked = town.asked()
    assert FREE in opened(town, Path(f"{out}.work")).ask(ABOUT_DAVE).notes
    opened(town, cache).ask("What about HEIDI ?")
    questions.write_text("question\nWhat about HEIDI ?\n")
    done = answer_batch(opened(town, cache), str(questions), str(cache.parent / "others.parquet"))
    assert done.accounts.total.calls == 0 and town.prompts(asked) == {"map": 1, "reduce": 1}


def test_query_uses_the_cache(town: World, cache: Path, run: Command):
    line = ["query", ABOUT_DAVE, "--root", town.root, "--cache", cache, *model_options(town)]
    first, asked = run(*line), town.asked()
    again = run(*line)
    assert first.exit_code == again.exit_code == 0 and town.asked() == asked
    assert f"[{FREE}]" in again.stdout and "no cost]" in again.stdout and FREE not in first.stdout


def test_chat_uses_the_cache(town: World, cache: Path, run: Command):
    said = f"{ABOUT_DAVE}\nWhat about HEIDI ?\n"
    run("chat", "--root", town.root, "--cache", cache, said=said)
    asked = town.asked()
    again = run("chat", "--root", town.root, "--cache", cache, said=said)
    assert FREE in again.stdout and town.asked() == asked


def test_a_batch_waits_only_while_a_service_compacts_the_cache(
    town: World, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    questions = tmp_path / "questions.csv"
    questions.write_text(f"question\n{ABOUT_DAVE}\n")
    given = (opened(town, cache), str(questions), str(tmp_path / "answers.parquet"))

    def outcome() -> dict[str, Any]:
        told: dict[str, Any] = json.loads((tmp_path / "answers.parquet.work/outcome.json").read_text())
        return told

    with locks.acquire(Store(str(cache)), note="merging the parts of a cache") as merging:
        with monkeypatch.context() as impatient:
            impatient.setattr(batch, "LOCK_WAIT_S", 0.0)
            with pytest.raises(LockHeld, match="merging the parts of a cache"):
                answer_batch(*given)
        assert (held := outcome())["outcome"] == "held" and "merging the parts" in held["message"]
        released = threading.Timer(1.0, merging.release)
        released.start()
        assert answer_batch(*given).failed == 0 and outcome()["outcome"] == "answered"
        released.join()
