"""What of a step's result is the parent snapshot's.

A group of parts is a function of one input, of what the whole step depends on, and of the stage's version.
Where these are as they were, its parts are those that are there, and nothing of them is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from graphrag_ray.base.ids import stable_id
from graphrag_ray.engine.executor import Written
from graphrag_ray.indexing.step_result import Result, by_input, fingerprint_of, is_failures
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table

X = TypeVar("X")


@dataclass(frozen=True)
class TakenOver(Generic[X]):
    """The inputs of a step, and what is known of them.

    names      of the tables that come of an input
    new        inputs whose result is not known, in order
    before     where the others' parts are
    at         of each input, its place there; -1: it is new
    hashes     of each input; "": it is done by every run
    retried    changes when items of the step's dialogue are put back
    """

    names: Sequence[str]
    new: list[X]
    before: Mapping[str, list[list[Part]]]
    at: list[int]
    hashes: list[str]
    retried: str

    def with_new(self, store: Store, written: Written) -> Result:
        """The tables of all inputs. written: of the new ones. An input in which an item failed for now is
        done again by the next run."""
        made = by_input(written, *self.names)
        tables: dict[str, list[list[Part]]] = {name: [] for name in self.names}
        hashes, n = [], 0
        for hash_, at in zip(self.hashes, self.at, strict=True):
            for name in self.names:
                tables[name].append(made[name][n] if at < 0 else self.before[name][at])
            failures = [part for name in self.names if is_failures(name) for part in tables[name][-1]]
            is_open = bool(failures) and at < 0 and "transient" in _kinds(store, failures)
            hashes.append("" if is_open else _failed(hash_, self.retried) if failures and hash_ else hash_)
            n += at < 0
        return Result(tables, made_from={self.names[0]: hashes})


def taken_over(
    before: Result | None,
    damaged: Collection[str],
    step: str,
    inputs: Sequence[X],
    depends_on: Any,
    names: Sequence[str],
    told: Sequence[Any],
    retried: str,
    again: Collection[int] = (),
) -> TakenOver[X]:
    """See `Run.taken_over`. before: the step's result in the parent snapshot; damaged: paths of its parts."""
    whole = fingerprint_of([step, depends_on, list(names)])
    hashes = [
        "" if x is None else hashlib.sha256(f"{whole} {fingerprint_of(x)}".encode()).hexdigest()[:32]
        for x in told
    ]
    at = [-1] * len(hashes)
    tables: Mapping[str, list[list[Part]]] = {}
    if before is not None and names[0] in before.made_from:
        tables, made_from = before.tables, before.made_from[names[0]]
        place = {
            hash_: n for n, hash_ in enumerate(made_from) if hash_ and _is_there(tables, names, n, damaged)
        }
        at = [place.get(hash_, place.get(_failed(hash_, retried), -1)) for hash_ in hashes]
        at = [-1 if n in again else known for n, known in enumerate(at)] if again else at
    new = [x for x, n in zip(inputs, at, strict=True) if n < 0]
    return TakenOver(names, new, tables, at, hashes, retried)


def _is_there(
    tables: Mapping[str, list[list[Part]]], names: Sequence[str], at: int, damaged: Collection[str]
) -> bool:
    """Whether a group is named in all tables, and whole. A manifest may be a stranger's."""
    if any(name not in tables or at >= len(tables[name]) for name in names):
        return False
    return not damaged or all(part.path not in damaged for name in names for part in tables[name][at])


def _failed(hash_: str, retried: str) -> str:
    """Of an input with failures: it is done again once items of the dialogue are put back."""
    return stable_id("failed", hash_, retried)


def _kinds(store: Store, failures: Sequence[Part]) -> list[str]:
    kinds: list[str] = read_table(store, failures, ["kind"])["kind"].to_pylist()
    return kinds
