"""Damaged indexes: `index` names damaged parts, sets them aside and rebuilds them; questions and `status`
report the damage, and answers never leave anything out silently."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_model
from endpoint import Endpoint
from world import TOWN, Command, World, everything, index_command

from graphrag_ray.base.declarations import JOURNALS
from graphrag_ray.base.errors import DeletionRefused
from graphrag_ray.indexing import repair as steps_damage
from graphrag_ray.indexing.repair import needed_parts
from graphrag_ray.store import damaged_files, locks, snapshots
from graphrag_ray.store.parts import Part, read_part
from graphrag_ray.store.snapshots import Manifest

DEEP = {
    "communities": {"max_size": 3, "pack_components_below": 1},
    "claims": {"enabled": True},
    "chunking": {"size": 12, "overlap": 4, "min_last_chunk_tokens": 2},
}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def delete(path: Path) -> None:
    path.unlink()


DAMAGES = [truncate, flip, empty, delete]
Damage = Callable[[Path], None]
every_damage = pytest.mark.parametrize("spoil", DAMAGES)


@pytest.fixture(scope="module")
def shared_endpoint() -> Iterator[Endpoint]:
    with Endpoint(respond=toy_model.respond) as running:
        yield running


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, shared_endpoint: Endpoint) -> World:
    """Two snapshots; the second has one more document."""
    world = World(tmp_path_factory.mktemp("built"), shared_endpoint)
    world.changes = DEEP | world.embedding
    *first, last = TOWN
    world.write({name: TOWN[name] for name in first})
    world.index()
    world.write({last: TOWN[last]})
    assert world.index().manifest.number == 2
    return world


@pytest.fixture(scope="module")
def whole(built: World) -> dict[str, Any]:
    return everything(built.open())


@pytest.fixture
def world(built: World, tmp_path: Path) -> World:
    """A copy that may be damaged."""
    shutil.copytree(built.root, tmp_path / "index")
    shutil.copytree(built.input, tmp_path / "input")
    copy = World(tmp_path, built.endpoint)
    copy.changes = DEEP | copy.embedding
    return copy


def asked(world: World) -> int:
    """Chat requests and embedded texts. How many texts one call has depends on timing."""
    embedded = world.endpoint.bodies("/embeddings")
    return world.asked() + sum(len(body["input"]) for body in embedded)


def worries(world: World) -> list[str]:
    return [note for note in world.observer.notes if "vocabulary" not in note]


def told(world: World, path: str) -> list[str]:
    return [note for note in world.observer.notes if path in note]


def one_of_each_table(world: World) -> list[Part]:
    """The largest part of each table in the newest snapshot or in the results of its steps."""
    largest: dict[str, Part] = {}
    for part in needed_parts(world.open().manifest):
        folder = part.path.rsplit("/", 1)[0]
        largest[folder] = max(largest.get(folder, part), part, key=lambda p: p.bytes)
    return list(largest.values())


def mended(world: World, paths: list[str], whole: dict[str, Any]) -> None:
    """Index again, and check that damaged parts are named, set aside and rebuilt without model calls, and
    that the next run finds nothing to do."""
    made_anew(world, paths, whole)
    assert not world.index().committed and worries(world) == []


def made_anew(world: World, paths: list[str], whole: dict[str, Any]) -> None:
    there = [path for path in paths if (world.root / path).exists()]
    before = asked(world)
    done = world.index()
    assert all(told(world, path) for path in paths), world.observer.notes
    for path in there:
        folder, name = path.rsplit("/", 1)
        assert (world.root / folder / damaged_files.FOLDER / name).exists()
    assert done.committed and asked(world) == before, "everything is rebuilt from the journal"
    assert everything(world.open()) == whole


@every_damage
def test_damaged_parts_of_every_table_are_named_set_aside_and_rebuilt(
    world: World, whole: dict[str, Any], spoil: Damage
):
    paths = [part.path for part in one_of_each_table(world)]
    assert len(paths) > 15
    for path in paths:
        spoil(world.root / path)
    mended(world, paths, whole)


def test_a_damaged_part_of_any_table_is_rebuilt(world: World, whole: dict[str, Any]):
    paths = [part.path for part in one_of_each_table(world)]
    for i, path in enumerate(paths):
        DAMAGES[i % 4](world.root / path)
        made_anew(world, [path], whole)
        assert not any(told(world, before) for before in paths[:i])
    assert not world.index().committed and worries(world) == []


def of_steps(manifest: Manifest, kind: str) -> list[str]:
    """Parts in the results of steps that are not in the snapshot's own tables."""
    own = {part.path for parts in manifest.tables.values() for part in parts}
    return [p.path for p in needed_parts(manifest) if p.path.split("/")[-2] == kind and p.path not in own]


@pytest.mark.parametrize(
    ("kind", "more", "changes"),
    [
        ("documents", {"new.txt": "KARL wrote to LENA about ALICE."}, {}),
        ("found_entities", {}, {"graph": {"edge_weight": "strength"}}),
        ("block_entities", {}, {"reports": {"max_claims_per_entity": 1}}),
    ],
)
def test_damage_found_while_a_step_reads_restarts_the_run(
    world: World,
    tmp_path: Path,
    kind: str,
    more: dict[str, str],
    changes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
):
    """An index too large to be verified first: flipped bytes, and a change that makes a step read them."""
    world.write(more)
    world.changes |= changes
    shutil.copytree(world.root, tmp_path / "damaged")
    before = asked(world)
    world.index()
    expected, calls = everything(world.open()), asked(world) - before

    world.root = tmp_path / "damaged"
    monkeypatch.setattr(steps_damage, "MAX_VERIFIED_BYTES", 0)
    damaged_paths = of_steps(world.open().manifest, kind)
    for path in damaged_paths:
        flip(world.root / path)
    before = asked(world)
    world.index()
    assert everything(world.open()) == expected and asked(world) - before == calls
    assert any(told(world, path) for path in damaged_paths)


@pytest.mark.parametrize("kind", ["text_units", "entities"])
def test_short_ids_lost_with_a_part_are_assigned_again_unchanged(
    world: World, whole: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(steps_damage, "MAX_VERIFIED_BYTES", 0)
    damaged_paths = [part.path for part in world.open().manifest.parts(kind)]
    for path in damaged_paths:
        flip(world.root / path)
    assert world.index(query={"response_type": "one sentence"}, verify=True).committed
    assert everything(world.open()) == whole
    assert any(told(world, path) for path in damaged_paths)


def test_no_document_is_deleted_unasked_if_both_copies_of_documents_are_damaged(
    world: World, whole: dict[str, Any]
):
    manifest = world.open().manifest
    for path in [*of_steps(manifest, "documents"), *(p.path for p in manifest.parts("documents"))]:
        truncate(world.root / path)
    world.write({"new.txt": "KARL wrote to LENA about ALICE."})
    with pytest.raises(DeletionRefused, match=r"Documents of snapshot 2 are damaged.*--allow-deletes"):
        world.index()
    world.index(allow_deletes=True)
    assert len(world.table("documents")) == len(whole["documents"]) + 1


def test_verify_finds_damage_in_large_indexes(
    world: World, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(steps_damage, "MAX_VERIFIED_BYTES", 0)
    monkeypatch.setattr(steps_damage, "_BATCH", 5)
    part = world.open().manifest.parts("covariates")[0]
    flip(world.root / part.path)
    assert not world.index().committed, "nobody read it"
    assert world.index(verify=True).committed and told(world, part.path)
    assert any("byte by byte: 1 file damaged." in note for note in world.observer.notes)
    assert everything(world.open()) == whole
    world.index(verify=True)
    assert any("byte by byte: none is damaged." in note for note in world.observer.notes)


# Journals


DAMAGED_JOURNALS = [
    *(("extract", spoil) for spoil in DAMAGES),
    *(
        (dialogue, DAMAGES[i % 4])
        for i, dialogue in enumerate(JOURNALS)
        # There are no notes, no verdicts on names and no summary tree.
        if dialogue not in ("extract", "context", "resolve", "summary")
    ),
]


@pytest.mark.parametrize(("dialogue", "spoil"), DAMAGED_JOURNALS)
def test_only_replies_lost_with_a_damaged_journal_are_requested_again(
    world: World, whole: dict[str, Any], dialogue: str, spoil: Damage
):
    """Without a snapshot, everything is built from the journal."""
    parts = {info.path: info.bytes for info in world.store.list(f"work/{dialogue}")}
    lost = max(parts, key=lambda path: parts[path])
    held = read_part(world.store, lost, ["kind", "request_hash"]).to_pylist()
    for folder in ("tables", "snapshots"):
        shutil.rmtree(world.root / folder)
    (world.root / "CURRENT").unlink()
    spoil(world.root / lost)
    before = len(world.endpoint.requests)
    world.index()
    again = len({row["request_hash"] for row in held if row["kind"] == "turn"})
    assert again > 0
    sent = world.endpoint.requests[before:]
    if dialogue == "about":
        again = 0  # The run record reports it, too.
    assert sum(len(r.body.get("input", [0])) for r in sent) == again
    assert told(world, lost) or spoil is delete
    assert (world.root / f"work/{dialogue}/damaged/{lost.rsplit('/', 1)[1]}").exists() is (
        spoil is not delete
    )
    now = everything(world.open())
    assert {name: len(rows) for name, rows in now.items()} == {name: len(r) for name, r in whole.items()}
    names = ("entity_instances", "relationship_instances", "embeddings_entity")
    assert all(now[name] == whole[name] for name in names)


def test_a_damaged_journal_of_a_complete_index_is_reported_and_costs_nothing(
    world: World, whole: dict[str, Any]
):
    lost = world.store.list("work/extract")[0].path
    truncate(world.root / lost)
    before = asked(world)
    assert not world.index().committed
    assert told(world, lost) and asked(world) == before
    assert everything(world.open()) == whole
    world.index()
    assert worries(world) == []


# Manifests, the latest-snapshot hint, locks


@every_damage
def test_a_damaged_newest_snapshot_is_rebuilt_from_the_previous_one(
    world: World, whole: dict[str, Any], spoil: Damage
):
    spoil(world.root / "snapshots/2.json")
    before = asked(world)
    done = world.index()
    assert told(world, "snapshots/2.json") and asked(world) == before
    assert done.manifest.parent == 1 and everything(world.open()) == whole
    assert done.manifest.number == (2 if spoil is delete else 3), "a number that was seen is not given again"
    assert not world.index().committed and worries(world) == []


@every_damage
def test_an_index_with_only_damaged_snapshots_is_rebuilt_without_calls(
    world: World, whole: dict[str, Any], spoil: Damage
):
    for path in (world.root / "snapshots").iterdir():
        spoil(path)
    before = asked(world)
    world.index()
    assert told(world, "snapshots/2.json") and asked(world) == before
    now, ids = everything(world.open()), {"human_readable_id", "community", "parent", "children"}
    plain = {name: _without(rows, ids) for name, rows in now.items()}
    assert plain["entities"] == _without(whole["entities"], ids)


def _without(rows: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    kept = [{k: v for k, v in row.items() if k not in names} for row in rows]
    return sorted(kept, key=lambda row: str(row.get("id")))


@every_damage
def test_a_damaged_hint_is_harmless(world: World, whole: dict[str, Any], spoil: Damage):
    spoil(world.root / "CURRENT")
    before = asked(world)
    world.index()
    assert asked(world) == before and everything(world.open()) == whole
    world.index()
    assert worries(world) == []


@every_damage
@pytest.mark.parametrize("name", ["2.json", "2.beat.json"])
def test_damaged_lock_files_do_not_block_forever(
    world: World, whole: dict[str, Any], spoil: Damage, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(locks, "STALE_S", 0.2)
    spoil(world.root / "locks" / name)
    assert not world.index().committed
    assert everything(world.open()) == whole


# Documents that are no longer in INPUT


def test_retained_documents_with_damaged_parts_are_restored_from_the_other_table(
    world: World, whole: dict[str, Any], tmp_path: Path
):
    more = tmp_path / "more"
    more.mkdir()
    (more / "new.txt").write_text("KARL wrote to LENA.")
    world.input = more
    world.index(add=True)
    expected = everything(world.open())
    read = world.open().manifest.steps["read"]["tables"]
    for path in {p[0] for name in ("documents", "text_units") for group in read[name] for p in group}:
        truncate(world.root / path)
    world.index(add=True)
    assert worries(world) and everything(world.open()) == expected


# Readers


@pytest.mark.parametrize("spoil", [truncate, flip, empty, delete])
def test_a_question_to_a_damaged_index_reports_the_damage_and_what_to_do(
    world: World, run: Command, spoil: Damage
):
    part = world.open().manifest.parts("community_reports")[0]
    spoil(world.root / part.path)
    result = run("query", "Who met whom?", "--root", world.root)
    assert result.exit_code == 1
    assert part.path in result.output and "index` command again with --verify" in result.output
    done = run(*index_command(world, "--verify", "--set", "claims.enabled=true"))
    assert done.exit_code in (0, 3), done.output
    assert run("query", "Who met whom?", "--root", world.root).exit_code == 0


@every_damage
def test_questions_never_fall_back_to_an_older_snapshot(world: World, run: Command, spoil: Damage):
    spoil(world.root / "snapshots/2.json")
    for command in (["query", "Who met whom?"], ["failures"]):
        result = run(*command, "--root", world.root)
        assert result.exit_code == 1
        assert "snapshots/2.json is" in result.output and "--snapshot 1" in result.output
    assert run("query", "Who met whom?", "--root", world.root, "--snapshot", 1).exit_code == 0


@every_damage
@pytest.mark.parametrize("what", ["snapshots/2.json", "work/report", "intermediate/reports/reports"])
def test_status_lists_the_damage(world: World, run: Command, spoil: Damage, what: str):
    path = what if what.endswith(".json") else world.store.list(what)[0].path
    spoil(world.root / path)
    result = run("status", "--root", world.root)
    unseen = (what, spoil) in (("intermediate/reports/reports", flip), ("work/report", delete))
    assert result.exit_code == (0 if unseen else 1)
    assert (path in result.output) is not unseen
    assert ("index` command again" in result.output) is not unseen
    assert snapshots.list_numbers(world.store)
