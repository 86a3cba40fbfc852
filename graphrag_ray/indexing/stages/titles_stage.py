"""Find the titles of all documents in the texts of all chunks, for the links of walks (`walk_stage.py`).

The texts of new documents are searched for all titles in one pass (`store/search/title_matcher.py`). If
titles were added or removed, the keyword index of the parent snapshot finds the other chunks that may contain
them, and only their texts are searched again. The result is the same as without a parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.corpus.document_titles import name_from_title
from graphrag_ray.engine.executor import Tables
from graphrag_ray.indexing.run import Run, apply_or_report
from graphrag_ray.indexing.stages.search_stage import failures_table
from graphrag_ray.indexing.step_result import Result, count_rows, has_transient_failures, parts_by_input
from graphrag_ray.store import index_files
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_rows, read_table
from graphrag_ray.store.search import keyword_index
from graphrag_ray.store.search.title_matcher import TitleMatcher

MENTIONS = pa.schema([("text_unit_id", pa.string()), ("title", pa.string())])
_TITLES = pa.schema([("title", pa.string())])
_BATCH_ROWS = 500
"""Number of texts that are searched together. It takes about 100 bytes of memory per word."""
_MIN_CHUNKS_PER_TITLE = 10
"""If fewer unchanged chunks per changed title remain, searching all texts again is faster."""


@dataclass(frozen=True)
class _Chunks:
    """Chunks to search for titles: all chunks of some parts or, if there are `mentions`, those with `ids`."""

    units: Sequence[Part]
    mentions: Sequence[Part] | None = None
    ids: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))


def match_titles(run: Run, corpus: Result) -> Result:
    """Return tables titles and mentions (MENTIONS, sorted) with a group per group of chunks, and failures."""
    documents, units = corpus.tables["documents"], corpus.tables["text_units"]

    def compute() -> Result:
        plan = run.reuse_plan("titles", documents, None, ("titles",))
        titles = plan.merge_new(run.store, run.map("titles", _read_titles, plan.new_inputs))
        known = _distinct_titles(run, titles)
        matching = run.reuse_plan("titles", units, None, ("mentions",))
        positions, ids = matching.parent_positions, pa.array([], pa.string())
        if parent := run.parent_result("titles"):
            before = _distinct_titles(run, parent)
            changed = [*_without(known, before), *_without(before, known)]
            n_chunks = sum(count_rows([g]) for g, p in zip(units, positions, strict=True) if p >= 0)
            may_contain = _chunks_that_may_contain(run, changed, n_chunks)
            if may_contain is None:
                positions = [-1] * len(units)
            else:
                ids = pa.array(sorted(may_contain), pa.string())
        earlier = matching.parent_tables.get("mentions", [])
        inputs = [
            _Chunks(group, earlier[p] if p >= 0 else None, ids)
            for group, p in zip(units, positions, strict=True)
            if p < 0 or len(ids)
        ]
        find = partial(_find_titles, run.executor.share(TitleMatcher.build(known)))
        written = parts_by_input(run.map("titles", find, inputs), "mentions", "failures")
        mentions, hashes, n = [], [], 0
        for hash_, position in zip(matching.hashes, positions, strict=True):
            if position >= 0 and not len(ids):
                mentions.append(earlier[position])
                hashes.append(hash_)
                continue
            mentions.append(written["mentions"][n])
            hashes.append("" if written["failures"][n] else hash_)
            n += 1
        tables = {"titles": titles.tables["titles"], "mentions": mentions, "failures": written["failures"]}
        counts = {"titles": len(known), "mentions": count_rows(mentions)}
        return Result(
            tables,
            counts,
            final=not has_transient_failures(run.store, tables),
            made_from=titles.made_from | {"mentions": hashes},
        )

    return run.step("titles", [documents, units], compute)


def _read_titles(store: Store, documents: Sequence[Part]) -> Iterator[Tables]:
    columns = read_table(store, documents, ["title", "path", "row"], schema.DOCUMENTS).to_pydict().values()
    titles = {name_from_title(t, path or "", row or "") for t, path, row in zip(*columns, strict=True)}
    yield {"titles": pa.table([pa.array(sorted(titles - {""}), pa.string())], schema=_TITLES)}


def _distinct_titles(run: Run, result: Result) -> pa.StringArray:
    return read_table(run.store, result.parts("titles"), None, _TITLES)["title"].unique()


def _without(titles: pa.StringArray, others: pa.StringArray) -> list[str]:
    remaining: list[str] = titles.filter(pc.invert(pc.is_in(titles, others))).to_pylist()
    return remaining


def _chunks_that_may_contain(run: Run, titles: Sequence[str], n_chunks: int) -> set[str] | None:
    """Return the ids of the parent's chunks that have all words of one of the titles, or None if unknown."""
    if not titles:
        return set()
    search = run.parent_result("search")
    if run.parent is None or search is None or search.failures:
        return None
    parts = run.parent.parts(schema.search_index_table("text_unit", "keyword"))
    if not parts or len(titles) * _MIN_CHUNKS_PER_TITLE > n_chunks:
        return None
    try:
        shards = [keyword_index.read(index_files.open_part(run.store, part)) for part in parts]
        return keyword_index.find_with_all_words(shards, titles)
    except CorruptPart:
        return None


def _find_titles(load: Callable[[], TitleMatcher], store: Store, chunks: _Chunks) -> Iterator[Tables]:
    matcher, columns = load(), ["id", "text"]
    tables, failed = [MENTIONS.empty_table()], []

    def find(rows: pa.Table) -> list[list[str]]:
        titles: list[list[str]] = [[] for _ in range(rows.num_rows)]
        text, title = matcher.find(rows["text"].to_pylist())
        for n, name in zip(text.tolist(), matcher.titles.take(pa.array(title)).to_pylist(), strict=True):
            titles[n].append(name)
        return titles

    for part in chunks.units:
        whole = chunks.mentions is None
        texts = (
            read_part(store, part, columns) if whole else read_rows(store, part, columns, "id", chunks.ids)
        )
        ids, names = [], []
        batches = (texts.slice(n, _BATCH_ROWS) for n in range(0, texts.num_rows, _BATCH_ROWS))
        for row, found in (pair for batch in batches for pair in apply_or_report(batch, find)):
            if isinstance(found, str):
                failed.append({"item": f"chunk {row['id']}: titles not found in it", "error": found})
            else:
                ids += [row["id"]] * len(found)
                names += found
        tables.append(pa.table([pa.array(ids, pa.string()), pa.array(names, pa.string())], schema=MENTIONS))
    if chunks.mentions:
        before = read_table(store, chunks.mentions, None, MENTIONS)
        tables.append(before.filter(pc.invert(pc.is_in(before["text_unit_id"], chunks.ids))))
    order = [(name, "ascending") for name in MENTIONS.names]
    yield {"mentions": pa.concat_tables(tables).combine_chunks().sort_by(order)}
    if failed:
        yield {"failures": failures_table("titles", failed)}
