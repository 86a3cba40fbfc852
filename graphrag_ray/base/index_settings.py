"""The settings of an index, as values. `settings_file.py` reads them.

Every field says what it does. Secrets are never here: `api_key_env` and `api_key_file` name where a
worker finds one. Fields that are `OfMachine` say how this machine works and reaches things: no snapshot
keeps them, and none is taken from a snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from graphrag_ray.base.declarations import (
    ABOUT,
    HIERARCHIES,
    INDEXING_PROMPTS,
    MODEL_STAGES,
    SEARCHED,
)
from graphrag_ray.base.messages import CallParameters, whole
from graphrag_ray.base.providers import PROVIDERS, LocalProvider, provider_to_ask
from graphrag_ray.base.thoughts import THOUGHT_TOKENS, family_of
from graphrag_ray.base.urls import is_url, protocol_of, secret_options
from graphrag_ray.base.wording import shortened

OFFLINE_MODEL_ID = "offline-5"
"""Identity of the offline engine in item keys. Raise the number when its answers change."""


OPENAI_URL = "https://api.openai.com/v1"
"""The one address that every machine knows."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_HEADERS = {"authorization", "proxy-authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie"}


def _no_password(place: str | None) -> str | None:
    """Of a path or URL that snapshots keep. No message repeats it."""
    if place is not None and is_url(place) and ":" in urlsplit(place).netloc.rpartition("@")[0]:
        raise ValueError("the address holds a password: copy what it names to a folder or an object store")
    return place


_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")
MAX_ABOUT = 1_000


def as_about(text: str) -> str:
    """A text on what a corpus is about as it is kept: one paragraph of at most MAX_ABOUT characters."""
    return shortened(" ".join(_CONTROL.sub(" ", whole(text[: 8 * MAX_ABOUT])).split()), MAX_ABOUT)


class _Machine:
    """Stands in the annotation of a field that is of a machine."""


T = TypeVar("T")
OfMachine: TypeAlias = Annotated[T, _Machine()]
KeptPlace: TypeAlias = Annotated[str | None, AfterValidator(_no_password)]
ReasoningEffort: TypeAlias = Annotated[str, Field(pattern=r"^[a-z]{1,20}$")] | None


class _Strict(BaseModel):
    # Most of the models are only checked as parts of others: no validator is built for each.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Price(_Strict):
    """US dollars per million tokens. Overrides the bundled table."""

    input_usd_per_mtok: Annotated[float, Field(ge=0)]
    """Of prompts."""
    output_usd_per_mtok: Annotated[float, Field(ge=0)] = 0.0
    """Of replies."""
    cached_usd_per_mtok: Annotated[float, Field(ge=0)] | None = None
    """Of the part of a prompt that the endpoint had cached; null: as the rest of it."""


class Endpoint(_Strict):
    """One address that serves a logical model."""

    base_url: str = OPENAI_URL
    """Of its OpenAI-compatible API: http(s)://host[:port]/v1. Where nothing names one: OPENAI_BASE_URL of
    the environment, else this."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key; null for an endpoint without one."""
    api_key_file: str | None = None
    """A file with the key, read where the variable is not set."""
    model: str | None = None
    """What this endpoint calls the model; the logical model's `model` when absent."""
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    """null: no known limit."""
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Prompts and replies together. null: no known limit."""
    max_in_flight: Annotated[int, Field(gt=0)] | None = None
    """A bound of yours on concurrent calls. null: as many as the limits ask for; without any known limit,
    as many as raise the endpoint's throughput."""
    price: Price | None = None
    """What this endpoint takes; the logical model's `price` when absent."""
    headers: dict[str, str] = {}
    """Extra HTTP headers without secrets (an API version, say)."""

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        """What may be a password is not repeated: host:8000/v1 begins like one with a user."""
        try:
            parts = urlsplit(url)
            is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, half a bracket
            is_http = False
        if not is_http:
            named = "it" if "@" in url else repr(url.partition("?")[0])
            raise ValueError(f"{named} is not an address: write http://host:port/v1 or https://host/v1")
        return url

    @model_validator(mode="after")
    def _no_secret(self) -> Endpoint:
        """What stands here is written into snapshots and error messages. No message repeats it."""
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            raise ValueError("api_key_env is the NAME of an environment variable, never the key itself")
        if secret := sorted(name for name in self.headers if name.lower() in _SECRET_HEADERS):
            raise ValueError(f"headers hold a secret ({', '.join(secret)}): use api_key_env or api_key_file")
        if "@" in urlsplit(self.base_url).netloc:
            raise ValueError("base_url holds a user or password: use api_key_env or api_key_file")
        return self


class Reach(_Strict):
    """How a model is reached from this machine. Snapshots keep nothing of it."""

    endpoints: OfMachine[tuple[Endpoint, ...]] = ()
    price: OfMachine[Price | None] = None
    timeout_s: OfMachine[Annotated[float, Field(gt=0)]] = 180.0
    embedding_batch: OfMachine[Annotated[int, Field(gt=0, le=2048)]] = 128
    """Texts packed into one embedding call."""


class Model(Reach):
    """A logical model: what is asked for, and the endpoints that answer."""

    provider: str = "offline"
    """offline: classical methods, no key, no network; openai: any OpenAI-compatible endpoint; or a provider
    that an installed package adds."""
    model: str = ""
    """The model's id. It is part of every item's key: another id is another answer."""
    tokenizer: str | None = None
    """cl100k_base, o200k_base, llama3, qwen3; null: by the model's name, else o200k_base."""
    context_window: Annotated[int, Field(gt=0)] = 128_000
    """Of prompt and reply together."""
    max_output_tokens: Annotated[int, Field(gt=0)] = 4_096
    """The most that a reply may have, where a stage says nothing less."""
    reasoning_effort: ReasoningEffort = None
    """How much a model that thinks is to think, in its endpoint's words: low, medium, high, …. null:
    the parameter is not sent."""
    reasoning_tokens: Annotated[int, Field(ge=0)] | None = None
    """Room for the thoughts of a model that thinks, beside the limit of its replies. null: 8,192 where the
    model is known to think or turns out to, else 0."""
    embedding_dimensions: Annotated[int, Field(gt=0)] | None = None
    needs_address: bool = False
    """Written by snapshots: the model was asked somewhere else than at OpenAI's own address, so each machine
    must know where."""
    package: str = ""
    """Written by snapshots: the package that added the provider."""

    @model_validator(mode="after")
    def _complete(self) -> Model:
        if self.provider not in PROVIDERS and not self.package:
            known = ", ".join(PROVIDERS)
            raise ValueError(f"unknown provider {self.provider[:100]!r}. Choose from: {known}")
        if self.provider not in ("openai", "offline"):
            if not self.endpoints and not self.needs_address:
                object.__setattr__(self, "endpoints", (Endpoint(),))
        elif self.provider == "openai":
            if not self.model:
                raise ValueError("`model` is needed with provider: openai (a model id such as gpt-4o-mini)")
            if not self.endpoints and not self.needs_address:
                object.__setattr__(self, "endpoints", (Endpoint(),))
        elif self.model or self.endpoints:
            # Silently offline, a run would cost nothing and mean nothing.
            raise ValueError(
                "a model with `model` or `endpoints` needs provider: openai (the offline engine again: "
                "--set 'models.default={provider: offline}')"
            )
        return self

    @property
    def unknown(self) -> bool:
        """Whether this machine does not know where it is: it cannot be asked then."""
        return self.provider == "openai" and not self.endpoints

    @property
    def model_id(self) -> str:
        """What stands in item keys."""
        return OFFLINE_MODEL_ID if self.provider == "offline" else self.model or self.provider

    @property
    def is_local(self) -> bool:
        """Whether its requests are answered in this process, without endpoints. Imports its provider."""
        return isinstance(provider_to_ask(self), LocalProvider)

    @property
    def room_to_think(self) -> int:
        """Tokens of thoughts that a reply may have beside its own limit, as far as is known beforehand."""
        if self.reasoning_tokens is not None:
            return self.reasoning_tokens
        names = [self.model, *(e.model for e in self.endpoints if e.model)]
        return THOUGHT_TOKENS if family_of(*names).thinks else 0


JUDGE_TEMPERATURE = 1.0


class StageModel(_Strict):
    """How one stage calls its model. null: the model's own value."""

    model: str | None = None
    temperature: float | None = 0.0
    """null: the parameter is not sent. Where none is given, stage judge has 1: at 0 a judge says nearly the
    same in each replicate."""
    max_output_tokens: Annotated[int, Field(gt=0)] | None = None
    reasoning_effort: ReasoningEffort = None
    reasoning_tokens: Annotated[int, Field(ge=0)] | None = None


class Storage(_Strict):
    """How storage is reached. Credentials are never here: each node has them in its environment, in a
    profile, or by its role. No snapshot keeps this section: it is about the machine, not about the index."""

    endpoint_url: str | None = None
    """Address of an S3 server other than AWS. null: AWS_ENDPOINT_URL, else AWS."""
    region: str | None = None
    """null: as the environment or the profile says."""
    path_style: bool | None = None
    """true: the bucket stands in the path of a request, as most servers other than AWS want it; null: as
    the address allows."""
    checksums: Literal["when_supported", "when_required"] | None = None
    """when_required: for S3 servers that do not know the newer checksums; null: as the environment says."""
    profile: str | None = None
    """A profile of ~/.aws/config, on every node."""
    options: dict[str, Any] = {}
    """Further arguments of the fsspec file system (s3fs, gcsfs, adlfs, …), without secrets."""

    @model_validator(mode="after")
    def _no_secret(self) -> Storage:
        """No message repeats it."""
        if secret := secret_options(self.options):
            raise ValueError(
                f"options hold a secret ({', '.join(secret)}): give it to each node as its provider's "
                "environment variables (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, say) or in a profile"
            )
        if "@" in urlsplit(self.endpoint_url or "").netloc:
            raise ValueError("endpoint_url holds a user or password: give it to each node's environment")
        return self

    def of(self, url: str) -> dict[str, Any]:
        """What opening this URL needs of it: nothing for a local path."""
        protocol = protocol_of(url)
        if protocol == "file":
            return {}
        own = self.model_dump(exclude={"options"}, exclude_none=True) if protocol == "s3" else {}
        return {**own, **self.options}


class Input(_Strict):
    url: OfMachine[str | None] = None
    """INPUT, where a command names none: a file, folder, glob or URL. No snapshot keeps it here."""
    text_column: str = "text"
    id_column: str | None = None
    title_column: str | None = "title"
    """null: none. Files have their own titles."""
    date_column: str | None = "date"
    """null: none. The other columns of tables (.jsonl, .csv, .parquet) are kept as metadata."""
    strip_pattern: str | None = None
    """A regular expression; what it matches at the start of a .txt or .md file is not text (a header
    that repeats the file's name, say)."""
    max_bytes: Annotated[int, Field(gt=0)] = 2_000_000_000
    """A larger .txt, .md or .html file, or a row group of a .parquet file that holds more when decoded, is a
    failure, not an out-of-memory."""
    storage: OfMachine[Storage | None] = None
    """How INPUT is reached, where it does not lie beside the index. null: as `storage` says; {}: as the
    environment says."""

    @model_validator(mode="after")
    def _pattern_compiles(self) -> Input:
        import regex

        try:
            regex.compile(self.strip_pattern or "")
        except regex.error as e:
            raise ValueError(f"strip_pattern is not a regular expression: {e}") from None
        return self


class Corpus(_Strict):
    about: Annotated[str, AfterValidator(as_about)] | None = None
    """What the corpus is about, in a sentence or two (1,000 characters count), by which reports are rated and
    read. null: as the index has it; a new one asks the model that writes reports once, and no update asks
    again. Another text asks for all reports anew. "": nothing is said."""


class Chunking(_Strict):
    """Paper 3.1.1: 600 tokens with 100 overlap."""

    size: Annotated[int, Field(gt=0)] | Literal["document"] = 600
    overlap: Annotated[int, Field(ge=0)] = 100
    """Of a chunk with the one before."""
    min_new_tokens: Annotated[int, Field(ge=0)] = 50
    """What is left for a last chunk joins the one before where it has fewer new tokens; the joined chunk may
    be up to that much longer than `size`."""
    prepend: tuple[str, ...] | Literal["auto"] = "auto"
    """What is said of its document above each chunk where a model extracts, within `size`: title, date, and
    columns of the metadata by name. These columns are said in search, contexts and sources, too, as title and
    date are in any case. auto: date and title, but no title that is the file's name or that the chunk begins
    with. An index keeps its own until another is given, which asks a model again about each chunk that it
    concerns."""

    @field_validator("prepend", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "auto":
            value = [word.strip() for word in value.split(",")]
        if isinstance(value, list | tuple):
            value = [word for word in value if word != ""]
            if "auto" in value:
                raise ValueError("`auto` stands alone: name title, date and columns, or auto")
        return value

    @property
    def prepended_metadata(self) -> tuple[str, ...]:
        """The columns of the metadata that `prepend` names."""
        named = self.prepend if isinstance(self.prepend, tuple) else ()
        return tuple(n.removeprefix("metadata.") for n in named if n not in ("title", "date"))

    @model_validator(mode="after")
    def _overlap_below_size(self) -> Chunking:
        if self.size != "document" and self.overlap >= self.size:
            raise ValueError(f"overlap ({self.overlap}) must be smaller than size ({self.size})")
        return self


class Extraction(_Strict):
    """Paper 3.1.2, A.1, A.2."""

    entity_types: tuple[str, ...] = ("person", "organization", "location", "event", "work", "concept")
    """The paper's graphs used types of their own domain; these fit most."""
    max_gleanings: Annotated[int, Field(ge=0)] = 1
    force_yes_no: bool | None = None
    """Force the gleaning question's answer by logit bias 100. null: only where the vocabulary is known
    to be the model's."""


class Claims(_Strict):
    enabled: bool = False
    """Costs about as much as extraction. Always on in the paper's description, off in most of its uses."""
    description: str = (
        "Important factual statements about the entities: what they did, decided, owned, "
        "said, caused or suffered, with dates where the text gives them."
    )
    """What counts as a claim, in words for the model."""


class Names(_Strict):
    """What acts in the entity key, and nowhere else."""

    aliases_file: OfMachine[KeptPlace] = None
    """YAML: `CANONICAL NAME: [alias, …]`."""
    aliases: str | None = None
    """The text of such a file, where none is named. A snapshot keeps that of the file it was made with."""
    block_file: OfMachine[KeptPlace] = None
    """One name a line; these never become entities."""
    block: str | None = None
    """The text of such a file, where none is named. A snapshot keeps that of the file it was made with."""


class Descriptions(_Strict):
    max_output_tokens: Annotated[int, Field(gt=0)] = 500
    batch_tokens: Annotated[int, Field(gt=0)] = 6_000
    """Instances summarised in one call; more are reduced as a tree."""
    joined_tokens: Annotated[int, Field(ge=0)] = 100
    """Two or three descriptions that together have at most so many tokens (100: some three sentences) are put
    one after the other, and no model is asked. 0: a model is asked wherever two differ. An index keeps its
    own until another is given."""


class Graph(_Strict):
    weight: Literal["count", "strength"] = "count"
    """count: chunks that name the relationship (paper 3.1.3); strength: sum of the stated strengths."""
    prune: Literal["auto", "on", "off"] = "auto"
    """Corpus-wide statistics drop chance names and co-occurrences. auto: for the offline engine only."""
    min_log_likelihood: float = 3.84
    """A relationship below this log-likelihood ratio is chance (Dunning 1993; 3.84 is p = .05)."""

    @field_validator("prune", mode="before")
    @classmethod
    def _as_yaml_reads_it(cls, value: Any) -> Any:
        """YAML takes `on` and `off` for true and false."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class Communities(_Strict):
    """Paper 3.1.4."""

    library: Literal["igraph", "leidenalg"] = "igraph"
    quality: Literal["modularity", "cpm", "rb_configuration", "significance", "surprise"] = "modularity"
    """igraph: modularity or cpm; leidenalg: all."""
    resolution: Annotated[float, Field(gt=0)] = 1.0
    """Above 1: more and smaller communities."""
    max_size: Annotated[int, Field(gt=1)] | None = 10
    """Communities are split until they have at most so many members; null: until they cannot be split."""
    iterations: Annotated[int, Field(gt=0)] = 2
    """Of Leiden, for each division."""
    seed: int = 20_240_424
    """Of the random numbers: with the same one, the same graph has the same communities."""
    components: Literal["all", "largest"] = "all"
    small_component: Annotated[int, Field(ge=1)] = 10
    """Components with fewer nodes share packed reports."""

    @model_validator(mode="after")
    def _library_has_quality(self) -> Communities:
        if self.library == "igraph" and self.quality not in ("modularity", "cpm"):
            raise ValueError(
                f"quality {self.quality!r} needs library: leidenalg; igraph has modularity and cpm"
            )
        return self


class Attributed(_Strict):
    """Communities by links and meaning (ArchRAG, algorithm 1): the hierarchy `attributed`."""

    augment: Literal["knn", "codicil", "none"] = "knn"
    """Links between entities that mean nearly the same. knn: of each with its nearest; codicil: the same, and
    of all links of a node only the most telling ones stay (Ruan et al. 2013); none: there are none."""
    neighbours: Annotated[int, Field(ge=1, le=100)] | None = None
    """Nearest ones of each that are linked. null: as many as an entity has links on average."""
    clustering: Literal["leiden", "spectral", "scan"] = "leiden"
    """leiden: with the library, quality and seed of `communities`; scan: Xu et al. 2007; spectral: for small
    graphs, with scikit-learn."""
    max_size: Annotated[int, Field(gt=1)] = 15
    """Members of a community, entities or communities of the level below."""
    min_communities: Annotated[int, Field(gt=1)] = 5
    """No level has fewer, but the first."""
    max_levels: Annotated[int, Field(ge=1, le=20)] = 5
    """Of communities; fewer where there are too few of them for one more."""
    scan_epsilon: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Of scan: how alike the neighbours of two members must be."""
    scan_members: Annotated[int, Field(ge=1)] = 2
    """Of scan: so many neighbours that are alike make a member the core of a community."""


class Tree(_Strict):
    """Summaries of chunks, and of such summaries (RAPTOR, TREX): the hierarchy `tree`."""

    context_tokens: Annotated[int, Field(ge=256)] = 3_500
    """Of what one summary is written from; so many more as it takes for two whole chunks."""
    max_output_tokens: Annotated[int, Field(gt=0)] = 400
    """Of a summary, as it is asked for; it is cut at twice as many."""
    max_levels: Annotated[int, Field(ge=1, le=20)] = 5
    """Of summaries; fewer where 11 or fewer of them are left."""
    reduction: Literal["umap", "pca"] = "umap"
    """What brings vectors into few dimensions. umap: as published, from 150 chunks on; pca: faster, without
    umap-learn, and chunks are in more clusters, so that more is summarised."""


ROLE = "an analyst who reads a corpus for others"


class Reports(_Strict):
    """Paper 3.1.5, E.2."""

    context_tokens: Annotated[int, Field(ge=256)] = 8_000
    """Below 256 a context may not hold one edge with its two ends."""
    max_output_tokens: Annotated[int, Field(gt=0)] = 2_000
    """Of a report."""
    role: str = ROLE
    """Who writes the reports, and for whom, in words for the model. An index keeps its own until another is
    given."""
    rating_criterion: str = "the impact severity of the community on what the corpus is about"
    """What a report's rating is about, in words for the model."""
    max_claims_per_entity: Annotated[int, Field(ge=0)] = 10
    """In a report's context."""
    keep_below: Annotated[float, Field(ge=0, le=0.5)] = 0.05
    """An update keeps a report while less than this share of what it was written from has changed: so much of
    what is new it may lack. What rests on a deleted document is always written again. 0: every change is."""


class Embeddings(_Strict):
    enabled: bool = True
    """false: no embeddings, and no search by vectors."""
    model: str = "embedding"
    """A name under `models:`; when that name is absent, the offline embedding is used."""
    max_tokens: Annotated[int, Field(gt=0)] = 8_000
    """Longer texts are cut before embedding."""
    with_titles: bool = True
    """Chunks are embedded with the title and date of their documents above them, and what else
    `chunking.prepend` names, so that vectors find what only these tell apart (keywords do in any case).
    An index keeps its own until another is given, which embeds all chunks anew but those of documents without
    a date whose texts begin with their titles."""


Language: TypeAlias = Literal[
    "arabic",
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "greek",
    "hindi",
    "hungarian",
    "indonesian",
    "italian",
    "norwegian",
    "polish",
    "portuguese",
    "romanian",
    "russian",
    "spanish",
    "swedish",
    "turkish",
]
"""Those whose words Snowball stems, and whose texts we can tell (`store/search/words.py`)."""


class SearchIndexes(_Strict):
    language: Language | Literal["auto", "none"] = "auto"
    """Of the corpus: keyword search finds a word in its other forms. auto: told by its function words; none:
    words are compared by their first letters."""


if TYPE_CHECKING:
    StageName: TypeAlias = str
    Searched: TypeAlias = str
    IndexingPrompt: TypeAlias = str
    HierarchyName: TypeAlias = str
else:  # Literals of declared names, so that what is not one of them is refused with all that are
    StageName = Literal[MODEL_STAGES]
    Searched = Literal[tuple(SEARCHED)]
    IndexingPrompt = Literal[INDEXING_PROMPTS]
    HierarchyName = Literal[tuple(HIERARCHIES)]


class Query(_Strict):
    """Paper 3.1.6, E.3, E.4."""

    context_tokens: Annotated[int, Field(gt=0)] = 8_000
    """Of the data in one context, without the prompt around it."""
    response_type: str = "as long as the question needs"
    """Form and length of an answer, in words for the model, such as `a list of five points`."""
    seed: int = 20_240_424
    max_map_tokens: Annotated[int, Field(gt=0)] = 1_500
    """Of a reply in the map phase, of a step of drift, and of a summary of fgrag."""
    max_reduce_tokens: Annotated[int, Field(gt=0)] = 2_000
    """Of the answer itself."""
    general_knowledge: bool = False
    """Let answers go beyond the data; each such statement is marked."""
    map_protocol: Literal["answer", "points"] = "answer"
    """answer: one answer with one score for each context, as in the paper; points: several, each with its
    own score."""
    archrag_k: Annotated[int, Field(ge=1, le=100)] = 5
    """archrag: entities, and reports of each level, that are read."""
    ppr_k: Annotated[int, Field(ge=1, le=100)] = 10
    """ppr: chunks that are read."""
    ppr_steps: Annotated[int, Field(ge=0, le=10)] = 1
    """ppr: how often what is missing is looked up, where the chunks that were read do not hold the answer:
    two calls each time."""
    ppr_facts: Annotated[int, Field(ge=0, le=100)] = 0
    """ppr: so many relationships nearest to the question are shown to a model, which picks those that could
    lead to the answer: one call more. 0: none."""
    trex_k: Annotated[int, Field(ge=1, le=100)] = 5
    """trex: chunks and summaries that are read."""
    traversal: Literal["collapsed", "tree"] = "collapsed"
    """raptor: the nearest of all chunks and summaries, or level by level from the top of the tree."""
    raptor_k: Annotated[int, Field(ge=1, le=100)] = 10
    """raptor: chunks and summaries that are read; from the top, of each level."""
    raptor_tokens: Annotated[int, Field(ge=256)] = 3_500
    """raptor: of these, where all levels are one."""
    lightrag_mode: Literal["local", "global", "hybrid", "mix"] = "mix"
    """lightrag: entities by low-level keywords, relationships by high-level ones, both, or both and the
    chunks nearest to the question."""
    lightrag_entity_tokens: Annotated[int, Field(gt=0)] = 6_000
    """lightrag: of entities in its context."""
    lightrag_relationship_tokens: Annotated[int, Field(gt=0)] = 8_000
    """lightrag: of relationships."""
    lightrag_tokens: Annotated[int, Field(ge=256)] = 30_000
    """lightrag: of entities, relationships and chunks together; `context_tokens` does not count there."""
    lightrag_chunks: Annotated[int, Field(gt=0)] = 20
    """lightrag: chunks in its context, at most; and in mode mix, those that are looked up by the question."""
    hierarchy: HierarchyName | None = None
    """Whose levels and reports are read; null: the first of the index."""
    dynamic: bool = False
    """global: rate reports from the top, read on only below relevant ones."""
    dynamic_max_level: Annotated[int, Field(ge=0)] = 2
    """The finest level whose reports are rated, where the question names none."""
    budget_tokens: Annotated[int, Field(gt=0)] | None = None
    """Of one question, prompts and replies. Reading that would exceed it is refused, `level: auto` keeps
    within it, and calls that turn out to exceed it are not sent."""
    budget_usd: Annotated[float, Field(gt=0)] | None = None
    """The same, in US dollars."""
    drift_depth: Annotated[int, Field(ge=0)] = 2
    """drift: rounds of follow-up questions."""
    drift_breadth: Annotated[int, Field(gt=0)] = 3
    """drift: follow-up questions of a round."""
    drift_hypothesis: bool = True
    """drift: have a paragraph written that might answer the question, and look for reports near both; one
    short call more. The offline engine writes none."""
    fgrag_entities: Annotated[int, Field(ge=1, le=50)] = 8
    """fgrag: things that a question is about, of which each is looked up, at most. A question has up to two
    calls for each, and two more."""
    fgrag_tokens: Annotated[int, Field(ge=256)] = 4_000
    """fgrag: of entities and relationships that one summary is written from: some 150 short descriptions."""
    fgrag_questions: Annotated[int, Field(ge=1, le=50)] = 10
    """fgrag: questions that are written about each of them, at most."""
    neighbours: Annotated[int, Field(ge=0)] = 3
    """vector, hybrid, local, drift: so many chunks at the front bring the chunks after and before them in
    their documents, where the context has room left. 0: none."""
    hybrid_over: Annotated[tuple[Searched, ...], Field(min_length=1)] = ("text_unit",)
    """What hybrid search looks through; lists of several kinds become one. On a command line: a,b."""
    hybrid_vector_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Of embeddings beside keywords, where hybrid search and trex fuse both. A strong embedding model wants
    more."""
    local_text_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of local search's context for chunks. The shares, and the numbers below, are those that
    Microsoft GraphRAG publishes for its own."""
    local_reports_share: Annotated[float, Field(ge=0, le=1)] = 0.15
    """For reports. What the two leave is for entities, relationships and claims."""
    local_walk: bool = True
    """Chunks are those that a walk from the question comes to, as for ppr. false: those of the entities that
    were looked up, which are nearest to the question."""
    local_entities: Annotated[int, Field(gt=0)] = 10
    """Entities looked up by nearness; so many that the question names come before them."""
    local_relationships: Annotated[int, Field(ge=0)] = 10
    """For each of these entities, of those that lead to others; those between them are all taken."""
    local_claims: Annotated[int, Field(ge=0)] = 10
    """For each of these entities."""
    memory_mb: Annotated[int, Field(ge=0)] = 256
    """Rows that were read are kept for the next question up to this size, in megabytes. Indexes are mapped
    into memory beside it; the system takes that back when it needs the room."""

    @field_validator("hybrid_over", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return [word.strip() for word in value.split(",")] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _shares_are_of_one_context(self) -> Query:
        if self.local_text_share + self.local_reports_share > 1:
            raise ValueError("local_text_share and local_reports_share are more than a context together")
        return self


class Run(_Strict):
    max_attempts: Annotated[int, Field(gt=0)] = 8
    max_failed_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The run stops above this share of failed items, from the first 20 on."""
    workers_per_node: Annotated[int, Field(gt=0)] | None = None
    """LLM actors per node. null: two, on many nodes no more than the models' limits can keep busy; one per
    core for the offline engine."""
    default_in_flight: Annotated[int, Field(gt=0)] = 64
    """Concurrent calls to start with where no limit is known and no `max_in_flight` is set. From then on
    they follow the endpoint's throughput."""
    hedge: bool = False
    """Send a second request for a call that takes longer than 99% of those of its prompt, or than 75% where
    nothing else is left to send; the first answer counts. Costs what the slowest 1 to 8% cost once more."""
    flush_s: Annotated[float, Field(gt=0)] = 2.0
    """Seconds between journal writes."""
    in_process_mb: Annotated[float, Field(ge=0)] = 4.0
    """Up to so much INPUT, in megabytes of its files, `index` works in its own process, without Ray, where no
    cluster is there; in an update those files count that may have changed. `--ray` and `--in-process` decide
    it themselves. With the offline engine and two cores, Ray is faster from here on
    (benchmarks/RESULTS.md)."""


class Budget(_Strict):
    """Stops a run cleanly (exit code 4); the same command continues it, with a budget of its own."""

    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    """Calls in flight count as if they were answered. Needs the price of every model."""
    max_total_tokens: Annotated[int, Field(gt=0)] | None = None
    """Prompts and replies together."""
    max_wall_s: Annotated[float, Field(gt=0)] | None = None


_OFFLINE = "(offline)"
"""A logical model that is always there: the offline engine. Settings cannot name one so."""
_OF_NAMES = ("extract", "claims", "describe")
"""Stages that the offline engine does where only names are made."""

LANGUAGE_OF_TEXT = "the language of the text"
LANGUAGE_OF_QUESTION = "the language of the question"


_LASTING = (
    *(("chunking", "prepend"), ("descriptions", "joined_tokens")),
    *(("embeddings", "with_titles"), ("reports", "role")),
)
"""Settings with which an index goes on until they are given another value: a change asks models again."""


class Settings(_Strict):
    root: OfMachine[str | None] = None
    """The index, where a command does without --root: a folder or URL. No snapshot keeps it."""
    models: dict[str, Model] = {"default": Model()}
    stages: dict[StageName, StageModel] = {}
    input: Input = Input()
    corpus: Corpus = Corpus()
    chunking: Chunking = Chunking()
    extraction: Extraction = Extraction()
    claims: Claims = Claims()
    names: Names = Names()
    descriptions: Descriptions = Descriptions()
    graph: Graph = Graph()
    build: OfMachine[Literal["all", "names"]] = "all"
    """names: a run finds names and what is said of them by the offline engine, whatever the model, and makes
    no communities and no reports: nothing is paid for but embeddings. A later run without it makes the rest.
    No snapshot keeps it."""
    hierarchies: Annotated[tuple[HierarchyName, ...], Field(min_length=1)] = ("leiden",)
    """Of communities. Where none is over entities, nothing is extracted: the index has no graph. On a command
    line: a,b."""
    communities: Communities = Communities()
    attributed: Attributed = Attributed()
    tree: Tree = Tree()
    reports: Reports = Reports()
    embeddings: Embeddings = Embeddings()
    search: SearchIndexes = SearchIndexes()
    query: Query = Query()
    run: OfMachine[Run] = Run()
    budget: OfMachine[Budget] = Budget()
    storage: OfMachine[Storage] = Storage()
    output_language: str = LANGUAGE_OF_TEXT
    """In which descriptions, reports and answers are written, in words for the model. Where it is the
    default, answers are written in the language of the question."""
    prompts_dir: OfMachine[KeptPlace] = None
    """A folder with edited prompts (`graphrag-ray init` writes one); what it lacks is as if it were null.
    null: an index goes on with the prompts that it was made with until `index --new-prompts`; a new one and
    all questions take those of the package."""
    prompts: dict[IndexingPrompt, Annotated[str, Field(max_length=100_000)]] = {}
    """Texts of prompts. Written by snapshots: those that the index was made with."""

    @field_validator("hierarchies", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return [word.strip() for word in value.split(",")] if isinstance(value, str) else value

    @field_validator("hierarchies")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"a hierarchy is named twice: {', '.join(value)}")
        return value

    @model_validator(mode="after")
    def _meaning_is_embedded(self) -> Settings:
        needs = [name for name in self.hierarchies if HIERARCHIES[name].by_meaning]
        if needs and not self.embeddings.enabled:
            raise ValueError(f"hierarchies: {needs[0]} needs embeddings, and embeddings.enabled is false")
        return self

    @field_validator("stages")
    @classmethod
    def _judge_varies(cls, value: dict[str, StageModel]) -> dict[str, StageModel]:
        judge = value.get("judge")
        if judge is None or "temperature" in judge.model_fields_set:
            return value
        return value | {"judge": judge.model_copy(update={"temperature": JUDGE_TEMPERATURE})}

    @property
    def has_graph(self) -> bool:
        """Whether entities and relationships are extracted."""
        return self.build == "names" or any(HIERARCHIES[name].of_graph for name in self.hierarchies)

    @property
    def built_hierarchies(self) -> tuple[str, ...]:
        """Those that a run makes."""
        return () if self.build == "names" else self.hierarchies

    @model_validator(mode="after")
    def _models_exist(self) -> Settings:
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
        own, usual = self.embeddings.model, Embeddings.model_fields["model"].default
        if own not in self.models and own != usual:
            raise ValueError(f"embeddings.model is {own!r}, which is not under `models`")
        return self

    def with_hierarchies_of(self, index: Iterable[str]) -> Settings:
        """Settings for questions to an index that has these. One of another version may have others; one
        made with `build: names` has none."""
        there = list(index)
        names = tuple(name for name in there if name in HIERARCHIES)
        return self.model_copy(update={"hierarchies": names}) if names or not there else self

    def with_reports_of(self, before: Mapping[str, Any] | None) -> Settings:
        """Settings that say how the index before was made where these do not: what `_LASTING` names, and what
        the corpus is about. What the offline engine said of the corpus is no model's to go by: a model is
        asked anew.

        before: what its snapshot, or the record of its last run, keeps; None: there was none
        """
        update: dict[str, Any] = {}
        for section, key in _LASTING:
            own, kept = getattr(self, section), _said_in(before or {}, section, key)
            if kept is not None and key not in own.model_fields_set:
                with suppress(ValueError):  # a stranger wrote it
                    update[section] = type(own).model_validate(
                        {**own.model_dump(exclude_unset=True), key: kept}
                    )
        if self.corpus.about is None and (self._reports_offline or not _reports_offline(before or {})):
            update["corpus"] = Corpus(about=about_in(before or {}))
        return self.model_copy(update=update)

    @property
    def _reports_offline(self) -> bool:
        return self.model(self.model_name("report")).provider == "offline"

    def with_about(self, text: str | None) -> Settings:
        return self.model_copy(update={"corpus": Corpus(about=text)})

    @property
    def answer_language(self) -> str:
        """In which answers are written: they have no text whose language could be meant."""
        return LANGUAGE_OF_QUESTION if self.output_language == LANGUAGE_OF_TEXT else self.output_language

    def kept(self) -> dict[str, Any]:
        """What a snapshot keeps of them: what the index is, without what is this machine's."""
        return of_index(self.model_dump(mode="json"))

    def input_options(self, input_url: str, root: str) -> dict[str, Any]:
        """What opening INPUT, or a file of it, needs. `storage.options` are those of the index's kind of
        storage: INPUT on another kind does without.

        root: the index; "" for none
        """
        if self.input.storage is not None:
            return self.input.storage.of(input_url)
        same = not root or protocol_of(root) == protocol_of(input_url)
        return (self.storage if same else self.storage.model_copy(update={"options": {}})).of(input_url)

    def model_name(self, stage: str) -> str:
        """The logical model of a stage. For "about" that of "report"; for "embed": embeddings.model where
        configured, else "offline"."""
        stage = "report" if stage == ABOUT else stage
        own = self.stages.get(stage)
        if self.build == "names" and stage in _OF_NAMES:
            return _OFFLINE
        if own is not None and own.model is not None:
            return str(own.model)
        if stage == "embed":
            return self.embeddings.model if self.embeddings.model in self.models else "offline"
        return "default"

    def model(self, name: str) -> Model:
        return self.models[name] if name in self.models else Model()

    def call(self, stage: str, max_output_tokens: int | None = None) -> CallParameters:
        """The call parameters of a stage; `max_output_tokens` is the stage's own default."""
        usual = JUDGE_TEMPERATURE if stage == "judge" else 0.0
        own = self.stages.get(stage) or StageModel(temperature=usual)
        name = self.model_name(stage)
        model = self.model(name)
        limit = own.max_output_tokens or max_output_tokens or model.max_output_tokens
        return CallParameters(
            model=name,
            model_id=model.model_id,
            temperature=own.temperature,
            max_output_tokens=min(limit, model.max_output_tokens),
            reasoning_effort=own.reasoning_effort or model.reasoning_effort,
            reasoning_tokens=model.room_to_think if own.reasoning_tokens is None else own.reasoning_tokens,
        )


def about_in(kept: Mapping[str, Any]) -> str | None:
    """What the corpus is about, as kept settings say, which a stranger may have written."""
    said = _said_in(kept, "corpus", "about")
    return as_about(said) if isinstance(said, str) else None


def _reports_offline(kept: Mapping[str, Any]) -> bool:
    """Whether the offline engine wrote the reports of an index, as its kept settings say."""
    own, models = _said_in(kept, "stages", "report"), kept.get("models")
    name = own.get("model") if isinstance(own, Mapping) else None
    model = (
        models.get(name or "default")
        if isinstance(models, Mapping) and isinstance(name, str | None)
        else None
    )
    return isinstance(model, Mapping) and model.get("provider") == "offline"


def _said_in(kept: Mapping[str, Any], section: str, key: str) -> Any:
    """What kept settings, which a stranger may have written, say; None: nothing."""
    found = kept.get(section)
    return found.get(key) if isinstance(found, Mapping) else None


_REMOVED = (("chunking", "boundaries"), ("descriptions", "alike"))
"""Settings that are no more, and that an index may keep."""


def of_index(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What settings say of an index, without what is a machine's. To be asked of all settings that lie in an
    index: those of earlier versions hold both, and a stranger may have written them."""
    kept = _without_machine(settings, Settings)
    for section, key in _REMOVED:
        if isinstance(kept.get(section), dict):
            kept[section].pop(key, None)
    models = settings.get("models")
    for name, model in models.items() if isinstance(models, Mapping) else ():
        if isinstance(model, Mapping) and (endpoints := model.get("endpoints")):
            kept["models"][name]["needs_address"] = _elsewhere(endpoints)
        if isinstance(model, Mapping) and isinstance(provider := model.get("provider"), str):
            package = PROVIDERS.package_of(provider) or model.get("package")
            kept["models"][name].pop("package", None)
            kept["models"][name] |= {"package": package} if package else {}
    return kept


def is_machines(field: FieldInfo) -> bool:
    """Whether it is this machine's, and no index's."""
    return any(isinstance(mark, _Machine) for mark in field.metadata)


def _without_machine(given: Mapping[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """What is no mapping where a section should be stays as it is: reading it as settings refuses it."""
    kept = {}
    for key, value in given.items():
        info = section.model_fields.get(key)
        if info is None:
            kept[key] = value
        elif not is_machines(info):
            kept[key] = _below(value, info.annotation)
    return kept


def _below(value: Any, annotation: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if get_origin(annotation) is dict:
        return {name: _below(one, get_args(annotation)[1]) for name, one in value.items()}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _without_machine(value, annotation)
    return value


def _elsewhere(endpoints: Any) -> bool:
    """Whether one of these endpoints, as data, is not OpenAI's own."""
    listed = endpoints if isinstance(endpoints, list | tuple) else [endpoints]
    urls = [e.get("base_url", OPENAI_URL) if isinstance(e, Mapping) else None for e in listed]
    return any(str(url).rstrip("/") != OPENAI_URL for url in urls)
