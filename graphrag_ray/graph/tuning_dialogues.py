"""Request settings, a schema and extraction examples that fit a corpus, from samples of its chunks.

Whatever a model replies becomes part of the user's settings and prompts, and the texts that it reads may come
from strangers. So only known keys are read, every value is one line of limited length, and an example is used
only if it reads back as the records that it is made from.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from graphrag_ray.base.errors import DialogueFailed, PromptError
from graphrag_ray.base.index_settings import MAX_ABOUT, Settings, normalize_description
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, parse_reply, schema_of
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue, join_surrogates
from graphrag_ray.base.prompts import Prompt, parse_prompt
from graphrag_ray.base.wording import shorten
from graphrag_ray.graph.delimited_records import COMPLETION, DELIMITERS, FIELD, RECORD, parse_records
from graphrag_ray.graph.extraction_dialogue import (
    ChunkText,
    ExtractedRecords,
    ExtractSpec,
    check_not_withheld,
    chunk_variables,
    extract,
    type_name,
    usable_reply,
)
from graphrag_ray.graph.report_context import sanitize

STAGE = "tune"
MIN_TYPES, MAX_TYPES = 3, 12
MIN_EXAMPLE_ENTITIES = 2
MAX_RELATIONS = 20
MAX_REPLY_TOKENS = 3_000
LANGUAGE = "the language of the texts"
_MAX_NAME, _MAX_DEFINITION, _MAX_PHRASE, _MAX_SENTENCE = 40, 200, 160, 400
_MAX_LISTED = 6
_NAME = re.compile(r"[^\W_]+(?:[ '’&/·・-]{1,3}[^\W_]+)*+")
"""Names of types, relations and languages: words without punctuation that separates records or settings."""
_MARKUP = re.compile(rf"\{{[a-z][a-z0-9_]*\}}|{re.escape(FIELD)}|{re.escape(COMPLETION)}|^=== user ===", re.M)
"""What a passage must not contain to be part of a prompt file."""

_NOT_IN_YAML = re.compile("[^\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


class TypeReply(JsonReply):
    type: str
    definition: str = ""


class ProfileReply(JsonReply):
    domain: str = ""
    languages: list[str] = Field(default=[])
    description: str = ""
    role: str = ""
    rating_criterion: str = ""
    claims: str = ""
    entity_types: list[TypeReply]
    rich_texts: list[int] = Field(default=[])


class EntityReply(JsonReply):
    type: str
    description: str = ""
    attributes: list[str] = Field(default=[])
    examples: list[str] = Field(default=[])


class RelationReply(JsonReply):
    relation: str
    description: str = ""
    sources: list[str] = Field(default=[])
    targets: list[str] = Field(default=[])


class SchemaReply(JsonReply):
    entities: list[EntityReply]
    relations: list[RelationReply] = Field(default=[])


@dataclass(frozen=True)
class TuningSpec:
    profile: Prompt
    schema: Prompt
    correct: Prompt
    call: CallParameters
    language: str
    """Language of the values."""


@dataclass(frozen=True)
class CorpusProfile:
    """What a model says about a corpus, in valid values. A value that is "" or empty is missing."""

    domain: str
    languages: tuple[str, ...]
    description: str
    role: str
    rating_criterion: str
    claims: str
    entity_types: tuple[str, ...]  # "name: definition"
    rich_texts: tuple[int, ...]  # positions of the samples with the most names, the richest first
    n_listed_types: int  # number of entries in the reply, of which some may be unusable or too many


@dataclass(frozen=True)
class Decided:
    """What the user has decided, which the model must keep."""

    domain: str | None = None
    language: str | None = None
    entity_types: tuple[str, ...] = ()

    def as_text(self) -> str:
        parts = (("domain", self.domain), ("main language", self.language))
        facts = [f"the {name} is {value}" for name, value in parts if value]
        if self.entity_types:
            facts.append(f"the entity types are {'; '.join(self.entity_types)}")
        return f"Already decided, so keep to it: {', '.join(facts)}." if facts else ""


def tuning_spec(settings: Settings, prompts: Mapping[str, Prompt], language: str | None) -> TuningSpec:
    call = settings.call_parameters(STAGE, MAX_REPLY_TOKENS)
    return TuningSpec(
        prompts["tune_profile"], prompts["tune_schema"], prompts["correct"], call, language or LANGUAGE
    )


def sample_text(chunks: Sequence[ChunkText]) -> str:
    """Return chunks with their headers, for the placeholder `samples`."""
    parts = (chunk_variables(chunk, "") for chunk in chunks)
    return "\n".join(f"----- text {n} -----\n{v['header']}{v['text']}" for n, v in enumerate(parts, 1))


def profile_request(samples: str, decided: Decided, spec: TuningSpec) -> ChatRequest:
    variables = {"samples": samples, "known": decided.as_text(), "language": spec.language}
    messages = spec.profile.fill(variables)
    return ChatRequest("tune_profile", messages, spec.call, variables, "json", schema_of(ProfileReply))


def corpus_profile(samples: str, decided: Decided, spec: TuningSpec) -> Dialogue[CorpusProfile]:
    """Request settings that fit a corpus.

    The second reply may list more than MAX_TYPES types, of which the first are used.

    Raises:
        DialogueFailed: Two replies have fewer than MIN_TYPES usable types, or no JSON.
    """
    replies = 0

    def read(reply: ChatReply) -> CorpusProfile | ReplyProblem:
        nonlocal replies
        replies += 1
        check_not_withheld(reply, "tune_profile")
        parsed = parse_reply(reply.text, ProfileReply, reply.finish_reason)
        if isinstance(parsed, ReplyProblem):
            return parsed
        types = usable_types(parsed.entity_types)
        if decided.entity_types:
            types = define(decided.entity_types, types)
        elif len(types) < MIN_TYPES or (len(types) > MAX_TYPES and replies == 1):
            return ReplyProblem(
                f"`entity_types` has {len(types)} entries whose type is one to three words, instead of "
                f"{MIN_TYPES} to {MAX_TYPES}"
            )
        else:
            types = types[:MAX_TYPES]
        languages = tuple(n for text in parsed.languages[:_MAX_LISTED] if (n := usable_name(text)))
        return CorpusProfile(
            one_line(parsed.domain, _MAX_PHRASE),
            languages,
            one_line(parsed.description, _MAX_SENTENCE),
            one_line(parsed.role, _MAX_PHRASE),
            one_line(parsed.rating_criterion, _MAX_PHRASE),
            one_line(parsed.claims, _MAX_SENTENCE),
            types,
            tuple(n - 1 for n in dict.fromkeys(parsed.rich_texts) if n > 0),
            len(parsed.entity_types),
        )

    profile, _ = yield from usable_reply(profile_request(samples, decided, spec), spec.correct, read)
    return profile


def one_line(text: str, max_chars: int) -> str:
    """Return a text as one line without control characters, references and delimiters of records."""
    text = _NOT_IN_YAML.sub(" ", join_surrogates(text[: 8 * MAX_ABOUT]))
    for delimiter in (FIELD, COMPLETION, RECORD):
        text = text.replace(delimiter, " ")
    return shorten(normalize_description(sanitize(text)), max_chars)


def usable_name(text: str) -> str | None:
    """Return the name of a type, relation or language with single spaces, or None if it is not usable."""
    if len(text) > 2 * _MAX_NAME or "\n" in text.strip():
        return None
    name = " ".join(text.replace("_", " ").split()).strip("\"'`*.“”„«» ")
    return name if len(name) <= _MAX_NAME and _NAME.fullmatch(name) else None


def usable_types(replies: Sequence[TypeReply]) -> tuple[str, ...]:
    """Return distinct entity types as `name: definition`, without those that settings cannot contain."""
    types: dict[str, str] = {}
    for reply in replies:
        if name := usable_name(reply.type):
            definition = one_line(reply.definition, _MAX_DEFINITION)
            types.setdefault(name.casefold(), f"{name}: {definition}" if definition else name)
    return tuple(types.values())


def define(types: Sequence[str], definitions: Sequence[str]) -> tuple[str, ...]:
    """Add definitions to types that lack one."""
    by_name = {type_name(t): t.partition(":")[1:] for t in reversed(definitions)}
    return tuple(t if ":" in t else t + "".join(by_name.get(type_name(t), ())) for t in types)


def draft_schema(
    samples: str, description: str, types: Sequence[str], spec: TuningSpec
) -> Dialogue[dict[str, Any]]:
    """Request attributes, examples and relations of entity types. Returns a schema for `extraction.schema`.

    Raises:
        DialogueFailed: Two replies are not usable.
    """
    variables = {
        "samples": samples,
        "description": description,
        "type_definitions": "\n".join(f"- {t}" for t in types),
        "language": spec.language,
    }
    messages = spec.schema.fill(variables)
    request = ChatRequest("tune_schema", messages, spec.call, variables, "json", schema_of(SchemaReply))

    def read(reply: ChatReply) -> SchemaReply | ReplyProblem:
        check_not_withheld(reply, "tune_schema")
        return parse_reply(reply.text, SchemaReply, reply.finish_reason)

    reply, _ = yield from usable_reply(request, spec.correct, read)
    return schema_of_reply(reply, types, samples)


def schema_of_reply(reply: SchemaReply, types: Sequence[str], samples: str) -> dict[str, Any]:
    """Return the usable part of a schema: all types, and relations between them."""
    names = {type_name(t): t.partition(":")[0].strip() for t in types}
    drafts = {type_name(usable_name(e.type) or ""): e for e in reversed(reply.entities)}
    entities: dict[str, Any] = {}
    text = compact(samples)
    for entity_type, (key, name) in zip(types, names.items(), strict=False):
        draft = drafts.get(key, EntityReply(type=name))
        definition = one_line(entity_type.partition(":")[2], _MAX_DEFINITION)
        attributes = [n for a in draft.attributes if (n := usable_name(a))]
        found = [e for e in draft.examples[:MAX_RELATIONS] if compact(e) and compact(e) in text]
        entities[name] = {
            "description": one_line(draft.description, _MAX_DEFINITION) or definition,
            "attributes": list(dict.fromkeys(attributes))[:_MAX_LISTED],
            "examples": [one_line(e, _MAX_NAME) for e in dict.fromkeys(found)][:_MAX_LISTED],
        }
    relations: dict[str, Any] = {}
    for relation in reply.relations:
        name = (usable_name(relation.relation) or "").upper().replace(" ", "_")
        ends = [
            [names[k] for k in dict.fromkeys(map(type_name, listed)) if k in names]
            for listed in (relation.sources, relation.targets)
        ]
        if name and all(ends) and len(relations) < MAX_RELATIONS:
            description = one_line(relation.description, _MAX_DEFINITION)
            relations.setdefault(name, {"description": description, "from": ends[0], "to": ends[1]})
    return {"open": True, "entities": entities, "relations": relations}


def write_example(passage: ChunkText, spec: ExtractSpec) -> Dialogue[str]:
    """Extract the records of a short passage, and return passage and records as a section of a prompt file.

    Raises:
        DialogueFailed: The reply cannot serve as an example.
    """
    if _MARKUP.search(passage.header + passage.text):
        raise DialogueFailed("the passage contains markup of prompts")
    records = yield from extract(passage, replace(spec, max_gleanings=0))
    if problem := example_problem(passage, records, spec.entity_types):
        raise DialogueFailed(problem)
    text = _example(passage, records, spec.entity_types)
    try:
        filled = parse_prompt("extract_examples", text).fill_user(DELIMITERS)
    except PromptError:
        raise DialogueFailed("its records contain markup of prompts") from None
    read = parse_records(filled.partition("\nRecords:\n")[2])
    written = [(e.title, e.type, e.description) for e in records.entities]
    ends = [(r.source, r.target) for r in records.relationships]
    if [(e.title, e.type, e.description) for e in read.entities] != written or read.unusable:
        raise DialogueFailed("its records do not read back")
    if [(r.source, r.target) for r in read.relationships] != ends:
        raise DialogueFailed("its records do not read back")
    return text


def example_problem(passage: ChunkText, records: ExtractedRecords, types: Sequence[str]) -> str:
    """Return why the records of a passage cannot serve as an example, or ""."""
    titles = [e.title for e in records.entities]
    known = {type_name(t) for t in types}
    if len(set(titles)) < MIN_EXAMPLE_ENTITIES:
        return f"it has fewer than {MIN_EXAMPLE_ENTITIES} entities"
    if records.unusable:
        return "it has malformed records"
    if other := next((e.type for e in records.entities if e.type not in known), None):
        return f"it has the type {other[:_MAX_NAME]!r}, which is not in the list"
    if any(end not in titles for r in records.relationships for end in (r.source, r.target)):
        return "it relates names that are not among its entities"
    text = compact(f"{passage.header}\n{passage.text}")
    if other := next((t for t in titles if not _occurs(t, text)), None):
        return f"the name {other[:_MAX_NAME]!r} does not occur in the passage"
    return ""


def _occurs(name: str, text: str) -> bool:
    """Whether a name, or at least half of its words, occur in a compact text.

    Names may be longer than in the text ("MOTHER OF AVA LIND"), and inflection changes their endings.
    """
    plain = re.sub(r"\([^()]*\)", " ", name)
    words = [w for w in map(compact, plain.split()) if w]
    return bool(words) and ("".join(words) in text or 2 * sum(w in text for w in words) >= len(words) > 1)


def compact(text: str) -> str:
    """Return only the letters and digits of a text, without differences of case and width."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def _example(passage: ChunkText, records: ExtractedRecords, types: Sequence[str]) -> str:
    lines = [
        *(f'("entity"{{field}}{e.title}{{field}}{e.type}{{field}}{e.description})' for e in records.entities),
        *(
            f'("relationship"{{field}}{r.source}{{field}}{r.target}{{field}}{r.description}{{field}}'
            f"{r.strength:g})"
            for r in records.relationships
        ),
    ]
    header = f"{passage.header.strip()}\n\n" if passage.header.strip() else ""
    return (
        f"Entity types: {', '.join(map(type_name, types))}\n\n{header}Passage:\n{passage.text.strip()}\n\n"
        "Records:\n" + "\n{record}\n".join(lines) + "\n{completion}"
    )


def examples_prompt(examples: Sequence[str], bundled: Prompt) -> str:
    """Return the text of `extract_examples.txt`: these examples, and the last bundled one, which is empty."""
    last = bundled.user.rpartition("## Example ")[2].partition("\n")[2].strip()
    return "\n\n".join(f"## Example {n}\n\n{text}" for n, text in enumerate([*examples, last], 1)) + "\n"
