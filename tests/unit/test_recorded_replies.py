"""Replies of a strong model to recorded requests are read without corrections or losses, and the dialogues
end as they did. The recording is not part of the project; without it these tests are skipped."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
from hostile_text import CORPORA

from graphrag_ray.base.context_records import parse_references, parse_sections
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import CallParameters, ChatReply, Dialogue
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.engine.dialogue_runner import Complete, DialogueRunner, Waiting
from graphrag_ray.graph.descriptions import describe, describe_spec, distinct_descriptions
from graphrag_ray.graph.extraction_dialogue import (
    ChunkText,
    ExtractedRecords,
    claims,
    claims_spec,
    extract,
    extract_spec,
)
from graphrag_ray.graph.report_context import Context
from graphrag_ray.graph.report_dialogue import report, report_spec
from graphrag_ray.query.methods.condense import condense
from graphrag_ray.query.methods.drift_search import LOCAL, PRIMER, drift_spec, look_up, primer
from graphrag_ray.query.methods.dynamic_selection import MAX_RATING, rate_reports, rate_spec
from graphrag_ray.query.methods.map_reduce import (
    MapAnswer,
    answer_spec,
    ask_for_text,
    map_answer,
    map_spec,
    reduce_spec,
)
from graphrag_ray.query.methods.single_context import answer_context

T = TypeVar("T")

FILE = CORPORA / "replies" / "replies.jsonl.gz"
SETTINGS, PROMPTS = Settings(), load_prompts()
QUESTION = "What was asked?"

pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"there are no recorded replies in {FILE}")


@dataclass(frozen=True)
class Recorded:
    """`kind` of the request, `messages` with their contents, and `asked`, the last of them."""

    id: int
    kind: str
    messages: tuple[str, ...]
    reply: str

    @property
    def asked(self) -> str:
        return self.messages[-1]

    @property
    def passage(self) -> str:
        return self.asked.partition("----- passage -----\n")[2]

    @property
    def context(self) -> Context:
        """Its tables, and an id for each of their records."""
        tables = self.asked[re.search(r"^-----\w+-----$", self.asked, re.M).start() :]
        text = tables[: tables.index("\n----- end of the ")]
        shown = parse_sections(text)
        numbering = {
            (section, int(row["id"])): f"{section} {row['id']}"
            for section, rows in shown.items()
            for row in rows
        }
        return Context(text, numbering, 0)


@pytest.fixture(scope="module")
def recorded() -> list[Recorded]:
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        Recorded(r["id"], r["kind"], tuple(m["content"] for m in r["request"]["messages"]), r["reply"])
        for r in rows
    ]


def of(recorded: Sequence[Recorded], kind: str) -> Iterator[Recorded]:
    found = [r for r in recorded if r.kind == kind]
    assert found
    yield from found


def result(dialogue: Dialogue[T], *replies: Recorded) -> T:
    """The result of the dialogue with these replies, which are all that it requests."""
    driver = DialogueRunner(dialogue)
    for reply in replies:
        assert isinstance(driver.state, Waiting), f"{reply.id}: {driver.state}"
        (request,) = driver.state.requests
        kind = re.sub("_(entity|relationship)$", "", reply.kind)
        assert kind == request.prompt, f"{reply.id}: asked for {request.prompt}"
        driver.send([ChatReply(reply.reply)])
    assert isinstance(driver.state, Complete), f"{[reply.id for reply in replies]}: {driver.state}"
    return driver.state.result


def extracted(recorded: Sequence[Recorded], first: Recorded) -> tuple[ExtractedRecords, str]:
    """The result of an extraction with its following turns, and all of their text."""
    later = [r for r in recorded if r.kind.startswith("glean") and r.messages[:2] == first.messages]
    turns = [first, *(r for r in later if r.messages[2].strip() == first.reply.strip())]
    spec = extract_spec(PROMPTS, SETTINGS)
    spec = replace(spec, check_first=True, max_gleanings=min(1, len(turns) - 1))
    return result(extract(ChunkText(first.passage), spec), *turns), "".join(turn.reply for turn in turns)


def test_every_record_of_an_extraction_is_read(recorded):
    found = [extracted(recorded, first) for first in of(recorded, "extract")]
    for one, written in found:
        assert len(one.entities) == written.count('("entity"') > 0
        assert len(one.relationships) == written.count('("relationship"') > 0
        losses = one.unusable, one.unexpected_glean_replies, one.blocked, one.unreadable_strengths
        assert losses == (0, 0, 0, 0)
        names = {e.title for e in one.entities}
        assert {name for r in one.relationships for name in (r.source, r.target)} <= names
        assert {e.type for e in one.entities} <= {t.upper() for t in SETTINGS.extraction.entity_types}
        assert all(1 <= r.strength <= 10 for r in one.relationships)
    gleaned = [one for one, _ in found if any(r.turn for r in (*one.entities, *one.relationships))]
    assert len(gleaned) == len(list(of(recorded, "glean")))


@pytest.mark.parametrize("kind", ["entity", "relationship"])
def test_a_description_is_used_unchanged(recorded, kind):
    for one in of(recorded, f"describe_{kind}"):
        name = re.search(rf"^The {kind}: (.*)$", one.asked, re.M).group(1)
        texts = one.asked.partition("to the end of this message:\n\n")[2].split("\n")
        spec = describe_spec(PROMPTS, SETTINGS)
        # Texts that differ only in quotation marks need no call; the model's text is one of them.
        replies = [one] if len(distinct_descriptions(texts)) > 1 else []
        assert result(describe(kind, name, texts, spec), *replies) == " ".join(one.reply.split())


def test_every_claim_is_read_and_quotes_its_passage(recorded):
    for one in of(recorded, "claims"):
        names = one.asked.partition("Entities, one a line:\n")[2].partition("\n\n")[0].split("\n")
        read = result(claims(ChunkText(one.passage), names, claims_spec(PROMPTS, SETTINGS)), one)
        assert (read.unusable, read.blocked) == (0, 0)
        assert len(read.claims) == one.reply.count('("claim"') > 0
        assert {c.object for c in read.claims} <= {*names, "NONE"}
        for claim in read.claims:  # Interjections of other speakers may be left out.
            words = iter(re.findall(r"\w+", one.passage.casefold()))
            assert all(word in words for word in re.findall(r"\w+", claim.source_text.casefold()))
            assert claim.source_text and claim.description


def test_a_report_is_complete_and_cites_only_its_context(recorded):
    cited = 0
    for one in of(recorded, "report"):
        written = result(report(one.context, report_spec(SETTINGS, PROMPTS)), one)
        assert written.title and written.summary and written.rating_explanation
        assert 0 < written.rating <= 10 and len(written.findings) >= 2
        assert written.references and written.dropped_references == 0
        assert all(parse_references(explanation) for _, explanation in written.findings)
        cited += len(written.references)
    assert cited == 206


def test_a_map_answer_has_its_score_and_references(recorded):
    for one in of(recorded, "map"):
        (answer,) = result(map_answer(QUESTION, one.context, map_spec(SETTINGS, PROMPTS)), one)
        assert 0 < answer.score <= 100 and whole(answer) and "HELPFULNESS" not in answer.text


def whole(answer: MapAnswer) -> bool:
    return bool(answer.text and answer.references) and not answer.truncated and answer.dropped_references == 0


def test_an_answer_from_one_context_cites_its_records(recorded):
    for one in of(recorded, "answer"):
        said = result(answer_context(QUESTION, one.context, answer_spec(SETTINGS, PROMPTS)), one)
        assert said.found and said.references and said.dropped_references == 0


def test_a_final_answer_cites_records_of_the_partial_answers(recorded):
    for one in of(recorded, "reduce"):
        cited = parse_references(one.context.text)
        numbering = {(r.section, int(r.id)): f"{r.section} {r.id}" for r in cited}
        spec = reduce_spec(SETTINGS, PROMPTS)
        shown = {"answers": one.context.text}
        said = result(ask_for_text("reduce", QUESTION, shown, numbering, spec), one)
        assert said.references and said.dropped_references == 0


def test_every_report_is_rated(recorded):
    for one in of(recorded, "rate"):
        ratings = result(rate_reports(QUESTION, one.context, rate_spec(SETTINGS, PROMPTS)), one)
        assert set(ratings) == set(one.context.numbering.values())
        assert all(0 <= rating <= MAX_RATING for rating in ratings.values())


def test_a_drift_step_has_an_answer_and_at_most_the_requested_follow_ups(recorded):
    def steps() -> Iterator[Any]:
        for one in of(recorded, PRIMER):
            spec = drift_spec(PRIMER, SETTINGS, PROMPTS)
            yield result(primer(QUESTION, one.context, spec, 3), one)
        for one in of(recorded, LOCAL):
            spec = drift_spec(LOCAL, SETTINGS, PROMPTS)
            yield result(look_up(QUESTION, "And then?", one.context, spec, 3), one)

    for step in steps():
        assert 0 < step.answer.score <= 100 and whole(step.answer)
        assert len(step.follow_ups) <= 3 and all(0 < f.score <= 100 for f in step.follow_ups)


def test_a_follow_up_question_is_condensed(recorded):
    for one in of(recorded, "condense"):
        asked = one.asked.rstrip().rpartition("\n")[2]
        call = CallParameters("default", "m")
        assert result(condense(asked, "", PROMPTS["condense"], call), one) == one.reply.strip()
