"""A simulated machine that builds an index and can fail: a model without HTTP, a disk, a process."""

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
    """The simulated process was killed. Derived from BaseException so that no handler catches it."""


class Machine:
    """Builds an index with the toy model, and can be killed or made to fail.

    `asked` has the hashes of all requests sent. `die_at` is the store operation and `die_asking` the request
    at which the process is killed; with `carried_out`, that operation is done and only its result is lost.
    From request `refuse_at` on, the key is refused. From operation `full_at` on, the disk is full. `faults`
    is the share of file system operations that fail transiently, half of them after they were carried out.
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
        """Replaces `open_gateway`."""
        yield self._ask

    async def _ask(self, request: Request, stage: str) -> CallResult[Reply]:
        if self.refuse_at is not None and len(self.asked) >= self.refuse_at:
            raise FatalCallError("the key is refused", status=401)
        if self.die_asking is not None and len(self.asked) >= self.die_asking:
            self.die_at, self.carried_out = self.operations, False  # Nothing is flushed on exit.
            raise Killed
        self.asked.append(request.hash)
        await asyncio.sleep(0)
        return CallResult(toy_model.answer(request))

    def operate(self, operation: Callable[[], T]) -> T:
        """Called for every operation that changes the store."""
        self.operations += 1
        if self.die_at is not None and self.operations > self.die_at:
            if self.carried_out and self.operations == self.die_at + 1:
                operation()
            raise Killed
        return operation()

    def touch(self, operation: Callable[[], T], writes: bool) -> T:
        """Called for every file system operation."""
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
    """Split tables into as many parts as those of a large corpus.

    `split_bytes` applies to documents in one file.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_parts, "split_bytes", lambda total: split_bytes)
        patch.setattr(merge_stage, "n_ranges", lambda table, rows: 8)
        patch.setattr(communities_stage, "BLOCK_ROWS", 3)
        patch.setattr(reports_stage, "PART_ROWS", 2)
        patch.setattr(embed_stage, "PART_ROWS", 2)
        patch.setattr(
            input_listing, "RECENT_S", -1.0
        )  # Compare files that were just written by their modification time.
        yield


def _through(method: Any, way: Callable[[Callable[[], Any]], Any]) -> Any:
    """Wrap a method in `way`. Locks have their own tests."""

    def called(self: Any, path: str, *rest: Any) -> Any:
        if path.startswith("locks/"):
            return method(self, path, *rest)
        return way(lambda: method(self, path, *rest))

    return called


class Nobody:
    base_url = "http://127.0.0.1:9/v1"


class Small(World):
    """A world without HTTP, in a folder that is removed when it is closed."""

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
        """Write the documents of INPUT without touching unchanged files."""
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
