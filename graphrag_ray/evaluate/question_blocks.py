"""Answers and verdicts as the page of a comparison holds them: for each question a script of JSON, which the
page reads when the question is chosen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from graphrag_ray.evaluate.safe_html import Markup, clean, json_script, rendered_markdown

MAX_BYTES = 14_000_000
"""Of answers and reasons in the page. The questions beyond have their verdicts alone."""

PairNumbers: TypeAlias = tuple[int, int, int]
"""The lower and the higher number of a condition, the number of a criterion."""
GivenAnswers: TypeAlias = Mapping[str, Mapping[str, tuple[str | None, str | None]]]
"""question_id -> condition -> its text, its error"""


@dataclass(frozen=True)
class ShownVerdict:
    """A judgement of two conditions, a before b.

    letter   `a` or `b` for the one that won, `t` for a tie, `x` for no verdict; a capital where b was shown
             first
    said     the judge's reason, or why there is no verdict
    """

    letter: str
    said: str


def question_blocks(
    questions: Iterable[str],
    conditions: Sequence[str],
    criteria: Sequence[str],
    answers: pa.Table,
    judgements: pa.Table,
) -> tuple[list[Markup], int]:
    """The scripts `question-0`, `question-1`, …; and how many of them have answers and reasons.

    questions: ids. conditions, criteria: names, which the scripts refer to by their numbers. answers and
    judgements: see `Evaluation`. A script has

    answers   HTML of each condition's answer; null where there is none
    errors    why an answer is missing, by the number of the condition
    said      what the judge said, each text once
    judged    for each pair and criterion: a, b, criterion, letters of the verdicts, numbers in `said`
    """
    answered, judged = _answers(answers), _verdicts(judgements, conditions, criteria)
    blocks, left, complete = [], MAX_BYTES, 0
    for at, id_ in enumerate(questions):
        verdicts, block = judged.get(id_, {}), None
        if left > 0:
            block = json_script(f"question-{at}", _detailed(verdicts, answered.get(id_, {}), conditions))
            left -= len(block.encode())
        if block is None or left < 0:
            block = json_script(f"question-{at}", {"judged": _letters(verdicts)})
        else:
            complete += 1
        blocks.append(block)
    return blocks, complete


def _letters(verdicts: Mapping[PairNumbers, Sequence[ShownVerdict]]) -> list[list[Any]]:
    return [[*pair, "".join(verdict.letter for verdict in found)] for pair, found in verdicts.items()]


def _detailed(
    verdicts: Mapping[PairNumbers, Sequence[ShownVerdict]],
    answers: Mapping[str, tuple[str | None, str | None]],
    conditions: Sequence[str],
) -> dict[str, Any]:
    given = [answers.get(name, (None, None)) for name in conditions]
    texts = dict.fromkeys(verdict.said for found in verdicts.values() for verdict in found)
    number = {text: n for n, text in enumerate(texts)}
    said = [[number[verdict.said] for verdict in found] for found in verdicts.values()]
    return {
        "answers": [rendered_markdown(text) if text and text.strip() else None for text, _ in given],
        "errors": {n: clean(error) for n, (_, error) in enumerate(given) if error},
        "said": [clean(text) for text in texts],
        "judged": [[*row, numbers] for row, numbers in zip(_letters(verdicts), said, strict=True)],
    }


def _answers(answers: pa.Table) -> GivenAnswers:
    found: dict[str, dict[str, tuple[str | None, str | None]]] = defaultdict(dict)
    columns = (answers[name].to_pylist() for name in ("question_id", "condition", "text", "error"))
    for question_id, condition, text, error in zip(*columns, strict=True):
        found[question_id][condition] = text, error
    return found


def _verdicts(
    judgements: pa.Table, conditions: Sequence[str], criteria: Sequence[str]
) -> Mapping[str, Mapping[PairNumbers, Sequence[ShownVerdict]]]:
    """By question_id, in the order of replicates."""
    condition = {name: n for n, name in enumerate(conditions)}
    criterion = {name: n for n, name in enumerate(criteria)}
    found: dict[str, dict[PairNumbers, list[ShownVerdict]]] = defaultdict(lambda: defaultdict(list))
    table = judgements.sort_by([("replicate", "ascending")])
    names = ("question_id", "criterion", "first", "second", "swapped", "winner", "reason", "error")
    columns = (table[name].to_pylist() for name in names)
    for question_id, by, first, second, swapped, winner, reason, error in zip(*columns, strict=True):
        a, b = sorted((first, second), key=condition.__getitem__)
        letter = {a: "a", b: "b", "": "t"}.get(winner, "x")
        if b == (second if swapped else first):
            letter = letter.upper()
        pair = condition[a], condition[b], criterion[by]
        found[question_id][pair].append(ShownVerdict(letter, reason or error or ""))
    return found
