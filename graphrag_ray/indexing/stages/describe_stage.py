"""One description for every entity and relationship (paper 3.1.3): many are reduced as a tree.

Each layer of the tree is one sweep over all that is still more than one text; a batch of texts is an
item of its own, so that one new instance pays for one branch again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.messages import Dialogue
from graphrag_ray.corpus.tokens import count, offsets, vocabulary_for
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.graph import report_context
from graphrag_ray.graph.descriptions import DescribeSpec, TokensOf, describe, describe_spec, each_once, layer
from graphrag_ray.graph.integer_arrays import Ints, same_lists
from graphrag_ray.graph.signatures import content_hashes
from graphrag_ray.indexing.run import Run, failure_rows, replayed
from graphrag_ray.indexing.stages.short_ids import columns_of, places_of
from graphrag_ray.indexing.step_result import Result, fingerprint_of, joined, passing, spec_key
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, read_part, read_table

Kind: TypeAlias = Literal["entity", "relationship"]
KINDS: dict[Kind, str] = {"entity": "entities", "relationship": "relationships"}

COLUMNS: dict[Kind, pa.Schema] = {
    "entity": pa.schema([("id", pa.uint64()), ("n_tokens", pa.int64()), ("content", pa.uint64())]),
    "relationship": pa.schema(
        [
            *((name, pa.uint64()) for name in ("id", "source_id", "target_id")),
            ("weight", pa.float64()),
            ("n_tokens", pa.int64()),
            ("content", pa.uint64()),
        ]
    ),
}
"""Columns of the step's tables for the driver (`short_ids.py`)."""

MAX_LAYERS = 40
"""A layer at least halves the texts, so this is never reached; it is here so that nothing loops."""

SHOWN_WHEN_FAILED = 3
"""Descriptions that stand, as they are, for a summary that failed."""

TEXTS = pa.schema(
    [("id", pa.string()), ("name", pa.string()), ("descriptions", pa.large_list(pa.large_string()))]
)
DESCRIBED = pa.schema([("id", pa.string()), ("description", pa.string()), ("description_failed", pa.bool_())])
REUSED = DESCRIBED.append(pa.field("n_tokens", pa.int64()))
ITEMS = pa.schema(
    [
        ("id", pa.string()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("texts", pa.list_(pa.string())),
        ("shown", pa.string()),  # what stands for a summary that failed; of the first item of an id
    ]
)


def describe_all(run: Run, merged: Result) -> Result:
    """Tables entities and relationships with description, description_failed and n_tokens (of their
    record in a context, without its number); failures."""
    spec = describe_spec(run.prompts, run.settings)
    model = run.settings.model(run.settings.model_name("describe"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    report_model = run.settings.model(run.settings.model_name("report"))
    shown_in = vocabulary_for(report_model.model, report_model.tokenizer).name
    work = Work("describe", partial(_start, spec), _label)

    tokens = TokensOf(partial(count, vocabulary_name=vocabulary), partial(_ends, vocabulary))
    split = partial(layer, spec=spec, tokens=tokens)
    how = [spec_key(spec), vocabulary, shown_in]

    def compute() -> Result:
        told, before = fingerprint_of(how), run.before("describe")
        alike = before is not None and before.made_from.get("descriptions") == [told]
        known = {}
        for kind, name in KINDS.items():
            now, none = merged.tables[name], list[list[Part]]()
            then, done = (of.tables.get(name, none) if of else none for of in (run.before("merge"), before))
            is_same = alike and len(then) == len(done) == len(now)
            of_ranges = zip(now, then, done, strict=True) if is_same else ((group, [], []) for group in now)
            inputs, names = [Group(kind, *of) for of in of_ranges], (name, f"failures_{name}")
            known[kind] = run.taken_over("describe", inputs, how, names, told=now, journal=work.name)
        new = [group for of in known.values() for group in of.new]
        described: list[list[Part]] = [[] for _ in new]
        failures: list[list[Part]] = [[] for _ in new]
        texts: list[tuple[Kind, Group | list[Part]]] = [(group.kind, group) for group in new]
        for _ in range(MAX_LAYERS):
            cut = run.map("describe", partial(_cut, split), texts)
            items = [w.get("items", []) for w in cut]
            index = run.sweep_rows(work, _load, [parts for parts in items if parts])
            written = run.map("describe", partial(_collect, work, index), items)
            for i, (w, more) in enumerate(zip(cut, written, strict=True)):
                described[i] += w.get("described", []) + more.get("described", [])
                failures[i] += more.get("failures", [])
            texts = [(kind, w.get("texts", [])) for (kind, _), w in zip(texts, written, strict=True)]
            if not any(parts for _, parts in texts):
                break
        written = run.map("describe", partial(_assemble, shown_in), list(zip(new, described, strict=True)))
        made = iter(
            [w | {f"failures_{KINDS[x.kind]}": f} for x, w, f in zip(new, written, failures, strict=True)]
        )
        result = joined(of.with_new(run.store, list(islice(made, len(of.new)))) for of in known.values())
        made_from = result.made_from | {"descriptions": [told]}
        return Result(result.tables, {}, not passing(run.store, result.tables), made_from)

    depends_on = [merged.tables["entities"], merged.tables["relationships"], *how]
    return run.step("describe", depends_on, compute, work.name)


def read_columns(run: Run, described: Result, kind: Kind) -> pa.Table:
    """The driver's columns of a kind, row by row of its table."""
    return columns_of(run.store, described.tables[KINDS[kind]], COLUMNS[kind])


def ends_of(nodes: pa.Table, edges: pa.Table) -> tuple[Ints, Ints]:
    """(source [E], target [E]): the ends of relationships as places of entities. Both: driver's columns."""
    ids = nodes["id"].to_numpy()
    source, target = (places_of(ids, edges[end].to_numpy()) for end in ("source_id", "target_id"))
    return source, target


@dataclass(frozen=True)
class Group:
    """The merged rows of a range of ids. before: the rows of this range in the parent snapshot; described:
    these with their descriptions. Both are empty where the parent had other ranges."""

    kind: Kind
    merged: list[Part]
    before: list[Part]
    described: list[Part]


def _start(spec: DescribeSpec, store: Store, row: Row) -> Dialogue[str]:
    return describe(row["kind"], row["name"], row["texts"], spec)


def _label(row: Row) -> tuple[str, str]:
    return row["name"], ""


def _ends(vocabulary: str, text: str) -> Any:
    return offsets(text, vocabulary)


def _texts(store: Store, kind: Kind, of: Group | list[Part]) -> Iterator[pa.Table]:
    """Rows of TEXTS: from merged rows in the first layer, but those that are described; as they are after
    it."""
    if not isinstance(of, Group):
        yield from (read_part(store, part) for part in of)
        return
    described = _reused(store, of)["id"].combine_chunks()
    for part in of.merged:
        table = read_part(store, part)
        table = table.filter(pc.invert(pc.is_in(table["id"], value_set=described)))
        ends = [table["title"]] if kind == "entity" else [table["source"], table["target"]]
        name = pc.binary_join_element_wise(*ends, " – ")
        yield pa.table([table["id"], name, table["descriptions"]], schema=TEXTS)


def _reused(store: Store, of: Group) -> pa.Table:
    """Rows of REUSED that were described in the parent snapshot from the same texts."""
    if not of.merged or not of.before:
        return REUSED.empty_table()
    now, then = (read_table(store, parts, ["id", "descriptions"]) for parts in (of.merged, of.before))
    at = pc.index_in(now["id"], value_set=then["id"].combine_chunks())
    both = now.filter(at.is_valid())
    texts = both["descriptions"].combine_chunks(), then["descriptions"].take(at.drop_null()).combine_chunks()
    same = both["id"].filter(pa.array(same_lists(*texts))).combine_chunks()
    done = read_table(store, of.described, REUSED.names, REUSED)
    is_same = pc.and_(pc.is_in(done["id"], value_set=same), pc.invert(done["description_failed"]))
    return done.filter(is_same)


def _cut(
    split: Callable[[list[str]], list[list[str]]], store: Store, x: tuple[Kind, Group | list[Part]]
) -> Iterator[Tables]:
    """One item per batch of texts; entities whose descriptions are one text are described."""
    kind, parts = x
    for table in _texts(store, kind, parts):
        described: list[dict[str, Any]] = []
        items: list[dict[str, Any]] = []
        for row in table.to_pylist():
            texts = row["descriptions"]
            if len(texts) < 2:
                described.append(
                    {"id": row["id"], "description": "".join(texts), "description_failed": False}
                )
                continue
            shown = " ".join(islice(each_once(texts), SHOWN_WHEN_FAILED))
            for batch in split(texts):
                items.append(
                    {"id": row["id"], "kind": kind, "name": row["name"], "texts": batch, "shown": shown}
                )
                shown = ""
        yield {
            "items": pa.Table.from_pylist(items, schema=ITEMS),
            "described": pa.Table.from_pylist(described, schema=DESCRIBED),
        }


def _load(store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    return (read_part(store, part) for part in parts)


def _collect(
    work: Work[str], index: Callable[[], JournalIndex], store: Store, parts: list[Part]
) -> Iterator[Tables]:
    """What is now one text is described; what is still several goes to the next layer."""
    first: dict[str, Row] = {}
    results: dict[str, list[str | None]] = {}
    for batch in replayed(work, index(), store, _load(store, parts)) if parts else ():
        yield {"failures": failure_rows("describe", work, batch)}
        for row, outcome in batch:
            done = outcome.result if outcome.status == "complete" else None
            first.setdefault(row["id"], {name: row[name] for name in ("name", "shown")})
            results.setdefault(row["id"], []).append(done)
    described: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for id_, found in results.items():
        if None in found:
            shown = first[id_]["shown"]
            described.append({"id": id_, "description": shown, "description_failed": True})
        elif len(found) > 1:
            texts.append({"id": id_, "name": first[id_]["name"], "descriptions": found})
        else:
            described.append({"id": id_, "description": found[0] or "", "description_failed": False})
    yield {
        "described": pa.Table.from_pylist(described, schema=DESCRIBED),
        "texts": pa.Table.from_pylist(texts, schema=TEXTS),
    }


def _assemble(vocabulary: str, store: Store, x: tuple[Group, list[Part]]) -> Iterator[Tables]:
    """The merged rows of a range with their descriptions, in the order of ids."""
    group, described = x
    if not group.merged:
        return
    table = read_table(store, group.merged).drop_columns(["descriptions"])
    new = read_table(store, described, None, DESCRIBED)
    of = table.take(pc.index_in(new["id"], value_set=table["id"].combine_chunks()))
    names = [of["title"]] if group.kind == "entity" else [of["source"], of["target"]]
    record: Callable[..., report_context.Record]
    record = report_context.entity if group.kind == "entity" else report_context.relationship
    counted = [
        report_context.record_tokens(record("", *row), partial(count, vocabulary_name=vocabulary))
        for row in zip(*(column.to_pylist() for column in (*names, new["description"])), strict=True)
    ]
    n_tokens = pa.array(np.asarray(counted, dtype=np.int64))
    texts = pa.concat_tables([new.append_column("n_tokens", n_tokens), _reused(store, group)])
    at = pc.index_in(table["id"], value_set=texts["id"].combine_chunks())
    for name in ("description", "description_failed", "n_tokens"):
        table = table.append_column(name, texts[name].take(at))
    # What reports and communities take of a row. The id tells its names.
    content = content_hashes(table.select(["id", "description", "text_unit_ids"]))
    yield {KINDS[group.kind]: table.append_column("content", content)}
