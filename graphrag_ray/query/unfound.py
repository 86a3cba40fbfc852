"""What to tell people whose question found nothing: what was read for it, and what else could be."""

from __future__ import annotations

from collections.abc import Mapping

from graphrag_ray.base.wording import plural
from graphrag_ray.query.answer import Answer
from graphrag_ray.query.map_parts import unread

NOT_READING = ("rate", "reduce")
"""Phases whose contexts hold no records to answer from, or those of other contexts."""

WORDS: Mapping[str, str] = {
    "Reports": "report",
    "Entities": "entity",
    "Relationships": "relationship",
    "Claims": "claim",
    "Sources": "chunk",
}
OTHERS: Mapping[str, tuple[str, ...]] = {
    "global": ("local", "hybrid"),
    "text": (),
    "local": ("hybrid", "global"),
    "vector": ("hybrid", "local"),
    "hybrid": ("local", "global"),
    "drift": ("hybrid", "global"),
}
"""Ways of answering that read something else; all of the text is more than any other reads."""
FOR: Mapping[str, str] = {
    "local": "what stands around a name",
    "hybrid": "passages, by words and meaning",
    "global": "what the reports say of the whole",
}


def unfound(answer: Answer, restricted: bool) -> tuple[str, ...]:
    """Sentences to add to an answer; none to one that found something, or that lacks all that was asked.

    restricted: to some documents, which reports are not
    """
    if answer.found or unread(answer):
        return ()
    others = [m for m in OTHERS.get(answer.method, ()) if m != "global" or not restricted]
    hints = " or ".join(f"--method {m} ({FOR[m]})" for m in others)
    return (_read(answer), *([f"Try {hints}."] if hints else []))


def _read(answer: Answer) -> str:
    contexts = [c for c in answer.contexts if c.phase not in NOT_READING]
    ids = {record for context in contexts for record in context.records}
    counts = {section: sum(r.section == section for r in ids) for section in WORDS}
    told = [
        plural(n, WORDS[section], "entities" if section == "Entities" else "")
        for section, n in counts.items()
        if n
    ]
    of = f" of C{answer.level}" if answer.level is not None else ""
    if not told:
        return f"Nothing was read: {answer.method} search found nothing near the question{of}."
    return f"Read by {answer.method} search: {', '.join(told)}{of}."
