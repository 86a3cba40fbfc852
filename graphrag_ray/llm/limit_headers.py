"""Parsing of rate limits and waiting times in response headers.

Headers are untrusted: unreadable or implausible ones are ignored. Pure: the current time is an argument,
which is needed because some vendors send absolute times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

KINDS = ("requests", "tokens")
MINUTE_S = (48.0, 72.0)  # window lengths that count as a minute, because resets are rounded
MIN_READINGS = 2
MAX_LIMIT = 1e12
MAX_WAIT_S = 60.0  # for an exhausted limit; headers may be wrong, and a 429 enforces longer waits
REFILL_WAIT_S = 1.0  # wait for an exhausted limit that refills steadily
REPEAT_INTERVAL_S = 60.0  # interval for reporting known limits again, for limiters that restarted
MAX_RESET_S = 600.0  # maximum wait based on x-ratelimit-reset headers
_MAX_HEADER_CHARS = 64


class RateLimitInfo(NamedTuple):
    """Limits as reported by an endpoint, None if unknown, and how long to pause requests."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    wait_s: float = 0.0


@dataclass(slots=True)
class _LimitState:
    """The last limit of one kind, the number of consistent readings of it, and the confirmed limit."""

    limit: float | None = None
    agreed: int = 0
    used: float = -1.0
    per_minute: float | None = None


@dataclass(slots=True)
class LimitHeaders:
    """Reads the x-ratelimit headers of one endpoint's responses.

    A limit is used only if it is per minute, but headers do not state the period, and some vendors limit
    requests per second or per day. We infer it: a limit that refills steadily is per minute if `reset`, the
    time until it is full, is about used / limit of a minute in MIN_READINGS consecutive different readings.
    Other limits only show in 429 responses.
    """

    _kinds: dict[str, _LimitState] = field(default_factory=lambda: {kind: _LimitState() for kind in KINDS})
    _reported: RateLimitInfo = field(default_factory=RateLimitInfo)
    _reported_at: float = -math.inf
    _wait_s: float = 0.0

    def note(self, headers: Mapping[str, str], unix_now: float) -> None:
        for kind in KINDS:
            remaining = parse_number(headers.get(f"x-ratelimit-remaining-{kind}"))
            if remaining is None:
                continue
            reset_s = parse_duration(headers.get(f"x-ratelimit-reset-{kind}"), unix_now)
            limit = parse_number(headers.get(f"x-ratelimit-limit-{kind}"))
            if reset_s is None or limit == 0:
                continue
            state, used = self._kinds[kind], (limit or 0.0) - remaining
            if limit is not None and limit != state.limit:
                state.limit, state.agreed, state.used = limit, 0, -1.0
            if limit is not None and used not in (0, state.used) and 1 <= limit <= MAX_LIMIT:
                state.used = used
                low, high = MINUTE_S
                if 0 < used <= limit and low * used <= reset_s * limit <= high * used:
                    state.agreed += 1
                    state.per_minute = limit if state.agreed >= MIN_READINGS else state.per_minute
                elif state.agreed < MIN_READINGS:
                    state.agreed = 0
            if remaining == 0:
                wait_s = min(reset_s, REFILL_WAIT_S if state.agreed >= MIN_READINGS else MAX_WAIT_S)
                self._wait_s = max(self._wait_s, wait_s)

    def news(self, now: float) -> RateLimitInfo | None:
        """Return new information for the limiter, if any. `now` is in seconds on a monotonic clock."""
        info = RateLimitInfo(self._kinds["requests"].per_minute, self._kinds["tokens"].per_minute)
        repeat = info != RateLimitInfo() and now - self._reported_at >= REPEAT_INTERVAL_S
        if info == self._reported and not repeat and not self._wait_s:
            return None
        self._reported, self._reported_at = info, now
        wait_s, self._wait_s = self._wait_s, 0.0
        return info._replace(wait_s=wait_s)


def retry_after_s(headers: Mapping[str, str], unix_now: float) -> float | None:
    """Return how many seconds the endpoint asks us to wait, or None if it does not say.

    Reads retry-after-ms, then Retry-After (seconds or a date), then x-ratelimit-reset-* of exhausted limits.
    The latter count up to MAX_RESET_S, because a daily limit becomes usable long before it is full. Header
    names must be lower case, or the mapping case-insensitive.
    """
    if (ms := parse_number(headers.get("retry-after-ms"))) is not None:
        return ms / 1000.0
    if (after := headers.get("retry-after")) is not None:
        seconds = parse_number(after)
        return seconds if seconds is not None else _until(parsedate_to_datetime, after, unix_now)
    all_resets = {kind: parse_duration(headers.get(f"x-ratelimit-reset-{kind}"), unix_now) for kind in KINDS}
    resets = {kind: reset_s for kind, reset_s in all_resets.items() if reset_s is not None}
    exhausted = [s for k, s in resets.items() if parse_number(headers.get(f"x-ratelimit-remaining-{k}")) == 0]
    if exhausted:
        return min(MAX_RESET_S, max(exhausted))
    return min(MAX_RESET_S, *resets.values()) if resets else None


_GO_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")


def parse_duration(text: str | None, unix_now: float) -> float | None:
    """Parse "6m0s", "20ms", "1.5", a Unix time (s or ms) or an ISO time to seconds, otherwise None."""
    if text is None or len(text) > _MAX_HEADER_CHARS:
        return None
    plain = parse_number(text)
    if plain is not None:
        if plain > 1e11:
            plain /= 1000.0
        return max(0.0, plain - unix_now) if plain > 1e8 else plain
    match = _GO_DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        return _until(datetime.fromisoformat, text.strip(), unix_now)
    hours, minutes, seconds, ms = (float(g or 0) for g in match.groups())
    return hours * 3600 + minutes * 60 + seconds + ms / 1000


def parse_number(text: str | None) -> float | None:
    """Parse a finite, non-negative number, otherwise return None."""
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _until(parse: Callable[[str], datetime], text: str, unix_now: float) -> float | None:
    try:
        instant = parse(text)
        instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        return max(0.0, instant.timestamp() - unix_now)
    except (OverflowError, ValueError):
        return None
