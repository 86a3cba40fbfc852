"""The helpfulness score of a map answer: `<ANSWER_HELPFULNESS> 85 </ANSWER_HELPFULNESS>` (paper E.3).

What the corpus says cannot pass for a score: `reports.context.clean` takes the tag's bracket out of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from graphrag_ray.graph.report_reply import ReplyProblem

_NAME = r"ANSWER[\s_]*HELPFULNESS"
_SCORE = re.compile(
    rf"[*`]{{0,4}}<\s*{_NAME}\s*[>:=][\s:=*`]*(-?\d+(?:\.\d+)?)(?:\s*/\s*100\b|\s*%)?>?"
    rf"(?:[\s*`.]*<\s*/\s*{_NAME}\s*>[*`]*)?",
    re.IGNORECASE,
)
_TAG = re.compile(rf"<\s*+(?:/\s*+)?{_NAME}\s*>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Scored:
    """text: the reply without its score; score: 0–100."""

    text: str
    score: float


def parse_scored(reply: str) -> Scored | ReplyProblem:
    """Split a map reply into its answer and its score. An answer may be empty where the score is zero.

    A score that is missing or contradicts itself is a problem, never a zero: a zero drops the answer.
    """
    scores = {min(max(float(number), 0.0), 100.0) for number in _SCORE.findall(reply)}
    if not scores:
        return ReplyProblem(
            "it has no score, which is a line <ANSWER_HELPFULNESS> N </ANSWER_HELPFULNESS> with a number "
            "from 0 to 100 for N"
        )
    if len(scores) > 1:
        return ReplyProblem("it has several scores that differ, and needs one for the whole answer")
    score = scores.pop()
    text = without_scores(reply)
    if not text and score > 0:
        return ReplyProblem("it has a score above zero but no answer")
    return Scored(text, score)


def without_scores(reply: str) -> str:
    return _TAG.sub("", _SCORE.sub("", reply)).strip()
