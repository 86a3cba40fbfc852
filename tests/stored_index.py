"""Indexes that earlier programs made, and ways of changing what stands in their snapshots.

`index_with_endpoints`: its snapshot still says how models are reached. Two documents of the town of
`world.py`, the model `m`, embeddings by the model `e`, prompts in a folder beside it of which one was edited.

Three that the commands of 0.1.0 made on Ray when every step still depended on each line of the package. Each
is made of `input`, with claims, dates and titles, and with small chunks, communities and contexts:

    offline       by the offline engine: two snapshots, the second with a new document and one that changed
    with_replies  the same of more documents, by the toy models `m` and `e`
    stopped       the first run of with_replies, stopped by its budget when it had three of seven reports

In all of them a row of `letters.jsonl` has no text; in the latter two the model refused `slander.txt`. The
folder `cache` has the replies to QUESTION, asked by global and by local search.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import orjson

from graphrag_ray.store import snapshots
from graphrag_ray.store.files import Store

DATA = Path(__file__).parent / "data"
QUESTION = "What about OTTO ?"

Kept = Literal["offline", "with_replies", "stopped"]


def unpacked(folder: Path) -> Path:
    """The index, in `folder`/index; its documents are in `folder`/input, its prompts in `folder`/prompts."""
    with zipfile.ZipFile(DATA / "index_with_endpoints.zip") as archive:
        archive.extractall(folder)
    return folder / "index"


def unpack(name: Kept, folder: Path) -> None:
    """Into `folder`: index, input, cache."""
    with tarfile.open(DATA / f"index_{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")


def rewrite(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the settings in all snapshots and records of runs of an index, and seal them again."""

    def change_settings(content: dict[str, Any]) -> None:
        if "settings" in content:
            change(content["settings"])

    reseal(root, change_settings, "snapshots/*.json", "runs/*.json")


def without_snapshot(root: Path) -> None:
    """As if its one run had been killed before the end."""
    store = Store(str(root))
    for path in ("CURRENT", "snapshots/1.json"):
        store.delete(path)


def by_another_program(root: Path) -> None:
    """As if a program had made its snapshots of which this one knows nothing: no step is taken for done."""

    def change(content: dict[str, Any]) -> None:
        content["run"]["code"] = "another"
        for step in content["steps"].values():
            step["fingerprint"] = "another"

    reseal(root, change)


def reseal(root: Path, change: Callable[[dict[str, Any]], None], *names: str) -> None:
    """Change what its snapshots, or files of these names, say."""
    for path in (path for name in names or ["snapshots/*.json"] for path in root.glob(name)):
        content = orjson.loads(path.read_bytes())
        content.pop("digest", None)
        change(content)
        sealed = path.parent.name == "snapshots"
        path.write_bytes(snapshots._sealed(content) if sealed else orjson.dumps(content))
