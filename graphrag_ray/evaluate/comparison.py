"""Compare conditions head to head, by criteria (GraphRAG 3.3).

The folder of a comparison contains the reply journal, `evaluation.json` (the parameters of the comparison),
and the tables answers, judgements, win_rates, reliability, conditions, judging and, on request, claims,
claim_counts and agreement.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations, islice
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.messages import RERANK, Dialogue
from graphrag_ray.base.prompts import load_criteria
from graphrag_ray.evaluate import CRITERIA, REPLICATES
from graphrag_ray.evaluate.conditions import EvaluationCondition, check_conditions, parse_conditions
from graphrag_ray.evaluate.evaluation_files import read_imported_answers
from graphrag_ray.evaluate.evaluation_run import EvaluationRun, Results
from graphrag_ray.evaluate.judging.answer_metrics import THRESHOLDS, count_clusters, distinct_claims
from graphrag_ray.evaluate.judging.head_to_head import (
    JUDGEMENTS,
    agreement,
    is_swapped,
    reliability,
    win_rates,
)
from graphrag_ray.evaluate.judging.judge_dialogue import (
    CLAIMS_STAGE,
    STAGE,
    Verdict,
    answer_claims,
    answer_claims_spec,
    judge,
    judge_spec,
)
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.query.question_files import ANSWERS, BatchQuestion
from graphrag_ray.version import __version__

MAX_REPLICATES = 100
JUDGEMENTS_PER_BATCH = 10_000  # Maximum number of judgements in memory as Python objects.
MAX_CHUNKS_PER_RECORD = 500
"""Maximum number of chunks that count as read if the record of an entity or relationship is in context."""
CLAIM_TABLES = ("claims", "claim_counts", "agreement")

CONDITIONS = pa.schema(
    [
        ("name", pa.string()),
        ("method", pa.string()),  # or the file of imported answers
        ("level", pa.string()),
        ("settings", pa.string()),
        ("questions", pa.int64()),
        ("failed", pa.int64()),  # without a complete answer
        ("calls", pa.int64()),  # for all answers; null for imported answers
        ("tokens", pa.int64()),
        ("cost_usd", pa.float64()),  # null if a price is unknown
        ("model_seconds", pa.float64()),  # mean model time per answer, summed over its replies
        ("words", pa.float64()),
    ]
)
ANSWERED = pa.schema(
    [
        ("condition", pa.string()),
        *ANSWERS,
        ("chunks", pa.list_(pa.string())),  # see `chunks_of`
        ("model_seconds", pa.float64()),  # total model time of its replies, replayed ones included
    ]
)

CRITERION_OF: Mapping[str, str] = {"claims": "comprehensiveness", "clusters": "diversity"}
"""Maps each kind of count to the criterion that it approximates (GraphRAG 4.2)."""

COUNTS = ("claims", *(f"clusters_{str(t).replace('.', '_')}" for t in THRESHOLDS))
"""Columns with the number of distinct claims of an answer, and of their clusters at distances 0.5, 0.6, …"""

CLAIMS = pa.schema(
    [
        ("condition", pa.string()),
        ("question_id", pa.string()),
        ("texts", pa.list_(pa.string())),  # distinct; null if the claims could not be listed
        *((name, pa.int64()) for name in COUNTS),
        ("error", pa.string()),
    ]
)
CLAIM_COUNTS = pa.schema(
    [("condition", pa.string()), ("answers", pa.int64()), *((name, pa.float64()) for name in COUNTS)]
)
AGREEMENT = pa.schema(
    [
        ("measure", pa.string()),
        ("criterion", pa.string()),
        ("cases", pa.int64()),  # pairs of answers with a winner and different counts
        ("agreement", pa.float64()),  # share of the cases where the winner has more; null without cases
    ]
)


@dataclass
class Comparison:
    """Results of a comparison.

    Attributes:
        criteria: Text that the judge receives, by name of the criterion.
        offline: Whether the offline engine judged instead of a language model.
        warnings: Sentences to display with the results.
        title: Name and snapshot of the index.
    """

    description: str
    judge: str
    criteria: Mapping[str, str]
    offline: bool = False
    tables: dict[str, pa.Table] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    title: str = ""

    @property
    def failed(self) -> int:
        """Number of missing answers, judgements and claim lists."""
        missing = sum(sum(self.tables[name]["failed"].to_pylist()) for name in ("conditions", "reliability"))
        claims = self.tables.get("claims")
        return missing + (0 if claims is None else len(claims) - claims["error"].null_count)

    def as_dict(self) -> dict[str, Any]:
        """Return everything except answers, single judgements and claims as JSON values."""
        tables = {
            n: t.to_pylist() for n, t in self.tables.items() if n not in ("answers", "judgements", "claims")
        }
        about = {"description": self.description, "judge": self.judge, "offline": self.offline}
        return about | {"criteria": dict(self.criteria), **tables, "warnings": self.warnings}


def parse_plan(
    index: Index, conditions: Sequence[str | EvaluationCondition], criteria: Sequence[str], replicates: int
) -> tuple[list[EvaluationCondition], dict[str, str]]:
    """Return the parsed conditions, and the text of each criterion. Raises UsageError, PromptError."""
    if not 2 <= replicates <= MAX_REPLICATES:
        raise UsageError(
            f"Choose 2 to {MAX_REPLICATES} replicates, not {replicates}: each pair is judged in both orders."
        )
    parsed = parse_conditions(conditions, min_count=2)
    texts = load_criteria(index.settings.prompts_dir)
    if unknown := [name for name in criteria if name not in texts]:
        raise UsageError(
            f"Unknown criterion {unknown[0]!r}. Choose from: {', '.join(texts)}. To add your own, put a text "
            "file into the folder `criteria` of prompts_dir."
        )
    check_conditions(index, parsed)
    return parsed, {name: texts[name] for name in dict.fromkeys(criteria)}


def compare(
    run: EvaluationRun,
    questions: Sequence[BatchQuestion],
    conditions: Sequence[str | EvaluationCondition],
    criteria: Sequence[str] = CRITERIA,
    replicates: int = REPLICATES,
    description: str = "",
    claims: bool = False,
) -> Comparison:
    """Answer all questions with all conditions, and let a judge compare each pair of answers.

    Args:
        replicates: Verdicts per pair of answers and criterion. In half of them, the answers are swapped.

    Raises:
        UsageError: The conditions cannot be compared. No model has been called.
        RunStopped: The run was interrupted. Repeat the call to continue it.
    """
    parsed, texts = parse_plan(run.index, conditions, criteria, replicates)
    run.check_models([STAGE, CLAIMS_STAGE] if claims else [STAGE])
    settings, url, snapshot = run.index.settings, run.index.store.url, run.index.manifest.number
    model = settings.model(settings.model_name(STAGE))
    title = f"{posixpath.basename(url.rstrip('/')) or url}, snapshot {snapshot}"
    result = Comparison(description, model.model_id, texts, model.provider == "offline", title=title)
    answers = collect_answers(run, questions, parsed, result.warnings)
    judgements = _judge_answers(run, questions, parsed, answers, texts, replicates)
    result.tables |= {
        "conditions": summarize_conditions(parsed, answers),
        "answers": answers,
        "judgements": judgements,
        "win_rates": win_rates(judgements, [(a.name, b.name) for a, b in combinations(parsed, 2)]),
        "reliability": reliability(judgements),
        "judging": run.costs(),
    }
    result.warnings += _warnings(run, parsed, result)
    for name, table in result.tables.items():
        run.write(name, table)
    for name in CLAIM_TABLES:  # An earlier comparison may have written them.
        run.store.delete(f"{name}.parquet")
    about = {
        "graphrag_ray": __version__,
        "index": url,
        "snapshot": snapshot,
        "description": description,
        "judge": result.judge,
        "criteria": texts,
        "replicates": replicates,
        "conditions": [asdict(condition) for condition in parsed],
        "warnings": result.warnings,
    }
    run.store.write("evaluation.json", orjson.dumps(about, option=orjson.OPT_INDENT_2))
    if claims:
        counted = _count_claims(run, questions, texts_of(answers), judgements)
        result.tables |= counted.tables
        result.warnings += counted.warnings
    return result


def compare_claims(
    run: EvaluationRun, questions: Sequence[BatchQuestion], conditions: Sequence[str | EvaluationCondition]
) -> Results:
    """Count the claims in the conditions' answers, and compare the counts with judgements in the folder."""
    parsed = parse_conditions(conditions)
    check_conditions(run.index, parsed)
    run.check_models([CLAIMS_STAGE])
    warnings: list[str] = []
    answers = collect_answers(run, questions, parsed, warnings)
    judgements, earlier = run.read("judgements"), run.read("answers")
    if judgements is None or earlier is None or not set(JUDGEMENTS.names) <= set(judgements.column_names):
        judgements = None
    else:
        current = {(p.id, p.text) for p in questions}
        columns = zip(earlier["question_id"].to_pylist(), earlier["question"].to_pylist(), strict=True)
        same_ids = pa.array({id_ for id_, text in columns if (id_, text) in current}, pa.string())
        judgements = judgements.filter(pc.is_in(judgements["question_id"], same_ids))
    results = _count_claims(run, questions, texts_of(answers), judgements)
    results.warnings[:0] = warnings
    if missing := len(answers) - len(results.tables["claims"]):
        results.warnings.append(f"{missing:,} of {len(answers):,} answers are missing")
        results.failed += missing
    return results


def _count_claims(
    run: EvaluationRun,
    questions: Sequence[BatchQuestion],
    texts: Mapping[str, Mapping[str, str]],
    judgements: pa.Table | None,
) -> Results:
    """Make the tables claims, claim_counts, judging and, given judgements, agreement."""
    spec = answer_claims_spec(run.index.settings, run.index.env.prompts)
    question_texts = {p.id: p.text for p in questions}
    answers = [(condition, id_, text) for condition, by_id in texts.items() for id_, text in by_id.items()]
    dialogues = (
        (f"question {id_}, {condition}", partial(answer_claims, question_texts[id_], text, spec))
        for condition, id_, text in answers
    )
    rows: list[dict[str, Any]] = []
    outcomes = run.ask(CLAIMS_STAGE, dialogues, len(answers))
    for (condition, id_, _), outcome in zip(answers, outcomes, strict=True):
        row: dict[str, Any] = {"condition": condition, "question_id": id_, "error": outcome.error or None}
        if outcome.result is not None:
            claims = distinct_claims(outcome.result)
            counts = [len(claims), *count_clusters(claims).values()]
            row |= {"texts": claims, **dict(zip(COUNTS, counts, strict=True))}
        rows.append(row)
    table = pa.Table.from_pylist(rows, schema=CLAIMS)
    means = table.group_by("condition", use_threads=False).aggregate(
        [("claims", "count"), *((name, "mean") for name in COUNTS)]
    )
    columns = [means[name] for name in ("condition", "claims_count", *(f"{name}_mean" for name in COUNTS))]
    tables = {"claims": table, "claim_counts": pa.table(columns, CLAIM_COUNTS.names).cast(CLAIM_COUNTS)}
    if judgements is not None:
        judged, agreements = set(judgements["criterion"].to_pylist()), []
        for name in COUNTS:
            criterion = CRITERION_OF[name.partition("_")[0]]
            if criterion in judged:
                by_answer = {(r["question_id"], r["condition"]): r[name] for r in rows if name in r}
                share, cases = agreement(by_answer, judgements, criterion)
                agreements.append(
                    {"measure": name, "criterion": criterion, "cases": cases, "agreement": share}
                )
        tables["agreement"] = pa.Table.from_pylist(agreements, schema=AGREEMENT)
    tables["judging"] = run.costs()
    for name, result in tables.items():
        run.write(name, result)
    errors = [row["error"] for row in rows if row["error"]]
    warning = f"The claims of {len(errors):,} of {len(rows):,} answers could not be listed{_mostly(errors)}"
    return Results(tables, [warning] if errors else [], len(errors))


def _mostly(errors: Sequence[str]) -> str:
    return f", mostly: {Counter(errors).most_common(1)[0][0]}" if errors else ""


def collect_answers(
    run: EvaluationRun,
    questions: Sequence[BatchQuestion],
    conditions: Sequence[EvaluationCondition],
    warnings: list[str],
) -> pa.Table:
    """Collect the answers of all conditions in a table `ANSWERED`. Appends to `warnings`."""
    imported = {}
    for condition in conditions:  # Report an unreadable file before calling any model.
        if condition.answers:
            options = run.index.settings.storage.fsspec_options(condition.answers)
            imported[condition.name], notes = read_imported_answers(condition.answers, options, questions)
            warnings += [f"Condition {condition.name}: {note}" for note in notes]

    def extra_columns(answer: Answer, accounts: Accounts) -> Mapping[str, Any]:
        return {"chunks": chunks_of(run.index, answer), "model_seconds": accounts.total.busy_ms / 1000}

    rows: list[Mapping[str, Any]] = []
    for condition in conditions:
        if not condition.answers:
            answers = run.answer(condition, questions, extra_columns)
            rows += [{**row, "condition": condition.name} for row in answers]
            continue
        for p in questions:
            text = imported[condition.name].get(p.id)
            row = {"condition": condition.name, "question_id": p.id, "question": p.text, "text": text}
            rows.append(row | {"error": None if text else "The file has no answer to this question"})
    return pa.Table.from_pylist(rows, schema=ANSWERED)


def chunks_of(index: Index, answer: Answer) -> list[str]:
    """Return the ids of the chunks in an answer's contexts. Without chunks, use the chunks of its records."""
    records = [record for context in answer.contexts for record in context.records]
    chunks = list(dict.fromkeys(record.id for record in records if record.section == "Sources"))
    if chunks:
        return chunks
    chunks_by_record: dict[str, list[str]] = {}
    for section in ("Entities", "Relationships"):
        ids = list(dict.fromkeys(record.id for record in records if record.section == section))
        rows = index.reader.rows(Rows(RECORD_KIND_BY_SECTION[section].table, ["id", "text_unit_ids"], ids))
        for row in rows.to_pylist():
            chunks_by_record[row["id"]] = row["text_unit_ids"][:MAX_CHUNKS_PER_RECORD]
    return list(dict.fromkeys(id_ for record in records for id_ in chunks_by_record.get(record.id, [])))


def texts_of(answers: pa.Table) -> dict[str, dict[str, str]]:
    """Return the text of each answer by condition and question id."""
    texts: dict[str, dict[str, str]] = {}
    for row in answers.select(["condition", "question_id", *_IS_ANSWER]).to_pylist():
        by_id = texts.setdefault(row["condition"], {})
        if is_answer(row):
            by_id[row["question_id"]] = row["text"]
    return texts


_IS_ANSWER = ("text", "found", "failed_parts")


def is_answer(row: Mapping[str, Any]) -> bool:
    """Whether a row contains an answer. "Nothing found" counts, unless a model call failed."""
    unanswered = row["failed_parts"] and not row["found"]
    return bool(row["text"] and row["text"].strip()) and not unanswered


def _judge_answers(
    run: EvaluationRun,
    questions: Sequence[BatchQuestion],
    conditions: Sequence[EvaluationCondition],
    answers: pa.Table,
    criteria: Mapping[str, str],
    replicates: int,
) -> pa.Table:
    spec = judge_spec(run.index.settings, run.index.env.prompts)
    texts = texts_of(answers)

    def pending_rows() -> Iterator[tuple[BatchQuestion, dict[str, Any]]]:
        for p in questions:
            for a, b in combinations((c.name for c in conditions), 2):
                if p.id not in texts[a] or p.id not in texts[b]:
                    continue
                # Sorting by name makes the order of the answers independent of the order of the
                # conditions.
                swapped = [sorted((a, b), reverse=is_swapped(p.id, n))[0] == b for n in range(replicates)]
                for criterion in criteria:
                    for n in range(replicates):
                        row = {"question_id": p.id, "criterion": criterion, "first": a, "second": b}
                        yield p, row | {"replicate": n, "swapped": swapped[n]}

    def dialogues() -> Iterator[tuple[str, Callable[[], Dialogue[Verdict]]]]:
        for p, row in pending_rows():
            one, two = (texts[name][p.id] for name in _presented(row))
            start = partial(judge, p.text, criteria[row["criterion"]], (one, two), spec, row["replicate"])
            yield f"question {p.id}, {row['first']} and {row['second']}", start

    outcomes = run.ask(STAGE, dialogues(), sum(1 for _ in pending_rows()))

    def judgements() -> Iterator[dict[str, Any]]:
        for (_, row), outcome in zip(pending_rows(), outcomes, strict=True):
            if outcome.result is None:
                yield row | {"error": outcome.error or "Not judged"}
            else:
                winner = ("", *_presented(row))[outcome.result.winner]
                yield row | {"winner": winner, "reason": outcome.result.reason}

    rows, tables = judgements(), [JUDGEMENTS.empty_table()]
    while batch := list(islice(rows, JUDGEMENTS_PER_BATCH)):
        tables.append(pa.Table.from_pylist(batch, schema=JUDGEMENTS))
    return pa.concat_tables(tables)


def _presented(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the conditions whose answers are presented to the judge as answers 1 and 2."""
    return (row["second"], row["first"]) if row["swapped"] else (row["first"], row["second"])


def summarize_conditions(conditions: Sequence[EvaluationCondition], answers: pa.Table) -> pa.Table:
    """Return totals and means per condition in a table `CONDITIONS`. answers: a table `ANSWERED`."""
    by_name: dict[str, list[Mapping[str, Any]]] = {c.name: [] for c in conditions}
    columns = ["condition", *_IS_ANSWER, "calls", "tokens", "cost_usd", "model_seconds"]
    for row in answers.select(columns).to_pylist():
        by_name[row["condition"]].append(row)
    rows = []
    for condition in conditions:
        all_rows = by_name[condition.name]
        complete = [row for row in all_rows if is_answer(row)]
        sums: dict[str, Any] = {}
        for name in ("calls", "tokens", "cost_usd"):
            values = [row[name] for row in complete]
            sums[name] = sum(values) if values and None not in values else None
        rows.append(
            {
                "name": condition.name,
                "method": condition.method or condition.answers,
                "level": condition.level or "",
                "settings": ", ".join(condition.changes),
                "questions": len(all_rows),
                "failed": sum(not is_answer(row) or bool(row["failed_parts"]) for row in all_rows),
                **sums,
                "model_seconds": _mean([row["model_seconds"] for row in complete]),
                "words": _mean([len(row["text"].split()) for row in complete]),
            }
        )
    return pa.Table.from_pylist(rows, schema=CONDITIONS)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _warnings(run: EvaluationRun, conditions: Sequence[EvaluationCondition], result: Comparison) -> list[str]:
    warnings = []
    judges_itself = []
    for condition in conditions:
        if condition.method and not result.offline:
            settings = condition.apply_to(run.index).settings
            stages = {*methods.stages(condition.method, settings.query)} - {"embed", RERANK}
            if result.judge in {settings.model(settings.model_name(stage)).model_id for stage in stages}:
                judges_itself.append(condition.name)
    if judges_itself:
        warnings.append(
            f"The judge {result.judge} also wrote the answers of {', '.join(judges_itself)}. Models tend to "
            "prefer their own answers. Configure a different model as models.judge and stages.judge.model."
        )
    answers, judgements = result.tables["answers"], result.tables["judgements"]
    if not len(judgements):
        warnings.append("No two conditions answered the same question, so nothing was judged")
    if errors := [error for error in judgements["error"].to_pylist() if error]:
        warnings.append(f"{len(errors):,} of {len(judgements):,} judgements are missing{_mostly(errors)}")
    for row in result.tables["conditions"].to_pylist():
        if row["failed"]:
            errors = answers.filter(pc.equal(answers["condition"], row["name"]))["error"].to_pylist()
            incomplete = f"{row['failed']} of {row['questions']} questions have no complete answer"
            reason = _mostly([error for error in errors if error])
            warnings.append(f"Condition {row['name']}: {incomplete}{reason}")
    return warnings
