"""Judge dialogues: compare two answers by a criterion (GraphRAG 3.3, F.1, F.2), list the claims of an answer
(GraphRAG 4.2), and compare an answer with the correct one (TREX)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import GenericAlias
from typing import Any, TypeVar

from pydantic import create_model

from graphrag_ray.base.context_records import anonymize_references
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, parse_reply, schema_of
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.extraction_dialogue import yes_or_no
from graphrag_ray.query.methods.map_reduce import AnswerSpec, build_request, build_spec, reply_or_correction

T = TypeVar("T")

STAGE = "judge"
CLAIMS_STAGE = "answer_claims"
CORRECT_PROMPT = "correct_answer"
MAX_VERDICT_TOKENS, MAX_CLAIMS_TOKENS, MAX_WORD_TOKENS = 300, 4_000, 16

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
    """The winner is 1 or 2, in the order of presentation, or 0 for a tie."""

    winner: int
    reason: str


def judge_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec(STAGE, settings, prompts, MAX_VERDICT_TOKENS)


def judge(
    question: str, criterion: str, answers: tuple[str, str], spec: AnswerSpec, sample: int
) -> Dialogue[Verdict]:
    """Compare two answers by the text of a criterion. sample: number of the replicate.

    References are anonymised, because they would reveal the kinds of records. Raises DialogueFailed if
    neither reply contains a verdict; this is not a tie.
    """
    variables = {
        "question": question,
        "criterion": criterion,
        "answer_1": anonymize_references(answers[0]),
        "answer_2": anonymize_references(answers[1]),
        **reply_lengths(spec.max_tokens),
    }
    return (yield from ask_for_json(variables, spec, VERDICT_SCHEMA, parse_verdict, sample))


def parse_verdict(reply: ChatReply) -> Verdict | ReplyProblem:
    verdict = parse_reply(reply.text, VerdictReply)
    winner, reason = ("", "") if isinstance(verdict, ReplyProblem) else (verdict.winner, verdict.reason)
    text = str(winner).strip() if isinstance(winner, str | int | float) else ""
    match = _WINNER.fullmatch(text)
    if isinstance(winner, bool) or not (match or _TIE.fullmatch(text)):
        return ReplyProblem('it holds no JSON object with "winner": 1, 2 or 0')
    return Verdict(int(match[1]) if match else 0, reason)


def answer_claims_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec(CLAIMS_STAGE, settings, prompts, MAX_CLAIMS_TOKENS)


def answer_claims(question: str, answer: str, spec: AnswerSpec) -> Dialogue[list[str]]:
    """List the self-contained factual claims in an answer. Raises DialogueFailed.

    Follows Metropolitansky and Larson 2025, "Towards Effective Extraction and Evaluation of Factual Claims",
    but makes one call for the paper's three steps.
    """
    variables = {"question": question, "answer": answer, **reply_lengths(spec.max_tokens)}

    def read(reply: ChatReply) -> list[str] | ReplyProblem:
        return parse_texts(reply, "claims", "claim")

    return (yield from ask_for_json(variables, spec, list_schema("claims", "claim"), read))


def correct_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """Use temperature 0 if the model accepts a temperature, because each answer is judged only once."""
    spec = build_spec(STAGE, settings, prompts, MAX_WORD_TOKENS, CORRECT_PROMPT)
    return replace(spec, call=replace(spec.call, temperature=spec.call.temperature and 0.0))


def is_correct(question: str, gold: Sequence[str], answer: str, spec: AnswerSpec) -> Dialogue[bool]:
    """Whether an answer agrees with the correct one, given its wordings. Raises DialogueFailed."""
    variables = {"question": question, "gold": "\n".join(f"- {text}" for text in gold), "answer": answer}
    reply: ChatReply = yield replace(build_request(CORRECT_PROMPT, variables, spec), response="yes_no")
    verdict = yes_or_no(reply)
    words = set(re.findall(r"[a-z]+", reply.text.lower()))
    if verdict is None or (words & {"y", "yes"} and words & {"n", "no"}):
        raise DialogueFailed(f"{CORRECT_PROMPT}: The reply is neither Y nor N")
    return verdict


def ask_for_json(
    variables: Mapping[str, str],
    spec: AnswerSpec,
    schema: Mapping[str, Any],
    read: Callable[[ChatReply], T | ReplyProblem],
    sample: int = 0,
) -> Dialogue[T]:
    """Request JSON and parse the reply with `read`. Raises DialogueFailed if two replies are unusable.

    sample: number of the replicate. It makes the request distinct.
    """
    request = replace(build_request(spec.prompt.name, variables, spec, schema), sample=sample)
    parsed, _ = yield from reply_or_correction(request, read, spec, spec.prompt.name)
    return parsed


@lru_cache
def list_reply(key: str, entry: str) -> type[JsonReply]:
    """Create the model of a reply `{key: [{entry: text}, …]}`."""
    fields: dict[str, Any] = {entry: (str, "")}
    model = create_model(entry, __base__=JsonReply, **fields)
    model.aliases = {entry: ("text", "description")}
    lists: dict[str, Any] = {key: (GenericAlias(list, model), ...)}
    return create_model(key, __base__=JsonReply, **lists)


def list_schema(key: str, entry: str) -> Mapping[str, Any]:
    return schema_of(list_reply(key, entry))


def parse_texts(reply: ChatReply, key: str, entry: str) -> list[str] | ReplyProblem:
    """Parse the distinct texts of a `list_reply`."""
    parsed = parse_reply(reply.text, list_reply(key, entry), reply.finish_reason)
    if isinstance(parsed, ReplyProblem):
        return parsed
    entries = getattr(parsed, key)
    texts = list(dict.fromkeys(text for one in entries if (text := getattr(one, entry))))
    return texts if texts or not entries else ReplyProblem(f"no entry of `{key}` has a text `{entry}`")
