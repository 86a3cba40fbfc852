"""What one endpoint's model does not accept: known by its family, learned from its answers, and remembered.

A logical request says what we want (`messages.ChatRequest`); endpoints differ in what they let us say.
A parameter that is refused is dropped, renamed or weakened. What was learned has names, so that whoever else
asks the endpoint, in this run or a later one, need not learn it again (`Accounts.quirks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from graphrag_ray.base.messages import ChatRequest, Message
from graphrag_ray.base.thoughts import Family
from graphrag_ray.llm.call_failures import HttpRefusal

YES_NO_TOKENS = 8
"""Room for a one-word answer that is not forced to one token."""
YES, NO = "Y", "N"
"""The two answers that a yes_no request asks for; tested against the prompt."""

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

THINKS, OPENED, NO_SYSTEM, USAGE = "thinks", "opened", "system", "usage"
_TOLD = {
    THINKS: "the model thinks: its replies get room for that",
    OPENED: "replies begin with thoughts without an opening tag: what is streamed waits for their end",
    NO_SYSTEM: "takes no system message: it is put before the user's",
    USAGE: "counts tokens as no model does: our own counts are used",
    "max_tokens": "takes no max_tokens: max_completion_tokens is sent",
    "json_schema": "takes no JSON schema: it is asked for any JSON object",
    "json_object": "cannot be asked for JSON: it is asked for it in words only",
}
NAMES = frozenset((*_TOLD, *_OPTIONAL))


def told(where: str, quirks: Iterable[str]) -> str:
    """What was learned of an endpoint, as a sentence."""
    return f"{where}: " + "; ".join(_TOLD.get(q, f"takes no {q}: it is left out") for q in sorted(quirks))


class Peculiarities:
    """Of one endpoint, for the life of its client.

    learned   what it taught us beyond what its family is known for: some of NAMES
    """

    def __init__(self, family: Family | None = None) -> None:
        self._family = family or Family()
        self.learned: frozenset[str] = frozenset()
        self._dropped = set(self._family.refuses)

    @property
    def thinks(self) -> bool:
        return self._family.thinks or THINKS in self.learned

    @property
    def opened(self) -> bool:
        return self._family.opened or OPENED in self.learned

    def add(self, quirks: Iterable[str]) -> bool:
        """Take over what somebody learned; whether that is news."""
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
        """The body of a chat call, as this endpoint takes it.

        max_tokens: of the reply. bias: tokens to force for a yes_no request; None: do not force. stream: the
        reply is wanted piece by piece. room: for thoughts, beside the reply.
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
                max_tokens, room = 1, 0  # the first token is the word
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
        """The body of a call that embeds all these texts."""
        body: dict[str, Any] = {"model": model, "input": texts, "encoding_format": "base64"}
        if dimensions is not None:
            body["dimensions"] = dimensions
        return {k: v for k, v in body.items() if k not in self._dropped}

    def learn(self, body: Mapping[str, Any], refusal: HttpRefusal) -> bool:
        """Whether the refusal is about something in this body that we can do without.

        If so, it is remembered, and the request may be sent again: `chat_body` will differ.
        """
        if refusal.status not in (400, 422):
            return False
        if NO_SYSTEM not in self.learned and _NO_SYSTEM_ROLE.search(refusal.message):
            return self.add([NO_SYSTEM])
        name = _named(body, refusal)
        if name is None:
            return False
        form = str((body.get("response_format") or {}).get("type"))
        learned = {"response_format": (form,), "max_tokens": (name, THINKS)}
        self.add(learned.get(name, (name,)))  # whoever counts thoughts as output wants the other name
        return True


def _named(body: Mapping[str, Any], refusal: HttpRefusal) -> str | None:
    """Which optional parameter of the body a refusal is about."""
    about_size = _TOO_MUCH.search(refusal.message) or refusal.code == "context_length_exceeded"
    if about_size or not (_REFUSED.search(refusal.message) or refusal.code.startswith("unsupported")):
        return None
    sent = [name for name in _OPTIONAL if name in body]
    param = re.split(r"[.\[]", refusal.param, maxsplit=1)[0]
    if param in sent:
        return param
    return next((name for name in sent if re.search(rf"\b{name}\b", refusal.message)), None)


@lru_cache(maxsize=8)
def yes_no_bias(vocabulary: str) -> dict[str, int]:
    """logit_bias 100 for every way of writing YES and NO that is one token (paper A.2)."""
    import quicktok

    encoding = quicktok.get_encoding(vocabulary)
    words = [space + form for word in (YES, NO) for form in (word, word.lower()) for space in ("", " ")]
    ids = [encoding.encode_ordinary(word) for word in words]
    return {str(i[0]): 100 for i in ids if len(i) == 1}
