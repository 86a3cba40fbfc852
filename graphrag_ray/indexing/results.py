"""What the stages of a run came to, as later stages read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.short_ids import Numbers
from graphrag_ray.indexing.step_result import Result


@dataclass(frozen=True)
class ExtractedGraph:
    """Entities, relationships and claims. embedded: table embeddings_entity, where a hierarchy is made by
    meaning; else there is none yet."""

    extracted: Result
    claimed: Result
    merged: Result
    described: Result
    embedded: Result = field(default_factory=Result)

    @property
    def results(self) -> Sequence[Result]:
        return (self.extracted, self.claimed, self.merged, self.described, self.embedded)


class BuiltHierarchy(Protocol):
    """A hierarchy that a run has built. A new one is a class like this, and a function that builds it.

    ids       of its communities, by number in the hierarchy
    level     of these
    reports   what writing them came to: table `reports`, with the community's `number` and `full_content`
    results   of all its stages, whose failures are the run's
    counts    what the snapshot tells of it: at least `levels`
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

    def numbers(self, run: Run) -> dict[str, Numbers]:
        """The short ids of its communities and reports, by table."""

    def tables(self, run: Run, numbers: Callable[[], dict[str, Numbers]], period: str) -> Result:
        """Its tables of the snapshot. numbers: of all tables; period: ISO date of the run."""


@dataclass(frozen=True)
class Results:
    """What all stages came to.

    graph         None where no hierarchy is over entities
    hierarchies   by name, the first first
    more          of further stages, by name: their tables become tables of the snapshot
    """

    corpus: Result
    graph: ExtractedGraph | None
    hierarchies: Mapping[str, BuiltHierarchy]
    more: Mapping[str, Result] = field(default_factory=dict)
    embedded: Result = field(default_factory=Result)
    searchable: Result = field(default_factory=Result)

    def __iter__(self) -> Iterator[Result]:
        yield self.corpus
        yield from self.graph.results if self.graph else ()
        for hierarchy in self.hierarchies.values():
            yield from hierarchy.results
        yield from (*self.more.values(), self.embedded, self.searchable)
