"""Draw the fault and latency of a call from the seed, its body and how often that body has arrived.

A run therefore has the same faults and latencies regardless of the order of its calls. A repeated call draws
again.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass

from .options import Options

NO_FAULT = ""
FAULTS = (
    "error",
    "drop",
    "hang",
    "garbage_body",
    "garbage_text",
    "truncated_body",
    "truncated_text",
)
EATS_ANSWER = frozenset(("garbage_body", "garbage_text", "truncated_body", "truncated_text"))
"""Faults of a response with status 200, which make its answer unusable."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What happens to a call.

    `fault`: one of FAULTS or "". `at`: the share of time or text at which the fault occurs. `slowness`: a
    factor on the call's time.
    """

    fault: str
    at: float
    slowness: float


def draw(key: bytes, arrival: int, options: Options) -> Draw:
    """Draw for the body with this key. `arrival`: 1 for its first call, 2 for the second, and so on."""
    digest = hashlib.blake2b(
        key + arrival.to_bytes(8, "big"), digest_size=24, key=str(options.seed).encode()[:64]
    )
    u = [(n + 0.5) / 2.0**32 for n in struct.unpack("6I", digest.digest())]
    slowness = 1.0
    if options.jitter:
        normal = math.sqrt(-2.0 * math.log(u[0])) * math.cos(2.0 * math.pi * u[1])
        slowness = math.exp(options.jitter * normal)
    if u[2] < options.tail:
        slowness *= options.tail_factor
    return Draw(_fault(u[3], u[4] < 0.5, options), u[5], slowness)


def _fault(u: float, first_form: bool, options: Options) -> str:
    shares = (
        (options.errors, "error", "error"),
        (options.drops, "drop", "drop"),
        (options.hangs, "hang", "hang"),
        (options.garbage, "garbage_body", "garbage_text"),
        (options.truncate, "truncated_body", "truncated_text"),
    )
    for share, one, other in shares:
        if u < share:
            return one if first_form else other
        u -= share
    return NO_FAULT


def call_seconds(completion_tokens: int, slowness: float, options: Options) -> tuple[float, float]:
    """Seconds to the first token, and from the first to the last, at speed 1."""
    if options.latency is not None:
        return options.latency * slowness, 0.0
    return options.ttft * slowness, completion_tokens / options.tokens_per_s * slowness
