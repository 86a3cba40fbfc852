"""FG-RAG questions to finished indexes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from world import TOWN, Built, Command, World, prompt_of

from graphrag_ray.base.errors import UsageError

DEMO = Path(__file__).parents[2] / "demo" / "corpus"


def test_the_command_line_answers_with_references_and_their_sources(run: Command, tmp_path: Path):
    """With the offline engine."""
    root = tmp_path / "index"
    assert run("index", f"{DEMO}/0*", "--root", root).exit_code == 0
    question = "Why are the harbour plan and the strike disputed?"
    shown = run("query", question, "--root", root, "--method", "fgrag", "--sources").output
    folded = " ".join(shown.split())
    assert "Looked up: harbour plan; strike disputed" in folded and "fgrag search" in folded
    assert re.search(r"\[Data: (Entities|Relationships) \(\d", folded)
    places = re.findall(r"^  (\S+\.(?:txt|md)), character (\d+): “(.+?)[”…]", shown, re.MULTILINE)
    assert places
    for name, start, quote in places:
        assert (DEMO / name).read_text("utf-8")[int(start) :].startswith(quote[:20])


def test_a_question_takes_two_calls_plus_two_per_subject(world: World, built: Built):
    town = world.take(built(TOWN))
    before = town.asked()
    answer = town.open().ask("What do ALICE and GRACE share ?", method="fgrag")
    assert town.prompts(before) == {
        "query_entities": 1,
        "entity_questions": 2,
        "entity_summary": 2,
        "fgrag_answer": 1,
    }
    assert answer.found and answer.phases["fgrag"].calls == 5
    assert {r.section for r in answer.references} <= {"Entities", "Relationships"}
    turns = [b["messages"] for b in town.endpoint.bodies()[before:] if prompt_of(b) == "entity_questions"]
    assert all([m["role"] for m in turn] == ["system", "user", "assistant", "user"] for turn in turns)


def test_unsupported_options_are_rejected_before_any_call(world: World, built: Built, run: Command):
    town = world.take(built(TOWN))
    before = town.asked()
    with pytest.raises(UsageError, match=r"fgrag search does not support conditions.*--method local"):
        town.open().ask("What about ALICE ?", method="fgrag", where=["path=01.txt"])
    with pytest.raises(UsageError, match="fgrag search has no levels"):
        town.open().ask("What about ALICE ?", 0, method="fgrag")
    assert town.asked() == before


def test_an_index_without_entities_finds_nothing(world: World):
    world.write({"a.txt": "It rained, and nobody was seen."})
    world.index()
    answer = world.open().ask("What about ALICE ?", method="fgrag")
    assert not answer.found and "Nothing in the index answers this question." in answer.text
