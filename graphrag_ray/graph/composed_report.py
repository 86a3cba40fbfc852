"""Compose the report of a small community from its records, without a model call.

A model could only repeat the few sentences about a handful of members. The composed report contains each of
them once, with a reference to its record.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from graphrag_ray.base.context_records import Reference, write_reference
from graphrag_ray.base.wording import plural, shorten
from graphrag_ray.corpus.boundaries import sentences
from graphrag_ray.graph.descriptions import end_sentence
from graphrag_ray.graph.distinct_sentences import distinct_sentences
from graphrag_ray.graph.report_context import Record
from graphrag_ray.graph.report_dialogue import Report

MAX_RATING = 5.0
_MAX_NAMED, _MAX_TITLE_CHARACTERS = 3, 160


def composed_report(records: Sequence[tuple[Record, Collection[object]]]) -> Report:
    """Compose a report from entities, relationships and claims, each with the chunks that support it.

    Members are ranked by their number of chunks, then by their order in `records`. The title names the first
    three, and the summary has the first sentence about each of them. There is a finding for each member with
    the other sentences about it, its relationships to members of lower rank, and the claims about it.
    """
    ranked = sorted(
        (pair for pair in records if pair[0].section == "Entities"), key=lambda pair: -len(pair[1])
    )
    members = [record for record, _ in ranked]
    rank = {record.fields[0]: n for n, record in enumerate(members)}
    others = [record for record, _ in records if record.section != "Entities"]
    texts = distinct_sentences(record.fields[-1] for record in (*members, *others))
    opening: list[tuple[Record, str]] = []
    said: list[list[tuple[Record, str]]] = []
    for n, (record, text) in enumerate(zip(members, texts, strict=False)):
        end = next((end for _, end in sentences(text)), 0) if n < _MAX_NAMED else 0
        opening += [(record, first)] if (first := _plain(text[:end])) else []
        said.append([(record, rest)] if (rest := _plain(text[end:])) else [])
    for record, text in zip(others, texts[len(members) :], strict=True):
        ends = [rank[name] for name in record.fields[:2] if name in rank]
        if ends and (plain := _plain(text)):
            said[min(ends) if record.section == "Relationships" else ends[0]].append((record, plain))
    title = shorten(", ".join(record.fields[0] for record in members[:_MAX_NAMED]), _MAX_TITLE_CHARACTERS)
    findings = tuple(
        (members[n].fields[0], " ".join(_cited([statement]) for statement in statements))
        for n, statements in enumerate(said)
        if statements
    )
    cited = [record for record, _ in (*opening, *(s for statements in said for s in statements))]
    rating, reason = rate(len({chunk for _, chunks in records for chunk in chunks}))
    references = tuple(dict.fromkeys(Reference(record.section, record.id) for record in cited))
    summary = _cited(opening) or title
    return Report(title, summary, rating, reason, findings, references, 0, composed=True)


def rate(n_chunks: int) -> tuple[float, str]:
    """Return a rating and its explanation from the number of chunks that support a community.

    The rating is 1 + log2(1 + chunks), at most MAX_RATING: 2 for one chunk, 3 for three, 5 for 15 or more. In
    the report prompt, 2 is a detail, and 5 is what an account of the whole corpus should mention.
    """
    rating = min(MAX_RATING, round(1 + math.log2(1 + n_chunks), 1))
    return rating, f"Rated by the number of passages about its members: {plural(n_chunks, 'passage')}."


def _plain(text: str) -> str:
    """Remove surrounding blanks, and marks that would make the text a heading or list."""
    return text.lstrip("#*-> \t\xa0").rstrip()


def _cited(statements: Sequence[tuple[Record, str]]) -> str:
    """Join statements of one section and cite their records."""
    if not statements:
        return ""
    ids = dict.fromkeys(record.id for record, _ in statements)
    text = " ".join(end_sentence(text) for _, text in statements)
    return f"{text} {write_reference({statements[0][0].section: ids})}"
