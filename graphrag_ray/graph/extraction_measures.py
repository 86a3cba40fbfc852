"""Measure extractions of the same chunks under different settings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from graphrag_ray.graph.extraction_dialogue import ExtractedRecords, type_name
from graphrag_ray.graph.tuning_dialogues import compact

CATCH_ALL = "CONCEPT"


@dataclass(frozen=True)
class ExtractionMeasures:
    """Measures of the extractions of some chunks. Shares are None without entities.

    Attributes:
        failed_chunks: Chunks whose replies were unusable. They count as chunks without records.
        types_used: Number of listed types that entities have.
        catch_all_share: Share of entities (per chunk) with the type `concept` or with a type not in the list.
        largest_type_share: Share of entities with the most frequent type.
        conflicting_names: Names that have several types.
        duplicate_names: Names that equal another one except for case, width, spaces and punctuation.
        dropped_records: Unusable records.
        tokens: Tokens of all requests and replies.
    """

    chunks: int
    failed_chunks: int
    entities_per_chunk: float
    relationships_per_chunk: float
    types_used: int
    catch_all_share: float | None
    largest_type_share: float | None
    conflicting_names: int
    duplicate_names: int
    dropped_records: int
    tokens: int


def measure(
    extractions: Sequence[ExtractedRecords | None], types: Sequence[str], tokens: int
) -> ExtractionMeasures:
    """Measure extractions with entity types `types`. None is a chunk that failed."""
    chunks = [e for e in extractions if e is not None]
    mentions = {(n, e.title, e.type) for n, chunk in enumerate(chunks) for e in chunk.entities}
    by_type = Counter(type_ for _, _, type_ in mentions)
    types_of: dict[str, set[str]] = defaultdict(set)
    for _, title, type_ in mentions:
        types_of[title].add(type_)
    n_entities = sum(len({e.title for e in chunk.entities}) for chunk in chunks)
    pairs = sum(len({frozenset((r.source, r.target)) for r in chunk.relationships}) for chunk in chunks)
    known = {type_name(t) for t in types}
    vague = sum(n for type_, n in by_type.items() if type_ == CATCH_ALL or type_ not in known)
    total, n = len(mentions), max(1, len(extractions))
    return ExtractionMeasures(
        chunks=len(extractions),
        failed_chunks=len(extractions) - len(chunks),
        entities_per_chunk=n_entities / n,
        relationships_per_chunk=pairs / n,
        types_used=len(by_type.keys() & known),
        catch_all_share=vague / total if total else None,
        largest_type_share=max(by_type.values()) / total if total else None,
        conflicting_names=sum(len(found) > 1 for found in types_of.values()),
        duplicate_names=len(types_of) - len({compact(title) or title for title in types_of}),
        dropped_records=sum(chunk.unusable for chunk in chunks),
        tokens=tokens,
    )
