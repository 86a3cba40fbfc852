"""FG-RAG (Hong et al. 2025): summarise each subject of a question, then write one answer.

Query entities: one call lists the subjects of the question. Questions: one call per query entity lists the
questions that a user would ask about it. Context-aware expansion: a breadth-first search over the graph
starts at the entities nearest to the query entity (weak context) and to these (strong context). Query-level
summary: one call per query entity answers its questions from its entities and relationships. Answer: one call
combines the summaries. So n query entities take at most 2 + 2n calls; the calls of a step run concurrently.

Where we differ: entities that a query entity mentions literally come first in its weak context, because the
embeddings of their names and descriptions need not be the nearest. A summary may say that its records are
irrelevant, and is then dropped. If no query entity is found, the question serves as the only query entity and
its only question (the authors' code always adds it). Entities whose similarity to the subject is below
`query.fgrag_min_similarity`, or far below that of the nearest (MIN_SHARE), are noise and not linked. The
expansion has two more limits (`expand`). Descriptions are those of our index, in which a model has merged the
extracted ones. If a context exceeds `query.fgrag_context_tokens`, the weak and the strong context are cut
alike, and the answer says how many records were left out.

The ablations of the paper: without `query.fgrag_expansion`, a subject has only the entities nearest to it.
Without `query.fgrag_summaries`, one call answers from the records of all subjects, without questions on them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from graphrag_ray.base.declarations import SEARCHABLE_KINDS
from graphrag_ray.base.ids import entity_id, entity_key
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.schema import RELATIONSHIP_ENDS
from graphrag_ray.base.wording import plural
from graphrag_ray.graph.report_context import Context, Record, sanitize
from graphrag_ray.query.methods.budget import (
    MESSAGE_TOKENS,
    calls_bound,
    check_budget,
    check_context_fits,
    instructions,
    reply_tokens,
)
from graphrag_ray.query.methods.context_filling import Share, fill
from graphrag_ray.query.methods.hierarchy_choice import check_embedded, check_graph
from graphrag_ray.query.methods.local_search import EDGES, by_importance, by_turns
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    MapAnswer,
    ask_for_reply,
    build_correction,
    build_request,
    build_spec,
    parse_text,
    prompt_variables,
    reduce_spec,
    resolve_answer,
)
from graphrag_ray.query.methods.method import (
    DialogueOutcome,
    Dialogues,
    Hit,
    Kind,
    Method,
    Question,
    Rows,
    Search,
    SearchEnv,
    Steps,
)
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.partial_answers import PartialAnswers, combined_answer, reduce_answers
from graphrag_ray.query.methods.question_names import find_entities, rarest_first
from graphrag_ray.query.methods.record_loading import Row, load_records
from graphrag_ray.query.methods.single_context import answer_from, first_line

NAME = "fgrag"
NEAREST = 20
"""Number of entities of the weak and of the strong context, as in the authors' code."""
MIN_SHARE = 0.5
"""Minimum similarity of an entity to its subject, as a share of the highest one."""
ADVICE = "Raise the budget, or lower query.fgrag_entities or query.fgrag_context_tokens."


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the neighbourhood of each subject of the question."""
    check_graph(env)
    check_embedded(env, NAME, ["entity"])
    text, query = question.text, env.settings.query
    specs = [fgrag_spec(name, env.settings, env.prompts) for name in (ENTITIES, QUESTIONS, SUMMARY)]
    _check_limits(text, env, *specs)
    (outcome,) = yield Dialogues(STAGE, [partial(list_query_entities, text, specs[0], query.fgrag_entities)])
    named: QueryEntities | None = outcome.result
    if named is None:
        reason = f"the call that lists its subjects failed: {outcome.error}" if outcome.error else NO_SUBJECT
        names: tuple[str, ...] = (text,)
        questions: list[tuple[str, ...]] = [(text,)]
        notes = [f"Looked up: the question as a whole, because {reason}"]
    else:
        names, notes = named.names, [f"Looked up: {'; '.join(named.names)}."]
    groups = yield from _find_records(names, env)
    if not query.fgrag_summaries:
        # The contexts of all subjects take turns.
        in_turn = list(by_turns([share for group in groups for share in group]))
        context = fill([Share(in_turn)], query.fgrag_context_tokens, env.count)
        notes += _note_on_left_out([context])
        return (yield from answer_from(text, env, NAME, context, notes, setting="fgrag_context_tokens"))
    if named is not None:
        asked: list[DialogueOutcome[tuple[str, ...]]] = yield Dialogues(
            STAGE,
            [partial(ask_entity_questions, text, n, named, specs[1], query.fgrag_questions) for n in names],
        )
        questions = [o.result or (text,) for o in asked]
        if errors := [o.error for o in asked if o.result is None]:
            notes.append(
                f"Questions about {len(errors)} of {plural(len(asked), 'subject')} could not be written; the "
                f"original question was used instead. {errors[0]}"
            )
    # The weak context comes first, but must not displace the strong one.
    contexts = [
        fill([Share(records, 0.5) for records in group], query.fgrag_context_tokens, env.count)
        for group in groups
    ]
    # Skip subjects without any records.
    subjects = [subject for subject in zip(names, questions, contexts, strict=True) if subject[2].numbering]
    parts = PartialAnswers(
        not_found=[
            name for name, _, context in zip(names, questions, contexts, strict=True) if not context.numbering
        ]
    )
    dialogues = [partial(summarise_entity, text, *subject, specs[2]) for subject in subjects]
    summaries: list[DialogueOutcome[MapAnswer]] = yield Dialogues(STAGE, dialogues)
    for position, ((name, _, context), summary) in enumerate(zip(subjects, summaries, strict=True)):
        answers = [replace(summary.result, position=position)] if summary.result else None
        parts.add(STAGE, context, answers, summary.error)
        if summary.result and not summary.result.text:
            parts.not_found.append(name)
    notes += _note_on_left_out([context for _, _, context in subjects])
    yield from reduce_answers(text, env, parts, ANSWER)
    return (yield from combined_answer(text, NAME, "records", parts, notes=notes))


METHOD = MethodKind(
    search,
    stages=("embed", "fgrag", "reduce", "answer"),
    description="the neighbourhood of each subject of the question",
    graph=True,
    alternative="local",
    suggestions=("hybrid", "global"),
    reply_dependent=True,
)


def _note_on_left_out(contexts: Sequence[Context]) -> list[str]:
    n = sum(context.left_out for context in contexts)
    reached = n + sum(len(context.numbering) for context in contexts)
    return [f"{n:,} of {reached:,} records that were reached did not fit into the contexts."] if n else []


def _check_limits(
    text: str, env: SearchEnv, entities: AnswerSpec, questions: AnswerSpec, summary: AnswerSpec
) -> None:
    """Check context windows and budget. Later prompts repeat the names and questions of earlier replies."""
    query, final = env.settings.query, reduce_spec(env.settings, env.prompts, ANSWER)
    name_tokens = max(reply_tokens(env, entities), env.count(text))
    question_tokens = max(reply_tokens(env, questions), env.count(text))
    before = instructions(text, entities, env.count) + reply_tokens(env, entities) + MESSAGE_TOKENS
    check_context_fits(
        text, env, [summary], extra_tokens=name_tokens + question_tokens, setting="fgrag_context_tokens"
    )
    check_context_fits(text, env, [final])
    n = query.fgrag_entities
    summary_tokens = n * (query.fgrag_context_tokens + question_tokens) + name_tokens
    bound = calls_bound(text, env, STAGE, entities, 1, 0)
    bound += calls_bound(text, env, "reduce", final, 1, query.context_tokens)
    bound += calls_bound(text, env, STAGE, questions, n, n * before + name_tokens)
    bound += calls_bound(text, env, STAGE, summary, n, summary_tokens)
    check_budget(bound, query, ADVICE)


def _find_records(names: Sequence[str], env: SearchEnv) -> Steps[list[tuple[list[Record], list[Record]]]]:
    """Find the neighbourhood of each name: records from the weak and from the strong context.

    Both are empty if no entity is near the name.
    """
    near = yield from _nearest(names, env)
    mentions = []
    for name in names:
        mentions.append((yield from find_entities(name)))
    ids = list(dict.fromkeys(id_ for group in (*(m.spans for m in mentions), *near) for id_ in group))
    rows = yield Rows("entities", ["id", "title", "frequency"], ids)
    entities = {row["id"]: row for row in rows.to_pylist()}
    weak = []
    for name, mentioned, hits in zip(names, mentions, near, strict=True):
        # Start with the entity of this name, then the entities that it mentions, then the nearest ones.
        frequency = {id_: entities[id_]["frequency"] or 0 for id_ in entities.keys() & mentioned.spans.keys()}
        order = dict.fromkeys([entity_id(entity_key(name)), *rarest_first(mentioned, frequency), *hits])
        weak.append([id_ for id_ in order if id_ in entities][:NEAREST])
    elements: list[list[Element]] = [[("entity", id_) for id_ in ids] for ids in weak]
    running: list[Expansion] = []
    if env.settings.query.fgrag_expansion:
        strong = yield from _nearest([", ".join(entities[id_]["title"] for id_ in ids) for ids in weak], env)
        running = [expand(*starts) for starts in zip(weak, strong, strict=True)]
    # Run all expansions in lockstep, with one read per hop.
    links: Mapping[int, Any] = dict.fromkeys(range(len(running)))
    while links:
        frontiers: dict[int, Sequence[str]] = {}
        for n, rows_of in links.items():
            try:
                frontiers[n] = running[n].send(rows_of)
            except StopIteration as ended:
                elements[n] = ended.value
        tables = yield tuple(
            Rows("relationships", EDGES, frontier, by=RELATIONSHIP_ENDS, limit_per_id=MAX_LINKS)
            for frontier in frontiers.values()
        )
        links = {n: table.to_pylist() for n, table in zip(frontiers, tables, strict=True)}
    records = yield from load_records(dict.fromkeys(element for group in elements for element in group), env)
    by_key = {(r.section, r.id): r for r in records}
    groups = []
    for group in elements:
        keys = [(SEARCHABLE_KINDS[kind].section, id_) for kind, id_ in group]
        known = [by_key[key] for key in keys if key in by_key]
        groups.append((known[:MAX_WEAK], known[MAX_WEAK:]))
    return groups


def _nearest(texts: Sequence[str], env: SearchEnv) -> Steps[list[list[str]]]:
    """Find the nearest entities of each text. An empty text has none."""
    lists: list[list[Hit]] = yield tuple(Search("entity", "vector", text, NEAREST) for text in texts if text)
    remaining = iter(lists)
    near = [next(remaining) if text else [] for text in texts]
    least = env.settings.query.fgrag_min_similarity
    # The first hit has the highest score.
    return [[hit.id for hit in hits if hit.score >= max(least, MIN_SHARE * hits[0].score)] for hits in near]


ENTITIES, QUESTIONS, SUMMARY = "query_entities", "entity_questions", "entity_summary"
ANSWER = "fgrag_answer"
"""Prompt of the last call, which belongs to the stage `reduce`."""
STAGE = "fgrag"
MAX_TOKENS: Mapping[str, int] = {ENTITIES: 300, QUESTIONS: 500}
"""Maximum size of a reply with all names, or with all questions about one name."""

MAX_NAME_CHARACTERS = 80
MAX_NAME_WORDS = 12
"""Longer lines are prose."""
MAX_SENTENCE_WORDS = 3
"""Longer lines that end like a sentence are prose."""
MAX_QUESTION_CHARACTERS = 400
SCORE = 50.0
"""Score of every summary. Summaries are equally important, so the model is not asked for scores."""

NO_NAMES = "it names nothing that the question is about; write the list alone, one subject a line"
NO_SUBJECT = "no subject was named."

_BULLET = re.compile(r"^(?:[-*•–—+>]|\(?\d{1,3}[.):])\s+")
_MARKS = "\"'`*_“”„‘’«»「」[]"
_NO_NAMES = frozenset({"none", "n/a", "nothing", "null"})
_JSON_STRING = re.compile(r'"([^"\n]*)"(\s*:)?')
_HEADING = re.compile(r"#|-{3,}")
_LABEL = re.compile(r"^subjects?\s*:\s*(?=\S)", re.IGNORECASE)
_NOTHING = re.compile(
    r"[\W_]*(?:none|n/a|nothing|null)(?:\s+of (?:the|these) (?:records|data)\b|\s*(?:[^\w\s]|$))",
    re.IGNORECASE,
)
_SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！", "؟")
_QUESTION_ENDS = ("?", "？", "؟", ";")
_COMMAS = re.compile(r"[,;，、؛،]")


@dataclass(frozen=True)
class QueryEntities:
    """The subjects of a question, most important first, and the request and reply that listed them."""

    names: tuple[str, ...]
    request: ChatRequest
    reply: ChatReply


def fgrag_spec(prompt: str, settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """Build the spec of ENTITIES, QUESTIONS or SUMMARY."""
    max_tokens = MAX_TOKENS.get(prompt, settings.query.max_map_tokens)
    return build_spec(STAGE, settings, prompts, max_tokens, prompt)


def list_query_entities(question: str, spec: AnswerSpec, limit: int) -> Dialogue[QueryEntities | None]:
    """Ask for the subjects of a question. Returns None if neither the reply nor its correction names any."""
    variables = {**prompt_variables(question, spec), "n_entities": str(limit)}
    request = build_request(ENTITIES, variables, spec)
    reply: ChatReply = yield request
    names = parse_names(reply.text, limit, question)
    if not names:
        request = build_correction(request, reply, ReplyProblem(NO_NAMES), spec)
        reply = yield request
        names = parse_names(reply.text, limit, question)
    return QueryEntities(tuple(names), request, reply) if names else None


def ask_entity_questions(
    question: str, entity: str, before: QueryEntities, spec: AnswerSpec, limit: int
) -> Dialogue[tuple[str, ...]]:
    """Ask for the questions that a user would ask about an entity, as the next turn after `before`."""
    variables = {**prompt_variables(question, spec), "entity": entity, "n_questions": str(limit)}
    reply: ChatReply = yield before.request.next_turn(
        before.reply, QUESTIONS, spec.prompt.fill_user(variables), variables=variables, call=spec.call
    )
    return tuple(parse_questions(reply.text, limit))


def summarise_entity(
    question: str, entity: str, questions: Sequence[str], context: Context, spec: AnswerSpec
) -> Dialogue[MapAnswer]:
    """Ask for a summary that answers the questions. The score is 0 if the context is irrelevant."""
    variables = {"entity": entity, "questions": "\n".join(questions), "context": context.text}
    summary, reply = yield from ask_for_reply(SUMMARY, question, spec, parse_text, None, **variables)
    if _NOTHING.match(first_line(summary)):
        return MapAnswer("", 0.0)
    answer = resolve_answer(summary, SCORE, reply, context.numbering)
    return replace(answer, text=f"**{entity}** {answer.text}" if answer.text else "")


def parse_names(reply: str, limit: int, question: str = "") -> list[str]:
    """Parse the first distinct names of a reply, one per line or, in a single line, separated by commas.

    Bullets, numbers, quotation marks and explanations after a colon are removed. Headings and prose are
    ignored. A line that occurs in the question is a name, including its commas and colons.
    """
    asked = " ".join(question.split()).casefold()
    if reply.strip()[:1] in ("{", "["):
        reply = "\n".join(value for value, colon in _JSON_STRING.findall(reply) if not colon)
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
            and name.casefold() not in _NO_NAMES
            and _has_letter(name)
        ):
            names.append(name)
    return _first_distinct(names, limit)


def parse_questions(reply: str, limit: int) -> list[str]:
    """Parse the first distinct questions of a reply: lines that end like one or, without any, all lines."""
    lines = [line.strip(_MARKS + " ") for line in _lines(reply)]
    lines = [
        line
        for line in lines
        if len(line) <= MAX_QUESTION_CHARACTERS and _has_letter(line) and not _NOTHING.match(line)
    ]
    asked = [line for line in lines if line.endswith(_QUESTION_ENDS)]
    return _first_distinct(asked or [line for line in lines if not line.endswith(":")], limit)


def _ends_sentence(line: str) -> bool:
    return line.rstrip(_MARKS + " ").endswith(_SENTENCE_ENDS)


def _bare(text: str) -> str:
    """Remove surrounding quotation marks and commas."""
    return text.strip().strip(_MARKS + " ,;").removesuffix(".").strip(_MARKS + " ,;")


def _has_letter(text: str) -> bool:
    return any(c.isalnum() for c in text)


def _lines(reply: str) -> list[str]:
    """Split a reply into non-empty lines, sanitised and without bullets and numbers."""
    cleaned = (sanitize(line).strip() for line in reply.splitlines() if not line.startswith("```"))
    return [line for line in (_BULLET.sub("", line) for line in cleaned) if line.strip(_MARKS + " ")]


def _first_distinct(texts: Iterable[str], limit: int) -> list[str]:
    """Return the first `limit` non-empty texts, without duplicates (ignoring case)."""
    known: dict[str, str] = {}
    for text in texts:
        if text and len(known) < limit:
            known.setdefault(text.casefold(), text)
    return list(known.values())


MAX_WEAK = 75
"""Maximum number of entities and relationships from the weak context, as in the authors' code."""
MAX_TOTAL = 150
"""Maximum number of entities and relationships from both contexts together, as in the authors' code."""
MAX_HOPS = 4
"""Maximum number of hops. Each is a read, and distant entities are rarely related. Not in the paper."""
MAX_LINKS = 50
"""Maximum number of relationships followed per entity, which may have a million. Not in the paper."""

Element: TypeAlias = tuple[Kind, str]
"""An entity or relationship: kind and id."""

Expansion: TypeAlias = Generator[Sequence[str], Sequence[Row], list[Element]]


def expand(weak: Sequence[str], strong: Sequence[str]) -> Expansion:
    """Expand breadth-first from the weak context up to MAX_WEAK, then from the strong one up to MAX_TOTAL.

    Args:
        weak, strong: Ids of the entities of each context, nearest first.

    Yields:
        Ids of entities, at most as many as may still be added. Expects their relationships (EDGES) in any
        order.

    Returns:
        The entities and relationships in the order of the expansion, without duplicates.
    """
    reached: dict[Element, None] = {}

    def add(kind: Kind, ids: Iterable[str], limit: int) -> None:
        for id_ in ids:
            if len(reached) >= limit:
                return
            reached[kind, id_] = None

    for start, limit in ((weak, MAX_WEAK), (strong, MAX_TOTAL)):
        frontier = list(dict.fromkeys(start))[:limit]
        for hop in range(MAX_HOPS + 1):
            add("entity", frontier, limit)
            if not frontier or hop == MAX_HOPS or len(reached) >= limit:
                break
            links = {row["id"]: row for row in (yield frontier)}
            before = len(reached)
            add("relationship", by_turns(_links_in_order(links.values(), frontier, reached)), limit)
            new = [id_ for kind, id_ in list(reached)[before:] if kind == "relationship"]
            ends = (links[id_][end] for id_ in new for end in ("source_id", "target_id"))
            frontier = [id_ for id_ in dict.fromkeys(ends) if ("entity", id_) not in reached]
    return list(reached)


def _links_in_order(
    rows: Iterable[Row], frontier: Sequence[str], reached: Mapping[Element, None]
) -> list[list[str]]:
    """Choose MAX_LINKS relationships per entity by importance. Links between reached entities come first."""
    links: dict[str, list[Row]] = {id_: [] for id_ in frontier}
    for row in rows:
        for end in {row["source_id"], row["target_id"]} & links.keys():
            links[end].append(row)

    def leads_on(row: Row) -> bool:
        return any(("entity", row[end]) not in reached for end in ("source_id", "target_id"))

    best = (sorted(of_entity, key=by_importance)[:MAX_LINKS] for of_entity in links.values())
    return [[row["id"] for row in sorted(of_entity, key=leads_on)] for of_entity in best]
