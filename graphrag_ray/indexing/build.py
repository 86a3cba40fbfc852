"""Indexing on Ray, from a question of settings to a committed snapshot: what `graphrag-ray index` does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from graphrag_ray.base.errors import FatalCallError, SettingsError
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.probing import probe, probed
from graphrag_ray.engine.spending import Spending, check_prices
from graphrag_ray.engine.stopping import Stop, listening
from graphrag_ray.indexing.contents import require_paths
from graphrag_ray.indexing.index import Indexed, settings_before
from graphrag_ray.indexing.index import index as run_index
from graphrag_ray.indexing.new_prompts import cost_of_prompts
from graphrag_ray.indexing.stages.list_input import list_input
from graphrag_ray.settings.index_settings import OFFLINE_MODEL_ID, Settings, Storage, of_index
from graphrag_ray.settings.settings_file import load_settings, storage_of
from graphrag_ray.settings.user_settings import Known, remember, require_known, unknown_models
from graphrag_ray.store import locks, runs
from graphrag_ray.store.compaction import totals
from graphrag_ray.store.files import Store
from graphrag_ray.store.runs import RunRecord
from graphrag_ray.store.snapshots import Manifest, readable

if TYPE_CHECKING:
    from graphrag_ray.cli.progress import Observer
    from graphrag_ray.engine.ray.ray_executor import RayExecutor


def build_index(
    input_url: str,
    root: str,
    *,
    settings: Settings | Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    add: bool = False,
    allow_deletes: bool = False,
    reset_communities: bool = False,
    verify: bool = False,
    new_prompts: bool = False,
    agree: Callable[[str], object] | None = None,
    address: str | None = None,
    storage: Storage | Mapping[str, Any] | None = None,
) -> Indexed:
    """Bring the index at `root` up to date with the documents of INPUT, on Ray.

    settings        values, or sections as in a settings file; None: those of the newest snapshot, else of
                    the last run, else the defaults (the offline engine)
    observer        who is told how it goes; None: as `progress` says
    progress        lines on standard error, or in the notebook's cell, about how it goes; None: in a notebook
                    and on a terminal. Steps are logged (`graphrag_ray`, at the level INFO) in any case
    add             keep documents that INPUT does not hold
    allow_deletes   let documents go, or be replaced, where a run would refuse that
    reset_communities   partition the graph afresh, not from the communities that are there
    verify          read every stored part first; damaged ones are set aside and made anew
    new_prompts     take the prompts of the package, or of the settings' `prompts_dir`, for all of the index,
                    not those that it was made with. `observer` is told first what that costs
    agree           told instead; what it raises ends this before anything is asked
    address         a Ray cluster; None: the one of this machine, else a private one
    storage         how index and INPUT are reached, as in settings.Storage; None: as the settings, else the
                    environment, say. It is not taken from a snapshot

    Raises UsageError before Ray is started, where that can be known; else as `index.index`. Called from the
    main thread, it ends with Interrupted on Ctrl-C and SIGTERM (`engine/stopping.py`).
    """
    observer = observer or _observer(progress)
    settled = _settled(root, settings, storage, new_prompts)
    agreed = partial(_agreed, settled, new_prompts, (new_prompts and agree) or observer.note)
    with _on_ray(input_url, root, settled, observer, address, agreed) as executor:
        return run_index(
            input_url,
            executor,
            settled,
            observer,
            add=add,
            allow_deletes=allow_deletes,
            reset_communities=reset_communities,
            verify=verify,
            new_prompts=new_prompts,
        )


def _observer(progress: bool | None) -> Observer:
    from graphrag_ray.cli import progress as shown  # whoever only reads an index needs no terminal

    return shown.Observer(quiet=not (shown.is_watched() if progress is None else progress))


def _settled(
    root: str,
    settings: Settings | Mapping[str, Any] | None,
    storage: Storage | Mapping[str, Any] | None,
    new_prompts: bool,
) -> Settings:
    """Those given, or else those of what is there; with how storage is reached. Raises SettingsError."""
    if not isinstance(settings, Settings):
        url = Store(root, storage_of(None, storage).of(root)).url
        if settings is None:
            before = before_of(Store(root, storage_of(None, storage).of(root)))
            settings = load_settings(None, (), of_index(before.settings) if before else None, Known.read(url))
            require_paths(before.settings if before else {}, settings, new_prompts=new_prompts)
        else:
            settings = load_settings(None, (), settings, Known.read(url))
    return settings.model_copy(update={"storage": storage_of(settings, storage)})


def _agreed(settings: Settings, new_prompts: bool, agree: Callable[[str], object], store: Store) -> None:
    """What other prompts cost is told. Raises PromptError, and what `agree` raises."""
    before = settings_before(store, readable(store)[0])
    if cost := cost_of_prompts(store, settings, indexing_stages(settings), before, new_prompts):
        agree(cost)


@contextmanager
def _on_ray(
    input_url: str,
    root: str,
    settings: Settings,
    observer: Observer,
    address: str | None,
    agreed: Callable[[Store], None],
) -> Iterator[RayExecutor]:
    """An executor on Ray for as long as the block lasts, in which signals stop it; what can be wrong is
    looked for before Ray is started. agreed: raises where the owner of the index does not want it so."""
    # Ray is imported here: it takes a second, and this module is read for its names.
    from graphrag_ray.engine.ray.cluster import connected, will_be_private
    from graphrag_ray.engine.ray.nodes import check_nodes
    from graphrag_ray.engine.ray.ray_executor import RayExecutor

    store = Store(root, settings.storage.of(root))
    locks.check_free(store)
    private = will_be_private(address)
    first = _check(input_url, store, settings, here=private)
    agreed(store)
    observer.checked(settings)
    models = Models.of(settings, *_usages(store))
    if private:
        reusable = bool(store.list("work"))
        models = probed(models, settings, indexing_stages(settings), reusable, observer.note)
    else:  # the nodes may see what this process does not
        for problem in probe(models, settings, indexing_stages(settings)):
            if problem.asked:
                observer.note(f"Seen from here, {problem}")
    with ExitStack() as held:
        held.enter_context(observer)
        with observer.waiting("starting Ray" if private else "connecting to Ray"):
            held.enter_context(connected(address))
        fit = set() if private else check_nodes(store, [first] if first else [])
        _remember(store, settings, observer)
        executor = RayExecutor(
            store,
            models,
            settings.run.max_failed_fraction,
            settings.run.flush_s,
            settings.run.workers_per_node,
            observer.progress,
            Spending(settings.budget, time.monotonic()),
            fit=fit,
        )
        executor.stop = Stop(say=observer.note)
        with listening(executor.stop):
            executor.start()
            try:
                yield executor
            finally:
                executor.close()


def _remember(store: Store, settings: Settings, observer: Observer) -> None:
    """Where the models are is kept on this machine, since no snapshot keeps it. Once they have answered: what
    was a mistake shall not be known to the next run."""
    try:
        if kept := remember(store.url, settings):
            observer.note(f"How the models of this index are reached is kept for later commands, in {kept}.")
    except OSError as e:
        observer.note(f"How the models of this index are reached cannot be kept on this machine ({e}).")


def _check(input_url: str, store: Store, settings: Settings, here: bool) -> str | None:
    """What is wrong with prices, INPUT and keys is told before Ray takes its seconds.

    here: the workers will have this process's environment. Returns the path of a file of a local INPUT.
    """
    asked = indexing_stages(settings)
    if unknown_models(settings, asked):
        before = before_of(store)
        require_known(settings, asked, before.settings if before else None)
    check_prices(settings.budget, Models.of(settings))
    first = list_input(input_url, store.url, settings.input_options(input_url, store.url))[0].url
    if here:
        check_endpoints(settings)
    return first.removeprefix("file://") if first.startswith("file://") else None


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


def _usages(store: Store) -> Iterator[Mapping[str, Any]]:
    """Of the newest snapshot and of the last run: what endpoints taught them need not be learned again."""
    for before in (readable(store)[0], runs.latest(store)):
        if before is not None:
            yield before.usage


def check_endpoints(settings: Settings) -> None:
    """Raises SettingsError where a model that a run asks has no endpoint with a key and an address.

    Looks in this process's environment: to be asked only where the workers have the same one.
    """
    for name, stages in _asked(settings).items():
        model = settings.model(name)
        if model.provider == "offline":
            continue
        from graphrag_ray.llm.client import connect  # the client library takes half a second

        tried = connect(model, os.environ)
        problems = [str(t) for t in tried if isinstance(t, FatalCallError)]
        if problems and len(problems) == len(tried):
            raise SettingsError(f"models.{name} ({', '.join(stages)}): {'; '.join(problems)}")


def indexing_stages(settings: Settings) -> list[str]:
    """The stages of a run whose models are asked."""
    stages = ["extract", "describe", "report"]
    stages += ["claims"] if settings.claims.enabled else []
    return stages + (["embed"] if settings.embeddings.enabled else [])


def _asked(settings: Settings) -> dict[str, list[str]]:
    """The logical models that a run of these settings asks, and in which stages."""
    asked: dict[str, list[str]] = {}
    for stage in indexing_stages(settings):
        asked.setdefault(settings.model_name(stage), []).append(stage)
    return asked
