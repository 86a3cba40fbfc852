"""Compare conditions head to head, by criteria (GraphRAG 3.3).

The folder of a comparison contains the reply journal, `evaluation.json` (the parameters of the comparison),
and the tables answers, judgements, win_rates, reliability, conditions, indexes, judging and, on request,
claims, claim_counts, count_tests and agreement.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, islice
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION
from graphrag_ray.base.errors import StoreError, UsageError
from graphrag_ray.base.messages import RERANK, Dialogue
from graphrag_ray.base.prompts import load_criteria
from graphrag_ray.base.urls import display_url
from graphrag_ray.evaluate import CRITERIA, JUDGE_PROTOCOLS, REPLICATES
from graphrag_ray.evaluate.conditions import ORACLE, EvaluationCondition, open_conditions
from graphrag_ray.evaluate.evaluation_files import read_imported_answers
from graphrag_ray.evaluate.evaluation_run import EvaluationRun, Results
from graphrag_ray.evaluate.judging.answer_metrics import THRESHOLDS, count_clusters, distinct_claims
from graphrag_ray.evaluate.judging.head_to_head import (
    JUDGEMENTS,
    agreement,
    count_tests,
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
    judge_joint,
    judge_spec,
)
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.query.question_files import ANSWERS, BatchQuestion
from graphrag_ray.store import snapshots
from graphrag_ray.version import __version__

MAX_REPLICATES = 100
JUDGEMENTS_PER_BATCH = 10_000  # Maximum number of judgements in memory as Python objects.
MAX_CHUNKS_PER_RECORD = 500
"""Maximum number of chunks that count as read if the record of an entity or relationship is in context."""
CLAIM_TABLES = ("claims", "claim_counts", "count_tests", "agreement")

CONDITIONS = pa.schema(
    [
        ("name", pa.string()),
        ("method", pa.string()),  # or the file of imported answers
        ("level", pa.string()),
        ("index", pa.string()),  # its URL; null for imported answers
        ("settings", pa.string()),
        ("questions", pa.int64()),
        ("failed", pa.int64()),  # without a complete answer
        ("calls", pa.int64()),  # for all answers; null for imported answers
        ("tokens", pa.int64()),
        ("cost_usd", pa.float64()),  # null if a price is unknown
        ("cost_usd_per_answer", pa.float64()),
        ("seconds", pa.float64()),  # mean wall time per answer, with concurrent questions
        ("model_seconds", pa.float64()),  # mean model time per answer, summed over its replies
        ("words", pa.float64()),
    ]
)
INDEXES = pa.schema(
    [
        # One row per index that the conditions ask.
        ("index", pa.string()),  # its URL
        ("snapshot", pa.int64()),
        ("documents", pa.int64()),
        ("text_units", pa.int64()),
        ("calls", pa.int64()),  # of all runs whose snapshots are stored
        ("tokens", pa.int64()),
        ("cost_usd", pa.float64()),  # null if a price is unknown
        ("seconds", pa.float64()),  # wall time of these runs
    ]
)
OVERALL = "overall"
"""The criterion that a joint verdict ends with."""
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
        ("majorities", pa.float64()),  # share of the judged pairs of answers that most verdicts decide
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
    index: Index,
    conditions: Sequence[str | EvaluationCondition],
    criteria: Sequence[str],
    replicates: int,
    protocol: str = JUDGE_PROTOCOLS[0],
) -> tuple[list[EvaluationCondition], dict[str, str]]:
    """Return the open conditions, and the text of each criterion. Raises UsageError, PromptError."""
    if protocol not in JUDGE_PROTOCOLS:
        raise UsageError(f"Unknown judge protocol {protocol!r}. Choose from: {', '.join(JUDGE_PROTOCOLS)}.")
    if not 2 <= replicates <= MAX_REPLICATES:
        raise UsageError(
            f"Choose 2 to {MAX_REPLICATES} replicates, not {replicates}: each pair is judged in both orders."
        )
    parsed = open_conditions(index, conditions, min_count=2)
    criteria = [criteria] if isinstance(criteria, str) else criteria
    if protocol == "joint":
        criteria = [*(name for name in criteria if name != OVERALL), OVERALL]
    texts = load_criteria(index.settings.prompts_dir)
    if unknown := [name for name in criteria if name not in texts]:
        raise UsageError(
            f"Unknown criterion {unknown[0]!r}. Choose from: {', '.join(texts)}. To add your own, put a text "
            "file into the folder `criteria` of prompts_dir."
        )
    return parsed, {name: texts[name] for name in dict.fromkeys(criteria)}


def compare(
    run: EvaluationRun,
    questions: Sequence[BatchQuestion],
    conditions: Sequence[str | EvaluationCondition],
    criteria: Sequence[str] = CRITERIA,
    replicates: int = REPLICATES,
    description: str = "",
    claims: bool = False,
    protocol: str = JUDGE_PROTOCOLS[0],
) -> Comparison:
    """Answer all questions with all conditions, and let a judge compare each pair of answers.

    See `evaluate.compare`. replicates: verdicts per pair of answers and criterion, half of them swapped.
    """
    parsed, texts = parse_plan(run.index, conditions, criteria, replicates, protocol)
    run.check_models([STAGE, CLAIMS_STAGE] if claims else [STAGE])
    settings = run.index.settings
    model = settings.model(settings.model_name(STAGE))
    result = Comparison(description, model.model_id, texts, model.provider == "offline")
    result.title = index_title(run.index)
    answers = collect_answers(run, questions, parsed, result.warnings)
    judgements = _judge_answers(run, questions, parsed, answers, texts, replicates, protocol == "joint")
    result.tables |= {
        "conditions": summarize_conditions(parsed, answers),
        "indexes": summarize_indexes(parsed),
        "answers": answers,
        "judgements": judgements,
        "win_rates": win_rates(judgements, [(a.name, b.name) for a, b in combinations(parsed, 2)]),
        "reliability": reliability(judgements),
        "judging": run.costs(),
    }
    result.warnings += _warnings(run, parsed, result)
    run.write_all(result.tables)
    for name in CLAIM_TABLES:  # An earlier comparison may have written them.
        run.store.delete(f"{name}.parquet")
    about = {
        "graphrag_ray": __version__,
        "index": run.index.store.url,
        "snapshot": run.index.manifest.number,
        "description": description,
        "judge": result.judge,
        "criteria": texts,
        "replicates": replicates,
        "judge_protocol": protocol,
        "conditions": [condition.describe() for condition in parsed],
        "warnings": result.warnings,
    }
    run.store.write("evaluation.json", orjson.dumps(about, option=orjson.OPT_INDENT_2))
    if claims:
        counted = _count_claims(run, questions, texts_of(answers), judgements)
        result.tables |= counted.tables
        result.warnings += counted.warnings
    return result


def index_title(index: Index) -> str:
    """Return the name and snapshot of an index."""
    url = index.store.url
    return f"{posixpath.basename(url.rstrip('/')) or url}, snapshot {index.manifest.number}"


def compare_claims(
    run: EvaluationRun, questions: Sequence[BatchQuestion], conditions: Sequence[str | EvaluationCondition]
) -> Results:
    """Count the claims in the conditions' answers, and compare the counts with judgements in the folder."""
    parsed = open_conditions(run.index, conditions)
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
        results.add_failures(f"{missing:,} of {len(answers):,} answers are missing", missing)
    return results


def _count_claims(
    run: EvaluationRun,
    questions: Sequence[BatchQuestion],
    texts: Mapping[str, Mapping[str, str]],
    judgements: pa.Table | None,
) -> Results:
    """Make the tables claims, claim_counts, count_tests, judging and, given judgements, agreement."""
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
    by_answer = {
        name: {(r["question_id"], r["condition"]): r[name] for r in rows if name in r} for name in COUNTS
    }
    tables["count_tests"] = count_tests(by_answer, list(combinations(texts, 2)))
    if judgements is not None:
        judged, agreements = set(judgements["criterion"].to_pylist()), []
        for name in COUNTS:
            criterion = CRITERION_OF[name.partition("_")[0]]
            if criterion in judged:
                share, cases, majorities = agreement(by_answer[name], judgements, criterion)
                row = {"measure": name, "criterion": criterion, "cases": cases, "agreement": share}
                agreements.append(row | {"majorities": majorities})
        tables["agreement"] = pa.Table.from_pylist(agreements, schema=AGREEMENT)
    tables["judging"] = run.costs()
    run.write_all(tables)
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
    table: str = "answers",
    gold_chunks: Mapping[str, Mapping[str, Sequence[str]]] = MappingProxyType({}),
) -> pa.Table:
    """Collect the answers of all conditions in a table `ANSWERED`. Appends to `warnings`.

    Args:
        table: Name under which the table is stored. The wall times of answers that it already contains are
            kept, because replaying replies takes no time.
        gold_chunks: Chunks for the method `oracle`, by condition and question id.
    """
    imported = {}
    for condition in conditions:  # Report an unreadable file before calling any model.
        if condition.answers:
            options = run.index.settings.storage.fsspec_options(condition.answers)
            imported[condition.name], notes = read_imported_answers(condition.answers, options, questions)
            warnings += [f"Condition {condition.name}: {note}" for note in notes]

    kept = dict[tuple[str | None, ...], float]()
    with suppress(StoreError, KeyError):  # A damaged table is rewritten below.
        if earlier := run.read(table):
            rows_of = earlier.select(["condition", "question", "text", "seconds"]).to_pylist()
            kept = {tuple(row.values())[:-1]: row["seconds"] for row in rows_of}

    def extra_columns(index: Index, answer: Answer, accounts: Accounts) -> Mapping[str, Any]:
        return {"chunks": chunks_of(index, answer), "model_seconds": accounts.total.busy_ms / 1000}

    rows: list[Mapping[str, Any]] = []
    for condition in conditions:
        if not condition.answers:
            asked = questions
            if condition.method == ORACLE:
                chunks = gold_chunks[condition.name]
                asked = [replace(p, chunks=tuple(chunks[p.id])) for p in questions]
            for row in run.answer(condition, asked, partial(extra_columns, condition.opened)):
                seconds = kept.get((condition.name, row["question"], row["text"])) or row["seconds"]
                rows.append({**row, "condition": condition.name, "seconds": seconds})
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
    joint: bool,
) -> pa.Table:
    spec = judge_spec(run.index.settings, run.index.env.prompts, len(criteria) if joint else 0)
    texts = texts_of(answers)

    def pending_rows() -> Iterator[tuple[BatchQuestion, dict[str, Any]]]:
        for p in questions:
            for a, b in combinations((c.name for c in conditions), 2):
                if p.id not in texts[a] or p.id not in texts[b]:
                    continue
                # Sorting by name makes the order of the answers independent of the order of the
                # conditions.
                swapped = [sorted((a, b), reverse=is_swapped(p.id, n))[0] == b for n in range(replicates)]
                for criterion in (None,) if joint else criteria:
                    for n in range(replicates):
                        row = {"question_id": p.id, "criterion": criterion, "first": a, "second": b}
                        yield p, row | {"replicate": n, "swapped": swapped[n]}

    def dialogues() -> Iterator[tuple[str, Callable[[], Dialogue[Verdict | dict[str, Verdict]]]]]:
        for p, row in pending_rows():
            pair = tuple(texts[name][p.id] for name in _presented(row))
            ask: Any = judge_joint if joint else judge
            criterion = criteria if joint else criteria[row["criterion"]]
            start = partial(ask, p.text, criterion, pair, spec, row["replicate"])
            yield f"question {p.id}, {row['first']} and {row['second']}", start

    outcomes = run.ask(STAGE, dialogues(), sum(1 for _ in pending_rows()))

    def judgements() -> Iterator[dict[str, Any]]:
        for (_, row), outcome in zip(pending_rows(), outcomes, strict=True):
            result = outcome.result
            for criterion in criteria if joint else [row["criterion"]]:
                verdict = result[criterion] if isinstance(result, dict) else result
                if verdict is None:
                    yield row | {"criterion": criterion, "error": outcome.error or "Not judged"}
                else:
                    winner = ("", *_presented(row))[verdict.winner]
                    yield row | {"criterion": criterion, "winner": winner, "reason": verdict.reason}

    rows, tables = judgements(), [JUDGEMENTS.empty_table()]
    while batch := list(islice(rows, JUDGEMENTS_PER_BATCH)):
        tables.append(pa.Table.from_pylist(batch, schema=JUDGEMENTS))
    return pa.concat_tables(tables)


def _presented(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the conditions whose answers are presented to the judge as answers 1 and 2."""
    return (row["second"], row["first"]) if row["swapped"] else (row["first"], row["second"])


def summarize_conditions(conditions: Sequence[EvaluationCondition], answers: pa.Table) -> pa.Table:
    """Return totals and means per condition in a table `CONDITIONS`. answers: a table `ANSWERED`."""
    columns = [*_IS_ANSWER, "calls", "tokens", "cost_usd", "seconds", "model_seconds"]
    rows = []
    for condition in conditions:
        asked = answers.filter(pc.equal(answers["condition"], condition.name)).select(columns).to_pylist()
        complete = [row for row in asked if is_answer(row)]
        sums: dict[str, Any] = {}
        for name in ("calls", "tokens", "cost_usd"):
            values = [row[name] for row in complete]
            sums[name] = sum(values) if values and None not in values else None
        prompts = [f"prompts={condition.prompts}"] if condition.prompts else []
        rows.append(
            {
                "name": condition.name,
                "method": condition.method or condition.answers,
                "level": condition.level or "",
                "index": None if condition.answers else display_url(condition.opened.store.url),
                "settings": ", ".join([*prompts, *condition.changes]),
                "questions": len(asked),
                "failed": sum(not is_answer(row) or bool(row["failed_parts"]) for row in asked),
                **sums,
                "cost_usd_per_answer": None if sums["cost_usd"] is None else sums["cost_usd"] / len(complete),
                "seconds": _mean([row["seconds"] for row in complete]),
                "model_seconds": _mean([row["model_seconds"] for row in complete]),
                "words": _mean([len(row["text"].split()) for row in complete]),
            }
        )
    return pa.Table.from_pylist(rows, schema=CONDITIONS)


def summarize_indexes(conditions: Sequence[EvaluationCondition]) -> pa.Table:
    """Return the size, cost and build time of each index that the conditions ask, in a table `INDEXES`."""
    opened = {(i.store.url, i.manifest.number): i for i in (c.opened for c in conditions if not c.answers)}
    rows = []
    for (url, number), index in opened.items():
        runs = [index.manifest]
        for n in (n for n in snapshots.list_numbers(index.store) if n < number):
            with suppress(StoreError):  # It may have been removed or damaged since.
                runs.append(snapshots.load(index.store, n))
        total = Accounts.merged([Accounts.from_dict(run.usage) for run in runs]).total
        rows.append(
            {
                "index": display_url(url),
                "snapshot": number,
                **{name: index.manifest.counts.get(name, 0) for name in ("documents", "text_units")},
                "calls": total.calls,
                "tokens": total.total_tokens,
                "cost_usd": total.cost_usd,
                "seconds": sum(sum(run.run.get("seconds", {}).values()) for run in runs),
            }
        )
    return pa.Table.from_pylist(rows, schema=INDEXES)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _warnings(run: EvaluationRun, conditions: Sequence[EvaluationCondition], result: Comparison) -> list[str]:
    warnings, judges_itself = [], []
    for condition in conditions if not result.offline else ():
        if condition.method:
            settings = condition.opened.settings
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
            errors = answers.filter(pc.equal(answers["condition"], row["name"]))["error"]
            incomplete = f"{row['failed']} of {row['questions']} questions have no complete answer"
            reason = _mostly(errors.drop_null().to_pylist())
            warnings.append(f"Condition {row['name']}: {incomplete}{reason}")
    return warnings
