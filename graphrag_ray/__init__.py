"""graphrag-ray: GraphRAG on Ray, for corpora that outgrow one process.

from graphrag_ray import build_index, open_index

build_index("./documents", "s3://bucket/index")
index = open_index("s3://bucket/index")
print(index.ask("What are the main themes?").text)
"""

# Workers import this package for every task, and commands for every --help: it imports what it needs when it
# is called.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphrag_ray.base.index_settings import Settings, Storage
    from graphrag_ray.engine.observer import Observer
    from graphrag_ray.indexing.index import Indexed
    from graphrag_ray.query.ask import Index

__all__ = ["build_index", "open_index"]


def build_index(
    input: str | Any,
    root: str,
    *,
    settings: Settings | Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    add: bool = False,
    allow_deletes: bool = False,
    reset_communities: bool = False,
    verify: bool = False,
    verify_input: bool = False,
    new_prompts: bool = False,
    agree: Callable[[str], object] | None = None,
    address: str | None = None,
    on_ray: bool | None = None,
    storage: Storage | Mapping[str, Any] | None = None,
) -> Indexed:
    """Bring the index at `root` up to date with the documents of INPUT.

    input           a file, folder, glob or URL; or rows, each of which is a document: a `ray.data.Dataset`, a
                    table of pandas or Arrow, dictionaries. Which columns are text, id, title and date
                    `settings.input` says; the others are metadata. A row without an id column is named by
                    what it holds: changed, it is another document
    settings        values, or sections as in a settings file; None: those of the newest snapshot, else of
                    the last run, else the defaults (the offline engine)
    observer        who is told how it goes (`engine/observer.py`); None: as `progress` says
    progress        lines on standard error, or in the notebook's cell, about how it goes; None: in a notebook
                    and on a terminal. Steps are logged (`graphrag_ray`, at the level INFO) in any case
    add             keep documents that INPUT does not hold
    allow_deletes   let documents go, or be replaced, where a run would refuse that
    reset_communities   partition the graph afresh, not from the communities that are there
    verify          read every stored part first; damaged ones are set aside and made anew
    verify_input    read every file of INPUT, also those that are unchanged by their size and time, or ETag
    new_prompts     take the prompts of the package, or of the settings' `prompts_dir`, for all of the index,
                    not those that it was made with. `observer` is told first what that costs
    agree           told instead; what it raises ends this before anything is asked
    address         a Ray cluster; None: the one of this machine, else a private one, if any
    on_ray          False: in this process, True: on Ray; None: in this process where no cluster is there and
                    INPUT is small (`run.in_process_mb`)
    storage         how index and INPUT are reached, as in settings.Storage; None: as the settings, else the
                    environment, say. It is not taken from a snapshot

    Raises UsageError before Ray is started, where that can be known; else as `index.index`. Called from the
    main thread, it ends with Interrupted on Ctrl-C and SIGTERM (`engine/stopping.py`).
    """
    from functools import partial

    from graphrag_ray.engine.given_rows import GivenRows
    from graphrag_ray.indexing import build
    from graphrag_ray.indexing.index import index as run_index

    observer = observer or _observer(progress)
    given = input if isinstance(input, str | GivenRows) else GivenRows(input)
    settled = build.settled(root, settings, storage)
    agreed = partial(build.agreed, settled, new_prompts, (new_prompts and agree) or observer.note)
    with build.executing(given, root, settled, observer, address, on_ray, agreed) as executor:
        return run_index(
            given,
            executor,
            settled,
            observer,
            add=add,
            allow_deletes=allow_deletes,
            reset_communities=reset_communities,
            verify=verify,
            verify_input=verify_input,
            new_prompts=new_prompts,
        )


def _observer(progress: bool | None) -> Observer:
    from graphrag_ray.engine.observer import Observer, is_watched

    if not (is_watched() if progress is None else progress):
        return Observer()
    from graphrag_ray.cli.progress import observer_for_people  # nothing else here needs the terminal

    return observer_for_people()


def open_index(
    url: str,
    *,
    snapshot: int | None = None,
    settings: Settings | None = None,
    storage: Storage | Mapping[str, Any] | None = None,
    cache: str | None = None,
) -> Index:
    """Open the newest snapshot of an index, or the one with a number, for questions.

    settings   how to ask; None: those that the index was built with, its models where this machine knows them
               (`base/user_settings.py`)
    storage    how the index is reached, as in settings.Storage; None: as `settings.storage`, else the
               environment, says
    cache      a folder or URL where replies of models are kept: what was asked before is not asked again. The
               journal of a batch (its answers' file with `.work`) is one, too

    Raises IndexNotFound where there is none, or none finished; StoreError.
    """
    from graphrag_ray.base.index_settings import of_index
    from graphrag_ray.base.settings_file import load_settings, storage_of
    from graphrag_ray.base.user_settings import Known
    from graphrag_ray.query.ask import Index
    from graphrag_ray.store.files import Store
    from graphrag_ray.store.snapshots import open_latest

    reached = storage_of(settings, storage)
    store = Store(url, reached.of(url))
    manifest = open_latest(store, snapshot)
    known = settings or load_settings(None, (), of_index(manifest.settings), Known.read(store.url))
    replies = Store(cache, reached.of(cache)) if cache is not None else None
    return Index(store, manifest, known.model_copy(update={"storage": reached}), replies)
