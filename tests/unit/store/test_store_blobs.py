"""Parts that are mapped into memory: where they lie, or from the cache of this machine."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import blobs, damaged_files, local_cache
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part

DATA = pa.py_buffer(bytes(range(256)) * 100)
_example = itertools.count()


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder."""
    monkeypatch.setenv(local_cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "index"))


@pytest.fixture
def far() -> Store:
    return Store(f"memory://blobs-{next(_example)}")


def written(store: Store, made_from: str = "ab12", data: pa.Buffer = DATA) -> Part:
    return blobs.write(store, "t", made_from, data, rows=3)


def flip(store: Store, path: str) -> None:
    data = bytearray(store.read(path))
    data[len(data) // 2] ^= 1
    store.write(path, bytes(data))


def cut(store: Store, path: str) -> None:
    store.write(path, store.read(path)[:-7])


def delete(store: Store, path: str) -> None:
    store.delete(path)


@pytest.mark.parametrize("where", ["store", "far"])
def test_what_was_written_is_mapped(where: str, request: pytest.FixtureRequest):
    at = request.getfixturevalue(where)
    assert blobs.mapped(at, written(at)).equals(DATA)


@pytest.mark.parametrize("where", ["store", "far"])
@pytest.mark.parametrize("spoil", [flip, cut, delete])
def test_a_part_that_is_not_what_was_written_is_named(
    where: str, spoil: Callable[[Store, str], None], request: pytest.FixtureRequest
):
    at = request.getfixturevalue(where)
    part = written(at)
    spoil(at, part.path)
    with pytest.raises(CorruptPart, match="again with --verify") as caught:
        blobs.mapped(at, part)
    assert caught.value.path == part.path and part.path in str(caught.value)


@pytest.mark.parametrize("spoil", [flip, cut])
def test_damage_is_found_without_a_reader_and_set_aside(store: Store, spoil: Callable[[Store, str], None]):
    sound, spoilt = written(store), written(store, "cd34", pa.py_buffer(b"other" * 1000))
    spoil(store, spoilt.path)
    assert damaged_files.unsound(store, [sound.path, spoilt.path]) == [spoilt.path]
    aside = spoilt.path.replace("/part", "/damaged/part")
    assert damaged_files.set_aside(store, [sound.path, spoilt.path]) == [aside]
    assert blobs.made(store, "t") == {"ab12": (sound.path, sound.bytes)}


def test_the_bytes_of_a_local_part_are_checked_once_for_as_long_as_it_stays_as_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    part = written(store)
    blobs.mapped(store, part)
    with monkeypatch.context() as patched:
        patched.setattr(blobs, "check", None)
        assert blobs.mapped(store, part).equals(DATA)
    flip(store, part.path)
    with pytest.raises(CorruptPart):
        blobs.mapped(store, part)


def test_a_part_elsewhere_is_fetched_once_for_all_indexes_that_share_it(far: Store):
    part = written(far)
    blobs.mapped(far, part)
    far.delete(part.path)
    assert blobs.mapped(Store("memory://another"), part).equals(DATA)


def test_a_copy_that_is_not_whole_is_fetched_again(far: Store, kept: Path):
    part = written(far)
    blobs.mapped(far, part)
    (copy,) = kept.iterdir()
    copy.write_bytes(b"half")
    assert blobs.mapped(far, part).equals(DATA)


def test_what_is_damaged_elsewhere_leaves_nothing_in_the_cache(far: Store, kept: Path):
    part = written(far)
    flip(far, part.path)
    with pytest.raises(CorruptPart):
        blobs.mapped(far, part)
    assert list(kept.iterdir()) == []


def test_the_cache_forgets_what_was_not_used_for_the_longest_time(
    far: Store, kept: Path, monkeypatch: pytest.MonkeyPatch
):
    parts = [written(far, f"{i:02x}", pa.py_buffer(bytes([i]) * 100_000)) for i in range(4)]
    monkeypatch.setenv(local_cache.LIMIT_VARIABLE, "0.00025")
    for age, part in enumerate(parts[:2]):
        blobs.mapped(far, part)
        os.utime(kept / part.path.split("/")[-1], (age, age))
    blobs.mapped(far, parts[0])
    blobs.mapped(far, parts[2])
    assert {f.name for f in kept.iterdir()} == {parts[i].path.split("/")[-1] for i in (0, 2)}
    monkeypatch.setenv(local_cache.LIMIT_VARIABLE, "0")
    mapped = blobs.mapped(far, parts[3])
    assert [f.name for f in kept.iterdir()] == [parts[3].path.split("/")[-1]]
    assert mapped.size == parts[3].bytes


def test_what_killed_downloads_left_goes_with_the_next_that_comes(far: Store, kept: Path):
    kept.mkdir(mode=0o700)
    left, under_way = kept / ".tmp-1-killed", kept / ".tmp-2-under-way"
    left.write_bytes(b"half")
    under_way.write_bytes(b"half")
    os.utime(left, (1, 1))
    blobs.mapped(far, written(far))
    assert not left.exists() and under_way.exists()


def test_downloads_under_way_are_counted(far: Store, kept: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = written(far), written(far, "cd34", pa.py_buffer(b"x" * 100))
    blobs.mapped(far, first)
    (kept / ".tmp-2-under-way").write_bytes(bytes(100_000))
    monkeypatch.setenv(local_cache.LIMIT_VARIABLE, "0.0001")
    blobs.mapped(far, second)
    assert {f.name for f in kept.iterdir()} == {second.path.split("/")[-1], ".tmp-2-under-way"}


def evicted(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process deletes the copy so many times before it is mapped."""
    fetched, left = blobs._fetched, itertools.repeat(None, times)

    def fetch(store: Store, part: Part) -> str:
        path = fetched(store, part)
        for _ in itertools.islice(left, 1):
            os.unlink(path)
        return path

    monkeypatch.setattr(blobs, "_fetched", fetch)


def test_a_copy_that_another_process_evicts_before_it_is_mapped_is_fetched_again(
    far: Store, monkeypatch: pytest.MonkeyPatch
):
    part = written(far)
    evicted(1, monkeypatch)
    assert blobs.mapped(far, part).equals(DATA)


def test_copies_that_always_vanish_are_no_damage_of_the_index(far: Store, monkeypatch: pytest.MonkeyPatch):
    part = written(far)
    evicted(1000, monkeypatch)
    with pytest.raises(StoreError, match=r"vanish from the cache.*GRAPHRAG_RAY_CACHE_GB") as caught:
        blobs.mapped(far, part)
    assert not isinstance(caught.value, CorruptPart)


def test_copies_are_forgotten_by_name(far: Store, kept: Path):
    blobs.forget(far, [written(far).path])  # without a cache folder
    first, second = written(far), written(far, "cd34")
    for part in (first, second):
        blobs.mapped(far, part)
    blobs.forget(far, [first.path, "tables/t/part-1.parquet"])
    assert [f.name for f in kept.iterdir()] == [second.path.split("/")[-1]]


def test_the_cache_is_its_users_alone(far: Store, kept: Path):
    part = written(far)
    blobs.mapped(far, part)
    assert kept.stat().st_mode & 0o777 == 0o700
    assert {f.stat().st_mode & 0o777 for f in kept.iterdir()} == {0o600}
    kept.chmod(0o777)
    with pytest.raises(StoreError, match=r"others may write there.*GRAPHRAG_RAY_CACHE"):
        blobs.mapped(far, part)


def test_a_local_index_is_read_where_there_can_be_no_cache(
    store: Store, far: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv(local_cache.FOLDER_VARIABLE, str(tmp_path / "file" / "below"))
    assert blobs.mapped(store, written(store)).equals(DATA)
    with pytest.raises(StoreError, match="cannot use the cache folder"):
        blobs.mapped(far, written(far))


def test_what_a_part_was_made_from_finds_it(store: Store):
    first, second = written(store, "ab12"), written(store, "cd34")
    assert blobs.made(store, "t") == {
        "ab12": (first.path, first.bytes),
        "cd34": (second.path, second.bytes),
    }
    assert blobs.made(store, "another") == {}
