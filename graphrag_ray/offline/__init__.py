"""The offline engine: our named prompts answered by classical methods, without a model.

    extract    sentences ─► capitalised runs ─► names, types, relations ─► the paper's tuples
    describe   quotations ─► LexRank, MMR ─► the best of them
    about      titles, names ─► the first of them
    report     a context ─► LexRank, MMR ─► quotations by member;  summary the same of texts
    map        reports ─► BM25, MMR ─► quotations with a score;  reduce merges them
    keywords   names and rare words of a question, its other words
    subjects   a question ─► runs of its terms ─► fixed questions, quotations around each
    steps      an answer's quotations as its chain; names in sentences that share a term with the question
    questions  names and terms of a description ─► fixed sentences on users, tasks, questions
    judge      two answers ─► what a criterion counts in each ─► the greater figure wins
    claims of answers  sentences with a name or figure;  correct answers contain a wording of the right one

What it sees is what the prompt carries and a static lexicon of ordinary words. It writes quotations,
exact but for white space, and few fixed phrases of its own; the same request always has the same reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphrag_ray.base.declarations import CORRECT
from graphrag_ray.base.errors import PermanentCallError
from graphrag_ray.base.messages import ChatReply, ChatRequest, Usage
from graphrag_ray.offline.about_reply import about
from graphrag_ray.offline.answers import context_answer, map_answer, reduce_answer
from graphrag_ray.offline.claims_reply import claim_records
from graphrag_ray.offline.description_reply import description
from graphrag_ray.offline.extraction_reply import extract_records
from graphrag_ray.offline.extractive_report import write_report
from graphrag_ray.offline.judge_reply import check_answer, judge, list_claims
from graphrag_ray.offline.keywords_reply import list_terms, without_data
from graphrag_ray.offline.question_replies import describe_corpus, list_personas, list_questions, list_tasks
from graphrag_ray.offline.ratings import drift_local, drift_primer, map_points, rate
from graphrag_ray.offline.static_embeddings import embed_many
from graphrag_ray.offline.step_replies import answer_with_chain, ask_next, facts_in_common
from graphrag_ray.offline.subject_replies import ask_around, list_subjects, summarise_subject
from graphrag_ray.offline.summary_reply import summary

__all__ = ["answer", "embed_many"]

Variables = Mapping[str, str]

_ANSWERS: Mapping[str, Callable[[Variables], str]] = {
    "extract": extract_records,
    "glean_check": lambda variables: "N",
    "glean": lambda variables: variables.get("completion", "<|COMPLETE|>"),
    "claims": claim_records,
    "describe": description,
    "about": about,
    "report": write_report,
    "summary": summary,
    "map": map_answer,
    "reduce": reduce_answer,
    "answer": context_answer,
    "map_points": map_points,
    "rate": rate,
    "drift_primer": drift_primer,
    "drift_local": drift_local,
    "keywords": list_terms,
    "zero_shot": without_data,
    "condense": lambda variables: variables["question"],
    "drift_hypothesis": lambda variables: variables["question"],
    "walk_answer": answer_with_chain,
    "next_questions": ask_next,
    "pick_facts": facts_in_common,
    "query_entities": list_subjects,
    "entity_questions": ask_around,
    "entity_summary": summarise_subject,
    "fgrag_answer": reduce_answer,
    "corpus_description": describe_corpus,
    "personas": list_personas,
    "tasks": list_tasks,
    "corpus_questions": list_questions,
    "judge": judge,
    "answer_claims": list_claims,
    "correct_answer": check_answer,
}


def answer(request: ChatRequest) -> ChatReply:
    """Answer one of our named prompts from `request.variables`; the messages are not read.

    A correction turn is answered as the first was: there is nothing to do better. Raises
    PermanentCallError for a prompt that this engine does not know.
    """
    name = request.first if request.prompt == CORRECT else request.prompt
    if name not in _ANSWERS:
        known = ", ".join(sorted(_ANSWERS))
        raise PermanentCallError(
            f"the offline engine does not answer the prompt {name!r} (it answers {known})"
        )
    text = _ANSWERS[name](request.variables)
    return ChatReply(text, "stop", Usage(reported=False))
