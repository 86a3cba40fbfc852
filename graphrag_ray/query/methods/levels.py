"""Levels of a hierarchy, and the reports that stand for each (paper 4.1.2).

C_k is every community of level k plus the leaves above it (a community without sub-communities is
projected down). A community is stored once, at its own level; the projection is made here, on reading.

A community of C_k whose report failed is replaced by those of its sub-communities, as far down as
needed: they hold the same members without overlapping the others, which its parent's report would. A
member that no report covers is missing; the answer says how many communities that concerns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.errors import LevelNotFound

Ints = npt.NDArray[np.int64]

AUTO = "auto"
_LEVEL = re.compile(r"\s*+(?:c\s*+)?(\d{1,9})\s*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class LevelReports:
    """The reports of one level.

    rows       rows of the reports table, ascending
    replaced   communities of the level without a report, represented by reports below them
    missing    communities (of the level or below) that no report covers
    n_tokens   of all these reports as contexts show them
    """

    level: int
    rows: Ints
    replaced: tuple[int, ...]
    missing: tuple[int, ...]
    n_tokens: int


@dataclass(frozen=True)
class Levels:
    """The communities of one hierarchy, and which have a report.

    community, level, parent   [C] as in the communities table
    report                     [C] row of the reports table, -1 where there is none
    n_tokens                   [C] of that report, 0 where there is none
    """

    community: Ints
    level: Ints
    parent: Ints
    report: Ints
    n_tokens: Ints

    @property
    def n_levels(self) -> int:
        return int(self.level.max()) + 1 if len(self.level) else 0

    def parse(self, text: str | int | None, context_tokens: int) -> int:
        """A level as a user writes it: "C2", "2", 2; None: `default`. Raises LevelNotFound."""
        if text is None:
            return self.default(context_tokens)
        match = _LEVEL.match(str(text))
        if match and int(match.group(1)) < self.n_levels:
            return int(match.group(1))
        raise LevelNotFound(f"there is no level {str(text)!r}; {self._which()}")

    def default(self, context_tokens: int) -> int:
        """The coarsest level with enough reports to fill a context, else the one with most to read. Raises
        LevelNotFound where there is no report at all."""
        tokens = [self.at(level).n_tokens for level in range(self.n_levels)]
        if not any(tokens):
            raise self.empty()
        return next((k for k, n in enumerate(tokens) if n >= context_tokens), int(np.argmax(tokens)))

    def at(self, level: int) -> LevelReports:
        """C_level. Raises LevelNotFound for a level that the hierarchy does not have."""
        if not 0 <= level < self.n_levels:
            raise LevelNotFound(f"there is no level C{level}; {self._which()}")
        is_leaf = ~np.isin(self.community, self.parent)
        chosen = np.flatnonzero((self.level == level) | (is_leaf & (self.level < level)))
        used = [chosen[self.report[chosen] >= 0]]
        replaced: list[int] = []
        missing: list[int] = []
        for index in chosen[self.report[chosen] < 0].tolist():
            # Down to communities with a report; what has none and no sub-communities is covered by nothing.
            n_used, todo = len(used), np.array([index], dtype=np.int64)
            while len(todo):
                missing += self.community[todo[is_leaf[todo]]].tolist()
                children = np.flatnonzero(np.isin(self.parent, self.community[todo]))
                if len(with_report := children[self.report[children] >= 0]):
                    used.append(with_report)
                todo = children[self.report[children] < 0]
            if len(used) > n_used:
                replaced.append(int(self.community[index]))
        of_level = np.concatenate(used)
        rows, n_tokens = np.sort(self.report[of_level]), int(self.n_tokens[of_level].sum())
        return LevelReports(level, rows, tuple(replaced), tuple(missing), n_tokens)

    def empty(self) -> LevelNotFound:
        """There is no report at all."""
        return LevelNotFound(f"no community has a report; {self._which()}")

    def _which(self) -> str:
        if not self.n_levels:
            return "this index has no communities"
        return "this index has " + ", ".join(f"C{k}" for k in range(self.n_levels))


def is_auto(level: str | int | None) -> bool:
    """Whether the way of answering shall choose the level."""
    return level is None or str(level).strip().lower() == AUTO


def levels(communities: pa.Table, reports: pa.Table, hierarchy: str) -> Levels:
    """Read a hierarchy's levels.

    communities   columns community, level, parent, hierarchy
    reports       columns community, n_tokens, hierarchy; the rows of LevelReports count its rows
    """
    own = communities.filter(pc.equal(communities["hierarchy"], hierarchy))
    rows = np.flatnonzero(np.asarray(pc.equal(reports["hierarchy"], hierarchy)))
    tokens = _ints(reports["n_tokens"])[rows]
    of_report = reports["community"].take(pa.array(rows)).cast(own["community"].type)
    at = _ints(pc.fill_null(pc.index_in(own["community"], value_set=of_report.combine_chunks()), -1))
    report = np.where(at < 0, -1, np.append(rows, -1)[at])
    n_tokens = np.where(at < 0, 0, np.append(tokens, 0)[at])
    return Levels(_ints(own["community"]), _ints(own["level"]), _ints(own["parent"]), report, n_tokens)


@dataclass(frozen=True, slots=True)
class Units:
    """A row of the paper's Table 2: what a condition reads.

    name       "C0", "C1", …; "TS": the source text
    n_units    community reports, or chunks; n_tokens: of these together
    share      of the most tokens of any row
    missing    communities of the level that no report covers
    """

    name: str
    n_units: int
    n_tokens: int
    share: float
    missing: int = 0


def units(known: Levels, chunk_tokens: npt.ArrayLike) -> list[Units]:
    """Table 2 of the paper (4.1.2) for any index. chunk_tokens: of each chunk of the source text."""
    chunks = np.asarray(chunk_tokens, dtype=np.int64)
    at = [known.at(k) for k in range(known.n_levels)]
    rows = [(f"C{a.level}", len(a.rows), a.n_tokens, len(a.missing)) for a in at]
    rows.append(("TS", len(chunks), int(chunks.sum()), 0))
    most = max(tokens for _, _, tokens, _ in rows)
    return [Units(name, n, tokens, tokens / most if most else 0.0, gap) for name, n, tokens, gap in rows]


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)
