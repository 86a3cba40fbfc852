"""Measure community quality per level (ArchRAG, appendix)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.evaluate.judging.community_quality import Vectors, embedding_quality, modularity, sizes
from graphrag_ray.export.graph_tables import Nodes, read_nodes
from graphrag_ray.graph.integer_arrays import id_hash64
from graphrag_ray.query.ask import Index
from graphrag_ray.store.parts import read_table

COMMUNITIES = pa.schema(
    [
        # One row per level of each hierarchy over entities. Null where a measure is undefined.
        ("hierarchy", pa.string()),
        ("level", pa.int64()),
        ("communities", pa.int64()),
        ("smallest", pa.int64()),
        ("median", pa.float64()),
        ("largest", pa.int64()),
        ("singletons", pa.int64()),
        ("coverage", pa.float64()),  # share of the entities that belong to a community
        ("modularity", pa.float64()),
        ("calinski_harabasz", pa.float64()),  # of the entity embeddings; null without embeddings
        ("mean_cosine", pa.float64()),  # between an entity and the centroid of its community
    ]
)


def measure_communities(index: Index) -> pa.Table:
    """Measure each level. As in the GraphRAG paper, unsplit communities also count at deeper levels."""
    rows: list[dict[str, Any]] = []
    for name in index.manifest.hierarchies:
        kind = HIERARCHIES.get(name)
        if kind is None or kind.member_kind != "entity":
            continue
        nodes = read_nodes(index.reader, kind.communities_table)
        vectors = _entity_vectors(index, nodes)
        edges = [
            (
                nodes.positions(part["source_id"]),
                nodes.positions(part["target_id"]),
                part["weight"].to_numpy(),
            )
            for part in index.reader.iter_batches("relationships", ["source_id", "target_id", "weight"])
        ]
        source, target, weight = [*map(np.concatenate, zip(*edges, strict=True))] or [np.zeros(0, int)] * 3
        for level, community in enumerate(nodes.community):
            row: dict[str, Any] = {"hierarchy": name, "level": level, **sizes(community)}
            row["modularity"] = modularity(community, source, target, weight)
            if vectors is not None:
                row["calinski_harabasz"], row["mean_cosine"] = embedding_quality(community, vectors)
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=COMMUNITIES)


def _entity_vectors(index: Index, nodes: Nodes) -> Vectors | None:
    """Return embeddings [entities, dims], or None if entities are not embedded. Missing vectors are 0."""
    vectors: Vectors | None = None
    for part in index.manifest.parts("embeddings_entity"):
        table = read_table(index.store, [part], ["id", "vector"])
        prefixes = id_hash64(table["id"])
        if prefixes is None:
            raise ValueError("The id column of the entity embeddings contains an invalid id")
        column = table["vector"].combine_chunks()
        matrix = np.asarray(column.flatten(), np.float32).reshape(-1, column.type.list_size)
        if vectors is None:
            vectors = np.zeros((len(nodes.prefix), column.type.list_size), np.float32)
        known = np.isin(prefixes, nodes.prefix)
        vectors[np.searchsorted(nodes.prefix, prefixes[known])] = matrix[known]
    return vectors
