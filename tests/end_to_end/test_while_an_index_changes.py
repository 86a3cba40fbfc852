"""During updates readers see whole snapshots, unchanged parts are shared, and `status` shows what a run
changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest
from world import TOWN, Built, Command, World, everything, index_command

from graphrag_ray import open_index
from graphrag_ray.base.declarations import CHANGE_TRACKED_TABLES
from graphrag_ray.indexing import changes as comparing
from graphrag_ray.indexing.purge import NOT_PURGED, clean_up
from graphrag_ray.indexing.stages import document_parts, merge_stage
from graphrag_ray.indexing.status import index_status
from graphrag_ray.store import snapshots
from graphrag_ray.store.gc import GcOptions

MANY = {
    f"letter{i}.txt": f"NAME{chr(65 + i)} met NAME{chr(66 + i)} in the year {1900 + i}." for i in range(20)
}

READER = """
import sys, time
from pathlib import Path
from graphrag_ray import open_index
from graphrag_ray.base.settings_file import parse_settings

root, stop = sys.argv[1], Path(sys.argv[2])
seen = set()
print("ready", flush=True)
while not stop.exists():
    opened = open_index(root, settings=parse_settings({}))
    titles = set(opened.table("entities")["title"].to_pylist())
    numbers = dict(zip(*(opened.table("community_reports")[c].to_pylist() for c in ("id", "community"))))
    # Of one snapshot: every table knows the names and numbers of the others.
    for ends in ("source", "target"):
        assert set(opened.table("relationships")[ends].to_pylist()) <= titles
    assert set(numbers.values()) <= set(opened.table("communities")["community"].to_pylist())
    units = set(opened.table("text_units")["id"].to_pylist())
    for used in opened.table("entities")["text_unit_ids"].to_pylist():
        assert set(used) <= units
    answer = opened.ask("What are the THEMES?")
    assert answer.text and all(r.id in numbers for r in answer.references if r.section == "Reports")
    assert opened.manifest.counts["documents"] == opened.table("documents").num_rows
    seen.add(opened.manifest.number)
print("saw", *sorted(seen), flush=True)
"""


def test_readers_see_whole_snapshots_during_updates_and_gc(world: World, tmp_path: Path, built: Built):
    world.take(built(TOWN))
    stop = tmp_path / "stop"
    command = [sys.executable, "-c", READER, str(world.root), str(stop)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        for i in range(4):
            world.write({"zoo.txt": f"ZOE feeds YURI, for the time number {i}. ALICE met ZOE."})
            world.index()
            clean_up(world.store, GcOptions(keep=1), delete=True)
        time.sleep(0.5)
        stop.touch()
        out, errors = reader.communicate(timeout=60)
    assert reader.returncode == 0, errors
    seen = [int(n) for n in out.split()[1:]]
    assert len(seen) > 1 and set(seen) <= {1, 2, 3, 4, 5} and seen[-1] == 5
    assert world.snapshots() == [5]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One document per part, and as many partitions as in a large corpus."""
    monkeypatch.setattr(document_parts, "split_bytes", lambda total: 1)
    monkeypatch.setattr(merge_stage, "n_ranges", lambda table, rows: 16)


def test_after_an_update_of_one_document_nearly_all_parts_are_shared(world: World, small_parts: None):
    world.write(MANY)
    world.index()
    world.write({"letter0.txt": "NAMEA met NAMEB in the year 2000."})
    world.index()
    one, two = (snapshots.load(world.store, n) for n in (1, 2))

    def parts(name: str, number: int) -> set[str]:
        step, _, table = name.partition(".")
        if not table:
            return {p.path for p in (one, two)[number].parts(name)}
        groups = (one, two)[number].steps[step]["tables"][table]
        return {path for group in groups for path, *_ in group}

    for name in ("documents", "text_units", "read.text_units", "extract.found_entities"):
        assert len(parts(name, 0)) == len(MANY) and len(parts(name, 0) & parts(name, 1)) == len(MANY) - 1, (
            name
        )
    for name in ("entities", "relationships", "entity_instances"):
        assert len(parts(name, 0)) > 5 and len(parts(name, 0) - parts(name, 1)) <= 3, name


def rows_as_lines(rows: Mapping[str, str]) -> bytes:
    return b"\n".join(orjson.dumps({"id": name, "text": text}) for name, text in rows.items())


def pairs_of(world: World, number: int) -> list[tuple[str, ...]]:
    """The groups of documents and chunks of a snapshot, as paths of their parts."""
    tables = snapshots.load(world.store, number).steps["read"]["tables"]
    groups = zip(tables["documents"], tables["text_units"], strict=True)
    return [tuple(path for path, *_ in (*documents, *units)) for documents, units in groups]


def test_a_large_file_has_many_groups_and_a_new_row_changes_few(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(document_parts, "split_bytes", lambda total: 3000)
    rows = {f"letter {i}": f"NAME{chr(65 + i % 26)} met NAMEB in the year {i}." for i in range(120)}
    items = list(rows.items())
    world.write({"all.jsonl": rows_as_lines(rows)})
    world.index(input={"id_column": "id"})
    # A row in the middle, and a deleted document.
    world.write({"all.jsonl": rows_as_lines(dict([*items[:50], ("new", "ZOE met NAMEA."), *items[51:]]))})
    world.index(input={"id_column": "id"})
    before, after = pairs_of(world, 1), pairs_of(world, 2)
    assert len(before) > 15 and len(set(before) - set(after)) <= 5
    for step, table in (("extract", "found_entities"), ("extract", "counts")):
        parts = snapshots.load(world.store, 2).steps[step]["tables"][table]
        assert len(parts) == len(after) and {len(group) for group in parts} <= {0, 1}
    documents = {d["id"]: d for d in world.table("documents")}
    units = world.table("text_units")
    assert len(documents) == 120 and {u["document_id"] for u in units} == documents.keys()
    for unit in units:
        assert unit["id"] in documents[unit["document_id"]]["text_unit_ids"]


def test_consecutive_updates_share_groups(world: World):
    world.write({"0.txt": "NAMEA met NAMEB."})
    world.index()
    for i in range(1, 6):
        (world.input / f"{i - 1}.txt").unlink()
        world.write({f"{i}.txt": f"NAMEA met NAMEB in the year {i}."})
        world.index(add=True)
    assert len(world.table("documents")) == 6
    assert [len(group) for group in pairs_of(world, 6)] == [12]


def test_changes_are_reported_with_correct_counts(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparing, "TASK_ROWS", 1)
    world.write(MANY | TOWN)
    first = world.index().manifest.run
    rows = Counter({n: t["added"] for n, t in first["changes"].items()})
    assert rows["documents"] == len(MANY | TOWN) and rows["covariates"] == 0
    assert not any(t["changed"] or t["removed"] or t["unchanged"] for t in first["changes"].values())
    before = everything(world.open())
    world.write({"zoo.txt": "ZOE feeds ALICE.", "mill.txt": "ALICE met BOB again."})
    (world.input / "brewery.txt").unlink()
    asked = world.asked()
    done = world.index()
    after, told = everything(world.open()), done.manifest.run["changes"]
    for name, (_, columns) in CHANGE_TRACKED_TABLES.items():
        old = {r["id"]: [r[c] for c in columns] for r in before.get(name, [])}
        new = {r["id"]: [r[c] for c in columns] for r in after.get(name, [])}
        both = old.keys() & new.keys()
        changed = sum(old[i] != new[i] for i in both)
        assert told[name] == {
            "added": len(new.keys() - both),
            "changed": changed,
            "removed": len(old.keys() - both),
            "unchanged": len(both) - changed,
        }, name
    assert told["documents"] == {"added": 1, "changed": 1, "removed": 1, "unchanged": len(MANY) + 4}
    assert (told["entities"]["added"], told["entities"]["removed"]) == (1, 4), "ZOE; GRACE, HEIDI, IVAN, JUDY"
    assert told["entities"]["changed"] > 0 < told["entities"]["unchanged"]
    spent = world.prompts(asked)
    items = done.manifest.run["asked"]
    assert {n: items.get(n, 0) for n in ("extract", "describe", "report")} == {
        n: spent[n] for n in ("extract", "describe", "report")
    }
    assert 0 < items["report"] < len(after["community_reports"])


def test_status_shows_the_last_changes_and_the_snapshots(run: Command, world: World):
    world.write(MANY | TOWN)
    assert run(*index_command(world)).exit_code == 0
    world.write({"zoo.txt": "ZOE feeds ALICE."})
    assert run(*index_command(world)).exit_code == 0
    lines = [line.split() for line in run("status", "--root", world.root, "--snapshots").stdout.splitlines()]
    assert ["documents", "1", "26"] in lines and ["chunks", "1", "26"] in lines, "added, unchanged"
    assert any(line[:7] == ["written", "by", "models:", "1", "of", "27", "extractions,"] for line in lines)
    found = orjson.loads(run("status", "--root", world.root, "--snapshots", "--json").stdout)
    assert [s["snapshot"] for s in found["snapshots"]] == [2, 1]
    assert [s["documents"] for s in found["snapshots"]] == [27, 26]
    assert all(0 < s["own_bytes"] < s["bytes"] for s in found["snapshots"])
    assert found["run"]["changes"]["documents"]["added"] == 1 and found["run"]["asked"]["extract"] == 1
    assert "snapshots" not in orjson.loads(run("status", "--root", world.root, "--json").stdout)
    old = orjson.loads(run("status", "--root", world.root, "--snapshot", 1, "--json").stdout)
    assert (old["snapshot"], old["counts"]["documents"]) == (1, 26)


def test_an_older_snapshot_is_read_by_every_command(run: Command, world: World):
    world.changes = {"models": {"default": {"provider": "offline"}}}
    world.write(TOWN)
    world.index()
    (world.input / "broken.csv").write_text("a,b\n")
    world.index()
    assert [f["document"] for f in orjson.loads(run("failures", "--root", world.root, "--json").stdout)] == [
        "broken.csv"
    ]
    assert orjson.loads(run("failures", "--root", world.root, "--snapshot", 1, "--json").stdout) == []
    asked = run("query", "What is said of ALICE?", "--root", world.root, "--snapshot", 1, "--json")
    assert orjson.loads(asked.stdout)["snapshot"] == 1
    assert open_index(str(world.root), snapshot=1).manifest.number == 1
    for command in (["status"], ["failures"], ["query", "What?"]):
        missing = run(*command, "--root", world.root, "--snapshot", 7)
        assert missing.exit_code == 2 and "no snapshot 7. Existing snapshots: 1, 2" in missing.output


def test_gc_shows_its_plan_and_carries_it_out(run: Command, world: World, built: Built):
    world.take(built(TOWN))
    for text in ("ZOE feeds YURI.", "ZOE left.", "ZOE came back."):
        world.write({"zoo.txt": text})
        world.index()
    told = run("gc", "--root", world.root, "--keep", 2, "--grace", 0)
    assert told.exit_code == 0 and "snapshots 1, 2" in told.stdout and "with --delete" in told.stdout
    assert world.snapshots() == [1, 2, 3, 4]
    done = run("gc", "--root", world.root, "--keep", 2, "--grace", "0", "--delete", "--json")
    found = orjson.loads(done.stdout)
    assert found["deleted"] and found["snapshots"] == [1, 2] and found["kept"] == [3, 4]
    assert found["parts"]["entities"]["bytes"] > 0
    assert "Nothing to remove." in run("gc", "--root", world.root, "--keep", 2, "--grace", 0).stdout
    later = run("gc", "--root", world.root, "--keep", 1, "--delete")
    assert "Kept until" in later.stdout and world.snapshots() == [4]
    assert run("gc", "--root", world.root, "--grace", "soon").exit_code == 2
    assert run("gc", "--root", world.root / "nowhere", "--delete").exit_code == 2
    assert not (world.root / "nowhere").exists()


def test_a_document_is_purged_from_the_command_line(run: Command, world: World):
    world.write({f"more{i}.txt": f"ALICE met BOB, for the time number {i}." for i in range(12)})
    world.write({"letters/secret.txt": "XQJZVW met ALICE."})
    world.index()
    shutil.rmtree(world.input / "letters")
    refused = run("gc", "--root", world.root, "--purge", "letters/secret.txt", "--delete")
    assert refused.exit_code == 2 and "Delete them from INPUT" in refused.output
    world.index()
    (quoting := world.input.parent / "saved" / "answer.txt").parent.mkdir()
    quoting.write_text("XQJZVW met ALICE.")
    told = run("gc", "--root", world.root, "--purge", "letters/secret.txt", "--also", quoting.parent)
    assert "everything derived from letters/secret.txt" in told.stdout and "snapshot 1\n" in told.stdout
    said = " ".join(told.stdout.split())
    assert f"{quoting}: quotes it" in said
    assert all(f" {place}" in said for place in NOT_PURGED)
    done = run("gc", "--root", world.root, "--purge", "letters/secret.txt", "--delete")
    assert done.exit_code == 0 and "of the journal of extract" in done.stdout
    assert world.snapshots() == [2]
    assert index_status(world.store, with_snapshots=True)["snapshots"][0]["snapshot"] == 2
