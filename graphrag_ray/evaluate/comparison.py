"""Which of several conditions answers better: every answer against every other, by criteria (GraphRAG 3.3).

The folder of a comparison holds, beside the journal, these tables:

    answers        condition and the columns of `question_files.ANSWERS`
    judgements     `judging.head_to_head.JUDGEMENTS`
    win_rates, reliability   what follows from them
    conditions     what each came to; judging: what the judge did
    claims, claim_counts, agreement   where claims were asked for

and `evaluation.json`, which says what was compared.
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

from graphrag_ray.base.declarations import OF_SECTION
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.prompts import load_criteria
from graphrag_ray.evaluate import CRITERIA, REPLICATES
from graphrag_ray.evaluate.conditions import EvaluationCondition, check_conditions, parse_conditions
from graphrag_ray.evaluate.evaluation_files import answers_elsewhere
from graphrag_ray.evaluate.evaluation_run import EvaluationRun, Results
from graphrag_ray.evaluate.judging.answer_metrics import THRESHOLDS, clusters, distinct
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
from graphrag_ray.query.question_files import ANSWERS, Posed
from graphrag_ray.version import __version__

MAX_REPLICATES = 100

ROWS_TOGETHER = 10_000
"""Judgements that are Python objects at one time."""

MOST_UNDER = 500
"""Chunks of an entity or relationship that count as read where it is."""

ABOUT = "evaluation.json"
OF_CLAIMS = ("claims", "claim_counts", "agreement")
"""Tables of `count_claims`."""

CONDITIONS = pa.schema(
    [
        ("name", pa.string()),
        ("method", pa.string()),  # or the file of answers that were made elsewhere
        ("level", pa.string()),
        ("settings", pa.string()),
        ("questions", pa.int64()),
        ("failed", pa.int64()),  # without an answer, or without a part of one
        ("calls", pa.int64()),  # of all answers; null for answers that were made elsewhere
        ("tokens", pa.int64()),
        ("cost_usd", pa.float64()),  # null where a price is unknown
        ("model_seconds", pa.float64()),  # that models took for the replies of an answer together, on average
        ("words", pa.float64()),
    ]
)
ANSWERED = pa.schema(
    [
        ("condition", pa.string()),
        *ANSWERS,
        ("chunks", pa.list_(pa.string())),  # see `chunks_of`
        ("model_seconds", pa.float64()),  # that models took for its replies together, whenever they did
    ]
)

AGREE_WITH: Mapping[str, str] = {"claims": "comprehensiveness", "clusters": "diversity"}
"""The criterion that a count stands for (GraphRAG 4.2)."""

COUNTS = ("claims", *(f"clusters_{str(t).replace('.', '_')}" for t in THRESHOLDS))
"""Columns: claims of an answer, each once; clusters of these at a distance of .5, .6, …"""

CLAIMS = pa.schema(
    [
        ("condition", pa.string()),
        ("question_id", pa.string()),
        ("texts", pa.list_(pa.string())),  # each once; null where they could not be listed
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
        ("cases", pa.int64()),  # pairs of answers with a winner, whose counts differ
        ("agreement", pa.float64()),  # share of these where the winner has more; null without any
    ]
)


@dataclass
class Comparison:
    """title: what was compared, the index's name and snapshot; criteria: name -> the text that the judge was
    given; offline: no language model judged; tables: by name, as they are kept; warnings: sentences for
    whoever reads the figures."""

    description: str
    judge: str
    criteria: Mapping[str, str]
    offline: bool = False
    tables: dict[str, pa.Table] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    title: str = ""

    @property
    def failed(self) -> int:
        """Answers, judgements and lists of claims that are missing."""
        missing = sum(sum(self.tables[name]["failed"].to_pylist()) for name in ("conditions", "reliability"))
        claims = self.tables.get("claims")
        return missing + (0 if claims is None else len(claims) - claims["error"].null_count)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: all but the answers and single judgements, which the tables hold."""
        kept = {
            n: t.to_pylist() for n, t in self.tables.items() if n not in ("answers", "judgements", "claims")
        }
        about = {"description": self.description, "judge": self.judge, "offline": self.offline}
        return about | {"criteria": dict(self.criteria), **kept, "warnings": self.warnings}


def planned(
    index: Index, conditions: Sequence[str | EvaluationCondition], criteria: Sequence[str], replicates: int
) -> tuple[list[EvaluationCondition], dict[str, str]]:
    """The conditions of a comparison, and the text of each criterion. Raises UsageError, PromptError."""
    if not 2 <= replicates <= MAX_REPLICATES:
        raise UsageError(
            f"{replicates} replicates: from 2, so that each pair is judged in both orders, "
            f"to {MAX_REPLICATES} can be asked for"
        )
    known = parse_conditions(conditions, least=2)
    texts = load_criteria(index.settings.prompts_dir)
    if unknown := [name for name in criteria if name not in texts]:
        raise UsageError(
            f"there is no criterion {unknown[0]!r}; there are {', '.join(texts)}. Yours are text files in "
            "the folder `criteria` of prompts_dir"
        )
    check_conditions(index, known)
    return known, {name: texts[name] for name in dict.fromkeys(criteria)}


def compare(
    run: EvaluationRun,
    posed: Sequence[Posed],
    conditions: Sequence[str | EvaluationCondition],
    criteria: Sequence[str] = CRITERIA,
    replicates: int = REPLICATES,
    description: str = "",
    claims: bool = False,
) -> Comparison:
    """Have all conditions answer all questions, and a judge compare every two answers to one.

    replicates: verdicts on each pair of answers by each criterion; half of them see the answers swapped
    claims: whether the claims of the answers are counted too
    Raises UsageError before anything is paid for; RunStopped: the same again goes on.
    """
    known, texts = planned(run.index, conditions, criteria, replicates)
    run.check_models([STAGE, CLAIMS_STAGE] if claims else [STAGE])
    model = run.index.settings.model(run.index.settings.model_name(STAGE))
    url = run.index.store.url
    title = f"{posixpath.basename(url.rstrip('/')) or url}, snapshot {run.index.manifest.number}"
    found = Comparison(description, model.model_id, texts, model.provider == "offline", title=title)
    answers = answered(run, posed, known, found.warnings)
    judgements = _judged(run, posed, known, answers, texts, replicates)
    order = [(a.name, b.name) for a, b in combinations(known, 2)]
    found.tables |= {
        "conditions": came_to(known, answers),
        "answers": answers,
        "judgements": judgements,
        "win_rates": win_rates(judgements, order),
        "reliability": reliability(judgements),
        "judging": run.costs(),
    }
    found.warnings += _warnings(run, known, found)
    for name, table in found.tables.items():
        run.write(name, table)
    for name in OF_CLAIMS:  # of an earlier comparison
        run.store.delete(f"{name}.parquet")
    about = {
        "graphrag_ray": __version__,
        "index": run.index.store.url,
        "snapshot": run.index.manifest.number,
        "description": found.description,
        "judge": found.judge,
        "criteria": dict(found.criteria),
        "replicates": replicates,
        "conditions": [asdict(condition) for condition in known],
        "warnings": found.warnings,
    }
    run.store.write(ABOUT, orjson.dumps(about, option=orjson.OPT_INDENT_2))
    if claims:
        counted = count_claims(run, posed, texts_of(answers), judgements)
        found.tables |= counted.tables
        found.warnings += counted.warnings
    return found


def claims_of(
    run: EvaluationRun, posed: Sequence[Posed], conditions: Sequence[str | EvaluationCondition]
) -> Results:
    """The claims of the answers of these conditions, and how far the judgements on these questions in the
    folder agree with them. Raises UsageError, StoreError, RunStopped."""
    known = parse_conditions(conditions)
    check_conditions(run.index, known)
    run.check_models([CLAIMS_STAGE])
    warnings: list[str] = []
    answers = answered(run, posed, known, warnings)
    judgements, earlier = run.read("judgements"), run.read("answers")
    if judgements is None or earlier is None or not set(JUDGEMENTS.names) <= set(judgements.column_names):
        judgements = None
    else:
        asked = {(p.id, p.text) for p in posed}
        columns = zip(earlier["question_id"].to_pylist(), earlier["question"].to_pylist(), strict=True)
        same = pa.array({id_ for id_, text in columns if (id_, text) in asked}, pa.string())
        judgements = judgements.filter(pc.is_in(judgements["question_id"], same))
    found = count_claims(run, posed, texts_of(answers), judgements)
    found.warnings[:0] = warnings
    if missing := len(answers) - len(found.tables["claims"]):
        found.warnings.append(f"{missing:,} of {len(answers):,} answers are missing")
        found.failed += missing
    return found


def count_claims(
    run: EvaluationRun,
    posed: Sequence[Posed],
    texts: Mapping[str, Mapping[str, str]],
    judgements: pa.Table | None,
) -> Results:
    """The tables claims, claim_counts, judging and, with judgements, agreement.

    texts: of the answers, by condition and id of the question. Raises RunStopped."""
    spec = answer_claims_spec(run.index.settings, run.index.given.prompts)
    questions = {p.id: p.text for p in posed}
    each = [(condition, id_, text) for condition, own in texts.items() for id_, text in own.items()]
    asked = (
        (f"question {id_}, {condition}", partial(answer_claims, questions[id_], text, spec))
        for condition, id_, text in each
    )
    rows: list[dict[str, Any]] = []
    for (condition, id_, _), outcome in zip(each, run.ask(CLAIMS_STAGE, asked, len(each)), strict=True):
        row: dict[str, Any] = {"condition": condition, "question_id": id_, "error": outcome.error or None}
        if outcome.result is not None:
            own = distinct(outcome.result)
            row |= {"texts": own, **dict(zip(COUNTS, [len(own), *clusters(own).values()], strict=True))}
        rows.append(row)
    claims = pa.Table.from_pylist(rows, schema=CLAIMS)
    counted = claims.group_by("condition", use_threads=False).aggregate(
        [("claims", "count"), *((name, "mean") for name in COUNTS)]
    )
    columns = [counted[name] for name in ("condition", "claims_count", *(f"{name}_mean" for name in COUNTS))]
    tables = {"claims": claims, "claim_counts": pa.table(columns, CLAIM_COUNTS.names).cast(CLAIM_COUNTS)}
    if judgements is not None:
        judged, agreed = set(judgements["criterion"].to_pylist()), []
        for name in COUNTS:
            criterion = AGREE_WITH[name.partition("_")[0]]
            if criterion in judged:
                counts = {(r["question_id"], r["condition"]): r[name] for r in rows if name in r}
                share, cases = agreement(counts, judgements, criterion)
                agreed.append({"measure": name, "criterion": criterion, "cases": cases, "agreement": share})
        tables["agreement"] = pa.Table.from_pylist(agreed, schema=AGREEMENT)
    tables["judging"] = run.costs()
    for name, table in tables.items():
        run.write(name, table)
    errors = [row["error"] for row in rows if row["error"]]
    warnings = []
    if errors:
        (why, _), *_ = Counter(errors).most_common(1)
        missing = f"the claims of {len(errors):,} of {len(rows):,} answers could not be listed"
        warnings = [f"{missing}, mostly: {why}"]
    return Results(tables, warnings, len(errors))


def answered(
    run: EvaluationRun, posed: Sequence[Posed], conditions: Sequence[EvaluationCondition], warnings: list[str]
) -> pa.Table:
    """The answers of all conditions, of `ANSWERED`; with what is to be said of them added to the warnings."""
    elsewhere = {}
    for condition in conditions:  # what cannot be read is told before anything is paid for
        if condition.answers:
            options = run.index.settings.storage.of(condition.answers)
            elsewhere[condition.name], told = answers_elsewhere(condition.answers, options, posed)
            warnings += [f"condition {condition.name}: {text}" for text in told]

    def beside(answer: Answer, accounts: Accounts) -> Mapping[str, Any]:
        return {"chunks": chunks_of(run.index, answer), "model_seconds": accounts.total.busy_ms / 1000}

    rows: list[Mapping[str, Any]] = []
    for condition in conditions:
        if not condition.answers:
            own = run.answer(condition, posed, beside)
            rows += [{**row, "condition": condition.name} for row in own]
            continue
        for p in posed:
            text = elsewhere[condition.name].get(p.id)
            row = {"condition": condition.name, "question_id": p.id, "question": p.text, "text": text}
            rows.append(row | {"error": None if text else "the file has no answer to this question"})
    return pa.Table.from_pylist(rows, schema=ANSWERED)


def chunks_of(index: Index, answer: Answer) -> list[str]:
    """Ids of the chunks that an answer's contexts show, in order. Where they show none: of those that lie
    under the entities and relationships that they show. Raises StoreError."""
    shown = [record for used in answer.contexts for record in used.records]
    chunks = list(dict.fromkeys(record.id for record in shown if record.section == "Sources"))
    if chunks:
        return chunks
    under: dict[str, list[str]] = {}
    for section in ("Entities", "Relationships"):
        ids = list(dict.fromkeys(record.id for record in shown if record.section == section))
        rows = index.reader.rows(Rows(OF_SECTION[section].table, ["id", "text_unit_ids"], ids))
        under |= {row["id"]: row["text_unit_ids"][:MOST_UNDER] for row in rows.to_pylist()}
    return list(dict.fromkeys(id_ for record in shown for id_ in under.get(record.id, [])))


def texts_of(answers: pa.Table) -> dict[str, dict[str, str]]:
    """The texts of the answers there are, by condition and id of the question."""
    found: dict[str, dict[str, str]] = {}
    for row in answers.select(["condition", "question_id", *_IS_ANSWER]).to_pylist():
        found.setdefault(row["condition"], {})
        if is_answer(row):
            found[row["condition"]][row["question_id"]] = row["text"]
    return found


_IS_ANSWER = ("text", "found", "failed_parts")


def is_answer(row: Mapping[str, Any]) -> bool:
    """That nothing was found is an answer, unless it is because a model did not reply."""
    unread = row["failed_parts"] and not row["found"]
    return bool(row["text"] and row["text"].strip()) and not unread


def _judged(
    run: EvaluationRun,
    posed: Sequence[Posed],
    conditions: Sequence[EvaluationCondition],
    answers: pa.Table,
    criteria: Mapping[str, str],
    replicates: int,
) -> pa.Table:
    spec = judge_spec(run.index.settings, run.index.given.prompts)
    texts = texts_of(answers)

    def each() -> Iterator[tuple[Posed, dict[str, Any]]]:
        for p in posed:
            for a, b in combinations((c.name for c in conditions), 2):
                if p.id not in texts[a] or p.id not in texts[b]:
                    continue
                # By name, so that the same answers are shown in the same order whichever is named first.
                swapped = [sorted((a, b), reverse=is_swapped(p.id, n))[0] == b for n in range(replicates)]
                for criterion in criteria:
                    for n in range(replicates):
                        row = {"question_id": p.id, "criterion": criterion, "first": a, "second": b}
                        yield p, row | {"replicate": n, "swapped": swapped[n]}

    def asked() -> Iterator[tuple[str, Callable[[], Dialogue[Verdict]]]]:
        for p, row in each():
            one, two = (texts[name][p.id] for name in _shown(row))
            start = partial(judge, p.text, criteria[row["criterion"]], (one, two), spec, row["replicate"])
            yield f"question {p.id}, {row['first']} and {row['second']}", start

    outcomes = run.ask(STAGE, asked(), sum(1 for _ in each()))

    def judgements() -> Iterator[dict[str, Any]]:
        for (_, row), outcome in zip(each(), outcomes, strict=True):
            if outcome.result is None:
                yield row | {"error": outcome.error or "it was not judged"}
            else:
                winner = ("", *_shown(row))[outcome.result.winner]
                yield row | {"winner": winner, "reason": outcome.result.reason}

    rows, tables = judgements(), []
    while some := list(islice(rows, ROWS_TOGETHER)):
        tables.append(pa.Table.from_pylist(some, schema=JUDGEMENTS))
    return pa.concat_tables(tables) if tables else JUDGEMENTS.empty_table()


def _shown(row: Mapping[str, Any]) -> tuple[str, str]:
    """The conditions whose answers the judge sees as 1 and 2."""
    return (row["second"], row["first"]) if row["swapped"] else (row["first"], row["second"])


def came_to(conditions: Sequence[EvaluationCondition], answers: pa.Table) -> pa.Table:
    """What each condition came to, of `CONDITIONS`. answers: of `ANSWERED`."""
    by_name: dict[str, list[Mapping[str, Any]]] = {c.name: [] for c in conditions}
    wanted = ["condition", *_IS_ANSWER, "calls", "tokens", "cost_usd", "model_seconds", "error"]
    for row in answers.select(wanted).to_pylist():
        by_name[row["condition"]].append(row)
    rows = []
    for condition in conditions:
        own = by_name[condition.name]
        there = [row for row in own if is_answer(row)]
        sums: dict[str, Any] = {}
        for name in ("calls", "tokens", "cost_usd"):
            values = [row[name] for row in there]
            sums[name] = sum(values) if values and None not in values else None
        rows.append(
            {
                "name": condition.name,
                "method": condition.method or condition.answers,
                "level": condition.level or "",
                "settings": ", ".join(condition.changes),
                "questions": len(own),
                "failed": sum(not is_answer(row) or bool(row["failed_parts"]) for row in own),
                **sums,
                "model_seconds": _mean([row["model_seconds"] for row in there]),
                "words": _mean([len(row["text"].split()) for row in there]),
            }
        )
    return pa.Table.from_pylist(rows, schema=CONDITIONS)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _warnings(run: EvaluationRun, conditions: Sequence[EvaluationCondition], found: Comparison) -> list[str]:
    warnings = []
    own_answers = []
    for condition in conditions:
        if not condition.method or found.offline:
            continue
        settings = condition.opened(run.index).settings
        stages = {s for s in methods.stages(condition.method) if s != "embed"}
        if found.judge in {settings.model(settings.model_name(stage)).model_id for stage in stages}:
            own_answers.append(condition.name)
    if own_answers:
        warnings.append(
            f"the judge {found.judge} also wrote the answers of {', '.join(own_answers)}: models tend to "
            "prefer their own. Name another one as models.judge and stages.judge.model"
        )
    judgements = found.tables["judgements"]
    if not len(judgements):
        warnings.append("no two conditions have answers to the same question: nothing was judged")
    if errors := [error for error in judgements["error"].to_pylist() if error]:
        (why, _), *_ = Counter(errors).most_common(1)
        told = f"{len(errors):,} of {len(judgements):,} judgements are missing"
        warnings.append(f"{told}, mostly: {why}")
    for row in found.tables["conditions"].to_pylist():
        if row["failed"]:
            lacking = f"{row['failed']} of {row['questions']} questions have no whole answer"
            answers = found.tables["answers"]
            own = answers.filter(pc.equal(answers["condition"], row["name"]))["error"].to_pylist()
            common = Counter(error for error in own if error).most_common(1)
            why = f", mostly: {common[0][0]}" if common else ""
            warnings.append(f"condition {row['name']}: {lacking}{why}")
    return warnings
