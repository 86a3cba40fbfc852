"""The job that indexes the rows that a user's function returns."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from world import TOWN, Command, World, model_options

from graphrag_ray.cli.command_line import main

ARTICLES = f"""
import ray.data

def dataset():
    return ray.data.from_items([{{"id": name, "text": text}} for name, text in {TOWN!r}.items()])
"""


def test_a_job_indexes_the_dataset_returned_by_a_function_in_its_folder(
    world: World, on_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "articles.py").write_text(ARTICLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    line = ["index", "--input", "articles:dataset", "--root", world.root, "--set", "input.id_column=id"]
    done = CliRunner().invoke(main, [*map(str, line), *model_options(world)])
    assert done.exit_code == 0, done.output
    assert {row["row"] for row in world.table("documents")} == set(TOWN)
    assert world.open().manifest.run["input"] == "articles:dataset"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--input", "no_such_module:f"], "No module named 'no_such_module'"),
        (["--input", "json:no_such"], "has no attribute 'no_such'"),
        (["--input", "json"], "use the form MODULE:FUNCTION"),
        (["--input", "sys:argv"], "expected a function, got a list"),
        (["--input", "json:loads", "docs"], "INPUT is given twice"),
        (["--input", "time:time"], "INPUT has type float. It can be a file"),
        (["--input", "json:loads"], "INPUT cannot be read (calling it): TypeError"),
    ],
)
def test_a_function_that_returns_no_rows_is_rejected(run: Command, world: World, given: list[str], told: str):
    done = run("index", "--root", world.root, *given)
    assert done.exit_code == 2 and told in " ".join(done.output.split())
