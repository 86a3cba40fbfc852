"""The claims dialogue: factual statements about the entities of one chunk (paper 3.1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import CallParameters, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.delimited_records import NONE, RawClaims, parse_claims
from graphrag_ray.graph.extraction_dialogue import Key, ShownChunk, chunk_variables, usable_reply


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
class ClaimRecord:
    """One claim.

    subject      entity key, among the entities asked about or not
    object       entity key, or "NONE"
    type         upper case
    status       TRUE, FALSE or SUSPECTED
    start_date, end_date  ISO 8601, as exact as the text (2014, 2014-06, 2014-06-11); None where not given
    source_text  quotes from the chunk, " […] " between several, "" where none was given
    """

    subject: str
    object: str
    type: str
    status: str
    start_date: str | None
    end_date: str | None
    description: str
    source_text: str


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
    names = list(dict.fromkeys(entities))
    if not names:
        return ClaimRecords((), 0)
    variables = chunk_variables(chunk, spec.language) | {
        "claim_description": spec.description,
        "entities": "\n".join(names),
    }
    first = ChatRequest("claims", spec.claims.fill(variables), spec.call, variables)
    raw, _ = yield from usable_reply(first, spec.correct, parse_claims)
    return _keyed(raw, frozenset(names), spec.key)


def _keyed(raw: RawClaims, known: frozenset[str], key: Key) -> ClaimRecords:
    found: list[ClaimRecord] = []
    unusable, blocked = raw.unusable, 0
    for c in raw.claims:
        subject = key(c.subject)
        if not subject:
            if entity_key(c.subject):
                blocked += 1
            else:
                unusable += 1
            continue
        found.append(
            ClaimRecord(
                subject=subject,
                object=NONE if c.object == NONE else key(c.object) or NONE,
                type=c.type,
                status=c.status,
                start_date=c.start_date,
                end_date=c.end_date,
                description=c.description,
                source_text=c.source_text,
            )
        )
    unmatched = sum(c.subject not in known for c in found)
    return ClaimRecords(tuple(found), unusable, blocked, unmatched, raw.unreadable_fields)
