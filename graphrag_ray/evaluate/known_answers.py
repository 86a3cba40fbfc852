"""Score answers and retrieval on questions with known answers.

Writes the tables scores (a row per condition and question) and summary (the means).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.context_records import strip_references
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.wording import plural
from graphrag_ray.engine.in_process import asyncio_runner
from graphrag_ray.evaluate.comparison import chunks_of, collect_answers, summarize_conditions, texts_of
from graphrag_ray.evaluate.conditions import (
    EvaluationCondition,
    check_conditions,
    parse_condition,
    parse_conditions,
    rehearse,
)
from graphrag_ray.evaluate.evaluation_files import GoldQuestion, list_ids
from graphrag_ray.evaluate.evaluation_run import EvaluationRun, Results
from graphrag_ray.evaluate.judging.answer_metrics import KS, answer_scores, retrieval_scores
from graphrag_ray.evaluate.judging.judge_dialogue import CORRECT_PROMPT, STAGE, correct_spec, is_correct
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.method import Rows, Search
from graphrag_ray.query.methods.methods import BASELINES, get_method
from graphrag_ray.query.searcher import Searching

KEYWORD = "keyword"  # Keyword search over chunks; a method for --retrieval-only.
RETRIEVED_CHUNKS = 50
NO_ANSWER = "none"  # Replaces a missing answer when scores are computed only for their names.
Scores = dict[tuple[str, str], dict[str, float]]  # By condition and question id.
DOCUMENT_NAMES = ("id", "row", "title", "path")  # Columns that can identify a gold document.


def score_known_answers(
    run: EvaluationRun,
    questions: Sequence[GoldQuestion],
    conditions: Sequence[str | EvaluationCondition],
    retrieval_only: bool = False,
    judge: bool = True,
    ks: Sequence[int] = KS,
) -> Results:
    """Score conditions on questions with known answers.

    With `retrieval_only`, no answers are generated. With `judge`, a judge decides whether each answer is
    correct. Raises UsageError before any model is called, and RunStopped; repeat the call to continue.
    """
    specs: list[str | EvaluationCondition] = [*conditions]
    for position, text in enumerate(specs):
        name, _, method = text.partition("=") if isinstance(text, str) else ("", "", "")
        if retrieval_only and method.strip() == KEYWORD:
            specs[position] = replace(parse_condition(f"{name}=text"), method=KEYWORD)
    parsed = parse_conditions(specs)
    if any(k < 1 for k in ks):
        raise UsageError("The k of recall@k must be at least 1")
    check_conditions(run.index, [c for c in parsed if c.method != KEYWORD])
    with_answers = [q for q in questions if q.answers]
    without_context = next((c for c in parsed if c.answers or c.method in BASELINES), None)
    if retrieval_only and without_context:
        reason = (
            "Imported answers"
            if without_context.answers
            else f"Method {without_context.method} retrieves nothing, so its answers"
        )
        raise UsageError(f"Condition {without_context.name}: {reason} cannot be scored for retrieval")
    if not retrieval_only and not with_answers:
        raise UsageError("The questions have no answers. Use --retrieval-only to score retrieved documents.")
    if judge and not retrieval_only:
        run.check_models([STAGE])
    results = Results()
    gold, gold_texts = _gold_documents(run.index, questions, results.warnings)
    scores: Scores = {(c.name, q.question.id): {} for c in parsed for q in questions}
    if retrieval_only:
        chunks = _retrieve_chunks(run, parsed, questions, results)
    else:
        answers = collect_answers(run, [q.question for q in questions], parsed, results.warnings)
        run.write("qa_answers", answers)
        rows = answers.select(["condition", "question_id", "chunks"]).to_pylist()
        chunks = {(row["condition"], row["question_id"]): row["chunks"] or [] for row in rows}
        _score_answers(run, with_answers, parsed, answers, scores, results, judge)
    # Retrieval is not measured for a condition that never retrieves chunks, such as one that reads only
    # reports. If it retrieves chunks for some questions, a question without chunks scores 0.
    retrieves_chunks = {name for (name, _), ids in chunks.items() if ids}
    for q in questions:
        label, wanted = gold[q.question.id], set(gold[q.question.id].values())
        for name in (c.name for c in parsed if c.name in retrieves_chunks):
            ids = chunks[name, q.question.id]
            need = Rows("text_units", ["id", "document_id", "text"], list(ids))
            by_id = {row["id"]: row for row in run.index.reader.rows(need).to_pylist()}
            rows_read = [by_id[id_] for id_ in ids if id_ in by_id]
            ranked = [label.get(row["document_id"], row["document_id"]) for row in rows_read]
            texts = [row["text"] for row in rows_read]
            retrieval = retrieval_scores(ranked, wanted, texts, gold_texts[q.question.id], q.answers, ks)
            scores[name, q.question.id] |= retrieval
    results.tables = _tables(scores, len(with_answers), sum(bool(q.documents) for q in questions))
    if not retrieval_only:
        results.tables["qa_conditions"] = summarize_conditions(parsed, answers)
    for name, table in results.tables.items():
        run.write(name, table)
    return results


def _score_answers(
    run: EvaluationRun,
    questions: Sequence[GoldQuestion],
    conditions: Sequence[EvaluationCondition],
    answers: pa.Table,
    scores: Scores,
    results: Results,
    judge: bool,
) -> None:
    texts, wordnet = texts_of(answers), _load_wordnet(results.warnings)
    present = []
    missing = 0
    for name, q in ((c.name, q) for c in conditions for q in questions):
        text = texts[name].get(q.question.id)
        values = answer_scores(strip_references(text or NO_ANSWER).strip(), q.answers, wordnet)
        if judge:
            values["judged_correct"] = 0.0
        # A missing answer scores 0: a condition must not win by answering only the easy questions.
        scores[name, q.question.id] |= values if text is not None else dict.fromkeys(values, 0.0)
        if text is None:
            missing += 1
        else:
            present.append((name, q, text))
    if missing:
        results.failed += missing
        results.warnings.append(f"{plural(missing, 'answer')} missing, scored 0")
    if not judge:
        return
    spec = correct_spec(run.index.settings, run.index.env.prompts)
    dialogues = (
        (f"question {q.question.id}, {name}", partial(is_correct, q.question.text, q.answers, text, spec))
        for name, q, text in present
    )
    outcomes = run.ask(CORRECT_PROMPT, dialogues, len(present))
    for (name, q, _), outcome in zip(present, outcomes, strict=True):
        if outcome.result is None:
            results.failed += 1
            results.warnings.append(f"Question {q.question.id}, {name}: Not judged: {outcome.error}")
            del scores[name, q.question.id]["judged_correct"]
        else:
            scores[name, q.question.id]["judged_correct"] = float(outcome.result)


def _load_wordnet(warnings: list[str]) -> Any:
    """Return nltk's reader of WordNet, or None if its data, which nltk does not ship, cannot be read."""
    from nltk.corpus import wordnet

    try:
        wordnet.ensure_loaded()
    except LookupError:
        return None
    except Exception as e:  # noqa: BLE001 (the type depends on what is wrong with the files)
        warnings.append(f"METEOR does not count synonyms, because the data of WordNet cannot be read: {e}")
        return None
    warnings.append("METEOR counts synonyms, because nltk has the data of WordNet on this machine")
    return wordnet


def _retrieve_chunks(
    run: EvaluationRun,
    conditions: Sequence[EvaluationCondition],
    questions: Sequence[GoldQuestion],
    results: Results,
) -> dict[tuple[str, str], list[str]]:
    """Return the chunks that a model would receive, by condition and question id."""
    texts = [q.question.text for q in questions]
    chunks: dict[tuple[str, str], list[str]] = {}

    async def by_keyword() -> list[list[str]]:
        async with run.index.asker() as asker:
            searching = Searching(run.index.searcher, asker)
            needs = [Search("text_unit", "keyword", text, RETRIEVED_CHUNKS) for text in texts]
            return [[hit.id for hit in await searching.find(need)] for need in needs]

    for condition in conditions:
        method = condition.method
        run.observer.message(f"{condition.name}: retrieving")
        if method == KEYWORD:
            retrieved: list[list[str] | str] = [*asyncio_runner()(by_keyword())]
        else:
            index = replace(condition.apply_to(run.index), cache=run.store)  # Pay for embeddings only once.
            retrieved = rehearse(
                index, texts, method, condition.level, lambda answer, _: chunks_of(run.index, answer)
            )
            if get_method(method).reply_dependent or index.settings.query.dynamic:
                results.warnings.append(
                    f"Condition {condition.name}: The context of {method} search depends on model replies. "
                    "The offline engine replied instead of a model."
                )
        for q, ids_or_error in zip(questions, retrieved, strict=True):
            chunks[condition.name, q.question.id] = [] if isinstance(ids_or_error, str) else ids_or_error
            if isinstance(ids_or_error, str):
                results.failed += 1
                label = f"Condition {condition.name}, question {q.question.id}"
                results.warnings.append(f"{label}: {ids_or_error}")
    return chunks


def _gold_documents(
    index: Index, questions: Sequence[GoldQuestion], warnings: list[str]
) -> tuple[dict[str, dict[str, str]], dict[str, list[str]]]:
    """Return, by question id, the gold documents' names by document id, and the gold documents' texts.

    Several documents may have the same title. Each of them counts as the gold document.
    """
    wanted = pa.array(sorted({name for q in questions for name in q.documents}), pa.string())
    by_name: dict[str, list[str]] = {}
    chunks: dict[str, list[str]] = {}
    columns = [*DOCUMENT_NAMES, "text_unit_ids"]
    for part in index.reader.iter_batches("documents", columns) if len(wanted) else ():
        for column in DOCUMENT_NAMES:
            for row in part.filter(pc.is_in(part[column], wanted)).to_pylist():
                by_name.setdefault(row[column], []).append(row["id"])
                chunks[row["id"]] = row["text_unit_ids"] or []
    if unknown := sorted(set(wanted.to_pylist()) - by_name.keys()):
        warnings.append(f"Not in the index, counted as missed: {list_ids('gold document', unknown)}")
    labels: dict[str, dict[str, str]] = {}
    texts: dict[str, list[str]] = {}
    for q in questions:
        present = {id_: name for name in q.documents for id_ in by_name.get(name, [])}
        labels[q.question.id] = present | {name: name for name in q.documents if name not in by_name}
        ids = [chunk for document in present for chunk in chunks[document]]
        texts[q.question.id] = index.reader.rows(Rows("text_units", ["text"], ids))["text"].to_pylist()
    return labels, texts


def _tables(scores: Scores, with_answers: int, with_documents: int) -> dict[str, pa.Table]:
    """Make the tables scores and summary. Means cover questions with the required gold data."""
    measures = list(dict.fromkeys(name for values in scores.values() for name in values))
    ids = [("condition", pa.string()), ("question_id", pa.string())]
    schema = pa.schema([*ids, *((name, pa.float64()) for name in measures)])
    rows = [{"condition": name, "question_id": id_, **values} for (name, id_), values in scores.items()]
    table = pa.Table.from_pylist(rows, schema=schema)
    grouped = table.group_by("condition", use_threads=False).aggregate(
        [("question_id", "count"), *((name, "mean") for name in measures)]
    )
    counts = {"with_answers": with_answers, "with_documents": with_documents}
    summary = {
        "condition": grouped["condition"],
        "questions": grouped["question_id_count"],
        **{name: pa.array([n] * len(grouped), pa.int64()) for name, n in counts.items()},
        **{name: grouped[f"{name}_mean"] for name in measures},
    }
    return {"scores": table, "summary": pa.table(summary)}
