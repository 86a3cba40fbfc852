"""Answer questions with quotations: sentences of a context that match the question, with references.

Sentences of the records are ranked by `sentence_choice.py`, diversified by MMR (Carbonell and Goldstein 1998)
and written in the format that the prompt requests. `question_terms.py` analyses the question.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphrag_ray.base.context_records import SECTIONS, parse_sections, write_reference
from graphrag_ray.base.declarations import REPORT_SECTIONS
from graphrag_ray.corpus.quotes import MAX_QUOTE_CHARACTERS, is_searchable, quotations_in
from graphrag_ray.offline.mentions import read
from graphrag_ray.offline.question_terms import list_subjects, read_question
from graphrag_ray.offline.quotations import (
    MARK,
    NONE,
    Floats,
    content_stems,
    is_balanced,
    mmr,
    number_in,
    report_parts,
    room_in,
    similarities,
    stands_alone,
)
from graphrag_ray.offline.sentence_choice import Group, rank_sentences
from graphrag_ray.offline.sentences import fold, split_sentences, without_label

Variables = Mapping[str, str]
MAX_QUOTES, MAX_REDUCE_QUOTES = 10, 14
MAX_PER_RECORD = 2
MMR_CANDIDATES = 100  # Number of best sentences.
MIN_RELEVANCE = 0.4  # Share of the best sentence's relevance that another quotation must have.
FALLBACK_SCORE = 15  # For a question about the whole corpus that shares no term with the reports.
MIN_SHARE = 0.3  # Share of a question's terms, by weight; less may be chance.
MAX_RATING, DEFAULT_RATING = 5, 3  # The default is for questions without terms.
MAX_LINKS = 3
MAX_RECORDS_READ = 5  # To find names to look up next.

_NO_ANSWER = f"The records found do not answer this question. {MARK}"
_MORE_TO_COME = "looked up then"  # In the prompt if the next step can look up missing facts.
_RATED = re.compile(r"rated (\d+(?:\.\d)?) of 10")
_SCORED = "<ANSWER_HELPFULNESS> {} </ANSWER_HELPFULNESS>"
_CITED = re.compile(r"\s*(\[Data:[^\[\]]*\])")
_HEADING_MARK = re.compile(r"(?:^|\s)#{1,6}\s")
_TITLE = re.compile(r"\*\*([^*]+)\*\*:")
_RECORD_TITLES = {
    "Sources": "{document}",
    "Entities": "{entity}",
    "Relationships": "{source} – {target}",
    "Claims": "{subject}",
}
"""Title under which the text of a record is quoted, by section."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a context. The title of a chunk of an unnamed document is ""."""

    section: str
    number: str
    title: str
    sentences: tuple[str, ...]
    rating: float = 5.0
    text: str = ""  # The text whose adjacent sentences they are.


@dataclass(frozen=True, slots=True)
class Quote:
    """A quotation with its heading and reference, and the score (1 to 100) of the whole reply."""

    text: str
    title: str
    reference: str
    stems: Sequence[str]
    score: float


def records_of(context: str) -> list[Record]:
    """Parse the records of a context, with the sentences that can be quoted."""
    records = []
    sections = parse_sections(context)
    for section, row in ((s, row) for s in REPORT_SECTIONS for row in sections.get(s, ())):
        content = row.get("content") or ""
        texts = dict.fromkeys(s for _, quotes in report_parts(content) for s in quotes if is_balanced(s))
        rated = _RATED.search(content)
        title = row.get("title") or f"Report {row['id']}"
        records.append(
            Record(section, row["id"], title, tuple(texts), float(rated.group(1)) if rated else 5.0)
        )
    for section, form in _RECORD_TITLES.items():
        for row in sections.get(section, ()):
            title = form.format_map({"document": "", **row})
            # Speaker labels are removed. A sentence must occur verbatim in its text.
            text = row.get("text" if section == "Sources" else "description") or ""
            blocks = _HEADING_MARK.split(text)
            texts = dict.fromkeys(without_label(s) for block in blocks for s in split_sentences(block))
            sentences = tuple(s for s in texts if s and is_balanced(s) and is_searchable(s))
            adjacent = fold(text) if section == "Sources" else ""
            records.append(Record(section, row["id"], title, sentences, text=adjacent))
    return records


def find(asked: str, variables: Variables, part: float = 1.0) -> list[Quote]:
    """Find the sentences in `context` that answer a question (see `sentence_choice.py`), best first.

    part: maximum share of the reply's length for quotations.
    """
    question, records = read_question(asked), records_of(variables["context"])
    groups = [Group(r.title, r.sentences, bool(r.text)) for r in records]
    texts = [s for r in records for s in r.sentences]
    flat = [content_stems(t) for t in texts]
    owner = [i for i, r in enumerate(records) for _ in r.sentences]
    ranking = rank_sentences(question, groups)
    relevance, may_answer, coverage = ranking.relevance, ranking.answers, ranking.coverage
    if question.whole:
        # One term is enough (a name, if there is one), or none. Rank all sentences by matches, then by the
        # report's rating and by position, because a report opens with its most central sentences.
        wanted = question.names or question.terms.keys()
        may_answer = np.full(
            len(texts), not wanted or any(not wanted.isdisjoint(found) for found in ranking.terms)
        )
        relevance = relevance + 0.01 * np.array([records[i].rating for i in owner])
        relevance += 0.1 * np.array([1 / (1 + i) for r in records for i in range(len(r.sentences))])
        relevance += 0.2 * _centrality(flat)
    if not may_answer.any():
        return []
    relevance = relevance * may_answer * np.array([stands_alone(t) for t in texts])
    if not question.whole:
        relevance[relevance < MIN_RELEVANCE * relevance.max()] = 0
    chosen = _spread(relevance, flat, owner, MAX_QUOTES, texts, part * room_in(variables, 1000))
    # The score combines how much of the question the best record covers, and how many records cover it well.
    shares = np.zeros(len(records))
    np.maximum.at(shares, owner, coverage * may_answer)
    best = float(shares.max(initial=0.0))
    broad = float(np.minimum(1.0, (shares >= 0.5 * best).mean() * 2))
    score = int(np.clip(round(75 * best + 20 * broad), FALLBACK_SCORE + 1, 100))
    if best <= 0:
        score = FALLBACK_SCORE if question.terms else 40
    holders: dict[str, list[Record]] = {}
    for record in records:
        for text in record.sentences:
            holders.setdefault(text.casefold(), []).append(record)
    quotes: list[Quote] = []
    for i in chosen:
        record = records[owner[i]]
        by_section: dict[str, list[str]] = {}
        # The record that supplies the title comes first, because a reference lists only a few records.
        for holder in dict.fromkeys([record, *holders[texts[i].casefold()]]):
            by_section.setdefault(holder.section, []).append(holder.number)
        reference = write_reference({s: by_section[s] for s in SECTIONS if s in by_section})
        text = texts[i]
        last = i
        while not quotes and ranking.lacks[last] and last + 1 < len(texts) and owner[last + 1] == owner[i]:
            # The next sentences often have the cause or name that the best one lacks.
            last += 1
            longer = f"{text} {texts[last]}"
            if len(longer) > MAX_QUOTE_CHARACTERS or longer not in record.text or not is_balanced(longer):
                break
            text = longer
        if any(text in quote.text for quote in quotes):
            continue
        quotes.append(Quote(text, record.title.replace("*", ""), reference, content_stems(text), score))
    return quotes


def _centrality(sentences: Sequence[Sequence[str]]) -> Floats:
    """Return the mean frequency of each sentence's words in all sentences, scaled to a maximum of 1."""
    frequency = Counter(word for words in sentences for word in set(words))
    means = np.array([sum(frequency[w] for w in set(words)) / (3 + len(set(words))) for words in sentences])
    return means / max(1e-9, float(means.max(initial=0.0)))


def _spread(
    relevance: Floats,
    stems: Sequence[Sequence[str]],
    owner: Sequence[int],
    limit: int,
    texts: Sequence[str],
    room: float,
) -> list[int]:
    """Choose among the best candidates by MMR: at least one, and at most `room` characters."""
    order = np.argsort(-relevance, kind="stable")[:MMR_CANDIDATES]
    similarity = similarities([stems[i] for i in order])
    groups = [owner[i] for i in order]
    kept: list[int] = []
    for i in (int(order[n]) for n in mmr(relevance[order], similarity, limit, 0.75, groups, MAX_PER_RECORD)):
        if any(texts[i] in texts[k] or texts[k] in texts[i] for k in kept):
            continue  # A reference leads to one of two overlapping quotations only.
        room -= len(texts[i]) + 30  # 30 characters for the reference.
        if kept and room < 0:
            break
        kept.append(i)
    return kept


def _points(quotes: Sequence[Quote]) -> list[str]:
    """Format as `**Title**: “sentence” [Data: Reports (n)] …` per title; a title may be missing."""
    groups: dict[str, list[Quote]] = {}
    for n, quote in enumerate(quotes):
        groups.setdefault(quote.title or f"*{n}", []).append(quote)  # Titles never contain an asterisk.
    lines = {title: " ".join(f"“{q.text}” {q.reference}" for q in group) for title, group in groups.items()}
    return [line if title.startswith("*") else f"**{title}**: {line}" for title, line in lines.items()]


def _answer(variables: Variables, quotes: Sequence[Quote]) -> str:
    """Write paragraphs or a list, and the question's words that they contain as a hint to reliability."""
    question, response_type = read_question(variables["question"]), variables.get("response_type", "").lower()
    as_list = "list" in response_type or "point" in response_type
    body = "\n".join(f"- {p}" for p in _points(quotes)) if as_list else "\n\n".join(_points(quotes))
    shown = {s for q in quotes for s in q.stems}
    pairs, found = list(zip(question.words, question.terms, strict=True)), question.found_in(shown)
    matched, missing = [w for w, t in pairs if t in found], [w for w, t in pairs if t not in found]
    notes = [f"Looked for: {', '.join(matched)}."] if matched else []
    notes += [f"Not found: {', '.join(missing)}."] if missing else []
    return "\n\n".join([body, " ".join([*notes, MARK])])


def map_answer(variables: Variables) -> str:
    """Write a score line, then a line per title."""
    quotes = find(variables["question"], variables)
    return "\n".join([_SCORED.format(quotes[0].score if quotes else 0), *_points(quotes)])


def context_answer(variables: Variables) -> str:
    quotes = find(variables["question"], variables, 0.9)
    return _answer(variables, quotes) if quotes else _NO_ANSWER


def answer_with_chain(variables: Variables) -> str:
    """Write the reply of `context_answer`, with the best quotations as links of a chain.

    If there are none but more can be looked up, write the single word that the prompt requests.
    """
    quotes = find(variables["question"], variables, 0.9)
    if not quotes:
        return "Insufficient" if _MORE_TO_COME in variables.get("if_missing", "") else _NO_ANSWER
    links = [f"- {variables['question']} -> “{q.text}” {q.reference}" for q in quotes[:MAX_LINKS]]
    return "\n".join([_answer(variables, quotes), "", "Chain:", *links])


def reduce_answer(variables: Variables) -> str:
    """Merge the analysts' answers: rank their quotations again, each once, with its reference."""
    question = read_question(variables["question"])
    parsed: dict[str, Quote] = {}
    for row in parse_sections(variables["answers"]).get("Answers", ()):
        answer = row.get("answer") or ""
        try:
            score = float(row.get("score") or "")
        except ValueError:
            score = 50.0
        headings = list(_TITLE.finditer(answer))  # The lines were joined, so only the marks separate titles.
        ends = [*(m.start() for m in headings), len(answer)]
        parts = [(m.group(1).strip(), answer[m.end() : ends[i + 1]]) for i, m in enumerate(headings)]
        for title, part in parts or [("", answer)]:
            end = 0
            for text in quotations_in(part):
                end = part.find(f"“{text}”", end) + len(text) + 2
                if cited := _CITED.match(part, end):
                    stems = content_stems(text)
                    parsed.setdefault(text.casefold(), Quote(text, title, cited.group(1), stems, score))
    quotes = list(parsed.values())
    if not quotes:
        return _NO_ANSWER
    match = rank_sentences(question, [Group(q.title, [q.text], False) for q in quotes]).relevance
    first = 1.0 / (1 + 0.05 * np.arange(len(quotes)))
    relevance = np.array([q.score for q in quotes]) / 100
    relevance *= 0.4 * first + 0.6 * match / max(1e-9, float(match.max()))
    numbers: dict[str, int] = {}
    owner = [numbers.setdefault(q.title + q.reference, len(numbers)) for q in quotes]
    texts, room = [q.text for q in quotes], 0.9 * room_in(variables, 1000)
    relevance, every = np.maximum(relevance, 1e-6), [q.stems for q in quotes]
    chosen = _spread(relevance, every, owner, MAX_REDUCE_QUOTES, texts, room)
    return _answer(variables, [quotes[i] for i in chosen])


def map_points(variables: Variables) -> str:
    """Write the lines of `map_answer` as points, by descending score."""
    quotes = find(variables["question"], variables)
    lines = _points(quotes)
    points = [
        {"description": line, "score": max(1, round(quotes[0].score * (1 - rank / (2 * len(lines)))))}
        for rank, line in enumerate(lines)
    ]
    return as_json({"points": points})


def rate(variables: Variables) -> str:
    """Rate each report by its share of the question's terms."""
    question = read_question(variables["question"])
    ratings = []
    for report in records_of(variables["context"]):
        stems = {s for text in (report.title, *report.sentences) for s in content_stems(text)}
        found = question.found_in(stems)
        shared = [w for w, t in zip(question.words, question.terms, strict=True) if t in found]
        reason = f"It has: {', '.join(shared)}." if shared else "It shares no term with the question."
        share = question.coverage(stems)
        rating = max(1, round(MAX_RATING * share)) if share >= MIN_SHARE else 0
        rating = rating if question.terms else DEFAULT_RATING
        ratings.append({"id": int(report.number), "reason": reason, "rating": rating})
    return as_json({"ratings": ratings})


def list_relevant(variables: Variables) -> str:
    """List the passages with enough of the question's terms. Without terms, all are relevant."""
    question = read_question(variables["question"])
    relevant = []
    for record in records_of(variables["context"]):
        stems = {s for text in (record.title, *record.sentences) for s in content_stems(text)}
        share = question.coverage(stems) if question.terms else 0.5
        if share >= MIN_SHARE:
            relevant.append({"id": int(record.number), "score": round(100 * share)})
    return as_json({"relevant": relevant})


def drift_step(variables: Variables) -> str:
    """Answer a question or follow-up question as `map_answer` does, and follow up on names in record titles.

    A follow-up question shares its terms with its own records, so the score measures how well they match the
    user's question.
    """
    text = variables.get("follow_up", variables["question"])
    quotes = find(text, variables)
    if not quotes:
        return as_json({"answer": "", "score": 0, "follow_ups": []})
    score = quotes[0].score
    if "follow_up" in variables:
        helpful = find(variables["question"], variables)
        score = max(5, helpful[0].score if helpful else 0)
    names = dict.fromkeys(n.strip() for q in quotes for n in q.title.split(","))
    known = variables["question"].casefold() + text.casefold()
    unknown = [n for n in names if n and n.casefold() not in known][: number_in(variables, "n_follow_ups", 0)]
    follow_ups = [
        {"question": f"What is said about {n}?", "score": max(5, 60 - 5 * i)} for i, n in enumerate(unknown)
    ]
    return as_json({"answer": "\n".join(_points(quotes)), "score": score, "follow_ups": follow_ups})


def ask_next(variables: Variables) -> str:
    """List sentences that share a term with the question, and ask about the new names in them."""
    question = read_question(variables["question"])
    earlier = f"{variables['question']}\n{variables['asked']}".casefold()
    known, names = list[str](), dict[str, None]()
    for record in records_of(variables["context"])[:MAX_RECORDS_READ]:
        for sentence in record.sentences:
            if question.found_in(content_stems(sentence)).isdisjoint(question.things):
                continue
            known.append(sentence)
            titles = (thing.title for thing in read(sentence, False).things)
            names |= dict.fromkeys(title for title in titles if title.casefold() not in earlier)
    pairs = zip(question.terms, question.words, strict=True)
    rest = " ".join(word for term, word in pairs if term not in question.names) or "who or what is it"
    questions = [f"{name}: {rest}?" for name in names][: number_in(variables, "n_questions", 2)]
    return as_json({"known": known[:MAX_RECORDS_READ], "next": questions})


def facts_in_common(variables: Variables) -> str:
    """List the numbers of the facts that share enough of the question's terms, best first."""
    question = read_question(variables["question"])
    ranked = []
    for row in parse_sections(variables["context"]).get("Relationships", ()):
        text = " ".join(row.get(name) or "" for name in ("source", "target", "description"))
        share = question.coverage(content_stems(text))
        if share >= MIN_SHARE and row["id"].isdecimal():
            ranked.append((-share, int(row["id"])))
    return as_json({"facts": [number for _, number in sorted(ranked)][: number_in(variables, "n_facts", 5)]})


def ask_around(variables: Variables) -> str:
    """Ask about the subject, its connections, and its relation to the question's other subjects."""
    entity = variables["entity"]
    others = list_subjects({"question": variables["question"]}).split("\n")
    questions = [f"What is said about {entity}?", f"Who or what is connected with {entity}?"]
    questions += [
        f"What have {entity} and {o} to do with each other?" for o in others if o not in (entity, NONE)
    ]
    return "\n".join(questions[: number_in(variables, "n_questions", 8)])


def summarise_subject(variables: Variables) -> str:
    """Write the lines of `map_answer` without a score."""
    quotes = find(variables["question"], variables)
    return "\n".join(_points(quotes)) if quotes else NONE


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
