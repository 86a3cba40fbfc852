"""Forecast the calls, tokens, cost and time of every stage of an indexing run.

First requests are counted exactly (`corpus_counts.py`). Everything that depends on replies is estimated with
ratios: names per chunk and their growth with the corpus (from extractions of a sample), communities per
entity, tokens per report. If there is an index, a trial or the real one, ratios measured on its calls replace
assumed ones.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.corpus.tokens import count_tokens_of, vocabulary_for
from graphrag_ray.graph.adjudication import EXPECTED_REPLY_TOKENS, adjudicate, resolve_spec
from graphrag_ray.graph.context_plan import HEADING_TOKENS, NUMBER_TOKENS
from graphrag_ray.graph.corpus_overview import (
    ENTITIES_TOKENS,
    TITLES_TOKENS,
    about_spec,
    needs_overview,
    request_overview,
)
from graphrag_ray.graph.delimited_records import COMPLETION, DELIMITERS, FIELD, RECORD
from graphrag_ray.graph.descriptions import (
    MAX_JOINED_TEXTS,
    DescribeSpec,
    describe,
    describe_spec,
    distinct_descriptions,
)
from graphrag_ray.graph.document_note import document_note, note_spec
from graphrag_ray.graph.extraction_dialogue import ChunkText, ExtractedRecords, claims, claims_spec
from graphrag_ray.graph.report_context import Context
from graphrag_ray.graph.report_dialogue import report, report_spec
from graphrag_ray.graph.schema_conformance import CORRECTION_RATE
from graphrag_ray.graph.summary_dialogue import context_tokens, max_record_tokens, summary, summary_spec
from graphrag_ray.graph.summary_tree import has_next_level
from graphrag_ray.indexing.forecast.bounds import (
    Bound,
    Replies,
    Volume,
    estimate_bound,
    estimate_cost,
    fit_latency,
)
from graphrag_ray.indexing.forecast.corpus_counts import CorpusCounts
from graphrag_ray.llm.request_sizes import PACK_TOKENS, TOKENS_PER_MESSAGE, count_text_tokens

# Every name that `--assume` takes, and its meaning.
ASSUMPTION_MEANINGS: Mapping[str, str] = {
    "glean_yes": "share of gleaning checks answered with yes",
    "gleaned": "records added by a gleaning, per record of the first reply",
    "schema_corrected": "share of chunks whose records violate the schema and are corrected",
    "entities_per_chunk": "entities named in the replies for a chunk",
    "relationships_per_chunk": "relationships named in the replies for a chunk",
    "entities": "distinct entities in the whole corpus",
    "relationships": "distinct relationships in the whole corpus",
    "entity_description_tokens": "tokens of an entity's extracted description",
    "relationship_description_tokens": "tokens of a relationship's extracted description",
    "reply_tokens.document_context": "tokens of a note on a document",
    "reply_tokens.extract": "tokens of a reply to the extraction prompt",
    "reply_tokens.glean_check": "tokens of a reply to a gleaning check (yes or no)",
    "reply_tokens.glean": "tokens of a gleaning reply",
    "reply_tokens.glean_missing": "tokens of a reply that adds what was missed, or nothing",
    "reply_tokens.correct_schema": "tokens of a reply that corrects records by the schema",
    "reply_tokens.claims": "tokens of a reply to the claims prompt",
    "resolve_per_entity": "requests about similar names per entity (resolution.mode: model)",
    "resolve_context_tokens": "tokens of the names and descriptions in such a request",
    "reply_tokens.resolve": "tokens of the verdicts on the candidates of a name",
    "reply_tokens.describe": "tokens of a description that replaces several",
    "reply_tokens.report": "tokens of a report",
    "reply_tokens.summary": "tokens of a summary of chunks or of summaries",
    "reply_tokens.about": "tokens of the reply that describes the corpus as a whole",
    "communities_per_entity": "communities per entity",
    "attributed_per_entity": "communities of the attributed hierarchy per entity",
    "composed_share": "share of communities whose reports are composed without a model call",
    "attributed_composed_share": "the same for the attributed hierarchy",
    "nodes_per_summary": "chunks or summaries per summary, if they are short",
    "report_context_tokens": "tokens of the data in a report's prompt",
    "prompt_tokens_factor": "prompt tokens counted by the endpoint per token counted by us",
    "ttft_s": "seconds to the first token of a reply",
    "tokens_per_s": "tokens per second after the first",
    "slow_share": "share of calls that take much longer than others of the same length",
    "slow_factor": "how many times longer these calls take",
    "own_s": "seconds without calls: starting Ray, reading, writing tables, the offline engine",
}

OWN_S, OWN_S_PER_CHUNK = 25.0, 0.003  # on two cores, without calls: benchmarks/RESULTS.md
MIN_CALLS = 5  # minimum number of replies to a prompt that predict their length
# Names found by a model per name found by the offline engine: on the podcast corpus, GPT-4 found 8,564
# entities and 20,691 relationships (paper, section 4.1), the offline engine 6,668 and 13,879 before pruning.
MODEL_FACTOR = {"entities": 1.28, "relationships": 1.49}
# As in the prompt's examples, which models imitate.
DESCRIPTION_TOKENS = {"entities": 33.0, "relationships": 14.0}
GLEAN_YES, GLEANED = 0.5, 0.35
CLAIMS_REPLY_TOKENS = 400.0
RESOLVE_PER_ENTITY = 0.4  # Offline engine: 0.41 on the podcasts, 0.64 on the demo corpus.
# A name and its candidates, and what is said of each (`name_candidates.profile`).
RESOLVE_NAMES, PROFILE_TITLES, PROFILE_DESCRIPTIONS = 2.5, 5.0, 2.0
DESCRIPTION_KEPT_SHARE = 0.7  # tokens of a merged description per token of the descriptions that it replaces
LIMIT_USED_SHARE = 0.6  # share of the token limit that a report or a summary uses
OFFLINE_REPORT_TOKENS = 440.0  # mean of the offline engine on the paper's podcast corpus
REPORT_TEXT_SHARE = 0.85  # share of a report's reply that is text rather than JSON syntax
ABOUT_TOKENS, TITLE_TOKENS = 60.0, 12.0
RECORD_OVERHEAD_TOKENS = 3  # commas, quotes and line end of a record in a context
COMMUNITIES_PER_ENTITY = 0.21
LEIDEN_LEVELS = 5.0
CONTEXTS_PER_RECORD = 1.5  # A record appears once per level that it fits.
MEAN_HEADING_TOKENS = 36
# Share of communities with fewer members, by `reports.model_from` from 0, and tokens of their data.
COMPOSED_SHARES = {
    "leiden": (0.0, 0.0, 0.0, 0.17, 0.33, 0.50, 0.59, 0.67, 0.74, 0.76, 0.78),
    "attributed": (0.0, 0.0, 0.0, 0.04, 0.12, 0.28, 0.41, 0.53, 0.64, 0.69, 0.74),
}
COMPOSED_TOKENS = 350
ATTRIBUTED_FILL = 0.46  # mean size of an attributed community relative to the largest allowed
INNER_RELATIONSHIPS = 0.25  # share of relationships within one community of the finest level
# Nodes that fit into a summary's context next to a long one, how full the context is, and clusters per node.
NODES_PER_SUMMARY, SUMMARY_FILL, CLUSTERS_PER_NODE = 6.0, 0.65, 1.04
_PERIOD = "2023-01-01 to 2023-12-31"
_MEASURED = "measured on the podcasts and on Wikipedia passages"


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumed or measured value, and where it comes from."""

    name: str
    value: float
    source: str

    @property
    def meaning(self) -> str:
        return ASSUMPTION_MEANINGS[self.name]


class Assumptions:
    """Records the assumptions that a forecast uses, in order of use. `overrides` take precedence."""

    def __init__(self, overrides: Mapping[str, float] | None = None) -> None:
        self._overrides = overrides or {}
        self._used: dict[str, Assumption] = {}

    def take(self, name: str, value: float, source: str) -> float:
        """Record an assumption and return the value to use."""
        if name in self._overrides:
            value, source = self._overrides[name], "given by --assume"
        self._used[name] = Assumption(name, value, source)
        return value

    def __iter__(self) -> Iterator[Assumption]:
        return iter(self._used.values())


def parse_assumptions(arguments: Sequence[str]) -> dict[str, float]:
    """Parse `name=value` pairs. Raises UsageError for unknown names and values out of range."""
    values = {}
    for text in arguments:
        name, sep, value = (part.strip() for part in text.partition("="))
        if name not in ASSUMPTION_MEANINGS:
            near = difflib.get_close_matches(name, ASSUMPTION_MEANINGS, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"Choose from: {', '.join(ASSUMPTION_MEANINGS)}."
            raise UsageError(f"--assume {text!r}: Unknown assumption {name!r}. {hint}")
        try:
            values[name] = float(value)
        except ValueError:
            values[name] = math.nan
        if not sep or not math.isfinite(values[name]) or values[name] < 0:
            raise UsageError(f"--assume {text!r}: Write it as name=number with a number of at least 0")
        if (
            name
            in ("glean_yes", "schema_corrected", "slow_share", "composed_share", "attributed_composed_share")
            and values[name] > 1
        ):
            raise UsageError(f"--assume {text!r}: A share must be between 0 and 1")
        divisors = ("tokens_per_s", "slow_factor", "nodes_per_summary", "prompt_tokens_factor")
        if name in divisors and not values[name]:
            raise UsageError(f"--assume {text!r}: The value must be above 0")
    return values


@dataclass(frozen=True)
class Evidence:
    """What a forecast is based on, in addition to the counts of the corpus.

    Attributes:
        offline_extractions: The offline engine's extractions of a random sample of chunks.
        model_extractions: The model's extractions of chunks that the journal answers.
        replies: Calls of the existing index, by prompt.
        prompt_factor: Prompt tokens counted by the endpoint per token counted by us.
        items: Finished dialogues, by stage.
        counts: Entities and communities of an existing snapshot.
    """

    offline_extractions: Sequence[ExtractedRecords]
    model_extractions: Sequence[ExtractedRecords] = ()
    replies: Mapping[str, Replies] = field(default_factory=dict)
    prompt_factor: float | None = None
    items: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StageForecast:
    """The forecast of one stage, in total and for the calls left. Unknown costs and bounds are None."""

    volume: Volume
    model_id: str
    cost_usd: float | None
    bound: Bound | None
    left: Volume
    left_cost_usd: float | None
    left_bound: Bound | None


@dataclass(frozen=True)
class Forecast:
    """The forecast of a run. `graph` counts records and levels; `overhead_s` is time without model calls."""

    corpus: CorpusCounts
    stages: tuple[StageForecast, ...]
    graph: Mapping[str, float]
    assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    offline: bool
    overhead_s: float = 0.0

    @property
    def totals(self) -> dict[str, Any]:
        return self._sum([(s.volume, s.cost_usd, s.bound) for s in self.stages])

    @property
    def left(self) -> dict[str, Any]:
        return self._sum([(s.left, s.left_cost_usd, s.left_bound) for s in self.stages])

    def _sum(self, rows: Sequence[tuple[Volume, float | None, Bound | None]]) -> dict[str, Any]:
        names = ("calls", "prompt_tokens", "completion_tokens")
        costs = [cost for _, cost, _ in rows]
        seconds = [bound.seconds for _, _, bound in rows if bound is not None]
        return {
            **{name: sum(getattr(volume, name) for volume, _, _ in rows) for name in names},
            "cost_usd": None if None in costs else sum(c for c in costs if c is not None),
            "seconds": self.overhead_s + sum(seconds) if seconds else None,
        }

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {
                **asdict(s.volume),
                "model_id": s.model_id,
                "cost_usd": s.cost_usd,
                "seconds": s.bound.seconds if s.bound else None,
                "bound_by": s.bound.limited_by if s.bound else None,
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
    evidence: Evidence,
    assumptions: Mapping[str, float],
) -> Forecast:
    """Forecast a run. Assumptions in `assumptions` take precedence over measured values."""
    assume = Assumptions(assumptions)
    source = "our own count" if evidence.prompt_factor is None else "measured: the endpoint's count over ours"
    factor = assume.take("prompt_tokens_factor", evidence.prompt_factor or 1.0, source)
    basis = _Basis(settings, prompts, corpus, evidence, assume, factor)
    volumes: list[Volume] = []
    kinds: dict[str, NameCounts] = {}
    merged_tokens = composed = 0.0
    if settings.has_graph:
        volumes, kinds, merged_tokens, composed = _graph_volumes(basis)
    if "tree" in settings.built_hierarchies:
        volumes.append(_summary_volume(basis))
    written = [v for v in volumes if v.stage in ("report", "summary")]
    graph = {kind: kinds[kind].distinct if kinds else 0.0 for kind in ("entities", "relationships")}
    graph |= {"communities": composed + sum(v.items for v in written)}
    if settings.embeddings.enabled:
        texts = corpus.chunks - corpus.repeated + sum(graph.values())
        tokens = corpus.embed_tokens + sum(names.record_tokens(merged_tokens) for names in kinds.values())
        tokens += sum(v.completion_tokens for v in written) * REPORT_TEXT_SHARE + composed * COMPOSED_TOKENS
        model = settings.model(settings.model_name("embed"))
        limits = [e.tokens_per_minute for e in model.endpoints if e.tokens_per_minute]
        calls = max(texts / model.embedding_batch_size, tokens / min([PACK_TOKENS, *limits]))
        volumes.append(basis.volume("embed", texts, math.ceil(calls), tokens, 0.0, exact="chunks exact"))
    graph["levels"] = max((round(v.chain) for v in written), default=0)
    latency = fit_latency(evidence.replies, assume.take, settings.run.hedge)
    stages, open_chunks = [], corpus.sent_chunks - corpus.answered
    for volume in volumes:
        model, in_flight = settings.model(volume.model), settings.run.initial_in_flight
        # Finished dialogues of later stages count only once every chunk is answered.
        share = _ratio(open_chunks, corpus.sent_chunks) if volume.stage == "extract" else 1.0
        if volume.stage != "extract" and open_chunks <= 0 and volume.items:
            share = max(0.0, 1.0 - evidence.items.get(volume.stage, 0) / volume.items)
        left = volume.times(share)
        bounds = [estimate_bound(v, model, latency, in_flight) for v in (volume, left)]
        costs = [estimate_cost(v, model) for v in (volume, left)]
        stages.append(StageForecast(volume, model.model_id, costs[0], bounds[0], left, costs[1], bounds[1]))
    own_s = assume.take("own_s", OWN_S + OWN_S_PER_CHUNK * corpus.chunks, "assumed, on two cores")
    notes = tuple(_notes(settings, corpus, volumes, bool(evidence.model_extractions)))
    return Forecast(corpus, tuple(stages), graph, tuple(assume), notes, basis.offline("extract"), own_s)


@dataclass(frozen=True)
class _Basis:
    settings: Settings
    prompts: Mapping[str, Prompt]
    corpus: CorpusCounts
    evidence: Evidence
    assume: Assumptions
    prompt_factor: float

    def tokens(self, stage: str, text: str) -> int:
        return count_text_tokens(text, self.settings.model(self.settings.model_name(stage)))

    def offline(self, stage: str) -> bool:
        return self.settings.model(self.settings.model_name(stage)).provider == "offline"

    def first_request(self, stage: str, dialogue: Dialogue[Any]) -> int:
        """Count the tokens of a dialogue's first request."""
        request = next(dialogue)
        assert isinstance(request, ChatRequest)
        return sum(self.tokens(stage, m.content) + TOKENS_PER_MESSAGE for m in request.messages)

    def with_period(self, stage: str, dialogue: Callable[[str], Dialogue[Any]]) -> float:
        """Count the tokens of a first request that states the period of its documents if they have dates."""
        without, dated = (self.first_request(stage, dialogue(period)) for period in ("", _PERIOD))
        return without + (dated - without) * _ratio(self.corpus.dated, self.corpus.documents)

    def reply(self, prompt: str, value: float, source: str) -> float:
        """Return the tokens of a reply: measured if there are enough calls, otherwise `value`."""
        replies = self.evidence.replies.get(prompt)
        if replies is not None and replies.n >= MIN_CALLS:
            value, source = float(replies.completion_tokens.mean()), replies.source
        return self.assume.take(f"reply_tokens.{prompt}", value, source)

    def volume(
        self, stage: str, items: float, calls: float, prompt: float, completion: float, **fields: Any
    ) -> Volume:
        name = self.settings.model_name(stage)
        return Volume(stage, name, items, calls, prompt * self.prompt_factor, completion, **fields)


@dataclass(frozen=True)
class NameCounts:
    """Counts of the entities, or of the relationships, named in a set of chunks.

    Attributes:
        distinct: Distinct names; `once` of them occur in a single chunk.
        pairs: Pairs of a name and a chunk in which it occurs.
        descriptions: Distinct descriptions, summed over names.
        single: Names with one description; `several` counts names with more than one.
        to_describe: Names that a model describes; `to_describe_tokens` counts their extracted descriptions.
        title_tokens, description_tokens: Means per name and per description.
    """

    chunks: float
    distinct: float
    once: float
    pairs: float
    descriptions: float
    single: float
    several: float
    to_describe: float
    to_describe_tokens: float
    title_tokens: float
    description_tokens: float

    def record_tokens(self, merged_tokens: float) -> float:
        """Estimate the tokens of all records in contexts, given the tokens of a merged description."""
        texts = self.single * self.description_tokens + self.several * merged_tokens
        return self.distinct * (self.title_tokens + RECORD_OVERHEAD_TOKENS) + texts


def count_names(
    kind: str, extractions: Sequence[ExtractedRecords], vocabulary: str, spec: DescribeSpec
) -> NameCounts:
    """Count the names of a kind, "entities" or "relationships", in the extractions of some chunks."""
    mentions_of: dict[tuple[str, ...], tuple[set[int], list[str]]] = {}
    for number, records in enumerate(extractions):
        mentions: list[tuple[tuple[str, ...], str]]
        ends = [(r.source, r.target, r.description) for r in records.relationships if r.source != r.target]
        if kind == "entities":
            mentions = [((e.title,), e.description) for e in records.entities]
            mentions += [((name,), "") for source, target, _ in ends for name in (source, target)]
        else:
            mentions = [((min(s, t), max(s, t)), description) for s, t, description in ends]
        for name, description in mentions:
            chunks, texts = mentions_of.setdefault(name, (set(), []))
            chunks.add(number)
            texts.append(description)
    per_name = [distinct_descriptions(texts, spec.rules) for _, texts in mentions_of.values()]
    n = np.array([len(texts) for texts in per_name], dtype=np.int64)
    sizes = count_tokens_of([text for texts in per_name for text in texts], vocabulary) if n.sum() else n[:0]
    titles = count_tokens_of([" ".join(name) for name in mentions_of], vocabulary) if mentions_of else n
    tokens = np.bincount(np.repeat(np.arange(len(n)), n), weights=sizes + 1, minlength=len(n))
    frequency = np.array([len(chunks) for chunks, _ in mentions_of.values()], dtype=np.int64)
    to_describe = (n > 1) & ((n > MAX_JOINED_TEXTS) | (tokens > spec.concatenate_up_to_tokens))
    return NameCounts(
        chunks=len(extractions),
        distinct=len(n),
        once=int((frequency == 1).sum()),
        pairs=int(frequency.sum()),
        descriptions=int(n.sum()),
        single=int((n == 1).sum()),
        several=int((n > 1).sum()),
        to_describe=int(to_describe.sum()),
        to_describe_tokens=float(tokens[to_describe].sum()),
        title_tokens=float(np.average(titles, weights=frequency)) if len(n) else 4.0,
        description_tokens=float(sizes.mean()) if len(sizes) else 0.0,
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _forecast_names(basis: _Basis, kind: str) -> tuple[NameCounts, NameCounts]:
    """Count the names in a sample of chunks, and forecast the names in the whole corpus.

    The sample consists of the model's extractions in the journal. Without any, it consists of the offline
    engine's extractions, scaled by a factor for the model.

    The number of names grows with the number of chunks as the number of words does with the length of a text
    (Herdan 1960, Heaps 1978). On logarithmic scales, the slope of that growth equals the share of names that
    occur in a single chunk (Good 1953). The slope falls slowly with the size of the corpus, so the slope of a
    small trial is averaged with that of the larger sample.
    """
    evidence, chunks, spec = (
        basis.evidence,
        basis.corpus.sent_chunks,
        describe_spec(basis.prompts, basis.settings),
    )
    model = basis.settings.model(basis.settings.model_name("extract"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    sample = count_names(kind, evidence.offline_extractions, vocabulary, spec)
    slope = _ratio(sample.once, sample.distinct)
    total = sample.distinct * max(1.0, _ratio(chunks, sample.chunks)) ** slope
    source = f"{sample.chunks:,} chunks read by the offline engine"
    source += "" if sample.chunks >= chunks else ", extrapolated (Heaps' law)"
    tokens_source, factor = source, 1.0
    if evidence.model_extractions and not basis.offline("extract"):
        sample = count_names(kind, evidence.model_extractions, vocabulary, spec)
        steepness = (2 * _ratio(sample.once, sample.distinct) + slope) / 3
        total = sample.distinct * max(1.0, chunks / sample.chunks) ** steepness
        text_tokens = sample.description_tokens
        tokens_source = f"measured on {sample.chunks:,} answered chunks"
        source = f"{tokens_source}, growth as found by the offline engine"
    elif not basis.offline("extract"):
        factor, tokens_source = MODEL_FACTOR[kind], "as long as in the prompt's examples"
        source += f", times {factor:g} as on the paper's corpus"
        text_tokens = DESCRIPTION_TOKENS[kind]
    else:
        text_tokens = sample.description_tokens
    per_chunk = factor * _ratio(sample.pairs, sample.chunks)
    pairs = basis.assume.take(f"{kind}_per_chunk", per_chunk, source) * chunks
    total = min(basis.assume.take(kind, factor * total, source), pairs)
    once = max(slope * total, 2 * total - pairs)  # All other names occur in at least two chunks.
    name = f"{'entity' if kind == 'entities' else 'relationship'}_description_tokens"
    tokens = basis.assume.take(name, text_tokens, tokens_source)
    # Names have descriptions as in the sample. A name with several descriptions occurs in several chunks.
    alone = sample.distinct - sample.several
    several = total - min(total, once * _ratio(alone, sample.once))
    single = (total - several) * _ratio(sample.single, alone)
    descriptions = pairs * _ratio(sample.descriptions, sample.pairs)
    of_several = max(2 * several, descriptions - single)
    to_describe_tokens = sample.to_describe_tokens * _ratio(of_several, sample.descriptions - sample.single)
    return sample, NameCounts(
        chunks=chunks,
        distinct=total,
        once=once,
        pairs=pairs,
        descriptions=descriptions,
        single=single,
        several=several,
        to_describe=sample.to_describe * _ratio(several, sample.several),
        to_describe_tokens=to_describe_tokens * _ratio(tokens, sample.description_tokens),
        title_tokens=sample.title_tokens,
        description_tokens=tokens,
    )


def _graph_volumes(basis: _Basis) -> tuple[list[Volume], dict[str, NameCounts], float, float]:
    """Forecast extraction to reports.

    Also returns name counts by kind, tokens per merged description and the number of composed reports.
    """
    settings, prompts, corpus = basis.settings, basis.prompts, basis.corpus
    names = {kind: _forecast_names(basis, kind) for kind in ("entities", "relationships")}
    kinds = {kind: whole for kind, (_, whole) in names.items()}
    entities, volumes = kinds["entities"], [*_note_volumes(basis), _extraction_volume(basis, kinds)]
    if settings.claims.enabled:
        n, spec = corpus.sent_chunks, claims_spec(prompts, settings)
        prompt = n * basis.first_request("claims", claims(ChunkText(""), ["X"], spec))
        prompt += corpus.passage_tokens + entities.pairs * (entities.title_tokens + 1)
        reply = basis.reply("claims", CLAIMS_REPLY_TOKENS, "assumed")
        volumes.append(basis.volume("claims", n, n, prompt, n * reply))
    if settings.asks_about_names:
        volumes.append(_resolve_volume(basis, entities))
    descriptions, merged_tokens = _description_volume(basis, kinds)
    volumes.append(descriptions)
    if settings.built_hierarchies and needs_overview(settings, prompts):
        prompt = basis.first_request("about", request_overview("", "", about_spec(settings, prompts)))
        prompt += min(TITLES_TOKENS, corpus.documents * TITLE_TOKENS)
        prompt += min(ENTITIES_TOKENS, entities.record_tokens(merged_tokens))
        volumes.append(basis.volume("about", 1, 1, prompt, basis.reply("about", ABOUT_TOKENS, "assumed")))
    reports, composed = [], 0.0
    if "leiden" in settings.built_hierarchies:
        volume, n_composed = _report_volume(basis, names, merged_tokens)
        reports, composed = [volume], n_composed
    if "attributed" in settings.built_hierarchies:
        volume, n_composed = _attributed_report_volume(basis, kinds, merged_tokens)
        reports, composed = [*reports, volume], composed + n_composed
    volumes += [reports[0].plus(reports[1])] if len(reports) == 2 else reports
    return volumes, kinds, merged_tokens, composed


def _note_volumes(basis: _Basis) -> Iterator[Volume]:
    """Forecast the notes on documents, if a model writes them."""
    if basis.settings.input.document_context == "model":
        n, spec = basis.corpus.documents, note_spec(basis.prompts, basis.settings)
        fixed = basis.first_request("context", document_note(ChunkText(""), spec))
        reply = basis.reply("document_context", spec.max_tokens, "assumed: the stated length")
        prompt = n * fixed + basis.corpus.beginning_tokens
        yield basis.volume("context", n, n, prompt, n * reply)


def _extraction_volume(basis: _Basis, kinds: Mapping[str, NameCounts]) -> Volume:
    """Forecast extraction: the first turns exactly, then gleaning turn by turn (`extraction_dialogue.py`)."""
    n, rounds = basis.corpus.sent_chunks, basis.settings.extraction.max_gleanings
    check_first = basis.settings.extraction.gleaning == "check"
    check = basis.tokens("extract", basis.prompts["glean_check"].fill_user({})) + TOKENS_PER_MESSAGE
    check = check if check_first else 0
    name = "glean" if check_first else "glean_missing"
    prompt_name = "glean_schema" if basis.settings.extraction.schema else name
    glean = basis.tokens("extract", basis.prompts[prompt_name].fill_user(DELIMITERS)) + TOKENS_PER_MESSAGE
    yes = gleaned = 0.0
    if rounds:
        value, source = GLEAN_YES, "assumed"
        checks, gleanings = (basis.evidence.replies.get(name) for name in ("glean_check", "glean"))
        if checks is not None and checks.n >= MIN_CALLS:
            value, source = min(1.0, (gleanings.n if gleanings else 0) / checks.n), checks.source
        elif basis.offline("extract"):
            value, source = 0.0, "the offline engine has nothing to add"
        yes = basis.assume.take("glean_yes", value, source) if check_first else 1.0
        if not basis.offline("extract"):
            gleaned = basis.assume.take("gleaned", GLEANED, "assumed")
    entity = f'("entity"{FIELD}{FIELD}PERSON{FIELD})\n{RECORD}\n'
    relationship = f'("relationship"{FIELD}{FIELD}{FIELD}{FIELD}8)\n{RECORD}\n'
    records = n * basis.tokens("extract", COMPLETION) + sum(
        kinds[kind].descriptions
        * (basis.tokens("extract", frame) + kinds[kind].title_tokens + kinds[kind].description_tokens)
        for kind, frame in (("entities", entity), ("relationships", relationship))
    )
    first = records / max(n, 1.0) / (1.0 + gleaned * sum(yes**i for i in range(1, rounds + 1)))
    latest = basis.reply("extract", first, "from the records per chunk and their lengths")
    calls, prompt_tokens, completion = n, basis.corpus.prompt_tokens, n * latest
    prompt, continuing = prompt_tokens / max(n, 1.0), n
    for _ in range(rounds):
        verdict = basis.reply("glean_check", 1.0, "the reply is one word") if check_first else 0.0
        gleaning = basis.reply(name, first * gleaned, "from `gleaned` and the first reply")
        prompt += latest + TOKENS_PER_MESSAGE + check
        calls += continuing * (check_first + yes)
        completion += continuing * (verdict + yes * gleaning)
        verdict_tokens = verdict + TOKENS_PER_MESSAGE if check_first else 0.0
        prompt_tokens += continuing * (check_first * prompt + yes * (prompt + verdict_tokens + glean))
        prompt += verdict_tokens + glean
        latest, continuing = gleaning, continuing * (yes if check_first else GLEAN_YES)
    chain = 1.0 + (1 + check_first) * rounds
    if basis.settings.extraction.schema and not basis.offline("extract"):
        firsts, corrections = (basis.evidence.replies.get(name) for name in ("extract", "correct_schema"))
        value, source = CORRECTION_RATE, "assumed"
        if firsts and firsts.n >= MIN_CALLS:
            value, source = (corrections.n if corrections else 0) / firsts.n, firsts.source
        share = basis.assume.take("schema_corrected", min(1.0, value), source)
        corrected = basis.reply("correct_schema", first * CORRECTION_RATE, "from the first reply")
        calls, chain = calls + share * n, chain + 1
        prompt_tokens += share * n * (prompt + latest + corrected + 2 * TOKENS_PER_MESSAGE)
        completion += share * n * corrected
    shape = {"chain": chain, "last": latest, "exact": "first turns exact"}
    return basis.volume("extract", n, calls, prompt_tokens, completion, **shape)


def _resolve_volume(basis: _Basis, entities: NameCounts) -> Volume:
    """Forecast the requests about names that may be the same, and about names of several things."""
    calls = basis.evidence.replies.get("resolve") or basis.evidence.replies.get("resolve_split")
    known = basis.evidence.counts.get("entities", 0)
    ratio, source = RESOLVE_PER_ENTITY, "assumed, as on the podcasts with names of the offline engine"
    if calls is not None and known:
        ratio = basis.evidence.items.get("resolve", 0) / known
        source = f"measured on the {known:,} entities of the index at --root"
    n = basis.assume.take("resolve_per_entity", ratio, source) * entities.distinct
    spec = resolve_spec(basis.prompts, basis.settings, basis.settings.resolution.max_candidates)
    fixed = basis.first_request("resolve", adjudicate("", [""], spec))
    profile = PROFILE_TITLES * entities.title_tokens + PROFILE_DESCRIPTIONS * entities.description_tokens
    context, source = RESOLVE_NAMES * profile, f"assumed: {RESOLVE_NAMES:g} names and what is said of them"
    if calls is not None and calls.n >= MIN_CALLS:
        context = max(0.0, float(calls.prompt_tokens.mean()) / basis.prompt_factor - fixed)
        source = calls.source
    context = basis.assume.take("resolve_context_tokens", context, source)
    reply = basis.reply("resolve", EXPECTED_REPLY_TOKENS, "assumed")
    return basis.volume("resolve", n, n, n * (fixed + context), n * reply)


def _description_volume(basis: _Basis, kinds: Mapping[str, NameCounts]) -> tuple[Volume, float]:
    """Forecast the merged descriptions. Also returns the tokens of one."""
    spec = describe_spec(basis.prompts, basis.settings)
    n = sum(names.to_describe for names in kinds.values())
    texts = sum(names.to_describe_tokens for names in kinds.values())
    expected = min(DESCRIPTION_KEPT_SHARE * texts / n, spec.max_output_tokens) if n else 0.0
    source = f"assumed: {DESCRIPTION_KEPT_SHARE:g} of the descriptions that it replaces"
    reply = basis.reply("describe", expected, source)
    fixed = basis.first_request("describe", describe("entity", "X", ["a", "b"], spec))
    prompt = texts + sum(names.to_describe * (fixed + names.title_tokens) for names in kinds.values())
    return basis.volume("describe", n, n, prompt, n * reply, chain=1.0 if n else 0.0), reply


def _report_call(basis: _Basis) -> tuple[float, float]:
    """Return the tokens of a report's prompt without its data, and the tokens of the report."""
    spec = report_spec(basis.settings, basis.prompts)
    fixed = basis.with_period("report", partial(report, Context("", {}, 0), spec)) + MEAN_HEADING_TOKENS
    if needs_overview(basis.settings, basis.prompts):
        fixed += ABOUT_TOKENS
    limit = min(spec.max_tokens, spec.call.max_output_tokens or spec.max_tokens)
    expected, source = LIMIT_USED_SHARE * limit, f"assumed: {LIMIT_USED_SHARE:g} of the limit"
    if basis.offline("report"):
        expected, source = OFFLINE_REPORT_TOKENS, "the offline engine's mean on the paper's corpus"
    return fixed, basis.reply("report", expected, source)


def _composed_share(basis: _Basis, name: str, hierarchy: str) -> float:
    """Return the share of a hierarchy's reports that are composed without a model call."""
    share = COMPOSED_SHARES[hierarchy][basis.settings.composes_below]
    source, counts = _MEASURED, basis.evidence.counts
    if share and hierarchy == "leiden" and "composed" in counts and counts["communities"]:
        share, source = counts["composed"] / counts["communities"], "measured on the index at --root"
    return min(1.0, basis.assume.take(name, share, source)) if share else 0.0


def _report_volume(
    basis: _Basis, names: Mapping[str, tuple[NameCounts, NameCounts]], merged_tokens: float
) -> tuple[Volume, float]:
    """Forecast one report per Leiden community. Also returns the number of composed ones."""
    fixed, reply = _report_call(basis)
    counts, calls = basis.evidence.counts, basis.evidence.replies.get("report")
    ratio, source = COMMUNITIES_PER_ENTITY, _MEASURED
    measured = counts.get("entities") and counts.get("communities")
    if measured:
        ratio = counts["communities"] / counts["entities"]
        source = f"measured on the {counts['entities']:,} entities of the index at --root"
    n = basis.assume.take("communities_per_entity", ratio, source) * names["entities"][1].distinct
    composed = n * _composed_share(basis, "composed_share", "leiden")
    # Record tokens per community in the sample and in the whole corpus.
    sampled, whole = (
        _ratio(
            entities.record_tokens(merged_tokens) + relationships.record_tokens(merged_tokens),
            ratio * entities.distinct,
        )
        for entities, relationships in zip(names["entities"], names["relationships"], strict=True)
    )
    context, source = CONTEXTS_PER_RECORD * whole, f"assumed: {CONTEXTS_PER_RECORD:g} times the records"
    context = _ratio(n * context - composed * COMPOSED_TOKENS, n - composed)
    if measured and calls is not None and calls.n >= MIN_CALLS:
        context = float(calls.prompt_tokens.mean()) / basis.prompt_factor - fixed
        context, source = context * _ratio(whole, sampled), f"{calls.source}, with more records"
    context = min(max(context, 0.0), float(basis.settings.reports.context_tokens))
    context = basis.assume.take("report_context_tokens", context, source)
    chain, n = min(LEIDEN_LEVELS, max(n, 1.0)), n - composed
    return basis.volume("report", n, n, n * (fixed + context), n * reply, chain=chain), composed


def _attributed_report_volume(
    basis: _Basis, kinds: Mapping[str, NameCounts], merged_tokens: float
) -> tuple[Volume, float]:
    """Forecast the reports of attributed communities: the finest level from elements, others from reports.

    Also returns the number of composed ones.
    """
    fixed, reply = _report_call(basis)
    shrink = 1 / max(2.0, ATTRIBUTED_FILL * basis.settings.attributed.max_size)  # from level to level
    ratio = basis.assume.take("attributed_per_entity", shrink / (1 - shrink), _MEASURED)
    n = ratio * kinds["entities"].distinct
    prompt = n * (fixed + reply * REPORT_TEXT_SHARE) + kinds["entities"].record_tokens(merged_tokens)
    prompt += INNER_RELATIONSHIPS * kinds["relationships"].record_tokens(merged_tokens)
    levels = min(basis.settings.attributed.max_levels, 1.0 + math.log(max(n, 2.0)) / math.log(1 / shrink))
    composed = n * _composed_share(basis, "attributed_composed_share", "attributed")
    prompt, n = prompt - composed * (fixed + COMPOSED_TOKENS), n - composed
    return basis.volume("report", n, n, max(prompt, n * fixed), n * reply, chain=levels), composed


def _summary_volume(basis: _Basis) -> Volume:
    """Forecast the summaries of a tree over chunks, level by level."""
    spec, options, corpus = summary_spec(basis.settings, basis.prompts), basis.settings.tree, basis.corpus
    fixed = basis.with_period("summary", partial(summary, Context("", {}, 0), spec))
    budget = context_tokens(options, basis.settings.chunking)
    limit = spec.output_tokens(round(SUMMARY_FILL * budget))
    limit = min(limit, spec.call.max_output_tokens or limit)
    reply = basis.reply("summary", LIMIT_USED_SHARE * limit, f"assumed: {LIMIT_USED_SHARE:g} of the limit")
    max_nodes = basis.assume.take("nodes_per_summary", NODES_PER_SUMMARY, _MEASURED)
    nodes = corpus.chunks
    node_tokens = corpus.passage_tokens / max(1.0, corpus.sent_chunks) + RECORD_OVERHEAD_TOKENS
    calls = prompt = 0.0
    levels = 0
    while has_next_level(round(nodes), levels, options.max_levels):
        node_tokens = min(node_tokens, max_record_tokens(budget) + NUMBER_TOKENS)
        per_summary = min(max_nodes, 1 + SUMMARY_FILL * ((budget - HEADING_TOKENS) // node_tokens - 1))
        prompt += nodes * node_tokens * CLUSTERS_PER_NODE + nodes / per_summary * fixed
        nodes, node_tokens, levels = nodes / per_summary, reply + RECORD_OVERHEAD_TOKENS, levels + 1
        calls += nodes
    return basis.volume("summary", calls, calls, prompt, calls * reply, chain=float(levels))


def _notes(settings: Settings, corpus: CorpusCounts, volumes: Sequence[Volume], measured: bool) -> list[str]:
    notes = []
    if corpus.read_share < 1:
        notes.append(
            f"Read {corpus.read_share:.1%} of the input's bytes and extrapolated all figures. Pass --full to "
            "read everything."
        )
    if corpus.left_out:
        notes.append(
            f"{corpus.left_out:,.0f} chunks contain only paragraphs that many documents repeat, and are not "
            "sent."
        )
    if corpus.repeated:
        notes.append(f"{corpus.repeated:,.0f} chunks repeat another chunk and are not sent again.")
    if corpus.too_long:
        notes.append(f"{corpus.too_long:,.0f} chunks do not fit the context window and are not sent.")
    if corpus.unreadable:
        notes.append(f"{corpus.unreadable:,} files or rows cannot be read and are left out.")
    online = dict.fromkeys(v.model for v in volumes if not settings.model(v.model).is_local)
    for model in map(settings.model, online):
        if not all(e.tokens_per_minute or e.requests_per_minute or e.max_in_flight for e in model.endpoints):
            notes.append(
                f"No rate limit is known for {model.model}, so times assume run.initial_in_flight = "
                f"{settings.run.initial_in_flight} concurrent calls per endpoint."
            )
    if online and not measured:
        notes.append(
            "Reply lengths and names per chunk are assumed and vary widely between models. For a reliable "
            "forecast, index a few documents with these settings and pass that index as --root."
        )
    if online:
        notes.append(
            "Times assume that rate limits are fully used; they include waiting for slow calls at the end of "
            "a stage, but no retries or corrections. Costs do not include discounts for cached prompts."
        )
    if settings.claims.enabled:
        notes.append("Claims in the contexts of reports are not counted.")
    return notes
