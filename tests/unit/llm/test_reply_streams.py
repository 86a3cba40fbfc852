"""Assembling a streamed reply."""

from __future__ import annotations

from graphrag_ray.llm.endpoint_replies import StreamedReply


def event(content: str) -> dict[str, object]:
    return {"choices": [{"delta": {"content": content}, "finish_reason": None}]}


def test_a_split_surrogate_pair_becomes_one_character() -> None:
    pieces = StreamedReply("http://a/v1")
    texts = [pieces.add(event(text)) for text in ("a \ud83d", "\ude00 b", " \udc00 c")]
    assert texts == ["a ", "\U0001f600 b", " \ufffd c"]
    assert pieces.text == "a \U0001f600 b \ufffd c"
