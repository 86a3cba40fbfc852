"""What hierarchies share that are built level upon level: the reports so far, each level's written from those
below and embedded before the next is clustered; and room for the vectors of a level."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryFile

import numpy as np
import pyarrow as pa

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.ids import report_id
from graphrag_ray.engine.work import Outcome, Row
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.nearest_neighbours import Vectors
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.spool import Spool
from graphrag_ray.indexing.stages.embed_stage import Texts, embed_now
from graphrag_ray.indexing.stages.reports_stage import PART_ROWS, ReportSource, WrittenReport, report_tables
from graphrag_ray.indexing.stages.short_ids import Keys, prefixes_of
from graphrag_ray.store.parts import Part, read_part
from graphrag_ray.store.search.vectors import unit

NOTHING_BELOW = "none of the reports that it is written from is there"


@dataclass
class ReportsSoFar:
    """Reports by level, the lowest first.

    ids      of the clusters of each level
    first    the number of each level's first cluster among those of all levels
    written  by this number
    final    the next run has nothing to try again: all that could be embedded is
    """

    kind: HierarchyKind
    ids: list[list[str]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    written: Spool[WrittenReport] = field(default_factory=Spool)
    failed: list[tuple[Row, Outcome[WrittenReport]]] = field(default_factory=list)
    final: bool = True

    def begin(self, ids: list[str]) -> None:
        """The next level. ids: of its clusters."""
        self.first.append(self.first[-1] + len(self.ids[-1]) if self.ids else 0)
        self.ids.append(ids)

    def below(self) -> tuple[Callable[[int], WrittenReport], Sequence[str]]:
        """Of the level under the last one: its reports by number, and the ids of its clusters."""
        first = self.first[-2]
        return (lambda cluster: self.written[first + cluster]), self.ids[-2]

    def record_tokens(self, height: int) -> list[int | None]:
        """Of a level, the tokens of each report's record; None where there is no report."""
        first = self.first[height]
        reports = (self.written.get(first + cluster) for cluster in range(len(self.ids[height])))
        return [report.record_tokens if report else None for report in reports]

    def take(
        self,
        source: ReportSource,
        called: Callable[[int], str],
        without: Iterable[int] = (),
        place: Ints | None = None,
    ) -> None:
        """What was written of the last level. called: what people call a cluster; without: clusters that were
        not asked about, since nothing is below; place: of each cluster in the source."""
        first = self.first[-1]
        for cluster in range(len(self.ids[-1])):
            at = cluster if place is None else int(place[cluster])
            if (report := source.written.get(at)) is not None:
                self.written[first + cluster] = report
        # In the order of communities, not in that in which they failed.
        self.failed += sorted(source.failed, key=lambda f: f[0]["community"])
        nothing: Outcome[WrittenReport] = Outcome("", "failed", error=NOTHING_BELOW)
        self.failed += [({"called": called(cluster)}, nothing) for cluster in without]

    def by_community(self, places: Iterable[Ints]) -> Spool[WrittenReport]:
        """All reports by number of their communities. places: of each level, the community of each
        cluster."""
        found: Spool[WrittenReport] = Spool()
        for first, place in zip(self.first, places, strict=True):
            for cluster, community in enumerate(place.tolist()):
                if (report := self.written.get(first + cluster)) is not None:
                    found[community] = report
        return found

    def embed(self, run: Run, step: str, members: Iterable[Ints], below: Vectors) -> Vectors:
        """[clusters, dimensions] of the reports of the last level, of length 1, as these are found by search;
        where there is none, the mean of the members. members: of each cluster, rows of `below`"""
        ids, first = self.ids[-1], self.first[-1]
        own: Spool[WrittenReport] = Spool()
        for cluster in range(len(ids)):
            if (report := self.written.get(first + cluster)) is not None:
                own[cluster] = report
        # In parts, as later stages find them: all workers embed.
        tables = report_tables(own, np.zeros(len(ids), np.int64), ids)
        parts = run.write(step, "level_reports", tables, max_rows=PART_ROWS)
        texts = [Texts(self.kind.reports, [part]) for part in parts]
        keys = prefixes_of(pa.array([report_id(id_) for id_ in ids], pa.string()))
        order = np.argsort(keys)
        vectors = np.zeros((len(ids), below.shape[1]), np.float32)
        embedded, final = embed_now(run, step, texts)
        self.final &= final
        for part in embedded:
            table = read_part(run.store, part)
            column = table["vector"].combine_chunks()
            if column.type.list_size == vectors.shape[1]:
                at = order[np.searchsorted(keys[order], prefixes_of(table["id"]))]
                vectors[at] = column.flatten().to_numpy().reshape(len(table), -1)
        for cluster, rows in enumerate(members):
            if not vectors[cluster].any():
                vectors[cluster] = below[rows].sum(axis=0)
        return unit(vectors)

    @property
    def nothing_to_retry(self) -> bool:
        return self.final and not any(outcome.status == "retry" for _, outcome in self.failed)


def vectors_of(run: Run, embeddings: Sequence[Part], keys: Keys) -> Vectors:
    """[nodes, dimensions] of length 1, zeros where a node has none; in a file, since there may be very many.

    embeddings: parts of their table; keys: of the nodes
    """
    order = np.argsort(keys)
    rising = keys[order]
    vectors: Vectors | None = None
    for part in embeddings:
        table = read_part(run.store, part)
        column = table["vector"].combine_chunks()
        if vectors is None:
            vectors = in_a_file((len(keys), column.type.list_size))
        rows = order[np.searchsorted(rising, prefixes_of(table["id"]))]
        vectors[rows] = unit(column.flatten().to_numpy().reshape(len(table), -1))
    return np.zeros((len(keys), 1), np.float32) if vectors is None else vectors


def in_a_file(shape: tuple[int, int]) -> Vectors:
    """Zeros. Raises OSError where the disk has no room: later, in mapped memory, that would be a crash."""
    n_bytes = shape[0] * shape[1] * np.dtype(np.float32).itemsize
    with TemporaryFile() as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        else:
            file.truncate(n_bytes)
        return np.memmap(file, np.float32, "r+", shape=shape)
