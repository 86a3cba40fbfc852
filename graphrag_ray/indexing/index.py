"""Building an index: which steps, in which order, and what is committed. The paper's figure 1.

    documents ─► chunks ─► instances ─► entities, relationships, claims ─► communities ─► reports
      read        read      extract              merge, describe                           write

Every step is skipped where nothing that it depends on has changed, and every model reply is journalled:
so resuming, retrying and updating are all this one function, run again.
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
from graphrag_ray.base.urls import shown
from graphrag_ray.engine.executor import Executor
from graphrag_ray.engine.given_rows import GivenRows
from graphrag_ray.engine.observer import Observer
from graphrag_ray.graph import soft_clusters, spectral
from graphrag_ray.graph.aliases import EntityNames
from graphrag_ray.indexing.changes import changes, tell_ahead, tell_unknown_columns
from graphrag_ray.indexing.contents import load_names, with_contents
from graphrag_ray.indexing.repair import FEW, MANY, compact, look_over, parent_of, put_right
from graphrag_ray.indexing.results import BuiltHierarchy, ExtractedGraph, Results
from graphrag_ray.indexing.run import Run, iso
from graphrag_ray.indexing.run_record import RunRecorder, recorded, tell_unfinished
from graphrag_ray.indexing.stages.attributed_stage import build_attributed
from graphrag_ray.indexing.stages.describe_stage import describe_all
from graphrag_ray.indexing.stages.embed_stage import embed_all, embed_entities
from graphrag_ray.indexing.stages.extract_stage import extract_claims, extract_graph
from graphrag_ray.indexing.stages.finish_stage import finish
from graphrag_ray.indexing.stages.graph_hierarchy import build_leiden
from graphrag_ray.indexing.stages.merge_stage import merge
from graphrag_ray.indexing.stages.read_stage import read
from graphrag_ray.indexing.stages.search_stage import index_for_search
from graphrag_ray.indexing.stages.tree_stage import build_tree
from graphrag_ray.indexing.stages.walk_stage import index_for_walks
from graphrag_ray.indexing.step_result import Result, code_version
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.llm.request_sizes import guessed_vocabularies
from graphrag_ray.store import locks, runs, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.store.snapshots import Manifest
from graphrag_ray.version import __version__


@dataclass(frozen=True)
class Indexed:
    """What a run came to.

    committed   False where nothing had changed and the newest snapshot stands as it was
    seconds     by step
    """

    manifest: Manifest
    committed: bool
    seconds: Mapping[str, float]
    accounts: Accounts = field(default_factory=Accounts)

    @property
    def failed(self) -> int:
        return int(self.manifest.counts.get("failures", 0))


def index(
    given: str | GivenRows,
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
) -> Indexed:
    """Bring the index in `executor.store` up to date with INPUT, and commit a snapshot.

    given           INPUT: a file, folder, glob or URL, or rows that were opened
    add             keep documents that INPUT does not hold
    allow_deletes   let a run delete more than a tenth of the documents
    reset_communities   partition the graph afresh, not from the parent snapshot's communities, and write all
                        reports again whose context changed
    verify          read every stored part first, however many there are; damaged ones are made anew
    verify_input    read every file of INPUT, also those that are unchanged by what their storage says
    new_prompts     take the prompts of the package, not those that the index was made with

    Raises InputError, SettingsError, PromptError, DeletionRefused before anything is spent; RunStopped
    when a run must not go on (what was answered is kept); StoreError.
    """
    load_prompts(settings.prompts_dir, None if new_prompts else settings.prompts)
    load_names(settings)
    for guessed in guessed_vocabularies(settings.models):
        observer.note(guessed)
    if "attributed" in settings.built_hierarchies and settings.attributed.clustering == "spectral":
        spectral.check_installed()
    if "tree" in settings.built_hierarchies:
        soft_clusters.check_installed(settings.tree.reduction)
    store = executor.store
    # A URL may hold a password or a signature, and what is shown is kept.
    shown_input = shown(given) if isinstance(given, str) else str(given)
    with locks.acquire(store, note=f"index {shown_input}") as lock, ExitStack() as stack:
        stages = (stage for kind in HIERARCHIES.values() for stage in kind.stages)
        afresh = frozenset([*(stages if reset_communities else ()), *(["read"] if verify_input else ())])
        run = Run(executor, settings, {}, None, observer, lock=lock, afresh=afresh)
        run.parent = parent_of(run, add)
        before = settings_before(store, run.parent)
        run.settings = with_contents(settings, before, observer, new_prompts)
        run.settings = run.settings.with_reports_of(before)
        run.prompts = load_prompts(settings.prompts_dir, run.settings.prompts)
        if run.parent is not None and run.code_changed:
            then = run.parent.version
            change = f"from {then} to {__version__}" if then != __version__ else f"within version {then}"
            observer.note(
                f"graphrag-ray changed {change}: re-deriving tables from stored replies. "
                "A model is asked only where a request changed"
            )
        names = load_names(run.settings)
        if told := tell_unfinished(store, JOURNALS):
            observer.note(told)
        if told := _tell_build(run):
            observer.note(told)
        told_to = {"input": shown_input, "add": add, "allow_deletes": allow_deletes}
        record = stack.enter_context(recorded(run, told_to, now))
        look_over(run, JOURNALS, verify)
        run.on_swept = lambda name: compact(run, [name], MANY)
        compact(run, JOURNALS, MANY)
        while True:
            try:
                corpus = read(run, given, add=add, allow_deletes=allow_deletes)
                tell_unknown_columns(run, corpus)
                tell_ahead(run, corpus)
                return _commit(run, derive(run, corpus, names), shown_input, record, now)
            except CorruptPart as e:  # also after much is done
                put_right(run, e)


def _tell_build(run: Run) -> str:
    """Where this run makes less, or more, than the one before; "" where it does not."""
    if run.parent is None:
        return ""
    if run.parent.hierarchies and run.settings.build == "names":
        return (
            "--build names: the new snapshot has names of the offline engine, and no reports. The same "
            "command without it brings back what the index has now; what was paid for is kept."
        )
    model = run.settings.model(run.settings.model_name("extract"))
    if not run.parent.hierarchies and run.settings.build == "all" and model.provider != "offline":
        return (
            f"The index holds names alone: this run makes the rest, by {model.model_id}. --build names keeps "
            "it as it is."
        )
    return ""


def _commit(
    run: Run,
    results: Results,
    shown_input: str,
    record: RunRecorder,
    now: Callable[[], float],
) -> Indexed:
    """Commit a snapshot, unless nothing has changed."""
    store, parent = run.store, run.parent
    number = snapshots.next_number(store)
    failures = _failures(run, results)
    if parent is not None and run.unchanged():
        record.finish("unchanged", parent.number, failures.num_rows)
        return Indexed(parent, False, run.seconds, run.accounts)
    at = now()
    finished = finish(run, results, iso(at)[:10], failures)
    counts = _counts(finished.tables, results)
    changed = changes(run, finished.tables)
    settings, notes = run.settings, {}
    writes = (
        "extract" if settings.has_graph else STAGES[HIERARCHIES[settings.hierarchies[0]].stages[-1]].dialogue
    )
    if settings.model(settings.model_name(writes or "report")).provider == "offline":
        notes["offline"] = "Written by the offline engine, without a language model."
    manifest = Manifest(
        number=number,
        parent=parent.number if parent else None,
        created_at=iso(at),
        version=__version__,
        tables=finished.tables,
        counts=counts,
        settings=settings.kept(),
        steps=run.memo,
        usage=run.accounts.to_dict(),
        next_human_readable_id=finished.next_human_readable_id,
        hierarchies=list(settings.built_hierarchies),
        notes=notes,
        run={
            "input": shown_input,
            "inputs": run.inputs,
            "seconds": {k: round(v, 3) for k, v in run.seconds.items()},
            "code": code_version(),
            "changes": changed,
            "asked": {stage: n for stage, n in run.asked.items() if n},
        },
    )
    snapshots.commit(store, manifest, check=run.check)
    # Until the lock is let go, whoever watches sees a run that goes on; however this ends, it has committed.
    record.write(snapshot=number, failed=failures.num_rows)
    try:
        with suppress(LockLost):  # nothing is left to lose
            compact(run, JOURNALS, FEW)
    finally:
        record.finish("committed", number, failures.num_rows)
    return Indexed(manifest, True, run.seconds, run.accounts)


HIERARCHY_BUILDERS: Mapping[str, Callable[[Run, Result, ExtractedGraph | None], BuiltHierarchy]] = {
    "leiden": build_leiden,
    "attributed": build_attributed,
    "tree": build_tree,
}
"""By name as declared."""


def derive(run: Run, corpus: Result, names: EntityNames) -> Results:
    """What follows from the documents: from chunks to reports, embeddings and indexes for search."""
    graph: ExtractedGraph | None = None
    if run.settings.has_graph:
        extracted = extract_graph(run, corpus, names)
        claimed = extract_claims(run, corpus, extracted, names)
        merged = merge(run, corpus, extracted, claimed)
        graph = ExtractedGraph(extracted, claimed, merged, describe_all(run, merged))
    by_meaning = [kind for name in run.settings.built_hierarchies if (kind := HIERARCHIES[name]).by_meaning]
    if graph and any(kind.of_graph for kind in by_meaning):
        graph = replace(graph, embedded=embed_entities(run, graph.described))
    hierarchies = {
        name: HIERARCHY_BUILDERS[name](run, corpus, graph) for name in run.settings.built_hierarchies
    }
    results = Results(corpus, graph, hierarchies)
    results = replace(results, embedded=embed_all(run, results))
    if graph:
        results = replace(results, more={"walk": index_for_walks(run, corpus, graph)})
    return replace(results, searchable=index_for_search(run, results))


def settings_before(store: Store, parent: Manifest | None) -> Mapping[str, Any] | None:
    """Those of the snapshot, else of the last run that left its record; None where there was none."""
    before = parent or runs.latest(store)
    return before.settings if before is not None else None


def _failures(run: Run, results: Results) -> pa.Table:
    """Every item without a result, with the path of its document instead of the document's id."""
    corpus = results.corpus
    parts = [part for step in results for part in step.failures]
    table = read_table(run.store, parts, None, schema.FAILURES)
    if not table.num_rows:
        return table
    documents = read_table(run.store, corpus.parts("documents"), ["id", "path"], schema.DOCUMENTS)
    row = pc.index_in(table["document"], value_set=documents["id"].combine_chunks())
    shown = pc.coalesce(documents["path"].take(row), table["document"])
    return table.set_column(table.schema.get_field_index("document"), "document", shown)


def _counts(tables: Mapping[str, list[Part]], results: Results) -> dict[str, Any]:
    """What a person asks first. Of hierarchies, the first one's; the others' under their names."""

    def rows(name: str) -> int:
        return sum(p.rows for p in tables.get(name, []))

    def of(name: str) -> dict[str, Any]:
        kind = HIERARCHIES[name]
        n = {"communities": rows(kind.communities), kind.counted: rows(kind.reports_table)}
        return {**n, **results.hierarchies[name].counts}

    first, *others = results.hierarchies or [""]
    corpus, merged = results.corpus, results.graph.merged if results.graph else Result()
    counts = of(first) if first else {"communities": 0}
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
        **({"hierarchies": {name: of(name) for name in others}} if others else {}),
        **{n: corpus.counts[n] for n in ("added", "changed", "removed", "kept") if n in corpus.counts},
        **{n: v for n, v in merged.counts.items() if n.startswith("pruned")},
    }
