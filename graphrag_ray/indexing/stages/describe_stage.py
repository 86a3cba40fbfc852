"""Write one description per entity and relationship (paper 3.1.3), reducing many descriptions as a tree.

Each layer of the tree is one sweep over all entities and relationships that still have more than one text.
Each batch of texts is a separate item, so that a new instance changes only one branch.
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

from graphrag_ray.base import schema
from graphrag_ray.corpus.tokens import count_tokens, token_ends, vocabulary_for
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.graph import report_context
from graphrag_ray.graph.community_signatures import content_hashes
from graphrag_ray.graph.descriptions import (
    Tokenizer,
    describe,
    describe_spec,
    plan_layer,
    with_dates,
    without_date,
    without_duplicates,
)
from graphrag_ray.graph.integer_arrays import Ints, same_lists
from graphrag_ray.graph.merge import descriptions_by_key
from graphrag_ray.indexing.run import Run, failure_rows, replay_rows
from graphrag_ray.indexing.stages.short_ids import entity_positions, load_integer_columns
from graphrag_ray.indexing.step_result import (
    Result,
    fingerprint_of,
    has_transient_failures,
    join_results,
    spec_key,
)
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
            *(("weight", pa.float64()), ("n_tokens", pa.int64()), ("content", pa.uint64())),
        ]
    ),
}
"""Columns of the step's tables on the driver (`short_ids.load_integer_columns`)."""

_INSTANCES: dict[Kind, pa.Schema] = {
    "entity": schema.ENTITY_INSTANCES,
    "relationship": schema.RELATIONSHIP_INSTANCES,
}

MAX_LAYERS = 40
"""Guards against an endless loop. In practice, each layer at least halves the number of texts."""
FALLBACK_DESCRIPTIONS = 3
"""Number of descriptions that are concatenated if a summary failed."""

TEXTS = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "name")),
        ("descriptions", pa.large_list(pa.large_string())),
        ("n_sources", pa.int64()),  # number of extracted descriptions; null in the first layer
    ]
)
DESCRIBED = pa.schema([("id", pa.string()), ("description", pa.string()), ("description_failed", pa.bool_())])
REUSED = DESCRIBED.append(pa.field("n_tokens", pa.int64()))
ITEMS = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "kind", "name")),
        ("texts", pa.list_(pa.string())),
        ("shown", pa.string()),  # Replaces a failed summary. Only set on the first item of an id.
        ("n_sources", pa.int64()),  # number of extracted descriptions behind the id; its last summary uses it
        ("is_last", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Group:
    """Merged rows and instances of a range, and those of the parent snapshot if its ranges are the same."""

    kind: Kind
    merged: list[Part]
    instances: list[Part]
    instances_before: list[Part]
    described_before: list[Part]


def describe_graph(run: Run, merged: Result) -> Result:
    """Describe every entity and relationship.

    Returns tables entities and relationships with description, description_failed, n_tokens (of the record
    in a context, without its number) and content, and a failures table for each.
    """
    spec = describe_spec(run.prompts, run.settings)
    model = run.settings.model(run.settings.model_name("describe"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    report_model = run.settings.model(run.settings.model_name("report"))
    report_vocabulary = vocabulary_for(report_model.model, report_model.tokenizer).name
    work = Work(
        "describe",
        lambda store, row: describe(
            row["kind"], row["name"], row["texts"], spec, row["n_sources"] if row["is_last"] else 0
        ),
        lambda row: (row["name"], ""),
    )
    tokens = Tokenizer(lambda text: count_tokens(text, vocabulary), partial(_offsets, vocabulary))
    split = partial(plan_layer, spec=spec, tokens=tokens)
    depends_on = [spec_key(spec), vocabulary, report_vocabulary]

    def compute() -> Result:
        fingerprint, before = fingerprint_of(depends_on), run.parent_result("describe")
        merged_before = run.parent_result("merge")
        is_same_spec = before is not None and before.made_from.get("descriptions") == [fingerprint]
        plans = {}
        for kind, name in KINDS.items():
            now, instances = merged.tables[name], merged.tables[f"{kind}_instances"]
            old = merged_before.tables.get(f"{kind}_instances", []) if merged_before else []
            old_described = before.tables.get(name, []) if before else []
            if not is_same_spec or not len(old) == len(old_described) == len(now):
                old = old_described = [[] for _ in now]
            inputs = [Group(kind, *ranges) for ranges in zip(now, instances, old, old_described, strict=True)]
            identities = list(zip(now, instances, strict=True))
            names = (name, f"failures_{name}")
            plans[kind] = run.reuse_plan(
                "describe", inputs, depends_on, names, identities=identities, journal=work.name
            )
        new = [group for plan in plans.values() for group in plan.new_inputs]
        described: list[list[Part]] = [[] for _ in new]
        failures: list[list[Part]] = [[] for _ in new]
        texts: list[tuple[Kind, Group | list[Part]]] = [(group.kind, group) for group in new]
        for _ in range(MAX_LAYERS):
            cut = run.map("describe", partial(_cut, split), texts)
            items = [w.get("items", []) for w in cut]
            index = run.sweep_rows(work, _load, [parts for parts in items if parts])
            written = run.map("describe", partial(_collect, work, index), items)
            for i, (w, replies) in enumerate(zip(cut, written, strict=True)):
                described[i] += w.get("described", []) + replies.get("described", [])
                failures[i] += replies.get("failures", [])
            texts = [(kind, w.get("texts", [])) for (kind, _), w in zip(texts, written, strict=True)]
            if not any(parts for _, parts in texts):
                break
        ranges_described = list(zip(new, described, strict=True))
        written = run.map("describe", partial(_assemble, report_vocabulary), ranges_described)
        finished = zip(new, written, failures, strict=True)
        tables = iter([w | {f"failures_{KINDS[group.kind]}": parts} for group, w, parts in finished])
        result = join_results(
            plan.merge_new(run.store, list(islice(tables, len(plan.new_inputs)))) for plan in plans.values()
        )
        made_from = result.made_from | {"descriptions": [fingerprint]}
        return Result(result.tables, {}, not has_transient_failures(run.store, result.tables), made_from)

    ranges = [merged.tables[name] for kind in KINDS for name in (KINDS[kind], f"{kind}_instances")]
    return run.step("describe", [*ranges, *depends_on], compute, work.name)


def read_columns(run: Run, described: Result, kind: Kind) -> pa.Table:
    """Load `COLUMNS` of a kind, in the order of its table."""
    return load_integer_columns(run.store, described.tables[KINDS[kind]], COLUMNS[kind])


def edge_ends(nodes: pa.Table, edges: pa.Table) -> tuple[Ints, Ints]:
    """Return source [E] and target [E] of relationships as positions of entities, given `COLUMNS` of both."""
    ids = nodes["id"].to_numpy()
    source, target = (entity_positions(ids, edges[end].to_numpy()) for end in ("source_id", "target_id"))
    return source, target


def _offsets(vocabulary: str, text: str) -> Any:
    return token_ends(text, vocabulary)


def _load(store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    return (read_part(store, part) for part in parts)


def _texts(store: Store, kind: Kind, source: Group | list[Part]) -> Iterator[pa.Table]:
    """Yield `TEXTS`: in the first layer of rows that must be described, then from stored parts."""
    if not isinstance(source, Group):
        yield from _load(store, source)
        return
    if not source.merged:
        return
    columns = ["title"] if kind == "entity" else ["source", "target"]
    rows = read_table(store, source.merged, ["id", *columns])
    described = _reused(store, source)["id"].combine_chunks()
    rows = rows.filter(pc.invert(pc.is_in(rows["id"], value_set=described)))
    names = pc.binary_join_element_wise(*(rows[column] for column in columns), " – ")
    for batch in _descriptions(store, kind, source.instances):
        position = pc.index_in(batch["id"], value_set=rows["id"].combine_chunks())
        table, position = batch.filter(position.is_valid()), position.drop_null()
        unknown = pa.nulls(len(position), pa.int64())
        yield pa.table([table["id"], names.take(position), table["descriptions"], unknown], schema=TEXTS)


def _descriptions(store: Store, kind: Kind, instances: list[Part]) -> Iterator[pa.Table]:
    """Yield columns id and descriptions of the instances in a range, with the dates of their documents."""
    if instances:
        columns = [f"{kind}_id", "description", "date"]
        rows = read_table(store, instances, columns, _INSTANCES[kind])
        dated = with_dates(rows["description"], rows["date"])
        rows = rows.set_column(1, "description", dated)
        yield from (pa.Table.from_batches([batch]) for batch in descriptions_by_key(rows))


def _reused(store: Store, group: Group) -> pa.Table:
    """Return `REUSED` of rows that the parent snapshot described from the same texts."""
    if not group.merged or not group.instances_before:
        return REUSED.empty_table()
    now, old = (
        pa.concat_tables(_descriptions(store, group.kind, parts))
        for parts in (group.instances, group.instances_before)
    )
    position = pc.index_in(now["id"], value_set=old["id"].combine_chunks())
    common = now.filter(position.is_valid())
    texts_now = common["descriptions"].combine_chunks()
    texts_then = old["descriptions"].take(position.drop_null()).combine_chunks()
    ids = common["id"].filter(pa.array(same_lists(texts_now, texts_then))).combine_chunks()
    rows = read_table(store, group.described_before, REUSED.names, REUSED)
    rows = rows.filter(pc.and_(pc.is_in(rows["id"], value_set=ids), pc.invert(rows["description_failed"])))
    if group.kind == "entity":
        return rows
    # The record of a relationship, and so its size, depends on its relation, too.
    keys = [_relations(store, parts) for parts in (group.merged, group.described_before)]
    same = keys[1].filter(pc.is_in(keys[1]["key"], value_set=keys[0]["key"].combine_chunks()))
    return rows.filter(pc.is_in(rows["id"], value_set=same["id"].combine_chunks()))


def _relations(store: Store, parts: list[Part]) -> pa.Table:
    """Return the id of each relationship, and a key of the id and the relation."""
    table = read_table(store, parts, ["id", *schema.RELATION_COLUMNS], schema.RELATIONSHIPS)
    relation = pc.fill_null(table["relation"], "")
    is_reversed = pc.fill_null(table["relation_reversed"], False).cast(pa.string())
    key = pc.binary_join_element_wise(table["id"], relation, is_reversed, " ")
    return pa.table({"id": table["id"], "key": key})


def _cut(
    split: Callable[[list[str]], list[list[str]]], store: Store, texts: tuple[Kind, Group | list[Part]]
) -> Iterator[Tables]:
    """Create an item for each batch of texts. Rows with a single text need no model."""
    kind, source = texts
    for table in _texts(store, kind, source):
        described: list[dict[str, Any]] = []
        items: list[dict[str, Any]] = []
        for row in table.to_pylist():
            id_, name, descriptions = row["id"], row["name"], row["descriptions"]
            if len(descriptions) < 2:
                description = without_date("".join(descriptions))
                described.append({"id": id_, "description": description, "description_failed": False})
                continue
            first = islice(without_duplicates(map(without_date, descriptions)), FALLBACK_DESCRIPTIONS)
            fallback, batches = " ".join(first), split(descriptions)
            item = {"id": id_, "kind": kind, "name": name, "is_last": len(batches) == 1}
            item["n_sources"] = row["n_sources"] or sum(map(len, batches))
            for batch in batches:
                items.append({**item, "texts": batch, "shown": fallback})
                fallback = ""
        yield {
            "items": pa.Table.from_pylist(items, schema=ITEMS),
            "described": pa.Table.from_pylist(described, schema=DESCRIBED),
        }


def _collect(
    work: Work[str], index: Callable[[], JournalIndex], store: Store, parts: list[Part]
) -> Iterator[Tables]:
    """Describe the rows with one text left, and pass rows with several texts to the next layer."""
    first: dict[str, Row] = {}
    results: dict[str, list[str | None]] = {}
    for batch in replay_rows(work, index(), store, _load(store, parts)) if parts else ():
        yield {"failures": failure_rows("describe", work, batch)}
        for row, outcome in batch:
            first.setdefault(row["id"], {name: row[name] for name in ("name", "shown", "n_sources")})
            result = outcome.result if outcome.status == "complete" else None
            results.setdefault(row["id"], []).append(result)
    described: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for id_, summaries in results.items():
        if None in summaries:
            fallback = first[id_]["shown"]
            described.append({"id": id_, "description": fallback, "description_failed": True})
        elif len(summaries) > 1:
            known = {name: first[id_][name] for name in ("name", "n_sources")}
            texts.append({"id": id_, "descriptions": summaries, **known})
        else:
            described.append({"id": id_, "description": summaries[0] or "", "description_failed": False})
    yield {
        "described": pa.Table.from_pylist(described, schema=DESCRIBED),
        "texts": pa.Table.from_pylist(texts, schema=TEXTS),
    }


def _assemble(vocabulary: str, store: Store, pair: tuple[Group, list[Part]]) -> Iterator[Tables]:
    """Join the merged rows of a range with their descriptions, in the order of ids."""
    group, described = pair
    if not group.merged:
        return
    table = read_table(store, group.merged)
    new = read_table(store, described, None, DESCRIBED)
    rows = table.take(pc.index_in(new["id"], value_set=table["id"].combine_chunks()))
    names = [rows["title"]] if group.kind == "entity" else [rows["source"], rows["target"]]
    relation = [] if group.kind == "entity" else [rows[name] for name in schema.RELATION_COLUMNS]
    record: Callable[..., report_context.Record]
    record = report_context.entity_record if group.kind == "entity" else report_context.relationship_record
    counted = [
        report_context.count_record_tokens(
            record("", *row), partial(count_tokens, vocabulary_name=vocabulary)
        )
        for row in zip(
            *(column.to_pylist() for column in (*names, new["description"], *relation)), strict=True
        )
    ]
    n_tokens = pa.array(np.asarray(counted, dtype=np.int64))
    texts = pa.concat_tables([new.append_column("n_tokens", n_tokens), _reused(store, group)])
    position = pc.index_in(table["id"], value_set=texts["id"].combine_chunks())
    for name in ("description", "description_failed", "n_tokens"):
        table = table.append_column(name, texts[name].take(position))
    # Reports and communities depend only on these columns of a row. Names follow from the id.
    columns = ["id", "description", "text_unit_ids"]
    content = content_hashes(table.select(columns))
    if group.kind == "relationship":
        has_relation = pc.not_equal(table["relation"], "")
        with_relation = content_hashes(table.select([*columns, *schema.RELATION_COLUMNS]))
        content = pc.if_else(has_relation, with_relation, content)
    yield {KINDS[group.kind]: table.append_column("content", content)}
