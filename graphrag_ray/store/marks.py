"""The mark that items of a journal were put back (`retries.py`), as a small file beside its parts.

work/<dialogue>/retried.json    changes whenever items are put back: steps that depend on the journal's
                                answers to them are done again; `until`: the latest of all retry rows
"""

from __future__ import annotations

import secrets

import orjson

from graphrag_ray.store.files import Store
from graphrag_ray.store.journal_parts import folder
from graphrag_ray.store.parquet import READS

_END_OF_TIME_S = 1e10


def path(dialogue: str) -> str:
    return f"{folder(dialogue)}/retried.json"


def text(store: Store, dialogue: str) -> str:
    """What it says, whatever that is; "" where nothing was put back. Raises StoreError."""
    try:
        return store.read(path(dialogue)).decode(errors="replace")
    except FileNotFoundError:
        return ""


def until(store: Store, dialogue: str) -> float | None:
    """Unix seconds of the latest retry row; 0.0 where nothing was put back, None where the mark is damaged.
    Raises StoreError."""
    for _ in range(READS):
        try:
            found = orjson.loads(store.read(path(dialogue))).get("until", 0.0)
        except FileNotFoundError:
            return 0.0
        except (orjson.JSONDecodeError, AttributeError):
            continue
        if isinstance(found, int | float) and 0 <= found < _END_OF_TIME_S:
            return float(found)
    return None


def write(store: Store, dialogue: str, told: str, until: float) -> None:
    """told: for people. Raises StoreError."""
    mark = {"retried": secrets.token_hex(8), "told": told, "until": until}
    store.write(path(dialogue), orjson.dumps(mark))
