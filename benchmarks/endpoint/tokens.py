"""Count and cut tokens cheaply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

PER_MESSAGE = 4
PER_PROMPT = 3
"""Overhead of the chat format, as documented by OpenAI."""
CACHE_STEP = 128
CACHE_FROM = 1024
"""Minimum number of tokens of a cached prefix, and step of its length (OpenAI's prompt caching)."""
MAX_PREFIXES = 1_000_000


def count(text: str, vocabulary: str) -> int:
    if vocabulary == "chars":
        return (len(text.encode("utf-8", "replace")) + 3) // 4
    return int(_encoding(vocabulary).count(_encodable(text)))


@lru_cache(maxsize=256)
def count_often(text: str, vocabulary: str) -> int:
    """`count` for a text that is repeated often, such as a system message."""
    return count(text, vocabulary)


def first(text: str, n: int, vocabulary: str) -> str:
    """The first n tokens of a text."""
    if vocabulary == "chars":
        return text.encode("utf-8", "replace")[: 4 * n].decode("utf-8", "ignore")
    encoding = _encoding(vocabulary)
    cut: str = encoding.decode_bytes(list(encoding.encode_ordinary(_encodable(text))[:n])).decode(
        "utf-8", "ignore"
    )
    return cut


def words_of_bias(bias: Mapping[str, Any], vocabulary: str) -> list[str]:
    """The tokens that a logit bias of 100 allows, as text."""
    forced = [int(token) for token, weight in bias.items() if token.isdecimal() and weight == 100]
    if vocabulary == "chars":
        vocabulary = "o200k_base"
    encoding = _encoding(vocabulary)
    return [encoding.decode([token]) for token in forced if token < encoding.n_vocab]


class PrefixCache:
    """Prefixes of earlier conversations, which a provider would have cached."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def tokens(self, messages: Sequence[tuple[str, str]], counts: Sequence[int]) -> int:
        """The number of cached tokens of a prompt. Its prefixes count as cached from now on.

        `messages` are (role, content), and `counts` the tokens of each. Only whole messages are compared.
        """
        cached = so_far = state = 0
        if len(self._seen) > MAX_PREFIXES:
            self._seen.clear()
        for message, n in zip(messages, counts, strict=True):
            state = hash((state, message))
            so_far += n
            if state in self._seen:
                cached = so_far
            self._seen.add(state)
        return cached // CACHE_STEP * CACHE_STEP if cached >= CACHE_FROM else 0


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _encoding(vocabulary: str) -> Any:
    import quicktok

    return quicktok.get_encoding(vocabulary)
