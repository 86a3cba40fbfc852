"""DRIFT search: a first answer from the reports that are nearest, then what it leaves open looked up locally,
round by round, then one synthesis.

After Microsoft Research, "Introducing DRIFT Search: combining global and local search methods to improve
quality and efficiency" (October 2024): primer, follow-up, output hierarchy. Where we differ: the primer is
one call over one full context of reports; a round asks the `drift_breadth` most promising of all questions
that are open, also those of earlier rounds, so the number of calls is known: at most 2 + depth × breadth. The
synthesis is the reduce call of global search over all answers by falling score.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from graphrag_ray.errors import GraphRagError
from graphrag_ray.query.answer import ContextUsed
from graphrag_ray.query.budget import Most, asking, check_room, reducing, refuse_beyond
from graphrag_ray.query.drift import LOCAL, PRIMER, FollowUp, Step, drift_spec, looked_up, primer
from graphrag_ray.query.embedded import check_embedded
from graphrag_ray.query.local_search import context_for, finest_level
from graphrag_ray.query.map_reduce import MapAnswer, reduce_answer, reduce_context, reduce_spec
from graphrag_ray.query.method import Dialogues, Given, Method, Question, Ran, Search
from graphrag_ray.query.nearest import nearest
from graphrag_ray.query.numbers import shown_in
from graphrag_ray.query.parts import Read, answered
from graphrag_ray.reports.context import Context

NAME = "drift"
MAX_FOLLOW_UP_TOKENS = 150
"""A longer one is no question; it is left out."""
ADVICE = "Raise the budget, or lower query.drift_depth or query.drift_breadth."


@dataclass
class _Found:
    """What the rounds have found so far.

    asked   questions that were looked up, as `_plain` writes them
    open    questions that were not, by `_plain`
    """

    contexts: list[ContextUsed] = field(default_factory=list)
    answers: list[MapAnswer] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    open: dict[str, FollowUp] = field(default_factory=dict)


def search(question: Question, given: Given) -> Method:
    """Answer from reports near the question and from what its follow-up questions find.

    Raises UsageError for an index without embeddings of reports or entities and for a question that leaves no
    room for data; LevelNotFound, BudgetSpent.
    """
    check_embedded(given, NAME, ["community_report", "entity"])
    query, text = given.settings.query, question.text
    _check(text, given)
    finest = yield from finest_level(question.level)
    found = _Found(asked={_plain(text)})
    reports = yield from nearest([Search("community_report", "vector", text, 0)], given)
    if reports.numbering:
        spec = drift_spec(PRIMER, given.settings, given.prompts)
        ran = yield Dialogues("drift", [partial(primer, text, reports, spec, query.drift_breadth)])
        _note(found, [""], [reports], ran, given)
    for _ in range(query.drift_depth):
        following = _most_promising(found.open.values(), query.drift_breadth)
        if not following:
            break
        yield from _round(text, given, found, following, finest)
    notes = [f"Looked up: {' '.join(found.looked_up)}"] if found.looked_up else []
    what = yield from _synthesis(text, given, found)
    return (yield from answered(text, NAME, "records", what, notes=notes))


def _check(text: str, given: Given) -> None:
    """Raises UsageError or BudgetSpent before anything is asked."""
    query, settings, prompts = given.settings.query, given.settings, given.prompts
    first, local = drift_spec(PRIMER, settings, prompts), drift_spec(LOCAL, settings, prompts)
    check_room(text, given, [first, reduce_spec(settings, prompts)])
    check_room(text, given, [local], beside=2 * MAX_FOLLOW_UP_TOKENS)
    most = asking(text, given, "drift", first, 1, query.context_tokens) + reducing(text, given)
    calls = query.drift_depth * query.drift_breadth
    each = query.context_tokens + 2 * MAX_FOLLOW_UP_TOKENS
    most += asking(text, given, "drift", local, calls, calls * each) if calls else Most()
    refuse_beyond(most, query, ADVICE)


def _round(
    text: str, given: Given, found: _Found, following: Sequence[FollowUp], finest: int
) -> Generator[Any, Any, None]:
    """Look up some questions and note what they found. One that finds nothing is not asked."""
    spec, breadth = drift_spec(LOCAL, given.settings, given.prompts), given.settings.query.drift_breadth
    contexts: dict[str, Context] = {}
    for follow_up in following:
        found.asked.add(_plain(follow_up.question))
        found.open.pop(_plain(follow_up.question))
        context = yield from context_for(follow_up.question, given, finest=finest)
        if context.numbering:
            contexts[follow_up.question] = context
    ran = yield Dialogues(
        "drift",
        [partial(looked_up, text, q, context, spec, breadth) for q, context in contexts.items()],
    )
    found.looked_up += contexts
    _note(found, list(contexts), list(contexts.values()), ran, given)


def _note(
    found: _Found, asked: Sequence[str], contexts: Sequence[Context], ran: Sequence[Ran[Step]], given: Given
) -> None:
    """asked: the follow-up question of each context; "" for the primer."""
    for question, context, said in zip(asked, contexts, ran, strict=True):
        used = ContextUsed(
            "drift", shown_in(context.numbering), context.n_tokens, context.left_out, context.cut
        )
        if said.result is None:
            found.errors.append(said.error)
        else:
            answer, heading = said.result.answer, f"**{question}** " if question else ""
            used = replace(used, score=answer.score)
            found.answers.append(replace(answer, text=f"{heading}{answer.text}" if answer.text else ""))
            for follow_up in said.result.follow_ups:
                _open(found, follow_up, given)
        found.contexts.append(used)


def _open(found: _Found, follow_up: FollowUp, given: Given) -> None:
    key = _plain(follow_up.question)
    known = found.open.get(key)
    if key in found.asked or given.count(follow_up.question) > MAX_FOLLOW_UP_TOKENS:
        return
    if known is None or known.score < follow_up.score:
        found.open[key] = follow_up


def _most_promising(open_: Iterable[FollowUp], n: int) -> list[FollowUp]:
    """By falling score; those of 0 are not looked up."""
    promising = [f for f in open_ if f.score > 0]
    return sorted(promising, key=lambda f: (-f.score, f.question))[:n]


def _synthesis(text: str, given: Given, found: _Found) -> Generator[Any, Any, Read]:
    to_reduce = reduce_context(found.answers, given.settings.query.context_tokens, given.count)
    spec = reduce_spec(given.settings, given.prompts)
    final = partial(reduce_answer, text, to_reduce, spec)
    (reduced,) = yield Dialogues("reduce", [final], last=True, numbering=to_reduce.numbering)
    if reduced.result is None:
        raise GraphRagError(f"the answer could not be put together: {reduced.error}")
    dropped = sum(a.dropped_references for a in found.answers)
    return Read(found.contexts, to_reduce, reduced.result, found.errors, dropped)


def _plain(question: str) -> str:
    """Alike for questions that differ in case, white space or punctuation alone."""
    return " ".join("".join(c if c.isalnum() else " " for c in question.casefold()).split())
