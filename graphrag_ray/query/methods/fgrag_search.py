"""FG-RAG (Hong et al. 2025): what a question is about, each of these things looked up and summarised for the
question, one answer.

Query entities: one call lists what the question is about. Questions: for each, what a user would ask around
it. Context-aware expansion: from the entities nearest to it (weak context) and those nearest to these
(strong context), breadth-first over the graph. Query-level summary: one call for each query entity writes
what its entities and relationships say to its questions. Answer: one call draws the summaries together, as
the reduce call of global search does with its answers. So a question has at most 2 + 2n calls, those of one
step at once.

Where we differ: entities that a query entity names literally come first in its weak context, since their
embeddings, of name and description, need not be the nearest; a summary may say that its records are beside
the question, and is left out then; where no query entity is found, the question as a whole is the only one,
and its only question (the authors' code adds it always); the expansion has two more bounds (`expansion.py`);
and of its 150 descriptions a summary is shown the first that fit into `query.fgrag_tokens`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from graphrag_ray.base.ids import entity_id, entity_key
from graphrag_ray.base.schema import ENDS
from graphrag_ray.base.wording import plural
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.answer import ContextUsed
from graphrag_ray.query.methods.asked_hierarchy import check_graph
from graphrag_ray.query.methods.budget import (
    MESSAGE_TOKENS,
    asking,
    check_room,
    instructions,
    refuse_beyond,
    reply_tokens,
)
from graphrag_ray.query.methods.cited_numbers import shown_in
from graphrag_ray.query.methods.embedded import check_embedded
from graphrag_ray.query.methods.expansion import MOST_LINKS, Expansion, Reached, expand
from graphrag_ray.query.methods.fgrag_dialogues import (
    ANSWER,
    ENTITIES,
    QUESTIONS,
    STAGE,
    SUMMARY,
    QueryEntities,
    entity_questions,
    entity_summary,
    fgrag_spec,
    is_insufficient,
    query_entities,
)
from graphrag_ray.query.methods.filling import Share, fill
from graphrag_ray.query.methods.local_ranking import Row
from graphrag_ray.query.methods.local_search import EDGES
from graphrag_ray.query.methods.map_parts import Mapped, answered, merged
from graphrag_ray.query.methods.map_reduce import MapAnswer, reduce_spec
from graphrag_ray.query.methods.method import Dialogues, Given, Hit, Kind, Method, Question, Ran, Rows, Search
from graphrag_ray.query.methods.question_names import Mentions, mentions, rarest_first
from graphrag_ray.query.methods.record_rows import looked_up

NAME = "fgrag"
NEAREST = 20
"""Entities of the weak context, and of the strong one; as in the paper."""
ADVICE = "Raise the budget, or lower query.fgrag_entities or query.fgrag_tokens."


def search(question: Question, given: Given) -> Method:
    """Answer from what stands around each thing that the question is about.

    Raises UsageError for an index without a graph or embeddings of entities, and for a question that leaves
    no room for data; BudgetSpent.
    """
    check_graph(given)
    check_embedded(given, NAME, ["entity"])
    text = question.text
    _check(text, given)
    named, notes = yield from _named(text, given)
    names = named.names if named else (text,)
    questions = yield from _questions(text, named, given, notes)
    contexts = yield from _contexts(names, given)
    said = yield from _summaries(text, names, questions, contexts, given)
    what = yield from merged(text, given, said.contexts, said.answers, said.errors, ANSWER)
    if is_insufficient(what.reduced.text):
        what = replace(what, reduced=replace(what.reduced, found=False))
    return (yield from answered(text, NAME, "records", what, notes=notes))


def _check(text: str, given: Given) -> None:
    """Raises UsageError or BudgetSpent before anything is asked.

    All names stand in one reply, and all questions about one in another: these bound what prompts repeat.
    """
    query, settings, prompts = given.settings.query, given.settings, given.prompts
    first, then, last = (fgrag_spec(name, settings, prompts) for name in (ENTITIES, QUESTIONS, SUMMARY))
    final = reduce_spec(settings, prompts, ANSWER)
    names = max(reply_tokens(given, first), given.count(text))
    questions = max(reply_tokens(given, then), given.count(text))
    before = instructions(text, first, given.count) + reply_tokens(given, first) + MESSAGE_TOKENS
    check_room(text, given, [last], beside=names + questions, setting="fgrag_tokens")
    check_room(text, given, [final])
    n = query.fgrag_entities
    most = asking(text, given, STAGE, first, 1, 0)
    most += asking(text, given, "reduce", final, 1, query.context_tokens)
    most += asking(text, given, STAGE, then, n, n * before + names)
    most += asking(text, given, STAGE, last, n, n * (query.fgrag_tokens + questions) + names)
    refuse_beyond(most, query, ADVICE)


def _named(text: str, given: Given) -> Generator[Any, Any, tuple[QueryEntities | None, list[str]]]:
    """What the question is about, and what to say of it; None where nothing was named."""
    spec = fgrag_spec(ENTITIES, given.settings, given.prompts)
    start = partial(query_entities, text, spec, given.settings.query.fgrag_entities)
    (ran,) = yield Dialogues(STAGE, [start])
    if ran.result is None:
        why = (
            f"the call that lists its subjects failed: {ran.error}" if ran.error else "no subject was named."
        )
        return None, [f"Looked up: the question as a whole, since {why}"]
    return ran.result, [f"Looked up: {'; '.join(ran.result.names)}."]


def _questions(
    text: str, named: QueryEntities | None, given: Given, notes: list[str]
) -> Generator[Any, Any, list[tuple[str, ...]]]:
    """Those about each name; where there are none, the user's own."""
    if named is None:
        return [(text,)]
    spec, most = fgrag_spec(QUESTIONS, given.settings, given.prompts), given.settings.query.fgrag_questions
    ran: list[Ran[tuple[str, ...]]] = yield Dialogues(
        STAGE, [partial(entity_questions, text, name, named, spec, most) for name in named.names]
    )
    if errors := [one.error for one in ran if one.result is None]:
        notes.append(
            f"Questions around {len(errors)} of {plural(len(ran), 'subject')} could not be written, so that "
            f"the question itself stood for them. {errors[0]}"
        )
    return [one.result or (text,) for one in ran]


def _contexts(names: Sequence[str], given: Given) -> Generator[Any, Any, list[Context]]:
    """What stands around each name; an empty context where no entity is near it."""
    near = yield from _nearest(names, given)
    could_be = [mentions(name) for name in names]
    ids = list(dict.fromkeys(id_ for found in (*(one.spans for one in could_be), *near) for id_ in found))
    rows = yield Rows("entities", ["id", "title", "frequency"], ids)
    entities = {row["id"]: row for row in rows.to_pylist()}
    weak = [_weak(*one, entities) for one in zip(names, could_be, near, strict=True)]
    strong = yield from _nearest([", ".join(entities[id_]["title"] for id_ in ids) for ids in weak], given)
    reached = yield from _expanded(weak, strong)
    ids_of: dict[Kind, list[str]] = {"entity": [], "relationship": []}
    for kind, id_ in dict.fromkeys(one for own in reached for one in own):
        ids_of[kind].append(id_)
    known = yield from looked_up(ids_of, given)
    records = [[known[kind][id_] for kind, id_ in own if id_ in known[kind]] for own in reached]
    # What does not fit is farthest from the name: it is just not among the nearest.
    budget = given.settings.query.fgrag_tokens
    return [replace(fill([Share(own)], budget, given.count), left_out=0) for own in records]


def _weak(name: str, could_be: Mentions, near: Sequence[str], entities: Mapping[str, Row]) -> list[str]:
    """The entity of this name, those whose names it holds, then those that are nearest to it."""
    frequency = {id_: entities[id_]["frequency"] or 0 for id_ in entities.keys() & could_be.spans.keys()}
    ids = dict.fromkeys([entity_id(entity_key(name)), *rarest_first(could_be, frequency), *near])
    return [id_ for id_ in ids if id_ in entities][:NEAREST]


def _nearest(texts: Sequence[str], given: Given) -> Generator[Any, Any, list[list[str]]]:
    """Of each text the ids of the nearest entities; none of an empty one."""
    found: list[list[Hit]] = yield tuple(Search("entity", "vector", text, NEAREST) for text in texts if text)
    hits = iter(found)
    return [[hit.id for hit in next(hits)] if text else [] for text in texts]


def _expanded(
    weak: Sequence[Sequence[str]], strong: Sequence[Sequence[str]]
) -> Generator[Any, Any, list[list[Reached]]]:
    """All expansions side by side: one reading for a step of each. It reads ids and numbers of at most
    MOST_LINKS relationships for each entity that a step is at, and there are at most MOST_IN_ALL of these."""
    reached: list[list[Reached]] = [[] for _ in weak]
    running: list[Expansion] = [expand(*starts) for starts in zip(weak, strong, strict=True)]
    rows: Mapping[int, Any] = dict.fromkeys(range(len(running)))
    while rows:
        here: dict[int, Sequence[str]] = {}
        for n, found in rows.items():
            try:
                here[n] = running[n].send(found)
            except StopIteration as ended:
                reached[n] = ended.value
        tables = yield tuple(
            Rows("relationships", EDGES, ids, by=ENDS, most=MOST_LINKS) for ids in here.values()
        )
        rows = {n: table.to_pylist() for n, table in zip(here, tables, strict=True)}
    return reached


def _summaries(
    text: str,
    names: Sequence[str],
    questions: Sequence[Sequence[str]],
    contexts: Sequence[Context],
    given: Given,
) -> Generator[Any, Any, Mapped]:
    """What each context says on its name, in their order. An empty one is not asked."""
    spec = fgrag_spec(SUMMARY, given.settings, given.prompts)
    shown = [one for one in zip(names, questions, contexts, strict=True) if one[2].numbering]
    ran: list[Ran[MapAnswer]] = yield Dialogues(
        STAGE, [partial(entity_summary, text, *one, spec) for one in shown]
    )
    found = Mapped()
    for place, ((_, _, context), said) in enumerate(zip(shown, ran, strict=True)):
        used = ContextUsed(
            STAGE, shown_in(context.numbering), context.n_tokens, context.left_out, context.cut
        )
        if said.result is None:
            found.errors.append(said.error)
        else:
            used = replace(used, score=said.result.score)
            found.answers.append(replace(said.result, place=place))
        found.contexts.append(used)
    return found
