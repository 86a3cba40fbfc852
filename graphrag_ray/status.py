"""What an index holds, from its own files: the newest snapshot, the journal, the lock."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from graphrag_ray.errors import CorruptPart, IndexNotFound
from graphrag_ray.index import JOURNALS
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.steps.damage import needed
from graphrag_ray.steps.run import iso
from graphrag_ray.store import compaction, locks, runs, snapshots
from graphrag_ray.store.damage import differing
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import FOLDER


def status_of(store: Store, snapshot: int | None = None, *, listed: bool = False) -> dict[str, Any]:
    """Plain values for people and scripts. damaged: what is known to be damaged without reading every byte:
    the manifest, parts of the journal, parts of tables that are missing or too short.

    listed: with all snapshots that are kept, the newest first

    Raises IndexNotFound where there is neither a snapshot nor work in progress.
    """
    damaged: list[str] = []
    manifest = None
    try:
        manifest = snapshots.load(store, snapshot) if snapshot is not None else snapshots.latest(store)
    except CorruptPart as e:
        damaged.append(str(e))
    totals = {name: compaction.totals(store, name) for name in JOURNALS}
    damaged += [f"{store.url_of(path)} cannot be read" for t in totals.values() for path in t.damaged]
    rows = (_journal(name, found) for name, found in totals.items())
    journal = [row for row in rows if row["turns"] or row["failed"]]
    if manifest is None and not journal and not damaged and not store.list("locks"):
        raise IndexNotFound(
            f"there is no index at {store.url}; make one with: graphrag-ray index INPUT --root {store.url}"
        )
    writer = locks.holder(store)
    found: dict[str, Any] = {
        "root": store.url,
        "writer": str(writer) if writer else None,
        "snapshot": None,
        "journal": journal,
        "usage": [],
        "notes": {},
        "damaged": damaged,
        "last_run": _last_run(store, writer),
    }
    if manifest is not None:
        found |= {
            "snapshot": manifest.number,
            "parent": manifest.parent,
            "created_at": manifest.created_at,
            "version": manifest.version,
            "counts": dict(manifest.counts),
            "run": dict(manifest.run),
            "usage": list(Accounts.from_dict(manifest.usage).rows()),
            "notes": dict(manifest.notes),
        }
        wrong = differing(store, "tables", needed(manifest))
        damaged += [f"{store.url_of(path)} {what}" for path, what in wrong.items()]
    if listed:
        found["snapshots"] = _snapshots(store)
    return found


def _last_run(store: Store, writer: locks.Holder | None) -> dict[str, Any] | None:
    """What the last run was given, what it did, and how it ended."""
    record = runs.latest(store)
    if record is None:
        return None
    killed = record.outcome == runs.RUNNING and (writer is None or writer.nonce != record.nonce)
    return {
        "outcome": "killed" if killed else record.outcome,
        "exit_code": record.exit_code,
        "message": record.message,
        "started_at": iso(record.started_at),
        "ended_at": iso(record.ended_at),
        "snapshot": record.snapshot,
        "given": dict(record.given),
        "steps": {name: dict(step) for name, step in record.steps.items()},
        "usage": list(Accounts.from_dict(record.usage).rows()),
    }


def _snapshots(store: Store) -> list[dict[str, Any]]:
    """bytes: of the parts that a snapshot needs; own_bytes: of those that no other one needs."""
    kept = []
    for number in reversed(snapshots.numbers(store)):
        with suppress(IndexNotFound):  # Removed since it was listed.
            kept.append(snapshots.load(store, number))
    size = {info.path: info.bytes for info in store.list(FOLDER)}
    named = {m.number: snapshots.parts_of(m) for m in kept}
    users = Counter(path for paths in named.values() for path in paths)
    return [
        {
            "snapshot": m.number,
            "created_at": m.created_at,
            "documents": m.counts["documents"],
            "entities": m.counts["entities"],
            "reports": m.counts["reports"],
            "cost_usd": Accounts.from_dict(m.usage).total.cost_usd,
            "bytes": sum(size.get(path, 0) for path in named[m.number]),
            "own_bytes": sum(size.get(path, 0) for path in named[m.number] if users[path] == 1),
        }
        for m in kept
    ]


def _journal(name: str, totals: compaction.Totals) -> dict[str, Any]:
    models = totals.by_model.values()
    return {
        "stage": name,
        "done": totals.done,
        "turns": sum(m.calls for m in models),
        "failed": totals.failed,
        "tokens": sum(m.prompt_tokens + m.completion_tokens for m in models),
    }
