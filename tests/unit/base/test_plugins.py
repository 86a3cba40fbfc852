"""Plugins are found by name, imported on first use and cannot break anything else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from graphrag_ray.base.errors import StoreError
from graphrag_ray.base.plugins import PluginError, Registry

GROUP = "graphrag_ray.tested"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a package with one module: the module and its metadata, as pip does."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(package: str, code: str, **entries: str) -> None:
        (tmp_path / f"{package}.py").write_text(code, "utf-8")
        folder = tmp_path / f"{package}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n", "utf-8")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (folder / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]), "utf-8")

    yield installed
    for name in ("plug_a", "plug_b"):
        sys.modules.pop(name, None)


def registry() -> Registry[type]:
    return Registry(GROUP, "kind", type, {"store": "graphrag_ray.base.errors:StoreError"})


def test_built_in_plugins_come_first_and_listing_imports_nothing(install):
    install("plug_a", "class Mine: ...", zeta="plug_a:Mine", alpha="plug_a:Mine")
    found = registry()
    assert list(found) == ["store", "alpha", "zeta"] and "plug_a" not in sys.modules
    assert found["store"] is StoreError and found["zeta"].__name__ == "Mine"
    assert found.package_of("zeta") == "plug_a 1.2" and not found.package_of("store")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nothing_that_is_there", "plug_a 1.2.*cannot be imported: ModuleNotFoundError"),
        ("class Other: ...", "plug_a 1.2.*cannot be imported: AttributeError"),
        ("Mine = 3", "plug_a 1.2.*, not int"),
    ],
)
def test_an_unusable_plugin_is_reported_with_its_package_and_breaks_nothing_else(
    install, code: str, told: str
):
    install("plug_a", code, mine="plug_a:Mine")
    found = registry()
    assert found["store"] is StoreError
    with pytest.raises(PluginError, match=told):
        found["mine"]


def test_a_built_in_plugin_shadows_a_plugin_of_the_same_name_with_a_warning(install, caplog):
    install("plug_a", "class Mine: ...", store="plug_a:Mine")
    assert registry()["store"] is StoreError and "plug_a" not in sys.modules
    assert "'store' is built in; ignoring the one from the package plug_a 1.2" in caplog.text


def test_a_name_that_two_packages_provide_is_an_error_with_both(install):
    install("plug_a", "class Mine: ...", mine="plug_a:Mine")
    install("plug_b", "class Mine: ...", mine="plug_b:Mine")
    with pytest.raises(PluginError, match=r"package plug_a 1\.2 and the package plug_b 1\.2"):
        registry()["mine"]


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(PluginError, match=r"Unknown kind 'none'. Choose from: store"):
        registry()["none"]
