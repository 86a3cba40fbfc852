"""A machine on which an index is built and which can fail: a model without HTTP, a disk, a process."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import toy_model
from world import World

from graphrag_ray.base.declarations import JOURNALS
from graphrag_ray.base.errors import FatalCallError
from graphrag_ray.base.messages import Reply, Request
from graphrag_ray.engine import in_process
from graphrag_ray.indexing.stages import (
    communities_stage,
    document_parts,
    embed_stage,
    input_listing,
    merge_stage,
    reports_stage,
)
from graphrag_ray.llm.model_client import CallResult
from graphrag_ray.store import files
from graphrag_ray.store.files import Store
from graphrag_ray.store.local_files import LocalFiles
from graphrag_ray.store.parts import read_part

T = TypeVar("T")
IN_FLIGHT = 3


class Killed(BaseException):
    """The process is no more: nothing catches this."""


class Machine:
    """Where an index is built: answers by the toy rules, and can be made to die or to refuse.

    asked        hashes of all requests sent
    die_at       the store operation at which everything ends, and nothing is written any more
    carried_out  that operation is still done: only its answer is lost
    die_asking   the request at which everything ends
    refuse_at    the request from which on the key is refused
    full_at      the store operation from which on the disk is full
    faults       a share of all operations of the file system says that it failed in passing, one half before
                 and one half after it was carried out
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.operations = 0
        self.dice = random.Random(0)
        self.heal()

    def heal(self) -> None:
        self.die_at: int | None = None
        self.carried_out = False
        self.die_asking: int | None = None
        self.refuse_at: int | None = None
        self.full_at: int | None = None
        self.faults = 0.0

    @asynccontextmanager
    async def gateway(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Stands in for `open_gateway`."""
        yield self._ask

    async def _ask(self, request: Request, stage: str) -> CallResult[Reply]:
        if self.refuse_at is not None and len(self.asked) >= self.refuse_at:
            raise FatalCallError("the key is refused", status=401)
        if self.die_asking is not None and len(self.asked) >= self.die_asking:
            self.die_at, self.carried_out = self.operations, False  # nothing is flushed on the way out
            raise Killed
        self.asked.append(request.hash)
        await asyncio.sleep(0)
        return CallResult(toy_model.answer(request))

    def operate(self, operation: Callable[[], T]) -> T:
        """Every operation that changes the store."""
        self.operations += 1
        if self.die_at is not None and self.operations > self.die_at:
            if self.carried_out and self.operations == self.die_at + 1:
                operation()
            raise Killed
        return operation()

    def touch(self, operation: Callable[[], T], writes: bool) -> T:
        """Every operation of the file system."""
        if writes and self.full_at is not None and self.operations > self.full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        draw = self.dice.random()
        if draw < self.faults / 2:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        done = operation()
        if draw < self.faults:
            raise OSError(errno.ETIMEDOUT, "Connection timed out")
        return done


@contextmanager
def machine() -> Iterator[Machine]:
    built = Machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_process, "open_gateway", built.gateway)
        patch.setattr(files, "_sleep", lambda seconds: None)
        for name in ("write", "create", "delete"):
            patch.setattr(Store, name, _through(getattr(Store, name), built.operate))
        for name in ("read", "read_range", "size", "write", "create", "delete"):
            touch = partial(built.touch, writes=name in ("write", "create"))
            patch.setattr(LocalFiles, name, _through(getattr(LocalFiles, name), touch))
        yield built


@contextmanager
def tiny_parts(split_bytes: int = 1) -> Iterator[None]:
    """As many parts as a large corpus has. split_bytes: of documents that stand in one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_parts, "split_bytes", lambda total: split_bytes)
        patch.setattr(merge_stage, "n_ranges", lambda table, rows: 8)
        patch.setattr(communities_stage, "BLOCK_ROWS", 3)
        patch.setattr(reports_stage, "PART_ROWS", 2)
        patch.setattr(embed_stage, "PART_ROWS", 2)
        patch.setattr(
            input_listing, "RECENT_S", -1.0
        )  # files that were written just now are told by their time
        yield


def _through(method: Any, way: Callable[[Callable[[], Any]], Any]) -> Any:
    """The method, called by `way`; locks have tests of their own."""

    def called(self: Any, path: str, *rest: Any) -> Any:
        if path.startswith("locks/"):
            return method(self, path, *rest)
        return way(lambda: method(self, path, *rest))

    return called


class Nobody:
    base_url = "http://127.0.0.1:9/v1"


class Small(World):
    """A world without HTTP, in a folder that goes when it is closed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="graphrag-ray-crash-"))
        super().__init__(self.folder, Nobody())  # type: ignore[arg-type]
        self.changes = {"embeddings": {"enabled": False}, "run": {"journal_flush_s": 0.001}}
        self.changes["communities"] = {"max_size": 2, "pack_components_below": 1}

    def executor(self, settings: Any) -> in_process.LocalExecutor:
        executor = super().executor(settings)
        executor.in_flight = IN_FLIGHT
        return executor

    def hold(self, corpus: Mapping[str, str]) -> None:
        """INPUT holds these; a file that does not change is not touched."""
        for path in self.input.iterdir():
            if path.name not in corpus:
                path.unlink()
        self.write({n: t for n, t in corpus.items() if not _is(self.input / n, t)})

    def journalled(self) -> set[str]:
        """Hashes of the requests whose replies are in the journal."""
        found = set()
        for name in JOURNALS:
            for info in self.store.list(f"work/{name}"):
                rows = read_part(self.store, info.path, ["kind", "request_hash"]).to_pylist()
                found |= {r["request_hash"] for r in rows if r["kind"] == "turn"}
        return found

    def __enter__(self) -> Small:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder)


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text
