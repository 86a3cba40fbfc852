"""A small index that is built once per test process, and functions that change the content of its snapshots.

It has two documents of the town of `world.py`, model `m`, and embeddings by model `e`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import toy_model
from endpoint import Endpoint
from world import TOWN, World

from graphrag_ray.store import snapshots
from graphrag_ray.store.files import Store


def copied(folder: Path) -> Path:
    """The index in `folder`/index, with its documents in `folder`/input."""
    shutil.copytree(_made(), folder, dirs_exist_ok=True)
    return folder / "index"


@cache
def _made() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="stored-index-"))
    with Endpoint(respond=toy_model.respond) as endpoint:
        world = World(folder, endpoint)
        world.write({name: TOWN[name] for name in ("council.txt", "mill.txt")})
        world.index(**world.embedding)
    return folder


def rewrite(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the settings in all snapshots and run records of an index, and update their checksums."""

    def change_settings(content: dict[str, Any]) -> None:
        if "settings" in content:
            change(content["settings"])

    reseal(root, change_settings, "snapshots/*.json", "runs/*.json")


def without_snapshot(root: Path) -> None:
    """Make the index look as if its only run had been killed before the end."""
    store = Store(str(root))
    for path in ("CURRENT", "snapshots/1.json"):
        store.delete(path)


def reseal(root: Path, change: Callable[[dict[str, Any]], None], *names: str) -> None:
    """Change the content of its snapshots, or of the named files."""
    for path in (path for name in names or ["snapshots/*.json"] for path in root.glob(name)):
        content = orjson.loads(path.read_bytes())
        content.pop("digest", None)
        change(content)
        sealed = path.parent.name == "snapshots"
        path.write_bytes(snapshots.seal(content) if sealed else orjson.dumps(content))
