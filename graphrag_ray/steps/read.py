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
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.ids import stable_id
from graphrag_ray.settings import Settings
from graphrag_ray.steps.keep import inputs_of, keep_and_count
from graphrag_ray.steps.listing import InputFile, look_at
from graphrag_ray.steps.run import Result, Run, by_input
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.store.remote import is_storage_error, open_elsewhere
from graphrag_ray.wording import plural

KINDS_TOLD = 5
"""Extensions of skipped files that are named."""

WHOLE_BYTES = 8_000_000
"""Files up to this size are fetched in one piece, where it is known."""
YIELD_CHARACTERS = 32_000_000
"""Documents are written when so much text has gathered: what bounds a reader's memory."""


def read(run: Run, input_url: str, *, add: bool, allow_deletes: bool) -> Result:
    """Tables documents and text_units, their parts aligned with one another, and failures, in one group."""
    return run.step("read", None, partial(_read, run, input_url, add, allow_deletes))


def _read(run: Run, input_url: str, add: bool, allow_deletes: bool) -> Result:
    options = run.settings.input_options(input_url, run.store.url)
    listing = look_at(input_url, run.store.url, options)
    files = listing.files
    if listing.others:
        run.observer.note(_skipped(listing.others))
    sizes = [max(1, f.size) for f in files]
    splits = stable_batches([stable_id("file", f.path) for f in files], sizes, _split_bytes(sum(sizes)))
    inputs = [[files[i] for i in batch] for batch in splits]
    one_by_one = Parted(lambda files: [[file] for file in files], _unread)
    written = run.executor.map("read", partial(_read_split, run.settings, options), inputs, one_by_one)
    tables = by_input(written, "documents", "text_units", "failures")
    if run.parent is None and not any(tables["documents"]):
        _refuse_nothing(run, tables["failures"])
    counts = keep_and_count(run, tables, listing.base, add, allow_deletes)
    run.inputs = inputs_of(run, listing.base, add)
    return Result(
        tables, counts | {"files": len(files), "chunks": sum(p.rows for g in tables["text_units"] for p in g)}
    )


def _read_split(
    settings: Settings, options: Mapping[str, Any], store: Store, files: Sequence[InputFile]
) -> Iterator[Mapping[str, pa.Table]]:
    model = settings.model(settings.model_name("extract"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    documents: list[Document] = []
    unreadable: list[Unreadable] = []
    gathered = 0

    def tables() -> Mapping[str, pa.Table]:
        units = [text_units_table(d, settings.chunking, vocabulary) for d in documents]
        return {
            "documents": documents_table(documents),
            "text_units": pa.concat_tables(units) if units else schema.TEXT_UNITS.empty_table(),
            "failures": _failures(unreadable),
        }

    for file in files:
        for found in read_file(file, settings, options):
            if isinstance(found, Unreadable):
                unreadable.append(found)
                continue
            documents.append(found)
            gathered += len(found.text)
            if gathered > YIELD_CHARACTERS:
                yield tables()
                documents, unreadable, gathered = [], [], 0
    yield tables()


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
    """Bytes a reader takes at once: a power of two, so that a corpus that grows keeps its splits."""
    size = 1 << 19
    while size < total / 1024:
        size *= 2
    return size
