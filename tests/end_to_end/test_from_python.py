"""The Python API of `import graphrag_ray`."""

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


def test_settings_default_to_those_of_the_newest_snapshot(run: Command, world: World):
    world.write(TOWN)
    graphrag_ray.build_index(str(world.input), str(world.root), settings=world.settings())
    done = graphrag_ray.build_index(str(world.input), str(world.root))
    assert not done.committed and done.manifest.settings["models"]["default"]["model"] == "m"


def test_invalid_settings_raise_our_own_errors(run: Command, world: World):
    world.write(TOWN)
    with pytest.raises(SettingsError, match=r"chunking\.size"):
        graphrag_ray.build_index(str(world.input), str(world.root), settings={"chunking": {"sise": 3}})


def test_importing_the_package_imports_no_library():
    done = python(
        "import sys; before = set(sys.modules); from graphrag_ray import build_index, open_index\n"
        "imported = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(imported - sys.stdlib_module_names)"
    )
    assert done.stdout == "{'graphrag_ray'}\n", done.stderr


WITHOUT_A_TERMINAL = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("click", "rich", "markdown_it"):
            raise ModuleNotFoundError(f"{name} was wanted", name=name)

sys.meta_path.insert(0, Blocked())
import graphrag_ray.engine.ray.ray_executor
from graphrag_ray import build_index, open_index
done = build_index(INPUT, ROOT)
print(done.committed, open_index(ROOT).ask("Who wrote to whom?", method="local").found)
"""


def test_the_api_works_without_terminal_libraries(world: World):
    world.write(TOWN)
    places = f"INPUT, ROOT = {str(world.input)!r}, {str(world.root)!r}\n"
    done = python(places + WITHOUT_A_TERMINAL)
    assert done.stdout == "True True\n", done.stderr


def test_the_module_runs_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    import runpy

    monkeypatch.setattr(sys, "argv", ["graphrag_ray", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("graphrag_ray", run_name="__main__")
    assert ended.value.code == 0 and "Usage: graphrag-ray " in capsys.readouterr().out
