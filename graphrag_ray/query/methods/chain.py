"""The reasoning chain of a multi-hop answer: intermediate questions, their answers, and the cited passages.

Each link is verified: its answer must occur in a passage that it cites. Verification only compares words: all
numbers and names or, if there are none, half of the words. So a paraphrase may fail, and matching words may
mean something else. A link that fails is marked, but not removed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace

from graphrag_ray.base.context_records import (
    Reference,
    drop_unclosed_reference,
    parse_references,
    strip_references,
)
from graphrag_ray.base.ids import UNSPACED_SCRIPT, limit_combining_marks, name_words

MAX_LINKS = 12
MAX_CHARACTERS = 500
"""Maximum length of a link's question or answer in characters."""
MAX_LINES = 200
"""Maximum number of lines at the end of a reply that are searched for a chain."""
MAX_LINES_BELOW = 2
"""Maximum number of lines after a chain."""
MIN_SHARE = 0.5

# Possessive, because both \w and [\s*_] match underscores: a long run of them would take exponential time.
_HEADING = re.compile(r"[\s*_#>]*+chain(?:\s\w++){0,3}+[\s*_]*+:?[\s*_]*+", re.IGNORECASE)
_LABEL = re.compile(r"[\s*_#>]*chain\s*:[\s*_]*", re.IGNORECASE)
_BULLET = re.compile(r"\s*(?:[-*•–—+>]|\(?\d{1,3}[.):])\s+")
_ARROW = re.compile(r"(?:-{1,3}>|=>|[→⇒➔])")
_FENCE = re.compile(r"\s*```\w*\s*")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")


@dataclass(frozen=True, slots=True)
class ChainLink:
    """An intermediate question and its answer. `stands` says whether a cited passage supports the answer."""

    asked: str
    found: str
    references: tuple[Reference, ...] = ()
    stands: bool = True


def split_chain(text: str) -> tuple[str, list[ChainLink]]:
    """Split the unverified chain off the end of an answer. References have string ids."""
    lines = text.strip().split("\n")
    if _FENCE.fullmatch(lines[0]):  # a code fence around the reply
        lines = lines[1:-1] if _FENCE.fullmatch(lines[-1]) else lines[1:]
    whole = "\n".join(lines).strip()
    links: list[ChainLink] = []
    n_below = 0
    for n in range(len(lines) - 1, max(-1, len(lines) - 1 - MAX_LINES), -1):
        line = lines[n]
        label = _LABEL.match(line)
        if _HEADING.fullmatch(line) or label:
            first = _link(line[label.end() :]) if label else None
            chain = [*([first] if first else []), *reversed(links)]
            return "\n".join(lines[:n]).strip(), chain[:MAX_LINKS]
        if n > 0 and _ARROW.match(line.strip()):  # the second line of a link
            lines[n - 1] = f"{lines[n - 1]} {line.strip()}"
        elif (link := _link(line)) is not None:
            links.append(link)
        elif line.strip():
            n_below += 1
            if links or n_below > MAX_LINES_BELOW:
                break
    return whole, []


def check_link(link: ChainLink, passages: Mapping[str, str]) -> ChainLink:
    """Verify a link against the texts of the chunks that may be cited, by id."""
    texts = [passages[r.id] for r in link.references if r.id in passages]
    return replace(link, stands=any(occurs_in(link.found, text) for text in texts))


def occurs_in(claim: str, text: str) -> bool:
    """Whether a text contains all names and numbers of a claim or, if it has none, half of its words.

    In scripts without spaces, any occurrence of a word's characters in sequence counts.
    """
    claim = strip_references(claim)
    folded, folded_text = _folded(claim), _folded(text)
    known = {*name_words(folded_text), *_NUMBER.findall(folded_text)}
    words = name_words(claim)
    names = [w for w in words if w[:1] != w[:1].lower() and len(w) > 1]
    required = [*set(_NUMBER.findall(folded)), *map(_folded, names)]
    wanted = required or [_folded(w) for w in words]
    matches = [w in known or (UNSPACED_SCRIPT.search(w) is not None and w in folded_text) for w in wanted]
    return all(matches) if required else bool(matches) and sum(matches) >= MIN_SHARE * len(matches)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", limit_combining_marks(text)).casefold()


def _link(line: str) -> ChainLink | None:
    bullet = _BULLET.match(line)
    parts = _ARROW.split((line[bullet.end() :] if bullet else line).strip())
    question, answer = parts[0].strip(" *_"), " → ".join(part.strip() for part in parts[1:]).strip()
    if len(parts) < 2 or not question or not answer:
        return None
    cut = drop_unclosed_reference(answer[:MAX_CHARACTERS]) if len(answer) > MAX_CHARACTERS else answer
    return ChainLink(question[:MAX_CHARACTERS], cut, tuple(parse_references(answer)))
