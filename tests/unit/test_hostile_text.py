"""Text from others (replies, questions, conditions, the corpus) is read in linear time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
from linear_time import too_slow

from graphrag_ray.base import context_records, dates, json_replies
from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.export import record_lookup
from graphrag_ray.graph import report_context, report_dialogue
from graphrag_ray.query.methods import condense, document_filters, levels, map_reduce, question_names
from graphrag_ray.service import chat_api
from graphrag_ray.store.search import tokenizer

NUMBERING = {("Entities", 1): "e1"}
LEVELS = levels.Levels(*(np.zeros(1, np.int64) for _ in range(5)))
MESSAGE = chat_api.ChatMessage(role="user", content="What?")


def conversation(text: str) -> object:
    answer = chat_api.ChatMessage(role="assistant", content=text)
    return chat_api._conversation([MESSAGE, answer, MESSAGE])


READERS: dict[str, Callable[[str], object]] = {
    "resolve_references": lambda text: context_records.resolve_references(text, NUMBERING),
    "strip_references": context_records.strip_references,
    "parse_sections": context_records.parse_sections,
    "clean": report_context.sanitize,
    "without_unfinished": context_records.drop_unclosed_reference,
    "may_become_reference": context_records.partial_reference_start,
    "harmless": context_records.defuse_references,
    "parse_scored": map_reduce.parse_scored,
    "strip_scores": map_reduce.strip_scores,
    "report": report_dialogue.parse_report,
    "cut report": lambda text: report_dialogue.parse_report(text, "length"),
    "entries": map_reduce.parse_points,
    "cut entries": lambda text: map_reduce.parse_points(text, "length"),
    "number": lambda text: json_replies.number(text, 100),
    "condition": document_filters.parse,
    "date": dates.iso_date,
    "level": lambda text: LEVELS.parse(text, 1),
    "history": lambda text: condense.render_history([(text, text)] * 3, 2_000, lambda shown: len(shown) // 4),
    "conversation": conversation,
    "inspected": record_lookup._LEVEL_AND_NUMBER.fullmatch,
    "mentions": question_names.find_mentions,
    "words": tokenizer.tokenize,
}
BEGINNINGS = (
    "",
    "[Data:",
    "[Data: Entities",
    "[Entities: 1",
    "(Data: Entities (1",
    "【Data：",
    "x <",
    "<ANSWER",
    "<ANSWER_HELPFULNESS>1",
    "{",
    '{"points": [',
    '{"thought": "',
    "1",
)
UNITS = (
    " ",
    "\n",
    "\u2003",
    "\xa0",
    "a",
    "1",
    "[",
    "]",
    "}",
    "(",
    "<",
    "[Data:",
    "[Data: a (1",
    "=",
    '{"a":',
    "*a",
    "_",
)
SMALL = 2_000


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", READERS)
def test_it_is_read_in_linear_time(name: str):
    def read(text: str) -> None:
        with contextlib.suppress(GraphRagError):
            READERS[name](text)

    for beginning in BEGINNINGS:
        for unit in UNITS:
            told = too_slow(read, lambda n, b=beginning, u=unit: f"{b}{u * (n // len(u))}x", SMALL)  # type: ignore[misc]
            assert not told, (beginning, unit, told)
