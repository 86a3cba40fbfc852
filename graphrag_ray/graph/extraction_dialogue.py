"""The extraction dialogue: entities and relationships of one chunk, then gleaning (paper 3.1.2, A.1, A.2).

    extract ──► records ──► glean_check: "were any missed?" ──Y──► glean ──► more records ──► …
                   │                       └──N, or odd──► end           (max_gleanings times)
                   └─ nothing usable: correct, once; then DialogueFailed

Each turn's reply is read by itself, so a gleaned record is never lost at a join.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
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

T = TypeVar("T")
Key = Callable[[str], str | None]
"""A name as written -> the key under which its mentions meet, None where it is blocked."""


@dataclass(frozen=True, slots=True)
class ShownChunk:
    """A text unit as a model sees it. header: title and date written above the text, "" for none."""

    text: str
    header: str = ""


@dataclass(frozen=True)
class ExtractSpec:
    """What extraction needs beside the chunk. Picklable when `key` is.

    examples      few-shot examples, delimiters filled in
    entity_types  in any case; prompts show them in upper case
    language      of the descriptions; names keep the spelling of the text
    key           `aliases.EntityNames.key`, where aliases and the block list act
    """

    extract: Prompt
    examples: str
    glean_check: Prompt
    glean: Prompt
    correct: Prompt
    call: CallParameters
    entity_types: tuple[str, ...]
    max_gleanings: int
    language: str
    key: Key = field(default=entity_key)


@dataclass(frozen=True, slots=True)
class ExtractedRecords:
    """Records in the order of turns and, within one, of the reply.

    unusable              pieces of replies that were meant as records and are none
    odd_glean_replies     gleaning turns that ended the gleaning without a plain no
    blocked               records with a name on the block list
    unreadable_strengths  relationships whose strength was set to 1
    """

    entities: tuple[EntityRecord, ...]
    relationships: tuple[RelationshipRecord, ...]
    unusable: int
    odd_glean_replies: int
    blocked: int = 0
    unreadable_strengths: int = 0


def extract_spec(prompts: Mapping[str, Prompt], settings: Settings, key: Key = entity_key) -> ExtractSpec:
    return ExtractSpec(
        extract=prompts["extract"],
        examples=prompts["extract_examples"].text(DELIMITERS),
        glean_check=prompts["glean_check"],
        glean=prompts["glean"],
        correct=prompts["correct"],
        call=settings.call("extract"),
        entity_types=settings.extraction.entity_types,
        max_gleanings=settings.extraction.max_gleanings,
        language=settings.output_language,
        key=key,
    )


def extract(chunk: ShownChunk, spec: ExtractSpec) -> Dialogue[ExtractedRecords]:
    """Yields ChatRequests "extract", "glean_check" (response "yes_no"), "glean" and, where a first reply
    cannot be used, "correct". Every request's variables are those of the extract prompt.

    Raises DialogueFailed if the first reply was withheld by a content filter, or holds neither a usable
    record nor a plain "nothing to extract" even after the correction turn. An answer that is neither yes nor
    no ends the gleaning and is counted, unlike in the paper's A.2: not every endpoint can be forced to one of
    the two.
    """
    variables = chunk_variables(chunk, spec.language) | {
        "entity_types": ", ".join(t.upper() for t in spec.entity_types),
        "examples": spec.examples,
    }
    messages = spec.extract.fill(variables)
    first = ChatRequest("extract", messages, spec.call, variables)
    records, reply = yield from usable_reply(first, spec.correct, partial(_usable, parse_records, "extract"))
    turns, odd = [records], 0
    latest = first
    while len(turns) <= spec.max_gleanings:
        # The client cuts a yes_no reply short, except where a model's unseen reasoning counts as reply.
        check = latest.followed_by(reply, "glean_check", spec.glean_check.text(variables), response="yes_no")
        missed = yes_or_no(verdict := (yield check))
        if not missed:
            odd += missed is None
            break
        latest = check.followed_by(verdict, "glean", spec.glean.text(variables), response="text")
        reply = yield latest
        if reply.finish_reason == "content_filter":
            odd += 1
            break
        gleaned = parse_records(reply.text, truncated=reply.finish_reason == "length")
        odd += not gleaned.is_answer
        turns.append(gleaned)
    entities: list[EntityRecord] = []
    relationships: list[RelationshipRecord] = []
    unusable = blocked = 0
    for turn, records in enumerate(turns):
        unusable += records.unusable
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
    unreadable = sum(t.unreadable for t in turns)
    return ExtractedRecords(tuple(entities), tuple(relationships), unusable, odd, blocked, unreadable)


def chunk_variables(chunk: ShownChunk, language: str) -> dict[str, str]:
    """What every prompt about a chunk is filled with."""
    header = chunk.header if not chunk.header or chunk.header.endswith("\n") else chunk.header + "\n"
    return {**DELIMITERS, "header": header, "text": chunk.text, "language": language}


def usable_reply(
    request: ChatRequest, correct: Prompt, read: Callable[[ChatReply], T | ReplyProblem]
) -> Dialogue[tuple[T, ChatReply]]:
    """The reply, read; where nothing can be made of it, that to one correction turn, which says why.

    Later turns should follow `request` with the reply given back: the failed attempt teaches nothing.
    Raises DialogueFailed where the second reply cannot be used either.
    """
    reply: ChatReply = yield request
    found = read(reply)
    if isinstance(found, ReplyProblem):
        said = {"problem": found.text}
        reply = yield request.followed_by(
            reply, "correct", correct.text(said), variables={**request.variables, **said}
        )
        found = read(reply)
    if isinstance(found, ReplyProblem):
        raise DialogueFailed(
            f"{request.prompt}: still not usable after a correction: {found.text}; "
            f"it begins {reply.text[:120]!r}"
        )
    return found, reply


def check_not_withheld(reply: ChatReply, prompt: str) -> None:
    """Raises DialogueFailed for a reply that a content filter withheld: another turn would not help."""
    if reply.finish_reason == "content_filter":
        raise DialogueFailed(f"{prompt}: the endpoint's content filter withheld the reply")


def _usable(parse: Callable[..., Records], prompt: str, reply: ChatReply) -> Records | ReplyProblem:
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
    """What a reply to a yes_no request says. None: neither."""
    if reply.finish_reason == "content_filter":
        return None
    word = re.match(r"[\W_]*([^\W\d_]+)", reply.text)
    return {"y": True, "yes": True, "n": False, "no": False}.get(word.group(1).lower() if word else "")


@dataclass(frozen=True)
class ClaimsSpec:
    """What the claims dialogue needs beside the chunk. description: which claims are wanted."""

    claims: Prompt
    correct: Prompt
    call: CallParameters
    description: str
    language: str
    key: Key = field(default=entity_key)


@dataclass(frozen=True, slots=True)
class ClaimRecords:
    """Claims in the order of the reply.

    unusable           pieces that were meant as claims and are none
    blocked            claims whose subject is on the block list
    unmatched          claims kept whose subject is not among the entities asked about
    unreadable_fields  statuses (set to SUSPECTED) and dates (set to None) that could not be read
    """

    claims: tuple[ClaimRecord, ...]
    unusable: int
    blocked: int = 0
    unmatched: int = 0
    unreadable_fields: int = 0


def claims_spec(prompts: Mapping[str, Prompt], settings: Settings, key: Key = entity_key) -> ClaimsSpec:
    return ClaimsSpec(
        claims=prompts["claims"],
        correct=prompts["correct"],
        call=settings.call("claims"),
        description=settings.claims.description,
        language=settings.output_language,
        key=key,
    )


def claims(chunk: ShownChunk, entities: Sequence[str], spec: ClaimsSpec) -> Dialogue[ClaimRecords]:
    """Yields one ChatRequest "claims" and, where its reply cannot be used, "correct".

    entities: keys of the entities extracted from this chunk; without any, nothing is asked.
    Raises DialogueFailed as `extract` does.
    """
    names = dict.fromkeys(entities)
    if not names:
        return ClaimRecords((), 0)
    variables = chunk_variables(chunk, spec.language) | {
        "claim_description": spec.description,
        "entities": "\n".join(names),
    }
    first = ChatRequest("claims", spec.claims.fill(variables), spec.call, variables)
    raw, _ = yield from usable_reply(first, spec.correct, partial(_usable, parse_claims, "claims"))
    found: list[ClaimRecord] = []
    unusable, blocked = raw.unusable, 0
    for c in raw.claims:
        if subject := spec.key(c.subject):
            object_ = NONE if c.object == NONE else spec.key(c.object) or NONE
            found.append(replace(c, subject=subject, object=object_))
        elif entity_key(c.subject):
            blocked += 1
        else:
            unusable += 1
    unmatched = sum(c.subject not in names for c in found)
    return ClaimRecords(tuple(found), unusable, blocked, unmatched, raw.unreadable)
