"""Options of a service: which index, how it answers, and limits for clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from graphrag_ray.base.index_settings import Settings, Storage, without_machine_settings
from graphrag_ray.base.settings_file import load_settings, read_settings
from graphrag_ray.base.user_settings import KnownModels
from graphrag_ray.llm.pricing import highest_price
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.budget import check_prices
from graphrag_ray.store.snapshots import Manifest

TOKEN_ENV = "GRAPHRAG_RAY_TOKEN"
ANSWER_STAGES = ("reduce", "answer")
"""Stages that write answers. Every search method ends in one of them."""


class ServiceOptions(BaseModel):
    """Options of a service: plain values without secrets, as a Serve config file holds them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: str
    """The index: a folder, or an fsspec URL such as s3://…."""
    settings: str | dict[str, Any] | None = None
    """A settings file (path or URL) or its content; null for the settings of each snapshot."""
    overrides: tuple[str, ...] = ()
    """`a.b=value`, applied to the settings."""
    known: KnownModels | None = None
    """How to reach the models; null for the user's settings and environment on each node."""
    cache: str | None = None
    """Folder or URL of a reply cache, so that repeated requests cost nothing."""
    method: str = methods.DEFAULT
    """Default search method."""
    level: str | None = None
    """Default level for questions that name neither method nor level."""
    replicas: Annotated[int, Field(ge=1)] = 1
    """Number of processes. Model limits apply to all of them together."""
    max_running: Annotated[int, Field(ge=1)] = 32
    """Questions that a replica answers at once. Their contexts are in memory."""
    max_waiting: Annotated[int, Field(ge=0)] = 256
    """Questions that wait for a place. Further ones are rejected with 429."""
    max_body_bytes: Annotated[int, Field(ge=1)] = 1 << 20
    max_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Time limit of a question, including waiting. Cost limits are query.budget_tokens and budget_usd."""
    follow_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds between checks for a newer snapshot."""
    grace_s: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that running questions have to finish when the service stops."""
    token_env: str = TOKEN_ENV
    """Environment variable with the token that clients must send (`Authorization: Bearer …`)."""
    allow_anonymous: bool = False
    """Serve without a token if that variable is not set."""
    open_metrics: bool = False
    """Serve /metrics without the token."""
    origins: tuple[str, ...] = ()
    """Origins whose scripts may send requests (CORS), such as https://chat.example.org; `*` for any."""
    hosts: tuple[str, ...] = ()
    """Allowed Host headers; empty for any."""
    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    """CPUs that Ray reserves for each replica."""

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Check that origins are written as browsers do: scheme, host, and port unless it is the default."""
        for origin in origins:
            parts = urlsplit(origin)
            if origin not in ("*", "null") and not (
                parts.scheme in ("http", "https") and origin == f"{parts.scheme}://{parts.netloc}".lower()
            ):
                raise ValueError(f"{origin!r} is not an origin like https://chat.example.org, without a path")
        return origins

    def given(self) -> dict[str, Any] | None:
        """The settings of the service, or None to use those of each snapshot. Raises SettingsError."""
        return read_settings(self.settings) if isinstance(self.settings, str) else self.settings

    def storage(self, given: Mapping[str, Any] | None) -> Storage:
        """Storage settings for the index. given: the settings of the service."""
        overrides = [o for o in self.overrides if o.strip().startswith("storage.")]
        base = {"storage": given["storage"]} if given and "storage" in given else {}
        return load_settings(None, overrides, base, self.known).storage

    def settings_of(self, manifest: Manifest, given: Mapping[str, Any] | None) -> Settings:
        """Settings for questions to a snapshot. Raises SettingsError, also if no question can be answered."""
        base = without_machine_settings(manifest.settings) if given is None else given
        settings = load_settings(None, self.overrides, base, self.known)
        names = dict.fromkeys(map(settings.model_name, ANSWER_STAGES))
        check_prices(settings.query, {name: highest_price(settings.model(name)) for name in names})
        return settings
