"""The offline engine's replies in multi-hop questions."""

from __future__ import annotations

import json

from graphrag_ray.base.context_records import csv_line, section_heading
from graphrag_ray.offline.answerer import answer_with_chain, ask_next, facts_in_common
from graphrag_ray.query.methods.ppr_search import INSUFFICIENT, LAST

SOURCES = section_heading("Sources", ("id", "document", "text"))
QUESTION = "Where did the husband of Nora Lind die?"


def variables(*texts: str, **more: str) -> dict[str, str]:
    context = SOURCES + "".join(csv_line([n + 1, "", text]) for n, text in enumerate(texts))
    return {"question": QUESTION, "context": context, "max_tokens": "500", "response_type": "short", **more}


def test_quotations_of_an_answer_are_the_links_of_its_chain():
    told = answer_with_chain(variables("Ivar, the husband of Nora Lind, died at Bergen.", if_missing=LAST))
    answer, _, chain = told.partition("\n\nChain:\n")
    assert answer.startswith("“Ivar, the husband of Nora Lind, died at Bergen.” [Data: Sources (1)]")
    assert chain.startswith(f"- {QUESTION} -> “Ivar, the husband")


def test_missing_facts_are_insufficient_only_while_more_can_be_looked_up():
    assert answer_with_chain(variables("Mills grind corn.", if_missing=INSUFFICIENT)) == "Insufficient"
    assert answer_with_chain(variables("Mills grind corn.", if_missing=LAST)).startswith(
        "The records found do not"
    )


def test_next_question_is_about_names_in_matching_sentences():
    told = json.loads(
        ask_next(
            variables(
                "Nora Lind was married to Ivar Berg.",
                "Piet Mondrian was a painter.",
                asked=f"- {QUESTION}",
                n_questions="2",
            )
        )
    )
    assert told["known"] == ["Nora Lind was married to Ivar Berg."]
    assert [question.partition(":")[0] for question in told["next"]] == ["Ivar Berg"]


def test_facts_with_terms_of_the_question_are_chosen():
    facts = section_heading("Relationships", ("id", "source", "target", "description"))
    facts += csv_line([1, "PIET MONDRIAN", "PARIS", "He painted there."])
    facts += csv_line([2, "NORA LIND", "IVAR BERG", "He is her husband."])
    told = facts_in_common({"question": QUESTION, "context": facts, "n_facts": "5"})
    assert json.loads(told) == {"facts": [2]}
