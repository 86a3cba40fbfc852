"""Follow-up questions: rewrite them to include what they take from the conversation.

Search methods look up the words of a question. "And who opposed him?" says too little, so a model that sees
the conversation writes out what is meant. The offline engine cannot, and uses the question unchanged.
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
"""Tokens of the conversation's end that the model sees."""
ANSWER_TOKENS = 400
"""Tokens of each earlier answer: follow-up questions mostly refer to its beginning."""
MAX_OUTPUT_TOKENS = 500
MAX_TURNS, MAX_CHARACTERS = 100, 20_000
"""Turns of the conversation, and characters of each question or answer, that are considered."""
MORE_CHARACTERS = 2_000
"""A rewritten question that grows by more is rejected as a different question."""

COLUMNS = ("question", "answer")
NOT_REWRITTEN = "The offline engine does not rewrite follow-up questions: this one was used unchanged."


def with_history(
    search: Callable[[Question, SearchEnv], Method], question: Question, env: SearchEnv
) -> Method:
    """Run a search method, after rewriting a question that has a history. A note tells the new text."""
    if not question.history:
        return (yield from search(question, env))
    settings, understood, note = env.settings, question, NOT_REWRITTEN
    if settings.model(settings.model_name(STAGE)).provider != "offline":
        shown = history(question.history, HISTORY_TOKENS, env.count)
        call = settings.call_parameters(STAGE, MAX_OUTPUT_TOKENS)
        (ran,) = yield Dialogues(STAGE, [partial(condense, question.text, shown, env.prompts[STAGE], call)])
        if ran.result is None:
            why = f": {ran.error}" if ran.error else ""
            note = f"The follow-up question could not be rewritten and was used unchanged{why}."
        else:
            understood = replace(question, text=ran.result)
            note = "" if ran.result.split() == question.text.split() else f"Understood as: {ran.result}"
    answer: Answer = yield from search(understood, env)
    return replace(answer, question=question.text, notes=(*([note] if note else []), *answer.notes))


def history(turns: Sequence[tuple[str, str]], tokens: int, count: Count) -> str:
    """Render the end of a conversation as a table of at most `tokens`, without references."""
    lines: list[str] = []
    heading = context_records.section_heading("Conversation", COLUMNS)
    for question, answer in reversed(turns[-MAX_TURNS:]):
        cut = longest_prefix_that_fits(
            sanitize(answer[:MAX_CHARACTERS]), lambda text: count(text) <= ANSWER_TOKENS
        )
        lines.insert(0, context_records.csv_line([sanitize(question[:MAX_CHARACTERS]), cut]))
        if count(heading + "".join(lines)) > tokens:
            del lines[0]
            break
    return heading + "".join(lines)


def condense(question: str, history: str, prompt: Prompt, call: CallParameters) -> Dialogue[str | None]:
    """Ask for the question rewritten to stand alone; None if the reply is not usable."""
    variables = {"question": question, "history": history}
    reply: ChatReply = yield ChatRequest(STAGE, prompt.fill(variables), call, variables)
    text = reply.text.strip().strip('"“”')
    usable = text and reply.finish_reason != "length" and len(text) <= len(question) + MORE_CHARACTERS
    return text if usable else None
