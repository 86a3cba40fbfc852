"""DRIFT search: answer from the nearest reports, look up open questions in rounds, and synthesise.

After Microsoft Research, "Introducing DRIFT Search: combining global and local search methods to improve
quality and efficiency" (October 2024): primer, follow-ups, output hierarchy. The reports are those nearest to
the question and a hypothetical answer (HyDE: Gao et al. 2022, "Precise Zero-Shot Dense Retrieval without
Relevance Labels").

Where we differ: the primer is one call over one context of reports. A round asks the `drift_breadth` most
promising open questions of all rounds, so the number of calls is at most 3 + depth × breadth. Contexts have
`drift_context_tokens`, and those of follow-up questions have no reports, because the primer has read them.
Questions with a low score (MIN_SCORE) or the words of an earlier one (`is_repeated`) are not looked up. The
synthesis is the reduce call of global search, over all answers by descending score and the questions for
which nothing was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
from pydantic import Field

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, parse_reply, schema_of
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.corpus.quotes import folded_words
from graphrag_ray.graph.report_context import Context, sanitize
from graphrag_ray.query.methods.budget import calls_bound, check_budget, check_context_fits, reduce_bound
from graphrag_ray.query.methods.hierarchy_choice import (
    check_embedded,
    communities_of,
    reports_of,
    resolve_hierarchy,
)
from graphrag_ray.query.methods.levels import build_levels, is_auto
from graphrag_ray.query.methods.local_search import DEFAULT_LEVEL, context_for
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    MapAnswer,
    ask_for_reply,
    build_request,
    build_spec,
    prompt_variables,
    reduce_spec,
    resolve_answer,
    strip_scores,
)
from graphrag_ray.query.methods.method import (
    DialogueOutcome,
    Dialogues,
    Method,
    Question,
    Search,
    SearchEnv,
    Steps,
)
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import nearest_context
from graphrag_ray.query.methods.partial_answers import PartialAnswers, combined_answer, reduce_answers

NAME = "drift"
MAX_FOLLOW_UP_TOKENS = 150
"""Longer follow-up questions are ignored."""
LISTED_TOKENS = 600
"""Maximum size of the list of earlier questions in a prompt. The newest are listed."""
MIN_SCORE = 50.0
"""Minimum score of a follow-up question: by the prompts, an answer without it would lack a part."""
REPEATED_SHARE = 0.7
"""A question with this share of the words of another one, and no others, repeats it."""
ADVICE = "Raise the budget, or lower query.drift_depth or query.drift_breadth."


@dataclass
class _State(PartialAnswers):
    """Partial answers, follow-up questions looked up, words of asked questions, and open questions."""

    looked_up: list[str] = field(default_factory=list)
    asked: list[frozenset[str]] = field(default_factory=list)
    open: dict[str, FollowUp] = field(default_factory=dict)


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the nearest reports and the answers to follow-up questions."""
    kind = resolve_hierarchy(env, over="entity")
    check_embedded(env, NAME, [kind.report_kind, "entity"])
    query, text, settings = env.settings.query, question.text, env.settings
    primer_env = _with_query(env, context_tokens=min(query.context_tokens, query.drift_context_tokens))
    # The primer has read the reports, so a follow-up question gets passages and elements.
    local_env = _with_query(primer_env, local_report_share=0.0)
    specs = {name: drift_spec(name, settings, env.prompts) for name in (HYPOTHESIS, PRIMER, LOCAL)}
    # The offline engine cannot write a hypothetical answer.
    offline = settings.model(settings.model_name("drift")).provider == "offline"
    has_hypothesis = query.drift_hypothesis and not offline
    extra = 2 * MAX_FOLLOW_UP_TOKENS + LISTED_TOKENS
    check_context_fits(text, env, [reduce_spec(settings, env.prompts)])
    check_context_fits(text, local_env, [specs[PRIMER], specs[LOCAL]], extra_tokens=extra)
    n_tokens = local_env.settings.query.context_tokens
    bound = calls_bound(text, env, "drift", specs[PRIMER], 1, n_tokens)
    bound += reduce_bound(text, env)
    if has_hypothesis:
        bound += calls_bound(text, env, "drift", specs[HYPOTHESIS], 1, 0)
    calls = query.drift_depth * query.drift_breadth
    bound += calls_bound(text, env, "drift", specs[LOCAL], calls, calls * (n_tokens + extra))
    check_budget(bound, query, ADVICE)
    finest, report_ids = yield from _reports_of_level(question.level, kind)
    state = _State(asked=[_words(text)])
    search_text = text
    if has_hypothesis:
        (outcome,) = yield Dialogues("drift", [partial(write_hypothesis, text, specs[HYPOTHESIS])])
        search_text = f"{text}\n\n{outcome.result}" if outcome.result else text
    reports = yield from nearest_context(
        [Search(kind.report_kind, "vector", search_text, 0, report_ids)], primer_env
    )
    if reports.numbering:
        dialogue = partial(primer, text, reports, specs[PRIMER], query.drift_breadth)
        outcomes = yield Dialogues("drift", [dialogue])
        _add_steps(state, {"": reports}, outcomes, env)
    for _ in range(query.drift_depth):
        follow_ups = _next_follow_ups(state, query.drift_breadth)
        if not follow_ups:
            break
        contexts: dict[str, Context] = {}
        for follow_up in follow_ups:
            context = yield from context_for(follow_up.question, local_env, finest=finest)
            if context.numbering:
                contexts[follow_up.question] = context
            else:
                state.not_found.append(follow_up.question)
        state.looked_up += contexts
        ends = accumulate(env.count(f"{question}\n") for question in reversed(state.looked_up))
        listed = state.looked_up[len(state.looked_up) - sum(end <= LISTED_TOKENS for end in ends) :]
        outcomes = yield Dialogues(
            "drift",
            [
                partial(look_up, text, follow_up, context, specs[LOCAL], query.drift_breadth, listed)
                for follow_up, context in contexts.items()
            ],
        )
        _add_steps(state, contexts, outcomes, env)
    notes = [f"Looked up: {' '.join(state.looked_up)}"] if state.looked_up else []
    yield from reduce_answers(text, env, state)
    return (yield from combined_answer(text, NAME, "records", state, notes=notes))


METHOD = MethodKind(
    search,
    stages=("embed", "rerank", "drift", "reduce"),
    description="reports, then answers to follow-up questions",
    levels=True,
    graph=True,
    alternative="local",
    suggestions=("hybrid", "global"),
    reply_dependent=True,
    reports=True,
)


def _reports_of_level(level: str | int | None, kind: HierarchyKind) -> Steps[tuple[int, list[str]]]:
    """Return the requested or default level, and the ids of its reports (at most the finest level's)."""
    reports, communities = yield reports_of(kind), communities_of(kind)
    known = build_levels(communities, reports, kind.name)
    finest = DEFAULT_LEVEL if is_auto(level) else known.parse(level, 0)
    if not known.n_levels:
        return finest, []
    rows = known.reports_of_level(min(finest, known.n_levels - 1)).rows
    return finest, reports["id"].take(pa.array(rows)).to_pylist()


def _with_query(env: SearchEnv, **changes: Any) -> SearchEnv:
    query = env.settings.query.model_copy(update=changes)
    return replace(env, settings=env.settings.model_copy(update={"query": query}))


def _next_follow_ups(state: _State, limit: int) -> list[FollowUp]:
    """Take the most promising open questions that repeat no earlier one. The others are dropped."""
    chosen: list[FollowUp] = []
    for follow_up in sorted(state.open.values(), key=lambda f: (-f.score, f.question)):
        if len(chosen) == limit:
            break
        del state.open[_normalized(follow_up.question)]
        words = _words(follow_up.question)
        if not any(is_repeated(words, earlier) for earlier in state.asked):
            state.asked.append(words)
            chosen.append(follow_up)
    return chosen


def _add_steps(
    state: _State, contexts: Mapping[str, Context], outcomes: Sequence[DialogueOutcome[Step]], env: SearchEnv
) -> None:
    """Add the results of a round. `contexts` maps follow-up questions, or "" for the primer, to contexts."""
    for (question, context), outcome in zip(contexts.items(), outcomes, strict=True):
        answers = None
        if outcome.result is not None:
            answer, heading = outcome.result.answer, f"**{question}** " if question else ""
            answers = [replace(answer, text=f"{heading}{answer.text}" if answer.text else "")]
            if question and not (answer.text and answer.score > 0):
                state.not_found.append(question)
            for follow_up in outcome.result.follow_ups:
                key = _normalized(follow_up.question)
                if follow_up.score < MIN_SCORE or env.count(follow_up.question) > MAX_FOLLOW_UP_TOKENS:
                    continue
                if key not in state.open or state.open[key].score < follow_up.score:
                    state.open[key] = follow_up
        state.add("drift", context, answers, outcome.error)


def _normalized(question: str) -> str:
    """Return a key that ignores case, whitespace and punctuation."""
    return " ".join("".join(c if c.isalnum() else " " for c in question.casefold()).split())


def _words(question: str) -> frozenset[str]:
    return frozenset(folded_words(question))


def is_repeated(words: frozenset[str], earlier: frozenset[str]) -> bool:
    """Whether the words of one question are among those of the other, and at least REPEATED_SHARE of them.

    If both have words that the other lacks, as in "What did Ann sell?" and "What did Bob sell?", they differ.
    A word with a digit, such as a year, always makes a difference.
    """
    fewer, more = sorted((words, earlier), key=len)
    if not fewer <= more or any(c.isdigit() for word in more - fewer for c in word):
        return False
    return len(fewer) >= REPEATED_SHARE * len(more)


HYPOTHESIS, PRIMER, LOCAL = "drift_hypothesis", "drift_primer", "drift_local"
HYPOTHESIS_TOKENS = 250
NO_SCORE = "`score` must be a number from 0 to 100"
EMPTY_ANSWER = "`answer` must be a text that is not empty, or `score` must be 0"


class FollowUp(JsonReply):
    """A follow-up question, and the expected usefulness of its answer, 0–100."""

    question: str
    score: float = Field(default=50.0, le=100)


class StepReply(JsonReply):
    answer: str = ""
    score: float = Field(le=100)
    follow_ups: list[FollowUp] = Field(default=[])


STEP_SCHEMA: Mapping[str, Any] = schema_of(StepReply)


@dataclass(frozen=True)
class Step:
    """The answer from one context, and the next questions."""

    answer: MapAnswer
    follow_ups: Sequence[FollowUp] = ()


def drift_spec(prompt: str, settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """Build the spec of HYPOTHESIS, PRIMER or LOCAL."""
    max_tokens = HYPOTHESIS_TOKENS if prompt == HYPOTHESIS else settings.query.max_map_tokens
    return build_spec("drift", settings, prompts, max_tokens, prompt)


def write_hypothesis(question: str, spec: AnswerSpec) -> Dialogue[str]:
    """Ask for a paragraph that might answer the question. Returns "" if the reply is empty."""
    reply: ChatReply = yield build_request(HYPOTHESIS, prompt_variables(question, spec), spec)
    return sanitize(reply.text).strip()


def primer(question: str, context: Context, spec: AnswerSpec, n_follow_ups: int) -> Dialogue[Step]:
    """Ask for a first answer and follow-up questions. Raises DialogueFailed."""
    return (yield from _step(PRIMER, question, context, spec, n_follow_ups=str(n_follow_ups)))


def look_up(
    question: str,
    follow_up: str,
    context: Context,
    spec: AnswerSpec,
    n_follow_ups: int,
    asked: Sequence[str] = (),
) -> Dialogue[Step]:
    """Ask for the answer to a follow-up question. `asked` lists earlier ones too. Raises DialogueFailed."""
    variables = {"n_follow_ups": str(n_follow_ups), "follow_up": follow_up, "asked": "\n".join(asked)}
    return (yield from _step(LOCAL, question, context, spec, **variables))


def _step(prompt: str, question: str, context: Context, spec: AnswerSpec, **variables: str) -> Dialogue[Step]:
    parsed, reply = yield from ask_for_reply(
        prompt,
        question,
        spec,
        lambda reply: parse_step(reply.text),
        STEP_SCHEMA,
        **variables,
        context=context.text,
    )
    answer = resolve_answer(parsed.answer, parsed.score, reply, context.numbering)
    return Step(answer, parsed.follow_ups)


def parse_step(reply: str) -> StepReply | ReplyProblem:
    """Parse a step. A missing score is a problem and not 0. Follow-up questions may be missing."""
    parsed = parse_reply(reply, StepReply)
    if isinstance(parsed, ReplyProblem):
        return ReplyProblem(NO_SCORE)
    answer = strip_scores(parsed.answer)
    if parsed.score > 0 and not answer:
        return ReplyProblem(EMPTY_ANSWER)
    cleaned = [(sanitize(f.question).strip(), f.score) for f in parsed.follow_ups]
    follow_ups = [FollowUp(question=text, score=score) for text, score in cleaned if text]
    return StepReply(answer=answer, score=parsed.score, follow_ups=follow_ups)
