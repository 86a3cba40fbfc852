"""Questions with known answers: how good the answers of each condition are, and what they were written from.

The folder holds the tables scores (a row for each condition and question) and summary (their means).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.records import strip_references
from graphrag_ray.engine.in_process import runner
from graphrag_ray.evaluate.comparison import answered, came_to, chunks_of, texts_of
from graphrag_ray.evaluate.conditions import (
    EvaluationCondition,
    check_conditions,
    parse_condition,
    parse_conditions,
)
from graphrag_ray.evaluate.evaluation_files import GoldQuestion, named
from graphrag_ray.evaluate.evaluation_run import EvaluationRun, Results
from graphrag_ray.evaluate.judging.answer_metrics import KS, answer_scores, retrieval_scores
from graphrag_ray.evaluate.judging.judge_dialogue import CORRECT_PROMPT, STAGE, correct_spec, is_correct
from graphrag_ray.evaluate.rehearsal import rehearsed
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.method import Rows, Search
from graphrag_ray.query.methods.methods import BASELINES, find
from graphrag_ray.query.searching import Searching

KEYWORD = "keyword"
"""A condition of --retrieval-only: chunks by keywords alone, no way of answering."""
LISTED = 50
NONE = "none"
"""Stands for an answer that is missing, to know the names of the scores."""
Scores: TypeAlias = dict[tuple[str, str], dict[str, float]]
"""By condition and id of the question."""
NAMES = ("id", "row", "title", "path")
"""Columns of documents by which gold documents are found."""


def known_answers(
    run: EvaluationRun,
    questions: Sequence[GoldQuestion],
    conditions: Sequence[str | EvaluationCondition],
    retrieval_only: bool = False,
    judged: bool = True,
    ks: Sequence[int] = KS,
) -> Results:
    """Raises UsageError before anything is paid for; RunStopped: the same again goes on.

    retrieval_only: no model is asked for an answer; judged: a judge says whether each answer is correct
    """
    asked: list[str | EvaluationCondition] = [*conditions]
    for at, text in enumerate(asked):
        name, _, way = text.partition("=") if isinstance(text, str) else ("", "", "")
        if retrieval_only and way.strip() == KEYWORD:
            asked[at] = replace(parse_condition(f"{name}=text"), method=KEYWORD)
    known = parse_conditions(asked)
    if any(k < 1 for k in ks):
        raise UsageError("a k of recall@k is at least 1")
    check_conditions(run.index, [c for c in known if c.method != KEYWORD])
    with_answers = [q for q in questions if q.answers]
    blind = next((c for c in known if c.answers or c.method in BASELINES), None)
    if retrieval_only and blind:
        nothing = f"method {blind.method} reads nothing, so it has no retrieval to look at"
        told = "answers that were made elsewhere show no retrieval" if blind.answers else nothing
        raise UsageError(f"condition {blind.name}: {told}")
    if not retrieval_only and not with_answers:
        told = "the questions have no answers"
        raise UsageError(f"{told}: with --retrieval-only documents alone are looked at")
    if judged and not retrieval_only:
        run.check_models([STAGE])
    found = Results()
    gold, gold_texts = _gold_documents(run.index, questions, found.warnings)
    scores: Scores = {(c.name, q.posed.id): {} for c in known for q in questions}
    if retrieval_only:
        chunks = _rehearsed_chunks(run, known, questions, found)
    else:
        answers = answered(run, [q.posed for q in questions], known, found.warnings)
        run.write("qa_answers", answers)
        rows = answers.select(["condition", "question_id", "chunks"]).to_pylist()
        chunks = {(row["condition"], row["question_id"]): row["chunks"] or [] for row in rows}
        _score_answers(run, with_answers, known, answers, scores, found, judged)
    # Of a condition that never shows a chunk, as where it reads reports, retrieval is not measured. A
    # question for which another one finds nothing scores 0.
    shows = {name for (name, _), ids in chunks.items() if ids}
    for q in questions:
        label, wanted = gold[q.posed.id], set(gold[q.posed.id].values())
        for name in (c.name for c in known if c.name in shows):
            ids = chunks[name, q.posed.id]
            need = Rows("text_units", ["id", "document_id", "text"], list(ids))
            by_id = {row["id"]: row for row in run.index.reader.rows(need).to_pylist()}
            own = [by_id[id_] for id_ in ids if id_ in by_id]
            ranked = [label.get(row["document_id"], row["document_id"]) for row in own]
            texts = [row["text"] for row in own]
            of = retrieval_scores(ranked, wanted, texts, gold_texts[q.posed.id], q.answers, ks)
            scores[name, q.posed.id] |= of
    found.tables = _tables(scores, len(with_answers), sum(bool(q.documents) for q in questions))
    if not retrieval_only:
        found.tables["qa_conditions"] = came_to(known, answers)
    for name, table in found.tables.items():
        run.write(name, table)
    return found


def _score_answers(
    run: EvaluationRun,
    questions: Sequence[GoldQuestion],
    conditions: Sequence[EvaluationCondition],
    answers: pa.Table,
    scores: Scores,
    found: Results,
    judged: bool,
) -> None:
    texts = texts_of(answers)
    each = [(c.name, q, texts[c.name].get(q.posed.id)) for c in conditions for q in questions]
    for name, q, text in each:
        own = answer_scores(strip_references(text or NONE).strip(), q.answers)
        if judged:
            own["judged_correct"] = 0.0
        # No answer scores 0: a condition must not win by answering only what is easy.
        scores[name, q.posed.id] |= own if text is not None else dict.fromkeys(own, 0.0)
    there = [(name, q, text) for name, q, text in each if text is not None]
    if missing := len(each) - len(there):
        found.failed += missing
        found.warnings.append(f"{missing} answers are missing, and score 0")
    if not judged:
        return
    spec = correct_spec(run.index.settings, run.index.given.prompts)
    asked = (
        (f"question {q.posed.id}, {name}", partial(is_correct, q.posed.text, q.answers, text, spec))
        for name, q, text in there
    )
    for (name, q, _), outcome in zip(there, run.ask(CORRECT_PROMPT, asked, len(there)), strict=True):
        if outcome.result is None:
            found.failed += 1
            found.warnings.append(f"question {q.posed.id}, {name}: not judged: {outcome.error}")
            del scores[name, q.posed.id]["judged_correct"]
        else:
            scores[name, q.posed.id]["judged_correct"] = float(outcome.result)


def _rehearsed_chunks(
    run: EvaluationRun,
    conditions: Sequence[EvaluationCondition],
    questions: Sequence[GoldQuestion],
    found: Results,
) -> dict[tuple[str, str], list[str]]:
    """The chunks that a model would be shown, by condition and id of the question."""
    texts = [q.posed.text for q in questions]
    chunks: dict[tuple[str, str], list[str]] = {}

    async def by_keyword() -> list[list[str]]:
        async with run.index.asker() as asker:
            searching = Searching(run.index.searcher, asker)
            needs = [Search("text_unit", "keyword", text, LISTED) for text in texts]
            return [[hit.id for hit in await searching.find(need)] for need in needs]

    for condition in conditions:
        method = condition.method
        run.observer.note(f"{condition.name}: what is retrieved")
        if method == KEYWORD:
            each: list[list[str] | str] = [*runner()(by_keyword())]
        else:
            index = replace(condition.opened(run.index), cache=run.store)  # embeddings are paid for once
            each = rehearsed(
                index, texts, method, condition.level, lambda answer, _: chunks_of(run.index, answer)
            )
            if find(method).by_replies or index.settings.query.dynamic:
                found.warnings.append(
                    f"condition {condition.name}: what {method} search reads depends on what a "
                    "model replies; the offline engine stood in for it"
                )
        for q, one in zip(questions, each, strict=True):
            chunks[condition.name, q.posed.id] = [] if isinstance(one, str) else one
            if isinstance(one, str):
                found.failed += 1
                found.warnings.append(f"condition {condition.name}, question {q.posed.id}: {one}")
    return chunks


def _gold_documents(
    index: Index, questions: Sequence[GoldQuestion], warnings: list[str]
) -> tuple[dict[str, dict[str, str]], dict[str, list[str]]]:
    """For each question: the gold document (as it is named there) that each document of the index is, and the
    texts of these. Several documents may have one title: any of them is the one that is meant."""
    wanted = pa.array(sorted({name for q in questions for name in q.documents}), pa.string())
    by_name: dict[str, list[str]] = {}
    chunks: dict[str, list[str]] = {}
    for part in index.reader.pieces("documents", [*NAMES, "text_unit_ids"]) if len(wanted) else ():
        for column in NAMES:
            for row in part.filter(pc.is_in(part[column], wanted)).to_pylist():
                by_name.setdefault(row[column], []).append(row["id"])
                chunks[row["id"]] = row["text_unit_ids"] or []
    unknown = sorted(set(wanted.to_pylist()) - by_name.keys())
    if unknown:
        told = named("gold document", unknown)
        warnings.append(f"not in the index, and so counted as missed: {told}")
    labels: dict[str, dict[str, str]] = {}
    texts: dict[str, list[str]] = {}
    for q in questions:
        own = {id_: name for name in q.documents for id_ in by_name.get(name, [])}
        lacking = {name: name for name in q.documents if name not in by_name}
        labels[q.posed.id] = own | lacking
        ids = [chunk for document in own for chunk in chunks[document]]
        rows = index.reader.rows(Rows("text_units", ["text"], ids))
        texts[q.posed.id] = rows["text"].to_pylist()
    return labels, texts


def _tables(scores: Scores, with_answers: int, with_documents: int) -> dict[str, pa.Table]:
    """The mean of a measure is over the questions that have what it needs: answers, or documents."""
    measures = list(dict.fromkeys(name for own in scores.values() for name in own))
    schema = pa.schema(
        [
            ("condition", pa.string()),
            ("question_id", pa.string()),
            *((name, pa.float64()) for name in measures),
        ]
    )
    rows = [{"condition": name, "question_id": id_, **own} for (name, id_), own in scores.items()]
    table = pa.Table.from_pylist(rows, schema=schema)
    grouped = table.group_by("condition", use_threads=False).aggregate(
        [("question_id", "count"), *((name, "mean") for name in measures)]
    )
    of_all = {"with_answers": with_answers, "with_documents": with_documents}
    columns = {
        "condition": grouped["condition"],
        "questions": grouped["question_id_count"],
        **{name: pa.array([n] * len(grouped), pa.int64()) for name, n in of_all.items()},
        **{name: grouped[f"{name}_mean"] for name in measures},
    }
    return {"scores": table, "summary": pa.table(columns)}
