"""The provider `openai`: any endpoint with OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from graphrag_ray.base.errors import FatalCallError
from graphrag_ray.base.index_settings import Model
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
        from graphrag_ray.llm.client import connect  # the client library takes half a second

        return connect(model, environ, ask_key, force_yes_no, quirks)


PROVIDER = OpenAIProvider()
