"""Evaluate an index and compare search methods.

Example:
    ```python
    import graphrag_ray
    from graphrag_ray import evaluate

    index = graphrag_ray.open_index("my-index")
    questions = evaluate.questions(index)
    results = evaluate.compare(index, questions, ["C0=global:C0", "vector=vector"], out="my-evaluation")
    results["win_rates"]
    ```

Results are pandas frames, named like the tables in the folder `out`. That folder also holds every model
reply: repeating a call costs nothing, and a call with one more condition or criterion pays only for what is
new. Without `out`, nothing is kept.

All functions that take `**options` accept `on_ray`, `address` and `observer`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from graphrag_ray.base.errors import UsageError

CRITERIA = ("comprehensiveness", "diversity", "empowerment", "directness")
"""The paper's criteria, used by default. `overall` is also available."""
REPLICATES = 5

if TYPE_CHECKING:
    from graphrag_ray.evaluate.evaluation_run import EvaluationRun
    from graphrag_ray.query.ask import Index
    from graphrag_ray.query.question_files import BatchQuestion

__all__ = ["claims", "communities", "compare", "estimate", "qa", "questions"]


def questions(
    index: Index,
    description: str | None = None,
    *,
    personas: int = 5,
    tasks: int = 5,
    questions: int = 5,
    out: str | None = None,
    **options: Any,
) -> Any:
    """Write questions about the corpus as a whole (Algorithm 1 of the paper).

    Args:
        description: Describes the corpus; None has a model write one from the top reports.

    Returns:
        A frame with the columns question_id, question, persona and task.
    """
    from graphrag_ray.evaluate.written_questions import (
        as_table,
        check_counts,
        corpus_description_of,
        write_questions,
    )

    with _evaluation_run(index, out, "questions", options) as run:
        check_counts((personas, tasks, questions))
        written, failures = write_questions(
            run, corpus_description_of(run, description), (personas, tasks, questions)
        )
    _warn(failures)
    return as_table(written).to_pandas()


def compare(
    index: Index,
    questions: Any,
    conditions: Sequence[str],
    *,
    criteria: Sequence[str] = CRITERIA,
    replicates: int = REPLICATES,
    claims: bool = False,
    out: str | None = None,
    **options: Any,
) -> Mapping[str, Any]:
    """Compare conditions head to head.

    Args:
        questions: Texts, or a frame with a column `question` and optionally `question_id`.
        conditions: `NAME=METHOD[:LEVEL][,setting=value…]` or `NAME=answers.csv`.
        claims: Also count the factual claims of the answers.

    Returns:
        The frames answers, judgements, win_rates, reliability, conditions and judging; with `claims` also
        claims, claim_counts and agreement.

    Raises:
        UsageError: The conditions cannot be compared. Nothing has been paid for.
        RunStopped: The run was interrupted. The same call continues it.
    """
    from graphrag_ray.evaluate import comparison

    posed, notes = _unique_questions(questions)
    criteria = (criteria,) if isinstance(criteria, str) else criteria
    with _evaluation_run(index, out, "compare", options) as run:
        result = comparison.compare(run, posed, conditions, criteria, replicates, claims=claims)
    return _frames(result.tables, [*notes, *result.warnings])


def qa(
    index: Index,
    questions: Any,
    conditions: Sequence[str],
    *,
    retrieval_only: bool = False,
    judge: bool = True,
    ks: Sequence[int] = (),
    out: str | None = None,
    **options: Any,
) -> Mapping[str, Any]:
    """Score conditions on questions with known answers.

    Args:
        questions: A file, rows or a frame, with the columns that `evaluation_files.gold_questions` lists.
        retrieval_only: Score only which documents are retrieved; no model writes answers.
        judge: Have a model judge whether each answer is correct.
        ks: Cut-offs of recall@k and the like.

    Returns:
        The frames scores and summary and, unless `retrieval_only`, qa_conditions.
    """
    from graphrag_ray.evaluate.evaluation_files import gold_of, gold_questions
    from graphrag_ray.evaluate.judging.answer_metrics import KS
    from graphrag_ray.evaluate.known_answers import known_answers

    if isinstance(questions, str):
        gold, notes = gold_questions(questions, index.settings.storage.fsspec_options(questions))
    else:
        rows = _rows(questions)
        posed, notes = _unique_questions(rows)
        gold = gold_of(posed, enumerate(rows, start=1), "The list of questions")
    with _evaluation_run(index, out, "qa", options) as run:
        results = known_answers(run, gold, conditions, retrieval_only, judge, ks or KS)
    return _frames(results.tables, [*notes, *results.warnings])


def claims(
    index: Index, questions: Any, conditions: Sequence[str], *, out: str | None = None, **options: Any
) -> Mapping[str, Any]:
    """Count the factual claims of answers.

    Returns:
        The frames claims, claim_counts and judging and, if `out` holds judgements on these questions,
        agreement.
    """
    from graphrag_ray.evaluate.comparison import compare_claims

    posed, notes = _unique_questions(questions)
    with _evaluation_run(index, out, "claims", options) as run:
        results = compare_claims(run, posed, conditions)
    return _frames(results.tables, [*notes, *results.warnings])


def communities(index: Index) -> Any:
    """Measure modularity, Calinski-Harabasz index, mean cosine and sizes for each level of each hierarchy."""
    from graphrag_ray.evaluate.community_measures import measure_communities

    return measure_communities(index).to_pandas()


def estimate(
    index: Index,
    questions: Any,
    conditions: Sequence[str],
    *,
    criteria: Sequence[str] = CRITERIA,
    replicates: int = REPLICATES,
    claims: bool = False,
) -> Any:
    """Predict what `compare` will cost: name, calls, prompt_tokens, completion_tokens, cost_usd."""
    import pandas as pd

    from graphrag_ray.evaluate.cost_estimate import estimate_costs

    posed, notes = _unique_questions(questions)
    _warn(notes)
    criteria = (criteria,) if isinstance(criteria, str) else criteria
    return pd.DataFrame(estimate_costs(index, posed, conditions, criteria, replicates, claims))


def _warn(messages: Sequence[str], stacklevel: int = 3) -> None:
    for message in messages:
        warnings.warn(message, stacklevel=stacklevel)


def _frames(tables: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
    _warn(notes, stacklevel=4)
    return {name: table.to_pandas() for name, table in tables.items()}


def _rows(questions: Any) -> list[Any]:
    if hasattr(questions, "to_dict"):
        questions = questions.astype(object).where(questions.notna(), None).to_dict("records")
    listed = [questions] if isinstance(questions, str) else questions
    return [{"question": q} if isinstance(q, str) else q for q in listed]


def _unique_questions(questions: Any) -> tuple[list[BatchQuestion], list[str]]:
    """The valid questions, each once, and warnings about the others."""
    from graphrag_ray.corpus.table_rows import TableRow
    from graphrag_ray.evaluate.evaluation_files import without_repeats
    from graphrag_ray.query.methods.method import MAX_QUESTION_CHARACTERS
    from graphrag_ray.query.question_files import BatchQuestion, questions_of

    given = _rows(questions)
    if not given:
        raise UsageError("No questions given")
    if all(isinstance(q, BatchQuestion) for q in given):
        return without_repeats(given)
    if wrong := [q for q in given if not isinstance(q, Mapping)]:
        raise UsageError(f"Questions must be texts, rows or a frame, not {type(wrong[0]).__name__}")
    rows = (TableRow(number, row) for number, row in enumerate(given, start=1))
    return without_repeats(questions_of(rows, "the questions", "", MAX_QUESTION_CHARACTERS))


@contextmanager
def _evaluation_run(
    index: Index, out: str | None, note: str, options: Mapping[str, Any]
) -> Iterator[EvaluationRun]:
    from graphrag_ray.evaluate.evaluation_run import evaluation_run

    with TemporaryDirectory() as folder, evaluation_run(index, out or folder, note, **options) as run:
        yield run
