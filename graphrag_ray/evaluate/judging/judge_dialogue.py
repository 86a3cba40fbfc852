"""Dialogues with a judge.

It compares two answers by a criterion (GraphRAG 3.3, F.1, F.2) or by several at once (LightRAG, FG-RAG,
ArchRAG), lists the claims of an answer (GraphRAG 4.2), compares an answer with the correct one (TREX), and
checks statements against a text (GraphRAG-Bench, BenchmarkQED).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import GenericAlias
from typing import Any, ClassVar, TypeVar

from pydantic import create_model

from graphrag_ray.base.context_records import anonymize_references
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, json_values, parse_reply, schema_of
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.extraction_dialogue import yes_or_no
from graphrag_ray.query.methods.map_reduce import AnswerSpec, build_request, build_spec, reply_or_correction

T = TypeVar("T")

STAGE = "judge"
CLAIMS_STAGE = "answer_claims"
JOINT_PROMPT = "judge_joint"
CORRECT_PROMPT = "correct_answer"
STATEMENTS_PROMPT = "check_statements"
MAX_VERDICT_TOKENS, MAX_CLAIMS_TOKENS, MAX_WORD_TOKENS = 300, 4_000, 16
STATEMENTS_PER_CALL = 40
TOKENS_PER_STATEMENT = 80


def _object(**properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the strict JSON schema of an object."""
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _array(**properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "array", "items": _object(**properties)}


_TEXT: Mapping[str, Any] = {"type": "string"}
_VERDICT: Mapping[str, Any] = {"reason": _TEXT, "winner": {"type": "integer", "enum": [0, 1, 2]}}
VERDICT_SCHEMA = _object(**_VERDICT)
VERDICTS_SCHEMA = _object(verdicts=_array(criterion=_TEXT, **_VERDICT))
_HOLDS = {"type": "string", "enum": ["yes", "no"]}
STATEMENTS_SCHEMA = _object(statements=_array(number={"type": "integer"}, reason=_TEXT, holds=_HOLDS))

_WINNER = re.compile(r"(?:answer[\s_#-]{0,3})?([012])(?:\.0)?", re.IGNORECASE)
_TIE = re.compile(r"(?:a )?(?:tie|draw)|neither|none|both|equal", re.IGNORECASE)
_YES_NO = dict.fromkeys(("yes", "y", "true", "1"), True) | dict.fromkeys(("no", "n", "false", "0"), False)


class VerdictReply(JsonReply):
    criterion: str = ""
    reason: str = ""
    winner: Any = None

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"reason": ("explanation", "reasoning")}


class VerdictsReply(JsonReply):
    verdicts: list[VerdictReply]


class StatementReply(JsonReply):
    number: Any = None
    reason: str = ""
    holds: Any = None

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"number": ("statement", "id"), "holds": ("verdict",)}


class StatementsReply(JsonReply):
    statements: list[StatementReply]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The winner is 1 or 2, in the order of presentation, or 0 for a tie."""

    winner: int
    reason: str


def judge_spec(settings: Settings, prompts: Mapping[str, Prompt], joint_criteria: int = 0) -> AnswerSpec:
    """Return the spec of a call about one criterion, or about `joint_criteria` criteria."""
    if joint_criteria:
        return build_spec(STAGE, settings, prompts, joint_criteria * MAX_VERDICT_TOKENS, JOINT_PROMPT)
    return build_spec(STAGE, settings, prompts, MAX_VERDICT_TOKENS)


def judge(
    question: str, criterion: str, answers: tuple[str, str], spec: AnswerSpec, sample: int
) -> Dialogue[Verdict]:
    """Compare two answers by the text of a criterion. sample: number of the replicate.

    References are anonymised, because they would reveal the kinds of records. Raises DialogueFailed if
    neither reply contains a verdict; this is not a tie.
    """
    variables = {"criterion": criterion, **_shown(question, answers, spec)}
    return (yield from ask_for_json(variables, spec, VERDICT_SCHEMA, parse_verdict, sample))


def judge_joint(
    question: str, criteria: Mapping[str, str], answers: tuple[str, str], spec: AnswerSpec, sample: int
) -> Dialogue[dict[str, Verdict]]:
    """Compare two answers by all criteria in one call. Returns a verdict per criterion.

    Args:
        criteria: Texts by name, in the order in which they are judged.
        sample: Number of the replicate.

    Raises:
        DialogueFailed: Two replies lack the verdict on a criterion.
    """
    listed = "\n".join(f"- {name}: {text}" for name, text in criteria.items())
    variables = {"criteria": listed, "names": ", ".join(criteria), **_shown(question, answers, spec)}
    read = partial(parse_verdicts, names=list(criteria))
    return (yield from ask_for_json(variables, spec, VERDICTS_SCHEMA, read, sample))


def _shown(question: str, answers: tuple[str, str], spec: AnswerSpec) -> dict[str, str]:
    return {
        "question": question,
        "answer_1": anonymize_references(answers[0]),
        "answer_2": anonymize_references(answers[1]),
        **reply_lengths(spec.max_tokens),
    }


def parse_verdict(reply: ChatReply) -> Verdict | ReplyProblem:
    verdict = parse_reply(reply.text, VerdictReply)
    read = None if isinstance(verdict, ReplyProblem) else _verdict_of(verdict)
    return read or ReplyProblem('it holds no JSON object with "winner": 1, 2 or 0')


def parse_verdicts(reply: ChatReply, names: Sequence[str]) -> dict[str, Verdict] | ReplyProblem:
    """Parse the verdicts on these criteria.

    Also accepts an object with a key per criterion, as LightRAG's judge writes it: {"Diversity": {"Winner":
    "Answer 1", "Explanation": …}, "Overall Winner": …}. The first verdict on a criterion counts.
    """
    value = next((value for value, _ in json_values(reply.text) if isinstance(value, dict)), {})
    fields = value.get("verdicts", value)
    named = fields.items() if isinstance(fields, dict) else ()
    rows = [{**entry, "criterion": name} for name, entry in named if isinstance(entry, dict)]
    parsed = parse_reply(reply.text, VerdictsReply, reply.finish_reason)
    entries = [VerdictReply.model_validate(row) for row in rows]
    if not entries and not isinstance(parsed, ReplyProblem):
        entries = parsed.verdicts
    found: dict[str, Verdict] = {}
    keys = {_key(name): name for name in names}
    for entry in entries:
        name = keys.get(_key(entry.criterion)) or keys.get(_key(entry.criterion).removesuffix("winner"))
        if name and name not in found and (verdict := _verdict_of(entry)):
            found[name] = verdict
    if missing := [name for name in names if name not in found]:
        return ReplyProblem(f'it holds no "winner": 1, 2 or 0 for {", ".join(missing)}')
    return found


def _key(name: str) -> str:
    """Reduce the name of a criterion to what identifies it."""
    return re.sub(r"[\W_]", "", name.casefold()) or name


def _verdict_of(reply: VerdictReply) -> Verdict | None:
    winner = reply.winner
    text = str(winner).strip() if isinstance(winner, str | int | float) else ""
    match = _WINNER.fullmatch(text)
    if isinstance(winner, bool) or not (match or _TIE.fullmatch(text)):
        return None
    return Verdict(int(match[1]) if match else 0, reply.reason)


def answer_claims_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec(CLAIMS_STAGE, settings, prompts, MAX_CLAIMS_TOKENS)


def answer_claims(question: str, answer: str, spec: AnswerSpec) -> Dialogue[list[str]]:
    """List the self-contained factual claims in an answer. Raises DialogueFailed.

    Follows Metropolitansky and Larson 2025, "Towards Effective Extraction and Evaluation of Factual Claims",
    but makes one call for the paper's three steps.
    """
    variables = {"question": question, "answer": answer, **reply_lengths(spec.max_tokens)}
    read = partial(parse_texts, key="claims", entry="claim")
    return (yield from ask_for_json(variables, spec, list_schema("claims", "claim"), read))


def correct_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return _repeatable_spec(settings, prompts, MAX_WORD_TOKENS, CORRECT_PROMPT)


def statements_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    limit = STATEMENTS_PER_CALL * TOKENS_PER_STATEMENT
    return _repeatable_spec(settings, prompts, limit, STATEMENTS_PROMPT)


def _repeatable_spec(
    settings: Settings, prompts: Mapping[str, Prompt], max_tokens: int, prompt: str
) -> AnswerSpec:
    """Use temperature 0 if the model accepts a temperature, because each answer is judged only once."""
    spec = build_spec(STAGE, settings, prompts, max_tokens, prompt)
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


def check_statements(
    question: str, statements: Sequence[str], text: str, spec: AnswerSpec
) -> Dialogue[list[bool]]:
    """Say which statements a text bears out, with a call per STATEMENTS_PER_CALL statements.

    Raises DialogueFailed if two replies lack a verdict on a statement.
    """
    holds: list[bool] = []
    for start in range(0, len(statements), STATEMENTS_PER_CALL):
        batch = [" ".join(statement.split()) for statement in statements[start : start + STATEMENTS_PER_CALL]]
        listed = "\n".join(f"{n}. {statement}" for n, statement in enumerate(batch, 1))
        variables = {"question": question, "statements": listed, "text": text}
        read = partial(parse_statements, n=len(batch))
        holds += yield from ask_for_json(variables, spec, STATEMENTS_SCHEMA, read)
    return holds


def parse_statements(reply: ChatReply, n: int) -> list[bool] | ReplyProblem:
    """Parse the verdicts on the statements 1 to n. The first verdict on a statement counts."""
    parsed = parse_reply(reply.text, StatementsReply, reply.finish_reason)
    if isinstance(parsed, ReplyProblem):
        return parsed
    found: dict[int, bool] = {}
    for position, entry in enumerate(parsed.statements, 1):
        number = re.search(r"\d{1,9}", str(position if entry.number is None else entry.number))
        verdict = _YES_NO.get(str(entry.holds).strip(" .").lower())
        if number and verdict is not None:
            found.setdefault(int(number[0]), verdict)
    if missing := [k for k in range(1, n + 1) if k not in found]:
        listed = ", ".join(map(str, missing))
        return ReplyProblem(f'it holds no "holds": "yes" or "no" for the statements {listed}')
    return [found[k] for k in range(1, n + 1)]


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
