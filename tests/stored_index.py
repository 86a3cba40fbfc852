"""An index of a version whose snapshots still said how models are reached: two documents of the town of
`end_to_end/world.py`, the model `m`, embeddings by the model `e`, prompts in a folder beside it of which one
was edited. And a way of putting other settings into such an index, as a stranger may."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from graphrag_ray.store import snapshots
from graphrag_ray.store.files import Store

ARCHIVE = Path(__file__).parent / "data" / "index_with_endpoints.zip"


def unpacked(folder: Path) -> Path:
    """The index, in `folder`/index; its documents are in `folder`/input, its prompts in `folder`/prompts."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder / "index"


def rewrite(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the settings in all snapshots and records of runs of an index, and seal them again."""
    for path in (*root.glob("snapshots/*.json"), *root.glob("runs/*.json")):
        content = orjson.loads(path.read_bytes())
        content.pop("digest", None)
        if "settings" in content:
            change(content["settings"])
        sealed = path.parent.name == "snapshots"
        path.write_bytes(snapshots._sealed(content) if sealed else orjson.dumps(content))


def without_snapshot(root: Path) -> None:
    """As if its one run had been killed before the end."""
    store = Store(str(root))
    for path in ("CURRENT", "snapshots/1.json"):
        store.delete(path)
