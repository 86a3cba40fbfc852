"""Options of a service: its index, its search method, and limits for clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from graphrag_ray.base.connection_settings import Storage
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.settings_file import load_settings, read_settings
from graphrag_ray.base.stored_settings import without_machine_settings
from graphrag_ray.base.user_settings import KnownModels
from graphrag_ray.llm.pricing import highest_price
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.budget import check_prices
from graphrag_ray.store.snapshots import Manifest

TOKEN_ENV = "GRAPHRAG_RAY_TOKEN"
ANSWER_STAGES = ("reduce", "answer")
"""Stages that write answers. Every search method ends with one of them."""


class ServiceOptions(BaseModel):
    """Options of a service: plain values without secrets, so that they can be in a Serve config file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: str
    """The index: a folder or an fsspec URL such as s3://…"""
    settings: str | dict[str, Any] | None = None
    """Path, URL or content of a settings file. null: the settings in each snapshot."""
    overrides: tuple[str, ...] = ()
    """Changes to the settings, of the form `a.b=value`."""
    known: KnownModels | None = None
    """Model endpoints and storage. null: from the user's settings and environment on each node."""
    cache: str | None = None
    """Folder or URL of a reply cache, so that repeated model calls cost nothing."""
    method: str = methods.DEFAULT
    """Default search method."""
    level: str | None = None
    """Default level for questions that name neither method nor level."""
    replicas: Annotated[int, Field(ge=1)] = 1
    """Number of processes. Model limits apply to all of them together."""
    max_running: Annotated[int, Field(ge=1)] = 32
    """Maximum number of concurrent questions per replica. Their contexts are in memory."""
    max_waiting: Annotated[int, Field(ge=0)] = 256
    """Maximum number of waiting questions per replica. Further questions are rejected with status 429."""
    max_body_bytes: Annotated[int, Field(ge=1)] = 1 << 20
    max_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Time limit of a question, including the wait for a slot."""
    follow_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds between checks for a newer snapshot."""
    grace_s: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that running questions get to finish when the service stops."""
    token_env: str = TOKEN_ENV
    """Environment variable with the token that clients must send (`Authorization: Bearer …`)."""
    allow_anonymous: bool = False
    """Serve without a token if that variable is not set."""
    open_metrics: bool = False
    """Serve /metrics without the token."""
    origins: tuple[str, ...] = ()
    """Origins whose scripts may send requests (CORS), such as https://chat.example.org. `*` allows any."""
    hosts: tuple[str, ...] = ()
    """Allowed Host headers. Empty: any."""
    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    """CPUs that Ray reserves for each replica."""

    @field_validator("origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Check that origins have the form that browsers send, without a path or default port."""
        for origin in origins:
            parts = urlsplit(origin)
            if origin not in ("*", "null") and not (
                parts.scheme in ("http", "https") and origin == f"{parts.scheme}://{parts.netloc}".lower()
            ):
                raise ValueError(
                    f"{origin!r} is not an origin. Use the form https://chat.example.org, without a path"
                )
        return origins

    def read_settings(self) -> dict[str, Any] | None:
        """Return the settings of the service, or None to use each snapshot's. Raises SettingsError."""
        return read_settings(self.settings) if isinstance(self.settings, str) else self.settings

    def storage(self, settings: Mapping[str, Any] | None) -> Storage:
        """Return the storage settings for the index, given the settings of the service."""
        overrides = [o for o in self.overrides if o.strip().startswith("storage.")]
        base = {"storage": settings["storage"]} if settings and "storage" in settings else {}
        return load_settings(None, overrides, base, self.known).storage

    def settings_of(self, manifest: Manifest, service_settings: Mapping[str, Any] | None) -> Settings:
        """Return the settings for questions to a snapshot. Raises SettingsError."""
        base = without_machine_settings(manifest.settings) if service_settings is None else service_settings
        settings = load_settings(None, self.overrides, base, self.known)
        names = dict.fromkeys(map(settings.model_name, ANSWER_STAGES))
        check_prices(settings.query, {name: highest_price(settings.model(name)) for name in names})
        return settings
