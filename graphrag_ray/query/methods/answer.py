"""The answer type that all search methods share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.wording import collapse_whitespace, escape_markdown
from graphrag_ray.query.methods.chain import ChainLink

PASSAGES_HEADING = "Passages that may help"
UNREADABLE = "No part of the index could be read for this question: every call failed."


@dataclass(frozen=True, slots=True)
class Phase:
    """Usage of one phase of an answer, such as map or reduce. `cost_usd` is None if a price is unknown."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = 0.0


@dataclass(frozen=True, slots=True)
class ContextUsed:
    """A context that was sent to a model.

    Attributes:
        records: Records of the context, in order.
        n_tokens: Size of the records in tokens.
        left_out: Number of relevant records that did not fit.
        cut: Number of truncated records.
        score: Helpfulness of the reply according to the model, 0–100, or None if it was not scored.
    """

    phase: str
    records: tuple[Reference, ...]
    n_tokens: int
    left_out: int = 0
    cut: int = 0
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of the corpus that may help, shown if no answer was found.

    Attributes:
        document: Its document: "file" or "file, row 3".
        start, end: Position in the document's text, in characters.
        words: Words of the question in it, as written in the question.
        number: Short number of its chunk: `graphrag-ray inspect source NUMBER`.
    """

    document: str
    start: int
    end: int
    text: str
    words: tuple[str, ...]
    number: int

    @property
    def place(self) -> str:
        return f"{self.document}, characters {self.start:,}–{self.end:,}"


@dataclass(frozen=True)
class Answer:
    """An answer with everything needed to check it.

    Attributes:
        text: Markdown whose references use human_readable_ids.
        references: Records that the text cites, by id, without duplicates and in order.
        level: The k of C_k, or None for methods without levels.
        found: False if the index has nothing on the question. The text then says so.
        contexts: Contexts sent to models, in order of use.
        phases: Usage per phase, in order of use.
        failed_parts: Number of contexts without a usable reply. The answer ignores their part of the corpus.
        dropped_references: Number of citations removed from the text because the context lacked the record.
        notes: Remarks for the reader, as sentences.
        chain: Links of a multi-hop answer.
        paths: Human-readable id of a cited chunk -> path of the walk from the question to it, as text.
        seconds: Time from question to answer. None until the caller fills it in.
        passages: Passages that may help, if nothing was found. They come from what the method read and from
            a search for the question's words.
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
    passages: tuple[Passage, ...] = ()

    def _repr_markdown_(self) -> str:
        """Show the answer in a notebook."""
        return self.text + passages_markdown(self.passages)

    @property
    def unread(self) -> bool:
        """Whether every call failed, so that the text only reports the failure."""
        return self.failed_parts > 0 and self.text.startswith(UNREADABLE)

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return asdict(self)

    @property
    def cost_usd(self) -> float | None:
        """Total cost of all phases, or None if one of them is unknown."""
        costs = [phase.cost_usd for phase in self.phases.values()]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


def passages_markdown(passages: Sequence[Passage]) -> str:
    """Render passages as text to append to an answer, or "" if there are none."""
    lines = []
    for passage in passages:
        place, text = escape_markdown(passage.place), escape_markdown(collapse_whitespace(passage.text))
        words = f" ({escape_markdown(', '.join(passage.words))})" if passage.words else ""
        lines.append(f"- {place}: “{text}”{words}\n")
    return f"\n\n---\n**{PASSAGES_HEADING}:**\n\n{''.join(lines)}".rstrip() if lines else ""
