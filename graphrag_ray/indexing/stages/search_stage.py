"""Indexes for search: by keyword over the texts that are embedded, by vector over their embeddings.

An index is made of shards, each over some consecutive parts of a table. A shard that was made before from the
same parts is found by its name and not made again, also after a run that was killed; so of a corpus that
grows only the shards are made where something is new.

What is said of its document (`corpus/document_titles.py`) are words of a chunk, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import STAGES
from graphrag_ray.base.ids import stable_id
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.indexing.results import Results
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.embedded_texts import (
    Texts,
    by_part,
    load_texts,
    written_texts,
)
from graphrag_ray.indexing.stages.level_indexes import level_fingerprint, level_indexes
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.search import keyword, vectors
from graphrag_ray.search.languages import common_language
from graphrag_ray.store import blobs
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table, write_parts

By: TypeAlias = Literal["keyword", "vector"]

LOOKED_AT_PARTS, LOOKED_AT_CHUNKS = 16, 64
"""By which the language of the corpus is told."""
SHARD_ROWS = 131_072
SHARD_BYTES: Mapping[By, int] = {"keyword": 48 << 20, "vector": 128 << 20}
"""Of a shard's parts as they are stored. A shard takes some 1 GB of memory while it is made."""
EXACT_BYTES = 64 << 20
"""Embeddings of a kind that are gone through one by one for a question; above, by their signs first: see
"Search" in benchmarks/RESULTS.md."""

FAILED_IN_INDEX = pa.struct([("id", pa.string()), ("error", pa.string())])
_MADE = pa.schema(
    [("at", pa.int64()), ("path", pa.string()), ("bytes", pa.int64()), ("failed", pa.list_(FAILED_IN_INDEX))]
)


@dataclass(frozen=True)
class _Shard:
    """made_from: a hash of all that it depends on. texts: each of one part, of a shard by vector too.
    language: of its words."""

    kind: str
    by: By
    texts: Sequence[Texts]
    signs: bool
    made_from: str
    language: str

    @property
    def table(self) -> str:
        return schema.search_table(self.kind, self.by)

    @property
    def parts(self) -> list[Part]:
        return [part for x in self.texts for part in x.parts]


def index_for_search(run: Run, results: Results) -> Result:
    """Tables search_<kind>_keyword and, where there are embeddings, search_<kind>_vector; failures."""
    columns = run.settings.chunking.prepended_metadata
    texts = written_texts(results, columns)
    embedded = results.embedded

    def compute() -> Result:
        language = _language(run, results.corpus)
        said = {"text_unit": columns}
        own = [kind for kind in schema.EMBEDDINGS if kind in texts]
        shards: list[_Shard] = []
        for kind in own:
            depends_on = [language, *said.get(kind, ())]
            shards += _shards(kind, "keyword", texts[kind], depends_on, language)
            vectors_of = [Texts(kind, group) for group in embedded.tables.get(f"embeddings_{kind}", [])]
            shards += _shards(kind, "vector", vectors_of)
        ways: list[By] = ["keyword", "vector"] if embedded.tables else ["keyword"]
        kinds = [schema.search_table(kind, by) for kind in own for by in ways]
        known = {name: blobs.made(run.store, name) for name in kinds}
        missing = [
            (at, shard) for at, shard in enumerate(shards) if shard.made_from not in known[shard.table]
        ]
        failed: list[dict[str, Any]] = []
        for made in run.executor.stream("search", _make, missing):
            for row in made.to_pylist():
                shard = shards[row["at"]]
                known[shard.table][shard.made_from] = row["path"], row["bytes"]
                for f in row["failed"]:
                    failed.append(index_failure("search", f"{shard.kind} {f['id']}: found by no word", f))
        tables: dict[str, list[list[Part]]] = {name: [] for name in kinds}
        tables |= level_indexes(run, results)
        for shard in shards:
            path, n_bytes = known[shard.table][shard.made_from]
            tables[shard.table].append([Part(path, sum(p.rows for p in shard.parts), n_bytes)])
        if failed:
            tables["failures"] = [failures_of(run.store, failed)]
        return Result(tables, {"shards": len(shards)}, final=not failed)

    made_from = [texts, embedded, run.settings.search]
    made_from += level_fingerprint(results)
    return run.step("search", made_from, compute)


def _language(run: Run, corpus: Result) -> str:
    """In which keyword search stems words; "": in none. Told by the first chunks of some parts, which are
    spread over the corpus."""
    asked = run.settings.search.language
    if asked != "auto":
        return "" if asked == "none" else asked
    parts = corpus.parts("text_units")
    some = parts[:: max(1, len(parts) // LOOKED_AT_PARTS)][:LOOKED_AT_PARTS]
    tables = [read_part(run.store, part, ["text"]).slice(0, LOOKED_AT_CHUNKS) for part in some]
    return common_language(text for table in tables for text in table["text"].to_pylist())


def _shards(
    kind: str,
    by: By,
    groups: Sequence[Texts],
    depends_on: Sequence[str] = (),
    language: str = "",
) -> list[_Shard]:
    """A part that is larger than a shard is one by itself; no rows, no shard."""
    texts = [x for x in by_part(groups) if x.parts[0].rows]
    parts = [x.parts[0] for x in texts]
    signs = by == "vector" and sum(part.bytes for part in parts) > EXACT_BYTES
    limit = SHARD_BYTES[by]
    sizes = [max(part.bytes, part.rows * limit // SHARD_ROWS) for part in parts]
    found = []
    for batch in stable_batches([part.path for part in parts], sizes, limit):
        own = [texts[i] for i in batch]
        paths = [part.path for x in own for part in (*x.parts, *x.documents)]
        made_from = stable_id(
            "search", str(STAGES["search"].version), _stemmer(), kind, by, str(signs), *depends_on, *paths
        )
        found.append(_Shard(kind, by, own, signs, made_from, language))
    return found


def index_failure(stage: str, item: str, failed: Mapping[str, str]) -> dict[str, Any]:
    """A row of the failures table; the next run tries again. failed: of FAILED_IN_INDEX."""
    about = dict.fromkeys(("document", "first_at", "last_at", "key"), "")
    return {
        "stage": stage,
        "item": item,
        "kind": "transient",
        "error": failed["error"],
        "attempts": 1,
        **about,
    }


def failures_of(store: Store, rows: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The failures table of a step that makes indexes."""
    table = pa.Table.from_pylist(sorted(rows, key=lambda f: f["item"]), schema=schema.FAILURES)
    return write_parts(store, "failures", [table])


def _make(store: Store, x: tuple[int, _Shard]) -> Iterator[pa.Table]:
    at, shard = x
    failed: list[dict[str, str]] = []
    if shard.by == "vector":
        table = read_table(store, shard.parts, ["id", "vector"]).combine_chunks()
        matrix = table["vector"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
        data = vectors.build(table["id"].to_pylist(), matrix, shard.signs)
    else:
        table = pa.concat_tables(t for x in shard.texts for t in load_texts(store, x))
        texts = [text or "" for text in table["text"].to_pylist()]
        data = keyword.build(
            table["id"].to_pylist(),
            texts,
            shard.language,
            lambda id_, e: failed.append({"id": id_, "error": note_bug(e)}),
        )
    # Under another name where a text failed: the next run is to make it anew.
    made_from = stable_id(shard.made_from, "incomplete") if failed else shard.made_from
    part = blobs.write(store, shard.table, made_from, data, table.num_rows)
    made = {"at": at, "path": part.path, "bytes": part.bytes, "failed": failed}
    yield pa.Table.from_pylist([made], schema=_MADE)


@cache
def _stemmer() -> str:
    """The version of what makes a shard."""
    return version("PyStemmer")
