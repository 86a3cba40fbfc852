"""The results of a run's stages that later stages read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.short_ids import ShortIds
from graphrag_ray.indexing.step_result import Result


@dataclass(frozen=True)
class ExtractedGraph:
    """The results of the graph stages.

    `notes` is empty unless a model describes every document, `embedded` unless a hierarchy needs entity
    embeddings.
    """

    extraction: Result
    claims: Result
    merged: Result
    descriptions: Result
    notes: Result
    resolution: Result
    embedded: Result = field(default_factory=Result)

    @property
    def results(self) -> Sequence[Result]:
        return (
            self.extraction,
            self.claims,
            self.merged,
            self.descriptions,
            self.notes,
            self.resolution,
            self.embedded,
        )


class BuiltHierarchy(Protocol):
    """A hierarchy that a run has built. To add a kind, implement this class and a function that builds it.

    `reports` has the table `reports` with `number` and `full_content`. Failures in `results`, the results of
    all its stages, become failures of the run. `counts`, with at least `levels`, are stored in the snapshot.
    """

    @property
    def ids(self) -> list[str]: ...

    @property
    def level(self) -> Ints: ...

    @property
    def reports(self) -> Result: ...

    @property
    def results(self) -> Sequence[Result]: ...

    @property
    def counts(self) -> Mapping[str, Any]: ...

    def short_ids(self, run: Run) -> dict[str, ShortIds]:
        """Return the short ids of its communities and reports, by table."""

    def write_tables(self, run: Run, numbers: Callable[[], dict[str, ShortIds]], period: str) -> Result:
        """Write its tables for the snapshot, given the short ids of all tables and the run's ISO date."""


@dataclass(frozen=True)
class Results:
    """The results of all stages. The tables of `other_stages` become tables of the snapshot."""

    corpus: Result
    graph: ExtractedGraph | None
    hierarchies: Mapping[str, BuiltHierarchy]
    other_stages: Mapping[str, Result] = field(default_factory=dict)
    embeddings: Result = field(default_factory=Result)
    search_indexes: Result = field(default_factory=Result)

    def __iter__(self) -> Iterator[Result]:
        yield self.corpus
        yield from self.graph.results if self.graph else ()
        for hierarchy in self.hierarchies.values():
            yield from hierarchy.results
        yield from (*self.other_stages.values(), self.embeddings, self.search_indexes)
