"""The chain of an answer that hops: what was asked on the way to it, what was found, and in which passage.

Each link is checked: what it says that it found must stand in a passage that it names. That is told by words
alone: all numbers and names of it, or where it has none, half of its words. What is said in other words may
fail, and what stands there may mean something else. A link that fails says so, and is left in its place.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphrag_ray.base.ids import NO_SPACES, bounded_marks, name_words
from graphrag_ray.base.records import Reference, references_in, strip_references, without_unfinished

MOST_LINKS = 12
MOST_CHARACTERS = 500
"""Of what a link asks, or found."""
MOST_LINES = 200
"""At the end of a reply, among which its chain is looked for."""
MOST_BELOW = 2
"""Lines that may stand below a chain."""
HALF = 0.5

# Possessive, since \w and [\s*_] share the underscore: otherwise a long run of it is divided in every way.
_HEADING = re.compile(r"[\s*_#>]*+chain(?:\s\w++){0,3}+[\s*_]*+:?[\s*_]*+", re.IGNORECASE)
_LABEL = re.compile(r"[\s*_#>]*chain\s*:[\s*_]*", re.IGNORECASE)
_BULLET = re.compile(r"\s*(?:[-*•–—+>]|\(?\d{1,3}[.):])\s+")
_ARROW = re.compile(r"(?:-{1,3}>|=>|[→⇒➔])")
_FENCE = re.compile(r"\s*```\w*\s*")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")


@dataclass(frozen=True, slots=True)
class ChainLink:
    """asked, found: texts. references: the passages that `found` names; none where the link is missing.
    stands: one of them holds it."""

    asked: str
    found: str
    references: tuple[Reference, ...] = ()
    stands: bool = True


def split_chain(text: str) -> tuple[str, list[ChainLink]]:
    """An answer without the chain at its end, and the links, not yet checked. References hold string ids."""
    lines = text.strip().split("\n")
    if _FENCE.fullmatch(lines[0]):  # of code around a reply
        lines = lines[1:-1] if _FENCE.fullmatch(lines[-1]) else lines[1:]
    whole = "\n".join(lines).strip()
    links: list[ChainLink] = []
    below = 0
    for n in range(len(lines) - 1, max(-1, len(lines) - 1 - MOST_LINES), -1):
        line = lines[n]
        label = _LABEL.match(line)
        if _HEADING.fullmatch(line) or label:
            first = _link(line[label.end() :]) if label else None
            found = [*([first] if first else []), *reversed(links)]
            return "\n".join(lines[:n]).strip(), found[:MOST_LINKS]
        if n > 0 and _ARROW.match(line.strip()):  # a link that was written in two lines
            lines[n - 1] = f"{lines[n - 1]} {line.strip()}"
        elif (link := _link(line)) is not None:
            links.append(link)
        elif line.strip():
            below += 1
            if links or below > MOST_BELOW:
                break
    return whole, []


def checked(link: ChainLink, passages: Mapping[str, str]) -> ChainLink:
    """passages: the texts of the chunks that may be cited, by id."""
    texts = [passages[r.id] for r in link.references if r.id in passages]
    stands = any(stands_in(link.found, text) for text in texts)
    return ChainLink(link.asked, link.found, link.references, stands)


def stands_in(found: str, text: str) -> bool:
    """Whether the names and numbers of what was found, or else half of its words, stand in a text. In scripts
    without spaces, a word stands where its characters stand in a row."""
    said, there = _folded(strip_references(found)), _folded(text)
    numbers, known = set(_NUMBER.findall(said)), {*name_words(there), *_NUMBER.findall(there)}
    written = name_words(strip_references(found))
    names = [w for w in written if w[:1] != w[:1].lower() and len(w) > 1]
    firm = [*numbers, *map(_folded, names)]
    words = firm or [_folded(w) for w in written]
    held = [word in known or (NO_SPACES.search(word) is not None and word in there) for word in words]
    if firm:
        return all(held)
    return bool(held) and sum(held) >= HALF * len(held)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", bounded_marks(text)).casefold()


def _link(line: str) -> ChainLink | None:
    bullet = _BULLET.match(line)
    body = (line[bullet.end() :] if bullet else line).strip()
    parts: Sequence[str] = _ARROW.split(body)
    asked, found = parts[0].strip(" *_"), " → ".join(part.strip() for part in parts[1:]).strip()
    if len(parts) < 2 or not asked or not found:
        return None
    shown = without_unfinished(found[:MOST_CHARACTERS]) if len(found) > MOST_CHARACTERS else found
    return ChainLink(asked[:MOST_CHARACTERS], shown, tuple(references_in(found)))
