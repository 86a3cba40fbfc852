"""How long replies are and how long they take, learned from calls that were made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MIN_CALLS = 5
"""Fewer calls say nothing."""
MIN_CALLS_FOR_SLOW = 200
"""Fewer do not tell how many are slow."""
MIN_CALLS_FOR_LINE = 30
"""Fewer give the mean alone, and not how it follows the prompt."""


@dataclass(frozen=True)
class Replies:
    """The calls of one prompt: [n] each, as the endpoint counted. source: whose calls, for people."""

    prompt_tokens: Floats
    completion_tokens: Floats
    latency_s: Floats
    source: str

    @property
    def n(self) -> int:
        return len(self.completion_tokens)

    def mean_reply(self, prompt_tokens: Floats) -> float:
        """The mean reply to some prompts: by a least-squares line through the calls, inside the range of
        what was replied."""
        x, y = self.prompt_tokens, self.completion_tokens
        if self.n < MIN_CALLS_FOR_LINE or float(x.std()) < 1.0 or not len(prompt_tokens):
            return float(y.mean())
        slope, intercept = np.polyfit(x, y, 1)
        return float(np.clip(intercept + slope * prompt_tokens, y.min(), y.max()).mean())


SLOW = 3.0
"""Times as long as a call of its length usually takes: a slow one."""


def measured_slowness(replies: list[Replies]) -> tuple[float, float, int] | None:
    """(share of slow calls, how many times as long as the usual they took, calls) of all calls together; None
    where these are too few. Each is compared with the median of those of its prompt, by length."""
    ratios = [r.latency_s / np.maximum(_usual_s(r), 1e-3) for r in replies if r.n >= MIN_CALLS_FOR_LINE]
    all_ = np.concatenate(ratios) if ratios else np.zeros(0)
    if len(all_) < MIN_CALLS_FOR_SLOW:
        return None
    slow = all_[all_ > SLOW]
    return len(slow) / len(all_), float(slow.mean()) if len(slow) else 1.0, len(all_)


def _usual_s(calls: Replies) -> Floats:
    """What a call of this length usually takes: a line, refitted without the slow ones."""
    x, y = calls.completion_tokens, calls.latency_s
    kept = y <= SLOW * np.median(y)
    if float(x[kept].std()) < 1.0:
        return np.full(len(y), float(np.median(y)))
    slope, intercept = np.polyfit(x[kept], y[kept], 1)
    return np.asarray(np.maximum(intercept + slope * x, 0.1 * np.median(y)), dtype=np.float64)


def measured_latency(replies: list[Replies]) -> tuple[float, float, int] | None:
    """(seconds to the first token, tokens per second after it, calls) of all calls together, by least
    squares; None where they do not tell (too few, all of one length, or longer replies came sooner)."""
    x = np.concatenate([r.completion_tokens for r in replies]) if replies else np.zeros(0)
    y = np.concatenate([r.latency_s for r in replies]) if replies else np.zeros(0)
    if len(x) < MIN_CALLS_FOR_LINE or float(x.std()) < 1.0:
        return None
    slope, intercept = np.polyfit(x, y, 1)
    if slope <= 0 or intercept < 0:
        return None
    return float(intercept), float(1 / slope), len(x)
