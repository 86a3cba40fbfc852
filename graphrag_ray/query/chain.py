"""The chain of an answer that hops: what was asked on the way to it, what was found, and in which passage.

Each link is checked: what it says that it found must stand in a passage that it names. That is told by words
alone: all numbers and names of it, or where it has none, half of its words. What is rephrased may fail, and
what stands there may mean something else: a link that fails says so, and is left in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphrag_ray.base.ids import WORD
from graphrag_ray.base.records import Reference, references_in, strip_references, without_unfinished

MOST_LINKS = 12
MOST_CHARACTERS = 500
"""Of what a link asks, or found."""
HALF = 0.5

_HEADING = re.compile(r"^[\W_]*chain[\W_]*$", re.IGNORECASE)
_LABEL = re.compile(r"^[\s*_#>]*chain\s*:[\s*_]*", re.IGNORECASE)
_BULLET = re.compile(r"^\s*(?:[-*•–—+>]|\(?\d{1,3}[.):])\s+")
_ARROW = re.compile(r"(?:-{1,3}>|=>|[→⇒➔])")


@dataclass(frozen=True, slots=True)
class ChainLink:
    """asked, found: texts; references: the passages that `found` names; stands: one of them holds it."""

    asked: str
    found: str
    references: tuple[Reference, ...] = ()
    stands: bool = True


def split_chain(text: str) -> tuple[str, list[ChainLink]]:
    """An answer without the chain at its end, and the links, not yet checked. References hold string ids."""
    lines = text.split("\n")
    starts = [n for n, line in enumerate(lines) if _HEADING.match(line) or _LABEL.match(line)]
    for start in reversed(starts):
        rest = [_LABEL.sub("", lines[start]) if not _HEADING.match(lines[start]) else "", *lines[start + 1 :]]
        links = [link for line in rest if (link := _link(line))]
        others = [line for line in rest if line.strip() and not _link(line)]
        if links and len(others) <= 1:  # a sentence below it at most
            return "\n".join(lines[:start]).strip(), links[:MOST_LINKS]
        if not any(line.strip() for line in rest):  # an empty chain
            return "\n".join(lines[:start]).strip(), []
    return text.strip(), []


def checked(link: ChainLink, passages: Mapping[str, str]) -> ChainLink:
    """passages: the texts of the chunks that may be cited, by id."""
    texts = [passages[r.id] for r in link.references if r.id in passages]
    stands = any(stands_in(link.found, text) for text in texts)
    return ChainLink(link.asked, link.found, link.references, stands)


def stands_in(found: str, text: str) -> bool:
    """Whether the names and numbers of what was found, or else half of its words, stand in a text."""
    words = [m.group() for m in WORD.finditer(strip_references(found))]
    there = {m.group().casefold() for m in WORD.finditer(text)}
    firm = [w for w in words if any(c.isdigit() for c in w) or (w[:1] != w[:1].lower() and len(w) > 1)]
    held = [word.casefold() in there for word in firm or words]
    if firm:
        return all(held)
    return bool(held) and sum(held) >= HALF * len(held)


def _link(line: str) -> ChainLink | None:
    body = _BULLET.sub("", line).strip()
    parts: Sequence[str] = _ARROW.split(body)
    asked, found = parts[0].strip(" *_"), " → ".join(part.strip() for part in parts[1:]).strip()
    if len(parts) < 2 or not asked or not found:
        return None
    shown = without_unfinished(found[:MOST_CHARACTERS]) if len(found) > MOST_CHARACTERS else found
    return ChainLink(asked[:MOST_CHARACTERS], shown, tuple(references_in(found)))
