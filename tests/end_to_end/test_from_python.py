"""What `import graphrag_ray` gives to other programs."""

from __future__ import annotations

import sys

import pytest
from world import TOWN, Command, World, python

import graphrag_ray
from graphrag_ray.base.errors import SettingsError


def test_an_index_is_built_and_asked_from_python(run: Command, world: World):
    world.write(TOWN)
    settings = world.settings().model_dump(mode="json")
    done = graphrag_ray.build_index(str(world.input), str(world.root), settings=settings)
    assert done.committed and done.manifest.counts["entities"] == 10
    assert graphrag_ray.open_index(str(world.root)).ask("What are the THEMES?").found


def test_without_settings_those_of_the_newest_snapshot_count(run: Command, world: World):
    world.write(TOWN)
    graphrag_ray.build_index(str(world.input), str(world.root), settings=world.settings())
    done = graphrag_ray.build_index(str(world.input), str(world.root))
    assert not done.committed and done.manifest.settings["models"]["default"]["model"] == "m"


def test_wrong_settings_are_errors_of_ours(run: Command, world: World):
    world.write(TOWN)
    with pytest.raises(SettingsError, match=r"chunking\.size"):
        graphrag_ray.build_index(str(world.input), str(world.root), settings={"chunking": {"sise": 3}})


def test_the_package_shows_its_names_and_imports_nothing_for_them():
    done = python(
        "import sys, graphrag_ray as g; assert {'build_index', 'open_index'} <= set(dir(g)); "
        "print(sorted({'ray', 'pyarrow', 'openai'} & set(sys.modules)))"
    )
    assert done.stdout == "[]\n", done.stderr


def test_the_module_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    import runpy

    monkeypatch.setattr(sys, "argv", ["graphrag_ray", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("graphrag_ray", run_name="__main__")
    assert ended.value.code == 0 and "Usage: graphrag-ray " in capsys.readouterr().out
