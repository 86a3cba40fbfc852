"""How this machine reaches models and storage.

An index never provides addresses, since it may come from an untrusted source: an address in it would receive
whatever key it names. Two files in the user's configuration folder provide them instead:

    settings.yaml    written by the user (`graphrag-ray init --machine`); or as named by GRAPHRAG_RAY_SETTINGS
    reached.json     written by `index`: how it reached the models of each index
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import platformdirs
from pydantic import BaseModel

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.index_settings import Model, ModelConnection, Settings, Storage
from graphrag_ray.base.settings_parsing import read_mapping, validated

FILE_ENV = "GRAPHRAG_RAY_SETTINGS"
ADDRESS_ENV = "OPENAI_BASE_URL"
"""Address of models that have none in the settings, as in OpenAI's own libraries."""
MAX_INDEXES = 1_000
"""Indexes in reached.json. The oldest are dropped."""
_MAX_QUOTED = 300
"""Characters of an index's text that a message quotes."""


class KnownModel(ModelConnection):
    """A model that this machine knows how to reach."""

    model: str | None = None
    """Model id; by default the name of the entry."""


class UserSettings(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """The user's settings.yaml."""

    models: dict[str, KnownModel] = {}
    storage: Storage = Storage()


class KnownModels(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """How models and storage are reached. Plain data, which a service sends to its nodes.

    Attributes:
        models: Known models by model id.
        address: Address of all other models.
    """

    models: dict[str, KnownModel] = {}
    address: str | None = None
    storage: Storage = Storage()

    @classmethod
    def read(cls, root: str | None = None, environ: Mapping[str, str] | None = None) -> KnownModels:
        """Read the user's settings, what was remembered for the index at `root`, and the environment.

        Raises:
            SettingsError: The user's settings are invalid.
        """
        environ = os.environ if environ is None else environ
        user = read_user_settings()
        models: dict[str, KnownModel] = {}
        if root:
            with suppress(ValueError, AttributeError):  # A damaged reached.json is ignored.
                reached = _read_reached().get(root, {})
                models = {name: KnownModel.model_validate(m) for name, m in reached.items()}
        for name, model in user.models.items():
            remembered = models.get(model.model or name)
            models[model.model or name] = _merged(model, remembered) if remembered else model
        address = environ.get(ADDRESS_ENV, "").strip() or None
        return cls(models=models, address=address, storage=user.storage)

    def fill(self, data: dict[str, Any], final: Mapping[str, Any]) -> None:
        """Add what settings data leaves open about reaching models and storage.

        Args:
            data: Settings data, extended in place.
            final: The same data with overrides applied, which decides the models that are used.
        """
        if storage := self.storage.model_dump(exclude_unset=True):
            data.setdefault("storage", storage)
        for name, wanted in _endpoint_models(final):
            known = self.models.get(str(wanted.get("model")))
            models = data.setdefault("models", {}) if known else data.get("models") or {}
            if not isinstance(models, dict):
                continue
            model = models.setdefault(name, {}) if known else models.get(name)
            if not isinstance(model, dict):
                continue
            if model.get("needs_address") and model.get("model") != wanted.get("model"):
                del model["needs_address"]  # It was about another model.
            if known is not None:
                reach = known.model_dump(mode="json", exclude_unset=True, exclude={"model"})
                reach["endpoints"] = _unless_moved(reach.get("endpoints", []), wanted.get("endpoints"))
                for key, value in reach.items():
                    model.setdefault(key, value)

    def set_default_address(self, data: Mapping[str, Any]) -> None:
        """Set the address of endpoints that have none to `address`.

        Without an `address`, a model that an index marks as not served by OpenAI is left without endpoints.
        """
        for _, model in _endpoint_models(data):
            endpoints = model.get("endpoints") or ([{}] if self.address else [])
            if not isinstance(endpoints, list):
                continue
            bare = [e for e in endpoints if isinstance(e, dict) and not e.get("base_url")]
            if self.address:
                for endpoint in bare:
                    endpoint["base_url"] = self.address
            elif bare and model.get("needs_address"):
                endpoints = []
            if endpoints != model.get("endpoints", []):
                model["endpoints"] = endpoints


def _endpoint_models(data: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of each model that endpoints serve. Malformed data is left for validation."""
    models = data.get("models")
    items = models.items() if isinstance(models, dict) else ()
    return [(n, m) for n, m in items if isinstance(m, dict) and m.get("provider") == "openai"]


def _unless_moved(known: list[Any], given: Any) -> list[Any]:
    """The known endpoints, or empty ones if overrides name other addresses, which must not get the known
    keys."""
    urls = [e.get("base_url") for e in given if isinstance(e, dict)] if isinstance(given, list) else []
    moved = any(url and url != k.get("base_url") for url, k in zip(urls, known, strict=False))
    return [{} for _ in urls] if moved else known


def user_file() -> Path:
    """Path of the user's settings, whether or not the file exists."""
    if named := os.environ.get(FILE_ENV, "").strip():
        return Path(named).expanduser().absolute()
    return platformdirs.user_config_path("graphrag-ray", appauthor=False) / "settings.yaml"


def read_user_settings() -> UserSettings:
    """Read the user's settings; defaults if the file does not exist. Raises SettingsError."""
    path = user_file()
    if not path.exists():
        return UserSettings()
    return validated(UserSettings, read_mapping(str(path)), f"user settings {path}")


def remember_endpoints(root: str, settings: Settings) -> Path | None:
    """Remember how the models of an index are reached, for later commands on this machine.

    Only what the user's settings and the environment do not already say is remembered.

    Returns:
        The file, if something new was written to it.

    Raises:
        OSError: The file cannot be written.
    """
    remembered, known = _read_reached(), KnownModels.read()
    mine: dict[str, dict[str, Any]] = {}
    for model in settings.models.values():
        if model.provider == "openai" and model.endpoints:
            data: dict[str, Any] = {"models": {"default": {"provider": "openai", "model": model.model}}}
            known.fill(data, data)
            known.set_default_address(data)
            if _reach(model) != _reach(validated(Settings, data).models["default"]):
                mine[model.model] = _reach(model)
    if mine == remembered.get(root, {}):
        return None
    kept = {url: models for url, models in remembered.items() if url != root} | ({root: mine} if mine else {})
    path = _reached_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = orjson.dumps(dict(list(kept.items())[-MAX_INDEXES:]), option=orjson.OPT_INDENT_2)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(content)  # Temporary files are readable by their owner only.
    os.replace(file.name, path)
    return path if mine else None


def _reach(model: Model) -> dict[str, Any]:
    reach = model.model_dump(mode="json", include=set(ModelConnection.model_fields), exclude_defaults=True)
    # Include the address even if it is the default, which OPENAI_BASE_URL may change.
    return reach | {
        "endpoints": [
            {"base_url": e.base_url} | e.model_dump(mode="json", exclude_defaults=True)
            for e in model.endpoints
        ]
    }


def _reached_file() -> Path:
    return user_file().with_name("reached.json")


def _read_reached() -> dict[str, dict[str, Any]]:
    """reached.json by index and model; empty if it cannot be read."""
    try:
        reached = orjson.loads(_reached_file().read_bytes())
    except (OSError, ValueError):
        return {}
    return reached if isinstance(reached, dict) else {}


def _merged(user: KnownModel, remembered: KnownModel) -> KnownModel:
    """The user's settings of a model, completed with what was remembered about the same addresses."""
    ours, theirs = (m.model_dump(mode="json", exclude_unset=True) for m in (user, remembered))
    by_url = {e.get("base_url"): e for e in theirs.get("endpoints", [])}
    merged = {**theirs, **ours}
    if "endpoints" in ours:
        merged["endpoints"] = [{**by_url.get(e.get("base_url"), {}), **e} for e in ours["endpoints"]]
    return KnownModel.model_validate(merged)


def require_known_addresses(settings: Settings, stages: Iterable[str]) -> None:
    """Check that this machine knows the address of every model that these stages call.

    Raises:
        SettingsError: An address is unknown. The message shows how to set it.
    """
    for name in dict.fromkeys(settings.model_name(stage) for stage in stages):
        model = settings.model(name)
        if not model.address_unknown:
            continue
        url, key, endpoint = "http://HOST:PORT/v1", "VARIABLE", f"models.{name}.endpoints.0"
        words = ["--base-url", url, "--api-key-env", key]
        if name != "default":
            words = ["--set", f"{endpoint}.base_url={url}", "--set", f"{endpoint}.api_key_env={key}"]
        model_id = model.model[:_MAX_QUOTED]
        raise SettingsError(
            f"This machine does not know the address of model {model_id!r} (models.{name[:_MAX_QUOTED]}). "
            f"Addresses are not taken from an index. Use {shlex.join(words)} (null: no key), or set it "
            f"for all indexes in {user_file()}:\n\nmodels:\n  {orjson.dumps(model_id).decode()}:\n"
            f'    endpoints:\n      - base_url: "{url}"\n        api_key_env: {key}'
        )
