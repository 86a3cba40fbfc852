"""What requests about a chunk say of its document."""

from __future__ import annotations

from typing import Any

import toy_model
from endpoint import Answer
from world import World, everything, prompt_of

LETTER = "LETTER TO MEMBERS\nBergen, 18 May 2017\n\nALICE met BOB. " + "The mill turned all day. " * 40
LATER = "2019-10-03.txt"
DOCUMENTS = {"letter.txt": f"{LETTER}\n\nCAROL met BOB.", LATER: "BOB met ALICE again."}
SHORT = {"chunking": {"size": 80, "overlap": 0}}


def requests(world: World, prompt: str, start: int = 0) -> list[str]:
    bodies = world.endpoint.bodies()[start:]
    return [b["messages"][-1]["content"] for b in bodies if prompt_of(b) == prompt]


def headers(world: World, start: int = 0) -> list[str]:
    found = (text.rpartition("----- passage -----")[0] for text in requests(world, "extract", start))
    return [text.rpartition("copy it.\n\n")[2] for text in found]


def test_every_chunk_is_below_the_title_date_and_opening_of_its_document(world: World):
    world.write(DOCUMENTS)
    world.index(**SHORT)
    first, *later = sorted((h for h in headers(world) if "2017" in h), key=len)
    assert first == "Date: 2017-05-18\n\n", "the first chunk begins with its title and its opening"
    assert len(later) > 1
    for header in later:
        assert header.startswith("Title: LETTER TO MEMBERS\nDate: 2017-05-18\nOpening of the document: ")
        assert "ALICE met BOB" in header
    assert [h for h in headers(world) if "2019" in h] == ["Date: 2019-10-03\n\n"]
    by_path = {
        d["path"]: (d["title"], d["creation_date"], d["date_source"]) for d in world.table("documents")
    }
    assert by_path == {
        "letter.txt": ("LETTER TO MEMBERS", "2017-05-18", "text"),
        LATER: ("2019-10-03", "2019-10-03", "file name"),
    }


def test_summaries_of_a_tree_see_the_opening_of_each_document(world: World):
    world.write(DOCUMENTS)
    world.index(hierarchies=["tree"], tree={"dimensionality_reduction": "pca"}, **SHORT)
    rows = [line for text in requests(world, "summary") for line in text.split("\n") if "mill turned" in line]
    later = [row for row in rows if "LETTER TO MEMBERS (2017-05-18); Opening of the document: " in row]
    assert later and len(rows) > len(later), "the first chunk contains the opening"


def test_merged_descriptions_come_with_their_dates_and_others_without(world: World):
    world.write(DOCUMENTS)
    world.index(descriptions={"concatenate_up_to_tokens": 0}, **SHORT)
    (merged,) = (text for text in requests(world, "describe") if "The entity: ALICE" in text)
    first, second = merged.rpartition("message:\n\n")[2].split("\n")
    assert first.startswith("[2017-05-18] ")
    assert second == "[2019-10-03] BOB met ALICE again."
    assert not any(e["description"].startswith("[") for e in world.table("entities") if e["title"] == "CAROL")


def test_a_model_writes_a_note_once_per_document(world: World):
    model: dict[str, Any] = {"input": {"document_context": "model"}, **SHORT}
    world.write(DOCUMENTS)
    world.index(**model)
    assert len(requests(world, "document_context")) == 2
    notes = {header.partition("About the document: ")[2].strip() for header in headers(world)}
    assert notes == {"A text about LETTER and MEMBERS.", "A text about BOB and ALICE."}
    asked = world.asked()
    assert not world.index(**model).committed
    world.write({"more.txt": "ERIN met FRANK."})
    world.index(**model)
    assert len(requests(world, "document_context", asked)) == 1
    assert len(headers(world, asked)) == 1


def test_a_document_without_a_note_is_a_failure_and_is_extracted_without_it(world: World):
    def withhold(body: dict[str, Any]) -> Any:
        if prompt_of(body) == "document_context" and "ALICE again" in body["messages"][-1]["content"]:
            return Answer("", finish_reason="content_filter")
        return toy_model.respond(body)

    world.endpoint.respond = withhold
    world.write(DOCUMENTS)
    done = world.index(input={"document_context": "model"}, **SHORT)
    (failure,) = world.table("failures")
    assert (done.failed, failure["stage"], failure["document"]) == (1, "context", LATER)
    assert "content filter" in failure["error"]
    assert "Date: 2019-10-03\n\n" in headers(world)


def test_an_index_of_an_earlier_version_continues_as_it_was(world: World, monkeypatch: Any):
    from graphrag_ray.indexing import index

    earlier: dict[str, Any] = {
        "input": {"document_context": "metadata"},
        "extraction": {"gleaning": "check", "entity_types": ["person"]},
        "request_rules": 1,
        **SHORT,
    }
    world.write(DOCUMENTS)
    world.index(**earlier)
    before, asked = everything(world.open()), world.asked()
    original = index.previous_settings

    def previous(*args: Any) -> Any:
        """Return stored settings that lack the later ones."""
        settings = dict(original(*args))
        settings.pop("request_rules", None)
        for section, key in (("input", "document_context"), ("extraction", "gleaning")):
            settings[section] = {k: v for k, v in settings[section].items() if k != key}
        return settings

    monkeypatch.setattr(index, "previous_settings", previous)
    assert not world.index(**SHORT).committed
    assert world.asked() == asked and everything(world.open()) == before
    assert any("input.document_context: metadata" in text for text in world.observer.notes)
    world.index(input={"document_context": "opening"}, **SHORT)
    assert all("Date:" in header for header in headers(world, asked))
