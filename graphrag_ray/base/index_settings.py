"""The settings model. `settings_file.py` reads settings files into it.

The docstring below a field becomes its entry in `docs/reference/settings.md`. The sections for models and
storage are in `connection_settings.py`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from graphrag_ray.base.connection_settings import MachineSetting, Model, ReasoningEffort, Section, Storage
from graphrag_ray.base.declarations import (
    ABOUT_DIALOGUE,
    HIERARCHIES,
    INDEXING_PROMPTS,
    SEARCHABLE_KINDS,
    STAGE_SETTING_KEYS,
)
from graphrag_ray.base.messages import RERANK, CallParameters, join_surrogates
from graphrag_ray.base.urls import is_url, protocol_of
from graphrag_ray.base.wording import shorten

REQUEST_RULES = 2
"""Version of the rules for filling indexing prompts. Increase it when a change of code changes what requests
contain, and apply the change only from that version on, because an index must not pay for it unasked.

2: no repeated sentences; limits in words by form of reply; limits that grow with the input (descriptions,
summaries); document labels in summaries. `stored_settings.py` has the defaults that changed with it.
"""
MAX_ABOUT = 1_000
JUDGE_TEMPERATURE = 1.0
RESOLUTION_RULES: Mapping[str, str] = {
    "spelling": "equal except for widths, quotation marks, hyphens or dots",
    "spacing": "equal except for spaces",
    "accents": "equal except for accents",
    "abbreviation": "equal with abbreviations written in full",
    "plural": "singular and plural",
    "word_form": "forms or spellings of the same words",
    "legal_form": "equal without the legal form",
    "title": "equal without the title",
    "initials": "equal with middle names as initials",
    "order": "the same words in another order",
    "misspelling": "spelled or transliterated differently",
    "acronym": "an acronym and its full name",
    "short_name": "the only full name in the document that contains it",
}
"""Rules of entity resolution (`graph/name_rules.py`), the surest first, and what they find."""
LANGUAGE_OF_TEXT = "the language of the text"
LANGUAGE_OF_QUESTION = "the language of the question"

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")


def _check_password(path_or_url: str | None) -> str | None:
    if path_or_url and is_url(path_or_url) and ":" in urlsplit(path_or_url).netloc.rpartition("@")[0]:
        raise ValueError("the URL contains a password: copy the file to a folder or an object store")
    return path_or_url


def _split_commas(value: Any) -> Any:
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


def normalize_description(text: str) -> str:
    """Normalise a corpus description to one paragraph of at most `MAX_ABOUT` characters."""
    return shorten(" ".join(_CONTROL.sub(" ", join_surrogates(text[: 8 * MAX_ABOUT])).split()), MAX_ABOUT)


# `Extraction.schema` hides a deprecated method of pydantic's models.
warnings.filterwarnings("ignore", 'Field name "schema" in "Extraction" shadows')

PathOrUrl: TypeAlias = Annotated[str | None, AfterValidator(_check_password)]

if TYPE_CHECKING:
    StageName: TypeAlias = str
    SearchedKind: TypeAlias = str
    IndexingPrompt: TypeAlias = str
    HierarchyName: TypeAlias = str
else:  # Literals, so that an error about an unknown name lists the known ones.
    StageName = Literal[STAGE_SETTING_KEYS]
    SearchedKind = Literal[tuple(SEARCHABLE_KINDS)]
    IndexingPrompt = Literal[INDEXING_PROMPTS]
    HierarchyName = Literal[tuple(HIERARCHIES)]


class StageModel(Section):
    """Model and call parameters of one stage. null: the model's value, unless stated otherwise."""

    model: str | None = None
    """Name of a model under `models`."""
    temperature: float | None = 0.0
    """Sampling temperature. null: not sent. Stage `judge` defaults to 1, so that replicates vary."""
    max_output_tokens: PositiveInt | None = None
    """Maximum length of a reply. null: the limit of the stage or the model."""
    reasoning_effort: ReasoningEffort = None
    """As in `models.NAME`."""
    reasoning_tokens: NonNegativeInt | None = None
    """As in `models.NAME`."""


class Input(Section):
    """How documents are read."""

    url: MachineSetting[str | None] = None
    """Default INPUT of commands: a file, folder, glob or URL."""
    text_column: str = "text"
    """Text column of .jsonl, .csv and .parquet files. Columns not named here are kept as metadata."""
    id_column: str | None = None
    """Id column. null: rows are identified by their number."""
    title_column: str | None = "title"
    """Title column. null: none. Files without columns have their own titles."""
    date_column: str | None = "date"
    """Date column. null: none."""
    strip_pattern: str | None = None
    """Regular expression. Its match at the start of a .txt or .md file, such as a header, is removed."""
    document_context: Literal["opening", "model", "metadata"] = "opening"
    """What requests about a chunk say of its document. opening: title, date and the first words of the
    document; a title or date that metadata lack comes from the first lines or the file name. model: instead
    of the first words, one or two sentences that a model writes once per document. metadata: only title and
    date from metadata."""
    document_context_tokens: PositiveInt = 60
    """Maximum length of the first words or sentences."""
    max_bytes: PositiveInt = 2_000_000_000
    """Maximum size of a .txt, .md or .html file or decoded .parquet row group. Larger ones fail."""
    storage: MachineSetting[Storage | None] = None
    """Storage settings for INPUT, if they differ from `storage`. null: same; {}: from the environment."""

    @model_validator(mode="after")
    def _check_pattern(self) -> Input:
        import regex

        try:
            regex.compile(self.strip_pattern or "")
        except regex.error as e:
            raise ValueError(f"strip_pattern is not a regular expression: {e}") from None
        return self


class Corpus(Section):
    description: Annotated[str, AfterValidator(normalize_description)] | None = None
    """What the corpus is about, in a sentence or two (at most 1,000 characters). It guides the rating of
    reports and their use in answers. null: kept from the index; for a new index, the report model describes
    the corpus once. Changing it rewrites all reports. "": no description."""


class Chunking(Section):
    """How documents are split into chunks (paper 3.1.1: 600 tokens, 100 overlap)."""

    size: PositiveInt | Literal["document"] = 600
    """Chunk size in tokens, or `document` for one chunk per document."""
    overlap: NonNegativeInt = 100
    """Overlap of consecutive chunks."""
    min_last_chunk_tokens: NonNegativeInt = 50
    """A last chunk with fewer new tokens is merged into the previous one, which may then exceed `size`."""
    prepend_metadata: tuple[str, ...] | Literal["auto"] = "auto"
    """Metadata to put above each chunk for extraction: title, date and metadata columns by name. It counts
    towards `size`. These columns also appear in search, contexts and sources, where title and date always
    appear. auto: date and title, except a title that is the file name or the start of the chunk."""

    @field_validator("prepend_metadata", mode="before")
    @classmethod
    def _split_words(cls, value: Any) -> Any:
        if value != "auto":
            value = _split_commas(value)
        if isinstance(value, list | tuple):
            value = [word for word in value if word != ""]
            if "auto" in value:
                raise ValueError("`auto` cannot be combined. Name title, date and columns, or use auto")
        return value

    @property
    def prepended_metadata(self) -> tuple[str, ...]:
        """The metadata columns that `prepend_metadata` names."""
        named = self.prepend_metadata if isinstance(self.prepend_metadata, tuple) else ()
        return tuple(n.removeprefix("metadata.") for n in named if n not in ("title", "date"))

    @model_validator(mode="after")
    def _check_overlap(self) -> Chunking:
        if self.size != "document" and self.overlap >= self.size:
            raise ValueError(f"overlap ({self.overlap}) must be smaller than size ({self.size})")
        return self


ENTITY_TYPE_DEFINITIONS = {
    "person": "a human being or a character, by name",
    "organization": "a company, authority, institution, team or other body that acts as one",
    "location": "a place, region, building, site or natural feature",
    "event": "something that happened once or happens on one occasion: a meeting, accident, launch, war",
    "product": "something made, sold, run or used under a name: a product, service, software, vehicle, drug",
    "work": "a text, film, piece of music, law, standard, contract or project with a title or name",
    "concept": "an idea, method, theory, field, species, substance or disease with an established name",
}
"""The default entity types and their definitions in the extraction prompt."""


class Extraction(Section):
    """Entity and relationship extraction (paper 3.1.2, A.1, A.2)."""

    entity_types: tuple[str, ...] = tuple(ENTITY_TYPE_DEFINITIONS)
    """Entity types to extract, with a definition after a colon if the name does not say enough:
    `[person, "drug: a substance that patients take"]`. The defaults are defined for business, technical,
    scientific and literary texts; the paper used domain-specific types."""
    max_gleanings: NonNegativeInt = 1
    """Maximum number of requests for entities and relationships that an extraction missed."""
    gleaning: Literal["direct", "check"] = "direct"
    """direct: ask for what was missed, if anything. check: first ask whether anything was missed, as in the
    paper, which sends the passage once more."""
    force_yes_no: bool | None = None
    """Force yes or no as the reply to that question by logit bias. null: if the vocabulary is known."""
    repeated_paragraphs: Literal["once", "keep"] = "once"
    """once: show a paragraph that many documents repeat word for word, such as a legal notice, to the model
    only in the first document that has it, by path and row. Other requests leave it out, and a chunk without
    any other text costs no call, but a document without any other text is shown in full. Applies to
    paragraphs of at least 120 bytes (20 words of English) in a tenth of the documents, but no fewer than 3;
    in a large corpus, 10 documents are enough. keep: show every chunk in full."""

    schema_file: MachineSetting[PathOrUrl] = None
    """YAML or JSON file with a schema: types of entities, their attributes, and types of relations with the
    allowed types of their ends. Replaces `entity_types`. See [Use a schema](../guides/schema.md)."""
    schema: str | None = None  # type: ignore[assignment]
    """Content of a schema file, if `schema_file` is not set, as text or mapping. In Python, also Pydantic
    model classes. Written to snapshots. An index keeps its schema; null removes it."""

    @field_validator("schema", mode="before")
    @classmethod
    def _schema_text(cls, value: Any) -> Any:
        """Convert a schema that is given as Pydantic models or as a mapping to YAML."""
        models = value if isinstance(value, list | tuple) else [value]
        if models and all(isinstance(m, type) and issubclass(m, BaseModel) for m in models):
            from graphrag_ray.base.schema_from_models import schema_from_models

            return schema_from_models(models)
        if isinstance(value, Mapping):
            import yaml

            return yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True)
        return value

    @field_validator("entity_types", mode="before")
    @classmethod
    def _join_definitions(cls, value: Any) -> Any:
        """Accept definitions as YAML reads them without quotes: `- drug: a substance`."""
        value = _split_commas(value) if isinstance(value, str) and ":" not in value else value
        types = value.items() if isinstance(value, Mapping) else value
        if not isinstance(value, Mapping | list | tuple):
            return value
        pairs = (pair for t in types for pair in (t.items() if isinstance(t, Mapping) else [t]))
        return [": ".join(map(str, pair)) if isinstance(pair, tuple) else pair for pair in pairs]


class Claims(Section):
    """Claim extraction. It costs about as much as entity extraction."""

    enabled: bool = False
    """Extract claims. The paper describes claims as always extracted, but most of its experiments do not."""
    description: str = (
        "Important factual statements about the entities: what they did, decided, owned, "
        "said, caused or suffered, with dates where the text gives them."
    )
    """What counts as a claim, for the prompt."""


class Names(Section):
    """Aliases and blocked names, applied when entity keys are formed."""

    aliases_file: MachineSetting[PathOrUrl] = None
    """YAML file with lines of the form `CANONICAL NAME: [alias, …]` (docs/guides/entity-resolution.md)."""
    aliases: str | None = None
    """Content of an aliases file, if `aliases_file` is not set. Written to snapshots."""
    blocklist_file: MachineSetting[PathOrUrl] = None
    """File with one name per line. These names never become entities."""
    blocklist: str | None = None
    """Content of a blocklist file, if `blocklist_file` is not set. Written to snapshots."""


class Resolution(Section):
    """Which names are merged because they stand for the same thing."""

    mode: Literal["off", "rules", "model"] = "rules"
    """off: only names that are equal up to case and whitespace, as in the paper (3.1.3). rules: also names
    that a rule finds to be the same, such as `ELI LILLY` and `ELI LILLY AND COMPANY`. model: a model also
    decides about similar names, and about names that may stand for several things. An existing index keeps
    its mode until `index --new-prompts`."""
    rules: tuple[str, ...] = tuple(RESOLUTION_RULES)
    """Rules to apply (docs/guides/entity-resolution.md)."""
    max_candidates: PositiveInt = 5
    """model: maximum number of candidates per name. One request decides about all candidates of a name."""

    @field_validator("rules", mode="before")
    @classmethod
    def _check_rules(cls, value: Any) -> Any:
        rules = _split_commas(value)
        if isinstance(rules, list | tuple) and (unknown := [r for r in rules if r not in RESOLUTION_RULES]):
            raise ValueError(f"unknown rule {unknown[0]!r}. Choose from: {', '.join(RESOLUTION_RULES)}")
        return rules

    @field_validator("mode", mode="before")
    @classmethod
    def _undo_yaml_booleans(cls, value: Any) -> Any:
        """YAML reads `off` as false."""
        return "off" if value is False else value

    @property
    def enabled(self) -> bool:
        """Whether a model is called."""
        return self.mode == "model"


class Descriptions(Section):
    """How the descriptions of an entity or relationship are summarised into one."""

    max_output_tokens: PositiveInt = 500
    """Maximum length of a summary of fewer than 8 descriptions. Each doubling of their number from 8 on adds
    half of it, up to three times as much for 64 or more."""
    batch_tokens: PositiveInt = 6_000
    """Maximum length of the descriptions in one call. Longer lists are summarised hierarchically."""
    concatenate_up_to_tokens: NonNegativeInt = 100
    """Two or three descriptions with at most this many tokens in total (100 are about three sentences) are
    concatenated without a model call. 0: a model summarises whenever two descriptions differ."""


class Graph(Section):
    """Edge weights and pruning."""

    edge_weight: Literal["count", "strength"] = "count"
    """count: chunks that state the relationship (paper 3.1.3); strength: sum of the stated strengths."""
    prune: Literal["auto", "on", "off"] = "auto"
    """Remove accidental names and co-occurrences by their statistics. auto: only with the offline engine."""
    min_log_likelihood: float = 3.84
    """Relationships below this log-likelihood ratio are pruned (Dunning 1993; 3.84 is p = 0.05)."""

    @field_validator("prune", mode="before")
    @classmethod
    def _undo_yaml_booleans(cls, value: Any) -> Any:
        """YAML reads `on` and `off` as true and false."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class Communities(Section):
    """The `leiden` hierarchy: Leiden communities (paper 3.1.4)."""

    library: Literal["igraph", "leidenalg"] = "igraph"
    """Leiden implementation."""
    quality: Literal["modularity", "cpm", "rb_configuration", "significance", "surprise"] = "modularity"
    """Quality function. igraph supports modularity and cpm, leidenalg all."""
    resolution: PositiveFloat = 1.0
    """Resolution. Higher values give more and smaller communities."""
    max_size: Annotated[int, Field(gt=1)] | None = 10
    """Split communities with more members than this. null: split until no further split is possible."""
    iterations: PositiveInt = 2
    """Leiden iterations per split."""
    seed: int = 20_240_424
    """Random seed. The same graph and seed give the same communities."""
    components: Literal["all", "largest"] = "all"
    """Connected components to partition."""
    pack_components_below: Annotated[int, Field(ge=1)] = 10
    """Pack components with fewer nodes together into shared reports."""

    @model_validator(mode="after")
    def _check_quality(self) -> Communities:
        if self.library == "igraph" and self.quality not in ("modularity", "cpm"):
            raise ValueError(
                f"quality {self.quality!r} needs library: leidenalg; igraph supports modularity and cpm"
            )
        return self


class Attributed(Section):
    """The `attributed` hierarchy: clustering by links and embeddings (ArchRAG, algorithm 1)."""

    similarity_links: Literal["knn", "codicil", "none"] = "knn"
    """Links to add between similar entities. knn: link each entity to its nearest neighbours; codicil: like
    knn, but keep only the most significant links of each node (Ruan et al. 2013); none: add no links."""
    n_neighbours: Annotated[int, Field(ge=1, le=100)] | None = None
    """Nearest neighbours to link. null: the average degree of the graph."""
    clustering: Literal["leiden", "spectral", "scan"] = "leiden"
    """leiden (settings of `communities`), scan (Xu et al. 2007) or spectral (small graphs, scikit-learn)."""
    max_size: Annotated[int, Field(gt=1)] = 15
    """Maximum number of members, which are entities or communities of the level below."""
    min_communities: Annotated[int, Field(gt=1)] = 5
    """Minimum number of communities on every level except the first."""
    max_levels: Annotated[int, Field(ge=1, le=20)] = 5
    """Maximum number of levels. Fewer are built if too few communities remain."""
    scan_epsilon: Annotated[float, Field(gt=0, le=1)] = 0.5
    """scan: minimum similarity of the neighbourhoods of two members."""
    scan_min_neighbours: Annotated[int, Field(ge=1)] = 2
    """scan: number of similar neighbours that make a member the core of a community."""


class Tree(Section):
    """The `tree` hierarchy: a summary tree over chunks (RAPTOR, TREX). Needs pip install '.[tree]'."""

    context_tokens: Annotated[int, Field(ge=256)] = 3_500
    """Maximum length of the text of one summary. Extended if two whole chunks need more."""
    max_output_tokens: PositiveInt = 400
    """Requested length of a summary of at most four times this length of text. That of longer texts is a
    quarter, up to twice this length. Summaries are cut at four times this length."""
    max_levels: Annotated[int, Field(ge=1, le=20)] = 5
    """Maximum number of levels. Levels with 11 or fewer summaries are not summarised further."""
    dimensionality_reduction: Literal["umap", "pca"] = "umap"
    """Dimensionality reduction: umap (for 150 chunks or more), or pca (faster, but makes more summaries)."""


class Reports(Section):
    """Community reports (paper 3.1.5, E.2)."""

    context_tokens: Annotated[int, Field(ge=256)] = 8_000
    """Maximum length of a report's context. Below 256, one edge and its two ends may not fit."""
    max_output_tokens: PositiveInt = 2_000
    """Maximum length of a report."""
    role: str = "an analyst who reads a corpus for others"
    """The author's role, for the prompt."""
    model_from: Annotated[int, Field(ge=0, le=10)] = 8
    """A community with fewer entities gets a report composed from its records without a model call, if they
    are no longer than a report may be. The offline engine writes every report, because it costs nothing. 0:
    the model writes every report."""
    rating_criterion: str = "the impact severity of the community on what the corpus is about"
    """What the rating of a report measures, for the prompt."""
    max_claims_per_entity: NonNegativeInt = 10
    """Maximum number of claims per entity in a report's context."""
    rewrite_threshold: Annotated[float, Field(ge=0, le=0.5)] = 0.05
    """An update keeps a report if a smaller share of its source data has changed. The report then misses the
    change. Reports based on deleted documents are always rewritten. 0: rewrite reports after every change."""


class Embeddings(Section):
    """Embeddings of chunks, entities, relationships and reports."""

    enabled: bool = True
    """Compute embeddings. Vector search needs them."""
    model: str = "embedding"
    """Name of a model under `models`. If it does not exist, the small bundled model is used."""
    max_tokens: PositiveInt = 8_000
    """Longer texts are truncated before embedding."""
    include_titles: bool = True
    """Embed chunks together with title, date and the columns in `chunking.prepend_metadata`, so that vector
    search can distinguish documents by them, as keyword search always does. A change embeds all chunks again,
    unless their document has no date and begins with its title."""


Language: TypeAlias = Literal[
    "arabic", "danish", "dutch", "english", "finnish", "french", "german",
    "greek", "hindi", "hungarian", "indonesian", "italian", "norwegian",
    "polish", "portuguese", "romanian", "russian", "spanish", "swedish", "turkish",
]  # fmt: skip
"""Languages that `store/search/tokenizer.py` can detect and Snowball can stem."""


class SearchIndexes(Section):
    """Indexes for keyword and vector search."""

    language: Language | Literal["auto", "none"] = "auto"
    """Language for stemming. auto: detected from function words; none: compare the first letters."""


class Query(Section):
    """How questions are answered (paper 3.1.6, E.3, E.4)."""

    context_tokens: PositiveInt = 8_000
    """Token budget of one context, without the prompt around it."""
    response_type: str = "as long as the question needs"
    """Form and length of an answer, for the prompt, such as `a list of five points`."""
    seed: int = 20_240_424
    """Random seed for shuffling reports and chunks."""
    max_map_tokens: PositiveInt = 1_500
    """Maximum length of a map reply, of a drift step, and of an fgrag summary."""
    max_reduce_tokens: PositiveInt = 2_000
    """Maximum length of the answer."""
    general_knowledge: bool = False
    """Let answers use general knowledge. Each such statement is marked."""
    map_protocol: Literal["answer", "points"] = "answer"
    """answer: one scored answer per context (paper 3.1.6); points: several scored points."""
    archrag_k: Annotated[int, Field(ge=1, le=100)] = 5
    """archrag: number of entities, and of reports per level, to retrieve."""
    ppr_k: Annotated[int, Field(ge=1, le=100)] = 10
    """ppr: number of chunks to retrieve."""
    ppr_steps: Annotated[int, Field(ge=0, le=10)] = 1
    """ppr: maximum number of further searches for missing facts, with two calls each."""
    ppr_max_questions: Annotated[int, Field(ge=1, le=20)] = 6
    """ppr: maximum number of questions of a further search; a list of four needs four."""
    ppr_candidate_facts: Annotated[int, Field(ge=0, le=100)] = 0
    """ppr: number of nearest relationships from which a model selects, in one extra call. 0: off."""
    trex_k: Annotated[int, Field(ge=1, le=100)] = 5
    """trex: number of chunks and summaries to retrieve."""
    raptor_traversal: Literal["collapsed", "tree"] = "collapsed"
    """raptor: collapsed: search all chunks and summaries together; tree: level by level from the top."""
    raptor_k: Annotated[int, Field(ge=1, le=100)] = 10
    """raptor: number of chunks and summaries to retrieve, per level with `raptor_traversal: tree`."""
    raptor_context_tokens: Annotated[int, Field(ge=256)] = 3_500
    """raptor: token budget of the context with `raptor_traversal: collapsed`."""
    lightrag_mode: Literal["local", "global", "hybrid", "mix"] = "mix"
    """lightrag: local: entities by low-level keywords; global: relationships by high-level keywords; hybrid:
    both; mix: both and the chunks nearest to the question."""
    lightrag_entity_tokens: PositiveInt = 4_000
    """lightrag: token budget for entities in a context of 30,000. It shrinks with a smaller context.
    LightRAG's own is 6,000."""
    lightrag_relationship_tokens: PositiveInt = 4_000
    """lightrag: token budget for relationships in a context of 30,000, as for entities. LightRAG's own is
    8,000."""
    lightrag_context_tokens: Annotated[int, Field(ge=256)] | None = None
    """lightrag: token budget for the whole context. null: `context_tokens`. LightRAG's own is 30,000."""
    lightrag_min_similarity: Annotated[float, Field(ge=0, le=1)] = 0.5
    """lightrag: minimum similarity of entities and relationships to the question, as a share of the highest.
    0: no minimum, and ordered as published."""
    lightrag_chunks: PositiveInt = 40
    """lightrag: maximum number of chunks in the context."""
    hierarchy: HierarchyName | None = None
    """Hierarchy with the levels and reports to search. null: the first of the index."""
    dynamic: bool = False
    """global: rate reports from the top level down, and only descend below relevant ones."""
    dynamic_max_level: NonNegativeInt = 2
    """global: finest level to rate with `dynamic`, unless --level sets one."""
    budget_tokens: PositiveInt | None = None
    """Token budget of one question, for prompts and replies. Searches and calls that could exceed it are
    refused. `--level auto` chooses a level within it."""
    budget_usd: PositiveFloat | None = None
    """Like `budget_tokens`, in US dollars."""
    drift_depth: NonNegativeInt = 2
    """drift: number of rounds of follow-up questions."""
    drift_breadth: PositiveInt = 2
    """drift: maximum number of follow-up questions per round."""
    drift_context_tokens: Annotated[int, Field(ge=256)] = 6_000
    """drift: token budget of the context of the primer, and of each follow-up question."""
    drift_hypothesis: bool = True
    """drift: also search near a hypothetical answer (one short call; not with the offline engine)."""
    fgrag_entities: Annotated[int, Field(ge=1, le=50)] = 8
    """fgrag: maximum number of subjects of a question, with up to two calls each."""
    fgrag_context_tokens: Annotated[int, Field(ge=256)] = 16_000
    """fgrag: token budget of the context of one summary, which has at most 150 descriptions."""
    fgrag_min_similarity: Annotated[float, Field(ge=-1, le=1)] = 0.2
    """fgrag: minimum cosine similarity of an entity to the subject."""
    fgrag_questions: Annotated[int, Field(ge=1, le=50)] = 10
    """fgrag: maximum number of questions written about each subject."""
    adjacent_chunks: NonNegativeInt = 3
    """vector, hybrid, local, drift: top chunks to extend with adjacent chunks, if there is room. 0: none."""
    hybrid_record_kinds: Annotated[
        tuple[SearchedKind, ...], Field(min_length=1), BeforeValidator(_split_commas)
    ] = ("text_unit",)
    """hybrid: record kinds to search, fused into one list. On the command line: a,b."""
    fusion: Literal["score", "rrf"] = "score"
    """hybrid, trex: how to fuse vector and keyword search: by score, or by reciprocal rank (k = 60)."""
    hybrid_vector_weight: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = "auto"
    """hybrid, trex: weight of vector against keyword search, from 0 to 1. auto: the search whose best hits
    stand out more from the others counts more, per question; with `fusion: rrf`, both count equally."""
    rerank_model: str | None = None
    """Name under `models` of a model that reranks passages, with a /rerank API. null: no reranking."""
    rerank_candidates: Annotated[int, Field(ge=2, le=1000)] = 50
    """Number of passages that `rerank_model` scores, in one call."""
    local_text_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """local: share of the context for chunks. The defaults of `local_` settings are Microsoft GraphRAG's."""
    local_report_share: Annotated[float, Field(ge=0, le=1)] = 0.15
    """local: share of the context for reports. The rest is for entities, relationships and claims."""
    local_pagerank: bool = True
    """local: choose chunks by personalized PageRank, as ppr does. false: the entities' nearest chunks."""
    local_entities: PositiveInt = 10
    """local: number of entities to retrieve by similarity, after up to as many that the question names."""
    local_relationships: NonNegativeInt = 10
    """local: maximum number of relationships per retrieved entity."""
    local_claims: NonNegativeInt = 10
    """local: number of claims per retrieved entity."""
    local_min_similarity: Annotated[float, Field(ge=0, le=1)] = 0.85
    """local: minimum similarity of entities, relationships, claims and reports to the question, as a share of
    the highest of their kind, except for entities that the question names. 0: no minimum, and relationships
    and claims are not ordered by similarity."""
    local_chunks: PositiveInt = 40
    """local: maximum number of chunks in the context."""
    cache_mb: NonNegativeInt = 256
    """Size in MB of the row cache for later questions. Memory-mapped indexes are not counted."""

    @model_validator(mode="after")
    def _check_shares(self) -> Query:
        if self.local_text_share + self.local_report_share > 1:
            raise ValueError("the sum of local_text_share and local_report_share must not exceed 1")
        return self


class Run(Section):
    """How a run is executed."""

    max_attempts: PositiveInt = 8
    """Maximum number of attempts per call."""
    max_failed_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Stop if more than this share of items fails. Checked after the first 20 items."""
    workers_per_node: PositiveInt | None = None
    """Workers per node. null: two, or fewer if rate limits cannot keep them busy; offline, one per core."""
    initial_in_flight: PositiveInt = 64
    """Initial number of concurrent calls without known limits. The number then adapts to the throughput."""
    hedge: bool = False
    """Repeat a call if it takes longer than 99% of the calls for its prompt, or longer than 75% when no other
    call is left to send. The first reply wins. The slowest 1 to 8% of calls then cost twice as much."""
    journal_flush_s: PositiveFloat = 2.0
    """Interval between journal writes."""
    in_process_max_mb: NonNegativeFloat = 4.0
    """If no cluster is running and INPUT has at most this many megabytes, `index` runs without Ray. An update
    counts only files that may have changed. `--ray` and `--in-process` override this setting. Above the
    default, Ray is faster with the offline engine on two cores (benchmarks/RESULTS.md)."""


class Budget(Section):
    """Limits that stop a run cleanly (exit code 4). The same command continues it, with a new budget."""

    max_cost_usd: PositiveFloat | None = None
    """Maximum cost, including calls in flight. Needs the price of every model."""
    max_total_tokens: PositiveInt | None = None
    """Maximum number of tokens, for prompts and replies together."""
    max_duration_s: PositiveFloat | None = None
    """Maximum duration."""


_OFFLINE = "(offline)"
"""Name of the offline engine as a model. Settings cannot define a model with this name."""
_NAMES_STAGES = ("extract", "claims", "describe")
"""Stages that use the offline engine with `build: names`."""


class Settings(Section):
    """All settings of an index, a run and its questions."""

    root: MachineSetting[str | None] = None
    """Default --root of commands: the folder or URL of the index."""
    models: dict[str, Model] = Field(default={"default": Model()})
    stages: dict[StageName, StageModel] = Field(default={})
    input: Input = Input()
    corpus: Corpus = Corpus()
    chunking: Chunking = Chunking()
    extraction: Extraction = Extraction()
    claims: Claims = Claims()
    names: Names = Names()
    resolution: Resolution = Resolution()
    descriptions: Descriptions = Descriptions()
    graph: Graph = Graph()
    build: MachineSetting[Literal["all", "names"]] = "all"
    """names: extract and describe entities with the offline engine, whatever the model, and build neither
    communities nor reports. Only embeddings can then cost anything. A later run with `all` adds the rest."""
    hierarchies: Annotated[tuple[HierarchyName, ...], Field(min_length=1), BeforeValidator(_split_commas)] = (
        "leiden",
    )
    """Hierarchies of communities to build. If none of them groups entities, nothing is extracted and the
    index has no graph. On the command line: a,b."""
    communities: Communities = Communities()
    attributed: Attributed = Attributed()
    tree: Tree = Tree()
    reports: Reports = Reports()
    embeddings: Embeddings = Embeddings()
    search: SearchIndexes = SearchIndexes()
    query: Query = Query()
    run: MachineSetting[Run] = Run()
    budget: MachineSetting[Budget] = Budget()
    storage: MachineSetting[Storage] = Storage()
    output_language: str = LANGUAGE_OF_TEXT
    """Language of descriptions, reports and answers, for the prompt. By default, answers use the language of
    the question."""
    prompts_dir: MachineSetting[PathOrUrl] = None
    """Folder with edited prompts, as written by `graphrag-ray init`. Missing prompts are chosen as for null.
    null: an index keeps the prompts that it was built with until `index --new-prompts`; new indexes and
    questions use the bundled prompts."""
    prompts: dict[IndexingPrompt, Annotated[str, Field(max_length=100_000)]] = Field(default={})
    """Written to snapshots: the prompts that the index was built with, by name."""
    request_rules: Annotated[int, Field(ge=1, le=REQUEST_RULES)] = REQUEST_RULES
    """Written to snapshots: the version of the rules for filling indexing prompts (1 for an index that names
    none). Like its prompts, an index keeps them until `index --new-prompts`."""

    @field_validator("hierarchies")
    @classmethod
    def _check_duplicates(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"a hierarchy is named twice: {', '.join(value)}")
        return value

    @field_validator("stages")
    @classmethod
    def _set_judge_temperature(cls, value: dict[str, StageModel]) -> dict[str, StageModel]:
        judge = value.get("judge")
        if judge is None or "temperature" in judge.model_fields_set:
            return value
        return value | {"judge": judge.model_copy(update={"temperature": JUDGE_TEMPERATURE})}

    @model_validator(mode="after")
    def _check_references(self) -> Settings:
        needs = [name for name in self.hierarchies if HIERARCHIES[name].needs_embeddings]
        if needs and not self.embeddings.enabled:
            raise ValueError(f"hierarchies: {needs[0]} needs embeddings, but embeddings.enabled is false")
        if _OFFLINE in self.models:
            raise ValueError(f"no model can be named {_OFFLINE!r}")
        if "default" not in self.models:
            raise ValueError("`models` needs a model named `default`")
        for name, stage in self.stages.items():
            if stage.model is not None and stage.model not in self.models:
                known = ", ".join(self.models)
                raise ValueError(
                    f"stages.{name}.model is {stage.model!r}, which is not under `models` ({known})"
                )
        model = self.embeddings.model
        if model not in self.models and model != Embeddings.model_fields["model"].default:
            raise ValueError(f"embeddings.model is {model!r}, which is not under `models`")
        if self.query.rerank_model not in (None, *self.models):
            known = ", ".join(self.models)
            raise ValueError(
                f"query.rerank_model is {self.query.rerank_model!r}, which is not under `models` ({known})"
            )
        return self

    @property
    def has_graph(self) -> bool:
        """Whether entities and relationships are extracted."""
        return self.build == "names" or any(HIERARCHIES[name].needs_graph for name in self.hierarchies)

    @property
    def composes_below(self) -> int:
        """Communities with fewer entities get composed reports. 0 if all reports are written."""
        return 0 if self.model(self.model_name("report")).provider == "offline" else self.reports.model_from

    @property
    def built_hierarchies(self) -> tuple[str, ...]:
        """The hierarchies that a run builds."""
        return () if self.build == "names" else self.hierarchies

    def with_hierarchies_of(self, index: Iterable[str]) -> Settings:
        """Return these settings with the hierarchies of an index, for questions.

        Hierarchies that this version does not know are left out. An index built with `build: names` has none.
        """
        names = list(index)
        known = tuple(name for name in names if name in HIERARCHIES)
        return self.model_copy(update={"hierarchies": known}) if known or not names else self

    def with_description(self, text: str | None) -> Settings:
        return self.model_copy(update={"corpus": Corpus(description=text)})

    @property
    def answer_language(self) -> str:
        """Language of answers, for the prompt."""
        return LANGUAGE_OF_QUESTION if self.output_language == LANGUAGE_OF_TEXT else self.output_language

    def input_options(self, input_url: str, root: str) -> dict[str, Any]:
        """Return the fsspec options for opening INPUT or one of its files.

        `storage.options` only apply if INPUT is on the same kind of storage as the index at `root` (or "").
        """
        if self.input.storage is not None:
            return self.input.storage.fsspec_options(input_url)
        same = not root or protocol_of(root) == protocol_of(input_url)
        return (self.storage if same else self.storage.model_copy(update={"options": {}})).fsspec_options(
            input_url
        )

    def model_name(self, stage: str) -> str:
        """Return the name under `models` of a stage's model, or "offline" for embeddings without a model."""
        stage = "report" if stage == ABOUT_DIALOGUE else stage
        if self.build == "names" and stage in _NAMES_STAGES:
            return _OFFLINE
        if (configured := self.stages.get(stage)) is not None and configured.model is not None:
            return configured.model
        if stage == "embed":
            return self.embeddings.model if self.embeddings.model in self.models else "offline"
        if stage == RERANK:
            return self.query.rerank_model or _OFFLINE
        return "default"

    def model(self, name: str) -> Model:
        return self.models[name] if name in self.models else Model()

    def later_rules(self, stage: str) -> int | None:
        """Return `request_rules` for a stage, or None for the first ones.

        The offline engine keeps the first rules: it removes repetitions itself, after using them as evidence
        of what matters.
        """
        offline = self.model(self.model_name(stage)).provider == "offline"
        return None if offline or self.request_rules < 2 else self.request_rules

    def call_parameters(self, stage: str, max_output_tokens: int | None = None) -> CallParameters:
        """Return the call parameters of a stage. `max_output_tokens` is its default limit."""
        temperature = JUDGE_TEMPERATURE if stage == "judge" else 0.0
        stage_model = self.stages.get(stage) or StageModel(temperature=temperature)
        name = self.model_name(stage)
        model = self.model(name)
        limit = stage_model.max_output_tokens or max_output_tokens or model.max_output_tokens
        return CallParameters(
            model=name,
            model_id=model.model_id,
            temperature=stage_model.temperature,
            max_output_tokens=min(limit, model.max_output_tokens),
            reasoning_effort=stage_model.reasoning_effort or model.reasoning_effort,
            reasoning_tokens=model.reserved_reasoning_tokens
            if stage_model.reasoning_tokens is None
            else stage_model.reasoning_tokens,
        )
