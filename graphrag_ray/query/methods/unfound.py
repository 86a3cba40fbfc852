"""What to tell people whose question found nothing: what was read for it, and what else could be."""

from __future__ import annotations

from graphrag_ray.base.declarations import OF_SECTION
from graphrag_ray.base.wording import plural
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.map_parts import unread
from graphrag_ray.query.methods.methods import METHODS

NOT_READING = ("rate", "reduce")
"""Phases whose contexts hold no records to answer from, or those of other contexts."""


def unfound(
    answer: Answer, restricted: bool, has_graph: bool = True, has_reports: bool = True
) -> tuple[str, ...]:
    """Sentences to add to an answer; none to one that found something, or that lacks all that was asked.

    restricted: to some documents, which reports are not; has_graph, has_reports: of the index
    """
    if answer.found or unread(answer):
        return ()
    others = METHODS[answer.method].others if answer.method in METHODS else ()
    able = {
        name: kind.reads
        for name, kind in METHODS.items()
        if not (restricted and kind.instead)
        and (has_graph or not kind.graph)
        and (has_reports or not kind.reports)
    }
    hints = " or ".join(f"--method {name} ({able[name]})" for name in others if name in able)
    return (_read(answer), *([f"Try {hints}."] if hints else []))


def _read(answer: Answer) -> str:
    contexts = [c for c in answer.contexts if c.phase not in NOT_READING]
    ids = {record for context in contexts for record in context.records}
    counts = {section: sum(r.section == section for r in ids) for section in OF_SECTION}
    told = [
        plural(n, OF_SECTION[section].word, OF_SECTION[section].words) for section, n in counts.items() if n
    ]
    of = f" of C{answer.level}" if answer.level is not None else ""
    if not told:
        return f"Nothing was read: {answer.method} search found nothing near the question{of}."
    return f"Read by {answer.method} search: {', '.join(told)}{of}."
