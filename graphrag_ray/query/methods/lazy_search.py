"""Lazy search: answer questions about the whole corpus from an index that needed no model.

After Microsoft Research, "LazyGraphRAG: Setting a new standard for quality and cost" (November 2024). One
call breaks the question into subqueries. For each, chunks are ranked by similarity and communities by the
ranks of their best chunks, and a model tests chunks for relevance, best first, until the budget of tests is
spent or no community is left (`passage_tests.py`). Claims are extracted from the relevant chunks, grouped by
community, and combined into the answer.

Where we differ: a test covers a whole chunk, and one call tests several, with scores. Chunks are ranked by
keywords and embeddings. Tests that a subquery does not need go to the others. Claims answer the question and
its expanded form, and the last call only the question. Contexts of claims are filled with several small
communities. `docs/concepts/decisions/lazy-search.md` has the reasons.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, parse_reply, schema_of
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.schema import search_index_table
from graphrag_ray.base.wording import plural
from graphrag_ray.graph.context_plan import HEADING_TOKENS
from graphrag_ray.graph.report_context import Context, Count, longest_prefix_that_fits, sanitize
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.budget import (
    CostBound,
    calls_bound,
    check_budget,
    check_context_fits,
    has_budget,
    line_tokens,
    max_contexts,
    recount_tokens,
    reduce_bound,
)
from graphrag_ray.query.methods.document_filters import matching_chunks, matching_ids
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    ask_for_reply,
    build_spec,
    map_points,
    mapper,
    pack_in_order,
    parsed_or_none,
    reduce_spec,
)
from graphrag_ray.query.methods.method import (
    By,
    DialogueOutcome,
    Dialogues,
    Kind,
    Method,
    Question,
    Rows,
    Search,
    SearchEnv,
    Steps,
)
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import rank
from graphrag_ray.query.methods.partial_answers import (
    PartialAnswers,
    combined_answer,
    map_contexts,
    reduce_answers,
)
from graphrag_ray.query.methods.passage_tests import Batch, ChunkCommunities, PassageTests
from graphrag_ray.query.methods.record_loading import load_records
from graphrag_ray.query.methods.single_context import context_used

NAME = "lazy"
MAX_SUBQUERIES = 5
NEAR_CONCEPTS, MAX_CONCEPTS = 100, 30
"""Number of entities nearest to the question, and how many of them, the most frequent, a prompt shows."""
CONCEPT_CHARACTERS = 60
RANKED_PER_TEST, MIN_RANKED = 10, 2_000
"""Number of chunks that are ranked for a subquery: per test of its share of the budget, and at least. Usual
budgets rank the same chunks, so that a larger one can reuse cached tests of a smaller one."""
DEVIATIONS, MIN_EVERYWHERE = 3, 0.1
"""An entity is ignored if the number of its chunks exceeds the mean by these standard deviations, and this
share of all chunks."""
PASSAGES_PER_CALL = 8
"""Maximum number of passages that a call tests. More would dilute the model's attention."""
PASSAGES_PER_ROUND = 2 * PASSAGES_PER_CALL
"""Maximum number of passages of a subquery that are tested at the same time."""
ADVICE = "Raise the budget, or ask with --method vector."
NO_COMMUNITIES = (
    "The index has no communities, so passages were tested in the order of their similarity. To add "
    "communities without a model call, run `graphrag-ray index --build names` again."
)
NO_GRAPH = "The index has no graph, so passages were tested in the order of their similarity."


@dataclass
class _State:
    """The tests of all subqueries.

    Attributes:
        tested: Contexts and errors of the calls that test passages.
        scores: Id of a relevant chunk -> its highest score, 0–100.
        n_tests: Number of tested passages. One that is tested for two subqueries counts twice.
        n_failed: How many of them got no usable reply.
    """

    tested: PartialAnswers = field(default_factory=PartialAnswers)
    scores: dict[str, float] = field(default_factory=dict)
    n_tests: int = 0
    n_failed: int = 0


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the claims of passages that a model finds relevant."""
    text, query = question.text, env.settings.query
    plan, test = subquery_spec(env.settings, env.prompts), relevance_spec(env.settings, env.prompts)
    claims, _ = mapper(env.settings, env.prompts, points=True)
    check_context_fits(text, env, [test, claims], extra_tokens=2 * MAX_EXPANDED_TOKENS)
    check_context_fits(text, env, [reduce_spec(env.settings, env.prompts)])
    n_tests = yield from _tests_within_budget(text, env, plan, test, claims)
    chunks = yield from matching_chunks(question.where)
    concepts = yield from _concepts(text, env, chunks)
    (outcome,) = yield Dialogues(PLAN_STAGE, [partial(break_down, text, concepts, plan)])
    subqueries, notes = Subqueries((text,), ""), list[str]()
    if outcome.result is not None:
        subqueries = _shortened(outcome.result, env.count)
        notes.append(f"Subqueries: {' '.join(subqueries.texts)}")
    else:
        reason = f": {outcome.error}" if outcome.error else "."
        notes.append(f"The question could not be broken into subqueries{reason}")
    n_ranked = max(MIN_RANKED, RANKED_PER_TEST * n_tests // len(subqueries.texts))
    ids = yield from matching_ids("text_unit", chunks)
    ranked = []
    for subquery in subqueries.texts:
        ranked.append((yield from _nearest("text_unit", subquery, env, n_ranked, ids)))
    communities = yield from _communities_of({id_ for order in ranked for id_ in order}, env)
    if _communities_table(env) is None:
        notes.append(NO_COMMUNITIES if env.n_rows.get("entities") else NO_GRAPH)
    running = [PassageTests(order, communities) for order in ranked]
    state = yield from _test_passages(subqueries.texts, running, n_tests, env, test)
    notes += _notes(state, n_tests)
    parts = state.tested
    if state.scores:
        parts = PartialAnswers()
        best_first = sorted(state.scores, key=lambda id_: (-state.scores[id_], id_))
        records = yield from load_records(
            (("text_unit", id_) for id_ in communities.grouped(best_first)), env, distinct_texts=True
        )
        contexts = pack_in_order(records, query.context_tokens, env.count)
        asked = f"{text}\n\n{subqueries.expanded}".strip()
        yield from map_contexts(asked, contexts, claims, map_points, parts)
    yield from reduce_answers(text, env, parts)
    answer: Answer = yield from combined_answer(text, NAME, "passages", parts, notes=notes)
    if parts is state.tested:
        return answer
    return replace(
        answer,
        contexts=(*state.tested.contexts, *answer.contexts),
        failed_parts=answer.failed_parts + len(state.tested.errors),
    )


METHOD = MethodKind(
    search,
    stages=("embed", "steps", "rate", "map", "reduce"),
    description="passages of the whole corpus that a model finds relevant",
    suggestions=("hybrid", "global"),
    option=("budget_tests", "lazy_tests"),
    reply_dependent=True,
)


def _tests_within_budget(
    text: str, env: SearchEnv, plan: AnswerSpec, test: AnswerSpec, claims: AnswerSpec
) -> Steps[int]:
    """Return `query.lazy_tests`, or the greatest number of tests that cannot exceed the question's budget.

    Raises:
        BudgetSpent: A single test could exceed it.
    """
    query = env.settings.query
    if not has_budget(query):
        return query.lazy_tests
    rows = yield from recount_tokens("text_unit", (yield Rows("text_units", ["id", "n_tokens"])), env)
    room = query.context_tokens - HEADING_TOKENS
    longest = min(int(line_tokens(rows["n_tokens"].to_numpy()).max(initial=0)), room)
    fixed = calls_bound(text, env, PLAN_STAGE, plan, 1, MAX_CONCEPT_TOKENS) + reduce_bound(text, env)

    def bound(n: int) -> CostBound:
        # In the worst case, each call tests one passage. A test sees a subquery instead of the question.
        data = n * (longest + HEADING_TOKENS)
        tests = calls_bound(text, env, "rate", test, n, data + 2 * n * MAX_SUBQUERY_TOKENS)
        calls = max_contexts(np.full(n, longest), room)
        reading = calls_bound(text, env, "map", claims, calls, data + 2 * calls * MAX_EXPANDED_TOKENS)
        return fixed + tests + reading

    n = bisect_left(range(1, query.lazy_tests + 1), True, key=lambda n: not bound(n).within(query))
    if not n:
        check_budget(bound(1), query, ADVICE)
    return n


def _nearest(kind: Kind, text: str, env: SearchEnv, k: int, ids: Sequence[str] | None) -> Steps[list[str]]:
    """List the ids of the records nearest to a text, by embeddings and keywords, or by keywords alone."""
    indexed: list[By] = ["vector"] if env.n_rows.get(f"embeddings_{kind}") else []
    if search_index_table(kind, "keyword") in env.n_rows:
        indexed.append("keyword")
    order = yield from rank([Search(kind, by, text, only_ids=ids) for by in indexed], env, k)
    return [id_ for _, id_ in order[:k]]


def _concepts(text: str, env: SearchEnv, chunks: Collection[str] | None) -> Steps[list[str]]:
    """List the most frequent of the entities nearest to the question, in the chunks that it allows."""
    if not env.n_rows.get("entities"):
        return []
    ids = yield from matching_ids("entity", chunks)
    near = yield from _nearest("entity", text, env, NEAR_CONCEPTS, ids)
    rows = (yield Rows("entities", ["id", "title", "frequency"], near)).to_pylist()
    rows.sort(key=lambda row: (-(row["frequency"] or 0), row["id"]))
    return [sanitize(row["title"][:CONCEPT_CHARACTERS]) for row in rows[:MAX_CONCEPTS]]


def _shortened(subqueries: Subqueries, count: Count) -> Subqueries:
    def shorten(text: str, limit: int) -> str:
        if count(text) <= limit:
            return text
        return longest_prefix_that_fits(text, lambda start: count(start) <= limit)

    texts = tuple(shorten(text, MAX_SUBQUERY_TOKENS) for text in subqueries.texts)
    return Subqueries(texts, shorten(subqueries.expanded, MAX_EXPANDED_TOKENS))


def _communities_table(env: SearchEnv) -> str | None:
    """Return the table of the first hierarchy over entities that the index has."""
    tables = [kind.communities_table for kind in HIERARCHIES.values() if kind.member_kind == "entity"]
    return next((table for table in tables if env.n_rows.get(table)), None)


def _communities_of(chunks: Collection[str], env: SearchEnv) -> Steps[ChunkCommunities]:
    """Read the communities of the entities in these chunks. An index without a graph has none."""
    table = _communities_table(env)
    if table is None or not chunks:
        return ChunkCommunities()
    units = yield Rows("text_units", ["id", "entity_ids"], sorted(chunks))
    entities = _not_everywhere(units["entity_ids"])
    columns = ["community", "parent", "entity_ids"]
    rows = yield Rows(table, columns, entities, by="entity_ids", trim_lists=True)
    parent, of_entity = dict[int, int](), dict[str, list[int]]()
    wanted = set(entities)
    for row in rows.to_pylist():
        parent[row["community"]] = row["parent"]
        for id_ in wanted.intersection(row["entity_ids"]):
            of_entity.setdefault(id_, []).append(row["community"])
    of_chunk = {
        id_: frozenset(c for entity in members or () for c in of_entity.get(entity, ()))
        for id_, members in zip(units["id"].to_pylist(), units["entity_ids"].to_pylist(), strict=True)
    }
    return ChunkCommunities.build(parent, of_chunk)


def _not_everywhere(entity_ids: pa.ChunkedArray) -> list[str]:
    """List the entities in these lists of chunks, except those in far more chunks than others.

    The name of a host, for example, would put all chunks into one community.
    """
    counts = pc.value_counts(pc.list_flatten(entity_ids).combine_chunks())
    n_chunks = counts.field("counts").to_numpy().astype(float)
    if not len(n_chunks):
        return []
    usual = n_chunks <= max(MIN_EVERYWHERE * len(entity_ids), n_chunks.mean() + DEVIATIONS * n_chunks.std())
    ids: list[str] = counts.field("values").filter(pa.array(usual)).to_pylist()
    return ids


def _test_passages(
    subqueries: Sequence[str], running: Sequence[PassageTests], n_tests: int, env: SearchEnv, spec: AnswerSpec
) -> Steps[_State]:
    """Test passages of all subqueries in rounds, until the tests are spent or no passage is left."""
    state, query = _State(), env.settings.query
    while True:
        active = [n for n, tests in enumerate(running) if not tests.ended]
        taken: list[tuple[int, list[Batch]]] = []
        for position, n in enumerate(active):
            # Equal shares of the remaining tests, so that a subquery can use those that others do not need.
            share = (n_tests - state.n_tests) // (len(active) - position)
            batches = running[n].next_batches(min(PASSAGES_PER_ROUND, share))
            state.n_tests += sum(len(batch.chunks) for batch in batches)
            taken.append((n, batches))
        ids = dict.fromkeys(id_ for _, batches in taken for batch in batches for id_ in batch.chunks)
        if not ids:
            return state
        loaded = {r.id: r for r in (yield from load_records((("text_unit", id_) for id_ in ids), env))}
        calls: list[tuple[int, Context]] = []
        for n, batches in taken:
            records = [loaded[id_] for batch in batches for id_ in batch.chunks if id_ in loaded]
            packed = pack_in_order(records, query.context_tokens, env.count, PASSAGES_PER_CALL)
            calls += [(n, context) for context in packed]
        outcomes: list[DialogueOutcome[Mapping[str, float]]] = yield Dialogues(
            "rate", [partial(rate_passages, subqueries[n], context, spec) for n, context in calls]
        )
        results: dict[tuple[int, str], float | None] = {}
        for (n, context), outcome in zip(calls, outcomes, strict=True):
            score = max(outcome.result.values(), default=0.0) if outcome.result is not None else None
            state.tested.contexts.append(replace(context_used("rate", context), score=score))
            for id_ in context.numbering.values():
                results[n, id_] = None if outcome.result is None else outcome.result.get(id_, 0.0)
            if outcome.result is None:
                state.tested.errors.append(outcome.error)
                state.n_failed += len(context.numbering)
        if len(state.tested.errors) == len(state.tested.contexts) > 1:  # The endpoint may be down.
            return state
        for n, batches in taken:
            for batch in batches:
                scores = [results.get((n, id_), 0.0) for id_ in batch.chunks]
                found = any(scores)
                running[n].add(batch, None if not found and None in scores else found)
                for id_, passage_score in zip(batch.chunks, scores, strict=True):
                    if passage_score:
                        state.scores[id_] = max(passage_score, state.scores.get(id_, 0.0))


def _notes(state: _State, n_tests: int) -> list[str]:
    """Describe the tests."""
    contexts, errors = state.tested.contexts, state.tested.errors
    notes = [
        f"Tested {plural(state.n_tests, 'passage')} (at most {n_tests:,}) in "
        f"{plural(len(contexts), 'call')}; {len(state.scores):,} relevant."
    ]
    if not state.scores and not errors and state.n_tests == n_tests:
        notes.append("To test more passages, raise query.lazy_tests (--budget-tests).")
    if errors:
        notes.append(
            f"{plural(state.n_failed, 'passage')} could not be tested, because {len(errors)} of these calls "
            f"failed. Most common reason: {Counter(errors).most_common(1)[0][0]}"
        )
    return notes


SUBQUERIES, TEST = "lazy_subqueries", "lazy_test"
"""Names of prompts."""
PLAN_STAGE = "steps"
MAX_PLAN_TOKENS = 600
"""Maximum size of a reply with all subqueries and the expanded question."""
MAX_TEST_TOKENS = 300
MAX_CONCEPT_TOKENS = MAX_CONCEPTS * CONCEPT_CHARACTERS
MAX_SUBQUERY_TOKENS, MAX_EXPANDED_TOKENS = 150, 300
"""Longer ones are cut, because every test repeats a subquery."""
DEFAULT_SCORE = 50.0
"""Score of a passage that is listed as relevant without a score."""


class SubqueriesReply(JsonReply):
    subqueries: list[str]
    expanded: str = ""

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "subqueries": ("queries", "subquestions", "questions"),
        "expanded": ("expanded(query|question)",),
    }


class RelevantPassage(JsonReply):
    id: int = 0
    score: float | None = Field(default=None, le=100)

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "id": ("passage", "passageid", "source", "sourceid", "number"),
        "score": ("relevance", "rating"),
    }


class RelevantReply(JsonReply):
    relevant: list[RelevantPassage]

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"relevant": ("relevantpassages", "passages")}


SUBQUERIES_SCHEMA: Mapping[str, Any] = schema_of(SubqueriesReply)
TEST_SCHEMA: Mapping[str, Any] = schema_of(RelevantReply)


@dataclass(frozen=True, slots=True)
class Subqueries:
    """The subqueries of a question, and the question with what they ask for, or ""."""

    texts: tuple[str, ...]
    expanded: str


def subquery_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec(PLAN_STAGE, settings, prompts, MAX_PLAN_TOKENS, SUBQUERIES)


def relevance_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec("rate", settings, prompts, MAX_TEST_TOKENS, TEST)


def break_down(question: str, concepts: Sequence[str], spec: AnswerSpec) -> Dialogue[Subqueries | None]:
    """Ask for subqueries, given names from the corpus. Returns None if no reply has any."""
    variables = {"concepts": "\n".join(concepts) or "(none)", "n_questions": str(MAX_SUBQUERIES)}
    return (
        yield from parsed_or_none(
            SUBQUERIES, question, spec, parse_subqueries, SUBQUERIES_SCHEMA, **variables
        )
    )


def rate_passages(subquery: str, context: Context, spec: AnswerSpec) -> Dialogue[Mapping[str, float]]:
    """Ask which passages of a context are relevant. Returns scores of the relevant ones, 1–100, by id.

    The request contains nothing but the subquery and the passages, so a cached reply serves any question.

    Raises:
        DialogueFailed: Neither the reply nor its correction is usable.
    """
    known = {n: id_ for (_, n), id_ in context.numbering.items()}

    def parse(reply: ChatReply) -> Mapping[int, float] | ReplyProblem:
        return parse_tests(reply.text, known, reply.finish_reason)

    scores, _ = yield from ask_for_reply(TEST, subquery, spec, parse, TEST_SCHEMA, context=context.text)
    return {known[n]: score for n, score in scores.items()}


def parse_subqueries(reply: str) -> Subqueries | ReplyProblem:
    """Parse the distinct subqueries of a reply, and the expanded question if it has one."""
    parsed = parse_reply(reply, SubqueriesReply)
    if isinstance(parsed, ReplyProblem):
        return parsed
    cleaned = (sanitize(text).strip() for text in parsed.subqueries)
    distinct = {" ".join(text.casefold().split()): text for text in cleaned if text}
    if not distinct:
        return ReplyProblem("its list `subqueries` is empty")
    return Subqueries(tuple(islice(distinct.values(), MAX_SUBQUERIES)), sanitize(parsed.expanded).strip())


def parse_tests(
    reply: str, known: Collection[int], finish_reason: str = "stop"
) -> dict[int, float] | ReplyProblem:
    """Parse the scores of relevant passages by number. Of several scores of a passage, the highest counts.

    Unknown numbers are ignored unless all are unknown. An entry without a readable number is a problem,
    because it may stand for any passage.
    """
    parsed = parse_reply(reply, RelevantReply, finish_reason)
    if isinstance(parsed, ReplyProblem):
        return parsed
    scores: dict[int, float] = {}
    for passage in parsed.relevant:
        if passage.id in known:
            score = DEFAULT_SCORE if passage.score is None else passage.score
            scores[passage.id] = max(score, scores.get(passage.id, 0.0))
    if parsed.relevant and (not scores or any(passage.id == 0 for passage in parsed.relevant)):
        return ReplyProblem("an `id` is not the number of a passage")
    return {n: score for n, score in scores.items() if score > 0}
