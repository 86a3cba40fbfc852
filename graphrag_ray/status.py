"""What an index holds, from its own files: the newest snapshot, the journal, the lock."""

from __future__ import annotations

from typing import Any

from graphrag_ray.errors import CorruptPart, IndexNotFound
from graphrag_ray.index import JOURNALS
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.steps.damage import needed
from graphrag_ray.store import compaction, locks, snapshots
from graphrag_ray.store.damage import differing
from graphrag_ray.store.files import Store


def status_of(store: Store, snapshot: int | None = None) -> dict[str, Any]:
    """Plain values for people and scripts. damaged: what is known to be damaged without reading every byte:
    the manifest, parts of the journal, parts of tables that are missing or too short.

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
    return found


def _journal(name: str, totals: compaction.Totals) -> dict[str, Any]:
    models = totals.by_model.values()
    return {
        "stage": name,
        "done": totals.done,
        "turns": sum(m.calls for m in models),
        "failed": totals.failed,
        "tokens": sum(m.prompt_tokens + m.completion_tokens for m in models),
    }
