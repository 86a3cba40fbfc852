import contextlib
import dataclasses

import orjson
import pytest

from graphrag_ray.base.errors import CorruptPart, IndexNotFound, LockLost, SnapshotConflict, StoreError
from graphrag_ray.store import snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part
from graphrag_ray.store.snapshots import Manifest


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path))


def manifest(number, parent=None, **fields):
    return Manifest(number, parent, "2026-01-01T00:00:00Z", "0.1.0", **fields)


def commit(store, *numbers):
    for number in numbers:
        snapshots.commit(store, manifest(number, number - 1 or None))


FULL = manifest(
    3,
    2,
    tables={"entities": [Part("tables/entities/part-0.parquet", 5, 99)], "claims": []},
    counts={"entities": 5, "hierarchies": {"tree": {"reports": 2, "levels": {"C0": 2}}}},
    settings={"chunking": {"size": 600}},
    steps={"extract": {"fingerprint": "abc", "tables": {}, "counts": {}}},
    usage={"stages": [], "spans": {"extract": {"ms": 7}}},
    next_human_readable_id={"entities": 5},
    hierarchies=["leiden"],
    notes={"offline": "made without a model"},
    run={"id": "r1", "seconds": {"extract": 1.5}},
)


def test_manifest_round_trips_through_json():
    data = orjson.loads(orjson.dumps(FULL.to_json()))
    assert Manifest.from_json(data) == FULL
    assert FULL.parts("entities") == [Part("tables/entities/part-0.parquet", 5, 99)]
    assert FULL.parts("text_units") == []


def test_unknown_fields_are_ignored():
    data = {**FULL.to_json(), "colour": "blue"}
    assert Manifest.from_json(data) == FULL


def test_newer_format_is_refused_with_advice(store):
    data = {**manifest(1).to_json(), "format": snapshots.FORMAT + 1, "version": "9.9"}
    store.write("snapshots/1.json", snapshots.seal(data))
    with pytest.raises(
        StoreError, match=r"snapshots/1.json.*newer graphrag-ray \(format 3, version 9.9\).*Upgrade"
    ):
        snapshots.open_latest(store)


def test_older_format_is_refused_with_advice(store):
    snapshots.commit(store, manifest(1, format=snapshots.FORMAT - 1))
    message = (
        r"Snapshot 1 of .* older graphrag-ray \(format 1, version 0.1.0\).*same `graphrag-ray index` command"
    )
    with pytest.raises(StoreError, match=message):
        snapshots.open_latest(store)
    assert snapshots.read_latest(store).format == 1, "gc must be able to read it"


def test_taken_number_is_a_conflict(store):
    snapshots.commit(store, manifest(1, run={"id": "run-a"}))
    with pytest.raises(
        SnapshotConflict, match=r"snapshots/1.json exists.*another run.*run the same command again"
    ):
        snapshots.commit(store, manifest(1, run={"id": "run-b"}))
    assert snapshots.read_latest(store).run == {"id": "run-a"}


def test_equal_manifests_of_two_writers_conflict(store):
    snapshots.commit(store, manifest(1))
    with pytest.raises(SnapshotConflict):
        snapshots.commit(store, manifest(1))


def test_commit_without_the_lock_leaves_nothing(store):
    def check():
        raise LockLost("taken over")

    with pytest.raises(LockLost):
        snapshots.commit(store, manifest(1), check=check)
    assert store.list() == []


@pytest.mark.parametrize("hint", [b"1\n", b"2\n", b"3\n", b"4\n", b"0\n", b"-1\n", b"", b"\xff\x00", None])
def test_newest_snapshot_is_found_with_any_hint(store, hint):
    commit(store, 1, 2, 3, 4)
    store.write("CURRENT", hint) if hint is not None else store.delete("CURRENT")
    assert snapshots.read_latest(store).number == 4
    assert snapshots.next_number(store) == 5


def test_newest_snapshot_is_found_when_older_ones_are_gone(store):
    commit(store, 1, 2, 3)
    store.delete("snapshots/1.json")
    store.delete("snapshots/2.json")
    store.write("CURRENT", b"1\n")
    assert snapshots.read_latest(store).number == 3
    assert snapshots.list_numbers(store) == [3]


def test_hint_write_failure_does_not_undo_a_commit(store, monkeypatch, caplog):
    def refuse(self, path, data):
        raise StoreError("no")

    monkeypatch.setattr(Store, "write", refuse)
    snapshots.commit(store, manifest(1))
    assert "is committed" in caplog.text
    assert snapshots.read_latest(store).number == 1


def test_correct_hint_takes_two_requests(store, monkeypatch):
    commit(store, *range(1, 30))
    monkeypatch.setattr(Store, "list", None)
    looks = []
    real = Store.exists
    monkeypatch.setattr(Store, "exists", lambda self, path: looks.append(path) or real(self, path))
    assert snapshots.read_latest(store).number == 29
    assert looks == ["snapshots/29.json", "snapshots/30.json"]


@pytest.mark.parametrize("damaged", [b"", b'{"format": 1, "num', b"[]", b'{"format": 1}', b'{"number": 3}'])
def test_damaged_newest_manifest_is_reported_instead_of_using_an_older_one(store, damaged):
    commit(store, 1, 2, 3)
    store.write("snapshots/3.json", damaged)
    with pytest.raises(CorruptPart, match=r"snapshots/3.json is damaged.*index` command again.*--snapshot 2"):
        snapshots.open_latest(store)
    with pytest.raises(CorruptPart, match=r"snapshots/3.json"):
        snapshots.open_latest(store, 3)
    assert snapshots.open_latest(store, 2).number == 2


def test_changed_byte_in_a_manifest_is_detected(store):
    snapshots.commit(store, FULL)
    whole = store.read(f"snapshots/{FULL.number}.json")
    store.delete("CURRENT")
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        store.write(f"snapshots/{FULL.number}.json", bytes(changed))
        with contextlib.suppress(CorruptPart):
            assert snapshots.read_latest(store) == FULL


def test_number_of_a_damaged_manifest_is_not_reused(store):
    commit(store, 1, 2, 3)
    store.write("snapshots/3.json", b"{")
    found, damaged = snapshots.latest_readable(store)
    assert found.number == 2
    assert [d.path for d in damaged] == ["snapshots/3.json"]
    assert snapshots.set_aside(store, damaged[0]) == "snapshots/damaged/3.json"
    assert snapshots.latest_readable(store) == (manifest(2, 1), [])
    assert snapshots.read_latest(store).number == 2
    assert snapshots.next_number(store) == 4
    snapshots.commit(store, manifest(4, 2))
    assert snapshots.read_latest(store).number == 4


@pytest.mark.parametrize("hint", [b"", b"3x", b"\xff"])
def test_damaged_hint_is_reported_to_writers_and_ignored_by_readers(store, hint):
    commit(store, 1, 2)
    store.write("CURRENT", hint)
    found, damaged = snapshots.latest_readable(store)
    assert found.number == 2
    assert [d.path for d in damaged] == ["CURRENT"]
    assert snapshots.set_aside(store, damaged[0]) == "damaged/CURRENT"
    assert snapshots.latest_readable(store) == (manifest(2, 1), [])


def test_missing_snapshot_named_by_the_hint_is_reported(store):
    commit(store, 1, 2)
    store.delete("snapshots/2.json")
    with pytest.raises(CorruptPart, match=r"snapshots/2.json is missing, although CURRENT names it"):
        snapshots.read_latest(store)
    found, damaged = snapshots.latest_readable(store)
    assert found.number == 1
    assert [d.path for d in damaged] == ["snapshots/2.json"]
    assert snapshots.set_aside(store, damaged[0]) is None
    assert snapshots.read_latest(store).number == 1


def test_all_manifests_are_reported_if_none_is_readable(store):
    commit(store, 1, 2)
    store.write("snapshots/1.json", b"")
    store.write("snapshots/2.json", b"")
    found, damaged = snapshots.latest_readable(store)
    assert found is None
    assert [d.path for d in damaged] == ["snapshots/2.json", "snapshots/1.json"]


def test_unknown_snapshot_is_reported_with_existing_ones(store):
    commit(store, 1, 2)
    with pytest.raises(IndexNotFound, match=r"no snapshot 7. Existing snapshots: 1, 2"):
        snapshots.open_latest(store, 7)


def test_unrelated_files_next_to_manifests_are_ignored(store):
    commit(store, 1)
    store.write("snapshots/1.json.bak", b"")
    store.write("snapshots/old/2.json", b"")
    store.write("snapshots/007.json", b"")
    assert snapshots.list_numbers(store) == [1]


def test_manifest_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.number = 4
