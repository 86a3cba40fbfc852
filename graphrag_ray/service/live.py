"""The snapshot that the service answers from. It follows the newest snapshot of the index."""

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
from graphrag_ray.engine.model_access import Models
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.levels import LevelSize
from graphrag_ray.query.model_calls import Connections
from graphrag_ray.service.faults import SERVER, Fault, QuestionRejected
from graphrag_ray.service.service_options import ANSWER_STAGES, ServiceOptions
from graphrag_ray.store.files import Store
from graphrag_ray.store.snapshots import Manifest, check_not_removed, load, newest_number

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Served:
    """An open, warmed-up snapshot. Snapshots with the same models share connections.

    `missing_key` explains why no question can be answered, or is "" if some can.
    """

    index: Index
    connections: Connections
    levels: list[LevelSize]
    missing_key: str

    @property
    def number(self) -> int:
        return self.index.manifest.number


class LiveIndex:
    """Follows the newest snapshot. Belongs to one event loop.

    `connect` opens connections to models. `ask_key` provides keys that are neither in the environment nor in
    a file. `problem` explains why the newest snapshot is not served or no question can be answered, or is "".
    """

    def __init__(
        self,
        options: ServiceOptions,
        connect: Callable[[Models], Connections],
        ask_key: Callable[[str], str | None] | None = None,
        prompts: Mapping[str, Prompt] | None = None,
    ) -> None:
        self._options, self._connect, self._ask_key, self._prompts = options, connect, ask_key, prompts
        self._base_settings = options.read_settings()
        storage = options.storage(self._base_settings)
        self._store = Store(options.root, storage.fsspec_options(options.root))
        self._cache = Store(options.cache, storage.fsspec_options(options.cache)) if options.cache else None
        self.current: Served | None = None
        self._retired: list[Connections] = []
        self._refresh_now = asyncio.Event()
        self.problem = f"No snapshot of {self._store.url} is open yet"
        self.failed_refreshes = 0

    def require_current(self) -> Served:
        """Return the snapshot for new questions. Raises QuestionRejected if there is none."""
        if self.current is None:
            raise QuestionRejected(Fault(503, SERVER, "no_snapshot", self.problem, retry_after_s=5))
        return self.current

    def refresh_soon(self) -> None:
        self._refresh_now.set()

    async def follow(self) -> None:
        """Refresh periodically, until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._refresh_now.wait(), self._options.follow_s)
            self._refresh_now.clear()
            await self.refresh()

    async def refresh(self) -> None:
        """Open the newest snapshot if it is not open yet. Running questions continue with their snapshot.

        A failure sets `problem`. The service then continues with the current snapshot unless it was removed.
        """
        try:
            unused = [connections for connections in self._retired if not connections.n_questions]
            self._retired = [connections for connections in self._retired if connections.n_questions]
            for connections in unused:
                await connections.exit_stack.aclose()
            number = await asyncio.to_thread(newest_number, self._store)
            if number is None:
                self.problem = f"There is no snapshot at {self._store.url} yet"
                return
            if self.current is None or number != self.current.number:
                try:
                    await self._switch(number)
                except Exception:
                    await self._withdraw_removed()
                    raise
            assert self.current is not None
            served = self.current
            if served.missing_key:  # look again
                missing = await asyncio.to_thread(_missing_key, served.index.settings, self._ask_key)
                served.missing_key = missing
                if not missing:  # replace connections that were opened without a key
                    self._retired.append(served.connections)
                    served.connections = self._connect(served.connections.models)
                    log.warning("Found a model key: the service can answer questions now")
            self.problem = served.missing_key
        except Exception as e:  # after any error, the open snapshot can still answer questions
            self.failed_refreshes += 1
            expected = isinstance(e, GraphRagError)
            problem = str(e) if expected else f"The newest snapshot cannot be opened: {type(e).__name__}"
            if problem != self.problem:
                log.warning("Cannot open the newest snapshot: %s", problem, exc_info=not expected)
            self.problem = problem

    async def close(self) -> None:
        if self.current is not None:
            await asyncio.to_thread(self.current.index.flush_cache)
        for connections in [*self._retired, *([self.current.connections] if self.current else [])]:
            await connections.exit_stack.aclose()
        self.current, self._retired = None, []

    async def _switch(self, number: int) -> None:
        old = self.current
        index, levels = await asyncio.to_thread(self._open, number)
        models = Models.from_settings(index.settings, index.manifest.usage)
        # Do not reuse connections that may have been opened without a key.
        same = old is not None and old.connections.models == models and not old.missing_key
        # Find keys now: the process that provides them may have ended by the first question.
        missing = await asyncio.to_thread(_missing_key, index.settings, self._ask_key)
        connections = old.connections if old and same else self._connect(models)
        self.current = Served(index, connections, levels, missing)
        logs.log_event(log, "Serving snapshot", snapshot=number)
        if missing and (old is None or missing != old.missing_key):
            log.warning("No question can be answered: %s", missing)
        if old and not same:
            self._retired.append(old.connections)

    async def _withdraw_removed(self) -> None:
        """Stop serving a snapshot that was removed, as when a document is purged."""
        try:
            if self.current is not None:
                await asyncio.to_thread(check_not_removed, self._store, self.current.index.manifest)
        except SnapshotRemoved:
            self._retired += [self.current.connections] if self.current else []
            self.current = None
        except StoreError as e:
            log.info("Cannot check whether the served snapshot still exists: %s", e)

    def _open(self, number: int) -> tuple[Index, list[LevelSize]]:
        """Open and warm up a snapshot. Call it outside the event loop."""
        manifest: Manifest = load(self._store, number)
        settings = self._options.settings_of(manifest, self._base_settings)
        prompts = self._prompts if settings.prompts_dir is None else None
        old = self.current
        if old is None:
            index = Index(self._store, manifest, settings, self._cache, prompts=prompts, followed=True)
        else:
            index = old.index.open_snapshot(manifest, settings, prompts)
        index.warm()
        return index, index.levels() if manifest.hierarchies else []


def _missing_key(settings: Settings, ask_key: Callable[[str], str | None] | None) -> str:
    """Explain which key is missing if no model for answers has a usable endpoint. Otherwise return "".

    Looks up every key, so it may read files and wait for `ask_key`.
    """
    missing = {}
    for name, model in Models.from_settings(settings).online.items():
        problems = []
        for endpoint in model.endpoints:
            try:
                find_key(endpoint, os.environ, ask_key)
                problems.append("")
            except FatalCallError as e:
                problems.append(str(e))
        unknown = (
            f"This machine does not know the endpoint of model {model.model!r}. Add it to {user_file()}."
        )
        missing[name] = "" if "" in problems else (problems or [unknown])[0]
    problems = [missing.get(settings.model_name(stage), "") for stage in ANSWER_STAGES]
    return problems[0] if all(problems) else ""
