"""Answers to the map, the reduce and the answer prompt: sentences of records that match the question.

BM25 (Robertson and Zaragoza 2009) ranks sentences, MMR (Carbonell and Goldstein 1998) keeps them apart.
What scores 0, and what a question about the whole gets, is decided in questions.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphrag_ray.base.declarations import REPORT_SECTIONS
from graphrag_ray.base.records import SECTIONS, parse_sections, write_reference
from graphrag_ray.corpus.quotes import can_be_found, quoted
from graphrag_ray.offline.description_reply import CHARS_PER_TOKEN
from graphrag_ray.offline.lexicon import lexicon
from graphrag_ray.offline.question_terms import WEAK, QuestionTerms, read_question
from graphrag_ray.offline.sentences import split_sentences, without_label
from graphrag_ray.offline.summarise import Floats, bm25, content_stems, mmr, similarities
from graphrag_ray.offline.units import MARK, is_balanced, report_parts, stands_alone

MAX_MAP_QUOTES = 10
MAX_REDUCE_QUOTES = 14
PER_REPORT = 2
MIN_REPORTS = 3
"""An answer about the whole cites at least so many, matching or not."""
CANDIDATES = 100
"""The best by BM25, among which MMR chooses."""
FALLBACK_SCORE = 15
"""Of an answer to a question about the whole from reports that share none of its terms."""

_RATED = re.compile(r"rated (\d+(?:\.\d)?) of 10")
_HELPFUL = "<ANSWER_HELPFULNESS> {} </ANSWER_HELPFULNESS>"
_CITED = re.compile(r"\s*(\[Data:[^\[\]]*\])")
_SOURCE = re.compile(r"Source \d+")
"""The title of a chunk of whose document nothing is said: its number in one context, which means nothing in
another."""
_TITLE = re.compile(r"\*\*([^*]+)\*\*:")
_TITLES: Mapping[str, str] = {
    "Entities": "{entity}",
    "Relationships": "{source} – {target}",
    "Claims": "{subject}",
}
"""Under what a record's description is quoted, by section."""


@dataclass(frozen=True, slots=True)
class _Report:
    """A record of the context: a report, or another record that takes its part."""

    section: str
    number: str
    title: str
    sentences: tuple[str, ...]
    rating: float


@dataclass(frozen=True, slots=True)
class _Quote:
    """A sentence, the title it stands under, the reference behind it as written, its answer's score."""

    text: str
    title: str
    reference: str
    score: float


def map_answer(variables: Mapping[str, str]) -> str:
    """A score line, then for each report used `**Title**: “sentence” [Data: Reports (n)] …`."""
    question = read_question(variables["question"])
    reports = records_of(variables["context"])
    found = _matching(question, reports, _room(variables))
    if found is None:
        return _HELPFUL.format(0)
    lines = _by_report(reports, found.quotes)
    return "\n".join([_HELPFUL.format(_score(question, found.shares)), *lines])


@dataclass(frozen=True)
class _Matching:
    """quotes: (report, sentence), by falling worth; shares: [reports] of the question's terms in each."""

    quotes: list[tuple[int, str]]
    stems: list[list[str]]
    shares: Floats


def _matching(question: QuestionTerms, reports: Sequence[_Report], room: int) -> _Matching | None:
    """The sentences that match the question, as many as fit into `room` characters; None where none does."""
    stems = [[question.mark(content_stems(s)) for s in r.sentences] for r in reports]
    titles = [frozenset(question.mark(content_stems(r.title))) for r in reports]
    in_report = [title.union(*s) for title, s in zip(titles, stems, strict=True)]
    sentences = [s for of_report in stems for s in of_report]
    said = [_with_title(question, *x) for x in zip(reports, titles, stems, strict=True)]
    if not sentences or not question.concerns(said, titles):
        return None
    shares = np.array([question.coverage(s) for s in in_report])
    owner = [i for i, s in enumerate(stems) for _ in s]
    texts = [s for r in reports for s in r.sentences]
    relevance = _relevance(question, reports, sentences, shares[owner])
    relevance *= np.array([stands_alone(t) for t in texts])
    chosen = _spread(relevance, sentences, owner, MAX_MAP_QUOTES)
    kept = _within(chosen, [len(texts[i]) for i in chosen], room)
    return _Matching([(owner[i], texts[i]) for i in kept], [sentences[i] for i in kept], shares)


def _with_title(
    question: QuestionTerms, record: _Report, title: frozenset[str], sentences: Sequence[Sequence[str]]
) -> Sequence[Collection[str]]:
    """Its sentences; those of a document that share a word with the question, with the words of its title,
    since each is said where the title says."""
    if record.section != "Sources" or _SOURCE.fullmatch(record.title):
        return sentences
    return [s if question.terms.keys().isdisjoint(s) else title.union(s) for s in sentences]


def _relevance(
    question: QuestionTerms, reports: Sequence[_Report], sentences: Sequence[Sequence[str]], shares: Floats
) -> Floats:
    """[n] BM25 for the terms, weighted by how many of them the report has. For a question about the whole
    all sentences compete, behind those that match: by their report's rating, by the other words of the
    question, and by their place, since a report opens with what is most central to it."""
    match = bm25(question.things, sentences) + WEAK * bm25(question.verbs, sentences)
    match *= 0.3 + shares
    match /= max(1e-9, float(match.max(initial=0.0)))
    if not question.whole:
        return match
    others = bm25(question.stems, sentences)
    others /= max(1e-9, float(others.max(initial=0.0)))
    rating = np.array([r.rating / 10 for r in reports for _ in r.sentences])
    place = np.array([1 / (1 + i) for r in reports for i in range(len(r.sentences))])
    return match + 0.15 * others + 0.1 * rating + 0.1 * place


def _score(question: QuestionTerms, shares: Floats) -> int:
    """1–100: how much of the question the best report covers, and how many reports cover much of it."""
    best = float(shares.max(initial=0.0))
    if best <= 0:
        return FALLBACK_SCORE if question.terms else 40
    broad = float(np.minimum(1.0, (shares >= 0.5 * best).mean() * 2))
    return int(np.clip(round(75 * best + 20 * broad), FALLBACK_SCORE + 1, 100))


def _spread(relevance: Floats, stems: Sequence[Sequence[str]], owner: Sequence[int], limit: int) -> list[int]:
    """MMR over the best candidates only."""
    order = np.argsort(-relevance, kind="stable")[:CANDIDATES]
    similarity = similarities([stems[i] for i in order])
    groups = [owner[i] for i in order]
    return [int(order[i]) for i in mmr(relevance[order], similarity, limit, 0.75, groups, PER_REPORT)]


def _within(chosen: Sequence[int], sizes: Sequence[int], room: int) -> list[int]:
    """What fits into `room` characters, with some 30 for each reference; the first at any rate."""
    kept: list[int] = []
    for index, size in zip(chosen, sizes, strict=True):
        room -= size + 30
        if kept and room < 0:
            break
        kept.append(index)
    return kept


def _by_report(reports: Sequence[_Report], chosen: Sequence[tuple[int, str]]) -> list[str]:
    lines = []
    for index in dict.fromkeys(i for i, _ in chosen):
        report = reports[index]
        reference = write_reference({report.section: [report.number]})
        quotes = " ".join(f"“{s}” {reference}" for i, s in chosen if i == index)
        lines.append(f"**{report.title.replace('*', '')}**: {quotes}")
    return lines


def records_of(context: str) -> list[_Report]:
    """The records of a context with their sentences."""
    out = []
    sections = parse_sections(context)
    for section, row in ((s, row) for s in REPORT_SECTIONS for row in sections.get(s, ())):
        content = row.get("content") or ""
        found = (s for _, texts in report_parts(content) for s in texts if is_balanced(s))
        rated = _RATED.search(content)
        rating = float(rated.group(1)) if rated else 5.0
        title = row.get("title") or f"Report {row['id']}"
        out.append(_Report(section, row["id"], title, tuple(dict.fromkeys(found)), rating))
    for row in sections.get("Sources", ()):
        said = dict.fromkeys(_sentences(row.get("text")))
        title = row.get("document") or f"Source {row['id']}"
        out.append(_Report("Sources", row["id"], title, tuple(said), 5.0))
    for section, title in _TITLES.items():
        for row in sections.get(section, ()):
            said = dict.fromkeys(_sentences(row.get("description")))
            out.append(_Report(section, row["id"], title.format_map(row), tuple(said), 5.0))
    return out


def _sentences(text: str | None) -> list[str]:
    """The sentences, without their speakers' labels, that lead back to their place in the text."""
    words = lexicon()
    found = (without_label(s, words) for s in split_sentences(text or "", words))
    return [s for s in found if s and is_balanced(s) and can_be_found(s)]


def context_answer(variables: Mapping[str, str]) -> str:
    """The answer from one context: for each record used `**Title**: “sentence” [Data: Sources (n)] …`, and
    which of the question's words these share. A reference names all records that hold the sentence."""
    question = read_question(variables["question"])
    records = records_of(variables["context"])
    found = _matching(question, records, int(_room(variables) * 0.9))
    if found is None:
        return f"Nothing that was found answers this question. {MARK}"
    holders: dict[str, list[_Report]] = {}
    for record in records:
        for sentence in record.sentences:
            holders.setdefault(sentence.casefold(), []).append(record)
    quotes = [
        _Quote(
            text,
            "" if _SOURCE.fullmatch(records[n].title) else records[n].title.replace("*", ""),
            _all(holders[text.casefold()]),
            0,
        )
        for n, text in found.quotes
    ]
    body = _paragraphs(quotes, variables.get("response_type", ""))
    return f"{body}\n\n{_looked_for(question, found.stems, range(len(quotes)))}{MARK}"


def _all(records: Sequence[_Report]) -> str:
    by_section: dict[str, list[str]] = {}
    for record in records:
        by_section.setdefault(record.section, []).append(record.number)
    return write_reference({s: by_section[s] for s in SECTIONS if s in by_section})


def reduce_answer(variables: Mapping[str, str]) -> str:
    """Merge the analysts' answers: their quotations ranked anew, each once, with its reference."""
    question = read_question(variables["question"])
    quotes = _quotes(variables["answers"])
    if not quotes:
        return f"Nothing that was found answers this question. {MARK}"
    stems = [question.mark(content_stems(q.text)) for q in quotes]
    match = bm25(question.things or question.stems, stems) + WEAK * bm25(question.verbs, stems)
    helpful = np.array([q.score for q in quotes]) / 100
    first = 1.0 / (1 + 0.05 * np.arange(len(quotes)))
    relevance = helpful * (0.4 * first + 0.6 * match / max(1e-9, float(match.max())))
    numbers: dict[str, int] = {}
    owner = [numbers.setdefault(q.title + q.reference, len(numbers)) for q in quotes]
    chosen = _spread(np.maximum(relevance, 1e-6), stems, owner, MAX_REDUCE_QUOTES)
    kept = _within(chosen, [len(quotes[i].text) for i in chosen], int(_room(variables) * 0.9))
    body = _paragraphs([quotes[i] for i in kept], variables.get("response_type", ""))
    return f"{body}\n\n{_looked_for(question, stems, kept)}{MARK}"


def _looked_for(question: QuestionTerms, stems: Sequence[Sequence[str]], kept: Sequence[int]) -> str:
    """Which of the question's words the quotations share: it tells how far to trust the answer."""
    shown = {s for i in kept for s in stems[i]}
    found = [w for w, t in zip(question.words, question.terms, strict=True) if t in shown]
    missing = [w for w, t in zip(question.words, question.terms, strict=True) if t not in shown]
    parts = [
        f"Looked for: {', '.join(found)}." if found else "",
        f"Not found: {', '.join(missing)}." if missing else "",
    ]
    return " ".join([*filter(None, parts), ""])


def _paragraphs(quotes: Sequence[_Quote], response_type: str) -> str:
    """One paragraph, or point, for each title, in the order of its best sentence, or for each sentence."""
    as_list = "list" in response_type.lower() or "point" in response_type.lower()
    groups: dict[str, list[_Quote]] = {}
    for n, quote in enumerate(quotes):
        groups.setdefault(quote.title or f"*{n}", []).append(quote)  # no title has an asterisk
    out = []
    for title, own in groups.items():
        told = " ".join(f"“{q.text}” {q.reference}" for q in own)
        out.append(("- " if as_list else "") + (told if title.startswith("*") else f"**{title}**: {told}"))
    return ("\n" if as_list else "\n\n").join(out)


def _quotes(answers: str) -> list[_Quote]:
    """The quotations of a context of section Answers (id, score, answer), without copies. Lines of an
    answer are folded into one, so what belongs together is told by marks alone."""
    out: dict[str, _Quote] = {}
    for row in parse_sections(answers).get("Answers", ()):
        answer, score = row.get("answer") or "", _float(row.get("score") or "")
        for title, part in _titled(answer):
            at = 0
            for text in quoted(part):
                at = part.find(f"“{text}”", at) + len(text) + 2
                cited = _CITED.match(part, at)
                if cited:
                    out.setdefault(text.casefold(), _Quote(text, title, cited.group(1), score))
    return list(out.values())


def _titled(answer: str) -> list[tuple[str, str]]:
    """(title, what stands under it)."""
    found = list(_TITLE.finditer(answer))
    bounds = [*(m.start() for m in found), len(answer)]
    parts = [(m.group(1).strip(), answer[m.end() : bounds[i + 1]]) for i, m in enumerate(found)]
    return [("" if _SOURCE.fullmatch(t) else t, p) for t, p in parts] or [("", answer)]


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 50.0


def _room(variables: Mapping[str, str]) -> int:
    tokens = variables.get("max_tokens", "")
    return int((int(tokens) if tokens.isdigit() and int(tokens) else 1000) * CHARS_PER_TOKEN)
