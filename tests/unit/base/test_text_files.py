"""Settings, prompts and lists of names can be local files or URLs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from graphrag_ray.base.errors import PromptError, SettingsError
from graphrag_ray.base.prompts import bundled_prompts, load_prompts
from graphrag_ray.base.settings_file import load_settings, load_storage, read_root
from graphrag_ray.base.text_files import list_names, read_text, resolve_relative
from graphrag_ray.base.urls import display_path
from graphrag_ray.indexing.index import load_names

REMOTE_URL = "memory://project"


@pytest.fixture
def remote() -> Iterator[fsspec.AbstractFileSystem]:
    """A remote folder."""
    fs = fsspec.filesystem("memory")
    yield fs
    fs.rm("/project", recursive=True)


def test_settings_at_a_url_resolve_relative_paths(remote: fsspec.AbstractFileSystem):
    text = "root: index\ninput: {url: docs}\nprompts_dir: prompts\nstorage: {region: r}\n"
    remote.pipe_file("/project/settings.yaml", f"{text}names: {{blocklist_file: no.txt}}".encode())
    remote.pipe_file("/project/prompts/map.txt", (bundled_prompts() / "map.txt").read_bytes() + b"In verse.")
    remote.pipe_file("/project/no.txt", b"nobody\n")
    settings = load_settings(f"{REMOTE_URL}/settings.yaml")
    assert (settings.root, settings.input.url) == (f"{REMOTE_URL}/index", f"{REMOTE_URL}/docs")
    assert read_root(f"{REMOTE_URL}/settings.yaml") == f"{REMOTE_URL}/index"
    assert load_storage(f"{REMOTE_URL}/settings.yaml").region == "r"
    prompts = load_prompts(settings.prompts_dir)
    assert prompts["map"].user.endswith("In verse.") and prompts["reduce"] == load_prompts()["reduce"]
    assert load_names(settings).blocked


def test_errors_name_missing_and_misspelt_files(remote: fsspec.AbstractFileSystem):
    with pytest.raises(SettingsError, match=f"Settings file {REMOTE_URL}/none.yaml does not exist"):
        load_settings(f"{REMOTE_URL}/none.yaml")
    with pytest.raises(SettingsError, match="Cannot read settings file nosuch://there: Protocol not known"):
        load_settings("nosuch://there")
    with pytest.raises(PromptError, match=f"prompts_dir {REMOTE_URL}/none is not a folder"):
        load_prompts(f"{REMOTE_URL}/none")
    remote.pipe_file("/project/prompts/reduse.txt", b"x")
    with pytest.raises(PromptError, match=r"Unknown prompt .*reduse\.txt; did you mean reduce\.txt"):
        load_prompts(f"{REMOTE_URL}/prompts")


def test_a_password_or_signature_in_a_url_is_not_shown():
    assert display_path("https://me:secret@host/settings.yaml?signature=1") == "https://host/settings.yaml"
    with pytest.raises(SettingsError) as caught:
        load_settings("nosuch://me:secret@host/settings.yaml?signature=1")
    assert "secret" not in str(caught.value) and "signature" not in str(caught.value)


def test_a_path_is_resolved_relative_to_its_file_and_a_url_is_unchanged(tmp_path: Path):
    file = tmp_path / "settings.yaml"
    assert resolve_relative("docs/*.txt", str(file)) == str(tmp_path / "docs/*.txt")
    assert (
        resolve_relative("/docs", str(file)) == "/docs"
        and resolve_relative("s3://b/docs", str(file)) == "s3://b/docs"
    )
    assert resolve_relative("docs", "s3://b/p/settings.yaml") == "s3://b/p/docs"
    assert resolve_relative("docs/*.txt", "s3://b/settings.yaml") == "s3://b/docs/*.txt"
    assert resolve_relative("/docs", "s3://b/p/settings.yaml") == "/docs"
    assert resolve_relative("./docs", (tmp_path / "s.yaml").as_uri()) == (tmp_path / "docs").as_uri()


def test_parent_folders_are_resolved_within_the_bucket():
    assert resolve_relative("../index", "s3://b/conf/settings.yaml") == "s3://b/index"
    assert resolve_relative("../../../index", "s3://b/conf/settings.yaml") == "s3://b/index"


def test_a_local_folder_is_listed_and_a_missing_one_is_none(tmp_path: Path):
    (tmp_path / "a.txt").write_text("ü")
    assert list_names(str(tmp_path)) == {"a.txt"} and list_names(str(tmp_path / "b")) is None
    assert read_text(str(tmp_path / "a.txt")) == read_text((tmp_path / "a.txt").as_uri()) == "ü"
