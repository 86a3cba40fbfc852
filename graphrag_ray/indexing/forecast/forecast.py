"""The forecast of a run: calls, tokens, cost and time of each stage, and all that they rest on.

First requests are counted exactly (`corpus_counts.py`). Everything that depends on replies is a ratio: names
per chunk and their growth from extractions of a sample, communities per entity, tokens per report, and so on.
Calls that were made for an index (a trial, or the index itself) replace ratios by what they came to.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.corpus.tokens import count_many, vocabulary_for
from graphrag_ray.graph.about_corpus import ENTITIES_TOKENS, TITLES_TOKENS, about, about_spec, is_to_be_told
from graphrag_ray.graph.delimited_records import COMPLETION, DELIMITERS, FIELD, RECORD
from graphrag_ray.graph.descriptions import JOINED_TEXTS, DescribeSpec, describe, describe_spec, distinct
from graphrag_ray.graph.extraction_dialogue import ExtractedRecords, ShownChunk, claims, claims_spec
from graphrag_ray.graph.plan import HEADING_TOKENS, NUMBER_TOKENS
from graphrag_ray.graph.report_context import Context
from graphrag_ray.graph.report_dialogue import report, report_spec
from graphrag_ray.graph.summary_dialogue import context_tokens, longest_record, summary, summary_spec
from graphrag_ray.graph.summary_tree import goes_on
from graphrag_ray.indexing.forecast.bounds import (
    Bound,
    Replies,
    Volume,
    bound_of,
    cost_of,
    latency_of,
)
from graphrag_ray.indexing.forecast.corpus_counts import CorpusCounts
from graphrag_ray.llm.request_sizes import PACK_TOKENS, TOKENS_PER_MESSAGE, text_size

KNOWN: Mapping[str, str] = {
    "glean_yes": "share of gleaning questions answered with yes",
    "gleaned": "records that a gleaning adds, for each of the first reply",
    "entities_per_chunk": "entities that the replies for a chunk name",
    "relationships_per_chunk": "relationships that the replies for a chunk name",
    "entities": "different entities in the whole corpus",
    "relationships": "different relationships in the whole corpus",
    "entity_description_tokens": "tokens of an entity's description, as extracted",
    "relationship_description_tokens": "tokens of a relationship's description, as extracted",
    "reply_tokens.extract": "tokens of a reply to the extraction prompt",
    "reply_tokens.glean_check": "tokens of a yes or no",
    "reply_tokens.glean": "tokens of a gleaned reply",
    "reply_tokens.claims": "tokens of a reply to the claims prompt",
    "reply_tokens.describe": "tokens of a description that replaces several",
    "reply_tokens.report": "tokens of a report",
    "reply_tokens.summary": "tokens of a summary of chunks or of summaries",
    "reply_tokens.about": "tokens of the reply that says what the corpus is about",
    "communities_per_entity": "communities for each entity",
    "attributed_per_entity": "communities of hierarchy attributed for each entity",
    "nodes_per_summary": "chunks or summaries that one summary is written from, where they are short",
    "report_context_tokens": "tokens of the data in a report's prompt",
    "prompt_tokens_factor": "tokens that the endpoint counts for each of ours in a prompt",
    "ttft_s": "seconds to the first token of a reply",
    "tokens_per_s": "tokens per second after it",
    "slow_share": "share of calls that take much longer than others of their length",
    "slow_factor": "how many times as long these take",
    "own_s": "seconds without calls: Ray's start, reading, tables, what the offline engine does",
}
"""Every name that `--assume` takes, and what it means."""

OWN_S, OWN_S_PER_CHUNK = 25.0, 0.003
"""What a run takes besides its calls, on two cores: benchmarks/RESULTS.md."""
MIN_CALLS = 5
"""Fewer replies to a prompt say nothing about their length."""
MODEL_FACTOR = {"entities": 1.28, "relationships": 1.49}
"""Names that a model finds for each of the offline engine: GPT-4 8,564 and 20,691 (paper 4.1, the podcast
corpus), the offline engine 6,668 and 13,879 before it prunes."""
DESCRIPTION_TOKENS = {"entities": 33.0, "relationships": 14.0}
"""Of the prompt's examples, which models imitate."""
GLEAN_YES, GLEANED = 0.5, 0.35
CLAIMS_REPLY = 400.0
KEPT_OF_DESCRIPTIONS = 0.7
"""Of several descriptions' tokens, what the one has that replaces them: all of it, said once."""
KEPT_OF_LIMIT = 0.6
"""Of the tokens that a report or a summary may have, what it has."""
OFFLINE_REPORT_TOKENS = 440.0
"""Of a report of the offline engine: its mean on the podcast corpus of the paper."""
SHOWN_OF_REPORT = 0.85
"""Of a reply that is a report, what other contexts and its embedding hold: not the JSON around it."""
ABOUT_TOKENS, TITLE_TOKENS = 60.0, 12.0
"""Of what is said of the corpus as a whole; of a document's title in its prompt."""
LINE_TOKENS = 3
"""Commas, quotes and the line's end of a record in a context."""
COMMUNITIES_PER_ENTITY = 0.21
LEVELS = 5.0
"""Of the Leiden hierarchy."""
SHOWN_RECORDS = 1.5
"""How many times a record is in the contexts of reports, on average: once for each level that it fits."""
MEAN_HEADINGS = 36
"""What the headings of a context take."""
FULL, INNER_RELATIONSHIPS = 0.46, 0.25
"""How full an attributed community is of the most that it may hold; the share of relationships whose ends are
in one community of the finest level."""
NODES_PER_SUMMARY, FULL_SUMMARY, IN_SEVERAL = 6.0, 0.65, 1.04
"""Of the other nodes that find room beside a long one, how many there are; clusters that a node is in."""
_MEASURED = "as on the podcasts and on Wikipedia's passages, measured"


@dataclass(frozen=True, slots=True)
class Assumption:
    """source: where the value comes from, for people."""

    name: str
    value: float
    source: str

    @property
    def meaning(self) -> str:
        return KNOWN[self.name]


class Assumptions:
    """Collects what is assumed, in the order in which it was needed. `given` comes before all else."""

    def __init__(self, given: Mapping[str, float] | None = None) -> None:
        self._given = dict(given or {})
        self._taken: dict[str, Assumption] = {}

    def take(self, name: str, value: float, source: str) -> float:
        """The value to go on with, noted: the given one, else this one."""
        if name in self._given:
            value, source = self._given[name], "given by --assume"
        self._taken[name] = Assumption(name, value, source)
        return value

    def __iter__(self) -> Iterator[Assumption]:
        return iter(self._taken.values())


def parse_assumptions(given: Sequence[str]) -> dict[str, float]:
    """`name=value` pairs. Raises UsageError naming the nearest known name, or what is wrong."""
    out = {}
    for text in given:
        name, sep, value = (part.strip() for part in text.partition("="))
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(KNOWN)}"
            raise UsageError(f"--assume {text!r}: there is no assumption {name!r}; {hint}")
        try:
            out[name] = float(value)
        except ValueError:
            out[name] = math.nan
        if not sep or not math.isfinite(out[name]) or out[name] < 0:
            raise UsageError(f"--assume {text!r}: write it as name=number, the number not negative")
        if name in ("glean_yes", "slow_share") and out[name] > 1:
            raise UsageError(f"--assume {text!r}: it is a share, from 0 to 1")
        divisors = ("tokens_per_s", "slow_factor", "nodes_per_summary", "prompt_tokens_factor")
        if name in divisors and not out[name]:
            raise UsageError(f"--assume {text!r}: it must be above 0")
    return out


@dataclass(frozen=True)
class Learned:
    """What there is to learn from beside the counts.

    offline          the offline engine's extractions of a random sample of chunks
    own              the model's, of chunks that a journal answers
    replies          calls that were made, by prompt
    prompt_factor    tokens that the endpoint counted for each of ours
    items            finished dialogues, by stage
    counts           entities and communities of the trial's snapshot; {} where there is none
    """

    offline: Sequence[ExtractedRecords]
    own: Sequence[ExtractedRecords] = ()
    replies: Mapping[str, Replies] = field(default_factory=dict)
    prompt_factor: float | None = None
    items: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StageForecast:
    """cost_usd: None where the price is unknown; bound: None for the offline engine; left: what is
    still to be asked of an index that is partly done."""

    volume: Volume
    model_id: str
    cost_usd: float | None
    bound: Bound | None
    left: Volume
    left_cost_usd: float | None
    left_bound: Bound | None


@dataclass(frozen=True)
class Forecast:
    """graph: entities, relationships, communities, levels. own_s: seconds without calls."""

    corpus: CorpusCounts
    stages: tuple[StageForecast, ...]
    graph: Mapping[str, float]
    assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    offline: bool
    own_s: float = 0.0

    @property
    def totals(self) -> dict[str, Any]:
        return self._sum([(s.volume, s.cost_usd, s.bound) for s in self.stages])

    @property
    def left(self) -> dict[str, Any]:
        return self._sum([(s.left, s.left_cost_usd, s.left_bound) for s in self.stages])

    def _sum(self, rows: Sequence[tuple[Volume, float | None, Bound | None]]) -> dict[str, Any]:
        costs = [cost for _, cost, _ in rows]
        seconds = [bound.seconds for _, _, bound in rows if bound is not None]
        return {
            "calls": sum(v.calls for v, _, _ in rows),
            "prompt_tokens": sum(v.prompt_tokens for v, _, _ in rows),
            "completion_tokens": sum(v.completion_tokens for v, _, _ in rows),
            "cost_usd": None if None in costs else sum(c for c in costs if c is not None),
            "seconds": self.own_s + sum(seconds) if seconds else None,
        }

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {
                **asdict(s.volume),
                "model_id": s.model_id,
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
    learned: Learned,
    given: Mapping[str, float],
) -> Forecast:
    """given: assumptions of the caller's own, which come before what is measured."""
    assume = Assumptions(given)
    source = "our own count" if learned.prompt_factor is None else "measured, the endpoint's count by ours"
    factor = assume.take("prompt_tokens_factor", learned.prompt_factor or 1.0, source)
    basis = _Basis(settings, prompts, corpus, learned, assume, factor)
    volumes: list[Volume] = []
    kinds: dict[str, Names] = {}
    described = 0.0
    if settings.has_graph:
        volumes, kinds, described = _of_graph(basis)
    if "tree" in settings.built_hierarchies:
        volumes.append(_summarising(basis))
    written = [v for v in volumes if v.stage in ("report", "summary")]
    sizes = {kind: kinds[kind].distinct if kinds else 0.0 for kind in ("entities", "relationships")}
    sizes |= {"communities": sum(v.items for v in written)}
    if settings.embeddings.enabled:
        texts = corpus.chunks - corpus.repeated + sum(sizes.values())
        tokens = corpus.embed_tokens + sum(of.lines(described) for of in kinds.values())
        tokens += sum(v.completion_tokens for v in written) * SHOWN_OF_REPORT
        model = settings.model(settings.model_name("embed"))
        limits = [e.tokens_per_minute for e in model.endpoints if e.tokens_per_minute]
        calls = max(texts / model.embedding_batch, tokens / min([PACK_TOKENS, *limits]))
        volumes.append(basis.volume("embed", texts, math.ceil(calls), tokens, 0.0, exact="chunks exact"))
    sizes["levels"] = max((round(v.chain) for v in written), default=0)
    latency = latency_of(learned.replies, assume.take, settings.run.hedge)
    stages, open_chunks = [], corpus.asked - corpus.answered
    for volume in volumes:
        model, workers = settings.model(volume.model), settings.run.default_in_flight
        # Finished dialogues of later stages say something only where every chunk is answered.
        share = _ratio(open_chunks, corpus.asked) if volume.stage == "extract" else 1.0
        if volume.stage != "extract" and open_chunks <= 0 and volume.items:
            share = max(0.0, 1.0 - learned.items.get(volume.stage, 0) / volume.items)
        left = volume.times(share)
        bounds = [bound_of(v, model, latency, workers) for v in (volume, left)]
        costs = [cost_of(v, model) for v in (volume, left)]
        stages.append(StageForecast(volume, model.model_id, costs[0], bounds[0], left, costs[1], bounds[1]))
    own_s = assume.take("own_s", OWN_S + OWN_S_PER_CHUNK * corpus.chunks, "on two cores, assumed")
    notes = tuple(_notes(settings, corpus, volumes, bool(learned.own)))
    return Forecast(corpus, tuple(stages), sizes, tuple(assume), notes, basis.offline("extract"), own_s)


@dataclass(frozen=True)
class _Basis:
    """What every stage's forecast starts from."""

    settings: Settings
    prompts: Mapping[str, Prompt]
    corpus: CorpusCounts
    learned: Learned
    assume: Assumptions
    prompt_factor: float

    def tokens(self, stage: str, text: str) -> int:
        return text_size(text, self.settings.model(self.settings.model_name(stage)))

    def offline(self, stage: str) -> bool:
        return self.settings.model(self.settings.model_name(stage)).provider == "offline"

    def first_request(self, stage: str, dialogue: Dialogue[Any]) -> int:
        """Tokens of a dialogue's first request."""
        request = next(dialogue)
        assert isinstance(request, ChatRequest)
        return sum(self.tokens(stage, m.content) + TOKENS_PER_MESSAGE for m in request.messages)

    def reply(self, prompt: str, value: float, source: str) -> float:
        """Tokens of a reply: measured where calls were made, else `value`."""
        found = self.learned.replies.get(prompt)
        if found is not None and found.n >= MIN_CALLS:
            value, source = float(found.completion_tokens.mean()), found.source
        return self.assume.take(f"reply_tokens.{prompt}", value, source)

    def volume(
        self, stage: str, items: float, calls: float, prompt: float, completion: float, **more: Any
    ) -> Volume:
        name = self.settings.model_name(stage)
        return Volume(stage, name, items, calls, prompt * self.prompt_factor, completion, **more)


@dataclass(frozen=True)
class Names:
    """Of one kind, what some chunks name: entities, or relationships as pairs of them.

    distinct       different names; once: of these, in one chunk only
    pairs          of a name and a chunk that it is in
    descriptions   different ones of each name, together
    single         names with one description; several: with more
    asked          names that a model is asked to describe; asked_tokens: of their descriptions
    """

    chunks: float
    distinct: float
    once: float
    pairs: float
    descriptions: float
    single: float
    several: float
    asked: float
    asked_tokens: float
    title_tokens: float
    description_tokens: float

    def lines(self, described: float) -> float:
        """Tokens of all records as contexts show them. described: of a description that replaces several."""
        texts = self.single * self.description_tokens + self.several * described
        return self.distinct * (self.title_tokens + LINE_TOKENS) + texts


def names_of(
    kind: str, extractions: Sequence[ExtractedRecords], vocabulary: str, spec: DescribeSpec
) -> Names:
    """kind: "entities" or "relationships"."""
    found: dict[tuple[str, ...], tuple[set[int], list[str]]] = {}
    for number, records in enumerate(extractions):
        mentions: list[tuple[tuple[str, ...], str]]
        ends = [(r.source, r.target, r.description) for r in records.relationships if r.source != r.target]
        if kind == "entities":
            mentions = [((e.title,), e.description) for e in records.entities]
            mentions += [((name,), "") for source, target, _ in ends for name in (source, target)]
        else:
            mentions = [((min(s, t), max(s, t)), description) for s, t, description in ends]
        for name, description in mentions:
            chunks, texts = found.setdefault(name, (set(), []))
            chunks.add(number)
            texts.append(description)
    per_name = [distinct(texts) for _, texts in found.values()]
    n = np.array([len(texts) for texts in per_name], dtype=np.int64)
    sizes = count_many([text for texts in per_name for text in texts], vocabulary) if n.sum() else n[:0]
    titles = count_many([" ".join(name) for name in found], vocabulary) if found else n
    tokens = np.bincount(np.repeat(np.arange(len(n)), n), weights=sizes + 1, minlength=len(n))
    frequency = np.array([len(chunks) for chunks, _ in found.values()], dtype=np.int64)
    asked = (n > 1) & ((n > JOINED_TEXTS) | (tokens > spec.joined_tokens))
    return Names(
        chunks=len(extractions),
        distinct=len(found),
        once=int((frequency == 1).sum()),
        pairs=int(frequency.sum()),
        descriptions=int(n.sum()),
        single=int((n == 1).sum()),
        several=int((n > 1).sum()),
        asked=int(asked.sum()),
        asked_tokens=float(tokens[asked].sum()),
        title_tokens=float(np.average(titles, weights=frequency)) if found else 4.0,
        description_tokens=float(sizes.mean()) if len(sizes) else 0.0,
    )


def grown(names: Names, distinct: float, once: float, pairs: float, chunks: float) -> Names:
    """The names of more chunks, each described as in the sample."""
    # Names with several descriptions are about those of several chunks.
    alone = names.distinct - names.several
    several = distinct - min(distinct, once * _ratio(alone, names.once))
    single = (distinct - several) * _ratio(names.single, alone)
    descriptions = pairs * _ratio(names.descriptions, names.pairs)
    of_several = max(2 * several, descriptions - single)
    return replace(
        names,
        chunks=chunks,
        distinct=distinct,
        once=once,
        pairs=pairs,
        descriptions=descriptions,
        single=single,
        several=several,
        asked=names.asked * _ratio(several, names.several),
        asked_tokens=names.asked_tokens * _ratio(of_several, names.descriptions - names.single),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _named(basis: _Basis, kind: str) -> tuple[Names, Names]:
    """The names of a sample, and of the whole corpus: as the model named them in the chunks that a journal
    answers; else as many as the offline engine finds, times a factor that depends on the model.

    The number of names grows with that of chunks as that of words with a text's length (Herdan 1960, Heaps
    1978). At any size the slope of that growth, on logarithmic scales, is the share of names in one chunk
    only (Good 1953). It falls, slowly, with the size of the corpus: so a small trial's is averaged with that
    of the larger sample.
    """
    learned, chunks, spec = basis.learned, basis.corpus.asked, describe_spec(basis.prompts, basis.settings)
    model = basis.settings.model(basis.settings.model_name("extract"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    sample = names_of(kind, learned.offline, vocabulary, spec)
    slope = _ratio(sample.once, sample.distinct)
    total = sample.distinct * max(1.0, _ratio(chunks, sample.chunks)) ** slope
    source = f"the offline engine's reading of {sample.chunks:,} chunks"
    source += "" if sample.chunks >= chunks else ", extrapolated (Heaps' law)"
    tokens_source, factor = source, 1.0
    if learned.own and not basis.offline("extract"):
        sample = names_of(kind, learned.own, vocabulary, spec)
        steepness = (2 * _ratio(sample.once, sample.distinct) + slope) / 3
        total = sample.distinct * max(1.0, chunks / sample.chunks) ** steepness
        described, tokens_source = sample.description_tokens, f"measured on {sample.chunks:,} answered chunks"
        source = f"{tokens_source}, grown as in the offline engine's reading"
    elif not basis.offline("extract"):
        factor, tokens_source = MODEL_FACTOR[kind], "as long as in the prompt's own examples"
        source += f", times {factor:g} as on the paper's corpus"
        described = DESCRIPTION_TOKENS[kind]
    else:
        described = sample.description_tokens
    per_chunk = factor * _ratio(sample.pairs, sample.chunks)
    pairs = basis.assume.take(f"{kind}_per_chunk", per_chunk, source) * chunks
    total = min(basis.assume.take(kind, factor * total, source), pairs)
    # Names that are not in one chunk only are in two at least.
    whole = grown(sample, total, max(slope * total, 2 * total - pairs), pairs, chunks)
    name = f"{'entity' if kind == 'entities' else 'relationship'}_description_tokens"
    tokens = basis.assume.take(name, described, tokens_source)
    asked_tokens = whole.asked_tokens * _ratio(tokens, sample.description_tokens)
    return sample, replace(whole, description_tokens=tokens, asked_tokens=asked_tokens)


def _of_graph(basis: _Basis) -> tuple[list[Volume], dict[str, Names], float]:
    """The stages from extraction to reports; the names of each kind; and the tokens of a description that
    replaces several."""
    settings, prompts, corpus = basis.settings, basis.prompts, basis.corpus
    names = {kind: _named(basis, kind) for kind in ("entities", "relationships")}
    kinds = {kind: whole for kind, (_, whole) in names.items()}
    entities, volumes = kinds["entities"], [_extraction(basis, kinds)]
    if settings.claims.enabled:
        n, spec = corpus.asked, claims_spec(prompts, settings)
        prompt = n * basis.first_request("claims", claims(ShownChunk(""), ["X"], spec))
        prompt += corpus.passage_tokens + entities.pairs * (entities.title_tokens + 1)
        reply = basis.reply("claims", CLAIMS_REPLY, "assumed")
        volumes.append(basis.volume("claims", n, n, prompt, n * reply))
    describing, described = _describing(basis, kinds)
    volumes.append(describing)
    if settings.built_hierarchies and is_to_be_told(settings, prompts):
        prompt = basis.first_request("about", about("", "", about_spec(settings, prompts)))
        prompt += min(TITLES_TOKENS, corpus.documents * TITLE_TOKENS)
        prompt += min(ENTITIES_TOKENS, entities.lines(described))
        volumes.append(basis.volume("about", 1, 1, prompt, basis.reply("about", ABOUT_TOKENS, "assumed")))
    reports = []
    if "leiden" in settings.built_hierarchies:
        reports.append(_reporting(basis, names, described))
    if "attributed" in settings.built_hierarchies:
        reports.append(_attributed(basis, kinds, described))
    volumes += [reports[0].plus(reports[1])] if len(reports) == 2 else reports
    return volumes, kinds, described


def _extraction(basis: _Basis, kinds: Mapping[str, Names]) -> Volume:
    """First turns exactly as they are sent; then gleaning, turn by turn (graph/extraction_dialogue.py)."""
    n, rounds = basis.corpus.asked, basis.settings.extraction.max_gleanings
    check = basis.tokens("extract", basis.prompts["glean_check"].text({})) + TOKENS_PER_MESSAGE
    glean = basis.tokens("extract", basis.prompts["glean"].text(DELIMITERS)) + TOKENS_PER_MESSAGE
    yes = gleaned = 0.0
    if rounds:
        value, source = GLEAN_YES, "assumed"
        asked, answered = (basis.learned.replies.get(name) for name in ("glean_check", "glean"))
        if asked is not None and asked.n >= MIN_CALLS:
            value, source = min(1.0, (answered.n if answered else 0) / asked.n), asked.source
        elif basis.offline("extract"):
            value, source = 0.0, "the offline engine has nothing to add"
        yes = basis.assume.take("glean_yes", value, source)
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
    prompt, going = prompt_tokens / max(n, 1.0), n
    for _ in range(rounds):
        verdict = basis.reply("glean_check", 1.0, "one word is asked for")
        more = basis.reply("glean", first * gleaned, "from `gleaned` and the first reply")
        prompt += latest + TOKENS_PER_MESSAGE + check
        calls, completion = calls + going * (1 + yes), completion + going * (verdict + yes * more)
        prompt_tokens += going * (prompt + yes * (prompt + verdict + TOKENS_PER_MESSAGE + glean))
        prompt, latest, going = prompt + verdict + TOKENS_PER_MESSAGE + glean, more, going * yes
    shape = {"chain": 1.0 + 2 * rounds, "last": latest, "exact": "first turns exact"}
    return basis.volume("extract", n, calls, prompt_tokens, completion, **shape)


def _describing(basis: _Basis, kinds: Mapping[str, Names]) -> tuple[Volume, float]:
    """Names with several descriptions, and the tokens of one that replaces them."""
    spec = describe_spec(basis.prompts, basis.settings)
    n, texts = (sum(getattr(of, name) for of in kinds.values()) for name in ("asked", "asked_tokens"))
    kept = min(KEPT_OF_DESCRIPTIONS * texts / n, spec.max_output_tokens) if n else 0.0
    source = f"{KEPT_OF_DESCRIPTIONS:g} of the descriptions that it replaces, assumed"
    reply = basis.reply("describe", kept, source)
    fixed = basis.first_request("describe", describe("entity", "X", ["a", "b"], spec))
    prompt = texts + sum(of.asked * (fixed + of.title_tokens) for of in kinds.values())
    return basis.volume("describe", n, n, prompt, n * reply, chain=1.0 if n else 0.0), reply


def _report_call(basis: _Basis) -> tuple[float, float]:
    """Tokens of a report's prompt without its data, and of the report."""
    spec = report_spec(basis.settings, basis.prompts)
    fixed = float(basis.first_request("report", report(Context("", {}, 0), spec)) + MEAN_HEADINGS)
    if is_to_be_told(basis.settings, basis.prompts):
        fixed += ABOUT_TOKENS
    limit = min(spec.max_tokens, spec.call.max_output_tokens or spec.max_tokens)
    guess, source = KEPT_OF_LIMIT * limit, f"{KEPT_OF_LIMIT:g} of the limit, assumed"
    if basis.offline("report"):
        guess, source = OFFLINE_REPORT_TOKENS, "the offline engine's on the paper's corpus"
    return fixed, basis.reply("report", guess, source)


def _reporting(basis: _Basis, names: Mapping[str, tuple[Names, Names]], described: float) -> Volume:
    """One report for each community. described: tokens of a description that replaces several."""
    fixed, reply = _report_call(basis)
    counts, calls = basis.learned.counts, basis.learned.replies.get("report")
    ratio, source = COMMUNITIES_PER_ENTITY, _MEASURED
    measured = counts.get("entities") and counts.get("communities")
    if measured:
        ratio = counts["communities"] / counts["entities"]
        source = f"as of the {counts['entities']:,} entities of the index that was learned from"
    n = basis.assume.take("communities_per_entity", ratio, source) * names["entities"][1].distinct
    # Tokens of records for each community: of the sample, and of the whole corpus.
    per_community = [
        _ratio(entities.lines(described) + relationships.lines(described), ratio * entities.distinct)
        for entities, relationships in zip(names["entities"], names["relationships"], strict=True)
    ]
    context, how = SHOWN_RECORDS * per_community[1], f"{SHOWN_RECORDS:g} times the records, assumed"
    if measured and calls is not None and calls.n >= MIN_CALLS:
        context = float(calls.prompt_tokens.mean()) / basis.prompt_factor - fixed
        context, how = (
            context * _ratio(per_community[1], per_community[0]),
            f"{calls.source}, with more records",
        )
    context = min(max(context, 0.0), float(basis.settings.reports.context_tokens))
    context = basis.assume.take("report_context_tokens", context, how)
    return basis.volume("report", n, n, n * (fixed + context), n * reply, chain=min(LEVELS, max(n, 1.0)))


def _attributed(basis: _Basis, kinds: Mapping[str, Names], described: float) -> Volume:
    """The reports of attributed communities: of the finest level from elements, above from reports alone."""
    fixed, reply = _report_call(basis)
    fewer = 1 / max(2.0, FULL * basis.settings.attributed.max_size)  # communities of a level for each below
    ratio = basis.assume.take("attributed_per_entity", fewer / (1 - fewer), _MEASURED)
    n = ratio * kinds["entities"].distinct
    prompt = n * (fixed + reply * SHOWN_OF_REPORT) + kinds["entities"].lines(described)
    prompt += INNER_RELATIONSHIPS * kinds["relationships"].lines(described)
    levels = min(basis.settings.attributed.max_levels, 1.0 + math.log(max(n, 2.0)) / math.log(1 / fewer))
    return basis.volume("report", n, n, prompt, n * reply, chain=levels)


def _summarising(basis: _Basis) -> Volume:
    """The summaries of a tree over chunks, level by level."""
    spec, options, corpus = summary_spec(basis.settings, basis.prompts), basis.settings.tree, basis.corpus
    fixed = basis.first_request("summary", summary(Context("", {}, 0), spec))
    limit = min(spec.max_tokens, spec.call.max_output_tokens or spec.max_tokens)
    reply = basis.reply("summary", KEPT_OF_LIMIT * limit, f"{KEPT_OF_LIMIT:g} of the limit, assumed")
    usual = basis.assume.take("nodes_per_summary", NODES_PER_SUMMARY, _MEASURED)
    most = context_tokens(options, basis.settings.chunking)
    nodes, each = corpus.chunks, corpus.passage_tokens / max(1.0, corpus.asked) + LINE_TOKENS
    calls = prompt = 0.0
    levels = 0
    while goes_on(round(nodes), levels, options.max_levels):
        each = min(each, longest_record(most) + NUMBER_TOKENS)
        fewer = min(usual, 1 + FULL_SUMMARY * ((most - HEADING_TOKENS) // each - 1))
        prompt += nodes * each * IN_SEVERAL + nodes / fewer * fixed
        nodes, each, levels = nodes / fewer, reply + LINE_TOKENS, levels + 1
        calls += nodes
    return basis.volume("summary", calls, calls, prompt, calls * reply, chain=float(levels))


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
    online = dict.fromkeys(v.model for v in volumes if not settings.model(v.model).is_local)
    for model in map(settings.model, online):
        if not all(e.tokens_per_minute or e.requests_per_minute or e.max_in_flight for e in model.endpoints):
            notes.append(
                f"No limit of {model.model} is known: times are for run.default_in_flight = "
                f"{settings.run.default_in_flight} calls at once per endpoint."
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
