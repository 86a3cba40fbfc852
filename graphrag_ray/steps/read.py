"""Documents and chunks: INPUT is listed on the driver and read by the executor.

INPUT is the whole wanted set: a document that is not in it goes (`add` keeps it). A document that
cannot be read today keeps its last version and is a failure; a listing that fails is fatal.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa

from graphrag_ray import schema
from graphrag_ray.corpus.parse import Document, Unreadable, documents_in
from graphrag_ray.corpus.tables import documents_table, text_units_table
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.engine.executor import Parted
from graphrag_ray.errors import InputError
from graphrag_ray.graph.batches import stable_batches, stable_stream
from graphrag_ray.ids import stable_id
from graphrag_ray.settings import Settings
from graphrag_ray.steps.keep import inputs_of, keep_and_count, pairs_of
from graphrag_ray.steps.listing import InputFile, look_at
from graphrag_ray.steps.run import Result, Run, by_input, rows_of
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.store.remote import is_storage_error, open_elsewhere
from graphrag_ray.wording import plural

KINDS_TOLD = 5
"""Extensions of skipped files that are named."""

WHOLE_BYTES = 8_000_000
"""Files up to this size are fetched in one piece, where it is known."""
MAX_SPLIT_BYTES = 16 << 20
DOCUMENT_BYTES = 500
"""What a document takes beside its text, roughly: parts of very short ones are bounded too."""


def read(run: Run, input_url: str, *, add: bool, allow_deletes: bool) -> Result:
    """Tables documents and text_units, and failures, in one group.

    Documents lie in pairs of parts: some consecutive documents, and all chunks of these. A group is a few
    consecutive pairs, so it never parts a document from its chunks; it is the input of a task in each later
    step, whatever the files were.
    """
    return run.step("read", None, partial(_read, run, input_url, add, allow_deletes))


def _read(run: Run, input_url: str, add: bool, allow_deletes: bool) -> Result:
    options = run.settings.input_options(input_url, run.store.url)
    listing = look_at(input_url, run.store.url, options)
    files = listing.files
    if listing.others:
        run.observer.note(_skipped(listing.others))
    sizes = [max(1, f.size) for f in files]
    limit = _split_bytes(sum(sizes))
    splits = stable_batches([stable_id("file", f.path) for f in files], sizes, limit)
    inputs = [[files[i] for i in batch] for batch in splits]
    one_by_one = Parted(lambda files: [[file] for file in files], _unread)
    written = run.executor.map("read", partial(_read_split, run.settings, options, limit), inputs, one_by_one)
    tables = by_input(written, "documents", "text_units", "failures")
    if run.parent is None and not any(tables["documents"]):
        _refuse_nothing(run, tables["failures"])
    counts = keep_and_count(run, tables, listing.base, add, allow_deletes)
    run.inputs = inputs_of(run, listing.base, add)
    return Result(_regrouped(tables), counts | {"files": len(files), "chunks": rows_of(tables["text_units"])})


def _read_split(
    settings: Settings, options: Mapping[str, Any], limit: int, store: Store, files: Sequence[InputFile]
) -> Iterator[Mapping[str, pa.Table]]:
    """limit: of a pair of parts, in bytes; what bounds a reader's memory."""
    model = settings.model(settings.model_name("extract"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    unreadable: list[Unreadable] = []

    def documents() -> Iterator[Document]:
        for file in files:
            for found in read_file(file, settings, options):
                if isinstance(found, Unreadable):
                    unreadable.append(found)
                else:
                    yield found

    for batch in stable_stream(documents(), lambda d: (d.id, len(d.text) + DOCUMENT_BYTES), limit):
        units = [text_units_table(d, settings.chunking, vocabulary) for d in batch]
        yield {
            "documents": documents_table(batch),
            "text_units": pa.concat_tables(units),
            "failures": _failures(unreadable),
        }
        unreadable.clear()
    yield {"failures": _failures(unreadable)}


def _regrouped(tables: Mapping[str, list[list[Part]]]) -> dict[str, list[list[Part]]]:
    """The same parts, a few consecutive pairs a group: what stood in one file, or came in one update, is
    nobody's business any more. Groups that were made so before stay as they are."""
    groups = zip(tables["documents"], tables["text_units"], strict=True)
    pairs = [pair for documents, units in groups for pair in pairs_of(documents, units)]
    sizes = [sum(part.bytes for part in (*documents, *units)) for documents, units in pairs]
    named = [stable_id("pair", *(part.path for part in documents)) for documents, _ in pairs]
    batches = stable_batches(named, sizes, _split_bytes(sum(sizes)))
    return {
        **tables,
        "documents": [[part for i in batch for part in pairs[i][0]] for batch in batches],
        "text_units": [[part for i in batch for part in pairs[i][1]] for batch in batches],
    }


def read_file(
    file: InputFile, settings: Settings, options: Mapping[str, Any] | None = None
) -> Iterator[Document | Unreadable]:
    """The documents of a file, and what in it is none. options: of INPUT's storage."""
    try:
        with _opened(file, options or {}) as stream:
            yield from documents_in(file.path, stream, settings.input)
    except Exception as e:
        if not is_storage_error(e):
            raise
        yield Unreadable(file.path, "", f"cannot be read: {e}")


def _opened(file: InputFile, options: Mapping[str, Any]) -> BinaryIO:
    fs, path = open_elsewhere(file.url, options)
    if 0 < file.size <= WHOLE_BYTES:
        # One request of an object store; opening a file asks for its size first.
        return io.BytesIO(fs.cat_file(path))
    return fs.open(path, "rb")  # type: ignore[no-any-return]


def _unread(files: Sequence[InputFile], why: str) -> Mapping[str, pa.Table]:
    """What stands for a file of which processes die."""
    return {"failures": _failures([Unreadable(file.path, "", f"cannot be read: {why}") for file in files])}


def _failures(unreadable: Sequence[Unreadable]) -> pa.Table:
    rows = [
        {
            "stage": "read",
            "item": u.row or u.path,
            "document": u.path,
            "kind": "permanent",
            "error": u.reason,
            "attempts": 1,
            "first_at": "",
            "last_at": "",
            "key": "",
        }
        for u in unreadable
    ]
    return pa.Table.from_pylist(rows, schema=schema.FAILURES)


def _skipped(others: Mapping[str, int]) -> str:
    """`4 files of other kinds skipped (.png 3, .pdf 1)`, the most frequent first."""
    kinds = sorted(others.items(), key=lambda kind: (-kind[1], kind[0]))
    shown = [f"{extension or 'no extension'} {n:,}" for extension, n in kinds[:KINDS_TOLD]]
    more = ", …" if len(kinds) > KINDS_TOLD else ""
    return f"{plural(sum(others.values()), 'file')} of other kinds skipped ({', '.join(shown)}{more})"


def _refuse_nothing(run: Run, groups: list[list[Part]]) -> None:
    failed = read_table(run.store, [p for group in groups for p in group], None, schema.FAILURES)
    if not failed.num_rows:
        return
    shown = "; ".join(f"{r['document']}: {r['error']}" for r in failed.slice(0, 5).to_pylist())
    of = len(set(failed["document"].to_pylist()))
    who = "the one file" if of == 1 else f"none of the {of:,} files"
    raise InputError(f"{who} of INPUT {'cannot' if of == 1 else 'could'} be read: {shown}")


def _split_bytes(total: int) -> int:
    """Bytes that a task takes at once: some 1,000 tasks, none of them large. A power of two, so that a corpus
    that grows keeps its splits."""
    size = 1 << 19
    while size < min(total / 1024, MAX_SPLIT_BYTES):
        size *= 2
    return size
