"""Score answers and retrieval on questions with known answers.

Writes the tables scores (a row per condition and question), summary (the means) and figures (means with
deviations and intervals, for all questions and per type).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.context_records import strip_references
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.urls import display_url
from graphrag_ray.base.wording import plural
from graphrag_ray.engine.in_process import asyncio_runner
from graphrag_ray.evaluate import METRICS
from graphrag_ray.evaluate.comparison import (
    chunks_of,
    collect_answers,
    summarize_conditions,
    summarize_indexes,
    texts_of,
)
from graphrag_ray.evaluate.conditions import (
    KEYWORD,
    ORACLE,
    EvaluationCondition,
    Requests,
    open_conditions,
    rehearse,
)
from graphrag_ray.evaluate.evaluation_files import GoldQuestion, list_ids
from graphrag_ray.evaluate.evaluation_run import EvaluationRun, Results
from graphrag_ray.evaluate.judging.answer_metrics import KS, answer_scores, retrieval_scores
from graphrag_ray.evaluate.judging.judge_dialogue import (
    CLAIMS_STAGE,
    CORRECT_PROMPT,
    STAGE,
    correct_spec,
    is_correct,
)
from graphrag_ray.evaluate.judging.mean_figures import mean_figures
from graphrag_ray.evaluate.statement_scores import (
    ASSERTIONS,
    COVERAGE,
    FAITHFULNESS,
    STATEMENT_F1,
    score_statements,
)
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Rows, Search
from graphrag_ray.query.methods.methods import BASELINES, get_method
from graphrag_ray.query.searcher import Searching

RETRIEVED_CHUNKS = 50
NO_ANSWER = "none"  # Replaces a missing answer when scores are computed only for their names.
Scores = dict[tuple[str, str], dict[str, float]]  # By condition and question id.
DOCUMENT_NAMES = ("id", "row", "title", "path")  # Columns that can identify a gold document.
FIGURES = pa.schema(
    [
        # One row per condition, type of questions and measure.
        ("condition", pa.string()),
        ("type", pa.string()),  # "" for all questions
        ("measure", pa.string()),
        ("questions", pa.int64()),  # number of questions with this measure
        ("mean", pa.float64()),
        ("deviation", pa.float64()),  # standard deviation of the questions' scores
        ("low", pa.float64()),  # 95% interval of the mean over the questions
        ("high", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Gold:
    """The gold documents of an index by question id: names by document id, ids and texts of their chunks."""

    labels: dict[str, dict[str, str]]
    chunks: dict[str, list[str]]
    texts: dict[str, list[str]]


def score_known_answers(
    run: EvaluationRun,
    questions: Sequence[GoldQuestion],
    conditions: Sequence[str | EvaluationCondition],
    retrieval_only: bool = False,
    judge: bool = True,
    ks: Sequence[int] = KS,
    metrics: Sequence[str] = (),
) -> Results:
    """Score conditions on questions with known answers.

    With `retrieval_only`, no answers are generated. With `judge`, a judge decides whether each answer is
    correct, and which assertions it bears out. `metrics` adds some of `statement_scores.METRICS`. Raises
    UsageError before any model is called, and RunStopped; repeat the call to continue.
    """
    parsed = open_conditions(run.index, conditions, known_answers=True)
    if any(k < 1 for k in ks):
        raise UsageError("The k of recall@k must be at least 1")
    if unknown := [name for name in metrics if name not in METRICS]:
        raise UsageError(f"Unknown metric {unknown[0]!r}. Choose from: {', '.join(METRICS)}")
    wanted = {*metrics, *([ASSERTIONS] if judge and any(q.assertions for q in questions) else [])}
    _check_plan(parsed, questions, retrieval_only)
    if metrics and retrieval_only:
        raise UsageError(f"{', '.join(metrics)}: Only answers have this metric. Remove --retrieval-only.")
    if (judge or wanted) and not retrieval_only:
        run.check_models([STAGE, CLAIMS_STAGE] if wanted - {ASSERTIONS} else [STAGE])
    results = Results()
    gold = _gold_per_condition(parsed, questions, results.warnings)
    oracles = {c.name: gold[c.name].chunks for c in parsed if c.method == ORACLE}
    if oracles and not any(chunks for by_id in oracles.values() for chunks in by_id.values()):
        raise UsageError(f"Method {ORACLE} needs documents, but the index has none of those of the questions")
    scores: Scores = {(c.name, q.question.id): {} for c in parsed for q in questions}
    retrieval: Scores = {}
    answers: pa.Table | None = None
    if retrieval_only:
        chunks = _retrieve_chunks(run, parsed, questions, results)
    else:
        posed = [q.question for q in questions]
        answers = collect_answers(run, posed, parsed, results.warnings, "qa_answers", oracles)
        run.write_all({"qa_answers": answers})
        rows = answers.select(["condition", "question_id", "chunks"]).to_pylist()
        chunks = {(row["condition"], row["question_id"]): row["chunks"] or [] for row in rows}
    # Retrieval is not measured for a condition that never retrieves chunks, such as one that reads only
    # reports. If it retrieves chunks for some questions, a question without chunks scores 0.
    retrieves_chunks = {name for (name, _), ids in chunks.items() if ids}
    contexts: dict[tuple[str, str], list[str]] = {}
    for condition, q in ((c, q) for c in parsed if c.name in retrieves_chunks for q in questions):
        name, id_ = condition.name, q.question.id
        label, expected = gold[name].labels[id_], set(gold[name].labels[id_].values())
        need = Rows("text_units", ["id", "document_id", "text"], list(chunks[name, id_]))
        by_id = {row["id"]: row for row in condition.opened.reader.rows(need).to_pylist()}
        rows_read = [by_id[chunk] for chunk in chunks[name, id_] if chunk in by_id]
        ranked = [label.get(row["document_id"], row["document_id"]) for row in rows_read]
        texts = [row["text"] for row in rows_read]
        retrieval[name, id_] = retrieval_scores(
            ranked, expected, texts, gold[name].texts[id_] or q.evidence, q.answers, ks, q.evidence
        )
        if FAITHFULNESS in wanted:
            contexts[name, id_] = texts
    if answers is not None:
        _score_answers(run, questions, parsed, answers, scores, results, judge, wanted, contexts)
    scores = {key: values | retrieval.get(key, {}) for key, values in scores.items()}
    results.tables = _tables(scores, questions)
    results.tables["indexes"] = summarize_indexes(parsed)
    if answers is not None:
        results.tables |= {"qa_conditions": summarize_conditions(parsed, answers), "qa_judging": run.costs()}
    run.write_all(results.tables)
    return results


def _check_plan(
    conditions: Sequence[EvaluationCondition], questions: Sequence[GoldQuestion], retrieval_only: bool
) -> None:
    """Raise UsageError if the conditions or questions do not allow these scores."""
    for c in conditions:
        if not retrieval_only and c.method == KEYWORD:
            raise UsageError(f"Condition {c.name}: Method {KEYWORD} only retrieves. Add --retrieval-only.")
        if retrieval_only and (c.answers or c.method in BASELINES):
            what = "Imported answers" if c.answers else f"Method {c.method} retrieves nothing, so its answers"
            raise UsageError(f"Condition {c.name}: {what} cannot be scored for retrieval")
    if not retrieval_only and not any(q.answers or q.assertions for q in questions):
        raise UsageError("The questions have no answers. Use --retrieval-only to score retrieved documents.")


def _score_answers(
    run: EvaluationRun,
    questions: Sequence[GoldQuestion],
    conditions: Sequence[EvaluationCondition],
    answers: pa.Table,
    scores: Scores,
    results: Results,
    judge: bool,
    metrics: set[str],
    contexts: Mapping[tuple[str, str], Sequence[str]],
) -> None:
    texts, wordnet = texts_of(answers), _load_wordnet(results.warnings)
    present: list[tuple[str, GoldQuestion, str]] = []
    missing = 0
    for name, q in ((c.name, q) for c in conditions for q in questions if q.answers or q.assertions):
        text = texts[name].get(q.question.id)
        values: dict[str, float] = {}
        if q.answers:
            values = answer_scores(strip_references(text or NO_ANSWER).strip(), q.answers, wordnet)
            values |= {"judged_correct": 0.0} if judge else {}
        # A missing answer scores 0: a condition must not win by answering only the easy questions.
        scores[name, q.question.id] |= values if text is not None else dict.fromkeys(values, 0.0)
        if text is None:
            missing += 1
            defined = {*([COVERAGE, STATEMENT_F1] * bool(q.answers)), *([ASSERTIONS] * bool(q.assertions))}
            scores[name, q.question.id] |= dict.fromkeys(sorted(metrics & defined), 0.0)
        else:
            present.append((name, q, text))
    if missing:
        results.add_failures(f"{plural(missing, 'answer')} missing, scored 0", missing)
    if metrics:
        for key, values in score_statements(run, present, contexts, metrics, results).items():
            scores[key] |= values
    if not judge:
        return
    spec = correct_spec(run.index.settings, run.index.env.prompts)
    judged = [(name, q, text) for name, q, text in present if q.answers]
    dialogues = (
        (f"question {q.question.id}, {name}", partial(is_correct, q.question.text, q.answers, text, spec))
        for name, q, text in judged
    )
    outcomes = run.ask(CORRECT_PROMPT, dialogues, len(judged))
    for (name, q, _), outcome in zip(judged, outcomes, strict=True):
        if outcome.result is None:
            results.add_failures(f"Question {q.question.id}, {name}: Not judged: {outcome.error}")
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

    async def by_keyword(index: Index) -> list[list[str]]:
        async with index.asker() as asker:
            searching = Searching(index.searcher, asker)
            needs = [Search("text_unit", "keyword", text, RETRIEVED_CHUNKS) for text in texts]
            return [[hit.id for hit in await searching.find(need)] for need in needs]

    for condition in conditions:
        method = condition.method
        run.observer.message(f"{condition.name}: retrieving")
        if method == KEYWORD:
            retrieved: list[list[str] | str] = [*asyncio_runner()(by_keyword(condition.opened))]
        else:
            index = replace(condition.opened, cache=run.store)  # Pay for embeddings only once.

            def extract(answer: Answer, _: Requests, index: Index = index) -> list[str]:
                return chunks_of(index, answer)

            retrieved = rehearse(index, texts, method, condition.level, extract)
            if get_method(method).reply_dependent or index.settings.query.dynamic:
                results.warnings.append(
                    f"Condition {condition.name}: The context of {method} search depends on model replies. "
                    "The offline engine replied instead of a model."
                )
        for q, ids_or_error in zip(questions, retrieved, strict=True):
            chunks[condition.name, q.question.id] = [] if isinstance(ids_or_error, str) else ids_or_error
            if isinstance(ids_or_error, str):
                label = f"Condition {condition.name}, question {q.question.id}"
                results.add_failures(f"{label}: {ids_or_error}")
    return chunks


def _gold_per_condition(
    conditions: Sequence[EvaluationCondition], questions: Sequence[GoldQuestion], warnings: list[str]
) -> dict[str, Gold]:
    """Find the gold documents in the index of each condition that has one. Appends to `warnings`."""
    places = {c.name: (c.opened.store.url, c.opened.manifest.number) for c in conditions if not c.answers}
    indexes = {places[c.name]: c.opened for c in conditions if not c.answers}
    gold = {
        place: _gold_documents(index, questions, warnings, f" {display_url(place[0])}" * (len(indexes) > 1))
        for place, index in indexes.items()
    }
    return {name: gold[place] for name, place in places.items()}


def _gold_documents(index: Index, questions: Sequence[GoldQuestion], warnings: list[str], which: str) -> Gold:
    """Find the gold documents in an index. Appends to `warnings`. which: " URL" if there are several indexes.

    Several documents may have the same title. Each of them counts as the gold document. Documents of other
    indexes with the same path and row have the same id.
    """
    names = {name for q in questions for name in (*q.documents, *q.other_names.values())}
    wanted = pa.array(sorted(names), pa.string())
    by_name: dict[str, list[str]] = {}
    chunks: dict[str, list[str]] = {}
    columns = [*DOCUMENT_NAMES, "text_unit_ids"]
    for part in index.reader.iter_batches("documents", columns) if len(wanted) else ():
        for column in DOCUMENT_NAMES:
            for row in part.filter(pc.is_in(part[column], wanted)).to_pylist():
                by_name.setdefault(row[column], []).append(row["id"])
                chunks[row["id"]] = row["text_unit_ids"] or []
    gold, unknown = Gold({}, {}, {}), set[str]()
    for q in questions:
        id_, labels = q.question.id, dict[str, str]()
        for name in q.documents:
            found = by_name.get(name) or by_name.get(q.other_names.get(name, ""), [])
            labels |= dict.fromkeys(found or [name], name)
            unknown |= set() if found else {name}
        gold.labels[id_] = labels
        gold.chunks[id_] = list(dict.fromkeys(c for document in labels for c in chunks.get(document, ())))
        texts = index.reader.rows(Rows("text_units", ["text"], gold.chunks[id_]))
        gold.texts[id_] = texts["text"].to_pylist()
    if unknown:
        listed = list_ids("gold document", sorted(unknown))
        warnings.append(f"Not in the index{which}, counted as missed: {listed}")
    return gold


def figures_by_type(figures: pa.Table) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Return the rows of a table `FIGURES` by type of questions, measure and condition."""
    grouped: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for row in figures.to_pylist():
        grouped.setdefault(row["type"], {}).setdefault(row["measure"], {})[row["condition"]] = row
    return grouped


def _tables(scores: Scores, questions: Sequence[GoldQuestion]) -> dict[str, pa.Table]:
    """Make the tables scores, summary and figures. Means cover the questions that have the measure."""
    types = {q.question.id: q.type for q in questions}
    n_answers, n_documents = (
        sum(bool(q.answers) for q in questions),
        sum(bool(q.documents) for q in questions),
    )
    counts = {"questions": len(questions), "with_answers": n_answers, "with_documents": n_documents}
    measures = list(dict.fromkeys(name for values in scores.values() for name in values))
    floats = [(name, pa.float64()) for name in measures]
    ids = [(name, pa.string()) for name in ("condition", "question_id", "type")]
    rows = [
        {"condition": name, "question_id": id_, "type": types[id_] or None, **values}
        for (name, id_), values in scores.items()
    ]
    table = pa.Table.from_pylist(rows, schema=pa.schema([*ids, *floats]))
    figures: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    for name, of_condition in table.to_pandas().groupby("condition", sort=False):
        for kind, of_kind in [("", of_condition), *of_condition.groupby("type")]:
            known = {measure: of_kind[measure].dropna().to_numpy() for measure in measures}
            found = {measure: mean_figures(values) for measure, values in known.items() if len(values)}
            figures += [{"condition": name, "type": kind, "measure": m, **row} for m, row in found.items()]
            if not kind:
                means = {measure: row["mean"] for measure, row in found.items()}
                summary.append({"condition": name, **counts, **means})
    numbers = [(name, pa.int64()) for name in counts]
    return {
        "scores": table,
        "summary": pa.Table.from_pylist(summary, schema=pa.schema([ids[0], *numbers, *floats])),
        "figures": pa.Table.from_pylist(figures, schema=FIGURES),
    }
