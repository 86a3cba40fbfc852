"""Have a model write questions about a whole corpus, and a description of it (Algorithm 1)."""

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
MAX_OF_EACH = 50
COLUMNS = tuple(field.name for field in fields(CorpusQuestion))


def corpus_description_of(run: EvaluationRun, description: str | None) -> str:
    """The description of the corpus; None uses that of the index, or else a model's, from the top reports.

    Raises UsageError for an empty description and for an index without reports.
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
        raise UsageError("The description of the corpus is empty. Omit --description to have one written.")
    if len(description) > MAX_DESCRIPTION:
        length = f"{len(description):,} characters, {MAX_DESCRIPTION:,} at most are allowed"
        raise UsageError(f"The description of the corpus has {length}")
    return " ".join(description.split())


def top_reports(index: Index) -> str:
    """Titles and summaries of the reports of the top levels, most important first."""
    given = index.env
    reports = index.table(resolve_hierarchy(given).reports_table, ["title", "summary", "level", "rank"])
    if not len(reports):
        raise UsageError("The index has no reports to describe its corpus from. Pass a --description.")
    order = [("level", "ascending"), ("rank", "descending"), ("title", "ascending")]
    lines: list[str] = []
    room = TOP_REPORTS_TOKENS
    for row in reports.sort_by(order).slice(0, TOP_REPORTS).to_pylist():
        line = f"- {sanitize(row['title'])}: {' '.join(sanitize(row['summary'] or '').split())}"
        room -= given.count(line)
        if room < 0 and lines:
            break
        lines.append(line)
    return "\n".join(lines)


def check_counts(counts: tuple[int, int, int]) -> None:
    """Raise UsageError for counts out of range."""
    if not all(1 <= n <= MAX_OF_EACH for n in counts):
        raise UsageError(f"The numbers of personas, tasks and questions must be between 1 and {MAX_OF_EACH}")


def write_questions(
    run: EvaluationRun, description: str, counts: tuple[int, int, int]
) -> tuple[list[CorpusQuestion], list[str]]:
    """The questions, and failure messages. counts: personas, tasks per persona, questions per task.

    Raises UsageError, RunStopped, and DialogueFailed without a persona.
    """
    writing = corpus_questions(description, counts, question_specs(run.index.settings, run.index.env.prompts))
    need = next(writing)
    while True:
        step = need.factories[0].args[0].replace("_", " ") if need.factories else ""
        dialogues = [(f"{step}, {n}", start) for n, start in enumerate(need.factories, 1)]
        outcomes = run.ask(STAGE, dialogues, len(dialogues), step)
        try:
            need = writing.send([DialogueOutcome(outcome.result, outcome.error) for outcome in outcomes])
        except StopIteration as ended:
            result: tuple[list[CorpusQuestion], list[str]] = ended.value
            return result


def as_csv(questions: Sequence[CorpusQuestion]) -> bytes:
    """CSV that `query --batch` and `evaluate compare` read, safe to open in a spreadsheet."""
    out = io.BytesIO()
    csv.write_csv(pa.table(list(map(escape_spreadsheet, as_table(questions).columns)), COLUMNS), out)
    return out.getvalue()


def as_table(questions: Sequence[CorpusQuestion]) -> pa.Table:
    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    return pa.Table.from_pylist([asdict(question) for question in questions], schema=schema)
