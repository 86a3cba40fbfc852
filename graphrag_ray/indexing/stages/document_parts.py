"""Write documents as parts, merge them with the parent snapshot's, and refuse accidental mass deletion."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.errors import DeletionRefused, InputError
from graphrag_ray.base.ids import document_id, stable_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.chunks import documents_table, text_units_table
from graphrag_ray.corpus.document import Document, Unreadable
from graphrag_ray.corpus.document_context import opening
from graphrag_ray.corpus.parse import ROW_PREFIX
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.engine.dialogue_runner import record_bug
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.graph.stable_batches import stable_batches, stable_stream
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.short_ids import row_slices
from graphrag_ray.indexing.step_result import Result, count_rows
from graphrag_ray.llm.accounting import Accounts, InFlight
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table

MIN_SPLIT_BYTES = 1 << 19
MAX_SPLIT_BYTES = 16 << 20
DOCUMENT_BYTES = 500
"""Approximate size of a document without its text, which limits parts with very short documents."""
MAX_DELETED_FRACTION = 0.10
MAX_LISTED_NAMES = 3

EMPTY = "empty"
"""Preliminary failure kind of an empty file. It becomes a failure only if the parent snapshot has documents
of that file, which may have been lost."""

_ROW_WITHOUT_ID = re.compile(rf"{ROW_PREFIX} \d+")
_KEPT_VERSION = re.compile(r"; keeping its version from snapshot (\d+)$")

Pair: TypeAlias = tuple[list[Part], list[Part]]
"""Parts of documents, and parts of their chunks."""


def chunk_documents(
    documents: Iterable[Document | Unreadable], settings: Settings, limit: int
) -> Iterator[Mapping[str, pa.Table]]:
    """Yield pairs of tables documents and text_units of at most `limit` bytes, and tables failures."""
    model = settings.model(settings.model_name("extract"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    unreadable: list[Unreadable] = []

    def chunked() -> Iterator[tuple[Document, pa.Table]]:
        for document in documents:
            if isinstance(document, Unreadable):
                unreadable.append(document)
                continue
            try:
                shows_opening = settings.input.document_context == "opening"
                first_words = opening(document, settings.input, vocabulary) if shows_opening else ""
                units = text_units_table(document, settings.chunking, vocabulary, first_words)
            except BaseException as e:
                if not is_unexpected(e):
                    raise
                unreadable.append(Unreadable(document.path, document.row, record_bug(e)))
            else:
                yield document, units

    for batch in stable_stream(chunked(), lambda p: (p[0].id, len(p[0].text) + DOCUMENT_BYTES), limit):
        yield {
            "documents": documents_table(document for document, _ in batch),
            "text_units": pa.concat_tables(units for _, units in batch),
            "failures": read_failures(unreadable),
        }
        unreadable.clear()
    yield {"failures": read_failures(unreadable)}


def read_failures(unreadable: Sequence[Unreadable]) -> pa.Table:
    rows = [
        {
            **dict.fromkeys(("first_at", "last_at", "key"), ""),
            "stage": "read",
            "item": u.row or u.path,
            "document": u.path,
            "kind": EMPTY if u.empty else "permanent",
            "error": u.reason,
            "attempts": 1,
        }
        for u in unreadable
    ]
    return pa.Table.from_pylist(rows, schema=schema.FAILURES)


def regroup(tables: Mapping[str, list[list[Part]]]) -> dict[str, list[list[Part]]]:
    """Group a few consecutive pairs of parts, independently of the files or updates they came from.

    Boundaries depend on the neighbouring parts, so most groups of the parent snapshot stay the same.
    """
    pairs = _pairs(tables)
    sizes = [sum(part.bytes for part in (*documents, *units)) for documents, units in pairs]
    hashes = [stable_id("pair", *(part.path for part in documents)) for documents, _ in pairs]
    batches = stable_batches(hashes, sizes, split_bytes(sum(sizes)))
    return {
        **tables,
        "documents": [[part for i in batch for part in pairs[i][0]] for batch in batches],
        "text_units": [[part for i in batch for part in pairs[i][1]] for batch in batches],
    }


def split_bytes(total: int) -> int:
    """Return the size of a task's input for about 1,000 tasks, or more if tasks would be large.

    It is a power of two, so that a growing corpus keeps most of its splits.
    """
    size = MIN_SPLIT_BYTES
    while size < min(total / 1024, MAX_SPLIT_BYTES):
        size *= 2
    return size


def progress_reporter(run: Run, total: int | None, size: Callable[[int], int]) -> Callable[[int], None]:
    """Return a callback for the number of an input that has been read, which reports progress."""
    started, n_read = time.monotonic(), 0

    def on_read(number: int) -> None:
        nonlocal n_read
        n_read += size(number)
        seconds = time.monotonic() - started
        usage = Accounts()  # Reading makes no model calls.
        run.executor.on_progress(SweepProgress("read", n_read, total, 0, InFlight(), usage, usage, seconds))

    return on_read


def merge_with_parent(
    run: Run,
    tables: dict[str, list[list[Part]]],
    item: str,
    folder_hash: str,
    add: bool,
    allow_deletes: bool,
    unchanged: pa.Table | None = None,
) -> dict[str, Any]:
    """Add the remaining documents of the parent snapshot to the tables that were read, and count the changes.

    INPUT is the complete desired set of documents. Documents that it does not contain are deleted, unless
    `add` is set or their file cannot be read in this run.

    Args:
        item: The kind of input in messages: "file" or "row".
        folder_hash: See `Listing`.
        unchanged: id and content_hash of documents that INPUT and the parent have in common and that are
            therefore not in the tables.

    Raises:
        InputError: Nothing in INPUT can be read.
        DeletionRefused: The run would delete much of the index, or replace documents of another folder.
    """
    failures = [part for group in tables["failures"] for part in group]
    failed = read_table(run.store, failures, None, schema.FAILURES)
    if run.parent is None and failed.num_rows and not any(tables["documents"]):
        errors = "; ".join(f"{r['document']}: {r['error']}" for r in failed.slice(0, 5).to_pylist())
        n = len(set(failed["document" if item == "file" else "item"].to_pylist()))
        subject = f"The only {item}" if n == 1 else f"None of the {n:,} {item}s"
        raise InputError(f"{subject} of INPUT {'cannot' if n == 1 else 'can'} be read: {errors}")
    folders = run.parent.run.get("inputs") if run.parent else None
    # After this run, the index contains documents of these folders, which the next `--add` may update.
    run.input_hashes = sorted({*((folders or ()) if add else ()), folder_hash})
    if run.parent is None:
        _write_failures(run, tables, failed)
        n = count_rows(tables["documents"])
        return {"documents": n, "added": n, "changed": 0, "removed": 0}
    old = _parent_tables(run, allow_deletes)
    # Pairs that both have contain the same documents and chunks, so only the other pairs are read.
    new_pairs, old_pairs = _pairs(tables), _pairs(old.tables)
    shared = set(map(_paths, new_pairs)) & set(map(_paths, old_pairs))
    new_pairs, old_pairs = ([p for p in pairs if _paths(p) not in shared] for pairs in (new_pairs, old_pairs))
    new_parts = [part for documents, _ in new_pairs for part in documents]
    now = read_table(run.store, new_parts, ["id", "content_hash"], schema.DOCUMENTS)
    unchanged = now.slice(0, 0) if unchanged is None else unchanged
    now = pa.concat_tables([now, unchanged])
    old_parts = [part for documents, _ in old_pairs for part in documents]
    before = read_table(run.store, old_parts, ["id", "content_hash", "path"], schema.DOCUMENTS)
    n_shared = sum(part.rows for part in old.parts("documents")) - before.num_rows
    is_gone = pc.invert(pc.is_in(before["id"], now["id"].combine_chunks()))
    is_kept = is_gone if add else pc.and_(is_gone, _is_unreadable(run, before, new_parts, failed))
    removed = int(pc.sum(is_gone).as_py() or 0) - int(pc.sum(is_kept).as_py() or 0)
    n_before = n_shared + before.num_rows
    if removed > MAX_DELETED_FRACTION * n_before and not allow_deletes:
        paths = before.filter(pc.and_(is_gone, pc.invert(is_kept)))["path"]
        raise DeletionRefused(
            f"This run would delete {removed:,} of {plural(n_before, 'document')}, because INPUT no longer "
            f"contains them ({_first_names(paths)}). Use --add to keep them, or --allow-deletes to delete "
            "them."
        )
    common = before.join(now, "id", right_suffix="_now", join_type="inner")
    changed = common.filter(pc.not_equal(common["content_hash"], common["content_hash_now"]))
    if add and not allow_deletes and changed.num_rows and folders is not None and folder_hash not in folders:
        raise DeletionRefused(
            f"--add would replace {plural(changed.num_rows, 'document')} of another INPUT with the same "
            f"{'name' if changed.num_rows == 1 else 'names'}: {_first_names(changed['path'])} (a document's "
            "name is its path below INPUT). Index a folder that contains both, or use --add with "
            "--allow-deletes to replace them."
        )
    stale = before.filter(is_kept)
    counts = {
        "documents": n_shared + now.num_rows + stale.num_rows,
        "added": now.num_rows - common.num_rows,
        "changed": changed.num_rows,
        "removed": removed,
    }
    stays = pc.or_(is_kept, pc.is_in(before["id"], unchanged["id"].combine_chunks()))
    spans = zip(old_pairs, row_slices([documents for documents, _ in old_pairs]), strict=True)
    wanted = [(pair, before["id"][span].filter(stays[span]).combine_chunks()) for pair, span in spans]
    for documents, units in _select_documents(run, wanted):
        if documents:
            tables["documents"].append(documents)
            tables["text_units"].append(units)
    failed, n_kept = _note_kept_versions(run, failed, stale, old)
    _write_failures(run, tables, failed)
    return counts | ({"kept": n_kept} if n_kept else {})


def _parent_tables(run: Run, allow_deletes: bool) -> Result:
    """Return tables documents, text_units and failures of the parent snapshot.

    If parts of step `read` are damaged, the snapshot's own tables have the same rows. Raises DeletionRefused
    if both are damaged and documents may not be deleted.
    """
    assert run.parent is not None
    old, names = run.parent_results["read"], ("documents", "text_units")
    failures = {"failures": [[] if run.has_lost_parts(group) else group for group in old.tables["failures"]]}
    is_paired = len(old.tables["documents"]) == len(old.tables["text_units"])
    if is_paired and not any(run.has_lost_parts(old.parts(name)) for name in names):
        return Result(old.tables | failures)
    finished = {name: run.parent.parts(name) for name in names}
    if not any(run.has_lost_parts(parts) for parts in finished.values()):
        return Result({name: [parts] for name, parts in finished.items()} | failures)
    if not allow_deletes:
        raise DeletionRefused(
            f"Documents of snapshot {run.parent.number} are damaged, so documents removed from INPUT "
            "cannot be determined. Use --allow-deletes without --add to index only the contents of INPUT."
        )
    return Result({"documents": [[]], "text_units": [[]], **failures})


def _first_names(paths: pa.ChunkedArray) -> str:
    names = pc.unique(paths).sort()
    return ", ".join(names[:MAX_LISTED_NAMES].to_pylist()) + (", …" if len(names) > MAX_LISTED_NAMES else "")


def _is_unreadable(
    run: Run, before: pa.Table, new_parts: Sequence[Part], failed: pa.Table
) -> pa.ChunkedArray:
    """Whether each document of the parent comes from a file, or a row of a file, that this run cannot read.

    If the id column changed, rows have new names. A file then keeps its earlier documents only if nothing was
    read from it (`new_parts`). Otherwise, its rows would be in the index twice.
    """
    files, rows = set[str](), []
    for path, item in zip(failed["document"].to_pylist(), failed["item"].to_pylist(), strict=True):
        if _is_about_file(run, path, item):
            files.add(path)
        else:
            rows.append(document_id(path, item))
    if _id_column_changed(run):
        read_now = read_table(run.store, new_parts, ["path"], schema.DOCUMENTS)["path"]
        files -= set(read_now.unique().to_pylist())
    in_files = pc.is_in(before["path"], pa.array(sorted(files), pa.string()))
    return pc.or_(in_files, pc.is_in(before["id"], pa.array(rows, pa.string())))


def _is_about_file(run: Run, path: str, item: str) -> bool:
    """Whether a failure may concern any document of its file, such as a row whose id cannot be read."""
    if item == path or _id_column_changed(run):
        return True
    return run.settings.input.id_column is not None and bool(_ROW_WITHOUT_ID.fullmatch(item))


def _id_column_changed(run: Run) -> bool:
    assert run.parent is not None
    before = run.parent.settings.get("input", {}).get("id_column")
    return bool(before != run.settings.input.id_column)


def _note_kept_versions(run: Run, failed: pa.Table, stale: pa.Table, old: Result) -> tuple[pa.Table, int]:
    """Note in each failure which snapshot's version of the document is kept, and count these failures."""
    if not failed.num_rows or not stale.num_rows or run.parent is None:
        return failed, 0
    before = read_table(run.store, old.parts("failures"), ["document", "item", "error"], schema.FAILURES)
    matches = {(r["document"], r["item"]): _KEPT_VERSION.search(r["error"]) for r in before.to_pylist()}
    paths, ids = set(stale["path"].to_pylist()), set(stale["id"].to_pylist())
    rows, n = failed.to_pylist(), 0
    for row in rows:
        path, item = row["document"], row["item"]
        if path in paths if _is_about_file(run, path, item) else document_id(path, item) in ids:
            # Keep the number from the first run that failed. Otherwise, every run would change the table.
            match = matches.get((path, item))
            number = match[1] if match else run.parent.number
            row["error"] += f"; keeping its version from snapshot {number}"
            row["kind"] = "permanent"
            n += 1
    return pa.Table.from_pylist(rows, schema=schema.FAILURES), n


def _write_failures(run: Run, tables: dict[str, list[list[Part]]], failed: pa.Table) -> None:
    """Write failures as one group, independent of splits, and report files that are merely empty."""
    is_empty = pc.equal(failed["kind"], EMPTY)
    if empty := failed.filter(is_empty)["document"].to_pylist():
        ellipsis = ", …" if len(empty) > 1 else ""
        run.observer.message(f"Skipped {plural(len(empty), 'empty file')} ({min(empty)}{ellipsis})")
    failed = failed.filter(pc.invert(is_empty))
    tables["failures"] = [run.write("read", "failures", [failed])] if failed.num_rows else []


def _pairs(tables: Mapping[str, list[list[Part]]]) -> list[Pair]:
    groups = zip(tables["documents"], tables["text_units"], strict=True)
    return [pair for group in groups for pair in pairs_of(*group)]


def _paths(pair: Pair) -> tuple[str, ...]:
    return tuple(part.path for parts in pair for part in parts)


def pairs_of(documents: list[Part], units: list[Part]) -> list[Pair]:
    """Return the smallest sets of parts that contain documents together with all of their chunks.

    `read` writes parts in pairs, and every document has a chunk. Parts without pairs stay together.
    """
    if len(documents) != len(units):
        return [(documents, units)]
    return [([d], [u]) for d, u in zip(documents, units, strict=True)]


def _select_documents(run: Run, wanted: Sequence[tuple[Pair, pa.Array]]) -> list[Pair]:
    """Reduce each pair to the documents with the given ids. A pair that keeps all documents is reused."""
    partial_pairs = [(*pair, ids) for pair, ids in wanted if 0 < len(ids) < count_rows([pair[0]])]
    written = iter(run.map("read", _filter_pair, partial_pairs) if partial_pairs else [])
    selected: list[Pair] = []
    for pair, ids in wanted:
        if not len(ids):
            selected.append(([], []))
        elif len(ids) < count_rows([pair[0]]):
            parts = next(written)
            selected.append((parts.get("documents", []), parts.get("text_units", [])))
        else:
            selected.append(pair)
    return selected


def _filter_pair(
    store: Store, selection: tuple[list[Part], list[Part], pa.Array]
) -> Iterator[Mapping[str, pa.Table]]:
    documents, units, ids = selection
    document_rows = read_table(store, documents, None, schema.DOCUMENTS)
    unit_rows = read_table(store, units, None, schema.TEXT_UNITS)
    yield {
        "documents": document_rows.filter(pc.is_in(document_rows["id"], ids)),
        "text_units": unit_rows.filter(pc.is_in(unit_rows["document_id"], ids)),
    }


def drop_documents(run: Run, tables: dict[str, list[list[Part]]], dropped: Mapping[int, set[str]]) -> None:
    """Rewrite groups without the documents `dropped`, which are ids by the number of their group."""
    wanted, numbers = [], []
    for n, ids in dropped.items():
        for pair in pairs_of(tables["documents"][n], tables["text_units"][n]):
            column = read_table(run.store, pair[0], ["id"], schema.DOCUMENTS)["id"]
            stays = column.filter(pc.invert(pc.is_in(column, pa.array(sorted(ids))))).combine_chunks()
            wanted.append((pair, stays))
            numbers.append(n)
        tables["documents"][n], tables["text_units"][n] = [], []
    for n, (documents, units) in zip(numbers, _select_documents(run, wanted), strict=True):
        tables["documents"][n] += documents
        tables["text_units"][n] += units
