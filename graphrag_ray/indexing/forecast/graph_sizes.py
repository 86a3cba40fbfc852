"""How many entities and relationships the whole corpus will have, and how they are described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphrag_ray.base.prompts import Prompt
from graphrag_ray.corpus.tokens import count
from graphrag_ray.graph.delimited_records import DELIMITERS, parse_records
from graphrag_ray.indexing.forecast.assumptions import Assumptions
from graphrag_ray.indexing.forecast.growth import Size, carried, grown
from graphrag_ray.indexing.forecast.sample import Manner, Mask, SampledNames, SampleGraph
from graphrag_ray.indexing.forecast.sample_hierarchy import Lengths

ENTITIES_FACTOR = 1.30
"""Entities that a model finds for each of the offline engine: 8,564 (paper 4.1, GPT-4, the podcast
corpus) against 6,610 (benchmarks/RESULTS.md, the same corpus)."""
RELATIONSHIPS_FACTOR = 1.55
"""The same of relationships: 20,691 against 13,320."""
ENTITY_DESCRIPTION_TOKENS, RELATIONSHIP_DESCRIPTION_TOKENS = 35.0, 20.0
"""Where the prompt's examples show none."""


@dataclass(frozen=True)
class SampledGraph:
    """What the offline engine reads in the chunks that were drawn.

    graph      of these chunks, pruned
    drawn      [n] those of the random sample of the corpus; answered: [n] those that a journal answers
    """

    graph: SampleGraph
    drawn: Mask
    answered: Mask


@dataclass(frozen=True)
class Named:
    """Of one kind, in the whole corpus.

    size                names
    manner              how they are described
    description_tokens  of a description, on average
    title_tokens        of a name, on average over its mentions
    """

    size: Size
    manner: Manner
    description_tokens: float
    title_tokens: float

    @property
    def descriptions(self) -> float:
        """Different ones, of all names."""
        return self.size.pairs * self.manner.descriptions_per_pair

    @property
    def alone(self) -> float:
        """Names with at most one description."""
        return min(self.size.distinct, self.size.once * self.manner.alone_per_once)

    @property
    def several(self) -> float:
        """Names with more than one description."""
        return self.size.distinct - self.alone

    @property
    def descriptions_of_several(self) -> float:
        return max(2 * self.several, self.descriptions - self.alone * self.manner.described_alone)


def named(
    kind: str,
    reference: SampledGraph,
    own: SampleGraph | None,
    chunks: float,
    offline: bool,
    examples: Prompt,
    vocabulary: str,
    assume: Assumptions,
) -> Named:
    """kind: "entities" or "relationships". own: what the model itself found in the answered chunks."""
    theirs = _of(reference.graph, kind)
    whole, how = _whole(theirs, reference, chunks)
    manner, per_description = Manner(), examples_tokens(examples, vocabulary)[kind]
    from_where = "as long as in the prompt's own examples"
    if own is not None:
        mine = _of(own, kind)
        size = carried(mine.size(), theirs.size(reference.answered), whole)
        source = f"measured on {mine.n_chunks:,} answered chunks, grown as in the offline engine's reading"
        manner, per_description = mine.manner, mine.description_tokens
        from_where = f"measured on {mine.n_chunks:,} answered chunks"
    elif offline:
        size, source, manner, per_description = whole, how, theirs.manner, theirs.description_tokens
        from_where = how
    else:
        factor = ENTITIES_FACTOR if kind == "entities" else RELATIONSHIPS_FACTOR
        size = whole.times(factor)
        source = f"{how}, times {factor:g} as on the paper's corpus"
    size = _overridden(kind, size, source, assume)
    tokens = assume.take(f"{_ONE[kind]}_description_tokens", per_description, from_where)
    return Named(size, manner, tokens, _mention_tokens(theirs))


def examples_tokens(examples: Prompt, vocabulary: str) -> Mapping[str, float]:
    """Tokens of the descriptions in the few-shot examples, which models imitate."""
    found = parse_records(examples.text(DELIMITERS))
    entities = [count(e.description, vocabulary) for e in found.entities]
    relationships = [count(r.description, vocabulary) for r in found.relationships]
    return {
        "entities": float(np.mean(entities)) if entities else ENTITY_DESCRIPTION_TOKENS,
        "relationships": float(np.mean(relationships)) if relationships else RELATIONSHIP_DESCRIPTION_TOKENS,
    }


def lengths_of(entities: Named, relationships: Named, summary: float, report: float) -> Lengths:
    return Lengths(entities.description_tokens, relationships.description_tokens, summary, report)


_ONE = {"entities": "entity", "relationships": "relationship"}


def _of(graph: SampleGraph, kind: str) -> SampledNames:
    return graph.entities if kind == "entities" else graph.relationships


def _whole(theirs: SampledNames, reference: SampledGraph, chunks: float) -> tuple[Size, str]:
    """The offline engine's names in the whole corpus."""
    everything = theirs.n_chunks >= chunks
    size = theirs.size() if everything else grown(theirs.size(reference.drawn), chunks)
    if everything:
        return size, f"the offline engine's reading of all {theirs.n_chunks:,} chunks"
    n = int(reference.drawn.sum())
    return size, f"the offline engine's reading of {n:,} chunks, extrapolated (Heaps' law)"


def _overridden(kind: str, size: Size, source: str, assume: Assumptions) -> Size:
    per_chunk = size.pairs / size.chunks if size.chunks else 0.0
    pairs = assume.take(f"{kind}_per_chunk", per_chunk, source) * size.chunks
    distinct = min(assume.take(kind, size.distinct, source), pairs)
    # Names that are not in one chunk only are in two at least.
    once = max(min(size.slope * distinct, distinct), 2 * distinct - pairs)
    return Size(size.chunks, distinct, once, pairs)


def _mention_tokens(names: SampledNames) -> float:
    return float(names.title_tokens[names.name].mean()) if len(names.name) else 4.0
