"""What an index holds, from its own files: the newest snapshot, the journal, the lock."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from graphrag_ray.errors import IndexNotFound
from graphrag_ray.index import JOURNALS
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.store import compaction, locks, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import FOLDER


def status_of(store: Store, snapshot: int | None = None, *, listed: bool = False) -> dict[str, Any]:
    """Plain values for people and scripts.

    listed: with all snapshots that are kept, the newest first

    Raises IndexNotFound where there is neither a snapshot nor work in progress.
    """
    manifest = snapshots.load(store, snapshot) if snapshot is not None else snapshots.latest(store)
    journal = [row for row in (_journal(store, name) for name in JOURNALS) if row["turns"] or row["failed"]]
    if manifest is None and not journal and not store.list("locks"):
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
    if listed:
        found["snapshots"] = _snapshots(store)
    return found


def _snapshots(store: Store) -> list[dict[str, Any]]:
    """bytes: of the parts that a snapshot needs; own_bytes: of those that no other one needs."""
    kept = []
    for number in reversed(snapshots.numbers(store)):
        with suppress(IndexNotFound):  # Removed since it was listed.
            kept.append(snapshots.load(store, number))
    size = {info.path: info.bytes for info in store.list(FOLDER)}
    needed = {m.number: snapshots.parts_of(m) for m in kept}
    users = Counter(path for paths in needed.values() for path in paths)
    return [
        {
            "snapshot": m.number,
            "created_at": m.created_at,
            "documents": m.counts["documents"],
            "entities": m.counts["entities"],
            "reports": m.counts["reports"],
            "cost_usd": Accounts.from_dict(m.usage).total.cost_usd,
            "bytes": sum(size.get(path, 0) for path in needed[m.number]),
            "own_bytes": sum(size.get(path, 0) for path in needed[m.number] if users[path] == 1),
        }
        for m in kept
    ]


def _journal(store: Store, name: str) -> dict[str, Any]:
    totals = compaction.totals(store, name)
    models = totals.by_model.values()
    return {
        "stage": name,
        "done": totals.done,
        "turns": sum(m.calls for m in models),
        "failed": totals.failed,
        "tokens": sum(m.prompt_tokens + m.completion_tokens for m in models),
    }
