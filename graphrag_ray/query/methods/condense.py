"""Follow-up questions: what they take from the conversation is written into them before they are looked up.

Every way of answering looks up what a question says. "And who opposed him?" says too little; a model that
sees what was said before writes out what is meant. The offline engine cannot: it takes such a question as it
stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from graphrag_ray.base import records
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Count, clean, longest_start
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Dialogues, Given, Method, Question

STAGE = "condense"
HISTORY_TOKENS = 2_000
"""Of the conversation, as a model is shown it: its end, as far as it fits."""
ANSWER_TOKENS = 400
"""Of one answer in it: what a question leans on is mostly said at the beginning."""
MAX_OUTPUT_TOKENS = 500
MAX_TURNS, MAX_CHARACTERS = 100, 20_000
"""Of the conversation's end that is looked at, and of a question or an answer in it."""
MORE_CHARACTERS = 2_000
"""A question that grows by more is not the same question any more."""

COLUMNS = ("question", "answer")
NOT_REWRITTEN = (
    "The offline engine does not write out what a question takes from the conversation: this one was asked "
    "as it stands."
)


def following(search: Callable[[Question, Given], Method], question: Question, given: Given) -> Method:
    """A search method that first writes out what a question takes from its history, if it has one. The answer
    is to the question as it was asked; a note says how it was understood."""
    if not question.history:
        return (yield from search(question, given))
    settings, understood, note = given.settings, question, NOT_REWRITTEN
    if settings.model(settings.model_name(STAGE)).provider != "offline":
        shown = history(question.history, HISTORY_TOKENS, given.count)
        call = settings.call(STAGE, MAX_OUTPUT_TOKENS)
        (ran,) = yield Dialogues(STAGE, [partial(condense, question.text, shown, given.prompts[STAGE], call)])
        if ran.result is None:
            why = f": {ran.error}" if ran.error else ""
            note = f"What this question takes from the conversation could not be written out{why}."
        else:
            understood = replace(question, text=ran.result)
            note = "" if ran.result.split() == question.text.split() else f"Understood as: {ran.result}"
    found: Answer = yield from search(understood, given)
    return replace(found, question=question.text, notes=(*([note] if note else []), *found.notes))


def history(turns: Sequence[tuple[str, str]], tokens: int, count: Count) -> str:
    """The end of a conversation as a table of at most so many tokens, without references, which mean nothing
    in it."""
    lines: list[str] = []
    heading = records.heading("Conversation", COLUMNS)
    for question, answer in reversed(turns[-MAX_TURNS:]):
        cut = longest_start(clean(answer[:MAX_CHARACTERS]), lambda text: count(text) <= ANSWER_TOKENS)
        lines.insert(0, records.line([clean(question[:MAX_CHARACTERS]), cut]))
        if count(heading + "".join(lines)) > tokens:
            del lines[0]
            break
    return heading + "".join(lines)


def condense(question: str, history: str, prompt: Prompt, call: CallParameters) -> Dialogue[str | None]:
    """The question as it is understood without its history; None where the reply is none."""
    variables = {"question": question, "history": history}
    reply: ChatReply = yield ChatRequest(STAGE, prompt.fill(variables), call, variables)
    text = reply.text.strip().strip('"“”')
    usable = text and reply.finish_reason != "length" and len(text) <= len(question) + MORE_CHARACTERS
    return text if usable else None
