"""Answers to the map and the reduce prompt: sentences of reports that match the question.

BM25 (Robertson and Zaragoza 2009) ranks sentences, MMR (Carbonell and Goldstein 1998) keeps them apart.
A context scores 0 unless a report in it shares enough of the question's terms: one common word in
common is no answer. Only questions about the whole are answered without, from the reports rated highest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphrag_ray.offline.describe import CHARS_PER_TOKEN
from graphrag_ray.offline.questions import Question, coverage, read_question
from graphrag_ray.offline.summarise import Floats, bm25, content_stems, mmr, similarities
from graphrag_ray.offline.units import MARK, is_balanced, quoted, read_context, report_parts
from graphrag_ray.records import write_reference

MIN_COVERAGE = 0.55
"""Share of a question's terms that one report must have, by weight."""
MIN_COVERAGE_WHOLE = 0.3
"""The same for a question about the whole that has terms."""
MAX_MAP_QUOTES = 10
MAX_REDUCE_QUOTES = 14
PER_REPORT = 2
CANDIDATES = 120

_RATED = re.compile(r"rated (\d+(?:\.\d)?) of 10")
_HELPFUL = "<ANSWER_HELPFULNESS> {} </ANSWER_HELPFULNESS>"
_CITED = re.compile(r"\[Data:\s*([^\[\]]*)\]")
_TITLE = re.compile(r"\*\*([^*]+)\*\*:")


@dataclass(frozen=True, slots=True)
class _Report:
    number: str
    title: str
    sentences: tuple[str, ...]
    rating: float
    stems: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Quote:
    """A sentence, the title it stands under, and the reference behind it as written."""

    text: str
    title: str
    reference: str
    score: float


def map_answer(variables: Mapping[str, str]) -> str:
    """A score line, then for each report used `**Title**: “sentence” [Data: Reports (n)] …`."""
    question = read_question(variables["question"])
    reports = _reports(variables["context"])
    shares = np.array([coverage(question, set(r.stems)) for r in reports])
    sentences = [(i, s) for i, r in enumerate(reports) for s in r.sentences]
    if not sentences or not _concerned(question, shares):
        return _HELPFUL.format(0)
    stems = [content_stems(s) for _, s in sentences]
    match = bm25(list(question.terms), stems)
    match += 0.15 * bm25(question.all_stems, stems)
    owner = np.array([i for i, _ in sentences])
    rating = np.array([r.rating for r in reports])
    if question.terms:
        relevance = match * (0.3 + shares[owner])
        relevance[shares[owner] <= 0] = 0.0
    else:
        relevance = 0.2 * match / max(1e-9, match.max()) + rating[owner] / 10
    relevance /= max(1e-9, relevance.max())
    chosen = _spread(relevance, stems, owner.tolist(), MAX_MAP_QUOTES, _room(variables))
    score = _score(question, shares, rating)
    lines = _by_report(reports, [sentences[i] for i in chosen])
    return "\n".join([_HELPFUL.format(score), *lines])


def _concerned(question: Question, shares: Floats) -> bool:
    if not question.terms:
        return question.whole
    best = float(shares.max(initial=0.0))
    return best >= (MIN_COVERAGE_WHOLE if question.whole else MIN_COVERAGE)


def _score(question: Question, shares: Floats, rating: Floats) -> int:
    """1–100: how much of the question the best report covers, and how many reports cover some of it."""
    if not question.terms:
        return int(np.clip(30 + 4 * np.sort(rating)[-3:].mean(), 1, 100))
    best = float(shares.max())
    broad = float(np.minimum(1.0, (shares >= 0.5 * best).mean() * 2))
    return int(np.clip(round(75 * best + 20 * broad), 1, 100))


def _spread(
    relevance: Floats, stems: Sequence[Sequence[str]], owner: Sequence[int], limit: int, room: int
) -> list[int]:
    """MMR over the best candidates only; the number of characters bounds the rest."""
    order = np.argsort(-relevance, kind="stable")[:CANDIDATES]
    similarity = similarities([stems[i] for i in order])
    groups = [owner[i] for i in order]
    picked = mmr(relevance[order], similarity, limit, 0.75, groups, PER_REPORT)
    return [int(order[i]) for i in picked][: max(1, room // 220)]


def _by_report(reports: Sequence[_Report], chosen: Sequence[tuple[int, str]]) -> list[str]:
    lines = []
    for index in dict.fromkeys(i for i, _ in chosen):
        reference = write_reference({"Reports": [reports[index].number]})
        quotes = " ".join(f"“{s}” {reference}" for i, s in chosen if i == index)
        lines.append(f"**{reports[index].title.replace('*', '')}**: {quotes}")
    return lines


def _reports(context: str) -> list[_Report]:
    """The reports of a context; for source chunks (Sources) their text is quoted by nobody, so none."""
    out = []
    for row in read_context(context).get("Reports", ()):
        content, title = row.get("content") or "", row.get("title") or ""
        sentences = [s for _, texts in report_parts(content) for s in texts]
        rated = _RATED.search(content)
        stems = frozenset(content_stems(f"{title} {' '.join(sentences)}"))
        rating = float(rated.group(1)) if rated else 5.0
        out.append(_Report(row["id"], title, tuple(dict.fromkeys(sentences)), rating, stems))
    return out


def reduce_answer(variables: Mapping[str, str]) -> str:
    """Merge the analysts' answers: their quotations ranked anew, each once, with its reference."""
    question = read_question(variables["question"])
    quotes = _quotes(variables["answers"])
    if not quotes:
        return f"Nothing that was found answers this question.\n\n{MARK}"
    stems = [content_stems(q.text) for q in quotes]
    match = bm25(list(question.terms) or question.all_stems, stems)
    helpful = np.array([q.score for q in quotes]) / 100
    first = np.array([1.0 / (1 + 0.05 * i) for i in range(len(quotes))])
    relevance = helpful * (0.4 * first + 0.6 * match / max(1e-9, match.max()))
    owner = _numbered([q.title for q in quotes])
    room = int(_room(variables) * 0.9)
    chosen = _spread(np.maximum(relevance, 1e-6), stems, owner, MAX_REDUCE_QUOTES, room)
    return f"{_paragraphs([quotes[i] for i in chosen], variables.get('response_type', ''))}\n\n{MARK}"


def _paragraphs(quotes: Sequence[_Quote], response_type: str) -> str:
    """One paragraph for each title, in the order of its best sentence."""
    bullet = "- " if "list" in response_type.lower() or "point" in response_type.lower() else ""
    out = []
    for title in dict.fromkeys(q.title for q in quotes):
        own = " ".join(f"“{q.text}” {q.reference}" for q in quotes if q.title == title)
        out.append(f"{bullet}**{title}**: {own}" if title else f"{bullet}{own}")
    return ("\n" if bullet else "\n\n").join(out)


def _quotes(answers: str) -> list[_Quote]:
    """The quotations of a context of section Answers (id, score, answer), without copies. Lines of an
    answer are folded into one, so what belongs together is told by marks alone."""
    out: dict[str, _Quote] = {}
    for row in read_context(answers).get("Answers", ()):
        answer = row.get("answer") or ""
        score = _float(row.get("score") or "")
        for title, part in _titled(answer):
            for text in quoted(part):
                after = part[part.find(f"“{text}”") + len(text) + 2 :]
                cited = _CITED.match(after.lstrip())
                if cited and is_balanced(text):
                    out.setdefault(text.casefold(), _Quote(text, title, cited.group(0), score))
    return list(out.values())


def _titled(answer: str) -> list[tuple[str, str]]:
    found = list(_TITLE.finditer(answer))
    bounds = [*(m.start() for m in found), len(answer)]
    parts = [(m.group(1).strip(), answer[m.end() : bounds[i + 1]]) for i, m in enumerate(found)]
    return parts or [("", answer)]


def _numbered(titles: Sequence[str]) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(t, len(numbers)) for t in titles]


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 50.0


def _room(variables: Mapping[str, str]) -> int:
    tokens = variables.get("max_tokens", "")
    return int((int(tokens) if tokens.isdigit() and int(tokens) else 1000) * CHARS_PER_TOKEN)
