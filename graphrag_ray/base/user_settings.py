"""Model endpoints and storage that this machine uses for all indexes.

An index never provides addresses, because it may come from an untrusted source: an address in it would
receive any API key that it names. Two files in the user's configuration folder provide them instead:

    settings.yaml    written by the user (`graphrag-ray init --machine`), or the file in GRAPHRAG_RAY_SETTINGS
    reached.json     written by `index`: the endpoints that it used for the models of each index
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

from graphrag_ray.base.connection_settings import Model, ModelConnection, Storage
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.settings_parsing import read_mapping, validate_settings

FILE_ENV = "GRAPHRAG_RAY_SETTINGS"
ADDRESS_ENV = "OPENAI_BASE_URL"
"""Environment variable with the default address, as in OpenAI's libraries."""
MAX_INDEXES = 1_000
"""Maximum number of indexes in reached.json. The oldest are dropped."""
_MAX_QUOTED = 300
"""Maximum length in characters of a name from an index in a message."""


class KnownModel(ModelConnection):
    """Connection settings of a model that this machine knows."""

    model: str | None = None
    """Model id. Defaults to the name of the entry."""


class UserSettings(BaseModel, extra="forbid", frozen=True, defer_build=True):
    models: dict[str, KnownModel] = {}
    storage: Storage = Storage()


class KnownModels(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """Connection settings for models and storage. A service sends them to its nodes.

    Attributes:
        address: Address of models that are not in `models`.
    """

    models: dict[str, KnownModel] = {}
    address: str | None = None
    storage: Storage = Storage()

    @classmethod
    def read(cls, root: str | None = None, environ: Mapping[str, str] | None = None) -> KnownModels:
        """Read the user's settings, remembered endpoints of the index at `root`, and the environment.

        Raises SettingsError if the user's settings are invalid.
        """
        environ = os.environ if environ is None else environ
        user = read_user_settings()
        models: dict[str, KnownModel] = {}
        if root:
            with suppress(ValueError, AttributeError):  # A damaged reached.json is ignored.
                remembered = _read_remembered().get(root, {})
                models = {name: KnownModel.model_validate(m) for name, m in remembered.items()}
        for name, model in user.models.items():
            known = models.get(model.model or name)
            models[model.model or name] = _merge(model, known) if known else model
        address = environ.get(ADDRESS_ENV, "").strip() or None
        return cls(models=models, address=address, storage=user.storage)

    def fill(self, data: dict[str, Any], final: Mapping[str, Any]) -> None:
        """Add connection settings that settings data lacks.

        Args:
            data: Settings data. Extended in place.
            final: The same data with overrides applied. It determines which models are used.
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
                del model["needs_address"]  # it described another model
            if known is not None:
                connection = known.model_dump(mode="json", exclude_unset=True, exclude={"model"})
                endpoints = connection.get("endpoints", [])
                connection["endpoints"] = _unless_overridden(endpoints, wanted.get("endpoints"))
                for key, value in connection.items():
                    model.setdefault(key, value)

    def set_default_address(self, data: Mapping[str, Any]) -> None:
        """Set `address` for endpoints without an address.

        Without `address`, a model gets no endpoints if the index says that OpenAI did not serve it.
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
    """Return the name and data of each model with endpoints. Malformed data is left for validation."""
    models = data.get("models")
    items = models.items() if isinstance(models, dict) else ()
    return [(n, m) for n, m in items if isinstance(m, dict) and m.get("provider") == "openai"]


def _unless_overridden(known: list[Any], override: Any) -> list[Any]:
    """Return the known endpoints, or empty ones if overrides set other addresses.

    Another address must not receive the known key.
    """
    urls = [e.get("base_url") for e in override if isinstance(e, dict)] if isinstance(override, list) else []
    moved = any(url and url != k.get("base_url") for url, k in zip(urls, known, strict=False))
    return [{} for _ in urls] if moved else known


def user_file() -> Path:
    """Return the path of the user's settings, even if the file does not exist."""
    if path := os.environ.get(FILE_ENV, "").strip():
        return Path(path).expanduser().absolute()
    return platformdirs.user_config_path("graphrag-ray", appauthor=False) / "settings.yaml"


def read_user_settings() -> UserSettings:
    """Read the user's settings, or return the defaults if the file does not exist. Raises SettingsError."""
    path = user_file()
    if not path.exists():
        return UserSettings()
    return validate_settings(UserSettings, read_mapping(str(path)), f"user settings {path}")


def remember_endpoints(root: str, settings: Settings) -> Path | None:
    """Remember the endpoints of an index's models for later commands on this machine.

    Endpoints that follow from the user's settings and the environment are left out. Returns the file if
    something new was written to it. Raises OSError.
    """
    remembered, known = _read_remembered(), KnownModels.read()
    connections: dict[str, dict[str, Any]] = {}
    for model in settings.models.values():
        if model.provider == "openai" and model.endpoints:
            data: dict[str, Any] = {"models": {"default": {"provider": "openai", "model": model.model}}}
            known.fill(data, data)
            known.set_default_address(data)
            if _connection(model) != _connection(validate_settings(Settings, data).models["default"]):
                connections[model.model] = _connection(model)
    if connections == remembered.pop(root, {}):
        return None
    if connections:
        remembered[root] = connections
    path = _remembered_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = orjson.dumps(dict(list(remembered.items())[-MAX_INDEXES:]), option=orjson.OPT_INDENT_2)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(content)  # Only the owner can read a temporary file.
    os.replace(file.name, path)
    return path if connections else None


def _connection(model: Model) -> dict[str, Any]:
    connection = model.model_dump(
        mode="json", include=set(ModelConnection.model_fields), exclude_defaults=True
    )
    # Include the address even if it is the default, because OPENAI_BASE_URL may change the default.
    return connection | {
        "endpoints": [
            {"base_url": e.base_url} | e.model_dump(mode="json", exclude_defaults=True)
            for e in model.endpoints
        ]
    }


def _remembered_file() -> Path:
    return user_file().with_name("reached.json")


def _read_remembered() -> dict[str, dict[str, Any]]:
    """Read reached.json. Returns {} if it cannot be read."""
    try:
        remembered = orjson.loads(_remembered_file().read_bytes())
    except (OSError, ValueError):
        return {}
    return remembered if isinstance(remembered, dict) else {}


def _merge(user: KnownModel, remembered: KnownModel) -> KnownModel:
    """Complete the user's settings of a model with remembered settings of the same addresses."""
    ours, theirs = (m.model_dump(mode="json", exclude_unset=True) for m in (user, remembered))
    by_url = {e.get("base_url"): e for e in theirs.get("endpoints", [])}
    merged = {**theirs, **ours}
    if "endpoints" in ours:
        merged["endpoints"] = [{**by_url.get(e.get("base_url"), {}), **e} for e in ours["endpoints"]]
    return KnownModel.model_validate(merged)


def require_known_addresses(settings: Settings, stages: Iterable[str]) -> None:
    """Raise SettingsError, with instructions, unless the addresses of these stages' models are known."""
    for name in dict.fromkeys(settings.model_name(stage) for stage in stages):
        model = settings.model(name)
        if not model.address_unknown:
            continue
        url, key, endpoint = "http://HOST:PORT/v1", "VARIABLE", f"models.{name}.endpoints.0"
        options = ["--base-url", url, "--api-key-env", key]
        if name != "default":
            options = ["--set", f"{endpoint}.base_url={url}", "--set", f"{endpoint}.api_key_env={key}"]
        model_id = model.model[:_MAX_QUOTED]
        raise SettingsError(
            f"This machine does not know the address of model {model_id!r} (models.{name[:_MAX_QUOTED]}). "
            f"Addresses are not taken from an index. Use {shlex.join(options)} (null: no key), or set it "
            f"for all indexes in {user_file()}:\n\nmodels:\n  {orjson.dumps(model_id).decode()}:\n"
            f'    endpoints:\n      - base_url: "{url}"\n        api_key_env: {key}'
        )
