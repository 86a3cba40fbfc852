"""The levels of a hierarchy, and the reports that represent each (paper 4.1.2).

C_k consists of every community of level k and the leaves above it, which are projected down. A community is
stored once, at its own level; the projection happens here.

A community of C_k whose report failed is represented by the reports of its sub-communities, recursively:
these cover the same members without overlapping others, unlike its parent's report. Members that no report
covers are missing; the answer tells how many communities that concerns.
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
        rows: Rows of the reports table, ascending.
        replaced: Communities without a report that reports of sub-communities represent.
        missing: Communities, of the level or below, that no report covers.
        n_tokens: Tokens of all these reports as contexts show them.
    """

    level: int
    rows: Ints
    replaced: tuple[int, ...]
    missing: tuple[int, ...]
    n_tokens: int


@dataclass(frozen=True)
class Levels:
    """The C communities of one hierarchy, and which have a report.

    Attributes:
        community: [C] As in the communities table, like `level` and `parent`.
        report: [C] Row of the reports table; -1 if there is none.
        n_tokens: [C] Tokens of that report; 0 if there is none.
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
        """Parse a level as users write it ("C2", "2", 2; None: `default`). Raises LevelNotFound."""
        if text is None:
            return self.default(context_tokens)
        match = _LEVEL.match(str(text))
        if match and int(match.group(1)) < self.n_levels:
            return int(match.group(1))
        raise LevelNotFound(f"There is no level {str(text)!r}: {self._which()}")

    def default(self, context_tokens: int) -> int:
        """Choose the coarsest level that fills a context, or the largest. Raises LevelNotFound."""
        tokens = [self.at(level).n_tokens for level in range(self.n_levels)]
        if not any(tokens):
            raise self.empty()
        return next((k for k, n in enumerate(tokens) if n >= context_tokens), int(np.argmax(tokens)))

    def at(self, level: int) -> LevelReports:
        """Collect the reports of C_level. Raises LevelNotFound."""
        if not 0 <= level < self.n_levels:
            raise LevelNotFound(f"There is no level C{level}: {self._which()}")
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
        places = np.concatenate(used)
        rows, n_tokens = np.sort(self.report[places]), int(self.n_tokens[places].sum())
        return LevelReports(level, rows, tuple(replaced), tuple(missing), n_tokens)

    def empty(self) -> LevelNotFound:
        """The error for a hierarchy without reports."""
        return LevelNotFound(f"No community has a report: {self._which()}")

    def _which(self) -> str:
        if not self.n_levels:
            return "this index has no communities"
        return "this index has " + ", ".join(f"C{k}" for k in range(self.n_levels))


def is_auto(level: str | int | None) -> bool:
    """Whether the search method chooses the level."""
    return level is None or str(level).strip().lower() == AUTO


def levels(communities: pa.Table, reports: pa.Table, hierarchy: str) -> Levels:
    """Build the levels of a hierarchy.

    Args:
        communities: Columns community, level, parent, hierarchy.
        reports: Columns community, n_tokens, hierarchy. `LevelReports.rows` refer to its rows.
    """
    own = communities.filter(pc.equal(communities["hierarchy"], hierarchy))
    rows = np.flatnonzero(np.asarray(pc.equal(reports["hierarchy"], hierarchy)))
    tokens = _ints(reports["n_tokens"])[rows]
    with_report = reports["community"].take(pa.array(rows)).cast(own["community"].type)
    place = _ints(pc.fill_null(pc.index_in(own["community"], value_set=with_report.combine_chunks()), -1))
    report = np.where(place < 0, -1, np.append(rows, -1)[place])
    n_tokens = np.where(place < 0, 0, np.append(tokens, 0)[place])
    return Levels(_ints(own["community"]), _ints(own["level"]), _ints(own["parent"]), report, n_tokens)


@dataclass(frozen=True, slots=True)
class Units:
    """A row of the paper's Table 2: a level ("C0", "C1", …) or the source text ("TS").

    Attributes:
        n_units: Number of community reports or chunks.
        share: `n_tokens` relative to the largest row.
        missing: Communities of the level that no report covers.
    """

    name: str
    n_units: int
    n_tokens: int
    share: float
    missing: int = 0


def units(known: Levels, chunk_tokens: npt.ArrayLike) -> list[Units]:
    """Compute Table 2 of the paper (4.1.2) from the levels and the token count of each chunk."""
    chunks = np.asarray(chunk_tokens, dtype=np.int64)
    rows = [
        (f"C{at.level}", len(at.rows), at.n_tokens, len(at.missing))
        for at in map(known.at, range(known.n_levels))
    ]
    rows.append(("TS", len(chunks), int(chunks.sum()), 0))
    most = max(tokens for _, _, tokens, _ in rows)
    return [Units(name, n, tokens, tokens / most if most else 0.0, gap) for name, n, tokens, gap in rows]


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)
