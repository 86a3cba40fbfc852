"""Search methods and export formats of third-party packages: installed, listed, used on the command line and
through the API; broken packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from installed import SAMPLE, install
from world import World

METHOD = "passages-reports"
BROKEN = {
    "cannot-import": ("import not_installed_anywhere\n", "ModuleNotFoundError"),
    "no-method": ("METHOD = 'a text'\n", ", not str"),
    "answers-nonsense": (
        "from graphrag_ray.query.methods.methods import MethodKind\n"
        "def search(question, given):\n    yield 5\n"
        "METHOD = MethodKind(search, stages=('answer',), description='nothing')\n",
        "it yielded 5",
    ),
}
BROKEN_EXPORTERS = {
    "no-module": ("import not_installed_anywhere\n", "ModuleNotFoundError"),
    "no-exporter": ("EXPORTER = 'a text'\n", ", not str"),
    "raises": (
        "from graphrag_ray.export.exporters import Exporter\n"
        "EXPORTER = Exporter(lambda snapshot, output: {}['x'], 'raises', ())\n",
        "KeyError",
    ),
    "notes-nonsense": (
        "from graphrag_ray.export.exporters import Exporter\n"
        "EXPORTER = Exporter(lambda snapshot, output: [5], 'nonsense', ())\n",
        "must return a list of strings",
    ),
    "writes-elsewhere": (
        "from graphrag_ray.export.exporters import Exporter\n"
        "EXPORTER = Exporter(lambda snapshot, output: output.write('b', ''), 'elsewhere', ('a',))\n",
        "'b', which its `files` do not declare",
    ),
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample package and broken packages, installed as pip does."""
    folder = install(tmp_path_factory.mktemp("site") / "packages")
    for name, (code, _) in (BROKEN | BROKEN_EXPORTERS).items():
        module = name.replace("-", "_")
        (folder / f"{module}.py").write_text(code)
        info = folder / f"{module}-0.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0.3\n")
        group, attribute = ("methods", "METHOD") if name in BROKEN else ("exporters", "EXPORTER")
        (info / "entry_points.txt").write_text(f"[graphrag_ray.{group}]\n{name} = {module}:{attribute}\n")
    info = folder / "rival-0.4.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 0.4\n")
    (info / "entry_points.txt").write_text("[graphrag_ray.methods]\nhybrid = cannot_import:METHOD\n")
    return folder


def run(installed: Path | None, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(installed or ""), str(SAMPLE.parents[1])]))
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def query(installed: Path | None, world: World, method: str) -> subprocess.CompletedProcess[str]:
    words = ["query", "What about DAVE ?", "--root", str(world.root), "--method", method]
    return run(installed, "-m", "graphrag_ray", *words)


def test_it_is_listed_with_its_package(installed: Path):
    listed = run(installed, "-m", "graphrag_ray", "query", "--methods")
    assert f"{METHOD} passages, and reports on what they name (graphrag-ray-sample 1.0)" in listed.stdout
    assert "global     community reports on the whole corpus" in listed.stdout
    assert METHOD in run(installed, "-m", "graphrag_ray", "query", "--help").stdout


def test_it_answers_on_the_command_line_and_through_the_api(installed: Path, town: World):
    asked = query(installed, town, METHOD)
    assert asked.returncode == 0 and "DAVE" in asked.stdout, asked.stderr
    script = (
        f"from graphrag_ray import open_index; index = open_index({str(town.root)!r})\n"
        f"answer = index.ask('What about DAVE ?', method={METHOD!r})\n"
        "shown = {record.section for used in answer.contexts for record in used.records}\n"
        "print(answer.method, shown >= {'Sources', 'Reports'})"
    )
    told = run(installed, "-c", script)
    assert told.stdout.split() == [METHOD, "True"], told.stderr


def test_without_its_package_it_is_unknown(town: World):
    asked = query(None, town, METHOD)
    assert asked.returncode == 2 and f"'{METHOD}' is not one of 'global'" in asked.stderr


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_is_named_and_breaks_no_other_method(installed: Path, town: World, name: str):
    asked = query(installed, town, name)
    assert asked.returncode not in (0, None) and BROKEN[name][1] in asked.stderr
    assert f"{name.replace('-', '_')} 0.3" in asked.stderr
    assert "Traceback" not in asked.stderr


def test_a_built_in_method_wins_over_a_plugin_of_the_same_name(installed: Path, town: World):
    asked = query(installed, town, "hybrid")
    assert asked.returncode == 0 and "rival 0.4" in asked.stderr


def export(installed: Path | None, world: World, out: Path, format_: str) -> subprocess.CompletedProcess[str]:
    words = ["export", "--root", str(world.root), "--out", str(out), "--format", format_]
    return run(installed, "-m", "graphrag_ray", *words)


def test_an_export_format_is_listed_with_its_package_and_writes_files(
    installed: Path, town: World, tmp_path: Path
):
    listed = run(installed, "-m", "graphrag_ray", "export", "--formats")
    assert "pairs      pairs of related entities, one per line (graphrag-ray-sample 1.0)" in listed.stdout
    assert "graphml    the graph for Gephi" in listed.stdout
    done = export(installed, town, tmp_path / "out", "pairs")
    assert done.returncode == 0 and "pairs.txt" in done.stdout, done.stderr
    lines = (tmp_path / "out" / "pairs.txt").read_text("utf-8").splitlines()
    assert lines and all(len(line.split("\t")) == 2 for line in lines)


def test_without_its_package_the_export_format_is_unknown(town: World, tmp_path: Path):
    done = export(None, town, tmp_path / "out", "pairs")
    assert done.returncode == 2 and "'pairs' is not one of 'graphrag'" in done.stderr


@pytest.mark.parametrize("name", BROKEN_EXPORTERS)
def test_a_broken_export_format_is_reported_with_its_package(
    installed: Path, town: World, tmp_path: Path, name: str
):
    done = export(installed, town, tmp_path / "out", name)
    assert done.returncode == 2 and BROKEN_EXPORTERS[name][1] in done.stderr
    assert f"{name.replace('-', '_')} 0.3" in done.stderr and "Traceback" not in done.stderr
