"""Model providers, by the name in `models.NAME.provider`.

A provider is a plugin of the group `graphrag_ray.providers` (`base/plugins.py`): an instance of
LocalProvider or RemoteProvider. The built-in providers `offline` and `openai` use the same API.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic import SecretStr

from graphrag_ray.base.errors import CallError, FatalCallError
from graphrag_ray.base.messages import (
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    RerankReply,
    RerankRequest,
    StreamListener,
)
from graphrag_ray.base.plugins import PluginError, Registry


class Provider:
    """Common base class. Subclass LocalProvider or RemoteProvider instead."""


class LocalProvider(Provider, ABC):
    """Replies in the calling process, without cost or rate limits.

    Instances must be picklable, because worker processes use them too. Replies are stored under the model
    id, so the same request must always get the same reply.
    """

    @abstractmethod
    def chat(self, request: ChatRequest) -> ChatReply:
        """Reply to one request. Raises PermanentCallError if the request cannot be answered."""

    @abstractmethod
    def embed(self, requests: Sequence[EmbeddingRequest]) -> Sequence[EmbeddingReply]:
        """Embed texts as vectors of one length (little-endian float32)."""

    def rerank(self, request: RerankRequest) -> RerankReply:
        """Score documents by their relevance to a query. Optional."""
        raise FatalCallError(f"The model {request.call.model_id!r} cannot rerank")

    def prepare(self) -> None:
        """Load models and data before the first call. Workers of a run call this when they start."""


class Client(ABC):
    """Calls one endpoint of one model. The gateway does rate limiting, retries, hedging and accounting.

    A failed call raises TransientCallError (retry), PermanentCallError (this request will never succeed) or
    FatalCallError (no request to this endpoint will).

    Attributes:
        display_address: Address to show, without secrets.
        price: Price at this endpoint (`base.connection_settings.Price`), if known.
        limits: Rate limits reported by the endpoint (`llm.limit_headers.LimitHeaders`), if any.
        key: API key, to be removed from logs.
    """

    display_address: str = ""
    price: Any = None
    limits: Any = None
    key: SecretStr | None = None

    @abstractmethod
    async def chat(
        self, request: ChatRequest, prompt_tokens: int | None = None, listener: StreamListener | None = None
    ) -> ChatReply:
        """Send a chat request.

        `prompt_tokens` is our own count. `listener` receives the reply while the model writes it.
        """

    @abstractmethod
    async def embed(self, requests: Sequence[EmbeddingRequest]) -> list[EmbeddingReply]: ...

    async def rerank(self, request: RerankRequest) -> RerankReply:
        """Score documents by their relevance to a query. Optional."""
        raise FatalCallError(f"The model {request.call.model_id!r} cannot rerank")

    @property
    def quirks(self) -> frozenset[str]:
        """Quirks that the endpoint's responses have revealed (`llm.quirks.NAMES`)."""
        return frozenset()

    def add_quirks(self, quirks: Iterable[str]) -> None:  # noqa: B027 - optional
        """Add quirks that another client of this endpoint has found."""

    async def probe(self, embeds: bool) -> CallError | None:
        """Return why no call to the endpoint can succeed, or None if calls may succeed."""
        return None

    async def close(self) -> None:  # noqa: B027 - optional
        """Release all resources."""


class RemoteProvider(Provider, ABC):
    """Calls endpoints, with the limits, retries and prices in the settings."""

    @abstractmethod
    def connect(
        self,
        model: Any,
        environ: Mapping[str, str],
        ask_key: Callable[[str], str | None] | None,
        force_yes_no: bool | None,
        quirks: Mapping[str, Collection[str]] | None,
    ) -> Sequence[Client | FatalCallError]:
        """Create a client for each of `model.endpoints`, in order, or an error that explains why not.

        Args:
            model: A `base.connection_settings.Model`.
            environ: Environment with the API keys.
            ask_key: Prompts the user for a key. Takes the name of its variable.
            force_yes_no: The setting `extraction.force_yes_no`.
            quirks: Quirks that earlier runs found, by address.
        """


PROVIDERS: Registry[Provider] = Registry(
    "graphrag_ray.providers",
    "model provider",
    Provider,
    {"offline": "graphrag_ray.offline:PROVIDER", "openai": "graphrag_ray.llm.openai_provider:PROVIDER"},
)


def load_provider(model: Any) -> Provider:
    """Import the provider of a model (`base.connection_settings.Model`).

    Raises:
        PluginError: The provider cannot be used. The message names the package to install, if known.
    """
    try:
        provider = PROVIDERS[model.provider]
    except PluginError as e:
        hint = f". The index was built with the package {model.package}: install it" if model.package else ""
        raise PluginError(f"{e}{hint}") from e
    if not isinstance(provider, LocalProvider | RemoteProvider):
        package = PROVIDERS.package_of(model.provider)
        raise PluginError(
            f"The model provider {model.provider!r} from the package {package} must be a LocalProvider or a "
            "RemoteProvider"
        )
    return provider


class _Unavailable(LocalProvider):
    """Replaces a provider that cannot be used, so that models of other providers still work."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def chat(self, request: ChatRequest) -> ChatReply:
        raise FatalCallError(self.reason)

    def embed(self, requests: Sequence[EmbeddingRequest]) -> Sequence[EmbeddingReply]:
        raise FatalCallError(self.reason)


def provider_or_unavailable(model: Any) -> Provider:
    """Like `load_provider`, but returns a provider whose calls fail instead of raising PluginError."""
    try:
        return load_provider(model)
    except PluginError as e:
        return _Unavailable(str(e))
