"""Indexes in other formats: a newer one is not touched, and the tables of an older one are rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_index import reseal
from world import Command, World, everything, index_command

from graphrag_ray.store.snapshots import FORMAT

QUESTION = "What are the THEMES?"


def older(content: dict[str, Any]) -> None:
    content.update(format=FORMAT - 1, version="0.0.1")


def without_days(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Drop the dates of communities and reports."""
    return {
        name: [{k: v for k, v in row.items() if k != "period"} for row in rows]
        for name, rows in tables.items()
    }


def test_an_older_index_is_rejected_and_rebuilt_from_its_journal(run: Command, town: World):
    before = without_days(everything(town.open()))
    reseal(town.root, older)
    for command in (["query", QUESTION], ["inspect"], ["export", "--format", "csv", "--out", "out"]):
        refused = run(*command, "--root", town.root)
        assert refused.exit_code != 0 and "Run the same `graphrag-ray index` command again" in refused.stderr
    assert run("status", "--root", town.root).exit_code == 0
    refused = run(*index_command(town, "--add"))
    assert refused.exit_code == 2 and "which --add cannot continue from" in refused.stderr
    asked = town.asked()
    done = run(*index_command(town))
    assert done.exit_code == 0 and "rebuilding all tables from the journal" in done.stderr
    assert town.asked() == asked and town.snapshots() == [1, 2]
    assert without_days(everything(town.open())) == before
    assert run("gc", "--root", town.root, "--keep", "1", "--grace", "0", "--delete").exit_code == 0
    assert town.snapshots() == [2]


@pytest.mark.parametrize(
    ("newer", "told"),
    [
        (lambda content: content.update(format=FORMAT + 1, version="9.9"), "written by a newer graphrag-ray"),
        (lambda content: content["settings"]["reports"].update(colour="blue"), "setting 'reports.colour'"),
    ],
    ids=["format", "setting"],
)
def test_an_index_of_a_newer_version_is_not_touched(
    run: Command, town: World, newer: Callable[[dict[str, Any]], None], told: str
):
    reseal(town.root, newer)
    before, asked = files_of(town.root), town.asked()
    for command in ("index", town.input), ("query", QUESTION), ("estimate", town.input):
        done = run(*command, "--root", town.root)
        assert done.exit_code != 0 and told in done.stderr, command
        assert "pip install -U graphrag-ray" in done.stderr, command
    after = files_of(town.root)
    assert after.keys() - before.keys() <= {"runs/refused.json"} and before.items() <= after.items()
    assert town.asked() == asked


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
