"""Model endpoints and storage from the user's settings, the environment and earlier commands."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import graphrag_ray
from graphrag_ray.base.connection_settings import OPENAI_URL, Endpoint, Model
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.settings_file import load_settings, load_storage, parse_settings
from graphrag_ray.base.settings_parsing import setting_keys
from graphrag_ray.base.stored_settings import snapshot_settings, without_machine_settings
from graphrag_ray.base.user_settings import (
    KnownModels,
    UserSettings,
    remember_endpoints,
    require_known_addresses,
)
from graphrag_ray.cli.command_line import main

OF_AN_INDEX = {"models": {"default": {"provider": "openai", "model": "llama", "needs_address": True}}}
OF_OPENAI = {"models": {"default": {"provider": "openai", "model": "gpt-4o-mini"}}}


def own(path: Path, text: str) -> None:
    path.write_text(text)


def endpoints(settings: Settings, name: str = "default") -> list[tuple[str, str | None]]:
    return [(e.base_url, e.api_key_env) for e in settings.model(name).endpoints]


def test_snapshots_store_no_settings_of_the_machine():
    reached = Endpoint(base_url="http://here:8000/v1", api_key_env="KEY", max_in_flight=3, headers={"a": "b"})
    settings = parse_settings(
        {
            "models": {
                "default": Model(
                    provider="openai",
                    model="m",
                    endpoints=(reached,),
                    price={"input_usd_per_mtok": 1},
                    timeout_s=9,
                )
            },
            "root": "s3://bucket/index",
            "input": {"url": "s3://bucket/documents", "storage": {"profile": "p"}, "text_column": "body"},
            "names": {"aliases_file": "a.yaml", "blocklist_file": "b.txt"},
            "storage": {"endpoint_url": "http://here:9000"},
            "budget": {"max_cost_usd": 3},
            "run": {"max_attempts": 3},
            "prompts_dir": "prompts",
        }
    )
    kept = snapshot_settings(settings)
    assert sorted(kept["models"]["default"]) == [
        "context_window", "embedding_dimensions", "max_output_tokens", "model", "needs_address", "provider",
        "reasoning_effort", "reasoning_tokens", "tokenizer",
    ]  # fmt: skip
    assert kept["input"]["text_column"] == "body" and kept["models"]["default"]["needs_address"]
    assert not {"root", "run", "budget", "storage", "prompts_dir"} & kept.keys()
    assert not {"url", "storage", "aliases_file", "blocklist_file"} & (
        kept["input"].keys() | kept["names"].keys()
    )
    assert without_machine_settings(kept) == kept == snapshot_settings(parse_settings(kept))


def test_user_settings_of_a_model_are_found_by_id_or_name(own_settings: Path):
    for entry in ("llama: {", "anything: {model: llama, "):
        own(own_settings, f"models: {{{entry} endpoints: [{{base_url: 'http://h/v1', api_key_env: K}}]}}}}")
        settings = load_settings(None, (), OF_AN_INDEX)
        assert endpoints(settings) == [("http://h/v1", "K")]
    own(own_settings, "models: {other: {endpoints: [{base_url: 'http://h/v1'}]}}")
    settings = load_settings(None, (), OF_AN_INDEX)
    assert settings.model("default").address_unknown
    with pytest.raises(
        SettingsError, match=r"(?s)'llama'.*--base-url.*--api-key-env.*settings\.yaml.*llama"
    ) as told:
        require_known_addresses(settings, ["map"])
    lines = str(told.value).partition("\n\n")[2]
    own(own_settings, lines.replace("HOST:PORT", "127.0.0.1:8000"))
    assert endpoints(load_settings(None, (), OF_AN_INDEX)) == [("http://127.0.0.1:8000/v1", "VARIABLE")]


def test_options_of_a_command_precede_user_settings(own_settings: Path, tmp_path: Path):
    own(
        own_settings,
        "models: {m: {endpoints: [{base_url: 'http://own/v1', requests_per_minute: 5}], timeout_s: 7}}",
    )
    config = tmp_path / "c.yaml"
    config.write_text(
        "models: {default: {provider: openai, model: m, endpoints: [{base_url: 'http://c/v1'}]}}"
    )
    assert endpoints(load_settings(config)) == [("http://c/v1", "OPENAI_API_KEY")]
    assert load_settings(config).model("default").timeout_s == 7
    by_hand = ["models.default.provider=openai", "models.default.model=m"]
    at = "models.default.endpoints.0"
    more = load_settings(None, [*by_hand, f"{at}.max_in_flight=3"]).model("default").endpoints[0]
    assert (more.base_url, more.requests_per_minute, more.max_in_flight) == ("http://own/v1", 5, 3)


def test_a_key_of_the_user_is_not_sent_to_another_address(own_settings: Path):
    own(own_settings, "models: {llama: {endpoints: [{base_url: 'http://own/v1', api_key_env: OWN_KEY}]}}")
    result = load_settings(None, ["models.default.endpoints.0.base_url=http://other/v1"], OF_AN_INDEX)
    assert endpoints(result) == [("http://other/v1", "OPENAI_API_KEY")]


def test_the_default_address_comes_from_the_environment_or_is_openais(monkeypatch: pytest.MonkeyPatch):
    assert endpoints(load_settings(None, (), OF_OPENAI)) == [(OPENAI_URL, "OPENAI_API_KEY")]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://proxy/v1")
    assert endpoints(load_settings(None, (), OF_OPENAI)) == [("http://proxy/v1", "OPENAI_API_KEY")]
    assert endpoints(load_settings(None, (), OF_AN_INDEX)) == [("http://proxy/v1", "OPENAI_API_KEY")]
    limited = load_settings(None, ["models.default.endpoints.0.requests_per_minute=5"], OF_AN_INDEX)
    assert endpoints(limited) == [("http://proxy/v1", "OPENAI_API_KEY")]


def test_a_model_that_is_not_in_the_index_uses_the_default_address():
    assert (
        endpoints(load_settings(None, ["models.default.model=gpt-4o-mini"], OF_AN_INDEX))[0][0] == OPENAI_URL
    )


def test_storage_in_user_settings_is_the_default(own_settings: Path, tmp_path: Path):
    own(own_settings, "storage: {endpoint_url: 'http://own:9000', region: eu}")
    assert load_storage().endpoint_url == load_settings().storage.endpoint_url == "http://own:9000"
    assert load_storage(None, ["storage.region=us"]).model_dump(exclude_unset=True) == {
        "endpoint_url": "http://own:9000",
        "region": "us",
    }
    (tmp_path / "c.yaml").write_text("storage: {region: af}")
    for storage in (load_storage(tmp_path / "c.yaml"), load_settings(tmp_path / "c.yaml").storage):
        assert (storage.endpoint_url, storage.region) == (None, "af")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("modles: {}", "did you mean 'models'"),
        ("chunking: {size: 3}", "unknown setting 'chunking'"),
        ("models: {m: {endpoints: [{base_ulr: x}]}}", "did you mean 'models.m.endpoints.0.base_url'"),
        ("models: {m: {endpoints: [{api_key_env: sk-proj-x}]}}", "NAME of an environment variable"),
        ("[1]", "must be a mapping"),
        ("models: {m: {context_window: 5}}", "unknown setting"),
        ("models: {m: 5}", "models.m is a section, not a value; set models.m.endpoints"),
        ("x: 2023-13-45", "not valid YAML"),
    ],
)
def test_an_error_in_user_settings_names_the_file(own_settings: Path, text: str, says: str):
    own(own_settings, text)
    for load in (load_settings, load_storage):
        with pytest.raises(SettingsError, match=re.escape(says)) as told:
            load()
        assert str(own_settings) in str(told.value) and "sk-proj" not in str(told.value)


def online(*reached: Endpoint, **more: Any) -> Settings:
    return Settings(models={"default": Model(provider="openai", model="llama", endpoints=reached, **more)})


def test_remembered_endpoints_are_private_to_the_index_and_the_user(own_settings: Path):
    here = Endpoint(base_url="http://h/v1", api_key_env=None, requests_per_minute=5)
    file = remember_endpoints("/index", online(here, timeout_s=7))
    assert file is not None and stat.S_IMODE(file.stat().st_mode) == 0o600
    known = load_settings(None, (), OF_AN_INDEX, KnownModels.read("/index")).model("default")
    assert known.endpoints == (here,) and known.timeout_s == 7
    assert load_settings(None, (), OF_AN_INDEX, KnownModels.read("/other")).model("default").address_unknown
    assert remember_endpoints("/index", online(here, timeout_s=7)) is None, "it is there already"
    own(own_settings, "models: {llama: {endpoints: [{base_url: 'http://own/v1'}]}}")
    assert load_settings(None, (), OF_AN_INDEX, KnownModels.read("/index")).model("default").endpoints[
        0
    ].base_url == ("http://own/v1")


def test_default_endpoints_are_not_remembered(own_settings: Path, monkeypatch: pytest.MonkeyPatch):
    assert remember_endpoints("/index", online(Endpoint())) is None, "every machine knows it"
    own(own_settings, "models: {llama: {endpoints: [{base_url: 'http://own/v1'}]}}")
    assert remember_endpoints("/index", online(Endpoint(base_url="http://own/v1"))) is None, (
        "the user's file says it"
    )
    own_settings.unlink()
    assert remember_endpoints("/index", online(Endpoint(base_url="http://h/v1"))) is not None
    assert remember_endpoints("/index", online(Endpoint())) is None
    assert KnownModels.read("/index").models == {}, "what was said later counts"


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", '{"/index": 3}', '{"/index": {"llama": {"x": 1}}}'])
def test_a_damaged_reached_file_is_ignored(own_settings: Path, text: str):
    own_settings.with_name("reached.json").write_text(text)
    assert KnownModels.read("/index").models == {}
    assert remember_endpoints("/index", online(Endpoint(base_url="http://h/v1"))) is not None
    assert KnownModels.read("/index").models.keys() == {"llama"}


def test_init_writes_user_settings_with_every_key_and_never_overwrites_them(own_settings: Path):
    assert CliRunner().invoke(main, ["init", "--machine"]).exit_code == 0
    text = own_settings.read_text()
    assert yaml.safe_load(text) is None and load_settings() == Settings()
    written = yaml.safe_load(re.sub(r"^# ?( *(?:- )?[a-z0-9_.-]+:(?: |$))", r"\1", text, flags=re.MULTILINE))
    assert UserSettings.model_validate(written).models["any-name"].model == "org/another-model"
    names = {key[-1] for key in setting_keys(UserSettings)}
    assert names <= set(re.findall(r"([a-z_]+):", text)), "every key"
    own(own_settings, "mine: 1")
    again = CliRunner().invoke(main, ["init", "--machine", "--force"])
    assert again.exit_code == 2 and own_settings.read_text() == "mine: 1"


def test_user_settings_are_in_the_platform_configuration_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from graphrag_ray.base.user_settings import user_file

    monkeypatch.delenv("GRAPHRAG_RAY_SETTINGS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert user_file().name == "settings.yaml" and user_file().parent.name == "graphrag-ray"
    assert Path(graphrag_ray.__file__).parent not in user_file().parents


def test_remembered_limits_are_merged_into_user_settings_of_the_same_address(own_settings: Path):
    own(own_settings, "models: {llama: {endpoints: [{base_url: 'http://own/v1', api_key_env: OWN_KEY}]}}")
    assert remember_endpoints(
        "/index", online(Endpoint(base_url="http://own/v1", api_key_env="OLD", requests_per_minute=5))
    )
    (endpoint,) = load_settings(None, (), OF_AN_INDEX, KnownModels.read("/index")).model("default").endpoints
    assert (endpoint.api_key_env, endpoint.requests_per_minute) == ("OWN_KEY", 5)
    own(own_settings, "models: {llama: {endpoints: [{base_url: 'http://moved/v1', api_key_env: OWN_KEY}]}}")
    (endpoint,) = load_settings(None, (), OF_AN_INDEX, KnownModels.read("/index")).model("default").endpoints
    assert (endpoint.base_url, endpoint.requests_per_minute) == ("http://moved/v1", None)
