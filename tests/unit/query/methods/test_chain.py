"""Reasoning chains: splitting, parsing and verification."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import Reference
from graphrag_ray.query.methods.chain import (
    MAX_CHARACTERS,
    MAX_LINKS,
    ChainLink,
    check_link,
    occurs_in,
    split_chain,
)

ID = "0" * 31 + "7"
REF = f"[Data: Sources ({ID})]"


def links_of(text: str) -> list[tuple[str, str]]:
    return [(link.asked, link.found) for link in split_chain(text)[1]]


def test_chain_is_split_off_the_answer() -> None:
    first, then = f"Who was her husband? -> Ivar Lind {REF}", f"Where did Ivar Lind die? -> Bergen {REF}"
    text = f"Bergen\n\nChain:\n- {first}\n- {then}"
    answer, links = split_chain(text)
    assert answer == "Bergen"
    assert [link.asked for link in links] == ["Who was her husband?", "Where did Ivar Lind die?"]
    assert links[1].references == (Reference("Sources", ID),)


@pytest.mark.parametrize(
    "chain",
    [
        "Chain:\n- a? -> b",
        "**Chain:**\n\n* a? → b",
        "## Chain\n1. a? => b",
        "chain\na? --> b",
        "Chain: a? -> b",
        "Chain:\n- a? -> b\n\nSo it is.\nNote: it is.",
        "**Chain of links:**\n1. a?\n   -> b",
    ],
)
def test_chain_formats_of_models_are_parsed(chain: str) -> None:
    assert split_chain(f"Yes.\n\n{chain}")[0] == "Yes."
    assert links_of(f"Yes.\n\n{chain}") == [("a?", "b")]


@pytest.mark.parametrize(
    "text",
    [
        "An answer.",
        "The chain: links of iron.",
        "Chain:\nprose about a chain\nthat continues -> and continues\nin lines of its own",
        "Insufficient",
        "",
    ],
)
def test_text_without_chain_is_unchanged(text: str) -> None:
    assert split_chain(text) == (text, [])


def test_empty_chain_has_no_links() -> None:
    assert split_chain("Bergen\n\nChain:\n") == ("Bergen", [])


def test_chain_length_is_limited() -> None:
    text = "x\n\nChain:\n" + "\n".join(f"- {'q' * 9_999} -> {'a' * 9_999}" for _ in range(99))
    links = split_chain(text)[1]
    assert len(links) == MAX_LINKS
    assert all(len(link.asked) <= MAX_CHARACTERS and len(link.found) <= MAX_CHARACTERS for link in links)


@pytest.mark.parametrize(
    ("found", "text", "stands"),
    [
        ("Ivar Lind", "She was the wife of Ivar Lind.", True),
        ("Ivar Lind", "She was the wife of Ivar.", False),
        ("12 May 1840", "born on May 12, 1840", True),
        ("12 May 1841", "born on May 12, 1840", False),
        ("a small fishing village", "It was a fishing village, small and poor.", True),
        ("a large city", "It was a fishing village, small and poor.", False),
        ("卑爾根", "他死於卑爾根。", True),
        ("東京", "京都は東にある", False),
        ("राम", "रोम", False),
        ("$1,200", "1 dollar for 200 people", False),
        ("$1,200", "it cost $1,200.", True),
        ("5.1%", "5 and 1 and so on", False),
        ("", "anything", False),
    ],
)
def test_link_is_supported_if_names_and_numbers_occur(found: str, text: str, stands: bool) -> None:
    assert occurs_in(found, text) is stands


def test_link_is_checked_against_cited_passages() -> None:
    link = ChainLink("Where?", f"Bergen {REF}", (Reference("Sources", ID),))
    assert check_link(link, {ID: "He died at Bergen."}).stands
    assert not check_link(link, {ID: "He died at Oslo.", "other": "Bergen"}).stands
    assert not check_link(ChainLink("Where?", "Bergen"), {ID: "Bergen"}).stands, "it names none"


def test_code_fence_around_reply_is_removed() -> None:
    assert split_chain("```\nBergen\n\nChain:\n- a? -> b\n```")[0] == "Bergen"
    assert split_chain("```text\nBergen\n```") == ("Bergen", [])


@given(st.text(max_size=300))
def test_any_text_can_be_split(text: str) -> None:
    answer, links = split_chain(text)
    assert len(answer) <= len(text)
    assert all(link.asked and link.found for link in links)
