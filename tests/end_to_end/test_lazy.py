"""Lazy search over finished indexes, with a model behind HTTP and with the offline engine."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_model
from served import Served
from world import PEOPLE, REJECTED, Command, World, model_options, prompt_of

from graphrag_ray import open_index
from graphrag_ray.query.methods.lazy_search import NO_COMMUNITIES

DEMO = Path(__file__).parents[2] / "demo" / "corpus"
ABOUT = "What about ABX and ACX and BAX ?"


@pytest.fixture
def people(world: World) -> World:
    world.write(PEOPLE)
    world.index(build="names")
    return world


def lazily(world: World, question: str = ABOUT, tests: int = 30, **more: Any) -> Any:
    return world.open(query={"lazy_tests": tests}).ask(question, method="lazy", **more)


def n_tested(answer: Any) -> int:
    return sum(len(used.records) for used in answer.contexts if used.phase == "rate")


def test_the_offline_engine_answers_from_an_index_of_names(run: Command, tmp_path: Path):
    root = tmp_path / "index"
    assert run("index", f"{DEMO}/0*", "--root", root, "--build", "names").exit_code == 0
    question = "Why are the harbour plan and the strike disputed?"
    asked = ("query", question, "--root", root, "--method", "lazy", "--budget-tests", 20, "--sources")
    shown = run(*asked).output
    folded = " ".join(shown.split())
    assert "Tested 20 passages (at most 20)" in folded and "lazy search" in folded
    assert re.search(r"\[Data: Sources \(\d", folded)
    places = re.findall(r"^  (\S+\.(?:txt|md)), character (\d+): “(.+?)[”…]", shown, re.MULTILINE)
    assert places
    for name, start, quote in places:
        assert (DEMO / name).read_text("utf-8")[int(start) :].startswith(quote[:20])
    refused = run("query", question, "--root", root, "--method", "ppr", "--budget-tests", 20)
    assert refused.exit_code == 2 and "an option of lazy search" in refused.output


def test_an_index_of_names_has_communities_that_inspect_shows(people: World, run: Command):
    communities = people.table("communities")
    assert {entity for row in communities for entity in row["entity_ids"]} == {
        row["id"] for row in people.table("entities")
    }
    shown = run("inspect", "community", communities[0]["community"], "--root", people.root)
    assert shown.exit_code == 0 and communities[0]["title"] in shown.output
    people.write({"new.txt": "ABX knows a new man, ZZX. ZZX wrote to ACX."})
    people.index(build="names")
    assert people.asked() == 0 and lazily(people, "What about ZZX ?").found


def test_a_question_makes_the_calls_that_its_notes_count(people: World):
    before = people.asked()
    answer = lazily(people)
    sent = people.prompts(before)
    assert answer.found and {r.section for r in answer.references} == {"Sources"}
    assert sent["lazy_subqueries"] == sent["reduce"] == 1 and sent["map_points"] >= 1
    assert answer.phases["rate"].calls == sent["lazy_test"]
    assert f"in {sent['lazy_test']} calls" in " ".join(answer.notes) and n_tested(answer) <= 30


def test_a_full_index_is_answered_without_its_reports(world: World):
    world.write(PEOPLE)
    world.index()
    answer = lazily(world)
    assert answer.found and {r.section for used in answer.contexts for r in used.records} == {"Sources"}


def test_an_index_of_names_without_communities_says_how_to_add_them(people: World):
    index = people.open()
    tables = {name: parts for name, parts in index.manifest.tables.items() if name != "communities"}
    earlier = replace(index, manifest=replace(index.manifest, tables=tables))
    answer = earlier.ask(ABOUT, method="lazy")
    assert answer.found and NO_COMMUNITIES in answer.notes


def test_a_streamed_answer_is_the_same(people: World):
    stream = people.open().stream(ABOUT, method="lazy")
    assert "".join(stream) == stream.answer.text == people.open().ask(ABOUT, method="lazy").text


def test_a_larger_budget_continues_with_cached_tests(people: World, tmp_path: Path):
    def ask(tests: int) -> Any:
        settings = people.settings(query={"lazy_tests": tests})
        return open_index(str(people.root), settings=settings, cache=str(tmp_path)).ask(ABOUT, method="lazy")

    first, before = ask(24), people.asked()
    second = ask(60)
    repeated = people.prompts(before)["lazy_test"]
    assert n_tested(second) > n_tested(first)
    assert repeated < sum(used.phase == "rate" for used in second.contexts)
    assert "lazy_subqueries" not in people.prompts(before)


def test_a_test_that_is_rejected_is_reported_and_the_rest_is_answered(people: World, run: Command):
    rejected: list[Any] = []

    def respond(body: dict[str, Any]) -> Any:
        if prompt_of(body) == "lazy_test" and not rejected:
            rejected.append(body)
        return REJECTED if body in rejected else toy_model.respond(body)

    people.endpoint.respond = respond
    options = ("--root", people.root, "--method", "lazy", "--json", *model_options(people))
    shown = run("query", ABOUT, *options)
    answer = json.loads(shown.stdout)
    assert shown.exit_code == 3 and answer["found"] and answer["failed_parts"] == 1
    assert any("could not be tested, because 1 of these calls failed" in note for note in answer["notes"])


def test_the_service_limits_the_tests_per_request(people: World):
    served = Served(None, root=str(people.root), method="lazy")
    try:
        answer = served.ask(ABOUT, budget_tests=5, contexts=True).json()
        assert sum(len(used["records"]) for used in answer["contexts"] if used["phase"] == "rate") == 5
        assert served.ask(ABOUT, method="ppr", budget_tests=5).status_code == 400
        assert served.ask(ABOUT, budget_tests=0).status_code == 400
    finally:
        served.close()


def test_an_evaluation_estimates_its_cost_without_a_call(people: World, run: Command, tmp_path: Path):
    (tmp_path / "q.csv").write_text(f"question\n{ABOUT}\n")
    conditions = (
        "--condition",
        "lazy=lazy",
        "--condition",
        "hybrid=hybrid",
        "--questions",
        tmp_path / "q.csv",
    )
    before = people.asked()
    shown = run("evaluate", "estimate", "--root", people.root, *conditions, "--json", *model_options(people))
    assert shown.exit_code == 0, shown.output
    assert people.asked() == before and "lazy" in shown.output
