"""Where an index is built, in this process or on Ray, and what is looked at before."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import Any

from graphrag_ray.base import logs
from graphrag_ray.base.declarations import ASKING_STAGES, HIERARCHIES, STAGES
from graphrag_ray.base.errors import FatalCallError, SettingsError, UsageError
from graphrag_ray.base.index_settings import OFFLINE_MODEL_ID, Settings, Storage, of_index
from graphrag_ray.base.providers import RemoteProvider, provider_of
from graphrag_ray.base.settings_file import load_settings, storage_of
from graphrag_ray.base.user_settings import Known, remember, require_known
from graphrag_ray.corpus.parse import missing_column
from graphrag_ray.engine.executor import Executor
from graphrag_ray.engine.gateways import Models, probe, probed
from graphrag_ray.engine.given_rows import GivenRows
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.process_pool import ProcessPool
from graphrag_ray.engine.ray.discovery import will_be_private
from graphrag_ray.engine.spending import Spending, check_prices
from graphrag_ray.engine.stopping import Stop, listening
from graphrag_ray.indexing.contents import cost_of_prompts
from graphrag_ray.indexing.index import settings_before
from graphrag_ray.indexing.stages.list_input import InputFile, list_input
from graphrag_ray.indexing.step_result import code_version
from graphrag_ray.store import locks, runs
from graphrag_ray.store.compaction import totals
from graphrag_ray.store.files import Store
from graphrag_ray.store.runs import RunRecord
from graphrag_ray.store.snapshots import Manifest, readable


def settled(
    root: str,
    settings: Settings | Mapping[str, Any] | None,
    storage: Storage | Mapping[str, Any] | None,
) -> Settings:
    """Those given, or else those of what is there; with how storage is reached. Raises SettingsError."""
    if not isinstance(settings, Settings):
        url = Store(root, storage_of(None, storage).of(root)).url
        if settings is None:
            before = before_of(Store(root, storage_of(None, storage).of(root)))
            settings = load_settings(None, (), of_index(before.settings) if before else None, Known.read(url))
        else:
            settings = load_settings(None, (), settings, Known.read(url))
    return settings.model_copy(update={"storage": storage_of(settings, storage)})


def agreed(settings: Settings, new_prompts: bool, agree: Callable[[str], object], store: Store) -> None:
    """What other prompts cost is told. Raises PromptError, and what `agree` raises."""
    before = settings_before(store, readable(store)[0])
    if cost := cost_of_prompts(store, settings, indexing_stages(settings), before, new_prompts):
        agree(cost)


@contextmanager
def executing(
    given: str | GivenRows,
    root: str,
    settings: Settings,
    observer: Observer,
    address: str | None,
    on_ray: bool | None,
    agreed: Callable[[Store], None],
) -> Iterator[Executor]:
    """An executor for as long as the block lasts, in which signals stop it; what can be wrong is looked for
    before Ray is started. on_ray: None: as `_place` says. agreed: raises where the owner of the index does
    not want it so."""
    if address is not None and on_ray is False:
        raise UsageError("--address names a cluster, and --in-process asks for none: leave one of them out")
    store = Store(root, settings.storage.of(root))
    locks.check_free(store)
    private = will_be_private(address)
    in_process = on_ray is False
    # What is wrong with prices, INPUT and keys is told before Ray takes its seconds.
    require_known(settings, indexing_stages(settings))
    check_prices(settings.budget, Models.of(settings))
    files: list[InputFile] = []
    if isinstance(given, str):
        files = list_input(given, store.url, settings.input_options(given, store.url))
    elif given.is_open:
        given.open(lambda columns: missing_column(columns, settings.input))
    if private or in_process:  # the workers will have this process's environment
        check_endpoints(settings)
    agreed(store)
    observer.checked(settings)
    before = readable(store)[0]
    if private and on_ray is None:
        size = given.size if isinstance(given, GivenRows) else sum(file.size for file in files)
        in_process, why = _place(size, files, before, settings)
        observer.note(why)
    # What endpoints taught the newest snapshot and the last run need not be learned again.
    models = Models.of(settings, *(b.usage for b in (before, runs.latest(store)) if b is not None))
    if private or in_process:
        reusable = bool(store.list("work"))
        models = probed(models, settings, indexing_stages(settings), reusable, observer.note)
    else:  # the nodes may see what this process does not
        for problem in probe(models, settings, indexing_stages(settings)):
            if problem.asked:
                observer.note(f"Seen from here, {problem}")
    executor: Executor
    with observer, ExitStack() as held:
        if in_process:
            _remember(store, settings, observer)
            logs.set_run(uuid.uuid4().hex[:12])
            executor = LocalExecutor(
                store,
                models,
                settings.run.max_failed_fraction,
                settings.run.flush_s,
                on_progress=observer.progress,
                spending=Spending(settings.budget, time.monotonic()),
                stop=Stop(say=observer.note),
                pool=ProcessPool(None),
            )
            held.enter_context(listening(executor.stop))
            held.callback(executor.pool.close)
        else:
            executor = _on_ray(held, store, models, settings, observer, address, private, files)
        if isinstance(given, GivenRows) and not given.is_open:
            given.open(lambda columns: missing_column(columns, settings.input))
        yield executor


def _place(
    given: int | None, files: Sequence[InputFile], before: Manifest | None, settings: Settings
) -> tuple[bool, str]:
    """Whether there is so little to do that this process is enough, and that for people. What may have
    changed counts, where the rest is taken over; else also what the index holds.

    given: bytes of INPUT; None: of rows that are read with Ray
    """
    if given is None:
        return False, "On a Ray of its own: INPUT is a dataset, or a function makes it."
    limit_mb = settings.run.in_process_mb
    changed = None
    now = settings.kept()
    rest = now.keys() - {"query", "prompts", "names", "corpus"}  # files are read later, and kept as they are
    same = before is not None and before.run.get("code") == code_version()
    if before and same and files and all(before.settings.get(n) == now[n] for n in rest):
        with suppress(ValueError, TypeError, KeyError, OverflowError):  # it does not tell when it was made
            changed = _changed(files, before)
    if changed is None:
        held = sum(part.bytes for part in before.tables.get("text_units", ())) if before else 0
        size = max(given, held)
        told = f"{'INPUT' if given >= held else 'the index'} has {size / 1e6:,.1f} MB of text"
    else:
        some = f"{changed / 1e6:,.1f} MB of text may have changed"
        size, told = changed, some if changed else "no file has changed"
    limit = f"run.in_process_mb is {limit_mb:g}"
    if size <= limit_mb * 1e6:
        return True, f"In this process, without Ray: {told} ({limit}; --ray uses Ray)."
    return False, f"On a Ray of its own: {told} ({limit}; --in-process does without)."


def _changed(files: Sequence[InputFile], before: Manifest) -> int:
    """Bytes of the files that are newer than the snapshot, and of as many as it did not know, roughly."""
    steps = before.steps.keys() - {"finish"}  # which begins when the snapshot is said to be made
    took = sum(seconds for name, seconds in before.run["seconds"].items() if name in steps)
    began = datetime.fromisoformat(before.created_at).timestamp() - took
    more = max(0, len(files) - int(before.steps["read"]["counts"]["files"]))
    newer = sum(f.size for f in files if f.modified is None or f.modified > began)
    return newer + more * sum(f.size for f in files) // len(files)


def _on_ray(
    held: ExitStack,
    store: Store,
    models: Models,
    settings: Settings,
    observer: Observer,
    address: str | None,
    private: bool,
    files: Sequence[InputFile],
) -> Executor:
    with observer.waiting("starting Ray" if private else "connecting to Ray"):
        # Ray is imported here: it takes a second, and a small run does without it.
        from graphrag_ray.engine.ray.cluster import check_nodes, connected
        from graphrag_ray.engine.ray.ray_executor import RayExecutor

        held.enter_context(connected(address))
    local = [f.url.removeprefix("file://") for f in files[:1] if f.url.startswith("file://")]
    fit = set() if private else check_nodes(store, local)
    _remember(store, settings, observer)
    executor = RayExecutor(
        store,
        models,
        settings.run.max_failed_fraction,
        settings.run.flush_s,
        observer.progress,
        Spending(settings.budget, time.monotonic()),
        Stop(say=observer.note),
        workers_per_node=settings.run.workers_per_node,
        fit=fit,
    )
    held.enter_context(listening(executor.stop))
    executor.start()
    held.callback(executor.close)
    return executor


def _remember(store: Store, settings: Settings, observer: Observer) -> None:
    """Where the models are is kept on this machine, since no snapshot keeps it. Once they have answered: what
    was a mistake shall not be known to the next run."""
    try:
        if kept := remember(store.url, settings):
            observer.note(f"How the models of this index are reached is kept for later commands, in {kept}.")
    except OSError as e:
        observer.note(f"How the models of this index are reached cannot be kept on this machine ({e}).")


def before_of(store: Store) -> Manifest | RunRecord | None:
    """Whose settings a run takes over where it is given none: the newest snapshot, else the last run; None
    for an index that has none yet.

    Raises SettingsError where they are lost with a damaged snapshot and a model was paid for its replies: the
    offline engine shall not write its index anew unasked.
    """
    parent, damaged = readable(store)
    before = parent or runs.latest(store)
    if before is not None:
        return before
    paid_for = totals(store, "extract").by_model.keys() - {OFFLINE_MODEL_ID} if damaged else set()
    if paid_for:
        raise SettingsError(
            f"{damaged[-1]}, and with it the settings of the index are lost. Say them again, --config or "
            f"--model {min(paid_for)} and its endpoint: what the model answered is kept, and paid for once"
        )
    return None


def check_endpoints(settings: Settings) -> None:
    """Raises SettingsError where a model that a run asks has no endpoint with a key and an address.

    Looks in this process's environment: to be asked only where the workers have the same one.
    """
    asked: dict[str, list[str]] = {}
    for stage in indexing_stages(settings):
        asked.setdefault(settings.model_name(stage), []).append(stage)
    for name, stages in asked.items():
        model = settings.model(name)
        provider = provider_of(model)
        if not isinstance(provider, RemoteProvider):
            continue
        tried = provider.connect(model, os.environ, None, None, None)
        problems = [str(t) for t in tried if isinstance(t, FatalCallError)]
        if problems and len(problems) == len(tried):
            raise SettingsError(f"models.{name} ({', '.join(stages)}): {'; '.join(problems)}")


def indexing_stages(settings: Settings) -> list[str]:
    """The stages of a run whose models are asked."""
    of_hierarchies = {STAGES[name].dialogue for kind in HIERARCHIES.values() for name in kind.stages}
    left_out = of_hierarchies if settings.build == "names" else set[str]()
    asked = (s for s in ASKING_STAGES if not s.section or getattr(settings, s.section).enabled)
    return [s.dialogue for s in asked if s.dialogue not in left_out]
