"""Exact sliding windows over requests and tokens, like the rate limits of a provider.

Pure: the current time is an argument of every method.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    """A rejected call. `limit`: "requests" or "tokens".

    `wait_s`: time until the call would be admitted if no other call were; infinite for a call that is larger
    than the limit.
    """

    limit: str
    wait_s: float


class Windows:
    """Admissions of the last `window_s` seconds. Rejected calls do not count."""

    def __init__(self) -> None:
        self._admitted: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def admit(
        self, tokens: int, now: float, rpm: float | None, tpm: float | None, window_s: float
    ) -> Refused | None:
        """Admit a call, or return the limit that it would exceed: the one with the longest wait."""
        self._expire(now, window_s)
        for_request = self._wait_for_request(now, rpm, window_s)
        for_tokens = self._wait_for_tokens(tokens, now, tpm, window_s)
        if for_request <= 0 and for_tokens <= 0:
            self._admitted.append((now, tokens))
            self._tokens += tokens
            return None
        if for_request > for_tokens:
            return Refused("requests", for_request)
        return Refused("tokens", for_tokens)

    def full_of_requests(self, now: float, rpm: float | None, window_s: float) -> bool:
        self._expire(now, window_s)
        return self._wait_for_request(now, rpm, window_s) > 0

    def used(self, now: float, window_s: float) -> tuple[int, int, float]:
        """Requests and tokens in the window, and seconds until it is empty if nothing is admitted."""
        self._expire(now, window_s)
        reset_s = self._admitted[-1][0] + window_s - now if self._admitted else 0.0
        return len(self._admitted), self._tokens, reset_s

    def _wait_for_request(self, now: float, rpm: float | None, window_s: float) -> float:
        if rpm is None or len(self._admitted) + 1 <= rpm:
            return 0.0
        # The limit may have been lowered, so several admissions must leave.
        return self._admitted[len(self._admitted) - int(rpm)][0] + window_s - now

    def _wait_for_tokens(self, tokens: int, now: float, tpm: float | None, window_s: float) -> float:
        if tpm is None or self._tokens + tokens <= tpm:
            return 0.0
        if tokens > tpm:
            return math.inf
        left = self._tokens
        for at, n in self._admitted:
            left -= n
            if left + tokens <= tpm:
                return at + window_s - now
        raise AssertionError("an empty window has room for what the limit allows")

    def _expire(self, now: float, window_s: float) -> None:
        while self._admitted and self._admitted[0][0] + window_s <= now:
            self._tokens -= self._admitted.popleft()[1]
