"""Cleaning up an index: what no kept snapshot needs, what the newest does not need of the journal, and every
trace of a document that is gone from it.

A purge removes, without grace, the snapshots that hold the document and all that nothing else needs; every
item of the journal that the newest snapshot does not replay, since a reply about the document's entities may
quote it, and says nowhere which texts it was made from; damaged parts and unfinished files, since nobody can
tell what is in them. Killed half-way, it is finished by the next call that deletes.

What people wrote outside the index (`ELSEWHERE`) is searched for the document where they say so, and named.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from graphrag_ray.base.declarations import JOURNALS
from graphrag_ray.base.errors import CorruptPart, DeletionRefused, StoreError, UsageError
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.urls import protocol_of
from graphrag_ray.base.wording import plural
from graphrag_ray.indexing.replay import keys_needed
from graphrag_ray.store import compaction, gc, locks, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_part
from graphrag_ray.store.snapshots import Manifest

PENDING = f"{gc.FOLDER}/purge.json"
"""A purge under way: the snapshots that go, and hashes of the names that were given."""
NAMES_TOLD = 3

ELSEWHERE = (
    "evaluation folders with their pages",
    "exports, and reports and pages made from them",
    "caches of replies (--cache)",
    "answers of batches (--out) with the folders beside them",
    "saved output and logs",
    "caches of other machines",
    "old versions in storage that keeps them",
)
"""Places that may quote a document, and that a purge does not touch."""
WORDS_IN_A_ROW = 6
"""So many words of a document, in a row, are a quotation."""
_QUOTED, _NAMED = "quotes it", "names it"
_BLOCK_BYTES = 1 << 22
_OVERLAP = 1 << 12
"""Characters of a block that are looked at again with the next."""

# Scripts that put no spaces between words are read character by character.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
# What JSON and HTML write for characters that are no letters, and JSON for all others, maybe JSON in JSON.
_CODE = re.compile(r"\\+u([0-9a-fA-F]{4})")
_ESCAPE = re.compile(r"\\+[nrtbf]|&(?:amp;)*(?:amp|lt|gt|quot|nbsp|#x?[0-9a-fA-F]{1,6});")

_Hashes: TypeAlias = npt.NDArray[np.uint64]
_Marks: TypeAlias = dict[tuple[str, int], _Hashes]
"""(`_QUOTED` or `_NAMED`, how many words in a row) -> hashes of such words."""


@dataclass(frozen=True)
class Collected:
    """What goes, or went (`deleted`).

    journal    by dialogue
    documents  paths of those that are purged, as far as a snapshot still knows them
    writer     who works on the index; None: nobody
    elsewhere  files that were searched and still hold something of the documents, and what: "quotes it",
               "names it", or "cannot be searched (why)"
    """

    plan: gc.CleaningPlan
    journal: Mapping[str, compaction.Trimmed] = field(default_factory=dict)
    documents: Sequence[str] = ()
    deleted: bool = False
    writer: str | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        trimmed = any(t.parts or t.unreadable for t in self.journal.values())
        return self.plan.empty and not trimmed


@dataclass(frozen=True)
class _Purge:
    """numbers: of the snapshots that go; names: hashes of what was asked for; paths: of the documents."""

    numbers: frozenset[int]
    names: frozenset[str]
    paths: tuple[str, ...] = ()


def collect(
    store: Store,
    options: gc.Options,
    *,
    purge: Sequence[str] = (),
    also: Sequence[str] = (),
    journal: bool = False,
    delete: bool = False,
) -> Collected:
    """Clean up an index, or tell what would go.

    purge    documents, by their path as in the documents table, by a glob over these, or by id
    also     folders and files outside the index in which the purged documents are looked for
    journal  take out of the journal what the newest snapshot does not replay
    delete   do it; else nothing is written, and no lock taken

    Raises UsageError for a document that no snapshot knows, for a place to search that is not there, and
    where the journal cannot be replayed;
    DeletionRefused for one that the newest snapshot holds; IndexNotFound; LockHeld, naming the running
    writer; CorruptPart for a damaged manifest; StoreError.
    """
    if also and not purge:
        raise UsageError("--also searches for purged documents: name these with --purge")
    snapshots.open_latest(store)  # before a lock is made in a folder that is no index
    writer = None if delete else locks.holder(store)
    held: AbstractContextManager[locks.Lock | None] = nullcontext()
    with locks.acquire(store, note="gc") if delete else held as lock:
        newest = snapshots.open_latest(store)
        purged = _find(store, newest, purge)
        elsewhere = _elsewhere(store, newest, purged, also) if purged and also else {}
        if purged:
            options = replace(options, at_once=purged.numbers, damaged=True)
        needed = keys_needed(store, newest) if purged or journal else {}
        names = () if not (purged or journal) else compaction.dialogues(store) if purged else JOURNALS
        keep = {name: needed.get(name, np.empty(0, np.uint64)) for name in names}
        trimmed = {
            name: compaction.look(store, name, keys, unreadable=purged is not None)
            for name, keys in keep.items()
        }
        found = Collected(
            gc.plan(store, options, lock),
            trimmed,
            purged.paths if purged else (),
            deleted=delete,
            writer=str(writer) if writer else None,
            elsewhere=elsewhere,
        )
        if lock is None:
            return found
        if purged:
            record = {"snapshots": sorted(purged.numbers), "names": sorted(purged.names)}
            lock.check()
            store.write(PENDING, orjson.dumps(record))
        for name, keys in keep.items():
            compaction.trim(store, name, keys, unreadable=purged is not None, check=lock.check)
        gc.carry_out(store, found.plan, lock.check)
        if purged:
            store.delete(PENDING)
        return found


def _find(store: Store, newest: Manifest, names: Sequence[str]) -> _Purge | None:
    """Which snapshots hold the documents; with them, what an earlier purge has not finished. None: nothing
    is purged."""
    begun = None
    with suppress(FileNotFoundError):
        told = orjson.loads(store.read(PENDING))
        begun = _Purge(frozenset(told["snapshots"]), frozenset(told["names"]))
    if not names:
        return begun
    holding, paths = _holding(store, _manifests(store), newest.number, names)
    if newest.number in holding:
        shown = sorted({path for matched in holding[newest.number].values() for path in matched})
        raise DeletionRefused(
            f"snapshot {newest.number}, the newest, holds {plural(len(shown), 'document')} to be purged "
            f"({', '.join(shown[:NAMES_TOLD])}{', …' if len(shown) > NAMES_TOLD else ''}). Delete what shall "
            "go from INPUT and run `graphrag-ray index` first, then purge it"
        )
    known = {name for matched in holding.values() for name in matched}
    hashes = {name: stable_id("purge", name) for name in names}
    for name in names:
        if name not in known and not (begun and hashes[name] in begun.names):
            near = get_close_matches(name, sorted(paths), 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise UsageError(
                f"no snapshot at {store.url} holds a document {name!r}: documents are named by their path "
                f"below INPUT.{meant} Where the last snapshot that held it is gone already, `gc --journal "
                "--damaged --grace 0` takes what is left of it"
            )
    found = {path for matched in holding.values() for some in matched.values() for path in some}
    numbers, marks = frozenset(holding), frozenset(hashes.values())
    if begun:
        numbers, marks = numbers | begun.numbers, marks | begun.names
    return _Purge(numbers, marks, tuple(sorted(found or names)))


def _manifests(store: Store) -> dict[int, Manifest]:
    """Of all snapshots, those whose readers may go on included."""
    removed = gc.taken_away(store)
    return removed | {n: snapshots.load(store, n) for n in snapshots.numbers(store)}


def _holding(
    store: Store, manifests: Mapping[int, Manifest], newest: int, names: Sequence[str]
) -> tuple[dict[int, dict[str, set[str]]], set[str]]:
    """For each snapshot that holds some of the documents: what was asked for -> the paths it stands for.
    And all paths there are."""
    documents: dict[str, list[tuple[str, str]] | None] = {}  # None: cannot be read, and may hold anything
    for number, manifest in manifests.items():
        for part in manifest.parts("documents"):
            if documents.get(part.path) is None:
                try:
                    rows = read_part(store, part, ["id", "path"]).to_pydict()
                    documents[part.path] = list(zip(rows["id"], rows["path"], strict=True))
                except CorruptPart:
                    if number == newest:
                        raise
                    documents[part.path] = None
    ids, paths = ({row[at] for rows in documents.values() for row in rows or ()} for at in (0, 1))
    # What is the name of a document is no glob.
    globs = {n for n in names if n not in paths and n not in ids and any(c in n for c in "*?[")}
    matched = {
        (part, name): {
            path
            for id_, path in rows or ()
            if (fnmatchcase(path, name) if name in globs else name in (id_, path))
        }
        for part, rows in documents.items()
        for name in names
    }
    holding: dict[int, dict[str, set[str]]] = {}
    for number, manifest in manifests.items():
        for part in manifest.parts("documents"):
            for name in names:
                if (found := matched[part.path, name]) or documents[part.path] is None:
                    holding.setdefault(number, {}).setdefault(name, set()).update(found)
    return holding, paths


def _elsewhere(store: Store, newest: Manifest, purged: _Purge, also: Sequence[str]) -> dict[str, str]:
    """Which files of these places hold text of the documents, or their names; and which cannot be searched.

    What a model wrote in its own words is not found, unless it names the document, a chunk, or somebody who
    is in no other document.
    """
    files: list[tuple[Store, str, int]] = []
    for url in also:
        reached = store.options if protocol_of(url) == protocol_of(store.url) else None
        above, name = Store.of_file(url.rstrip("/"), reached)
        if name and (size := above.size(name)) is not None:
            files.append((above, name, size))
            continue
        folder = Store(url, reached)
        listed = folder.list()
        if not listed:
            raise UsageError(f"--also {url}: there is no such file, and no folder with files")
        files += [(folder, info.path, info.bytes) for info in listed]
    marks = _marks(store, newest, [m for n, m in _manifests(store).items() if n in purged.numbers], purged)
    found: dict[str, str] = {}
    for folder, name, size in files:
        url = folder.url_of(name)
        if url.startswith(f"{store.url}/"):
            continue
        held = set[str]()
        try:
            for text in _texts_of(folder, name, size):
                words = _hashed(text)
                held |= {kind for (kind, n), of in marks.items() if np.isin(_rows(words, n), of).any()}
                if _QUOTED in held:
                    break
        except (StoreError, OSError, ValueError, pa.ArrowException) as e:
            found[url] = f"cannot be searched ({' '.join(str(e).split())[:100]})"
        if held:
            found[url] = _QUOTED if _QUOTED in held else _NAMED
    return found


def _marks(store: Store, newest: Manifest, former: Sequence[Manifest], purged: _Purge) -> _Marks:
    """What gives the documents away: their words in a row, their paths, their ids and those of their chunks,
    and the names of entities that only they have. Nothing that the newest snapshot holds as well."""

    def rows(manifests: Iterable[Manifest], table: str, *columns: str) -> Iterator[dict[str, list[Any]]]:
        parts = {part.path: part for manifest in manifests for part in manifest.parts(table)}
        return (read_part(store, part, columns).to_pydict() for part in parts.values())

    stay = {id_ for of in rows([newest], "documents", "id") for id_ in of["id"]}
    documents = {
        id_
        for of in rows(former, "documents", "id", "path")
        for id_, path in zip(of["id"], of["path"], strict=True)
        if path in purged.paths and id_ not in stay
    }
    names, chunks = [*purged.paths, *documents], set[str]()
    found: dict[tuple[str, int], list[_Hashes]] = {}

    def add(kind: str, text: str, most: int | None = None) -> None:
        words = _hashed(text)
        n = min(len(words), most or len(words))
        if n:
            found.setdefault((kind, n), []).append(_rows(words, n))

    for of in rows(former, "text_units", "id", "document_id", "text"):
        for id_, document, text in zip(of["id"], of["document_id"], of["text"], strict=True):
            if document in documents:
                chunks.add(id_)
                add(_QUOTED, text, WORDS_IN_A_ROW)
    for of in rows(former, "entities", "title", "text_unit_ids"):
        for title, units in zip(of["title"], of["text_unit_ids"], strict=True):
            if not chunks.isdisjoint(units):
                names.append(title)
    for name in [*names, *chunks]:
        add(_NAMED, name)
    marks = {key: np.unique(np.concatenate(of)) for key, of in found.items()}
    for table, column in (("text_units", "text"), ("documents", "path"), ("entities", "title")):
        for of in rows([newest], table, column):
            words = _hashed("\n".join(of[column]))
            marks = {key: own[~np.isin(own, _rows(words, key[1]))] for key, own in marks.items()}
    return marks


def _texts_of(folder: Store, name: str, size: int) -> Iterator[str]:
    """What a file holds, piece by piece. Raises ValueError for one that is neither text nor Parquet."""
    with folder.open_input(name, size) as file:
        block = file.read(_BLOCK_BYTES)
        if block.startswith(b"PAR1"):
            for batch in pq.ParquetFile(file).iter_batches(1024):
                yield orjson.dumps(batch.to_pylist(), default=str).decode()
            return
        decoder, before = codecs.getincrementaldecoder("utf-8")(), ""
        while block:
            if b"\0" in block:
                raise ValueError("neither text nor Parquet")
            text = before + decoder.decode(block)
            yield text
            before = text[-_OVERLAP:]
            block = file.read(_BLOCK_BYTES)


def _hashed(text: str) -> _Hashes:
    """A hash of each word, whatever its case, and however JSON or HTML write what is between words."""
    plain = _ESCAPE.sub(" ", _CODE.sub(lambda code: chr(int(code[1], 16)), text))
    words = _WORD.findall(plain.casefold())
    return np.fromiter((hash(word) for word in words), np.int64, len(words)).view(np.uint64)


def _rows(words: _Hashes, n: int) -> _Hashes:
    """A hash of each n words in a row."""
    found = np.zeros(max(0, len(words) - n + 1), np.uint64)
    for place in range(n):
        found = found * np.uint64(0x9E3779B97F4A7C15) + words[place : place + len(found)]
    return found
