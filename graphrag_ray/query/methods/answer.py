"""The one answer type of every way of answering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from graphrag_ray.base.records import Reference
from graphrag_ray.query.methods.chain import ChainLink

UNREADABLE = "No part of the index could be read for this question: every call failed."


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase of an answer (map, reduce, rate, search, …) cost.

    failed     items that ended without a result
    cost_usd   None where the model's price is unknown
    """

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = 0.0


@dataclass(frozen=True, slots=True)
class ContextUsed:
    """One context that a model was shown.

    records    what it held, in order
    n_tokens   of its data
    left_out   records that belonged there and did not fit
    cut        records that were shown without their end
    score      how helpful the answer from it said to be, 0–100; None where it was not scored
    """

    phase: str
    records: tuple[Reference, ...]
    n_tokens: int
    left_out: int = 0
    cut: int = 0
    score: float | None = None


@dataclass(frozen=True)
class Answer:
    """An answer with all that is needed to check it.

    text                 markdown; references hold human_readable_ids
    references           every record that the text cites, by string id, distinct, in order
    method, level        how it was found; level: the k of C_k, None for methods without levels
    found                False: the index holds nothing on the question, and the text says so
    contexts             what the models were shown, in order of use
    phases               by name, in order of use
    failed_parts         contexts without a usable reply: that part of the corpus is missing
    dropped_references   cited numbers that the context did not hold; taken out of the text
    notes                what the reader should know, as sentences
    chain                of an answer that hops: the links that led to it
    paths                by number of a cited chunk, as text: how a walk from the question came to it
    seconds              from question to answer; None until somebody with a clock fills it in
    """

    question: str
    text: str
    method: str
    references: tuple[Reference, ...] = ()
    level: int | None = None
    found: bool = True
    contexts: tuple[ContextUsed, ...] = ()
    phases: Mapping[str, Phase] = field(default_factory=dict)
    failed_parts: int = 0
    dropped_references: int = 0
    notes: tuple[str, ...] = ()
    chain: tuple[ChainLink, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None

    @property
    def unread(self) -> bool:
        """Whether it says no more than that every call failed, and why."""
        return self.failed_parts > 0 and self.text.startswith(UNREADABLE)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @property
    def cost_usd(self) -> float | None:
        """All phases together; None as soon as one price is unknown."""
        costs = [phase.cost_usd for phase in self.phases.values()]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None
