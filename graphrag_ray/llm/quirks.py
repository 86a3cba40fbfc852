"""Endpoint quirks: parameters and behaviour that differ from the OpenAI API.

They are known for a model family, or learned from an endpoint's responses. A parameter that an endpoint
refuses is dropped, renamed or weakened. Quirks have names and are shared with other callers of the endpoint
and with later runs (`Accounts.quirks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from graphrag_ray.base.messages import ChatRequest, Message
from graphrag_ray.base.reasoning import ModelFamily
from graphrag_ray.llm.call_failures import HttpRefusal

YES_NO_TOKENS = 8  # limit for a one-word answer that is not forced to one token
YES, NO = "Y", "N"  # the answers to a yes_no request, which its prompt also names

_REFUSED = re.compile(
    r"unsupported|not support|n't support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed"
    r"|extra (input|field)|deprecated|not available|not enabled|incompatible|cannot be used|invalid"
    r"|use '?max_completion_tokens|must contain the word",
    re.IGNORECASE,
)
_TOO_MUCH = re.compile(r"context length|context window|too large|too long|at most|exceed", re.IGNORECASE)
_NO_SYSTEM_ROLE = re.compile(r"system[ '\"`]*(role|message)s?\b.*(not support|unsupported|not allowed)", re.I)

_OPTIONAL = ("logit_bias", "temperature", "response_format", "max_tokens", "max_completion_tokens",
             "encoding_format", "stream_options", "stream", "reasoning_effort")  # fmt: skip
_FORMATS = ("json_schema", "json_object")

REASONS, IMPLICIT_REASONING, NO_SYSTEM, USAGE = "thinks", "opened", "system", "usage"
_DESCRIPTIONS = {
    REASONS: "the model reasons before it replies, so its replies get extra tokens",
    IMPLICIT_REASONING: "replies begin with reasoning without an opening tag, so streaming waits for its end",
    NO_SYSTEM: "does not accept system messages, so they are sent as part of the user message",
    USAGE: "reports implausible token counts, so our own counts are used",
    "max_tokens": "does not accept max_tokens, so max_completion_tokens is sent",
    "json_schema": "does not accept JSON schemas, so it is asked for any JSON object",
    "json_object": "does not accept a JSON response format, so only the prompt asks for JSON",
}
NAMES = frozenset((*_DESCRIPTIONS, *_OPTIONAL))


def describe_quirks(where: str, quirks: Iterable[str]) -> str:
    """Describe the quirks of an endpoint in a sentence."""
    described = (_DESCRIPTIONS.get(q, f"does not accept {q}, so it is left out") for q in sorted(quirks))
    return f"{where}: {'; '.join(described)}"


class EndpointQuirks:
    """The quirks of one endpoint. `learned` contains quirks (of NAMES) beyond those of its model family."""

    def __init__(self, family: ModelFamily | None = None) -> None:
        self._family = family or ModelFamily()
        self.learned: frozenset[str] = frozenset()
        self._dropped = set(self._family.unsupported_parameters)

    @property
    def reasons(self) -> bool:
        return self._family.is_reasoning or REASONS in self.learned

    @property
    def starts_with_reasoning(self) -> bool:
        return self._family.starts_inside_reasoning or IMPLICIT_REASONING in self.learned

    def add(self, quirks: Iterable[str]) -> bool:
        """Add quirks, and return whether any of them is new."""
        new = (frozenset(quirks) & NAMES) - self.learned - self._dropped
        self.learned |= new
        self._dropped |= new.intersection(_OPTIONAL)
        return bool(new)

    def chat_body(
        self,
        request: ChatRequest,
        model: str,
        max_tokens: int,
        bias: Mapping[str, int] | None,
        stream: bool = False,
        room: int = 0,
    ) -> dict[str, Any]:
        """Create the body of a chat call in a form that this endpoint accepts.

        Args:
            max_tokens: Maximum number of tokens in the reply, excluding reasoning.
            bias: Logit bias that forces the reply to a yes_no request. None does not force it.
            room: Additional tokens for reasoning.
        """
        messages = request.messages
        if NO_SYSTEM in self.learned:
            system = [m.content for m in messages if m.role == "system"]
            first, *rest = [m for m in messages if m.role != "system"] or messages
            if first.role != "system" and system:
                first = Message(first.role, "\n\n".join([*system, first.content]))
            messages = (first, *rest)
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": m.role, "content": m.content} for m in messages],
        }
        if request.call.temperature is not None:
            body["temperature"] = request.call.temperature
        if request.call.reasoning_effort is not None:
            body["reasoning_effort"] = request.call.reasoning_effort
        if request.response == "yes_no":
            max_tokens = min(max_tokens, YES_NO_TOKENS)
            if bias is not None and "logit_bias" not in self._dropped:
                body["logit_bias"] = dict(bias)
                max_tokens, room = 1, 0  # the first token is the answer
        renamed = "max_tokens" in self._dropped
        body["max_completion_tokens" if renamed else "max_tokens"] = max_tokens + room
        if (
            request.response == "json"
            and request.schema is not None
            and not self.learned.intersection(_FORMATS)
        ):
            strict = request.schema.get("additionalProperties") is False
            schema = {"name": request.prompt, "schema": dict(request.schema), "strict": strict}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif request.response == "json" and "json_object" not in self.learned:
            body["response_format"] = {"type": "json_object"}
        if stream and "stream" not in self._dropped:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {k: v for k, v in body.items() if k not in self._dropped}

    def embedding_body(self, texts: list[str], model: str, dimensions: int | None) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "input": texts, "encoding_format": "base64"}
        if dimensions is not None:
            body["dimensions"] = dimensions
        return {k: v for k, v in body.items() if k not in self._dropped}

    def learn(self, body: Mapping[str, Any], refusal: HttpRefusal) -> bool:
        """Learn from a refusal. Returns whether `chat_body` now omits the refused parameter."""
        message = refusal.message
        if refusal.status not in (400, 422):
            return False
        if NO_SYSTEM not in self.learned and _NO_SYSTEM_ROLE.search(message):
            return self.add([NO_SYSTEM])
        about_size = _TOO_MUCH.search(message) or refusal.code == "context_length_exceeded"
        if about_size or not (_REFUSED.search(message) or refusal.code.startswith("unsupported")):
            return False
        parameters = [name for name in _OPTIONAL if name in body]
        name: str | None = re.split(r"[.\[]", refusal.param, maxsplit=1)[0]
        if name not in parameters:
            name = next((name for name in parameters if re.search(rf"\b{name}\b", message)), None)
        if name is None:
            return False
        format_type = str((body.get("response_format") or {}).get("type"))
        # An endpoint that wants max_completion_tokens counts reasoning as output.
        learned = {"response_format": (format_type,), "max_tokens": (name, REASONS)}
        self.add(learned.get(name, (name,)))
        return True


@lru_cache(maxsize=8)
def yes_no_bias(vocabulary: str) -> dict[str, int]:
    """Create a logit_bias of 100 for every single-token spelling of YES and NO (paper, appendix A.2)."""
    import quicktok

    encoding = quicktok.get_encoding(vocabulary)
    words = [space + form for word in (YES, NO) for form in (word, word.lower()) for space in ("", " ")]
    ids = [encoding.encode_ordinary(word) for word in words]
    return {str(i[0]): 100 for i in ids if len(i) == 1}
