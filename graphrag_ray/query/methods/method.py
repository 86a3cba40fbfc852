"""A way of answering, as a generator: it yields what it needs, is sent it, and returns the answer.

    Rows        rows of a table of the snapshot         -> pa.Table
    Search      the records that are nearest to a text  -> list[Hit]
    LevelSearch the same, of each level of a hierarchy  -> list[list[Hit]]
    NameCounts  in how many chunks names stand          -> dict[str, int]
    Walk        chunks that a walk comes to             -> list[WalkHit]
    Dialogues   what models are asked, all at once      -> list[Ran]
    Notice      what whoever asks should know before    -> None

or a tuple of these, answered together and sent as a list. So a way of answering is one file of this room,
does no I/O and can be tested with tables and replies at hand; `query/ask.py` gives one question what it
needs.
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
"""What can be searched: the kinds of `schema.EMBEDDINGS`."""


By: TypeAlias = Literal["vector", "keyword"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table, in its order.

    ids   only the rows whose column `by`, or one of these columns, is one of these ids or numbers or, for a
          column of lists, holds one; None: all
    most  of each id so many rows at most, the first by rank (`schema.LOOKED_UP`); an index of an earlier
          version gives them all
    only_these  where `by` is a column of lists: what else these hold may be left out
    """

    table: str
    columns: Sequence[str]
    ids: Sequence[str | int] | None = None
    by: str | tuple[str, ...] = "id"
    most: int | None = None
    only_these: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """At most k records nearest to a text, best first.

    k       0: as many as fill a context, where `nearest.py` asks
    by      "vector": cosine similarity of embeddings; "keyword": BM25
    among   ids of the only records that count; None: all
    """

    kind: Kind
    by: By
    text: str
    k: int = 0
    among: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class LevelSearch:
    """At most k records of each level of a hierarchy whose embeddings are nearest to a text's, best first:
    those that it is over, then its reports, those of the finest level first."""

    hierarchy: str
    text: str
    k: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A record that was found. score: cosine similarity or BM25; higher is nearer."""

    id: str
    score: float


@dataclass(frozen=True, slots=True)
class NameCounts:
    """In how many chunks each of these names stands, of those that the index for walks knows.

    names: id (`base/ids.name_id`) -> the name. One of a single word counts where the word stands, too: it may
    be a name in few chunks and an ordinary word in many
    """

    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Walk:
    """At most k chunks that a walk over names and chunks comes to most often (`walk.py`), best first.

    names, chunks   where it begins: ids, and weights above 0
    among           ids of the only chunks that count; None: all
    """

    names: Mapping[str, float]
    chunks: Mapping[str, float]
    k: int
    among: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class WalkHit:
    """A chunk that a walk came to.

    path: what it was first reached by: names and ids of chunks by turns, a name last; () where it began here
    """

    id: str
    score: float
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dialogues(Generic[T]):
    """Dialogues to run at once.

    phase      for the accounts, and the stage of the settings that says which model is asked
    last       the text of its only reply is the answer's: it may be shown while it is written
    numbering  of the records that the last one is shown, which its references name; None: what it writes is
               shown when it is written
    """

    phase: str
    start: Sequence[Callable[[], Dialogue[T]]]
    last: bool = False
    numbering: Mapping[tuple[str, int], str] | None = None


@dataclass(frozen=True, slots=True)
class Ran(Generic[T]):
    """What became of one dialogue: its result, or why there is none."""

    result: T | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """Told before what follows is paid for."""

    text: str


Need: TypeAlias = Rows | Search | LevelSearch | NameCounts | Walk | Dialogues[Any] | Notice
Method: TypeAlias = Generator[Any, Any, Answer]


@dataclass(frozen=True)
class Question:
    """level: as the caller wrote it; None: the method's own choice. where: conditions on documents, all of
    which must hold. history: earlier questions and their answers, the oldest first."""

    text: str
    level: str | int | None = None
    where: Sequence[str] = ()
    history: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Ask(Question):
    """A question, and how it is asked.

    query   settings that it is asked with; None: those of the index
    """

    text: str = ""
    method: str = DEFAULT
    query: Query | None = None


@dataclass(frozen=True)
class Given:
    """What a method knows without asking.

    count     tokens of a text, in the vocabulary of the model that answers
    n_rows    rows of each table of the snapshot; a table that it lacks is not in it
    prices    of each stage of an answer; None, or no entry, where a price is unknown
    """

    settings: Settings
    prompts: Mapping[str, Prompt]
    count: Count
    n_rows: Mapping[str, int]
    prices: Mapping[str, Price | None] = field(default_factory=dict)
