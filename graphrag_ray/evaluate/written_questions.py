"""Generate questions about a whole corpus, and a description of it (Algorithm 1 of the GraphRAG paper)."""

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
from graphrag_ray.export.graph_tables import escape_spreadsheet
from graphrag_ray.graph.report_context import sanitize
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.hierarchy_choice import resolve_hierarchy
from graphrag_ray.query.methods.method import DialogueOutcome

MAX_DESCRIPTION = 20_000
MAX_COUNT = 50
COLUMNS = tuple(field.name for field in fields(CorpusQuestion))


def corpus_description_of(run: EvaluationRun, description: str | None) -> str:
    """Return the description: as passed, from the index, or generated from the top reports.

    Raises UsageError if the description is empty or if the index has no reports.
    """
    if description is None:
        if run.index.settings.corpus.description:
            return run.index.settings.corpus.description
        spec = description_spec(run.index.settings, run.index.env.prompts)
        dialogue = partial(corpus_description, top_reports(run.index), spec)
        (outcome,) = run.ask(STAGE, [("the description of the corpus", dialogue)], 1, "description")
        if outcome.result is None:
            raise GraphRagError(f"Could not describe the corpus: {outcome.error}. Pass a --description.")
        return outcome.result
    if not description.strip():
        raise UsageError("The description of the corpus is empty. Omit --description to generate one.")
    if len(description) > MAX_DESCRIPTION:
        length = f"{len(description):,} characters; at most {MAX_DESCRIPTION:,} are allowed"
        raise UsageError(f"The description of the corpus has {length}")
    return " ".join(description.split())


def top_reports(index: Index) -> str:
    """Return titles and summaries of the reports of the top levels, most important first."""
    env = index.env
    reports = index.table(resolve_hierarchy(env).reports_table, ["title", "summary", "level", "rank"])
    if not len(reports):
        raise UsageError("The index has no reports from which to describe its corpus. Pass a --description.")
    order = [("level", "ascending"), ("rank", "descending"), ("title", "ascending")]
    lines: list[str] = []
    remaining = TOP_REPORTS_TOKENS
    for row in reports.sort_by(order).slice(0, TOP_REPORTS).to_pylist():
        line = f"- {sanitize(row['title'])}: {' '.join(sanitize(row['summary'] or '').split())}"
        remaining -= env.count(line)
        if remaining < 0 and lines:
            break
        lines.append(line)
    return "\n".join(lines)


def check_counts(counts: tuple[int, int, int]) -> None:
    """Raise UsageError if a count is out of range."""
    if not all(1 <= n <= MAX_COUNT for n in counts):
        raise UsageError(f"The numbers of personas, tasks and questions must be between 1 and {MAX_COUNT}")


def write_questions(
    run: EvaluationRun, description: str, counts: tuple[int, int, int]
) -> tuple[list[CorpusQuestion], list[str]]:
    """Generate questions. Returns (questions, failures). Raises UsageError, RunStopped, DialogueFailed.

    Args:
        counts: Personas, tasks per persona, questions per task.
    """
    generator = corpus_questions(
        description, counts, question_specs(run.index.settings, run.index.env.prompts)
    )
    need = next(generator)
    while True:
        step = need.factories[0].args[0].replace("_", " ") if need.factories else ""
        dialogues = [(f"{step}, {n}", start) for n, start in enumerate(need.factories, 1)]
        outcomes = run.ask(STAGE, dialogues, len(dialogues), step)
        try:
            need = generator.send([DialogueOutcome(outcome.result, outcome.error) for outcome in outcomes])
        except StopIteration as ended:
            result: tuple[list[CorpusQuestion], list[str]] = ended.value
            return result


def as_csv(questions: Sequence[CorpusQuestion]) -> bytes:
    """Encode questions as CSV for `query --batch` and `evaluate compare`, safe to open in a spreadsheet."""
    out = io.BytesIO()
    csv.write_csv(pa.table(list(map(escape_spreadsheet, as_table(questions).columns)), COLUMNS), out)
    return out.getvalue()


def as_table(questions: Sequence[CorpusQuestion]) -> pa.Table:
    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    return pa.Table.from_pylist([asdict(question) for question in questions], schema=schema)
