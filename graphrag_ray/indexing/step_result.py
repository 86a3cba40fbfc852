"""The result of a step: table parts and counts, and which parts the next run can reuse.

A group of parts is a function of one input, of the dependencies of the whole step, and of the code. If none
of these has changed, the next run reuses the parts without reading them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson
import pyarrow as pa

from graphrag_ray.base.ids import stable_id
from graphrag_ray.engine.executor import WrittenParts
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.version import __version__

# Folders whose code determines the content of tables.
TABLE_CODE = ("base", "corpus", "graph", "indexing/stages", "offline", "store")

InputT = TypeVar("InputT")
COUNTS_SCHEMA = pa.schema([("name", pa.string()), ("value", pa.int64())])


@dataclass(frozen=True)
class Result:
    """The result of a step, small enough to be stored in a snapshot.

    Attributes:
        tables: By name, groups of parts aligned with the step's inputs.
        counts: Counts for display and for the snapshot.
        final: False if an item failed transiently and the next run should try again.
        made_from: By table, a hash for each group of everything that it depends on. The next run reuses
            groups with equal hashes (`ReusePlan`); "" prevents that.
    """

    tables: dict[str, list[list[Part]]] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    final: bool = True
    made_from: dict[str, list[str]] = field(default_factory=dict)

    def parts(self, name: str) -> list[Part]:
        """All parts of a table, in order."""
        return [part for group in self.tables.get(name, []) for part in group]

    @property
    def failures(self) -> list[Part]:
        """All parts of failures tables."""
        return [part for name in self.tables if is_failures_table(name) for part in self.parts(name)]

    def to_json(self) -> dict[str, Any]:
        tables = {
            n: [[[p.path, p.rows, p.bytes] for p in g] for g in groups] for n, groups in self.tables.items()
        }
        made_from = {"made_from": self.made_from} if self.made_from else {}
        return {"tables": tables, "counts": self.counts, **made_from}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Result:
        named = data.get("tables", {}).items()
        tables = {n: [[Part(*p) for p in g] for g in groups] for n, groups in named}
        return Result(tables, dict(data.get("counts", {})), made_from=dict(data.get("made_from", {})))


@dataclass(frozen=True)
class ReusePlan(Generic[InputT]):
    """Which inputs of a step to process, and which results of the parent snapshot to reuse.

    Attributes:
        names: Tables to which an input contributes one group of parts each.
        new_inputs: Inputs to process, in order.
        parent_positions: For each input, the position of its groups in `parent_tables`; -1 if it is new.
        hashes: For each input, a hash of everything that its result depends on; "" to process it always.
        retried: A marker that changes when items of the step's dialogue are retried.
    """

    names: Sequence[str]
    new_inputs: list[InputT]
    parent_tables: Mapping[str, list[list[Part]]]
    parent_positions: list[int]
    hashes: list[str]
    retried: str

    @staticmethod
    def create(
        parent: Result | None,
        step: str,
        inputs: Sequence[InputT],
        depends_on: Any,
        names: Sequence[str],
        identities: Sequence[Any],
        retried: str,
        forced_inputs: Collection[int] = (),
    ) -> ReusePlan[InputT]:
        """See `Run.reuse_plan`. `parent` is the step's result in the parent snapshot."""
        shared = fingerprint_of([step, depends_on, list(names)])
        hashes = [
            "" if i is None else hashlib.sha256(f"{shared} {fingerprint_of(i)}".encode()).hexdigest()[:32]
            for i in identities
        ]
        made_from = parent.made_from.get(names[0], []) if parent else []
        by_hash = {hash_: n for n, hash_ in enumerate(made_from) if hash_}
        positions = [by_hash.get(hash_, by_hash.get(_failed_hash(hash_, retried), -1)) for hash_ in hashes]
        positions = [-1 if n in forced_inputs else position for n, position in enumerate(positions)]
        new = [item for item, position in zip(inputs, positions, strict=True) if position < 0]
        return ReusePlan(names, new, parent.tables if parent else {}, positions, hashes, retried)

    def merge_new(self, store: Store, written: WrittenParts) -> Result:
        """Merge `written`, the parts of new inputs, with reused parts. Transient failures are not reused."""
        written_by_name = parts_by_input(written, *self.names)
        tables: dict[str, list[list[Part]]] = {name: [] for name in self.names}
        hashes, n = [], 0
        for hash_, position in zip(self.hashes, self.parent_positions, strict=True):
            is_new = position < 0
            for name in self.names:
                parts = written_by_name[name][n] if is_new else self.parent_tables[name][position]
                tables[name].append(parts)
            failures = {name: [tables[name][-1]] for name in self.names if is_failures_table(name)}
            is_transient = is_new and has_transient_failures(store, failures)
            failed = bool(hash_) and any(groups[0] for groups in failures.values())
            hashes.append("" if is_transient else _failed_hash(hash_, self.retried) if failed else hash_)
            n += is_new
        return Result(tables, made_from={self.names[0]: hashes})


def _failed_hash(hash_: str, retried: str) -> str:
    """Hash an input with failures, so that it is processed again when items of the dialogue are retried."""
    return stable_id("failed", hash_, retried)


def join_results(results: Iterable[Result]) -> Result:
    """Join results with different tables. Only the last result's counts are used."""
    joined = Result()
    for result in results:
        joined = Result(
            joined.tables | result.tables,
            result.counts,
            joined.final and result.final,
            joined.made_from | result.made_from,
        )
    return joined


def parts_by_input(written: WrittenParts, *names: str) -> dict[str, list[list[Part]]]:
    """Return the written parts of each table, aligned with the inputs."""
    return {name: [w.get(name, []) for w in written] for name in names}


def count_rows(groups: Sequence[Sequence[Part]]) -> int:
    return sum(part.rows for group in groups for part in group)


def is_failures_table(table: str) -> bool:
    """Whether a table contains failures. A step has one such table for each kind of input."""
    return table == "failures" or table.startswith("failures_")


def has_transient_failures(store: Store, tables: Mapping[str, list[list[Part]]]) -> bool:
    """Whether the tables contain a transient failure, so that the next run should repeat the step."""
    parts = Result(dict(tables)).failures
    return bool(parts) and "transient" in read_table(store, parts, ["kind"])["kind"].to_pylist()


def sum_counts(store: Store, tables: Mapping[str, list[list[Part]]]) -> dict[str, int]:
    """Add up the step's counts tables (COUNTS_SCHEMA)."""
    parts = [part for group in tables["counts"] for part in group]
    rows = read_table(store, parts, ["name", "value"], COUNTS_SCHEMA)
    sums = rows.group_by("name", use_threads=False).aggregate([("value", "sum")])
    return dict(sorted(zip(sums["name"].to_pylist(), sums["value_sum"].to_pylist(), strict=True)))


def spec_key(spec: Any) -> dict[str, Any]:
    """Return the fields of a dialogue's specification that its results depend on: all except functions.

    A field that is None is left out, so that a new one does not distinguish results of earlier versions.
    """
    values = {f.name: getattr(spec, f.name) for f in fields(spec)}
    return {name: value for name, value in values.items() if value is not None and not callable(value)}


def fingerprint_of(value: Any) -> str:
    """Hash plain values, settings, parts and step results."""

    def plain(item: Any) -> Any:
        if isinstance(item, Result):
            return item.tables
        if isinstance(item, Part):
            return item.path
        if is_dataclass(item):
            return {f.name: getattr(item, f.name) for f in fields(item)}
        return item.model_dump(mode="json")

    # With the second option, orjson calls `plain` for a Result or Part instead of writing all its fields.
    options = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
    return hashlib.sha256(orjson.dumps(value, default=plain, option=options)).hexdigest()


def code_version() -> str:
    """Return the package's version and a digest of the code that creates tables.

    Every fingerprint includes it. After an upgrade or an edit to that code, the next run therefore derives
    all tables again from the journal.
    """
    return f"{__version__} {_code_digest()}"


@cache
def _code_digest() -> str:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for folder in TABLE_CODE for path in (package / folder).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
