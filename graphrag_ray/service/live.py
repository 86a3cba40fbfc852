"""The snapshot that is asked: the newest one, followed while the service runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from graphrag_ray.base import logs
from graphrag_ray.base.errors import FatalCallError, GraphRagError, SnapshotRemoved, StoreError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.keys import find_key
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.user_settings import user_file
from graphrag_ray.engine.gateways import Models
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.levels import Units
from graphrag_ray.query.session import Connections
from graphrag_ray.service.faults import SERVER, Fault, RefusedQuestion
from graphrag_ray.service.service_options import WRITING, ServiceOptions
from graphrag_ray.store.files import Store
from graphrag_ray.store.snapshots import Manifest, check_there, load, newest_number

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Served:
    """A snapshot, open and warm. connections: snapshots whose models are the same share them; levels: what
    each holds, and the source text; lacking: why no question can be answered, "" where some can."""

    index: Index
    connections: Connections
    levels: list[Units]
    lacking: str

    @property
    def number(self) -> int:
        return self.index.manifest.number


class LiveIndex:
    """Belongs to one event loop.

    connect   opens the ways to the models of a snapshot's settings; called in the event loop
    ask_key   where a key may be had that neither the environment nor a file holds
    prompts   the bundled ones, for a process that does not have their files
    current   what is served; None where there is no snapshot yet
    problem   why the newest snapshot is not served, or none is, or nothing can be asked; "" where all is well
    """

    def __init__(
        self,
        options: ServiceOptions,
        connect: Callable[[Models], Connections],
        ask_key: Callable[[str], str | None] | None = None,
        prompts: Mapping[str, Prompt] | None = None,
    ) -> None:
        self._options, self._connect, self._ask_key, self._prompts = options, connect, ask_key, prompts
        self._given = options.given()
        storage = options.storage(self._given)
        self._store = Store(options.root, storage.of(options.root))
        self._cache = Store(options.cache, storage.of(options.cache)) if options.cache else None
        self.current: Served | None = None
        self._retired: list[Connections] = []
        self._look = asyncio.Event()
        self.problem = f"no snapshot of {self._store.url} is open yet"
        self.failed_looks = 0

    def now(self) -> Served:
        """What a new question is asked of. Raises Refused where there is no snapshot."""
        if self.current is None:
            raise RefusedQuestion(Fault(503, SERVER, "no_snapshot", self.problem, retry_after_s=5))
        return self.current

    def soon(self) -> None:
        """Look for a newer snapshot now."""
        self._look.set()

    async def follow(self) -> None:
        """Look for newer snapshots, until it is cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), self._options.follow_s)
            self._look.clear()
            await self.look()

    async def look(self) -> None:
        """Open the newest snapshot where it is not the one that is served; questions that run finish on
        theirs. What fails leaves things as they are, unless that one was removed; `problem` tells it."""
        try:
            # Connections that no question uses any more, of settings that no snapshot has any more.
            over = [connections for connections in self._retired if not connections.questions]
            self._retired = [connections for connections in self._retired if connections.questions]
            for connections in over:
                await connections.open.aclose()
            number = await asyncio.to_thread(newest_number, self._store)
            if number is None:
                self.problem = f"there is no snapshot at {self._store.url} yet"
                return
            if self.current is None or number != self.current.number:
                try:
                    await self._switch(number)
                except Exception:
                    await self._withdraw_removed()
                    raise
            assert self.current is not None
            served = self.current
            if served.lacking:  # a file may hold the keys by now
                served.lacking = await asyncio.to_thread(_lacking, served.index.settings, self._ask_key)
                if not served.lacking:  # connections that were made without a key are not used any more
                    self._retired.append(served.connections)
                    served.connections = self._connect(served.connections.models)
                    log.warning("there is a key now: questions can be answered")
            self.problem = served.lacking
        except Exception as e:  # whatever it is, questions go on to the snapshot that is open
            self.failed_looks += 1
            ours = isinstance(e, GraphRagError)
            told = str(e) if ours else f"the newest snapshot cannot be opened: {type(e).__name__}"
            if told != self.problem:
                log.warning("the newest snapshot cannot be opened: %s", told, exc_info=not ours)
            self.problem = told

    async def close(self) -> None:
        if self.current is not None:
            await asyncio.to_thread(self.current.index.settle)
        for connections in [*self._retired, *(s.connections for s in [self.current] if s)]:
            await connections.open.aclose()
        self.current, self._retired = None, []

    async def _switch(self, number: int) -> None:
        old = self.current
        index, levels = await asyncio.to_thread(self._open, number)
        models = Models.of(index.settings, index.manifest.usage)
        # Connections may have been made without a key that is there by now: those are not kept.
        same = old is not None and old.connections.models == models and not old.lacking
        # Keys now, not at the first question: whoever holds them may be gone then, and the replica lives on.
        lacking = await asyncio.to_thread(_lacking, index.settings, self._ask_key)
        connections = old.connections if old and same else self._connect(models)
        self.current = Served(index, connections, levels, lacking)
        logs.event(log, "snapshot is served", snapshot=number)
        if lacking and (old is None or lacking != old.lacking):
            log.warning("no question can be answered: %s", lacking)
        if old and not same:
            self._retired.append(old.connections)

    async def _withdraw_removed(self) -> None:
        """Serve no snapshot that is there no more: maybe a document was purged."""
        try:
            if self.current is not None:
                await asyncio.to_thread(check_there, self._store, self.current.index.manifest)
        except SnapshotRemoved:
            self._retired += [self.current.connections] if self.current else []
            self.current = None
        except StoreError as e:
            log.info("nobody knows whether the snapshot that is served is still there: %s", e)

    def _open(self, number: int) -> tuple[Index, list[Units]]:
        """Open and warm a snapshot, beside the event loop."""
        manifest: Manifest = load(self._store, number)
        settings = self._options.settings_of(manifest, self._given)
        prompts = self._prompts if settings.prompts_dir is None else None
        old = self.current
        if old is None:
            index = Index(self._store, manifest, settings, self._cache, prompts=prompts, followed=True)
        else:
            index = old.index.at(manifest, settings, prompts)
        index.warm()
        return index, index.levels() if manifest.hierarchies else []


def _lacking(settings: Settings, ask_key: Callable[[str], str | None] | None) -> str:
    """What is told of a key where none of the models that write answers has an endpoint with one; else "": a
    model that only an index needs may do without. Asks for every key. Waits, and reads files."""
    without = {}
    for name, model in Models.of(settings).online.items():
        problems = []
        for endpoint in model.endpoints:
            try:
                find_key(endpoint, os.environ, ask_key)
                problems.append("")
            except FatalCallError as e:
                problems.append(str(e))
        unknown = f"this machine does not know where the model {model.model!r} is: name it in {user_file()}"
        without[name] = "" if "" in problems else (problems or [unknown])[0]
    writers = [without.get(settings.model_name(stage), "") for stage in WRITING]
    return writers[0] if all(writers) else ""
