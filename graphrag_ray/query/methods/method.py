"""The contract of a search method: a generator that yields what it needs, is sent it, and returns the answer.

A method performs no I/O, so it is one file of this folder and can be tested with in-memory tables and
replies. It yields one of the types of `Need`, or a tuple of them, which are resolved together and sent back
as a list. `query/ask.py` resolves them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from graphrag_ray.base.index_settings import Price, Query, Searched, Settings
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Count
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.methods import DEFAULT

T = TypeVar("T")

MAX_QUESTION_CHARACTERS = 20_000

Kind: TypeAlias = Searched
"""The kinds of records that can be searched: those of `schema.EMBEDDINGS`."""
By: TypeAlias = Literal["vector", "keyword"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Request rows of a table, in table order. Resolves to a `pa.Table`.

    Attributes:
        ids: Select rows whose column `by` equals one of these ids or numbers or, for a list column, contains
            one. None selects all rows.
        by: The column to match, or several columns of which one has to match.
        limit_per_id: Maximum number of rows per id, by rank (`schema.ROW_INDEXES`). Ignored for an index made
            by an earlier version.
        trim_lists: If `by` is a list column, its lists may be returned without the other ids.
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
        k: 0 lets `nearest.py` choose enough to fill a context.
        only_ids: Restrict the search to these ids; None searches all records.
    """

    kind: Kind
    by: By
    text: str
    k: int = 0
    only_ids: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class LevelSearch:
    """Request the k records of each level of a hierarchy whose embeddings are nearest to a text, best first.

    Resolves to a `list[list[Hit]]`: the records that the hierarchy is built over, then its reports from the
    finest level up.
    """

    hierarchy: str
    text: str
    k: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result. A higher score, cosine similarity or BM25, is nearer."""

    id: str
    score: float


@dataclass(frozen=True, slots=True)
class NameCounts:
    """Request the number of chunks that mention each name. Resolves to a `dict[str, int]`.

    Names that the walk index does not know are left out. A single word also counts where it occurs as a word:
    it may be a rare name and a common word.

    Attributes:
        names: Id (`base/ids.name_id`) -> name.
    """

    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Walk:
    """Request the k chunks that a random walk over names and chunks visits most often, best first.

    Resolves to a `list[WalkHit]`; see `pagerank.py`.

    Attributes:
        names: Ids of the names where the walk starts -> positive weight.
        chunks: Ids of the chunks where the walk starts -> positive weight.
        among: Return only these chunks; None returns any.
    """

    names: Mapping[str, float]
    chunks: Mapping[str, float]
    k: int
    among: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class WalkHit:
    """A chunk that a walk visited, and the path that reached it: names and chunk ids alternately."""

    id: str
    score: float
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dialogues(Generic[T]):
    """Request to run dialogues with models concurrently. Resolves to a `list[Ran]`.

    Attributes:
        phase: Name for cost accounting, and the stage whose model the settings choose.
        is_answer: The only reply is the text of the answer and may be streamed.
        numbering: (section, number) -> id of the records that the last reply may cite. None disables
            streaming.
    """

    phase: str
    factories: Sequence[Callable[[], Dialogue[T]]]
    is_answer: bool = False
    numbering: Mapping[tuple[str, int], str] | None = None


@dataclass(frozen=True, slots=True)
class DialogueOutcome(Generic[T]):
    """The outcome of one dialogue: a result, or the reason why there is none."""

    result: T | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to show before the expensive part of a method begins. Resolves to None."""

    text: str


Need: TypeAlias = Rows | Search | LevelSearch | NameCounts | Walk | Dialogues[Any] | Notice
Steps: TypeAlias = Generator[Any, Any, T]
"""A generator that yields needs and returns a T."""
Method: TypeAlias = Steps[Answer]


@dataclass(frozen=True)
class Question:
    """A question as a search method receives it.

    Attributes:
        level: Level as the caller wrote it; None lets the method choose.
        where: Conditions on documents, all of which must hold (see `document_filters.py`).
        history: Earlier questions with their answers, oldest first.
    """

    text: str
    level: str | int | None = None
    where: Sequence[str] = ()
    history: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class AskRequest(Question):
    """A question together with the search method and, if they differ from the index's, its query settings."""

    text: str = ""
    method: str = DEFAULT
    query: Query | None = None


@dataclass(frozen=True)
class SearchEnv:
    """What a search method knows without asking: rows per table, prices per stage, a token counter, …"""

    settings: Settings
    prompts: Mapping[str, Prompt]
    count: Count
    n_rows: Mapping[str, int]
    prices: Mapping[str, Price | None] = field(default_factory=dict)
