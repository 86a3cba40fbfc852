"""Input files of an evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphrag_ray import evaluate
from graphrag_ray.base.errors import UsageError
from graphrag_ray.evaluate.evaluation_files import (
    gold_questions,
    read_imported_answers,
    read_unique_questions,
)
from graphrag_ray.query.question_files import BatchQuestion

POSED = [BatchQuestion("1", "Who?"), BatchQuestion("2", "Where?"), BatchQuestion("q3", "When?")]


def written(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def test_repeated_question_is_asked_once(tmp_path: Path):
    file = written(tmp_path / "q.csv", "id,question\na,Who?\nb,Where?\nc,Who?\nd,\n")
    posed, warnings = read_unique_questions(file, {})
    assert [p.id for p in posed] == ["a", "b"]
    assert warnings == [
        "Skipping question d: the question is empty",
        "Skipping question c: same text as an earlier question",
    ]


def test_imported_answers_are_matched_by_question_or_id(tmp_path: Path):
    file = written(tmp_path / "a.csv", "question_id,question,response\nq3,,In May.\nx,Who?,Mara.\n")
    answers, warnings = read_imported_answers(file, {}, POSED)
    assert answers == {"1": "Mara.", "q3": "In May."}
    assert len(warnings) == 1 and warnings[0].endswith("a.csv does not answer question 2")


def test_imported_answer_is_matched_regardless_of_its_row(tmp_path: Path):
    file = written(tmp_path / "a.csv", "question;answer\n Where? ;BETA\n")
    assert read_imported_answers(file, {}, POSED)[0] == {"2": "BETA"}


def test_answers_to_other_questions_are_refused(tmp_path: Path):
    file = written(tmp_path / "a.jsonl", '{"id": "9", "question": "Why?", "answer": "So."}\n')
    with pytest.raises(UsageError, match="answers none of the questions"):
        read_imported_answers(file, {}, POSED)
    with pytest.raises(UsageError, match=r"file type '\.txt'"):
        read_imported_answers(written(tmp_path / "a.txt", "x"), {}, POSED)


def test_gold_answers_and_documents_are_lists_or_strings(tmp_path: Path):
    rows = [
        {"question": "Who?", "answer": "Mara Venn", "aliases": ["Venn"], "documents": ["d1", "d1", "d2"]},
        {"question": "Where?", "answers": '["Hask", "the marsh"]', "supporting_titles": "Hask Marsh"},
        {"question": "When?"},
    ]
    file = written(tmp_path / "g.jsonl", "\n".join(json.dumps(row) for row in rows))
    found, warnings = gold_questions(file, {})
    assert [q.answers for q in found] == [("Mara Venn", "Venn"), ("Hask", "the marsh"), ()]
    assert [q.documents for q in found] == [("d1", "d2"), ("Hask Marsh",), ()]
    assert not warnings


def test_questions_without_any_gold_are_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="neither answers nor documents"):
        gold_questions(written(tmp_path / "g.csv", "question\nWho?\n"), {})


@pytest.mark.parametrize("evaluation", [evaluate.compare, evaluate.qa, evaluate.claims])
def test_values_that_are_no_questions_are_refused(evaluation: Any):
    for questions, told in (
        ([1], "not int"),
        ([], "no valid question"),
        ([{"text": "x"}], "no column question"),
    ):
        with pytest.raises(UsageError, match=told):
            evaluation(None, questions, [])
