"""A worker that was presumed dead may answer a request a second time. Tables use the reply that the journal
selects.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import Any

import pytest
from world import World, everything

from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import DONE, TURN, JournalRow
from graphrag_ray.store.retry_rows import find_duplicate_replies

SMALL = {
    "communities": {"max_size": 3, "pack_components_below": 1},
    "reports": {"context_tokens": 256},
    "embeddings": {"enabled": False},
}


def chain_of_people(n: int) -> dict[str, str]:
    name = [f"{chr(65 + i // 26)}{chr(65 + i % 26)}X" for i in range(n + 3)]
    return {f"{i:02}.txt": f"{name[i]} knows {name[i + 1]} and {name[i + 2]}." for i in range(n)}


def journal_earlier_replies(store: Store) -> int:
    """Journal another, earlier reply to each report request, as a worker that was presumed dead might."""
    index = JournalIndex.load(store, "report")
    zombie = JournalWriter(store, "report", "zombie")
    written = [r for key in answered_keys(store) for r in index.rows_of_item(key) if r.kind == TURN]
    for row in written:
        reply = json.loads(row.reply or "")
        zombie.append(
            replace(row, at=row.at - 1, reply=json.dumps({**reply, "title": "Z " + reply["title"]}))
        )
    zombie.flush()
    return len(written)


def answered_keys(store: Store) -> list[str]:
    from graphrag_ray.store.journal import list_parts
    from graphrag_ray.store.parts import read_part

    return sorted(
        {
            r["key"]
            for info in list_parts(store, "report")
            for r in read_part(store, info.path, ["key", "kind"]).to_pylist()
            if r["kind"] == DONE
        }
    )


def test_reports_use_the_valid_reply(world: World, monkeypatch: pytest.MonkeyPatch):
    world.write(chain_of_people(40))
    world.index(**SMALL)
    undisturbed = everything(world.open())["community_reports"]
    assert len({r["level"] for r in undisturbed}) > 1
    world.forget()
    sweep, duplicates = LocalExecutor.sweep, []

    def disturbed(self: LocalExecutor, work: Any, source: Any, index: Any) -> Any:
        done = sweep(self, work, source, index)
        if work.name == "report" and not duplicates:
            duplicates.append(journal_earlier_replies(world.store))
        return done

    monkeypatch.setattr(LocalExecutor, "sweep", disturbed)
    world.index(**SMALL)
    reports = everything(world.open())["community_reports"]
    assert duplicates == [len(undisturbed)]
    assert any(r["title"].startswith("Z ") for r in reports) and reports != undisturbed

    for folder in ("tables", "snapshots", "locks", "runs"):
        shutil.rmtree(world.root / folder)
    (world.root / "CURRENT").unlink()
    asked = world.asked()
    world.index(**SMALL)
    assert world.asked() == asked, "the journal has a reply for every planned report"
    assert everything(world.open())["community_reports"] == reports


def row(key: str, at: float, **changes: Any) -> JournalRow:
    return replace(JournalRow(key, 0, 0, "h", TURN, at, reply=f"at {at}"), **changes)


def test_only_two_valid_replies_to_one_request_are_duplicates(world: World):
    store = world.store
    keys = [f"{i:064x}"[::-1] for i in range(6)]
    for writer, rows in (
        ("a", [row(k, 5.0) for k in keys]),
        ("b", [row(keys[1], 6.0)]),
        ("c", [row(keys[2], 6.0, request_hash="another")]),
        ("d", [row(keys[3], 6.0, turn=1)]),
        ("e", [row(keys[4], 5.0)]),  # Duplicated, as after a killed compaction.
        ("f", [row(keys[5], 5.0, kind="retry", reply=None), row(keys[5], 7.0)]),
    ):
        journal = JournalWriter(store, "report", writer)
        for r in rows:
            journal.append(r)
        journal.flush()
    assert find_duplicate_replies(store, "report") == {keys[1]}
    assert find_duplicate_replies(store, "extract") == set()
