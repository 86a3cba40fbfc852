"""The factual claims of an answer, each by itself (GraphRAG 4.2, after Metropolitansky and Larson 2025,
"Towards Effective Extraction and Evaluation of Factual Claims").

One call for the three steps of that paper, which has one for each.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.evaluate.judging.asked_as_json import asked_as_json, list_schema, texts_in
from graphrag_ray.query.methods.map_reduce import AnswerSpec, spec_of

STAGE = "answer_claims"
MAX_CLAIMS_TOKENS = 4_000


def answer_claims_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return spec_of(STAGE, settings, prompts, MAX_CLAIMS_TOKENS)


def answer_claims(question: str, answer: str, spec: AnswerSpec) -> Dialogue[list[str]]:
    """[] for an answer without any. Raises DialogueFailed."""
    variables = {"question": question, "answer": answer, **reply_lengths(spec.max_tokens)}

    def read(reply: ChatReply) -> list[str] | ReplyProblem:
        return texts_in(reply, "claims", "claim")

    return (yield from asked_as_json(variables, spec, list_schema("claims", "claim"), read))
