"""Which endpoints of a model one caller would use now.

Work goes where there is room (the limiter sees to that) among the endpoints named here: one that keeps
failing is left alone for a while and tried again, one that refuses us as a whole is dropped as long as
another remains, or, by somebody who lives longer than its reasons may, for so long.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from graphrag_ray.base.errors import FatalCallError

logger = logging.getLogger(__name__)

REST_AFTER_FAILURES = 3
"""Failures in a row before an endpoint is left alone."""
FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0


class Roster:
    def __init__(
        self, names: Sequence[str], limits: Sequence[float | None], dropped_for_s: float = math.inf
    ) -> None:
        """names: the endpoints' addresses as they may be shown; limits: their tokens per minute."""
        self._names = names
        self._limits = limits
        self._in_a_row = [0] * len(names)
        self._rests = [0] * len(names)
        self._resting_until = [0.0] * len(names)
        self._dropped_for_s = dropped_for_s
        self._dropped: dict[int, tuple[FatalCallError, float]] = {}

    def usable(self, now: float, tokens: int, other_than: int | None = None) -> list[int]:
        """Endpoints to choose from, never empty: those that are not resting, and not `other_than`, if one of
        them may take a request of so many tokens; else that one too; else resting ones too.

        Raises FatalCallError when every endpoint was dropped.
        """
        left = self.left(now)
        awake = [i for i in left if self._resting_until[i] <= now]
        others = [i for i in awake if i != other_than]
        wanted = (some for some in (others, awake) if any(self._takes(i, tokens) for i in some))
        return next(wanted, left)

    def left(self, now: float) -> list[int]:
        """Endpoints that were not dropped, never empty. Raises FatalCallError when all were."""
        self._dropped = {i: (error, until) for i, (error, until) in self._dropped.items() if until > now}
        left = [i for i in range(len(self._names)) if i not in self._dropped]
        if not left:
            last, _ = list(self._dropped.values())[-1]
            raise type(last)(str(last), status=last.status)
        return left

    def has(self, endpoint: int) -> bool:
        return endpoint not in self._dropped

    def largest(self, now: float) -> float | None:
        """The most tokens that one request may have at any endpoint that is left; None: no limit."""
        limits = [self._limits[i] for i in self.left(now)]
        return None if None in limits else max(limit for limit in limits if limit is not None)

    def _takes(self, endpoint: int, tokens: int) -> bool:
        limit = self._limits[endpoint]
        return limit is None or tokens <= limit

    def worked(self, endpoint: int) -> None:
        self._in_a_row[endpoint] = self._rests[endpoint] = 0

    def failed(self, endpoint: int, now: float) -> None:
        """A transient failure other than a 429, which the limiter handles for everyone."""
        self._in_a_row[endpoint] += 1
        if self._in_a_row[endpoint] >= REST_AFTER_FAILURES and self._resting_until[endpoint] <= now:
            rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** self._rests[endpoint])
            self._rests[endpoint] += 1
            self._resting_until[endpoint] = now + rest_s
            if len(self._names) - len(self._dropped) > 1:
                logger.warning("%s keeps failing: left alone for %.0f s", self._names[endpoint], rest_s)

    def drop(self, endpoint: int, error: FatalCallError, now: float = math.inf) -> None:
        """Use an endpoint no more, or not for as long as one is dropped. The next `usable` raises if it was
        the last. now: inf for one that there is no way to at all."""
        if endpoint in self._dropped:
            return
        self._dropped[endpoint] = error, now + self._dropped_for_s
        left = len(self._names) - len(self._dropped)
        if left:
            # What an endpoint says may quote what it was asked.
            why = str(error) if error.status is None else f"it answered {error.status}"
            again = "" if math.isinf(self._dropped_for_s) else f" for {self._dropped_for_s:.0f} s"
            logger.warning("%s is not used any more%s: %s (%d left)", self._names[endpoint], again, why, left)
            logger.debug("%s said: %s", self._names[endpoint], error)
