"""Settings of the connections to models and storage. They are sections of `index_settings.py`.

Settings never contain secrets: `api_key_env` and `api_key_file` say where workers find API keys. A field
marked `MachineSetting` belongs to a machine or a run. It is neither written to snapshots nor read from them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from graphrag_ray.base.providers import PROVIDERS, LocalProvider, provider_or_unavailable
from graphrag_ray.base.reasoning import DEFAULT_REASONING_TOKENS, find_model_family
from graphrag_ray.base.urls import find_secret_options, protocol_of

OFFLINE_MODEL_ID = "offline-6"
"""Model id of the offline engine in item keys. Increase the number when its replies change."""
OPENAI_URL = "https://api.openai.com/v1"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_HEADERS = {"authorization", "proxy-authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie"}


class _MachineMark:
    """Marks the fields of the machine."""


T = TypeVar("T")
MachineSetting: TypeAlias = Annotated[T, _MachineMark()]
ReasoningEffort: TypeAlias = Annotated[str, Field(pattern=r"^[a-z]{1,20}$")] | None


def is_machine_setting(field: FieldInfo) -> bool:
    """Whether a field belongs to the machine rather than the index."""
    return any(isinstance(mark, _MachineMark) for mark in field.metadata)


class Section(BaseModel):
    # Most sections are validated as part of another one and never need their own validator.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Price(Section):
    """Prices in US dollars per million tokens. They override the bundled price table."""

    input_usd_per_mtok: NonNegativeFloat
    """Price of prompt tokens."""
    output_usd_per_mtok: NonNegativeFloat = 0.0
    """Price of reply tokens."""
    cached_usd_per_mtok: NonNegativeFloat | None = None
    """Price of cached prompt tokens. null: same as other prompt tokens."""
    usd_per_search: NonNegativeFloat = 0.0
    """US dollars per search unit, in which some rerankers bill: one per call, or as many as are reported."""


class Endpoint(Section):
    """One address that serves a model."""

    base_url: str = OPENAI_URL
    """Base URL of the OpenAI-compatible API. Default: OPENAI_BASE_URL in the environment, or OpenAI's URL."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Name of the environment variable with the API key. null: the endpoint needs no key."""
    api_key_file: str | None = None
    """File with the API key, read if the variable is not set."""
    model: str | None = None
    """Model id to send to this endpoint, if it differs from the `model` of the section above."""
    requests_per_minute: PositiveFloat | None = None
    """Request rate limit. null: no known limit."""
    tokens_per_minute: PositiveFloat | None = None
    """Token rate limit, prompts and replies together. null: no known limit."""
    max_in_flight: PositiveInt | None = None
    """Maximum number of concurrent calls. null: limited by the rate limits, or adapted to the throughput."""
    price: Price | None = None
    """Prices at this endpoint, if they differ from the `price` of the section above."""
    headers: dict[str, str] = {}
    """Extra HTTP headers, such as an API version. They must not contain secrets."""

    @field_validator("base_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # invalid port or bracket
            is_http = False
        if not is_http:
            # Do not repeat a possible password: host:8000/v1 begins like an address with a user.
            quoted = "it" if "@" in url else repr(url.partition("?")[0])
            raise ValueError(f"{quoted} is not an address. Use http://host:port/v1 or https://host/v1")
        return url

    @model_validator(mode="after")
    def _check_secrets(self) -> Endpoint:
        # Settings are written to snapshots and quoted in messages, so these messages never repeat the value.
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            raise ValueError("api_key_env is the NAME of an environment variable, never the key itself")
        if secret := sorted(name for name in self.headers if name.lower() in _SECRET_HEADERS):
            raise ValueError(
                f"headers contain a secret ({', '.join(secret)}): use api_key_env or api_key_file"
            )
        if "@" in urlsplit(self.base_url).netloc:
            raise ValueError("base_url contains a user or password: use api_key_env or api_key_file")
        return self


class ModelConnection(Section):
    """Connection settings of a model. Not stored in snapshots."""

    endpoints: MachineSetting[tuple[Endpoint, ...]] = ()
    """Endpoints that serve the model. Several endpoints share the load."""
    price: MachineSetting[Price | None] = None
    """Prices of the model. null: from the bundled price table."""
    timeout_s: MachineSetting[PositiveFloat] = 180.0
    """Time limit for one request."""
    embedding_batch_size: MachineSetting[Annotated[int, Field(gt=0, le=2048)]] = 128
    """Number of texts in one embedding call."""


class Model(ModelConnection):
    """A model and the endpoints that serve it."""

    provider: str = "offline"
    """offline (no API key, no network), openai (any OpenAI-compatible endpoint), or a plugin."""
    model: str = ""
    """Model id. Replies from other models are not reused."""
    tokenizer: str | None = None
    """Tokenizer: cl100k_base, o200k_base, llama3 or qwen3. null: by the model id, or else o200k_base."""
    context_window: PositiveInt = 128_000
    """Context window of the model, for prompt and reply together."""
    max_output_tokens: PositiveInt = 4_096
    """Maximum length of a reply, unless a stage sets a lower limit."""
    reasoning_effort: ReasoningEffort = None
    """Reasoning effort to request, in the endpoint's terms: low, medium, high, …. null: not sent."""
    reasoning_tokens: NonNegativeInt | None = None
    """Tokens reserved for reasoning, on top of the reply. null: 8,192 for reasoning models, otherwise 0."""
    embedding_dimensions: PositiveInt | None = None
    """Dimensions to request from an embedding model that supports several. null: the model's default."""
    needs_address: bool = False
    """Written to snapshots. true: the address was not api.openai.com, so each machine must know it."""
    package: str = ""
    """Written to snapshots: the package that provides the provider."""

    @model_validator(mode="after")
    def _check_provider(self) -> Model:
        if self.provider not in PROVIDERS and not self.package:
            known = ", ".join(PROVIDERS)
            raise ValueError(f"unknown provider {self.provider[:100]!r}. Choose from: {known}")
        if self.provider == "openai" and not self.model:
            raise ValueError("`model` is required with provider: openai (a model id such as gpt-4o-mini)")
        # Otherwise the offline engine would silently replace the model.
        if self.provider == "offline" and (self.model or self.endpoints):
            raise ValueError(
                "a model with `model` or `endpoints` needs provider: openai (to return to the offline "
                "engine: --set 'models.default={provider: offline}')"
            )
        if self.provider != "offline" and not self.endpoints and not self.needs_address:
            object.__setattr__(self, "endpoints", (Endpoint(),))
        return self

    @property
    def address_unknown(self) -> bool:
        """Whether this machine does not know the model's address and so cannot call it."""
        return self.provider == "openai" and not self.endpoints

    @property
    def model_id(self) -> str:
        """The model id in item keys."""
        return OFFLINE_MODEL_ID if self.provider == "offline" else self.model or self.provider

    @property
    def is_local(self) -> bool:
        """Whether the model runs in this process, without endpoints. Imports the provider."""
        return isinstance(provider_or_unavailable(self), LocalProvider)

    @property
    def reserved_reasoning_tokens(self) -> int:
        """Tokens to reserve for reasoning before the first reply shows how many are needed."""
        if self.reasoning_tokens is not None:
            return self.reasoning_tokens
        names = [self.model, *(e.model for e in self.endpoints if e.model)]
        return DEFAULT_REASONING_TOKENS if find_model_family(*names).is_reasoning else 0


class Storage(Section):
    """Connection settings for storage. Credentials do not belong here: each node reads them from its
    environment, a profile or its role. Not stored in snapshots."""

    endpoint_url: str | None = None
    """Address of an S3 server other than AWS. null: AWS_ENDPOINT_URL, or AWS if that is not set."""
    region: str | None = None
    """Region. null: from the environment or the profile."""
    path_style: bool | None = None
    """Put the bucket in the path of URLs, as most S3 servers other than AWS expect. null: automatic."""
    checksums: Literal["when_supported", "when_required"] | None = None
    """when_required: for S3 servers without the newer checksums. null: from the environment."""
    profile: str | None = None
    """Profile in ~/.aws/config, on every node."""
    options: dict[str, Any] = {}
    """Further arguments of the fsspec file system (s3fs, gcsfs, adlfs, …). They must not contain secrets."""

    @model_validator(mode="after")
    def _check_secrets(self) -> Storage:
        if secret := find_secret_options(self.options):
            raise ValueError(
                f"options contain a secret ({', '.join(secret)}): set it on each node in the provider's "
                "environment variables (such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) or in a profile"
            )
        if "@" in urlsplit(self.endpoint_url or "").netloc:
            raise ValueError("endpoint_url contains a user or password: set it in each node's environment")
        return self

    def fsspec_options(self, url: str) -> dict[str, Any]:
        """Return the fsspec options for opening this URL. They are empty for a local path."""
        protocol = protocol_of(url)
        if protocol == "file":
            return {}
        s3 = self.model_dump(exclude={"options"}, exclude_none=True) if protocol == "s3" else {}
        return {**s3, **self.options}
