"""Build or update an index: run the steps in order (figure 1 of the paper) and commit a snapshot.

    documents ─► chunks ─► instances ─► entities, relationships, claims ─► communities ─► reports
      read        read      extract              merge, describe                           write

Steps are skipped if none of their inputs has changed, and every model reply is journalled. So resuming,
retrying and updating all mean running `index` again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES, JOURNALS, STAGES
from graphrag_ray.base.errors import CorruptPart, LockLost
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.stored_settings import (
    snapshot_settings,
    sticky_differences,
    with_stored_settings,
    without_outdated_prompts,
)
from graphrag_ray.base.urls import display_path
from graphrag_ray.base.wording import shorten
from graphrag_ray.engine.executor import Executor
from graphrag_ray.engine.input_rows import InputRows
from graphrag_ray.engine.observer import Observer
from graphrag_ray.graph import soft_clusters, spectral
from graphrag_ray.graph.aliases import EntityNames
from graphrag_ray.graph.extraction_schema import parse_schema
from graphrag_ray.indexing.changes import count_changes, note_expected_work, note_unknown_columns
from graphrag_ray.indexing.repair import FEW_PARTS, MANY_PARTS, compact, find_damage, open_parent, repair
from graphrag_ray.indexing.results import BuiltHierarchy, ExtractedGraph, Results
from graphrag_ray.indexing.run import Run, format_utc
from graphrag_ray.indexing.run_record import RunRecorder, record_run, unfinished_note
from graphrag_ray.indexing.stages.attributed_stage import build_attributed
from graphrag_ray.indexing.stages.context_stage import write_notes
from graphrag_ray.indexing.stages.describe_stage import describe_graph
from graphrag_ray.indexing.stages.embed_stage import embed_all, embed_entities
from graphrag_ray.indexing.stages.extract_stage import extract_claims, extract_graph
from graphrag_ray.indexing.stages.finish_stage import Finished, write_snapshot_tables
from graphrag_ray.indexing.stages.hierarchy_tables import build_leiden
from graphrag_ray.indexing.stages.merge_stage import merge_instances
from graphrag_ray.indexing.stages.read_stage import read_input
from graphrag_ray.indexing.stages.repeats_stage import find_repeated_paragraphs
from graphrag_ray.indexing.stages.resolve_stage import resolve_names
from graphrag_ray.indexing.stages.search_stage import build_search_indexes
from graphrag_ray.indexing.stages.titles_stage import match_titles
from graphrag_ray.indexing.stages.tree_stage import build_tree
from graphrag_ray.indexing.stages.walk_stage import build_walk_index
from graphrag_ray.indexing.step_result import Result, code_version
from graphrag_ray.indexing.stored_prompts import load_names, with_file_contents, with_schema
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.llm.request_sizes import guessed_vocabularies
from graphrag_ray.offline.name_types import type_names
from graphrag_ray.store import locks, run_records, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_table
from graphrag_ray.store.snapshots import Manifest
from graphrag_ray.version import __version__


@dataclass(frozen=True)
class IndexResult:
    """The newest snapshot after a run, and the duration of each step.

    `committed` is False if nothing had changed.
    """

    manifest: Manifest
    committed: bool
    seconds: Mapping[str, float]
    accounts: Accounts = field(default_factory=Accounts)

    @property
    def failed(self) -> int:
        return int(self.manifest.counts.get("failures", 0))


def index(
    source: str | InputRows,
    executor: Executor,
    settings: Settings,
    observer: Observer,
    *,
    add: bool = False,
    allow_deletes: bool = False,
    reset_communities: bool = False,
    verify: bool = False,
    verify_input: bool = False,
    new_prompts: bool = False,
    now: Callable[[], float] = time.time,
) -> IndexResult:
    """Bring the index in `executor.store` up to date with INPUT, and commit a snapshot.

    Args:
        source: A file, folder, glob or URL, or opened rows.
        add: Keep documents that INPUT does not contain.
        allow_deletes: Allow deleting more than a tenth of the documents.
        reset_communities: Partition the graph from scratch rather than from the parent's communities, and
            rewrite all reports whose context changed.
        verify: Read every stored part first, and rebuild damaged ones.
        verify_input: Read every file of INPUT, even if its storage reports no change.
        new_prompts: Use the current prompts and their defaults (`without_outdated_prompts`).

    Raises:
        UsageError: INPUT, settings or prompts are invalid, or a deletion was refused. Nothing was spent.
        RunStopped: The run was stopped. Replies received so far are stored.
        StoreError: Storage failed.
    """
    load_prompts(settings.prompts_dir, settings.prompts)
    load_names(settings)
    settings = with_schema(settings)
    for warning in guessed_vocabularies(settings.models):
        observer.message(warning)
    if "attributed" in settings.built_hierarchies and settings.attributed.clustering == "spectral":
        spectral.check_installed()
    if "tree" in settings.built_hierarchies:
        soft_clusters.check_installed(settings.tree.dimensionality_reduction)
    store = executor.store
    # Redacted, because a URL may contain a password or signature and the run record stores it.
    input_path = display_path(source) if isinstance(source, str) else str(source)
    with locks.acquire(store, note=f"index {input_path}") as lock, ExitStack() as stack:
        stages = (stage for kind in HIERARCHIES.values() for stage in kind.stages)
        forced = frozenset([*(stages if reset_communities else ()), *(["read"] if verify_input else ())])
        run = Run(executor, settings, {}, None, observer, lock=lock, forced_steps=forced)
        run.parent = open_parent(run, add)
        previous = previous_settings(store, run.parent)
        previous = without_outdated_prompts(previous) if new_prompts else previous
        run.settings = with_stored_settings(with_file_contents(settings, previous, observer), previous)
        run.prompts = load_prompts(settings.prompts_dir, run.settings.prompts)
        if run.parent is not None and run.code_changed:
            old = run.parent.version
            change = f"from {old} to {__version__}" if old != __version__ else f"within version {old}"
            observer.message(
                f"graphrag-ray changed {change}: re-deriving tables from stored replies. Models are called "
                "only for requests that changed."
            )
        names, _ = load_names(run.settings), with_schema(run.settings)  # An index may store any schema.
        for note in (
            unfinished_note(store, JOURNALS),
            _build_note(run),
            _schema_note(run),
            _kept_settings_note(run, settings),
        ):
            if note:
                observer.message(note)
        options = {"input": input_path, "add": add, "allow_deletes": allow_deletes}
        record = stack.enter_context(record_run(run, options, now))
        find_damage(run, JOURNALS, verify)
        run.after_sweep = lambda name: compact(run, [name], MANY_PARTS)
        compact(run, JOURNALS, MANY_PARTS)
        while True:
            try:
                corpus = read_input(run, source, add=add, allow_deletes=allow_deletes)
                note_unknown_columns(run, corpus)
                note_expected_work(run, corpus)
                return _commit(run, run_stages(run, corpus, names), input_path, record, now)
            except CorruptPart as e:
                repair(run, e)


def _kept_settings_note(run: Run, settings: Settings) -> str:
    """Name the settings in which the index differs from the defaults because it was built with others."""
    listed = "; ".join(sticky_differences(run.settings, settings))
    if not listed:
        return ""
    return (
        f"The index keeps settings: {listed}. Set them to change them; --new-prompts replaces old defaults."
    )


def _schema_note(run: Run) -> str:
    """Say that the offline engine knows no type of the schema; "" if it does or is not used."""
    extraction = run.settings.extraction
    is_offline = run.settings.model(run.settings.model_name("extract")).provider == "offline"
    if extraction.schema is None or not is_offline or not run.settings.has_graph:
        return ""
    types = [t.name for t in parse_schema(extraction.schema).entities]
    if any(type_names(", ".join(types), only_exact=True)):
        return ""
    return (
        f"The offline engine knows no entity type of the schema ({shorten(', '.join(types), 200)}) and will "
        "extract nothing. Configure a model, or name types person, organization, location, event, work or "
        "concept."
    )


def _build_note(run: Run) -> str:
    """Describe how this run builds less or more than the previous one; "" if it does not."""
    if run.parent is None:
        return ""
    if run.parent.hierarchies and run.settings.build == "names":
        return (
            "--build names: the new snapshot will contain names found by the offline engine, and no reports. "
            "Run the same command without --build names to restore the current contents from stored replies."
        )
    model = run.settings.model(run.settings.model_name("extract"))
    if not run.parent.hierarchies and run.settings.build == "all" and model.provider != "offline":
        return (
            f"The index contains only names. This run builds everything else with {model.model_id}. Pass "
            "--build names to prevent that."
        )
    return ""


def _commit(
    run: Run, results: Results, input_path: str, record: RunRecorder, now: Callable[[], float]
) -> IndexResult:
    """Commit a snapshot unless nothing has changed."""
    store, parent = run.store, run.parent
    number = snapshots.next_number(store)
    failures = _failures(run, results)
    if parent is not None and run.unchanged():
        record.finish("unchanged", parent.number, failures.num_rows)
        return IndexResult(parent, False, run.seconds, run.accounts)
    created = now()
    finished = write_snapshot_tables(run, results, format_utc(created)[:10], failures)
    counts = _counts(finished, results)
    settings, notes = run.settings, {}
    dialogue = (
        "extract" if settings.has_graph else STAGES[HIERARCHIES[settings.hierarchies[0]].stages[-1]].dialogue
    )
    if settings.model(settings.model_name(dialogue or "report")).provider == "offline":
        notes["offline"] = "Written by the offline engine, without a language model."
    manifest = Manifest(
        number=number,
        parent=parent.number if parent else None,
        created_at=format_utc(created),
        version=__version__,
        tables=finished.tables,
        counts=counts,
        settings=snapshot_settings(settings),
        steps=run.step_records,
        usage=run.accounts.to_dict(),
        next_human_readable_id=finished.next_human_readable_id,
        hierarchies=list(settings.built_hierarchies),
        notes=notes,
        run={
            "input": input_path,
            "inputs": run.input_hashes,
            "seconds": {k: round(v, 3) for k, v in run.seconds.items()},
            "code": code_version(),
            "changes": count_changes(run, finished.tables),
            "asked": {stage: n for stage, n in run.completed_items.items() if n},
        },
    )
    snapshots.commit(store, manifest, check=run.check)
    # Record the snapshot now, in case this process is killed while it compacts the journals.
    record.write(snapshot=number, failed=failures.num_rows)
    try:
        with suppress(LockLost):  # Losing the lock is harmless, because everything is committed.
            compact(run, JOURNALS, FEW_PARTS)
    finally:
        record.finish("committed", number, failures.num_rows)
    return IndexResult(manifest, True, run.seconds, run.accounts)


HIERARCHY_BUILDERS: Mapping[str, Callable[[Run, Result, ExtractedGraph | None], BuiltHierarchy]] = {
    "leiden": build_leiden,
    "attributed": build_attributed,
    "tree": build_tree,
}


def run_stages(run: Run, corpus: Result, names: EntityNames) -> Results:
    """Run all stages after reading: from chunks to reports, embeddings and search indexes."""
    graph: ExtractedGraph | None = None
    if run.settings.has_graph:
        repeats, notes = find_repeated_paragraphs(run, corpus), write_notes(run, corpus)
        extraction = extract_graph(run, corpus, repeats, notes, names)
        claims = extract_claims(run, corpus, repeats, notes, extraction, names)
        extraction, claims, resolution = resolve_names(run, corpus, extraction, claims, names)
        merged = merge_instances(run, corpus, extraction, claims)
        graph = ExtractedGraph(extraction, claims, merged, describe_graph(run, merged), notes, resolution)
    kinds = [HIERARCHIES[name] for name in run.settings.built_hierarchies]
    if graph and any(kind.needs_embeddings and kind.needs_graph for kind in kinds):
        graph = replace(graph, embedded=embed_entities(run, graph.descriptions))
    # An index of names has communities for lazy search, but no hierarchy with reports.
    hierarchies = {
        name: HIERARCHY_BUILDERS[name](run, corpus, graph)
        for name in run.settings.built_hierarchies or ("leiden",)
    }
    results = Results(corpus, graph, hierarchies)
    results = replace(results, embeddings=embed_all(run, results))
    if graph:
        results = replace(
            results, other_stages={"walk": build_walk_index(run, corpus, graph, match_titles(run, corpus))}
        )
    return replace(results, search_indexes=build_search_indexes(run, results))


def previous_settings(store: Store, parent: Manifest | None) -> Mapping[str, Any] | None:
    """Return the settings of the snapshot, or of the last recorded run if there is no snapshot."""
    previous = parent or run_records.latest_run(store)
    return previous.settings if previous is not None else None


def _failures(run: Run, results: Results) -> pa.Table:
    """Read the failed items of all steps, with document paths instead of ids."""
    corpus = results.corpus
    parts = [part for step in results for part in step.failures]
    table = read_table(run.store, parts, None, schema.FAILURES)
    if not table.num_rows:
        return table
    documents = read_table(run.store, corpus.parts("documents"), ["id", "path"], schema.DOCUMENTS)
    row = pc.index_in(table["document"], value_set=documents["id"].combine_chunks())
    paths = pc.coalesce(documents["path"].take(row), table["document"])
    return table.set_column(table.schema.get_field_index("document"), "document", paths)


_STEP_COUNTS = (
    *("pruned", "type_conflict", "merged_names", "split_names", "refused_merges", "dropped_relationships"),
    *("left_out", "shortened_chunks"),
)
"""Beginnings of the names of counts that a snapshot takes from steps."""


def _counts(finished: Finished, results: Results) -> dict[str, Any]:
    """Count the records of a snapshot. Hierarchies after the first are counted separately, by name."""

    def rows(name: str) -> int:
        return sum(p.rows for p in finished.tables.get(name, []))

    def counts_of(name: str) -> dict[str, Any]:
        kind = HIERARCHIES[name]
        n = {"communities": rows(kind.communities_table), kind.report_count_key: rows(kind.reports_table)}
        return {**n, **results.hierarchies[name].counts}

    first, *others = results.hierarchies or [""]
    corpus, graph = results.corpus, results.graph
    steps = (graph.extraction, graph.resolution, graph.merged) if graph else ()
    counts = counts_of(first) if first else {"communities": 0}
    return {
        "documents": rows("documents"),
        "text_units": rows("text_units"),
        "entities": rows("entities"),
        "relationships": rows("relationships"),
        "claims": rows("covariates"),
        "communities": counts.pop("communities"),
        "reports": counts.pop("reports", 0),
        "failures": rows("failures"),
        **counts,
        **({"hierarchies": {name: counts_of(name) for name in others}} if others else {}),
        **{n: corpus.counts[n] for n in ("added", "changed", "removed", "kept") if n in corpus.counts},
        **{n: v for step in steps for n, v in step.counts.items() if n.startswith(_STEP_COUNTS)},
        **finished.counts,
    }
