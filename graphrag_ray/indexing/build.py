"""Decide whether to build an index in this process or on Ray, after checking what can be wrong."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import Any

from graphrag_ray.base import logs
from graphrag_ray.base.declarations import HIERARCHIES, MODEL_STAGES_OF_INDEXING, STAGES
from graphrag_ray.base.errors import FatalCallError, SettingsError, UsageError
from graphrag_ray.base.index_settings import OFFLINE_MODEL_ID, Settings, Storage, without_machine_settings
from graphrag_ray.base.providers import RemoteProvider, load_provider
from graphrag_ray.base.settings_file import load_settings, resolve_storage
from graphrag_ray.base.user_settings import KnownModels, remember_endpoints, require_known_addresses
from graphrag_ray.corpus.parse import missing_column_fault
from graphrag_ray.engine.executor import Executor
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.input_rows import InputRows
from graphrag_ray.engine.interrupts import Stop, handle_signals
from graphrag_ray.engine.model_access import Models, check_endpoints, probe_endpoints
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.process_pool import ProcessPool
from graphrag_ray.engine.ray.discovery import starts_private_ray
from graphrag_ray.engine.spending import Spending, check_prices
from graphrag_ray.indexing.index import previous_settings
from graphrag_ray.indexing.stages.input_listing import InputFile, list_input
from graphrag_ray.indexing.step_result import code_version
from graphrag_ray.indexing.stored_prompts import cost_of_prompts
from graphrag_ray.store import locks, run_records
from graphrag_ray.store.compaction import totals
from graphrag_ray.store.files import Store
from graphrag_ray.store.run_records import RunRecord
from graphrag_ray.store.snapshots import Manifest, latest_readable


def resolve_settings(
    root: str, settings: Settings | Mapping[str, Any] | None, storage: Storage | Mapping[str, Any] | None
) -> Settings:
    """The given settings, or else those of the existing index, with the storage options."""
    if not isinstance(settings, Settings):
        store = Store(root, resolve_storage(None, storage).fsspec_options(root))
        if settings is None:
            before = previous_record(store)
            settings = without_machine_settings(before.settings) if before else None
        settings = load_settings(None, (), settings, KnownModels.read(store.url))
    return settings.model_copy(update={"storage": resolve_storage(settings, storage)})


def confirm_cost(settings: Settings, new_prompts: bool, agree: Callable[[str], object], store: Store) -> None:
    """Call `agree` with the cost of prompts that differ from the index's; it raises to refuse them."""
    before = previous_settings(store, latest_readable(store)[0])
    if cost := cost_of_prompts(store, settings, indexing_stages(settings), before, new_prompts):
        agree(cost)


@contextmanager
def open_executor(
    given: str | InputRows,
    root: str,
    settings: Settings,
    observer: Observer,
    address: str | None,
    on_ray: bool | None,
    agreed: Callable[[Store], None],
) -> Iterator[Executor]:
    """An executor that signals stop, after checking what can be wrong before Ray is started.

    Without `on_ray`, the amount of work decides. `agreed` raises to refuse the run.
    """
    if address is not None and on_ray is False:
        raise UsageError("--address and --in-process exclude each other. Leave one of them out.")
    store = Store(root, settings.storage.fsspec_options(root))
    locks.check_free(store)
    private = starts_private_ray(address)
    in_process = on_ray is False
    # Report problems with prices, INPUT and keys before starting Ray, which takes seconds.
    require_known_addresses(settings, indexing_stages(settings))
    check_prices(settings.budget, Models.from_settings(settings))
    files: list[InputFile] = []
    if isinstance(given, str):
        files = list_input(given, store.url, settings.input_options(given, store.url))
    elif given.is_open:
        given.resolve(lambda columns: missing_column_fault(columns, settings.input))
    if private or in_process:  # Workers will have this process's environment.
        check_configured(settings)
    agreed(store)
    observer.run_started(settings)
    before = latest_readable(store)[0]
    if private and on_ray is None:
        size = given.size if isinstance(given, InputRows) else sum(file.size for file in files)
        in_process, why = _place(size, files, before, settings)
        observer.message(why)
    # Quirks of endpoints need not be learned again.
    models = Models.from_settings(
        settings, *(b.usage for b in (before, run_records.latest_run(store)) if b is not None)
    )
    if private or in_process:
        reusable = bool(store.list("work"))
        models = check_endpoints(models, settings, indexing_stages(settings), reusable, observer.message)
    else:  # Nodes may reach endpoints that this process does not.
        for problem in probe_endpoints(models, settings, indexing_stages(settings)):
            if problem.asked:
                observer.message(f"From this machine: {problem}")
    with observer, ExitStack() as held:
        executor = _start(held, store, models, settings, observer, in_process, address, private, files)
        if isinstance(given, InputRows) and not given.is_open:
            given.resolve(lambda columns: missing_column_fault(columns, settings.input))
        yield executor


def _start(
    held: ExitStack,
    store: Store,
    models: Models,
    settings: Settings,
    observer: Observer,
    in_process: bool,
    address: str | None,
    private: bool,
    files: Sequence[InputFile],
) -> Executor:
    if not in_process:
        with observer.waiting("starting Ray" if private else "connecting to Ray"):
            # Importing Ray takes a second, which small runs avoid.
            from graphrag_ray.engine.ray.cluster import check_nodes, connect
            from graphrag_ray.engine.ray.ray_executor import RayExecutor

            held.enter_context(connect(address))
        local = [f.url.removeprefix("file://") for f in files[:1] if f.url.startswith("file://")]
        fit = set() if private else check_nodes(store, local)
    # No snapshot contains the endpoints. Save them only now that they have answered: they may be mistyped.
    try:
        if path := remember_endpoints(store.url, settings):
            observer.message(f"Saved the endpoints of this index for later commands in {path}.")
    except OSError as e:
        observer.message(f"The endpoints of this index cannot be saved on this machine ({e}).")
    run, stop = settings.run, Stop(notify=observer.message)
    spending = Spending(settings.budget, time.monotonic())
    shared = (store, models, run.max_failed_fraction, run.journal_flush_s, observer.progress, spending, stop)
    if in_process:
        logs.set_run(uuid.uuid4().hex[:12])
        pool = ProcessPool(None)
        held.enter_context(handle_signals(stop))
        held.callback(pool.close)
        return LocalExecutor(*shared, pool=pool)
    executor = RayExecutor(*shared, workers_per_node=run.workers_per_node, checked_nodes=fit)
    held.enter_context(handle_signals(stop))
    executor.start()
    held.callback(executor.close)
    return executor


def _place(
    given: int | None, files: Sequence[InputFile], before: Manifest | None, settings: Settings
) -> tuple[bool, str]:
    """Whether this process suffices for the work, and why, for display.

    The work is what may have changed if the rest can be reused, else the larger of INPUT and the index.
    `given` is the size of INPUT in bytes; None for rows that are read with Ray.
    """
    if given is None:
        return False, "Starting Ray: INPUT is a dataset or a function."
    limit_mb = settings.run.in_process_max_mb
    changed = None
    now = settings.for_snapshot()
    # Prompts, names and the corpus description may hold the content of files that are read later.
    rest = now.keys() - {"query", "prompts", "names", "corpus"}
    same = before is not None and before.run.get("code") == code_version()
    if before and same and files and all(before.settings.get(n) == now[n] for n in rest):
        with suppress(ValueError, TypeError, KeyError, OverflowError):  # The snapshot has no usable times.
            changed = _changed(files, before)
    if changed is None:
        index_bytes = sum(part.bytes for part in before.tables.get("text_units", ())) if before else 0
        size = max(given, index_bytes)
        why = f"{'INPUT' if given >= index_bytes else 'the index'} has {size / 1e6:,.1f} MB of text"
    else:
        size = changed
        why = f"{changed / 1e6:,.1f} MB of text may have changed" if changed else "no file has changed"
    limit = f"run.in_process_max_mb is {limit_mb:g}"
    if size <= limit_mb * 1e6:
        return True, f"Running in this process: {why} ({limit}; pass --ray to use Ray)."
    return False, f"Starting Ray: {why} ({limit}; pass --in-process to run without it)."


def _changed(files: Sequence[InputFile], before: Manifest) -> int:
    """Roughly the bytes of files newer than the snapshot, plus a mean size per additional file."""
    steps = before.steps.keys() - {"finish"}  # created_at is when the step `finish` began.
    took = sum(seconds for name, seconds in before.run["seconds"].items() if name in steps)
    began = datetime.fromisoformat(before.created_at).timestamp() - took
    additional = max(0, len(files) - int(before.steps["read"]["counts"]["files"]))
    newer = sum(f.size for f in files if f.modified is None or f.modified > began)
    return newer + additional * sum(f.size for f in files) // len(files)


def previous_record(store: Store) -> Manifest | RunRecord | None:
    """The newest snapshot or else the last run, whose settings a run without settings uses, if any.

    Raises SettingsError if the settings were lost with a damaged snapshot whose replies were paid for: the
    offline engine must not rewrite that index unasked.
    """
    parent, damaged = latest_readable(store)
    before = parent or run_records.latest_run(store)
    if before is not None:
        return before
    paid_for = totals(store, "extract").by_model.keys() - {OFFLINE_MODEL_ID} if damaged else set()
    if paid_for:
        raise SettingsError(
            f"{damaged[-1]}, so the settings of the index are lost. Pass them again with --config, or with "
            f"--model {min(paid_for)} and its endpoint. Replies are kept and need not be paid for again."
        )
    return None


def check_configured(settings: Settings) -> None:
    """Raise SettingsError if a model that the run calls has no endpoint with a key and an address.

    Only valid if the workers have this process's environment.
    """
    asked: dict[str, list[str]] = {}
    for stage in indexing_stages(settings):
        asked.setdefault(settings.model_name(stage), []).append(stage)
    for name, stages in asked.items():
        model = settings.model(name)
        provider = load_provider(model)
        if not isinstance(provider, RemoteProvider):
            continue
        clients = provider.connect(model, os.environ, None, None, None)
        problems = [str(c) for c in clients if isinstance(c, FatalCallError)]
        if problems and len(problems) == len(clients):
            raise SettingsError(f"models.{name} ({', '.join(stages)}): {'; '.join(problems)}")


def indexing_stages(settings: Settings) -> list[str]:
    """The stages of a run that call models."""
    of_hierarchies = {STAGES[name].dialogue for kind in HIERARCHIES.values() for name in kind.stages}
    left_out = of_hierarchies if settings.build == "names" else set[str]()
    asked = (s for s in MODEL_STAGES_OF_INDEXING if not s.section or getattr(settings, s.section).enabled)
    return [s.dialogue for s in asked if s.dialogue not in left_out]
