"""Clean up an index: remove unused parts, unused journal entries, and all traces of deleted documents.

A purge removes, without a grace period:

- the snapshots that contain the document, with all parts that only they use,
- every journal item that the newest snapshot does not replay, because a reply about the document's entities
  may quote it and does not record its sources,
- damaged parts and unfinished files, because their content is unknown.

If a purge is interrupted, the next call that deletes completes it. On request, files outside the index
(`NOT_PURGED`) are searched for traces, which are listed.
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

PENDING = f"{gc.FOLDER}/purge.json"  # an unfinished purge: snapshots to delete, and hashes of document names
MAX_LISTED_NAMES = 3

# Data that may quote a document and that a purge does not remove.
NOT_PURGED = (
    "evaluation folders and their pages",
    "exports, and reports and pages made from them",
    "reply caches (--cache)",
    "batch answers (--out) and the folders next to them",
    "saved output and logs",
    "caches on other machines",
    "old versions in versioned storage",
)
QUOTATION_WORDS = 6  # minimum number of consecutive words of a document that count as a quotation
_QUOTED, _NAMED = "quotes it", "names it"
_BLOCK_BYTES = 1 << 22
_OVERLAP_CHARS = 1 << 12  # end of a block that is searched again with the next one

# Each of these characters counts as a word: scripts without spaces between words, and Korean.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
# JSON escapes by code point, possibly nested, and other escapes of JSON and HTML, which count as spaces.
_UNICODE_ESCAPE = re.compile(r"\\+u([0-9a-fA-F]{4})")
_OTHER_ESCAPE = re.compile(r"\\+[nrtbf]|&(?:amp;)*(?:amp|lt|gt|quot|nbsp|#x?[0-9a-fA-F]{1,6});")

_Hashes: TypeAlias = npt.NDArray[np.uint64]
# Hashes of word sequences, by kind (_QUOTED or _NAMED) and number of words.
_Marks: TypeAlias = dict[tuple[str, int], _Hashes]


@dataclass(frozen=True)
class CleanupResult:
    """What was removed, or would be removed if not `deleted`.

    Attributes:
        journal: The journal entries to remove, by dialogue.
        documents: Paths of the purged documents. If no snapshot contains any, the names that were passed.
        writer: The process that is writing the index, if any.
        traces: By URL, searched files with traces of the documents: "quotes it", "names it", or "cannot be
            searched (reason)".
    """

    plan: gc.GcPlan
    journal: Mapping[str, compaction.TrimPlan] = field(default_factory=dict)
    documents: Sequence[str] = ()
    deleted: bool = False
    writer: str | None = None
    traces: Mapping[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return self.plan.empty and not any(t.parts or t.damaged for t in self.journal.values())


@dataclass(frozen=True)
class _Purge:
    """The snapshots to delete, hashes of the names that were passed, and paths of the documents."""

    numbers: frozenset[int]
    name_hashes: frozenset[str]
    paths: tuple[str, ...] = ()


def clean_up(
    store: Store,
    options: gc.GcOptions,
    *,
    purge: Sequence[str] = (),
    search_paths: Sequence[str] = (),
    journal: bool = False,
    delete: bool = False,
) -> CleanupResult:
    """Clean up an index, or report what would be removed.

    Args:
        purge: Documents to purge: paths as in the documents table, globs over them, or ids.
        search: Folders and files outside the index to search for purged documents.
        journal: Remove journal entries that the newest snapshot does not replay.
        delete: Remove the data. Otherwise nothing is written and no lock is taken.

    Raises:
        UsageError: A document, a path in `search` or the index does not exist, or the replay failed.
        DeletionRefused: The newest snapshot contains one of the documents.
        LockHeld: A run is active.
        StoreError: Storage failed or a manifest is damaged.
    """
    if search_paths and not purge:
        raise UsageError("--also searches for purged documents. Name them with --purge.")
    snapshots.open_latest(store)  # Fail before a lock is created in a folder that is not an index.
    writer = None if delete else locks.find_holder(store)
    no_lock: AbstractContextManager[locks.Lock | None] = nullcontext()
    with locks.acquire(store, note="gc") if delete else no_lock as lock:
        newest = snapshots.open_latest(store)
        purged = _plan_purge(store, newest, purge)
        traces = _search_elsewhere(store, newest, purged, search_paths) if purged and search_paths else {}
        if purged:
            options = replace(options, at_once=purged.numbers, damaged=True)
        needed = keys_needed(store, newest) if purged or journal else {}
        names = () if not (purged or journal) else compaction.list_dialogues(store) if purged else JOURNALS
        keep = {name: needed.get(name, np.empty(0, np.uint64)) for name in names}
        drop_damaged = purged is not None
        result = CleanupResult(
            gc.plan_gc(store, options, lock),
            {
                name: compaction.plan_trim(store, name, keys, drop_damaged=drop_damaged)
                for name, keys in keep.items()
            },
            purged.paths if purged else (),
            deleted=delete,
            writer=str(writer) if writer else None,
            traces=traces,
        )
        if lock is None:
            return result
        if purged:
            record = {"snapshots": sorted(purged.numbers), "names": sorted(purged.name_hashes)}
            lock.check()
            store.write(PENDING, orjson.dumps(record))
        for name, keys in keep.items():
            compaction.trim(store, name, keys, drop_damaged=drop_damaged, check=lock.check)
        gc.execute_gc(store, result.plan, lock.check)
        if purged:
            store.delete(PENDING)
        return result


def _plan_purge(store: Store, newest: Manifest, names: Sequence[str]) -> _Purge | None:
    """Find the snapshots with the documents, and add an unfinished purge. Returns None without either."""
    pending = None
    with suppress(FileNotFoundError):
        record = orjson.loads(store.read(PENDING))
        pending = _Purge(frozenset(record["snapshots"]), frozenset(record["names"]))
    if not names:
        return pending
    by_snapshot, paths = _match_documents(store, _manifests(store), newest.number, names)
    if newest.number in by_snapshot:
        current = sorted({path for matches in by_snapshot[newest.number].values() for path in matches})
        listed = f"{', '.join(current[:MAX_LISTED_NAMES])}{', …' if len(current) > MAX_LISTED_NAMES else ''}"
        raise DeletionRefused(
            f"Snapshot {newest.number}, the newest, contains {plural(len(current), 'document')} to be purged "
            f"({listed}). Delete them from INPUT, run `graphrag-ray index`, then purge them."
        )
    known = {name for matches in by_snapshot.values() for name in matches}
    hashes = {name: stable_id("purge", name) for name in names}
    for name in names:
        if name not in known and not (pending and hashes[name] in pending.name_hashes):
            near = get_close_matches(name, sorted(paths), 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UsageError(
                f"No snapshot at {store.url} contains a document {name!r}. Documents are named by their path "
                f"below INPUT.{hint} If the last snapshot with it has already been removed, `gc --journal "
                "--damaged --grace 0` removes what remains of it."
            )
    matched = {path for by_name in by_snapshot.values() for matches in by_name.values() for path in matches}
    numbers, name_hashes = frozenset(by_snapshot), frozenset(hashes.values())
    if pending:
        numbers, name_hashes = numbers | pending.numbers, name_hashes | pending.name_hashes
    return _Purge(numbers, name_hashes, tuple(sorted(matched or names)))


def _manifests(store: Store) -> dict[int, Manifest]:
    """Load all snapshots, including removed ones that may still have readers."""
    removed = gc.removed_snapshots(store)
    return removed | {n: snapshots.load(store, n) for n in snapshots.list_numbers(store)}


def _match_documents(
    store: Store, manifests: Mapping[int, Manifest], newest: int, names: Sequence[str]
) -> tuple[dict[int, dict[str, set[str]]], set[str]]:
    """Return the matching paths by snapshot and name, and all known paths."""
    documents: dict[str, list[tuple[str, str]] | None] = {}  # None: unreadable, so it matches every name.
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
    ids, paths = ({row[i] for rows in documents.values() for row in rows or ()} for i in (0, 1))
    # The exact name of a document is not a glob.
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
    by_snapshot: dict[int, dict[str, set[str]]] = {}
    for number, manifest in manifests.items():
        for part in manifest.parts("documents"):
            for name in names:
                if (matches := matched[part.path, name]) or documents[part.path] is None:
                    by_snapshot.setdefault(number, {}).setdefault(name, set()).update(matches)
    return by_snapshot, paths


def _search_elsewhere(store: Store, newest: Manifest, purged: _Purge, urls: Sequence[str]) -> dict[str, str]:
    """Find files that contain text or names of the documents, or that cannot be searched.

    Text written by a model is found only if it names the document, one of its chunks, or an entity that
    occurs in no other document.
    """
    files: list[tuple[Store, str, int]] = []
    for url in urls:
        options = store.options if protocol_of(url) == protocol_of(store.url) else None
        parent, name = Store.for_file(url.rstrip("/"), options)
        if name and (size := parent.size(name)) is not None:
            files.append((parent, name, size))
            continue
        folder = Store(url, options)
        listed = folder.list()
        if not listed:
            raise UsageError(f"--also {url}: There is no such file, and no such folder with files")
        files += [(folder, info.path, info.bytes) for info in listed]
    marks = _marks(store, newest, [m for n, m in _manifests(store).items() if n in purged.numbers], purged)
    results: dict[str, str] = {}
    for folder, name, size in files:
        url = folder.url_of(name)
        if url.startswith(f"{store.url}/"):
            continue
        kinds = set[str]()
        try:
            for text in _read_text(folder, name, size):
                words = _word_hashes(text)
                kinds |= {
                    kind for (kind, n), hashes in marks.items() if np.isin(_ngrams(words, n), hashes).any()
                }
                if _QUOTED in kinds:
                    break
        except (StoreError, OSError, ValueError, pa.ArrowException) as e:
            results[url] = f"cannot be searched ({' '.join(str(e).split())[:100]})"
        if kinds:
            results[url] = _QUOTED if _QUOTED in kinds else _NAMED
    return results


def _marks(store: Store, newest: Manifest, former: Sequence[Manifest], purged: _Purge) -> _Marks:
    """Hash word sequences, paths, ids and entities that occur only in the documents."""

    def rows(manifests: Iterable[Manifest], table: str, *columns: str) -> Iterator[dict[str, list[Any]]]:
        parts = {part.path: part for manifest in manifests for part in manifest.parts(table)}
        return (read_part(store, part, columns).to_pydict() for part in parts.values())

    remaining = {id_ for batch in rows([newest], "documents", "id") for id_ in batch["id"]}
    documents = {
        id_
        for batch in rows(former, "documents", "id", "path")
        for id_, path in zip(batch["id"], batch["path"], strict=True)
        if path in purged.paths and id_ not in remaining
    }
    names, chunks = [*purged.paths, *documents], set[str]()
    collected: dict[tuple[str, int], list[_Hashes]] = {}

    def add(kind: str, text: str, max_words: int | None = None) -> None:
        words = _word_hashes(text)
        if n := min(len(words), max_words or len(words)):
            collected.setdefault((kind, n), []).append(_ngrams(words, n))

    for batch in rows(former, "text_units", "id", "document_id", "text"):
        for id_, document, text in zip(batch["id"], batch["document_id"], batch["text"], strict=True):
            if document in documents:
                chunks.add(id_)
                add(_QUOTED, text, QUOTATION_WORDS)
    for batch in rows(former, "entities", "title", "text_unit_ids"):
        for title, units in zip(batch["title"], batch["text_unit_ids"], strict=True):
            if not chunks.isdisjoint(units):
                names.append(title)
    for name in [*names, *chunks]:
        add(_NAMED, name)
    marks = {key: np.unique(np.concatenate(hashes)) for key, hashes in collected.items()}
    for table, column in (("text_units", "text"), ("documents", "path"), ("entities", "title")):
        for batch in rows([newest], table, column):
            words = _word_hashes("\n".join(batch[column]))
            marks = {key: hashes[~np.isin(hashes, _ngrams(words, key[1]))] for key, hashes in marks.items()}
    return marks


def _read_text(folder: Store, name: str, size: int) -> Iterator[str]:
    """Yield the text of a file in pieces. Raises ValueError if it is neither text nor Parquet."""
    with folder.open_input(name, size) as file:
        block = file.read(_BLOCK_BYTES)
        if block.startswith(b"PAR1"):
            for batch in pq.ParquetFile(file).iter_batches(1024):
                yield orjson.dumps(batch.to_pylist(), default=str).decode()
            return
        decoder, overlap = codecs.getincrementaldecoder("utf-8")(), ""
        while block:
            if b"\0" in block:
                raise ValueError("neither text nor Parquet")
            text = overlap + decoder.decode(block)
            yield text
            overlap = text[-_OVERLAP_CHARS:]
            block = file.read(_BLOCK_BYTES)


def _word_hashes(text: str) -> _Hashes:
    """Hash each word, ignoring case and the escapes of JSON and HTML between words."""
    plain = _OTHER_ESCAPE.sub(" ", _UNICODE_ESCAPE.sub(lambda code: chr(int(code[1], 16)), text))
    words = _WORD.findall(plain.casefold())
    return np.fromiter((hash(word) for word in words), np.int64, len(words)).view(np.uint64)


def _ngrams(words: _Hashes, n: int) -> _Hashes:
    """Hash each sequence of n consecutive words."""
    hashes = np.zeros(max(0, len(words) - n + 1), np.uint64)
    for start in range(n):
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + words[start : start + len(hashes)]
    return hashes
