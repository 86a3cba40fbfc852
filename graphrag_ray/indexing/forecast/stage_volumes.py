"""How much each stage of a run asks for, from the corpus and what is assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.about_corpus import ENTITIES_TOKENS, TITLES_TOKENS, about_spec, is_to_be_told
from graphrag_ray.graph.delimited_records import COMPLETION, DELIMITERS, FIELD, RECORD
from graphrag_ray.graph.descriptions import JOINED_TEXTS, describe_spec
from graphrag_ray.graph.extraction_dialogue import ShownChunk, chunk_variables, claims_spec
from graphrag_ray.graph.plan import HEADING_TOKENS, NUMBER_TOKENS
from graphrag_ray.graph.report_dialogue import report_spec
from graphrag_ray.graph.summary_dialogue import context_tokens, longest_record, summary_spec
from graphrag_ray.graph.summary_tree import goes_on
from graphrag_ray.indexing.forecast.assumptions import Assumptions
from graphrag_ray.indexing.forecast.bounds import Volume
from graphrag_ray.indexing.forecast.corpus_counts import CorpusCounts
from graphrag_ray.indexing.forecast.graph_sizes import Named, lengths_of
from graphrag_ray.indexing.forecast.reply_sizes import MIN_CALLS, Floats, Replies
from graphrag_ray.indexing.forecast.sample import SampleGraph
from graphrag_ray.indexing.forecast.sample_hierarchy import LINE_TOKENS, Shape, shape_of
from graphrag_ray.llm.request_sizes import PACK_TOKENS, TOKENS_PER_MESSAGE, text_size

GLEAN_YES = 0.5
GLEANED = 0.35
CLAIMS_REPLY = 400.0
KEPT_OF_DESCRIPTIONS = 0.7
"""Of several descriptions' tokens, what the one has that replaces them: all of it, said once."""
KEPT_OF_REPORT_LIMIT = 0.6
"""Of the tokens that a report may have, what it has."""
ABOUT_TOKENS = 60.0
"""Of what is said of the corpus as a whole."""
TITLE_TOKENS = 12.0
OFFLINE_REPORT_TOKENS = 440.0
"""Of a report of the offline engine: its mean on the podcast corpus of the paper."""
SHOWN_OF_REPORT = 0.85
"""Of a reply that is a report, what other contexts and its embedding hold: not the JSON around it."""
ENOUGH_ENTITIES = 200
"""Of a graph that tells how many communities there are for each."""
BATCH_FILL = 0.75
"""Of `descriptions.batch_tokens`, what a batch holds on average (`graph/batches.py`)."""


@dataclass(frozen=True)
class Basis:
    """What every stage's forecast starts from. replies: of calls that were made, by prompt."""

    settings: Settings
    prompts: Mapping[str, Prompt]
    corpus: CorpusCounts
    replies: Mapping[str, Replies]
    assume: Assumptions

    @property
    def prompt_factor(self) -> float:
        return next((a.value for a in self.assume if a.name == "prompt_tokens_factor"), 1.0)

    def tokens(self, stage: str, text: str) -> int:
        return text_size(text, self.settings.model(self.settings.model_name(stage)))

    def offline(self, stage: str) -> bool:
        return self.settings.model(self.settings.model_name(stage)).provider == "offline"

    def messages(self, stage: str, name: str, variables: Mapping[str, str]) -> int:
        """Tokens of a prompt filled with these values."""
        filled = self.prompts[name].fill(variables)
        return sum(self.tokens(stage, m.content) + TOKENS_PER_MESSAGE for m in filled)

    def reply(self, prompt: str, value: float, source: str, prompt_tokens: Floats | None = None) -> float:
        """Tokens of a reply: measured where calls were made, else `value`."""
        found = self.replies.get(prompt)
        if found is not None and found.n >= MIN_CALLS:
            sizes = np.zeros(0) if prompt_tokens is None else prompt_tokens * self.prompt_factor
            value, source = found.mean_reply(sizes), found.source
        return self.assume.take(f"reply_tokens.{prompt}", value, source)

    def volume(
        self,
        stage: str,
        items: float,
        calls: float,
        prompt: float,
        completion: float,
        chain: float = 1.0,
        last: float | None = None,
    ) -> Volume:
        name = self.settings.model_name(stage)
        return Volume(stage, name, items, calls, prompt * self.prompt_factor, completion, chain, last)


def extraction(basis: Basis, entities: Named, relationships: Named) -> Volume:
    """First turns exactly as they are sent; then gleaning, turn by turn (graph/extraction_dialogue.py)."""
    corpus, options = basis.corpus, basis.settings.extraction
    n, rounds = corpus.asked, options.max_gleanings
    offline = basis.offline("extract")
    check = basis.tokens("extract", basis.prompts["glean_check"].text({})) + TOKENS_PER_MESSAGE
    glean = basis.tokens("extract", basis.prompts["glean"].text(DELIMITERS)) + TOKENS_PER_MESSAGE
    yes = _glean_yes(basis, offline) if rounds else 0.0
    gleaned = basis.assume.take("gleaned", GLEANED, "assumed") if rounds and not offline else 0.0
    reached = [yes**i for i in range(1, rounds + 1)]
    records = _record_tokens(basis, entities, relationships) / max(n, 1.0)
    first_share = 1.0 / (1.0 + gleaned * sum(reached))
    reply = basis.reply("extract", records * first_share, "from the records per chunk and their lengths")
    calls, prompt_tokens, completion = n, corpus.prompt_tokens, n * reply
    prompt, latest, going = corpus.prompt_tokens / max(n, 1.0), reply, 1.0
    for _ in range(rounds):
        verdict = basis.reply("glean_check", 1.0, "one word is asked for")
        more = basis.reply("glean", records * first_share * gleaned, "from `gleaned` and the first reply")
        prompt += latest + TOKENS_PER_MESSAGE + check
        checks, going = n * going, going * yes
        gleans = n * going
        calls += checks + gleans
        completion += checks * verdict + gleans * more
        prompt_tokens += checks * prompt
        prompt += verdict + TOKENS_PER_MESSAGE + glean
        prompt_tokens += gleans * prompt
        latest = more
    return basis.volume("extract", n, calls, prompt_tokens, completion, 1.0 + 2 * rounds, last=latest)


def claims(basis: Basis, entities: Named, asked: float) -> Volume:
    """asked: share of chunks that name an entity; the others are not asked about."""
    corpus = basis.corpus
    spec = claims_spec(basis.prompts, basis.settings)
    variables = chunk_variables(ShownChunk(""), spec.language)
    empty = basis.messages(
        "claims", "claims", variables | {"claim_description": spec.description, "entities": ""}
    )
    n = corpus.asked * asked
    names = entities.size.pairs * (entities.title_tokens + 1)
    prompt = n * empty + corpus.passage_tokens * asked + names
    reply = basis.reply("claims", CLAIMS_REPLY, "assumed")
    return basis.volume("claims", n, n, prompt, n * reply)


def describing(basis: Basis, kinds: Mapping[str, Named], graph: SampleGraph) -> tuple[Volume, float]:
    """Entities and relationships with several descriptions; and the length of one that replaces them.

    graph: tells how often names recur.
    """
    spec = describe_spec(basis.prompts, basis.settings)
    empty = {"name": "", "descriptions": "", "language": spec.language}
    calls = prompt = items = 0.0
    prompts: list[Floats] = []
    raw: list[Floats] = []
    trees: list[tuple[Floats, float]] = []
    for kind, found in kinds.items():
        variables = {**empty, "kind": kind, **reply_lengths(spec.max_output_tokens)}
        const = basis.messages("describe", "describe", variables) + found.title_tokens
        line = found.description_tokens + 1
        names = graph.entities if kind == "entity" else graph.relationships
        each = names.frequency * np.float64(found.manner.descriptions_per_pair * line)
        of_several = names.frequency > 1
        asked = of_several & ((names.frequency > JOINED_TEXTS) | (each > spec.joined_tokens))
        share = asked.sum() / max(1, of_several.sum())
        shown = names.frequency[asked].sum() / max(1, names.frequency[of_several].sum())
        several = np.minimum(each[asked], spec.batch_tokens)
        raw.append(several)
        prompts.append(np.asarray(const + several, dtype=np.float64))
        items += found.several * share
        calls += found.several * share
        prompt += found.several * share * const + found.descriptions_of_several * shown * line
        larger = found.size.chunks / max(1, names.n_chunks)
        trees.append((each * larger, const))
    kept = np.minimum(np.concatenate(raw) * KEPT_OF_DESCRIPTIONS, spec.max_output_tokens)
    reply = basis.reply(
        "describe",
        float(kept.mean()) if len(kept) else 0.0,
        f"{KEPT_OF_DESCRIPTIONS:g} of the descriptions that it replaces, assumed",
        np.concatenate(prompts),
    )
    for tokens, const in trees:
        more, texts = _tree(tokens, spec.batch_tokens, reply)
        calls += more
        prompt += more * const + texts
    depth = 2.0 if calls > items else 1.0
    return basis.volume("describe", items, calls, prompt, calls * reply, depth if items else 0.0), reply


def telling(basis: Basis, entities: Named) -> Volume:
    """The one call that says what the corpus is about."""
    spec = about_spec(basis.settings, basis.prompts)
    empty = {"titles": "", "entities": "", "language": spec.language, **reply_lengths(spec.max_tokens)}
    lines = entities.size.distinct * (entities.title_tokens + entities.description_tokens)
    material = min(TITLES_TOKENS, basis.corpus.documents * TITLE_TOKENS) + min(ENTITIES_TOKENS, lines)
    reply = basis.reply("about", ABOUT_TOKENS, "assumed")
    return basis.volume("about", 1.0, 1.0, basis.messages("about", "about", empty) + material, reply)


def reporting(
    basis: Basis,
    entities: Named,
    relationships: Named,
    graph: SampleGraph,
    own: SampleGraph | None,
    summary: float,
) -> tuple[Volume, Shape]:
    """One report for each community; contexts as they are planned for the graph of a sample.

    own: the model's own graph of a trial. Communities for each entity hardly depend on the size of the
    sample (benchmarks/RESULTS.md), so a smaller one of its own tells them better.
    """
    const, guess, source = _report_call(basis)
    n_entities = len(graph.entities.descriptions)
    n_edges = len(graph.source)
    denser = 1.0
    if entities.size.distinct and n_edges:
        denser = (relationships.size.distinct / entities.size.distinct) / (n_edges / n_entities)
    known = basis.replies.get("report")
    length = known.mean_reply(np.zeros(0)) if known is not None and known.n >= MIN_CALLS else guess
    lengths = lengths_of(entities, relationships, summary, length * SHOWN_OF_REPORT)
    shape = shape_of(graph, basis.settings, lengths, denser)
    how = f"communities of the graph in {graph.entities.n_chunks:,} chunks, as a run finds them"
    ratio, whose = shape.communities / n_entities if n_entities else 0.0, how
    if own is not None and own is not graph and (n_own := len(own.entities.descriptions)) >= ENOUGH_ENTITIES:
        ratio = shape_of(own, basis.settings, lengths, 1.0).communities / n_own
        whose = f"communities of the model's own graph in {own.entities.n_chunks:,} chunks"
    ratio = basis.assume.take("communities_per_entity", ratio, whose)
    context = basis.assume.take("report_context_tokens", shape.context_tokens, how)
    reply = basis.reply("report", guess, source, np.array([const + context]))
    n = ratio * entities.size.distinct
    return basis.volume("report", n, n, n * (const + context), n * reply, shape.levels), shape


def attributed(basis: Basis, entities: Named, relationships: Named, summary: float) -> Volume:
    """The reports of attributed communities: of the finest level from elements, above from reports alone."""
    const, guess, source = _report_call(basis)
    options = basis.settings.attributed
    fewer = 1 / max(2.0, FULL * options.max_size)  # communities of a level for each of the level below
    levels = sum(fewer**height for height in range(options.max_levels))
    ratio = basis.assume.take("attributed_per_entity", fewer * levels, _MEASURED)
    n = ratio * entities.size.distinct
    above = n * (1 - 1 / levels)
    elements = _lines(entities, summary) + INNER_RELATIONSHIPS * _lines(relationships, summary)
    most = basis.settings.reports.context_tokens
    reply = basis.reply("report", guess, source, np.array([const + most / 2]))
    below = min(float(most), reply * SHOWN_OF_REPORT * (n - above) / max(above, 1.0))
    chain = min(options.max_levels, 1.0 + np.log(max(n, 2.0)) / np.log(1 / fewer))
    return basis.volume("report", n, n, n * const + elements + above * below, n * reply, float(chain))


FULL = 0.46
"""How full a community is of the most that it may hold, on average."""
INNER_RELATIONSHIPS = 0.25
"""The share of relationships whose ends are in one community of the finest level."""


def summarising(basis: Basis) -> Volume:
    """The summaries of a tree over chunks, level by level."""
    spec = summary_spec(basis.settings, basis.prompts)
    options, corpus = basis.settings.tree, basis.corpus
    variables = {"context": "", "language": spec.language, **reply_lengths(spec.max_tokens)}
    const = basis.messages("summary", "summary", variables)
    limit = min(spec.max_tokens, spec.call.max_output_tokens or spec.max_tokens)
    guess = KEPT_OF_REPORT_LIMIT * limit
    reply = basis.reply("summary", guess, f"{KEPT_OF_REPORT_LIMIT:g} of the limit, assumed")
    usual = basis.assume.take("nodes_per_summary", NODES_PER_SUMMARY, _MEASURED)
    nodes, each = corpus.chunks, corpus.passage_tokens / max(1.0, corpus.asked) + LINE_TOKENS
    most = context_tokens(options, basis.settings.chunking) - HEADING_TOKENS
    calls = prompt = 0.0
    levels = 0
    while goes_on(round(nodes), levels, options.max_levels):
        each = min(each, longest_record(most + HEADING_TOKENS) + NUMBER_TOKENS)
        fewer = min(usual, 1 + FULL_SUMMARY * (most // each - 1))
        prompt += nodes * each * IN_SEVERAL + nodes / fewer * const
        nodes, each, levels = nodes / fewer, reply + LINE_TOKENS, levels + 1
        calls += nodes
    return basis.volume("summary", calls, calls, prompt, calls * reply, float(levels))


NODES_PER_SUMMARY = 6.0
FULL_SUMMARY = 0.65
"""Of the others that find room beside a chunk, where they are too long for so many, how many are there on
average."""
IN_SEVERAL = 1.04
"""Clusters that a node is in, on average."""
_MEASURED = "as on the podcasts and on Wikipedia's passages, measured"


def _lines(found: Named, summary: float) -> float:
    """Tokens of all records of a kind, in contexts."""
    single = found.alone * found.manner.described_alone * found.description_tokens
    return found.size.distinct * (found.title_tokens + LINE_TOKENS) + single + found.several * summary


def _report_call(basis: Basis) -> tuple[int, float, str]:
    """Tokens of a report's prompt without its data, and of the report; and where the latter comes from."""
    spec = report_spec(basis.settings, basis.prompts)
    const = basis.messages(
        "report",
        "report",
        {
            "role": spec.role,
            "rating_criterion": spec.rating_criterion,
            "context": "",
            "language": spec.language,
            "about": spec.about,
            **reply_lengths(spec.max_tokens),
        },
    )
    if is_to_be_told(basis.settings, basis.prompts):
        const += round(ABOUT_TOKENS)
    limit = min(spec.max_tokens, spec.call.max_output_tokens or spec.max_tokens)
    guess, source = KEPT_OF_REPORT_LIMIT * limit, f"{KEPT_OF_REPORT_LIMIT:g} of the limit, assumed"
    if basis.offline("report"):
        guess, source = OFFLINE_REPORT_TOKENS, "the offline engine's on the paper's corpus"
    return const, guess, source


def embedding(basis: Basis, kinds: Mapping[str, Named], reports: Sequence[Volume], summary: float) -> Volume:
    """Chunks exactly; entities, relationships, and reports or summaries by their forecast lengths."""
    model = basis.settings.model(basis.settings.model_name("embed"))
    texts, tokens = basis.corpus.chunks - basis.corpus.repeated, basis.corpus.embed_tokens
    for found in kinds.values():
        texts += found.size.distinct
        single = found.alone * found.manner.described_alone * found.description_tokens
        tokens += found.size.distinct * (found.title_tokens + 1) + single + found.several * summary
    texts += sum(of.items for of in reports)
    tokens += sum(of.completion_tokens for of in reports) * SHOWN_OF_REPORT
    limits = [e.tokens_per_minute for e in model.endpoints if e.tokens_per_minute]
    pack = min([PACK_TOKENS, *limits])
    calls = max(texts / model.embedding_batch, tokens / pack)
    return basis.volume("embed", texts, float(np.ceil(calls)), tokens, 0.0)


def _glean_yes(basis: Basis, offline: bool) -> float:
    asked, gleaned = basis.replies.get("glean_check"), basis.replies.get("glean")
    if asked is not None and asked.n >= MIN_CALLS:
        share = min(1.0, (gleaned.n if gleaned else 0) / asked.n)
        return basis.assume.take("glean_yes", share, asked.source)
    if offline:
        return basis.assume.take("glean_yes", 0.0, "the offline engine has nothing to add")
    return basis.assume.take("glean_yes", GLEAN_YES, "assumed")


def _record_tokens(basis: Basis, entities: Named, relationships: Named) -> float:
    """Tokens of all records of all chunks."""
    entity = f'("entity"{FIELD}{FIELD}PERSON{FIELD})\n{RECORD}\n'
    relationship = f'("relationship"{FIELD}{FIELD}{FIELD}{FIELD}8)\n{RECORD}\n'
    return sum(
        found.descriptions * (basis.tokens("extract", frame) + found.title_tokens + found.description_tokens)
        for found, frame in ((entities, entity), (relationships, relationship))
    ) + basis.corpus.asked * basis.tokens("extract", COMPLETION)


def _tree(tokens: Floats, batch_tokens: int, reply: float) -> tuple[float, float]:
    """Calls above one for each name whose descriptions need a tree, and the tokens of the texts that go
    up in it. tokens: of all descriptions of each name."""
    more = texts = 0.0
    for total in tokens[tokens > batch_tokens].tolist():
        while total > batch_tokens:
            batches = max(2.0, np.ceil(total / (batch_tokens * BATCH_FILL)))
            more += batches
            total = min(batches * reply, total / 2)  # noqa: PLW2901 - layer by layer
            texts += total
    return more, texts
