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
and its only question (the authors' code adds it always); the expansion has two more bounds (`expand`);
and of its 150 descriptions a summary is shown the first that fit into `query.fgrag_tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from graphrag_ray.base.declarations import SEARCHED
from graphrag_ray.base.ids import entity_id, entity_key
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.schema import ENDS
from graphrag_ray.base.wording import plural
from graphrag_ray.graph.report_context import Context, clean
from graphrag_ray.query.methods.asked_hierarchy import check_embedded, check_graph
from graphrag_ray.query.methods.budget import (
    MESSAGE_TOKENS,
    asking,
    check_room,
    instructions,
    refuse_beyond,
    reply_tokens,
)
from graphrag_ray.query.methods.filling import Share, fill
from graphrag_ray.query.methods.local_search import EDGES, Row, by_turns, worth
from graphrag_ray.query.methods.map_parts import Mapped, answered, merged
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    MapAnswer,
    asked_for,
    correction_of,
    reduce_spec,
    request_of,
    resolved_answer,
    spec_of,
    variables_of,
    written_in,
)
from graphrag_ray.query.methods.method import Dialogues, Given, Hit, Kind, Method, Question, Ran, Rows, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.one_context import first_line, is_insufficient
from graphrag_ray.query.methods.question_names import mentions, rarest_first
from graphrag_ray.query.methods.record_rows import loaded

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
    text, query = question.text, given.settings.query
    specs = [fgrag_spec(name, given.settings, given.prompts) for name in (ENTITIES, QUESTIONS, SUMMARY)]
    _check(text, given, *specs)
    (ran,) = yield Dialogues(STAGE, [partial(query_entities, text, specs[0], query.fgrag_entities)])
    named: QueryEntities | None = ran.result
    if named is None:
        why = f"the call that lists its subjects failed: {ran.error}" if ran.error else NO_SUBJECT
        names: tuple[str, ...] = (text,)
        questions: list[tuple[str, ...]] = [(text,)]
        notes = [f"Looked up: the question as a whole, since {why}"]
    else:
        names, notes = named.names, [f"Looked up: {'; '.join(named.names)}."]
        asked: list[Ran[tuple[str, ...]]] = yield Dialogues(
            STAGE,
            [partial(entity_questions, text, n, named, specs[1], query.fgrag_questions) for n in names],
        )
        questions = [one.result or (text,) for one in asked]
        if errors := [one.error for one in asked if one.result is None]:
            notes.append(
                f"Questions around {len(errors)} of {plural(len(asked), 'subject')} could not be written, so "
                f"that the question itself stood for them. {errors[0]}"
            )
    contexts = yield from _contexts(names, given)
    # An empty context is not asked.
    shown = [one for one in zip(names, questions, contexts, strict=True) if one[2].numbering]
    said = Mapped()
    start = [partial(entity_summary, text, *one, specs[2]) for one in shown]
    summaries: list[Ran[MapAnswer]] = yield Dialogues(STAGE, start)
    for place, ((_, _, context), summary) in enumerate(zip(shown, summaries, strict=True)):
        found = [replace(summary.result, place=place)] if summary.result else None
        said.add(STAGE, context, found, summary.error)
    what = yield from merged(text, given, said, ANSWER)
    if is_insufficient(what.reduced.text):
        what.reduced = replace(what.reduced, found=False)
    return (yield from answered(text, NAME, "records", what, notes=notes))


METHOD = MethodKind(
    search,
    asks=("embed", "fgrag", "reduce"),
    reads="what stands around each thing that a question is about",
    graph=True,
    instead="local",
    others=("hybrid", "global"),
    by_replies=True,
)


def _check(text: str, given: Given, first: AnswerSpec, then: AnswerSpec, last: AnswerSpec) -> None:
    """Raises UsageError or BudgetSpent before anything is asked. All names stand in one reply, and all
    questions about one in another: these bound what prompts repeat."""
    query, final = given.settings.query, reduce_spec(given.settings, given.prompts, ANSWER)
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


def _contexts(names: Sequence[str], given: Given) -> Generator[Any, Any, list[Context]]:
    """What stands around each name; an empty context where no entity is near it."""
    near = yield from _nearest(names, given)
    could_be = [mentions(name) for name in names]
    ids = list(dict.fromkeys(id_ for found in (*(one.spans for one in could_be), *near) for id_ in found))
    rows = yield Rows("entities", ["id", "title", "frequency"], ids)
    entities = {row["id"]: row for row in rows.to_pylist()}
    weak = []
    for name, one, hits in zip(names, could_be, near, strict=True):
        # The entity of this name, those whose names it holds, then those that are nearest to it.
        frequency = {id_: entities[id_]["frequency"] or 0 for id_ in entities.keys() & one.spans.keys()}
        order = dict.fromkeys([entity_id(entity_key(name)), *rarest_first(one, frequency), *hits])
        weak.append([id_ for id_ in order if id_ in entities][:NEAREST])
    strong = yield from _nearest([", ".join(entities[id_]["title"] for id_ in ids) for ids in weak], given)
    # All expansions side by side: one reading for a step of each, of at most MOST_LINKS relationships of each
    # entity that a step is at; there are at most MOST_IN_ALL of these.
    running = [expand(*starts) for starts in zip(weak, strong, strict=True)]
    reached: list[list[Reached]] = [[] for _ in running]
    links: Mapping[int, Any] = dict.fromkeys(range(len(running)))
    while links:
        here: dict[int, Sequence[str]] = {}
        for n, found in links.items():
            try:
                here[n] = running[n].send(found)
            except StopIteration as ended:
                reached[n] = ended.value
        needs = (Rows("relationships", EDGES, at, by=ENDS, most=MOST_LINKS) for at in here.values())
        tables = yield tuple(needs)
        links = {n: table.to_pylist() for n, table in zip(here, tables, strict=True)}
    of_all = dict.fromkeys(one for own in reached for one in own)
    records = yield from loaded(of_all, given)
    record = {(r.section, r.id): r for r in records}
    keys = ([(SEARCHED[kind].section, id_) for kind, id_ in own] for own in reached)
    shares = ([Share([record[key] for key in own if key in record])] for own in keys)
    filled = [fill(own, given.settings.query.fgrag_tokens, given.count) for own in shares]
    # What does not fit is farthest from the name: it is just not among the nearest.
    return [replace(context, left_out=0) for context in filled]


def _nearest(texts: Sequence[str], given: Given) -> Generator[Any, Any, list[list[str]]]:
    """Of each text the ids of the nearest entities; none of an empty one."""
    found: list[list[Hit]] = yield tuple(Search("entity", "vector", text, NEAREST) for text in texts if text)
    hits = iter(found)
    return [[hit.id for hit in next(hits)] if text else [] for text in texts]


ENTITIES, QUESTIONS, SUMMARY = "query_entities", "entity_questions", "entity_summary"
ANSWER = "fgrag_answer"
"""Of the last call, whose stage is reduce."""
STAGE = "fgrag"
MAX_TOKENS: Mapping[str, int] = {ENTITIES: 300, QUESTIONS: 500}
"""Of a reply, in which all names, or all questions about one, stand."""

MAX_NAME_CHARACTERS = 80
MAX_NAME_WORDS = 12
"""A line that is longer is prose."""
MAX_SENTENCE_WORDS = 3
"""A line that ends as a sentence does and has more words is prose."""
MAX_QUESTION_CHARACTERS = 400
SCORE = 50.0
"""Of every summary: they stand side by side, and none is asked how much it helps."""

NO_NAMES = "it names nothing that the question is about; write the list alone, one subject a line"

NO_SUBJECT = "no subject was named."

_BULLET = re.compile(r"^(?:[-*•–—+>]|\(?\d{1,3}[.):])\s+")
_MARKS = "\"'`*_“”„‘’«»「」[]"
_LEFT_OUT = frozenset({"none", "n/a", "nothing", "null"})
_IN_JSON = re.compile(r'"([^"\n]*)"(\s*:)?')
_HEADING = re.compile(r"#|-{3,}")
_LABEL = re.compile(r"^subjects?\s*:\s*(?=\S)", re.IGNORECASE)
_NOTHING = re.compile(
    r"[\W_]*(?:none|n/a|nothing|null)(?:\s+of (?:the|these) (?:records|data)\b|\s*(?:[^\w\s]|$))",
    re.IGNORECASE,
)
_ENDS = (".", "?", "!", "…", "。", "？", "！", "؟")
_ASKED = ("?", "？", "؟", ";")
_COMMAS = re.compile(r"[,;，、؛،]")


@dataclass(frozen=True)
class QueryEntities:
    """names: what the question is about, the most important first. request, reply: of the turn that brought
    them; the next ones follow it."""

    names: tuple[str, ...]
    request: ChatRequest
    reply: ChatReply


def fgrag_spec(prompt: str, settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """prompt: ENTITIES, QUESTIONS or SUMMARY."""
    most = MAX_TOKENS.get(prompt, settings.query.max_map_tokens)
    return spec_of(STAGE, settings, prompts, most, prompt)


def query_entities(question: str, spec: AnswerSpec, most: int) -> Dialogue[QueryEntities | None]:
    """Ask what the question is about, and once more where the reply names nothing; None where the second does
    not either."""
    variables = {**variables_of(question, spec), "n_entities": str(most)}
    request = request_of(ENTITIES, variables, spec)
    reply: ChatReply = yield request
    names = parse_names(reply.text, most, question)
    if not names:
        request = correction_of(request, reply, ReplyProblem(NO_NAMES), spec)
        reply = yield request
        names = parse_names(reply.text, most, question)
    return QueryEntities(tuple(names), request, reply) if names else None


def entity_questions(
    question: str, entity: str, before: QueryEntities, spec: AnswerSpec, most: int
) -> Dialogue[tuple[str, ...]]:
    """Ask what a user would want to know about an entity, as the next turn of the conversation that named it;
    () where the reply has no question."""
    variables = {**variables_of(question, spec), "entity": entity, "n_questions": str(most)}
    reply: ChatReply = yield before.request.followed_by(
        before.reply, QUESTIONS, spec.prompt.text(variables), variables=variables, call=spec.call
    )
    return tuple(parse_questions(reply.text, most))


def entity_summary(
    question: str, entity: str, questions: Sequence[str], context: Context, spec: AnswerSpec
) -> Dialogue[MapAnswer]:
    """Ask for what a context says to the questions about an entity, under its name; with score 0 where it
    says nothing. Raises DialogueFailed where the reply is empty twice."""
    shown = {"entity": entity, "questions": "\n".join(questions), "context": context.text}
    written, reply = yield from asked_for(SUMMARY, question, spec, written_in, None, **shown)
    if _NOTHING.match(first_line(written)):
        return MapAnswer("", 0.0)
    found = resolved_answer(written, SCORE, reply, context.numbering)
    return replace(found, text=f"**{entity}** {found.text}" if found.text else "")


def parse_names(reply: str, most: int, question: str = "") -> list[str]:
    """The first names of a reply, one a line, or with commas on its only line; none twice. Bullets, numbers,
    quotation marks and explanations behind a colon are taken off; headings and prose are left out. A line
    that stands in the question is a name, with its commas and colons."""
    asked = " ".join(question.split()).casefold()
    if reply.strip()[:1] in ("{", "["):
        reply = "\n".join(said for said, colon in _IN_JSON.findall(reply) if not colon)
    lines = [_LABEL.sub("", line) for line in _lines(reply) if not _HEADING.match(line)]
    if len(lines) == 1 and _bare(lines[0]).casefold() not in asked:
        before, _, after = lines[0].partition(": ")
        parts = _COMMAS.split(lines[0] if _bare(before).casefold() in asked else after or before)
        if len(parts) > 1:
            is_prose = _ends_sentence(lines[0]) and any(len(p.split()) > MAX_SENTENCE_WORDS for p in parts)
            lines = [] if is_prose else parts
    names = []
    for line in lines:
        name = line.strip(_MARKS + " ")
        if asked and " ".join(name.split()).casefold() in asked and _has_letter(name):
            names.append(name[:MAX_NAME_CHARACTERS])
            continue
        name, n_words = _bare(line.partition(": ")[0]), len(line.partition(": ")[0].split())
        if (
            not line.rstrip(_MARKS + " ").endswith((":", "："))
            and not (_ends_sentence(line) and n_words > MAX_SENTENCE_WORDS)
            and n_words <= MAX_NAME_WORDS
            and len(name) <= MAX_NAME_CHARACTERS
            and name.casefold() not in _LEFT_OUT
            and _has_letter(name)
        ):
            names.append(name)
    return _first(names, most)


def parse_questions(reply: str, most: int) -> list[str]:
    """The first questions of a reply, one a line, none twice; where no line ends with a question mark, its
    lines."""
    lines = [line.strip(_MARKS + " ") for line in _lines(reply)]
    lines = [line for line in lines if len(line) <= MAX_QUESTION_CHARACTERS and _has_letter(line)]
    lines = [line for line in lines if not _NOTHING.match(line)]
    asked = [line for line in lines if line.endswith(_ASKED)]
    return _first(asked or [line for line in lines if not line.endswith(":")], most)


def _ends_sentence(line: str) -> bool:
    return line.rstrip(_MARKS + " ").endswith(_ENDS)


def _bare(text: str) -> str:
    """Without bullet, and without quotation marks and commas around it."""
    return text.strip().strip(_MARKS + " ,;").removesuffix(".").strip(_MARKS + " ,;")


def _has_letter(text: str) -> bool:
    return any(c.isalnum() for c in text)


def _lines(reply: str) -> list[str]:
    """Those with something on them, made harmless, without bullets and numbers."""
    found = (clean(line).strip() for line in reply.splitlines() if not line.startswith("```"))
    return [line for line in (_BULLET.sub("", line) for line in found) if line.strip(_MARKS + " ")]


def _first(found: Iterable[str], most: int) -> list[str]:
    """The first that are not empty, none twice in another case."""
    known: dict[str, str] = {}
    for one in found:
        if one and len(known) < most:
            known.setdefault(one.casefold(), one)
    return list(known.values())


MOST_WEAK = 75
"""Entities and relationships that are reached from the weak context; as in the paper."""
MOST_IN_ALL = 150
"""From the weak and the strong context together; as in the paper."""
MOST_HOPS = 4
"""From the first entities: what is farther says little of them, and each hop is a reading of its own. The
paper has no such bound."""
MOST_LINKS = 50
"""Relationships of an entity that are looked at, those with the best connected entities first: an entity may
have a million."""

Reached: TypeAlias = tuple[Kind, str]
"""A kind, entity or relationship, and an id."""

Expansion: TypeAlias = Generator[Sequence[str], Sequence[Row], list[Reached]]


def expand(weak: Sequence[str], strong: Sequence[str]) -> Expansion:
    """What is reached breadth-first from the weak context, up to MOST_WEAK, then from the strong one, up to
    MOST_IN_ALL, in this order and each once. Yields at most as many ids as may still be reached, and is sent
    relationships (EDGES) in any order. weak, strong: ids of entities by falling nearness"""
    reached: dict[Reached, None] = {}

    def add(kind: Kind, ids: Iterable[str], most: int) -> None:
        for id_ in ids:
            if len(reached) >= most:
                return
            reached[kind, id_] = None

    for start, most in ((weak, MOST_WEAK), (strong, MOST_IN_ALL)):
        here = list(dict.fromkeys(start))[:most]
        for hop in range(MOST_HOPS + 1):
            add("entity", here, most)
            if not here or hop == MOST_HOPS or len(reached) >= most:
                break
            links = {row["id"]: row for row in (yield here)}
            before = len(reached)
            add("relationship", by_turns(_links_in_order(links.values(), here, reached)), most)
            new = [id_ for kind, id_ in list(reached)[before:] if kind == "relationship"]
            ends = (links[id_][end] for id_ in new for end in ("source_id", "target_id"))
            here = [id_ for id_ in dict.fromkeys(ends) if ("entity", id_) not in reached]
    return list(reached)


def _links_in_order(
    rows: Iterable[Row], here: Sequence[str], reached: Mapping[Reached, None]
) -> list[list[str]]:
    """Of each of these entities the first MOST_LINKS relationships: those to what was reached already, then
    those of the best connected entities."""
    links: dict[str, list[Row]] = {id_: [] for id_ in here}
    for row in rows:
        for end in {row["source_id"], row["target_id"]} & links.keys():
            links[end].append(row)

    def leads_on(row: Row) -> bool:
        return any(("entity", row[end]) not in reached for end in ("source_id", "target_id"))

    best = (sorted(own, key=worth)[:MOST_LINKS] for own in links.values())
    return [[row["id"] for row in sorted(own, key=leads_on)] for own in best]
