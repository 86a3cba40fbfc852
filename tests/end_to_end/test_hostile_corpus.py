"""Documents made to stop an indexing run: each one fails at most itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from world import TOWN, World

from graphrag_ray.corpus import chunks, parse
from graphrag_ray.indexing.estimate import estimate
from graphrag_ray.indexing.forecast import corpus_counts

N = 60_000
"""Number of repetitions with which anything quadratic would not end."""
MARKS = "\u0301\u0316" * N

READ: dict[str, str] = {
    "instruction.html": "<?php echo 1 ?><?mso-x y><p>ALICE met BOB.<?xml version='1.0'?></p>",
    "cdata.html": "<!doctype x [<!entity y>]><![CDATA[<p>]]><svg><![CDATA[</svg>]]></svg><p>ALICE met BOB.",
    "deep.html": "<div>" * N + "ALICE met BOB." + "</div>" * N,
    "lists.html": "<ul><li>" * N + "ALICE met BOB.",
    "unclosed.html": "".join(f"<b {i}><i {i}>" for i in range(N)) + "ALICE met BOB." + "x</b>" * N,
    "attributes.html": "<p " + " ".join(f"a{i}=1" for i in range(N)) + ">ALICE met BOB.",
    "options.html": "<select>" + "<option>x" * N + "</select>ALICE met BOB.",
    "hidden.html": '<div a="</div>"><!--</div>--><object></div></object>' * (N // 4) + "ALICE met BOB.",
    "spaces.md": "# Title" + " " * N + "x\n\nALICE met BOB.",
    "hashes.md": "# " + "#" * N + "x" + "#" * N + "\n\nALICE met BOB.",
    "marks.txt": "ALICE met BOB. e" + MARKS,
    "family.txt": "ALICE met BOB. " + "👨\u200d👩\u200d👧" * (N // 10),
    "commas.csv": "text,id\nALICE met BOB.,1" + "," * N + "\nCAROL met DAVE.,2\n",
    "deep.jsonl": '{"text": ' + "[" * N + "\n" + '{"text": "ALICE met BOB."}\n',
    "number.jsonl": '{"text": "ALICE met BOB."}\n{"text": "x", "n": ' + "9" * N + "}\n",
    "keys.jsonl": '{"text": "ALICE met BOB.", "\ud83d": NaN}\n'.encode("utf-8", "surrogatepass").decode(
        "latin-1"
    ),
}
"""Where people met, and something else stands."""


def test_every_document_is_read_and_invalid_rows_are_failures(world: World):
    world.write(READ)
    done = world.index()
    met = {d["path"] for d in world.table("documents")}
    assert met == READ.keys() and done.manifest.counts["documents"] == len(READ) + 1
    assert all("ALICE met BOB." in d["text"] for d in world.table("documents") if d["row"] != "2")
    failed = {(f["document"], f["item"]) for f in world.table("failures")}
    assert failed == {("deep.jsonl", "1"), ("number.jsonl", "2")}
    assert {"ALICE", "BOB", "CAROL", "DAVE"} <= {e["title"] for e in world.table("entities")}


def test_only_regular_files_are_opened(world: World):
    world.write(TOWN)
    os.mkfifo(world.input / "pipe.txt")
    os.symlink("pipe.txt", world.input / "link.md")
    os.symlink("/dev/zero", world.input / "zero.html")
    os.symlink("loop.csv", world.input / "loop.csv")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(world.input / "socket.jsonl"))
        assert estimate(str(world.input), world.settings()).corpus.unreadable == 5
        done = world.index()
    told = {f["document"]: f["error"] for f in world.table("failures")}
    assert told.keys() == {"pipe.txt", "link.md", "zero.html", "loop.csv", "socket.jsonl"}
    assert "not a regular file" in told["link.md"] and "not a regular file" in told["zero.html"]
    assert done.manifest.counts["documents"] == len(TOWN)


def test_folders_that_link_to_each_other_are_read_once_and_once_by_link(world: World):
    folders = [world.input / f"{i:02}" for i in range(12)]
    for folder in folders:
        world.write({f"{folder.name}/a.txt": f"ALICE met BOB in {folder.name}."})
    for one, other in permutations(folders, 2):
        os.symlink(other, one / f"to-{other.name}")
    world.index()
    documents = world.table("documents")
    assert {len({d["path"] for d in documents if f.name in d["text"]}) for f in folders} == {2}


def test_indexes_batches_and_caches_in_input_are_not_documents(world: World, tmp_path: Path):
    world.write(TOWN)
    world.root = world.input / "old" / "index"
    world.index()
    journal = world.store.list("work/extract")[0].path
    cache = world.input / "cache" / "work" / "answer"
    cache.mkdir(parents=True)
    (cache / Path(journal).name).write_bytes(world.store.read(journal))
    world.root = tmp_path / "new"
    done = world.index()
    assert done.failed == 0 and done.manifest.counts["documents"] == len(TOWN)
    assert any("2 indexes skipped (cache, old/index)" in note for note in world.observer.notes)


def test_a_folder_with_the_name_of_an_index_folder_is_read(world: World):
    world.write(
        {
            "tables/a.txt": "ALICE met BOB.",
            "work/b.txt": "CAROL met DAVE.",
            "snapshots/1.txt": "ERIN met BOB.",
        }
    )
    assert world.index().manifest.counts["documents"] == 3


@pytest.mark.parametrize("name", ["a\udcff.txt", "-rf *.txt", "new\nline.txt", "\u202e.txt"])
def test_files_with_any_name_are_read(world: World, name: str):
    (world.input / name).write_text("ALICE met BOB.")
    assert world.index().failed == 0


def test_unexpected_errors_fail_one_document_or_row_with_their_location(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    def broken(of: Callable[..., Any]) -> Callable[..., Any]:
        def maybe(text: Any, *more: Any) -> Any:
            return of(text, *more) if "FAIL" not in str(text) else 1 // 0

        return maybe

    monkeypatch.setattr(parse, "read_html", broken(parse.read_html))
    monkeypatch.setattr(parse, "to_json", broken(parse.to_json))
    monkeypatch.setattr(chunks, "split_into_chunks", broken(chunks.split_into_chunks))
    monkeypatch.setattr(corpus_counts, "split_into_chunks", broken(corpus_counts.split_into_chunks))
    world.write(
        TOWN
        | {"a.html": "<p>FAIL", "b.txt": "FAIL", "c.jsonl": '{"text": "x", "n": "FAIL"}\n{"text": "y"}\n'}
    )
    assert estimate(str(world.input), world.settings()).corpus.unreadable == 3
    done = world.index()
    assert done.manifest.counts["documents"] == len(TOWN) + 1
    told = {(f["document"], f["item"]): f["error"] for f in world.table("failures")}
    assert told.keys() == {("a.html", "a.html"), ("b.txt", "b.txt"), ("c.jsonl", "1")}
    assert all("ZeroDivisionError" in error for error in told.values())
    assert "corpus/parse.py:" in told["a.html", "a.html"] and "corpus/chunks.py:" in told["b.txt", "b.txt"]
    monkeypatch.undo()
    assert world.index().manifest.counts["documents"] == len(TOWN) + 4 and world.table("failures") == []
