"""What an index holds, from its own files: the newest snapshot, the journal, the lock."""

from __future__ import annotations

from typing import Any

from graphrag_ray.errors import IndexNotFound
from graphrag_ray.index import JOURNALS
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.steps.run import iso
from graphrag_ray.store import compaction, locks, runs, snapshots
from graphrag_ray.store.files import Store


def status_of(store: Store, snapshot: int | None = None) -> dict[str, Any]:
    """Plain values for people and scripts.

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
