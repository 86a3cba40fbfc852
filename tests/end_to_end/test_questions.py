"""Questions to a finished index are answered from the reports of one level, cited, and leave no trace."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest
import toy_model
from endpoint import WRONG_KEY, Answer, Status
from world import DEEPER, REJECTED, World, prompt_of, python

from graphrag_ray.base.context_records import parse_sections
from graphrag_ray.base.errors import LevelNotFound, ModelUnavailable, UsageError
from graphrag_ray.query.methods.answer import UNREADABLE
from graphrag_ray.query.model_calls import FIRST_ATTEMPTS


def shown_reports(world: World, start: int) -> list[str]:
    """Titles of the reports that map calls have read from request `start` on."""
    contexts = [
        toy_model.recognise(b["messages"][-1]["content"])[1]["context"]
        for b in world.endpoint.bodies()[start:]
        if prompt_of(b) == "map"
    ]
    return [r["title"] for c in contexts for r in parse_sections(c)["Reports"]]


def test_questions_are_answered_from_relevant_reports(town: World):
    opened = town.open()
    about_dave, about_heidi = opened.ask("What did DAVE do?"), opened.ask("What about HEIDI ?")
    titles = {r["id"]: r["title"] for r in town.table("community_reports")}
    for answer, name in ((about_dave, "DAVE"), (about_heidi, "HEIDI")):
        assert answer.found and answer.references
        assert all(name in titles[r.id] for r in answer.references)
    assert about_dave.text != about_heidi.text
    assert set(about_dave.references).isdisjoint(about_heidi.references)


def test_a_question_about_everything_cites_all_reports_of_its_level(town: World):
    answer = town.open().ask("What are the THEMES?", level=0)
    top = {r["id"] for r in town.table("community_reports") if r["level"] == 0}
    assert {r.id for r in answer.references} == top and len(top) > 1


def test_numbers_in_an_answer_are_short_ids_of_cited_records(town: World):
    answer = town.open().ask("What are the THEMES?", level=0)
    number = {r["id"]: r["human_readable_id"] for r in town.table("community_reports")}
    for reference in answer.references:
        assert f"[Data: Reports ({number[reference.id]})]" in answer.text
    assert [c.number for c in town.open().cited_records(answer.references)] == [
        number[r.id] for r in answer.references
    ]


def test_an_unanswerable_question_needs_no_reduce_call(town: World):
    asked = town.asked()
    answer = town.open().ask("Who is NOBODY ?")
    assert not answer.found and answer.references == ()
    assert set(town.prompts(asked)) == {"map"}


@pytest.mark.parametrize("written", ["C1", "c1", "1", 1])
def test_a_level_has_its_communities_and_the_leaves_above_it(deep: World, written: str | int):
    communities = deep.table("communities")
    parents = {c["parent"] for c in communities}
    wanted = {
        c["community"]
        for c in communities
        if c["level"] == 1 or (c["level"] < 1 and c["community"] not in parents)
    }
    asked = deep.asked()
    answer = deep.open().ask("What are the THEMES?", level=written)
    titles = [r["title"] for r in deep.table("community_reports") if r["community"] in wanted]
    assert sorted(shown_reports(deep, asked)) == sorted(titles) and answer.level == 1


def test_every_level_can_be_queried_and_no_further_one(deep: World):
    opened = deep.open()
    n_levels = len(opened.manifest.counts["levels"])
    assert n_levels >= 3
    for k in range(n_levels):
        assert opened.ask("What are the THEMES?", level=k).found
    with pytest.raises(LevelNotFound, match=f"There is no level 'C{n_levels}'.*C0, .*C{n_levels - 1}$"):
        opened.ask("What are the THEMES?", level=f"C{n_levels}")


def test_the_default_level_is_the_coarsest_that_fills_a_context(deep: World):
    reports = deep.table("community_reports")
    top = sum(r["n_tokens"] for r in reports if r["level"] == 0)
    assert deep.open(query={"context_tokens": top - 1}).ask("What are the THEMES?").level == 0
    assert deep.open(query={"context_tokens": top + 1}).ask("What are the THEMES?").level > 0


def test_map_contexts_keep_to_the_budget_and_read_each_report_once(deep: World):
    asked = deep.asked()
    answer = deep.open(query={"context_tokens": 300}).ask("What are the THEMES?", level=2)
    maps = [c for c in answer.contexts if c.phase == "map"]
    assert len(maps) > 2 and max(c.n_tokens for c in answer.contexts) <= 300
    shown = shown_reports(deep, asked)
    assert len(shown) == len(set(shown)) == sum(len(c.records) for c in maps)


def test_sources_of_a_report_on_reports_lead_to_chunks(deep: World):
    """A top report cites the reports that it was written from, and these cite entities."""
    reports = {r["id"]: r for r in deep.table("community_reports")}
    titles = {e["id"]: e["title"] for e in deep.table("entities")}
    documents = {d["path"]: d["text"] for d in deep.table("documents")}

    def cited(report: str, section: str) -> list[str]:
        return [c["id"] for c in reports[report]["references"] if c["section"] == section]

    opened = deep.open()
    answer = opened.ask("What are the THEMES?", level=0)
    below = {r.id: cited(r.id, "Reports") for r in answer.references}
    assert any(below.values()), "some report was written from others"
    for source in opened.sources(answer.references):
        inside = [e for id_ in below[source.record["id"]] for e in cited(id_, "Entities")]
        assert {titles[e] for e in inside} <= {e["title"] for e in source.entities}
        assert source.chunks
        for chunk in source.chunks:
            assert documents[chunk["document"]][chunk["start"] : chunk["end"]] == chunk["text"]
            at = chunk["quote_start"] - chunk["start"]
            assert chunk["quote"] and chunk["text"][at:].startswith(chunk["quote"])


def test_sources_have_only_evidence_of_the_report(town: World):
    opened = town.open()
    (source,) = opened.sources(opened.ask("What about HEIDI ?").references)
    assert {"HEIDI", "IVAN"} <= {e["title"] for e in source.entities}
    assert "brewery.txt" in {c["document"] for c in source.chunks}
    assert "harbour.txt" not in {c["document"] for c in source.chunks}


def test_a_question_writes_nothing(town: World):
    def listing() -> dict[str, bytes]:
        return {i.path: town.store.read(i.path) for i in town.store.list()}

    before = listing()
    opened = town.open()
    opened.ask("What are the THEMES?")
    opened.sources(opened.ask("What did DAVE do?").references)
    town.endpoint.respond = lambda body: WRONG_KEY
    with pytest.raises(ModelUnavailable):
        opened.ask("What did ERIN do?")
    assert listing() == before


def test_answers_do_not_depend_on_the_order_of_replies(deep: World):
    opened = deep.open(query={"context_tokens": 300})
    calm = opened.ask("What are the THEMES?", level=2)
    delays = iter([0.15, 0.0, 0.1, 0.05] * 50)
    deep.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=next(delays))
    shaken = opened.ask("What are the THEMES?", level=2)
    assert (shaken.text, shaken.references, shaken.contexts) == (calm.text, calm.references, calm.contexts)


def test_questions_can_be_asked_concurrently(town: World):
    async def all_of(names: list[str]) -> list[str]:
        opened = town.open()
        answers = await asyncio.gather(*(opened.ask_async(f"What about {n} ?", 0) for n in names))
        return [a.text for a in answers]

    names = ["ALICE", "HEIDI", "ERIN", "JUDY", "IVAN"]
    assert asyncio.run(all_of(names)) == [town.open().ask(f"What about {n} ?", 0).text for n in names]


def test_a_commit_does_not_affect_an_open_index(town: World):
    opened = town.open()
    before = opened.ask("What are the THEMES?", 0)
    town.write({"zoo.txt": "ZOE feeds YURI."})
    town.index(communities={"pack_components_below": 1})
    again = opened.ask("What are the THEMES?", 0)
    assert (again.text, again.references) == (before.text, before.references)
    assert "YURI" in town.open().ask("What are the THEMES?", 0).text


def test_a_failed_report_is_noted_and_replaced_by_those_below_it(deep: World):
    communities = {c["community"]: c for c in deep.table("communities")}
    lost = next(c for c in communities.values() if c["level"] == 0 and c["children"])
    title = next(r["title"] for r in deep.table("community_reports") if r["community"] == lost["community"])

    def without_it(body: dict):
        text = toy_model.respond(body)
        return REJECTED if prompt_of(body) == "report" and f'"title": "{title}"' in text else text

    deep.forget()
    deep.endpoint.respond = without_it
    assert deep.index(**DEEPER).failed == 1
    asked = deep.asked()
    answer = deep.open().ask("What are the THEMES?", level=0)
    assert any("reports of their sub-communities represent them" in note for note in answer.notes)
    by_number = {r["community"]: r["title"] for r in deep.table("community_reports")}
    assert lost["community"] not in by_number
    assert {by_number[k] for k in lost["children"]} <= set(shown_reports(deep, asked))


def test_a_question_does_not_start_ray(town: World):
    script = (
        "import sys; from graphrag_ray import open_index\n"
        f"print(open_index({str(town.root)!r}).ask('What are the THEMES?').found)\n"
        "print([m for m in ('ray', 'igraph', 'torch') if m in sys.modules])"
    )
    done = python(script)
    assert done.stdout.split("\n")[:2] == ["True", "[]"], done.stderr
    assert done.stderr == ""


# Failing endpoints


def test_an_unreachable_endpoint_is_named_with_the_error(town: World):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    dead = {"provider": "openai", "model": "m", "endpoints": [{"base_url": address, "api_key_env": None}]}
    answer = town.open(models={"default": dead}).ask("What did DAVE do?")
    assert not answer.found and answer.failed_parts == 1
    assert answer.text.startswith(UNREADABLE) and address in answer.text
    assert f"attempt {FIRST_ATTEMPTS} of {FIRST_ATTEMPTS}" in answer.text


def test_failing_calls_are_retried_up_to_max_attempts(town: World):
    asked = town.asked()
    busy = Status(503, headers={"Retry-After": "0"})
    faults = iter([busy] * FIRST_ATTEMPTS)
    town.endpoint.respond = lambda body: next(faults, None) or toy_model.respond(body)
    answer = town.open().ask("What did DAVE do?")
    assert answer.found and not answer.failed_parts
    assert town.asked() - asked == FIRST_ATTEMPTS + 2  # The successful map call, and reduce.


def test_contexts_without_a_reply_are_reported_with_the_most_frequent_error(deep: World):
    first = iter([REJECTED])
    deep.endpoint.respond = lambda body: next(first, None) or toy_model.respond(body)
    answer = deep.open(query={"context_tokens": 300}).ask("What are the THEMES?", level=2)
    assert answer.found and answer.failed_parts == 1
    assert any("your request was rejected" in note for note in answer.notes)


# Which model answered


def test_an_answer_notes_the_part_of_the_offline_engine(town: World):
    by_model, offline = town.open(), town.open(models={"default": {"provider": "offline"}})
    question = "What did DAVE do?"
    assert not any("offline" in note for note in by_model.ask(question).notes)
    notes = offline.ask(question).notes
    assert "The offline engine answered the question, without a language model." in notes
    built = replace(by_model.manifest, notes={"offline": "unchanged"})
    notes = replace(by_model, manifest=built).ask(question).notes
    assert "The offline engine built the index, without a language model." in notes
    notes = replace(offline, manifest=built).ask(question).notes
    assert any(n.startswith("The offline engine built the index and answered the question") for n in notes)


def test_a_question_can_be_asked_inside_a_running_event_loop(town: World):
    async def notebook() -> str:
        return town.open().ask("What did DAVE do?").text

    assert asyncio.run(notebook()) == town.open().ask("What did DAVE do?").text


# The open index


def test_the_repr_of_an_index_is_short(town: World):
    assert repr(town.open()) == f"<Index {town.root}, snapshot 1>"


def test_an_unknown_table_or_column_lists_the_known_ones(town: World):
    with pytest.raises(UsageError, match=r"Unknown table 'nope'. Choose from: .*documents, .*communities"):
        town.open().table("nope")
    with pytest.raises(UsageError, match=r"entities has no column 'nope'. Choose from: id, .*title"):
        town.open().table("entities", ["id", "nope"])
