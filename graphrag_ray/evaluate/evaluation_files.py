"""Files that an evaluation is given: questions, maybe with correct answers, and answers made elsewhere."""

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
from graphrag_ray.base.messages import whole
from graphrag_ray.base.urls import shown
from graphrag_ray.corpus.decode import NotText
from graphrag_ray.corpus.table_rows import OPENERS, WHOLE_FILE, Table
from graphrag_ray.query.methods.method import MAX_QUESTION_CHARACTERS
from graphrag_ray.query.question_files import ID_COLUMNS, QUESTION_COLUMNS, Posed, content_of, read_questions

ANSWER_COLUMNS = ("answer", "text", "response", "output")
GOLD_COLUMNS = ("answer", "answers", "gold", "gold_answers")
ALIAS_COLUMNS = ("aliases", "answer_aliases")
DOCUMENT_COLUMNS = ("documents", "gold_documents", "supporting_ids", "supporting_titles")
TOLD = 5
"""Ids that a warning names."""


@dataclass(frozen=True)
class GoldQuestion:
    """A question with what is known of its answer.

    answers     wordings of the correct one; () where none is known
    documents   ids, titles or paths of the documents that it needs; () where none are known
    """

    posed: Posed
    answers: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()


def questions_of(url: str, options: Mapping[str, Any]) -> tuple[list[Posed], list[str]]:
    """The questions of a file, each once, and what is to be said of them. Raises UsageError."""
    return without_repeats(read_questions(url, options, MAX_QUESTION_CHARACTERS))


def without_repeats(posed: Sequence[Posed]) -> tuple[list[Posed], list[str]]:
    """Those that can be asked, each once, and what is to be said of the others."""
    good = [p for p in posed if not p.fault]
    first = {p.text: p.id for p in reversed(good)}
    kept = [p for p in good if first[p.text] == p.id]
    warnings = [f"question {p.id} is not asked: {p.fault}" for p in posed if p.fault]
    if repeated := [p.id for p in good if first[p.text] != p.id]:
        told = named("question", repeated)
        warnings.append(f"{told}: the same as an earlier one, and left out")
    return kept, warnings


def gold_questions(url: str, options: Mapping[str, Any]) -> tuple[list[GoldQuestion], list[str]]:
    """Questions with a column `answer` or `answers` (wordings), `aliases`, and `documents`, each as a list, a
    JSON list or one text. Raises UsageError where no row has an answer or a document."""
    posed, warnings = questions_of(url, options)
    return gold_of(posed, _rows(url, options), shown(url)), warnings


def gold_of(
    posed: Sequence[Posed], given: Iterable[tuple[int, Mapping[str, Any]]], at: str
) -> list[GoldQuestion]:
    """What rows say of the answers to these questions. given: number and values of each row; at: where they
    are, for people. Raises UsageError as `gold_questions`."""
    rows = {_id(values, number): values for number, values in given}
    found = []
    for p in posed:
        values = rows.get(p.id, {})
        answers = [*_texts(values, GOLD_COLUMNS), *_texts(values, ALIAS_COLUMNS)]
        documents = dict.fromkeys(_texts(values, DOCUMENT_COLUMNS))
        found.append(GoldQuestion(p, tuple(dict.fromkeys(answers)), tuple(documents)))
    if not any(q.answers or q.documents for q in found):
        wanted = f"{', '.join(GOLD_COLUMNS)} or {', '.join(DOCUMENT_COLUMNS)}"
        raise UsageError(f"{at} has neither answers nor documents: it needs a column {wanted}")
    return found


def answers_elsewhere(
    url: str, options: Mapping[str, Any], posed: Sequence[Posed]
) -> tuple[dict[str, str], list[str]]:
    """Answers of a file, by the id of the question, and warnings. A row belongs to the question of the same
    text or, where it has none, of the same id. Raises UsageError where the file cannot be read, or answers
    none of the questions."""
    by_id: dict[str, str] = {}
    by_text: dict[str, str] = {}
    for _, values in _rows(url, options):
        answer = next(iter(_texts(values, ANSWER_COLUMNS, split=False)), "")
        question = next(iter(_texts(values, QUESTION_COLUMNS, split=False)), "")
        if answer and question:
            by_text.setdefault(question, answer)
        elif answer and (id_ := _id(values, None)):
            by_id.setdefault(id_, answer)
    found = {p.id: text for p in posed if (text := by_text.get(p.text.strip()) or by_id.get(p.id))}
    if not found:
        columns = f"a column {', '.join(ANSWER_COLUMNS)}, beside the question or its id"
        raise UsageError(f"{shown(url)} answers none of the questions: it needs {columns}")
    missed = [p.id for p in posed if p.id not in found]
    told = [f"{shown(url)} does not answer {named('question', missed)}"] if missed else []
    return found, told


def _rows(url: str, options: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    at, extension = shown(url), posixpath.splitext(url)[1].lower()
    if extension not in OPENERS:
        raise UsageError(f"{at}: such files come as {', '.join(OPENERS)}, not as {extension or 'this'}")
    content, tables = content_of(url, options), list[Table]()
    for column in (*QUESTION_COLUMNS, *ID_COLUMNS):  # by which a .csv file shows what divides its cells
        table = OPENERS[extension](io.BytesIO(content), Input(text_column=column))
        if isinstance(table, NotText):
            raise UsageError(f"{at}: {table.reason}")
        tables.append(table)
        if table.columns is None or column in table.columns:
            tables = [table]
            break
    for row in tables[0].rows:
        if row.number == WHOLE_FILE:
            raise UsageError(f"{at}: {row.fault}")
        if row.values is not None:
            yield row.number, row.values


def _id(values: Mapping[str, Any], number: int | None) -> str:
    """number: of the row, which is its id where it has no other."""
    given = (str(values[c]).strip() for c in ID_COLUMNS if values.get(c) is not None)
    return whole(next(filter(None, given), "" if number is None else str(number)))


def _texts(values: Mapping[str, Any], columns: Sequence[str], split: bool = True) -> list[str]:
    """The texts of the first of these columns that has any."""
    for column in columns:
        value = values.get(column)
        if split and isinstance(value, str) and value.lstrip().startswith("["):
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(value)
        listed = value if isinstance(value, list | tuple) else [value]
        texts = [whole(str(one)).strip() for one in listed if one is not None and not isinstance(one, dict)]
        if texts := [text for text in texts if text]:
            return texts
    return []


def named(word: str, ids: Sequence[str]) -> str:
    """The first of these ids, and how many more there are."""
    more = f" and {len(ids) - TOLD:,} more" if len(ids) > TOLD else ""
    return f"{word}{'s' if len(ids) != 1 else ''} {', '.join(ids[:TOLD])}{more}"
