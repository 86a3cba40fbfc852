"""Evaluation of an index and of ways of answering: which is better, with figures.

    import graphrag_ray
    from graphrag_ray import evaluate

    index = graphrag_ray.open_index("my-index")
    asked = evaluate.questions(index)
    found = evaluate.compare(index, asked, ["C0=global:C0", "vector=vector"], out="my-evaluation")
    found["win_rates"]

Results are frames of pandas, by the names of the tables in the folder `out`. That also holds every reply of a
model: the same call again costs nothing, and one with another condition or criterion pays for what is new.
Without `out`, nothing is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from graphrag_ray.base.errors import UsageError

CRITERIA = ("comprehensiveness", "diversity", "empowerment", "directness")
"""Those of the paper, by which answers are compared; `overall` is there, too."""
REPLICATES = 5

if TYPE_CHECKING:
    from graphrag_ray.evaluate.evaluation_run import EvaluationRun
    from graphrag_ray.query.ask import Index

__all__ = ["claims", "communities", "compare", "estimate", "qa", "questions"]


def questions(
    index: Index,
    description: str | None = None,
    *,
    personas: int = 5,
    tasks: int = 5,
    questions: int = 5,
    out: str | None = None,
    **how: Any,
) -> Any:
    """Questions on the corpus as a whole (Algorithm 1 of the paper): question_id, question, persona, task.

    description: of the corpus; None: one is written from its top reports. how: on_ray, address, observer
    """
    from graphrag_ray.evaluate.written_questions import as_table, check_counts, described, write_questions

    with _run(index, out, "questions", how) as run:
        check_counts((personas, tasks, questions))
        found, failures = write_questions(run, described(run, description), (personas, tasks, questions))
    _warn(failures)
    return as_table(found).to_pandas()


def compare(
    index: Index,
    questions: Any,
    conditions: Sequence[str],
    *,
    criteria: Sequence[str] = CRITERIA,
    replicates: int = REPLICATES,
    claims: bool = False,
    out: str | None = None,
    **how: Any,
) -> Mapping[str, Any]:
    """Compare conditions head to head: frames answers, judgements, win_rates, reliability, conditions, and
    with `claims` claims, claim_counts and agreement.

    questions    texts, or a frame with a column `question` and maybe `question_id`
    conditions   "NAME=METHOD[:LEVEL][,setting=value…]", or "NAME=answers.csv"
    how          on_ray, address, observer
    Raises UsageError, RunStopped.
    """
    from graphrag_ray.evaluate import comparison
    from graphrag_ray.evaluate.evaluation_files import without_repeats

    posed, told = without_repeats(_posed(questions))
    with _run(index, out, "compare", how) as run:
        found = comparison.compare(run, posed, conditions, _names(criteria), replicates, claims=claims)
    return _frames(found.tables, [*told, *found.warnings])


def qa(
    index: Index,
    questions: Any,
    conditions: Sequence[str],
    *,
    retrieval_only: bool = False,
    judge: bool = True,
    ks: Sequence[int] = (),
    out: str | None = None,
    **how: Any,
) -> Mapping[str, Any]:
    """Questions with known answers: frames scores, summary and, where there are answers, qa_conditions.

    questions: a file, or rows or a frame, with columns as `evaluation_files.gold_questions` says
    """
    from graphrag_ray.evaluate.evaluation_files import gold_of, gold_questions, without_repeats
    from graphrag_ray.evaluate.judging.answer_metrics import KS
    from graphrag_ray.evaluate.known_answers import known_answers

    if isinstance(questions, str):
        gold, told = gold_questions(questions, index.settings.storage.of(questions))
    else:
        rows = _rows(questions)
        posed, told = without_repeats(_posed(rows))
        gold = gold_of(posed, enumerate(rows, start=1), "what was given")
    with _run(index, out, "qa", how) as run:
        found = known_answers(run, gold, conditions, retrieval_only, judge, ks or KS)
    return _frames(found.tables, [*told, *found.warnings])


def claims(
    index: Index, questions: Any, conditions: Sequence[str], *, out: str | None = None, **how: Any
) -> Mapping[str, Any]:
    """The factual claims of answers: frames claims, claim_counts and, where `out` holds judgements on these
    questions, agreement."""
    from graphrag_ray.evaluate.comparison import claims_of
    from graphrag_ray.evaluate.evaluation_files import without_repeats

    posed, told = without_repeats(_posed(questions))
    with _run(index, out, "claims", how) as run:
        found = claims_of(run, posed, conditions)
    return _frames(found.tables, [*told, *found.warnings])


def communities(index: Index) -> Any:
    """Modularity, Calinski-Harabasz index, mean cosine and sizes of each level of each hierarchy."""
    from graphrag_ray.evaluate.community_measures import measured_communities

    return measured_communities(index).to_pandas()


def estimate(
    index: Index,
    questions: Any,
    conditions: Sequence[str],
    *,
    criteria: Sequence[str] = CRITERIA,
    replicates: int = REPLICATES,
    claims: bool = False,
) -> Any:
    """What `compare` will ask for: name, calls, prompt_tokens, completion_tokens, cost_usd."""
    import pandas as pd

    from graphrag_ray.evaluate.evaluation_files import without_repeats
    from graphrag_ray.evaluate.planned_costs import planned_costs

    posed, told = without_repeats(_posed(questions))
    _warn(told)
    costs = planned_costs(index, posed, conditions, _names(criteria), replicates, claims)
    return pd.DataFrame(costs)


def _names(given: Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given


def _warn(told: Sequence[str], stacklevel: int = 3) -> None:
    """As Python warns: whoever computes with the figures shall see it."""
    for text in told:
        warnings.warn(text, stacklevel=stacklevel)


def _frames(tables: Mapping[str, Any], told: Sequence[str]) -> dict[str, Any]:
    _warn(told, stacklevel=4)
    return {name: table.to_pandas() for name, table in tables.items()}


def _rows(questions: Any) -> list[Any]:
    if hasattr(questions, "to_dict"):
        questions = questions.astype(object).where(questions.notna(), None).to_dict("records")
    each = [questions] if isinstance(questions, str) else questions
    return [{"question": q} if isinstance(q, str) else q for q in each]


def _posed(questions: Any) -> Any:
    from graphrag_ray.corpus.table_rows import Row
    from graphrag_ray.query.methods.method import MAX_QUESTION_CHARACTERS
    from graphrag_ray.query.question_files import Posed, posed_of

    given = _rows(questions)
    if not given:
        raise UsageError("there is no question")
    if all(isinstance(q, Posed) for q in given):
        return given
    if wrong := [q for q in given if not isinstance(q, Mapping)]:
        raise UsageError(f"questions are texts, rows or a frame, not {type(wrong[0]).__name__}")
    rows = (Row(number, row) for number, row in enumerate(given, start=1))
    return posed_of(rows, "the questions", "", MAX_QUESTION_CHARACTERS)


@contextmanager
def _run(index: Index, out: str | None, note: str, how: Mapping[str, Any]) -> Iterator[EvaluationRun]:
    from graphrag_ray.evaluate.evaluation_run import evaluation_run

    with TemporaryDirectory() as folder, evaluation_run(index, out or folder, note, **how) as run:
        yield run
