"""The extraction dialogue: entities and relationships of one chunk, then gleaning (paper 3.1.2, A.1, A.2).

extract ──► records ──► glean_missing: "add what you missed" ──► more records ──► …
               │                          └─ nothing missing ─► end     (max_gleanings times)
               └─ nothing usable: correct, once; then DialogueFailed

With `extraction.gleaning: check`, a question precedes each gleaning, as in the paper:
glean_check: "were any missed?" ──Y──► glean; otherwise the end.

With a schema (`extraction.schema`), one last turn asks to correct the records that violate it, if any do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.index_settings import ENTITY_TYPE_DEFINITIONS, Settings
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph import schema_conformance
from graphrag_ray.graph.delimited_records import (
    COMPLETION,
    DELIMITERS,
    NONE,
    ClaimRecord,
    EntityRecord,
    Records,
    RelationshipRecord,
    parse_claims,
    parse_records,
)
from graphrag_ray.graph.extraction_schema import ExtractionSchema, parse_schema

T = TypeVar("T")

NO_RELATIONS = "- none: leave the field RELATION empty"
CLOSED_TYPES = "These are all types of entities: whatever has none of them gets no record."
OPEN_TYPES = "An important entity with none of these types gets a short TYPE of your own, in capitals."
CLOSED_RELATIONS = (
    "These are all relations: a relationship of another kind, or between other types, gets no record."
)
OPEN_RELATIONS = "An important relationship of another kind gets a short RELATION of your own, in capitals."
"""Sentences of the extraction prompt about what a schema does not declare."""

Key = Callable[[str], str | None]
"""Maps a name as written to the key under which its mentions are merged, or None if it is blocked."""


@dataclass(frozen=True, slots=True)
class ChunkText:
    """The text of a chunk, and the header above it with title and date."""

    text: str
    header: str = ""


@dataclass(frozen=True)
class ExtractSpec:
    """Prompts and options of extraction. Picklable if `key` is picklable."""

    extract: Prompt
    examples: str  # few-shot examples with the delimiters filled in
    glean_check: Prompt
    glean: Prompt
    glean_missing: Prompt
    correct: Prompt
    call: CallParameters
    entity_types: tuple[str, ...]  # names, and optionally definitions: "person: a human being"
    max_gleanings: int
    check_first: bool  # ask whether anything is missing before each gleaning
    language: str  # of descriptions; names are spelled as in the text
    key: Key = field(default=entity_key)
    schema: ExtractionSchema | None = None
    correct_schema: Prompt | None = None  # set if `schema` is


@dataclass(frozen=True, slots=True)
class ExtractedRecords:
    """The records of a chunk, sorted by turn and position in the reply."""

    entities: tuple[EntityRecord, ...]
    relationships: tuple[RelationshipRecord, ...]
    unusable: int  # number of malformed records
    unexpected_glean_replies: int  # number of gleaning replies that were unusable or not a plain yes or no
    blocked: int = 0  # number of records with a name on the block list
    unreadable_strengths: int = 0  # number of relationships whose strength was set to 1
    schema_counts: Mapping[str, int] = field(default_factory=dict)  # see `schema_conformance.settle`


def extract_spec(prompts: Mapping[str, Prompt], settings: Settings, key: Key = entity_key) -> ExtractSpec:
    """Return the specification for settings that contain their schema, if any. Raises SettingsError."""
    schema = None
    if settings.extraction.schema is not None:
        schema = parse_schema(settings.extraction.schema)
        if settings.model(settings.model_name("extract")).provider == "offline":
            # The offline engine cannot tell relation types, so its relationships have none.
            schema = replace(schema, relations=())
    return ExtractSpec(
        extract=prompts["extract_schema" if schema else "extract"],
        examples=prompts["extract_examples"].fill_user(DELIMITERS),
        glean_check=prompts["glean_check"],
        glean=prompts["glean_schema" if schema else "glean"],
        glean_missing=prompts["glean_schema" if schema else "glean_missing"],
        correct=prompts["correct"],
        schema=schema,
        correct_schema=prompts["correct_schema"] if schema else None,
        call=settings.call_parameters("extract"),
        entity_types=tuple(t.name for t in schema.entities) if schema else settings.extraction.entity_types,
        max_gleanings=settings.extraction.max_gleanings,
        check_first=settings.extraction.gleaning == "check",
        language=settings.output_language,
        key=key,
    )


def extract(chunk: ChunkText, spec: ExtractSpec) -> Dialogue[ExtractedRecords]:
    """Extract entities and relationships from a chunk.

    Every reply is parsed separately, because joining replies could break records. Unlike in the paper (A.2),
    one turn asks for missing records, which may be none: the paper's question whether any are missing sends
    the passage once more, and models nearly always say yes. With `check_first`, a reply to that question that
    is neither yes nor no ends the gleaning and is counted, because not every endpoint can restrict the reply
    to the two.

    Raises:
        DialogueFailed: If the first reply is withheld by a content filter, or has neither a usable record nor
            a plain "nothing to extract" even after a correction.
    """
    schema = spec.schema
    variables = chunk_variables(chunk, spec.language) | {
        "entity_types": ", ".join(type_name(t) for t in spec.entity_types)
    }
    if schema is None:
        variables["type_definitions"] = "\n".join(map(_type_line, spec.entity_types))
        variables["examples"] = spec.examples
    else:
        variables["type_definitions"] = "\n".join(t.line for t in schema.entities)
        variables["relation_definitions"] = "\n".join(r.line for r in schema.relations) or NO_RELATIONS
        about_types = OPEN_TYPES if schema.open_entities else CLOSED_TYPES
        about_relations = OPEN_RELATIONS if schema.open_relations else CLOSED_RELATIONS
        variables["if_outside"] = f"{about_types} {about_relations}" if schema.relations else about_types
    is_relation = None if schema is None else (lambda text: schema.relation_type(text) is not None)
    parse = partial(parse_records, is_relation=is_relation)
    request = ChatRequest("extract", spec.extract.fill(variables), spec.call, variables)
    records, reply = yield from usable_reply(request, spec.correct, partial(_parse_usable, parse, "extract"))
    turns, unexpected, request, reply = yield from _glean(request, reply, parse, spec)
    found = _with_keys([records, *turns], spec, unexpected)
    if schema is None or spec.correct_schema is None:
        return found
    first = schema_conformance.check(found.entities, found.relationships, schema)
    corrected = ExtractedRecords((), (), 0, 0)
    if first.violations:
        problems = {"problems": first.problems}
        correct = spec.correct_schema.fill_user({**DELIMITERS, **problems})
        variables = {**request.variables, **problems}
        # Without a correction, the records that conform are kept.
        reply = yield request.next_turn(
            reply, "correct_schema", correct, response="text", variables=variables, optional=True
        )
        corrected = _with_keys([parse(reply.text, truncated=reply.finish_reason == "length")], spec, 0)
    final, counts = schema_conformance.settle(first, corrected.entities, corrected.relationships, schema)
    return ExtractedRecords(
        final.entities,
        final.relationships,
        found.unusable + corrected.unusable,
        unexpected,
        found.blocked + corrected.blocked,
        found.unreadable_strengths + corrected.unreadable_strengths,
        counts,
    )


def _with_keys(replies: Sequence[Records], spec: ExtractSpec, unexpected: int) -> ExtractedRecords:
    """Return the records of replies with entity keys as names, and count the ones without a key."""
    entities: list[EntityRecord] = []
    relationships: list[RelationshipRecord] = []
    unusable = sum(records.unusable for records in replies)
    blocked = 0
    for turn, records in enumerate(replies):
        for e in records.entities:
            if title := spec.key(e.title):
                entities.append(replace(e, title=title, turn=turn))
            elif entity_key(e.title):
                blocked += 1
            else:
                unusable += 1
        for r in records.relationships:
            source, target = spec.key(r.source), spec.key(r.target)
            if source and target:
                relationships.append(replace(r, source=source, target=target, turn=turn))
            elif entity_key(r.source) and entity_key(r.target):
                blocked += 1
            else:
                unusable += 1
    unreadable = sum(records.unreadable for records in replies)
    return ExtractedRecords(tuple(entities), tuple(relationships), unusable, unexpected, blocked, unreadable)


def _glean(
    request: ChatRequest, reply: ChatReply, parse: Callable[..., Records], spec: ExtractSpec
) -> Dialogue[tuple[list[Records], int, ChatRequest, ChatReply]]:
    """Ask for missed records.

    Returns the records of each turn, the number of unexpected replies, and the last request with its reply.
    """
    turns: list[Records] = []
    variables = request.variables
    for _ in range(spec.max_gleanings):
        name, glean = "glean_missing", spec.glean_missing
        if spec.check_first:
            # The client limits yes_no replies to a few tokens, unless hidden reasoning counts as well.
            check = spec.glean_check.fill_user(variables)
            request = request.next_turn(reply, "glean_check", check, response="yes_no")
            any_missed = yes_or_no(reply := (yield request))
            if not any_missed:
                return turns, int(any_missed is None), request, reply
            name, glean = "glean", spec.glean
        request = request.next_turn(reply, name, glean.fill_user(variables), response="text")
        reply = yield request
        records = parse(reply.text, truncated=reply.finish_reason == "length")
        if reply.finish_reason == "content_filter" or not records.is_answer:
            return turns, 1, request, reply
        if not (records.entities or records.relationships):
            return turns, 0, request, reply
        turns.append(records)
    return turns, 0, request, reply


def type_name(entity_type: str) -> str:
    """Return the name of an entity type that may have a definition."""
    return entity_type.partition(":")[0].strip().upper()


def _type_line(entity_type: str) -> str:
    name, definition = type_name(entity_type), entity_type.partition(":")[2].strip()
    definition = definition or ENTITY_TYPE_DEFINITIONS.get(name.lower(), "")
    return f"- {name}: {definition}" if definition else f"- {name}"


def chunk_variables(chunk: ChunkText, language: str) -> dict[str, str]:
    """Return the variables that all prompts about a chunk share."""
    header = chunk.header if not chunk.header or chunk.header.endswith("\n") else chunk.header + "\n"
    return {**DELIMITERS, "header": header, "text": chunk.text, "language": language}


def usable_reply(
    request: ChatRequest, correct: Prompt, read: Callable[[ChatReply], T | ReplyProblem]
) -> Dialogue[tuple[T, ChatReply]]:
    """Send a request and parse the reply; if that fails, send one correction that states the problem.

    Later turns should continue `request` with the returned reply, because the failed attempt is useless.

    Raises:
        DialogueFailed: If the second reply is unusable, too.
    """
    reply: ChatReply = yield request
    parsed = read(reply)
    if isinstance(parsed, ReplyProblem):
        problem = {"problem": parsed.text}
        reply = yield request.next_turn(
            reply, "correct", correct.fill_user(problem), variables={**request.variables, **problem}
        )
        parsed = read(reply)
    if isinstance(parsed, ReplyProblem):
        raise DialogueFailed(
            f"{request.prompt}: still not usable after a correction: {parsed.text}; "
            f"the reply begins with {reply.text[:120]!r}"
        )
    return parsed, reply


def check_not_withheld(reply: ChatReply, prompt: str) -> None:
    """Raise DialogueFailed if a content filter withheld the reply, because another turn would not help."""
    if reply.finish_reason == "content_filter":
        raise DialogueFailed(f"{prompt}: the endpoint's content filter withheld the reply")


def _parse_usable(parse: Callable[..., Records], prompt: str, reply: ChatReply) -> Records | ReplyProblem:
    check_not_withheld(reply, prompt)
    truncated = reply.finish_reason == "length"
    records = parse(reply.text, truncated=truncated)
    if records.is_answer:
        return records
    if truncated:
        return ReplyProblem("it was cut off before its first record was complete, so be much briefer")
    return ReplyProblem(
        f"it holds no record in the requested form, and no {COMPLETION} to say that there is none"
    )


def yes_or_no(reply: ChatReply) -> bool | None:
    """Parse a reply to a yes_no request. Returns None if it is neither yes nor no."""
    if reply.finish_reason == "content_filter":
        return None
    word = re.match(r"[\W_]*([^\W\d_]+)", reply.text)
    return {"y": True, "yes": True, "n": False, "no": False}.get(word.group(1).lower() if word else "")


@dataclass(frozen=True)
class ClaimsSpec:
    """Prompts and options of claim extraction. `description` states which claims to extract."""

    claims: Prompt
    correct: Prompt
    call: CallParameters
    description: str
    language: str
    key: Key = field(default=entity_key)


@dataclass(frozen=True, slots=True)
class ClaimRecords:
    """The claims of a chunk, and the numbers of malformed claims and of claims with a blocked subject."""

    claims: tuple[ClaimRecord, ...]
    unusable: int
    blocked: int = 0


def claims_spec(prompts: Mapping[str, Prompt], settings: Settings, key: Key = entity_key) -> ClaimsSpec:
    return ClaimsSpec(
        claims=prompts["claims"],
        correct=prompts["correct"],
        call=settings.call_parameters("claims"),
        description=settings.claims.description,
        language=settings.output_language,
        key=key,
    )


def claims(chunk: ChunkText, entities: Sequence[str], spec: ClaimsSpec) -> Dialogue[ClaimRecords]:
    """Extract claims about the entities (keys) of a chunk. Without entities, no request is made.

    Raises:
        DialogueFailed: As in `extract`.
    """
    if not entities:
        return ClaimRecords((), 0)
    variables = chunk_variables(chunk, spec.language) | {
        "claim_description": spec.description,
        "entities": "\n".join(dict.fromkeys(entities)),
    }
    request = ChatRequest("claims", spec.claims.fill(variables), spec.call, variables)
    raw, _ = yield from usable_reply(request, spec.correct, partial(_parse_usable, parse_claims, "claims"))
    claim_records: list[ClaimRecord] = []
    unusable, blocked = raw.unusable, 0
    for c in raw.claims:
        if subject := spec.key(c.subject):
            object_ = NONE if c.object == NONE else spec.key(c.object) or NONE
            claim_records.append(replace(c, subject=subject, object=object_))
        elif entity_key(c.subject):
            blocked += 1
        else:
            unusable += 1
    return ClaimRecords(tuple(claim_records), unusable, blocked)
