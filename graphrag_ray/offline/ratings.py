"""Answers to the prompts of corpus-wide methods that ask for JSON: points of contexts, ratings of reports."""

from __future__ import annotations

import json
from collections.abc import Mapping

from graphrag_ray.offline.answers import map_answer, records_of
from graphrag_ray.offline.questions import Question, read_question
from graphrag_ray.offline.summarise import content_stems
from graphrag_ray.query.rating import HIGHEST
from graphrag_ray.query.score import parse_scored
from graphrag_ray.reports.parse import Problem

MIN_SHARE = 0.3
"""Of a question's terms, by weight: one word in common out of many is chance."""
ABOUT_THE_WHOLE = 3
"""The rating of every report for a question without terms of its own."""


def map_points(variables: Mapping[str, str]) -> str:
    """The quotations of `map_answer`, those under one title as one point, by falling score."""
    scored = parse_scored(map_answer(variables))
    if isinstance(scored, Problem) or not scored.text:
        return _json({"points": []})
    lines = scored.text.split("\n")
    points = [
        {"description": line, "score": max(1, round(scored.score * (1 - rank / (2 * len(lines)))))}
        for rank, line in enumerate(lines)
    ]
    return _json({"points": points})


def rate(variables: Mapping[str, str]) -> str:
    """Each report by the share of the question's terms that it has."""
    question = read_question(variables["question"])
    ratings = []
    for report in records_of(variables["context"]):
        texts = [report.title, *report.sentences]
        stems = {s for text in texts for s in question.mark(content_stems(text))}
        shared = [w for w, t in zip(question.words, question.terms, strict=True) if t in stems]
        reason = f"It has: {', '.join(shared)}." if shared else "It shares no term with the question."
        ratings.append({"id": int(report.number), "reason": reason, "rating": _rating(question, stems)})
    return _json({"ratings": ratings})


def _rating(question: Question, stems: set[str]) -> int:
    if not question.terms:
        return ABOUT_THE_WHOLE
    share = question.coverage(stems)
    return max(1, round(HIGHEST * share)) if share >= MIN_SHARE else 0


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
