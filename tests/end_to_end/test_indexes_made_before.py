"""Indexes that the program made before a change of the program: they are opened, asked, updated, resumed and
cleaned up, and nothing that was paid for is paid for again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from endpoint import Endpoint
from stored_index import QUESTION, by_another_program, reseal, unpack
from test_cleaning_up import traces
from world import Command, know, prompt_of, rows_of

from graphrag_ray import open_index
from graphrag_ray.query.ask import Index
from graphrag_ray.store.snapshots import FORMAT

METHODS = ("global", "text", "vector", "hybrid", "local", "drift")
MADE = ("offline", "with_replies")
TABLES = ("documents", "text_units", "entities", "relationships", "covariates", "communities")
INDEX_AGAIN = ("index", "input", "--root", "index")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, since INPUT and the indexes are named relative to one; the models of the indexes
    are at an endpoint."""
    monkeypatch.chdir(tmp_path)
    know(endpoint, "m", "e")
    return tmp_path


@pytest.fixture(params=MADE)
def made(request: pytest.FixtureRequest, here: Path) -> str:
    """One of the indexes, as it was left."""
    unpack(request.param, here)
    return str(request.param)


@pytest.fixture
def of_another_program(made: str, here: Path) -> str:
    """The same, with no step that this very program would take for its own."""
    by_another_program(here / "index")
    return made


def newest(number: int | None = None) -> Index:
    return open_index("index", snapshot=number)


def tables(opened: Index) -> dict[str, Any]:
    """What people and exports read of a snapshot, without the day of the run that wrote it. Communities of
    one level may stand in another order: earlier versions put them as they lay in the graph."""
    found = {
        name: [{k: v for k, v in row.items() if k != "period"} for row in rows_of(opened, name)]
        for name in (*TABLES, "community_reports")
    }
    for name in ("communities", "community_reports"):
        found[name].sort(key=lambda row: (row["level"], row["community"]))
    return found


def kinds(endpoint: Endpoint) -> Counter[str]:
    """What was asked since the last look: named prompts, and texts that were embedded."""
    asked = Counter(prompt_of(body) for body in endpoint.bodies())
    asked["embedded"] = sum(len(r.body["input"]) for r in endpoint.requests if r.path == "/embeddings")
    endpoint.requests.clear()
    return +asked


def add_newcomers(run: Command, here: Path) -> None:
    """A document of people whom no other one knows."""
    (here / "input" / "kite.md").write_text(
        "# The kite\n\nPETRA taught RALF to fly a kite. RALF wrote to PETRA."
    )
    assert run(*INDEX_AGAIN, "--allow-deletes").exit_code == 3, "a row without a text"


@pytest.mark.parametrize("method", METHODS)
def test_it_answers_each_way_and_leads_to_its_documents(made: str, here: Path, method: str):
    opened = newest()
    answer = opened.ask(QUESTION, method=method)
    assert answer.found and "OTTO" in answer.text
    chunks = [chunk for source in opened.sources(answer.references, answer) for chunk in source.chunks]
    assert any("OTTO" in chunk["text"] for chunk in chunks)
    assert {chunk["document"] for chunk in chunks} <= {path.name for path in (here / "input").iterdir()}


def test_what_was_asked_of_it_is_still_in_the_cache(made: str, endpoint: Endpoint):
    """By global search: of the prompts of questions, those of others were written anew."""
    opened = open_index("index", cache="cache")
    answer = opened.ask(QUESTION, method="global")
    assert answer.found and "Every reply was in the cache: no model was asked." in answer.notes
    assert kinds(endpoint) == {}


def test_both_of_its_snapshots_are_shown(run: Command, made: str):
    assert "storm.md" in str(tables(newest())["documents"])
    assert "storm.md" not in str(tables(newest(1))["documents"])
    for command in (
        ["status"],
        ["inspect", "entity", "OTTO"],
        ["export", "--format", "csv", "--out", "out"],
        ["failures"],
    ):
        done = run(command[0], *command[1:], "--root", "index")
        assert done.exit_code == 0, done.output


def test_indexing_it_again_asks_nothing_and_comes_to_the_same(
    run: Command, of_another_program: str, endpoint: Endpoint
):
    before = newest()
    for _ in range(2):
        assert run(*INDEX_AGAIN).exit_code == 3, "a row without a text"
    assert kinds(endpoint) == {}
    assert tables(newest()) == tables(before)
    assert newest().manifest.counts["failures"] == before.manifest.counts["failures"]


def test_a_new_document_pays_for_itself_alone(
    run: Command, of_another_program: str, here: Path, endpoint: Endpoint
):
    before = tables(newest())
    add_newcomers(run, here)
    new = {"extract": 1, "claims": 1, "report": 1}
    if of_another_program == "offline":
        assert newest().manifest.run["asked"] == new
    else:
        assert kinds(endpoint) == {**new, "glean_check": 1, "embedded": 5}
    after = tables(newest())
    for name, rows in before.items():
        known = {row["id"] for row in rows}
        assert [row for row in after[name] if row["id"] in known] == rows, name
    assert "PETRA" in str(after["entities"]) and "PETRA" in str(after["community_reports"])


@pytest.mark.parametrize(
    "remove",
    [("--journal", "--keep", "1", "--grace", "0"), ("--purge", "glass.txt")],
    ids=["journal", "purge"],
)
def test_after_an_update_replies_are_removed_that_the_next_run_does_not_need(
    run: Command, of_another_program: str, here: Path, endpoint: Endpoint, remove: tuple[str, ...]
):
    (here / "input" / "glass.txt").unlink()
    add_newcomers(run, here)
    before = tables(newest())
    endpoint.requests.clear()
    assert run("gc", "--root", "index", *remove, "--delete").exit_code == 0
    assert traces(here / "index", "nineteen boats") == []
    by_another_program(here / "index")
    assert run(*INDEX_AGAIN).exit_code == 3
    assert kinds(endpoint) == {} and tables(newest()) == before


def test_a_run_that_was_stopped_goes_on_where_it_was(run: Command, here: Path, endpoint: Endpoint):
    unpack("stopped", here)
    assert run(*INDEX_AGAIN).exit_code == 3
    assert kinds(endpoint) == {"report": 4, "embedded": 58}
    went_on = tables(newest())
    (here / "index").rename(here / "stopped")
    unpack("with_replies", here)
    assert went_on == tables(newest(1)), "as if it had not been stopped"


@pytest.mark.parametrize(
    ("newer", "told"),
    [
        (lambda content: content.update(format=FORMAT + 1, version="9.9"), "written by a newer graphrag-ray"),
        (lambda content: content["settings"]["reports"].update(colour="blue"), "setting 'reports.colour'"),
    ],
    ids=["format", "setting"],
)
def test_an_index_of_a_newer_program_is_left_as_it_is(
    run: Command, here: Path, endpoint: Endpoint, newer: Callable[[dict[str, Any]], None], told: str
):
    unpack("with_replies", here)
    reseal(here / "index", newer)
    before = files_of(here / "index")
    for command in ("index", "input"), ("query", QUESTION), ("estimate", "input"):
        done = run(*command, "--root", "index")
        assert done.exit_code != 0 and told in done.stderr, command
        assert "pip install -U graphrag-ray" in done.stderr, command
    after = files_of(here / "index")
    assert after.keys() - before.keys() <= {"runs/refused.json"} and before.items() <= after.items()
    assert kinds(endpoint) == {}


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
