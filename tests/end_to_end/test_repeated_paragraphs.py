"""A paragraph that many documents repeat is shown to the extracting model once."""

from __future__ import annotations

import itertools
from typing import Any

from test_estimate import estimated, sent_tokens
from world import Built, World, everything, prompt_of

NOTICE = (
    "This call contains forward-looking statements of ACME. The results of ACME may differ materially from\n"
    "them, because of the risks that ACME describes in its reports to the commission.\n"
)
CALLS = {
    f"call{i}.txt": f"Call of quarter {i}.\n\n{NOTICE}\n{a} met {b} in quarter {i}.\n"
    for i, (a, b) in enumerate(itertools.pairwise(["ALICE", "BOB", "CAROL", "DAVE", "ERIN"]), 1)
}
KEEP = {"extraction": {"repeated_paragraphs": "keep"}}


def shown(world: World, start: int = 0) -> list[str]:
    """The texts of extraction requests, from request `start` on."""
    bodies = world.endpoint.bodies()[start:]
    return [b["messages"][-1]["content"] for b in bodies if prompt_of(b) == "extract"]


def test_a_notice_is_shown_once_and_stays_in_the_index(world: World):
    world.write(CALLS)
    done = world.index()
    texts = shown(world)
    assert sum("ACME" in text for text in texts) == 1 and sum("[…]" in text for text in texts) == 3
    (first,) = (text for text in texts if "ACME" in text)
    assert "Call of quarter 1." in first
    assert {unit["text"].strip() for unit in world.table("text_units")} == {t.strip() for t in CALLS.values()}
    (acme,) = (e for e in world.table("entities") if e["title"] == "ACME")
    assert acme["frequency"] == 1
    counts = done.manifest.counts
    assert counts["shortened_chunks"] == 3 and counts["left_out_characters"] == 3 * len(NOTICE.strip())
    assert done.manifest.steps["repeats"]["counts"] == {"repeated_paragraphs": 3}
    asked = world.asked()
    assert not world.index().committed and world.asked() == asked


LONG = {"chunking": {"size": 60, "overlap": 0, "min_last_chunk_tokens": 1}}
BODY = "ALICE met BOB in the first of many long quarters that people remember. " * 6
ENDING = {f"{i}.txt": f"{i}. {BODY}\n\n{NOTICE}" for i in range(4)}
"""Documents whose last chunk is the notice."""


def test_a_chunk_without_other_text_costs_no_call(world: World):
    world.write(ENDING)
    done = world.index(**LONG)
    assert done.manifest.steps["extract"]["counts"]["left_out_chunks"] == 3
    assert len(world.table("text_units")) == 12
    assert len(shown(world)) == 7, "two chunks equal another one without the start of the notice"


def test_a_document_without_other_text_is_shown_in_full(world: World):
    world.write({**CALLS, "notice.txt": NOTICE, "other.txt": f"{NOTICE}\n\n***"})
    world.index()
    assert sum(NOTICE.strip() in text for text in shown(world)) == 3


def test_claims_leave_out_the_same_paragraphs(world: World):
    world.write(CALLS)
    world.index(claims={"enabled": True})
    claims = [b["messages"][-1]["content"] for b in world.endpoint.bodies() if prompt_of(b) == "claims"]
    assert len(claims) == 4 and sum(NOTICE.strip() in text for text in claims) == 1


def test_a_setting_shows_every_chunk_in_full(world: World):
    world.write(CALLS)
    done = world.index(**KEEP)
    assert len(shown(world)) == 4 and all("ACME" in text for text in shown(world))
    assert "repeats" not in done.manifest.steps


def test_two_copies_are_kept(world: World):
    world.write({name: CALLS[name] for name in ("call1.txt", "call2.txt")})
    world.index()
    assert all("ACME" in text for text in shown(world))


def test_an_existing_index_costs_no_call_until_the_setting_is_set(world: World, monkeypatch: Any):
    world.write(CALLS)
    world.index(**KEEP, request_rules=1)
    forget_setting(world, monkeypatch)
    asked = world.asked()
    world.write({"call5.txt": f"{NOTICE}\n\nERIN met FRANK."})
    world.index()
    (text,) = shown(world, asked)
    assert NOTICE.strip() in text
    asked = world.asked()
    world.index(extraction={"repeated_paragraphs": "once"})
    assert len(shown(world, asked)) == 4, "the chunks that become shorter"
    asked = world.asked()
    assert not world.index().committed and world.asked() == asked


def forget_setting(world: World, monkeypatch: Any) -> None:
    """Let the newest snapshot look as if it had been made before the setting existed."""
    from graphrag_ray.indexing import index

    original = index.previous_settings

    def previous(*args: Any) -> Any:
        settings = dict(original(*args))
        extraction = dict(settings["extraction"])
        if extraction["repeated_paragraphs"] == "keep":
            del extraction["repeated_paragraphs"]
            settings.pop("request_rules", None)
        return settings | {"extraction": extraction}

    monkeypatch.setattr(index, "previous_settings", previous)


def test_an_update_equals_an_index_built_from_scratch(world: World, built: Built):
    world.write({name: CALLS[name] for name in ("call2.txt", "call3.txt")})
    world.index()
    world.write({name: CALLS[name] for name in ("call1.txt", "call4.txt")})
    asked = world.asked()
    world.index()
    # A new first document, one without the notice, and documents that now leave it out.
    assert sorted("ACME" in text for text in shown(world, asked)) == [False] * 3 + [True]
    ours, fresh = everything(world.open()), everything(built(CALLS).open())
    for table in ("text_units", "entities", "relationships", "entity_instances", "relationship_instances"):
        assert without_numbers(ours[table]) == without_numbers(fresh[table])


def without_numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "human_readable_id"} for row in rows]


def test_an_estimate_counts_the_requests_of_a_run(world: World):
    world.write(ENDING)
    world.write({"notice.txt": NOTICE, "notices.txt": f"{NOTICE}\n\n" * 3})
    world.changes |= {"extraction": {"max_gleanings": 0}, **LONG}
    sizes = [arg for key, value in LONG["chunking"].items() for arg in ("--set", f"chunking.{key}={value}")]
    found = estimated(world, "--set", "extraction.max_gleanings=0", *sizes)
    world.index()
    extraction = found["stages"]["extract"]
    assert extraction["calls"] == len(shown(world)) < len(world.table("text_units"))
    assert extraction["prompt_tokens"] == sent_tokens(world, "extract")
    assert any("3 chunks contain only paragraphs" in note for note in found["notes"])
