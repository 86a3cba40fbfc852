"""The reasoning chain of a multi-hop answer: what was asked on the way, what was found, and in which passage.

Each link is verified: what it claims to have found must occur in a passage that it cites. Verification
compares words only: all numbers and names, or if there are none, half of the words. So a paraphrase may fail,
and matching words may mean something else. A link that fails is marked and kept.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace

from graphrag_ray.base.context_records import (
    Reference,
    drop_unclosed_reference,
    references_in,
    strip_references,
)
from graphrag_ray.base.ids import UNSPACED_SCRIPT, limit_combining_marks, name_words

MOST_LINKS = 12
MOST_CHARACTERS = 500
"""Characters of a link's question or finding."""
MOST_LINES = 200
"""Lines at the end of a reply that are searched for a chain."""
MOST_BELOW = 2
"""Lines that may follow a chain."""
HALF = 0.5

# Possessive, since \w and [\s*_] share the underscore: a long run of it would be divided in every way.
_HEADING = re.compile(r"[\s*_#>]*+chain(?:\s\w++){0,3}+[\s*_]*+:?[\s*_]*+", re.IGNORECASE)
_LABEL = re.compile(r"[\s*_#>]*chain\s*:[\s*_]*", re.IGNORECASE)
_BULLET = re.compile(r"\s*(?:[-*•–—+>]|\(?\d{1,3}[.):])\s+")
_ARROW = re.compile(r"(?:-{1,3}>|=>|[→⇒➔])")
_FENCE = re.compile(r"\s*```\w*\s*")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A question on the way, its answer, and whether (`stands`) a passage that it cites supports it."""

    asked: str
    found: str
    references: tuple[Reference, ...] = ()
    stands: bool = True


def split_chain(text: str) -> tuple[str, list[ChainLink]]:
    """Split the chain, not yet verified, off the end of an answer. References hold string ids."""
    lines = text.strip().split("\n")
    if _FENCE.fullmatch(lines[0]):  # a code fence around the reply
        lines = lines[1:-1] if _FENCE.fullmatch(lines[-1]) else lines[1:]
    whole = "\n".join(lines).strip()
    links: list[ChainLink] = []
    below = 0
    for n in range(len(lines) - 1, max(-1, len(lines) - 1 - MOST_LINES), -1):
        line = lines[n]
        label = _LABEL.match(line)
        if _HEADING.fullmatch(line) or label:
            first = _link(line[label.end() :]) if label else None
            chain = [*([first] if first else []), *reversed(links)]
            return "\n".join(lines[:n]).strip(), chain[:MOST_LINKS]
        if n > 0 and _ARROW.match(line.strip()):  # the second line of a link
            lines[n - 1] = f"{lines[n - 1]} {line.strip()}"
        elif (link := _link(line)) is not None:
            links.append(link)
        elif line.strip():
            below += 1
            if links or below > MOST_BELOW:
                break
    return whole, []


def check_link(link: ChainLink, passages: Mapping[str, str]) -> ChainLink:
    """Verify a link against the texts of the chunks that may be cited, by id."""
    texts = [passages[r.id] for r in link.references if r.id in passages]
    return replace(link, stands=any(occurs_in(link.found, text) for text in texts))


def occurs_in(claim: str, text: str) -> bool:
    """Whether the names and numbers of a claim, or else half of its words, occur in a text.

    In scripts without spaces, a word occurs wherever its characters occur in sequence.
    """
    claim = strip_references(claim)
    folded, folded_text = _folded(claim), _folded(text)
    known = {*name_words(folded_text), *_NUMBER.findall(folded_text)}
    words = name_words(claim)
    names = [w for w in words if w[:1] != w[:1].lower() and len(w) > 1]
    firm = [*set(_NUMBER.findall(folded)), *map(_folded, names)]
    wanted = firm or [_folded(w) for w in words]
    held = [w in known or (UNSPACED_SCRIPT.search(w) is not None and w in folded_text) for w in wanted]
    return all(held) if firm else bool(held) and sum(held) >= HALF * len(held)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", limit_combining_marks(text)).casefold()


def _link(line: str) -> ChainLink | None:
    bullet = _BULLET.match(line)
    parts = _ARROW.split((line[bullet.end() :] if bullet else line).strip())
    asked, found = parts[0].strip(" *_"), " → ".join(part.strip() for part in parts[1:]).strip()
    if len(parts) < 2 or not asked or not found:
        return None
    shown = drop_unclosed_reference(found[:MOST_CHARACTERS]) if len(found) > MOST_CHARACTERS else found
    return ChainLink(asked[:MOST_CHARACTERS], shown, tuple(references_in(found)))
