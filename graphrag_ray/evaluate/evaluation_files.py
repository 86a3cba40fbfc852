"""Read the input files of an evaluation: questions with or without known answers, and imported answers."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.index_settings import Input
from graphrag_ray.base.messages import join_surrogates
from graphrag_ray.base.urls import display_path
from graphrag_ray.corpus.decode import NotText
from graphrag_ray.corpus.table_rows import OPENERS, WHOLE_FILE, Table
from graphrag_ray.query.methods.method import MAX_QUESTION_CHARACTERS
from graphrag_ray.query.question_files import (
    ID_COLUMNS,
    QUESTION_COLUMNS,
    BatchQuestion,
    read_file,
    read_questions,
)

ANSWER_COLUMNS = ("answer", "text", "response", "output")
GOLD_COLUMNS = ("answer", "answers", "gold", "gold_answers")
ALIAS_COLUMNS = ("aliases", "answer_aliases")
DOCUMENT_COLUMNS = ("documents", "gold_documents", "supporting_ids", "supporting_titles")
MAX_LISTED_IDS = 5


@dataclass(frozen=True)
class GoldQuestion:
    """A question with wordings of its correct answer, and ids, titles or paths of the documents it needs."""

    question: BatchQuestion
    answers: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()


def read_unique_questions(url: str, options: Mapping[str, Any]) -> tuple[list[BatchQuestion], list[str]]:
    """Read the distinct questions of a file. Returns (questions, warnings). Raises UsageError."""
    return drop_repeats(read_questions(url, options, MAX_QUESTION_CHARACTERS))


def drop_repeats(questions: Sequence[BatchQuestion]) -> tuple[list[BatchQuestion], list[str]]:
    """Return the valid, distinct questions, and warnings about the others."""
    valid = [p for p in questions if not p.fault]
    first = {p.text: p.id for p in reversed(valid)}
    warnings = [f"Skipping question {p.id}: {p.fault}" for p in questions if p.fault]
    if repeated := [p.id for p in valid if first[p.text] != p.id]:
        warnings.append(f"Skipping {list_ids('question', repeated)}: same text as an earlier question")
    return [p for p in valid if first[p.text] == p.id], warnings


def gold_questions(url: str, options: Mapping[str, Any]) -> tuple[list[GoldQuestion], list[str]]:
    """Read questions with known answers from the columns answer or answers, aliases, and documents.

    Values are a list, a JSON list or a single string. Raises UsageError if no row has an answer or a
    document.
    """
    questions, warnings = read_unique_questions(url, options)
    return to_gold_questions(questions, _rows(url, options), display_path(url)), warnings


def to_gold_questions(
    questions: Sequence[BatchQuestion], numbered_rows: Iterable[tuple[int, Mapping[str, Any]]], source: str
) -> list[GoldQuestion]:
    """Match rows to questions. Raises UsageError if no row has an answer or a document."""
    rows = {_id(values, number): values for number, values in numbered_rows}
    gold: list[GoldQuestion] = []
    for p in questions:
        values = rows.get(p.id, {})
        answers = [*_texts(values, GOLD_COLUMNS), *_texts(values, ALIAS_COLUMNS)]
        documents = dict.fromkeys(_texts(values, DOCUMENT_COLUMNS))
        gold.append(GoldQuestion(p, tuple(dict.fromkeys(answers)), tuple(documents)))
    if not any(q.answers or q.documents for q in gold):
        columns = ", ".join([*GOLD_COLUMNS, *DOCUMENT_COLUMNS])
        raise UsageError(f"{source} has neither answers nor documents. Add one of the columns {columns}.")
    return gold


def read_imported_answers(
    url: str, options: Mapping[str, Any], questions: Sequence[BatchQuestion]
) -> tuple[dict[str, str], list[str]]:
    """Read imported answers by question id. Returns (answers, warnings). Raises UsageError if none matches.

    A row answers the question with the same text or, if the row has no question, with the same id.
    """
    by_id: dict[str, str] = {}
    by_text: dict[str, str] = {}
    for _, values in _rows(url, options):
        answer = next(iter(_texts(values, ANSWER_COLUMNS, split=False)), "")
        question = next(iter(_texts(values, QUESTION_COLUMNS, split=False)), "")
        if answer and question:
            by_text.setdefault(question, answer)
        elif answer and (id_ := _id(values, None)):
            by_id.setdefault(id_, answer)
    answers = {p.id: text for p in questions if (text := by_text.get(p.text.strip()) or by_id.get(p.id))}
    if not answers:
        columns = f"one of the columns {', '.join(ANSWER_COLUMNS)}, and the question or its id"
        raise UsageError(f"{display_path(url)} answers none of the questions. It needs {columns}.")
    missing = [p.id for p in questions if p.id not in answers]
    return answers, [
        f"{display_path(url)} does not answer {list_ids('question', missing)}"
    ] if missing else []


def _rows(url: str, options: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    source, extension = display_path(url), posixpath.splitext(url)[1].lower()
    if extension not in OPENERS:
        raise UsageError(f"{source}: Unsupported file type {extension!r}. Choose from: {', '.join(OPENERS)}")
    content, tables = read_file(url, options), list[Table]()
    for column in (*QUESTION_COLUMNS, *ID_COLUMNS):  # A .csv file's delimiter is detected by this column.
        table = OPENERS[extension](io.BytesIO(content), Input(text_column=column))
        if isinstance(table, NotText):
            raise UsageError(f"{source}: {table.reason}")
        tables.append(table)
        if table.columns is None or column in table.columns:
            tables = [table]
            break
    for row in tables[0].rows:
        if row.number == WHOLE_FILE:
            raise UsageError(f"{source}: {row.error}")
        if row.values is not None:
            yield row.number, row.values


def _id(values: Mapping[str, Any], number: int | None) -> str:
    """Return the id of a row from its columns or, if they are empty, its number."""
    ids = (str(values[c]).strip() for c in ID_COLUMNS if values.get(c) is not None)
    return join_surrogates(next(filter(None, ids), "" if number is None else str(number)))


def _texts(values: Mapping[str, Any], columns: Sequence[str], split: bool = True) -> list[str]:
    """Return the texts in the first of these columns that is not empty."""
    for column in columns:
        value = values.get(column)
        if split and isinstance(value, str) and value.lstrip().startswith("["):
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(value)
        items = value if isinstance(value, list | tuple) else [value]
        texts = [
            join_surrogates(str(item)).strip()
            for item in items
            if item is not None and not isinstance(item, dict)
        ]
        if texts := [text for text in texts if text]:
            return texts
    return []


def list_ids(word: str, ids: Sequence[str]) -> str:
    """Format ids: `question 7`, `questions 1, 2, 3, 4, 5 and 95 more`."""
    more = f" and {len(ids) - MAX_LISTED_IDS:,} more" if len(ids) > MAX_LISTED_IDS else ""
    return f"{word if len(ids) == 1 else word + 's'} {', '.join(ids[:MAX_LISTED_IDS])}{more}"
