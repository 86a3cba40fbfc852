"""Storage settings: their sources, the URLs that they apply to, and the refusal of secrets."""

from __future__ import annotations

import sys

import pytest

from graphrag_ray.base.connection_settings import Storage
from graphrag_ray.base.errors import InputError, SettingsError
from graphrag_ray.base.settings_file import load_settings, load_storage, parse_settings, resolve_storage
from graphrag_ray.base.stored_settings import snapshot_settings
from graphrag_ray.base.urls import find_secret_options, protocol_of
from graphrag_ray.indexing.stages.input_listing import scan_input
from graphrag_ray.store.files import Store

HERE = {"endpoint_url": "http://127.0.0.1:9000", "options": {"anon": True}}


def test_only_explicit_options_reach_an_s3_client():
    assert Storage().fsspec_options("s3://b/x") == {}
    given = Storage(endpoint_url="http://h:1", path_style=False, options={"requester_pays": True})
    assert given.fsspec_options("s3://b/x") == {
        "endpoint_url": "http://h:1",
        "path_style": False,
        "requester_pays": True,
    }
    assert given.fsspec_options("s3a://b/x") == given.fsspec_options("s3://b/x")


def test_a_local_folder_gets_no_options_and_other_storage_only_options_for_it():
    given = Storage(endpoint_url="http://h:1", options={"project": "p"})
    assert (
        given.fsspec_options("/tmp/x")
        == given.fsspec_options("x")
        == given.fsspec_options("file:///tmp/x")
        == {}
    )
    assert given.fsspec_options("gs://b/x") == {"project": "p"}


def test_protocol_aliases_are_the_same_kind_of_storage():
    assert [protocol_of(url) for url in ("s3a://b", "gcs://b", "abfs://b", "local:///x", "x")] == [
        "s3", "gs", "az", "file", "file",
    ]  # fmt: skip


def test_input_uses_the_storage_settings_of_the_index_by_default():
    settings = parse_settings({"storage": HERE})
    assert settings.input_options("s3://docs", "s3://index") == settings.storage.fsspec_options("s3://index")
    assert settings.input_options("s3://docs", "") == settings.storage.fsspec_options("s3://docs")
    assert settings.input_options("./docs", "s3://index") == {}
    own = parse_settings({"storage": HERE, "input": {"storage": {"region": "eu-north-1"}}})
    assert own.input_options("s3://docs", "s3://index") == {"region": "eu-north-1"}
    plain = parse_settings({"storage": HERE, "input": {"storage": {}}})
    assert plain.input_options("s3://docs", "s3://index") == {}


def test_storage_options_are_not_passed_to_another_kind_of_storage():
    settings = parse_settings({"storage": HERE})
    assert settings.input_options("s3://docs", "/tmp/index") == {"endpoint_url": HERE["endpoint_url"]}
    assert settings.input_options("https://host/a.txt", "s3://index") == {}


def test_the_last_link_of_a_chained_url_determines_its_options():
    assert parse_settings({"storage": HERE}).input_options("simplecache::s3://docs", "s3://index") == {
        "endpoint_url": HERE["endpoint_url"],
        "anon": True,
    }


def test_load_storage_applies_overrides_to_the_file(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "storage: {endpoint_url: 'http://file:1', region: r}\nchunking: {size: 9}"
    )
    assert load_storage() == Storage()
    assert load_storage(tmp_path / "s.yaml").endpoint_url == "http://file:1"
    found = load_storage(tmp_path / "s.yaml", ["storage.endpoint_url=http://set:2", "chunking.size=3"])
    assert (found.endpoint_url, found.region) == ("http://set:2", "r")


def test_overrides_of_other_sections_are_ignored_by_load_storage():
    assert load_storage(None, ["models.default.model=m", "storage.region=r"]).region == "r"


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("storage.endpoint=http://h", "storage.endpoint_url"),
        ("storge.region=r", "storage"),
        ("input.storage.regoin=r", "storage.region"),
    ],
)
def test_a_misspelt_storage_setting_gets_a_suggestion(override, near):
    with pytest.raises(SettingsError, match="unknown setting") as caught:
        load_settings(None, [override])
    assert near in str(caught.value)


def test_a_misspelt_section_is_reported_by_load_storage():
    with pytest.raises(SettingsError, match=r"unknown setting 'storge'; did you mean 'storage'"):
        load_storage(None, ["storge.region=r"])
    with pytest.raises(SettingsError, match="use the form"):
        load_storage(None, ["storage.region"])


@pytest.mark.parametrize(
    "secret",
    [
        {"options": {"key": "hunter2"}},
        {"options": {"client_kwargs": {"aws_secret_access_key": "hunter2"}}},
        {"options": {"token": "hunter2"}},
        {"endpoint_url": "http://me:hunter2@127.0.0.1:9000"},
    ],
)
def test_a_secret_is_refused_and_not_repeated(secret):
    for settings in ({"storage": secret}, {"input": {"storage": secret}}):
        with pytest.raises(SettingsError, match="each node") as caught:
            parse_settings(settings)
        assert "hunter2" not in str(caught.value)


def test_the_name_of_a_token_source_is_not_a_secret():
    assert find_secret_options({"token": "anon"}) == []
    assert find_secret_options({"token": "ya29.x", "a": {"password": "y"}}) == ["a.password", "token"]


def test_snapshots_do_not_store_storage_settings():
    settings = parse_settings({"storage": HERE, "input": {"storage": HERE, "text_column": "body"}})
    kept = snapshot_settings(settings)
    assert "storage" not in kept and "storage" not in kept["input"]
    assert parse_settings(kept).input.text_column == "body"


def test_arguments_from_python_take_precedence():
    settings = parse_settings({"storage": HERE})
    assert resolve_storage(settings, None) == settings.storage
    assert resolve_storage(settings, {"region": "r"}) == Storage(region="r")
    assert resolve_storage(None, None) == resolve_storage(None, Storage()) == Storage()
    with pytest.raises(SettingsError, match=r"storage\.regin"):
        resolve_storage(None, {"regin": "r"})


@pytest.mark.parametrize(("protocol", "extra", "package"), [("gs", "gs", "gcsfs"), ("az", "az", "adlfs")])
def test_a_missing_package_is_reported_with_its_extra(protocol, extra, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    message = rf"{protocol}:// needs a package.*pip install '\.\[{extra}\]'"
    with pytest.raises(SettingsError, match=message):
        Store(f"{protocol}://bucket/index").list()
    with pytest.raises(InputError, match=message):
        scan_input(f"{protocol}://bucket/docs")
