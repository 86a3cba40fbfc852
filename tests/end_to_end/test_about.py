"""The corpus description is requested once, is part of report and answer prompts, and is kept."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import toy_model
from endpoint import BROKEN, Status
from world import DEEP, REJECTED, TOWN, Command, World, model_options, prompt_of

from graphrag_ray.base.errors import TooManyFailures
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.indexing.purge import clean_up
from graphrag_ray.store.gc import GcOptions

ONE_TRY = {"journal_flush_s": 0.1, "max_attempts": 1}
ABOUT = "What the corpus is about: "


@pytest.fixture
def small(world: World) -> World:
    """Documents without an index."""
    world.write(TOWN)
    world.changes = DEEP
    return world


def said(world: World, start: int = 0) -> Counter[tuple[str, str]]:
    """Prompts with the corpus description they contain."""
    found: Counter[tuple[str, str]] = Counter()
    for body in world.endpoint.bodies()[start:]:
        text = body["messages"][-1]["content"]
        line = next((part for part in text.split("\n") if part.startswith(ABOUT)), "")
        found[prompt_of(body), line.removeprefix(ABOUT)] += 1
    return found


def failing(prompt: str, fault: Status):
    def respond(body: dict):
        return fault if prompt_of(body) == prompt else toy_model.respond(body)

    return respond


def stages(estimate: str) -> set[str]:
    return {s["stage"] for s in json.loads(estimate)["stages"]}


def kept(world: World) -> str | None:
    about: str | None = world.open().manifest.settings["corpus"]["description"]
    return about


def test_every_report_prompt_contains_the_description(small: World):
    done = small.index()
    text = kept(small)
    assert text is not None and text.startswith("Letters between people")
    assert said(small)["about", ""] == 1
    assert said(small)["report", text] == done.manifest.counts["reports"]
    assert done.manifest.usage["stages"] and "about" in {s["stage"] for s in done.manifest.usage["stages"]}
    (asked,) = [b for b in small.endpoint.bodies() if prompt_of(b) == "about"]
    assert "- council\n" in asked["messages"][-1]["content"]


def test_question_prompts_contain_the_description(small: World):
    small.index()
    text, asked = kept(small), small.asked()
    small.open(query={"dynamic": True}).ask("What are the THEMES?")
    assert text and said(small, asked)["rate", text] > 0


def test_an_update_does_not_request_the_description_again(small: World):
    small.index()
    text, asked = kept(small), small.asked()
    small.write({"zoo.txt": "ZOE feeds YURI. YURI feeds ZOE."})
    small.index()
    news = said(small, asked)
    assert kept(small) == text and news["about", ""] == 0
    assert set(news) <= {("extract", ""), ("glean_missing", ""), ("describe", ""), ("report", str(text))}
    assert sum(news[key] for key in news if key[0] == "report") < len(small.table("community_reports"))
    assert not small.index().committed


def test_the_description_survives_a_trimmed_journal(small: World):
    small.index()
    clean_up(small.store, GcOptions(keep=1, grace_s=0.0), journal=True, delete=True)
    asked = small.asked()
    assert not small.index().committed and small.asked() == asked


def test_settings_can_provide_the_description(small: World):
    small.index(corpus={"description": "A  harbour\ntown."})
    assert said(small)["about", ""] == 0 and ("report", "A harbour town.") in said(small)
    asked = small.asked()
    small.index()
    assert small.asked() == asked and kept(small) == "A harbour town."
    small.index(corpus={"description": "A town of letters."})
    assert {name for name, _ in said(small, asked)} == {"report"} and kept(small) == "A town of letters."


def test_an_empty_description_is_not_requested(small: World):
    small.index(corpus={"description": ""})
    assert said(small)["about", ""] == 0 and said(small)["report", ""] > 0 and kept(small) == ""


def test_no_description_is_requested_if_the_report_prompt_has_no_placeholder(small: World):
    prompts = {n: p.source for n, p in load_prompts().items() if n == "report"}
    old = {"report": prompts["report"].replace("{about}\n", "")}
    small.index(prompts=old)
    assert kept(small) is None and "about" not in small.prompts()
    asked = small.asked()
    assert not small.index().committed and small.asked() == asked
    small.index(corpus={"description": "A harbour town."})
    assert small.asked() == asked, "questions alone are told"


@pytest.mark.parametrize("fault", [REJECTED, BROKEN], ids=["permanent", "transient"])
def test_a_failed_description_is_reported_and_reports_are_written_without_it(small: World, fault: Status):
    small.endpoint.respond = failing("about", fault)
    done = small.index(run=ONE_TRY)
    assert (
        done.committed and done.failed == 1 and said(small)["report", ""] == done.manifest.counts["reports"]
    )
    assert [f["stage"] for f in small.table("failures")] == ["about"]
    assert any("corpus.description" in note for note in small.observer.notes)
    small.endpoint.respond = toy_model.respond
    asked = small.asked()
    assert not small.index().committed and small.asked() == asked, "all reports would be requested again"


def test_resuming_after_a_failed_description_pays_for_no_report_twice(small: World):
    written = 0

    def all_but_one(body: dict):
        nonlocal written
        written += prompt_of(body) == "report"
        return BROKEN if prompt_of(body) == "about" or written == 2 else toy_model.respond(body)

    small.endpoint.respond = all_but_one
    with pytest.raises(TooManyFailures):
        small.index(run=ONE_TRY | {"max_failed_fraction": 0})
    paid = said(small)["report", ""] - 1
    assert paid > 0
    small.endpoint.respond = toy_model.respond
    asked = small.asked()
    done = small.index()
    again = Counter({key: n for key, n in said(small, asked).items() if key[0] in ("about", "report")})
    assert again == {("report", ""): done.manifest.counts["reports"] - paid}


def test_a_resumed_run_keeps_the_description(small: World):
    small.endpoint.respond = failing("report", BROKEN)
    with pytest.raises(TooManyFailures):
        small.index(run=ONE_TRY)
    small.endpoint.respond = toy_model.respond
    asked = small.asked()
    small.write({"zoo.txt": "ZOE feeds YURI."})
    small.index()
    assert said(small, asked)["about", ""] == 0 and kept(small)


def test_inspect_shows_the_description_and_estimate_counts_it(run: Command, world: World):
    world.write(TOWN)
    options = ["--root", world.root, *model_options(world)]
    estimate = ["estimate", world.input, *options, "--json"]
    assert "about" in stages(run(*estimate).stdout)
    assert run("index", world.input, *options).exit_code == 0
    assert "Letters between people" in run("inspect", "--root", world.root).stdout
    assert "about" not in stages(run(*estimate).stdout)
