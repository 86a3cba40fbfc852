"""What a forecast rests on besides the corpus: each value with its name and where it comes from."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphrag_ray.base.errors import UsageError

KNOWN: Mapping[str, str] = {
    "glean_yes": "share of gleaning questions answered with yes",
    "gleaned": "records that a gleaning adds, for each of the first reply",
    "entities_per_chunk": "entities that the replies for a chunk name",
    "relationships_per_chunk": "relationships that the replies for a chunk name",
    "entities": "different entities in the whole corpus",
    "relationships": "different relationships in the whole corpus",
    "entity_description_tokens": "tokens of an entity's description, as extracted",
    "relationship_description_tokens": "tokens of a relationship's description, as extracted",
    "reply_tokens.extract": "tokens of a reply to the extraction prompt",
    "reply_tokens.glean_check": "tokens of a yes or no",
    "reply_tokens.glean": "tokens of a gleaned reply",
    "reply_tokens.claims": "tokens of a reply to the claims prompt",
    "reply_tokens.describe": "tokens of a description that replaces several",
    "reply_tokens.report": "tokens of a report",
    "reply_tokens.summary": "tokens of a summary of chunks or of summaries",
    "reply_tokens.about": "tokens of the reply that says what the corpus is about",
    "communities_per_entity": "communities for each entity",
    "attributed_per_entity": "communities of hierarchy attributed for each entity",
    "nodes_per_summary": "chunks or summaries that one summary is written from, where they are short",
    "report_context_tokens": "tokens of the data in a report's prompt",
    "prompt_tokens_factor": "tokens that the endpoint counts for each of ours in a prompt",
    "ttft_s": "seconds to the first token of a reply",
    "tokens_per_s": "tokens per second after it",
    "slow_share": "share of calls that take much longer than others of their length",
    "slow_factor": "how many times as long these take",
    "own_s": "seconds without calls: Ray's start, reading, tables, what the offline engine does",
}
"""Every name that `--assume` takes, and what it means."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """source: where the value comes from, for people."""

    name: str
    value: float
    source: str

    @property
    def meaning(self) -> str:
        return KNOWN[self.name]


class Assumptions:
    """Collects what is assumed, in the order in which it was needed. `given` comes before all else."""

    def __init__(self, given: Mapping[str, float] | None = None) -> None:
        self._given = dict(given or {})
        self._taken: dict[str, Assumption] = {}

    def take(self, name: str, value: float, source: str) -> float:
        """The value to go on with, noted: the given one, else this one."""
        if name in self._given:
            value, source = self._given[name], "given by --assume"
        self._taken[name] = Assumption(name, value, source)
        return value

    def __iter__(self) -> Iterator[Assumption]:
        return iter(self._taken.values())


def parse_assumptions(given: Sequence[str]) -> dict[str, float]:
    """`name=value` pairs. Raises UsageError naming the nearest known name, or what is wrong."""
    out = {}
    for text in given:
        name, sep, value = (part.strip() for part in text.partition("="))
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(KNOWN)}"
            raise UsageError(f"--assume {text!r}: there is no assumption {name!r}; {hint}")
        try:
            out[name] = float(value)
        except ValueError:
            out[name] = math.nan
        if not sep or not math.isfinite(out[name]) or out[name] < 0:
            raise UsageError(f"--assume {text!r}: write it as name=number, the number not negative")
        if name in ("glean_yes", "slow_share") and out[name] > 1:
            raise UsageError(f"--assume {text!r}: it is a share, from 0 to 1")
        if name in ("tokens_per_s", "slow_factor") and not out[name]:
            raise UsageError(f"--assume {text!r}: it must be above 0")
    return out
