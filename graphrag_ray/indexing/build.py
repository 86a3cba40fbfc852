"""Prepare an indexing run: check settings, INPUT and endpoints, and choose between this process and Ray."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import Any

from graphrag_ray.base import logs
from graphrag_ray.base.connection_settings import OFFLINE_MODEL_ID, Storage
from graphrag_ray.base.declarations import DIALOGUE_STAGES, HIERARCHIES, STAGES
from graphrag_ray.base.errors import FatalCallError, SettingsError, UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.providers import RemoteProvider, load_provider
from graphrag_ray.base.settings_file import load_settings, parse_settings, resolve_storage
from graphrag_ray.base.stored_settings import (
    snapshot_settings,
    without_machine_settings,
    without_outdated_prompts,
)
from graphrag_ray.base.user_settings import KnownModels, remember_endpoints, require_known_addresses
from graphrag_ray.corpus.parse import missing_column_fault
from graphrag_ray.engine.executor import Executor
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.input_rows import InputRows
from graphrag_ray.engine.interrupts import InterruptState, handle_signals
from graphrag_ray.engine.model_access import Models, check_endpoints, probe_endpoints
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.process_pool import ProcessPool
from graphrag_ray.engine.ray.discovery import starts_private_ray
from graphrag_ray.engine.spending import Spending, check_prices
from graphrag_ray.indexing.index import previous_settings
from graphrag_ray.indexing.stages.input_listing import InputFile, list_input
from graphrag_ray.indexing.step_result import code_version
from graphrag_ray.indexing.stored_prompts import changes_schema, describe_prompt_cost, with_schema
from graphrag_ray.store import locks, run_records
from graphrag_ray.store.compaction import totals
from graphrag_ray.store.files import Store
from graphrag_ray.store.run_records import RunRecord
from graphrag_ray.store.snapshots import Manifest, latest_readable


def resolve_settings(
    root: str,
    settings: Settings | Mapping[str, Any] | None,
    storage: Storage | Mapping[str, Any] | None,
    new_prompts: bool = False,
) -> Settings:
    """Return the given settings, or the existing index's if None, with the storage options.

    With `new_prompts`, settings from an index lose what new prompts replace.
    """
    given = settings if isinstance(settings, Settings) else None
    store = Store(root, resolve_storage(given, storage).fsspec_options(root))
    previous = previous_record(store) if settings is None or new_prompts else None
    stored = without_machine_settings(previous.settings) if previous else None
    if given and new_prompts and stored and given.prompts and given.prompts == stored.get("prompts"):
        # These settings come from the index.
        settings = parse_settings(without_outdated_prompts(given.model_dump(mode="json", exclude_unset=True)))
    elif not isinstance(settings, Settings):
        if settings is None:
            settings = without_outdated_prompts(stored) if stored and new_prompts else stored
        settings = load_settings(None, (), settings, KnownModels.read(store.url))
    return with_schema(settings.model_copy(update={"storage": resolve_storage(settings, storage)}))


def confirm_cost(
    settings: Settings,
    new_prompts: bool,
    agree: Callable[[str], object] | None,
    notify: Callable[[str], object],
    store: Store,
) -> None:
    """State the cost if prompts or the schema differ from the index's.

    It is passed to `agree`, which raises an error to refuse the run, if new prompts were asked for or the
    schema changes, and otherwise to `notify`.
    """
    previous = previous_settings(store, latest_readable(store)[0])
    if cost := describe_prompt_cost(store, settings, indexing_stages(settings), previous, new_prompts):
        asks = new_prompts or changes_schema(settings, previous)
        ((asks and agree) or notify)(cost)


@contextmanager
def open_executor(
    source: str | InputRows | None,
    root: str,
    settings: Settings,
    observer: Observer,
    address: str | None,
    on_ray: bool | None,
    confirm: Callable[[Store], None],
    stages: Sequence[str] | None = None,
) -> Iterator[Executor]:
    """Open an executor that stops on signals.

    Everything that can be checked without Ray is checked first. If `on_ray` is None, the amount of work
    decides whether Ray is used. `confirm` raises an error to refuse the run. `stages` are those that call
    models; by default, all of an indexing run.
    """
    stages = indexing_stages(settings) if stages is None else stages
    if address is not None and on_ray is False:
        raise UsageError("--address and --in-process cannot be combined.")
    store = Store(root, settings.storage.fsspec_options(root))
    locks.check_free(store)
    private = starts_private_ray(address)
    in_process = on_ray is False
    # Report problems with prices, INPUT and keys before starting Ray, which takes seconds.
    require_known_addresses(settings, stages)
    check_prices(settings.budget, Models.from_settings(settings))
    files: list[InputFile] = []
    if isinstance(source, str):
        files = list_input(source, store.url, settings.input_options(source, store.url))
    elif source is not None and source.is_open:
        source.resolve(lambda columns: missing_column_fault(columns, settings.input))
    if private or in_process:  # Workers will have this process's environment.
        check_configured(settings, stages)
    confirm(store)
    observer.run_started(settings)
    parent = latest_readable(store)[0]
    if private and on_ray is None:
        size = source.size if isinstance(source, InputRows) else sum(file.size for file in files)
        in_process, why = _choose_executor(size, files, parent, settings)
        observer.message(why)
    # Take over the endpoint quirks that earlier runs learned.
    models = Models.from_settings(
        settings, *(record.usage for record in (parent, run_records.latest_run(store)) if record is not None)
    )
    if private or in_process:
        reusable = bool(store.list("work"))
        models = check_endpoints(models, settings, stages, reusable, observer.message)
    else:  # Nodes may have access to endpoints that this process cannot connect to.
        for problem in probe_endpoints(models, settings, stages):
            if problem.asked:
                observer.message(f"From this machine: {problem}")
    with observer, ExitStack() as stack:
        executor = _start(stack, store, models, settings, observer, in_process, address, private, files)
        if isinstance(source, InputRows) and not source.is_open:
            source.resolve(lambda columns: missing_column_fault(columns, settings.input))
        yield executor


def _start(
    stack: ExitStack,
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

            stack.enter_context(connect(address))
        local = [f.url.removeprefix("file://") for f in files[:1] if f.url.startswith("file://")]
        checked_nodes = set() if private else check_nodes(store, local)
    # Snapshots contain no endpoints. Save them only now that they have answered: they may be mistyped.
    try:
        if path := remember_endpoints(store.url, settings):
            observer.message(f"Saved the endpoints of this index for later commands in {path}.")
    except OSError as e:
        observer.message(f"Cannot save the endpoints of this index on this machine ({e}).")
    run, stop = settings.run, InterruptState(notify=observer.message)
    spending = Spending(settings.budget, time.monotonic())
    shared = (store, models, run.max_failed_fraction, run.journal_flush_s, observer.progress, spending, stop)
    if in_process:
        logs.set_run(uuid.uuid4().hex[:12])
        pool = ProcessPool(None)
        stack.enter_context(handle_signals(stop))
        stack.callback(pool.close)
        return LocalExecutor(*shared, pool=pool)
    executor = RayExecutor(*shared, workers_per_node=run.workers_per_node, checked_nodes=checked_nodes)
    stack.enter_context(handle_signals(stop))
    executor.start()
    stack.callback(executor.close)
    return executor


def _choose_executor(
    input_bytes: int | None, files: Sequence[InputFile], parent: Manifest | None, settings: Settings
) -> tuple[bool, str]:
    """Return whether to run in this process, and a message that says why.

    This depends on the size of the text that may have changed. If nothing can be reused, it depends on the
    size of INPUT or of the index, whichever is larger. `input_bytes` is None for rows that are read with Ray.
    """
    if input_bytes is None:
        return False, "Starting Ray: INPUT is a dataset or a function."
    limit_mb = settings.run.in_process_max_mb
    changed = None
    now = snapshot_settings(settings)
    # Queries do not matter, and the other sections may contain the content of files that are read later.
    compared = now.keys() - {"query", "prompts", "names", "corpus"}
    same_code = parent is not None and parent.run.get("code") == code_version()
    if parent and same_code and files and all(parent.settings.get(n) == now[n] for n in compared):
        with suppress(ValueError, TypeError, KeyError, OverflowError):  # The snapshot has no usable times.
            changed = _estimate_changed_bytes(files, parent)
    if changed is None:
        index_bytes = sum(part.bytes for part in parent.tables.get("text_units", ())) if parent else 0
        size = max(input_bytes, index_bytes)
        why = f"{'INPUT' if input_bytes >= index_bytes else 'the index'} has {size / 1e6:,.1f} MB of text"
    else:
        size = changed
        why = f"{changed / 1e6:,.1f} MB of text may have changed" if changed else "no file has changed"
    limit = f"run.in_process_max_mb is {limit_mb:g}"
    if size <= limit_mb * 1e6:
        return True, f"Running in this process: {why} ({limit}; pass --ray to use Ray)."
    return False, f"Starting Ray: {why} ({limit}; pass --in-process to run without it)."


def _estimate_changed_bytes(files: Sequence[InputFile], parent: Manifest) -> int:
    """Add the sizes of files newer than the snapshot, and the mean file size for each additional file."""
    steps = parent.steps.keys() - {"finish"}  # created_at is when the step `finish` began.
    duration = sum(seconds for name, seconds in parent.run["seconds"].items() if name in steps)
    began = datetime.fromisoformat(parent.created_at).timestamp() - duration
    additional = max(0, len(files) - int(parent.steps["read"]["counts"]["files"]))
    newer = sum(f.size for f in files if f.modified is None or f.modified > began)
    return newer + additional * sum(f.size for f in files) // len(files)


def previous_record(store: Store) -> Manifest | RunRecord | None:
    """Return the newest snapshot, or the last run if there is none. A run without settings uses its settings.

    Raises SettingsError if the settings were lost with a damaged snapshot and its replies were paid for.
    Otherwise, the offline engine would rewrite that index by default.
    """
    parent, damaged = latest_readable(store)
    previous = parent or run_records.latest_run(store)
    if previous is not None:
        return previous
    paid_for = totals(store, "extract").by_model.keys() - {OFFLINE_MODEL_ID} if damaged else set()
    if paid_for:
        raise SettingsError(
            f"{damaged[-1]}, so the settings of the index are lost. Pass them again with --config, or with "
            f"--model {min(paid_for)} and its endpoint. Stored replies need not be paid for again."
        )
    return None


def check_configured(settings: Settings, stages: Iterable[str]) -> None:
    """Raise SettingsError if a model that the stages call has no endpoint with a key and an address.

    Only valid if the workers have this process's environment.
    """
    stages_by_model: dict[str, list[str]] = {}
    for stage in stages:
        stages_by_model.setdefault(settings.model_name(stage), []).append(stage)
    for name, calling in stages_by_model.items():
        model = settings.model(name)
        provider = load_provider(model)
        if not isinstance(provider, RemoteProvider):
            continue
        clients = provider.connect(model, os.environ, None, None, None)
        problems = [str(c) for c in clients if isinstance(c, FatalCallError)]
        if problems and len(problems) == len(clients):
            raise SettingsError(f"models.{name} ({', '.join(calling)}): {'; '.join(problems)}")


def indexing_stages(settings: Settings) -> list[str]:
    """List the dialogues of a run's stages that call models."""
    hierarchy_dialogues = {STAGES[name].dialogue for kind in HIERARCHIES.values() for name in kind.stages}
    skipped = hierarchy_dialogues if settings.build == "names" else set[str]()
    enabled = (s for s in DIALOGUE_STAGES if not s.section or getattr(settings, s.section).enabled)
    return [s.dialogue for s in enabled if s.dialogue not in skipped]
