"""Full disks: an index on a real file system of 2 MB, filled except for some kilobytes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from world import TOWN, World, everything, index_command

from graphrag_ray.base.declarations import JOURNALS
from graphrag_ray.base.errors import StoreError
from graphrag_ray.cli.command_line import main
from graphrag_ray.store import compaction, locks

SIZE = 2 << 20
CHANGES = {"communities": {"max_size": 3, "pack_components_below": 1}}


class Disk:
    """`free`: bytes left for others."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self._filler = at / "filler"

    def fill(self, free: int) -> None:
        self._filler.write_bytes(bytes(SIZE - free))

    def make_room(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    at = tmp_path / "disk"
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(at)]
    try:
        made = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as e:
        pytest.skip(f"a file system of its own cannot be mounted here: {e}")
    if made.returncode:
        pytest.skip(f"a file system of its own cannot be mounted here: {made.stderr.strip()}")
    yield Disk(at)
    subprocess.run(["umount", "-l", str(at)], check=False)


@pytest.fixture
def world(world: World) -> World:
    world.write(TOWN)
    world.changes = dict(CHANGES)
    return world


def journalled(world: World) -> int:
    """Calls whose replies are journalled."""
    totals = [compaction.totals(world.store, name) for name in JOURNALS]
    return sum(m.calls for t in totals for m in t.by_model.values())


def told(message: str, world: World) -> None:
    assert "No space left on device" in message and str(world.root) in message
    assert "free some space and run the same command again (all finished work is kept)" in message
    assert "Traceback" not in message and "UDF" not in message


@pytest.mark.parametrize("free", [0, 30_000, 90_000, 140_000, 180_000])
def test_a_run_reports_a_full_disk_and_resumes_when_there_is_space(
    world: World, disk: Disk, free: int, monkeypatch: pytest.MonkeyPatch
):
    # On a full disk the lock cannot be marked as free, and this process, which held it, is alive.
    monkeypatch.setattr(locks, "STALE_S", 1.0)
    done = world.index()
    expected, calls = everything(world.open()), world.asked()
    needed = sum(info.bytes for info in world.store.list())
    assert done.committed and needed > free, "it does not fit"

    world.root = disk.at / "index"
    disk.fill(free)
    with pytest.raises(StoreError) as raised:
        world.index()
    told(str(raised.value), world)
    kept, asked = journalled(world), world.asked()
    disk.make_room()
    world.index()
    assert everything(world.open()) == expected
    assert world.asked() - asked == calls - kept, "what is kept is not asked again, and what is lost is"


def test_on_ray_a_full_disk_returns_1_and_the_next_run_0(
    world: World, disk: Disk, on_ray: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(locks, "STALE_S", 1.0)
    world.index()
    expected, calls = everything(world.open()), world.asked()
    world.root = disk.at / "index"
    disk.fill(120_000)
    more = ["--set", "communities.max_size=3", "--set", "communities.pack_components_below=1", "--ray"]
    line = [*map(str, index_command(world, *more))]

    full = CliRunner().invoke(main, line)
    assert full.exit_code == 1, full.stderr
    told(full.stderr[full.stderr.index("graphrag-ray: ") :], world)
    kept, asked = journalled(world), world.asked()
    disk.make_room()
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.stderr
    assert _timeless(everything(world.open())) == _timeless(expected)
    assert world.asked() - asked == calls - kept


def _timeless(tables: dict[str, list[dict[str, object]]]) -> dict[str, list[dict[str, object]]]:
    return {n: [{k: v for k, v in r.items() if k != "period"} for r in rows] for n, rows in tables.items()}
