"""The HTTP layer of a client."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any

import certifi
import httpx2
import pytest

from graphrag_ray.base.connection_settings import Endpoint, Model
from graphrag_ray.llm import client


def test_certificates_are_read_once_per_location(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client._ssl_context.cache_clear()
    model = Model(provider="openai", model="m")
    read: list[str] = []
    create = httpx2.create_ssl_context

    def create_context(verify: ssl.SSLContext | bool = True, **options: Any) -> ssl.SSLContext:
        if verify is True:
            read.append(os.environ["SSL_CERT_FILE"])
        return create(verify, **options)

    monkeypatch.setattr(httpx2, "create_ssl_context", create_context)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    bundled, custom = certifi.where(), str(tmp_path / "own.pem")
    Path(custom).write_bytes(Path(bundled).read_bytes())
    for file in (bundled, bundled, custom, bundled):
        monkeypatch.setenv("SSL_CERT_FILE", file)
        client.EndpointClient(Endpoint(), model, None)
    assert read == [bundled, custom]


def test_responses_are_bounded_by_one_class() -> None:
    """A class per response would keep the response in memory until the next garbage collection."""
    request = httpx2.Request("GET", "http://127.0.0.1/v1/models")
    responses = [httpx2.Response(200, content=b"{}", request=request) for _ in range(2)]
    for response in responses:
        asyncio.run(client._bound_body(response))
    assert type(responses[0].stream) is type(responses[1].stream) is not httpx2.ByteStream
