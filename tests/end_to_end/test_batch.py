"""Batches of questions: answered as single questions are, resumed after a kill, and paid for once."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.cloudpickle as cloudpickle
import toy_model
from endpoint import BROKEN, WRONG_KEY, Answer, Drop
from world import REJECTED, WITHOUT_A_TREE, Command, World, model_options, prompt_of

from graphrag_ray.base.errors import BudgetSpent, LevelNotFound, TooManyFailures, UsageError
from graphrag_ray.engine.feed import Feed
from graphrag_ray.query import batch
from graphrag_ray.query.ask import Index
from graphrag_ray.query.batch import answer_batch
from graphrag_ray.query.methods.method import AskRequest
from graphrag_ray.query.question_sweep import BatchResult
from graphrag_ray.store import locks
from graphrag_ray.store.files import Store

NAMES = ("ALICE", "HEIDI", "ERIN", "JUDY", "IVAN")
SMALL = {"query": {"context_tokens": 300}}
"""So that a question has several parts."""


def questions(world: World, *texts: str) -> Path:
    path = world.root.parent / "questions.csv"
    path.write_text("question\n" + "".join(f"{text}\n" for text in texts))
    return path


def out(world: World) -> Path:
    return world.root.parent / "answers.parquet"


def ask(world: World, *texts: str, changes: dict[str, Any] | None = None, **how: Any) -> BatchResult:
    opened = world.open(**(changes or {}))
    way = AskRequest(**{name: how.pop(name) for name in ("method", "level", "where") if name in how})
    return answer_batch(opened, str(questions(world, *texts)), str(out(world)), way, **how)


def answers(world: World) -> list[dict[str, Any]]:
    return pq.read_table(out(world)).to_pylist()


def about(*names: str) -> list[str]:
    return [f"What about {name} ?" for name in names]


# Answers


@pytest.mark.parametrize("method", WITHOUT_A_TREE)
def test_every_method_answers_in_a_batch_as_it_answers_alone(town: World, method: str):
    done = ask(town, *about("DAVE", "HEIDI"), method=method)
    assert (done.questions, done.failed) == (2, 0)
    for row, name in zip(answers(town), ("DAVE", "HEIDI"), strict=True):
        alone = town.open().ask(f"What about {name} ?", method=method)
        assert (row["text"], row["method"], row["level"]) == (alone.text, alone.method, alone.level)
        assert method in (alone.method, "auto")
        assert [r["id"] for r in row["references"]] == [r.id for r in alone.references]
        assert row["found"] == alone.found and row["notes"] == list(alone.notes) and row["error"] is None
        calls = {name: phase.calls for name, phase in alone.phases.items()}
        if method == "lightrag":  # Alone, some of its three texts are embedded by one call.
            calls["embed"] = 3
        assert row["calls"] == sum(calls.values())
        assert row["tokens"] == sum(p.prompt_tokens + p.completion_tokens for p in alone.phases.values())


def test_a_bug_fails_only_the_row_of_its_question(town: World, monkeypatch: pytest.MonkeyPatch):
    answering = Index.prepare

    def failing(index: Index, ask: AskRequest) -> Any:
        if "HEIDI" in ask.text:
            raise ZeroDivisionError("seven by nothing")
        return answering(index, ask)

    monkeypatch.setattr(Index, "prepare", failing)
    assert ask(town, *about("DAVE", "HEIDI", "ERIN")).failed == 1
    first, failed, last = answers(town)
    assert first["text"] and last["text"] and failed["text"] is None
    assert "ZeroDivisionError: seven by nothing (query/question_sweep.py:" in failed["error"]


def test_a_finished_answer_is_written_whatever_else_fails(town: World, monkeypatch: pytest.MonkeyPatch):
    def fail(*given: object) -> Any:
        raise KeyError("lost")

    monkeypatch.setattr(Index, "short_numbers", fail)
    assert ask(town, *about("DAVE")).failed == 0
    (row,) = answers(town)
    assert "DAVE" in row["text"] and "Short numbers could not be shown: unexpected error" in row["notes"][-1]


@pytest.mark.parametrize("method", WITHOUT_A_TREE)
def test_questions_of_a_batch_can_be_pickled(town: World, method: str, monkeypatch: pytest.MonkeyPatch):
    take = Feed.take

    def travelled(feed: Feed) -> Any:
        rows = take(feed)
        return rows and [cloudpickle.loads(cloudpickle.dumps(row)) for row in rows]

    monkeypatch.setattr(Feed, "take", travelled)
    assert ask(town, *about("DAVE", "HEIDI"), method=method).failed == 0


def outcome(world: World) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((world.root.parent / "answers.parquet.work/outcome.json").read_text())
    return found


def test_the_outcome_of_a_batch_is_written_next_to_its_answers(town: World):
    ask(town, *about("DAVE", "HEIDI"))
    told = outcome(town)
    assert (told["outcome"], told["exit_code"], told["exit_meaning"]) == ("answered", 0, "done")
    assert (told["snapshot"], told["questions"], told["failed"]) == (1, 2, 0)
    assert [u["calls"] > 0 for u in told["usage"]["stages"]] == [True]
    with pytest.raises(BudgetSpent):
        ask(town, *about(*NAMES), changes={"budget": {"max_total_tokens": 2_000}})
    told = outcome(town)
    assert (told["outcome"], told["exit_code"]) == ("budget", 4) and "max_total_tokens" in told["message"]
    assert sum(u["calls"] for u in told["usage"]["stages"]) > 0


def test_the_outcome_of_a_rejected_batch_replaces_an_earlier_one(town: World, run: Command, tmp_path: Path):
    ask(town, *about("DAVE"))
    password = "correct-horse"
    good = {"--root": town.root, "--batch": questions(town, *about("DAVE")), "--out": out(town)}
    other, columns = tmp_path / "other.csv", tmp_path / "columns.csv"
    columns.write_text("asked\nWho?\n")
    broken = tmp_path / "broken.yaml"
    broken.write_text("storage: {regoin: r}")

    def line(changes: dict[str, object]) -> list[object]:
        return [*itertools.chain(*((k, v) for k, v in (good | changes).items() if v is not None))]

    ways: list[tuple[dict[str, object], list[object], str]] = [
        ({"--batch": columns}, [], "has no column question"),
        ({"--batch": other}, [], "no such file"),
        ({"--root": tmp_path / "nowhere"}, [], "here is no index"),
        ({}, ["--set", "chunking.sise=3"], "did you mean 'chunking.size'"),
        ({}, ["--config", tmp_path / "none.yaml"], "does not exist"),
        ({}, ["--config", broken], "unknown setting 'storage.regoin'"),
        ({}, ["--snapshot", 7], "snapshot 7"),
        ({}, ["--level", "C9"], "There is no level 'C9'"),
        ({}, ["Who?"], "Pass either a question or, with --batch, a file of questions"),
        (
            {"--batch": f"https://me:{password}@127.0.0.1:9/q.csv"},
            [],
            "Cannot read https://127.0.0.1:9/q.csv",
        ),
    ]
    file = Path(f"{out(town)}.work/outcome.json")
    answered = file.read_bytes()
    for changes, more, message in ways:
        file.write_bytes(answered)
        assert (outcome(town)["outcome"], outcome(town)["exit_code"]) == ("answered", 0)
        refused = run("query", *line(changes), *more)
        told = outcome(town)
        assert (refused.exit_code, told["exit_code"], told["outcome"]) == (2, 2, "usage"), message
        assert told["exit_meaning"] == "wrong usage or settings" and message in told["message"]
        assert not (told["usage"] or {}).get("stages") and told["ended_at"] and password not in str(told)
    # The same without an earlier batch. Errors that name no answers file are written nowhere.
    fresh = tmp_path / "fresh" / "a.parquet"
    assert run("query", *line({"--batch": columns, "--out": fresh})).exit_code == 2
    assert json.loads(Path(f"{fresh}.work/outcome.json").read_text())["exit_code"] == 2
    before = sorted(tmp_path.rglob("*"))
    assert run("query", *line({"--out": tmp_path / "a.txt"})).exit_code == 2
    assert run("query", "Who?", "--root", town.root, "--out", tmp_path / "b.parquet").exit_code == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_a_rejected_batch_does_not_overwrite_the_outcome_of_a_running_one(town: World, run: Command):
    ask(town, *about("DAVE"))
    before = outcome(town)
    command = ["query", "--root", town.root, "--out", out(town), "--batch"]
    with locks.acquire(Store(f"{out(town)}.work"), note="somebody else"):
        assert run(*command, questions(town)).exit_code == 2
        assert "contains no valid question" not in str(outcome(town)["message"])
        held = run(*command, questions(town, *about("DAVE")))
        assert held.exit_code == 1 and "somebody else" in held.stderr
    assert outcome(town) == before


def test_ctrl_c_before_the_first_question_is_recorded(town: World, monkeypatch: pytest.MonkeyPatch):
    ask(town, *about("DAVE"))

    def broken_off(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "read_questions", broken_off)
    with pytest.raises(KeyboardInterrupt):
        ask(town, *about("DAVE"))
    assert (outcome(town)["outcome"], outcome(town)["exit_code"]) == ("interrupted", 130)


def test_references_have_the_numbers_in_the_text(town: World):
    ask(town, "What are the THEMES?")
    (row,) = answers(town)
    assert len(row["references"]) > 1
    for reference in row["references"]:
        assert f"[Data: Reports ({reference['human_readable_id']})]" in row["text"]


def test_answers_are_in_the_order_of_the_questions(town: World):
    delays = iter([0.2, 0.0, 0.1, 0.05] * 50)
    town.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=next(delays))
    ask(town, *about(*NAMES))
    assert [r["question"] for r in answers(town)] == about(*NAMES)
    assert [r["question_id"] for r in answers(town)] == ["1", "2", "3", "4", "5"]


def test_a_repeated_question_is_asked_once(town: World):
    asked = town.asked()
    ask(town, *about("DAVE", "HEIDI", "DAVE"))
    assert town.prompts(asked) == {"map": 2, "reduce": 2}
    first, _, third = answers(town)
    assert first["text"] == third["text"] and (first["question_id"], third["question_id"]) == ("1", "3")


def test_questions_of_a_batch_are_asked_concurrently(town: World):
    town.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=0.3)
    ask(town, *about(*NAMES))
    assert town.endpoint.peak_in_flight >= 4


def test_rows_contain_the_cost_of_their_question(town: World):
    price = {"price": {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 2.0}}
    models = {"default": town.settings().models["default"].model_dump() | price}
    done = ask(town, *about("DAVE", "HEIDI"), changes={"models": models})
    rows = answers(town)
    assert all(r["cost_usd"] > 0 for r in rows)
    assert sum(r["cost_usd"] for r in rows) == pytest.approx(done.accounts.total.cost_usd)
    assert sum(r["tokens"] for r in rows) == done.accounts.total.total_tokens


def test_a_batch_writes_nothing_to_the_index(town: World):
    def listing() -> dict[str, bytes]:
        return {i.path: town.store.read(i.path) for i in town.store.list()}

    before = listing()
    ask(town, *about(*NAMES))
    assert listing() == before


# Payment


def test_repeating_a_batch_costs_nothing_and_gives_the_same_answers(town: World):
    ask(town, *about(*NAMES))
    first, asked = answers(town), town.asked()
    out(town).unlink()
    done = ask(town, *about(*NAMES))
    assert town.asked() == asked and done.accounts.total.calls == 0
    assert [r | {"seconds": 0} for r in answers(town)] == [r | {"seconds": 0} for r in first]


def test_only_new_questions_are_asked(town: World):
    ask(town, *about("DAVE", "HEIDI"))
    asked = town.asked()
    ask(town, *about("ERIN", "HEIDI", "DAVE"))
    assert town.prompts(asked) == {"map": 1, "reduce": 1}


def command(world: World, *texts: str) -> list[object]:
    files = ["--batch", questions(world, *texts), "--out", out(world), "--level", "C2"]
    more = ["--set", "query.context_tokens=300", "--set", "run.journal_flush_s=0.1"]
    return ["query", "--root", world.root, *files, *more]


class Started:
    """The command in its own process."""

    def __init__(self, world: World, *texts: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "graphrag_ray", *map(str, command(world, *texts))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until(self, world: World, asked: int) -> None:
        until = time.monotonic() + 60
        while world.asked() < asked:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)

    def ended(self) -> tuple[int, str, str]:
        told = self.process.communicate(timeout=120)
        return self.process.returncode, *told


@pytest.fixture
def slow(deep: World) -> Iterator[World]:
    """Slow replies, so that there is something to interrupt."""
    deep.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=0.1)
    yield deep
    deep.endpoint.respond = toy_model.respond


def repeated(world: World, start: int) -> int:
    """How many of the requests from number `start` on had been sent before."""
    seen = Counter(repr(b["messages"]) for b in world.endpoint.bodies()[start:])
    return sum(n - 1 for n in seen.values())


@pytest.mark.cluster
def test_a_killed_batch_resumes(slow: World, run: Command):
    texts, before = about(*[f"A{chr(65 + i)}X" for i in range(20)]), slow.asked()
    killed = Started(slow, *texts)
    killed.wait_until(slow, before + 100)
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.ended()
    asked = slow.asked() - before
    assert not out(slow).exists()
    assert (outcome(slow)["outcome"], outcome(slow)["exit_code"]) == ("running", None)
    done = run(*command(slow, *texts))
    assert done.exit_code == 0 and outcome(slow)["exit_code"] == 0, done.output
    assert len(answers(slow)) == 20 and all(r["text"] for r in answers(slow))
    # Calls in flight (at most 16) and replies since the last journal flush.
    assert asked >= 100 and repeated(slow, before) <= 40
    done = run(*command(slow, *texts))
    assert done.exit_code == 0 and "no model calls" in done.stdout


def test_ctrl_c_waits_for_calls_in_flight_and_the_same_command_resumes(slow: World, run: Command):
    texts, before = about(*[f"A{chr(65 + i)}X" for i in range(20)]), slow.asked()
    stopped = Started(slow, *texts)
    stopped.wait_until(slow, before + 60)
    os.killpg(stopped.process.pid, signal.SIGINT)
    code, _, told = stopped.ended()
    assert code == 130 and "run the same command again to continue" in told and "Traceback" not in told
    assert not out(slow).exists() and locks.find_holder(Store(f"{out(slow)}.work")) is None
    assert (outcome(slow)["outcome"], outcome(slow)["exit_code"]) == ("interrupted", 130)
    done = run(*command(slow, *texts))
    assert done.exit_code == 0 and repeated(slow, before) == 0, done.output


def test_a_budget_stops_a_batch_with_exit_code_4_and_the_next_one_resumes(slow: World, run: Command):
    texts, before = about(*[f"A{chr(65 + i)}X" for i in range(10)]), slow.asked()
    stopped = run(*command(slow, *texts), "--set", "budget.max_total_tokens=20000")
    assert stopped.exit_code == 4 and "budget.max_total_tokens is 20,000" in stopped.stderr
    spent = slow.asked() - before
    done = run(*command(slow, *texts))
    assert done.exit_code == 0 and repeated(slow, before) == 0 and slow.asked() - before > spent, done.output


def test_two_batches_with_the_same_answers_do_not_both_pay(slow: World, run: Command):
    released = threading.Event()

    def respond(body: dict[str, Any]) -> Any:
        return Answer(toy_model.respond(body), delay_s=0.0 if released.is_set() else 1.0)

    slow.endpoint.respond = respond
    texts, before = about(*[f"A{chr(65 + i)}X" for i in range(10)]), slow.asked()
    first = Started(slow, *texts)
    first.wait_until(slow, before + 1)
    second = run("query", "--root", slow.root, "--batch", questions(slow, *texts), "--out", out(slow))
    assert second.exit_code == 1 and "answers.parquet.work" in second.stderr
    assert outcome(slow)["outcome"] == "running"
    released.set()
    assert first.ended()[0] == 0 and repeated(slow, before) == 0 and outcome(slow)["exit_code"] == 0


# Failures


def test_a_question_that_fails_is_a_row_with_its_error(town: World):
    def respond(body: dict[str, Any]) -> Any:
        text = toy_model.respond(body)
        return REJECTED if prompt_of(body) == "reduce" and "HEIDI" in str(body) else text

    town.endpoint.respond = respond
    done = ask(town, *about("DAVE", "HEIDI", "ERIN"))
    first, failed, third = answers(town)
    assert done.failed == 1 and "your request was rejected" in failed["error"] and failed["text"] is None
    assert first["text"] and third["text"] and first["error"] is None


def test_the_next_run_retries_transient_but_not_permanent_failures(town: World):
    def respond(body: dict[str, Any]) -> Any:
        asked = str(body)
        return REJECTED if "DAVE ?" in asked else BROKEN if "ERIN ?" in asked else toy_model.respond(body)

    town.endpoint.respond = respond
    attempts = {"run": {"max_attempts": 1}}
    assert ask(town, *about("DAVE", "HEIDI", "ERIN", "IVAN", "JUDY"), changes=attempts).failed == 2
    town.endpoint.respond = toy_model.respond
    asked = town.asked()
    assert ask(town, *about("DAVE", "HEIDI", "ERIN", "IVAN", "JUDY")).failed == 1
    assert town.prompts(asked) == {"map": 1, "reduce": 1}


def test_missing_contexts_are_counted_and_reported(deep: World):
    first = iter([REJECTED])
    deep.endpoint.respond = lambda body: next(first, None) or toy_model.respond(body)
    done = ask(deep, "What are the THEMES?", changes=SMALL, level=2)
    (row,) = answers(deep)
    assert done.failed == 1 and row["failed_parts"] == 1 and row["text"]
    assert any("got no usable reply" in note for note in row["notes"])


def test_a_row_without_a_question_has_an_error(town: World):
    done = ask(town, "What about DAVE ?", " ", "x" * 20_001)
    assert done.failed == 2
    assert [r["error"] for r in answers(town)] == [
        None, "the question is empty", "the question has 20001 characters; at most 20000 are allowed"
    ]  # fmt: skip


def test_a_rejected_key_ends_the_batch(town: World):
    town.endpoint.respond = lambda body: WRONG_KEY
    with pytest.raises(Exception, match="401"):
        ask(town, *about(*NAMES))
    assert not out(town).exists()


def test_too_many_failures_end_the_batch(town: World):
    town.endpoint.respond = lambda body: Drop()
    with pytest.raises(TooManyFailures):
        ask(town, *about(*[f"A{i}" for i in range(30)]), changes={"run": {"max_attempts": 1}})


def test_invalid_options_are_rejected_before_any_call(town: World):
    asked = town.asked()
    with pytest.raises(LevelNotFound, match="There is no level 'C9'"):
        ask(town, *about(*NAMES), level="C9")
    with pytest.raises(UsageError, match="vector search has no levels"):
        ask(town, *about(*NAMES), method="vector", level="C0")
    with pytest.raises(UsageError, match="Unknown search method 'nope'"):
        ask(town, *about(*NAMES), method="nope")
    assert town.asked() == asked and not out(town).exists()


def test_the_budget_per_question_applies_in_a_batch(town: World):
    asked = town.asked()
    done = ask(town, *about("DAVE"), changes={"query": {"budget_tokens": 10}})
    assert done.failed == 1 and "budget" in answers(town)[0]["error"] and town.asked() == asked


# Command line


def test_the_command_reports_the_outcome(town: World, run: Command):
    files = ["--batch", questions(town, *about("DAVE"), " "), "--out", out(town)]
    result = run("query", "--root", town.root, *files, *model_options(town))
    assert result.exit_code == 3
    assert f"2 questions, 1 with a missing or partial answer (columns error, failed_parts): {out(town)}" in (
        result.stdout
    )
    again = run("query", "--root", town.root, *files, "--json")
    assert '"failed": 1' in again.stdout and '"usage": []' in again.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Pass either a question or, with --batch, a file of questions"),
        (["Who?", "--batch", "q.csv", "--out", "a.parquet"], "Pass either a question or"),
        (["--batch", "q.csv"], "--batch needs --out"),
        (["Who?", "--out", "a.parquet"], "--out, --ray and --address need --batch"),
        (["--batch", "q.csv", "--out", "a.txt"], "must name a file that ends in .parquet, .jsonl, .csv"),
    ],
)
def test_incompatible_options_are_usage_errors(
    town: World, run: Command, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(town.root.parent)
    result = run("query", "--root", town.root, *arguments)
    assert result.exit_code == 2 and told in result.stderr


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_answers_can_be_lines_of_json_or_csv_and_repeating_the_batch_is_free(
    town: World, run: Command, suffix: str
):
    ask(town, *about("DAVE", "HEIDI"))
    file = out(town).with_suffix(suffix)
    files = ["--batch", questions(town, *about("DAVE", "HEIDI")), "--out", file]
    assert run("query", "--root", town.root, *files).exit_code == 0
    asked, first = town.asked(), file.read_text("utf-8")
    if suffix == ".jsonl":
        rows = [json.loads(line) for line in first.splitlines()]
        assert [r["references"] for r in rows] == [r["references"] for r in answers(town)]
    else:
        rows = list(csv.DictReader(first.splitlines(keepends=True)))
        assert [json.loads(r["references"]) for r in rows] == [r["references"] for r in answers(town)]
    assert [r["question"] for r in rows] == about("DAVE", "HEIDI")
    assert run("query", "--root", town.root, *files).exit_code == 0
    assert (
        town.asked() == asked and json.loads(Path(f"{file}.work/outcome.json").read_text())["exit_code"] == 0
    )


# Python


def test_a_list_of_questions_is_answered_in_order_as_single_questions(town: World):
    index, texts = town.open(), about("JUDY", "ALICE")
    found = index.ask_all([texts[0], {"id": "a", "question": texts[1]}, ""], method="hybrid")
    alone = [index.ask(text, method="hybrid").text for text in texts]
    assert [row["text"] for row in found] == [*alone, None]
    assert [row["question_id"] for row in found] == ["1", "a", "3"] and "is empty" in found[2]["error"]
    asked = town.asked()
    index.ask_all(pa.table({"question": texts}), method="hybrid", out=str(out(town)))
    assert index.ask_all(iter(texts), method="hybrid", out=str(out(town)))[0]["text"] == alone[0]
    assert town.asked() == asked + 2 and [row["text"] for row in answers(town)] == alone
    with pytest.raises(UsageError, match="no column question or question_text"):
        index.ask_all(pa.table({"text": texts}))


def test_tables_convert_to_pandas_including_embeddings(town: World):
    index = town.open()
    frame = index.to_pandas("entities", ["title", "degree"])
    assert frame.to_dict("records") == index.table("entities", ["title", "degree"]).to_pylist()
    vectors = index.to_pandas("embeddings_entity")
    assert set(vectors["id"]) == set(index.table("entities", ["id"])["id"].to_pylist())
    with pytest.raises(UsageError, match=r"Unknown table 'entitys'\. Choose from: documents"):
        index.to_pandas("entitys")
