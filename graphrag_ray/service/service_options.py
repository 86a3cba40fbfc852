"""What a service is told: which index, how it is asked, and what a client may take of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from graphrag_ray.base.index_settings import Settings, Storage, of_index
from graphrag_ray.base.settings_file import load_settings, read_settings
from graphrag_ray.base.user_settings import Known
from graphrag_ray.llm.pricing import dearest_price
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.budget import check_prices
from graphrag_ray.store.snapshots import Manifest

TOKEN_ENV = "GRAPHRAG_RAY_TOKEN"
WRITING = ("reduce", "answer")
"""The stages that write answers: each way of answering ends in one of them."""


class ServiceOptions(BaseModel):
    """Arguments of a service; plain values without secrets, as a Serve config file can hold them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: str
    """The index: a folder, or s3://… and other fsspec URLs."""
    settings: str | dict[str, Any] | None = None
    """A settings file (a path or a URL), or its content; null: the settings of each snapshot."""
    overrides: tuple[str, ...] = ()
    """`a.b=value`, over these settings."""
    known: Known | None = None
    """How the models of snapshots are reached; null: as the user's settings and the environment say where it
    runs."""
    cache: str | None = None
    """A folder or URL where replies of models are kept: what was asked before costs nothing."""
    method: str = methods.DEFAULT
    """Of questions that name none."""
    level: str | None = None
    """Of questions that name neither method nor level."""
    replicas: Annotated[int, Field(ge=1)] = 1
    """Processes that answer. The limits of models hold for all of them together."""
    max_running: Annotated[int, Field(ge=1)] = 32
    """Questions that a replica answers at once; what they are shown is in memory."""
    max_waiting: Annotated[int, Field(ge=0)] = 256
    """Questions that wait for that; a further one is refused (429)."""
    max_body_bytes: Annotated[int, Field(ge=1)] = 1 << 20
    max_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Of a question, waiting included. What it may cost are settings: query.budget_tokens, budget_usd."""
    follow_s: Annotated[float, Field(gt=0)] = 5.0
    """Between looks for a newer snapshot."""
    grace_s: Annotated[float, Field(ge=0)] = 30.0
    """Questions that run when the service ends have so long to finish."""
    token_env: str = TOKEN_ENV
    """The environment variable with the token that clients must send (`Authorization: Bearer …`)."""
    allow_anonymous: bool = False
    """Serve without a token where that variable is not set."""
    open_metrics: bool = False
    """Let /metrics be read without the token."""
    origins: tuple[str, ...] = ()
    """Of pages whose scripts may ask (CORS): https://chat.example.org; `*`: any. None: no page of others."""
    hosts: tuple[str, ...] = ()
    """Names that a client may call the service by (the Host header); none: any."""
    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    """That Ray sets aside for each replica."""

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """As browsers write them: scheme and host, and a port that is not the scheme's own."""
        for origin in origins:
            parts = urlsplit(origin)
            if origin not in ("*", "null") and not (
                parts.scheme in ("http", "https") and origin == f"{parts.scheme}://{parts.netloc}".lower()
            ):
                raise ValueError(f"{origin!r} is no origin: https://chat.example.org, without path or slash")
        return origins

    def given(self) -> dict[str, Any] | None:
        """The settings that it names; None where those of each snapshot count. Reads a file. Raises
        SettingsError."""
        return read_settings(self.settings) if isinstance(self.settings, str) else self.settings

    def storage(self, given: Mapping[str, Any] | None) -> Storage:
        """How the index is reached. given: the settings that were named."""
        own = [o for o in self.overrides if o.strip().startswith("storage.")]
        base = {"storage": given["storage"]} if given and "storage" in given else {}
        return load_settings(None, own, base, self.known).storage

    def settings_of(self, manifest: Manifest, given: Mapping[str, Any] | None) -> Settings:
        """How questions to a snapshot are asked.
        Raises SettingsError, also where no question could be answered by them."""
        base = of_index(manifest.settings) if given is None else given
        settings = load_settings(None, self.overrides, base, self.known)
        writers = [dearest_price(settings.model(settings.model_name(stage))) for stage in WRITING]
        check_prices(settings.query, writers)
        return settings
