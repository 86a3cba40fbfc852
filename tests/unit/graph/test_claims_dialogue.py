import pickle
from dataclasses import replace

import pytest

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.messages import ChatReply
from graphrag_ray.base.prompts import PLACEHOLDERS
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.graph.delimited_records import COMPLETION, FIELD, RECORD
from graphrag_ray.graph.extraction_dialogue import ChunkText, ClaimRecord, ClaimRecords, claims, claims_spec

D = FIELD
CHUNK = ChunkText("Acme dismissed Alice on 11 June 2014.")
NAMES = ["ACME", "ALICE"]


def claim(subject="Acme", obj="Alice", start="2014-06-11"):
    fields = [
        subject,
        obj,
        "Dismissal",
        "TRUE",
        start,
        "NONE",
        f"{subject} dismissed {obj}.",
        "Acme dismissed Alice",
    ]
    return f'("claim"{D}{D.join(fields)})'


def reply_of(*records):
    return f"\n{RECORD}\n".join(records) + f"\n{COMPLETION}"


def without(blocked):
    def key(name):
        found = entity_key(name)
        return None if found in blocked else found

    return key


@pytest.fixture
def spec(prompts):
    return claims_spec(prompts, parse_settings({}))


def test_request_lists_one_entity_per_line(play, spec):
    result, (request,) = play(claims(CHUNK, [*NAMES, "ACME"], spec), [reply_of(claim())])
    assert request.prompt == "claims"
    assert set(request.variables) == PLACEHOLDERS["claims"]
    assert request.variables["entities"] == "ACME\nALICE"
    assert f"----- passage -----\n{CHUNK.text}\n" in request.messages[-1].content
    assert result == ClaimRecords(
        (
            ClaimRecord(
                "ACME",
                "ALICE",
                "DISMISSAL",
                "TRUE",
                "2014-06-11",
                None,
                "Acme dismissed Alice.",
                "Acme dismissed Alice",
            ),
        ),
        unusable=0,
    )


def test_no_entities_means_no_request(play, spec):
    result, requests = play(claims(CHUNK, [], spec), [])
    assert (result, requests) == (ClaimRecords((), 0), [])


def test_reply_without_claims_is_valid(play, spec):
    result, _ = play(claims(CHUNK, NAMES, spec), [COMPLETION])
    assert result == ClaimRecords((), 0)


def test_unmatched_subject_is_retained(play, spec):
    result, _ = play(claims(CHUNK, NAMES, spec), [reply_of(claim(), claim(subject="The Council"))])
    assert [c.subject for c in result.claims] == ["ACME", "THE COUNCIL"]


def test_a_blocked_subject_drops_the_claim_and_a_blocked_object_becomes_none(play, prompts, spec):
    by_subject = claims_spec(prompts, parse_settings({}), without({"ACME"}))
    result, _ = play(claims(CHUNK, NAMES, by_subject), [reply_of(claim())])
    assert (result.claims, result.blocked, result.unusable) == ((), 1, 0)
    by_object = replace(spec, key=without({"ALICE"}))
    result, _ = play(claims(CHUNK, NAMES, by_object), [reply_of(claim())])
    assert ([c.object for c in result.claims], result.blocked) == (["NONE"], 0)


def test_none_is_not_an_object(play, spec):
    result, _ = play(claims(CHUNK, NAMES, spec), [reply_of(claim(obj="none"))])
    assert result.claims[0].object == "NONE"


def test_unreadable_dates_are_dropped(play, spec):
    result, _ = play(claims(CHUNK, NAMES, spec), [reply_of(claim(start="last June"))])
    assert result.claims[0].start_date is None


def test_unusable_reply_is_corrected_once_and_then_fails(play, spec):
    result, requests = play(claims(CHUNK, NAMES, spec), ["nonsense", reply_of(claim())])
    assert [r.prompt for r in requests] == ["claims", "correct"]
    assert len(result.claims) == 1
    with pytest.raises(DialogueFailed, match="claims"):
        play(claims(CHUNK, NAMES, spec), ["nonsense", "nonsense"])


def test_a_content_filter_fails(play, spec):
    with pytest.raises(DialogueFailed, match="content filter"):
        play(claims(CHUNK, NAMES, spec), [ChatReply("", "content_filter")])


def test_a_truncated_reply_keeps_its_complete_claims(play, spec):
    reply = ChatReply(f"{claim()}\n{RECORD}\n{claim()[:-8]}", "length")
    result, _ = play(claims(CHUNK, NAMES, spec), [reply])
    assert (len(result.claims), result.unusable) == (1, 1)


def test_the_claim_description_of_the_settings_reaches_the_model(prompts):
    settings = parse_settings({"claims": {"description": "Only what concerns {text} and herring."}})
    request = next(claims(CHUNK, NAMES, claims_spec(prompts, settings)))
    assert "Only what concerns {text} and herring." in request.messages[0].content


def test_a_spec_survives_pickling(spec):
    assert (
        next(claims(CHUNK, NAMES, pickle.loads(pickle.dumps(spec)))).hash
        == next(claims(CHUNK, NAMES, spec)).hash
    )
