"""Tune settings and prompts to a corpus: sample its chunks, ask a model, and measure held-out chunks.

Nothing is read from or written to an index. Replies are cached, so repeating a command costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any, Literal

import numpy as np

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.errors import DialogueFailed, InputError, SettingsError, UsageError
from graphrag_ray.base.index_settings import Chunking, Settings
from graphrag_ray.base.messages import ChatRequest, Usage
from graphrag_ray.base.prompts import Prompt, load_prompts, parse_prompt
from graphrag_ray.base.settings_edit import assign
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.user_settings import require_known_addresses
from graphrag_ray.corpus.chunks import split_into_chunks
from graphrag_ray.corpus.tokens import token_ends, vocabulary_for
from graphrag_ray.engine.in_process import asyncio_runner
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.reply_cache import ReplyCache
from graphrag_ray.engine.work import Outcome
from graphrag_ray.graph.chunk_sample import diverse, nearest_to_centroid
from graphrag_ray.graph.extraction_dialogue import ChunkText, ExtractedRecords, extract, extract_spec
from graphrag_ray.graph.extraction_measures import ExtractionMeasures, measure
from graphrag_ray.graph.tuning_dialogues import (
    MAX_REPLY_TOKENS,
    STAGE,
    CorpusProfile,
    Decided,
    compact,
    corpus_profile,
    draft_schema,
    examples_prompt,
    profile_request,
    sample_text,
    tuning_spec,
    usable_name,
    write_example,
)
from graphrag_ray.indexing.estimate import READ_BYTES, read_corpus
from graphrag_ray.indexing.forecast.corpus_counts import ChunkCounter, CorpusCounts
from graphrag_ray.indexing.stored_prompts import load_names
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.llm.pricing import cost_usd, highest_price
from graphrag_ray.llm.request_sizes import TOKENS_PER_MESSAGE, count_text_tokens
from graphrag_ray.offline.static_embeddings import DIMENSIONS, embed_many
from graphrag_ray.query.model_calls import Asker, Connections, QuestionBudget

Selection = Literal["random", "diverse", "top"]

MAX_SAMPLE_TOKENS = 24_000
PASSAGE = Chunking(size=150, overlap=0, min_last_chunk_tokens=50)
MAX_PASSAGES, MIN_EXAMPLES, MAX_EXAMPLES = 4, 2, 3
SHINGLE, MAX_SHARED = 6, 0.5
"""Passages that share a larger part of their sequences of SHINGLE letters nearly repeat each other."""
EXTRACT_TOKENS, GLEAN_TOKENS, EXAMPLE_TOKENS, PROFILE_TOKENS, SCHEMA_TOKENS = 1_500, 400, 500, 900, 1_500
"""Assumed lengths of replies."""


@dataclass(frozen=True)
class TuningOptions(Decided):
    """What to sample and what is already decided.

    Attributes:
        selection: random; diverse: chunks that cover the variety of the corpus; top: the most typical chunks.
        limit: Number of chunks that the model reads.
        sample: Number of random chunks among which `diverse` and `top` choose.
        holdout: Number of chunks for the comparison. At most a third of the corpus is held out.
        schema: Also draft a schema.
    """

    selection: Selection = "diverse"
    limit: int = 15
    sample: int = 300
    holdout: int = 5
    schema: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (("limit", 1, 200), ("sample", 1, 10_000), ("holdout", 0, 200)):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} must be between {low} and {high:,}")
        if self.language is not None and usable_name(self.language) is None:
            raise UsageError(f"language {self.language[:80]!r} is not the name of a language")


@dataclass(frozen=True)
class TuningSample:
    """Chunks that the model reads, and chunks for the comparison."""

    corpus: CorpusCounts
    chunks: tuple[ChunkText, ...]
    held_out: tuple[ChunkText, ...]

    def passages(self, vocabulary: str, first: Sequence[int] = ()) -> list[ChunkText]:
        """Return short passages that end between sentences: one of each chunk, then further ones.

        Those of the chunks at the positions `first` come first, and those that look rich in names. If others
        are equal, the middle of a chunk comes first, because it may begin and end in mid-sentence. A passage
        that nearly repeats another one comes last. Text that is held out and empty lines are left out.
        """
        by_chunk = []
        for i in dict.fromkeys([*(i for i in first if i < len(self.chunks)), *range(len(self.chunks))]):
            text, header = self.chunks[i].text, self.chunks[i].header
            cuts = split_into_chunks(text, PASSAGE, vocabulary)
            middle = len(cuts) // 2
            pieces = [text[c.start : c.end].strip() for c in cuts[middle:] + cuts[:middle]]
            by_chunk.append([ChunkText(p, header) for p in sorted(pieces, key=_by_richness)])
        candidates = (p for passages in zip_longest(*by_chunk) for p in passages if p is not None)
        chosen: list[ChunkText] = []
        similar: list[ChunkText] = []
        shingles: list[set[str]] = []
        for p in (p for p in candidates if not any(p.text in chunk.text for chunk in self.held_out)):
            plain = compact(p.text)
            own = {plain[i : i + SHINGLE] for i in range(max(1, len(plain) - SHINGLE + 1))}
            if any(len(own & other) > MAX_SHARED * min(len(own), len(other)) for other in shingles):
                similar.append(p)
            else:
                chosen.append(p)
                shingles.append(own)
            if len(chosen) == MAX_PASSAGES:
                break
        return [
            ChunkText("\n".join(filter(str.strip, p.text.split("\n"))), p.header)
            for p in [*chosen, *similar][:MAX_PASSAGES]
        ]


@dataclass(frozen=True)
class PlannedCalls:
    """Expected calls for one purpose. cost_usd is None if the price is unknown."""

    purpose: str
    stage: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


@dataclass(frozen=True)
class TuningResult:
    """Settings, prompts and schema for a corpus.

    Attributes:
        profile: What the model says about the corpus.
        changes: New settings by section and key.
        prompts: Texts of new prompt files by name.
        schema: The draft of a schema, or None.
        before, after: Measures of the held-out chunks, or None without any.
        notes: What could not be used, and why.
    """

    profile: CorpusProfile
    changes: Mapping[tuple[str, ...], Any]
    prompts: Mapping[str, str]
    schema: Mapping[str, Any] | None
    before: ExtractionMeasures | None
    after: ExtractionMeasures | None
    notes: tuple[str, ...]
    accounts: Accounts = field(repr=False)

    def report(self) -> dict[str, Any]:
        """Return profile, measures and usage for a JSON file."""
        return {
            "profile": asdict(self.profile),
            "settings": {".".join(path): value for path, value in self.changes.items()},
            "before": asdict(self.before) if self.before else None,
            "after": asdict(self.after) if self.after else None,
            "notes": list(self.notes),
        }


def tune_corpus(
    input_url: str,
    settings: Settings,
    options: TuningOptions,
    cache: ReplyCache | None = None,
    agree: Callable[[TuningSample, Sequence[PlannedCalls]], object] = lambda *_: None,
    notify: Callable[[str], object] = lambda _: None,
) -> TuningResult:
    """Tune settings to the corpus at INPUT.

    Args:
        cache: Cache of replies.
        agree: Called with the sample and its cost before the first call. It raises an error to refuse.
        notify: Called with a sentence before each step.

    Raises:
        SettingsError: No model is configured.
        InputError: INPUT has no chunks.
        DialogueFailed: The model does not describe the corpus in a usable form.
        BudgetSpent: A call could exceed `budget.max_total_tokens` or `budget.max_cost_usd`.
        ModelUnavailable: The endpoint refuses all requests.
    """
    for stage in (STAGE, "extract"):
        if settings.model(settings.model_name(stage)).provider == "offline":
            raise SettingsError(
                f"`tune` needs a language model for stage `{stage}`, but only the offline engine is "
                "configured. Pass --model, or set `models` in the settings. --dry-run needs no model."
            )
    require_known_addresses(settings, (STAGE, "extract"))
    sample, planned = plan_tuning(input_url, settings, options)
    agree(sample, planned)
    prompts = load_prompts(settings.prompts_dir, settings.prompts)
    connections = Connections(Models.from_settings(settings))
    asker = Asker(connections, cache)
    limits = {"budget_tokens": settings.budget.max_total_tokens, "budget_usd": settings.budget.max_cost_usd}
    if any(limits.values()):
        asker.budget = QuestionBudget(settings.query.model_copy(update=limits), settings.models)
    return asyncio_runner()(_tune(sample, settings, prompts, options, asker, notify))


def plan_tuning(
    input_url: str, settings: Settings, options: TuningOptions
) -> tuple[TuningSample, list[PlannedCalls]]:
    """Choose chunks of a corpus, and predict the calls for them. Raises InputError, PromptError.

    Every chunk has a rank by its hash; those held out have the lowest. Memory holds the ranked chunks and, as
    in `estimate`, a hash per chunk. Of a large INPUT, a sample of its files is read. Prompts are counted,
    replies are assumed, without corrections.
    """
    prompts = load_prompts(settings.prompts_dir, settings.prompts)
    spec = extract_spec(prompts, settings, load_names(settings).key)
    n_pool = options.limit if options.selection == "random" else max(options.sample, options.limit)
    counter = ChunkCounter(spec, settings, n_pool + options.holdout, None)
    corpus = read_corpus(input_url, "", settings, counter, READ_BYTES)
    ranked = [item.chunk for item in sorted(counter.sampled, reverse=True)]
    if not ranked:
        raise InputError("INPUT has no text to tune to.")
    n_held_out = min(options.holdout, int(corpus.sent_chunks) // 3)
    held_out, pool = ranked[:n_held_out], ranked[n_held_out:][:n_pool]
    if options.selection == "random":
        chosen = pool[: options.limit]
    else:
        vectors = np.frombuffer(b"".join(embed_many([c.text for c in pool])), "<f4").reshape(-1, DIMENSIONS)
        choose = diverse if options.selection == "diverse" else nearest_to_centroid
        chosen = [pool[i] for i in choose(vectors, options.limit)]
    model = settings.model(settings.model_name(STAGE))
    vocabulary = _vocabulary(settings)
    fixed = _prompt_tokens(profile_request("", options, tuning_spec(settings, prompts, None)), model)
    window = model.context_window - fixed - min(MAX_REPLY_TOKENS, model.max_output_tokens)
    room = max(100, min(window, MAX_SAMPLE_TOKENS) // len(chosen) - 20)
    shown = tuple(_shorten(c, room, vocabulary) for c in chosen)
    sample = TuningSample(corpus, shown, tuple(held_out))
    passages = sample.passages(vocabulary)
    spec, model = extract_spec(prompts, settings), settings.model(settings.model_name("extract"))
    texts, of_profile = sample_text(sample.chunks), tuning_spec(settings, prompts, options.language)
    profile = _prompt_tokens(profile_request(texts, options, of_profile), model)
    examples = sum(_prompt_tokens(next(extract(chunk, spec)), model) for chunk in passages)
    first = sum(_prompt_tokens(next(extract(chunk, spec)), model) for chunk in sample.held_out)
    n, turns = 2 * len(sample.held_out), spec.max_gleanings * (1 + spec.check_first)
    planned = [
        ("describe the corpus", STAGE, 1, profile, PROFILE_TOKENS),
        ("draft the schema", STAGE, int(options.schema), profile * options.schema, SCHEMA_TOKENS),
        ("write examples", STAGE, len(passages), examples, EXAMPLE_TOKENS),
        ("compare: first turns", "extract", n, 2 * first, EXTRACT_TOKENS),
        ("compare: gleaning", "extract", n * turns, turns * (2 * first + n * EXTRACT_TOKENS), GLEAN_TOKENS),
    ]
    result = []
    for purpose, stage, calls, prompt_tokens, per_reply in planned:
        price = highest_price(settings.model(settings.model_name(stage)))
        usd = cost_usd(Usage(prompt_tokens, calls * per_reply), price)
        if calls:
            result.append(PlannedCalls(purpose, stage, calls, prompt_tokens, calls * per_reply, usd))
    return sample, result


def _by_richness(text: str) -> tuple[int, float]:
    """Sort texts with more capitalised words inside sentences first, then those with more letters.

    The words are likely names in scripts that have capitals. Letters, in tenths, tell prose from tables.
    """
    words = text.split()
    capitalised = {w for before, w in pairwise(words) if before[-1].isalnum() and w[0].isupper() and w[1:]}
    return -len(capitalised), round(1 - sum(map(str.isalpha, text)) / max(1, len(text)), 1)


def _vocabulary(settings: Settings) -> str:
    model = settings.model(settings.model_name(STAGE))
    return vocabulary_for(model.model, model.tokenizer).name


def _shorten(chunk: ChunkText, max_tokens: int, vocabulary: str) -> ChunkText:
    header = chunk.header if len(chunk.header) <= 4 * max_tokens else ""
    ends = token_ends(chunk.text, vocabulary)
    room = max(20, max_tokens - len(token_ends(header, vocabulary)))
    return ChunkText(chunk.text if len(ends) <= room else chunk.text[: int(ends[room - 1])], header)


def _prompt_tokens(request: ChatRequest, model: Model) -> int:
    return sum(count_text_tokens(m.content, model) + TOKENS_PER_MESSAGE for m in request.messages)


async def _tune(
    sample: TuningSample,
    settings: Settings,
    prompts: Mapping[str, Prompt],
    options: TuningOptions,
    asker: Asker,
    notify: Callable[[str], object],
) -> TuningResult:
    async with asker:
        spec = tuning_spec(settings, prompts, options.language)
        texts = sample_text(sample.chunks)
        notify(f"The model reads {len(sample.chunks)} chunks.")
        (outcome,) = await asker.run(STAGE, [partial(corpus_profile, texts, options, spec)], True)
        if outcome.result is None:
            raise DialogueFailed(
                f"The model did not describe the corpus in a usable form: {outcome.error}. Try another "
                "sample or model, or pass --entity-types."
            )
        profile = outcome.result
        notes = []
        if not options.entity_types and profile.n_listed_types > len(profile.entity_types):
            used = len(profile.entity_types)
            notes.append(
                f"Of {profile.n_listed_types:,} entity types that the model listed, {used} are used."
            )
        changes = profile_changes(profile, options)
        tuned = with_changes(settings, changes)
        schema = None
        if options.schema:
            notify("The model drafts a schema.")
            factory = partial(draft_schema, texts, profile.description, profile.entity_types, spec)
            (drafted,) = await asker.run(STAGE, [factory], True)
            schema = drafted.result
            if schema is None:
                notes.append(f"No schema: {drafted.error}")
        passages = sample.passages(_vocabulary(settings), profile.rich_texts)
        notify(f"The model writes examples from {len(passages)} passages.")
        example_spec = replace(extract_spec(prompts, tuned), call=settings.call_parameters(STAGE))
        written = await asker.run(STAGE, [partial(write_example, p, example_spec) for p in passages], True)
        notes += [f"An example was dropped: {o.error}" for o in written if o.result is None]
        examples = [o.result for o in written if o.result is not None][:MAX_EXAMPLES]
        new_prompts: dict[str, str] = {}
        if len(examples) >= MIN_EXAMPLES:
            new_prompts["extract_examples"] = examples_prompt(examples, load_prompts()["extract_examples"])
        else:
            notes.append(
                f"The examples of the prompt stay the same, because {len(examples)} of the "
                f"{MIN_EXAMPLES} that are needed could be used."
            )
        before = after = None
        if sample.held_out:
            notify(f"Comparing the extraction of {len(sample.held_out)} held-out chunks, before and after.")
            all_prompts = {**prompts, **{n: parse_prompt(n, text) for n, text in new_prompts.items()}}
            before, after = await _compare(
                sample.held_out, [(settings, prompts), (tuned, all_prompts)], asker, notes
            )
        else:
            notes.append("No comparison: the corpus is too small to hold out chunks, or --holdout is 0.")
    return TuningResult(profile, changes, new_prompts, schema, before, after, tuple(notes), asker.accounts)


async def _compare(
    chunks: Sequence[ChunkText],
    variants: Sequence[tuple[Settings, Mapping[str, Prompt]]],
    asker: Asker,
    notes: list[str],
) -> list[ExtractionMeasures]:
    """Extract the same chunks with each variant of settings and prompts."""
    specs = [extract_spec(prompts, s, load_names(s).key) for s, prompts in variants]
    outcomes: list[Outcome[ExtractedRecords]] = await asker.run(
        "extract", [partial(extract, chunk, spec) for spec in specs for chunk in chunks], True
    )
    notes += [f"A held-out chunk failed: {o.error}" for o in outcomes if o.result is None]
    measures = []
    for i, spec in enumerate(specs):
        part = outcomes[i * len(chunks) : (i + 1) * len(chunks)]
        usages = [reply.usage for outcome in part for reply in outcome.replies]
        tokens = sum(u.prompt_tokens + u.completion_tokens for u in usages)
        measures.append(measure([o.result for o in part], spec.entity_types, tokens))
    return measures


def profile_changes(profile: CorpusProfile, options: TuningOptions) -> dict[tuple[str, ...], Any]:
    """Return the new settings of a profile. The language stays open if the texts have several."""
    language = options.language or (profile.languages[0] if len(profile.languages) == 1 else "")
    pairs = [t.partition(":")[::2] for t in profile.entity_types]
    types: Any = list(profile.entity_types)
    if all(definition.strip() for _, definition in pairs):
        types = {name.strip(): definition.strip() for name, definition in pairs}
    values = {
        ("corpus", "description"): profile.description,
        ("extraction", "entity_types"): types,
        ("claims", "description"): profile.claims,
        ("reports", "rating_criterion"): profile.rating_criterion,
        ("reports", "role"): profile.role,
        ("output_language",): language,
    }
    return {path: value for path, value in values.items() if value}


def with_changes(settings: Settings, changes: Mapping[tuple[str, ...], Any]) -> Settings:
    """Return settings with new values by section and key. Raises SettingsError."""
    data = settings.model_dump(mode="json", exclude_unset=True)
    for path, value in changes.items():
        assign(data, path, value)
    return parse_settings(data)
