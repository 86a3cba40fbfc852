"""An index whose only hierarchy is over chunks has no graph: nothing is extracted, and everything else
works."""

from __future__ import annotations

from pathlib import Path

import document_hierarchy
import pytest
import toy_model
from endpoint import TOO_LONG
from world import TOWN, Command, World

from graphrag_ray.base.errors import UsageError


@pytest.fixture(autouse=True)
def over_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    document_hierarchy.instead_of_leiden(monkeypatch)


def test_only_reports_are_requested_and_global_search_reads_them(world: World):
    world.write(TOWN)
    done = world.index()
    counts, tables = done.manifest.counts, done.manifest.tables
    assert {stage for stage, _ in done.accounts.by_stage} == {"report"}
    assert counts["reports"] == counts["communities"] == counts["documents"] == len(TOWN)
    assert counts["entities"] == counts["relationships"] == counts["failures"] == 0
    assert not {"entities", "relationships", "covariates"} & tables.keys()
    opened = world.open()
    answer = opened.ask("Who met BOB at the council?", level="C0")
    assert answer.found and {r.section for r in answer.references} == {"Reports"}
    sources = opened.sources(answer.references)
    assert sources and all(source.chunks[0]["text"] in TOWN.values() for source in sources)
    assert [u.name for u in opened.levels()] == ["C0", "TS"]


def test_methods_that_need_a_graph_say_what_is_missing_and_others_work(world: World):
    world.write(TOWN)
    world.index()
    opened = world.open()
    for method in ("vector", "hybrid", "text"):
        assert opened.ask("Who met BOB at the council?", method=method).found
    assert world.open(query={"dynamic": True}).ask("Who met BOB?").found
    for method in ("local", "drift", "fgrag", "lightrag"):
        with pytest.raises(UsageError, match="This index has no graph"):
            opened.ask("Who met BOB?", method=method)


def test_an_update_requests_only_new_reports_and_keeps_short_ids(world: World):
    world.write(TOWN)
    before = world.index()
    numbers = dict(
        zip(*world.open().table("communities", ["id", "community"]).to_pydict().values(), strict=True)
    )
    assert not world.index().committed
    world.write({"new.txt": "MALLORY met TRENT."})
    after = world.index()
    assert after.accounts.by_stage.keys() and after.accounts.total.calls == 1
    now = dict(zip(*world.open().table("communities", ["id", "community"]).to_pydict().values(), strict=True))
    assert numbers.items() < now.items() and before.committed


def test_a_failed_report_is_one_failure(world: World):
    world.write(TOWN)
    world.endpoint.respond = lambda body: (
        TOO_LONG if "council" in str(body["messages"]) else toy_model.respond(body)
    )
    done = world.index(run={"max_failed_fraction": 1.0})
    assert done.failed and done.manifest.counts["reports"] == len(TOWN) - done.failed


def test_commands_support_it(run: Command, world: World, tmp_path: Path):
    world.write(TOWN)
    world.index()
    root = ["--root", str(world.root)]
    for command in (
        ["status"],
        ["inspect"],
        ["inspect", "community", "1"],
        ["inspect", "chunk", "1"],
        ["inspect", "search", "council"],
        ["levels"],
        ["failures"],
        ["gc", "--journal"],
    ):
        done = run(*command, *root)
        assert done.exit_code == 0, (command, done.output, done.stderr)
    assert run("export", "--format", "csv", "--out", str(tmp_path / "sheets"), *root).exit_code == 0
    done = run("export", "--format", "graphrag", "--out", str(tmp_path / "project"), *root)
    assert done.exit_code == 2 and "hierarchy leiden is over chunks" in done.stderr
