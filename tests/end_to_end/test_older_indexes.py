"""An index of an earlier version, whose snapshot says how its models were reached: it opens, answers and
goes on without asking anything where it says, or paying for anything again."""

from __future__ import annotations

from pathlib import Path

import pytest
from canary import Canary
from endpoint import Endpoint
from stored_index import rewrite, unpacked, without_snapshot
from terminals import Terminal
from world import Command, everything

from graphrag_ray.asking.ask import open_index
from graphrag_ray.store.snapshots import open_latest

QUESTION = "What are the THEMES?"


@pytest.fixture
def canary():
    with Canary() as listening:
        yield listening


@pytest.fixture
def root(tmp_path: Path, canary: Canary, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the working directory, as it was made; its models were at the canary."""
    monkeypatch.chdir(tmp_path)

    def moved(settings):
        for model in settings["models"].values():
            model["endpoints"][0]["base_url"] = f"http://{canary.host}/v1"

    rewrite(unpacked(tmp_path), moved)
    return tmp_path / "index"


def named(endpoint: Endpoint, *models: str) -> list[str]:
    """Options that say where the models are."""
    at = [f"models.{name}.endpoints.0.{key}" for name in models for key in ("base_url", "api_key_env")]
    values = [endpoint.base_url, "null"] * len(models)
    return [word for pair in zip(at, values, strict=True) for word in ("--set", "=".join(pair))]


def test_it_opens_and_the_offline_engine_answers(run: Command, root: Path, canary: Canary):
    assert run("status", "--root", root).exit_code == 0
    offline = ["--set", "models={default: {provider: offline}}"]
    asked = ["query", "Whom did ALICE meet at the council?", "--root", root, "--method", "text"]
    answered = run(*asked, *offline)
    assert answered.exit_code == 0 and "ALICE met BOB" in answered.stdout
    assert canary.heard == []


def test_it_is_asked_at_an_address_of_this_machine(
    run: Command, root: Path, endpoint: Endpoint, canary: Canary
):
    answered = run("query", QUESTION, "--root", root, *named(endpoint, "default"))
    assert answered.exit_code == 0 and "[Data: Reports (1)]" in answered.stdout
    assert endpoint.requests and canary.heard == []


@pytest.mark.parametrize("killed", [False, True], ids=["snapshot", "record of a killed run"])
def test_indexing_it_again_pays_for_nothing_and_is_remembered(
    run: Command, root: Path, endpoint: Endpoint, canary: Canary, killed: bool
):
    before = everything(open_index(str(root)))
    if killed:
        without_snapshot(root)
    again = ["index", "input", "--root", root]
    assert "prompts_dir" in run(*again, *named(endpoint, "default", "embedding")).stderr
    done = run(*again, *named(endpoint, "default", "embedding"), "--set", "prompts_dir=prompts")
    assert done.exit_code == 0, done.output
    assert endpoint.requests == [] and canary.heard == [], "all that models said is in the journal"
    after = everything(open_index(str(root)))
    assert after["entities"] == before["entities"] and after["documents"] == before["documents"]
    reports = [[r["full_content"] for r in tables["community_reports"]] for tables in (before, after)]
    assert reports[0] == reports[1]

    (root.parent / "prompts").rename(root.parent / "moved")
    assert run(*again).exit_code == 0, "addresses are kept on this machine, and prompts in the snapshot"
    kept = open_latest(open_index(str(root)).store).settings
    assert kept["prompts"]["report"].startswith("Write plainly.") and "endpoints" not in str(kept)
    assert run("query", QUESTION, "--root", root).exit_code == 0
    assert endpoint.bodies() and canary.heard == []


def test_the_prompts_of_the_package_are_taken_when_somebody_says_so(
    run: Command, root: Path, endpoint: Endpoint
):
    here = named(endpoint, "default", "embedding")
    bundled = run("index", "input", "--root", root, *here, "--new-prompts", "--yes")
    assert bundled.exit_code == 0 and endpoint.bodies(), "the edited prompt was that of reports"
    assert "Write plainly." not in str(open_index(str(root)).manifest.settings["prompts"])


def test_at_a_terminal_its_addresses_are_shown_and_taken_on_a_yes(
    root: Path, endpoint: Endpoint, canary: Canary
):
    def at_endpoint(settings):
        settings["models"]["default"]["endpoints"][0] |= {"base_url": endpoint.base_url}

    rewrite(root, at_endpoint)
    for answer in ("n", "y"):
        with Terminal("query", QUESTION, "--root", root) as terminal:
            terminal.wait_for("Is that yours")
            assert f"models.default (m): {endpoint.base_url} with no key" in terminal.shown
            assert not endpoint.requests
            terminal.type(f"{answer}\n")
            assert terminal.end() == (2 if answer == "n" else 0), terminal.shown
    with Terminal("query", QUESTION, "--root", root) as terminal:
        assert terminal.end() == 0 and "Is that yours" not in terminal.shown
    assert canary.heard == []
