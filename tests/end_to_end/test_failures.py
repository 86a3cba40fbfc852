"""Failed items are listed, put back, and retried with no more calls than needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import toy_model
from world import REJECTED, TOWN, Command, World, index_command, prompt_of

from graphrag_ray import offline
from graphrag_ray.offline import replies
from graphrag_ray.store.search import keyword_index


def nonsense_about(name: str, answer: Any = "I would rather not.") -> Any:
    """A model that extracts nothing useful from texts that mention a name."""

    def respond(body: dict[str, Any]) -> Any:
        asked = any(name in m["content"] for m in body["messages"])
        if asked and (prompt_of(body) in ("extract", "correct")):
            return answer
        return toy_model.respond(body)

    return respond


def failures(run: Command, world: World, *more: object) -> list[dict[str, Any]]:
    result = run("failures", "--root", world.root, "--json", *more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_a_permanent_failure_is_retried_once_it_is_put_back(run: Command, world: World):
    world.write(TOWN)
    world.endpoint.respond = nonsense_about("bridge")
    assert run(*index_command(world)).exit_code == 3
    (failed,) = failures(run, world)
    assert (failed["stage"], failed["document"], failed["kind"]) == ("extract", "bridge.txt", "permanent")
    assert failed["attempts"] == 2 and failed["first_at"] and failed["last_at"], "asked, and corrected once"

    world.endpoint.respond = toy_model.respond
    asked = world.asked()
    assert run(*index_command(world)).exit_code == 3
    assert world.asked() == asked, "not without being told"

    put_back = run("failures", "--root", world.root, "--retry")
    assert put_back.exit_code == 0 and "1 item reset" in put_back.stdout
    assert f"graphrag-ray index {world.input} --root {world.root}" in " ".join(put_back.stdout.split())
    assert world.asked() == asked, "putting back spends nothing"

    assert run(*index_command(world)).exit_code == 0
    again = world.prompts(asked)
    assert (again["extract"], again["glean_missing"], again["correct"]) == (1, 1, 0)
    bodies = [json.dumps(b["messages"]) for b in world.endpoint.bodies()]
    assert sum(b in bodies[:asked] for b in bodies[asked:]) == 1, "the first request, and none but that"
    assert failures(run, world) == []
    assert "CAROL" in {e["title"] for e in world.table("entities")}
    asked = world.asked()
    assert "Nothing has changed" in run(*index_command(world)).stdout and world.asked() == asked


def test_prompts_and_replies_of_a_failed_item_are_shown(run: Command, world: World):
    world.write(TOWN)
    world.endpoint.respond = nonsense_about("bridge")
    assert run(*index_command(world)).exit_code == 3
    (failed,) = failures(run, world)
    asked = world.asked()
    shown = run("failures", "--root", world.root, "--show", failed["key"][:8], "--json")
    assert shown.exit_code == 0, shown.output
    turns = json.loads(shown.stdout)["turns"]
    assert [turn["prompt"] for turn in turns] == ["extract", "correct", ""]
    assert "bridge" in turns[0]["messages"][-1][1] and turns[0]["reply"] == "I would rather not."
    assert len(turns[1]["messages"]) == 1, "the correction alone, not the conversation again"
    assert turns[1]["reply"] == "I would rather not."
    assert turns[2]["error"] == failed["error"]
    told = run("failures", "--root", world.root, "--show", failed["key"])
    assert "I would rather not." in told.stdout and "extract: reply" in told.stdout
    assert world.asked() == asked, "no model is asked"
    unknown = run("failures", "--root", world.root, "--show", "zz")
    assert unknown.exit_code == 2 and "0 failed items" in unknown.stderr


@pytest.fixture
def stumbles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words at which the offline engine fails as if it had a bug."""
    at: list[str] = []
    extract, embed, words = replies._ANSWERS["extract"], offline.embed_many, keyword_index.tokenize

    def stumbling(variables: Mapping[str, str]) -> str:
        if any(word in variables["text"] for word in at):
            raise IndexError(f"of nothing in {variables['text']}")
        return extract(variables)

    def embedding(texts: Sequence[str]) -> list[bytes]:
        if any(word in text for word in at for text in texts):
            raise MemoryError
        return embed(texts)

    def wording(text: str, language: str) -> list[str]:
        if any(word in text for word in at):
            raise KeyError(text)
        return words(text, language)

    monkeypatch.setitem(replies._ANSWERS, "extract", stumbling)
    monkeypatch.setattr(keyword_index, "tokenize", wording)
    monkeypatch.setattr(offline, "embed_many", embedding)
    return at


def test_a_bug_of_the_offline_engine_fails_its_item_until_it_is_fixed(
    run: Command, world: World, stumbles: list[str]
):
    world.write({f"{n:02}.txt": f"{'Walk' if n % 3 else 'Stumble'} {n}. Anna met Bert." for n in range(75)})
    stumbles.append("Stumble")
    line = ["index", world.input, "--root", world.root]
    done = run(*line)
    assert done.exit_code == 3, done.stderr
    found = failures(run, world)
    assert [f["stage"] for f in found].count("extract") == 25, "each named, and the others done"
    assert all("unexpected error" in f["error"] for f in found)
    extract = next(f for f in found if f["stage"] == "extract")
    assert extract["document"].endswith(".txt") and "(offline/replies.py:" in extract["error"]
    assert {f["stage"] for f in found} == {"extract", "embed", "search"}
    assert {f["kind"] for f in found} == {"transient"}

    again = run(*line)
    assert again.exit_code == 3 and "Nothing has changed" in again.stdout, "no news, and no end of the run"
    stumbles.clear()
    assert run(*line).exit_code == 0 and failures(run, world) == []


def test_a_bug_that_fails_most_items_stops_the_run(run: Command, world: World, stumbles: list[str]):
    world.write({f"{n:02}.txt": f"Stumble {n}. Anna met Bert." for n in range(40)})
    stumbles.append("Stumble")
    done = run("index", world.input, "--root", world.root)
    assert done.exit_code == 1 and "IndexError" in done.stderr and "max_failed_fraction" in done.stderr


def test_only_chosen_items_are_put_back(run: Command, world: World):
    world.write(TOWN)
    world.endpoint.respond = nonsense_about("b", REJECTED)
    assert run(*index_command(world, "--set", "run.max_failed_fraction=1")).exit_code == 3
    found = failures(run, world)
    documents = {f["document"] for f in found}
    assert {"bridge.txt", "brewery.txt"} < documents
    assert {f["document"] for f in failures(run, world, "--document", "br*")} == {"bridge.txt", "brewery.txt"}
    assert failures(run, world, "--stage", "report") == []
    (one,) = [f for f in found if f["document"] == "mill.txt"]
    assert failures(run, world, "--key", one["key"][:10]) == [one]

    world.endpoint.respond = toy_model.respond
    asked = world.asked()
    told = run("failures", "--root", world.root, "--retry", "--document", "br*", "--json")
    assert json.loads(told.stdout)["retried"] == 2
    assert run(*index_command(world)).exit_code == 3
    assert world.prompts(asked)["extract"] == 2
    assert {f["document"] for f in failures(run, world)} == documents - {"bridge.txt", "brewery.txt"}


def test_an_item_that_fails_again_is_listed_again(run: Command, world: World):
    world.write(TOWN)
    world.endpoint.respond = nonsense_about("bridge")
    run(*index_command(world))
    (before,) = failures(run, world)
    run("failures", "--root", world.root, "--retry")
    asked = world.asked()
    assert run(*index_command(world)).exit_code == 3
    assert world.asked() == asked + 2, "asked, and corrected once"
    (after,) = failures(run, world)
    assert after["key"] == before["key"] and after["last_at"] >= before["last_at"]
    assert len(world.snapshots()) in (1, 2)


def test_a_failed_report_is_written_after_it_was_put_back(run: Command, world: World):
    world.write(TOWN)

    def respond(body: dict[str, Any]) -> Any:
        if prompt_of(body) in ("report", "report_correct") and "GRACE" in body["messages"][-1]["content"]:
            return REJECTED
        return toy_model.respond(body)

    world.endpoint.respond = respond
    assert run(*index_command(world)).exit_code == 3
    n = len(failures(run, world, "--stage", "report"))
    assert n >= 1
    world.endpoint.respond = toy_model.respond
    run("failures", "--root", world.root, "--retry")
    assert run(*index_command(world)).exit_code == 0
    assert failures(run, world) == []


def test_items_can_be_put_back_before_the_first_snapshot(run: Command, world: World):
    many = {f"{i:02}.txt": f"ANNA met B{chr(65 + i) * 3} there." for i in range(24)}
    world.write(many)
    world.endpoint.respond = nonsense_about("ANNA")
    stopped = run(*index_command(world))
    assert stopped.exit_code == 1 and "failures --retry" in stopped.stderr
    found = failures(run, world)
    assert len(found) >= 20 and {f["kind"] for f in found} == {"permanent"}
    world.endpoint.respond = toy_model.respond
    told = json.loads(run("failures", "--root", world.root, "--retry", "--json").stdout)
    assert told["retried"] == len(found)
    assert run(*index_command(world)).exit_code == 0 and failures(run, world) == []


def test_nothing_is_put_back_during_a_run_or_from_an_old_snapshot(run: Command, world: World):
    from graphrag_ray.store import locks

    world.write(TOWN)
    world.endpoint.respond = nonsense_about("bridge")
    run(*index_command(world))
    with locks.acquire(world.store, note="a test"):
        held = run("failures", "--root", world.root, "--retry")
    assert held.exit_code == 1 and "is being written by" in held.stderr
    assert run("failures", "--root", world.root, "--retry", "--snapshot", 1).exit_code == 2
