"""The graph of a sample of chunks: what an extractor names where, as integer arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.corpus.tokens import count_many
from graphrag_ray.graph import merge
from graphrag_ray.graph.extraction_dialogue import ExtractedRecords
from graphrag_ray.graph.integer_arrays import degrees, graph_arrays
from graphrag_ray.graph.prune import keep_entities, keep_relationships
from graphrag_ray.indexing.forecast.growth import Size
from graphrag_ray.offline.prune_names import lower_case_words, weak_names

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SampledNames:
    """What some chunks name, of one kind: entities, or relationships.

    name, chunk          [P] the pairs: number of the name, number of the chunk
    descriptions         [V] different descriptions of each name
    title_tokens         [V] of an entity's name, or of the names of both ends
    description_tokens   of a description, on average
    """

    n_chunks: int
    name: Ints
    chunk: Ints
    descriptions: Ints
    title_tokens: Ints
    description_tokens: float

    def size(self, within: Mask | None = None) -> Size:
        """within: [n_chunks] the chunks that count; None: all."""
        name = self.name if within is None else self.name[within[self.chunk]]
        n_chunks = self.n_chunks if within is None else int(within.sum())
        frequency = np.bincount(name, minlength=len(self.descriptions))
        return Size(n_chunks, int((frequency > 0).sum()), int((frequency == 1).sum()), len(name))

    @property
    def frequency(self) -> Ints:
        """[V] chunks that each name is in."""
        return np.bincount(self.name, minlength=len(self.descriptions))

    @property
    def manner(self) -> Manner:
        frequency = self.frequency
        once, pairs = int((frequency == 1).sum()), len(self.name)
        single = self.descriptions <= 1
        alone = int(single.sum())
        return Manner(
            descriptions_per_pair=int(self.descriptions.sum()) / pairs if pairs else 1.0,
            alone_per_once=alone / once if once else 1.0,
            described_alone=int(self.descriptions[single].sum()) / alone if alone else 1.0,
        )


@dataclass(frozen=True)
class Manner:
    """How an extractor describes what it names.

    descriptions_per_pair   different descriptions for each pair of a name and a chunk
    alone_per_once          names with at most one description, for each name in one chunk only
    described_alone         share of the former that have one
    """

    descriptions_per_pair: float = 1.0
    alone_per_once: float = 1.0
    described_alone: float = 1.0


@dataclass(frozen=True)
class SampleGraph:
    """source, target [E] entities by number; weight [E] chunks that name the relationship."""

    entities: SampledNames
    relationships: SampledNames
    source: Ints
    target: Ints
    weight: npt.NDArray[np.float64]


def sample_graph(
    extractions: Sequence[ExtractedRecords], vocabulary: str, prune: bool, min_log_likelihood: float
) -> SampleGraph:
    """Merge, and prune where it is wanted, as `merge_stage.py` does. A chunk's number is its place here."""
    numbered = [(merge.ExtractedFrom(f"{i:08d}", "", i), e) for i, e in enumerate(extractions)]
    instances = merge.sort_instances(merge.entity_instance_rows(numbered))
    links = merge.sort_instances(merge.relationship_instance_rows(numbered))
    entities = _with_descriptions(merge.merge_entities(instances), instances)
    relationships = _with_descriptions(merge.merge_relationships(links), links)
    if prune and entities.num_rows:
        entities, relationships = _pruned(
            entities, relationships, instances, len(extractions), min_log_likelihood
        )
    source, target = graph_arrays([entities["id"]], relationships["source_id"], relationships["target_id"])
    titles = count_many(entities["title"].to_pylist(), vocabulary)
    return SampleGraph(
        _names(entities, titles, len(extractions), vocabulary),
        _names(relationships, titles[source] + titles[target], len(extractions), vocabulary),
        source,
        target,
        relationships["weight"].to_numpy(),
    )


def _with_descriptions(merged: pa.Table, instances: pa.Table) -> pa.Table:
    lists = [b["descriptions"] for b in merge.descriptions_by_key(instances)]
    return merged.append_column("descriptions", pa.chunked_array(lists, pa.large_list(pa.large_string())))


def _pruned(
    entities: pa.Table, relationships: pa.Table, instances: pa.Table, n_chunks: int, threshold: float
) -> tuple[pa.Table, pa.Table]:
    lower = lower_case_words(instances["description"].to_pylist())
    weak = pc.is_in(entities["id"], value_set=weak_names(instances, lower))
    strong = ~weak.to_numpy().astype(np.bool_)
    source, target = graph_arrays([entities["id"]], relationships["source_id"], relationships["target_id"])
    frequency = entities["frequency"].to_numpy()
    n_ab = pc.list_value_length(relationships["text_unit_ids"]).to_numpy().astype(np.int64)
    between = strong[source] & strong[target]
    edges = np.zeros(len(source), dtype=np.bool_)
    edges[between] = keep_relationships(
        source[between], target[between], n_ab[between], frequency, n_chunks, threshold
    )
    degree = degrees(source[edges], target[edges], entities.num_rows)
    typed = pc.not_equal(entities["type"], "").to_numpy().astype(np.int64)
    kept = strong & keep_entities(frequency, typed, degree)
    return entities.filter(pa.array(kept)), relationships.filter(pa.array(edges))


def _names(merged: pa.Table, title_tokens: Ints, n_chunks: int, vocabulary: str) -> SampledNames:
    per_name = pc.list_value_length(merged["text_unit_ids"]).to_numpy().astype(np.int64)
    units = pc.list_flatten(merged["text_unit_ids"]).to_pylist()
    texts = pc.list_flatten(merged["descriptions"]).to_pylist()
    tokens = count_many(texts, vocabulary) if texts else np.zeros(0, dtype=np.int64)
    return SampledNames(
        n_chunks,
        np.repeat(np.arange(merged.num_rows), per_name),
        np.array([int(u) for u in units], dtype=np.int64),
        pc.list_value_length(merged["descriptions"]).to_numpy().astype(np.int64),
        title_tokens,
        float(tokens.mean()) if len(tokens) else 0.0,
    )
