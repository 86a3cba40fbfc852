"""Index files, mapped locally or fetched on demand into the cache."""

from __future__ import annotations

import errno
import itertools
import os
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import damaged_files, index_files, parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.index_files import BLOCK_BYTES, IndexFile
from graphrag_ray.store.parts import Part

BLOCKS = 100
DATA = np.random.default_rng(5).bytes(BLOCKS * BLOCK_BYTES - 77)
SMALL = DATA[:100_000]
_example = itertools.count()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder."""
    monkeypatch.setenv(index_files.CACHE_DIR_ENV, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "index"))


def other_remote() -> Store:
    return Store(f"memory://blobs-{next(_example)}")


@pytest.fixture
def remote() -> Store:
    return other_remote()


@pytest.fixture(params=["local", "remote"])
def either(request: pytest.FixtureRequest) -> Store:
    return request.getfixturevalue("store" if request.param == "local" else "remote")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges read from any store."""
    ranges: list[tuple[int, int]] = []
    before = Store.read_range

    def read_range(store: Store, path: str, start: int, end: int) -> bytes:
        ranges.append((start, end))
        return before(store, path, start, end)

    monkeypatch.setattr(Store, "read_range", read_range)
    return ranges


def write_part(store: Store, source_hash: str = "ab12", data: bytes = DATA) -> Part:
    return index_files.write_index_file(store, "t", source_hash, data, rows=3)


def load_ranges(blob: IndexFile, *ranges: tuple[int, int]) -> list[bytes]:
    of = np.array(ranges, np.int64).reshape(-1, 2)
    blob.load(of[:, 0], of[:, 1])
    return [blob.data[start:end].tobytes() for start, end in ranges]


def block(n: int) -> tuple[int, int]:
    """Some bytes of a block."""
    return n * BLOCK_BYTES + 5, n * BLOCK_BYTES + 50


def read_blocks(blob: IndexFile, *of: int) -> list[bytes]:
    return load_ranges(blob, *map(block, of))


def expected_blocks(*of: int) -> list[bytes]:
    return [DATA[slice(*block(n))] for n in of]


def read_all(blob: IndexFile) -> bytes:
    return load_ranges(blob, (0, len(blob.data)))[0]


def copy_name(store: Store, part: Part) -> str:
    return index_files._copy_name(store, part)


def flip(store: Store, path: str, at: int | None = None) -> None:
    data = bytearray(store.read(path))
    data[len(data) // 2 if at is None else at] ^= 1
    store.write(path, bytes(data))


def truncate(store: Store, path: str) -> None:
    store.write(path, store.read(path)[:-7])


def append_bytes(store: Store, path: str) -> None:
    store.write(path, store.read(path) + b"0123456")


def delete(store: Store, path: str) -> None:
    store.delete(path)


@given(st.data())
def test_any_ranges_read_back_correctly(tmp_path_factory, data: st.DataObject):
    n = data.draw(st.sampled_from([0, 1, 27, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, len(DATA)]))
    whole_data = data.draw(st.sampled_from([DATA[:n], bytes(n)]))  # zeros look like a hole
    place = st.integers(0, n)
    pair = st.tuples(place, place).map(lambda pair: (min(pair), max(pair)))
    wanted = data.draw(st.lists(st.lists(pair, max_size=10), max_size=5))
    for at in (Store(str(tmp_path_factory.mktemp("blobs"))), other_remote()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(index_files.CACHE_DIR_ENV, str(tmp_path_factory.mktemp("cache")))
            patch.setattr(index_files, "TAIL_BYTES", data.draw(st.sampled_from([1, 20_000, 1 << 20])))
            patch.setattr(index_files, "GAP_BYTES", data.draw(st.sampled_from([0, BLOCK_BYTES, 1 << 20])))
            part = write_part(at, data=whole_data)
            assert write_part(at, data=whole_data) == part and at.size(part.path) == part.bytes
            blob = index_files.open_part(at, part)
            assert len(blob.data) == n
            for ranges in wanted:
                assert load_ranges(blob, *ranges) == [whole_data[start:end] for start, end in ranges]
            assert read_all(blob) == read_all(index_files.open_part(at, part)) == whole_data
            parquet.check(at, part.path)


def test_empty_part_can_be_written_listed_and_opened(either: Store):
    part = write_part(either, data=b"")
    assert read_all(index_files.open_part(either, part)) == b""
    parquet.check(either, part.path)
    assert index_files.list_by_source(either, "t") == {"ab12": (part.path, part.bytes)}


@pytest.mark.parametrize("damage", [truncate, delete])
def test_truncated_part_is_reported_on_opening(either: Store, damage: Callable[[Store, str], None]):
    part = write_part(either)
    damage(either, part.path)
    with pytest.raises(CorruptPart, match="again with --verify") as caught:
        index_files.open_part(either, part)
    assert caught.value.path == part.path and part.path in str(caught.value)


def test_part_with_extra_bytes_is_reported(either: Store):
    part = write_part(either)
    append_bytes(either, part.path)
    if either.local_path(part.path) is None:  # bytes beyond the end of a remote file are not read
        assert read_all(index_files.open_part(either, part)) == DATA
    else:
        with pytest.raises(CorruptPart, match="bytes"):
            index_files.open_part(either, part)
    assert damaged_files.find_damaged(either, [part.path]) == [part.path]


def test_remote_part_deleted_while_open_is_reported_as_missing(remote: Store):
    part = write_part(remote)
    blob = index_files.open_part(remote, part)
    remote.delete(part.path)
    with pytest.raises(CorruptPart, match=r"part-ab12.*is missing, although a snapshot needs it"):
        read_blocks(blob, 1)


def test_flipped_bit_is_only_detected_in_loaded_blocks(either: Store):
    part = write_part(either)
    flip(either, part.path, block(7)[0])
    blob = index_files.open_part(either, part)
    for _ in range(2):
        assert read_blocks(blob, 6, 8) == expected_blocks(6, 8)
        for wanted in ((7,), (3, 7, 11)):
            with pytest.raises(CorruptPart, match="a block does not match its checksum") as caught:
                read_blocks(blob, *wanted)
            assert caught.value.path == part.path and part.path in str(caught.value)
    assert read_blocks(blob, 3, 6, 8, 11) == expected_blocks(3, 6, 8, 11)


@pytest.mark.parametrize("back", range(1, 28, 3))
def test_flipped_bit_in_the_tail_is_detected_on_opening(either: Store, back: int):
    part = write_part(either)
    flip(either, part.path, part.bytes - back)
    with pytest.raises(CorruptPart, match="its tail is invalid"):
        index_files.open_part(either, part)
    flip(either, part.path, part.bytes - back)
    flip(either, part.path, part.bytes - 28 - 4 * BLOCKS + back)
    with pytest.raises(CorruptPart, match="its tail is invalid"):
        index_files.open_part(either, part)


@pytest.mark.parametrize("damage", [flip, truncate])
def test_damaged_part_is_found_and_set_aside(either: Store, damage: Callable[[Store, str], None]):
    sound, damaged_part = write_part(either), write_part(either, "cd34", b"other" * 1000)
    damage(either, damaged_part.path)
    assert damaged_files.find_damaged(either, [sound.path, damaged_part.path]) == [damaged_part.path]
    aside = damaged_part.path.replace("/part", "/damaged/part")
    assert damaged_files.set_aside(either, [sound.path, damaged_part.path]) == [aside]
    assert index_files.list_by_source(either, "t") == {"ab12": (sound.path, sound.bytes)}


def test_part_is_checked_in_pieces(either: Store, monkeypatch: pytest.MonkeyPatch):
    part = write_part(either)
    monkeypatch.setattr(parquet, "_PIECE", 100_000)
    monkeypatch.setattr(Store, "read", None)
    parquet.check(either, part.path)
    with pytest.raises(FileNotFoundError, match=r"indexes/t/part-none"):
        parquet.check(either, "indexes/t/part-none.blocks")


def test_only_wanted_blocks_of_a_remote_part_are_read(remote: Store, requests: list[tuple[int, int]]):
    part = write_part(remote)
    blob = index_files.open_part(remote, part)
    ((start, end),) = requests
    assert end == part.bytes and end - start < index_files.TAIL_BYTES + BLOCK_BYTES
    requests.clear()
    assert read_blocks(blob, 1, 50) == expected_blocks(1, 50)
    assert sorted(requests) == [(n * BLOCK_BYTES, (n + 1) * BLOCK_BYTES) for n in (1, 50)]
    requests.clear()
    assert read_blocks(blob, 1, BLOCKS - 1, 50) == expected_blocks(
        1, BLOCKS - 1, 50
    )  # the last block was read with the tail
    assert load_ranges(blob, (1 * BLOCK_BYTES, 2 * BLOCK_BYTES), (70, 70)) == [
        DATA[BLOCK_BYTES : 2 * BLOCK_BYTES],
        b"",
    ]
    assert load_ranges(blob) == [] and requests == []


def test_local_part_is_mapped_without_reads_or_copies(
    store: Store, cache_folder: Path, requests: list[tuple[int, int]]
):
    assert read_all(index_files.open_part(store, write_part(store))) == DATA
    assert requests == [] and not cache_folder.exists()


def test_nearby_blocks_are_fetched_in_one_request(remote: Store, requests: list[tuple[int, int]]):
    blob = index_files.open_part(remote, write_part(remote))
    requests.clear()
    assert read_blocks(blob, 12, 10, 15, 60) == expected_blocks(12, 10, 15, 60)
    assert sorted(requests) == [
        (n * BLOCK_BYTES, (last + 1) * BLOCK_BYTES) for n, last in ((10, 15), (60, 60))
    ]
    requests.clear()
    assert read_blocks(blob, 11, 13, 14) == expected_blocks(11, 13, 14) and requests == []
    assert load_ranges(blob, (0, 10 * BLOCK_BYTES)) == [DATA[: 10 * BLOCK_BYTES]]
    assert requests == [(0, 10 * BLOCK_BYTES)]


def test_long_checksum_table_is_read_in_one_request(
    remote: Store, requests: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(index_files, "TAIL_BYTES", 30)
    blob = index_files.open_part(remote, write_part(remote))
    assert len(requests) == 1 and read_blocks(blob, 0, 99) == expected_blocks(0, 99)


def test_fetched_blocks_are_shared_by_readers_of_a_part(remote: Store, requests: list[tuple[int, int]]):
    part = write_part(remote)
    assert read_blocks(index_files.open_part(remote, part), 1, 50) == expected_blocks(1, 50)
    requests.clear()
    assert read_blocks(index_files.open_part(remote, part), 1, 50) == expected_blocks(1, 50)
    remote.delete(part.path)
    blob = index_files.open_part(remote, part)
    assert read_blocks(blob, 1, 50) == expected_blocks(1, 50) and requests == []
    with pytest.raises(CorruptPart, match=r"is missing"):
        read_blocks(blob, 2)


def test_stores_do_not_share_cached_parts(remote: Store):
    """The other store may contain any bytes under the same name."""
    part = write_part(remote)
    hostile = other_remote()
    forged = write_part(hostile, data=DATA[::-1])
    hostile.write(part.path, hostile.read(forged.path))
    assert read_blocks(index_files.open_part(hostile, part), 4) != expected_blocks(4)
    assert read_blocks(index_files.open_part(remote, part), 4) == expected_blocks(4)


def in_another_process(code: str, **env: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, timeout=100, env=os.environ | env
    )
    return result.stdout.decode().strip()


def test_fetched_blocks_are_shared_between_processes(remote: Store):
    part = write_part(remote)
    read_blocks(index_files.open_part(remote, part), 50)
    start, end = block(50)
    code = f"""
import numpy as np
from graphrag_ray.store import index_files
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part

blob = index_files.open_part(Store({remote.url!r}), {part!r})
blob.load(np.array([{start}]), np.array([{end}]))
print(blob.data[{start}:{end}].tobytes().hex())
"""
    assert in_another_process(code) == expected_blocks(50)[0].hex()


def test_every_process_evicts_after_its_first_fetch(remote: Store, cache_folder: Path):
    """Short commands fetch too little to reach the eviction interval."""
    part = write_part(remote)
    read_blocks(index_files.open_part(remote, part), 50)
    code = """
from graphrag_ray.store import index_files
from graphrag_ray.store.files import Store

store = Store("memory://of-another-process")
index_files.open_part(store, index_files.write_index_file(store, "t", "ef56", b"much smaller", 1))
"""
    in_another_process(code, **{index_files.CACHE_LIMIT_ENV: "0"})
    (left,) = cache_folder.iterdir()
    assert left.name != copy_name(remote, part)


def test_corrupted_copy_is_fetched_again(remote: Store, cache_folder: Path):
    part = write_part(remote)
    read_all(index_files.open_part(remote, part))
    n = part.bytes
    for offsets in ([block(3)[0]], [n - 1, block(98)[0]], [n - 40], range(0, n, 999)):
        copy = bytearray((cache_folder / copy_name(remote, part)).read_bytes())
        for at in offsets:
            copy[at] ^= 1
        (cache_folder / copy_name(remote, part)).write_bytes(copy)
        assert read_all(index_files.open_part(remote, part)) == DATA
        assert (cache_folder / copy_name(remote, part)).read_bytes() == remote.read(part.path)


@pytest.mark.parametrize("n_bytes", [0, 4, len(DATA), len(DATA) + 10_000])
def test_copy_of_the_wrong_size_is_fetched_again(remote: Store, cache_folder: Path, n_bytes: int):
    part = write_part(remote)
    cache_folder.mkdir(mode=0o700)
    (cache_folder / copy_name(remote, part)).write_bytes((DATA + bytes(10_000))[:n_bytes])
    assert read_all(index_files.open_part(remote, part)) == DATA
    assert (cache_folder / copy_name(remote, part)).read_bytes() == remote.read(part.path)


def test_damaged_remote_blocks_are_never_cached(remote: Store, cache_folder: Path):
    part = write_part(remote)
    sound = remote.read(part.path)
    flip(remote, part.path, block(7)[0])
    blob = index_files.open_part(remote, part)
    with pytest.raises(CorruptPart, match="checksum"):
        read_all(blob)
    lacking = slice(7 * BLOCK_BYTES, 8 * BLOCK_BYTES)
    copy = (cache_folder / copy_name(remote, part)).read_bytes()
    assert copy[lacking] == bytes(BLOCK_BYTES)
    assert copy[: lacking.start] + copy[lacking.stop :] == sound[: lacking.start] + sound[lacking.stop :]
    remote.write(part.path, sound)
    assert read_all(blob) == read_all(index_files.open_part(remote, part)) == DATA


def test_later_remote_damage_does_not_overwrite_intact_blocks(remote: Store):
    """The damaged block is fetched again as part of a gap."""
    part = write_part(remote)
    blob = index_files.open_part(remote, part)
    assert read_blocks(blob, 7) == expected_blocks(7)
    flip(remote, part.path, block(7)[0])
    assert read_blocks(blob, 6, 8) == expected_blocks(6, 8)
    assert read_blocks(blob, 7) == expected_blocks(7)


@pytest.mark.parametrize("times", [1, parquet.READ_ATTEMPTS - 1, parquet.READ_ATTEMPTS])
@pytest.mark.parametrize("when", ["opened", "load_blocks at"])
def test_truncated_read_is_retried(
    remote: Store, cache_folder: Path, times: int, when: str, monkeypatch: pytest.MonkeyPatch
):
    part = write_part(remote)
    blob = index_files.open_part(remote, part)
    if when == "opened":
        (cache_folder / copy_name(remote, part)).unlink()
    before, left = Store.read_range, itertools.repeat(9, times)
    monkeypatch.setattr(Store, "read_range", lambda s, p, a, b: before(s, p, a, b - next(left, 0)))

    def load_blocks() -> list[bytes]:
        return read_blocks(index_files.open_part(remote, part) if when == "opened" else blob, 4)

    if times < parquet.READ_ATTEMPTS:
        assert load_blocks() == expected_blocks(4)
    else:
        with pytest.raises(CorruptPart, match=r"is damaged: (its tail|a block)"):
            load_blocks()
        assert load_blocks() == expected_blocks(4)


def test_storage_failure_is_not_reported_as_damage(remote: Store, monkeypatch: pytest.MonkeyPatch):
    part = write_part(remote)
    blob = index_files.open_part(remote, part)

    def refuse(*args: object) -> bytes:
        raise StoreError("it does not answer")

    monkeypatch.setattr(Store, "read_range", refuse)
    with pytest.raises(StoreError, match="it does not answer") as caught:
        read_blocks(blob, 4)
    assert not isinstance(caught.value, CorruptPart)


def test_unreadable_local_file_is_not_reported_as_damage(store: Store):
    part = write_part(store)
    folder = Path(store.url) / "indexes" / "t"
    folder.rename(folder.with_name("elsewhere"))
    folder.touch()
    with pytest.raises(StoreError, match=r"Cannot read .*part-ab12.*Not a directory") as caught:
        index_files.open_part(store, part)
    assert not isinstance(caught.value, CorruptPart)


def list_names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_cache_evicts_the_least_recently_used_copy(
    remote: Store, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(index_files, "EVICT_EVERY_BYTES", 1)
    monkeypatch.setenv(index_files.CACHE_LIMIT_ENV, "0.00025")
    parts = [write_part(remote, f"{i:02x}", bytes([i + 1]) * 100_000) for i in range(4)]
    for age, part in enumerate(parts[:2]):
        read_all(index_files.open_part(remote, part))
        os.utime(cache_folder / copy_name(remote, part), (age, age))
    (cache_folder / "a folder").mkdir()
    read_all(index_files.open_part(remote, parts[0]))
    read_all(index_files.open_part(remote, parts[2]))
    assert list_names(cache_folder) == {copy_name(remote, parts[0]), copy_name(remote, parts[2]), "a folder"}
    monkeypatch.setenv(index_files.CACHE_LIMIT_ENV, "0")
    blob = index_files.open_part(remote, parts[3])
    assert list_names(cache_folder) == {copy_name(remote, parts[3]), "a folder"}
    assert read_all(blob) == bytes([4]) * 100_000


def test_holes_do_not_count_towards_the_cache_limit(
    remote: Store, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(index_files, "EVICT_EVERY_BYTES", 1)
    monkeypatch.setenv(index_files.CACHE_LIMIT_ENV, "0.0008")
    parts = [write_part(remote, f"{i:02x}", bytes([i + 1]) + DATA) for i in range(3)]
    for part in parts:
        load_ranges(index_files.open_part(remote, part), block(50))
    assert list_names(cache_folder) == {copy_name(remote, part) for part in parts}
    read_all(index_files.open_part(remote, parts[0]))
    assert list_names(cache_folder) == {copy_name(remote, parts[0])}


def test_eviction_runs_periodically(remote: Store, cache_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(index_files.CACHE_LIMIT_ENV, "0")
    monkeypatch.setattr(index_files, "EVICT_EVERY_BYTES", 250_000)
    monkeypatch.setattr(index_files, "_fetched_bytes", [0])
    parts = [write_part(remote, f"{i:02x}", bytes([i + 1]) * 100_000) for i in range(3)]
    left = []
    for part in parts:
        index_files.open_part(remote, part)
        left.append(len(list_names(cache_folder)))
    assert left == [1, 2, 1]


def test_invalid_cache_limit_is_reported(remote: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index_files, "EVICT_EVERY_BYTES", 1)
    monkeypatch.setenv(index_files.CACHE_LIMIT_ENV, "much")
    with pytest.raises(StoreError, match=r"GRAPHRAG_RAY_CACHE_GB must be a number of gigabytes, not 'much'"):
        index_files.open_part(remote, write_part(remote))


def test_open_copy_survives_deletion_by_another_process(remote: Store, cache_folder: Path):
    part = write_part(remote)
    blob = index_files.open_part(remote, part)
    assert read_blocks(blob, 5) == expected_blocks(5)
    (cache_folder / copy_name(remote, part)).unlink()
    cache_folder.rmdir()
    assert read_blocks(blob, 5, 50) == expected_blocks(5, 50)
    assert read_blocks(index_files.open_part(remote, part), 50) == expected_blocks(50)
    assert read_all(blob) == DATA


def test_wrong_size_in_a_manifest_does_not_affect_mapped_copies(remote: Store):
    """The manifest may be untrusted."""
    part = write_part(remote)
    blob = index_files.open_part(remote, part)
    assert read_blocks(blob, 50, 99) == expected_blocks(50, 99)
    for n_bytes in (part.bytes - 1, part.bytes + 1, 28, part.bytes * 2):
        with pytest.raises(CorruptPart, match="its tail is invalid"):
            index_files.open_part(remote, replace(part, bytes=n_bytes))
        assert read_blocks(blob, 50, 99) == expected_blocks(50, 99)
    assert read_all(blob) == read_all(index_files.open_part(remote, part)) == DATA


@pytest.mark.parametrize("n_bytes", [0, 27, 1 << 41, 2**63, 2**70])
def test_part_of_an_impossible_size_is_refused(either: Store, n_bytes: int):
    part = replace(write_part(either), bytes=n_bytes)
    with pytest.raises(CorruptPart, match=f"its size cannot be {n_bytes:,} bytes"):
        index_files.open_part(either, part)


def test_copies_are_deleted_by_path(remote: Store, cache_folder: Path):
    index_files.delete_copies(remote, [write_part(remote).path])  # without a cache folder
    first, second = write_part(remote), write_part(remote, "cd34")
    for part in (first, second):
        index_files.open_part(remote, part)
    index_files.delete_copies(remote, [first.path, "tables/t/part-1.parquet"])
    assert list_names(cache_folder) == {copy_name(remote, second)}


def test_cache_folder_must_be_private(remote: Store, cache_folder: Path, monkeypatch: pytest.MonkeyPatch):
    part = write_part(remote)
    index_files.open_part(remote, part)
    assert cache_folder.stat().st_mode & 0o777 == 0o700
    assert {f.stat().st_mode & 0o777 for f in cache_folder.iterdir()} == {0o600}
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: cache_folder.stat().st_uid + 1)
        with pytest.raises(StoreError, match=r"belongs to another user.*GRAPHRAG_RAY_CACHE"):
            index_files.open_part(remote, part)
    cache_folder.chmod(0o777)
    with pytest.raises(StoreError, match=r"others may write to it.*GRAPHRAG_RAY_CACHE"):
        index_files.open_part(remote, part)


def test_local_index_needs_no_cache_folder(
    store: Store, remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv(index_files.CACHE_DIR_ENV, str(tmp_path / "file" / "below"))
    assert read_all(index_files.open_part(store, write_part(store))) == DATA
    with pytest.raises(StoreError, match="Cannot use the cache folder"):
        index_files.open_part(remote, write_part(remote))


def test_full_cache_disk_is_reported_with_advice(remote: Store, monkeypatch: pytest.MonkeyPatch):
    part = write_part(remote)
    blob = index_files.open_part(remote, part)
    put, space = os.pwrite, [BLOCK_BYTES + 4096]

    def pwrite(file: int, data: bytes, at: int) -> int:
        """Write like a nearly full disk: accept some bytes, then fail."""
        n = put(file, data[: space[0]], at)
        space[0] -= n
        if not n:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return n

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(
        StoreError, match=r"Cannot use the cache.*No space left.*GRAPHRAG_RAY_CACHE"
    ) as caught:
        read_blocks(blob, 4, 5, 6)
    assert not isinstance(caught.value, CorruptPart)
    space[0] = 10**9
    assert read_blocks(blob, 4, 5, 6) == expected_blocks(4, 5, 6)


def test_parts_are_listed_by_source_hash(store: Store):
    first, second = write_part(store, "ab12"), write_part(store, "cd34")
    assert index_files.list_by_source(store, "t") == {
        "ab12": (first.path, first.bytes),
        "cd34": (second.path, second.bytes),
    }
    assert index_files.list_by_source(store, "another") == {}


def test_truncated_part_is_written_again(either: Store):
    part = write_part(either)
    truncate(either, part.path)
    assert write_part(either) == part and read_all(index_files.open_part(either, part)) == DATA


SUMS = [zlib.crc32(SMALL[at : at + BLOCK_BYTES]) for at in range(0, len(SMALL), BLOCK_BYTES)]


def file_with_tail(store: Store, sums: Sequence[int] = SUMS, **changes: int | bytes) -> Part:
    """Return a valid file with changes to its tail."""
    summed = struct.pack(f"<{len(sums)}I", *sums)
    tail = {"size": len(SMALL), "block": BLOCK_BYTES, "count": len(sums), "sum": zlib.crc32(summed)}
    file = SMALL + summed + struct.pack("<QIII8s", *(tail | {"magic": b"grblocks"} | changes).values())
    part = Part("indexes/t/part-ab12-cd34.blocks", 1, len(file))
    store.write(part.path, file)
    return part


def test_tail_has_the_documented_format(either: Store):
    assert either.read(file_with_tail(either).path) == either.read(write_part(either, data=SMALL).path)
    assert read_all(index_files.open_part(either, file_with_tail(either))) == SMALL


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 0},
        {"size": len(SMALL) - 1},
        {"size": len(SMALL) + 1},
        {"size": 2**64 - 1},
        {"size": 2**63},
        {"block": 0},
        {"block": 1},
        {"block": BLOCK_BYTES * 2},
        {"block": 2**32 - 1},
        {"count": 0},
        {"count": len(SUMS) + 1},
        {"count": 2**32 - 1},
        {"count": 2**32 - 1, "size": (2**32 - 1) * BLOCK_BYTES},
        {"size": 0, "count": 0, "sum": 0},
        {"size": len(SMALL) + 4 * len(SUMS), "count": 0, "sum": 0},
        {"sum": 0},
        {"magic": b"grblock2"},
        {"sums": [*SUMS, 0]},
        {"sums": SUMS[:-1]},
        {"sums": []},
    ],
)
def test_inconsistent_tail_is_refused(either: Store, changes: dict):
    with pytest.raises(CorruptPart, match=r"part-ab12.* is damaged: its tail is invalid"):
        index_files.open_part(either, file_with_tail(either, **changes))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(tmp_path_factory, data: bytes):
    magic = struct.pack("<I8s", zlib.crc32(b""), b"grblocks")
    for file in (data, data + magic, data + struct.pack("<QII", len(data) + 1, BLOCK_BYTES, 0) + magic):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(index_files.CACHE_DIR_ENV, str(tmp_path_factory.mktemp("cache")))
            for at in (Store(str(tmp_path_factory.mktemp("blobs"))), other_remote()):
                part = Part("indexes/t/part-ab12-cd34.blocks", 1, len(file))
                at.write(part.path, file)
                with pytest.raises(CorruptPart, match="is damaged"):
                    index_files.open_part(at, part)


def test_wrong_block_checksum_is_detected_on_loading(either: Store):
    blob = index_files.open_part(either, file_with_tail(either, sums=[0, *SUMS[1:]]))
    assert load_ranges(blob, block(1)) == [SMALL[slice(*block(1))]]
    with pytest.raises(CorruptPart, match="a block does not match its checksum"):
        load_ranges(blob, block(0))


def test_invalid_contents_are_reported_with_advice(either: Store):
    blob = index_files.open_part(either, write_part(either))
    error = blob.invalid("a position is out of range")
    assert isinstance(error, CorruptPart) and error.path == blob.part.path
    assert "is not a valid index file: a position is out of range. If you trust the" in str(error)


@pytest.mark.parametrize("same", [True, False])
def test_threads_can_load_the_same_blocks_concurrently(
    either: Store, same: bool, monkeypatch: pytest.MonkeyPatch
):
    part = write_part(either)
    before = Store.read_range

    def slow_read(store: Store, path: str, start: int, end: int) -> bytes:
        time.sleep(0.001)
        return before(store, path, start, end)

    monkeypatch.setattr(Store, "read_range", slow_read)
    one = index_files.open_part(either, part)
    together = threading.Barrier(12)
    wrong: list[object] = []

    def load_block(n: int) -> None:
        together.wait()
        try:
            blob = one if same else index_files.open_part(either, part)
            for first in range(0, 60, 3):
                wanted = [first, first + 1 + n % 3, (first * 7 + n % 4) % BLOCKS]
                if read_blocks(blob, *wanted) != expected_blocks(*wanted):
                    wrong.append(wanted)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=load_block, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")
def test_files_are_closed_with_the_last_reference(either: Store):
    part = write_part(either)
    damaged_part = replace(part, bytes=part.bytes + 1)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read_all(index_files.open_part(either, part))
        with pytest.raises(CorruptPart, match="is damaged"):
            index_files.open_part(either, damaged_part)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
