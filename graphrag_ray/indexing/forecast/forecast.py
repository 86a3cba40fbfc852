"""The forecast of a run: every stage's volume, cost and time, and all that they rest on.

corpus ─► chunks, first requests: exact
a sample of chunks ─► offline engine ─► names ─► growth ─► entities, relationships: modelled
                                          └─► communities, contexts
calls that were made ─► lengths, rates, names per chunk: measured, and better than what is assumed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.graph.about_corpus import is_to_be_told
from graphrag_ray.graph.extraction_dialogue import ExtractedRecords
from graphrag_ray.indexing.forecast import stage_volumes
from graphrag_ray.indexing.forecast.assumptions import Assumption, Assumptions
from graphrag_ray.indexing.forecast.bounds import Bound, Latency, Volume, bound_of, cost_of, has_limit
from graphrag_ray.indexing.forecast.corpus_counts import CorpusCounts
from graphrag_ray.indexing.forecast.graph_sizes import Named, SampledGraph, named
from graphrag_ray.indexing.forecast.reply_sizes import Replies, measured_latency, measured_slowness
from graphrag_ray.indexing.forecast.sample import SampleGraph, sample_graph
from graphrag_ray.indexing.forecast.stage_volumes import Basis

TTFT_S, TOKENS_PER_S = 0.5, 60.0
SLOW_SHARE, SLOW_FACTOR = 0.01, 5.0
HEDGED_FACTOR = 2.0
"""With run.hedge a second request follows when a call is about as slow as any usual one."""
OWN_S, OWN_S_PER_CHUNK = 25.0, 0.003
"""What a run takes besides its calls, on two cores: benchmarks/RESULTS.md."""


@dataclass(frozen=True)
class SampleReading:
    """What was read in the chunks that were drawn.

    offline    [n] the offline engine's extraction of each
    drawn      [n] chunks of the random sample; answered: [n] those that a journal answers
    own        the model's own extraction of the answered chunks, in their order; empty where none is
    """

    offline: Sequence[ExtractedRecords]
    drawn: Sequence[bool]
    answered: Sequence[bool]
    own: Sequence[ExtractedRecords] = ()


@dataclass(frozen=True)
class Learned:
    """What calls that were made tell. replies: by prompt; prompt_factor: tokens that the endpoint counted
    for each of ours; items: dialogues that are finished, by stage."""

    replies: Mapping[str, Replies]
    prompt_factor: float | None = None
    items: Mapping[str, int] | None = None


@dataclass(frozen=True)
class StageForecast:
    """cost_usd: None where the price is unknown; bound: None for the offline engine; left: what is
    still to be asked of an index that is partly done."""

    volume: Volume
    model_id: str
    exact: str
    cost_usd: float | None
    bound: Bound | None
    left: Volume
    left_cost_usd: float | None
    left_bound: Bound | None


@dataclass(frozen=True)
class Forecast:
    """graph: entities, relationships, communities, reports, levels. own_s: seconds without calls."""

    corpus: CorpusCounts
    stages: tuple[StageForecast, ...]
    graph: Mapping[str, float]
    assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    offline: bool
    own_s: float = 0.0

    @property
    def totals(self) -> dict[str, Any]:
        return _totals([(s.volume, s.cost_usd, s.bound) for s in self.stages], self.own_s)

    @property
    def left(self) -> dict[str, Any]:
        return _totals([(s.left, s.left_cost_usd, s.left_bound) for s in self.stages], self.own_s)

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {
                **asdict(s.volume),
                "model_id": s.model_id,
                "exact": s.exact,
                "cost_usd": s.cost_usd,
                "seconds": s.bound.seconds if s.bound else None,
                "bound_by": s.bound.by if s.bound else None,
                "left": {**asdict(s.left), "cost_usd": s.left_cost_usd},
            }
            for s in self.stages
        ]
        return {
            "corpus": asdict(self.corpus),
            "stages": rows,
            "total": self.totals,
            "left": self.left,
            "graph": dict(self.graph),
            "assumptions": [{**asdict(a), "meaning": a.meaning} for a in self.assumptions],
            "notes": list(self.notes),
        }


def forecast(
    settings: Settings,
    prompts: Mapping[str, Prompt],
    corpus: CorpusCounts,
    read: SampleReading,
    learned: Learned,
    given: Mapping[str, float],
) -> Forecast:
    """given: assumptions of the caller's own, which come before what is measured."""
    assume = Assumptions(given)
    _take_prompt_factor(assume, learned)
    basis = Basis(settings, prompts, corpus, learned.replies, assume)
    model = settings.model(settings.model_name("extract"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    reference, own = _graphs(settings, read, vocabulary)
    offline = basis.offline("extract")
    kinds = {}
    if settings.has_graph:
        for kind, names in (("entity", "entities"), ("relationship", "relationships")):
            kinds[kind] = named(
                *(names, reference, own, corpus.asked, offline),
                *(prompts["extract_examples"], vocabulary, assume),
            )
    of_graph = _of_graph(basis, kinds, reference, own) if kinds else _OfGraph()
    volumes, summaries = list(of_graph.volumes), Volume("summary", settings.model_name("summary"))
    if "tree" in settings.built_hierarchies:
        summaries = stage_volumes.summarising(basis)
        volumes.append(summaries)
    if settings.embeddings.enabled:
        reports = (of_graph.reports, summaries)
        volumes.append(stage_volumes.embedding(basis, kinds, reports, of_graph.described))
    latency = _latency(assume, learned, settings.run.hedge)
    sizes = {
        "entities": kinds["entity"].size.distinct if kinds else 0.0,
        "relationships": kinds["relationship"].size.distinct if kinds else 0.0,
        "communities": of_graph.reports.items + summaries.items,
        "levels": max(of_graph.levels, round(summaries.chain) if summaries.items else 0),
    }
    found = tuple(_stage(v, basis, latency, learned) for v in volumes)
    notes = tuple(_notes(settings, corpus, volumes, own is not None))
    own_s = assume.take("own_s", OWN_S + OWN_S_PER_CHUNK * corpus.chunks, "on two cores, assumed")
    return Forecast(corpus, found, sizes, tuple(assume), notes, offline, own_s)


@dataclass(frozen=True)
class _OfGraph:
    """What extraction and what follows from it asks for; described: tokens of a description that replaces
    several."""

    volumes: Sequence[Volume] = ()
    reports: Volume = field(default_factory=partial(Volume, "report", ""))
    described: float = 0.0
    levels: int = 0


def _of_graph(
    basis: Basis, kinds: Mapping[str, Named], reference: SampledGraph, own: SampleGraph | None
) -> _OfGraph:
    settings, entities, relationships = basis.settings, kinds["entity"], kinds["relationship"]
    volumes = [stage_volumes.extraction(basis, entities, relationships)]
    if settings.claims.enabled:
        volumes.append(stage_volumes.claims(basis, entities, _share_with_entity(reference)))
    graph = _larger(reference, own)
    described, summary = stage_volumes.describing(basis, kinds, graph)
    reports, levels = Volume("report", settings.model_name("report")), 0
    if "leiden" in settings.built_hierarchies:
        reports, shape = stage_volumes.reporting(basis, entities, relationships, graph, own, summary)
        levels = shape.levels
    if "attributed" in settings.built_hierarchies:
        by_meaning = stage_volumes.attributed(basis, entities, relationships, summary)
        reports, levels = reports.plus(by_meaning), max(levels, round(by_meaning.chain))
    volumes.append(described)
    if not settings.built_hierarchies:
        return _OfGraph(volumes, reports, summary)
    if is_to_be_told(settings, basis.prompts):
        volumes.append(stage_volumes.telling(basis, entities))
    return _OfGraph([*volumes, reports], reports, summary, levels)


def _graphs(
    settings: Settings, read: SampleReading, vocabulary: str
) -> tuple[SampledGraph, SampleGraph | None]:
    provider = settings.model(settings.model_name("extract")).provider
    # Pruning is what brings the offline engine's names near a model's, so it is left out only where the
    # offline engine itself is to run without it.
    prune = provider != "offline" or settings.graph.prune != "off"
    threshold = settings.graph.min_log_likelihood
    graph = sample_graph(read.offline, vocabulary, prune, threshold)
    masks = (np.array(m, dtype=np.bool_) for m in (read.drawn, read.answered))
    reference = SampledGraph(graph, *masks)
    if not read.own or provider == "offline":
        return reference, None
    return reference, sample_graph(read.own, vocabulary, settings.graph.prune == "on", threshold)


def _larger(reference: SampledGraph, own: SampleGraph | None) -> SampleGraph:
    """The model's own graph says more about communities, unless it is that of few chunks."""
    if own is not None and own.entities.n_chunks >= int(reference.drawn.sum()):
        return own
    return reference.graph


def _share_with_entity(reference: SampledGraph) -> float:
    names = reference.graph.entities
    return len(np.unique(names.chunk)) / names.n_chunks if names.n_chunks else 0.0


def _take_prompt_factor(assume: Assumptions, learned: Learned) -> None:
    if learned.prompt_factor is not None:
        assume.take("prompt_tokens_factor", learned.prompt_factor, "measured, the endpoint's count by ours")
    else:
        assume.take("prompt_tokens_factor", 1.0, "our own count")


def _latency(assume: Assumptions, learned: Learned, hedge: bool) -> Latency:
    measured = measured_latency([r for name, r in learned.replies.items() if name != "embed"])
    if measured is None:
        values = (TTFT_S, TOKENS_PER_S)
        source = "assumed"
    else:
        values = measured[:2]
        source = f"measured on {measured[2]:,} calls"
    ttft_s = assume.take("ttft_s", values[0], source)
    tokens_per_s = assume.take("tokens_per_s", values[1], source)
    slowness = measured_slowness([r for name, r in learned.replies.items() if name != "embed"])
    share, factor = (SLOW_SHARE, SLOW_FACTOR) if slowness is None else slowness[:2]
    source = "assumed" if slowness is None else f"measured on {slowness[2]:,} calls"
    if hedge and factor > HEDGED_FACTOR:  # what a second request leaves of it
        factor, source = HEDGED_FACTOR, f"{source}, hedged"
    share, factor = assume.take("slow_share", share, source), assume.take("slow_factor", factor, source)
    return Latency(ttft_s, tokens_per_s, share, factor)


def _stage(volume: Volume, basis: Basis, latency: Latency, learned: Learned) -> StageForecast:
    settings = basis.settings
    model = settings.model(volume.model)
    left = volume.times(_share_left(volume, basis.corpus, learned))
    workers = settings.run.default_in_flight
    return StageForecast(
        volume,
        model.model_id,
        {"extract": "first turns exact", "embed": "chunks exact"}.get(volume.stage, ""),
        cost_of(volume, model),
        bound_of(volume, model, latency, workers),
        left,
        cost_of(left, model),
        bound_of(left, model, latency, workers),
    )


def _share_left(volume: Volume, corpus: CorpusCounts, learned: Learned) -> float:
    """Extraction: chunk by chunk. What comes later depends on all chunks, so that only the number of
    finished dialogues says something, and only where every chunk is answered."""
    open_chunks = corpus.asked - corpus.answered
    if volume.stage == "extract":
        return open_chunks / corpus.asked if corpus.asked else 0.0
    if open_chunks > 0 or not volume.items:
        return 1.0
    return max(0.0, 1.0 - (learned.items or {}).get(volume.stage, 0) / volume.items)


def _totals(rows: Sequence[tuple[Volume, float | None, Bound | None]], own_s: float) -> dict[str, Any]:
    costs = [cost for _, cost, _ in rows]
    seconds = [bound.seconds for _, _, bound in rows if bound is not None]
    return {
        "calls": sum(v.calls for v, _, _ in rows),
        "prompt_tokens": sum(v.prompt_tokens for v, _, _ in rows),
        "completion_tokens": sum(v.completion_tokens for v, _, _ in rows),
        "cost_usd": None if None in costs else sum(c for c in costs if c is not None),
        "seconds": own_s + sum(seconds) if seconds else None,
    }


def _notes(settings: Settings, corpus: CorpusCounts, volumes: Sequence[Volume], measured: bool) -> list[str]:
    notes = []
    if corpus.read_share < 1:
        notes.append(
            f"{corpus.read_share:.1%} of the input's bytes were read; all figures are extrapolated from "
            "these. --full reads all of it."
        )
    if corpus.repeated:
        notes.append(f"{corpus.repeated:,.0f} chunks repeat another one and are not asked about again.")
    if corpus.too_long:
        notes.append(f"{corpus.too_long:,.0f} chunks do not fit the context window and are not sent.")
    if corpus.unreadable:
        notes.append(f"{corpus.unreadable:,} files or rows cannot be read and are left out.")
    online = [v.model for v in volumes if not settings.model(v.model).is_local]
    for name in dict.fromkeys(online):
        if not has_limit(settings.model(name)):
            notes.append(
                f"No limit of {settings.model(name).model} is known: times are for "
                f"run.default_in_flight = {settings.run.default_in_flight} calls at once per endpoint."
            )
    if online and not measured:
        notes.append(
            "Lengths of replies and names per chunk are assumed, and models differ in them by factors. For a "
            "forecast to rely on, index some documents with these settings and name that index by --root."
        )
    if online:
        notes.append(
            "Times are those of limits that are used to the full, and of slow calls that are waited for at a "
            "stage's end; without retries and corrections. Prices are without discounts for cached prompts."
        )
    if settings.claims.enabled:
        notes.append("Claims in the reports' contexts are not counted.")
    return notes
