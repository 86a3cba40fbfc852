"""The contract of a search method: a generator that yields requests, receives results, returns the answer.

A method performs no I/O, so it fits into one file and can be tested with in-memory tables and replies. It
yields one of the types of `Need`, or a tuple of them, which are resolved together and sent back as a list.
`query/ask.py` resolves them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from graphrag_ray.base.connection_settings import Price
from graphrag_ray.base.index_settings import Query, SearchedKind, Settings
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Count
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.methods import DEFAULT

T = TypeVar("T")

MAX_QUESTION_CHARACTERS = 20_000

Kind: TypeAlias = SearchedKind
"""A kind of records that can be searched, one of `declarations.SEARCHABLE_KINDS`."""
By: TypeAlias = Literal["vector", "keyword"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Request rows of a table, in table order. Resolves to a `pa.Table`.

    Attributes:
        ids: Select rows whose column `by` equals one of these ids or numbers or, for a list column, contains
            one of them. None selects all rows.
        by: The column to match, or several columns. A row is selected if any of them matches.
        limit_per_id: Maximum number of rows per id, by rank (`schema.ROW_INDEXES`). Ignored for an index made
            by an earlier version.
        trim_lists: If `by` is a list column, its lists may be returned with only the requested ids.
    """

    table: str
    columns: Sequence[str]
    ids: Sequence[str | int] | None = None
    by: str | tuple[str, ...] = "id"
    limit_per_id: int | None = None
    trim_lists: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """Request the k records nearest to a text, best first. Resolves to a `list[Hit]`.

    Attributes:
        by: "vector" for cosine similarity of embeddings, "keyword" for BM25.
        k: Number of hits. With 0, `nearest.py` chooses a number that fills a context.
        only_ids: Restrict the search to these ids. None searches all records.
    """

    kind: Kind
    by: By
    text: str
    k: int = 0
    only_ids: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class LevelSearch:
    """Request the k records of each level of a hierarchy whose embeddings are nearest to a text, best first.

    Resolves to a `list[list[Hit]]`: first the records that the hierarchy is built over, then the reports of
    each level, finest first. `ef` is the number of candidates per level if one index covers all levels.
    """

    hierarchy: str
    text: str
    k: int
    ef: int = 20


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result. A higher score (cosine similarity or BM25) means more similar."""

    id: str
    score: float


@dataclass(frozen=True, slots=True)
class NameCounts:
    """Request the number of chunks that mention each name. Resolves to a `dict[str, int]`.

    Names missing from the walk index are left out. A single word also counts in chunks that contain it as a
    word, because it may be both a rare name and a common word.

    Attributes:
        names: Id (`base/ids.name_id`) -> name.
    """

    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Walk:
    """Request the k chunks that a random walk over names and chunks visits most often, best first.

    Resolves to a `list[WalkHit]`. See `pagerank.py`.

    Attributes:
        names: Id of a name where the walk starts -> positive weight.
        chunks: Id of a chunk where the walk starts -> positive weight.
        only_ids: Return only these chunks. None allows all.
    """

    names: Mapping[str, float]
    chunks: Mapping[str, float]
    k: int
    only_ids: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Similarities:
    """Request the cosine similarity of texts to a question by the offline embedding. Resolves to floats.

    It needs no call, so it suits texts that the index does not embed, such as the sentences of a chunk.
    """

    question: str
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class WalkHit:
    """A chunk that a walk visited, and the path to it, which alternates between names and chunk ids."""

    id: str
    score: float
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dialogues(Generic[T]):
    """Request to run dialogues with models concurrently. Resolves to a `list[DialogueOutcome]`.

    Attributes:
        phase: Stage whose model answers, and name of the phase for cost accounting.
        is_answer: Whether the only reply is the text of the answer and may be streamed.
        numbering: (section, number) -> id of the records that the answer may cite. None disables streaming.
    """

    phase: str
    factories: Sequence[Callable[[], Dialogue[T]]]
    is_answer: bool = False
    numbering: Mapping[tuple[str, int], str] | None = None


@dataclass(frozen=True, slots=True)
class DialogueOutcome(Generic[T]):
    """The outcome of one dialogue: a result or, if it failed, None and an error message."""

    result: T | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to show before the expensive part of a method begins. Resolves to None."""

    text: str


Need: TypeAlias = Rows | Search | LevelSearch | NameCounts | Walk | Similarities | Dialogues[Any] | Notice
Steps: TypeAlias = Generator[Any, Any, T]
"""A generator that yields needs and returns a T."""
Method: TypeAlias = Steps[Answer]


@dataclass(frozen=True)
class Question:
    """A question as a search method receives it.

    Attributes:
        level: Requested level, not parsed yet. None lets the method choose.
        where: Conditions that documents must satisfy (see `document_filters.py`).
        history: Earlier questions with their answers, oldest first.
        chunks: Ids of the chunks from which the baseline `oracle` answers, in order.
    """

    text: str
    level: str | int | None = None
    where: Sequence[str] = ()
    history: Sequence[tuple[str, str]] = ()
    chunks: Sequence[str] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class AskRequest(Question):
    """A question with its search method and, if they differ from those of the index, its query settings."""

    text: str = ""
    method: str = DEFAULT
    query: Query | None = None


@dataclass(frozen=True)
class SearchEnv:
    """What a search method knows: token counter, rows per table, highest price of each stage's model, …"""

    settings: Settings
    prompts: Mapping[str, Prompt]
    count: Count
    n_rows: Mapping[str, int]
    prices: Mapping[str, Price | None] = field(default_factory=dict)
