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

Results are pandas data frames, named like the tables in the folder `out`. The folder also stores every model
reply, so repeating a call costs nothing, and adding a condition or criterion costs only the new model calls.
Without `out`, nothing is stored.

Functions that take `**options` accept `on_ray`, `address` and `observer`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from graphrag_ray.base.errors import UsageError

CRITERIA = ("comprehensiveness", "diversity", "empowerment", "directness")
"""Default criteria, those of the GraphRAG paper (F.2) in our words. `overall` and, by the name followed by
`_by_content`, criteria that do not reward length or concision are also available."""
REPLICATES = 5
JUDGE_PROTOCOLS = ("separate", "joint")
"""A call per criterion, or one for all of them and an overall winner."""
METRICS = ("coverage", "faithfulness", "statement_f1")
"""Metrics of `qa` that need several calls of a judge per answer (`statement_scores.py`)."""

_SOURCE = "The list of questions"

if TYPE_CHECKING:
    from graphrag_ray.corpus.table_rows import TableRow
    from graphrag_ray.evaluate.comparison import Comparison
    from graphrag_ray.evaluate.conditions import EvaluationCondition
    from graphrag_ray.evaluate.evaluation_run import EvaluationRun, Results
    from graphrag_ray.query.ask import Index
    from graphrag_ray.query.question_files import BatchQuestion

__all__ = ["claims", "communities", "compare", "condition", "estimate", "qa", "questions"]


def condition(text: str, index: Index | str = "") -> EvaluationCondition:
    """Parse a condition, and let it ask another index: an open one, or a folder or URL.

    Example:
        ```python
        small = evaluate.condition("small=vector", graphrag_ray.open_index("index-of-small-chunks"))
        evaluate.compare(index, questions, ["large=vector", small])
        ```

    Raises:
        UsageError: The text is not a condition.
    """
    from dataclasses import replace

    from graphrag_ray.evaluate.conditions import parse_condition

    parsed = parse_condition(text)
    return replace(parsed, index=index) if index else parsed


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
    """Generate questions about the corpus as a whole (Algorithm 1 of the GraphRAG paper).

    Args:
        description: Describes the corpus. By default, uses the description in the index, or generates one
            from the top reports.

    Returns:
        A frame with the columns question_id, question, persona and task.
    """
    from graphrag_ray.evaluate import written_questions as writing

    counts = personas, tasks, questions
    with _evaluation_run(index, out, "questions", options) as run:
        writing.check_counts(counts)
        about = writing.corpus_description_of(run, description)
        written, failures = writing.write_questions(run, about, counts)
    _warn(failures)
    return writing.as_table(written).to_pandas()


def compare(
    index: Index,
    questions: Any,
    conditions: Sequence[str | EvaluationCondition],
    *,
    criteria: Sequence[str] = CRITERIA,
    replicates: int = REPLICATES,
    claims: bool = False,
    judge_protocol: str = JUDGE_PROTOCOLS[0],
    out: str | None = None,
    **options: Any,
) -> Mapping[str, Any]:
    """Compare conditions head to head.

    Args:
        questions: Strings, or rows or a data frame of a published data set (`evaluate.datasets`) or with a
            column `question` and optionally `question_id`.
        conditions: `NAME=METHOD[:LEVEL][,index=URL][,prompts=DIR][,setting=value…]`, `NAME=answers.csv`, or
            the result of `condition`.
        claims: Whether to count the factual claims in the answers, too.
        judge_protocol: "separate" calls the judge for each criterion, "joint" once for all of them and an
            overall winner.

    Returns:
        The data frames answers, judgements, win_rates, reliability, conditions, indexes and judging. With
        `claims`, also claims, claim_counts, count_tests and agreement.

    Raises:
        UsageError: The conditions cannot be compared. No model has been called.
        RunStopped: The run was interrupted. Repeat the call to continue it.
    """
    from graphrag_ray.evaluate import comparison

    unique, notes = _unique_questions(questions)
    with _evaluation_run(index, out, "compare", options) as run:
        result = comparison.compare(
            run, unique, conditions, criteria, replicates, claims=claims, protocol=judge_protocol
        )
    return _frames(result, notes)


def qa(
    index: Index,
    questions: Any,
    conditions: Sequence[str | EvaluationCondition],
    *,
    retrieval_only: bool = False,
    judge: bool = True,
    ks: Sequence[int] = (),
    metrics: Sequence[str] = (),
    out: str | None = None,
    **options: Any,
) -> Mapping[str, Any]:
    """Score conditions on questions with known answers.

    Args:
        questions: A file, rows or a data frame, of a published data set (`evaluate.datasets`) or with the
            columns listed at `evaluation_files.gold_questions`.
        retrieval_only: Score only the retrieved documents, without generating answers.
        judge: Whether a model judges the correctness of each answer.
        ks: Cut-offs for recall@k and similar measures.
        metrics: Metrics that need more calls of a judge: "coverage", "faithfulness" and "statement_f1".

    Returns:
        The data frames scores, summary, figures (means with deviations and intervals, also per type of
        question) and indexes and, unless `retrieval_only`, qa_conditions and qa_judging.
    """
    from graphrag_ray.evaluate.evaluation_files import gold_questions, to_gold_questions
    from graphrag_ray.evaluate.judging.answer_metrics import KS
    from graphrag_ray.evaluate.known_answers import score_known_answers

    if isinstance(questions, str):
        gold, notes = gold_questions(questions, index.settings.storage.fsspec_options(questions))
    else:
        gold, notes = to_gold_questions(_question_rows(questions), _SOURCE)
    with _evaluation_run(index, out, "qa", options) as run:
        results = score_known_answers(run, gold, conditions, retrieval_only, judge, ks or KS, metrics)
    return _frames(results, notes)


def claims(
    index: Index,
    questions: Any,
    conditions: Sequence[str | EvaluationCondition],
    *,
    out: str | None = None,
    **options: Any,
) -> Mapping[str, Any]:
    """Count the factual claims in answers.

    Returns:
        The data frames claims, claim_counts, count_tests and judging. Also agreement, if `out` contains
        judgements on these questions.
    """
    from graphrag_ray.evaluate.comparison import compare_claims

    unique, notes = _unique_questions(questions)
    with _evaluation_run(index, out, "claims", options) as run:
        results = compare_claims(run, unique, conditions)
    return _frames(results, notes)


def communities(index: Index) -> Any:
    """Measure modularity, Calinski-Harabasz index, mean cosine and sizes for each level of each hierarchy."""
    from graphrag_ray.evaluate.community_measures import measure_communities

    return measure_communities(index).to_pandas()


def estimate(
    index: Index,
    questions: Any,
    conditions: Sequence[str | EvaluationCondition],
    *,
    criteria: Sequence[str] = CRITERIA,
    replicates: int = REPLICATES,
    claims: bool = False,
    judge_protocol: str = JUDGE_PROTOCOLS[0],
) -> Any:
    """Predict the cost of `compare`.

    Returns a data frame with the columns name, calls, prompt_tokens, completion_tokens and cost_usd.
    """
    import pandas as pd

    from graphrag_ray.evaluate.cost_estimate import estimate_costs

    unique, notes = _unique_questions(questions)
    _warn(notes)
    costs = estimate_costs(index, unique, conditions, criteria, replicates, claims, judge_protocol)
    return pd.DataFrame(costs)


def _warn(messages: Sequence[str], stacklevel: int = 3) -> None:
    for message in messages:
        warnings.warn(message, stacklevel=stacklevel)


def _frames(results: Results | Comparison, notes: Sequence[str]) -> dict[str, Any]:
    _warn([*notes, *results.warnings], stacklevel=4)
    return {name: table.to_pandas() for name, table in results.tables.items()}


def _question_rows(questions: Any) -> list[TableRow]:
    """Return strings, rows or a data frame as rows with the columns of `qa`. Raises UsageError."""
    from graphrag_ray.corpus.table_rows import TableRow
    from graphrag_ray.evaluate.datasets import to_question_rows

    if hasattr(questions, "to_dict"):
        questions = questions.astype(object).where(questions.notna(), None).to_dict("records")
    items = [questions] if isinstance(questions, str) else list(questions)
    if wrong := [q for q in items if not isinstance(q, str | Mapping)]:
        raise UsageError(f"Questions must be strings, rows or a data frame, not {type(wrong[0]).__name__}")
    rows = ({"question": q} if isinstance(q, str) else _plain(q) for q in items)
    return to_question_rows(TableRow(number, row) for number, row in enumerate(rows, start=1))


def _plain(value: Any) -> Any:
    """Replace NumPy's arrays, which a data frame read from Parquet contains, with lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _unique_questions(questions: Any) -> tuple[list[BatchQuestion], list[str]]:
    """Return the valid, distinct questions, and warnings about the others."""
    from graphrag_ray.evaluate.evaluation_files import drop_repeats, questions_in

    return drop_repeats(questions_in(_question_rows(questions), _SOURCE))


@contextmanager
def _evaluation_run(
    index: Index, out: str | None, note: str, options: Mapping[str, Any]
) -> Iterator[EvaluationRun]:
    from graphrag_ray.evaluate.evaluation_run import evaluation_run

    with TemporaryDirectory() as folder, evaluation_run(index, out or folder, note, **options) as run:
        yield run
