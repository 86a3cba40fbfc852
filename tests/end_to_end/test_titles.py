"""Documents that differ only in title and date are found by these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from endpoint import Respond
from toy_model import answer_extract, recognise
from world import World, prompt_of

OFFLINE = {"default": {"provider": "offline"}}
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
MINUTES = (
    "Mayor Philippa Thackwell opened the meeting of the Harbour Board in Varnmouth. The Harbour Board heard "
    "Fergus Maddern on the dues of the harbour. Philippa Thackwell thanked him and closed the meeting."
)
ROWS = [
    {"text": MINUTES, "title": f"Minutes of {month}", "date": f"2023-{n:02}-14"}
    for n, month in enumerate(MONTHS, 1)
]


def minutes(world: World, rows: list[dict[str, Any]] = ROWS) -> None:
    world.write({"minutes.jsonl": "\n".join(map(json.dumps, rows))})


def titles_of(world: World, chunks: Iterable[str]) -> list[str]:
    """The titles of the documents that these chunks belong to."""
    title = {d["id"]: str(d["title"]) for d in world.table("documents")}
    of = {u["id"]: title[u["document_id"]] for u in world.table("text_units")}
    return [of[chunk] for chunk in chunks]


def sources_of(world: World, question: str, method: str) -> list[str]:
    """The titles of the documents whose chunks are in the context, in order."""
    used, *_ = world.open().ask(question, method=method).contexts
    return titles_of(world, [r.id for r in used.records if r.section == "Sources"])


def first(world: World, question: str, method: str) -> str:
    return sources_of(world, question, method)[0]


@pytest.mark.parametrize("method", ["hybrid", "vector", "local"])
def test_a_month_that_occurs_only_in_a_title_is_found(world: World, method: str):
    minutes(world)
    world.index(models=OFFLINE)
    for month in ("September", "March"):
        assert first(world, f"What did the Harbour Board hear in {month}?", method) == f"Minutes of {month}"


@pytest.mark.parametrize("method", ["hybrid", "vector"])
def test_a_month_that_occurs_only_in_a_date_is_found(world: World, method: str):
    minutes(world, [row | {"title": f"Minutes {n * 7 % 12}"} for n, row in enumerate(ROWS)])
    world.index(models=OFFLINE)
    assert first(world, "What did the Harbour Board hear in September 2023?", method) == "Minutes 8"


CHANGED = "How did the dues of the harbour change from March to September?"


def test_vector_search_alone_ranks_both_months_first(world: World):
    minutes(world)
    world.index(models=OFFLINE)
    assert {"Minutes of March", "Minutes of September"} <= set(sources_of(world, CHANGED, "vector")[:3])


@pytest.mark.parametrize("method", ["hybrid", "local", "auto"])
def test_a_change_between_two_months_is_answered_from_their_minutes(world: World, method: str):
    minutes(world)
    world.index(models=OFFLINE)
    wanted = ["Minutes of March", "Minutes of September"]
    assert sorted(sources_of(world, CHANGED, method)[:2]) == wanted
    answer = world.open().ask(CHANGED, method=method)
    assert not answer.found and {passage.document for passage in answer.passages[:2]} == {
        "minutes.jsonl, row 3",
        "minutes.jsonl, row 9",
    }


@pytest.mark.parametrize("method", ["global", "drift", "text"])
def test_method_text_shows_the_date_of_every_passage(world: World, method: str):
    minutes(world, [row | {"text": f"ALICE set the dues for BOB at {n}."} for n, row in enumerate(ROWS)])
    world.endpoint.respond = remembering_all(world.endpoint.respond)
    world.index()
    asked, opened = world.asked(), world.open()
    answer = opened.ask("What did ALICE change from March to September?", method=method)
    shown = "".join(b["messages"][-1]["content"] for b in world.endpoint.bodies()[asked:])
    for n, month in ((2, "March"), (8, "September")):
        assert re.search(rf"Minutes of {month}\W[^;\n]*ALICE set the dues for BOB at {n}\.", shown)
    under = {c["title"] for s in opened.sources(answer.references, answer) for c in s.chunks}
    assert {"Minutes of March", "Minutes of September"} <= under


def remembering_all(respond: Respond) -> Respond:
    """A model that names the document of everything it extracts, and keeps all descriptions in a summary."""

    def remembers(body: dict[str, Any]) -> Any:
        if prompt_of(body) not in ("extract", "describe"):
            return respond(body)
        name, told = recognise(body["messages"][-1]["content"])
        if name == "extract":
            above = " ".join(told["header"].split())
            return answer_extract({"text": f"{above} {told['text']}"})
        return "; ".join(told["descriptions"].split("\n"))

    return remembers


def test_a_file_is_found_by_a_part_of_its_name(world: World):
    quarters = [f"TranscriptFY{year}Q{quarter}" for year in (23, 24) for quarter in (1, 2, 3, 4)]
    world.write({f"{name}.txt": MINUTES for name in quarters})
    world.index(models=OFFLINE)
    for asked in ("TranscriptFY24Q1", "FY24Q1", "FY24 Q1"):
        assert first(world, f"What about the dues in {asked}?", "hybrid") == "TranscriptFY24Q1"


# Contexts and output


@pytest.mark.parametrize("method", ["hybrid", "vector", "local", "text"])
def test_contexts_name_the_document_of_every_passage(world: World, method: str):
    minutes(world, [row | {"text": "ALICE met BOB on the harbour board."} for row in ROWS])
    world.index()
    asked = world.asked()
    world.open().ask("What did ALICE do?", method=method)
    shown = [b["messages"][-1]["content"] for b in world.endpoint.bodies()[asked:]]
    assert any("Minutes of September (2023-09-14)" in text for text in shown)


@pytest.mark.parametrize("method", ["hybrid", "text"])
def test_titles_are_shown_with_quotations_and_never_quoted(world: World, method: str):
    minutes(world)
    world.index(models=OFFLINE)
    opened = world.open()
    answer = opened.ask("What did the Harbour Board hear in September?", method=method)
    assert "**Minutes of September (2023-09-14)**: “" in answer.text
    texts = {row["title"]: row["text"] for row in ROWS}
    evidence = [e for s in opened.sources(answer.references, answer) for e in s.evidence]
    assert evidence and all(texts[e["title"]][e["start"] : e["end"]] == e["quote"] for e in evidence)
    quoted = re.findall("“(.*?)”", answer.text)
    assert quoted and all(quote in MINUTES for quote in quoted)
    names = [cited.name for cited in opened.cited_records(answer.references) if cited.section == "Sources"]
    assert "Minutes of September (2023-09-14): minutes.jsonl, row 9, characters 0–" in "".join(names)


def test_chosen_metadata_is_found_and_shown_like_titles(world: World):
    speakers = ["Thackwell", "Ogilvie", "Penhaligon", "Maddern"]
    minutes(world, [{"text": "ALICE met BOB.", "chair": {"name": name}} for name in speakers])
    by_words = {"hybrid_vector_weight": 0.0}
    world.index(chunking={"prepend_metadata": ["chair.name", "auhtor"]}, query=by_words, **world.embedding)
    told = "names auhtor, but none of the first 4 documents has these columns. Their columns: chair"
    assert told in "".join(world.observer.notes)
    above = "chair.name: Ogilvie\n\nALICE met BOB."
    assert above in embedded(world)
    extracted = [b["messages"][-1]["content"] for b in world.endpoint.bodies()]
    assert any("\n\nchair.name: Ogilvie\n\n" in text for text in extracted)

    # Also with settings without columns, because the index has them.
    opened, asked = world.open(query=by_words, **world.embedding), world.asked()
    answer = opened.ask("What did Ogilvie hear of ALICE?", method="hybrid")
    (used,) = answer.contexts
    found = next(r.id for r in used.records if r.section == "Sources")
    (unit,) = [u for u in world.table("text_units") if u["id"] == found]
    assert unit["header"] == "chair.name: Ogilvie\n\n"
    (body,) = world.endpoint.bodies()[asked:]
    assert "1,chair.name: Ogilvie,ALICE met BOB." in body["messages"][-1]["content"]
    cited = [c.name for c in opened.cited_records(answer.references) if c.section == "Sources"]
    told = "chair.name: Ogilvie: minutes.jsonl, row 2, characters 0–14"
    assert told in cited
    assert told in [s.record["name"] for s in opened.sources(answer.references, answer)]


def embedded(world: World) -> list[str]:
    return [text for body in world.endpoint.bodies("/embeddings") for text in body["input"]]


def test_extraction_with_titles_is_announced_and_done_on_request(world: World):
    minutes(world)
    world.index(chunking={"prepend_metadata": []}, embeddings={"include_titles": False}, **world.embedding)
    asked = world.asked()
    world.index(chunking={"prepend_metadata": "auto"}, **world.embedding)
    assert "none changed. Expected work: at most 12 chunks to extract" in "".join(world.observer.notes)
    above = "\n\nTitle: Minutes of May\nDate: 2023-05-14\n\n"
    assert any(above in b["messages"][-1]["content"] for b in world.endpoint.bodies()[asked:])


def test_a_title_repeated_by_its_text_is_not_paid_twice(world: World):
    rows = [{"text": f"Passage {name}\nHe was {name}.", "title": f"Passage {name}"} for name in "AB"]
    minutes(world, rows)
    world.index(embeddings={"include_titles": False}, **world.embedding)
    n_embedded = len(embedded(world))
    world.index(embeddings={"include_titles": True}, **world.embedding)
    assert len(embedded(world)) == n_embedded


@pytest.mark.parametrize(("prepend", "chunks"), [([], 0), ("auto", 1)])
def test_a_changed_title_is_found_and_only_its_chunks_are_requested(
    world: World, prepend: list[str] | str, chunks: int
):
    minutes(world)
    world.index(chunking={"prepend_metadata": prepend}, **world.embedding)
    asked, n_embedded = world.asked(), len(embedded(world))
    minutes(world, [ROWS[0] | {"title": "Protocol of Epiphany"}, *ROWS[1:]])
    world.index(**world.embedding)
    assert f"1 changed. Expected work: at most {chunks} chunk" in "".join(world.observer.notes)
    (text,) = embedded(world)[n_embedded:]
    assert text.startswith("Protocol of Epiphany\n2023-01-14") and world.asked() == asked + 2 * chunks
    assert first(world, "EPIPHANY", "hybrid") == "Protocol of Epiphany"
