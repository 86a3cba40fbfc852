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
from graphrag_ray.query.methods.local_search import EDGES, Row, by_turns
from graphrag_ray.query.methods.map_parts import Mapped, answered, merged
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    MapAnswer,
    correction_of,
    reduce_spec,
    request_of,
    resolved_answer,
    spec_of,
    usable_reply,
    variables_of,
    written_in,
)
from graphrag_ray.query.methods.method import Dialogues, Given, Hit, Kind, Method, Question, Ran, Rows, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.one_context import context_used, first_line, is_insufficient
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
    what = yield from merged(text, given, said, ANSWER)
    if is_insufficient(what.reduced.text):
        what = replace(what, reduced=replace(what.reduced, found=False))
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
        used = context_used(STAGE, context)
        if said.result is None:
            found.errors.append(said.error)
        else:
            used = replace(used, score=said.result.score)
            found.answers.append(replace(said.result, place=place))
        found.contexts.append(used)
    return found


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

_BULLET = re.compile(r"^(?:[-*•–—+>]|\(?\d{1,3}[.):])\s+")
_MARKS = "\"'`*_“”„‘’«»「」[]"
_LEFT_OUT = frozenset({"none", "n/a", "nothing", "null"})
_IN_JSON = re.compile(r'"([^"\n]*)"(\s*:)?')
_HEADING = re.compile(r"#|-{3,}")
_RULE = re.compile(r"\s*\|[\s:|-]*\Z")
_CELLS = re.compile(r"^\s*\|([^|\n]*)\|.*$")
_TAG = re.compile(r"</?[a-zA-Z]{1,6}>")
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
    variables = {**variables_of(question, spec), "entity": entity, "questions": "\n".join(questions)}
    request = request_of(SUMMARY, {**variables, "context": context.text}, spec)
    written, reply = yield from usable_reply(request, written_in, spec, SUMMARY)
    if _NOTHING.match(first_line(written)):
        return MapAnswer("", 0.0)
    found = resolved_answer(written, SCORE, reply, context.numbering)
    return replace(found, text=f"**{entity}** {found.text}" if found.text else "")


def parse_names(reply: str, most: int, question: str = "") -> list[str]:
    """The first names of a reply, one a line, or with commas on its only line; none twice.

    Bullets, numbers and quotation marks are taken off, and explanations behind a colon. Headings and prose
    are left out. What stands in the question is a name as it stands there, with its commas and colons.
    """
    asked = " ".join(question.split()).casefold()
    if reply.strip()[:1] in ("{", "["):
        reply = "\n".join(said for said, colon in _IN_JSON.findall(reply) if not colon)
    lines = [_LABEL.sub("", line) for line in _lines(_without_tables(reply)) if not _HEADING.match(line)]
    if len(lines) == 1 and _bare(lines[0]).casefold() not in asked:
        before, colon, after = lines[0].partition(": ")
        named = _parted(lines[0] if not colon or _as_asked(lines[0], len(before), asked) else after, asked)
        if len(named) > 1:
            is_prose = _ends_sentence(lines[0]) and any(len(n.split()) > MAX_SENTENCE_WORDS for n in named)
            lines = [] if is_prose else named
    return _first((_name(line, asked) for line in lines), most)


def parse_questions(reply: str, most: int) -> list[str]:
    """The first questions of a reply, one a line, none twice; where no line ends with a question mark, its
    lines."""
    lines = [line.strip(_MARKS + " ") for line in _lines(reply)]
    lines = [line for line in lines if len(line) <= MAX_QUESTION_CHARACTERS and _has_letter(line)]
    lines = [line for line in lines if not _NOTHING.match(line)]
    asked = [line for line in lines if line.endswith(_ASKED)]
    return _first(asked or [line for line in lines if not line.endswith(":")], most)


def _without_tables(reply: str) -> str:
    """The first column of tables in place of their rows, without headings and tags."""
    lines = reply.splitlines()
    rules = {at for at, line in enumerate(lines) if _RULE.match(line)}
    kept = (line for at, line in enumerate(lines) if at not in rules and at + 1 not in rules)
    return "\n".join(_TAG.sub("", _CELLS.sub(r"\1", line)) for line in kept)


def _parted(line: str, asked: str) -> list[str]:
    """At its commas, but for those that the question has, too."""
    parts, start = [], 0
    for comma in _COMMAS.finditer(line):
        if not _as_asked(line, comma.start(), asked):
            parts.append(line[start : comma.start()])
            start = comma.end()
    return [*parts, line[start:]]


def _as_asked(line: str, at: int, asked: str) -> bool:
    """Whether a mark stands between the same two words in the question."""
    before, after = line[:at].split()[-1:], line[at + 1 :].split()[:1]
    if not before or not after:
        return False
    gap = " " if line[at + 1 : at + 2].isspace() else ""
    return f"{before[0]}{line[at]}{gap}{after[0]}".strip(_MARKS).casefold() in asked


def _name(line: str, asked: str) -> str:
    """What a line names; "" where it is no name."""
    whole = _bare(line)
    if _has_letter(whole) and " ".join(line.strip(_MARKS + " ").split()).casefold() in asked:
        return line.strip(_MARKS + " ")[:MAX_NAME_CHARACTERS]
    if line.rstrip(_MARKS + " ").endswith((":", "：")):
        return ""
    before, colon, _ = line.partition(": ")
    name = whole if colon and _as_asked(line, len(before), asked) else _bare(before)
    words = name.split()
    is_sentence = _ends_sentence(line) and len(words) > MAX_SENTENCE_WORDS
    is_long = len(words) > MAX_NAME_WORDS or len(name) > MAX_NAME_CHARACTERS
    return "" if is_sentence or is_long or name.casefold() in _LEFT_OUT or not _has_letter(name) else name


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
    """What is reached from the weak context, up to MOST_WEAK, then from the strong one, up to MOST_IN_ALL, in
    this order and each once.

    weak, strong: ids of entities by falling nearness

    Yields at most as many ids as may still be reached, and is sent rows in any order: id, source_id,
    target_id, combined_degree, weight.
    """
    reached: dict[Reached, None] = {}
    for start, most in ((weak, MOST_WEAK), (strong, MOST_IN_ALL)):
        yield from _breadth_first(start, most, reached)
    return list(reached)


def _breadth_first(
    start: Sequence[str], most: int, reached: dict[Reached, None]
) -> Generator[Sequence[str], Sequence[Row], None]:
    """Adds to `reached` until it holds `most`, or nothing new is found."""
    here = list(dict.fromkeys(start))[:most]
    for hop in range(MOST_HOPS + 1):
        _add(reached, (("entity", id_) for id_ in here), most)
        if not here or hop == MOST_HOPS or len(reached) >= most:
            return
        rows = yield here
        links = {row["id"]: row for row in rows}
        order = by_turns(_links_in_order(links.values(), here, reached).values())
        before = len(reached)
        _add(reached, (("relationship", id_) for id_ in order), most)
        new = [id_ for kind, id_ in list(reached)[before:] if kind == "relationship"]
        ends = (links[id_][end] for id_ in new for end in ("source_id", "target_id"))
        here = [id_ for id_ in dict.fromkeys(ends) if ("entity", id_) not in reached]


def _add(reached: dict[Reached, None], found: Iterable[Reached], most: int) -> None:
    for one in found:
        if len(reached) >= most:
            return
        reached[one] = None


def _links_in_order(
    rows: Iterable[Row], here: Sequence[str], reached: Mapping[Reached, None]
) -> dict[str, list[str]]:
    """Of each of these entities the first MOST_LINKS relationships: those to what was reached already, then
    those of the best connected entities."""
    links: dict[str, list[Row]] = {id_: [] for id_ in here}
    for row in rows:
        for end in {row["source_id"], row["target_id"]} & links.keys():
            links[end].append(row)

    def worth(row: Row) -> tuple[float, float, str]:
        return -row["combined_degree"], -row["weight"], row["id"]

    def leads_on(row: Row) -> bool:
        return any(("entity", row[end]) not in reached for end in ("source_id", "target_id"))

    best = {id_: sorted(own, key=worth)[:MOST_LINKS] for id_, own in links.items()}
    return {id_: [row["id"] for row in sorted(own, key=leads_on)] for id_, own in best.items()}
