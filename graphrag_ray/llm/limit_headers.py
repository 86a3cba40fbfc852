"""What an endpoint's headers say about its limits: how long to wait, and what it allows.

Headers are untrusted: unreadable or implausible ones are ignored. Pure: the wall clock is an argument, needed
because some vendors send instants.
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
MINUTE_S = (48.0, 72.0)  # windows that count as a minute, since resets are rounded
READINGS = 2
LARGEST_LIMIT = 1e12
LONGEST_WAIT_S = 60.0  # for an exhausted limit; gateways send odd headers, and a 429 enforces longer waits
REFILLS_S = 1.0  # wait for an exhausted limit that refills steadily, long before it is full again
SAY_AGAIN_S = 60.0  # A restarted limiter learns the limits again within this time.
RESET_S = 600.0
_LONGEST_HEADER = 64


class RateLimitInfo(NamedTuple):
    """Limits that an endpoint reports; None if it does not. `wait_s`: how long to pause requests."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    wait_s: float = 0.0


@dataclass(slots=True)
class _Kind:
    """The limit last sent, consecutive readings that `agreed`, and the limit that READINGS confirmed."""

    limit: float | None = None
    agreed: int = 0
    used: float = -1.0
    per_minute: float | None = None


@dataclass(slots=True)
class LimitHeaders:
    """Reads the x-ratelimit headers of one endpoint's answers.

    A limit counts only if it is per minute, which no header states (some vendors count requests by the second
    or by the day). It is inferred if the limit refills steadily and `reset`, the time until it is full,
    equals used / limit of a minute, in READINGS different readings in a row. 429s teach other limits.
    """

    _kinds: dict[str, _Kind] = field(default_factory=lambda: {kind: _Kind() for kind in KINDS})
    _reported: RateLimitInfo = field(default_factory=RateLimitInfo)
    _reported_at: float = -math.inf
    _wait_s: float = 0.0

    def note(self, headers: Mapping[str, str], wall_now: float) -> None:
        for kind in KINDS:
            remaining = number(headers.get(f"x-ratelimit-remaining-{kind}"))
            if remaining is None:
                continue
            reset_s = duration(headers.get(f"x-ratelimit-reset-{kind}"), wall_now)
            limit = number(headers.get(f"x-ratelimit-limit-{kind}"))
            if reset_s is None or limit == 0:
                continue
            known, used = self._kinds[kind], (limit or 0.0) - remaining
            if limit is not None and limit != known.limit:
                known.limit, known.agreed, known.used = limit, 0, -1.0
            if limit is not None and used not in (0, known.used) and 1 <= limit <= LARGEST_LIMIT:
                known.used = used
                low, high = MINUTE_S
                if 0 < used <= limit and low * used <= reset_s * limit <= high * used:
                    known.agreed += 1
                    known.per_minute = limit if known.agreed >= READINGS else known.per_minute
                elif known.agreed < READINGS:
                    known.agreed = 0
            if remaining == 0:
                wait_s = min(reset_s, REFILLS_S if known.agreed >= READINGS else LONGEST_WAIT_S)
                self._wait_s = max(self._wait_s, wait_s)

    def news(self, now: float) -> RateLimitInfo | None:
        """What the limiter has to learn, once; `now` is in seconds on a clock that runs forward."""
        info = RateLimitInfo(self._kinds["requests"].per_minute, self._kinds["tokens"].per_minute)
        repeat = info != RateLimitInfo() and now - self._reported_at >= SAY_AGAIN_S
        if info == self._reported and not repeat and not self._wait_s:
            return None
        self._reported, self._reported_at = info, now
        wait_s, self._wait_s = self._wait_s, 0.0
        return info._replace(wait_s=wait_s)


def retry_after_s(headers: Mapping[str, str], wall_now: float) -> float | None:
    """How many seconds the endpoint asks us to wait; None if it does not say.

    Reads retry-after-ms, then Retry-After (seconds or a date), then x-ratelimit-reset-* of exhausted limits:
    at most RESET_S of these, since a daily limit refills all the time. Names in `headers` are in lower case,
    or the mapping ignores case.
    """
    if (ms := number(headers.get("retry-after-ms"))) is not None:
        return ms / 1000.0
    if (after := headers.get("retry-after")) is not None:
        seconds = number(after)
        return seconds if seconds is not None else _until(parsedate_to_datetime, after, wall_now)
    sent = {kind: duration(headers.get(f"x-ratelimit-reset-{kind}"), wall_now) for kind in KINDS}
    resets = {kind: reset_s for kind, reset_s in sent.items() if reset_s is not None}
    exhausted = [s for k, s in resets.items() if number(headers.get(f"x-ratelimit-remaining-{k}")) == 0]
    if exhausted:
        return min(RESET_S, max(exhausted))
    return min(RESET_S, *resets.values()) if resets else None


_GO_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")


def duration(text: str | None, wall_now: float) -> float | None:
    """Seconds from "6m0s", "20ms", "1.5", a Unix time (s or ms) or an ISO time; None for anything else."""
    if text is None or len(text) > _LONGEST_HEADER:
        return None
    plain = number(text)
    if plain is not None:
        if plain > 1e11:
            plain /= 1000.0
        return max(0.0, plain - wall_now) if plain > 1e8 else plain
    match = _GO_DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        return _until(datetime.fromisoformat, text.strip(), wall_now)
    hours, minutes, seconds, ms = (float(g or 0) for g in match.groups())
    return hours * 3600 + minutes * 60 + seconds + ms / 1000


def number(text: str | None) -> float | None:
    """A finite, non-negative number; None for anything else."""
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _until(parse: Callable[[str], datetime], text: str, wall_now: float) -> float | None:
    try:
        instant = parse(text)
        instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        return max(0.0, instant.timestamp() - wall_now)
    except (OverflowError, ValueError):
        return None
