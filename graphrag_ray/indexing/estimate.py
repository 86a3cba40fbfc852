"""What an index will cost, before any money is spent: reads INPUT, and a journal where there is one.

Nothing is written anywhere, and no model is asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc

from graphrag_ray.base.declarations import ASKING_STAGES, JOURNALS
from graphrag_ray.base.errors import CorruptPart, DialogueFailed, InputError
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply, ChatRequest, Request
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.corpus.document import Document, Unreadable, columns_of
from graphrag_ray.engine.drive import Complete, Driver, note_bug, replay, run
from graphrag_ray.graph.extraction_dialogue import ExtractedRecords, ExtractSpec, extract, extract_spec
from graphrag_ray.indexing.contents import load_names, prompts_for
from graphrag_ray.indexing.forecast.corpus_counts import ChunkCounter, CorpusCounts, Drawn
from graphrag_ray.indexing.forecast.forecast import Forecast, Learned, SampleReading, forecast
from graphrag_ray.indexing.forecast.reply_sizes import Replies
from graphrag_ray.indexing.index import settings_before
from graphrag_ray.indexing.stages.list_input import list_input
from graphrag_ray.indexing.stages.read_stage import read_file
from graphrag_ray.llm.request_sizes import text_size
from graphrag_ray.store import parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, list_parts
from graphrag_ray.store.parts import read_part
from graphrag_ray.store.snapshots import Manifest, readable

SAMPLE_CHUNKS = 1_000
"""Chunks that the offline engine reads: some 5 s of one core."""
READ_BYTES = 512_000_000
"""Of a larger INPUT a sample of its files is read: some two minutes on one core."""
QUICK_SAMPLE, QUICK_CHUNKS, QUICK_PARTS = 200, 1_000, 20
"""Of a rough forecast: chunks that the offline engine reads, chunks that are counted, and parts of documents
that are looked into. Some two seconds."""
DOCUMENT_COLUMNS = ["path", "row", "title", "text", "creation_date", "raw_data"]
JOURNAL_PARTS = 200
"""Parts of a journal from which lengths are learned; of more, so many of them."""
EMPTY = ExtractedRecords((), (), 0, 0)


def estimate(
    input_url: str,
    settings: Settings,
    *,
    root: str | None = None,
    sample: int = SAMPLE_CHUNKS,
    given: Mapping[str, float] | None = None,
    read_bytes: int | None = READ_BYTES,
    new_prompts: bool = False,
) -> Forecast:
    """The forecast of `index` on INPUT.

    root        an index whose journal tells lengths, rates and names per chunk, and what is paid for already
    sample      chunks that the offline engine reads, for what is modelled
    given       assumptions to go by (`forecast.assumptions.KNOWN`)
    read_bytes  of a larger INPUT only a sample of its files is read; None: all of it
    new_prompts as in `index`: not with the prompts that the index was made with

    Raises InputError, SettingsError, PromptError as `index` does; StoreError.
    """
    store = Store(root, settings.storage.of(root)) if root is not None else None
    before = settings_before(store, readable(store)[0]) if store is not None else None
    prompts = prompts_for(settings, before, new_prompts)
    spec = extract_spec(prompts, settings, load_names(settings).key)
    if store is not None:
        settings = settings.with_reports_of(before)
    journal = JournalIndex.load(store, "extract") if store is not None else None
    counter = ChunkCounter(spec, settings, sample, journal.is_done if journal else None)
    corpus = _read(input_url, root or "", settings, counter, read_bytes)
    chunks = sorted({d.rank: d for d in (*counter.drawn, *counter.drawn_answered)}.values(), reverse=True)
    read, cpu_s, offline_replies = _read_offline(chunks, spec, settings)
    drawn = {d.rank for d in counter.drawn}
    learned, own = Learned({}), dict[str, ExtractedRecords]()
    if store is not None and journal is not None:
        learned, own = _learn(store, journal, settings, counter.drawn_answered, spec)
    if settings.model(settings.model_name("extract")).provider == "offline":
        learned = replace(learned, replies={"extract": offline_replies, **learned.replies})
    answered = [d for d in chunks if d.key in own]
    sample_of = SampleReading(
        read,
        [d.rank in drawn for d in chunks],
        [d.key in own for d in chunks],
        [own[d.key] for d in answered],
    )
    found = forecast(settings, prompts, corpus, sample_of, learned, given or {})
    notes = [*found.notes]
    if root is not None and not learned.replies:
        notes.append(f"The index at {root} has no replies of this model: nothing was learned from it.")
    if found.offline and any(stage.volume.stage == "extract" for stage in found.stages):
        each = cpu_s / max(1, len(chunks))
        notes.append(
            "No model is configured: the offline engine costs nothing. Extraction takes some "
            f"{each * found.corpus.asked:,.0f} CPU seconds; there is no model for the time of the rest."
        )
    return replace(found, notes=tuple(notes))


def estimate_again(store: Store, manifest: Manifest, settings: Settings) -> Forecast:
    """A rough forecast of making the index of a snapshot with these settings, from some of its documents and
    as if no model had been asked. Raises StoreError, PromptError."""
    prompts = prompts_for(settings, manifest.settings, new_prompts=False)
    spec = extract_spec(prompts, settings, load_names(settings).key)
    counter = ChunkCounter(spec, settings, QUICK_SAMPLE, None)
    parts = manifest.parts("documents")
    for part in parts[:: -(-len(parts) // QUICK_PARTS) or 1]:
        for row in read_part(store, part, DOCUMENT_COLUMNS).to_pylist():
            if counter.corpus.chunks < QUICK_CHUNKS:
                text = {name: row[name] or "" for name in ("path", "row", "title", "text")}
                metadata = columns_of(row["raw_data"])
                _added(Document(**text, date=row["creation_date"], metadata=metadata), counter)
    n_chunks = sum(part.rows for part in manifest.parts("text_units"))
    corpus = counter.corpus.scaled(min(1.0, counter.corpus.chunks / max(1, n_chunks)) or 1.0)
    read, _, _ = _read_offline(counter.drawn, spec, settings)
    every = [True] * len(counter.drawn)
    sample_of = SampleReading(read, every, [not one for one in every], [])
    return forecast(settings, prompts, corpus, sample_of, Learned({}), {})


def _read(
    input_url: str, root: str, settings: Settings, counter: ChunkCounter, read_bytes: int | None
) -> CorpusCounts:
    options = settings.input_options(input_url, root)
    files = list_input(input_url, root, options)
    chosen = files
    if read_bytes is not None and sum(f.size for f in files) > read_bytes:
        # Those with the smallest hashes that make up so many bytes.
        chosen, size = [], 0
        for file in sorted(files, key=lambda f: stable_id("estimate", f.path)):
            if size >= read_bytes:
                break
            chosen.append(file)
            size += file.size
    unreadable: list[Unreadable] = []
    for file in chosen:
        for found in read_file(file, settings, options):
            wrong = _added(found, counter) if isinstance(found, Document) else found
            unreadable += [wrong] if wrong else []
    if not counter.corpus.documents and unreadable:
        shown = "; ".join(f"{u.path}: {u.reason}" for u in unreadable[:5])
        raise InputError(f"none of the {len(unreadable)} files of INPUT could be read: {shown}")
    faults = sum(not u.empty for u in unreadable)
    corpus = replace(counter.corpus, files=len(files), unreadable=faults)
    if len(chosen) == len(files):
        return corpus
    return corpus.scaled(sum(f.size for f in chosen) / sum(f.size for f in files))


def _added(document: Document, counter: ChunkCounter) -> Unreadable | None:
    """What is wrong with a document that cannot be counted."""
    try:
        counter.add(document)
    except BaseException as e:
        if not is_unforeseen(e):
            raise
        return Unreadable(document.path, document.row, note_bug(e))
    return None


def _read_offline(
    chunks: Sequence[Drawn], spec: ExtractSpec, settings: Settings
) -> tuple[list[ExtractedRecords], float, Replies]:
    """The offline engine's extraction of each chunk, the CPU seconds it took, and its replies."""
    from graphrag_ray.offline import answer

    model = settings.model(settings.model_name("extract"))
    lengths: list[int] = []

    def counted(request: Request) -> ChatReply:
        assert isinstance(request, ChatRequest)
        reply = answer(request)
        lengths.append(text_size(reply.text, model))
        return reply

    once = replace(spec, max_gleanings=0)
    started = time.process_time()
    found = []
    for drawn in chunks:
        try:
            found.append(run(extract(drawn.chunk, once), counted))
        except DialogueFailed:
            found.append(EMPTY)
    seconds = time.process_time() - started
    prompts = np.full(len(lengths), 0.0)
    source = f"the offline engine's replies to {len(chunks):,} chunks"
    return found, seconds, Replies(prompts, np.array(lengths, dtype=np.float64), prompts, source)


def _learn(
    store: Store, journal: JournalIndex, settings: Settings, answered: Sequence[Drawn], spec: ExtractSpec
) -> tuple[Learned, dict[str, ExtractedRecords]]:
    """What the journal tells of replies; and by key, what the model itself found in the chunks that were
    drawn and that it has read."""
    replies: dict[str, Replies] = {}
    for stage in ASKING_STAGES:
        model = settings.model(settings.model_name(stage.dialogue))
        if stage.prompts:
            replies |= _replies(store, stage.dialogue, stage.prompts, model.model_id)
    items = {name: JournalIndex.load(store, name).keys_done() for name in JOURNALS}
    own: dict[str, ExtractedRecords] = {}
    ours = theirs = 0
    rows = journal.lookup([d.key for d in answered])
    for drawn in answered:
        known = rows.get(drawn.key, [])
        state = replay(Driver(extract(drawn.chunk, spec)), known)
        if isinstance(state, Complete):
            own[drawn.key] = state.result
        first = next((r for r in known if r.kind == "turn" and r.turn == 0), None)
        if first is not None and first.reported:
            ours, theirs = ours + drawn.prompt_tokens, theirs + first.prompt_tokens
    return Learned(replies, theirs / ours if ours else None, items), own


def _replies(store: Store, dialogue: str, prompts: Sequence[str], model_id: str) -> dict[str, Replies]:
    """The calls that a journal holds of some prompts, those of this model."""
    parts = list_parts(store, dialogue)
    columns = ["kind", "prompt", "model", "prompt_tokens", "completion_tokens", "latency_s"]
    gathered: dict[str, list[np.ndarray[tuple[int, int], np.dtype[np.float64]]]] = {p: [] for p in prompts}
    for part in parts[:: -(-len(parts) // JOURNAL_PARTS) or 1]:
        try:
            table = parquet.read_columns(store, part.path, columns, part.bytes)
        except (CorruptPart, FileNotFoundError):
            continue
        turns = table.filter(pc.and_(pc.equal(table["kind"], "turn"), pc.equal(table["model"], model_id)))
        for prompt in prompts:
            own = turns.filter(pc.equal(turns["prompt"], prompt))
            numbers = [own[c].to_numpy().astype(np.float64) for c in columns[3:]]
            gathered[prompt].append(np.stack(numbers))
    found = {}
    for prompt, pieces in gathered.items():
        values = np.concatenate(pieces, axis=1) if pieces else np.zeros((3, 0))
        if values.shape[1]:
            source = f"measured on {values.shape[1]:,} calls"
            found[prompt] = Replies(values[0], values[1], values[2], source)
    return found
