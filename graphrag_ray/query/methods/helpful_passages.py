"""Find passages that may help, for an answer that found nothing.

The candidates are the chunks that the method read and the results of a search for the question's words, which
calls no model. Their sentences are ranked as the offline engine ranks them (`offline/sentence_choice.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.schema import search_index_table
from graphrag_ray.base.wording import document_location
from graphrag_ray.corpus.boundaries import sentences
from graphrag_ray.corpus.quotes import quotation_end
from graphrag_ray.offline.question_terms import read_question
from graphrag_ray.offline.quotations import content_stems, stands_alone
from graphrag_ray.offline.sentence_choice import Group, rank_sentences
from graphrag_ray.query.methods.answer import Answer, Passage
from graphrag_ray.query.methods.document_filters import matching_chunks, matching_ids
from graphrag_ray.query.methods.method import By, Method, Notice, Question, Rows, Search, SearchEnv, Steps, T
from graphrag_ray.query.methods.nearest import rank

MAX_PASSAGES = 5
MAX_UNMATCHED = 2
"""Maximum number of passages if none contains a word of the question."""
MAX_CANDIDATES = 20
"""Maximum number of chunks that the method read, and of chunks that the search finds."""
PASSAGE_CHARACTERS = 400
REPEATED = 0.7
"""Factor for a word of the question for every passage chosen before that contains it."""
RANK_WEIGHT = 0.2
"""Weight of a chunk's rank in the search, compared with the relevance of a sentence."""


def with_passages(
    search: Callable[[Question, SearchEnv], Method],
) -> Callable[[Question, SearchEnv], Method]:
    """Let a search method add passages to an answer that found nothing."""

    def searched(question: Question, env: SearchEnv) -> Method:
        answer: Answer = yield from search(question, env)
        if not isinstance(answer, Answer) or answer.found or answer.unread:
            return answer
        passages = yield from _without_notices(find_passages(question, env, answer))
        return replace(answer, passages=passages)

    return searched


def find_passages(question: Question, env: SearchEnv, answer: Answer) -> Steps[tuple[Passage, ...]]:
    """Find the passages that share most words with the question, at most one per chunk, best first."""
    try:
        chunks = yield from matching_chunks(question.where)
    except UsageError:  # a condition that only reports satisfy
        return ()
    allowed = yield from matching_ids("text_unit", chunks)
    embeds_offline = env.settings.model(env.settings.model_name("embed")).provider == "offline"
    kinds: list[By] = ["keyword"] if search_index_table("text_unit", "keyword") in env.n_rows else []
    if env.n_rows.get("embeddings_text_unit") and embeds_offline:
        kinds.append("vector")
    searches = [Search("text_unit", by, question.text, only_ids=allowed) for by in kinds]
    found = [id_ for _, id_ in (yield from rank(searches, env, MAX_CANDIDATES))] if searches else []
    read = [r.id for c in answer.contexts for r in c.records if r.section == "Sources"]
    order = list(dict.fromkeys([*found[:MAX_CANDIDATES], *list(dict.fromkeys(read))[:MAX_CANDIDATES]]))
    if not order:
        return ()
    columns = ["id", "human_readable_id", "text", "document_id", "start"]
    units = {row["id"]: row for row in (yield Rows("text_units", columns, order)).to_pylist()}
    units = {id_: units[id_] for id_ in order if id_ in units}
    ids = list(dict.fromkeys(u["document_id"] for u in units.values() if u["document_id"]))
    documents = (yield Rows("documents", ["id", "path", "row", "title"], ids)).to_pylist() if ids else []
    document_of = {d["id"]: d for d in documents}
    return _best_passages(question.text, list(units.values()), document_of)


def _best_passages(
    question: str, units: Sequence[Mapping[str, Any]], documents: Mapping[str, Mapping[str, Any]]
) -> tuple[Passage, ...]:
    """Choose the best sentence of each chunk, with its neighbours, from chunks in the order of the search."""
    terms = read_question(question)
    spans = [sentences(unit["text"]) for unit in units]
    document_of = [documents.get(unit["document_id"] or "", {}) for unit in units]
    groups = [
        Group(d.get("title") or "", [unit["text"][a:b] for a, b in of_unit], True)
        for unit, of_unit, d in zip(units, spans, document_of, strict=True)
    ]
    ranking = rank_sentences(terms, groups)
    spelled = dict(zip(terms.terms, terms.words, strict=True))
    ranked: list[tuple[float, Passage]] = []
    first = 0
    for rank_, (unit, of_unit, document) in enumerate(zip(units, spans, document_of, strict=True)):
        if not of_unit:
            continue
        rows = slice(first, first + len(of_unit))
        first += len(of_unit)
        quality = np.array([stands_alone(text) for text in groups[rank_].sentences])
        best = int(np.argmax(ranking.relevance[rows] * (0.5 + 0.5 * quality)))
        start, end = _window(unit["text"], of_unit, best)
        matched = terms.found_in(content_stems(unit["text"][start:end]))
        passage = Passage(
            document=document_location(document.get("path") or "", document.get("row") or ""),
            start=(unit["start"] or 0) + start,
            end=(unit["start"] or 0) + end,
            text=unit["text"][start:end],
            words=tuple(word for term, word in spelled.items() if term in matched),
            number=unit["human_readable_id"],
        )
        ranked.append((float(ranking.relevance[rows][best]) + RANK_WEIGHT / (1 + rank_), passage))
    return _diverse([pair for pair in ranked if pair[1].words]) or tuple(
        passage for _, passage in ranked[:MAX_UNMATCHED]
    )


def _diverse(ranked: list[tuple[float, Passage]]) -> tuple[Passage, ...]:
    """Choose the best passages, preferring those with words that the passages chosen before lack."""
    chosen: list[Passage] = []
    shown: Counter[str] = Counter()
    while ranked and len(chosen) < MAX_PASSAGES:
        values = [
            value * sum(REPEATED ** shown[word] for word in passage.words) / len(passage.words)
            for value, passage in ranked
        ]
        _, best = ranked.pop(int(np.argmax(values)))
        chosen.append(best)
        shown.update(best.words)
    return tuple(chosen)


def _window(text: str, spans: Sequence[tuple[int, int]], best: int) -> tuple[int, int]:
    """Extend a sentence by those after and before it, up to PASSAGE_CHARACTERS."""
    start, end = spans[best]
    first, last = best, best
    while last + 1 < len(spans) and spans[last + 1][1] - start <= PASSAGE_CHARACTERS:
        last += 1
        end = spans[last][1]
    while first and end - spans[first - 1][0] <= PASSAGE_CHARACTERS:
        first -= 1
        start = spans[first][0]
    return start, quotation_end(text, start, end)


def _without_notices(steps: Steps[T]) -> Steps[T]:
    """Run steps without showing their notices, which the method has shown before."""
    sent: Any = None
    while True:
        try:
            need = steps.send(sent)
        except StopIteration as ended:
            result: T = ended.value
            return result
        sent = None if isinstance(need, Notice) else (yield need)
