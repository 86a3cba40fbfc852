"""Documents as parts: what every kind of INPUT comes to. See `read_stage.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.base.errors import InputError
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.corpus.chunks import documents_table, text_units_table
from graphrag_ray.corpus.document import Document, Unreadable
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.graph.batches import stable_batches, stable_stream
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.kept_documents import EMPTY, pairs_of
from graphrag_ray.llm.accounting import Accounts, InFlight
from graphrag_ray.store.parts import Part, read_table

MIN_SPLIT_BYTES = 1 << 19
MAX_SPLIT_BYTES = 16 << 20
DOCUMENT_BYTES = 500
"""What a document takes beside its text, roughly: parts of very short ones are bounded too."""


def document_parts(
    found: Iterable[Document | Unreadable],
    settings: Settings,
    limit: int,
    known: Mapping[tuple[str, str], pa.Table] = {},
) -> Iterator[Mapping[str, pa.Table]]:
    """Pairs of tables documents and text_units, and failures. limit: of a pair, in bytes; what bounds a
    reader's memory. known: chunks by a document's id and content_hash."""
    model = settings.model(settings.model_name("extract"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    unreadable: list[Unreadable] = []

    def documents() -> Iterator[tuple[Document, pa.Table]]:
        for one in found:
            cut = _chunked(one, settings, vocabulary, known) if isinstance(one, Document) else one
            if isinstance(cut, Unreadable):
                unreadable.append(cut)
            else:
                yield cut

    for batch in stable_stream(documents(), lambda x: (x[0].id, len(x[0].text) + DOCUMENT_BYTES), limit):
        yield {
            "documents": documents_table(document for document, _ in batch),
            "text_units": pa.concat_tables(units for _, units in batch),
            "failures": read_failures(unreadable),
        }
        unreadable.clear()
    yield {"failures": read_failures(unreadable)}


def chunks_by_document(documents: pa.Table, units: pa.Table) -> dict[tuple[str, str], pa.Table]:
    """`known` of `document_parts`, of stored rows. The chunks of a document stand side by side."""
    hashes = dict(zip(documents["id"].to_pylist(), documents["content_hash"].to_pylist(), strict=True))
    found, at = {}, 0
    for id_, chunks in groupby(units["document_id"].to_pylist()):
        n = sum(1 for _ in chunks)
        if id_ in hashes:
            found[id_, hashes[id_]] = units.slice(at, n)
        at += n
    return found


def _chunked(
    document: Document, settings: Settings, vocabulary: str, known: Mapping[tuple[str, str], pa.Table]
) -> tuple[Document, pa.Table] | Unreadable:
    if known and (units := known.get((document.id, document.content_hash))) is not None:
        return document, units
    try:
        return document, text_units_table(document, settings.chunking, vocabulary)
    except BaseException as e:
        if not is_unforeseen(e):
            raise
        return Unreadable(document.path, document.row, note_bug(e))


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
    groups = zip(tables["documents"], tables["text_units"], strict=True)
    pairs = [pair for documents, units in groups for pair in pairs_of(documents, units)]
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
