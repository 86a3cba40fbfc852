"""Documents that only their titles and dates tell apart are found by these."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from stored_index import rewrite
from world import World

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


def first(world: World, question: str, method: str) -> str:
    """The title of the document whose chunk stands first in the context."""
    (used,) = world.open().ask(question, method=method).contexts
    chunk = next(r.id for r in used.records if r.section == "Sources")
    (unit,) = [u for u in world.table("text_units") if u["id"] == chunk]
    (document,) = [d for d in world.table("documents") if d["id"] == unit["document_id"]]
    return str(document["title"])


@pytest.mark.parametrize("method", ["hybrid", "vector", "local"])
def test_a_month_is_found_that_stands_only_in_a_title(world: World, method: str):
    minutes(world)
    world.index(models=OFFLINE)
    for month in ("September", "March"):
        assert first(world, f"What did the Harbour Board hear in {month}?", method) == f"Minutes of {month}"


@pytest.mark.parametrize("method", ["hybrid", "vector"])
def test_a_month_is_found_that_stands_only_in_a_date(world: World, method: str):
    minutes(world, [row | {"title": f"Minutes {n * 7 % 12}"} for n, row in enumerate(ROWS)])
    world.index(models=OFFLINE)
    assert first(world, "What did the Harbour Board hear in September 2023?", method) == "Minutes 8"


def test_a_file_is_found_by_a_part_of_its_name(world: World):
    quarters = [f"TranscriptFY{year}Q{quarter}" for year in (23, 24) for quarter in (1, 2, 3, 4)]
    world.write({f"{name}.txt": MINUTES for name in quarters})
    world.index(models=OFFLINE)
    for asked in ("TranscriptFY24Q1", "FY24Q1", "FY24 Q1"):
        assert first(world, f"What about the dues in {asked}?", "hybrid") == "TranscriptFY24Q1"


# what a model and people are shown


@pytest.mark.parametrize("method", ["hybrid", "vector", "local", "text"])
def test_a_model_reads_of_which_document_each_passage_is(world: World, method: str):
    minutes(world, [row | {"text": "ALICE met BOB on the harbour board."} for row in ROWS])
    world.index()
    asked = world.asked()
    world.open().ask("What did ALICE do?", method=method)
    shown = [b["messages"][-1]["content"] for b in world.endpoint.bodies()[asked:]]
    assert any("Minutes of September (2023-09-14)" in text for text in shown)


@pytest.mark.parametrize("method", ["hybrid", "text"])
def test_a_title_is_named_beside_a_quotation_and_never_quoted(world: World, method: str):
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
    names = [cited.name for cited in opened.cited(answer.references) if cited.section == "Sources"]
    assert "Minutes of September (2023-09-14): minutes.jsonl, row 9, characters 0–" in "".join(names)


# an index that was made before


def before_titles(world: World) -> None:
    """An index whose settings know nothing of titles, as those of earlier versions."""
    minutes(world)
    world.index(embeddings={"with_titles": False}, **world.embedding)
    rewrite(world.root, lambda settings: settings["embeddings"].pop("with_titles"))


def embedded(world: World) -> list[str]:
    return [text for body in world.endpoint.bodies("/embeddings") for text in body["input"]]


def test_an_index_keeps_its_embeddings_until_others_are_asked_for_and_says_so(world: World):
    before_titles(world)
    asked, n_embedded = world.asked(), len(embedded(world))
    world.index(**world.embedding)
    assert "--set embeddings.with_titles=true" in "".join(world.observer.notes)
    assert world.asked() == asked and len(embedded(world)) == n_embedded
    assert not world.index(**world.embedding).committed
    assert "with_titles" not in "".join(world.observer.notes), "once is enough"

    world.index(embeddings={"with_titles": True}, **world.embedding)
    new = embedded(world)[n_embedded:]
    assert len(new) == 12 and all(MINUTES in text and text.startswith("Minutes of ") for text in new)
    assert world.asked() == asked, "no chunk is another question to a model that extracts"
    assert not world.index(**world.embedding).committed


def test_a_title_that_its_text_begins_with_is_not_paid_for_again(world: World):
    rows = [{"text": f"Passage {name}\nHe was {name}.", "title": f"Passage {name}"} for name in "AB"]
    minutes(world, rows)
    world.index(embeddings={"with_titles": False}, **world.embedding)
    n_embedded = len(embedded(world))
    world.index(embeddings={"with_titles": True}, **world.embedding)
    assert len(embedded(world)) == n_embedded


def test_a_title_that_changes_is_found_and_nothing_else_is_paid_for(world: World):
    minutes(world)
    world.index(**world.embedding)
    asked, n_embedded = world.asked(), len(embedded(world))
    minutes(world, [ROWS[0] | {"title": "Protocol of Epiphany"}, *ROWS[1:]])
    world.index(**world.embedding)
    (text,) = embedded(world)[n_embedded:]
    assert text.startswith("Protocol of Epiphany\n2023-01-14") and world.asked() == asked
    assert first(world, "EPIPHANY", "hybrid") == "Protocol of Epiphany"
