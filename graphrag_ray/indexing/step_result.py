"""The result of a step: parts of tables and counts, and what of it the next run reuses.

A group of parts is a function of one input, of what the whole step depends on, and of the code. If none of
these has changed, its parts are reused without reading them.
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

X = TypeVar("X")
COUNTS_SCHEMA = pa.schema([("name", pa.string()), ("value", pa.int64())])


@dataclass(frozen=True)
class Result:
    """The result of a step, small enough for a snapshot.

    Attributes:
        tables: By name, groups of parts aligned with the step's inputs.
        counts: Counts for display and for the snapshot.
        final: False if an item failed transiently and the next run should try again.
        made_from: By table, for each group a hash of all that it depends on, by which the next run reuses it
            (`ReusePlan`); "" to not reuse it.
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
class ReusePlan(Generic[X]):
    """The inputs of a step, and which of their results the parent snapshot has.

    Attributes:
        names: Tables that come from an input.
        new_inputs: Inputs to process, in order.
        parent_positions: For each input its number in `parent_tables`; -1 if it is new.
        hashes: By input; "" for one that every run processes.
        retried: Changes when items of the step's dialogue are retried.
    """

    names: Sequence[str]
    new_inputs: list[X]
    parent_tables: Mapping[str, list[list[Part]]]
    parent_positions: list[int]
    hashes: list[str]
    retried: str

    @staticmethod
    def of(
        before: Result | None,
        step: str,
        inputs: Sequence[X],
        depends_on: Any,
        names: Sequence[str],
        identities: Sequence[Any],
        retried: str,
        again: Collection[int] = (),
    ) -> ReusePlan[X]:
        """See `Run.reuse_plan`. `before` is the step's result in the parent snapshot."""
        whole = fingerprint_of([step, depends_on, list(names)])
        hashes = [
            "" if x is None else hashlib.sha256(f"{whole} {fingerprint_of(x)}".encode()).hexdigest()[:32]
            for x in identities
        ]
        made_from = before.made_from.get(names[0], []) if before else []
        place = {hash_: n for n, hash_ in enumerate(made_from) if hash_}
        at = [place.get(hash_, place.get(_failed(hash_, retried), -1)) for hash_ in hashes]
        at = [-1 if n in again else known for n, known in enumerate(at)]
        new = [x for x, n in zip(inputs, at, strict=True) if n < 0]
        return ReusePlan(names, new, before.tables if before else {}, at, hashes, retried)

    def merge_new(self, store: Store, written: WrittenParts) -> Result:
        """All tables, with `written` for new inputs. Transient failures are retried by the next run."""
        written_by_name = parts_by_input(written, *self.names)
        tables: dict[str, list[list[Part]]] = {name: [] for name in self.names}
        hashes, n = [], 0
        for hash_, at in zip(self.hashes, self.parent_positions, strict=True):
            for name in self.names:
                tables[name].append(written_by_name[name][n] if at < 0 else self.parent_tables[name][at])
            failures = {name: [tables[name][-1]] for name in self.names if is_failures_table(name)}
            is_open = at < 0 and has_transient_failures(store, failures)
            failed = bool(hash_) and any(groups[0] for groups in failures.values())
            hashes.append("" if is_open else _failed(hash_, self.retried) if failed else hash_)
            n += at < 0
        return Result(tables, made_from={self.names[0]: hashes})


def _failed(hash_: str, retried: str) -> str:
    """The hash of an input with failures, which is processed again once items of the dialogue are retried."""
    return stable_id("failed", hash_, retried)


def join_results(results: Iterable[Result]) -> Result:
    """Join results with different tables. The counts are those of the last one."""
    together = Result()
    for result in results:
        together = Result(
            together.tables | result.tables,
            result.counts,
            together.final and result.final,
            together.made_from | result.made_from,
        )
    return together


def parts_by_input(written: WrittenParts, *names: str) -> dict[str, list[list[Part]]]:
    """The written parts of each table, aligned with the inputs."""
    return {name: [w.get(name, []) for w in written] for name in names}


def count_rows(groups: Sequence[Sequence[Part]]) -> int:
    """The total number of rows."""
    return sum(part.rows for group in groups for part in group)


def is_failures_table(table: str) -> bool:
    """Whether a table holds failures. Each kind of input of a step has its own."""
    return table == "failures" or table.startswith("failures_")


def has_transient_failures(store: Store, tables: Mapping[str, list[list[Part]]]) -> bool:
    """Whether the tables hold a transient failure, so that the next run should repeat the step."""
    parts = Result(dict(tables)).failures
    return bool(parts) and "transient" in read_table(store, parts, ["kind"])["kind"].to_pylist()


def sum_counts(store: Store, tables: Mapping[str, list[list[Part]]]) -> dict[str, int]:
    """Add up the step's counts tables (COUNTS_SCHEMA)."""
    parts = [part for group in tables["counts"] for part in group]
    rows = read_table(store, parts, ["name", "value"], COUNTS_SCHEMA)
    sums = rows.group_by("name", use_threads=False).aggregate([("value", "sum")])
    return dict(sorted(zip(sums["name"].to_pylist(), sums["value_sum"].to_pylist(), strict=True)))


def spec_key(spec: Any) -> dict[str, Any]:
    """What a step depends on that runs a dialogue: its specification without functions."""
    values = {f.name: getattr(spec, f.name) for f in fields(spec)}
    return {name: value for name, value in values.items() if not callable(value)}


def fingerprint_of(value: Any) -> str:
    """A hash of plain values, settings, parts and step results."""

    def plain(x: Any) -> Any:
        if isinstance(x, Result):
            return x.tables
        if isinstance(x, Part):
            return x.path
        if is_dataclass(x):
            return {f.name: getattr(x, f.name) for f in fields(x)}
        return x.model_dump(mode="json")

    # Without the second option orjson would write every field of a Result and of a Part itself.
    options = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
    return hashlib.sha256(orjson.dumps(value, default=plain, option=options)).hexdigest()


def code_version() -> str:
    """The package's version and a digest of the code that makes tables.

    Every fingerprint depends on it. So after an upgrade, or with an edited parser, the next run derives all
    tables again from the journal.
    """
    return f"{__version__} {_code_digest()}"


@cache
def _code_digest() -> str:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for folder in TABLE_CODE for path in (package / folder).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
