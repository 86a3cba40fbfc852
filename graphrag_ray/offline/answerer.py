"""Answers of the offline engine: sentences of a context that match a question, quoted with references.

Every prompt that asks a question of records is answered in one way: read the records, divide them into
sentences, rank these by BM25 (Robertson and Zaragoza 2009), keep them apart by MMR (Carbonell and Goldstein
1998), and write the best ones in the form that the prompt asks for. `question_terms.py` decides what a
question asks for, and when records say nothing about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphrag_ray.base.declarations import REPORT_SECTIONS
from graphrag_ray.base.records import SECTIONS, parse_sections, write_reference
from graphrag_ray.corpus.quotes import can_be_found, quoted
from graphrag_ray.offline.mentions import read
from graphrag_ray.offline.question_terms import WEAK, QuestionTerms, list_subjects, read_question
from graphrag_ray.offline.sentences import split_sentences, without_label
from graphrag_ray.offline.summarise import (
    MARK,
    NONE,
    Floats,
    bm25,
    content_stems,
    is_balanced,
    mmr,
    number_in,
    report_parts,
    room_in,
    similarities,
    stands_alone,
)

Variables = Mapping[str, str]

MAX_QUOTES, MAX_REDUCE_QUOTES = 10, 14
PER_RECORD = 2
CANDIDATES = 100
"""The best by BM25, among which MMR chooses."""
FALLBACK_SCORE = 15
"""Of an answer to a question about the whole from reports that share none of its terms."""
MIN_SHARE = 0.3
"""Of a question's terms, by weight: one word in common out of many is chance."""
HIGHEST_RATING, RATING_OF_WHOLE = 5, 3
"""The second: of every report for a question without terms of its own."""
MOST_LINKS = 3
READ_RECORDS = 5
"""From which names to look up next are taken."""

_NOTHING = f"Nothing that was found answers this question. {MARK}"
_MORE_TO_COME = "looked up then"
"""What the prompt says where the next step can look up what is missing."""
_RATED = re.compile(r"rated (\d+(?:\.\d)?) of 10")
_SCORED = "<ANSWER_HELPFULNESS> {} </ANSWER_HELPFULNESS>"
_CITED = re.compile(r"\s*(\[Data:[^\[\]]*\])")
_TITLE = re.compile(r"\*\*([^*]+)\*\*:")
_TITLES = {
    "Sources": "{document}",
    "Entities": "{entity}",
    "Relationships": "{source} – {target}",
    "Claims": "{subject}",
}
"""Under what a record's text is quoted, by section."""


@dataclass(frozen=True, slots=True)
class Record:
    """A report, a chunk or another record of a context. title: "" for a chunk of an unnamed document."""

    section: str
    number: str
    title: str
    sentences: tuple[str, ...]
    rating: float = 5.0


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence, the title it stands under, the reference behind it as written, and a score, 1–100: how well
    the records answer the question."""

    text: str
    title: str
    reference: str
    stems: Sequence[str]
    score: float


def records_of(context: str) -> list[Record]:
    """The records of a context with those of their sentences that can be quoted."""
    out = []
    sections = parse_sections(context)
    for section, row in ((s, row) for s in REPORT_SECTIONS for row in sections.get(s, ())):
        content = row.get("content") or ""
        said = dict.fromkeys(s for _, texts in report_parts(content) for s in texts if is_balanced(s))
        rated = _RATED.search(content)
        title = row.get("title") or f"Report {row['id']}"
        out.append(Record(section, row["id"], title, tuple(said), float(rated.group(1)) if rated else 5.0))
    for section, form in _TITLES.items():
        for row in sections.get(section, ()):
            title = form.format_map({"document": "", **row})
            # Without their speakers' labels, and only those that lead back to their place in the text.
            text = row.get("text" if section == "Sources" else "description")
            said = dict.fromkeys(without_label(s) for s in split_sentences(text or ""))
            found = tuple(s for s in said if s and is_balanced(s) and can_be_found(s))
            out.append(Record(section, row["id"], title, found))
    return out


def find(asked: str, variables: Variables, part: float = 1.0) -> list[Quote]:
    """The sentences of `context` that match a question, the best first; none if the records say nothing about
    it.

    part: the share of the reply's length that quotations may fill
    """
    question, records = read_question(asked), records_of(variables["context"])
    stems = [[question.mark(content_stems(s)) for s in r.sentences] for r in records]
    titles = [frozenset(question.mark(content_stems(r.title))) for r in records]
    said = [
        # Each sentence of a document that shares a word with the question is said where the title says.
        [s if r.section != "Sources" or question.terms.keys().isdisjoint(s) else title.union(s) for s in own]
        for r, title, own in zip(records, titles, stems, strict=True)
    ]
    texts = [s for r in records for s in r.sentences]
    if not texts or not question.concerns(said, titles):
        return []
    shares = np.array(
        [question.coverage(title.union(*own)) for title, own in zip(titles, stems, strict=True)]
    )
    owner = [i for i, own in enumerate(stems) for _ in own]
    flat = [s for own in stems for s in own]
    match = _match(question, question.things, flat) * (0.3 + shares[owner])
    relevance = match / max(1e-9, float(match.max()))
    if question.whole:
        # All sentences compete, behind those that match: by the other words of the question, by their
        # report's rating, and by their place, since a report opens with what is most central to it.
        others = bm25(question.stems, flat)
        relevance += 0.15 * others / max(1e-9, float(others.max()))
        relevance += 0.01 * np.array([records[i].rating for i in owner])
        relevance += 0.1 * np.array([1 / (1 + i) for r in records for i in range(len(r.sentences))])
    relevance *= np.array([stands_alone(t) for t in texts])
    chosen = _spread(relevance, flat, owner, MAX_QUOTES, texts, part * room_in(variables, 1000))
    # How much of the question the best record covers, and how many records cover much of it.
    best = float(shares.max(initial=0.0))
    broad = float(np.minimum(1.0, (shares >= 0.5 * best).mean() * 2))
    score = int(np.clip(round(75 * best + 20 * broad), FALLBACK_SCORE + 1, 100))
    if best <= 0:
        score = FALLBACK_SCORE if question.terms else 40
    holders: dict[str, list[Record]] = {}
    for record in records:
        for text in record.sentences:
            holders.setdefault(text.casefold(), []).append(record)
    quotes = []
    for i in chosen:
        own = records[owner[i]]
        by_section: dict[str, list[str]] = {}
        # The record under whose title it stands comes first: a reference names few of many.
        for record in dict.fromkeys([own, *holders[texts[i].casefold()]]):
            by_section.setdefault(record.section, []).append(record.number)
        reference = write_reference({s: by_section[s] for s in SECTIONS if s in by_section})
        quotes.append(Quote(texts[i], own.title.replace("*", ""), reference, flat[i], score))
    return quotes


def _match(question: QuestionTerms, things: Sequence[str], sentences: Sequence[Sequence[str]]) -> Floats:
    return bm25(things, sentences) + WEAK * bm25(question.verbs, sentences)


def _spread(
    relevance: Floats,
    stems: Sequence[Sequence[str]],
    owner: Sequence[int],
    limit: int,
    texts: Sequence[str],
    room: float,
) -> list[int]:
    """MMR over the best candidates only: as many as fit into `room` characters, with some 30 for each
    reference; the first at any rate."""
    order = np.argsort(-relevance, kind="stable")[:CANDIDATES]
    similarity = similarities([stems[i] for i in order])
    groups = [owner[i] for i in order]
    kept: list[int] = []
    for i in (int(order[n]) for n in mmr(relevance[order], similarity, limit, 0.75, groups, PER_RECORD)):
        room -= len(texts[i]) + 30
        if kept and room < 0:
            break
        kept.append(i)
    return kept


def _points(quotes: Sequence[Quote]) -> list[str]:
    """`**Title**: “sentence” [Data: Reports (n)] …` for each title, in the order of its best sentence; a
    sentence without a title stands by itself."""
    groups: dict[str, list[Quote]] = {}
    for n, quote in enumerate(quotes):
        groups.setdefault(quote.title or f"*{n}", []).append(quote)  # no title has an asterisk
    told = {title: " ".join(f"“{q.text}” {q.reference}" for q in own) for title, own in groups.items()}
    return [text if title.startswith("*") else f"**{title}**: {text}" for title, text in told.items()]


def _answer(variables: Variables, quotes: Sequence[Quote]) -> str:
    """Paragraphs or a list, and which of the question's words the quotations share: it tells how far to
    trust the answer."""
    question, response_type = read_question(variables["question"]), variables.get("response_type", "").lower()
    as_list = "list" in response_type or "point" in response_type
    body = "\n".join(f"- {p}" for p in _points(quotes)) if as_list else "\n\n".join(_points(quotes))
    shown = {s for q in quotes for s in q.stems}
    written = list(zip(question.words, question.terms, strict=True))
    found, missing = [w for w, t in written if t in shown], [w for w, t in written if t not in shown]
    said = [f"Looked for: {', '.join(found)}."] if found else []
    said += [f"Not found: {', '.join(missing)}."] if missing else []
    return "\n\n".join([body, " ".join([*said, MARK])])


def map_answer(variables: Variables) -> str:
    """A score line, then a line for each title."""
    quotes = find(variables["question"], variables)
    return "\n".join([_SCORED.format(quotes[0].score if quotes else 0), *_points(quotes)])


def context_answer(variables: Variables) -> str:
    quotes = find(variables["question"], variables, 0.9)
    return _answer(variables, quotes) if quotes else _NOTHING


def answer_with_chain(variables: Variables) -> str:
    """The quotations of `context_answer`; the best are the links. Where it has none, and more can be looked
    up, the prompt says so: one word."""
    quotes = find(variables["question"], variables, 0.9)
    if not quotes:
        return "Insufficient" if _MORE_TO_COME in variables.get("if_missing", "") else _NOTHING
    links = [f"- {variables['question']} -> “{q.text}” {q.reference}" for q in quotes[:MOST_LINKS]]
    return "\n".join([_answer(variables, quotes), "", "Chain:", *links])


def reduce_answer(variables: Variables) -> str:
    """Merge the analysts' answers: their quotations ranked anew, each once, with its reference."""
    question = read_question(variables["question"])
    read_back: dict[str, Quote] = {}
    for row in parse_sections(variables["answers"]).get("Answers", ()):
        answer = row.get("answer") or ""
        try:
            score = float(row.get("score") or "")
        except ValueError:
            score = 50.0
        found = list(_TITLE.finditer(answer))  # lines are folded into one: marks alone part them
        ends = [*(m.start() for m in found), len(answer)]
        parts = [(m.group(1).strip(), answer[m.end() : ends[i + 1]]) for i, m in enumerate(found)]
        for title, part in parts or [("", answer)]:
            at = 0
            for text in quoted(part):
                at = part.find(f"“{text}”", at) + len(text) + 2
                if cited := _CITED.match(part, at):
                    stems = question.mark(content_stems(text))
                    read_back.setdefault(text.casefold(), Quote(text, title, cited.group(1), stems, score))
    quotes = list(read_back.values())
    if not quotes:
        return _NOTHING
    match = _match(question, question.things or question.stems, [q.stems for q in quotes])
    first = 1.0 / (1 + 0.05 * np.arange(len(quotes)))
    relevance = np.array([q.score for q in quotes]) / 100
    relevance *= 0.4 * first + 0.6 * match / max(1e-9, float(match.max()))
    numbers: dict[str, int] = {}
    owner = [numbers.setdefault(q.title + q.reference, len(numbers)) for q in quotes]
    texts, every, room = [q.text for q in quotes], [q.stems for q in quotes], 0.9 * room_in(variables, 1000)
    chosen = _spread(np.maximum(relevance, 1e-6), every, owner, MAX_REDUCE_QUOTES, texts, room)
    return _answer(variables, [quotes[i] for i in chosen])


def map_points(variables: Variables) -> str:
    """The lines of `map_answer` as points, by falling score."""
    quotes = find(variables["question"], variables)
    lines = _points(quotes)
    points = [
        {"description": line, "score": max(1, round(quotes[0].score * (1 - rank / (2 * len(lines)))))}
        for rank, line in enumerate(lines)
    ]
    return as_json({"points": points})


def rate(variables: Variables) -> str:
    """Each report by the share of the question's terms that it has."""
    question = read_question(variables["question"])
    ratings = []
    for report in records_of(variables["context"]):
        stems = {s for text in (report.title, *report.sentences) for s in question.mark(content_stems(text))}
        shared = [w for w, t in zip(question.words, question.terms, strict=True) if t in stems]
        reason = f"It has: {', '.join(shared)}." if shared else "It shares no term with the question."
        share = question.coverage(stems)
        rating = max(1, round(HIGHEST_RATING * share)) if share >= MIN_SHARE else 0
        rating = rating if question.terms else RATING_OF_WHOLE
        ratings.append({"id": int(report.number), "reason": reason, "rating": rating})
    return as_json({"ratings": ratings})


def drift_step(variables: Variables) -> str:
    """The lines of `map_answer` for the question or the follow-up question, as an answer; names in the titles
    of their records are to be looked up. A follow-up question shares its terms with what was found for it, so
    the user's question decides how much that helps."""
    asked = variables.get("follow_up", variables["question"])
    quotes = find(asked, variables)
    if not quotes:
        return as_json({"answer": "", "score": 0, "follow_ups": []})
    score = quotes[0].score
    if "follow_up" in variables:
        helpful = find(variables["question"], variables)
        score = max(5, helpful[0].score if helpful else 0)
    names = dict.fromkeys(n.strip() for q in quotes for n in q.title.split(","))
    known = variables["question"].casefold() + asked.casefold()
    open_ = [n for n in names if n and n.casefold() not in known][: number_in(variables, "n_follow_ups", 0)]
    follow_ups = [
        {"question": f"What is said about {n}?", "score": max(5, 60 - 5 * i)} for i, n in enumerate(open_)
    ]
    return as_json({"answer": "\n".join(_points(quotes)), "score": score, "follow_ups": follow_ups})


def ask_next(variables: Variables) -> str:
    """The sentences that share a term with the question, and questions about the names in them that neither
    the question nor what was looked up before has."""
    question = read_question(variables["question"])
    before = f"{variables['question']}\n{variables['asked']}".casefold()
    known, names = list[str](), dict[str, None]()
    for record in records_of(variables["context"])[:READ_RECORDS]:
        for sentence in record.sentences:
            if set(question.things).isdisjoint(question.mark(content_stems(sentence))):
                continue
            known.append(sentence)
            titles = (thing.title for thing in read(sentence, False).things)
            names |= dict.fromkeys(title for title in titles if title.casefold() not in before)
    pairs = zip(question.terms, question.words, strict=True)
    rest = " ".join(word for term, word in pairs if term not in question.names) or "who or what is it"
    questions = [f"{name}: {rest}?" for name in names][: number_in(variables, "n_questions", 2)]
    return as_json({"known": known[:READ_RECORDS], "next": questions})


def facts_in_common(variables: Variables) -> str:
    """The numbers of the facts that have enough of the question's terms, those with most first."""
    question = read_question(variables["question"])
    found = []
    for row in parse_sections(variables["context"]).get("Relationships", ()):
        text = " ".join(row.get(name) or "" for name in ("source", "target", "description"))
        share = question.coverage(question.mark(content_stems(text)))
        if share >= MIN_SHARE and row["id"].isdecimal():
            found.append((-share, int(row["id"])))
    return as_json({"facts": [number for _, number in sorted(found)][: number_in(variables, "n_facts", 5)]})


def ask_around(variables: Variables) -> str:
    """What is said of the subject, what is linked to it, how it bears on the question's other subjects."""
    entity = variables["entity"]
    others = list_subjects({"question": variables["question"]}).split("\n")
    asked = [f"What is said about {entity}?", f"Who or what is connected with {entity}?"]
    asked += [f"What have {entity} and {o} to do with each other?" for o in others if o not in (entity, NONE)]
    return "\n".join(asked[: number_in(variables, "n_questions", 8)])


def summarise_subject(variables: Variables) -> str:
    """The lines of `map_answer` for the user's question or, where these records do not match it, for the
    subject."""
    quotes = find(variables["question"], variables) or find(variables["entity"], variables)
    return "\n".join(_points(quotes)) if quotes else NONE


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
