"""Passages that may help, for answers that found nothing."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from driving import Snapshot
from hostile_text import texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import Reference
from graphrag_ray.query.methods.answer import Answer, ContextUsed, passages_markdown
from graphrag_ray.query.methods.helpful_passages import MAX_PASSAGES, MAX_UNMATCHED, with_passages
from graphrag_ray.query.methods.method import Dialogues, Method, Notice, Question, SearchEnv

TEXTS = {
    "a": "It rained. The mill of Denholm burned. Nobody was there.",
    "b": "Ada Brigg owns the bakery. She is seventy.",
    "c": "The ferry sails at noon.",
}


def snapshot(held: dict[str, str] = TEXTS, found: tuple[str, ...] = ("a", "b", "c")) -> Snapshot:
    return Snapshot(
        {
            "text_units": [
                {"id": id_, "human_readable_id": n, "text": text, "document_id": f"d{id_}", "start": 100 * n}
                for n, (id_, text) in enumerate(held.items())
            ],
            "documents": [
                {"id": f"d{id_}", "path": f"{id_}.txt", "title": id_, "text_unit_ids": [id_]} for id_ in held
            ],
        },
        lambda search: [id_ for id_ in found if search.kind == "text_unit"],
    )


def asked(
    question: str, snap: Snapshot, found: bool = False, where: tuple[str, ...] = (), *read: str
) -> Answer:
    def search(question: Question, env: SearchEnv) -> Generator[Any, Any, Answer]:
        yield Notice("Reading.")
        contexts = (ContextUsed("answer", tuple(Reference("Sources", id_) for id_ in read), 9),)
        return Answer(question.text, "Nothing.", "local", found=found, contexts=contexts)

    answer: Answer = snap.run(with_passages(search)(Question(question, where=where), snap.given()))
    return answer


def test_passages_have_document_position_and_matching_words():
    first, *_ = asked("Who owns the mill in Denholm?", snapshot()).passages
    assert (first.place, first.words, first.number) == ("a.txt, characters 0–56", ("mill", "Denholm"), 0)
    assert first.text == TEXTS["a"]


def test_no_model_is_called_and_notices_are_not_repeated():
    snap = snapshot()
    asked("Who owns the mill?", snap, where=("date>=2020",))
    assert not any(isinstance(need, Dialogues) for need in snap.needs)
    assert sum(isinstance(need, Notice) for need in snap.needs) == 1


def test_answer_that_found_something_gets_no_passages():
    assert asked("Who owns the mill?", snapshot(), found=True).passages == ()


def test_conditions_restrict_the_passages():
    passages = asked("Who owns the mill?", snapshot(), where=("path=b.txt",)).passages
    assert [p.document for p in passages] == ["b.txt"]
    assert asked("Who owns the mill?", snapshot(), where=("path=gone.txt",)).passages == ()


def test_passages_that_the_method_read_count():
    snap = snapshot(found=())
    assert asked("Who owns the mill?", snap).passages == ()
    assert [p.document for p in asked("Who owns the mill?", snap, False, (), "a").passages] == ["a.txt"]


def test_later_passages_have_the_words_that_earlier_ones_lack():
    held = {**TEXTS, "d": "The mill was old.", "e": "The bakery was red."}
    passages = asked("What of the mill and the bakery?", snapshot(held, tuple("adbec"))).passages
    assert passages[1].document == "b.txt"


def test_without_a_matching_word_only_the_nearest_are_shown():
    passages = asked("Where is Mongolia?", snapshot()).passages
    assert [(p.document, p.words) for p in passages] == [("a.txt", ()), ("b.txt", ())]
    assert len(passages) == MAX_UNMATCHED


def test_markdown_shows_no_links_or_images_of_the_corpus():
    passages = asked(
        "Who owns the mill?", snapshot({"a": "The mill ![x](https://a.test/x.png) <b>burned</b>."})
    )
    shown = passages_markdown(passages.passages)
    assert "Passages that may help" in shown and r"\[x\]" in shown and r"\://" in shown
    assert passages_markdown(()) == ""
    assert passages._repr_markdown_() == "Nothing." + shown


@given(texts(), st.lists(texts(), min_size=1, max_size=4))
def test_any_text_has_passages_at_their_position(question: str, contents: list[str]):
    held = dict(zip("abcd", contents, strict=False))
    passages = asked(question or "?", snapshot(held, tuple(held))).passages
    assert len(passages) <= MAX_PASSAGES
    for passage in passages:
        start = 100 * passage.number
        assert (
            list(held.values())[passage.number][passage.start - start : passage.end - start] == passage.text
        )


@pytest.mark.parametrize("kind", ["an answer of another type"])
def test_result_of_another_type_is_passed_on(kind: str):
    def search(question: Question, env: SearchEnv) -> Method:
        yield Notice("Reading.")
        return kind  # type: ignore[return-value]

    snap = snapshot()
    assert snap.run(with_passages(search)(Question("Who?"), snap.given())) == kind
