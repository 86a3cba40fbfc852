"""Documents as parts: what every kind of INPUT comes to (`read_stage.py`), what stays of those of the parent
snapshot, and which runs are refused since they would lose some."""

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
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.chunks import documents_table, text_units_table
from graphrag_ray.corpus.document import Document, Unreadable
from graphrag_ray.corpus.parse import ROW
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.graph.batches import stable_batches, stable_stream
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.step_result import Result, rows_of
from graphrag_ray.llm.accounting import Accounts, InFlight
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table

MIN_SPLIT_BYTES = 1 << 19
MAX_SPLIT_BYTES = 16 << 20
DOCUMENT_BYTES = 500
"""What a document takes beside its text, roughly: parts of very short ones are bounded too."""


def document_parts(
    found: Iterable[Document | Unreadable],
    settings: Settings,
    limit: int,
) -> Iterator[Mapping[str, pa.Table]]:
    """Pairs of tables documents and text_units, and failures. limit: of a pair, in bytes; what bounds a
    reader's memory."""
    model = settings.model(settings.model_name("extract"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    unreadable: list[Unreadable] = []

    def documents() -> Iterator[tuple[Document, pa.Table]]:
        for one in found:
            if isinstance(one, Unreadable):
                unreadable.append(one)
                continue
            try:
                units = text_units_table(one, settings.chunking, vocabulary)
            except BaseException as e:
                if not is_unforeseen(e):
                    raise
                unreadable.append(Unreadable(one.path, one.row, note_bug(e)))
            else:
                yield one, units

    for batch in stable_stream(documents(), lambda x: (x[0].id, len(x[0].text) + DOCUMENT_BYTES), limit):
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
            "stage": "read",
            "item": u.row or u.path,
            "document": u.path,
            "kind": EMPTY if u.empty else "permanent",
            "error": u.reason,
            "attempts": 1,
            "first_at": "",
            "last_at": "",
            "key": "",
        }
        for u in unreadable
    ]
    return pa.Table.from_pylist(rows, schema=schema.FAILURES)


def regrouped(tables: Mapping[str, list[list[Part]]]) -> dict[str, list[list[Part]]]:
    """The same parts, a few consecutive pairs a group: what stood in one file, or came in one update, is
    nobody's business any more. Groups that were made so before stay as they are."""
    pairs = _pairs(tables)
    sizes = [sum(part.bytes for part in (*documents, *units)) for documents, units in pairs]
    named = [stable_id("pair", *(part.path for part in documents)) for documents, _ in pairs]
    batches = stable_batches(named, sizes, split_bytes(sum(sizes)))
    return {
        **tables,
        "documents": [[part for i in batch for part in pairs[i][0]] for batch in batches],
        "text_units": [[part for i in batch for part in pairs[i][1]] for batch in batches],
    }


def split_bytes(total: int) -> int:
    """Bytes that a task takes at once: some 1,000 tasks, none of them large. A power of two, so that a corpus
    that grows keeps its splits."""
    size = MIN_SPLIT_BYTES
    while size < min(total / 1024, MAX_SPLIT_BYTES):
        size *= 2
    return size


def refuse_nothing(run: Run, groups: list[list[Part]], item: str) -> None:
    """Raises InputError with the first failures, if there are any. item: what each of them is about."""
    failed = read_table(run.store, [p for group in groups for p in group], None, schema.FAILURES)
    if not failed.num_rows:
        return
    shown = "; ".join(f"{r['document']}: {r['error']}" for r in failed.slice(0, 5).to_pylist())
    of = len(set(failed["document" if item == "file" else "item"].to_pylist()))
    who = f"the one {item}" if of == 1 else f"none of the {of:,} {item}s"
    raise InputError(f"{who} of INPUT {'cannot' if of == 1 else 'could'} be read: {shown}")


def tell_read(run: Run, total: int | None, size: Callable[[int], int]) -> Callable[[int], None]:
    """Tells people how much is read, as inputs end. size: of an input, by its number; total: of all."""
    began, done = time.monotonic(), 0

    def ended(number: int) -> None:
        nonlocal done
        done += size(number)
        seconds = time.monotonic() - began
        nothing = Accounts()  # no model is asked
        run.executor.on_progress(SweepProgress("read", done, total, 0, InFlight(), nothing, nothing, seconds))

    return ended


MAX_DELETED_FRACTION = 0.10
NAMES_TOLD = 3

EMPTY = "empty"
"""In the place of a failure's kind, while it is read: a file that holds nothing. It is a failure only where
the parent snapshot has a document of it, which somebody may have lost."""

_NO_ID = re.compile(rf"{ROW} \d+")
_KEPT = re.compile(r"; its version of snapshot (\d+) is kept$")

_Pair: TypeAlias = tuple[list[Part], list[Part]]
"""(parts of documents, parts of their chunks)"""


def keep_and_count(
    run: Run,
    tables: dict[str, list[list[Part]]],
    base: str,
    add: bool,
    allow_deletes: bool,
    unchanged: pa.Table | None = None,
) -> dict[str, Any]:
    """Add what stays of the parent snapshot to the tables that were read; return what changed.

    base: the folder that the documents' names are relative to (`Listing.base`). unchanged: id and
    content_hash of documents that INPUT holds as the parent does, and that therefore were not read into the
    tables. Raises DeletionRefused for a run that would delete much of the index, or replace documents of
    another folder.
    """
    parts = [part for group in tables["failures"] for part in group]
    failed = read_table(run.store, parts, None, schema.FAILURES)
    if run.parent is None:
        _one_table(run, tables, failed)
        n = rows_of(tables["documents"])
        return {"documents": n, "added": n, "changed": 0, "removed": 0}
    old = _parent_s(run, allow_deletes)
    # What both have is the same documents and chunks, and is not looked at.
    come_pairs, pairs = (_pairs(of) for of in (tables, old.tables))
    same = {_paths(pair) for pair in come_pairs} & {_paths(pair) for pair in pairs}
    come_pairs, pairs = ([pair for pair in of if _paths(pair) not in same] for of in (come_pairs, pairs))
    come = [part for documents, _ in come_pairs for part in documents]
    now = read_table(run.store, come, ["id", "content_hash"], schema.DOCUMENTS)
    stay = now.slice(0, 0) if unchanged is None else unchanged
    now = pa.concat_tables([now, stay])
    went = [part for documents, _ in pairs for part in documents]
    before = read_table(run.store, went, ["id", "content_hash", "path"], schema.DOCUMENTS)
    n_same = sum(part.rows for part in old.parts("documents")) - before.num_rows
    gone = pc.invert(pc.is_in(before["id"], now["id"].combine_chunks()))
    keep = gone if add else pc.and_(gone, _unreadable_today(run, before, come, failed))
    removed = int(pc.sum(gone).as_py() or 0) - int(pc.sum(keep).as_py() or 0)
    n_before = n_same + before.num_rows
    if removed > MAX_DELETED_FRACTION * n_before and not allow_deletes:
        paths = before.filter(pc.and_(gone, pc.invert(keep)))["path"]
        raise DeletionRefused(
            f"this run would delete {removed:,} of {plural(n_before, 'document')}, because INPUT does "
            f"not hold them any more ({_named(paths)}). Use --add to keep them, or --allow-deletes if they "
            "should go."
        )
    both = before.join(now, "id", right_suffix="_now", join_type="inner")
    changed = both.filter(pc.not_equal(both["content_hash"], both["content_hash_now"]))
    if add and not allow_deletes:
        _refuse_to_replace(run, base, changed)
    kept = before.filter(keep)
    counts = {
        "documents": n_same + now.num_rows + kept.num_rows,
        "added": now.num_rows - both.num_rows,
        "changed": changed.num_rows,
        "removed": removed,
    }
    stays = pc.or_(keep, pc.is_in(before["id"], stay["id"].combine_chunks()))
    wanted, at = [], 0
    for pair in pairs:
        ids = before["id"].slice(at, rows := rows_of([pair[0]]))
        wanted.append((pair, ids.filter(stays.slice(at, rows)).combine_chunks()))
        at += rows
    for documents, units in _some_of(run, wanted):
        if documents:
            tables["documents"].append(documents)
            tables["text_units"].append(units)
    told, n = _told_kept(run, failed, kept, old)
    _one_table(run, tables, told)
    return counts | ({"kept": n} if n else {})


def _parent_s(run: Run, allow_deletes: bool) -> Result:
    """Tables documents, text_units and failures of the parent snapshot: as they were read or, where these
    parts are damaged, from the snapshot's own tables, which hold the same rows.

    Raises DeletionRefused where neither can be read, unless documents may go.
    """
    assert run.parent is not None
    old = run.of_parent["read"]
    failures = [[] if run.lost(group) else group for group in old.tables["failures"]]
    names = ("documents", "text_units")
    pairs = len(old.tables["documents"]) == len(old.tables["text_units"])
    if pairs and not any(run.lost(old.parts(name)) for name in names):
        return Result(old.tables | {"failures": failures})
    written = {name: run.parent.parts(name) for name in names}
    if not any(run.lost(parts) for parts in written.values()):
        return Result({name: [parts] for name, parts in written.items()} | {"failures": failures})
    if not allow_deletes:
        raise DeletionRefused(
            f"parts of the documents of snapshot {run.parent.number} are damaged, so it cannot be told which "
            "of them INPUT does not hold any more. Use --allow-deletes to index what INPUT holds, without "
            "--add."
        )
    return Result({"documents": [[]], "text_units": [[]], "failures": failures})


def inputs_of(run: Run, base: str, add: bool) -> list[str]:
    """The folders whose documents the index holds after this run: what the next `--add` may update."""
    before = run.parent.run.get("inputs", []) if run.parent and add else []
    return sorted({*before, base})


def _refuse_to_replace(run: Run, base: str, changed: pa.Table) -> None:
    """A document's name is its path below INPUT: in another folder the same name is another document."""
    known = run.parent.run.get("inputs") if run.parent else None
    if known is None or base in known or not changed.num_rows:
        return
    raise DeletionRefused(
        f"--add would replace {plural(changed.num_rows, 'document')} of another INPUT that "
        f"{'has the same name' if changed.num_rows == 1 else 'have the same names'}: "
        f"{_named(changed['path'])} (a document's name is its path below INPUT). Index a folder that holds "
        "both, or use --add with --allow-deletes to replace them."
    )


def _named(paths: pa.ChunkedArray) -> str:
    """The first of some names."""
    names = pc.unique(paths).sort()
    return f"{', '.join(names[:NAMES_TOLD].to_pylist())}{', …' if len(names) > NAMES_TOLD else ''}"


def _unreadable_today(run: Run, before: pa.Table, come: Sequence[Part], failed: pa.Table) -> pa.ChunkedArray:
    """Which documents of the parent are in files, or rows of files, that could not be read now. A row whose
    id could not be read may be any of its file.

    come: the parts of the documents that were read now. Under another id column these have new names, so a
    file keeps its former documents only if nothing was read from it: otherwise its rows would be there twice.
    """
    files, rows = set[str](), []
    for path, item in zip(failed["document"].to_pylist(), failed["item"].to_pylist(), strict=True):
        if _is_any(run, path, item):
            files.add(path)
        else:
            rows.append(document_id(path, item))
    if _id_column_changed(run):
        read_now = read_table(run.store, come, ["path"], schema.DOCUMENTS)["path"]
        files -= set(read_now.unique().to_pylist())
    in_files = pc.is_in(before["path"], pa.array(sorted(files), pa.string()))
    return pc.or_(in_files, pc.is_in(before["id"], pa.array(rows, pa.string())))


def _is_any(run: Run, path: str, item: str) -> bool:
    """Whether a failure may be about any document of its file."""
    if item == path or _id_column_changed(run):
        return True
    return run.settings.input.id_column is not None and bool(_NO_ID.fullmatch(item))


def _id_column_changed(run: Run) -> bool:
    """Whether the parent named the rows of table files otherwise."""
    assert run.parent is not None
    before = run.parent.settings.get("input", {}).get("id_column")
    return bool(before != run.settings.input.id_column)


def _told_kept(run: Run, failed: pa.Table, kept: pa.Table, old: Result) -> tuple[pa.Table, int]:
    """The failures, each saying which snapshot's version is kept where one is; and how many are."""
    if not failed.num_rows or not kept.num_rows or run.parent is None:
        return failed, 0
    before = read_table(run.store, old.parts("failures"), ["document", "item", "error"], schema.FAILURES)
    since = {(r["document"], r["item"]): _KEPT.search(r["error"]) for r in before.to_pylist()}
    paths, ids = set(kept["path"].to_pylist()), set(kept["id"].to_pylist())
    rows, n = failed.to_pylist(), 0
    for row in rows:
        path, item = row["document"], row["item"]
        if path in paths if _is_any(run, path, item) else document_id(path, item) in ids:
            # The number of the first run that failed stays: otherwise each run would be a change.
            told = since.get((path, item))
            row["error"] += f"; its version of snapshot {told[1] if told else run.parent.number} is kept"
            row["kind"] = "permanent"
            n += 1
    return pa.Table.from_pylist(rows, schema=schema.FAILURES), n


def _one_table(run: Run, tables: dict[str, list[list[Part]]], failed: pa.Table) -> None:
    """Failures as one group: which file stood beside which is no change. What is merely empty is told."""
    if empty := failed.filter(pc.equal(failed["kind"], EMPTY))["document"].to_pylist():
        named = f"{min(empty)}{', …' if len(empty) > 1 else ''}"
        holds = "holds" if len(empty) == 1 else "hold"
        run.observer.note(f"{plural(len(empty), 'empty file')} {holds} nothing to read ({named})")
    failed = failed.filter(pc.not_equal(failed["kind"], EMPTY))
    tables["failures"] = [run.write("read", "failures", [failed])] if failed.num_rows else []


def _pairs(tables: Mapping[str, list[list[Part]]]) -> list[_Pair]:
    groups = zip(tables["documents"], tables["text_units"], strict=True)
    return [pair for group in groups for pair in pairs_of(*group)]


def _paths(pair: _Pair) -> tuple[str, ...]:
    return tuple(part.path for parts in pair for part in parts)


def pairs_of(documents: list[Part], units: list[Part]) -> list[_Pair]:
    """The smallest sets of parts that hold documents with all of their chunks. `read` writes pairs, and every
    document has a chunk; parts that do not pair stay together."""
    if len(documents) != len(units):
        return [(documents, units)]
    return [([d], [u]) for d, u in zip(documents, units, strict=True)]


def _some_of(run: Run, wanted: Sequence[tuple[_Pair, pa.Array]]) -> list[_Pair]:
    """Of each pair the documents with some ids, and their chunks: the pair itself where these are all."""
    inputs = [(*pair, ids) for pair, ids in wanted if 0 < len(ids) < rows_of([pair[0]])]
    copied = iter(run.map("read", keep_rows, inputs) if inputs else [])
    found: list[_Pair] = []
    for pair, ids in wanted:
        if not len(ids):
            found.append(([], []))
        elif len(ids) < rows_of([pair[0]]):
            done = next(copied)
            found.append((done.get("documents", []), done.get("text_units", [])))
        else:
            found.append(pair)
    return found


def keep_rows(store: Store, x: tuple[list[Part], list[Part], pa.Array]) -> Iterator[Mapping[str, pa.Table]]:
    documents, units, kept = x
    both = {}
    for name, parts, of, column in (
        ("documents", documents, schema.DOCUMENTS, "id"),
        ("text_units", units, schema.TEXT_UNITS, "document_id"),
    ):
        table = read_table(store, parts, None, of)
        both[name] = table.filter(pc.is_in(table[column], kept))
    yield both


def leave_out(run: Run, tables: dict[str, list[list[Part]]], rest: Mapping[int, set[str]]) -> None:
    """Write groups anew without some documents. rest: their ids, by number of the group."""
    wanted, of = [], []
    for n, ids in rest.items():
        for pair in pairs_of(tables["documents"][n], tables["text_units"][n]):
            held = read_table(run.store, pair[0], ["id"], schema.DOCUMENTS)["id"]
            stays = held.filter(pc.invert(pc.is_in(held, pa.array(sorted(ids))))).combine_chunks()
            wanted.append((pair, stays))
            of.append(n)
        tables["documents"][n], tables["text_units"][n] = [], []
    for n, (documents, units) in zip(of, _some_of(run, wanted), strict=True):
        tables["documents"][n] += documents
        tables["text_units"][n] += units
