"""Map the prompts that the offline engine supports to functions that reply to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphrag_ray.base.declarations import CORRECTION_PROMPT
from graphrag_ray.base.errors import PermanentCallError
from graphrag_ray.base.messages import ChatReply, ChatRequest, Usage
from graphrag_ray.offline import answerer, digests, evaluation_replies, question_terms
from graphrag_ray.offline.extraction_reply import claim_records, extract_records

_ANSWERS: Mapping[str, Callable[[Mapping[str, str]], str]] = {
    "document_context": digests.document_note,
    **dict.fromkeys(("extract", "extract_schema"), extract_records),
    "glean_check": lambda variables: "N",
    **dict.fromkeys(
        ("glean_missing", "glean", "glean_schema", "correct_schema"),
        lambda variables: variables.get("completion", "<|COMPLETE|>"),
    ),
    "claims": claim_records,
    "describe": digests.description,
    "about": digests.about,
    "report": digests.write_report,
    "summary": digests.summary,
    "corpus_description": digests.describe_corpus,
    "map": answerer.map_answer,
    "reduce": answerer.reduce_answer,
    "answer": answerer.context_answer,
    "map_points": answerer.map_points,
    "rate": answerer.rate,
    "drift_primer": answerer.drift_step,
    "drift_local": answerer.drift_step,
    "lazy_subqueries": question_terms.list_subqueries,
    "lazy_test": answerer.list_relevant,
    "walk_answer": answerer.answer_with_chain,
    "next_questions": answerer.ask_next,
    "pick_facts": answerer.facts_in_common,
    "entity_questions": answerer.ask_around,
    "entity_summary": answerer.summarise_subject,
    "fgrag_answer": answerer.reduce_answer,
    "keywords": question_terms.list_terms,
    "query_entities": question_terms.list_subjects,
    "condense": lambda variables: variables["question"],
    "drift_hypothesis": lambda variables: variables["question"],
    "zero_shot": lambda variables: "The offline engine cannot answer a question without data.",
    "personas": evaluation_replies.list_personas,
    "tasks": evaluation_replies.list_tasks,
    "corpus_questions": evaluation_replies.list_questions,
    "judge": evaluation_replies.judge,
    "judge_joint": evaluation_replies.judge_joint,
    "answer_claims": evaluation_replies.list_claims,
    "correct_answer": evaluation_replies.check_answer,
    "check_statements": evaluation_replies.check_statements,
}


def answer(request: ChatRequest) -> ChatReply:
    """Reply to one of our prompts, using only `request.variables`, not the messages.

    A correction turn gets the same reply as the first turn. Raises PermanentCallError for an unknown prompt.
    """
    name = request.first_prompt if request.prompt == CORRECTION_PROMPT else request.prompt
    if name not in _ANSWERS:
        known = ", ".join(sorted(_ANSWERS))
        raise PermanentCallError(
            f"The offline engine cannot answer the prompt {name!r}. Known prompts: {known}."
        )
    return ChatReply(_ANSWERS[name](request.variables), "stop", Usage(reported=False))
