"""Rewrite follow-up questions so that they make sense without the conversation.

Search methods look up the words of a question. "And who opposed him?" says too little, so a model rewrites it
using the conversation. The offline engine cannot rewrite questions, and uses them unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from graphrag_ray.base import context_records
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Count, longest_prefix_that_fits, sanitize
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Dialogues, Method, Question, SearchEnv

STAGE = "condense"
HISTORY_TOKENS = 2_000
"""Maximum size of the end of the conversation that the model sees."""
ANSWER_TOKENS = 400
"""Maximum size of each earlier answer: follow-up questions mostly refer to its beginning."""
MAX_OUTPUT_TOKENS = 500
MAX_TURNS, MAX_CHARACTERS = 100, 20_000
"""Maximum number of turns that are considered, and of characters of each question or answer."""
MAX_ADDED_CHARACTERS = 2_000
"""A rewritten question that is longer by more than this is rejected as a different question."""

COLUMNS = ("question", "answer")
NOT_REWRITTEN = "The offline engine does not rewrite follow-up questions: this one was used unchanged."


def with_history(
    search: Callable[[Question, SearchEnv], Method], question: Question, env: SearchEnv
) -> Method:
    """Rewrite a question that has a history, then run a search method. A note gives the rewritten text."""
    if not question.history:
        return (yield from search(question, env))
    settings, rewritten, note = env.settings, question, NOT_REWRITTEN
    if settings.model(settings.model_name(STAGE)).provider != "offline":
        conversation = render_history(question.history, HISTORY_TOKENS, env.count)
        call = settings.call_parameters(STAGE, MAX_OUTPUT_TOKENS)
        dialogue = partial(condense, question.text, conversation, env.prompts[STAGE], call)
        (outcome,) = yield Dialogues(STAGE, [dialogue])
        if (text := outcome.result) is None:
            reason = f": {outcome.error}" if outcome.error else ""
            note = f"The follow-up question could not be rewritten and was used unchanged{reason}."
        else:
            rewritten = replace(question, text=text)
            note = "" if text.split() == question.text.split() else f"Understood as: {text}"
    answer: Answer = yield from search(rewritten, env)
    return replace(answer, question=question.text, notes=(*([note] if note else []), *answer.notes))


def render_history(turns: Sequence[tuple[str, str]], tokens: int, count: Count) -> str:
    """Render the end of a conversation as a table of at most `tokens` tokens, without references."""
    lines: list[str] = []
    heading = context_records.section_heading("Conversation", COLUMNS)
    for question, answer in reversed(turns[-MAX_TURNS:]):
        shortened = longest_prefix_that_fits(
            sanitize(answer[:MAX_CHARACTERS]), lambda text: count(text) <= ANSWER_TOKENS
        )
        lines.insert(0, context_records.csv_line([sanitize(question[:MAX_CHARACTERS]), shortened]))
        if count(heading + "".join(lines)) > tokens:
            del lines[0]
            break
    return heading + "".join(lines)


def condense(question: str, history: str, prompt: Prompt, call: CallParameters) -> Dialogue[str | None]:
    """Ask for a rewritten question that stands alone. Returns None if the reply is not usable."""
    variables = {"question": question, "history": history}
    reply: ChatReply = yield ChatRequest(STAGE, prompt.fill(variables), call, variables)
    text = reply.text.strip().strip('"“”')
    usable = text and reply.finish_reason != "length" and len(text) <= len(question) + MAX_ADDED_CHARACTERS
    return text if usable else None
