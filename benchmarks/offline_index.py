"""Build an index in memory, in a single process, for quality benchmarks.

Extraction, merge, pruning, descriptions, communities, reports and queries use the same pure functions as an
index run, without Ray or storage.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.ids import report_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.corpus.chunks import split_into_chunks as cut
from graphrag_ray.corpus.readers import Document, documents_in
from graphrag_ray.corpus.tokens import count_tokens
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.graph import merge, report_context
from graphrag_ray.graph.communities import build_communities, sort_edges_by_community
from graphrag_ray.graph.context_plan import ENTITY, RELATIONSHIP, ContextPlan, order_elements
from graphrag_ray.graph.descriptions import describe, describe_spec
from graphrag_ray.graph.extraction_dialogue import ChunkText, ExtractedRecords, extract, extract_spec
from graphrag_ray.graph.hierarchy import Hierarchy
from graphrag_ray.graph.integer_arrays import id_hash64, node_degrees
from graphrag_ray.graph.prune import entities_to_retain, relationships_to_retain
from graphrag_ray.graph.report_dialogue import Report, full_content, report, report_spec
from graphrag_ray.graph.report_schedule import HierarchySchedule
from graphrag_ray.offline import answer
from graphrag_ray.offline.prune_names import lower_case_counts, weak_names
from graphrag_ray.query.methods import map_reduce

VOCABULARY = "cl100k_base"


@dataclass
class Built:
    """An index in memory. `nodes` and `edges` are lists of rows in id order."""

    settings: Settings
    texts: dict[str, str]
    extractions: list[tuple[merge.ExtractionSource, ExtractedRecords]]
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    source: np.ndarray
    target: np.ndarray
    hierarchy: Hierarchy
    reports: dict[int, Report]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def degree(self) -> np.ndarray:
        return node_degrees(self.source, self.target, len(self.nodes))


def tokens(text: str) -> int:
    return count_tokens(text, VOCABULARY)


class Clock:
    """CPU seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.process_time()

    def lap(self, name: str) -> None:
        now = time.process_time()
        self.seconds[name], self._at = now - self._at, now


def build(chunks: Sequence[tuple[merge.ExtractionSource, str]], settings: Settings) -> Built:
    prompts = load_prompts()
    clock = Clock()
    spec = extract_spec(prompts, settings)
    extractions = [(unit, run_dialogue(extract(ChunkText(text), spec), answer)) for unit, text in chunks]
    clock.lap("extract")
    nodes, edges = merged(extractions, len(chunks), settings)
    clock.lap("merge")
    spec_d = describe_spec(prompts, settings)
    for kind, rows in (("entity", nodes), ("relationship", edges)):
        for row in rows:
            name = row["title"] if kind == "entity" else f"{row['source']} — {row['target']}"
            row["description"] = described(kind, name, row.pop("descriptions"), spec_d)
    clock.lap("describe")
    ids = pa.array([n["id"] for n in nodes])
    source, target = (
        node_numbers(ids, pa.array([e[end] for e in edges])) for end in ("source_id", "target_id")
    )
    weight = np.array([e["weight"] for e in edges])
    node_tokens, edge_tokens = element_tokens(nodes, edges)
    hierarchy = build_communities(
        len(nodes), source, target, weight, settings.communities, node_tokens, 4000, None, id_hash64(ids)
    )
    clock.lap("communities")
    built = Built(
        settings,
        {u.text_unit_id: t for u, t in chunks},
        extractions,
        nodes,
        edges,
        source,
        target,
        hierarchy,
        {},
    )
    built.reports = write_reports(built, prompts, node_tokens, edge_tokens)
    clock.lap("reports")
    built.seconds = clock.seconds
    return built


def merged(
    extractions: Sequence[tuple[merge.ExtractionSource, ExtractedRecords]], n_units: int, settings: Settings
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Merged and pruned rows with their `descriptions`, as `merge_stage.py` computes them by partition."""
    instances = merge.sort_instances(merge.entity_instance_rows(extractions))
    links = merge.sort_instances(merge.relationship_instance_rows(extractions))
    entities, relationships = merge.merge_entities(instances), merge.merge_relationships(links)
    lower = lower_case_counts(instances["description"].to_pylist())
    weak = pc.is_in(entities["id"], value_set=weak_names(instances, lower)).to_numpy()
    source, target = (node_numbers(entities["id"], relationships[end]) for end in ("source_id", "target_id"))
    frequency = entities["frequency"].to_numpy()
    n_ab = pc.list_value_length(relationships["text_unit_ids"]).to_numpy().astype(np.int64)
    between = ~weak[source] & ~weak[target]
    kept_edges = np.zeros(len(source), dtype=bool)
    kept_edges[between] = relationships_to_retain(
        source[between], target[between], n_ab[between], frequency, n_units, settings.graph.min_log_likelihood
    )
    degree = node_degrees(source[kept_edges], target[kept_edges], len(entities))
    typed = pc.not_equal(entities["type"], "").to_numpy().astype(np.int64)
    kept = ~weak & entities_to_retain(frequency, typed, degree)
    return (
        entities.append_column("descriptions", lists(instances)).filter(pa.array(kept)).to_pylist(),
        relationships.append_column("descriptions", lists(links)).filter(pa.array(kept_edges)).to_pylist(),
    )


def node_numbers(ids: pa.Array | pa.ChunkedArray, ends: pa.Array | pa.ChunkedArray) -> Any:
    """The positions of the ends of relationships among the ids of entities."""
    return pc.index_in(ends, value_set=ids).to_numpy().astype(np.int64)


def lists(instances: pa.Table) -> pa.ChunkedArray:
    return pa.chunked_array([b["descriptions"] for b in merge.descriptions_by_key(instances)])


def described(kind: Any, name: str, descriptions: Sequence[str], spec: Any) -> str:
    """The simplest summary tree: batches of 150 descriptions."""
    texts = list(descriptions)
    while len(texts) > 150:
        texts = [
            run_dialogue(describe(kind, name, texts[i : i + 150], spec), answer)
            for i in range(0, len(texts), 150)
        ]
    return run_dialogue(describe(kind, name, texts, spec), answer)


def element_tokens(nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
    return (
        np.array(
            [report_context.count_record_tokens(entity_record(n), tokens) for n in nodes], dtype=np.int64
        ),
        np.array([report_context.count_record_tokens(edge_record(e), tokens) for e in edges], dtype=np.int64),
    )


def entity_record(n: Mapping[str, Any]) -> report_context.Record:
    return report_context.entity_record(n["id"], n["title"], n["description"])


def edge_record(e: Mapping[str, Any]) -> report_context.Record:
    return report_context.relationship_record(e["id"], e["source"], e["target"], e["description"])


def write_reports(built: Built, prompts: Any, node_tokens: Any, edge_tokens: Any) -> dict[int, Report]:
    h, none = built.hierarchy, np.zeros(0, dtype=np.int64)
    order, community = sort_edges_by_community(h, built.source, built.target)
    elements, _ = order_elements(
        h, node_tokens, built.source, built.target, edge_tokens, order, community, none, none
    )
    budget = built.settings.reports.context_tokens
    schedule = HierarchySchedule(h, elements, budget)
    spec = report_spec(built.settings, prompts)
    written: dict[int, Report] = {}
    while not schedule.finished:
        for plan in schedule.take_ready():
            shown = report_context.render(
                plan_records(built, plan, order, written), budget, tokens, plan.left_out
            )
            written[plan.community] = run_dialogue(report(shown, spec), answer)
            schedule.mark_done(
                plan.community,
                report_context.count_record_tokens(report_row(plan.community, written), tokens),
            )
    return written


def report_row(community: int, written: Mapping[int, Report]) -> report_context.Record:
    r = written[community]
    return report_context.report_record(report_id(str(community)), r.title, full_content(r))


def plan_records(
    built: Built, plan: ContextPlan, order: Any, written: Mapping[int, Report]
) -> list[report_context.Record]:
    out = []
    for kind, index in zip(plan.kinds.tolist(), plan.indices.tolist(), strict=True):
        if kind == ENTITY:
            out.append(entity_record(built.nodes[int(built.hierarchy.node_at_place[index])]))
        elif kind == RELATIONSHIP:
            out.append(edge_record(built.edges[int(order[index])]))
        else:
            out.append(report_row(index, written))
    return out


def ask(built: Built, question: str, level: int) -> tuple[map_reduce.Reduced, list[map_reduce.MapAnswer]]:
    budget, prompts = built.settings.query.context_tokens, load_prompts()
    rows = [report_row(int(c), built.reports) for c in built.hierarchy.communities_at_level(level)]
    spec = map_reduce.map_spec(built.settings, prompts)
    contexts = map_reduce.pack(rows, budget, built.settings.query.seed, tokens)
    mapped = [a for c in contexts for a in run_dialogue(map_reduce.map_answer(question, c, spec), answer)]
    to_reduce = map_reduce.reduce_context(mapped, budget, tokens)
    reduced = run_dialogue(
        map_reduce.reduce_answer(question, to_reduce, map_reduce.reduce_spec(built.settings, prompts)), answer
    )
    return reduced, mapped


def coarsest_full(built: Built) -> int:
    """The coarsest level whose reports fill a context."""
    for level in range(built.hierarchy.n_levels):
        size = sum(
            tokens(report_context.content_for_context(full_content(built.reports[int(c)])))
            for c in built.hierarchy.communities_at_level(level)
        )
        if size >= built.settings.query.context_tokens:
            return level
    return max(0, built.hierarchy.n_levels - 1)


def podcast_chunks(folder: Path) -> tuple[list[tuple[merge.ExtractionSource, str]], list[str]]:
    chunks, files = [], []
    for path in sorted(folder.rglob("*.txt")):
        text = path.read_text("utf-8-sig")
        chunks.append((merge.ExtractionSource(path.stem, path.stem, 0), text.partition("\n")[2]))
        files.append(path.stem)
    return chunks, files


def demo_chunks(folder: Path, settings: Settings) -> list[tuple[merge.ExtractionSource, str]]:
    chunks = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as stream:
            for document in documents_in(path.name, stream, settings.input):
                if isinstance(document, Document):
                    for at, c in enumerate(cut(document.text, settings.chunking, VOCABULARY)):
                        unit = merge.ExtractionSource(f"{document.id}-{at}", document.id, at)
                        chunks.append((unit, document.text[c.start : c.end]))
    return chunks
