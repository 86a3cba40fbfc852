"""Vector and keyword search in a snapshot, which search methods request with `Search`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_model
from endpoint import Endpoint, Status
from world import TOWN, Built, World

from graphrag_ray import open_index
from graphrag_ray.base.errors import GraphRagError, SnapshotRemoved, UsageError
from graphrag_ray.base.schema import search_index_table
from graphrag_ray.engine.model_access import Models
from graphrag_ray.indexing.purge import clean_up
from graphrag_ray.indexing.stages import search_stage as steps_search
from graphrag_ray.offline import embed_many
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Hit, Kind, Method, Question, Search, SearchEnv
from graphrag_ray.query.model_calls import Asker, Connections
from graphrag_ray.query.searcher import Searching
from graphrag_ray.store import index_files
from graphrag_ray.store.files import Store
from graphrag_ray.store.gc import GcOptions
from graphrag_ray.store.parts import Part, read_table

KINDS: tuple[Kind, ...] = ("entity", "relationship", "text_unit", "community_report")
TABLES = dict(zip(KINDS, ("entities", "relationships", "text_units", "community_reports"), strict=True))
HARBOUR = "DAVE sold the boat to ERIN at the harbour"


def found(index: Index, *searches: Search) -> list[list[Hit]]:
    async def all_of_them() -> list[list[Hit]]:
        searching = Searching(index.searcher, Asker(Connections(Models.from_settings(index.settings))))
        return list(await asyncio.gather(*(searching.find(s) for s in searches)))

    return asyncio.run(all_of_them())


def ids(index: Index, *search: Any) -> list[str]:
    return [hit.id for hit in found(index, Search(*search))[0]]


def text_of(world: World, id_: str) -> str:
    return next(row["text"] for row in world.table("text_units") if row["id"] == id_)


def shards(world: World, name: str = "") -> set[str]:
    tables = world.open().manifest.tables
    return {p.path for table, parts in tables.items() if table.startswith(f"search_{name}") for p in parts}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An index of TOWN. Not to be changed."""
    with Endpoint(respond=toy_model.respond) as endpoint:
        world = World(tmp_path_factory.mktemp("town"), endpoint)
        world.write(TOWN)
        world.index()
        yield world


@pytest.fixture
def copy(town: World, tmp_path: Path) -> World:
    shutil.copytree(town.root.parent, tmp_path / "copy")
    return World(tmp_path / "copy", town.endpoint)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["vector", "keyword"])
def test_every_record_is_found_by_its_own_words(town: World, kind: Kind, by: str):
    index = town.open()
    rows = index.table(TABLES[kind]).to_pylist()
    for row in rows:
        parts = (row.get(c) for c in ("title", "source", "target", "description", "full_content", "text"))
        hits = found(index, Search(kind, by, " ".join(filter(None, parts)), len(rows)))[0]
        assert row["id"] in [hit.id for hit in hits[: 1 + len(rows) // 3]]
        assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.id))


def test_vector_search_is_exact(town: World):
    index = town.open()
    rows = read_table(index.store, index.manifest.parts("embeddings_text_unit")).to_pylist()
    wanted = np.frombuffer(embed_many([HARBOUR])[0], "<f4")
    expected = sorted(((float(np.dot(r["vector"], wanted)), r["id"]) for r in rows), reverse=True)
    hits = found(index, Search("text_unit", "vector", HARBOUR, 3))[0]
    assert [hit.id for hit in hits] == [id_ for _, id_ in expected[:3]]
    assert [hit.score for hit in hits] == pytest.approx([score for score, _ in expected[:3]], abs=1e-5)
    assert "boat" in text_of(town, hits[0].id)


@pytest.mark.parametrize("by", ["vector", "keyword"])
def test_search_can_be_restricted_to_ids(town: World, by: str):
    index = town.open()
    all_ = ids(index, "text_unit", by, "ALICE met BOB at the mill", 10)
    assert ids(index, "text_unit", by, "ALICE met BOB at the mill", 10, all_[1:]) == all_[1:]
    assert ids(index, "text_unit", by, "ALICE met BOB at the mill", 10, []) == []
    assert ids(index, "text_unit", by, "ALICE met BOB at the mill", 10, ["unknown"]) == []


@pytest.mark.parametrize("by", ["vector", "keyword"])
@pytest.mark.parametrize(
    "text", ["", "?!", "\0", "\ud800 boat", "x" * 20_000, "boat " * 4_000, "字" * 20_000, "\u0301" * 20_000]
)
def test_any_text_can_be_searched_for(town: World, by: str, text: str):
    hits = found(town.open(), Search("text_unit", by, text, 5))[0]
    # Every text with a vector has five nearest texts. Only an empty text has none.
    assert len(hits) == (5 * bool(text) if by == "vector" else "boat" in text)


def test_a_text_without_words_finds_nothing(town: World):
    assert ids(town.open(), "entity", "vector", "", 5) == []


# Payment


def a_method(*searches: Search) -> Any:
    def search(question: Question, given: SearchEnv) -> Method:
        hits: Sequence[list[Hit]] = yield searches
        return Answer(question.text, " ".join(hit.id for found in hits for hit in found), "test")

    return search


def embedded_by(world: World, name: str = "e", **more: Any) -> dict[str, Any]:
    given = {"base_url": world.endpoint.base_url, "api_key_env": None}
    default = world.settings().models["default"].model_dump(mode="json")
    return {
        "default": default,
        "embedding": {"provider": "openai", "model": name, "endpoints": [given]} | more,
    }


def test_a_text_is_embedded_once_for_all_searches_and_accounted(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    models = embedded_by(world, embedding_dimensions=12, price={"input_usd_per_mtok": 1000})
    world.write(TOWN)
    world.index(models=models, embeddings={"max_tokens": 20})
    before = len(world.endpoint.bodies("/embeddings"))
    text = "a question that is longer than the embedding model can take " * 3
    searches = [Search(kind, "vector", text, 2) for kind in KINDS]
    vector = replace(methods.get_method("vector"), search=a_method(*searches))
    monkeypatch.setattr(methods, "get_method", lambda name: vector)
    answer = world.open(models=models, embeddings={"max_tokens": 20}).ask("What?")
    assert len(answer.text.split()) == 7
    (sent,) = world.endpoint.bodies("/embeddings")[before:]
    assert sent["dimensions"] == 12 and len(sent["input"]) == 1
    assert text.startswith(sent["input"][0]) and len(sent["input"][0]) < len(text)
    assert answer.phases["embed"].calls == 1 and answer.phases["embed"].cost_usd > 0


def test_keyword_search_makes_no_call(world: World):
    models = embedded_by(world)
    world.write(TOWN)
    world.index(models=models)
    before = len(world.endpoint.requests)
    assert ids(world.open(), "entity", "keyword", "Who is ALICE?", 5)
    assert len(world.endpoint.requests) == before


def test_a_question_that_cannot_be_embedded_is_an_error_and_not_an_empty_result(world: World):
    models = embedded_by(world)
    world.write(TOWN)
    world.index(models=models)
    world.endpoint.embed = lambda body: Status(400, "your text was rejected", "invalid")
    with pytest.raises(GraphRagError, match=r"could not be embedded.*your text was rejected"):
        ids(world.open(), "entity", "vector", "Who?", 5)


# Incomplete snapshots


def test_another_embedding_model_is_rejected(town: World):
    models = embedded_by(town, "text-embedding-3-small", embedding_dimensions=256)
    other = town.open(models=models)
    with pytest.raises(
        UsageError, match=r"come from offline-\d+, but the settings name text-embedding-3-small"
    ):
        ids(other, "entity", "vector", "Who?", 5)
    assert ids(other, "entity", "keyword", "ALICE", 5)


def test_changed_embedding_dimensions_are_rejected(world: World):
    models = embedded_by(world)
    world.write(TOWN)
    world.index(models=models)
    world.endpoint.dimensions += 1
    with pytest.raises(UsageError, match=r"dimensions.*another model under the same name"):
        ids(world.open(), "entity", "vector", "Who?", 5)


def test_without_embeddings_keyword_search_works_and_vector_search_says_what_to_do(
    world: World, built: Built
):
    world.take(built(TOWN, embeddings={"enabled": False}))
    assert ids(world.open(), "entity", "keyword", "ALICE", 5)
    with pytest.raises(UsageError, match=r"needs embeddings.*embeddings.enabled=true"):
        ids(world.open(), "entity", "vector", "ALICE", 5)
    world.index()
    assert ids(world.open(), "entity", "vector", "ALICE", 5)


def test_a_snapshot_removed_during_a_search_is_reported(copy: World):
    index = copy.open()
    copy.write({"new.txt": "KARL wrote to LENA."})
    copy.index()
    clean_up(copy.store, GcOptions(keep=1, grace_s=0), delete=True)
    with pytest.raises(SnapshotRemoved):
        ids(index, "text_unit", "keyword", "ALICE", 5)


def test_a_remote_snapshot_removed_during_a_search_is_reported(
    town: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Shards are fetched when they are read."""
    monkeypatch.setenv("GRAPHRAG_RAY_CACHE", str(tmp_path))
    monkeypatch.setattr(index_files, "TAIL_BYTES", 1)
    far = Store("memory://removed")
    for info in town.store.list():
        far.write(info.path, town.store.read(info.path))
    index = open_index(far.url)
    assert index.searcher.shards(search_index_table("entity", "vector"))
    for info in far.list():
        far.delete(info.path)
    with pytest.raises(SnapshotRemoved):
        ids(index, "entity", "vector", "ALICE", 5)


def test_shards_opened_before_a_removal_can_still_be_searched(copy: World):
    index = copy.open()
    before = ids(index, "text_unit", "keyword", "ALICE", 5)
    copy.write({"new.txt": "KARL wrote to LENA."})
    copy.index()
    clean_up(copy.store, GcOptions(keep=1, grace_s=0), delete=True)
    assert ids(index, "text_unit", "keyword", "ALICE", 5) == before


def test_remote_shards_are_fetched_once(town: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRAPHRAG_RAY_CACHE", str(tmp_path))
    far = Store("memory://searched")
    for info in town.store.list():
        far.write(info.path, town.store.read(info.path))
    for by in ("vector", "keyword"):
        expected = ids(town.open(), "text_unit", by, HARBOUR, 5)
        assert ids(open_index(far.url), "text_unit", by, HARBOUR, 5) == expected
        far.delete(next(iter(shards(town, f"text_unit_{by}"))))
        assert ids(open_index(far.url), "text_unit", by, HARBOUR, 5) == expected
    assert len(list(tmp_path.glob("*.blocks"))) == 2, "only what was searched was fetched"


# Updates


@pytest.mark.parametrize("by", ["vector", "keyword"])
def test_added_documents_are_found_and_deleted_ones_are_not(copy: World, by: str):
    new = {"zoo.txt": "ZOE feeds the zebras of YURI in the zoo."}
    copy.write(new)
    copy.index()
    (first, *_) = ids(copy.open(), "text_unit", by, "zebras in the zoo", 3)
    assert text_of(copy, first) == new["zoo.txt"]
    assert ids(copy.open(), "entity", "keyword", "ZOE", 3)
    (copy.input / "zoo.txt").unlink()
    copy.index(allow_deletes=True)
    assert first not in ids(copy.open(), "text_unit", by, "zebras in the zoo", 100)
    assert ids(copy.open(), "entity", "keyword", "ZOE", 3) == []


def test_an_update_builds_few_shards_and_none_without_changes(copy: World, monkeypatch: pytest.MonkeyPatch):
    many = {f"more{i:02}.txt": f"ALICE{chr(65 + i)} met BOB{chr(65 + i)}, time {i}." for i in range(20)}
    monkeypatch.setattr("graphrag_ray.indexing.stages.document_parts.split_bytes", lambda total: 64)
    monkeypatch.setattr(steps_search, "SHARD_BYTES", {"keyword": 1 << 14, "vector": 1 << 14})
    copy.write(many)
    copy.index()
    before = shards(copy, "text_unit")
    assert len(before) > 6
    made: list[str] = []
    write = index_files.write_index_file

    def noted(store: Store, name: str, *more: Any) -> Part:
        made.append(name)
        return write(store, name, *more)

    monkeypatch.setattr(index_files, "write_index_file", noted)
    copy.index(query={"response_type": "one sentence"})
    assert made == [] and shards(copy, "text_unit") == before
    copy.write({"more99.txt": "KARL wrote to LENA."})
    copy.index()
    now = shards(copy, "text_unit")
    assert 0 < len(now - before) <= 5 and len(now & before) >= len(before) - 5
    ways = ("keyword", "vector", "names")
    assert sum(made.count(f"search_text_unit_{way}") for way in ways) == len(now - before)
    for by in ("keyword", "vector"):
        hits = found(copy.open(), Search("text_unit", by, "KARL wrote to LENA.", 30))[0]
        assert text_of(copy, hits[0].id) == "KARL wrote to LENA."


def test_large_indexes_find_vectors_by_their_signs(copy: World, monkeypatch: pytest.MonkeyPatch):
    index = copy.open()
    expected = {kind: found(index, Search(kind, "vector", HARBOUR, 5))[0] for kind in KINDS}
    monkeypatch.setattr(steps_search, "EXACT_BYTES", 0)
    monkeypatch.setattr(steps_search, "_stemmer", lambda: "another")
    (copy.root / "CURRENT").unlink()
    shutil.rmtree(copy.root / "snapshots")
    copy.index()
    index = copy.open()
    for kind, hits in expected.items():
        (shard,) = index.searcher.shards(search_index_table(kind, "vector"))
        assert shard.has_signs
        near = found(index, Search(kind, "vector", HARBOUR, 5))[0]
        assert [hit.id for hit in near] == [hit.id for hit in hits]
        assert [hit.score for hit in near] == pytest.approx([hit.score for hit in hits], abs=1e-2)


def test_a_damaged_shard_is_reported_and_rebuilt_by_the_next_run(copy: World):
    for path in shards(copy):
        data = bytearray(copy.store.read(path))
        data[len(data) // 2] ^= 1
        copy.store.write(path, bytes(data))
    before = shards(copy)
    for by in ("vector", "keyword"):
        with pytest.raises(GraphRagError, match=rf"search_entity_{by}.* is damaged.*again with --verify"):
            ids(copy.open(), "entity", by, "ALICE", 5)
    asked = len(copy.endpoint.requests)
    copy.index(verify=True)
    assert shards(copy) == before and len(copy.endpoint.requests) == asked
    assert ids(copy.open(), "entity", "keyword", "ALICE", 5)


def test_a_record_kind_without_records_finds_nothing(world: World):
    world.write({"weather.txt": TOWN["weather.txt"]})
    world.index()
    for by in ("vector", "keyword"):
        assert ids(world.open(), "relationship", by, "ALICE", 5) == []
        assert ids(world.open(), "text_unit", by, "the rain of spring", 5)


def test_a_purged_document_is_in_no_shard(copy: World):
    copy.write({"secret.txt": "XQJZVW met ALICE."})
    copy.index()
    (unit,) = (row["id"] for row in copy.table("text_units") if "XQJZVW" in row["text"])
    (entity,) = (row["id"] for row in copy.table("entities") if row["title"] == "XQJZVW")
    (copy.input / "secret.txt").unlink()
    copy.index(allow_deletes=True)

    def traces() -> list[str]:
        held = (p for p in copy.root.glob("indexes/search_*/**/*") if p.is_file())
        first = [int(id_[:16], 16).to_bytes(8, "little") for id_ in (unit, entity)]
        return [p.name for p in held if any(half in p.read_bytes() for half in first)]

    assert traces()
    clean_up(copy.store, GcOptions(), purge=["secret.txt"], delete=True)
    assert traces() == [] and not copy.index().committed
