"""A third-party model provider: called, named by an index, and reported if it is missing."""

import sys
from pathlib import Path

import pytest
from installed import install
from world import TOWN

from graphrag_ray import build_index, open_index
from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.plugins import PluginError, Registry
from graphrag_ray.base.providers import PROVIDERS, LocalProvider, RemoteProvider, load_provider

ECHO = {
    "models": {"default": {"provider": "echo", "model": "echo-1"}},
    "embeddings": {"model": "default"},
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry as a new process sees it."""
    monkeypatch.syspath_prepend(str(install(tmp_path / "site")))
    monkeypatch.setattr(PROVIDERS, "_loaded", {})
    monkeypatch.delitem(PROVIDERS.__dict__, "_entries", raising=False)
    yield PROVIDERS
    PROVIDERS.__dict__.pop("_entries", None)
    for name in [name for name in sys.modules if name.startswith("graphrag_ray_sample")]:
        del sys.modules[name]


@pytest.fixture
def root(installed: Registry, tmp_path: Path) -> str:
    documents = [{"id": name, "text": text} for name, text in TOWN.items()]
    root = str(tmp_path / "index")
    settings = ECHO | {"input": {"text_column": "text", "id_column": "id"}}
    build_index(documents, root, settings=settings, progress=False, on_ray=False)
    return root


def test_it_extracts_embeds_and_answers(root: str):
    index = open_index(root)
    assert {"ALICE", "BOB"} <= set(index.table("entities")["title"].to_pylist())
    assert "Echo: Who met ALICE?" in index.ask("Who met ALICE?", method="vector").text
    assert len(index.table("community_reports")) and "Echo" in index.ask("Who?", method="local").text


def test_the_package_of_a_missing_provider_is_named(root: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.endswith("/site")])
    PROVIDERS.__dict__.pop("_entries", None)
    PROVIDERS._loaded.clear()
    index = open_index(root)
    assert "ALICE" in index.table("entities")["title"].to_pylist()
    with pytest.raises(GraphRagError, match=r"'echo'.*built with the package graphrag-ray-sample 1\.0"):
        index.ask("Who met ALICE?", method="vector")


def test_a_missing_provider_of_one_model_does_not_stop_questions_to_another(tmp_path: Path):
    missing = {"provider": "gone", "package": "gone 1.0"}
    root = str(tmp_path / "index")
    documents = [{"id": name, "text": text} for name, text in TOWN.items()]
    settings = {
        "models": {"default": {}, "judge": missing},
        "input": {"text_column": "text", "id_column": "id"},
    }
    build_index(documents, root, settings=settings, progress=False, on_ray=False)
    assert open_index(root).ask("Who met ALICE?", method="text").text


def test_an_unknown_provider_is_a_settings_error(installed: Registry):
    with pytest.raises(ValueError, match=r"unknown provider 'ecko'\. Choose from: offline, openai, echo"):
        Model(provider="ecko")


def test_a_provider_that_cannot_be_imported_is_reported_with_its_package(tmp_path: Path, installed: Registry):
    (tmp_path / "site" / "graphrag_ray_sample" / "echo.py").write_text("raise OSError('no driver')")
    with pytest.raises(PluginError, match=r"graphrag-ray-sample 1\.0.*OSError: no driver"):
        load_provider(Model(provider="echo"))


def test_other_objects_are_rejected_as_providers(tmp_path: Path, installed: Registry):
    (tmp_path / "site" / "graphrag_ray_sample" / "echo.py").write_text("PROVIDER = 'echo'")
    with pytest.raises(PluginError, match="'echo' from the package graphrag-ray-sample"):
        load_provider(Model(provider="echo"))


def test_built_in_providers_use_the_same_two_classes():
    assert isinstance(PROVIDERS["offline"], LocalProvider)
    assert isinstance(PROVIDERS["openai"], RemoteProvider)
