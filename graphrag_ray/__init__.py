"""GraphRAG on a laptop or a Ray cluster.

from graphrag_ray import build_index, open_index

build_index("./documents", "s3://bucket/index")
index = open_index("s3://bucket/index")
print(index.ask("What are the main themes?").text)
"""

# Imports are lazy because each worker process and each --help imports this package.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphrag_ray.base.connection_settings import Storage
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.engine.observer import Observer
    from graphrag_ray.evaluate.tuning import PlannedCalls, TuningResult, TuningSample
    from graphrag_ray.indexing.index import IndexResult
    from graphrag_ray.query.ask import Index

__all__ = ["build_index", "open_index", "tune"]


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

    Ctrl-C and SIGTERM raise Interrupted if this is called from the main thread (`engine/interrupts.py`).

    Args:
        input: A file, folder, glob or URL, or one row per document: a `ray.data.Dataset`, a pandas or Arrow
            table, or dictionaries. `settings.input` names the columns for text, id, title and date; other
            columns are metadata. Without an id column, rows are identified by their content.
        root: The index: a folder or URL.
        settings: Settings, or sections as in a settings file. Defaults to the settings of the newest snapshot
            or the last run. A new index uses the offline engine.
        observer: Progress callbacks (`engine/observer.py`), which replace the display of `progress`.
        progress: Show progress on standard error or in the notebook cell. Defaults to True on a terminal or
            in a notebook. The logger `graphrag_ray` also logs steps at level INFO.
        add: Keep documents in the index that are not in INPUT.
        allow_deletes: Allow the run to delete or replace many documents.
        reset_communities: Partition the graph from scratch instead of starting from the existing communities.
        verify: Read every stored part first and rebuild damaged parts.
        verify_input: Read every file of INPUT, even if its size and time, or its ETag, are unchanged.
        new_prompts: Replace the prompts in the index with the bundled ones or `settings.prompts_dir`, and the
            earlier defaults of settings that the index keeps with the current ones. `observer` receives a
            message about the cost first.
        agree: Receives that message instead. If it raises, the run ends before any model call.
        address: Address of a Ray cluster. Defaults to the cluster of this machine or, without one, a private
            cluster.
        on_ray: Run on Ray (True) or in this process (False). By default, runs in this process if no cluster
            is running and INPUT is small (`run.in_process_max_mb`).
        storage: Storage settings for index and INPUT. Defaults to `settings.storage`, then the user's
            settings and the environment. Snapshots do not store them.

    Returns:
        The snapshot and the statistics of the run.

    Raises:
        UsageError: An argument is invalid. Most are checked before Ray starts.
        GraphRagError: As for `indexing.index.index`.
    """
    from functools import partial

    from graphrag_ray.engine.input_rows import InputRows
    from graphrag_ray.indexing import build
    from graphrag_ray.indexing.index import index as run_index

    observer = observer or _observer(progress)
    source = input if isinstance(input, str | InputRows) else InputRows(input)
    resolved = build.resolve_settings(root, settings, storage, new_prompts)
    confirm = partial(build.confirm_cost, resolved, new_prompts, (new_prompts and agree) or observer.message)
    with build.open_executor(source, root, resolved, observer, address, on_ray, confirm) as executor:
        return run_index(
            source,
            executor,
            resolved,
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
    from graphrag_ray.cli.progress import default_observer  # imported lazily: it needs Rich

    return default_observer()


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
        snapshot: Number of a snapshot. Defaults to the newest.
        settings: Settings for questions. Defaults to the settings of the index, with the model addresses that
            this machine knows (`base/user_settings.py`).
        storage: Storage settings for the index. Defaults to `settings.storage`, then the user's settings and
            the environment.
        cache: Folder or URL of a cache for model replies, so that repeated calls cost nothing. It may be the
            work folder of a batch (the path of its answers plus `.work`).

    Raises:
        IndexNotFound: There is no index or no finished snapshot.
        StoreError: The index cannot be read.
    """
    from graphrag_ray.query.ask import open_index

    return open_index(url, snapshot, settings, storage, cache)


def tune(
    input: str,
    *,
    config: str | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    output: str | None = None,
    agree: Callable[[TuningSample, Sequence[PlannedCalls]], object] | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> TuningResult:
    """Fit entity types, examples, report role and other settings to the documents of INPUT.

    Args:
        input: A file, folder, glob or URL.
        config: A settings file.
        settings: Settings, or sections as in a settings file, instead of `config`.
        output: Folder for the edited settings, prompts, report and cached replies. None writes nothing.
        agree: Called with the sample and its expected cost before the first model call. If it raises, no
            model is called.
        observer: Receives a message before each step.
        options: Fields of `TuningOptions`: selection, limit, sample, holdout, domain, language,
            entity_types, schema.

    Returns:
        The new settings and prompts, and measures of held-out chunks before and after.

    Raises:
        UsageError: An argument is invalid, or no model is configured.
        GraphRagError: As for `evaluate.tuning.tune_corpus`.
    """
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.base.settings_file import load_settings, parse_settings
    from graphrag_ray.evaluate import tuned_files
    from graphrag_ray.evaluate.tuning import TuningOptions, tune_corpus

    if settings is None:
        settings = load_settings(config)
    result = tune_corpus(
        input,
        settings if isinstance(settings, Settings) else parse_settings(settings),
        TuningOptions(**options),
        tuned_files.reply_cache(output) if output is not None else None,
        agree or (lambda *_: None),
        observer.message if observer else (lambda _: None),
    )
    if output is not None:
        tuned_files.write_files(
            tuned_files.tuned_files(result, config, output), result, tuned_files.output_folder(config, output)
        )
    return result
