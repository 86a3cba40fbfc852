"""Score answers by the statements that they, the correct answers or their contexts contain, with a judge.

A model lists the statements of a text, and the judge says which of them another text bears out:

    coverage        statements of the correct answer that the answer bears out (GraphRAG-Bench)
    faithfulness    statements of the answer that the retrieved passages bear out (GraphRAG-Bench)
    statement_f1    F1 of the answer's statements against those of the correct answer
    assertions      assertions of the question that the answer bears out (BenchmarkQED)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from graphrag_ray.base.context_records import strip_references
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.evaluate import METRICS
from graphrag_ray.evaluate.evaluation_files import GoldQuestion
from graphrag_ray.evaluate.evaluation_run import EvaluationRun, Results
from graphrag_ray.evaluate.judging.answer_metrics import distinct_claims
from graphrag_ray.evaluate.judging.judge_dialogue import (
    CLAIMS_STAGE,
    STATEMENTS_PROMPT,
    answer_claims,
    answer_claims_spec,
    check_statements,
    statements_spec,
)

T = TypeVar("T")

COVERAGE, FAITHFULNESS, STATEMENT_F1 = METRICS
ASSERTIONS = "assertions"  # Judged whenever the questions have them.
_PRECISION = "precision"
MAX_CONTEXT_CHARACTERS = 60_000
"""Maximum length of the passages against which statements are checked. A search method that reads entities
counts all of their chunks as retrieved."""

Key = tuple[str, str]
"""Condition and question id."""


def score_statements(
    run: EvaluationRun,
    answers: Sequence[tuple[str, GoldQuestion, str]],
    contexts: Mapping[Key, Sequence[str]],
    metrics: set[str],
    results: Results,
) -> dict[Key, dict[str, float]]:
    """Score answers, given as (condition, question, text).

    A metric that is undefined for an answer is missing: coverage without a correct answer, faithfulness
    without passages or statements, assertions if the question has none. Failures are counted in `results`.

    Args:
        contexts: The texts of the retrieved passages, for answers whose search method retrieves passages.
    """
    points: dict[str, list[str]] = {}
    if metrics & {COVERAGE, STATEMENT_F1}:
        gold = {q.question.id: q for _, q, _ in answers if q.answers}
        texts = {id_: (f"the correct answer to question {id_}", q, q.answers[0]) for id_, q in gold.items()}
        points = _list_statements(run, texts, results)
        # A correct answer that is only a name contains no claim.
        points = {id_: statements or [gold[id_].answers[0]] for id_, statements in points.items()}
    claims: dict[Key, list[str]] = {}
    if metrics & {FAITHFULNESS, STATEMENT_F1}:
        of_answers = {(n, q.question.id): (f"question {q.question.id}, {n}", q, t) for n, q, t in answers}
        claims = _list_statements(run, of_answers, results)
    spec = statements_spec(run.index.settings, run.index.env.prompts)
    checks: list[tuple[Key, str, Callable[[], Dialogue[list[bool]]]]] = []
    for name, q, text in answers:
        key, answer = (name, q.question.id), strip_references(text)
        made, needed = claims.get(key, []), points.get(q.question.id, [])
        passages = "\n\n".join(contexts.get(key, ()))[:MAX_CONTEXT_CHARACTERS]
        # Statements to check against a text, by measure.
        to_check: dict[str, tuple[Sequence[str], str]] = {
            ASSERTIONS: (q.assertions if ASSERTIONS in metrics else (), answer),
            COVERAGE: (needed, answer),
            _PRECISION: (made if STATEMENT_F1 in metrics and needed else (), "\n".join(q.answers)),
            FAITHFULNESS: (made if FAITHFULNESS in metrics and key in contexts else (), passages),
        }
        checks += [
            (key, measure, partial(check_statements, q.question.text, statements, against, spec))
            for measure, (statements, against) in to_check.items()
            if statements
        ]
    dialogues = ((f"question {id_}, {name}, {measure}", start) for (name, id_), measure, start in checks)
    held: dict[tuple[Key, str], list[bool]] = {}
    outcomes = run.ask(STATEMENTS_PROMPT, dialogues, len(checks))
    for ((name, id_), measure, _), outcome in zip(checks, outcomes, strict=True):
        if outcome.result is None:
            results.add_failures(f"Question {id_}, {name}: No {measure}: {outcome.error}")
        else:
            held[(name, id_), measure] = outcome.result
    scores: dict[Key, dict[str, float]] = {(name, q.question.id): {} for name, q, _ in answers}
    for (key, measure), verdicts in held.items():
        if measure in metrics:
            scores[key][measure] = sum(verdicts) / len(verdicts)
    for key in scores if STATEMENT_F1 in metrics else ():
        covered, correct = held.get((key, COVERAGE)), held.get((key, _PRECISION))
        if covered is not None and (correct is not None or claims.get(key) == []):
            # As in GraphRAG-Bench, true positives are statements of the answer.
            true, stated = sum(correct or ()), len(correct or ())
            scores[key][STATEMENT_F1] = 2 * true / (true + stated + covered.count(False)) if true else 0.0
    return scores


def _list_statements(
    run: EvaluationRun, texts: Mapping[T, tuple[str, GoldQuestion, str]], results: Results
) -> dict[T, list[str]]:
    """List the distinct statements of texts, given as (label, question, text). Failures are missing."""
    spec = answer_claims_spec(run.index.settings, run.index.env.prompts)
    dialogues = (
        (label, partial(answer_claims, q.question.text, text, spec)) for label, q, text in texts.values()
    )
    outcomes = run.ask(CLAIMS_STAGE, dialogues, len(texts))
    listed: dict[T, list[str]] = {}
    for (key, (label, *_)), outcome in zip(texts.items(), outcomes, strict=True):
        if outcome.result is None:
            results.add_failures(f"The statements of {label} could not be listed: {outcome.error}")
        else:
            listed[key] = distinct_claims(outcome.result)
    return listed
