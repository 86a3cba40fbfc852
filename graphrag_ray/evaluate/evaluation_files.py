"""Read the input files of an evaluation: questions with or without known answers, and imported answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.messages import join_surrogates
from graphrag_ray.base.urls import display_path
from graphrag_ray.corpus.table_rows import TableRow
from graphrag_ray.evaluate.datasets import QUESTIONS, to_question_rows
from graphrag_ray.evaluate.table_files import read_table_file
from graphrag_ray.query.methods.method import MAX_QUESTION_CHARACTERS
from graphrag_ray.query.question_files import ID_COLUMNS, QUESTION_COLUMNS, BatchQuestion, questions_of

ANSWER_COLUMNS = ("answer", "text", "response", "output")
GOLD_COLUMNS = ("answer", "answers", "gold", "gold_answers")
ALIAS_COLUMNS = ("aliases", "answer_aliases")
DOCUMENT_COLUMNS = ("documents", "gold_documents", "supporting_ids", "supporting_titles")
EVIDENCE_COLUMNS = ("evidence",)
TYPE_COLUMNS = ("type", "question_type")
ASSERTION_COLUMNS = ("assertions",)
NAMES_COLUMN = "other_names"
MAX_LISTED_IDS, MAX_LISTED_COLUMNS = 5, 20


@dataclass(frozen=True)
class GoldQuestion:
    """A question with what a correct answer contains and needs.

    Attributes:
        answers: Wordings of the correct answer.
        documents: Ids, titles or paths of the documents that it needs.
        evidence: Sentences or passages that contain the answer.
        assertions: Statements that a good answer bears out (BenchmarkQED).
        type: The kind of question. Scores are also averaged per type.
        other_names: Another name for some of the documents, for an index that lacks the first.
    """

    question: BatchQuestion
    answers: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    assertions: tuple[str, ...] = ()
    type: str = ""
    other_names: Mapping[str, str] = field(default_factory=dict)


def read_unique_questions(url: str, options: Mapping[str, Any]) -> tuple[list[BatchQuestion], list[str]]:
    """Read the distinct questions of a file. Returns (questions, warnings). Raises UsageError."""
    return drop_repeats(questions_in(to_question_rows(read_table_file(url, options)), display_path(url)))


def questions_in(rows: Sequence[TableRow], source: str) -> list[BatchQuestion]:
    """Return the question of each row. Raises UsageError, naming `source`."""
    columns = dict.fromkeys(column for row in rows for column in row.values or ())
    if columns and not columns.keys() & {*QUESTION_COLUMNS}:
        wanted, known = " or ".join(QUESTION_COLUMNS), ", ".join(layout.names for layout in QUESTIONS)
        listed = ", ".join(map(str, islice(columns, MAX_LISTED_COLUMNS)))
        raise UsageError(
            f"{source} has no column {wanted}; it has {listed}. It is none of the known data sets: {known}."
        )
    return questions_of(rows, source, "", MAX_QUESTION_CHARACTERS)


def drop_repeats(questions: Sequence[BatchQuestion]) -> tuple[list[BatchQuestion], list[str]]:
    """Return the valid, distinct questions, and warnings about the others."""
    valid = [p for p in questions if not p.fault]
    first = {p.text: p.id for p in reversed(valid)}
    warnings = [f"Skipping question {p.id}: {p.fault}" for p in questions if p.fault]
    if repeated := [p.id for p in valid if first[p.text] != p.id]:
        warnings.append(f"Skipping {list_ids('question', repeated)}: same text as an earlier question")
    return [p for p in valid if first[p.text] == p.id], warnings


def gold_questions(url: str, options: Mapping[str, Any]) -> tuple[list[GoldQuestion], list[str]]:
    """Read questions with known answers from a file of a published data set, or one with our columns.

    These are answer or answers, aliases, documents, evidence, assertions and type. Values are a list, a JSON
    list or a single string. Raises UsageError if no row has an answer, document or assertion.
    """
    return to_gold_questions(to_question_rows(read_table_file(url, options)), display_path(url))


def to_gold_questions(rows: Sequence[TableRow], source: str) -> tuple[list[GoldQuestion], list[str]]:
    """Convert rows like `gold_questions`. Returns (questions, warnings)."""
    all_questions = questions_in(rows, source)
    values_of = {p.id: row.values or {} for p, row in zip(all_questions, rows, strict=True)}
    questions, warnings = drop_repeats(all_questions)
    gold: list[GoldQuestion] = []
    columns = (GOLD_COLUMNS, ALIAS_COLUMNS, DOCUMENT_COLUMNS, EVIDENCE_COLUMNS, ASSERTION_COLUMNS)
    for p in questions:
        values = values_of[p.id]
        answers, aliases, *others = (_texts(values, names) for names in columns)
        documents, evidence, assertions = (tuple(dict.fromkeys(texts)) for texts in others)
        kind, names = ", ".join(_texts(values, TYPE_COLUMNS)), values.get(NAMES_COLUMN)
        names = {k: v for k, v in names.items() if isinstance(v, str)} if isinstance(names, dict) else {}
        wordings = tuple(dict.fromkeys([*answers, *aliases]))
        gold.append(GoldQuestion(p, wordings, documents, evidence, assertions, kind, names))
    if not any(q.answers or q.documents or q.assertions for q in gold):
        wanted = ", ".join([*GOLD_COLUMNS, *DOCUMENT_COLUMNS, *ASSERTION_COLUMNS])
        raise UsageError(
            f"{source} has neither answers nor documents nor assertions. Add one of the columns {wanted}."
        )
    return gold, warnings


def read_imported_answers(
    url: str, options: Mapping[str, Any], questions: Sequence[BatchQuestion]
) -> tuple[dict[str, str], list[str]]:
    """Read imported answers by question id. Returns (answers, warnings). Raises UsageError if none matches.

    A row answers the question with the same text or, if the row has no question, with the same id.
    """
    by_id: dict[str, str] = {}
    by_text: dict[str, str] = {}
    for values in (row.values for row in read_table_file(url, options) if row.values is not None):
        answer = next(iter(_texts(values, ANSWER_COLUMNS, split=False)), "")
        question = next(iter(_texts(values, QUESTION_COLUMNS, split=False)), "")
        if answer and question:
            by_text.setdefault(question, answer)
        elif answer and (ids := _texts(values, ID_COLUMNS, split=False)):
            by_id.setdefault(ids[0], answer)
    answers = {p.id: text for p in questions if (text := by_text.get(p.text.strip()) or by_id.get(p.id))}
    if not answers:
        columns = f"one of the columns {', '.join(ANSWER_COLUMNS)}, and the question or its id"
        raise UsageError(f"{display_path(url)} answers none of the questions. It needs {columns}.")
    missing = [p.id for p in questions if p.id not in answers]
    warning = f"{display_path(url)} does not answer {list_ids('question', missing)}"
    return answers, [warning] if missing else []


def _texts(values: Mapping[str, Any], columns: Sequence[str], split: bool = True) -> list[str]:
    """Return the texts in the first of these columns that is not empty.

    An object with a `statement` counts as this text, other objects are ignored. split: whether text in JSON
    may be a list.
    """
    for column in columns:
        value = values.get(column)
        if split and isinstance(value, str) and value.lstrip().startswith("["):
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(value)
        items = value if isinstance(value, list | tuple) else [value]
        items = [item.get("statement") if isinstance(item, dict) else item for item in items]
        texts = (join_surrogates(str(item)).strip() for item in items if item is not None)
        if found := list(filter(None, texts)):
            return found
    return []


def list_ids(word: str, ids: Sequence[str]) -> str:
    """Format ids: `question 7`, `questions 1, 2, 3, 4, 5 and 95 more`."""
    more = f" and {len(ids) - MAX_LISTED_IDS:,} more" if len(ids) > MAX_LISTED_IDS else ""
    return f"{word if len(ids) == 1 else word + 's'} {', '.join(ids[:MAX_LISTED_IDS])}{more}"
