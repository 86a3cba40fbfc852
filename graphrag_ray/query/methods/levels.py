"""The levels of a hierarchy, and the reports that represent each (paper 4.1.2).

C_k consists of every community at level k and every leaf at a coarser level, which is projected down. A
community is stored once, at its own level, and projected here.

A community of C_k whose report failed is represented by the reports of its sub-communities, recursively.
Unlike the report of its parent, they cover the same members and no others. If no report covers a community,
its members are missing, and a note in the answer gives the number of such communities.
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

    Attributes:
        rows: Positions in the reports table, ascending.
        replaced: Communities without a report that are represented by reports of their sub-communities.
        missing: Communities at this level or a finer one that no report covers.
        n_tokens: Total size of the reports in contexts.
    """

    level: int
    rows: Ints
    replaced: tuple[int, ...]
    missing: tuple[int, ...]
    n_tokens: int


@dataclass(frozen=True)
class Levels:
    """The communities of one hierarchy and their reports, as arrays with one entry per community.

    Attributes:
        community, level, parent: Columns of the communities table.
        report: Position in the reports table, or -1 if there is no report.
        n_tokens: Tokens of the report, as rendered in contexts, or 0 if there is none.
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
        """Parse a level such as "C2", "2" or 2. None selects the `default`. Raises LevelNotFound."""
        if text is None:
            return self.default(context_tokens)
        match = _LEVEL.match(str(text))
        if match and int(match.group(1)) < self.n_levels:
            return int(match.group(1))
        raise LevelNotFound(f"There is no level {str(text)!r}: {self._describe_levels()}")

    def default(self, context_tokens: int) -> int:
        """Choose the coarsest level that fills a context, or if none does, the level with the most tokens.

        Raises LevelNotFound if no level has reports.
        """
        tokens = [self.reports_of_level(level).n_tokens for level in range(self.n_levels)]
        if not any(tokens):
            raise self.no_reports_error()
        return next((k for k, n in enumerate(tokens) if n >= context_tokens), int(np.argmax(tokens)))

    def reports_of_level(self, level: int) -> LevelReports:
        """Collect the reports of C_level. Raises LevelNotFound."""
        if not 0 <= level < self.n_levels:
            raise LevelNotFound(f"There is no level C{level}: {self._describe_levels()}")
        is_leaf = ~np.isin(self.community, self.parent)
        chosen = np.flatnonzero((self.level == level) | (is_leaf & (self.level < level)))
        used = [chosen[self.report[chosen] >= 0]]
        replaced: list[int] = []
        missing: list[int] = []
        for index in chosen[self.report[chosen] < 0].tolist():
            # Descend to communities with a report. A leaf without one is missing.
            n_used, todo = len(used), np.array([index], dtype=np.int64)
            while len(todo):
                missing += self.community[todo[is_leaf[todo]]].tolist()
                children = np.flatnonzero(np.isin(self.parent, self.community[todo]))
                if len(with_report := children[self.report[children] >= 0]):
                    used.append(with_report)
                todo = children[self.report[children] < 0]
            if len(used) > n_used:
                replaced.append(int(self.community[index]))
        positions = np.concatenate(used)
        rows, n_tokens = np.sort(self.report[positions]), int(self.n_tokens[positions].sum())
        return LevelReports(level, rows, tuple(replaced), tuple(missing), n_tokens)

    def no_reports_error(self) -> LevelNotFound:
        """Build the error for a hierarchy without reports."""
        return LevelNotFound(f"No community has a report: {self._describe_levels()}")

    def _describe_levels(self) -> str:
        if not self.n_levels:
            return "this hierarchy has no communities"
        return "this hierarchy has " + ", ".join(f"C{k}" for k in range(self.n_levels))


def is_auto(level: str | int | None) -> bool:
    """Whether the search method should choose the level."""
    return level is None or str(level).strip().lower() == AUTO


def build_levels(communities: pa.Table, reports: pa.Table, hierarchy: str) -> Levels:
    """Build the levels of a hierarchy.

    Args:
        communities: Columns community, level, parent, hierarchy.
        reports: Columns community, n_tokens, hierarchy. `LevelReports.rows` are positions in this table.
    """
    selected = communities.filter(pc.equal(communities["hierarchy"], hierarchy))
    rows = np.flatnonzero(np.asarray(pc.equal(reports["hierarchy"], hierarchy)))
    tokens = _ints(reports["n_tokens"])[rows]
    with_report = reports["community"].take(pa.array(rows)).cast(selected["community"].type)
    index = pc.index_in(selected["community"], value_set=with_report.combine_chunks())
    position = _ints(pc.fill_null(index, -1))
    report = np.where(position < 0, -1, np.append(rows, -1)[position])
    n_tokens = np.where(position < 0, 0, np.append(tokens, 0)[position])
    community, level, parent = (_ints(selected[name]) for name in ("community", "level", "parent"))
    return Levels(community, level, parent, report, n_tokens)


@dataclass(frozen=True, slots=True)
class LevelSize:
    """A row of the paper's Table 2: a level ("C0", "C1", …) or the source text ("TS").

    Attributes:
        n_units: Number of community reports or chunks.
        share: `n_tokens` relative to the largest row.
        missing: Number of communities that no report covers.
    """

    name: str
    n_units: int
    n_tokens: int
    share: float
    missing: int = 0


def level_sizes(levels: Levels, chunk_tokens: npt.ArrayLike) -> list[LevelSize]:
    """Compute Table 2 of the paper (4.1.2) from the levels and the token count of each chunk."""
    chunks = np.asarray(chunk_tokens, dtype=np.int64)
    rows = [
        (f"C{level.level}", len(level.rows), level.n_tokens, len(level.missing))
        for level in map(levels.reports_of_level, range(levels.n_levels))
    ]
    rows.append(("TS", len(chunks), int(chunks.sum()), 0))
    largest = max(1, *(tokens for _, _, tokens, _ in rows))
    return [LevelSize(name, n, tokens, tokens / largest, missing) for name, n, tokens, missing in rows]


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)
