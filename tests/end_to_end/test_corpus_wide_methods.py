"""Search methods that read the whole corpus, over HTTP, with the offline engine and on the command line:
method `text`, levels within a budget, dynamic selection, scored points, DRIFT."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import toy_model
from endpoint import Answer as Reply
from world import REJECTED, TOWN, Command, Silent, World, index_command, model_options, prompt_of

from graphrag_ray import open_index
from graphrag_ray.base.context_records import parse_sections
from graphrag_ray.base.errors import BudgetSpent, SettingsError, UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.indexing.index import index
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.store.files import Store

TOP = Path(__file__).parents[2]
SMALL = {"context_tokens": 300, "max_map_tokens": 100, "max_reduce_tokens": 300}
ALL = "What are the THEMES?"


def asked(
    world: World, question: str = ALL, level: Any = None, method: str = "global", **query: Any
) -> Answer:
    return world.open(query=query).ask(question, level, method=method)


def tokens(answer: Answer) -> int:
    return sum(p.prompt_tokens + p.completion_tokens for p in answer.phases.values())


# Method `text`


def test_text_reads_all_chunks_and_cites_them(deep: World):
    start = deep.asked()
    answer = asked(deep, "What about AAX ?", method="text", context_tokens=300)
    chunks = {c["id"]: c["text"] for c in deep.table("text_units")}
    read = [r.id for c in answer.contexts if c.phase == "map" for r in c.records]
    assert sorted(read) == sorted(chunks) and max(c.n_tokens for c in answer.contexts) <= 300
    assert answer.references and all("AAX" in chunks[r.id] for r in answer.references)
    assert {r.section for r in answer.references} == {"Sources"} and answer.level is None
    assert deep.prompts(start)["map"] == answer.phases["map"].calls == len(answer.contexts) - 1


def test_the_sources_of_method_text_are_its_chunks(deep: World):
    opened = deep.open()
    answer = opened.ask("What about AAX ?", method="text")
    documents = {d["path"]: d["text"] for d in deep.table("documents")}
    for source in opened.sources(answer.references, answer):
        assert source.chunks
        for chunk in source.chunks:
            assert documents[chunk["document"]][chunk["start"] : chunk["end"]] == chunk["text"]


# Levels and budgets


def test_a_budget_selects_the_finest_affordable_level(deep: World):
    n_levels = len(deep.open().manifest.counts["levels"])
    most: list[int] = []
    for k in range(n_levels):
        with pytest.raises(BudgetSpent, match=r"would take at most [\d,]+ tokens") as refused:
            asked(deep, level=k, budget_tokens=1, **SMALL)
        most.append(int(re.search(r"at most ([\d,]+)", str(refused.value))[1].replace(",", "")))
    assert most == sorted(most) and len(set(most)) > 1
    for budget in (*most, most[-1] - 1, 10**7):
        answer = asked(deep, level="auto", budget_tokens=budget, **SMALL)
        assert tokens(answer) <= budget and not answer.failed_parts
        assert answer.level == max(k for k in range(n_levels) if most[k] <= budget)
        assert answer.notes[0].startswith(f"C{answer.level} is the finest level within the budget")


def test_a_question_beyond_its_budget_makes_no_call(deep: World):
    start = deep.asked()
    for method in ("text", "global", "drift"):
        with pytest.raises(BudgetSpent, match=r"query\.budget_tokens is 3,000"):
            asked(deep, level="C2" if method == "global" else None, method=method, budget_tokens=3_000)
    assert deep.asked() == start


def test_a_budget_in_usd_needs_the_price_of_the_model(deep: World):
    with pytest.raises(SettingsError, match="price of model 'default' is unknown"):
        asked(deep, level="auto", budget_usd=1.0)


def test_corrections_beyond_the_budget_are_not_sent_and_reported(deep: World):
    """The first reply to every map call is as long as possible and invalid, which no forecast includes."""
    with pytest.raises(BudgetSpent) as refused:
        asked(deep, level="C1", budget_tokens=1, **SMALL)
    forecast = int(re.search(r"at most ([\d,]+)", str(refused.value))[1].replace(",", ""))

    def corrected(body: dict[str, Any]) -> str | Reply:
        first, *rest = [m["content"] for m in body["messages"] if m["role"] == "user"]
        if toy_model.recognise(first)[0] == "map":
            return toy_model.respond({"messages": [{"content": first}]}) if rest else "It depends. " * 25
        return toy_model.respond(body)

    deep.endpoint.respond = corrected
    without = asked(deep, level="C1", **SMALL)
    assert tokens(without) > forecast and not without.failed_parts
    answer = asked(deep, level="C1", budget_tokens=forecast, **SMALL)
    assert tokens(answer) <= forecast and 0 < answer.failed_parts < without.phases["map"].calls
    assert f"query.budget_tokens is {forecast:,}" in " ".join(answer.notes)


# Dynamic selection


def test_only_reports_below_relevant_ones_are_rated_and_read(deep: World):
    start = deep.asked()
    answer = asked(deep, "What about AAX ?", dynamic=True)
    reports = {r["id"]: r for r in deep.table("community_reports")}
    rated = [r.id for c in answer.contexts if c.phase == "rate" for r in c.records]
    read = [r.id for c in answer.contexts if c.phase == "map" for r in c.records]
    assert len(rated) == len(set(rated)) < len(reports) and set(read) <= set(rated)
    relevant = {reports[i]["community"] for i in rated if "AAX" in reports[i]["full_content"]}
    assert all(reports[i]["level"] == 0 or reports[i]["parent"] in relevant for i in rated)
    assert answer.phases["rate"].calls == deep.prompts(start)["rate"]
    assert list(answer.phases) == ["rate", "map", "reduce"]
    assert answer.notes[0].startswith(f"{len(rated)} reports down to C2 rated")
    assert answer.notes[0].endswith(f"{len(read)} read.")


def test_another_model_can_rate(deep: World):
    endpoint = {"base_url": deep.endpoint.base_url, "api_key_env": None}
    cheap = {"provider": "openai", "model": "cheap", "endpoints": [endpoint]}
    models = deep.settings().models["default"].model_dump(mode="json")
    start = deep.asked()
    answer = deep.open(
        models={"default": models, "cheap": cheap},
        stages={"rate": {"model": "cheap"}},
        query={"dynamic": True},
    ).ask("What about AAX ?")
    assert answer.found
    used = {(prompt_of(b), b["model"]) for b in deep.endpoint.bodies()[start:]}
    assert used == {("rate", "cheap"), ("map", "m"), ("reduce", "m")}


def test_reports_of_a_failed_rating_call_count_as_relevant(deep: World):
    first = iter([REJECTED])

    def one_fails(body: dict[str, Any]) -> Any:
        return (prompt_of(body) == "rate" and next(first, None)) or toy_model.respond(body)

    deep.endpoint.respond = one_fails
    answer = asked(deep, "What about AAX ?", dynamic=True, context_tokens=300)
    assert answer.found and answer.failed_parts == 0 and answer.phases["rate"].failed == 1
    assert any("got no rating and counted as relevant" in n and "rejected" in n for n in answer.notes)


# Points


@pytest.mark.parametrize("method", ["global", "text"])
def test_points_are_ranked_individually(deep: World, method: str):
    start = deep.asked()
    answer = asked(deep, "What about AAX ?", method=method, map_protocol="points")
    assert answer.found and answer.references and not answer.failed_parts
    assert set(deep.prompts(start)) == {"map_points", "reduce"}


def test_a_map_reply_without_json_is_requested_once_more_and_then_reported_missing(deep: World):
    def one_in_prose(body: dict[str, Any]) -> str:
        """Prose for the first context, and again for its correction."""
        text = str(body["messages"][1]["content"])
        return "They get on." if "Reports" in text and marker in text else toy_model.respond(body)

    opened = deep.open(query={"context_tokens": 300, "map_protocol": "points"})
    start = deep.asked()
    opened.ask(ALL, 2)
    contexts = [
        toy_model.recognise(b["messages"][-1]["content"])[1]["context"]
        for b in deep.endpoint.bodies()[start:]
        if prompt_of(b) == "map_points"
    ]
    marker = parse_sections(contexts[0])["Reports"][0]["content"][:60]
    deep.endpoint.respond = one_in_prose
    start = deep.asked()
    answer = opened.ask(ALL, 2)
    assert deep.prompts(start)["correct"] == 1 == answer.failed_parts and answer.found
    assert any(
        n.startswith(f"1 of {len(contexts)} parts of the reports got no usable reply") for n in answer.notes
    )


# DRIFT


def test_drift_follows_the_questions_of_its_primer(deep: World):
    start = deep.asked()
    answer = asked(deep, "What about AAX ?", method="drift", drift_depth=2, drift_breadth=2)
    prompts = deep.prompts(start)
    assert prompts["drift_primer"] == 1 == prompts["reduce"] and 1 <= prompts["drift_local"] <= 4
    assert answer.phases["drift"].calls == 2 + prompts["drift_local"] and prompts["drift_hypothesis"] == 1
    assert {"Reports", "Entities"} <= {r.section for r in answer.references}
    number = {e["id"]: e["human_readable_id"] for e in deep.table("entities")}
    entity = next(r for r in answer.references if r.section == "Entities")
    assert f"Entities ({number[entity.id]}" in answer.text
    assert answer.notes[0].startswith("Looked up: What about ")


# Invalid questions


@pytest.mark.parametrize("method", ["global", "text", "drift", "vector", "local"])
def test_a_question_that_fills_the_context_window_is_rejected_before_it_is_sent(deep: World, method: str):
    small = deep.settings().models["default"].model_copy(update={"context_window": 9_500})
    opened = deep.open(models={"default": small.model_dump(mode="json")})
    start = deep.asked()
    with pytest.raises(UsageError, match=r"The question does not fit: .* context window of m is 9,500"):
        opened.ask("Why did they write to each other? " * 400, method=method)
    assert deep.asked() == start


@pytest.mark.parametrize("method", ["global", "text", "drift"])
def test_a_question_in_another_language_is_not_changed(deep: World, method: str):
    question = "Кто писал AAX ? 谁写信给 AAX ?"
    start = deep.asked()
    answer = deep.open().ask(question, method=method)
    assert answer.found
    assert all(question in b["messages"][-1]["content"] for b in deep.endpoint.bodies()[start:])


# The offline engine


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("demo"))
    settings = Settings()
    executor = LocalExecutor(Store(root), Models.from_settings(settings))
    index(str(TOP / "demo" / "corpus"), executor, settings, Silent())
    return root


def offline(root: str, **query: Any) -> Index:
    return open_index(root, settings=Settings.model_validate({"query": query}))


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("text", {}),
        ("text", {"map_protocol": "points"}),
        ("global", {"map_protocol": "points"}),
        ("global", {"dynamic": True}),
        ("global", {"budget_tokens": 45_000}),
        ("drift", {}),
    ],
)
def test_the_offline_engine_supports_every_method(demo: str, method: str, query: dict[str, Any]):
    answer = offline(demo, **query).ask("What is known about the tidal barrage?", method=method)
    assert answer.found and answer.references and not answer.failed_parts
    assert "barrage" in answer.text.lower() and answer.cost_usd == 0
    assert max(c.n_tokens for c in answer.contexts) <= 8_000
    assert "Source " not in answer.text.replace("Sources (", "")


def test_the_offline_engine_selects_relevant_reports(demo: str):
    answer = offline(demo, dynamic=True).ask("What happened at the rowing race?")
    n_rated = sum(len(c.records) for c in answer.contexts if c.phase == "rate")
    n_read = sum(len(c.records) for c in answer.contexts if c.phase == "map")
    assert answer.found and 0 < n_read < n_rated / 2


# Command line


def test_query_options_are_part_of_the_prompts(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    start = world.asked()
    options = ["--response-type", "a list of three points", "--general-knowledge", "--map-protocol", "points"]
    result = run("query", ALL, "--root", world.root, *model_options(world), *options)
    assert result.exit_code == 0
    for body in world.endpoint.bodies()[start:]:
        said = "".join(m["content"] for m in body["messages"])
        assert said.count("a list of three points") >= 2 and "[general knowledge]" in said
    assert set(world.prompts(start)) == {"map_points", "reduce"}


def test_query_options_work_with_the_offline_engine(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    offline_again = ["--set", "models.default={provider: offline}"]
    question = "What did HEIDI do?"
    result = run("query", question, "--root", world.root, *offline_again, "--dynamic")
    assert result.exit_code == 0 and "1 report down to C0 rated in 1 call" in result.stdout
    assert re.search(r"^\[rate 1 call, [\d,]+ tokens", result.stdout, re.MULTILINE)
    result = run("query", question, "--root", world.root, *offline_again, "--no-dynamic", "--level", "auto")
    assert "C0 is the coarsest level with enough reports" in result.stdout


def test_dynamic_selection_is_rejected_for_other_methods(run: Command, world: World):
    result = run("query", ALL, "--root", world.root, "--dynamic", "--method", "text")
    assert result.exit_code == 2 and "not by text search" in result.stderr


def test_an_insufficient_budget_returns_4_and_names_a_sufficient_one(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    for more in (
        ["--level", "auto"],
        ["--level", "C0"],
        ["--method", "text"],
        ["--method", "drift"],
        ["--dynamic"],
    ):
        result = run("query", ALL, "--root", world.root, "--budget-tokens", 500, *more)
        assert result.exit_code == 4 and "query.budget_tokens is 500" in result.stderr
        assert "would take at most" in result.stderr and "No call was made for the answer" in result.stderr
    result = run("query", ALL, "--root", world.root, "--budget-tokens", 0)
    assert result.exit_code == 2 and "query.budget_tokens" in result.stderr


def test_levels_shows_the_content_of_each_level(run: Command, deep: World):
    told = json.loads(run("levels", "--root", deep.root, "--json").stdout)
    counts = deep.open().manifest.counts["levels"]
    reports = deep.table("community_reports")
    rows = {row["name"]: row for row in told["levels"]}
    assert list(rows) == [*counts, "TS"] and {n: rows[n]["n_units"] for n in counts} == counts
    assert rows["C0"]["n_tokens"] == sum(r["n_tokens"] for r in reports if r["level"] == 0)
    chunks = deep.table("text_units")
    assert rows["TS"]["n_units"] == len(chunks)
    assert rows["TS"]["n_tokens"] == sum(c["n_tokens"] for c in chunks)
    assert max(row["share"] for row in rows.values()) == 1.0
    shown = run("levels", "--root", deep.root).stdout
    assert "100.0%" in shown and f"{rows['TS']['n_tokens']:,}" in shown


def test_levels_needs_an_index_and_shows_nothing_for_an_empty_one(run: Command, world: World):
    assert run("levels", "--root", world.root).exit_code == 2
    world.write({"weather.txt": "It rained in the whole of the spring, and nobody of note was seen."})
    run(*index_command(world))
    told = json.loads(run("levels", "--root", world.root, "--json").stdout)
    assert [(r["name"], r["n_units"]) for r in told["levels"]] == [("TS", 1)]
    result = run("query", ALL, "--root", world.root, "--level", "auto")
    assert result.exit_code == 2 and "no communities" in result.stderr
