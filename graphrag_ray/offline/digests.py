"""Digest records without a question: descriptions, summaries and reports made of quotations.

Sentences are ranked by LexRank and diversified by MMR (`quotations.py`). The findings of a report are about
its best connected members, its title names them, and its rating grows with the size of the context.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2

import numpy as np

from graphrag_ray.base.context_records import parse_sections, write_reference
from graphrag_ray.base.declarations import REPORT_SECTIONS
from graphrag_ray.graph.corpus_overview import NONE as NO_LINES
from graphrag_ray.graph.descriptions import without_date
from graphrag_ray.graph.report_context import SEPARATE_GROUPS_NOTE
from graphrag_ray.offline.answerer import as_json, records_of
from graphrag_ray.offline.quotations import (
    JOIN,
    MARK,
    MAX_SENTENCES,
    content_stems,
    first_name,
    is_balanced,
    lexrank,
    mmr,
    pieces,
    report_parts,
    room_in,
    similarities,
    stands_alone,
)
from graphrag_ray.offline.sentences import fold, split_sentences

Variables = Mapping[str, str]
Sections = Mapping[str, Sequence[Mapping[str, str]]]

MAX_PIECES = {"entity": 8, "relationship": 4}  # Number of quotations per description by kind; 6 for others.
MAX_SUMMARY_QUOTES, TITLE_WORDS = 12, 4
MAX_FINDINGS, MAX_FINDING_QUOTES, REPORT_SUMMARY_QUOTES, TITLE_NAMES = 7, 3, 2, 3
REPORT_CHARS = (
    2600  # Length of all quotations: about 700 tokens with references, as in the GraphRAG paper (table 2).
)
SHOWN_TITLES, SHOWN_NAMES, CORPUS_TITLES, MAX_TITLE_CHARS = 3, 6, 4, 120
NOTHING_KNOWN = "A collection of texts."

_DEFINES = re.compile(
    r"['’)]?s?,? (?:is|was|are|were|has been) (?:a|an|the|one of)\b|, (?:a|an|the|who|whose)\b", re.I
)
_NOUNS = {
    "Entities": ("member", "members"),
    "Relationships": ("relationship", "relationships"),
    "Claims": ("claim", "claims"),
    "Reports": ("sub-community", "sub-communities"),
}
_WORD = re.compile(r"[^\W\d_][\w'’-]*")
_SEPARATE = re.compile(re.escape(SEPARATE_GROUPS_NOTE).replace(r"\{\}", r"(\d+)"))


def document_note(variables: Variables) -> str:
    """Quote the first sentences of a document."""
    sentences = " ".join(" ".join(split_sentences(variables["text"])[:2]).split())
    return sentences[: int(room_in(variables, 60))] or NOTHING_KNOWN


def description(variables: Variables) -> str:
    """Choose the quotations in `descriptions` that are central or define `name`, in their order."""
    lines = map(without_date, variables["descriptions"].split("\n"))
    texts = list(dict.fromkeys(p for line in lines for p in pieces(line)))
    name = variables.get("name", "")
    if not texts:  # It contains only our fixed phrases.
        return without_date(variables["descriptions"].split("\n")[0].strip()) or name
    room = int(room_in(variables, 500))
    limit = MAX_PIECES.get(variables.get("kind", ""), 6)
    texts = texts[:MAX_SENTENCES]
    if len(texts) <= limit and len(JOIN.join(texts)) <= room:
        return JOIN.join(texts)

    def value(text: str) -> float:
        """Prefer definitions; avoid fragments and questions."""
        position = text.upper().find(name)
        defines = position >= 0 and _DEFINES.match(text, position + len(name)) is not None
        fragment = text[-1:] == "?" or not text[:1].isupper()
        return min(len(text), 160) / 400 - max(0, len(text) - 350) / 500 + 0.5 * defines - 0.2 * fragment

    similarity = similarities([content_stems(t) for t in texts])
    relevance = 0.6 * lexrank(similarity) + np.array([value(t) for t in texts])
    chosen: list[int] = []
    used = 0
    for index in mmr(np.maximum(relevance, 0.01), similarity, limit):
        size = len(texts[index]) + len(JOIN)
        if not chosen or used + size <= room:
            chosen.append(index)
            used += size
    return JOIN.join(texts[i] for i in sorted(chosen))[:room]


def summary(variables: Variables) -> str:
    """Write a title of shared words, then central sentences in order, if possible one per text."""
    records = records_of(variables["context"])
    texts = [s for record in records for s in record.sentences][:MAX_SENTENCES]
    owner = [i for i, record in enumerate(records) for _ in record.sentences][:MAX_SENTENCES]
    if not texts:
        shown = "; ".join(filter(None, (record.title for record in records)))
        return f"{shown[:100] or 'Nothing to read'}\n\nThe texts hold no sentence that can be quoted."
    room = int(room_in(variables, 400) * 0.8)
    stems = [content_stems(t) for t in texts]
    similarity = similarities(stems)
    relevance = lexrank(similarity) * np.array([stands_alone(t) for t in texts])
    order = mmr(np.maximum(relevance, 0.001), similarity, len(texts))
    best_of = {owner[i]: i for i in reversed(order)}  # Best sentence of each text.
    chosen: list[int] = []
    used = 0
    for i in dict.fromkeys([*sorted(best_of.values(), key=order.index), *order]):
        if len(chosen) == MAX_SUMMARY_QUOTES or (chosen and used + len(texts[i]) > room):
            break
        chosen.append(i)
        used += len(texts[i]) + 3
    quotations = " ".join(f"“{texts[i]}”" for i in sorted(chosen))
    return f"{_shared_words(texts, stems, owner)}\n\n{quotations}"


def _shared_words(texts: Sequence[str], stems: Sequence[Sequence[str]], owner: Sequence[int]) -> str:
    """Return the words that most texts share, in their most frequent spelling."""
    pairs = {(stem, text) for words, text in zip(stems, owner, strict=True) for stem in words}
    shared = Counter(stem for stem, _ in pairs)
    total = Counter(s for words in stems for s in words)
    best = sorted(shared, key=lambda s: (-shared[s], -total[s], s))[:TITLE_WORDS]
    spellings: dict[str, Counter[str]] = {s: Counter() for s in best}
    for word in (word for text in texts for word in _WORD.findall(text)):
        for stem in content_stems(word)[:1]:
            if stem in spellings:
                spellings[stem][word] += 1
    words = [min(forms, key=lambda w: (-forms[w], w)) for forms in spellings.values() if forms]
    return ", ".join(words) or " ".join(texts[0].split()[:8])


def about(variables: Variables) -> str:
    """Describe a corpus by some titles and its best connected names. Returns "" if there are neither."""
    titles, entities = (
        [line.removeprefix("- ") for line in variables[name].split("\n") if line and line != NO_LINES]
        for name in ("titles", "entities")
    )
    names = [line.partition(": ")[0] for line in entities[:SHOWN_NAMES]]
    quoted = [f"“{t}”" for t in titles[:SHOWN_TITLES]]
    listed = [" and ".join(filter(None, [", ".join(x[:-1]), *x[-1:]])) for x in (quoted, names)]
    sentences = [f"Documents such as {listed[0]}."] if quoted else []
    sentences += [f"The best connected names are {listed[1]}."] if names else []
    return " ".join(sentences)


def describe_corpus(variables: Variables) -> str:
    """Describe a corpus by the titles of its first reports, given as lines `- title: summary`."""
    lines = (line.removeprefix("- ").partition(": ")[0] for line in variables["reports"].split("\n"))
    titles = [t for line in lines if (t := fold(line)[:MAX_TITLE_CHARS].strip(" .;:"))]
    return f"Texts that deal with {'; '.join(titles[:CORPUS_TITLES])}." if titles else NOTHING_KNOWN


@dataclass(slots=True)
class Quotation:
    """A quotation with its references (section to local numbers) and the entities that it is about."""

    text: str
    references: dict[str, list[str]] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)

    def cite(self) -> str:
        return f"“{self.text}” {write_reference(self.references)}"


def write_report(variables: Variables) -> str:
    """Write the JSON object {title, summary, rating, rating_explanation, findings} from the `context`."""
    sections = parse_sections(variables["context"])
    units = _quotations(sections)[:MAX_SENTENCES]
    # All hierarchies are treated alike from here on.
    sections["Reports"] = [row for name in REPORT_SECTIONS for row in sections.get(name, ())]
    members = _members(sections, units)
    texts: dict[str, list[str]] = defaultdict(list)
    for unit in units:
        for member in unit.members:
            texts[member].append(unit.text)
    names = {m: _written_as(m, texts[m]) if m.isupper() else m for m in members}
    summary, findings = _choose(units, members, min(REPORT_CHARS, int(room_in(variables, 2000) * 0.6)))
    n = {name: len(sections.get(name, ())) for name in _NOUNS}
    counts = ", ".join(f"{k} {_NOUNS[name][k != 1]}" for name, k in n.items() if k) or "no records"
    size = n["Entities"] + n["Relationships"] + 0.5 * n["Claims"] + 10 * n["Reports"]
    rating = round(min(10.0, 1.2 * log2(1 + size)), 1)
    subject = f"A community around {names[members[0]]}" if members else "A community"
    if (groups := _SEPARATE.match(variables["context"])) and int(groups.group(1)) > 1:
        largest = ", ".join(names[m] for m in members[:2])
        subject = f"{groups.group(1)} small groups without a link between them, among them those of {largest}"
    distinct: dict[str, str] = {}
    for name in names.values():
        distinct.setdefault(name.casefold(), name)
    neighbours: dict[str, set[str]] = defaultdict(set)
    for row in sections.get("Relationships", ()):
        source, target = row.get("source") or "", row.get("target") or ""
        neighbours[source].add(target)
        neighbours[target].add(source)
    explained = []
    for member, quotations in findings:
        related = [name for other, name in names.items() if other in neighbours[member]][:3]
        with_related = f" — with {', '.join(related)}" if related else ""
        explained.append((names[member] + with_related, " ".join(u.cite() for u in quotations)))
    if not explained:
        head = next(iter(names.values()), "Nothing")
        explained = [(head, "The corpus names it, and no sentence says more.")]
    return as_json(
        {
            "title": ", ".join(list(distinct.values())[:TITLE_NAMES]) or "Unnamed records",
            "summary": " ".join(
                [f"{subject}: {counts}; rated {rating:.1f} of 10.", *(u.cite() for u in summary), MARK]
            ),
            "rating": rating,
            "rating_explanation": f"Rated by size and links alone: {counts}.",
            "findings": [{"summary": short, "explanation": long} for short, long in explained],
        }
    )


def _quotations(sections: Sections) -> list[Quotation]:
    """Return the distinct quotations in reports and descriptions of a context, in order."""
    by_text: dict[str, Quotation] = {}

    def add(text: str, section: str, number: str, members: Iterable[str]) -> None:
        if not is_balanced(text):
            return
        unit = by_text.setdefault(text.casefold(), Quotation(text))
        if unit.text != text:  # It differs only in case.
            return
        numbers = unit.references.setdefault(section, [])
        if number not in numbers:
            numbers.append(number)
        unit.members.extend(m for m in members if m and m not in unit.members)

    for section, row in ((s, row) for s in REPORT_SECTIONS for row in sections.get(s, ())):
        for heading, texts in report_parts(row.get("content") or ""):
            for text in texts:
                add(text, section, row["id"], [heading or first_name(row.get("title") or "")])
    columns = {"Entities": ("entity",), "Relationships": ("source", "target"), "Claims": ("subject",)}
    for section, names in columns.items():
        for row in sections.get(section, ()):
            for text in pieces(row.get("description") or ""):
                add(text, section, row["id"], [row.get(name) or "" for name in names])
    return list(by_text.values())


def _members(sections: Sections, units: Sequence[Quotation]) -> list[str]:
    """Return members by descending number of relationships, then of quotations.

    For reports of sub-communities, return the names in their titles; the first name has the largest weight.
    """
    degrees: dict[str, float] = {}
    for row in sections.get("Entities", ()):
        degrees.setdefault(row.get("entity") or "", 0.0)
    has_entities = bool(degrees)
    for row in sections.get("Relationships", ()):
        for end in (row.get("source") or "", row.get("target") or ""):
            if end in degrees or not has_entities:
                degrees[end] = degrees.get(end, 0.0) + 1.0
    for row in sections.get("Reports", ()):
        size = len(row.get("content") or "") / 800
        for place, name in enumerate((row.get("title") or "").split(", ")[:2]):
            key = name.upper() if name.upper() in degrees else name
            degrees[key] = degrees.get(key, 0.0) + size / (place + 1)
    degrees.pop("", None)
    n_quotes = Counter(m for u in units for m in u.members)
    return sorted(degrees, key=lambda m: (-degrees[m], -n_quotes[m], m))


def _written_as(key: str, texts: Sequence[str]) -> str:
    """Return a key in the spelling of a quotation that contains it: Mara Venn for MARA VENN, but NASA."""
    seen: Counter[str] = Counter(form for t in texts[:12] for form in _forms(key, t.replace("’", "'")))
    if seen[key] and " " not in key:
        return key
    if mixed := [form for form, _ in seen.most_common() if not form.isupper()]:
        return mixed[0]
    return " ".join(w if len(w) < 3 or "." in w else w[0] + w[1:].lower() for w in key.split())


def _forms(key: str, text: str) -> Iterator[str]:
    """Return the spellings in a text of a name that is passed in capitals. It must occur as whole words."""
    upper = text.upper()
    positions: Sequence[int] = range(len(text) + 1)
    if len(upper) != len(text):  # ß becomes SS.
        positions = [*(i for i, c in enumerate(text) for _ in c.upper()), len(text)]
    found_at = upper.find(key)
    while found_at >= 0:
        start, end = positions[found_at], positions[found_at + len(key)]
        whole = text[start:end].upper() == key  # Not half of an ß.
        if whole and not text[max(0, start - 1) : start].isalnum() and not text[end : end + 1].isalnum():
            yield text[start:end]
            found_at += len(key) - 1
        found_at = upper.find(key, found_at + 1)


def _choose(
    units: Sequence[Quotation], members: Sequence[str], room: int
) -> tuple[list[Quotation], list[tuple[str, list[Quotation]]]]:
    """Choose distinct quotations for the summary, and for findings by member."""
    if not units:
        return [], []
    similarity = similarities([content_stems(u.text) for u in units])
    # Short, very long and context-dependent sentences are less useful, even if they are central.
    weights = [
        min(1.0, len(u.text) / 90) * (0.7 if len(u.text) > 420 else 1.0) * stands_alone(u.text) for u in units
    ]
    relevance = np.maximum(lexrank(similarity) * weights, 1e-6)
    free = np.ones(len(units), dtype=bool)
    used = 0

    def take(chosen: Sequence[int]) -> list[Quotation]:
        """Mark quotations and their near-copies as used."""
        nonlocal used
        for index in chosen:
            free[similarity[index] >= 0.85] = False
            free[index] = False
            used += len(units[index].text)
        return [units[i] for i in chosen]

    summary = take(mmr(relevance, similarity, min(REPORT_SUMMARY_QUOTES, len(units) - 1)))
    findings: list[tuple[str, list[Quotation]]] = []
    units_of_member: dict[str, list[int]] = defaultdict(list)
    for i, unit in enumerate(units):
        for member in unit.members:
            units_of_member[member].append(i)
    for member in members:
        if len(findings) >= MAX_FINDINGS or used >= room:
            break
        free_units = [i for i in units_of_member[member] if free[i]]
        if free_units:
            best = mmr(relevance[free_units], similarity[np.ix_(free_units, free_units)], MAX_FINDING_QUOTES)
            findings.append((member, take([free_units[i] for i in best])))
    if not findings and members:  # The only quotation belongs to a finding.
        return [], [(members[0], summary or list(units[:1]))]
    return summary, findings
