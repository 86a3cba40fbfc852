"""The `openai` model provider, for any endpoint with an OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from graphrag_ray.base.connection_settings import Endpoint, Model
from graphrag_ray.base.errors import FatalCallError
from graphrag_ray.base.keys import find_key
from graphrag_ray.base.providers import Client, RemoteProvider


class OpenAIProvider(RemoteProvider):
    def connect(
        self,
        model: Model,
        environ: Mapping[str, str],
        ask_key: Callable[[str], str | None] | None = None,
        force_yes_no: bool | None = None,
        quirks: Mapping[str, Collection[str]] | None = None,
    ) -> Sequence[Client | FatalCallError]:
        """Create the clients. Blocks, because it reads key files and may call `ask_key`."""
        from graphrag_ray.llm.client import EndpointClient  # imports the client library, which is slow

        def connect_one(endpoint: Endpoint) -> Client | FatalCallError:
            try:
                key = find_key(endpoint, environ, ask_key)
                return EndpointClient(endpoint, model, key, force_yes_no, quirks)
            except FatalCallError as e:
                return e

        return [connect_one(endpoint) for endpoint in model.endpoints]


PROVIDER = OpenAIProvider()
