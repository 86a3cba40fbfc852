"""Questions on an index as a whole, and a description of its corpus, written by a model (Algorithm 1)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial

import pyarrow as pa
from pyarrow import csv

from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.evaluate.evaluation_run import EvaluationRun
from graphrag_ray.evaluate.judging.corpus_questions import (
    STAGE,
    TOP_REPORTS,
    TOP_REPORTS_TOKENS,
    CorpusQuestion,
    corpus_description,
    corpus_questions,
    description_spec,
    question_specs,
)
from graphrag_ray.export.graph_tables import for_spreadsheet
from graphrag_ray.graph.report_context import clean
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.asked_hierarchy import asked_hierarchy
from graphrag_ray.query.methods.method import Ran

MAX_DESCRIPTION = 20_000
MOST_OF_EACH = 50
COLUMNS = tuple(field.name for field in fields(CorpusQuestion))


def described(run: EvaluationRun, description: str | None) -> str:
    """The description of the corpus; None: what the index says that it is about, or else what a model writes
    from its top reports. Raises UsageError for an empty one, and where there is no report."""
    if description is None:
        if run.index.settings.corpus.about:
            return run.index.settings.corpus.about
        spec = description_spec(run.index.settings, run.index.given.prompts)
        asked = [("the description of the corpus", partial(corpus_description, top_reports(run.index), spec))]
        (outcome,) = run.ask(STAGE, asked, 1, "description")
        if outcome.result is None:
            raise GraphRagError(f"the corpus could not be described: {outcome.error}. Give a --description")
        return outcome.result
    if not description.strip():
        raise UsageError("the description of the corpus is empty; without --description, one is written")
    if len(description) > MAX_DESCRIPTION:
        raise UsageError(
            f"the description of the corpus has {len(description):,} characters; {MAX_DESCRIPTION:,} at most"
        )
    return " ".join(description.split())


def top_reports(index: Index) -> str:
    """Titles and summaries of the reports of the highest levels, the most important first."""
    given = index.given
    reports = index.table(asked_hierarchy(given).reports_table, ["title", "summary", "level", "rank"])
    if not len(reports):
        raise UsageError("this index has no reports to describe its corpus from: give a --description")
    order = [("level", "ascending"), ("rank", "descending"), ("title", "ascending")]
    lines: list[str] = []
    room = TOP_REPORTS_TOKENS
    for row in reports.sort_by(order).slice(0, TOP_REPORTS).to_pylist():
        line = f"- {clean(row['title'])}: {' '.join(clean(row['summary'] or '').split())}"
        room -= given.count(line)
        if room < 0 and lines:
            break
        lines.append(line)
    return "\n".join(lines)


def check_counts(counts: tuple[int, int, int]) -> None:
    """Raises UsageError."""
    if not all(1 <= n <= MOST_OF_EACH for n in counts):
        raise UsageError(f"personas, tasks and questions: from 1 to {MOST_OF_EACH} of each can be written")


def write_questions(
    run: EvaluationRun, description: str, counts: tuple[int, int, int]
) -> tuple[list[CorpusQuestion], list[str]]:
    """The questions, and what failed. counts: of personas, tasks of each, questions of each task. Raises
    UsageError, RunStopped, DialogueFailed where there is no persona."""
    specs = question_specs(run.index.settings, run.index.given.prompts)
    writing = corpus_questions(description, counts, specs)
    need = next(writing)
    while True:
        step = need.start[0].args[0].replace("_", " ") if need.start else ""
        asked = [(f"{step}, {n}", one) for n, one in enumerate(need.start, 1)]
        outcomes = run.ask(STAGE, asked, len(asked), step)
        ran = [Ran(outcome.result, outcome.error) for outcome in outcomes]
        try:
            need = writing.send(ran)
        except StopIteration as ended:
            found: tuple[list[CorpusQuestion], list[str]] = ended.value
            return found


def as_csv(questions: Sequence[CorpusQuestion]) -> bytes:
    """What `query --batch` and `evaluate compare` read. A text that a spreadsheet would take for a formula
    has an apostrophe before it there."""
    table = as_table(questions)
    out = io.BytesIO()
    csv.write_csv(pa.table([for_spreadsheet(column) for column in table.columns], COLUMNS), out)
    return out.getvalue()


def as_table(questions: Sequence[CorpusQuestion]) -> pa.Table:
    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    return pa.Table.from_pylist([asdict(question) for question in questions], schema=schema)
