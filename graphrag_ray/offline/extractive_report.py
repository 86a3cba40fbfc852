"""The answer to the report prompt: an extractive report on a community.

Sentences are ranked by LexRank and chosen by maximal marginal relevance (summarise.py); a finding is
about one of the members with the most relationships in the context. The title names the most
characteristic members; the rating grows with the size of what the context shows.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import log2

import numpy as np

from graphrag_ray.base.declarations import REPORT_SECTIONS
from graphrag_ray.base.records import parse_sections
from graphrag_ray.graph.report_context import SEPARATE
from graphrag_ray.offline.description_reply import CHARS_PER_TOKEN
from graphrag_ray.offline.summarise import MAX_SENTENCES, Floats, content_stems, lexrank, mmr, similarities
from graphrag_ray.offline.units import MARK, Quotation, stands_alone, units_of

MAX_FINDINGS = 7
MAX_QUOTES = 3
"""In one finding."""
TARGET_CHARS = 2600
"""Of all quotations together: some 700 tokens with references, as the paper's reports have (table 2)."""
SUMMARY_QUOTES = 2
TITLE_NAMES = 3

_SEPARATE = re.compile(re.escape(SEPARATE).replace(r"\{\}", r"(\d+)"))

Sections = Mapping[str, Sequence[Mapping[str, str]]]


def write_report(variables: Mapping[str, str]) -> str:
    """A JSON object {title, summary, rating, rating_explanation, findings} from the `context`."""
    sections = parse_sections(variables["context"])
    units = units_of(sections)[:MAX_SENTENCES]
    # Of whichever hierarchy: from here on they are counted and named alike.
    sections["Reports"] = [row for name in REPORT_SECTIONS for row in sections.get(name, ())]
    members = _members(sections, units)
    names = _DisplayNames(units)
    room = min(TARGET_CHARS, int(_tokens(variables.get("max_tokens", "")) * CHARS_PER_TOKEN * 0.6))
    summary, findings = _choose(units, members, room)
    shape = _shape(sections, names, members, _n_groups(variables["context"]))
    return json.dumps(
        {
            "title": _title(members, names),
            "summary": " ".join([f"{shape}.", *(u.cite() for u in summary), MARK]),
            "rating": _rating(sections),
            "rating_explanation": f"Rated by size and links alone: {_counts(sections)}.",
            "findings": _written(findings, names, sections, members),
        },
        ensure_ascii=False,
    )


def _members(sections: Sections, units: Sequence[Quotation]) -> list[str]:
    """The members by falling number of relationships in the context, then of quotations; for records of
    sub-communities the names in their titles, the first weighing most."""
    degrees: dict[str, float] = {}
    for row in sections.get("Entities", ()):
        degrees.setdefault(row.get("entity") or "", 0.0)
    inside = bool(degrees)
    for row in sections.get("Relationships", ()):
        for end in (row.get("source") or "", row.get("target") or ""):
            if end in degrees or not inside:
                degrees[end] = degrees.get(end, 0.0) + 1.0
    for row in sections.get("Reports", ()):
        size = len(row.get("content") or "") / 800
        for place, name in enumerate((row.get("title") or "").split(", ")[:2]):
            key = name.upper() if name.upper() in degrees else name
            degrees[key] = degrees.get(key, 0.0) + size / (place + 1)
    degrees.pop("", None)
    quoted = Counter(m for u in units for m in u.members)
    return sorted(degrees, key=lambda m: (-degrees[m], -quoted[m], m))


class _DisplayNames:
    """Keys as the corpus writes them: MARA VENN becomes Mara Venn where a quotation has that, NASA stays."""

    def __init__(self, units: Sequence[Quotation]) -> None:
        self._texts: dict[str, list[str]] = defaultdict(list)
        for unit in units:
            for member in unit.members:
                self._texts[member].append(unit.text)
        self._known: dict[str, str] = {}

    def __getitem__(self, key: str) -> str:
        if key not in self._known:
            self._known[key] = _written_as(key, self._texts[key]) if key.isupper() else key
        return self._known[key]


def _written_as(key: str, texts: Sequence[str]) -> str:
    seen: Counter[str] = Counter(form for t in texts[:12] for form in _forms(key, t.replace("’", "'")))
    mixed = [form for form, _ in seen.most_common() if not form.isupper()]
    if mixed and (" " in key or not seen[key]):
        return mixed[0]
    if seen[key] and " " not in key:
        return key
    return " ".join(w if len(w) < 3 or "." in w else w[0] + w[1:].lower() for w in key.split())


def _forms(key: str, text: str) -> Iterator[str]:
    """How a text writes a name, which is given in capitals, wherever it stands as words of its own."""
    upper = text.upper()
    places: Sequence[int] = range(len(text) + 1)
    if len(upper) != len(text):  # ß becomes SS
        places = [*(i for i, c in enumerate(text) for _ in c.upper()), len(text)]
    at = upper.find(key)
    while at >= 0:
        start, end = places[at], places[at + len(key)]
        whole = text[start:end].upper() == key  # not the second half of an ß
        if whole and not text[max(0, start - 1) : start].isalnum() and not text[end : end + 1].isalnum():
            yield text[start:end]
            at += len(key) - 1
        at = upper.find(key, at + 1)


def _title(members: Sequence[str], names: _DisplayNames) -> str:
    distinct: dict[str, str] = {}
    for name in map(names.__getitem__, members):
        distinct.setdefault(name.casefold(), name)
        if len(distinct) == TITLE_NAMES:
            break
    return ", ".join(distinct.values()) or "Unnamed records"


def _choose(
    units: Sequence[Quotation], members: Sequence[str], room: int
) -> tuple[list[Quotation], list[tuple[str, list[Quotation]]]]:
    """Quotations for the summary and for findings by member; none twice."""
    if not units:
        return [], []
    similarity = similarities([content_stems(u.text) for u in units])
    relevance = np.maximum(lexrank(similarity) * [_weight(u.text) for u in units], 1e-6)
    free = np.ones(len(units), dtype=bool)
    n_summary = min(SUMMARY_QUOTES, max(0, len(units) - 1))
    spread = mmr(relevance, similarity, n_summary)
    summary = [units[i] for i in spread]
    _take(free, spread, similarity)
    used = sum(len(u.text) for u in summary)
    units_of_member: dict[str, list[int]] = defaultdict(list)
    for place, unit in enumerate(units):
        for member in unit.members:
            units_of_member[member].append(place)
    findings: list[tuple[str, list[Quotation]]] = []
    for member in members:
        if len(findings) >= MAX_FINDINGS or used >= room:
            break
        own = [i for i in units_of_member[member] if free[i]]
        if not own:
            continue
        chosen = [own[i] for i in mmr(relevance[own], similarity[np.ix_(own, own)], MAX_QUOTES)]
        _take(free, chosen, similarity)
        findings.append((member, [units[i] for i in chosen]))
        used += sum(len(units[i].text) for i in chosen)
    if not findings and members:  # one quotation in all: it belongs to a finding
        findings = [(members[0], summary or list(units[:1]))]
        summary = []
    return summary, findings


def _take(free: np.ndarray, chosen: Sequence[int], similarity: Floats) -> None:
    """What is chosen, and what says the same, is not chosen again."""
    for index in chosen:
        free &= similarity[index] < 0.85
        free[index] = False


def _weight(text: str) -> float:
    """Short and very long sentences, and those that mean little alone, say little, however central their
    words are."""
    return min(1.0, len(text) / 90) * (0.7 if len(text) > 420 else 1.0) * stands_alone(text)


def _written(
    findings: Sequence[tuple[str, list[Quotation]]],
    names: _DisplayNames,
    sections: Sections,
    members: Sequence[str],
) -> list[dict[str, str]]:
    if not findings:
        what = names[members[0]] if members else "Nothing"
        return [{"summary": what, "explanation": "The corpus names it, and no sentence says more."}]
    neighbours = _neighbours(sections)
    rank = {m: i for i, m in enumerate(members)}
    out = []
    for member, units in findings:
        beside = sorted((n for n in neighbours[member] if n in rank), key=lambda n: rank[n])[:3]
        with_whom = f" — with {', '.join(names[n] for n in beside)}" if beside else ""
        out.append(
            {
                "summary": names[member] + with_whom,
                "explanation": " ".join(u.cite() for u in units),
            }
        )
    return out


def _neighbours(sections: Sections) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for row in sections.get("Relationships", ()):
        source, target = row.get("source") or "", row.get("target") or ""
        found[source].add(target)
        found[target].add(source)
    return found


def _n(sections: Sections, name: str) -> int:
    return len(sections.get(name, ()))


def _counts(sections: Sections) -> str:
    parts = []
    for name, one, many in (
        ("Entities", "member", "members"),
        ("Relationships", "relationship", "relationships"),
        ("Claims", "claim", "claims"),
        ("Reports", "sub-community", "sub-communities"),
    ):
        if count := _n(sections, name):
            parts.append(f"{count} {one if count == 1 else many}")
    return ", ".join(parts) or "no records"


def _n_groups(context: str) -> int:
    found = _SEPARATE.match(context)
    return int(found.group(1)) if found else 1


def _shape(sections: Sections, names: _DisplayNames, members: Sequence[str], n_groups: int) -> str:
    """What the community is, in words of our own, with its rating for those who read reports only."""
    around = f" around {names[members[0]]}" if members else ""
    what = f"A community{around}"
    if n_groups > 1:
        among = ", ".join(names[m] for m in members[:2])
        what = f"{n_groups} small groups without a link between them, among them those of {among}"
    return f"{what}: {_counts(sections)}; rated {_rating(sections):.1f} of 10"


def _rating(sections: Sections) -> float:
    """0–10, growing with the logarithm of members, relationships and claims; a sub-community's report
    counts as ten."""
    size = _n(sections, "Entities") + _n(sections, "Relationships") + 0.5 * _n(sections, "Claims")
    return round(min(10.0, 1.2 * log2(1 + size + 10 * _n(sections, "Reports"))), 1)


def _tokens(text: str) -> int:
    return int(text) if text.isdigit() and int(text) > 0 else 2000
