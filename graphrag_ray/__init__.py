"""GraphRAG on a laptop or a Ray cluster.

from graphrag_ray import build_index, open_index

build_index("./documents", "s3://bucket/index")
index = open_index("s3://bucket/index")
print(index.ask("What are the main themes?").text)
"""

# Workers import this package for every task, and commands for every --help, so it imports lazily.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphrag_ray.base.index_settings import Settings, Storage
    from graphrag_ray.engine.observer import Observer
    from graphrag_ray.indexing.index import IndexResult
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
) -> IndexResult:
    """Build the index at `root`, or update it with the documents of INPUT.

    Called from the main thread, it handles Ctrl-C and SIGTERM by raising Interrupted
    (`engine/interrupts.py`).

    Args:
        input: A file, folder, glob or URL; or rows, each of which is a document: a `ray.data.Dataset`, a
            pandas or Arrow table, or dictionaries. `settings.input` names the columns for text, id, title and
            date; others are metadata. Without an id column, a row is identified by its content.
        root: The index: a folder or URL.
        settings: Settings, or sections as in a settings file. None: those of the newest snapshot, else of the
            last run, else the defaults (the offline engine).
        observer: Progress callbacks (`engine/observer.py`). None: as `progress` says.
        progress: Show progress on standard error or in the notebook cell. None: on a terminal or in a
            notebook. Steps are also logged by the logger `graphrag_ray` at level INFO.
        add: Keep documents that are not in INPUT.
        allow_deletes: Allow a run that deletes or replaces many documents.
        reset_communities: Partition the graph from scratch instead of starting from the existing communities.
        verify: Read every stored part first and rebuild damaged ones.
        verify_input: Read every file of INPUT, even with unchanged size and time, or ETag.
        new_prompts: Use the prompts of the package, or of `settings.prompts_dir`, instead of those that the
            index was built with. Their cost is passed to `observer` first.
        agree: Receives that cost instead. If it raises, the run ends before any model call.
        address: A Ray cluster. None: the one of this machine, else a private one.
        on_ray: Run on Ray (True) or in this process (False). None: in this process if no cluster is running
            and INPUT is small (`run.in_process_max_mb`).
        storage: How index and INPUT are reached, as `settings.Storage`. None: as the settings, else the
            environment, say. It is never read from a snapshot.

    Returns:
        The snapshot, and figures of the run.

    Raises:
        UsageError: Invalid arguments, before Ray is started where possible.
        GraphRagError: As `indexing.index.index`.
    """
    from functools import partial

    from graphrag_ray.engine.input_rows import InputRows
    from graphrag_ray.indexing import build
    from graphrag_ray.indexing.index import index as run_index

    observer = observer or _observer(progress)
    given = input if isinstance(input, str | InputRows) else InputRows(input)
    settled = build.resolve_settings(root, settings, storage)
    agreed = partial(build.confirm_cost, settled, new_prompts, (new_prompts and agree) or observer.message)
    with build.open_executor(given, root, settled, observer, address, on_ray, agreed) as executor:
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
    from graphrag_ray.engine.observer import Observer, shows_progress

    if not (shows_progress() if progress is None else progress):
        return Observer()
    from graphrag_ray.cli.progress import observer_for_people  # Only progress needs the terminal.

    return observer_for_people()


def open_index(
    url: str,
    *,
    snapshot: int | None = None,
    settings: Settings | None = None,
    storage: Storage | Mapping[str, Any] | None = None,
    cache: str | None = None,
) -> Index:
    """Open an index for questions.

    Args:
        url: The index: a folder or URL.
        snapshot: Number of a snapshot. None: the newest.
        settings: Settings for questions. None: those that the index was built with, and the model addresses
            that this machine knows (`base/user_settings.py`).
        storage: How the index is reached, as `settings.Storage`. None: as `settings.storage`, else the
            environment, says.
        cache: A folder or URL that keeps model replies, so that repeated calls are free. It may be the work
            folder of a batch (its answers' file with `.work`).

    Raises:
        IndexNotFound: There is no index, or no finished snapshot.
        StoreError: The index cannot be read.
    """
    from graphrag_ray.base.index_settings import without_machine_settings
    from graphrag_ray.base.settings_file import load_settings, resolve_storage
    from graphrag_ray.base.user_settings import KnownModels
    from graphrag_ray.query.ask import Index
    from graphrag_ray.store.files import Store
    from graphrag_ray.store.snapshots import open_latest

    reached = resolve_storage(settings, storage)
    store = Store(url, reached.fsspec_options(url))
    manifest = open_latest(store, snapshot)
    known = settings or load_settings(
        None, (), without_machine_settings(manifest.settings), KnownModels.read(store.url)
    )
    replies = Store(cache, reached.fsspec_options(cache)) if cache is not None else None
    return Index(store, manifest, known.model_copy(update={"storage": reached}), replies)
