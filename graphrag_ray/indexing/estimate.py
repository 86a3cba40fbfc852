"""Estimate the cost of an index from INPUT and an existing journal. Writes nothing and calls no model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import DIALOGUE_STAGES, JOURNALS
from graphrag_ray.base.errors import CorruptPart, DialogueFailed, InputError
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply, ChatRequest, Request
from graphrag_ray.base.stored_settings import with_stored_settings, without_outdated_prompts
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.corpus.document import Document, Unreadable
from graphrag_ray.corpus.repeated_paragraphs import Span
from graphrag_ray.engine.dialogue_runner import Complete, DialogueRunner, record_bug, replay, run_dialogue
from graphrag_ray.graph.extraction_dialogue import ExtractedRecords, ExtractSpec, extract, extract_spec
from graphrag_ray.indexing.forecast.bounds import Replies
from graphrag_ray.indexing.forecast.corpus_counts import (
    ChunkCounter,
    CorpusCounts,
    RepeatFinder,
    SampledChunk,
)
from graphrag_ray.indexing.forecast.forecast import Evidence, Forecast, forecast
from graphrag_ray.indexing.index import previous_settings
from graphrag_ray.indexing.stages.input_listing import InputFile, list_input
from graphrag_ray.indexing.stages.read_stage import read_file
from graphrag_ray.indexing.stored_prompts import load_names, prompts_for, with_schema
from graphrag_ray.store import parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, list_parts
from graphrag_ray.store.snapshots import latest_readable

SAMPLE_CHUNKS = 1_000  # chunks that the offline engine reads, in about 5 s of one core
READ_BYTES = 512_000_000  # If INPUT is larger, only a sample of its files is read: 2 minutes on one core.
MAX_JOURNAL_PARTS = 200  # maximum number of parts of a journal to learn from


def estimate(
    input_url: str,
    settings: Settings,
    *,
    root: str | None = None,
    sample: int = SAMPLE_CHUNKS,
    assumptions: Mapping[str, float] | None = None,
    read_bytes: int | None = READ_BYTES,
    new_prompts: bool = False,
) -> Forecast:
    """Forecast `index` on INPUT.

    Args:
        root: An index whose journal shows reply lengths, rates, names per chunk, and calls already paid for.
        sample: Number of chunks that the offline engine reads.
        assumptions: Values that take precedence over assumed or measured ones (`ASSUMPTION_MEANINGS`).
        read_bytes: Size above which only a sample of INPUT's files is read; None to read everything.
        new_prompts: Forecast a run with the package's prompts and the defaults that belong to them.

    Raises:
        UsageError: INPUT, settings or prompts are invalid, as for `index`.
        StoreError: Storage failed.
    """
    store = Store(root, settings.storage.fsspec_options(root)) if root is not None else None
    snapshot = latest_readable(store)[0] if store is not None else None
    before = previous_settings(store, snapshot) if store is not None else None
    before = without_outdated_prompts(before) if new_prompts else before
    prompts, settings = prompts_for(settings, before), with_stored_settings(with_schema(settings), before)
    key = load_names(settings).key
    spec = extract_spec(prompts, settings, key)
    journal = JournalIndex.load(store, "extract") if store is not None else None
    counter = ChunkCounter(spec, settings, sample, journal.is_done if journal else None)
    corpus = read_corpus(input_url, root or "", settings, counter, read_bytes)
    started = time.process_time()
    # The offline engine knows few of the types of a schema, so count what it finds without one.
    without_schema = settings.extraction.model_copy(update={"schema": None})
    plain = settings.model_copy(update={"extraction": without_schema})
    evidence = Evidence(extract_offline(counter.sampled, extract_spec(prompts, plain, key)))
    cpu_s = (time.process_time() - started) / max(1, len(counter.sampled))
    if store is not None and journal is not None:
        evidence = _learn_from_journals(store, journal, settings, counter, spec, evidence)
        if snapshot is not None:
            rows = {n: sum(p.rows for p in snapshot.parts(n)) for n in ("entities", "communities")}
            stored = with_stored_settings(Settings(), snapshot.settings).reports.model_from
            n_composed = snapshot.counts.get("composed_reports", 0)  # 0 if the offline engine wrote them
            is_leiden = "leiden" in snapshot.hierarchies[:1]
            if is_leiden and stored == settings.reports.model_from and (n_composed or not stored):
                rows["composed"] = n_composed
            evidence = replace(evidence, counts=rows)
    result = forecast(settings, prompts, corpus, evidence, assumptions or {})
    notes = [*result.notes]
    if root is not None and not evidence.replies:
        notes.append(f"The index at {root} has no replies of this model, so nothing was learned from it.")
    if result.offline and any(stage.volume.stage == "extract" for stage in result.stages):
        notes.append(
            "No model is configured; the offline engine costs nothing. Extraction takes about "
            f"{cpu_s * result.corpus.sent_chunks:,.0f} CPU seconds. "
            "The time of other stages is not estimated."
        )
    return replace(result, notes=tuple(notes))


def extract_offline(chunks: Sequence[SampledChunk], spec: ExtractSpec) -> list[ExtractedRecords]:
    from graphrag_ray.offline import answer

    def reply(request: Request) -> ChatReply:
        assert isinstance(request, ChatRequest)
        return answer(request)

    extractions = []
    for sampled in chunks:
        try:
            extractions.append(run_dialogue(extract(sampled.chunk, replace(spec, max_gleanings=0)), reply))
        except DialogueFailed:
            extractions.append(ExtractedRecords((), (), 0, 0))
    return extractions


def read_corpus(
    input_url: str, root: str, settings: Settings, counter: ChunkCounter, read_bytes: int | None
) -> CorpusCounts:
    """Read INPUT, or a sample of its files with about `read_bytes` bytes, into a counter of chunks."""
    options = settings.input_options(input_url, root)
    files = list_input(input_url, root, options)
    size = sum(file.size for file in files)
    chosen, remaining = files, size if read_bytes is None else read_bytes
    if size > remaining:
        chosen = []  # the files with the smallest hashes
        for file in sorted(files, key=lambda f: stable_id("estimate", f.path)):
            if remaining > 0:
                chosen.append(file)
                remaining -= file.size
    share = 1.0 if len(chosen) == len(files) else sum(f.size for f in chosen) / size
    left_out = _find_repeats(chosen, settings, options, share)
    unreadable: list[Unreadable] = []
    for file in chosen:
        for document in read_file(file, settings, options):
            if isinstance(document, Unreadable):
                unreadable.append(document)
                continue
            try:
                counter.add(document, left_out.get(document.id, ()))
            except BaseException as e:
                if not is_unexpected(e):
                    raise
                unreadable.append(Unreadable(document.path, document.row, record_bug(e)))
    if not counter.corpus.documents and unreadable:
        examples = "; ".join(f"{u.path}: {u.reason}" for u in unreadable[:5])
        raise InputError(f"None of the {len(unreadable)} files of INPUT could be read: {examples}")
    faults = sum(not u.empty for u in unreadable)
    corpus = replace(counter.corpus, files=len(files), unreadable=faults)
    return corpus if share == 1 else corpus.scaled(share)


def _find_repeats(
    files: Sequence[InputFile], settings: Settings, options: Mapping[str, Any], read_share: float
) -> Mapping[str, Sequence[Span]]:
    """Read the files to find the spans that a run leaves out of each document, by document id."""
    if settings.extraction.repeated_paragraphs == "keep":
        return {}
    finder = RepeatFinder()
    for file in files:
        for document in read_file(file, settings, options):
            if isinstance(document, Document):
                finder.add(document)
    return finder.find(read_share)


def _learn_from_journals(
    store: Store,
    journal: JournalIndex,
    settings: Settings,
    counter: ChunkCounter,
    spec: ExtractSpec,
    evidence: Evidence,
) -> Evidence:
    """Add evidence from journals: the calls of each prompt, and the model's extractions of sampled chunks."""
    replies: dict[str, Replies] = {}
    columns = ["kind", "prompt", "model", "prompt_tokens", "completion_tokens", "latency_s"]
    for stage in DIALOGUE_STAGES:
        model_id = settings.model(settings.model_name(stage.dialogue)).model_id
        tables = []
        parts = list_parts(store, stage.dialogue) if stage.prompts else []
        for part in parts[:: -(-len(parts) // MAX_JOURNAL_PARTS) or 1]:
            try:
                table = parquet.read_columns(store, part.path, columns, part.bytes)
            except (CorruptPart, FileNotFoundError):
                continue
            turns = pc.and_(pc.equal(table["kind"], "turn"), pc.equal(table["model"], model_id))
            tables.append(table.filter(turns).drop_columns(["kind", "model"]))
        for prompt in stage.prompts if tables else ():
            calls = pa.concat_tables(tables)
            calls = calls.filter(pc.equal(calls["prompt"], prompt))
            if calls.num_rows:
                prompts, completions, latency = (calls[c].to_numpy().astype(float) for c in columns[3:])
                source = f"measured on {calls.num_rows:,} calls"
                replies[prompt] = Replies(prompts, completions, latency, source)
    extractions = []
    our_tokens = reported_tokens = 0
    rows = journal.lookup([sampled.key for sampled in counter.sampled_answered])
    for sampled in counter.sampled_answered:
        item_rows = rows.get(sampled.key, [])
        state = replay(DialogueRunner(extract(sampled.chunk, spec)), item_rows)
        if isinstance(state, Complete):
            extractions.append(state.result)
        first = next((r for r in item_rows if r.kind == "turn" and r.turn == 0), None)
        if first is not None and first.reported:
            our_tokens += sampled.prompt_tokens
            reported_tokens += first.prompt_tokens
    return replace(
        evidence,
        model_extractions=extractions,
        replies=replies,
        prompt_factor=reported_tokens / our_tokens if our_tokens else None,
        items={name: JournalIndex.load(store, name).count_done() for name in JOURNALS},
    )
