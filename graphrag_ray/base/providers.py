"""Model providers: who answers the requests of a model, by the name in `models.NAME.provider`.

A provider is a plug-in of the group `graphrag_ray.providers` (`base/plugins.py`), an instance of one of two
classes. The built-in ones, `offline` and `openai`, are such instances too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic import SecretStr

from graphrag_ray.base.errors import CallError, FatalCallError
from graphrag_ray.base.messages import ChatReply, ChatRequest, EmbeddingReply, EmbeddingRequest, Listener
from graphrag_ray.base.plugins import PluginError, Registry


class Provider:
    """Subclass LocalProvider or RemoteProvider instead."""


class LocalProvider(Provider, ABC):
    """Answers in this process, free of charge and without limits; also in other processes, so an instance can
    be pickled. Replies are journalled under the model's id, so the same request must have the same reply."""

    @abstractmethod
    def chat(self, request: ChatRequest) -> ChatReply:
        """The reply to one prompt. Raises PermanentCallError for one that it cannot answer."""

    @abstractmethod
    def embed(self, requests: Sequence[EmbeddingRequest]) -> Sequence[EmbeddingReply]:
        """A vector for each text, all of one length, as little-endian float32."""

    def prepare(self) -> None:
        """Load what the first call would wait for. Called in processes that compute beside a run."""


class Client(ABC):
    """Calls one endpoint of one model, and never retries. The gateway limits, retries, hedges and accounts.

    A failed call raises a TransientCallError (try again), PermanentCallError (never this request) or
    FatalCallError (never this endpoint).

    where   the address as it may be shown
    price   US dollars per million tokens there (`base.index_settings.Price`); None where unknown
    limits  what the endpoint says about its rate limits (`llm.limit_headers.LimitHeaders`); None: nothing
    key     kept out of logs; None where there is none
    """

    where: str = ""
    price: Any = None
    limits: Any = None
    key: SecretStr | None = None

    @abstractmethod
    async def chat(
        self, request: ChatRequest, prompt_tokens: int | None = None, listener: Listener | None = None
    ) -> ChatReply:
        """prompt_tokens: our own count. listener: hears the reply while it is written."""

    @abstractmethod
    async def embed(self, requests: Sequence[EmbeddingRequest]) -> list[EmbeddingReply]: ...

    @property
    def quirks(self) -> frozenset[str]:
        """What the endpoint's answers have taught (`llm.quirks.NAMES`)."""
        return frozenset()

    def learn(self, quirks: Iterable[str]) -> None:  # noqa: B027 - most have nothing to learn
        """What another client of this endpoint was taught."""

    async def probe(self, embeds: bool) -> CallError | None:
        """Why nothing that is asked there will be answered; None where it may be."""
        return None

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what it holds."""


class RemoteProvider(Provider, ABC):
    """Asks endpoints, with the limits, retries and prices of the settings."""

    @abstractmethod
    def connect(
        self,
        model: Any,
        environ: Mapping[str, str],
        ask_key: Callable[[str], str | None] | None,
        force_yes_no: bool | None,
        quirks: Mapping[str, Collection[str]] | None,
    ) -> Sequence[Client | FatalCallError]:
        """A client for each of `model.endpoints`, in their order, or why there is none.

        model         `base.index_settings.Model`
        environ       holds the keys; ask_key: asks people for one by its variable's name
        force_yes_no  `extraction.force_yes_no`; quirks: what earlier runs learned, by address
        """


PROVIDERS: Registry[Provider] = Registry(
    "graphrag_ray.providers",
    "model provider",
    Provider,
    {"offline": "graphrag_ray.offline:PROVIDER", "openai": "graphrag_ray.llm.openai_provider:PROVIDER"},
)


def provider_of(model: Any) -> Provider:
    """Import the provider of a model, given as `base.index_settings.Model`.

    Raises PluginError, with the package that an index names where its provider is not installed any more.
    """
    try:
        found = PROVIDERS[model.provider]
    except PluginError as e:
        made_with = (
            f". The index was made with the package {model.package}: install it" if model.package else ""
        )
        raise PluginError(f"{e}{made_with}") from e
    if not isinstance(found, LocalProvider | RemoteProvider):
        package = PROVIDERS.package_of(model.provider)
        raise PluginError(
            f"The model provider {model.provider!r} of the package {package} is neither a LocalProvider "
            "nor a RemoteProvider"
        )
    return found


class _Unavailable(LocalProvider):
    """Stands for a provider that cannot be used, so that models of others can be asked all the same."""

    def __init__(self, why: str) -> None:
        self.why = why

    def chat(self, request: ChatRequest) -> ChatReply:
        raise FatalCallError(self.why)

    def embed(self, requests: Sequence[EmbeddingRequest]) -> Sequence[EmbeddingReply]:
        raise FatalCallError(self.why)


def provider_to_ask(model: Any) -> Provider:
    """`provider_of`, or one whose every call raises FatalCallError with the reason why there is none."""
    try:
        return provider_of(model)
    except PluginError as e:
        return _Unavailable(str(e))
