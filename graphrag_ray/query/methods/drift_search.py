"""DRIFT search: a first answer from the reports that are nearest, then what it leaves open looked up locally,
round by round, then one synthesis.

After Microsoft Research, "Introducing DRIFT Search: combining global and local search methods to improve
quality and efficiency" (October 2024): primer, follow-up, output hierarchy. The reports are those that are
nearest to the question and a hypothetical answer to it (HyDE: Gao et al. 2022, "Precise Zero-Shot Dense
Retrieval without Relevance Labels"). Where we differ: the primer is one call over one full context of
reports; a round asks the `drift_breadth` most promising of all questions that are open, also those of earlier
rounds, so the number of calls is known: at most 3 + depth × breadth. The synthesis is the reduce call of
global search over all answers by falling score.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
from pydantic import Field

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, read_reply, schema_of
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Context, clean
from graphrag_ray.query.methods.asked_hierarchy import (
    asked_hierarchy,
    check_embedded,
    communities_of,
    reports_of,
)
from graphrag_ray.query.methods.budget import asking, check_room, reducing, refuse_beyond
from graphrag_ray.query.methods.levels import is_auto, levels
from graphrag_ray.query.methods.local_search import DEFAULT_LEVEL, context_for
from graphrag_ray.query.methods.map_parts import Mapped, answered, merged
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    MapAnswer,
    asked_for,
    reduce_spec,
    request_of,
    resolved_answer,
    spec_of,
    variables_of,
    without_scores,
)
from graphrag_ray.query.methods.method import Dialogues, Given, Method, Question, Ran, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import nearest

NAME = "drift"
MAX_FOLLOW_UP_TOKENS = 150
"""A longer one is no question; it is left out."""
ASKED_TOKENS = 600
"""Of the questions that were looked up, as a model is shown them: the newest."""
ADVICE = "Raise the budget, or lower query.drift_depth or query.drift_breadth."


@dataclass
class _Found(Mapped):
    """What the rounds have found so far.

    asked   questions that were looked up, as `_plain` writes them
    open    questions that were not, by `_plain`
    """

    looked_up: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    open: dict[str, FollowUp] = field(default_factory=dict)


def search(question: Question, given: Given) -> Method:
    """Answer from reports near the question and from what its follow-up questions find. Raises UsageError for
    an index without a graph, or without embeddings of reports or entities, and for a question that leaves no
    room for data; LevelNotFound, BudgetSpent."""
    kind = asked_hierarchy(given, over="entity")
    check_embedded(given, NAME, [kind.reports, "entity"])
    query, text, settings = given.settings.query, question.text, given.settings
    specs = {name: drift_spec(name, settings, given.prompts) for name in (HYPOTHESIS, PRIMER, LOCAL)}
    # The offline engine cannot write what it has not read.
    offline = settings.model(settings.model_name("drift")).provider == "offline"
    has_hypothesis = query.drift_hypothesis and not offline
    beside = 2 * MAX_FOLLOW_UP_TOKENS + ASKED_TOKENS
    check_room(text, given, [specs[PRIMER], reduce_spec(settings, given.prompts)])
    check_room(text, given, [specs[LOCAL]], beside=beside)
    most = asking(text, given, "drift", specs[PRIMER], 1, query.context_tokens) + reducing(text, given)
    if has_hypothesis:
        most += asking(text, given, "drift", specs[HYPOTHESIS], 1, 0)
    calls = query.drift_depth * query.drift_breadth
    most += asking(text, given, "drift", specs[LOCAL], calls, calls * (query.context_tokens + beside))
    refuse_beyond(most, query, ADVICE)
    finest, of_level = yield from _level(question.level, kind)
    found = _Found(asked={_plain(text)})
    wanted = text
    if has_hypothesis:
        (ran,) = yield Dialogues("drift", [partial(hypothesis, text, specs[HYPOTHESIS])])
        wanted = f"{text}\n\n{ran.result}" if ran.result else text
    reports = yield from nearest([Search(kind.reports, "vector", wanted, 0, of_level)], given)
    if reports.numbering:
        start = partial(primer, text, reports, specs[PRIMER], query.drift_breadth)
        ran = yield Dialogues("drift", [start])
        _note(found, {"": reports}, ran, given)
    for _ in range(query.drift_depth):
        order = sorted(found.open.values(), key=lambda f: (-f.score, f.question))
        following = [f for f in order if f.score > 0][: query.drift_breadth]
        if not following:
            break
        contexts: dict[str, Context] = {}
        for follow_up in following:
            found.asked.add(_plain(follow_up.question))
            found.open.pop(_plain(follow_up.question))
            context = yield from context_for(follow_up.question, given, finest=finest)
            if context.numbering:  # one that finds nothing is not asked
                contexts[follow_up.question] = context
        found.looked_up += contexts
        ends = accumulate(given.count(f"{question}\n") for question in reversed(found.looked_up))
        shown = found.looked_up[len(found.looked_up) - sum(end <= ASKED_TOKENS for end in ends) :]
        ran = yield Dialogues(
            "drift",
            [
                partial(looked_up, text, asked, context, specs[LOCAL], query.drift_breadth, shown)
                for asked, context in contexts.items()
            ],
        )
        _note(found, contexts, ran, given)
    notes = [f"Looked up: {' '.join(found.looked_up)}"] if found.looked_up else []
    what = yield from merged(text, given, found)
    return (yield from answered(text, NAME, "records", what, notes=notes))


METHOD = MethodKind(
    search,
    asks=("embed", "drift", "reduce"),
    reads="reports, then what they leave open",
    levels=True,
    graph=True,
    instead="local",
    others=("hybrid", "global"),
    by_replies=True,
    reports=True,
)


def _level(level: str | int | None, kind: HierarchyKind) -> Generator[Any, Any, tuple[int, list[str]]]:
    """The level that is asked for, else the usual one, and the ids of its reports; of an index that has fewer
    levels, of its finest. Raises LevelNotFound."""
    reports, communities = yield reports_of(kind), communities_of(kind)
    known = levels(communities, reports, kind.name)
    finest = DEFAULT_LEVEL if is_auto(level) else known.parse(level, 0)
    if not known.n_levels:
        return finest, []
    rows = known.at(min(finest, known.n_levels - 1)).rows
    return finest, reports["id"].take(pa.array(rows)).to_pylist()


def _note(found: _Found, contexts: Mapping[str, Context], ran: Sequence[Ran[Step]], given: Given) -> None:
    """contexts: by the follow-up question of each; "" for the primer."""
    for (question, context), said in zip(contexts.items(), ran, strict=True):
        answers = None
        if said.result is not None:
            answer, heading = said.result.answer, f"**{question}** " if question else ""
            answers = [replace(answer, text=f"{heading}{answer.text}" if answer.text else "")]
            for follow_up in said.result.follow_ups:
                key = _plain(follow_up.question)
                if key in found.asked or given.count(follow_up.question) > MAX_FOLLOW_UP_TOKENS:
                    continue
                if key not in found.open or found.open[key].score < follow_up.score:
                    found.open[key] = follow_up
        found.add("drift", context, answers, said.error)


def _plain(question: str) -> str:
    """Alike for questions that differ in case, white space or punctuation alone."""
    return " ".join("".join(c if c.isalnum() else " " for c in question.casefold()).split())


HYPOTHESIS, PRIMER, LOCAL = "drift_hypothesis", "drift_primer", "drift_local"
HYPOTHESIS_TOKENS = 250
NO_SCORE = "`score` must be a number from 0 to 100"
NO_ANSWER = "`answer` must be a text that is not empty, or `score` must be 0"


class FollowUp(JsonReply):
    """score: how much its answer would add, 0–100."""

    question: str
    score: float = Field(default=50.0, le=100)
    """Without one, a question counts as half as promising as can be."""


class StepReply(JsonReply):
    answer: str = ""
    score: float = Field(le=100)
    follow_ups: list[FollowUp] = Field(default=[])


STEP_SCHEMA: Mapping[str, Any] = schema_of(StepReply)


@dataclass(frozen=True)
class Step:
    """What one context says, and what to ask next."""

    answer: MapAnswer
    follow_ups: Sequence[FollowUp] = ()


def drift_spec(prompt: str, settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """prompt: HYPOTHESIS, PRIMER or LOCAL."""
    most = HYPOTHESIS_TOKENS if prompt == HYPOTHESIS else settings.query.max_map_tokens
    return spec_of("drift", settings, prompts, most, prompt)


def hypothesis(question: str, spec: AnswerSpec) -> Dialogue[str]:
    """Ask for a paragraph that might answer the question; "" where the reply is empty."""
    reply: ChatReply = yield request_of(HYPOTHESIS, variables_of(question, spec), spec)
    return clean(reply.text).strip()


def primer(question: str, context: Context, spec: AnswerSpec, n_follow_ups: int) -> Dialogue[Step]:
    """Ask for a first answer and what to look up. Raises DialogueFailed as `_step`."""
    return (yield from _step(PRIMER, question, context, spec, n_follow_ups=str(n_follow_ups)))


def looked_up(
    question: str,
    follow_up: str,
    context: Context,
    spec: AnswerSpec,
    n_follow_ups: int,
    asked: Sequence[str] = (),
) -> Dialogue[Step]:
    """Ask for the answer to a follow-up question. asked: those that were looked up, this one among them.
    Raises DialogueFailed as `_step`."""
    own = {"n_follow_ups": str(n_follow_ups), "follow_up": follow_up, "asked": "\n".join(asked)}
    return (yield from _step(LOCAL, question, context, spec, **own))


def _step(prompt: str, question: str, context: Context, spec: AnswerSpec, **own: str) -> Dialogue[Step]:
    """Ask, and once more where the reply cannot be used. Raises DialogueFailed where the second cannot
    either."""
    read, own = (lambda reply: parse_step(reply.text)), {**own, "context": context.text}
    said, reply = yield from asked_for(prompt, question, spec, read, STEP_SCHEMA, **own)
    answer = resolved_answer(said.answer, said.score, reply, context.numbering)
    return Step(answer, said.follow_ups)


def parse_step(reply: str) -> StepReply | ReplyProblem:
    """The answer, its score and the follow-up questions of a reply. A score that is missing is a problem,
    never a zero; follow-up questions that are missing are none."""
    found = read_reply(reply, StepReply)
    if isinstance(found, ReplyProblem):
        return ReplyProblem(NO_SCORE)
    answer = without_scores(found.answer)
    if found.score > 0 and not answer:
        return ReplyProblem(NO_ANSWER)
    asked = [(clean(one.question).strip(), one.score) for one in found.follow_ups]
    follow_ups = [FollowUp(question=text, score=score) for text, score in asked if text]
    return StepReply(answer=answer, score=found.score, follow_ups=follow_ups)
