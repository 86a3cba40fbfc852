"""Answers to the prompts of answers that hop: quotations with their chain, names to look up next, facts that
share terms with the question."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from graphrag_ray.base.records import parse_sections
from graphrag_ray.offline.answers import context_answer, records_of
from graphrag_ray.offline.lexicon import lexicon
from graphrag_ray.offline.mentions import read
from graphrag_ray.offline.question_terms import QuestionTerms, read_question
from graphrag_ray.offline.ratings import MIN_SHARE
from graphrag_ray.offline.subject_replies import number_in
from graphrag_ray.offline.summarise import content_stems
from graphrag_ray.query.methods.ppr_search import INSUFFICIENT

MOST_LINKS = 3
DEFAULT_QUESTIONS, DEFAULT_FACTS = 2, 5
READ_RECORDS = 5
"""From which names are taken."""

_QUOTED = re.compile(r"“([^”]+)” (\[Data: [^\]]+\])")


def answer_with_chain(variables: Mapping[str, str]) -> str:
    """The quotations of `context_answer`; the first ones are the links. Where it has none, and more can be
    looked up, the word for that."""
    answer = context_answer(variables)
    quotes = _QUOTED.findall(answer)
    if not quotes:
        return "Insufficient" if variables.get("if_missing") == INSUFFICIENT else answer
    links = [f"- {variables['question']} -> “{said}” {reference}" for said, reference in quotes[:MOST_LINKS]]
    return "\n".join([answer, "", "Chain:", *links])


def ask_next(variables: Mapping[str, str]) -> str:
    """Of sentences that share a term with the question: themselves, and questions on the names in them that
    neither the question nor what was looked up before has."""
    question = read_question(variables["question"])
    before = f"{variables['question']}\n{variables['asked']}".casefold()
    known, names = list[str](), dict[str, None]()
    for record in records_of(variables["context"])[:READ_RECORDS]:
        for sentence in record.sentences:
            if set(question.things).isdisjoint(question.mark(content_stems(sentence))):
                continue
            known.append(sentence)
            titles = (thing.title for thing in read(sentence, lexicon(), False).things)
            names |= dict.fromkeys(title for title in titles if title.casefold() not in before)
    rest = " ".join(_not_names(question)) or "who or what is it"
    most = number_in(variables["n_questions"], DEFAULT_QUESTIONS)
    questions = [f"{name}: {rest}?" for name in names][:most]
    return json.dumps({"known": known[:READ_RECORDS], "next": questions}, ensure_ascii=False)


def facts_in_common(variables: Mapping[str, str]) -> str:
    """The numbers of the facts that have enough of the question's terms, those with most first."""
    question = read_question(variables["question"])
    found = []
    for row in parse_sections(variables["context"]).get("Relationships", ()):
        text = " ".join(row.get(name) or "" for name in ("source", "target", "description"))
        share = question.coverage(question.mark(content_stems(text)))
        if share >= MIN_SHARE and row["id"].isdecimal():
            found.append((-share, int(row["id"])))
    most = number_in(variables["n_facts"], DEFAULT_FACTS)
    return json.dumps({"facts": [number for _, number in sorted(found)][:most]})


def _not_names(question: QuestionTerms) -> list[str]:
    pairs = zip(question.terms, question.words, strict=True)
    return [word for term, word in pairs if term not in question.names]
