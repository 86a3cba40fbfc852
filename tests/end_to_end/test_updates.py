"""Updates rebuild only what changed, and give the same result as a build from scratch."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from examples import fewer
from hypothesis import given
from hypothesis import strategies as st
from machine import Small, machine, tiny_parts
from stored_index import reseal
from world import PEOPLE, TOWN, Built, Silent, World

from graphrag_ray.base.errors import DeletionRefused
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import (
    finish_stage,
    merge_stage,
    read_stage,
    reports_stage,
    search_stage,
)
from graphrag_ray.store import index_files, snapshots
from graphrag_ray.store.snapshots import Manifest

NAMES = ["ANNA", "BERT", "CORA", "DIRK", "EDNA", "FRED", "GINA", "HANS", "INGE", "JOHN", "KATE", "LARS"]
SETTINGS = {"communities": {"max_size": 3, "pack_components_below": 3}, "embeddings": {"enabled": True}}

sentences = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).map(
    lambda names: f"{' met '.join(names)} there. "
)
texts = st.lists(sentences, min_size=1, max_size=5).map("".join)
files = st.sampled_from([f"{c}.txt" for c in "abcdefgh"])
settings = st.sampled_from(
    [
        {},
        {"graph": {"prune": "on"}},
        {"claims": {"enabled": True}},
        {"claims": {"enabled": True}, "graph": {"prune": "on", "min_log_likelihood": 0}},
        {"chunking": {"prepend_metadata": ["title"]}},
        {"reports": {"rewrite_threshold": 0}},
        {"communities": {"max_size": 2, "pack_components_below": 1}},
        {"communities": {"max_size": 3, "pack_components_below": 1}},
        {"reports": {"context_tokens": 600}},
        {"graph": {"edge_weight": "strength"}},
        {"hierarchies": ["leiden", "attributed"]},
    ]
)
changes = st.dictionaries(files, st.one_of(texts, texts, st.none()), min_size=1, max_size=3)


@contextmanager
def everything_anew() -> Iterator[None]:
    """Disable the reuse of parts of the parent snapshot and of derived indexes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "parent_result", lambda self, name: None)
        patch.setattr(search_stage, "_derive", lambda *given: None)
        patch.setattr(finish_stage, "_derive", lambda *given: None)
        patch.setattr(index_files, "list_by_source", lambda store, table: {})
        yield


def newest(world: World) -> Manifest:
    found = snapshots.read_latest(world.store)
    assert found is not None
    return found


@given(
    st.dictionaries(files, texts, min_size=2, max_size=8),
    st.lists(changes, min_size=1, max_size=3),
    st.lists(settings, min_size=1, max_size=2),
    st.sampled_from([1, 200]),
)
@fewer(12)
def test_an_update_equals_a_run_without_reuse(corpus, history, taking_turns, split_bytes):
    """`taking_turns` has the settings of consecutive runs, whose shared parts are in the same store."""
    with machine() as computer, Small() as world, Small() as other, tiny_parts(split_bytes):
        own = world.changes | SETTINGS
        world.changes = own | taking_turns[0]
        world.hold(corpus)
        world.index()
        for n, step in enumerate(history, 1):
            corpus = {n: t for n, t in {**corpus, **step}.items() if t is not None} or corpus
            world.changes = other.changes = own | taking_turns[n % len(taking_turns)]
            world.hold(corpus)
            _copy(world, other)
            one = world.index(allow_deletes=True)
            with everything_anew():
                two = other.index(allow_deletes=True)
            assert one.committed == two.committed
            for name, parts in newest(other).tables.items():
                assert [p.path for p in newest(world).parts(name)] == [p.path for p in parts], name
            for name, made in newest(other).steps.items():
                own_step = newest(world).steps[name]
                assert own_step["tables"] == made["tables"], name
                assert name == "search" or own_step["counts"] == made["counts"], name
        asked = len(computer.asked)
        assert not world.index(allow_deletes=True).committed and len(computer.asked) == asked


def _copy(world: World, to: World) -> None:
    for ours, theirs in ((to.input, world.input), (to.root, world.root)):
        shutil.rmtree(ours, ignore_errors=True)
        shutil.copytree(theirs, ours)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts how often each file is read."""
    read = Counter[str]()
    inner = read_stage.read_file

    def noted(file, *rest):
        read[file.path] += 1
        yield from inner(file, *rest)

    monkeypatch.setattr(read_stage, "read_file", noted)
    with tiny_parts():
        yield read


def test_only_files_that_changed_are_read(world: World, seen: Counter[str]):
    world.write(TOWN)
    world.index()
    assert seen == dict.fromkeys(TOWN, 1)
    assert not world.index().committed and seen.total() == len(TOWN)
    world.write({"mill.txt": "ALICE sold the mill to JUDY.", "quay.txt": "ERIN met HEIDI at the quay."})
    assert world.index().committed
    assert seen == dict.fromkeys(TOWN, 1) | {"mill.txt": 2, "quay.txt": 1}


def test_a_rewritten_identical_file_is_read_but_is_no_change(world: World, seen: Counter[str]):
    world.write(TOWN)
    world.index()
    os.utime(world.input / "mill.txt", (1e9, 1e9))  # By a clock that was set back.
    assert not world.index().committed and seen["mill.txt"] == 2 and seen.total() == len(TOWN) + 1


def test_verify_input_reads_files_with_equal_size_and_time(world: World, seen: Counter[str]):
    world.write(TOWN)
    world.index()
    path = world.input / "weather.txt"
    before = path.stat()
    path.write_text(path.read_text().replace("rained", "snowed"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not world.index().committed
    assert world.index(verify_input=True).manifest.counts["changed"] == 1
    assert seen == dict.fromkeys(TOWN, 2)


def test_files_of_another_folder_are_read_even_if_names_sizes_and_times_match(
    world: World, seen: Counter[str]
):
    for folder, names in (("one", ["ANNA", "BERT"]), ("other", ["CORA", "DIRK"])):
        world.input = world.root.parent / folder
        world.input.mkdir()
        for n, name in enumerate(names):
            path = world.input / f"{n}.txt"
            path.write_text(f"{name} met INGE there.")
            os.utime(path, (1_000_000_000, 1_000_000_000))
        world.index(allow_deletes=True)
    assert sorted(row["text"][:4] for row in world.table("documents")) == ["CORA", "DIRK"]
    assert seen == {"0.txt": 2, "1.txt": 2}


def test_every_run_tries_to_read_an_unreadable_file(world: World, seen: Counter[str]):
    world.write({**TOWN, "torn.parquet": b"PAR1 and no more"})
    world.index()
    assert not world.index().committed
    assert seen == dict.fromkeys(TOWN, 1) | {"torn.parquet": 2}


def test_settings_changed_and_restored_give_the_same_index(world: World, seen: Counter[str]):
    world.write(PEOPLE)
    world.index()
    paths = {name: [p.path for p in parts] for name, parts in newest(world).tables.items()}
    world.index(
        chunking={"size": 10, "overlap": 2, "min_last_chunk_tokens": 2}, reports={"rewrite_threshold": 0}
    )
    world.write({"00.txt": PEOPLE["00.txt"]})
    asked = world.asked()
    world.index()
    assert world.asked() == asked
    for name in ("entity_instances", "relationship_instances"):
        assert [p.path for p in newest(world).parts(name)] == paths[name], name


def test_reordered_rows_with_other_metadata_change_no_entity(world: World):
    rows = [{"id": "a", "text": "ANNA met BERT there.", "x": 1}, {"id": "b", "text": "ANNA met CORA there."}]
    world.write({"rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)})
    world.index(input={"id_column": "id"})
    before = newest(world)
    rows[0]["x"] = 2
    world.write({"rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in reversed(rows))})
    world.index(input={"id_column": "id"})
    assert newest(world).steps["merge"]["tables"] == before.steps["merge"]["tables"]


def test_a_row_without_a_readable_id_keeps_all_documents_of_its_file(world: World, seen: Counter[str]):
    rows = [json.dumps({"id": f"{9 - n}", "text": f"{name} met INGE."}) for n, name in enumerate(NAMES[:4])]
    world.write({"rows.jsonl": "\n".join(rows)})
    world.index(input={"id_column": "id"})
    world.write({"rows.jsonl": "\n".join([rows[0], rows[1][:-9], *rows[2:]])})
    world.index(input={"id_column": "id"})
    assert {row["row"] for row in world.table("documents")} == {"9", "8", "7", "6"}
    assert "keeping its version" in world.table("failures")[0]["error"]


def rows_of_people(*broken: int) -> str:
    """Four rows with two id columns; rows without the second are broken."""
    rows = [
        {"id": f"a{n}", "name": None if n in broken else f"b{n}", "text": f"{name} met INGE."}
        for n, name in enumerate(NAMES[:4])
    ]
    return "\n".join(map(json.dumps, rows))


@pytest.mark.parametrize("id_column", ["id", None])
def test_documents_of_another_id_column_are_not_kept_for_a_row_without_an_id(
    world: World, id_column: str | None
):
    world.write({"rows.jsonl": rows_of_people(2)})
    world.index(input={"id_column": id_column})
    with pytest.raises(DeletionRefused):
        world.index(input={"id_column": "name"})
    world.index(input={"id_column": "name"}, allow_deletes=True)
    assert {row["row"] for row in world.table("documents")} == {"b0", "b1", "b3"}
    assert "keeping its version" not in world.table("failures")[0]["error"]


def test_an_unreadable_file_keeps_its_documents_under_another_id_column(world: World):
    world.write({"rows.jsonl": rows_of_people(0, 1, 2, 3)})
    world.index(input={"id_column": "id"})
    world.index(input={"id_column": "name"})
    assert {row["row"] for row in world.table("documents")} == {"a0", "a1", "a2", "a3"}
    assert all("keeping its version" in row["error"] for row in world.table("failures"))


def test_a_document_that_is_readable_again_is_chunked_with_current_settings(
    built: Built, world: World, seen: Counter[str]
):
    documents = {"a.txt": " ".join(PEOPLE.values()), "b.txt": PEOPLE["00.txt"]}
    world.write(documents)
    world.index()
    small = {"chunking": {"size": 100, "overlap": 0}}
    world.write({"a.txt": ""})
    world.index(**small)
    world.write(documents)
    world.index(**small)
    ids = [
        sorted(row["id"] for row in index.table("text_units")) for index in (world, built(documents, **small))
    ]
    assert ids[0] == ids[1]


def test_unchanged_communities_and_reports_keep_their_date(world: World, seen: Counter[str]):
    world.changes |= {"communities": {"max_size": 3}}
    for at, documents in (
        (1_700_000_000.0, PEOPLE),
        (1_710_000_000.0, {"39.txt": PEOPLE["39.txt"] + " ANX wrote to AMX."}),
    ):
        world.write(documents)
        world.index(at=at)
    dates = {
        name: {row["community"]: row["period"] for row in world.table(name)}
        for name in ("communities", "community_reports")
    }
    assert dates["communities"] == dates["community_reports"]
    assert set(dates["communities"].values()) == {"2023-11-14", "2024-03-09"}


def test_changed_header_columns_embed_chunks_again(built: Built, world: World, seen: Counter[str]):
    rows = [{"title": f"{n}", "author": author, "text": PEOPLE["00.txt"]} for n, author in enumerate(NAMES)]
    texts = {"rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)}
    with_authors = {
        "embeddings": {"enabled": True},
        "chunking": {"prepend_metadata": ["title", "metadata.author"]},
    }
    world.write(texts)
    world.index(embeddings={"enabled": True})
    world.index(**with_authors)
    rebuilt = built(texts, **with_authors)
    for table in ("embeddings_text_unit", "text_units"):
        assert newest(world).parts(table) == newest(rebuilt).parts(table), table


@pytest.mark.parametrize(
    ("step", "table"),
    [
        ("read", "split_documents"),
        ("extract", "found_entities"),
        ("merge", "entity_instances"),
        ("merge", "lower_words"),
        ("merge", "covariates"),
        ("communities", "block_entities"),
        ("describe", "relationships"),
        ("finish", "text_units"),
    ],
)
def test_damaged_parts_are_rebuilt_and_others_kept(world: World, seen: Counter[str], step: str, table: str):
    world.write(PEOPLE)
    settings: dict[str, Any] = {"graph": {"prune": "on"}, "claims": {"enabled": True}}
    world.index(**settings)
    before = newest(world)
    first = next(group[0] for group in before.steps[step]["tables"][table] if group)
    (world.root / first[0]).unlink()
    asked = world.asked()
    world.write({"39.txt": PEOPLE["39.txt"] + " BBX wrote to ABX."})
    world.index(**settings)
    assert world.asked() - asked < len(PEOPLE)
    other = newest(world).tables
    with everything_anew():
        world.index(**settings, verify=True)
    assert newest(world).tables == other
    kept = {p.path for p in before.parts("text_units")} & {p.path for p in newest(world).parts("text_units")}
    assert len(kept) >= len(PEOPLE) - 3


def of_one_group(groups: list[Any]) -> list[Any]:
    return groups[:1]


def twice_as_many(groups: list[Any]) -> list[Any]:
    return [*groups, *groups]


@pytest.mark.parametrize("change", [of_one_group, twice_as_many])
@pytest.mark.parametrize(
    ("step", "table"),
    [
        ("read", "split_documents"),
        ("read", "text_units"),
        ("extract", "found_entities"),
        ("merge", "entity_instances"),
        ("merge", "entities"),
        ("communities", "hierarchy"),
        ("reports", "reports"),
        ("finish", "text_units"),
    ],
)
def test_an_update_of_an_index_with_missing_or_repeated_groups_succeeds(
    built: Built,
    world: World,
    seen: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    table: str,
    change: Callable[[list[Any]], list[Any]],
):
    world.changes |= {"communities": {"max_size": 3}}
    documents = dict(list(PEOPLE.items())[:14])
    world.write(documents)
    world.index()

    def said_of(snapshot: dict[str, Any]) -> None:
        tables = snapshot["steps"][step]["tables"]
        tables[table] = change(tables[table])

    reseal(world.root, said_of)
    monkeypatch.setattr("world.Silent", Trusting)
    documents["13.txt"] += " ABX wrote to ADX."
    world.write(documents)
    world.index()
    rebuilt = built(documents, communities={"max_size": 3})
    for name in ("documents", "text_units", "entities", "relationships"):
        ids = [sorted(row["id"] for row in index.table(name)) for index in (world, rebuilt)]
        assert ids[0] == ids[1], name


class Trusting(Silent):
    """An observer of a run that may discard existing results."""

    def message(self, message: str) -> None:
        self.notes.append(message)


class Counting(Silent):
    """An observer that records the result of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, Mapping[str, Any]] = {}

    def step_ended(self, name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> None:
        self.told[name] = counts


def test_a_changed_document_leaves_nearly_all_parts_of_every_step(
    world: World, seen: Counter[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(merge_stage, "n_ranges", lambda table, rows: 64)
    world.changes |= {"graph": {"prune": "on", "min_log_likelihood": 0}, "communities": {"max_size": 3}}
    world.write(PEOPLE)
    world.index()
    world.write({"39.txt": PEOPLE["39.txt"] + " ANX wrote to AMX."})
    planned: list[int] = []
    start = reports_stage._start
    monkeypatch.setattr(
        reports_stage, "_start", lambda *given: planned.append(given[-1]["community"]) or start(*given)
    )
    monkeypatch.setattr("world.Silent", Counting)
    done = world.index()
    told = world.observer.told
    assert told["extract"]["asked"] == {"items": 1, "total": 40, "noun": "chunks"}
    assert told["extract"]["reused_parts"] == {"reused": 39, "total": 40}
    for step in ("read", "merge", "describe", "communities", "embed", "finish"):
        parts = told[step]["reused_parts"]
        assert parts["total"] > 20 and parts["reused"] > 0.5 * parts["total"], step
    communities = done.manifest.counts["communities"]
    assert 0 < len(set(planned)) < 0.6 * communities
