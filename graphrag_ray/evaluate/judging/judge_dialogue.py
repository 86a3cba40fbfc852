"""Which of two answers is better by a criterion: what a judge is asked (GraphRAG 3.3, F.1, F.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, read_reply
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.base.records import blind_references
from graphrag_ray.evaluate.judging.asked_as_json import asked_as_json
from graphrag_ray.query.methods.map_reduce import AnswerSpec, spec_of

STAGE = "judge"
MAX_VERDICT_TOKENS = 300

VERDICT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "winner": {"type": "integer", "enum": [0, 1, 2]}},
    "required": ["reason", "winner"],
    "additionalProperties": False,
}
_WINNER = re.compile(r"(?:answer[\s_#-]{0,3})?([012])(?:\.0)?", re.IGNORECASE)
_TIE = re.compile(r"(?:a )?(?:tie|draw)|neither|none|both|equal", re.IGNORECASE)


class VerdictReply(JsonReply):
    reason: str = ""
    winner: Any = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """winner: 1 or 2, as the answers were shown; 0: neither."""

    winner: int
    reason: str


def judge_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return spec_of(STAGE, settings, prompts, MAX_VERDICT_TOKENS)


def judge(
    question: str, criterion: str, answers: tuple[str, str], spec: AnswerSpec, sample: int
) -> Dialogue[Verdict]:
    """criterion: in words; sample: number of the replicate. References in the answers do not show which kind
    of record they name. Raises DialogueFailed where neither reply holds a verdict: that is no tie."""
    variables = {
        "question": question,
        "criterion": criterion,
        "answer_1": blind_references(answers[0]),
        "answer_2": blind_references(answers[1]),
        **reply_lengths(spec.max_tokens),
    }
    return (yield from asked_as_json(variables, spec, VERDICT_SCHEMA, parse_verdict, sample))


def parse_verdict(reply: ChatReply) -> Verdict | ReplyProblem:
    found = read_reply(reply.text, VerdictReply)
    winner, reason = ("", "") if isinstance(found, ReplyProblem) else (found.winner, found.reason)
    said = str(winner).strip() if isinstance(winner, str | int | float) else ""
    match = _WINNER.fullmatch(said)
    if isinstance(winner, bool) or not (match or _TIE.fullmatch(said)):
        return ReplyProblem('it holds no JSON object with "winner": 1, 2 or 0')
    return Verdict(int(match[1]) if match else 0, reason)
