"""How this machine reaches models and storage. No index says that, since a stranger may have written it: an
address in it would be sent whatever key it names.

    settings.yaml    written by its user (`graphrag-ray init --machine`)
    reached.json     written by `index`: how it reached the models of each index of this machine

Both lie in one folder of the user; GRAPHRAG_RAY_SETTINGS names another settings.yaml.
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
from pydantic import BaseModel, ConfigDict

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.index_settings import Model, Reach, Settings, Storage
from graphrag_ray.base.settings_text import read_mapping, validated

FILE_ENV = "GRAPHRAG_RAY_SETTINGS"
ADDRESS_ENV = "OPENAI_BASE_URL"
"""Address of models that no settings give one; the convention of OpenAI's own libraries."""
_TOLD = 300
"""Characters of what an index says that a message repeats."""
MOST_INDEXES = 1_000
"""That reached.json holds; the oldest go."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class KnownModel(Reach):
    """A model that this machine knows."""

    model: str | None = None
    """Its id; the name of the entry when absent."""


class UserSettings(_Strict):
    """The user's settings.yaml."""

    models: dict[str, KnownModel] = {}
    storage: Storage = Storage()


class Known(_Strict):
    """How models and storage are reached from a machine; plain values, which may travel to where a service
    runs.

    models   by their ids
    address  of those that are at no other
    """

    models: dict[str, KnownModel] = {}
    address: str | None = None
    storage: Storage = Storage()

    @classmethod
    def read(cls, root: str | None = None, environ: Mapping[str, str] | None = None) -> Known:
        """The user's settings; what they leave open, as the models of the index at `root` were reached
        before; and the environment. Raises SettingsError."""
        environ = os.environ if environ is None else environ
        user = read_user_settings()
        models: dict[str, KnownModel] = {}
        if root:
            with suppress(ValueError, AttributeError):  # not written by us: it is only said once more then
                reached = _read_reached().get(root, {})
                models = {name: KnownModel.model_validate(m) for name, m in reached.items()}
        for name, model in user.models.items():
            before = models.get(model.model or name)
            models[model.model or name] = _merged(model, before) if before else model
        address = environ.get(ADDRESS_ENV, "").strip() or None
        return cls(models=models, address=address, storage=user.storage)

    def fill(self, data: dict[str, Any], final: Mapping[str, Any]) -> None:
        """Add to settings how their models and storage are reached, where they do not say it.

        final: the same settings under the overrides that will come on top, which tell what is asked for
        """
        if storage := self.storage.model_dump(exclude_unset=True):
            data.setdefault("storage", storage)
        for name, asked in _models(final):
            known = self.models.get(str(asked.get("model")))
            models = data.setdefault("models", {}) if known else data.get("models")
            own = (
                models.setdefault(name, {})
                if known and isinstance(models, dict)
                else (models or {}).get(name)
            )
            if not isinstance(own, dict):
                continue
            if own.get("needs_address") and own.get("model") != asked.get("model"):
                del own["needs_address"]  # that was another model
            if known is not None:
                given = known.model_dump(mode="json", exclude_unset=True, exclude={"model"})
                given["endpoints"] = _not_elsewhere(given.get("endpoints", []), asked.get("endpoints"))
                for key, value in given.items():
                    own.setdefault(key, value)

    def address_all(self, data: Mapping[str, Any]) -> None:
        """Give the endpoints that have no address that of the environment. Without one, a model that an index
        says is not at OpenAI's own stays without endpoints."""
        for _, model in _models(data):
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


def _models(data: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of each model that an endpoint serves. What is malformed is told by whoever validates."""
    models = data.get("models")
    items = models.items() if isinstance(models, dict) else ()
    return [(n, m) for n, m in items if isinstance(m, dict) and m.get("provider") == "openai"]


def _not_elsewhere(known: list[Any], given: Any) -> list[Any]:
    """Known endpoints; none of them where overrides name another address, to which their keys must not go."""
    places = [e.get("base_url") for e in given if isinstance(e, dict)] if isinstance(given, list) else []
    moved = any(url and url != k.get("base_url") for url, k in zip(places, known, strict=False))
    return [{} for _ in places] if moved else known


def user_file() -> Path:
    """Where the user's settings are, or would be."""
    named = os.environ.get(FILE_ENV, "").strip()
    if named:
        return Path(named).expanduser().absolute()
    return platformdirs.user_config_path("graphrag-ray", appauthor=False) / "settings.yaml"


def read_user_settings() -> UserSettings:
    """Raises SettingsError for a file that cannot be used; nothing is set where there is none."""
    path = user_file()
    if not path.exists():
        return UserSettings()
    return validated(UserSettings, read_mapping(str(path)), f"your settings {path}")


def remember(root: str, settings: Settings) -> Path | None:
    """Keep how the models of an index are reached, for later commands about this index on this machine.
    Nothing is kept that the user's settings or the environment say anyway.

    Returns the file where something new was kept. Raises OSError.
    """
    before, known = _read_reached(), Known.read()
    mine = {m.model: _reach(m) for m in settings.models.values() if m.provider == "openai" and m.endpoints}
    mine = {name: reach for name, reach in mine.items() if reach != _reach(_as_known(known, name))}
    if mine == before.get(root, {}):
        return None
    kept = {url: models for url, models in before.items() if url != root} | ({root: mine} if mine else {})
    path = _reached_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    data = orjson.dumps(dict(list(kept.items())[-MOST_INDEXES:]), option=orjson.OPT_INDENT_2)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(data)  # readable by its user alone
    os.replace(file.name, path)
    return path if mine else None


def _as_known(known: Known, model_id: str) -> Model:
    """The model as the user's settings and the environment know it."""
    data: dict[str, Any] = {"models": {"default": {"provider": "openai", "model": model_id}}}
    known.fill(data, data)
    known.address_all(data)
    return validated(Settings, data).models["default"]


def _reach(model: Model) -> dict[str, Any]:
    found = model.model_dump(mode="json", include=set(Reach.model_fields), exclude_defaults=True)
    endpoints = [e.model_dump(mode="json", exclude_defaults=True) for e in model.endpoints]
    urls = [{"base_url": e.base_url} for e in model.endpoints]  # also the default: it may be another one then
    return found | {"endpoints": [url | e for url, e in zip(urls, endpoints, strict=True)]}


def _reached_file() -> Path:
    return user_file().with_name("reached.json")


def _read_reached() -> dict[str, dict[str, Any]]:
    """By index and model. What cannot be read counts as nothing: it is only said once more then."""
    try:
        found = orjson.loads(_reached_file().read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _merged(own: KnownModel, before: KnownModel) -> KnownModel:
    """What the user says, and what was said before of the same addresses: limits, say."""
    ours, theirs = (m.model_dump(mode="json", exclude_unset=True) for m in (own, before))
    at = {e.get("base_url"): e for e in theirs.get("endpoints", [])}
    merged = {**theirs, **ours}
    if "endpoints" in ours:
        merged["endpoints"] = [{**at.get(e.get("base_url"), {}), **e} for e in ours["endpoints"]]
    return KnownModel.model_validate(merged)


def require_known(settings: Settings, stages: Iterable[str]) -> None:
    """Raises SettingsError, saying how to name it, where this machine does not know the place of a model that
    one of these stages asks."""
    for name in dict.fromkeys(settings.model_name(stage) for stage in stages):
        if settings.model(name).unknown:
            raise SettingsError(_how_to_say_it(name, settings.model(name)))


def _how_to_say_it(name: str, model: Model) -> str:
    url, key = "http://HOST:PORT/v1", "VARIABLE"
    begin = f"models.{name}.endpoints.0"
    words = ["--base-url", url] if name == "default" else ["--set", f"{begin}.base_url={url}"]
    words += ["--api-key-env", key] if name == "default" else ["--set", f"{begin}.api_key_env={key}"]
    model_id = orjson.dumps(model.model[:_TOLD]).decode()
    return (
        f"this machine does not know where the model {model.model[:_TOLD]!r} (models.{name[:_TOLD]}) is, and "
        f"takes no address from an index. Say it with {shlex.join(words)} (null: no key), or for all "
        f'indexes in {user_file()}:\n\nmodels:\n  {model_id}:\n    endpoints:\n      - base_url: "{url}"\n'
        f"        api_key_env: {key}"
    )
