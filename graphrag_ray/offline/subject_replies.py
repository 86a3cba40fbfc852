"""Answers to the prompts of FG-RAG: what a question is about, questions around it, quotations on it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.offline.answers import map_answer
from graphrag_ray.offline.question_terms import read_question
from graphrag_ray.offline.summarise import content_stems
from graphrag_ray.query.methods.map_reduce import parse_scored

NONE = "NONE"
DEFAULT_N = 8

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def list_subjects(variables: Mapping[str, str]) -> str:
    """Runs of those words of the question that have to be matched, verbs apart, one a line: names first, then
    in the order of the question. Of a question that has none, of all its content words."""
    question = read_question(variables["question"])
    wanted = {stem for term in question.things for stem in term.split()}
    runs = _runs(variables["question"], wanted or set(question.stems))
    named = {stem for name in question.names for stem in name.split()}
    runs.sort(key=lambda run: named.isdisjoint(content_stems(run)))
    return "\n".join(runs[: number_in(variables["n_entities"])]) or NONE


def ask_around(variables: Mapping[str, str]) -> str:
    """What is said of the subject, what is linked to it, how it bears on the question's other subjects."""
    entity = variables["entity"]
    others = list_subjects({"question": variables["question"], "n_entities": ""}).split("\n")
    asked = [f"What is said about {entity}?", f"Who or what is connected with {entity}?"]
    asked += [f"What have {entity} and {o} to do with each other?" for o in others if o not in (entity, NONE)]
    return "\n".join(asked[: number_in(variables["n_questions"])])


def summarise_subject(variables: Mapping[str, str]) -> str:
    """The quotations of `map_answer` for the user's question or, where these records do not match it, for the
    questions about the subject."""
    for asked in (variables["question"], variables["entity"]):
        scored = parse_scored(map_answer({**variables, "question": asked}))
        if not isinstance(scored, ReplyProblem) and scored.text:
            return scored.text
    return NONE


def _runs(text: str, wanted: Collection[str]) -> list[str]:
    """Stretches of the text whose words all have a wanted stem, with nothing but blanks between them; each
    once."""
    found: dict[str, str] = {}
    start = end = None
    for match in [*_WORD.finditer(text), None]:
        is_one = match is not None and not set(wanted).isdisjoint(content_stems(match.group()))
        joins = is_one and end is not None and not text[end : match.start()].strip() if match else False
        if start is not None and not joins:
            run = " ".join(text[start:end].split())
            found.setdefault(run.casefold(), run)
            start = None
        if match and is_one:
            start, end = (match.start() if start is None else start), match.end()
    return list(found.values())


def number_in(text: str, usual: int = DEFAULT_N) -> int:
    """What a placeholder holds; `usual` where it is no small number."""
    return int(text) if text.isdecimal() and 0 < len(text) < 5 else usual
