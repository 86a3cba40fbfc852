"""What one endpoint's model does not accept, learned from its refusals and remembered.

A logical request says what we want (`messages.ChatRequest`); endpoints differ in what they let us say.
A parameter that is refused is dropped, renamed or weakened after one warning that names it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from graphrag_ray.llm.failures import Refusal
from graphrag_ray.messages import ChatRequest, Message

logger = logging.getLogger(__name__)

YES_NO_TOKENS = 8
"""Room for a one-word answer that is not forced to one token."""

_REFUSED = re.compile(
    r"unsupported|not support|n't support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed"
    r"|extra (input|field)|deprecated|not available|not enabled|incompatible|cannot be used|invalid"
    r"|use '?max_completion_tokens|must contain the word",
    re.IGNORECASE,
)
_TOO_MUCH = re.compile(r"context length|context window|too large|too long|at most|exceed", re.IGNORECASE)
_NO_SYSTEM_ROLE = re.compile(r"system[ '\"`]*(role|message)s?\b.*(not support|unsupported|not allowed)", re.I)

_OPTIONAL = ("logit_bias", "temperature", "response_format", "max_tokens", "max_completion_tokens",
             "encoding_format", "stream_options", "stream")  # fmt: skip


class Peculiarities:
    """Of one endpoint, for the life of its client."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._dropped: set[str] = set()
        self._formats = ["json_schema", "json_object"]
        self._system_role = True

    def chat_body(
        self,
        request: ChatRequest,
        model: str,
        max_tokens: int,
        bias: Mapping[str, int] | None,
        stream: bool = False,
    ) -> dict[str, Any]:
        """The body of a chat call, as this endpoint takes it.

        max_tokens: of the reply. bias: tokens to force for a yes_no request; None: do not force. stream: the
        reply is wanted piece by piece.
        """
        messages = request.messages if self._system_role else _without_system(request.messages)
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": m.role, "content": m.content} for m in messages],
        }
        if request.call.temperature is not None:
            body["temperature"] = request.call.temperature
        thinks = "max_tokens" in self._dropped
        if request.response == "yes_no":
            forced = bias is not None and "logit_bias" not in self._dropped
            if forced:
                body["logit_bias"] = dict(bias or {})
            # A model that wants max_completion_tokens counts its unseen reasoning there.
            max_tokens = max_tokens if thinks else 1 if forced else min(max_tokens, YES_NO_TOKENS)
        body["max_completion_tokens" if thinks else "max_tokens"] = max_tokens
        if request.response == "json" and (form := self._response_format(request)):
            body["response_format"] = form
        if stream and "stream" not in self._dropped:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {k: v for k, v in body.items() if k not in self._dropped}

    def embedding_body(self, texts: list[str], model: str, dimensions: int | None) -> dict[str, Any]:
        """The body of a call that embeds all these texts."""
        body: dict[str, Any] = {"model": model, "input": texts, "encoding_format": "base64"}
        if dimensions is not None:
            body["dimensions"] = dimensions
        return {k: v for k, v in body.items() if k not in self._dropped}

    def learn(self, body: Mapping[str, Any], refusal: Refusal) -> bool:
        """Whether the refusal is about something in this body that we can do without.

        If so, it is remembered, and the request may be sent again: `chat_body` will differ.
        """
        if refusal.status not in (400, 422):
            return False
        if self._system_role and _NO_SYSTEM_ROLE.search(refusal.message):
            self._system_role = False
            self._warn("a system message", "it is put before the user's")
            return True
        name = _named(body, refusal)
        if name is None:
            return False
        if name == "response_format":
            sent = body["response_format"]["type"]
            if sent in self._formats:
                self._formats = self._formats[self._formats.index(sent) + 1 :]
                self._warn(f"response_format {sent}", f"{(self._formats or ['none'])[0]} is used instead")
        elif name not in self._dropped:
            self._dropped.add(name)
            renamed = name == "max_tokens"
            self._warn(name, "max_completion_tokens is used instead" if renamed else "it is left out")
        return True

    def _response_format(self, request: ChatRequest) -> dict[str, Any] | None:
        if request.schema is not None and "json_schema" in self._formats:
            strict = request.schema.get("additionalProperties") is False
            schema = {"name": request.prompt, "schema": dict(request.schema), "strict": strict}
            return {"type": "json_schema", "json_schema": schema}
        return {"type": "json_object"} if "json_object" in self._formats else None

    def _warn(self, what: str, instead: str) -> None:
        logger.warning("%s does not accept %s; %s from now on", self._where, what, instead)


def _named(body: Mapping[str, Any], refusal: Refusal) -> str | None:
    """Which optional parameter of the body a refusal is about."""
    about_size = _TOO_MUCH.search(refusal.message) or refusal.code == "context_length_exceeded"
    if about_size or not (_REFUSED.search(refusal.message) or refusal.code.startswith("unsupported")):
        return None
    sent = [name for name in _OPTIONAL if name in body]
    param = re.split(r"[.\[]", refusal.param, maxsplit=1)[0]
    if param in sent:
        return param
    return next((name for name in sent if re.search(rf"\b{name}\b", refusal.message)), None)


def _without_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    system = [m.content for m in messages if m.role == "system"]
    rest = [m for m in messages if m.role != "system"]
    if not system or not rest:
        return tuple(rest) or messages
    return (Message(rest[0].role, "\n\n".join([*system, rest[0].content])), *rest[1:])


@lru_cache(maxsize=8)
def yes_no_bias(vocabulary: str) -> dict[str, int]:
    """logit_bias 100 for every way of writing yes and no that is one token (paper A.2)."""
    import quicktok

    encoding = quicktok.get_encoding(vocabulary)
    words = [space + form for w in ("yes", "no") for form in (w, w.title(), w.upper()) for space in ("", " ")]
    ids = [encoding.encode_ordinary(word) for word in words]
    return {str(i[0]): 100 for i in ids if len(i) == 1}
