"""Search shards that an update derives from those of the parent snapshot equal shards built from scratch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from world import PEOPLE, TOWN, Built, World

from graphrag_ray.indexing import repair
from graphrag_ray.indexing.stages import search_stage
from graphrag_ray.store.parts import Part
from graphrag_ray.store.search import keyword_index, vector_index

CHANGED = {
    "03.txt": "ADX knows ALICE. ALICE wrote to BOB about the mill.",
    "new.txt": "KARL wrote to LENA, who owns a boat.",
}


@pytest.fixture
def people(world: World, built: Built, monkeypatch: pytest.MonkeyPatch) -> World:
    """An index whose documents are in several parts, as in a large index."""
    monkeypatch.setattr("graphrag_ray.indexing.stages.document_parts.split_bytes", lambda total: 64)
    return world.take(built(PEOPLE | TOWN))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each shard was built."""
    found: list[str] = []
    for module in (keyword_index, vector_index):
        for name in ("build", "update"):
            monkeypatch.setattr(module, name, noted(found, name, getattr(module, name)))
    return found


def noted(found: list[str], name: str, make: Callable[..., bytes]) -> Callable[..., bytes]:
    def make_and_note(*args: Any) -> bytes:
        data = make(*args)
        found.append(name)
        return data

    return make_and_note


def update(world: World, **changes: Any) -> dict[str, int]:
    """Change some documents, add one, delete one. Returns the counts of step `search`."""
    world.write(CHANGED)
    (world.input / "20.txt").unlink()
    assert world.index(allow_deletes=True, **changes).committed
    return counts(world)


def counts(world: World) -> dict[str, int]:
    return dict(world.open().manifest.steps["search"]["counts"])


def stored(world: World) -> dict[str, list[str]]:
    """The shards of the newest snapshot; the name of a part has the hash of its bytes."""
    tables = world.open().manifest.tables
    return {n: [part.path for part in parts] for n, parts in tables.items() if n.startswith("search_")}


def rebuilt(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> World:
    """The same world after the same update without any derivation."""
    other = World(folder, world.endpoint)
    other.take(world)
    with monkeypatch.context() as patch:
        patch.setattr(search_stage, "_nearest", lambda shards, earlier: [None] * len(shards))
        assert update(other, **changes)["derived"] == 0
    return other


def parts_of(world: World, step: str, table: str) -> list[Part]:
    groups = world.open().manifest.steps[step]["tables"][table]
    return [Part(*part) for group in groups for part in group]


def damage(world: World, parts: list[Part]) -> None:
    for part in parts:
        data = bytearray(world.store.read(part.path))
        data[len(data) // 3] ^= 1
        world.store.write(part.path, bytes(data))


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("shard_bytes", [1 << 13, 1 << 20])
def test_derived_shards_equal_shards_built_from_scratch(
    people: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: list[str],
    signs: bool,
    shard_bytes: int,
):
    monkeypatch.setattr(search_stage, "SHARD_BYTES", dict.fromkeys(("keyword", "vector"), shard_bytes))
    monkeypatch.setattr(search_stage, "EXACT_BYTES", 0 if signs else 1 << 30)
    monkeypatch.setattr(search_stage, "_stemmer", lambda: "another")
    people.index()
    people.write({"other.txt": "OTTO met PAULA."})
    people.index()
    other = rebuilt(people, tmp_path / "other", monkeypatch)
    made.clear()
    told = update(people)
    assert made.count("update") == told["derived"] > 2
    assert told["shards"] >= told["made"] >= told["derived"]
    assert stored(people) == stored(other)


def test_both_keyword_and_vector_shards_are_derived(
    people: World, made: list[str], monkeypatch: pytest.MonkeyPatch
):
    rows: list[tuple[str, int]] = []
    for module in (keyword_index, vector_index):
        changed = module.update

        def counted(
            shard: Any, gone: Any, ids: Any, *more: Any, make: Any = changed, of: Any = module
        ) -> bytes:
            rows.append((of.__name__.rpartition(".")[2], len(ids)))
            return bytes(make(shard, gone, ids, *more))

        monkeypatch.setattr(module, "update", counted)
    update(people)
    n_chunks = len(people.table("text_units"))
    assert {of for of, _ in rows} == {"keyword_index", "vector_index"}
    assert all(n < n_chunks / 2 for _, n in rows), "what stays is not read once more"


def test_a_changed_language_rebuilds_all_keyword_shards(people: World, made: list[str]):
    told = update(people, search={"language": "german"})
    assert told["derived"] == made.count("update") <= 1, "vectors of chunks alone"


@pytest.mark.parametrize(
    ("step", "table"),
    [
        ("search", "search_text_unit_keyword"),
        ("search", "search_text_unit_vector"),
        ("describe", "entities"),
    ],
)
def test_a_damaged_earlier_shard_is_not_needed(
    people: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, table: str
):
    """Its sources are not needed either. A large index is not verified before each run."""
    monkeypatch.setattr(repair, "MAX_VERIFIED_BYTES", 0)
    other = rebuilt(people, tmp_path / "other", monkeypatch)
    sound = World(tmp_path / "sound", people.endpoint).take(people)
    derived = update(sound)["derived"]
    damage(people, parts_of(people, step, table))
    told = update(people)
    assert told["derived"] < derived
    if step == "search":  # Otherwise reports could not be reused and would all be written again.
        assert stored(people) == stored(other) and people.observer.notes == other.observer.notes


def test_nothing_is_derived_from_a_shard_under_a_wrong_name(
    people: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In an index from an untrusted source, a shard may be any other shard."""
    other = rebuilt(people, tmp_path / "other", monkeypatch)
    opened = search_stage.index_files.open_part
    words, near = (parts_of(people, "search", f"search_entity_{by}") for by in ("keyword", "vector"))

    def another(store: Any, part: Part) -> Any:
        if "search_" not in part.path:
            return opened(store, part)
        return opened(store, (words if "keyword" in part.path else near)[0])

    monkeypatch.setattr(search_stage.index_files, "open_part", another)
    assert update(people)["derived"] <= 1
    assert stored(people) == stored(other)


def test_a_shard_that_skipped_a_text_is_rebuilt_from_scratch_by_the_next_run(
    people: World, monkeypatch: pytest.MonkeyPatch, made: list[str]
):
    def broken(text: str, language: str, of: Any = keyword_index.tokenize) -> list[str]:
        if "KARL" in text:
            raise IndexError(text)
        return list(of(text, language))

    with monkeypatch.context() as patch:
        patch.setattr(keyword_index, "tokenize", broken)
        update(people)
    assert any("not found by keywords" in row["item"] for row in people.table("failures"))
    made.clear()
    people.index()
    assert people.open().manifest.counts["failures"] == 0 and made.count("build") > 0


def test_an_index_without_a_parent_derives_nothing(people: World):
    before = stored(people)
    (people.root / "CURRENT").unlink()
    shutil.rmtree(people.root / "snapshots")
    people.index()
    assert counts(people)["derived"] == 0 and stored(people) == before
