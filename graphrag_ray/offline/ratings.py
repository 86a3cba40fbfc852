"""Answers to the prompts that ask for JSON: points of contexts, ratings of reports, the steps of DRIFT."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.offline.answers import map_answer, records_of
from graphrag_ray.offline.question_terms import QuestionTerms, read_question
from graphrag_ray.offline.summarise import content_stems
from graphrag_ray.query.methods.dynamic import HIGHEST
from graphrag_ray.query.methods.map_reduce import parse_scored

_TITLE = re.compile(r"^\*\*([^*]+)\*\*:", re.MULTILINE)

MIN_SHARE = 0.3
"""Of a question's terms, by weight: one word in common out of many is chance."""
ABOUT_THE_WHOLE = 3
"""The rating of every report for a question without terms of its own."""


def map_points(variables: Mapping[str, str]) -> str:
    """The quotations of `map_answer`, those under one title as one point, by falling score."""
    scored = parse_scored(map_answer(variables))
    if isinstance(scored, ReplyProblem) or not scored.text:
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


def drift_primer(variables: Mapping[str, str]) -> str:
    """The quotations of `map_answer`; what stands in the titles of their reports is to be looked up."""
    return _step(variables, "question")


def drift_local(variables: Mapping[str, str]) -> str:
    """The same for a follow-up question. It shares its terms with what was found for it, so the user's
    question says how much that helps."""
    return _step(variables, "follow_up")


def _step(variables: Mapping[str, str], asked: str) -> str:
    own = {**variables, "question": variables[asked]}
    scored = parse_scored(map_answer(own))
    if isinstance(scored, ReplyProblem) or not scored.text:
        return _json({"answer": "", "score": 0, "follow_ups": []})
    score = scored.score
    if asked != "question":
        helps = parse_scored(map_answer(variables))
        score = max(5.0, 0.0 if isinstance(helps, ReplyProblem) else helps.score)
    names = [n.strip() for t in _TITLE.findall(scored.text) for n in t.split(",")]
    known = variables["question"].casefold() + variables[asked].casefold()
    open_ = [n for n in dict.fromkeys(names) if n.casefold() not in known and not n.startswith("Source ")]
    most = int(variables["n_follow_ups"]) if variables["n_follow_ups"].isdigit() else 0
    questions = [
        {"question": f"What is said about {n}?", "score": max(5, 60 - 5 * i)} for i, n in enumerate(open_)
    ]
    return _json({"answer": scored.text, "score": score, "follow_ups": questions[:most]})


def _rating(question: QuestionTerms, stems: set[str]) -> int:
    if not question.terms:
        return ABOUT_THE_WHOLE
    share = question.coverage(stems)
    return max(1, round(HIGHEST * share)) if share >= MIN_SHARE else 0


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
